// Splits numbers into bfloat16 parts and multiplies the parts on tensor cores. A number is exactly the sum of its
// parts, so that products on tensor cores become as exact as float32.
#pragma once

#include "../../layer_stacks.h"
#include "../common.cuh"
#include "../hopper.cuh"

namespace nnue::cuda::stacks {

using namespace layer_stacks;

template <class T>
__device__ __forceinline__ uint32_t bits_of(const T& two_numbers) {
    return *reinterpret_cast<const uint32_t*>(&two_numbers);
}

// floor(number) where the layers round, else the number itself.
template <bool kRounds>
__device__ __forceinline__ float floored(float number) {
    return kRounds ? floorf(number) : number;
}

// Splits two numbers into parts, the largest part first. words[p] has part p of both numbers, that of `a` in its low
// half.
template <int kParts>
__device__ __forceinline__ void split(float a, float b, uint32_t (&words)[kParts]) {
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
        words[p] = bits_of(__floats2bfloat162_rn(a, b));
        if (p + 1 < kParts) {
            a -= __uint_as_float(words[p] << 16);
            b -= __uint_as_float(words[p] & 0xffff0000u);
        }
    }
}

// Inputs x of type T. kParts: the bfloat16 parts that hold an input exactly. kOtherParts: the parts of the float32
// numbers that inputs are multiplied by, weights and gradients. Three hold all of their 24 bits. Two hold 16, which is
// plenty where inputs and their gradients have 16 bits themselves. kSteps: how many steps of `mma` (16 inputs
// deep) four lanes can feed when each has loaded 16 bytes of a row. pair(v, i) is inputs 2 i and 2 i + 1 of such 16
// bytes.
template <class T>
struct Input;

template <>
struct Input<float> {
    static constexpr int kParts = 3, kOtherParts = 3, kSteps = 1;
    __device__ static __forceinline__ float2 pair(const uint4& v, int i) {
        return i == 0 ? float2{__uint_as_float(v.x), __uint_as_float(v.y)}
                      : float2{__uint_as_float(v.z), __uint_as_float(v.w)};
    }
    __device__ static __forceinline__ float number(const Pack<float, 4>& v, int i) { return v.at[i]; }
};

template <>
struct Input<__half> {
    static constexpr int kParts = 2, kOtherParts = 2, kSteps = 2;
    __device__ static __forceinline__ float2 pair(const uint4& v, int i) {
        const uint32_t word = i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
        return __half22float2(*reinterpret_cast<const __half2*>(&word));
    }
    __device__ static __forceinline__ float number(const Pack<__half, 4>& v, int i) { return __half2float(v.at[i]); }
};

template <>
struct Input<__nv_bfloat16> {
    static constexpr int kParts = 1, kOtherParts = 2, kSteps = 2;
    __device__ static __forceinline__ float2 pair(const uint4& v, int i) {
        const uint32_t word = i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
        return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
    }
    __device__ static __forceinline__ float number(const Pack<__nv_bfloat16, 4>& v, int i) {
        return __bfloat162float(v.at[i]);
    }
};

// d += left · right, for operands of L and R parts, which hold 8 bits each. Products that are smaller than the last bit
// of the operand with more parts are left out. Of two float32 numbers these are those of parts i and j with i + j > 2:
// each is at most 2^-25 of the whole product. The smallest products are added first. d must be 0 before.
template <int L, int R>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&left)[L][4], const uint32_t (&right)[R][2]) {
#pragma unroll
    for (int size = (L > R ? L : R) - 1; size >= 0; --size) {
#pragma unroll
        for (int i = 0; i <= size; ++i) {
            if (i < L && size - i < R) hopper::mma_k16<true>(d, left[i], right[size - i]);
        }
    }
}

}  // namespace nnue::cuda::stacks
