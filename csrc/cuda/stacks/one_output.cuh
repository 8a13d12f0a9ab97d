// The loss of a net whose only layer has one output, as in nets that are a feature transformer and a product: the sums,
// the loss, and the gradients of weight and bias, from one pass over x. The gradient of x is grad_output[b] · weight of
// b's stack. It is not stored: the feature transformer's backward takes these two factors (../output_gradient.cuh), or
// a *source* other than XRows makes its row gradients in the same pass (../hopper/one_output_through.cuh).
//
// A thread block takes a tile, some positions at a time. A thread has the same columns of each of these positions; they
// stay in its registers from the product with the weights until the loss is known, for the gradient of the weights.
#pragma once

#include "../../capabilities.h"
#include "tile.cuh"

namespace nnue::cuda::stacks {

// The numbers of a tile in `partials`: the gradient of the stack's weight, then that of its bias. Where row gradients
// are made, their sums over the tile's positions follow, for each input.
inline int numbers_with_weight(const Layers& layers, const GradientLayout& layout, bool rows = false) {
    return round4(layers.at[0].inputs + layout.tile) + (rows ? layers.at[0].inputs : 0);
}

// Launches the kernel for the tiles of `a`. x has at most capabilities::kOnePass bytes for each position.
void run_one_output(const Tensor& x, const TileArguments& a, cudaStream_t stream);

constexpr int kMostPacks = 4;  // of 16 bytes, that a thread has of a position

// Numbers of x that one round of 16-byte loads of a thread block covers.
template <class T>
constexpr int kNumbersPerRound = kThreads * 16 / static_cast<int>(sizeof(T));

static_assert(kMostPacks * kThreads * 16 == capabilities::kOnePass);

// The source of a kernel that is given x, [B, N], and makes no gradient of it.
template <class T>
struct XRows {
    const T* x;
    int inputs;

    using Number = T;
    static constexpr bool kMakesRows = false;
    // Positions at a time. Half as many where the weights and their gradients need 64 registers.
    template <int kPacks>
    static constexpr int kTogether = (sizeof(T) == 2 && kPacks == kMostPacks ? 8 : 16) / kPacks;
    struct Memory {};

