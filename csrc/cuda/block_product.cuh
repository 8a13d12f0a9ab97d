// The feature transformer of king-bucketed sets as a product on Hopper's tensor cores.
//
// All rows of a feature block form a 0/1 matrix [rows, 768]; the forward is that matrix times the block's weights, the
// weight gradient its transpose times the row gradients: of frequent features, as the others are gathered. The 0/1
// matrix is never stored: it lives as one bit per entry (block_rows.cuh) and becomes 16-bit floats in registers, the
// left operand of wgmma. Every product has a factor 0 or 1, so 16-bit weights are exact and sums are fp32. An fp32
// gradient x is cut into two fp16 parts, x = high + 2⁻¹¹ · low, which keeps 22 bits or more of it; each part has its
// own sums. The forward of fp32 weights is in block_gather.cuh.
//
// Columns: a slab is `kSlab` columns of the first half of the outputs and the same columns of the second half, so that
// the pairwise product of clipped halves is local to a thread. A fixed number of thread blocks (workers) share the work
// evenly, in an order and with a partition that depend on the batch alone.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "../activation.h"
#include "block_rows.cuh"
#include "hopper.cuh"
#include "loose_rows.cuh"
#include "tile_features.cuh"

namespace nnue {

enum class Float : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

namespace block_product {
struct GradientSync;
struct MergeUnit;
}  // namespace block_product

struct ForwardProblem {
    IndexRows in;
    BlockRows rows;
    const RowOrder* order;       // where there are loose features
    TileFeatures tile_features;  // there, with 16-bit weights
    const void* weight;          // [num_features, num_outputs]
    const float* bias;           // [num_outputs]
    void* out;                   // [2 · positions, width]: width num_outputs / 2 for pairwise, else num_outputs
    void* saved;                 // [slots, num_outputs] for the backward (fp32 sums, or fp16: see encode), or null
    int num_outputs;             // a multiple of 16
    Activation activation;
    float bound;  // clip to [0, bound]
    float scale;  // of the activated outputs
    Float out_type;
};

struct BackwardProblem {
    IndexRows in;
    BlockRows rows;
    LooseRows loose;
    const void* grad_out;  // like out
    const void* saved;
    void* grad_weight;   // [num_features, num_outputs], all of it is written
    float* grad_bias;    // [num_outputs]
    void* grad_rows;     // scratch [slabs, tiles, 16 KB]: see GradientShape
    int32_t* exponents;  // scratch [slabs, tiles], for fp32 weights
    float* partial;      // scratch: sums of parts of a block (gradient_plan.cuh), 384 ranks each
    LooseList* rare;     // scratch [num_blocks · 768]: rare features; `feature` is the row of the gradient
    int* rare_slots;     // scratch: the lists
    block_product::MergeUnit* merges;   // scratch [kMaxMergeUnits + 1]
    float* bias_partial;                // scratch [stretches, num_outputs]
    block_product::GradientSync* sync;  // scratch
    int max_tiles;                      // of grad_rows and exponents
    int num_outputs;
    Activation activation;
    float bound, scale;
    Float grad_type, weight_type;  // grad_type fp32 where the weight is fp32
};

namespace block_product {

using namespace hopper;

// Thread blocks that share a product: the multiprocessors of an H100 or H200. A constant, so that the order of every
// sum is a function of the batch alone.
constexpr int kWorkers = 132;

constexpr float kLowScale = 1.0f / 2048;  // 2^-11
constexpr uint32_t kOneFp16 = 0x3c00, kOneBf16 = 0x3f80;

constexpr int kMaxBlocks = 255;

// A warp: to[i] = the sum of value_of(0) … value_of(i − 1), up to i = `count`, which is returned.
template <typename T, typename ValueOf>
__device__ __forceinline__ T sums_before(T* to, int count, const ValueOf& value_of) {
    const int lane = threadIdx.x % 32;
    T carry = 0;
    for (int base = 0; base < count; base += 32) {
        const int i = base + lane;
        const T mine = i < count ? value_of(i) : 0, inclusive = block_rows::warp_inclusive_sum(mine, lane);
        if (i < count) to[i] = carry + inclusive - mine;
        carry += __shfl_sync(~0u, inclusive, 31);
    }
    if (lane == 0) to[count] = carry;
    return carry;
}

// The last of `count` that begins at `place` or before: the one of several at one place that is not empty.
template <typename T>
__device__ __forceinline__ int last_begun(const T* begin, int count, T place) {
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (begin[middle] <= place)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// Where a worker's stretch of units begins that would begin at `even`, of `total`: with a unit, if one begins or ends
// nearer than `sharing`, what it costs that two workers share one. `cost_begin`: of the `num_units` units of a slab.
template <typename T>
__device__ __forceinline__ T stretch_begin(T even, T total, const int* cost_begin, int num_units, int sharing) {
    if (even == total) return total;
    const int rest = int(even % cost_begin[num_units]), unit = last_begun(cost_begin, num_units, rest);
    const int before = rest - cost_begin[unit], after = cost_begin[unit + 1] - rest;
    return min(before, after) > sharing ? even : before <= after ? even - before : even + after;
}

// Where the sum of a column (of half `h`) is saved.
__device__ __forceinline__ size_t saved_at(int slot, int h, int column, int num_outputs) {
    return size_t(slot) * num_outputs + h * (num_outputs / 2) + column;
}

// The address of row `row` of rows of `row_bytes` each: one instruction, where the compiler makes six.
template <typename T>
__device__ __forceinline__ T* row_of(T* first, unsigned row, unsigned row_bytes) {
    uint64_t address;
    asm("mad.wide.u32 %0, %1, %2, %3;"
        : "=l"(address)
        : "r"(row), "r"(row_bytes), "l"(reinterpret_cast<uint64_t>(first)));
    return reinterpret_cast<T*>(address);
}

// ---- element-wise parts

// To [0, bound]; NaN stays NaN.
__device__ __forceinline__ float clip(float x, float bound) {
    asm("max.NaN.f32 %0, %0, 0f00000000;\n\tmin.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(bound));
    return x;
}

// Sums are saved for the backward as they are in fp32. In fp16 they are rounded to nearest, but a sum above the bound
// is saved as well above it; a sum below 0 keeps its sign bit even where it rounds to 0, and no sum is −0 itself. So
// with `limit`, the bound rounded up to what was saved, `inside` is exact: the clamp's derivative is 1 on the closed
// interval [0, bound] and 0 outside, as torch.clamp has it.
__device__ __forceinline__ uint32_t encode(float x, float y, float bound) {
    const float above = 2 * bound + 1;
    const __half2 v = __floats2half2_rn(x > bound ? above : x, y > bound ? above : y);
    return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ bool inside(float x, float limit) {
    return __float_as_int(x) >= 0 && !(x > limit);
}

// Turns the gradients of two outputs (of the product, for pairwise: both the same) into those of the two sums.
template <Activation kActivation>
__device__ __forceinline__ void differentiate(float& ga, float& gb, float sa, float sb, float bound, float limit) {
    if constexpr (kActivation == Activation::kPairwise) ga *= clip(sb, bound), gb *= clip(sa, bound);
    if constexpr (kActivation == Activation::kSCReLU) ga *= 2 * sa, gb *= 2 * sb;
    if constexpr (kActivation != Activation::kIdentity) {
        ga = inside(sa, limit) ? ga : 0.0f;
        gb = inside(sb, limit) ? gb : 0.0f;
    }
}

__device__ __forceinline__ uint32_t pack(float x, float y, Float type) {
    if (type == Float::kBFloat16) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        return reinterpret_cast<const uint32_t&>(v);
    }
    const __half2 v = __floats2half2_rn(x, y);
    return reinterpret_cast<const uint32_t&>(v);
}

__device__ __forceinline__ float2 unpack(uint32_t v, Float type) {
    if (type == Float::kBFloat16) return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
    return __half22float2(reinterpret_cast<const __half2&>(v));
}

// x = high + 2⁻¹¹ · low, for two x at a time.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn((x - back.x) * 2048.0f, (y - back.y) * 2048.0f);
    high = reinterpret_cast<const uint32_t&>(h);
    low = reinterpret_cast<const uint32_t&>(l);
}

// Left operand of wgmma from bitmap words of rows g and g + 8 (already shifted right by 4 · lane-in-quad): k16 step
// `s`.
__device__ __forceinline__ void expand(uint32_t (&a)[4], uint32_t low, uint32_t high, int s, uint32_t one) {
    const uint32_t mask = 0x00010001u;
    a[0] = (low & (mask << (2 * s))) * (one >> (2 * s));
    a[1] = (high & (mask << (2 * s))) * (one >> (2 * s));
    a[2] = (low & (mask << (2 * s + 1))) * (one >> (2 * s + 1));
    a[3] = (high & (mask << (2 * s + 1))) * (one >> (2 * s + 1));
}

// sum += the product of a bitmap word, as expand takes it, and the 32 rows of the right operand at this descriptor; a
// group of products of its own, which runs on. `a` is its left operand until then.
template <bool kBf16>
__device__ __forceinline__ void multiply_word(float (&sum)[64], uint32_t (&a)[2][4], uint32_t low, uint32_t high,
                                              uint32_t one, uint32_t operand) {
#pragma unroll
    for (int k = 0; k < 2; ++k) expand(a[k], low, high, k, one);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 2; ++k) wgmma_k16<kBf16>(sum, a[k], operand + k * 128);
    wgmma_commit();
}

}  // namespace block_product
}  // namespace nnue
