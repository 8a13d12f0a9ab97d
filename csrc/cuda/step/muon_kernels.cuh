// Muon's step on CUDA in three kernels.
//
// Step k of the Newton-Schulz iteration multiplies X by P_k, a polynomial of A = X X'. All steps together multiply it
// by Q, the product of these, a square matrix as long as the shorter side of X. `gram` brings the momentum up to date,
// writes the direction U and sums U U', some columns per thread block. `iterate` adds these sums up, one thread block
// for each matrix, and iterates on small matrices in shared memory: all of them are polynomials of A, so they commute
// and are symmetric, the next A is P_k^2 A, and half of each product is enough. `move` multiplies U by Q and moves the
// weights, again some columns per thread block.
//
// Sums and the small matrices are double: the iteration makes singular values of a thousandth of the largest 485 times
// as large, and those of A are their squares. Every sum has a fixed order.
#pragma once

#include "../../muon.h"
#include "../common.cuh"
#include "../ptx.cuh"

namespace nnue::cuda::muon_step {

using namespace nnue::muon;

// Columns that a thread block of `gram` and `move` takes; threads. 288 are eight times the 36 tiles of a side of 16,
// and twice the 136 of a side of 32.
constexpr int kColumns = 64, kGramThreads = 288, kIterateThreads = 288, kMoveThreads = 256;
constexpr int kMostWeights = 16;  // per launch: all arguments of a kernel together have at most 4 KB

// Symmetric matrices of the shorter side are computed in tiles of 2 x 2: those on and above the diagonal.
constexpr int kMostTiles = kMostSide / 2 * (kMostSide / 2 + 1) / 2;
NNUE_HOST_DEVICE constexpr int tiles_along(int side) {
    return (side + 1) / 2;
}
NNUE_HOST_DEVICE int tiles_of(int side) {
    return tiles_along(side) * (tiles_along(side) + 1) / 2;
}

struct PlacedWeight {
    Weight of;
    int pieces;                                      // of kColumns columns
    int64_t directions, sums, factors;               // where those of its matrices begin in memory
    unsigned gram_block, iterate_block, move_block;  // the first of its thread blocks
};

struct Arguments {
    PlacedWeight weights[kMostWeights];
    int count;
    Constants constants;
    const double* numbers;
    const void* lr;
    bool lr_is_double;
    void *directions, *factors;  // of the weights' dtype: U, and Q / |U|
    double* sums;                // of each piece, by tile
};

// Where element (i, place) of a matrix lies, i along its shorter side.
__device__ inline int element(const Weight& of, int i, int place) {
    return of.tall ? place * of.side + i : i * of.length + place;
}

struct Tile {
    int row, column;  // the first ones

    __device__ explicit Tile(int number) {
        int j = static_cast<int>((sqrtf(8.0f * static_cast<float>(number) + 1.0f) - 1.0f) * 0.5f);
        row = 2 * (number - j * (j + 1) / 2), column = 2 * j;
    }
};

// A tile's 2 x 2 numbers: 0 1 / 2 3.
struct TileNumbers {
    double at[4] = {};

