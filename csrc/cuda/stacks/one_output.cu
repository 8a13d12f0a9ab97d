// The loss of a net whose only layer has one output, as in nets that are a feature transformer and a product: the sums,
// the loss, and the gradients of weight and bias, from one pass over x. The gradient of x is grad_output[b] · weight of
// b's stack. It is not stored: the feature transformer's backward takes these two factors (../output_gradient.cuh).
//
// A thread block takes a tile, some positions at a time. A thread has the same columns of each of these positions; they
// stay in its registers from the product with the weights until the loss is known, for the gradient of the weights.

#include "../../capabilities.h"
#include "one_output.cuh"

namespace nnue::cuda::stacks {

constexpr int kMostPacks = 4;  // of 16 bytes, that a thread has of a position

// Numbers of x that one round of 16-byte loads of a thread block covers.
template <class T>
constexpr int kNumbersPerRound = kThreads * 16 / static_cast<int>(sizeof(T));

static_assert(kMostPacks * kThreads * 16 == capabilities::kOnePass);

// Sums each of the numbers over the lanes of a warp. Lane l gets the sum of numbers[l · kCount / 32]. It calls itself
// for half as many numbers and lanes: in a loop, their indices would not be constants for every GPU, and the numbers
// would be in local memory.
template <int kCount, int kBy = kWarp / 2, int kAll>
__device__ __forceinline__ float sum_over_lanes(float (&numbers)[kAll]) {
    static_assert((kCount & (kCount - 1)) == 0 && kCount <= (kBy == 0 ? 1 : 2 * kBy));
    if constexpr (kBy == 0) {
        return numbers[0];
    } else if constexpr (kCount == 1) {
        numbers[0] += __shfl_xor_sync(kAllLanes, numbers[0], kBy);
        return sum_over_lanes<1, kBy / 2>(numbers);
    } else {
        const bool upper = (threadIdx.x & kBy) != 0;
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) {
            const float low = numbers[i], high = numbers[i + kCount / 2];
            numbers[i] = (upper ? high : low) + __shfl_xor_sync(kAllLanes, upper ? low : high, kBy);
        }
        return sum_over_lanes<kCount / 2, kBy / 2>(numbers);
    }
}

// kPacks · kNumbersPerRound ≥ inputs.
// long: forward and backward of a position use the same inputs and weights in registers.
template <class T, int kPacks, bool kRounds>
__global__ void __launch_bounds__(kThreads, 2) one_output_kernel(const T* x, const TileArguments a) {
    using In = Input<T>;
    constexpr int kNumbers = 16 / sizeof(T), kPairs = kNumbers / 2;
    // Positions. Half as many where the weights and their gradients need 64 registers.
    constexpr int kTogether = (sizeof(T) == 2 && kPacks == kMostPacks ? 8 : 16) / kPacks;
    __shared__ double sums_of_tiles[2 * kThreads];  // for add_totals
    __shared__ Tile tile;
    __shared__ Target targets[kTile];
    __shared__ float shares[2][kTogether][kWarps];
    float* const memory = reinterpret_cast<float*>(sums_of_tiles);
    if (!load_tile(a.order, a.of_order, tile)) {
        finish_without_tile(a, tile, memory);
        return;
    }
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, inputs = a.layers.at[0].inputs;
    const auto column_of = [&](int pack) { return (pack * kThreads + static_cast<int>(threadIdx.x)) * kNumbers; };
    const Target target = load_target(a, tile);
    if (threadIdx.x < kTile) targets[threadIdx.x] = target;
    const float* const from = a.weights[0] + static_cast<int64_t>(tile.stack) * inputs;
    float weights[kPacks][kNumbers], sums[kPacks][kNumbers] = {};
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
        for (int i = 0; i < kNumbers; i += 4) {
            const bool exists = column_of(k) + i < inputs;
            const float4 four = exists ? __ldg(reinterpret_cast<const float4*>(from + column_of(k) + i)) : float4{};
            weights[k][i] = four.x, weights[k][i + 1] = four.y, weights[k][i + 2] = four.z, weights[k][i + 3] = four.w;
        }
    }
    const float bias = __ldg(a.biases[0] + tile.stack);
    // Inputs 2 i and 2 i + 1 of 16 bytes of x.
    const auto pair = [&](const uint4& bytes, int i) {
        float2 two = In::pair(bytes, i);
        if (kRounds && a.layers.integers.square != 0.0f) {
            two.x = floorf(a.layers.integers.square * (two.x * two.x));
            two.y = floorf(a.layers.integers.square * (two.y * two.y));
        }
        return two;
    };
    float weighted = 0.0f, weight = 0.0f, grad_bias = 0.0f;  // of the lane's positions
    int buffer = 0;
    for (int first = 0; first < tile.count; first += kTogether, buffer ^= 1) {
        uint4 raw[kTogether][kPacks];
#pragma unroll
        for (int p = 0; p < kTogether; ++p) {
            const T* const row = x + static_cast<int64_t>(tile.positions[first + p]) * inputs;
#pragma unroll
            for (int k = 0; k < kPacks; ++k) {
                raw[p][k] = column_of(k) < inputs ? __ldcs(reinterpret_cast<const uint4*>(row + column_of(k)))
                                                  : uint4{0, 0, 0, 0};
            }
        }
        float share[kTogether];
#pragma unroll
        for (int p = 0; p < kTogether; ++p) {
            share[p] = 0.0f;
#pragma unroll
            for (int k = 0; k < kPacks; ++k) {
#pragma unroll
                for (int i = 0; i < kPairs; ++i) {
                    const float2 two = pair(raw[p][k], i);
                    share[p] += two.x * weights[k][2 * i];
                    share[p] += two.y * weights[k][2 * i + 1];
                }
            }
        }
        const float total = sum_over_lanes<kTogether>(share);
        if (lane % (kWarp / kTogether) == 0) shares[buffer][lane / (kWarp / kTogether)][warp] = total;
        // One barrier is enough: this buffer is written again two turns later, after the next barrier, and by then all
        // warps have read it.
        __syncthreads();
        // Every warp computes the losses of these positions, lane p that of position first + p.
        float gradient = 0.0f;
        const int place = first + lane;
        if (lane < kTogether && place < tile.count) {
            float output = kRounds ? 0.0f : bias;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) output += shares[buffer][lane][w];
            const Target& of = targets[place];
            if constexpr (kRounds)
                output = integer_score(a, 0, divided<true>(a, output) + bias, of.psqt, nullptr);
            else
                output += of.psqt;
            const PositionLoss loss = position_loss(a.loss, output, of.score, of.result, of.lambda);
            weighted += loss.weighted, weight += loss.weight;
            gradient = kRounds ? loss.gradient * a.layers.integers.layers_slope : loss.gradient;
            grad_bias += gradient;
            if constexpr (kRounds) gradient /= a.layers.integers.divide;
            if (warp == 0) {
                a.grad_output[tile.positions[place]] = loss.gradient;
                a.grad_sums[tile.positions[place]] = gradient;
            }
        }
