// Index rows of a batch grouped by feature block, once per batch, for every consumer.
//
// King-bucketed feature sets come in blocks of `block_size` (at most 768) features, and all features of one index row
// lie in one block. A *row* is one perspective of one position; rows of one block get consecutive *slots*, a block
// starts at a multiple of 64 slots (a *tile*), and unused slots are padding. Within a block rows keep their order, so
// everything here is a function of the batch alone. Each slot holds its features as a bitmap of 768 bits;
// `feature_bits` is the transpose of a tile, its features ordered by how many of the block's rows have them. A row that
// breaks the rule (a duplicate, a feature of another block) is irregular: its bitmap stays empty, and it is worked off
// row by row.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "hopper.cuh"

namespace nnue {

constexpr int kBlockFeatures = 768;               // most features a block may have
constexpr int kBlockWords = kBlockFeatures / 32;  // words of one row's bitmap
constexpr int kTileRows = 64;                     // slots of a tile
constexpr int kRowsPerCta = 128;                  // rows one thread block places
constexpr int kPlaceThreads = 256;
constexpr int kCountRows = 1024;     // rows one thread block counts
constexpr int kRankCtas = 32;        // thread blocks that order the features of a block, at most
constexpr int kShareTiles = 4;       // and the fewest tiles for which there is one more
constexpr int kGroupFeatures = 384;  // features of a block that the weight gradient's product takes at once
constexpr int kLastDenseClass = 16;  // features as frequent as this go into the product

struct IndexRows {
    const int32_t* white;          // [positions, max_active]
    const int32_t* black;          // [positions, max_active]
    const uint8_t* black_to_move;  // [positions]
    int positions;
    int max_active;
    int num_features;  // those that come in blocks: [0, num_features)
    int num_loose;     // those behind them, of which a row may have any
    int block_size;
    int num_blocks;
};

struct BlockRows {
    int32_t* slot_target;  // [slots]: 2 · position + (0 side to move, 1 other side); −1 padding
    int32_t* tile_begin;   // [num_blocks + 1]
    uint32_t* row_bits;    // [slots, 24]
    uint2* tile_bits;      // scratch [tiles, 768]: feature_bits, features in their own order
    uint2* feature_bits;   // [tiles, 768], by rank: bit p of (x, y) = slot index_of_bit(p), and 32 + that, of the tile
    int32_t* counts;       // scratch [num_blocks, 768]: regular rows that have a feature
    int32_t* ranked;       // [num_blocks, 768]: the block's features, most frequent first; ~feature if no row has it
    int32_t* dense;        // [num_blocks]: the first ranks, a multiple of 64, that are worth a product; others are rare
    int32_t* used;         // [num_blocks]: the first ranks, of features that some row has
    int32_t* cta_offsets;  // scratch [num_blocks, ctas]
    int32_t* row_slot;     // [rows]: its slot; ~slot of an irregular row
    int32_t* irregular;    // [1]: how many rows are irregular

