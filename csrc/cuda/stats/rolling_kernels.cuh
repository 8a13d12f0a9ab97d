// Sliding windows on CUDA; rolling.h describes how a window is cut.
//
// A thread block walks along a row, one tile of windows after the other; each tile is one *turn*. A ring buffer of
// tiles in shared memory holds the elements from the tile where the windows of the turn begin (the tile of beginnings)
// to the tile where they end (the tile of ends). The tile of the next turn is loaded during the present one. In each
// turn the thread block scans the tile of beginnings from its end, which gives suffixes, and the tile of ends from its
// start, which gives prefixes. Each thread has a *chunk* of neighbouring windows.
//
//   | tile t     | t + 1      | t + 2      | t + 3      |    length = 2 tiles + rest
//       [ suffix ]            |            |            |
//                [rest][ of the turns before ][ prefix ]
//
// Between the suffix and the prefix lie `rest` elements and the tiles of ends of earlier turns, whose states are kept.
// If the windows are too long for the ring, the states between are computed beforehand, in device memory and by
// doubling, and the tiles of beginnings and of ends are loaded separately.
//
// A *gap* is an element that is not finite. A turn whose windows have no gap is computed in the dense way, without
// counts and divisions. NaN and infinity spread through sums, so the states of the chunks show whether there is a gap;
// if so, the turn is computed again in the counted way. The choice depends on the elements, and after a gap also on
// where the walk of the thread block began: there the last bits may differ between GPUs.
//
// If windows are shorter than a tile, the tile is cut at every multiple of the window's length. A window crosses at
// most one cut, and the scans start again at each cut. Such tiles are always computed in the counted way.
#pragma once

#include "../../rolling.h"
#include "scan.cuh"

namespace nnue::cuda::stats {

using rolling::Finish;
using rolling::FinishOf;
using rolling::State;
using rolling::Weights;
using rolling::Windows;

// The longest window whose elements go into the ring.
constexpr int kLongestInRing = 6144;

// Neighbouring windows per thread. The number is odd, so that threads which read the same place of their chunks use
// different banks.
template <class M>
constexpr int kWindows = M::kNumbers <= 4 ? 9 : 5;
constexpr int kRollThreads = 128;
// Thread blocks per multiprocessor, which determines how many registers a thread may have. With 4, sums and extremes
// spill nothing.
constexpr int kRollBlocks = 4;

// More than any kWindows.
constexpr int kMostWindows = 16;

struct Job {
    Windows windows;
    const void *x, *y;  // double, or float
    void* out;
    bool is_double, in_ring;
    Finish finish;
    int tile, segment;  // elements of a tile; elements from one cut to the next
    // The tile of ends is `whole` tiles and `rest` elements behind that of beginnings, and lies before tile lead + 1.
    int whole, rest, lead;
    int slots;              // tiles in the ring
    int64_t run, runs;      // tiles of a walk of a thread block; walks per row
    const double* between;  // [rows, tiles] states between the tiles of beginnings and of ends; only outside the ring

    // For windows without gaps: a window is the last k elements of a chunk and `length - k` others. `joined` merges
    // these two; `next` adds one more element to the others. Both are indexed by kWindows - k.
    int* marked;  // becomes 1 if an output is marked
    FinishOf finish_all;
    Weights joined[kMostWindows], next[kMostWindows];
};

template <class M>
using StateOf = State<double, M::kNumbers>;

template <class M>
struct Merge {
    __device__ StateOf<M> operator()(const StateOf<M>& a, const StateOf<M>& b) const { return M::merge(a, b); }
};

// How a turn computes with states. The counted way takes any elements. The dense way is for turns without gaps: there
// the counts are known, so that states hold none and merges take weights made of the counts.
template <class M, bool kDense>
struct Way {
    using S = State<double, M::kNumbers - (kDense ? 1 : 0)>;