#pragma unroll
        for (int p = 0; p < kTogether; ++p) {
            const float factor = __shfl_sync(kAllLanes, gradient, p);  // 0 if there is no position
#pragma unroll
            for (int k = 0; k < kPacks; ++k) {
#pragma unroll
                for (int i = 0; i < kPairs; ++i) {
                    const float2 two = pair(raw[p][k], i);
                    sums[k][2 * i] += factor * two.x;
                    sums[k][2 * i + 1] += factor * two.y;
                }
            }
        }
    }
    float* const partials = a.partials + static_cast<int64_t>(blockIdx.x) * a.tile_numbers;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
        for (int i = 0; i < kNumbers; i += 4) {
            if (column_of(k) + i >= inputs) continue;
            *reinterpret_cast<float4*>(partials + column_of(k) + i) = {sums[k][i], sums[k][i + 1], sums[k][i + 2],
                                                                       sums[k][i + 3]};
        }
    }
    if (warp == 0) {
        float of_tile[4] = {weighted, weight, grad_bias, 0.0f};
        const float total = sum_over_lanes<4>(of_tile);  // of_tile[n] in lanes 8 n to 8 n + 7
        weighted = __shfl_sync(kAllLanes, total, 0), weight = __shfl_sync(kAllLanes, total, kWarp / 4);
        grad_bias = __shfl_sync(kAllLanes, total, kWarp / 2);
        if (lane == 0) {
            partials[inputs] = grad_bias;
            tile.is_last = report_totals(a, weighted, weight);
        }
    }
    finish_tile(a, tile, memory);
}

namespace {

// Calls `body` with the type of x and whether the layers round, which float16 inputs never are for.
template <class Body>
void dispatch_rounding(ScalarType dtype, bool rounds, const Body& body) {
    dispatch_input(dtype, [&]<class T>() {
        if constexpr (!std::is_same_v<T, __half>) {
            if (rounds) return body.template operator()<T, true>();
        }
        body.template operator()<T, false>();
    });
}

}  // namespace

void run_one_output(const Tensor& x, const TileArguments& a, cudaStream_t stream) {
    const unsigned tiles = static_cast<unsigned>(a.of_order.most_tiles());
    dispatch_rounding(x.scalar_type(), a.layers.integers.rounds, [&]<class T, bool kRounds>() {
        const int rounds = static_cast<int>(divide_up(a.layers.at[0].inputs, kNumbersPerRound<T>));
        const auto kernel = rounds == 1   ? one_output_kernel<T, 1, kRounds>
                            : rounds == 2 ? one_output_kernel<T, 2, kRounds>
                                          : one_output_kernel<T, kMostPacks, kRounds>;
        launch("one_output_kernel", kernel, tiles, kThreads, 0, stream, const_data<T>(x), a);
    });
}

}  // namespace nnue::cuda::stacks