    static __host__ __device__ int tiles(int positions, int num_blocks) {
        return (2 * positions + kTileRows - 1) / kTileRows + num_blocks;
    }
    static int ctas(int positions) { return (2 * positions + kRowsPerCta - 1) / kRowsPerCta; }
};

// Cuts a workspace into aligned pieces; with a null base it only counts.
struct Carver {
    char* base;
    size_t used = 0;
    template <typename T>
    T* take(size_t count) {
        used = (used + 255) / 256 * 256;
        T* piece = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
        used += count * sizeof(T);
        return piece;
    }
};

inline BlockRows carve_rows(Carver& carver, int positions, int num_blocks) {
    const size_t tiles = BlockRows::tiles(positions, num_blocks), slots = tiles * kTileRows;
    BlockRows rows;
    rows.slot_target = carver.take<int32_t>(slots);
    rows.tile_begin = carver.take<int32_t>(num_blocks + 1);
    rows.row_bits = carver.take<uint32_t>(slots * kBlockWords);
    rows.tile_bits = carver.take<uint2>(tiles * kBlockFeatures);
    rows.feature_bits = carver.take<uint2>(tiles * kBlockFeatures);
    rows.counts = carver.take<int32_t>(size_t(num_blocks) * kBlockFeatures);
    rows.ranked = carver.take<int32_t>(size_t(num_blocks) * kBlockFeatures);
    rows.dense = carver.take<int32_t>(num_blocks);
    rows.used = carver.take<int32_t>(num_blocks);
    rows.cta_offsets = carver.take<int32_t>(size_t(BlockRows::ctas(positions)) * num_blocks);
    rows.row_slot = carver.take<int32_t>(2 * size_t(positions));
    rows.irregular = carver.take<int32_t>(1);
    return rows;
}

// Where index i (0…31) of a group of 32 sits in a bitmap word. wgmma wants, of 32 consecutive k, the pairs
// (16 s + 8 h + 2 t, + 1) in lane t of a quad: the pair's bits are 16 apart, so one `and` and one multiply make the
// 16-bit-float pair, and a lane finds its four pairs at bits 4 t … 4 t + 3.
__host__ __device__ constexpr int bit_of_index(int i) {
    return ((i & 1) << 4) | (((i >> 1) & 3) << 2) | (((i >> 4) & 1) << 1) | ((i >> 3) & 1);
}
__host__ __device__ constexpr int index_of_bit(int p) {
    return ((p >> 4) & 1) | (((p >> 2) & 3) << 1) | (((p >> 1) & 1) << 4) | ((p & 1) << 3);
}

namespace block_rows {

__device__ __forceinline__ const int32_t* row_pointer(const IndexRows& in, int row) {
    return row < in.positions ? in.white + size_t(row) * in.max_active
                              : in.black + size_t(row - in.positions) * in.max_active;
}

// The block of a row's first feature that is in one.
__device__ __forceinline__ int block_of_row(const IndexRows& in, int row) {
    const int32_t* features = row_pointer(in, row);
    for (int k = 0; k < in.max_active && features[k] >= 0; ++k)
        if (features[k] < in.num_features) return features[k] / in.block_size;
    return 0;
}

// Counts of each feature block in each stretch of kRowsPerCta rows; a thread block counts kCountRows rows.
__global__ void __launch_bounds__(kCountRows) count_rows(IndexRows in, BlockRows out, int ctas) {
    extern __shared__ int counts[];  // [kCountRows / kRowsPerCta][num_blocks]
    constexpr int kStretches = kCountRows / kRowsPerCta;
    if (blockIdx.x == 0 && threadIdx.x == 0) *out.irregular = 0;
    for (int i = blockIdx.x * kCountRows + threadIdx.x; i < in.num_blocks * kBlockFeatures; i += gridDim.x * kCountRows)
        out.counts[i] = 0;
    for (int i = threadIdx.x; i < kStretches * in.num_blocks; i += kCountRows) counts[i] = 0;
    __syncthreads();
    const int row = blockIdx.x * kCountRows + threadIdx.x;
    if (row < 2 * in.positions)
        atomicAdd(&counts[threadIdx.x / kRowsPerCta * in.num_blocks + block_of_row(in, row)], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < kStretches * in.num_blocks; i += kCountRows) {
        const int cta = blockIdx.x * kStretches + i % kStretches, block = i / kStretches;
        if (cta < ctas) out.cta_offsets[size_t(block) * ctas + cta] = counts[i % kStretches * in.num_blocks + block];
    }
}

__device__ __forceinline__ int warp_inclusive_sum(int x, int lane) {
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, x, d);
        if (lane >= d) x += other;
    }
    return x;
}

