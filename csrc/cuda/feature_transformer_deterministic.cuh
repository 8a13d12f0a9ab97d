// The deterministic weight gradient: the batch is transposed into one list of entries per feature, and each list is
// summed in the order of the rows.
//
//   1. Every entry becomes a pair (feature, place in the batch); padding gets the key num_features.
//   2. A stable radix sort orders the pairs by feature.
//   3. Each list is cut into tasks (sorted_lists.cuh). The sum of a list of one task is stored; the sums of longer
//      lists' tasks go to scratch memory, and a last pass adds them in order.
//
// Every element of the gradient is written once, without atomics, so nothing needs to be zeroed first. Sums are made in
// the order of the batch's rows and cut at fixed places, so equal inputs give equal bits.
#pragma once

#include "feature_transformer_kernels.cuh"
#include "sorted_lists.cuh"

namespace nnue::feature_transformer {

using namespace nnue::sorted_lists;

template <class T>
struct Scratch {
    int32_t *keys, *sorted_keys;
    int64_t *places, *sorted_places;
    Tasks<int64_t> tasks;
    sum_t<T>* sums;  // [limits.partials(), num_outputs]
    CubScratch cub;
};

template <class T>
Scratch<T> carve(Carver& carver, const Limits& limits, int64_t num_outputs) {
    const auto [places, num_features] = limits;
    Scratch<T> s{};
    s.keys = carver.take<int32_t>("keys", places);
    s.sorted_keys = carver.take<int32_t>("sorted_keys", places);
    s.places = carver.take<int64_t>("places", places);
    s.sorted_places = carver.take<int64_t>("sorted_places", places);
    for (int64_t** array : {&s.tasks.starts, &s.tasks.pieces, &s.tasks.pieces_before})
        *array = carver.take<int64_t>("lists", num_features + 1);
    s.tasks.tasks = carver.take<Task<int64_t>>("tasks", limits.tasks());
    s.tasks.long_lists = carver.take<LongList>("long_lists", limits.long_lists());
    s.tasks.counts = carver.take<Counts>("counts", 1);
    s.sums = carver.take<sum_t<T>>("sums", limits.partials() * num_outputs);
    s.cub.bytes = std::max(sort_bytes<int64_t>(places, num_features), sums_before_bytes(num_features + 1));
    s.cub.memory = carver.take<char>("cub", s.cub.bytes);
    return s;
}

// One warp per row: writes the keys and places of all its entries.
__global__ void key_kernel(const int32_t* __restrict__ indices, int64_t rows, int max_active, int num_features,
                           int32_t* __restrict__ keys, int64_t* __restrict__ places) {
    const int lane = threadIdx.x;
    for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
         row += int64_t(gridDim.x) * blockDim.y) {
        const int64_t first = row * max_active;
        for_each_key(indices + first, max_active, num_features, lane, [&](int place, int32_t key) {
            keys[first + place] = key;
            places[first + place] = first + place;
        });
    }
}

struct Nothing {
    __device__ void operator()(int64_t, const Task<int64_t>*) const {}
};

template <class T>
struct Lists {
    const T* grad_output;
    const sum_t<T>* values;  // or null
    const int64_t* places;
    Tasks<int64_t> of;
    sum_t<T>* sums;
    T* grad_weight;
    int64_t num_outputs;
    int64_t max_active;
};

// The sum of list entries [begin, end) in V columns.
template <class T, int V>
__device__ inline void sum_entries(const Lists<T>& lists, int64_t begin, int64_t end, int64_t column, bool active,
                                   int lane, sum_t<T> (&sum)[V]) {
    for (int64_t base = begin; base < end; base += kWarp) {
        const int count = static_cast<int>(min(end - base, int64_t(kWarp)));
        int64_t my_row = 0;
        sum_t<T> my_value = 1;
        if (lane < count) {
            const int64_t place = lists.places[base + lane];
            my_row = place / lists.max_active;
            if (lists.values != nullptr) my_value = lists.values[place];
        }
#pragma unroll 4
        for (int e = 0; e < count; ++e) {
            const int64_t row = __shfl_sync(kAllLanes, my_row, e);
            const sum_t<T> value = __shfl_sync(kAllLanes, my_value, e);
            if (!active) continue;
            sum_t<T> part[V];
            load_sums<V>(lists.grad_output + row * lists.num_outputs + column, part);
            for (int i = 0; i < V; ++i) sum[i] += value * part[i];
        }
    }
}