    static __device__ S identity() {
        if constexpr (!kDense) {
            return M::template identity<double>();
        } else {
            return without_count(M::template identity<double>());
        }
    }
    static __device__ void append(S& state, double x, double y, const Weights& weights) {
        if constexpr (kDense) {
            M::append(state, x, y, weights);
        } else {
            if (is_finite(x) && (!M::kPair || is_finite(y))) M::append(state, x, y);
        }
    }
    static __device__ S merge(const S& a, const S& b, const Weights& weights) {
        if constexpr (kDense) {
            return M::merge(a, b, weights);
        } else {
            return M::merge(a, b);
        }
    }
    static __device__ S without_count(const StateOf<M>& state) {
        if constexpr (!kDense) {
            return state;
        } else {
            S s;
#pragma unroll
            for (int k = 1; k < M::kNumbers; ++k) s.at[k - 1] = state.at[k];
            return s;
        }
    }
    static __device__ StateOf<M> with_count(const S& state, double count) {
        if constexpr (!kDense) {
            return state;
        } else {
            StateOf<M> s;
            s.at[0] = count;
#pragma unroll
            for (int k = 1; k < M::kNumbers; ++k) s.at[k] = state.at[k - 1];
            return s;
        }
    }
};

// Whether a state shows neither a gap nor an overflow. The states of max and min show none; there the elements
// themselves are checked.
template <class M, int N>
__device__ bool all_finite(const State<double, N>& state) {
    bool finite = true;
#pragma unroll
    for (int k = 0; k < N; ++k) finite = finite && (!M::kSpreads || is_finite(state.at[k]));
    return finite;
}

// The pieces of a tile: one per warp, which is its whole chunks, and the incomplete chunk, if there is one.
constexpr int kPieces = kRollThreads / kWarp + 1;
constexpr int kSteps = 5;  // of a scan over a warp

// Shared memory: weights; states; the ring of x, followed by a copy of its first `rest` elements; the same of y; with
// cuts also the results, which otherwise replace the tile of beginnings. Threads read up to a chunk beyond the end. The
// ring begins where most copies can have 16 bytes.
template <class M>
struct Shared {
    static constexpr int kRings = M::kPair ? 2 : 1;
    // Where the weights begin: those of the steps of a scan over chunks [kSteps, kWarp]; kLanes: of what a warp has
    // after and before a chunk [2, kWarp]; kOthers: of pieces with what was merged before them [3, kPieces]; kTotal:
    // of the pieces of a tile; kBetween: of the tiles and elements between.
    static constexpr int kLanes = kSteps * kWarp, kOthers = kLanes + 2 * kWarp, kTotal = kOthers + 3 * kPieces,
                         kBetween = kTotal + kPieces;
    int weights, states;
    int ring;  // elements
    bool odd, results;