// One thread block: counts per (feature block, stretch of rows) become slot offsets.
__global__ void __launch_bounds__(1024) assign_slots(IndexRows in, BlockRows out, int ctas) {
    constexpr int kEach = 8;  // stretches per lane at a time
    extern __shared__ int totals[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int b = warp; b < in.num_blocks; b += 32) {  // offsets inside the block
        int32_t* cells = out.cta_offsets + size_t(b) * ctas;
        int carry = 0;
        for (int base = 0; base < ctas; base += 32 * kEach) {
            const int mine = base + lane * kEach;
            int counts[kEach], sum = 0;
#pragma unroll
            for (int i = 0; i < kEach; ++i) counts[i] = mine + i < ctas ? cells[mine + i] : 0;
#pragma unroll
            for (int i = 0; i < kEach; ++i) sum += counts[i];
            const int inclusive = warp_inclusive_sum(sum, lane);
            int offset = carry + inclusive - sum;
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if (mine + i < ctas) cells[mine + i] = offset;
                offset += counts[i];
            }
            carry += __shfl_sync(~0u, inclusive, 31);
        }
        if (lane == 0) totals[b] = carry;
    }
    __syncthreads();
    if (warp == 0) {
        int carry = 0;
        for (int base = 0; base < in.num_blocks; base += 32) {
            const int b = base + lane;
            const int tiles = b < in.num_blocks ? (totals[b] + kTileRows - 1) / kTileRows : 0;
            const int inclusive = warp_inclusive_sum(tiles, lane);
            if (b < in.num_blocks) out.tile_begin[b] = carry + inclusive - tiles;
            carry += __shfl_sync(~0u, inclusive, 31);
        }
        if (lane == 0) out.tile_begin[in.num_blocks] = carry;
    }
    __syncthreads();
    for (int b = warp; b < in.num_blocks; b += 32) {  // padding: no row, no features
        const int first = out.tile_begin[b] * kTileRows + totals[b], end = out.tile_begin[b + 1] * kTileRows;
        for (int slot = first + lane; slot < end; slot += 32) out.slot_target[slot] = -1;
        uint4* bits = reinterpret_cast<uint4*>(out.row_bits);
        for (size_t i = size_t(first) * (kBlockWords / 4) + lane; i < size_t(end) * (kBlockWords / 4); i += 32)
            bits[i] = {0, 0, 0, 0};
    }
}

// Copies of the counters of loose features: the most frequent ones are in a third of the rows.
constexpr int kLooseCopies = 16;

// A thread block per stretch of kRowsPerCta rows: slots in row order, bitmaps. Entries of loose features are counted.
__global__ void __launch_bounds__(kPlaceThreads)
    place_rows(IndexRows in, BlockRows out, int ctas, uint32_t* loose_counts) {
    constexpr int kRowWarps = kRowsPerCta / 32, kWarps = kPlaceThreads / 32, kWarpRows = kRowsPerCta / kWarps;
    constexpr int kBatch = 8;  // rows of which a warp has the loads in flight
    __shared__ __align__(16) uint32_t bits[kRowsPerCta][kBlockWords];
    __shared__ int slot_of[kRowsPerCta], block_of[kRowsPerCta];
    __shared__ bool is_irregular[kRowsPerCta];
    uint32_t* my_counts = loose_counts + size_t(blockIdx.x % kLooseCopies) * in.num_loose;
    extern __shared__ int warp_counts[];  // [kRowWarps][num_blocks]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = 2 * in.positions;
    const int first_row = blockIdx.x * kRowsPerCta;
    for (int i = threadIdx.x; i < kRowWarps * in.num_blocks; i += kPlaceThreads) warp_counts[i] = 0;
    for (int i = threadIdx.x; i < kRowsPerCta * kBlockWords; i += kPlaceThreads) bits[0][i] = 0;
    __syncthreads();
    const int row = first_row + threadIdx.x;
    int block = -1, rank = 0, offset = 0, target = -1;
    if (threadIdx.x < kRowsPerCta) {
        if (row < rows) {
            block = block_of_row(in, row);
            offset = out.tile_begin[block] * kTileRows + out.cta_offsets[size_t(block) * ctas + blockIdx.x];
            const int is_black = row >= in.positions, position = row - (is_black ? in.positions : 0);
            target = 2 * position + (is_black != (in.black_to_move[position] != 0));
        }
        const unsigned same = __match_any_sync(~0u, block);
        rank = __popc(same & ((1u << lane) - 1));
        if (block >= 0 && rank == 0) warp_counts[warp * in.num_blocks + block] = __popc(same);
        block_of[threadIdx.x] = block;
    }
    __syncthreads();
    if (threadIdx.x < kRowsPerCta) {
        int slot = -1;
        if (block >= 0) {
            slot = offset + rank;
            for (int w = 0; w < warp; ++w) slot += warp_counts[w * in.num_blocks + block];
            out.slot_target[slot] = target;
        }
        slot_of[threadIdx.x] = slot;
    }

    for (int batch = 0; batch < kWarpRows; batch += kBatch) {  // a warp per row: its features in parallel
        bool bad[kBatch] = {}, open[kBatch];
#pragma unroll
        for (int r = 0; r < kBatch; ++r) open[r] = first_row + warp * kWarpRows + batch + r < rows;
        for (int base = 0; base < in.max_active; base += 32) {
            int features[kBatch];
#pragma unroll
            for (int r = 0; r < kBatch; ++r)
                features[r] = open[r] && base + lane < in.max_active
                                  ? row_pointer(in, first_row + warp * kWarpRows + batch + r)[base + lane]
                                  : -1;
            bool any = false;
#pragma unroll
            for (int r = 0; r < kBatch; ++r) {
                const int mine = warp * kWarpRows + batch + r, feature = features[r];
                const unsigned ends = __ballot_sync(~0u, feature < 0);
                if (open[r] && (ends & ((2u << lane) - 1)) == 0) {  // no −1 up to here
                    if (feature >= in.num_features) {
                        // index_check.cuh speaks of the others.
                        if (feature < in.num_features + in.num_loose)
                            atomicAdd(my_counts + (feature - in.num_features), 1u);
                    } else {
                        const int local = feature - block_of[mine] * in.block_size;
                        if (local < 0 || local >= in.block_size) {
                            bad[r] = true;
                        } else {
                            const uint32_t bit = 1u << bit_of_index(local & 31);
                            bad[r] |= (atomicOr(&bits[mine][local >> 5], bit) & bit) != 0;
                        }
                    }
                }
                open[r] = open[r] && ends == 0;
                any |= open[r];
            }
            if (!any) break;
        }
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            const int mine = warp * kWarpRows + batch + r;
            const bool irregular = __any_sync(~0u, bad[r]);
            if (irregular && lane < kBlockWords) bits[mine][lane] = 0;
            if (irregular && lane == 0) atomicAdd(out.irregular, 1);
            if (lane == 0) is_irregular[mine] = irregular;
        }
    }
    __syncthreads();
    if (threadIdx.x < kRowsPerCta && slot_of[threadIdx.x] >= 0)
        out.row_slot[row] = is_irregular[threadIdx.x] ? ~slot_of[threadIdx.x] : slot_of[threadIdx.x];
    for (int i = threadIdx.x; i < kRowsPerCta * (kBlockWords / 4); i += kPlaceThreads) {
        const int r = i / (kBlockWords / 4), part = i % (kBlockWords / 4);
        if (slot_of[r] >= 0)
            reinterpret_cast<uint4*>(out.row_bits)[size_t(slot_of[r]) * (kBlockWords / 4) + part] =
                reinterpret_cast<const uint4*>(bits[r])[part];
    }
}

