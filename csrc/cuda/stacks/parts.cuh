// Splits numbers into bfloat16 parts and multiplies the parts on tensor cores. A float32 number is exactly the sum of
// three parts; then products are as exact as float32. Two parts hold its first 16 bits (see Input).
#pragma once

#include "../../layer_stacks.h"
#include "../common.cuh"
#include "../ptx.cuh"

namespace nnue::cuda::stacks {

using namespace layer_stacks;

template <class T>
__device__ __forceinline__ uint32_t bits_of(const T& two_numbers) {
    return *reinterpret_cast<const uint32_t*>(&two_numbers);
}

// Splits two numbers into parts, the largest part first. words[p] has part p of both numbers, that of `a` in its low
// half.
template <int kParts>
__device__ __forceinline__ void split(float a, float b, uint32_t (&words)[kParts]) {
    for (int p = 0; p < kParts; ++p) {
        words[p] = bits_of(__floats2bfloat162_rn(a, b));
        if (p + 1 < kParts) {
            a -= __uint_as_float(words[p] << 16);
            b -= __uint_as_float(words[p] & 0xffff0000u);
        }
    }
}

// The two numbers whose parts are words[p][i].
template <int kParts, int kWords>
__device__ __forceinline__ void join(const uint32_t (&words)[kParts][kWords], int i, float (&numbers)[2]) {
    numbers[0] = numbers[1] = 0.0f;
    for (int p = kParts - 1; p >= 0; --p) {
        numbers[0] += __uint_as_float(words[p][i] << 16);
        numbers[1] += __uint_as_float(words[p][i] & 0xffff0000u);
    }
}

// Inputs x of type T. kParts: how many bfloat16 parts hold an input exactly. kFactorParts: the parts of the float32
// numbers that inputs and their gradients are computed with, which are weights and gradients of sums. Three hold all 24
// bits. Two hold 16, enough where x has 16 bits itself. kSteps: how many steps of `mma` (16 inputs
// deep) four lanes can feed when each has loaded 16 bytes of a row. pair(v, i) is inputs 2 i and 2 i + 1 of such 16
// bytes.
template <class T>
struct Input {  // of 16 bits
    static constexpr bool kHalf = std::is_same_v<T, __half>;
    static constexpr int kParts = kHalf ? 2 : 1, kFactorParts = 2, kSteps = 2;
    __device__ static __forceinline__ float2 pair(const uint4& v, int i) {
        const uint32_t word = i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
        if constexpr (kHalf)
            return __half22float2(*reinterpret_cast<const __half2*>(&word));
        else
            return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
    }
};

template <>
struct Input<float> {
    static constexpr int kParts = 3, kFactorParts = 3, kSteps = 1;
    __device__ static __forceinline__ float2 pair(const uint4& v, int i) {
        return i == 0 ? float2{__uint_as_float(v.x), __uint_as_float(v.y)}
                      : float2{__uint_as_float(v.z), __uint_as_float(v.w)};
    }
};

// Calls `body` with the type of x.
template <class Body>
void dispatch_input(ScalarType dtype, const Body& body) {
    if (dtype == ScalarType::Float) return body.template operator()<float>();
    if (dtype == ScalarType::Half) return body.template operator()<__half>();
    return body.template operator()<__nv_bfloat16>();
}

// d += left · right, for operands of L and R parts. Products of parts i and j with i + j ≥ max(L, R) are left out: at
// most 2^-25 of the whole for three parts, 2^-18 for two. The smallest products are added first. d must be 0 before.
// Without bfloat16 products, the parts are joined again.
template <int L, int R>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&left)[L][4], const uint32_t (&right)[R][2]) {
    if constexpr (ptx::kTuring) {
        float a[4][2], b[2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) join(left, i, a[i]);
        for (int i = 0; i < 2; ++i) join(right, i, b[i]);
        ptx::multiply_k16(d, a, b);
    } else {
        for (int size = (L > R ? L : R) - 1; size >= 0; --size) {
            for (int i = 0; i <= size; ++i) {
                if (i < L && size - i < R) ptx::mma_k16<true>(d, left[i], right[size - i]);
            }
        }
    }
}

}  // namespace nnue::cuda::stacks
