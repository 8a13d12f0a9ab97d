// A stable sort with the interface of cub's, for a C++ compiler: stands in for the toolkit's header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "../../cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
    template <typename Key, typename Value>
    static cudaError_t SortPairs(void* scratch, size_t& bytes, const Key* keys, Key* sorted_keys, const Value* values,
                                 Value* sorted_values, int64_t count, int first_bit = 0, int end_bit = 8 * sizeof(Key),
                                 cudaStream_t = nullptr) {
        if (scratch == nullptr) return bytes = 256, cudaSuccess;
        emulator::synchronize();
        const auto digits = [&](int64_t i) {
            return uint64_t(keys[i]) << (64 - end_bit) >> (64 - end_bit + first_bit);
        };
        std::vector<int64_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return digits(a) < digits(b); });
        for (int64_t i = 0; i < count; ++i) sorted_keys[i] = keys[order[i]], sorted_values[i] = values[order[i]];
        return cudaSuccess;
    }
};

}  // namespace cub
