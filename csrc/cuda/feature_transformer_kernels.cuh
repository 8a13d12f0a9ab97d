// The kernels of the feature transformer: the forward gathers, and the weight gradient is scattered with atomics,
// unless it is made in a fixed order (feature_transformer_deterministic.cuh). The gradients of bias and values are
// here, too. They take pointers and sizes, no tensors. Contracts: ../feature_transformer.h.
//
// Most kernels are grids of warps. A warp takes one row (or list) and one slab of 32 lanes' columns, which is 512 bytes
// where 16-byte access is allowed. The slab is the slow dimension of the grid, so that the slab of the weights, which
// all rows read, stays in the L2 cache.
#pragma once

#include "../feature_transformer.h"
#include "common.cuh"

namespace nnue::feature_transformer {

using namespace nnue::cuda;

constexpr int kWarpsPerBlock = 8;
const dim3 kBlock(kWarp, kWarpsPerBlock);

// x: rows or lists; y: slabs of kWarp * V columns.
template <int V>
dim3 grid_for(int64_t rows, int64_t columns) {
    return dim3(thread_blocks_for(rows, kWarpsPerBlock), static_cast<unsigned>(divide_up(columns, kWarp * V)));
}

// Indices and values of a batch.
template <class T>
struct Rows {
    const int32_t* indices;  // [rows, max_active]
    const sum_t<T>* values;  // the same shape, or null
    int64_t rows;
    int max_active;
    int num_features;
};

template <class Body>
__device__ inline void for_each_row(int64_t rows, const Body& body) {
    for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
         row += int64_t(gridDim.x) * blockDim.y) {
        body(row);
    }
}

template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    forward_kernel(Rows<T> batch, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ output,
                   int64_t n) {
    const int lane = threadIdx.x;
    const int64_t column = (int64_t(blockIdx.y) * kWarp + lane) * V;
    const bool active = column < n;
    for_each_row(batch.rows, [&](int64_t row) {
        sum_t<T> sum[V] = {};
        if (active) load_sums<V>(bias + column, sum);
        const int64_t offset = row * batch.max_active;
        for_each_entry(batch.indices + offset, batch.values == nullptr ? nullptr : batch.values + offset,
                       batch.max_active, batch.num_features, lane, [&](int32_t index, sum_t<T> value) {
                           if (!active) return;
                           sum_t<T> part[V];
                           load_sums<V>(weight + index * n + column, part);
                           for (int i = 0; i < V; ++i) sum[i] += value * part[i];
                       });
        if (active) store_sums<V>(output + row * n + column, sum);
    });
}

// Adds V neighbouring values to memory, 16 bytes at once where the hardware can.
template <int V, class S>
__device__ inline void atomic_add(S* to, const S (&part)[V]) {
#if __CUDA_ARCH__ >= 900
    constexpr bool kFour = std::is_same_v<S, float> && V % 4 == 0;
#else
    constexpr bool kFour = false;
#endif
    if constexpr (kFour) {
        for (int i = 0; i < V; i += 4) {
            atomicAdd(reinterpret_cast<float4*>(to + i), make_float4(part[i], part[i + 1], part[i + 2], part[i + 3]));
        }
    } else {
        for (int i = 0; i < V; ++i) atomicAdd(to + i, part[i]);
    }
}

// Adds to grad_weight [num_features, num_outputs], which is zero before. The order of the additions varies from run to
// run.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    weight_gradient_atomic_kernel(Rows<T> batch, const T* __restrict__ grad_output, sum_t<T>* __restrict__ grad_weight,
                                  int64_t n) {
    const int lane = threadIdx.x;
    const int64_t column = (int64_t(blockIdx.y) * kWarp + lane) * V;
    for_each_row(batch.rows, [&](int64_t row) {
        sum_t<T> gradient[V] = {};
        if (column < n) load_sums<V>(grad_output + row * n + column, gradient);
        bool any = false;  // most gradients of clipped activations are zero
        for (int i = 0; i < V; ++i) any = any || gradient[i] != 0;
        if (__ballot_sync(kAllLanes, any) == 0) return;
        const int64_t offset = row * batch.max_active;
        for_each_entry(batch.indices + offset, batch.values == nullptr ? nullptr : batch.values + offset,
                       batch.max_active, batch.num_features, lane, [&](int32_t index, sum_t<T> value) {
                           if (!any) return;
                           sum_t<T> part[V];
                           for (int i = 0; i < V; ++i) part[i] = value * gradient[i];
                           atomic_add<V>(grad_weight + index * n + column, part);
                       });
    });
}

