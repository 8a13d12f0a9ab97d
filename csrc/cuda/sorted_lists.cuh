// Makes a list of values per feature, in a fixed order: a stable radix sort orders pairs (feature, value), so that the
// values of a feature keep their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "common.cuh"

namespace nnue::sorted_lists {

// How many bits the keys 0 … `last` need.
inline int key_bits(int64_t last) {
    int bits = 1;
    while ((int64_t(1) << bits) <= last) ++bits;
    return bits;
}

// Scratch memory that cub, the library of the sort and the sums, works in. Where it is null, the functions below only
// return the bytes that they need.
struct CubScratch {
    void* memory;
    size_t bytes;
};

// Orders pairs by their keys, which are in [0, last_key].
template <class Value>
size_t sort(CubScratch scratch, const int32_t* keys, int32_t* sorted_keys, const Value* values, Value* sorted_values,
            int64_t pairs, int64_t last_key, cudaStream_t stream) {
    if (pairs == 0) return 0;
    cuda::check_cuda(cub::DeviceRadixSort::SortPairs(scratch.memory, scratch.bytes, keys, sorted_keys, values,
                                                     sorted_values, pairs, 0, key_bits(last_key), stream),
                     "radix sort");
    return scratch.bytes;
}
template <class Value>
size_t sort_bytes(int64_t pairs, int64_t last_key) {
    return sort<Value>({}, nullptr, nullptr, nullptr, nullptr, pairs, last_key, nullptr);
}

// sums[i] = the sum of numbers[0 … i − 1].
inline size_t sums_before(CubScratch scratch, const int64_t* numbers, int64_t* sums, int64_t count,
                          cudaStream_t stream) {
    cuda::check_cuda(cub::DeviceScan::ExclusiveSum(scratch.memory, scratch.bytes, numbers, sums, count, stream),
                     "scan");
    return scratch.bytes;
}
inline size_t sums_before_bytes(int64_t count) {
    return sums_before({}, nullptr, nullptr, count, nullptr);
}

// Called by a whole warp: gives `put` each place of a row, [0, max_active), with its key, which is its feature, or
// num_features after the end of the row and for an illegal index. Returns the number of entries.
template <class Put>
__device__ inline int for_each_key(const int32_t* row, int max_active, int num_features, int lane, const Put& put) {
    int count = 0;
    for (int base = 0; base < max_active; base += cuda::kWarp) {
        const int place = base + lane;
        const int32_t index = place < max_active && count == base ? row[place] : -1;
        const unsigned ends = __ballot_sync(cuda::kAllLanes, index == -1);
        const int here = ends == 0 ? cuda::kWarp : __ffs(static_cast<int>(ends)) - 1;
        const bool legal = lane < here && static_cast<unsigned>(index) < static_cast<unsigned>(num_features);
        if (place < max_active) put(place, legal ? index : num_features);
        count += here;
    }
    return count;
}

// starts[f] is the first sorted place whose key is at least f, for f in [0, num_features].
static __global__ void start_kernel(const int32_t* __restrict__ keys, int64_t count, int64_t num_features,
                                    int64_t* __restrict__ starts) {
    for (int64_t f = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; f <= num_features;
         f += int64_t(gridDim.x) * blockDim.x) {
        int64_t low = 0, high = count;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            keys[middle] < f ? low = middle + 1 : high = middle;
        }
        starts[f] = low;
    }
}
inline void find_starts(const int32_t* keys, int64_t count, int64_t num_features, int64_t* starts,
                        cudaStream_t stream) {
    cuda::launch("list starts", start_kernel, cuda::thread_blocks_for(num_features + 1, 256), 256, 0, stream, keys,
                 count, num_features, starts);
}

}  // namespace nnue::sorted_lists
