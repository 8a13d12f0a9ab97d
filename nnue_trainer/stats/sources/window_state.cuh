// Windows of few elements are added up by a thread each. With `remove`, a lane follows the windows of a segment of a
// row, and a warp reads and writes a tile of its 32 segments together, through shared memory. With `merge`, a thread
// block makes a tile of outputs: a window is a suffix of the elements before a cut, what lies between, and a prefix of
// those behind it; suffixes and prefixes are scans over the threads.
namespace {

constexpr int kDirect = 16;  // elements of a window that a thread adds up for itself
constexpr unsigned kAllLanes = 0xffffffffu;

template <class W, class T>
__global__ void __launch_bounds__(256) direct(const Job job) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t o = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; o < job.rows * job.n; o += step) {
        const int64_t row = o / job.n, i = o % job.n + job.first;
        const Reach<T> reach{static_cast<const T*>(job.x) + row * job.n, job.n};
        W window{};
        int64_t found = 0;
        for (int64_t k = i; k < i + job.length; ++k) reach.add(window, found, k);
        static_cast<T*>(job.out)[o] = number<T>(window, found, job.min_periods);
    }
}

// ---- remove ----

constexpr int kSlideWarps = 2;       // of a thread block
constexpr int kSlideBlocks = 4;      // of a multiprocessor; with more, float64 has too few registers
constexpr int kSpan = 16;            // elements of a segment in a tile
constexpr int kAtOnce = 32 / kSpan;  // segments of which a warp reads elements with one instruction

// The tiles of a warp: a row for each lane, of odd pitch against bank conflicts.
template <class T>
struct Tiles {
    T next[32][kSpan + 1], old[32][kSpan + 1];  // `old` has the outputs at the end
    int64_t begins[32], rows[32];               // of the segments and of their rows, in the whole tensor
};

// Reads this lane's part of a tile. The tile's row of a segment begins `offset` after the segment's first output, and
// has NaN outside the row of x.
template <class T>
__device__ __forceinline__ void read_tile(const Tiles<T>& tiles, const Job& job, int64_t offset, int lane,
                                          T (&found)[kSpan]) {
#pragma unroll
    for (int k = 0; k < kSpan; ++k) {
        const int segment = k * kAtOnce + lane / kSpan;
        const int64_t row = tiles.rows[segment], at = tiles.begins[segment] + offset + lane % kSpan;
        const bool inside = at >= row && at < row + job.n;
        found[k] = inside ? static_cast<const T*>(job.x)[at] : std::numeric_limits<T>::quiet_NaN();
    }
}
template <class T>
__device__ __forceinline__ void put_tile(T (&tile)[32][kSpan + 1], int lane, const T (&found)[kSpan]) {
#pragma unroll
    for (int k = 0; k < kSpan; ++k) tile[k * kAtOnce + lane / kSpan][lane % kSpan] = found[k];
}

