// Sliding windows of several tiles at once, one in each lane of a vector. Compiled once for every instruction set level
// by for_each_isa.h; see rolling.cpp.

namespace {

typedef double Lanes __attribute__((vector_size(NNUE_VECTOR_BYTES)));
constexpr int kLanes = NNUE_VECTOR_BYTES / sizeof(double);

// Tiles first_tile, first_tile + 1, ... of all rows, numbered across rows of `tiles_per_row`; lane l works on the l-th.
template <class T>
struct LaneRows {
    const T *x[kLanes], *y[kLanes];
    int64_t row[kLanes], tile[kLanes], begin[kLanes];
    int count;
    bool inside;  // all that is loaded lies in the rows
};

template <class T>
LaneRows<T> lanes_of(const rolling::Job<T>& job, int64_t first_tile, int64_t tiles_per_row, int64_t reach) {
    const rolling::Windows& w = job.windows;
    LaneRows<T> lanes;
    lanes.count = static_cast<int>(std::min<int64_t>(kLanes, w.rows * tiles_per_row - first_tile));
    lanes.inside = true;
    int64_t row = first_tile / tiles_per_row, tile = first_tile % tiles_per_row;
    for (int l = 0; l < kLanes; ++l) {
        lanes.row[l] = row, lanes.tile[l] = tile;
        lanes.x[l] = job.x + row * w.n;
        lanes.y[l] = job.y == nullptr ? nullptr : job.y + row * w.n;
        lanes.begin[l] = w.first + tile * w.tile;
        lanes.inside = lanes.inside && lanes.begin[l] >= 0 && lanes.begin[l] + reach <= w.n;
        if (l + 1 < lanes.count && ++tile == tiles_per_row) tile = 0, ++row;
    }
    return lanes;
}

template <bool inside, class T>
inline __attribute__((always_inline)) Lanes load(const LaneRows<T>& lanes, const T* const* from, int64_t at,
                                                 int64_t n) {
    Lanes found;
    for (int l = 0; l < kLanes; ++l) {
        const int64_t i = lanes.begin[l] + at;
        found[l] = inside || (i >= 0 && i < n) ? static_cast<double>(from[l][i]) : rolling::kNoObservation;
    }
    return found;
}

template <class M, bool inside, class T>
inline __attribute__((always_inline)) void append(rolling::State<Lanes, M::kNumbers>& state, const LaneRows<T>& lanes,
                                                  int64_t at, int64_t n) {
    const Lanes x = load<inside>(lanes, lanes.x, at, n);
    M::append(state, x, M::kPair ? load<inside>(lanes, lanes.y, at, n) : x);
}

// The states of tiles into job.sums.
template <class M, bool inside, class T>
void sum_lanes(const rolling::Job<T>& job, const LaneRows<T>& lanes, int64_t tiles_per_row) {
    const rolling::Windows& w = job.windows;
    auto state = M::template identity<Lanes>();
    for (int64_t at = 0; at < w.tile; ++at) append<M, inside>(state, lanes, at, w.n);
    for (int l = 0; l < lanes.count; ++l) {
        double* const to = job.sums + (lanes.row[l] * tiles_per_row + lanes.tile[l]) * M::kNumbers;
        for (int k = 0; k < M::kNumbers; ++k) to[k] = state.at[k][l];
    }
}

// The outputs of the windows that begin in the tiles. `suffixes` has room for a tile of states.
template <class M, bool inside, class T>
void roll_lanes(const rolling::Job<T>& job, const LaneRows<T>& lanes, rolling::State<Lanes, M::kNumbers>* suffixes) {
    const rolling::Windows& w = job.windows;
    auto state = M::template identity<Lanes>();
    for (int64_t at = w.tile - 1; at >= 0; --at) {
        append<M, inside>(state, lanes, at, w.n);
        suffixes[at] = state;
    }
    state = M::template identity<Lanes>();
    if (job.between != nullptr) {
        for (int l = 0; l < lanes.count; ++l) {
            const double* const from = job.between + (lanes.row[l] * w.tiles + lanes.tile[l]) * M::kNumbers;
            for (int k = 0; k < M::kNumbers; ++k) state.at[k][l] = from[k];
        }
    }
    const int64_t end = w.whole * w.tile;
    for (int64_t at = 0; at < w.rest; ++at) append<M, inside>(state, lanes, end + at, w.n);
    T* out[kLanes];
    int64_t left[kLanes];
    for (int l = 0; l < kLanes; ++l) {
        out[l] = job.out + lanes.row[l] * w.n + lanes.tile[l] * w.tile;
        left[l] = l < lanes.count ? w.n - lanes.tile[l] * w.tile : 0;
    }
    bool marked = false;
    for (int64_t at = 0; at < w.tile; ++at) {
        const auto whole = M::merge(suffixes[at], state);
        for (int l = 0; l < kLanes; ++l) {
            if (at >= left[l]) continue;
            rolling::State<double, M::kNumbers> one;
            for (int k = 0; k < M::kNumbers; ++k) one.at[k] = whole.at[k][l];
            const double found = job.finish(one);
            marked = marked || rolling::is_marked(found);
            out[l][at] = static_cast<T>(found);
        }
        append<M, inside>(state, lanes, end + w.rest + at, w.n);
    }
    if (marked) job.marked->store(true, std::memory_order_relaxed);
}

template <class M, class T>
void sum_tiles(const rolling::Job<T>& job, int64_t begin, int64_t end) {
    const int64_t tiles = job.windows.summed;
    for (int64_t group = begin; group < end; ++group) {
        const LaneRows<T> lanes = lanes_of(job, group * kLanes, tiles, job.windows.tile);
        lanes.inside ? sum_lanes<M, true>(job, lanes, tiles) : sum_lanes<M, false>(job, lanes, tiles);
    }
}

template <class M, class T>
void roll_tiles(const rolling::Job<T>& job, int64_t begin, int64_t end) {
    const rolling::Windows& w = job.windows;
    const size_t bytes = w.tile * sizeof(rolling::State<Lanes, M::kNumbers>);
    const std::unique_ptr<void, decltype(&std::free)> room(std::aligned_alloc(64, (bytes + 63) / 64 * 64), &std::free);
    if (room == nullptr) throw std::bad_alloc();
    auto* const suffixes = static_cast<rolling::State<Lanes, M::kNumbers>*>(room.get());
    for (int64_t group = begin; group < end; ++group) {
        const LaneRows<T> lanes = lanes_of(job, group * kLanes, w.tiles, (w.whole + 1) * w.tile + w.rest);
        lanes.inside ? roll_lanes<M, true>(job, lanes, suffixes) : roll_lanes<M, false>(job, lanes, suffixes);
    }
}

// The number of vectors of lanes that this many tiles fill.
inline int64_t groups_of(int64_t tiles) {
    return (tiles + kLanes - 1) / kLanes;
}

}  // namespace