template <class T>
__global__ void round_kernel(const sum_t<T>* __restrict__ from, T* __restrict__ to, int64_t count) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
        to[i] = from_sum<T>(from[i]);
    }
}

// The number of rows of `partial` for the two kernels of the bias.
inline int64_t bias_gradient_parts(int64_t rows) {
    return std::min<int64_t>(128, divide_up(rows, 64));
}

// Part p sums rows [p * per_part, (p + 1) * per_part): each warp sums every eighth row, then the warps' sums are added
// in order.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    bias_parts_kernel(const T* __restrict__ grad_output, int64_t rows, int64_t per_part, int64_t n,
                      sum_t<T>* __restrict__ partial) {
    __shared__ sum_t<T> sums[kWarpsPerBlock][kWarp * V];
    const int64_t column = (int64_t(blockIdx.y) * kWarp + threadIdx.x) * V;
    const int64_t begin = blockIdx.x * per_part, end = min(begin + per_part, rows);
    sum_t<T> sum[V] = {};
    if (column < n) {
#pragma unroll 4
        for (int64_t row = begin + threadIdx.y; row < end; row += kWarpsPerBlock) {
            sum_t<T> part[V];
            load_sums<V>(grad_output + row * n + column, part);
            for (int i = 0; i < V; ++i) sum[i] += part[i];
        }
    }
    for (int i = 0; i < V; ++i) sums[threadIdx.y][threadIdx.x * V + i] = sum[i];
    __syncthreads();
    for (int c = threadIdx.y * kWarp + threadIdx.x; c < kWarp * V; c += kWarp * kWarpsPerBlock) {
        const int64_t out = int64_t(blockIdx.y) * kWarp * V + c;
        if (out >= n) continue;
        sum_t<T> total = 0;
        for (int w = 0; w < kWarpsPerBlock; ++w) total += sums[w][c];
        partial[blockIdx.x * n + out] = total;
    }
}

template <class T>
__global__ void bias_total_kernel(const sum_t<T>* __restrict__ partial, int64_t parts, int64_t n,
                                  T* __restrict__ grad_bias) {
    const int64_t column = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (column >= n) return;
    sum_t<T> total = 0;
#pragma unroll 8
    for (int64_t p = 0; p < parts; ++p) total += partial[p * n + column];
    grad_bias[column] = from_sum<T>(total);
}

// One warp per row: the lanes share the columns of a dot product, and lane e keeps the result of entry e.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    values_gradient_kernel(Rows<T> batch, const T* __restrict__ grad_output, const T* __restrict__ weight,
                           sum_t<T>* __restrict__ grad_values, int64_t n) {
    const int lane = threadIdx.x;
    for_each_row(batch.rows, [&](int64_t row) {
        const T* gradient = grad_output + row * n;
        bool ended = false;
        for (int64_t base = 0; base < batch.max_active; base += kWarp) {
            const bool inside = base + lane < batch.max_active;
            const int32_t mine = inside && !ended ? batch.indices[row * batch.max_active + base + lane] : -1;
            const unsigned ends = __ballot_sync(kAllLanes, mine == -1);
            const int count = ends == 0 ? kWarp : __ffs(ends) - 1;
            sum_t<T> result = 0;
            for (int e = 0; e < count; ++e) {
                const int32_t index = __shfl_sync(kAllLanes, mine, e);
                if (static_cast<unsigned>(index) >= static_cast<unsigned>(batch.num_features)) continue;
                sum_t<T> dot = 0;
                for (int64_t c = int64_t(lane) * V; c < n; c += kWarp * V) {
                    sum_t<T> x[V], y[V];
                    load_sums<V>(gradient + c, x);
                    load_sums<V>(weight + index * n + c, y);
                    for (int i = 0; i < V; ++i) dot += x[i] * y[i];
                }
                for (int step = kWarp / 2; step > 0; step /= 2) dot += __shfl_xor_sync(kAllLanes, dot, step);
                if (lane == e) result = dot;
            }
            if (inside) grad_values[row * batch.max_active + base + lane] = result;
            ended = ended || count < kWarp;
        }
    });
}

}  // namespace nnue::feature_transformer
