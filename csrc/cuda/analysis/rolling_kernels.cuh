// Sliding windows on CUDA; rolling.h says how a window is cut.
//
// A thread block walks along a row, tile of windows by tile. The elements from the tile where the windows begin to the
// one where they end lie in a ring in shared memory; the next tile is on its way while one is worked on. In each turn
// the thread block scans the tile of beginnings from behind, which gives suffixes, and the tile of ends from the front,
// which gives prefixes. A thread has a chunk of neighbouring windows.
//
//   | tile t     | t + 1      | t + 2      | t + 3      |    length = 2 tiles + rest
//       [ suffix ]            |            |            |
//                [rest][ of the turns before ][ prefix ]
//
// What lies between is a few elements, and the tiles of ends of the turns before, whose states are at hand. Windows
// that do not fit into the ring have their states between made in device memory, by doubling, and the tiles of
// beginnings and of ends are loaded each for itself. Tiles of windows shorter than a tile are cut where windows would
// follow on each other: no window reaches over more than one cut, and scans start anew at each.
#pragma once

#include "../../rolling.h"
#include "scan.cuh"

namespace nnue::cuda::analysis {

using rolling::Finish;
using rolling::State;
using rolling::Windows;

// The longest window whose elements go into the ring.
constexpr int kLongestInRing = 6144;

// Neighbouring windows of a thread. An odd number: threads that read the same place of their chunks use different
// banks.
template <class M>
constexpr int kWindows = M::kNumbers <= 3 ? 9 : 5;
constexpr int kRollThreads = 128;
// Thread blocks of a multiprocessor that the registers are shared out to.
template <class M>
constexpr int kRollBlocks = M::kNumbers <= 3 ? 5 : 4;

struct Job {
    Windows windows;
    const void *x, *y;  // double, or float
    void* out;
    bool is_double, in_ring;
    Finish finish;
    int tile, segment;      // elements; and with cuts those from one to the next
    int whole, rest, lead;  // the tile of ends is `whole` tiles and `rest` elements on, and ends before tile lead + 1
    int slots;              // tiles of the ring
    int64_t run, runs;      // tiles that a thread block walks over, and walks of a row
    const double* between;  // [rows, tiles] states between the tiles of beginnings and of ends; only outside the ring
};

template <class M>
using StateOf = State<double, M::kNumbers>;

template <class M>
struct Merge {
    __device__ StateOf<M> operator()(const StateOf<M>& a, const StateOf<M>& b) const { return M::merge(a, b); }
};

// Shared memory: the ring of x, with its first `rest` elements once more behind it, that of y, and states; with cuts
// results too, which else take the place of the tile of beginnings. Threads read up to a chunk beyond the end.
template <class M>
struct Shared {
    static constexpr int kRings = M::kPair ? 2 : 1;
    int ring;  // elements
    int states;
    bool results;

