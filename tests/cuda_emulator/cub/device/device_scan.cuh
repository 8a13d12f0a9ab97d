// A sum with the interface of cub's, for a C++ compiler: stands in for the toolkit's header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../cuda_runtime.h"

namespace cub {

struct DeviceScan {
    template <typename Number>
    static cudaError_t ExclusiveSum(void* scratch, size_t& bytes, const Number* numbers, Number* sums, int64_t count,
                                    cudaStream_t = nullptr) {
        if (scratch == nullptr) return bytes = 256, cudaSuccess;
        emulator::synchronize();
        Number sum = 0;
        for (int64_t i = 0; i < count; ++i) {
            const Number next = numbers[i];
            sums[i] = sum;
            sum += next;
        }
        return cudaSuccess;
    }
};

}  // namespace cub
