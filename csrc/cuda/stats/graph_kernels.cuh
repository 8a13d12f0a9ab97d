// Kernels of the operators on graphs; graph.h has the contracts.
//
// pack_bits: a warp reads 64 flags of each of 32 neurons, and eight warps fill a cache line of words per neuron.
//
// bit_counts: tiles of 128 x 128 counts, 8 x 8 for each thread, from slices of both matrices in shared memory. The
// speed is limited by the population counts: 16 per cycle and multiprocessor. If there are few tiles, several thread
// blocks share the words of one. Counts are added up with atomics; they are integers, so the order does not matter.
//
// random_walks: a thread works on one coupon at a time and takes its next one when that one is done. So the lanes of a
// warp do not wait for each other, whatever the lengths of walks and the degrees of nodes are.
#pragma once

#include "../../graph.h"
#include "../common.cuh"

namespace nnue::cuda::stats {

constexpr int kPackWords = 8;

__global__ void __launch_bounds__(kWarp* kPackWords)
    pack_bits(const uint8_t* active, unsigned long long* out, const graph::Flags f) {
    __shared__ unsigned long long words[kWarp][kPackWords + 1];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int64_t across = divide_up(f.neurons, kWarp), blocks = across * divide_up(f.words, kPackWords);
    for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const int64_t neuron = block % across * kWarp, word = block / across * kPackWords;
        const int64_t first = (word + warp) * graph::kWordBits;
        unsigned long long bits = 0;
        if (neuron + lane < f.neurons) {
            const int count = static_cast<int>(max(min(f.positions - first, int64_t{graph::kWordBits}), int64_t{0}));
            const uint8_t* const from = active + first * f.neurons + neuron + lane;
#pragma unroll 8
            for (int bit = 0; bit < count; ++bit) {
                bits |= static_cast<unsigned long long>(from[bit * f.neurons] != 0) << bit;
            }
        }
        words[lane][warp] = bits;
        __syncthreads();
        const int64_t row = neuron + threadIdx.x / kPackWords, column = word + threadIdx.x % kPackWords;
        if (row < f.neurons && column < f.words) {
            out[row * f.words + column] = words[threadIdx.x / kPackWords][threadIdx.x % kPackWords];
        }
        __syncthreads();
    }
}

constexpr int kCountTile = 128, kCountWords = 8, kCountThreads = 256, kCountSide = 16;

struct CountJob {
    const unsigned long long *a, *b;
    int32_t* out;
    graph::Bits bits;
    int64_t slice;  // words of each thread block
};

// The words of two neighbouring rows are read at once. Rows of the tile have one pair more than needed, so that stores
// of several words go to different banks.
using WordPair = Pack<unsigned long long, 2>;
constexpr int kPairs = kCountTile / 2;

// Copies 8 words of 128 rows to shared memory, ordered by word; zeros if there are none.
__device__ inline void load_words(const unsigned long long* from, int64_t rows, int64_t words, int64_t row,
                                  int64_t word, int64_t end, WordPair (*to)[kPairs + 1]) {
#pragma unroll
    for (int i = 0; i < kCountTile * kCountWords / kCountThreads; ++i) {
        const int r = threadIdx.x / kCountWords + i * (kCountThreads / kCountWords), k = threadIdx.x % kCountWords;
        to[k][r / 2].at[r % 2] = row + r < rows && word + k < end ? from[(row + r) * words + word + k] : 0;
    }
}

__global__ void __launch_bounds__(kCountThreads, 2) bit_counts(const CountJob job) {
    constexpr int kMine = kCountTile / kCountSide;
    __shared__ WordPair a[kCountWords][kPairs + 1], b[kCountWords][kPairs + 1];
    const graph::Bits bits = job.bits;
    const int64_t across = divide_up(bits.columns, kCountTile);
    const int64_t tile_row = blockIdx.x / across * kCountTile, tile_column = blockIdx.x % across * kCountTile;
    if (bits.symmetric && tile_column < tile_row) return;
    const int y = threadIdx.x / kCountSide, x = threadIdx.x % kCountSide;
    // A thread has four pairs of neighbouring rows and columns: 16 lanes read 256 bytes next to each other.
    const auto place = [](int i, int at) { return i / 2 * (2 * kCountSide) + at * 2 + i % 2; };
    int32_t count[kMine][kMine] = {};
    const int64_t begin = blockIdx.y * job.slice, end = min(begin + job.slice, bits.words);
    for (int64_t word = begin; word < end; word += kCountWords) {
        load_words(job.a, bits.rows, bits.words, tile_row, word, end, a);
        load_words(job.b, bits.columns, bits.words, tile_column, word, end, b);
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < kCountWords; ++k) {
            unsigned long long mine[kMine], other[kMine];
#pragma unroll
            for (int i = 0; i < kMine; i += 2) {
                const WordPair rows = a[k][place(i, y) / 2], columns = b[k][place(i, x) / 2];
                mine[i] = rows.at[0], mine[i + 1] = rows.at[1];
                other[i] = columns.at[0], other[i + 1] = columns.at[1];
            }
#pragma unroll
            for (int i = 0; i < kMine; ++i) {
#pragma unroll
                for (int j = 0; j < kMine; ++j) count[i][j] += __popcll(mine[i] & other[j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
#pragma unroll
        for (int j = 0; j < kMine; ++j) {
            const int64_t row = tile_row + place(i, y), column = tile_column + place(j, x);
            if (row >= bits.rows || column >= bits.columns || count[i][j] == 0) continue;
            atomicAdd(job.out + row * bits.columns + column, count[i][j]);
            if (bits.symmetric && tile_row != tile_column) {
                atomicAdd(job.out + column * bits.columns + row, count[i][j]);
            }
        }
    }
}

constexpr int kWalkThreads = 256;

__global__ void __launch_bounds__(kWalkThreads) random_walks(const graph::Walks w, unsigned long long* visits) {
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x, stride = threads % w.nodes;
    int64_t coupon = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, start = coupon % w.nodes;
    int64_t node = start, step = 0;
    while (coupon < w.count) {
        atomicAdd(visits + node, 1ull);
        const graph::Walks::Drawn drawn = w.draw(w.first + coupon, step);
        node = w.ends(drawn, step++) ? -1 : w.target(w.edge(node, drawn.edge));
        if (node >= 0) continue;
        coupon += threads;
        start += stride;
        start -= start >= w.nodes ? w.nodes : 0;
        node = start;
        step = 0;
    }
}

}  // namespace nnue::cuda::stats
