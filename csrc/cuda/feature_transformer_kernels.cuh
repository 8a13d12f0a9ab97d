// The kernels of the feature transformer: the forward gathers, and the weight gradient is made in a fixed order, or
// scattered with atomics. For a fixed order the batch is transposed: a stable radix sort orders its entries by feature,
// which gives one list per feature, and each list is added up. So every element of the gradient is written once, and
// equal inputs give equal bits. The kernels take pointers and sizes, no tensors. Contracts: ../feature_transformer.h.
//
// Most kernels are grids of warps. A warp takes one row (or list) and one slab of 32 lanes' columns, which is 512 bytes
// where 16-byte access is allowed. The slab is the slow dimension of the grid, so that the slab of the weights, which
// all rows read, stays in the L2 cache.
#pragma once

#include "../feature_transformer.h"
#include "common.cuh"
#include "sorted_lists.cuh"

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

// Adds V neighbouring numbers to memory, with an atomic for each that is not zero.
// GPUs of capability 9.0 and later add four float32 with one atomic, unless all four are zero.
template <int V, class S>
__device__ inline void add_atomically(S* to, const S (&part)[V]) {
#if __CUDA_ARCH__ >= 900
    constexpr bool kFour = std::is_same_v<S, float> && V % 4 == 0;
#else
    constexpr bool kFour = false;
#endif
    if constexpr (kFour) {
        for (int i = 0; i < V; i += 4) {
            const float4 four = {part[i], part[i + 1], part[i + 2], part[i + 3]};
            if (four.x != 0 || four.y != 0 || four.z != 0 || four.w != 0) ptx::add_global_16(to + i, four);
        }
    } else {
        for (int i = 0; i < V; ++i) {
            if (part[i] != 0) atomicAdd(to + i, part[i]);
        }
    }
}

// Adds to grad_weight [num_features, num_outputs], which is zero before. The order of the additions varies from run to
// run. Zero gradients, which clipped activations often have, are skipped; a warp that has no others does not read the
// indices of its row.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    weight_gradient_atomic_kernel(Rows<T> batch, const T* __restrict__ grad_output, sum_t<T>* __restrict__ grad_weight,
                                  int64_t n) {
    const int64_t column = (int64_t(blockIdx.y) * kWarp + threadIdx.x) * V;
    for_each_row(batch.rows, [&](int64_t row) {
        sum_t<T> gradient[V] = {};
        if (column < n) load_sums<V>(grad_output + row * n + column, gradient);
        bool any = false;
        for (int i = 0; i < V; ++i) any = any || gradient[i] != 0;
        if (__ballot_sync(kAllLanes, any) == 0) return;
        const int64_t offset = row * batch.max_active;
        for_each_entry(batch.indices + offset, batch.values == nullptr ? nullptr : batch.values + offset,
                       batch.max_active, batch.num_features, threadIdx.x, [&](int32_t index, sum_t<T> value) {
                           if (!any) return;
                           sum_t<T> part[V];
                           for (int i = 0; i < V; ++i) part[i] = gradient[i] == 0 ? 0 : value * gradient[i];
                           add_atomically<V>(grad_weight + index * n + column, part);
                       });
    });
}

// Writes a pair (feature, place in the batch) for each entry of the rows, one warp per row. Padding gets the key
// num_features.
__global__ void key_kernel(const int32_t* __restrict__ indices, int64_t rows, int max_active, int num_features,
                           int32_t* __restrict__ keys, int64_t* __restrict__ places) {
    for_each_row(rows, [&](int64_t row) {
        const int64_t first = row * max_active;
        sorted_lists::for_each_key(indices + first, max_active, num_features, threadIdx.x, [&](int place, int32_t key) {
            keys[first + place] = key;
            places[first + place] = first + place;
        });
    });
}

constexpr int kLongList = 64;  // entries; all warps of a thread block share a longer list

// The weight gradient in a fixed order. Thread block (x, y) adds up the lists of kWarpsPerBlock features in slab y,
// each warp one of them. Of a long list each warp takes an equal stretch, and the warps' sums are added in order.
// `places` has all lists, one after the other, and `starts` is where each of them begins.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock)
    weight_gradient_kernel(Rows<T> batch, const int64_t* __restrict__ starts, const int64_t* __restrict__ places,
                           const T* __restrict__ grad_output, T* __restrict__ grad_weight, int64_t n) {
    __shared__ sum_t<T> sums[kWarpsPerBlock][kWarp * V];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int64_t slab = int64_t(blockIdx.y) * kWarp * V, column = slab + lane * V;
    const int64_t first = int64_t(blockIdx.x) * kWarpsPerBlock;
    const int64_t my_start = starts[min(first + lane, int64_t(batch.num_features))];
    for (int f = 0; f < kWarpsPerBlock && first + f < batch.num_features; ++f) {
        const int64_t start = __shfl_sync(kAllLanes, my_start, f), end = __shfl_sync(kAllLanes, my_start, f + 1);
        const int64_t entries = end - start;
        const bool is_long = entries > kLongList;
        if (!is_long && f != warp) continue;
        const int64_t stop = is_long ? start + entries * (warp + 1) / kWarpsPerBlock : end;
        sum_t<T> sum[V] = {};
        for (int64_t base = is_long ? start + entries * warp / kWarpsPerBlock : start; base < stop; base += kWarp) {
            const int count = static_cast<int>(min(stop - base, int64_t(kWarp)));
            int64_t my_row = 0;
            sum_t<T> my_value = 1;
            if (lane < count) {
                const int64_t place = places[base + lane];
                my_row = place / batch.max_active;
                if (batch.values != nullptr) my_value = batch.values[place];
            }
#pragma unroll 4
            for (int e = 0; e < count; ++e) {
                const int64_t row = __shfl_sync(kAllLanes, my_row, e);
                const sum_t<T> value = __shfl_sync(kAllLanes, my_value, e);
                if (column >= n) continue;
                sum_t<T> part[V];
                load_sums<V>(grad_output + row * n + column, part);
                for (int i = 0; i < V; ++i) sum[i] += value * part[i];
            }
        }
        T* const to = grad_weight + (first + f) * n;
        if (!is_long) {
            if (column < n) store_sums<V>(to + column, sum);
            continue;
        }
        for (int i = 0; i < V; ++i) sums[warp][lane * V + i] = sum[i];
        __syncthreads();
        for (int c = warp * kWarp + lane; c < kWarp * V && slab + c < n; c += kWarp * kWarpsPerBlock) {
            sum_t<T> total = 0;
            for (int w = 0; w < kWarpsPerBlock; ++w) total += sums[w][c];
            to[slab + c] = from_sum<T>(total);
        }
        __syncthreads();
    }
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