    // Adds the product of two rows' pairs.
    __device__ void add(const double* of_row, const double* of_column) {
        const Pack<double, 2> x = load<2>(of_row), y = load<2>(of_column);
        at[0] = fma(x.at[0], y.at[0], at[0]);
        at[1] = fma(x.at[0], y.at[1], at[1]);
        at[2] = fma(x.at[1], y.at[0], at[2]);
        at[3] = fma(x.at[1], y.at[1], at[3]);
    }
};

// ---- gram -----------------------------------------------------------------------------------------------------------

constexpr int kAhead = 4;  // elements that a thread loads at once

template <class T>
__global__ void __launch_bounds__(kGramThreads) gram(const Arguments a) {
    ptx::let_next_kernel_start();
    ptx::wait_for_kernels_before();
    if (a.numbers[kGo] == 0) return;
    // Columns of U, two elements apart so that stores of neighbouring ones meet few of the same banks; then sums.
    constexpr int kMostRow = kMostSide + 2;
    alignas(16) __shared__ double x[kColumns * kMostRow];
    static_assert(kGramThreads * 4 <= kColumns * kMostRow);

    const PlacedWeight& placed = item_of_block(a.weights, a.count, &PlacedWeight::gram_block);
    const Weight& of = placed.of;
    const int block = static_cast<int>(blockIdx.x - placed.gram_block);
    const int matrix = block / placed.pieces, first = block % placed.pieces * kColumns;
    const int columns = min(kColumns, of.length - first), row = 2 * tiles_along(of.side) + 2;
    const bool is_shared = matrix >= of.count;
    const int64_t begin = (is_shared ? matrix - of.count : matrix) * of.size(), stride = of.shared_count * of.size();
    const int terms = is_shared ? of.count / of.shared_count : 1;
    const T* const gradient = static_cast<const T*>(of.gradient) + begin;
    T* const momentum = static_cast<T*>(is_shared ? of.shared : of.momentum) + begin;
    T* const direction = static_cast<T*>(a.directions) + placed.directions + matrix * of.size();
    const T scale = static_cast<T>(a.numbers[kGradient]), most = static_cast<T>(a.constants.most);
    const T keep = static_cast<T>(a.constants.keep), take = static_cast<T>(1 - a.constants.keep);

    for (int e = threadIdx.x; e < of.side * kColumns; e += kAhead * kGramThreads) {
        T g[kAhead], m[kAhead];
        int at[kAhead], place[kAhead];  // at: -1: there is nothing
        for (int k = 0; k < kAhead; ++k) {
            const int item = e + k * kGramThreads;
            const int i = of.tall ? item % of.side : item / kColumns, c = of.tall ? item / of.side : item % kColumns;
            place[k] = item < of.side * kColumns ? c * row + i : -1;
            at[k] = place[k] >= 0 && c < columns ? element(of, i, first + c) : -1;
            g[k] = at[k] >= 0 ? gradient[at[k]] : T(0);
            m[k] = at[k] >= 0 ? momentum[at[k]] : T(0);
        }
#pragma unroll 4
        for (int term = 1; term < terms; ++term) {
            for (int k = 0; k < kAhead; ++k) {
                if (at[k] >= 0) g[k] += gradient[term * stride + at[k]];
            }
        }
        for (int k = 0; k < kAhead; ++k) {
            if (place[k] < 0) continue;
            const T own = clipped(scale * g[k], -most, most), mean = fma(keep, m[k], take * own);
            const T along = fma(keep, mean, take * own);
            if (at[k] >= 0) momentum[at[k]] = mean, direction[at[k]] = along;
            x[place[k]] = static_cast<double>(along);
        }
    }
    if (of.side % 2 == 1) {
        for (int c = threadIdx.x; c < kColumns; c += kGramThreads) x[c * row + of.side] = 0;
    }
    __syncthreads();

    // Groups of threads take the columns in turn, where there are more threads than tiles.
    const int tiles = tiles_of(of.side), groups = max(kGramThreads / tiles, 1);
    double* const out = a.sums + placed.sums + int64_t(block) * tiles * 4;
    TileNumbers sums;
    for (int item = threadIdx.x; item < groups * tiles; item += kGramThreads) {
        const Tile tile(item % tiles);
        sums = {};
#pragma unroll 4
        for (int c = item / tiles; c < columns; c += groups)
            sums.add(x + c * row + tile.row, x + c * row + tile.column);
        if (groups > 1) continue;
        for (int k = 0; k < 4; ++k) out[item * 4 + k] = sums.at[k];
    }
    if (groups == 1) return;
    __syncthreads();
    for (int k = 0; k < 4; ++k) x[threadIdx.x * 4 + k] = sums.at[k];
    __syncthreads();
    for (int e = threadIdx.x; e < tiles * 4; e += kGramThreads) {
        double total = 0;
        for (int group = 0; group < groups; ++group) total += x[group * tiles * 4 + e];
        out[e] = total;
    }
}

// ---- iterate --------------------------------------------------------------------------------------------------------

constexpr int kTurns = (kMostTiles + kIterateThreads - 1) / kIterateThreads;  // tiles of a thread

// Bytes of shared memory for the three matrices of `iterate`.
constexpr size_t iterate_bytes(int side) {
    return 3 * sizeof(double) * 4 * tiles_along(side) * tiles_along(side);
}

// Symmetric matrices that commute, in shared memory; each thread has the same tiles of all of them.
struct CommutingMatrices {
    int row, tiles;

