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
// beginnings and of ends are loaded each for itself.
//
// A turn whose windows have no gap, that is no element that is not finite, is done in a dense way, without counts and
// divisions. NaN and infinity spread through sums, so the states of chunks show gaps; then the turn is done anew, in
// the counted way. Which way it is depends on the elements alone.
//
// Tiles of windows shorter than a tile are cut where windows would follow on each other: no window reaches over more
// than one cut, and scans start anew at each. They are always counted.
#pragma once

#include "../../rolling.h"
#include "scan.cuh"

namespace nnue::cuda::analysis {

using rolling::Finish;
using rolling::FinishOf;
using rolling::State;
using rolling::Weights;
using rolling::Windows;

// The longest window whose elements go into the ring.
constexpr int kLongestInRing = 6144;

// Neighbouring windows of a thread. An odd number: threads that read the same place of their chunks use different
// banks.
template <class M>
constexpr int kWindows = M::kNumbers <= 3 ? 9 : 5;
constexpr int kRollThreads = 128;
// Thread blocks of a multiprocessor that the registers are shared out to. With 4, sums and extremes spill nothing.
constexpr int kRollBlocks = 4;

// More than any kWindows.
constexpr int kMostWindows = 16;

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

    // Of windows without gaps: a window is the last k elements of a chunk and `length - k` others.
    FinishOf finish_all;
    Weights joined[kMostWindows], next[kMostWindows];  // of those k and the others, of the others and one more; by -k
};

template <class M>
using StateOf = State<double, M::kNumbers>;

template <class M>
struct Merge {
    __device__ StateOf<M> operator()(const StateOf<M>& a, const StateOf<M>& b) const { return M::merge(a, b); }
};

// How a turn works with states. The counted way goes for all elements. The dense way is for turns without gaps, that is
// if all elements of all windows are finite: counts are known, so states have none, and merges take weights.
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

// Neither a gap nor an overflow. For max and min, whose states do not show them, elements are looked at.
template <class M, int N>
__device__ bool all_finite(const State<double, N>& state) {
    bool finite = true;
#pragma unroll
    for (int k = 0; k < N; ++k) finite = finite && (!M::kSpreads || is_finite(state.at[k]));
    return finite;
}

// The pieces of a tile: the whole chunks of each warp, and the chunk that is not whole, if there is one.
constexpr int kPieces = kRollThreads / kWarp + 1;
constexpr int kSteps = 5;  // of a scan over a warp

// Shared memory: weights, states, the ring of x, with its first `rest` elements once more behind it, that of y; with
// cuts results too, which else take the place of the tile of beginnings. Threads read up to a chunk beyond the end. The
// ring begins where copies of 16 bytes are mostly possible.
template <class M>
struct Shared {
    static constexpr int kRings = M::kPair ? 2 : 1;
    // Weights of merges of chunks in scans [kSteps, kWarp] and of what is after and before a chunk in its warp
    // [2, kWarp], of pieces with what came before them [3, kPieces], of pieces of a tile, and of what is between.
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

// Fills in the weights of tiles without gaps. Their chunks are whole, but for the last one.
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
        // As the first warp, as the last one, and as the chunk that is not whole sees the others.
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

// With `kCut` scans start anew where the windows of a tile, one behind the other, would begin.
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
    StateOf<M>* const ends = reinterpret_cast<StateOf<M>*>(states) + 2 * kPieces;  // [whole] of turns
    double *const x = states + shared.states * M::kNumbers + (shared.odd ? 1 : 0), *const y =
                                                                                       x + (M::kPair ? shared.ring : 0);

    // How many lanes back or on a scan goes. Without cuts a chunk that is not whole is a piece for itself.
    const int chunks = kCut ? kWarp : max(min(tile / kMine - warp * kWarp, kWarp), 0);
    const bool odd = !kCut && count > 0 && count < kMine;
    int lanes_back = lane < chunks ? lane : 0, lanes_on = lane < chunks ? chunks - 1 - lane : 0;
    // Without cuts windows are at the end of a chunk, so that all threads have suffixes of the same length.
    const int missing = kCut ? 0 : kMine - count;
    // How far before its place a thread that has not all of a chunk takes one: the last one of the tile.
    const int spare = kCut ? 0 : max(begin + kMine - tile, 0);

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
        // Turns without output come first, for the states of the tiles of ends.
        const int early = !kCut && job.in_ring ? job.whole - 1 : 0;
        const int64_t base = w.first + (first_tile - early) * tile;  // of slot 0 at first
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
        hopper::copy_async_commit();

        int begin_slot = 0, end_slot = kCut || job.in_ring ? job.whole % job.slots : 1;
        int end = 0;    // of `ends`, for the turn
        int dense = 0;  // turns before this one, whose ends have no gap
        for (int turn = 0; turn < turns; ++turn) {
            hopper::copy_async_wait_all();
            __syncthreads();
            // Where the results of the turn before were, or its beginnings.
            if (turn + 1 < turns) load_turn(turn + 1, begin_slot > 0 ? begin_slot - 1 : job.slots - 1);
            const int begins = begin_slot * tile + begin, finishes = end_slot * tile + job.rest + begin;
            const int following = begin_slot + 1 < job.slots ? begin_slot + 1 : 0;  // the slot behind it

            // Returns whether it could do the turn. With gaps, the dense way cannot.
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
                    if (odd) {  // has taken elements of the chunk before it, too
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

                // A window is a suffix of the chunk, what is after that, and before and in the chunk of ends.
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
                        if (kDense && (gap || !all_finite<M>(others))) return false;
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
