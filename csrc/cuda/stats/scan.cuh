// Scans of states over a thread block; copies of rows between device memory and shared memory, where they are doubles.
#pragma once

#include <algorithm>

#include "../common.cuh"
#include "../ptx.cuh"

namespace nnue::cuda::stats {

// Threads of a thread block that scans states in device memory.
constexpr int kThreads = 512;

// The number of threads, in whole warps, for `count` elements with `each` elements per thread.
inline int threads_for(int64_t count, int each, int most = kThreads) {
    return static_cast<int>(std::min<int64_t>(divide_up(divide_up(count, each), kWarp) * kWarp, most));
}

// How many thread blocks of a kernel the current device runs at a time.
template <class... Parameters>
int64_t resident_blocks(const char* name, void (*kernel)(Parameters...), int threads, size_t bytes) {
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, bytes), name);
    return static_cast<int64_t>(multiprocessors(current_device())) * std::max(blocks, 1);
}

__device__ inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
__device__ inline double from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// The state of another lane. A state is a struct of doubles.
template <class S>
__device__ S of_lane(const S& mine, int lane) {
    static_assert(sizeof(S) % sizeof(double) == 0);
    S other;
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(S) / sizeof(double)); ++k) {
        const uint64_t bits = bits_of(reinterpret_cast<const double*>(&mine)[k]);
        const uint32_t low = __shfl_sync(kAllLanes, static_cast<uint32_t>(bits), lane & (kWarp - 1));
        const uint32_t high = __shfl_sync(kAllLanes, static_cast<uint32_t>(bits >> 32), lane & (kWarp - 1));
        reinterpret_cast<double*>(&other)[k] = from_bits(uint64_t{high} << 32 | low);
    }
    return other;
}

// The merged states of all threads before this one; with `backward`, of all threads after it. `total` gets the merged
// states of all threads. `warps` is shared memory for 32 states. Called by all threads of the thread block.
template <bool backward, class S, class Merge>
__device__ S exclusive_scan(const S& mine, const S& identity, S* warps, const Merge& merge, S* total) {
    const auto join = [&](const S& done, const S& next) { return backward ? merge(next, done) : merge(done, next); };
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, count = blockDim.x / kWarp;
    const int order = backward ? kWarp - 1 - lane : lane, direction = backward ? 1 : -1;
    const int place = backward ? count - 1 - warp : warp;
    S inclusive = mine;
#pragma unroll
    for (int by = 1; by < kWarp; by *= 2) {
        const S done = of_lane(inclusive, lane + direction * by);
        if (order >= by) inclusive = join(done, inclusive);
    }
    if (order == kWarp - 1) warps[place] = inclusive;
    __syncthreads();
    if (warp == 0) {
        S all = lane < count ? warps[lane] : identity;
#pragma unroll
        for (int by = 1; by < kWarp; by *= 2) {
            const S done = of_lane(all, lane - by);
            if (lane >= by) all = join(done, all);
        }
        __syncwarp();
        warps[lane] = all;
    }
    __syncthreads();
    const S before = place == 0 ? identity : warps[place - 1];
    *total = warps[count - 1];
    const S neighbour = of_lane(inclusive, lane + direction);
    __syncthreads();
    return order == 0 ? before : join(before, neighbour);
}

// Replaces the state of each part by the merged states of all parts before it in the row.
template <class S, class M>
__global__ void __launch_bounds__(kThreads)
    carry(S* states, int64_t rows, int64_t parts, const S identity, const M merge) {
    extern __shared__ double memory[];
    S* const warps = reinterpret_cast<S*>(memory);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        S before = identity;
        for (int64_t begin = 0; begin < parts; begin += blockDim.x) {
            const int64_t i = begin + threadIdx.x;
            const S mine = i < parts ? states[row * parts + i] : identity;
            S total;
            const S inside = exclusive_scan<false>(mine, identity, warps, merge, &total);
            if (i < parts) states[row * parts + i] = merge(before, inside);
            before = merge(before, total);
        }
    }
}

// Element i of doubles, or of floats.
__device__ inline double element(const void* from, int64_t i, bool is_double) {
    return is_double ? static_cast<const double*>(from)[i] : static_cast<const float*>(from)[i];
}

// Copies elements [begin, begin + count) of a row of n to shared memory, with threads 0 … threads - 1; NaN for places
// outside the row. Doubles are copied asynchronously: wait for the thread's copies.
__device__ inline void load_row(double* to, const void* x, bool is_double, int64_t row, int64_t n, int64_t begin,
                                int count, int thread, int threads) {
    const int64_t from = row * n + begin;
    if (is_double && begin >= 0 && begin + count <= n) {
        const double* doubles = static_cast<const double*>(x) + from;
        uint32_t address = ptx::shared_address(to);
        const auto copy = [&](int elements, const auto& copy_one) {
            address += thread * elements * 8, doubles += thread * elements;
#pragma unroll 4
            for (int left = count / elements - thread; left > 0; left -= threads) {
                copy_one(address, doubles);
                address += threads * elements * 8, doubles += threads * elements;
            }
        };
        const bool odd = address % 16 != 0;
        if (odd != (reinterpret_cast<uint64_t>(doubles) % 16 != 0)) {
            copy(1, [](uint32_t shared, const double* from) { ptx::copy_async_8(shared, from); });
            return;
        }
        // Pairs of elements; before that, the single elements in front of the pairs and after them.
        const int last = count - 1;
        if (thread == 0 && odd) ptx::copy_async_8(address, doubles);
        if (thread == 0 && odd == (count % 2 == 0)) ptx::copy_async_8(address + last * 8, doubles + last);
        if (odd) ++doubles, address += 8, --count;
        copy(2, [](uint32_t shared, const double* from) { ptx::copy_async_16(shared, from, 1); });
        return;
    }
#pragma unroll 1
    for (int i = thread; i < count; i += threads) {
        const bool has = begin + i >= 0 && begin + i < n;
        to[i] = has ? element(x, from + i, is_double) : static_cast<double>(NAN);
    }
}

// Copies `count` results from shared memory to `out`, as doubles or floats, starting at its element `first`.
__device__ inline void store_row(const double* from, void* out, bool is_double, int64_t first, int64_t count,
                                 int thread, int threads) {
    if (is_double) {
        double* const to = static_cast<double*>(out) + first;
        for (int i = thread; i < count; i += threads) to[i] = from[i];
    } else {
        float* const to = static_cast<float*>(out) + first;
        for (int i = thread; i < count; i += threads) to[i] = static_cast<float>(from[i]);
    }
}

}  // namespace nnue::cuda::stats