    // Calls body(k, tile) for each tile of the thread.
    template <class Body>
    __device__ void for_each(const Body& body) const {
#pragma unroll
        for (int k = 0; k < kTurns; ++k) {
            const int number = static_cast<int>(threadIdx.x) + k * kIterateThreads;
            if (number < tiles) body(k, Tile(number));
        }
    }
    __device__ TileNumbers product(const double* x, const double* y, Tile tile) const {
        TileNumbers found;
#pragma unroll 4
        for (int k = 0; k < row; ++k) found.add(x + k * row + tile.row, y + k * row + tile.column);
        return found;
    }
    __device__ void set(double* x, Tile tile, const TileNumbers& to) const {
        for (int k = 0; k < 4; ++k) {
            const int i = tile.row + k / 2, j = tile.column + k % 2;
            if (i <= j) x[i * row + j] = x[j * row + i] = to.at[k];
        }
    }
};

template <class T>
__global__ void __launch_bounds__(kIterateThreads) iterate(const Arguments a) {
    ptx::wait_for_kernels_before();
    ptx::let_next_kernel_start();  // not before: `move` reads what `gram` has written
    if (a.numbers[kGo] == 0) return;
    extern __shared__ __align__(16) double matrices[];
    const PlacedWeight& placed = item_of_block(a.weights, a.count, &PlacedWeight::iterate_block);
    const int matrix = static_cast<int>(blockIdx.x - placed.iterate_block), side = placed.of.side;
    const CommutingMatrices tiled{2 * tiles_along(side), tiles_of(side)};
    double *const A = matrices, *const P = A + tiled.row * tiled.row, *const Q = P + tiled.row * tiled.row;

    const int numbers = tiled.tiles * 4;
    const double* const sums = a.sums + placed.sums + int64_t(matrix) * placed.pieces * numbers;
    for (int e = threadIdx.x; e < numbers; e += kIterateThreads) {
        double total = 0;
#pragma unroll 8
        for (int piece = 0; piece < placed.pieces; ++piece) total += sums[int64_t(piece) * numbers + e];
        const Tile tile(e / 4);
        const int i = tile.row + e % 4 / 2, j = tile.column + e % 2;
        if (i <= j) A[i * tiled.row + j] = A[j * tiled.row + i] = total;
    }
    __syncthreads();
    double square = 0;
#pragma unroll 4
    for (int i = 0; i < side; ++i) square += A[i * tiled.row + i];
    __syncthreads();
    const double inverse = 1 / fmax(sqrt(square), 1e-7);
    for (int e = threadIdx.x; e < tiled.row * tiled.row; e += kIterateThreads) A[e] *= inverse * inverse;
    __syncthreads();

    const Constants& c = a.constants;
    for (int n = 0; n < c.iterations; ++n) {
        const bool is_last = n + 1 == c.iterations;
        tiled.for_each([&](int, Tile tile) {
            TileNumbers p = tiled.product(A, A, tile);
            for (int k = 0; k < 4; ++k) {
                const int i = tile.row + k / 2, j = tile.column + k % 2;
                p.at[k] = fma(c.c, p.at[k], fma(c.b, A[i * tiled.row + j], i == j ? c.a : 0));
            }
            tiled.set(P, tile, p);
            if (n == 0) tiled.set(Q, tile, p);
        });
        __syncthreads();
        TileNumbers q[kTurns], next[kTurns];
        tiled.for_each([&](int k, Tile tile) {
            if (n > 0) q[k] = tiled.product(Q, P, tile);
            if (!is_last) next[k] = tiled.product(P, A, tile);
        });
        __syncthreads();
        tiled.for_each([&](int k, Tile tile) {
            if (n > 0) tiled.set(Q, tile, q[k]);
            if (!is_last) tiled.set(A, tile, next[k]);
        });
        __syncthreads();
        if (is_last) break;
        tiled.for_each([&](int k, Tile tile) { next[k] = tiled.product(P, A, tile); });
        __syncthreads();
        tiled.for_each([&](int k, Tile tile) { tiled.set(A, tile, next[k]); });
        __syncthreads();
    }
    T* const factors = static_cast<T*>(a.factors) + placed.factors + int64_t(matrix) * side * side;
    for (int e = threadIdx.x; e < side * side; e += kIterateThreads)
        factors[e] = static_cast<T>(inverse * Q[e / side * tiled.row + e % side]);
}

// ---- move -----------------------------------------------------------------------------------------------------------

// A thread has one column, and four elements of it at a time.
constexpr int kEach = 4, kGroups = kMoveThreads / kColumns;
constexpr int kMoveTurns = kMostSide / (kEach * kGroups);
static_assert(kMoveThreads % kColumns == 0 && kMostSide % (kEach * kGroups) == 0);

template <class T>
__global__ void __launch_bounds__(kMoveThreads) move(const Arguments a) {
    if (a.numbers[kGo] == 0) return;
    alignas(16) __shared__ T factors[kMostSide * kMostSide];
    const PlacedWeight& placed = item_of_block(a.weights, a.count, &PlacedWeight::move_block);
    const Weight& of = placed.of;
    const int block = static_cast<int>(blockIdx.x - placed.move_block), side = of.side;
    const int matrix = block / placed.pieces, column = block % placed.pieces * kColumns + threadIdx.x % kColumns;
    const int group = threadIdx.x / kColumns, row = (side + kEach - 1) / kEach * kEach;
    const bool exists = column < of.length;
    const double lr = (a.lr_is_double ? *static_cast<const double*>(a.lr) : *static_cast<const float*>(a.lr)) * of.rate;
    T* const weight = static_cast<T*>(of.weight) + matrix * of.size();
    const auto index_of = [&](int turn, int k) { return (turn * kGroups + group) * kEach + k; };

    T before[kMoveTurns][kEach], change[kMoveTurns][kEach] = {};
    for (int turn = 0; turn < kMoveTurns; ++turn) {
        for (int k = 0; k < kEach; ++k) {
            const int i = index_of(turn, k);
            before[turn][k] = exists && i < side ? weight[element(of, i, column)] : T(0);
        }
    }
    ptx::wait_for_kernels_before();
    for (int part = 0; part < (of.shared_count == 0 ? 1 : 2); ++part) {
        const int from = part == 0 ? matrix : of.count + matrix % of.shared_count;
        const T* const direction = static_cast<const T*>(a.directions) + placed.directions + from * of.size();
        const T* const own = static_cast<const T*>(a.factors) + placed.factors + int64_t(from) * side * side;
        __syncthreads();
        for (int e = threadIdx.x; e < side * row; e += kMoveThreads)
            factors[e] = e % row < side ? own[e / row * side + e % row] : T(0);
        __syncthreads();
        if (!exists) continue;
#pragma unroll 8
        for (int j = 0; j < side; ++j) {
            const T u = direction[element(of, j, column)];
            for (int turn = 0; turn < kMoveTurns; ++turn) {
                if (index_of(turn, 0) >= side) break;
                const Pack<T, kEach> q = load<kEach>(factors + j * row + index_of(turn, 0));
                for (int k = 0; k < kEach; ++k) change[turn][k] = fma(q.at[k], u, change[turn][k]);
            }
        }
    }
    if (!exists) return;
    const T decayed = static_cast<T>(1 - lr * of.decay), rate = static_cast<T>(lr);
    for (int turn = 0; turn < kMoveTurns; ++turn) {
        for (int k = 0; k < kEach; ++k) {
            const int i = index_of(turn, k);
            if (i >= side) continue;
            const T wanted = fma(-rate, change[turn][k], decayed * before[turn][k]);
            weight[element(of, i, column)] = clipped(wanted, static_cast<T>(of.low), static_cast<T>(of.high));
        }
    }
}

}  // namespace nnue::cuda::muon_step
