// Scans of states over a thread block, and chunks of neighbouring elements in shared memory.
#pragma once

#include "../common.cuh"

namespace nnue::cuda::analysis {

// Threads of a thread block at most, and the elements that a thread has at a time: neighbours, its chunk.
constexpr int kThreads = 512;
constexpr int kChunk = 8;

// One element of padding for each chunk: threads that read the same place of their chunks then use different banks.
__host__ __device__ constexpr int64_t padded(int64_t i) {
    return i + i / kChunk;
}

// As many threads as a row of n elements keeps busy.
inline int threads_for(int64_t n, int most = kThreads) {
    return static_cast<int>(std::min<int64_t>(divide_up(divide_up(n, kChunk), kWarp) * kWarp, most));
}

// The state of another lane. A state is a struct of doubles.
template <class S>
__device__ S of_lane(const S& mine, int lane) {
    static_assert(sizeof(S) % sizeof(double) == 0);
    S other;
#pragma unroll
    for (int k = 0; k < static_cast<int>(sizeof(S) / sizeof(double)); ++k) {
        reinterpret_cast<double*>(&other)[k] =
            __shfl_sync(kAllLanes, reinterpret_cast<const double*>(&mine)[k], lane & (kWarp - 1));
    }
    return other;
}

// The merged states of all threads before this one; with `backward` of all threads behind it. `total` is that of all.
// `warps` is shared memory for 32 states. All threads of the block call it.
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

// Elements [begin, begin + count) of a row of n into shared memory, chunk by chunk; NaN where the row has none.
template <class T>
__device__ void load_elements(T* to, const T* row, int64_t n, int64_t begin, int64_t count) {
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        const int64_t at = begin + i;
        to[padded(i)] = at >= 0 && at < n ? row[at] : static_cast<T>(NAN);
    }
}

// The first `count` elements back.
template <class T>
__device__ void store_elements(const T* from, T* to, int64_t count) {
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[padded(i)];
}

}  // namespace nnue::cuda::analysis