    // Called by all threads; the first one also by a thread block without a tile.
    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ float begin_tile(const TileArguments&, const Tile&, Memory&) const { return 0.0f; }
    // 16 bytes of the numbers of the tile's position `place`, from input `column` on.
    __device__ __forceinline__ uint4 load(const Memory&, const Tile& tile, int place, int column) const {
        return __ldcs(
            reinterpret_cast<const uint4*>(x + static_cast<int64_t>(tile.positions[place]) * inputs + column));
    }
    // Inputs 2 i and 2 i + 1 of 16 bytes, in units of x_unit.
    __device__ __forceinline__ static constexpr float x_unit() { return 1.0f; }
    __device__ __forceinline__ float2 pair(const uint4& bytes, int i) const { return Input<T>::pair(bytes, i); }
    // Takes what the kernel has of the inputs of a position, and the gradient of its output times what begin_tile gave.
    __device__ __forceinline__ void take(const Memory&, int, int, const uint4&, const float*, float, float*) const {}
};

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
template <class Source, int kPacks, bool kRounds>
__global__ void __launch_bounds__(kThreads, Source::kMakesRows&& kPacks == kMostPacks ? 1 : 2)
    one_output_kernel(const Source source, const TileArguments a) {
    constexpr int kNumbers = 16 / sizeof(typename Source::Number), kPairs = kNumbers / 2;
    constexpr int kTogether = Source::template kTogether<kPacks>;
    constexpr bool kMakesRows = Source::kMakesRows;
    __shared__ double sums_of_tiles[2 * kThreads];  // for add_totals
    __shared__ Tile tile;
    __shared__ Target targets[kTile];
    __shared__ float shares[2][kTogether][kWarps], of_losses[2][kMakesRows ? kTogether : 1];
    __shared__ typename Source::Memory of_source;
    float* const memory = reinterpret_cast<float*>(sums_of_tiles);
    source.begin();
    if (!load_tile(a.order, a.of_order, tile)) {
        finish_without_tile(a, tile, memory);
        return;
    }
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, inputs = a.layers.at[0].inputs;
    const auto column_of = [&](int pack) { return (pack * kThreads + static_cast<int>(threadIdx.x)) * kNumbers; };
    const float unit = source.begin_tile(a, tile, of_source);
    const Target target = load_target(a, tile);
    if (threadIdx.x < kTile) targets[threadIdx.x] = target;
    const float* const from = a.weights[0] + static_cast<int64_t>(tile.stack) * inputs;
    float weights[kPacks][kNumbers], sums[kPacks][kNumbers] = {}, row_sums[kPacks][kNumbers] = {};
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
        for (int i = 0; i < kNumbers; i += 4) {
            const bool exists = column_of(k) + i < inputs;
            const float4 four = exists ? *reinterpret_cast<const float4*>(from + column_of(k) + i) : float4{};
            weights[k][i] = four.x, weights[k][i + 1] = four.y, weights[k][i + 2] = four.z, weights[k][i + 3] = four.w;
        }
    }
    const float bias = a.biases[0][tile.stack];
    // Inputs 2 i and 2 i + 1 of 16 bytes of x.
    const auto pair = [&](const uint4& bytes, int i) {
        float2 two = source.pair(bytes, i);
        if (kRounds && a.layers.integers.square != 0.0f) {
            two.x = floorf(a.layers.integers.square * (two.x * two.x));
            two.y = floorf(a.layers.integers.square * (two.y * two.y));
        }
        return two;
    };
    float weighted = 0.0f, weight = 0.0f, grad_bias = 0.0f;  // of the lane's positions
    for (int first = 0; first < tile.count; first += kTogether) {
        const int buffer = first / kTogether % 2;  // computed: a register fewer in the loop
        uint4 raw[kTogether][kPacks];
#pragma unroll
        for (int p = 0; p < kTogether; ++p) {
#pragma unroll
            for (int k = 0; k < kPacks; ++k) {
                raw[p][k] =
                    column_of(k) < inputs ? source.load(of_source, tile, first + p, column_of(k)) : uint4{0, 0, 0, 0};
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
        // Every warp computes the losses of these positions, lane p that of position first + p; where row gradients
        // take most of the instructions, one warp for all.
        float gradient = 0.0f, of_rows = 0.0f;
        const int place = first + lane;
        if ((!kMakesRows || warp == 0) && lane < kTogether && place < tile.count) {
            float output = kRounds ? 0.0f : bias;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) output += shares[buffer][lane][w] * source.x_unit();
            const Target& of = targets[place];
            if constexpr (kRounds)
                output = integer_score(a, 0, divided<true>(a, output) + bias, of.psqt, nullptr);
            else
                output += of.psqt;
            const PositionLoss loss = position_loss(a.loss, output, of.score, of.result, of.lambda);
            weighted += loss.weighted, weight += loss.weight;
            of_rows = loss.gradient * unit;
            gradient = kRounds ? loss.gradient * a.layers.integers.layers_slope : loss.gradient;
            grad_bias += gradient;
            if constexpr (kRounds) gradient /= a.layers.integers.divide;
            if (warp == 0) {
                a.grad_output[tile.positions[place]] = loss.gradient;
                if (!kMakesRows) a.grad_sums[tile.positions[place]] = gradient;
            }
        }
        gradient *= source.x_unit();
        if constexpr (kMakesRows) {
            if (warp == 0 && lane < kTogether) of_losses[0][lane] = gradient, of_losses[1][lane] = of_rows;
            __syncthreads();
            if (lane < kTogether) gradient = of_losses[0][lane], of_rows = of_losses[1][lane];
        }
#pragma unroll
        for (int p = 0; p < kTogether; ++p) {
            const float factor = __shfl_sync(kAllLanes, gradient, p);  // 0 if there is no position
            const float row_factor = kMakesRows ? __shfl_sync(kAllLanes, of_rows, p) : 0.0f;
#pragma unroll
            for (int k = 0; k < kPacks; ++k) {
                if (first + p < tile.count && column_of(k) < inputs)
                    source.take(of_source, first + p, column_of(k), raw[p][k], weights[k], row_factor, row_sums[k]);
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
            const auto store = [&](const float(&of)[kNumbers], int at) {
                *reinterpret_cast<float4*>(partials + at) = {of[i], of[i + 1], of[i + 2], of[i + 3]};
            };
            store(sums[k], column_of(k) + i);
            if constexpr (kMakesRows) {
                for (int j = i; j < i + 4; ++j) row_sums[k][j] *= weights[k][j];
                store(row_sums[k], a.tile_numbers - inputs + column_of(k) + i);
            }
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

// Calls `body` with the packs of a thread, for inputs of this type.
template <class T, class Body>
void dispatch_packs(int inputs, const Body& body) {
    const int rounds = static_cast<int>(divide_up(inputs, kNumbersPerRound<T>));
    if (rounds == 1) return body.template operator()<1>();
    rounds == 2 ? body.template operator()<2>() : body.template operator()<kMostPacks>();
}

}  // namespace nnue::cuda::stacks