template <class W, class T>
__global__ void __launch_bounds__(32 * kSlideWarps, kSlideBlocks) slide(const Job job) {
    __shared__ Tiles<T> of_warps[kSlideWarps];
    const int lane = threadIdx.x % 32;
    Tiles<T>& tiles = of_warps[threadIdx.x / 32];
    const int64_t items = job.items(), segments = job.segments();
    const int64_t first_item = (blockIdx.x * static_cast<int64_t>(kSlideWarps) + threadIdx.x / 32) * 32;
    if (first_item >= items) return;
    const int64_t item = first_item + lane < items ? first_item + lane : items - 1;
    tiles.rows[lane] = item / segments * job.n;
    tiles.begins[lane] = tiles.rows[lane] + item % segments * job.segment;
    __syncwarp();

    // Steps are counted from a segment's first output; before that, its first window is added up.
    const int64_t start = -((job.length + kSpan - 1) / kSpan * kSpan), last = job.first + job.length;
    W window{};
    int64_t found = 0;
    T next[kSpan], old[kSpan];
    read_tile(tiles, job, start + last, lane, next);
    for (int64_t step = start; step < job.segment; step += kSpan) {
        const bool puts = step >= 0;
        put_tile(tiles.next, lane, next);
        if (puts) put_tile(tiles.old, lane, old);
        __syncwarp();
        const int64_t after = step + kSpan;
        if (after < job.segment) {
            read_tile(tiles, job, after + last, lane, next);
            if (after >= 0) read_tile(tiles, job, after + job.first, lane, old);
        }
        if (puts) {
#pragma unroll 4
            for (int j = 0; j < kSpan; ++j) {
                const T come = tiles.next[lane][j], leaves = tiles.old[lane][j];
                tiles.old[lane][j] = number<T>(window, found, job.min_periods);
                if (come - come == 0) window.add(static_cast<double>(come)), ++found;
                if (leaves - leaves == 0) {
                    window.remove(static_cast<double>(leaves));
                    if (--found == 0) window = W{};
                }
            }
            __syncwarp();
#pragma unroll
            for (int k = 0; k < kSpan; ++k) {
                const int segment = k * kAtOnce + lane / kSpan;
                const int64_t inside = step + lane % kSpan, at = tiles.begins[segment] + inside;
                const bool exists = first_item + segment < items && inside < job.segment;
                if (exists && at < tiles.rows[segment] + job.n) {
                    static_cast<T*>(job.out)[at] = tiles.old[segment][lane % kSpan];
                }
            }
        } else {
#pragma unroll 4
            for (int j = 0; j < kSpan; ++j) {
                const T come = tiles.next[lane][j];
                if (step + j >= -job.length && come - come == 0) window.add(static_cast<double>(come)), ++found;
            }
        }
        __syncwarp();
    }
}

// ---- merge ----

// Each thread of a GPU holds several states, and shared memory one for each warp.
static_assert(!Merges<Window> || sizeof(Window) <= 4096, "a state with merge may have at most 4096 bytes on CUDA");

template <class W>
constexpr int kMostThreads = sizeof(Part<W>) <= 1024 ? 256 : 32;  // shared memory has a state for each warp
// Consecutive outputs of a thread: an odd number against bank conflicts, of states that fit into registers.
template <class W>
constexpr int kMine = (std::clamp(224 / static_cast<int>(sizeof(Part<W>)), 1, 10) - 1) | 1;
// Thread blocks of a multiprocessor, which limits the registers. States that are larger would spill.
template <class W>
constexpr int kMergeBlocks = sizeof(Part<W>) <= 32 ? 3 : 1;

struct Tiling {
    int threads, outputs;          // of a thread block
    int segment;                   // the distance of cuts
    int64_t tiles, groups;         // of a row: groups are as long as a tile, and are in the middle of windows
    int64_t between, whole, rest;  // elements in the middle of a window: whole groups, and others
};
template <class W>
__host__ __device__ Tiling tiling(const Job& job) {
    Tiling t;
    constexpr int kOf = kMine<W>;
    const int64_t needed = (job.n + kOf * 32 - 1) / (kOf * 32) * 32;
    t.threads = static_cast<int>(needed < kMostThreads<W> ? needed : kMostThreads<W>);
    const int64_t most = static_cast<int64_t>(t.threads) * kOf;
    t.segment = static_cast<int>(job.length < most ? job.length : most);
    t.outputs = static_cast<int>(most / t.segment * t.segment);
    t.threads = (t.outputs + kOf * 32 - 1) / (kOf * 32) * 32;  // no more than these outputs need
    t.tiles = (job.n + t.outputs - 1) / t.outputs;
    t.between = job.length - t.segment;
    t.whole = t.between / t.outputs, t.rest = t.between % t.outputs;
    t.groups = t.whole == 0 ? 0 : t.tiles + t.whole;
    return t;
}

