// The PSQT columns of both perspectives, forward: half the difference of the two sides' sums, at the PSQT bucket of
// each position. One warp per position gathers from a table that the L2 cache holds. Any row will do.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common.cuh"
#include "index_check.cuh"

namespace nnue::psqt {

using cuda::FindingSink;
using cuda::kWarp;

constexpr int kThreads = 256;

struct Positions {
    const int32_t* white;  // [positions, max_active]
    const int32_t* black;
    const int64_t* psqt_bucket;  // [positions]
    int positions, max_active, num_features, psqt_buckets;
};

// Calls visit(index) for the legal entries of a row that belong to this lane.
template <class Visit>
__device__ __forceinline__ void for_each_own_entry(const Positions& p, const int32_t* row, int lane,
                                                   const Visit& visit) {
    for (int base = 0; base < p.max_active; base += kWarp) {
        const int32_t mine = base + lane < p.max_active ? row[base + lane] : -1;
        const unsigned ends = __ballot_sync(cuda::kAllLanes, mine == -1);
        const bool alive = (ends & ((2u << lane) - 1)) == 0;  // no -1 up to here
        if (alive && static_cast<unsigned>(mine) < static_cast<unsigned>(p.num_features)) visit(mine);
        if (ends != 0) return;
    }
}

// `black_first(position)` says whether Black is to move.
template <class BlackFirst>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Positions p, BlackFirst black_first, const float* __restrict__ psqt, float* __restrict__ out,
                   FindingSink sink) {
    const int position = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (position >= p.positions) return;
    const int64_t psqt_bucket = p.psqt_bucket[position];
    if (psqt_bucket < 0 || psqt_bucket >= p.psqt_buckets) {
        if (lane == 0) {
            out[position] = 0;
            cuda::report(sink, position,
                         static_cast<int32_t>(max(min(psqt_bucket, int64_t(INT32_MAX)), -int64_t(INT32_MAX))));
        }
        return;
    }
    const float* column = psqt + psqt_bucket;
    float white = 0, black = 0;
    const auto value = [&](int32_t index) { return column[int64_t(index) * p.psqt_buckets]; };
    const int64_t row = int64_t(position) * p.max_active;
    for_each_own_entry(p, p.white + row, lane, [&](int32_t index) { white += value(index); });
    for_each_own_entry(p, p.black + row, lane, [&](int32_t index) { black += value(index); });
    float difference = white - black;
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        difference += __shfl_xor_sync(cuda::kAllLanes, difference, offset);
    }
    if (lane == 0) out[position] = (black_first(position) ? -0.5f : 0.5f) * difference;
}

template <class BlackFirst>
void launch_forward(const Positions& p, const BlackFirst& black_first, const float* psqt, float* out,
                    const FindingSink& sink, cudaStream_t stream) {
    cuda::launch("psqt forward", forward_kernel<BlackFirst>, cuda::thread_blocks_for(p.positions, kThreads / kWarp),
                 kThreads, 0, stream, p, black_first, psqt, out, sink);
}

}  // namespace nnue::psqt
