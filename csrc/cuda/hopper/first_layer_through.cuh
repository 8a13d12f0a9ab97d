// The backward of the first layer of the stacks, and of the feature transformer's activation, in one kernel: that of
// ../stacks/first_layer_backward.cuh, with SavedRows as the source. The layer's inputs x are recomputed from the
// sums that the forward saved. Instead of the gradient of x, the row gradients that follow from it are written
// (row_gradients.cuh). Only for pairwise products. It reads and writes rows in any order of slots, at least 128 bytes
// of each at a time (64 in 16 bits).
//
// With two terms, row gradients are divided by a power of two. It must be known before any row gradient is, so it
// follows from a bound for all of them, which find_largest prepares: |gradient of x| ≤ outputs · the largest
// |grad_sums| · the largest |weight|. Numbers down to 2⁻²⁸ of the bound still have all 22 bits that the terms can hold.
#pragma once

#include "../stacks/first_layer_backward.cuh"
#include "row_gradients.cuh"

namespace nnue::first_layer_through {

using namespace one_hot_product;

constexpr int kLargestThreads = 256, kLargestGrid = 128;

// The largest magnitudes, as bits, of two arrays: found[i] has those that thread block i has seen. A NaN is larger than
// every number.
__global__ void __launch_bounds__(kLargestThreads)
    find_largest(const float* grad_sums, int64_t num_sums, const float* weight, int64_t num_weights, uint2* found) {
    __shared__ unsigned of_warp[2][kLargestThreads / 32];
    wait_for_kernels_before();
    let_next_kernel_start();
    const auto largest = [](const float* from, int64_t count) {
        unsigned bits = 0;
        const int64_t stride = int64_t(kLargestGrid) * kLargestThreads;
        int64_t i = int64_t(blockIdx.x) * kLargestThreads + threadIdx.x;
#pragma unroll 8
        for (; i < count; i += stride) bits = max(bits, __float_as_uint(from[i]) & 0x7fffffffu);
        return __reduce_max_sync(~0u, bits);
    };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned of_weight = largest(weight, num_weights), of_sums = largest(grad_sums, num_sums);
    if (lane == 0) of_warp[0][warp] = of_sums, of_warp[1][warp] = of_weight;
    __syncthreads();
    if (threadIdx.x != 0) return;
    uint2 all{0, 0};
    for (int w = 0; w < kLargestThreads / 32; ++w) all.x = max(all.x, of_warp[0][w]), all.y = max(all.y, of_warp[1][w]);
    found[blockIdx.x] = all;
}

// kRounds: the forward has rounded x down.
template <int kTerms, bool kRounds>
struct SavedRows {
    BackwardProblem p;
    float x_scale;         // what the gradient of x is multiplied by
    const uint2* largest;  // [kLargestGrid], what find_largest has found; for two terms
    float* bias_segments;  // [workers + slabs, 2, kSlab]: sums of each half's row gradients

    using Number = std::conditional_t<kTerms == 2, float, __half>;
    using Type = cuda::stacks::Input<std::conditional_t<kTerms == 2, float, __nv_bfloat16>>;
    using Shape = GradientShape<kTerms>;
    static constexpr int kRows = 2;  // the two halves of a row
    template <int KO>
    static constexpr int kStages = kTerms == 1 ? 3
                                   : KO == 1   ? 2
                                               : 4;
    template <int KO>
    static constexpr int kTogether = KO == 1 || kTerms == 1 ? 2 : 1;
    struct Memory {
        int slots[2][cuda::stacks::kUnitsAhead + 1][cuda::stacks::kTile];  // of the side to move, of the other side
    };
    struct Sums {
        float bias[2][4];  // of this lane's columns in either half, divided as the row gradients are
        float unit;        // what they are divided by
    };