template <class S>
__device__ __forceinline__ S of_lane(const S& mine, int lane) {
    static_assert(sizeof(S) % 4 == 0);
    unsigned words[sizeof(S) / 4];
    memcpy(words, &mine, sizeof(S));
    constexpr int kUnroll = sizeof(S) <= 256 ? sizeof(S) / 4 : 1;
#pragma unroll kUnroll
    for (int k = 0; k < static_cast<int>(sizeof(S) / 4); ++k) words[k] = __shfl_sync(kAllLanes, words[k], lane & 31);
    S found;
    memcpy(&found, words, sizeof(S));
    return found;
}

// The state of all threads' elements together, in their order. `memory`: a place for each warp.
template <class W>
__device__ Part<W> all_threads(Part<W> mine, Part<W>* memory) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll 1
    for (int by = 1; by < 32; by *= 2) {
        const Part<W> next = of_lane(mine, lane + by);
        if (lane + by < 32) mine.append(next);
    }
    __syncthreads();
    if (lane == 0) memory[threadIdx.x / 32] = mine;
    __syncthreads();
    if constexpr (kMostThreads<W> == 32) return memory[0];
    Part<W> all = memory[std::min(lane, warps - 1)];
#pragma unroll 1
    for (int by = 1; by < warps; by *= 2) {
        const Part<W> next = of_lane(all, lane + by);
        if (lane + by < warps) all.append(next);
    }
    return of_lane(all, 0);
}

// The state of elements begin … end of a row.
template <class W, class T>
__device__ Part<W> range(const Reach<T>& reach, int64_t begin, int64_t end, Part<W>* memory) {
    const int64_t each = (end - begin + blockDim.x - 1) / blockDim.x, from = begin + threadIdx.x * each;
    Part<W> mine;
    for (int64_t i = from; i < from + each && i < end; ++i) reach.add(mine.window, mine.found, i);
    return all_threads(mine, memory);
}

template <class W, class T>
__global__ void __launch_bounds__(kMostThreads<W>) sum_groups(const Job job, const Tiling t) {
    alignas(16) __shared__ char memory[sizeof(Part<W>) * kMostThreads<W> / 32];
    for (int64_t g = blockIdx.x; g < job.rows * t.groups; g += gridDim.x) {
        const int64_t begin = g % t.groups * t.outputs + job.first;
        const Reach<T> reach{static_cast<const T*>(job.x) + g / t.groups * job.n, job.n};
        const Part<W> all = range<W>(reach, begin, begin + t.outputs, reinterpret_cast<Part<W>*>(memory));
        if (threadIdx.x == 0) static_cast<Part<W>*>(job.space)[g] = all;
    }
}

// The state of a part without gaps: its count is known.
template <class W>
struct Full {
    W window{};
    template <class T>
    __device__ void observe(T x) {
        window.add(static_cast<double>(x));
    }
    __device__ void append(const Full& next) { window.merge(next.window); }
};
// The state of a part in which NaN and infinity do not count.
template <class W>
struct Gaps : Part<W> {
    template <class T>
    __device__ void observe(T x) {
        if (x - x == 0) this->window.add(static_cast<double>(x)), ++this->found;
    }
};

// Shared memory: states of each warp; the elements before the cuts, also the outputs, and those behind them; and
// whether a warp has a cut.
template <class W, class T>
struct MergeTile {
    Part<W>* states;
    T *before, *behind;
    bool *cuts_before, *cuts_behind;

    __device__ MergeTile(double* memory, int threads) : states(reinterpret_cast<Part<W>*>(memory)) {
        before = reinterpret_cast<T*>(states + threads / 32 * 2), behind = before + threads * kMine<W>;
        cuts_before = reinterpret_cast<bool*>(behind + threads * kMine<W>), cuts_behind = cuts_before + threads / 32;
    }
    static size_t bytes(int threads) {
        return threads / 32 * 2 * (sizeof(Part<W>) + sizeof(bool)) + threads * kMine<W> * 2 * sizeof(T);
    }
};

