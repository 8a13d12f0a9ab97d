// Types of the CPU kernels: 64-byte vectors of the compiler, and what a weight dtype is summed in.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>

namespace nnue {

using Half = torch::headeronly::Half;
using BFloat16 = torch::headeronly::BFloat16;

template <class T>
struct Sum {
    using type = float;
};
template <>
struct Sum<double> {
    using type = double;
};
// What a weight of type T is summed in.
template <class T>
using sum_t = typename Sum<T>::type;

constexpr int64_t kVectorBytes = 64;

// 64 bytes of float or double. `UnalignedVector` is the same in memory at any address.
template <class S>
struct VectorOf;
template <>
struct VectorOf<float> {
    typedef float type __attribute__((vector_size(64), may_alias));
    typedef float unaligned __attribute__((vector_size(64), aligned(4), may_alias));
};
template <>
struct VectorOf<double> {
    typedef double type __attribute__((vector_size(64), may_alias));
    typedef double unaligned __attribute__((vector_size(64), aligned(8), may_alias));
};
template <class S>
using Vector = typename VectorOf<S>::type;
template <class S>
using UnalignedVector = typename VectorOf<S>::unaligned;

typedef uint16_t U16x16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t U32x16 __attribute__((vector_size(64), may_alias));
typedef int32_t I32x16 __attribute__((vector_size(64), may_alias));

// Elements in one vector of sums.
template <class S>
constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(S));

}  // namespace nnue