// Lane i's bit j becomes lane j's bit i.
__device__ __forceinline__ uint32_t warp_transpose(uint32_t x, int lane) {
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
        const uint32_t mask = s == 16  ? 0x0000ffffu
                              : s == 8 ? 0x00ff00ffu
                              : s == 4 ? 0x0f0f0f0fu
                              : s == 2 ? 0x33333333u
                                       : 0x55555555u;
        const uint32_t other = __shfl_xor_sync(~0u, x, s);
        x = lane & s ? (x & ~mask) | ((other & ~mask) >> s) : (x & mask) | ((other & mask) << s);
    }
    return x;
}

// One warp per (tile, word): 64 rows × 32 features turned over, and counted.
__global__ void transpose_bits(BlockRows rows, int num_blocks) {
    hopper::wait_for_kernels_before();
    hopper::let_next_kernel_start();
    const int item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tile = item / kBlockWords, word = item % kBlockWords;
    if (tile >= rows.tile_begin[num_blocks]) return;
    const int slot = tile * kTileRows + index_of_bit(lane);
    const uint32_t low = rows.row_bits[size_t(slot) * kBlockWords + word];
    const uint32_t high = rows.row_bits[size_t(slot + 32) * kBlockWords + word];
    int block = 0;
    for (int base = 0; base < num_blocks; base += 32)
        block += __popc(__ballot_sync(~0u, base + lane < num_blocks && rows.tile_begin[base + lane + 1] <= tile));
    const uint2 bits = {warp_transpose(low, lane), warp_transpose(high, lane)};
    const int feature = word * 32 + index_of_bit(lane), count = __popc(bits.x) + __popc(bits.y);
    rows.tile_bits[size_t(tile) * kBlockFeatures + feature] = bits;
    if (count > 0) atomicAdd(rows.counts + block * kBlockFeatures + feature, count);
}

// How frequent a feature is in its block, in half octaves: classes 0 … 16 are features of at least one row in 256, the
// last one those that no row has.
constexpr int kClasses = 32;
__device__ __forceinline__ int frequency_class(int count, int tiles) {
    if (count == 0) return kClasses - 1;
    const float rows_in_256 = float(count) * 4 / float(tiles);
    return max(0, min(kClasses - 2, 270 - int(__float_as_uint(rows_in_256) >> 22)));
}

