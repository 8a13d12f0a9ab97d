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
    const int32_t* white;  // [B, max_active]
    const int32_t* black;
    const int64_t* psqt_bucket;  // [B]
    int first;                   // the first of the positions whose output is needed
    int positions;               // how many of them
    int max_active, num_features, psqt_buckets;
};

// Entries `base` + lane of both sides' rows; −1 where a row has none.
struct Entries {
    int32_t white, black;
};
__device__ __forceinline__ Entries load_entries(const Positions& p, int64_t row, int base, int lane) {
    if (base + lane >= p.max_active) return {-1, -1};
    return {p.white[row + base + lane], p.black[row + base + lane]};
}

// Whether no lane up to this one has a −1. `ends`: the lanes that have one.
__device__ __forceinline__ bool is_before_end(unsigned ends, int lane) {
    return (ends & ((2u << lane) - 1)) == 0;
}

// Whether this lane's entry counts: its index is legal, and neither this lane nor a lower one has a −1. Sets `ended` if
// the row has one.
__device__ __forceinline__ bool counts(const Positions& p, int32_t index, int lane, bool& ended) {
    const unsigned ends = __ballot_sync(cuda::kAllLanes, index == -1);
    const bool is_before = !ended && is_before_end(ends, lane);
    ended = ended || ends != 0;
    return is_before && static_cast<unsigned>(index) < static_cast<unsigned>(p.num_features);
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
    Entries now = load_entries(p, row, 0, lane);
    const float half = black_first(position) ? -0.5f : 0.5f;
    if (psqt_bucket < 0 || psqt_bucket >= p.psqt_buckets) {
        if (lane == 0) {
            out[place] = 0;
            cuda::report(sink, position,
                         static_cast<int32_t>(max(min(psqt_bucket, int64_t(INT32_MAX)), -int64_t(INT32_MAX))));
        }
        return;
    }
    const float* column = psqt + psqt_bucket;
    const auto value = [&](int32_t index) { return column[int64_t(index) * p.psqt_buckets]; };
    float white = 0, black = 0;
    bool white_ended = false, black_ended = false;
    for (int base = 0; base < p.max_active && !(white_ended && black_ended); base += kWarp) {
        const Entries next = load_entries(p, row, base + kWarp, lane);
        if (counts(p, now.white, lane, white_ended)) white += value(now.white);
        if (counts(p, now.black, lane, black_ended)) black += value(now.black);
        now = next;
    }
    float difference = white - black;
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        difference += __shfl_xor_sync(cuda::kAllLanes, difference, offset);
    }
    if (lane == 0) out[place] = half * difference;
}

template <class BlackFirst>
void launch_forward(const Positions& p, const BlackFirst& black_first, const float* psqt, float* out,
                    const FindingSink& sink, cudaStream_t stream) {
    cuda::launch("psqt forward", forward_kernel<BlackFirst>, cuda::thread_blocks_for(p.positions, kThreads / kWarp),
                 kThreads, 0, stream, p, black_first, psqt, out, sink);
}

}  // namespace nnue::psqt
