// Shared by the kernels of the feature transformer for king-bucketed sets: their arguments, how sums are rounded,
// saved and activated, and the left operand of wgmma, which is made of bitmaps. docs/kernels.md explains the method.
//
// An fp32 gradient x is split into two fp16 terms, x = high + 2⁻¹¹ · low, which keeps at least 22 bits of it. Each term
// has its own sums (GradientShape). A slab is `kSlab` columns of the first half of the outputs and the same columns of
// the second half, so that the pairwise product of clipped halves is local to a thread. The order of every sum
// depends only on the batch.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "../../activation.h"
#include "../../float_type.h"
#include "../output_gradient.cuh"
#include "../ptx.cuh"
#include "bucket_plan.cuh"
#include "group_features.cuh"
#include "unbucketed_lists.cuh"

namespace nnue {

namespace one_hot_product {
struct GradientSync;
struct MergeUnit;
}  // namespace one_hot_product

struct ForwardProblem {
    IndexRows in;
    BucketPlan plan;
    GroupFeatures group_features;  // for 16-bit weights
    const void* weight;            // [num_features, num_outputs]
    const float* bias;             // [num_outputs]
    void* out;        // [2 · positions, width]: width num_outputs / 2 for pairwise, else num_outputs; or null
    void* saved;      // [slots, num_outputs] for the backward (fp32 sums, or fp16 as `encode` gives them), or null
    int num_outputs;  // a multiple of 16
    Activation activation;
    float bound;       // accumulators are clipped to [0, bound]
    float scale;       // factor of the activated outputs
    bool rounds_down;  // the activated outputs
    Float out_type;
};

struct BackwardProblem {
    IndexRows in;
    BucketPlan plan;
    UnbucketedLists unbucketed;
    OutputGradient grad_out;
    const void* saved;
    void* grad_weight;   // [num_features, num_outputs]
    bool leaves_unused;  // whether rows of features that the batch lacks need not be written
    float* grad_bias;    // [num_outputs]; null if it was made with the row gradients
    void* grad_rows;     // [slabs, tiles, 16 KB]: see GradientShape
    int32_t* exponents;  // [slabs, tiles], for fp32 weights
    one_hot_product::GradientSync* sync;
    float* partial;  // scratch: sums of the parts of a bucket (backward_schedule.cuh), 384 ranks each
    one_hot_product::MergeUnit* merges;  // scratch [kMaxMergeUnits + 1]
    float* bias_partial;                 // scratch [stretches, num_outputs]
    int max_tiles;                       // of grad_rows and exponents
    int num_outputs;
    Activation activation;
    float bound, scale;
    Float grad_type, weight_type;  // grad_type fp32 where the weight is fp32
};

namespace one_hot_product {

using namespace ptx;

constexpr float kLowScale = 1.0f / 2048;  // 2^-11
constexpr uint32_t kOneFp16 = 0x3c00, kOneBf16 = 0x3f80;

constexpr int kMaxBuckets = 255;

// For one warp: to[i] = the sum of value_of(0) … value_of(i − 1), for i up to `count`. Returns to[count].
template <typename T, typename ValueOf>
__device__ __forceinline__ T sums_before(T* to, int count, const ValueOf& value_of) {
    const int lane = threadIdx.x % 32;
    T carry = 0;
    for (int base = 0; base < count; base += 32) {
        const int i = base + lane;
        const T mine = i < count ? value_of(i) : 0, inclusive = bucket_plan::inclusive_sum(mine, lane);
        if (i < count) to[i] = carry + inclusive - mine;
        carry += __shfl_sync(~0u, inclusive, 31);
    }
    if (lane == 0) to[count] = carry;
    return carry;
}

// The last of `count` items that begins at or before `place`. If several begin at the same place, this is the one that
// is not empty.
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

// Where the sum of a column of half `h` is saved.
__device__ __forceinline__ size_t saved_at(int slot, int h, int column, int num_outputs) {
    return size_t(slot) * num_outputs + h * (num_outputs / 2) + column;
}

// The address of row `row`, for rows of `row_bytes` each. This is one instruction; the compiler would make six.
template <typename T>
__device__ __forceinline__ T* row_of(T* first, unsigned row, unsigned row_bytes) {
    uint64_t address;
    asm("mad.wide.u32 %0, %1, %2, %3;"
        : "=l"(address)
        : "r"(row), "r"(row_bytes), "l"(reinterpret_cast<uint64_t>(first)));
    return reinterpret_cast<T*>(address);
}

// Clips to [0, bound]. NaN stays NaN.
__device__ __forceinline__ float clip(float x, float bound) {
    asm("max.NaN.f32 %0, %0, 0f00000000;\n\tmin.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(bound));
    return x;
}

// An activated output as it is stored, except for its type.
__device__ __forceinline__ float finished(const ForwardProblem& p, float x) {
    return p.rounds_down ? floorf(x) : x;
}

// How sums are saved for the backward. fp32 sums are saved as they are. In fp16 they are rounded to nearest, but a sum
// above the bound is saved as a number well above it. A sum below 0 keeps its sign bit even if it rounds to 0, and no
// sum is −0 itself. `limit` is the bound rounded up to the type that was saved. So `inside` is exact: the derivative of
// the clip is 1 on the closed interval [0, bound] and 0 outside, like that of torch.clamp.
__device__ __forceinline__ uint32_t encode(float x, float y, float bound) {
    const float above = 2 * bound + 1;
    const __half2 v = __floats2half2_rn(x > bound ? above : x, y > bound ? above : y);
    return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ bool inside(float x, float limit) {
    return __float_as_uint(x) <= __float_as_uint(limit);  // a set sign bit makes the number a large one; so is NaN
}

// The same for two fp16 numbers in a word: clip, and a mask with 16 set bits where `inside` holds.
__device__ __forceinline__ uint32_t clip_halves(uint32_t x, uint32_t bound) {
    asm("max.NaN.f16x2 %0, %0, %1;\n\tmin.NaN.f16x2 %0, %0, %2;" : "+r"(x) : "r"(0u), "r"(bound));
    return x;
}
__device__ __forceinline__ uint32_t halves_inside(uint32_t x, uint32_t limit) {
    uint32_t not_above, negative;
    asm("set.le.u32.f16x2 %0, %2, %3;\n\tprmt.b32 %1, %2, 0, 0xbb99;"  // copies each sign bit to 16 bits
        : "=r"(not_above), "=r"(negative)
        : "r"(x), "r"(limit));
    return not_above & ~negative;
}
__device__ __forceinline__ uint32_t multiply_halves(uint32_t x, uint32_t y) {
    const __half2 product = __hmul2(reinterpret_cast<const __half2&>(x), reinterpret_cast<const __half2&>(y));
    return reinterpret_cast<const uint32_t&>(product);
}

// Turns the gradients of two outputs into those of the two sums. For pairwise both gradients are that of the product.
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

// The left operand of wgmma for step `s` (16 deep), from the bitmap words of rows g and g + 8, which are already
// shifted right by 4 · lane-in-quad.
__device__ __forceinline__ void expand(uint32_t (&a)[4], uint32_t low, uint32_t high, int s, uint32_t one) {
    const uint32_t mask = 0x00010001u;
    a[0] = (low & (mask << (2 * s))) * (one >> (2 * s));
    a[1] = (high & (mask << (2 * s))) * (one >> (2 * s));
    a[2] = (low & (mask << (2 * s + 1))) * (one >> (2 * s + 1));
    a[3] = (high & (mask << (2 * s + 1))) * (one >> (2 * s + 1));
}

// sum += a bitmap word, as `expand` takes it, times the 32 rows of the right operand at this descriptor. These products
// are a separate wgmma group, which still runs on return; `a` holds its left operand and must not change before the
// group is done.
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

}  // namespace one_hot_product
}  // namespace nnue