    __host__ __device__ Shared(const Job& job, bool cut)
        : ring(job.slots * job.tile + job.rest), states(2 * kWarp + job.whole + 1), results(cut) {}
    __host__ size_t bytes(int threads) const {
        const int64_t doubles = static_cast<int64_t>(ring) * kRings + (results ? threads : 1) * kWindows<M>;
        return (doubles + states * M::kNumbers) * sizeof(double);
    }
};

// With `kCut` scans start anew where the windows of a tile, one behind the other, would begin.
template <class M, bool kCut>
__global__ void __launch_bounds__(kRollThreads, kRollBlocks<M>) roll(const Job job) {
    extern __shared__ double memory[];
    constexpr int kMine = kWindows<M>;
    using S = StateOf<M>;
    const Windows& w = job.windows;
    const int me = threadIdx.x, threads = blockDim.x, warps = threads / kWarp;
    const int lane = me % kWarp, warp = me / kWarp;
    const int tile = job.tile, begin = me * kMine, count = max(min(tile - begin, kMine), 0);
    const S identity = M::template identity<double>();

    const Shared<M> shared(job, kCut);
    S *const ahead = reinterpret_cast<S*>(memory), *const behind = ahead + kWarp;  // [warps]
    S* const ends = behind + kWarp;                                                // [whole] of turns
    double *const x = memory + shared.states * M::kNumbers, *const y = x + (M::kPair ? shared.ring : 0);

    // Bits of the chunk where it is cut, how many threads back or on there is no cut, and from and up to which warp.
    unsigned cut_before = 0, cut_behind = 0;
    int back = me + 1, on = threads - me, first_warp = 0, last_warp = warps - 1;
    if constexpr (kCut) {
        const int segment = job.segment;
        const auto first_of = [&](int i) { return (i - i % segment) / kMine; };
        const auto last_of = [&](int i) { return min((i - i % segment + segment - 1) / kMine, threads - 1); };
#pragma unroll
        for (int j = 0; j < kMine; ++j) {
            cut_before |= ((begin + j) % segment == 0 ? 1u : 0u) << j;
            cut_behind |= ((begin + j + 1) % segment == 0 ? 1u : 0u) << j;
        }
        back = me - first_of(begin + kMine - 1);
        on = last_of(begin) - me;
        first_warp = warp == 0 ? 0 : first_of(warp * kWarp * kMine - 1) / kWarp;
        last_warp = last_of((warp + 1) * kWarp * kMine) / kWarp;
    }
    const int back_before = __shfl_sync(kAllLanes, back, (lane + kWarp - 1) % kWarp);
    const int on_behind = __shfl_sync(kAllLanes, on, (lane + 1) % kWarp);
    const bool all_back = !kCut || lane == 0 || back_before > lane - 1;
    const bool all_on = !kCut || lane == kWarp - 1 || on_behind > kWarp - 2 - lane;

    const auto append = [&](S& state, int at) {
        const double value = x[at], other = y[at];
        if (is_finite(value) && (!M::kPair || is_finite(other))) M::append(state, value, other);
    };
    const auto load = [&](int slot, int64_t row, int64_t tile_begin) {
        const auto load_both = [&](int to, int elements) {
            load_row(x + to, job.x, job.is_double, row, w.n, tile_begin, elements, me, threads);
            if (M::kPair) load_row(y + to, job.y, job.is_double, row, w.n, tile_begin, elements, me, threads);
        };
        load_both(slot * tile, tile);
        if (job.in_ring && slot == 0 && job.rest > 0) load_both(job.slots * tile, job.rest);
    };

    for (int64_t walk = blockIdx.x; walk < w.rows * job.runs; walk += gridDim.x) {
        const int64_t row = walk / job.runs, first_tile = walk % job.runs * job.run;
        const int64_t last_tile = min(first_tile + job.run, w.tiles);
        // Turns without output come first, for the states of the tiles of ends.
        const int early = !kCut && job.in_ring ? job.whole - 1 : 0;
        const int64_t base = w.first + (first_tile - early) * tile;  // of slot 0 at first
        const int turns = static_cast<int>(last_tile - first_tile) + early;

        const auto load_turn = [&](int turn) {
            if (kCut || job.in_ring) {
                load((turn + job.lead) % job.slots, row, base + static_cast<int64_t>(turn + job.lead) * tile);
            } else {
                const int64_t at = base + static_cast<int64_t>(turn) * tile;
                load(turn % 2 * 2, row, at);
                load(turn % 2 * 2 + 1, row, at + w.length);
            }
        };
        for (int turn = job.in_ring ? -job.lead : 0; turn <= 0; ++turn) load_turn(turn);
        hopper::copy_async_commit();

        for (int turn = 0; turn < turns; ++turn) {
            hopper::copy_async_wait_all();
            __syncthreads();
            // Where the results of the turn before were, or its beginnings.
            if (turn + 1 < turns) load_turn(turn + 1);
            const int begins = (kCut || job.in_ring ? turn % job.slots : turn % 2 * 2) * tile + begin;
            const int finishes =
                kCut || job.in_ring ? (turn + job.whole) % job.slots * tile + job.rest + begin : begins + tile;

            S before = identity, after = identity, suffixes[kMine];
#pragma unroll
            for (int j = 0; j < kMine; ++j) {
                if (kCut && (cut_before >> j & 1) != 0) before = identity;
                if (kCut || j < count) append(before, finishes + j);
            }
#pragma unroll
            for (int j = kMine - 1; j >= 0; --j) {
                if (kCut && (cut_behind >> j & 1) != 0) after = identity;
                if (kCut || j < count) append(after, begins + j);
                suffixes[j] = after;
            }
#pragma unroll
            for (int by = 1; by < kWarp; by *= 2) {
                const S left = of_lane(before, lane - by), right = of_lane(after, lane + by);
                if (by <= min(back, lane)) before = M::merge(left, before);
                if (by <= min(on, kWarp - 1 - lane)) after = M::merge(after, right);
            }
            if (lane == kWarp - 1) ahead[warp] = before;
            if (lane == 0) behind[warp] = after;
            before = of_lane(before, lane - 1);
            after = of_lane(after, lane + 1);
            if (lane == 0) before = identity;
            if (lane == kWarp - 1) after = identity;
            __syncthreads();
            S all_before = identity, all_behind = identity;
            for (int v = first_warp; v < warp; ++v) all_before = M::merge(all_before, ahead[v]);
            for (int v = last_warp; v > warp; --v) all_behind = M::merge(behind[v], all_behind);
            if constexpr (!kCut) {
                S between = identity;
                if (job.in_ring) {
                    if (me == threads - 1) ends[turn % job.whole] = M::merge(all_before, ahead[warp]);
                    if (turn < early) continue;
                    for (int i = 0; i < job.rest; ++i) append(between, (turn + 1) % job.slots * tile + i);
                    for (int k = 1; k < job.whole; ++k) between = M::merge(between, ends[(turn + k) % job.whole]);
                } else {
                    between = reinterpret_cast<const S*>(job.between)[row * w.tiles + first_tile + turn];
                }
                all_before = M::merge(between, all_before);
            }

            // A window is a suffix of the chunk, what is after that, and before and in the chunk of ends.
            if (all_back) before = M::merge(all_before, before);
            if (all_on) after = M::merge(after, all_behind);
            if (!kCut || cut_behind == 0) before = M::merge(after, before);
            double* const results = kCut ? x + M::kPair * shared.ring + shared.ring : x + (begins - begin);
#pragma unroll
            for (int j = 0; j < kMine; ++j) {
                if (kCut && (cut_before >> j & 1) != 0) before = cut_behind >> j == 0 ? after : identity;
                const double result = job.finish(M::merge(suffixes[j], before));
                if (kCut || j < count) {
                    append(before, finishes + j);
                    results[begin + j] = result;
                }
            }
            __syncwarp();
            const int warp_begin = warp * kWarp * kMine;
            const int64_t out_first = (first_tile - early + turn) * tile + warp_begin;
            store_row(results + warp_begin, job.out, job.is_double, row * w.n + out_first,
                      min(static_cast<int64_t>(min(tile - warp_begin, kWarp * kMine)), w.n - out_first), lane, kWarp);
        }
        __syncthreads();
    }
}

// The states of ranges of `count` elements, `step` apart from `begin` on, `ranges` for each row. They go into `states`,
// or with `more` are merged into what is there.
template <class M>
__global__ void __launch_bounds__(kRollThreads) sum_ranges(const Job job, int64_t begin, int64_t step, int64_t count,
                                                           int64_t ranges, StateOf<M>* states, bool more) {
    __shared__ double memory[kWarp * M::kNumbers];
    using S = StateOf<M>;
    const Windows& w = job.windows;
    for (int64_t range = blockIdx.x; range < w.rows * ranges; range += gridDim.x) {
        const int64_t row = range / ranges, first = begin + range % ranges * step;
        const int64_t low = max(first, static_cast<int64_t>(0)), high = min(first + count, w.n);
        S state = M::template identity<double>();
        for (int64_t i = low + threadIdx.x; i < high; i += blockDim.x) {
            const double x = element(job.x, row * w.n + i, job.is_double);
            M::append(state, x, M::kPair ? element(job.y, row * w.n + i, job.is_double) : x);
        }
        S total;
        exclusive_scan<false>(state, M::template identity<double>(), reinterpret_cast<S*>(memory), Merge<M>(), &total);
        if (threadIdx.x == 0) states[range] = more ? M::merge(states[range], total) : total;
    }
}

// One turn of doubling: between ⊕= the state of `size` tiles at the offset, if the turn has it; then the states of
// twice as many tiles go from `sums` to `doubled`.
template <class M>
__global__ void __launch_bounds__(kRollThreads)
    double_tiles(const Windows w, const StateOf<M>* sums, StateOf<M>* doubled, StateOf<M>* between, int64_t offset,
                 int64_t size, bool first, bool takes, bool more) {
    const int64_t tiles = w.summed, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    const int64_t most = tiles > w.tiles ? tiles : w.tiles;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < w.rows * most; i += step) {
        const int64_t row = i / most, t = i % most;
        const StateOf<M>* const from = sums + row * tiles;
        if (t < w.tiles) {
            StateOf<M>* const to = between + row * w.tiles + t;
            StateOf<M> state = first ? M::template identity<double>() : *to;
            if (takes && t + offset < tiles) state = M::merge(state, from[t + offset]);
            *to = state;
        }
        if (more && t < tiles) {
            doubled[row * tiles + t] = t + size < tiles ? M::merge(from[t], from[t + size]) : from[t];
        }
    }
}

template <class T>
__global__ void __launch_bounds__(kRollThreads) fill(T* out, int64_t count, T value) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) out[i] = value;
}

}  // namespace nnue::cuda::analysis