// Thread blocks (block, share of its tiles): orders the block's features by class, and the bits of its tiles likewise.
// In chess an eighth of a block's features has nearly nine tenths of its rows' entries, and a quarter of them has none.
// A second group of features is worth its product only if more than two entries a row would otherwise be gathered.
__global__ void __launch_bounds__(kBlockFeatures) rank_features(BlockRows rows) {
    constexpr int kWarps = kBlockFeatures / 32;
    static_assert(kClasses * kWarps == kBlockFeatures);
    __shared__ int cells[kBlockFeatures];  // [kClasses, kWarps]
    __shared__ int warp_sums[kWarps];
    __shared__ int features[kBlockFeatures];
    __shared__ int rare_entries;
    hopper::wait_for_kernels_before();
    const int block = blockIdx.x, first = rows.tile_begin[block], end = rows.tile_begin[block + 1], tiles = end - first;
    const int shares = min(int(gridDim.y), (tiles + kShareTiles - 1) / kShareTiles), share = blockIdx.y;
    if (share > 0 && share >= shares) return;
    const int i = threadIdx.x, warp = i / 32, lane = i % 32;
    const int count = rows.counts[block * kBlockFeatures + i], mine = frequency_class(count, tiles);
    const unsigned same = __match_any_sync(~0u, mine);
    const int before = __popc(same & ((1u << lane) - 1));
    cells[i] = 0;
    if (i == 0) rare_entries = 0;
    __syncthreads();
    if (before == 0) cells[mine * kWarps + warp] = __popc(same);
    __syncthreads();
    const int cell = cells[i], inclusive = warp_inclusive_sum(cell, lane);
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    int offset = inclusive - cell;
    for (int w = 0; w < warp; ++w) offset += warp_sums[w];
    cells[i] = offset;
    __syncthreads();
    const int rank = cells[mine * kWarps + warp] + before;
    features[rank] = i;
    if (share == 0) {
        rows.ranked[block * kBlockFeatures + rank] = count > 0 ? i : ~i;
        if (rank >= kGroupFeatures && count > 0) atomicAdd(&rare_entries, count);
        const int worth = __syncthreads_count(mine <= kLastDenseClass), used = __syncthreads_count(count > 0);
        int dense = (worth + 63) / 64 * 64;
        if (dense > kGroupFeatures && rare_entries < 2LL * tiles * kTileRows) dense = kGroupFeatures;
        if (i == 0) rows.dense[block] = dense, rows.used[block] = used;
    }
    __syncthreads();
    const int feature = features[i];
#pragma unroll 4
    for (int tile = first + share; tile < end; tile += shares)
        rows.feature_bits[size_t(tile) * kBlockFeatures + i] =
            __ldg(rows.tile_bits + size_t(tile) * kBlockFeatures + feature);
}

inline cudaError_t place(const IndexRows& in, const BlockRows& out, uint32_t* loose_counts, cudaStream_t stream) {
    const int ctas = BlockRows::ctas(in.positions);
    const int count_ctas = (2 * in.positions + kCountRows - 1) / kCountRows;
    count_rows<<<count_ctas, kCountRows, kCountRows / kRowsPerCta * in.num_blocks * sizeof(int), stream>>>(in, out,
                                                                                                           ctas);
    assign_slots<<<1, 1024, in.num_blocks * sizeof(int), stream>>>(in, out, ctas);
    place_rows<<<ctas, kPlaceThreads, kRowsPerCta / 32 * in.num_blocks * sizeof(int), stream>>>(in, out, ctas,
                                                                                                loose_counts);
    return cudaGetLastError();
}

inline cudaError_t transpose(const IndexRows& in, const BlockRows& out, cudaStream_t stream) {
    const int tiles = BlockRows::tiles(in.positions, in.num_blocks);
    cudaError_t error =
        hopper::launch_early(transpose_bits, (tiles * kBlockWords + 7) / 8, 256, 0, stream, out, in.num_blocks);
    if (error == cudaSuccess)
        error = hopper::launch_early(rank_features, dim3(in.num_blocks, std::clamp(tiles / 32, 1, kRankCtas)),
                                     kBlockFeatures, 0, stream, out);
    return error;
}

}  // namespace block_rows
}  // namespace nnue
