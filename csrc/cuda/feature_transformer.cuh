// The kernels of the feature transformer that the operator (feature_transformer.cu) launches. They take pointers, sizes
// and a stream, no tensors. Contracts: ../feature_transformer.h.
//
// Most kernels are grids of warps. A warp takes one row (or list) and one slab of 32 lanes' columns, which is 512 bytes
// where 16-byte access is allowed. The slab is the slow dimension of the grid, so that the slab of the weights, which
// all rows read, stays in the L2 cache.
#pragma once

#include "../feature_transformer.h"
#include "common.cuh"

namespace nnue::feature_transformer {

// Indices and values of a batch.
template <class T>
struct Rows {
    const int32_t* indices;  // [rows, max_active]
    const sum_t<T>* values;  // the same shape, or null
    int64_t rows;
    int max_active;
    int num_features;
};

template <class T>
void launch_forward(const Rows<T>& batch, const T* weight, const T* bias, T* output, int64_t num_outputs,
                    cudaStream_t stream);

// Adds to grad_weight [num_features, num_outputs], which the caller has zeroed, with atomics. The order of the
// additions varies from run to run.
template <class T>
void launch_weight_gradient_atomic(const Rows<T>& batch, const T* grad_output, sum_t<T>* grad_weight,
                                   int64_t num_outputs, cudaStream_t stream);

// Rounds `count` sums to T.
template <class T>
void launch_round(const sum_t<T>* from, T* to, int64_t count, cudaStream_t stream);

// Bytes of scratch memory that launch_weight_gradient_deterministic needs.
template <class T>
size_t deterministic_scratch_bytes(const Rows<T>& batch, int64_t num_outputs);

// Writes all of grad_weight. Each sum is made in the order of the batch's rows and cut at fixed places, so equal inputs
// give equal bits.
template <class T>
void launch_weight_gradient_deterministic(const Rows<T>& batch, const T* grad_output, T* grad_weight,
                                          int64_t num_outputs, void* scratch, cudaStream_t stream);

// The number of rows of `partial`, the scratch of launch_bias_gradient.
inline int64_t bias_gradient_parts(int64_t rows) {
    return std::min<int64_t>(128, divide_up(rows, 64));
}

// Column sums, in an order that depends on the shape alone. `partial` is [bias_gradient_parts(rows), num_outputs].
template <class T>
void launch_bias_gradient(const T* grad_output, int64_t rows, int64_t num_outputs, sum_t<T>* partial, T* grad_bias,
                          cudaStream_t stream);

// grad_values [rows, max_active] is 0 from the end of a row on.
template <class T>
void launch_values_gradient(const Rows<T>& batch, const T* grad_output, const T* weight, sum_t<T>* grad_values,
                            int64_t num_outputs, cudaStream_t stream);

}  // namespace nnue::feature_transformer