// The outputs of a tile, from `before` and `behind`; `middle` is in the middle of all windows. P is Full or Gaps. All
// states here have elements: what `at`, `cut_…` and `has_…` rule out is not merged. Long: its phases share the states
// of the thread, which are in registers.
template <class P, class W, class T>
__device__ __forceinline__ void merge_tile(const MergeTile<W, T>& tile, const Part<W>& middle, int segment,
                                           int64_t min_periods) {
    constexpr int kOf = kMine<W>;
    constexpr bool kGaps = std::is_same_v<P, Gaps<W>>;
    const int me = threadIdx.x, lane = me % 32, warp = me / 32, warps = blockDim.x / 32, i = me * kOf;
    P *const suffixes = reinterpret_cast<P*>(tile.states), *const prefixes = suffixes + warps;
    const int phase = i % segment, phase_behind = (phase + kOf) % segment;  // of the first element, and behind the last
    P between;
    between.window = middle.window;
    if constexpr (kGaps) between.found = middle.found;
    P suffix[kOf], left, right;
    bool cut_left = false, cut_right = phase == 0;
    int at = phase_behind;  // of the element behind, in its segment
#pragma unroll
    for (int j = kOf - 1; j >= 0; --j) {
        P one;
        one.observe(tile.before[i + j]);
        if (at == 0)
            cut_left = true;
        else if (j < kOf - 1)
            one.append(left);
        suffix[j] = left = one;
        at = (at == 0 ? segment : at) - 1;
    }
#pragma unroll
    for (int j = 0; j < kOf; ++j) {
        if (at == 0) right = P{}, cut_right = true;
        right.observe(tile.behind[i + j]);
        at = at + 1 == segment ? 0 : at + 1;
    }
    // Lanes that are further away have another segment.
#pragma unroll 1
    for (int by = 1; by < 32 && (by - 1) * kOf < segment - 1; by *= 2) {
        const P next = of_lane(left, lane + by), previous = of_lane(right, lane - by);
        const bool next_cut = __shfl_sync(kAllLanes, static_cast<int>(cut_left), (lane + by) & 31) != 0;
        const bool previous_cut = __shfl_sync(kAllLanes, static_cast<int>(cut_right), (lane - by) & 31) != 0;
        if (lane + by < 32 && !cut_left) left.append(next), cut_left = next_cut;
        if (lane >= by && !cut_right) {
            P both = previous;
            both.append(right);
            right = both, cut_right = previous_cut;
        }
    }
    if (lane == 0) suffixes[warp] = left, tile.cuts_before[warp] = cut_left;
    if (lane == 31) prefixes[warp] = right, tile.cuts_behind[warp] = cut_right;
    // The states next to this thread's elements: after them up to the next cut, and before them.
    P after = of_lane(left, lane + 1), prefix = of_lane(right, lane - 1);
    const bool next_cut = __shfl_sync(kAllLanes, static_cast<int>(cut_left), (lane + 1) & 31) != 0;
    const bool previous_cut = __shfl_sync(kAllLanes, static_cast<int>(cut_right), (lane - 1) & 31) != 0;
    __syncthreads();
    bool has_after = lane<31, has_prefix = lane> 0;
    bool closed = (has_after && next_cut) || phase_behind == 0, opened = (has_prefix && previous_cut) || phase == 0;
#pragma unroll 1
    for (int v = warp + 1; v < warps && !closed; ++v) {
        if (has_after)
            after.append(suffixes[v]);
        else
            after = suffixes[v], has_after = true;
        closed = tile.cuts_before[v];
    }
#pragma unroll 1
    for (int v = warp - 1; v >= 0 && !opened; --v) {
        P both = prefixes[v];
        if (has_prefix) both.append(prefix);
        prefix = both, has_prefix = true, opened = tile.cuts_behind[v];
    }
    at = phase_behind;
    bool reaches = has_after;
#pragma unroll
    for (int j = kOf - 1; j >= 0; --j) {
        reaches = reaches && at != 0;
        if (reaches) suffix[j].append(after);
        at = (at == 0 ? segment : at) - 1;
    }
#pragma unroll
    for (int j = 0; j < kOf; ++j) {
        P& both = suffix[j];
        if (middle.found > 0) both.append(between);
        if (at == 0)
            prefix = P{};
        else
            both.append(prefix);
        int64_t found = segment + middle.found;
        if constexpr (kGaps) found = both.found;
        tile.before[i + j] = number<T>(both.window, found, min_periods);
        prefix.observe(tile.behind[i + j]);
        at = at + 1 == segment ? 0 : at + 1;
    }
}