// A warp per task.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock) sum_kernel(Lists<T> lists) {
    const int lane = threadIdx.x, tasks = lists.of.counts->tasks;
    const int64_t n = lists.num_outputs, column = (int64_t(blockIdx.y) * kWarp + lane) * V;
    const bool active = column < n;
    for (int64_t t = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; t < tasks; t += int64_t(gridDim.x) * blockDim.y) {
        const Task<int64_t> task = lists.of.tasks[t];
        sum_t<T> sum[V] = {};
        sum_entries<T, V>(lists, task.begin, task.begin + task.count, column, active, lane, sum);
        if (!active) continue;
        if (task.partial < 0) {
            store_sums<V>(lists.grad_weight + task.feature * n + column, sum);
        } else {
            store_sums<V>(lists.sums + task.partial * n + column, sum);
        }
    }
}

// A warp per longer list adds its tasks' sums, in order.
template <class T, int V>
__global__ void __launch_bounds__(kWarp* kWarpsPerBlock) combine_kernel(Lists<T> lists) {
    const int64_t n = lists.num_outputs;
    const int64_t column = (int64_t(blockIdx.y) * kWarp + threadIdx.x) * V;
    if (column >= n) return;
    for (int64_t l = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; l < lists.of.counts->long_lists;
         l += int64_t(gridDim.x) * blockDim.y) {
        const LongList list = lists.of.long_lists[l];
        sum_t<T> sum[V] = {};
#pragma unroll 4
        for (int64_t piece = list.first_partial; piece < list.first_partial + list.partials; ++piece) {
            for (int i = 0; i < V; ++i) sum[i] += lists.sums[piece * n + column + i];
        }
        store_sums<V>(lists.grad_weight + list.feature * n + column, sum);
    }
}

template <class T>
Limits limits_of(const Rows<T>& batch) {
    return {batch.rows * batch.max_active, batch.num_features};
}

// Bytes of scratch memory that launch_weight_gradient_deterministic needs.
template <class T>
int64_t deterministic_scratch_bytes(const Rows<T>& batch, int64_t num_outputs) {
    Carver counter{nullptr};
    carve<T>(counter, limits_of(batch), num_outputs);
    return static_cast<int64_t>(counter.used);
}

// Writes all of grad_weight.
template <class T>
void launch_weight_gradient_deterministic(const Rows<T>& batch, const T* grad_output, T* grad_weight, int64_t n,
                                          void* scratch, cudaStream_t stream) {
    const Limits limits = limits_of(batch);
    Carver carver{static_cast<char*>(scratch)};
    const Scratch<T> s = carve<T>(carver, limits, n);
    launch("weight_gradient_keys", key_kernel, thread_blocks_for(batch.rows, kWarpsPerBlock), kBlock, 0, stream,
           batch.indices, batch.rows, batch.max_active, batch.num_features, s.keys, s.places);
    sort(s.cub, s.keys, s.sorted_keys, s.places, s.sorted_places, limits.places, limits.num_features, stream);
    if (limits.num_features == 0) return;
    make_tasks(s.cub, s.sorted_keys, limits, s.tasks, Nothing{}, stream);
    const Lists<T> lists{grad_output, batch.values, s.sorted_places, s.tasks, s.sums, grad_weight, n, batch.max_active};
    with_width<T>(is_wide(n, sizeof(T), grad_output, grad_weight), [&]<int V>() {
        launch("weight_gradient_sum", sum_kernel<T, V>, grid_for<V>(limits.tasks(), n), kBlock, 0, stream, lists);
        launch("weight_gradient_combine", combine_kernel<T, V>, grid_for<V>(limits.long_lists(), n), kBlock, 0, stream,
               lists);
    });
}

}  // namespace nnue::feature_transformer
