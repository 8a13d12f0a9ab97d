// Exponentially weighted moments on CUDA. A warp goes along its part of a row in steps of 288 elements: first it
// computes the state of the part, and then, from the state of all earlier parts, the outputs. In between only the
// states of the parts go through device memory, and no warp waits for another. The states are those of ewm.h.
#pragma once

#include "../../ewm.h"
#include "scan.cuh"

namespace nnue::cuda::stats {

// Neighbouring elements per lane, and elements per step of a warp.
constexpr int kLaneElements = 9;
constexpr int kTurn = kLaneElements * kWarp;
constexpr int kEwmWarps = 8;
// Thread blocks per multiprocessor; there are enough registers for them.
template <bool kVariance>
constexpr int kEwmBlocks = kVariance ? 2 : 3;

struct EwmJob {
    ewm::Rule rule;
    const void* x;  // double, or float
    void* out;
    bool is_double;
    int64_t rows, n;
    int64_t part, parts;  // elements of a part, a multiple of kTurn; parts of a row
    double* last;  // [rows, parts], or null: place of a part's last observation, later of the last before it; -1: none
    double* states;  // [rows, parts]: the state of a part, later that of all parts before it
};

// The place of an observation, as a double because exclusive_scan takes structs of doubles.
struct Place {
    double at = -1;
};
struct Later {
    __device__ Place operator()(const Place& a, const Place& b) const { return {a.at > b.at ? a.at : b.at}; }
};
template <bool kVariance>
struct EwmMerge {
    __device__ ewm::State<kVariance> operator()(const ewm::State<kVariance>& a, const ewm::State<kVariance>& b) const {
        return ewm::merge(a, b);
    }
};

// Finds the last observation of each part.
__global__ void __launch_bounds__(kEwmWarps* kWarp) ewm_last(const EwmJob job) {
    const int lane = threadIdx.x % kWarp;
    const int64_t warps = static_cast<int64_t>(gridDim.x) * kEwmWarps;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kEwmWarps + threadIdx.x / kWarp; i < job.rows * job.parts;
         i += warps) {
        const int64_t row = i / job.parts, first = i % job.parts * job.part;
        // Search backwards: mostly the first step finds one.
        double found = -1;
        for (int64_t end = min(first + job.part, job.n); end > first && found < 0; end -= kWarp) {
            const int64_t at = end - 1 - lane;
            const bool seen = at >= first && is_finite(element(job.x, row * job.n + at, job.is_double));
            const unsigned all = __ballot_sync(kAllLanes, seen);
            if (all != 0) found = static_cast<double>(end - __ffs(static_cast<int>(all)));
        }
        if (lane == 0) job.last[i] = found;
    }
}

template <bool kVariance, bool kWrite>
__global__ void __launch_bounds__(kEwmWarps* kWarp, kEwmBlocks<kVariance>) ewm_walk(const EwmJob job) {
    __shared__ double memory[2 * kEwmWarps * kTurn];
    using S = ewm::State<kVariance>;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    double* const buffers = memory + 2 * warp * kTurn;
    const int64_t warps = static_cast<int64_t>(gridDim.x) * kEwmWarps;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kEwmWarps + warp; i < job.rows * job.parts; i += warps) {
        const int64_t row = i / job.parts, begin = i % job.parts * job.part;
        const int turns = static_cast<int>(divide_up(min(job.part, job.n - begin), kTurn));
        S* const mine = reinterpret_cast<S*>(job.states) + i;
        S carried = kWrite ? *mine : S();
        Place last;
        if (job.last != nullptr) last.at = job.last[i];
        const auto load = [&](int turn) {
            load_row(buffers + turn % 2 * kTurn, job.x, job.is_double, row, job.n, begin + turn * kTurn, kTurn, lane,
                     kWarp);
        };
        load(0);
        ptx::copy_async_commit();
        for (int turn = 0; turn < turns; ++turn) {
            if (turn + 1 < turns) load(turn + 1);
            ptx::copy_async_commit();
            ptx::copy_async_wait<1>();
            __syncwarp();
            double* const x = buffers + turn % 2 * kTurn;
            const int64_t first = begin + turn * kTurn;
            double* const my_x = x + lane * kLaneElements;
            const int64_t my_first = first + lane * kLaneElements;

            Place before = last;
            if (job.last != nullptr) {
                Place found;
#pragma unroll
                for (int j = 0; j < kLaneElements; ++j) {
                    if (is_finite(my_x[j])) found.at = static_cast<double>(my_first + j);
                }
#pragma unroll
                for (int by = 1; by < kWarp; by *= 2) {
                    const Place done = of_lane(found, lane - by);
                    if (lane >= by) found = Later()(done, found);
                }
                const Place neighbour = of_lane(found, lane - 1);
                if (lane > 0) before = Later()(last, neighbour);
                last = Later()(last, of_lane(found, kWarp - 1));
            }
            const auto follow = [&](S& state, const auto& visit) {
                int64_t seen = static_cast<int64_t>(before.at);
#pragma unroll
                for (int j = 0; j < kLaneElements; ++j) {
                    const double value = my_x[j];
                    if constexpr (!kVariance) {
                        if (job.rule.adjust) {
                            job.rule.follow(state, value);
                            visit(j, state);
                            continue;
                        }
                    }
                    state = ewm::merge(state, job.rule.template element<kVariance>(value, my_first + j, seen));
                    if (is_finite(value)) seen = my_first + j;
                    visit(j, state);
                }
            };
            S inclusive;
            follow(inclusive, [](int, const S&) {});
#pragma unroll
            for (int by = 1; by < kWarp; by *= 2) {
                const S done = of_lane(inclusive, lane - by);
                if (lane >= by) inclusive = ewm::merge(done, inclusive);
            }
            if constexpr (kWrite) {
                const S neighbour = of_lane(inclusive, lane - 1);
                S state = lane == 0 ? carried : ewm::merge(carried, neighbour);
                follow(state, [&](int j, const S& at) { my_x[j] = job.rule.finish(at); });
            }
            carried = ewm::merge(carried, of_lane(inclusive, kWarp - 1));
            __syncwarp();
            if constexpr (kWrite) {
                store_row(x, job.out, job.is_double, row * job.n + first,
                          min(static_cast<int64_t>(kTurn), job.n - first), lane, kWarp);
                __syncwarp();
            }
        }
        if (!kWrite && lane == 0) *mine = carried;
    }
}

}  // namespace nnue::cuda::stats
