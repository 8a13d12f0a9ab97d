// Quantiles of sliding windows on CUDA: a wavelet matrix over the ranks of the elements that some windows reach.
//
// Level by level, starting with the highest bit of the ranks, the places are sorted stably by that bit. A table per
// level has the bits and, for every 32 places, how many ones are before them. The k-th smallest element of a window is
// found by going down the levels: if more than k of the remaining elements have a 0, the search continues with those,
// otherwise with the ones. So a window costs two look-ups per bit, however long it is; the value is exact, and nothing
// depends on the order of threads. Rows lie one after the other, so a matrix may serve windows of several rows.
//
// If the elements of enough windows fit into shared memory, each thread block makes a separate matrix. It sorts by
// merging runs: the place of an element in the merged run is its place in its own run, plus the number of smaller
// elements in the other run, which a binary search finds. For longer windows torch sorts millions of elements, and the
// levels are made in device memory.
#pragma once

#include "../../rolling.h"
#include "scan.cuh"

namespace nnue::cuda::stats {

// Elements per thread; the most elements per thread block, a power of 2. A matrix in shared memory is used if at least
// 1 / kLeastShare of its elements are places of the tile's own windows.
constexpr int kSortedByThread = 8;
constexpr int kMostSorted = 8192;
constexpr int kLeastShare = 8;

// For long windows: cells per thread block, one per thread; and the elements of a matrix.
constexpr int kCellsTogether = 256;
constexpr int kLongMatrix = 1 << 22;

// A place is the index of an element or window among those of all rows.
struct QuantileJob {
    rolling::Windows windows;
    const void* x;  // double, or float
    void* out;
    bool is_double;
    rolling::Quantile quantile;
    int64_t low,
        high;      // the window of a place, and the place itself, lie in [place + low, place + high)
    int bits;      // per rank
    int64_t tile;  // windows that share a matrix

    struct Range {
        int64_t begin, end;
    };
    // The part of [i + from, i + to) that lies in the row of place i.
    __host__ __device__ Range range(int64_t i, int64_t from, int64_t to) const {
        const int64_t row = i / windows.n * windows.n;
        const auto inside = [&](int64_t at) { return at < row ? row : at > row + windows.n ? row + windows.n : at; };
        return {inside(i + from), inside(i + to)};
    }
    // The elements that windows [first, last) consist of.
    __host__ __device__ Range reach(int64_t first, int64_t last) const {
        return {range(first, low, high).begin, range(last - 1, low, high).end};
    }
};

// 32 places of a level.
struct alignas(8) Cell {
    uint32_t bits, before;
};

__device__ inline uint32_t ones_before(const Cell* level, uint32_t place) {
    const Cell cell = level[place / kWarp];
    return cell.before + __popc(cell.bits & ((1u << place % kWarp) - 1));
}

// The levels of a matrix of `size` places, that of bit 0 first. One more level comes last, where a bit marks whether
// the element is an observation, that is finite. Ranks are 0 … size - 1.
struct Matrix {
    const Cell* levels;
    int bits;
    uint32_t size;

    __host__ __device__ static uint32_t cells(uint32_t size) {
        return size / kWarp + 1;
    }  // the last one is for the end
    __device__ const Cell* level(int bit) const { return levels + static_cast<size_t>(bit) * cells(size); }

