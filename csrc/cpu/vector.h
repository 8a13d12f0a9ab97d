// Types of the CPU kernels: 16-bit floats and vector types of the compiler.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>

namespace nnue {

constexpr int64_t kLineBytes = 64;  // of a cache line

using Half = torch::headeronly::Half;
using BFloat16 = torch::headeronly::BFloat16;

// `bytes` of elements T as one vector value; `InMemory` is the same type at any address.
template <class T, int bytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(bytes), may_alias));
    typedef T InMemory __attribute__((vector_size(bytes), aligned(sizeof(T)), may_alias));
};

}  // namespace nnue