    __host__ __device__ Shared(const Job& job, bool cut)
        : weights(cut || !M::kWeighted ? 0 : kBetween + job.whole + job.rest),
          states(2 * kPieces + job.whole + 1),
          ring(job.slots * job.tile + job.rest),
          odd(((states * M::kNumbers + job.windows.first) & 1) != 0),
          results(cut) {}
    __host__ size_t bytes(int threads) const {
        const int64_t doubles = 1 + static_cast<int64_t>(ring) * kRings + (results ? threads : 1) * kWindows<M>;
        return weights * sizeof(Weights) + (doubles + states * M::kNumbers) * sizeof(double);
    }
};

// Fills in the weights of tiles without gaps. All chunks are whole, except perhaps the last one.
template <class M>
__device__ __noinline__ void fill_weights(Weights* to, int64_t length, int tile, int whole, int rest, int warps) {
    using Places = Shared<M>;
    constexpr int kChunk = kWindows<M>, kPiece = kChunk * kWarp;
    const int chunks = tile / kChunk, in_last = chunks - (warps - 1) * kWarp;
    const double between = static_cast<double>(length - tile);
    const auto piece = [&](int v) {
        return v < warps - 1 ? kPiece : v == warps - 1 ? in_last * kChunk : tile % kChunk;
    };
#pragma unroll 1
    for (int i = threadIdx.x; i < kPieces; i += blockDim.x) {
        // The other pieces as they are for every warp but the last, for the last warp, and for the incomplete chunk.
#pragma unroll 1
        for (int kind = 0; kind < 3; ++kind) {
            const int mine = kind == 0 ? 0 : warps - 2 + kind;
            double before = between;
#pragma unroll 1
            for (int v = 0; v < i; ++v) before += piece(v + (v >= mine ? 1 : 0));
            const bool lanes = i == warps - 1 + (tile % kChunk > 0 ? 1 : 0);  // comes at the end
            const double next = !lanes ? piece(i + (i >= mine ? 1 : 0)) : kind == 2 ? 0 : max(piece(mine) - kChunk, 0);
            to[Places::kOthers + kind * kPieces + i] = Weights(before, next);
        }
        double before = 0;
#pragma unroll 1
        for (int v = 0; v <= i; ++v) before += piece(v);
        to[Places::kTotal + i] = Weights(before, piece(i + 1));
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < kSteps * kWarp; i += blockDim.x) {
        const int by = 1 << i / kWarp, behind = i % kWarp;
        to[i] = Weights(by * kChunk, max(min(behind - by + 1, by), 0) * kChunk);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * kWarp; i += blockDim.x) {
        const int lane = i % kWarp, all = i < kWarp ? kWarp : in_last;
        to[Places::kLanes + i] = lane < all ? Weights((all - 1 - lane) * kChunk, lane * kChunk) : Weights(0, 0);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < whole + rest; i += blockDim.x) {
        const int tiles = whole - 1;
        to[Places::kBetween + i] = i < tiles ? Weights(static_cast<double>(i) * tile, tile)
                                             : Weights(static_cast<double>(tiles) * tile + (i - tiles), 1);
    }
}

// With `kCut` a tile is cut at every multiple of the window's length, and scans start again there.
// long: all turns of a thread use its places, cuts and scan limits, which stay in registers.
template <class M, bool kCut>
__global__ void __launch_bounds__(kRollThreads, kRollBlocks) roll(const Job job) {
    extern __shared__ double memory[];
    constexpr int kMine = kWindows<M>;
    const Windows& w = job.windows;
    const int me = threadIdx.x, threads = blockDim.x, warps = threads / kWarp;
    const int lane = me % kWarp, warp = me / kWarp;
    const int tile = job.tile, begin = me * kMine, count = max(min(tile - begin, kMine), 0);

    using Places = Shared<M>;
    const Places shared(job, kCut);
    Weights* const weights = reinterpret_cast<Weights*>(memory);
    double* const states = memory + shared.weights * 2;
    StateOf<M>* const ends = reinterpret_cast<StateOf<M>*>(states) + 2 * kPieces;  // [whole]: those of the last turns
    double *const x = states + shared.states * M::kNumbers + (shared.odd ? 1 : 0), *const y =
                                                                                       x + (M::kPair ? shared.ring : 0);

    // How many lanes before and after this one a scan covers. Without cuts, an incomplete chunk is a separate piece.
    const int chunks = kCut ? kWarp : max(min(tile / kMine - warp * kWarp, kWarp), 0);
    const bool odd = !kCut && count > 0 && count < kMine;
    int lanes_back = lane < chunks ? lane : 0, lanes_on = lane < chunks ? chunks - 1 - lane : 0;
    // Without cuts, an incomplete chunk has its windows at its end, so that suffix j has the same length in all
    // threads.
    const int missing = kCut ? 0 : kMine - count;
    // A thread whose chunk is incomplete or empty reads the last kMine elements of the tile instead, which begin so
    // many elements earlier.
    const int spare = kCut ? 0 : max(begin + kMine - tile, 0);

    // As bits, where the chunk is cut. `back`, `on`: over how many threads before and after this one there is no cut;
    // first_warp, last_warp: the same in warps.
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
        lanes_back = min(back, lane), lanes_on = min(on, kWarp - 1 - lane);
        first_warp = warp == 0 ? 0 : first_of(warp * kWarp * kMine - 1) / kWarp;
        last_warp = last_of((warp + 1) * kWarp * kMine) / kWarp;
    }
    const int back_before = __shfl_sync(kAllLanes, back, (lane + kWarp - 1) % kWarp);
    const int on_behind = __shfl_sync(kAllLanes, on, (lane + 1) % kWarp);
    const bool all_back = lane == 0 || back_before > lane - 1;
    const bool all_on = lane == kWarp - 1 || on_behind > kWarp - 2 - lane;