    __device__ static uint32_t zeros(uint32_t size, int bit) {
        const uint32_t rest = size & ((2u << bit) - 1), half = 1u << bit;
        return ((size >> (bit + 1)) << bit) + (rest < half ? rest : half);
    }
    __device__ uint32_t observations(uint32_t begin, uint32_t end) const {
        return ones_before(level(bits), end) - ones_before(level(bits), begin);
    }
    // The rank of the k-th smallest element of [begin, end).
    __device__ uint32_t select(uint32_t begin, uint32_t end, uint32_t k) const {
        uint32_t found = 0;
        for (int bit = bits - 1; bit >= 0; --bit) {
            const uint32_t at_begin = ones_before(level(bit), begin), at_end = ones_before(level(bit), end);
            const uint32_t low = end - begin - (at_end - at_begin), first_one = zeros(size, bit);
            const bool up = k >= low;
            begin = up ? first_one + at_begin : begin - at_begin;
            end = up ? first_one + at_end : end - at_end;
            k -= up ? low : 0;
            found |= up ? 1u << bit : 0;
        }
        return found;
    }
    // Writes the quantile of window i. `base` is the first place of the matrix; `keys` are its elements in ascending
    // order.
    __device__ void write(const QuantileJob& job, int64_t i, int64_t base, const double* keys) const {
        const auto window = job.range(i, job.windows.first, job.windows.first + job.windows.length);
        const uint32_t begin = static_cast<uint32_t>(window.begin - base),
                       end = static_cast<uint32_t>(window.end - base);
        const double found = job.quantile(
            observations(begin, end), [&](int64_t k) { return keys[select(begin, end, static_cast<uint32_t>(k))]; });
        if (job.is_double) {
            static_cast<double*>(job.out)[i] = found;
        } else {
            static_cast<float*>(job.out)[i] = static_cast<float>(found);
        }
    }
};

// Elements that are not observations are sorted after all observations.
__device__ inline double key_of(double x) {
    return is_finite(x) ? x : static_cast<double>(INFINITY);
}

// Counts the ones before each cell. Called by one warp.
__device__ inline void count_before(Cell* level, int cells) {
    const int lane = threadIdx.x, share = (cells + kWarp - 1) / kWarp, first = lane * share;
    int mine = 0;
    for (int i = first; i < min(first + share, cells); ++i) mine += __popc(level[i].bits);
    int before = mine;
#pragma unroll
    for (int by = 1; by < kWarp; by *= 2) {
        const int other = __shfl_sync(kAllLanes, before, (lane - by) & (kWarp - 1));
        if (lane >= by) before += other;
    }
    before -= mine;
    for (int i = first; i < min(first + share, cells); ++i) {
        level[i].before = before;
        before += __popc(level[i].bits);
    }
}

// The smallest number above x; NaN above infinity.
__device__ inline double next_above(double x) {
    const long long bits = __double_as_longlong(x == 0 ? 0.0 : x);
    return __longlong_as_double(bits >= 0 ? bits + 1 : bits - 1);
}

inline size_t quantile_bytes(int bits) {
    return (static_cast<size_t>(2) << bits) * (sizeof(double) + sizeof(uint16_t)) + 2 * sizeof(Cell);
}

__global__ void __launch_bounds__(kMostSorted / kSortedByThread, 1) roll_quantiles(const QuantileJob job) {
    extern __shared__ double memory[];
    const rolling::Windows& w = job.windows;
    const int me = threadIdx.x, threads = blockDim.x, lane = me % kWarp, bits = job.bits, size = 1 << bits;
    const int cells = static_cast<int>(Matrix::cells(size));
    double *keys = memory, *merged = memory + size;
    uint16_t *places = reinterpret_cast<uint16_t*>(memory + 2 * size), *places_merged = places + size;

    const int64_t first = blockIdx.x * job.tile, last = min(first + job.tile, w.rows * w.n);
    const auto reach = job.reach(first, last);
    const int count = static_cast<int>(reach.end - reach.begin);

    for (int i = me; i < size; i += threads) {
        keys[i] = key_of(i < count ? element(job.x, reach.begin + i, job.is_double) : static_cast<double>(NAN));
        places[i] = static_cast<uint16_t>(i);
    }
    for (int run = 1; run < size; run *= 2) {
        run < kWarp ? __syncwarp() : __syncthreads();
#pragma unroll
        for (int j = 0; j < kSortedByThread; ++j) {
            const int i = me + j * threads;
            const double key = keys[i];
            const bool is_second = (i & run) != 0;
            // Among equal elements, those of the first run come first.
            const double bound = is_second ? next_above(key) : key;
            const double* const other = keys + ((i ^ run) & -run);
            int less = 0;
            for (int step = run / 2; step > 0; step /= 2) {
                if (!(other[less + step - 1] >= bound)) less += step;
            }
            if (!(other[less] >= bound)) ++less;
            const int to = (i & -2 * run) + (i & (run - 1)) + less;
            merged[to] = key;
            places_merged[to] = places[i];
        }
        double* const sorted = merged;
        merged = keys, keys = sorted;
        uint16_t* const sorted_places = places_merged;
        places_merged = places, places = sorted_places;
    }
    __syncthreads();

    // The tables reuse the memory of `merged`.
    uint16_t *ranks = places_merged, *moved = places;
    Cell* const levels = reinterpret_cast<Cell*>(merged);
    for (int i = me; i < size; i += threads) ranks[places[i]] = static_cast<uint16_t>(i);
    __syncthreads();
    for (int bit = bits; bit >= 0; --bit) {
        // The first level to be made is the one that marks the observations.
        Cell* const level = levels + bit * cells;
        for (int i = me; i < size; i += threads) {
            const int rank = ranks[i];
            const bool one = bit == bits ? keys[rank] < static_cast<double>(INFINITY) : (rank >> bit & 1) != 0;
            const unsigned ones = __ballot_sync(kAllLanes, one);
            if (lane == 0) level[i / kWarp].bits = ones;
        }
        if (me == 0) level[cells - 1].bits = 0;
        __syncthreads();
        if (me < kWarp) count_before(level, cells);
        if (bit == bits || bit == 0) continue;
        __syncthreads();
        for (int i = me; i < size; i += threads) {
            const int rank = ranks[i], before = static_cast<int>(ones_before(level, i));
            moved[(rank >> bit & 1) != 0 ? size / 2 + before : i - before] = static_cast<uint16_t>(rank);
        }
        uint16_t* const now = moved;
        moved = ranks, ranks = now;
        __syncthreads();
    }
    __syncthreads();

    const Matrix matrix{levels, bits, static_cast<uint32_t>(size)};
    for (int64_t i = first + me; i < last; i += threads) matrix.write(job, i, reach.begin, keys);
}

// ---- long windows ---------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kCellsTogether)
    long_keys(const QuantileJob job, int64_t begin, int64_t count, double* keys) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        keys[i] = key_of(element(job.x, begin + i, job.is_double));
    }
}

