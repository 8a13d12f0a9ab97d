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
    const int32_t* rows[2];      // of White and Black, [B, max_active]
    const int64_t* psqt_bucket;  // [B]
    int first;                   // the first of the positions whose output is needed
    int positions;               // how many of them
    int max_active, num_features, psqt_buckets;
};

// Whether no lane up to this one has a −1. `ends`: the lanes that have one.
__device__ __forceinline__ bool is_before_end(unsigned ends, int lane) {
    return (ends & ((2u << lane) - 1)) == 0;
}

// `black_first(position)` is true if Black is to move.
template <class BlackFirst>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(Positions p, BlackFirst black_first, const float* __restrict__ psqt, float* __restrict__ out,
                   FindingSink sink) {
    const int place = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (place >= p.positions) return;
    const int position = p.first + place;
    // A warp mostly waits for memory, so independent loads are issued together.
    const int64_t psqt_bucket = p.psqt_bucket[position], row = int64_t(position) * p.max_active;
    const auto load_entries = [&](int base, int32_t(&to)[2]) {
        for (int side = 0; side < 2; ++side)
            to[side] = base + lane < p.max_active ? p.rows[side][row + base + lane] : -1;
    };
    int32_t now[2], next[2];
    load_entries(0, now);
    const float half = black_first(position) ? -0.5f : 0.5f;
    if (psqt_bucket < 0 || psqt_bucket >= p.psqt_buckets) {
        if (lane == 0) {
            out[place] = 0;
            cuda::report(sink, position, psqt_bucket);
        }
        return;
    }
    const float* column = psqt + psqt_bucket;
    float sums[2] = {};
    bool ended[2] = {};
    for (int base = 0; base < p.max_active && !(ended[0] && ended[1]); base += kWarp) {
        load_entries(base + kWarp, next);
        for (int side = 0; side < 2; ++side) {
            const int32_t index = now[side];
            const unsigned ends = __ballot_sync(cuda::kAllLanes, index == -1);
            const bool counts = !ended[side] && is_before_end(ends, lane);
            if (counts && static_cast<unsigned>(index) < static_cast<unsigned>(p.num_features))
                sums[side] += column[int64_t(index) * p.psqt_buckets];
            ended[side] = ended[side] || ends != 0;
            now[side] = next[side];
        }
    }
    float difference = sums[0] - sums[1];
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        difference += __shfl_xor_sync(cuda::kAllLanes, difference, offset);
    }
    if (lane == 0) out[place] = half * difference;
}

}  // namespace nnue::psqt