    // Also writes what the row gradients have besides those of positions: exponents, zeros in padding, and `sync`.
    __device__ __forceinline__ float2 begin(const cuda::stacks::FirstBackward& a, Sums& sums) const {
        clear_padding<kTerms>(p);
        sums.unit = 1.0f;
        if constexpr (kTerms == 2) {
            const int lane = threadIdx.x % 32;
            uint2 all{0, 0};
            for (int i = 0; i < kLargestGrid; i += 32) {
                const uint2 here = __ldcg(largest + i + lane);
                all.x = max(all.x, here.x), all.y = max(all.y, here.y);
            }
            const float factor = fabsf(a.scale.read() * p.scale * x_scale * p.bound) * float(a.outputs);
            const float bound = __uint_as_float(__reduce_max_sync(~0u, all.x)) *
                                __uint_as_float(__reduce_max_sync(~0u, all.y)) * factor * 1.01f;
            const int exponent = tile_exponent(__float_as_uint(bound) & 0x7fffffffu);
            const int operands = Shape::slabs(p.num_outputs) * p.max_tiles;
            for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < operands; i += gridDim.x * blockDim.x)
                p.exponents[i] = exponent;
            if (exponent != kNoExponent) sums.unit = power_of_two(exponent);
        }
        return {p.scale * x_scale / sums.unit, kRounds ? 1.0f : p.scale};
    }
    __device__ __forceinline__ bool wants_gradient() const { return true; }

    __device__ __forceinline__ void load_position(Memory& memory, int place, int i, int position) const {
        const int2 slots = position >= 0 ? slots_of(p, position) : int2{-1, -1};
        memory.slots[0][place][i] = slots.x, memory.slots[1][place][i] = slots.y;
    }
    __device__ __forceinline__ const Number* numbers(const Memory& memory, int place, int i, int /*position*/,
                                                     int column) const {
        const int half = p.num_outputs / 2, side = column >= half;
        return row_of(static_cast<const Number*>(p.saved) + column - side * half, max(memory.slots[side][place][i], 0),
                      p.num_outputs * sizeof(Number));  // as saved_at
    }
    __device__ __forceinline__ int row_stride() const { return p.num_outputs / 2; }

    // Products of clipped sums, without p.scale; in 16 bits they are two fp16 numbers per word. With rounding x itself.
    static constexpr bool kHalves = kTerms == 1 && !kRounds;
    struct Four {
        std::conditional_t<kHalves, uint32_t, float> at[kHalves ? 2 : 4];
    };
    using Rows = cuda::Pack<Number, 4>;
    __device__ __forceinline__ Four four(const Rows (&rows)[2]) const {
        Four found;
        for (int i = 0; i < 2 * kTerms; ++i) {
            if constexpr (kTerms == 2) {
                found.at[i] = clip(rows[0].at[i], p.bound) * clip(rows[1].at[i], p.bound);
                if (kRounds) found.at[i] = floorf(found.at[i] * p.scale);
            } else {
                const uint32_t a = clip_halves(word(rows[0], i), largest_half()),
                               b = clip_halves(word(rows[1], i), largest_half());
                if constexpr (kHalves) {
                    found.at[i] = multiply_halves(a, b);
                } else {  // fp16 has no room for all bits of a product
                    const float2 of_a = unpack(a, Float::kFloat16), of_b = unpack(b, Float::kFloat16);
                    found.at[2 * i] = floorf(of_a.x * (of_b.x * p.scale));
                    found.at[2 * i + 1] = floorf(of_a.y * (of_b.y * p.scale));
                }
            }
        }
        return found;
    }
    __device__ __forceinline__ static void split_two(const Four& a, const Four& b, int i,
                                                     uint32_t (&words)[Type::kParts]) {
        if constexpr (kTerms == 2) {
            cuda::stacks::split(a.at[i], b.at[i], words);
        } else if constexpr (!kHalves) {
            words[0] = pack(a.at[i], b.at[i], Float::kBFloat16);
        } else {
            const float2 two = unpack(__byte_perm(a.at[i / 2], b.at[i / 2], i % 2 ? 0x7632 : 0x5410), Float::kFloat16);
            words[0] = pack(two.x, two.y, Float::kBFloat16);
        }
    }