__global__ void __launch_bounds__(kCellsTogether) long_ranks(const int64_t* order, int64_t count, uint32_t* ranks) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        ranks[order[i]] = static_cast<uint32_t>(i);
    }
}

// A number of ones, as a double because exclusive_scan takes structs of doubles.
struct Ones {
    double count = 0;
};
struct AddOnes {
    __device__ Ones operator()(const Ones& a, const Ones& b) const { return {a.count + b.count}; }
};

// Writes the bits of a level, and how many ones each thread block has found. `keys` is null, except for the level that
// marks the observations.
__global__ void __launch_bounds__(kCellsTogether)
    mark_ones(const uint32_t* ranks, const double* keys, uint32_t size, int bit, Cell* level, Ones* ones) {
    __shared__ double memory[kWarp];
    const uint32_t cells = Matrix::cells(size), lane = threadIdx.x % kWarp, first = blockIdx.x * kCellsTogether;
    int found = 0;
    for (uint32_t c = threadIdx.x / kWarp; c < kCellsTogether && first + c < cells; c += blockDim.x / kWarp) {
        const uint32_t i = (first + c) * kWarp + lane;
        const bool one =
            i < size && (keys == nullptr ? (ranks[i] >> bit & 1) != 0 : keys[ranks[i]] < static_cast<double>(INFINITY));
        const unsigned bits = __ballot_sync(kAllLanes, one);
        if (lane == 0) level[first + c].bits = bits, found += __popc(bits);
    }
    Ones total;
    exclusive_scan<false>(Ones{static_cast<double>(found)}, Ones(), reinterpret_cast<Ones*>(memory), AddOnes(), &total);
    if (threadIdx.x == 0) ones[blockIdx.x] = total;
}

// Writes how many ones are before each cell and, if `moved` is not null, the ranks in the order of the next level.
// `ones` has the number before each thread block.
__global__ void __launch_bounds__(kCellsTogether)
    sort_by_bit(const uint32_t* ranks, uint32_t size, int bit, Cell* level, const Ones* ones, uint32_t* moved) {
    __shared__ double memory[kWarp];
    __shared__ Cell mine[kCellsTogether];
    const uint32_t cells = Matrix::cells(size), me = threadIdx.x, first = blockIdx.x * kCellsTogether;
    const uint32_t bits = first + me < cells ? level[first + me].bits : 0;
    Ones total;
    const Ones before = exclusive_scan<false>(Ones{static_cast<double>(__popc(bits))}, Ones(),
                                              reinterpret_cast<Ones*>(memory), AddOnes(), &total);
    mine[me] = {bits, static_cast<uint32_t>(ones[blockIdx.x].count + before.count)};
    if (first + me < cells) level[first + me].before = mine[me].before;
    if (moved == nullptr) return;
    __syncthreads();
    const uint32_t zeros = Matrix::zeros(size, bit);
    for (uint32_t c = me; c < kCellsTogether * kWarp; c += blockDim.x) {
        const uint32_t i = first * kWarp + c;
        if (i >= size) break;
        const uint32_t rank = ranks[i], at = ones_before(mine, c);
        moved[(rank >> bit & 1) != 0 ? zeros + at : i - at] = rank;
    }
}

__global__ void __launch_bounds__(kCellsTogether)
    write_quantiles(const QuantileJob job, const Matrix matrix, const double* keys, int64_t base, int64_t first,
                    int64_t last) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = first + static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < last; i += step) {
        matrix.write(job, i, base, keys);
    }
}

}  // namespace nnue::cuda::stats