template <class W, class T>
__global__ void __launch_bounds__(kMostThreads<W>, kMergeBlocks<W>) merge_tiles(const Job job, const Tiling t) {
    extern __shared__ double memory[];
    const MergeTile<W, T> shared(memory, blockDim.x);
    const int me = threadIdx.x;
    for (int64_t tile = blockIdx.x; tile < job.rows * t.tiles; tile += gridDim.x) {
        const int64_t row = tile / t.tiles, begin = tile % t.tiles * t.outputs;
        const Reach<T> reach{static_cast<const T*>(job.x) + row * job.n, job.n};
        const int outputs = static_cast<int>(std::min<int64_t>(t.outputs, job.n - begin));
        bool full = true;
        for (int k = me; k < static_cast<int>(blockDim.x) * kMine<W>; k += blockDim.x) {
            // What is past the outputs is not used, but added: it has to be an observation, too.
            const int64_t at = begin + job.first + (k < t.outputs ? k : 0), then = at + job.length;
            const T none = std::numeric_limits<T>::quiet_NaN();
            const T x = at >= 0 && at < job.n ? reach.x[at] : none,
                    y = then >= 0 && then < job.n ? reach.x[then] : none;
            full = full && x - x == 0 && y - y == 0;
            shared.before[k] = x, shared.behind[k] = y;
        }
        Part<W> middle;
        if (t.whole > 0) {
            const int64_t each = (t.whole + blockDim.x - 1) / blockDim.x, from = me * each;
            const Part<W>* const groups = static_cast<const Part<W>*>(job.space) + row * t.groups + tile % t.tiles + 1;
            Part<W> mine;
            for (int64_t g = from; g < from + each && g < t.whole; ++g) mine.append(groups[g]);
            middle = all_threads(mine, shared.states);
        }
        if (t.rest > 0) {
            const int64_t end = begin + job.first + job.length;
            middle.append(range<W>(reach, end - t.rest, end, shared.states));
        }
        if (__syncthreads_and(full)) {
            merge_tile<Full<W>>(shared, middle, t.segment, job.min_periods);
        } else {
            merge_tile<Gaps<W>>(shared, middle, t.segment, job.min_periods);
        }
        __syncthreads();
        T* const out = static_cast<T*>(job.out) + row * job.n + begin;
        for (int k = me; k < outputs; k += blockDim.x) out[k] = shared.before[k];
        __syncthreads();
    }
}

// ---- launches ----

unsigned blocks_for(int64_t items, int64_t each) {
    return static_cast<unsigned>(std::min<int64_t>((items + each - 1) / each, INT32_MAX));
}
int64_t bytes_of(const Job& job) {
    if constexpr (Merges<Window>) {
        return job.length <= kDirect ? 0 : job.rows * tiling<Window>(job).groups * sizeof(Part<Window>);
    } else {
        return 0;
    }
}
template <class T>
void launch(const Job& job, cudaStream_t stream) {
    if (job.length <= kDirect) {
        direct<Window, T><<<blocks_for(job.rows * job.n, 256), 256, 0, stream>>>(job);
    } else if constexpr (Merges<Window>) {
        const Tiling t = tiling<Window>(job);
        if (t.groups > 0) {
            sum_groups<Window, T><<<blocks_for(job.rows * t.groups, 1), t.threads, 0, stream>>>(job, t);
        }
        const size_t bytes = MergeTile<Window, T>::bytes(t.threads);
        merge_tiles<Window, T><<<blocks_for(job.rows * t.tiles, 1), t.threads, bytes, stream>>>(job, t);
    } else {
        slide<Window, T><<<blocks_for(job.items(), 32 * kSlideWarps), 32 * kSlideWarps, 0, stream>>>(job);
    }
}
}  // namespace