    // A lane has four columns of both halves. Lanes (g, t) and (g + 1, t), for an even g, exchange four columns: the
    // first then stores eight of the first half, the second eight of the second half.
    __device__ __forceinline__ void take(const Memory& memory, Sums& sums, int place, int i, int position, int first,
                                         int lane_g, const Rows (&stage)[2][4][32], int of_lane, int at,
                                         const float (&g)[4]) const {
        // Read once more, because registers are scarce.
        Rows rows[2];
        for (int h = 0; h < 2; ++h) {
            const uint32_t from = shared_address(&stage[h][of_lane][at]);
            if constexpr (kTerms == 2)
                reinterpret_cast<uint4&>(rows[h]) = load_shared_16<true>(from);
            else
                reinterpret_cast<uint2&>(rows[h]) = load_shared_8(from);
        }
        uint32_t words[2][kTerms][2];
        for (int q = 0; q < 2; ++q) {  // two columns
            float of[2][2];
            if constexpr (kTerms == 2) {
                for (int j = 0; j < 2; ++j) {
                    of[0][j] = of[1][j] = g[2 * q + j];
                    differentiate<Activation::kPairwise>(of[0][j], of[1][j], rows[0].at[2 * q + j],
                                                         rows[1].at[2 * q + j], p.bound, p.bound);
                }
            } else {
                const uint32_t a = word(rows[0], q), b = word(rows[1], q), largest = largest_half();
                const float2 of_a = unpack(clip_halves(b, largest) & halves_inside(a, largest), Float::kFloat16);
                const float2 of_b = unpack(clip_halves(a, largest) & halves_inside(b, largest), Float::kFloat16);
                of[0][0] = g[2 * q] * of_a.x, of[0][1] = g[2 * q + 1] * of_a.y;
                of[1][0] = g[2 * q] * of_b.x, of[1][1] = g[2 * q + 1] * of_b.y;
            }
            for (int h = 0; h < 2; ++h) {
                sums.bias[h][2 * q] += of[h][0], sums.bias[h][2 * q + 1] += of[h][1];
                if constexpr (kTerms == 2)
                    split(of[h][0], of[h][1], words[h][0][q], words[h][1][q]);
                else
                    words[h][0][q] = pack(of[h][0], of[h][1], Float::kBFloat16);
            }
        }
        const int half = p.num_outputs / 2, side = first >= half, in_half = first - side * half;
        const int slot = position < 0 ? 0 : memory.slots[side][place][i];
        const bool second = lane_g % 2 != 0;
        char* const to =
            row_of(operand_of<kTerms>(p, in_half / Shape::kSlab, 0), slot / kTileRows, Shape::kOperandBytes) +
            Shape::offset(second, slot % kTileRows, in_half % Shape::kSlab / 8 + lane_g / 2);
        for (int term = 0; term < kTerms; ++term) {
            uint32_t own[2], other[2];
            for (int j = 0; j < 2; ++j) {
                own[j] = second ? words[1][term][j] : words[0][term][j];
                other[j] = __shfl_xor_sync(~0u, second ? words[0][term][j] : words[1][term][j], 4);
            }
            store_global_16(
                to + term * Shape::kAtomBytes,
                second ? uint4{other[0], other[1], own[0], own[1]} : uint4{own[0], own[1], other[0], other[1]},
                position >= 0);
        }
    }

    __device__ __forceinline__ void end_slab(Sums& sums, int slab) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        float* const to = bias_segments + size_t(blockIdx.x + slab) * 2 * cuda::stacks::kSlab;
        for (int h = 0; h < 2; ++h) {
            for (int j = 0; j < 4; ++j) {
                float& sum = sums.bias[h][j];
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                sum *= sums.unit;
            }
            if (lane % 4 == 0)
                *reinterpret_cast<float4*>(to + h * cuda::stacks::kSlab + warp * 32 + lane) = {
                    sums.bias[h][0], sums.bias[h][1], sums.bias[h][2], sums.bias[h][3]};
            for (int j = 0; j < 4; ++j) sums.bias[h][j] = 0.0f;
        }
    }

    __device__ __forceinline__ uint32_t largest_half() const { return bound_in_halves(p.bound); }
    __device__ __forceinline__ static uint32_t word(const Rows& row, int i) {
        return reinterpret_cast<const uint32_t*>(&row)[i];
    }
};

}  // namespace nnue::first_layer_through