    const int pieces = warps + (tile % kMine > 0 ? 1 : 0), my_piece = odd ? warps : warp;
    const int kind = odd ? 2 : warp == warps - 1 ? 1 : 0;
    const Weights* const my_others = weights + Places::kOthers + kind * kPieces;
    if constexpr (!kCut && M::kWeighted) fill_weights<M>(weights, w.length, tile, job.whole, job.rest, warps);

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
        // The first turns make no output, only the states of their tiles of ends.
        const int early = !kCut && job.in_ring ? job.whole - 1 : 0;
        const int64_t base = w.first + (first_tile - early) * tile;  // of the first tile in slot 0
        const int turns = static_cast<int>(last_tile - first_tile) + early;

        const auto load_turn = [&](int turn, int slot) {
            if (kCut || job.in_ring) {
                load(slot, row, base + static_cast<int64_t>(turn + job.lead) * tile);
            } else {
                const int64_t at = base + static_cast<int64_t>(turn) * tile;
                load(turn % 2 * 2, row, at);
                load(turn % 2 * 2 + 1, row, at + w.length);
            }
        };
        for (int turn = job.in_ring ? -job.lead : 0; turn <= 0; ++turn) load_turn(turn, turn + job.lead);
        ptx::copy_async_commit();

        int begin_slot = 0, end_slot = kCut || job.in_ring ? job.whole % job.slots : 1;
        int end = 0;    // the place in `ends` of this turn
        int dense = 0;  // how many turns directly before this one have no gap in their tiles of ends
        for (int turn = 0; turn < turns; ++turn) {
            ptx::copy_async_wait_all();
            __syncthreads();
            // The next tile replaces the results of the turn before, or its tile of beginnings.
            if (turn + 1 < turns) load_turn(turn + 1, begin_slot > 0 ? begin_slot - 1 : job.slots - 1);
            const int begins = begin_slot * tile + begin, finishes = end_slot * tile + job.rest + begin;
            const int following = begin_slot + 1 < job.slots ? begin_slot + 1 : 0;  // the next slot

            // Returns false if the dense way met a gap.
            const auto work = [&]<bool kDense>() {
                using W = Way<M, kDense>;
                using S = typename W::S;
                const S identity = W::identity();
                S *const ahead = reinterpret_cast<S*>(states), *const behind = ahead + kPieces;
                bool gap = false;
                const auto append = [&](S& state, int at, const Weights& of) {
                    if (kDense && !M::kSpreads) gap = gap || !is_finite(x[at]);
                    W::append(state, x[at], y[at], of);
                };

                S before = identity, after = identity, suffixes[kMine];
                // With cuts, threads after the end of the tile read what lies there, perhaps results that others are
                // writing at that time (racecheck warns of it). Windows of these threads never reach the output.
#pragma unroll
                for (int j = 0; j < kMine; ++j) {
                    if (kCut && (cut_before >> j & 1) != 0) before = identity;
                    if (kCut || kDense || j < count) append(before, finishes + (kDense ? j - spare : j), Weights(j, 1));
                }
#pragma unroll
                for (int j = kMine - 1; j >= 0; --j) {
                    if (kCut && (cut_behind >> j & 1) != 0) after = identity;
                    if (kCut || kDense || j >= missing) append(after, begins - spare + j, Weights(kMine - 1 - j, 1));
                    suffixes[j] = after;
                }
                if constexpr (kDense) {
                    gap = gap || !all_finite<M>(before) || !all_finite<M>(after);
                    if (odd) {  // the incomplete chunk has also read elements of the chunk before it
                        before = identity;
#pragma unroll
                        for (int j = 0; j < kMine - 1; ++j) {
                            if (j < count) append(before, finishes + j, Weights(j, 1));
                            if (j + 1 == missing) after = suffixes[j + 1];
                        }
                    }
                }
#pragma unroll
                for (int step = 0; step < kSteps; ++step) {
                    const int by = 1 << step;
                    const S left = of_lane(before, lane - by), right = of_lane(after, lane + by);
                    if (by <= lanes_back) before = W::merge(before, left, weights[step * kWarp + lanes_back]);
                    if (by <= lanes_on) after = W::merge(after, right, weights[step * kWarp + lanes_on]);
                }
                if (lane == max(chunks - 1, 0)) ahead[warp] = chunks > 0 ? before : identity;
                if (lane == 0) behind[warp] = chunks > 0 ? after : identity;
                if (odd) ahead[warps] = before, behind[warps] = after;
                before = of_lane(before, lane - 1);
                after = of_lane(after, lane + 1);
                if (lane == 0 || lane >= chunks) before = identity;
                if (lane >= chunks - 1) after = identity;
                if constexpr (kDense) {
                    if (!__syncthreads_and(!gap)) return false;
                } else {
                    __syncthreads();
                }

                // A window is a suffix of its chunk, everything from there to the chunk where it ends, and a prefix of
                // that.
                if constexpr (kCut) {
                    S all_before = identity, all_behind = identity;
#pragma unroll 1
                    for (int v = first_warp; v < warp; ++v) all_before = M::merge(all_before, ahead[v]);
#pragma unroll 1
                    for (int v = last_warp; v > warp; --v) all_behind = M::merge(behind[v], all_behind);
                    if (all_back) before = M::merge(all_before, before);
                    if (all_on) after = M::merge(after, all_behind);
                    if (cut_behind == 0) before = M::merge(after, before);
                } else {
                    S others;
                    if (job.in_ring) {
                        if (me == threads - 1) {
                            S total = ahead[0];
#pragma unroll 1
                            for (int v = 1; v < pieces; ++v) {
                                total = W::merge(total, ahead[v], weights[Places::kTotal + v - 1]);
                            }
                            ends[end] = W::with_count(total, tile);
                        }
                        if (turn < early) return true;
                        int k = end;
                        others = identity;
#pragma unroll 1
                        for (int i = 0; i < job.whole - 1; ++i) {
                            k = k + 1 < job.whole ? k + 1 : 0;
                            others = W::merge(others, W::without_count(ends[k]), weights[Places::kBetween + i]);
                        }
#pragma unroll 1
                        for (int i = 0; i < job.rest; ++i) {
                            append(others, following * tile + i, weights[Places::kBetween + job.whole - 1 + i]);
                        }
                        if (kDense && (gap || !all_finite<M>(others))) {
                            __syncthreads();  // the counted way writes to `ahead` and `behind`, which others may read
                            return false;
                        }
                    } else {
                        others = W::without_count(
                            reinterpret_cast<const StateOf<M>*>(job.between)[row * w.tiles + first_tile + turn]);
                    }
#pragma unroll 1
                    for (int i = 0; i < pieces - 1; ++i) {
                        others = W::merge(others, i < my_piece ? ahead[i] : behind[i + 1], my_others[i]);
                    }
                    const Weights& of = weights[Places::kLanes + (warp == warps - 1 ? kWarp : 0) + lane];
                    before = W::merge(others, W::merge(after, before, of), my_others[pieces - 1]);
                }

                double* const results = kCut ? x + M::kPair * shared.ring + shared.ring : x + (begins - begin);
#pragma unroll
                for (int j = 0; j < kMine; ++j) {
                    if (kCut && (cut_before >> j & 1) != 0) before = cut_behind >> j == 0 ? after : identity;
                    const S window = W::merge(suffixes[j], before, job.joined[j]);
                    double result;
                    if constexpr (kDense) {
                        result = job.finish_all(window);
                    } else {
                        result = job.finish(window);
                    }
                    if (kCut || j >= missing) {
                        append(before, finishes - spare + j, job.next[j]);
                        results[begin - spare + j] = result;
                    }
                }
                bool marked = false;  // read again, since the loop above needs all registers
#pragma unroll 1
                for (int j = missing; j < kMine; ++j) {
                    marked = marked || rolling::is_marked(results[begin - spare + j]);
                }
                if (marked) *job.marked = 1;
                __syncwarp();
                const int warp_begin = warp * kWarp * kMine;
                const int64_t out_first = (first_tile - early + turn) * tile + warp_begin;
                store_row(results + warp_begin, job.out, job.is_double, row * w.n + out_first,
                          min(static_cast<int64_t>(min(tile - warp_begin, kWarp * kMine)), w.n - out_first), lane,
                          kWarp);
                return true;
            };

            bool done = false;
            if constexpr (!kCut) {
                bool known = true;
                if (job.in_ring) {
                    if (turn > 0) {
                        const StateOf<M> last = ends[end == 0 ? job.whole - 1 : end - 1];
                        dense = last.at[0] == tile && all_finite<M>(last) ? dense + 1 : 0;
                    }
                    known = dense >= min(turn, job.whole - 1);
                } else {
                    const StateOf<M> between =
                        reinterpret_cast<const StateOf<M>*>(job.between)[row * w.tiles + first_tile + turn];
                    known = between.at[0] == static_cast<double>(w.length - tile) && all_finite<M>(between);
                }
                done = known && tile >= kMine && !job.finish_all.none && work.template operator()<true>();
            }
            if (!done) work.template operator()<false>();

            if (kCut || job.in_ring) {
                begin_slot = following;
                end_slot = end_slot + 1 < job.slots ? end_slot + 1 : 0;
                end = end + 1 < job.whole ? end + 1 : 0;
            } else {
                begin_slot = 2 - begin_slot, end_slot = begin_slot + 1;
            }
        }
        __syncthreads();
    }
}

// The states of ranges of `count` elements. Each row has `ranges` of them; the first one starts at `begin`, and their
// starts are `step` apart. They are stored in `states`, or with `more` merged into what is there.
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

// One step of doubling. With `takes`, the state of the `size` tiles at `offset` is merged into `between`; with `more`,
// `doubled` gets the states of twice as many tiles, made of those in `sums`.
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

// Computes the marked outputs anew; they are rare.
template <class M>
__global__ void __launch_bounds__(kRollThreads) mend(const Job job) {
    if (*job.marked == 0) return;
    const Windows& w = job.windows;
    const auto* const x = static_cast<const double*>(job.x);
    const auto* const y = static_cast<const double*>(job.y);
    auto* const out = static_cast<double*>(job.out);
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < w.rows * w.n; i += step) {
        const int64_t row = i / w.n * w.n;
        if (rolling::is_marked(out[i])) {
            out[i] = rolling::mended<M>(out[i], job.finish, x + row, M::kPair ? y + row : nullptr, w.n, w.first,
                                        w.length, i - row);
        }
    }
}

template <class T>
__global__ void __launch_bounds__(kRollThreads) fill(T* out, int64_t count, T value) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) out[i] = value;
}

}  // namespace nnue::cuda::stats
