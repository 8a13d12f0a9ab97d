// Index rows of a batch grouped by feature block, once per batch, for every consumer.
//
// King-bucketed feature sets come in blocks of `block_size` (at most 768) features, and all features of one index row
// lie in one block. A *row* is one perspective of one position; rows of one block get consecutive *slots*, a block
// starts at a multiple of 64 slots (a *tile*), and unused slots are padding. Within a block rows keep their order. A
// block's features are *ranked*, most frequent first: the first 384 ranks, which have nearly all entries, are *near*,
// the others *far*. So everything here is a function of the batch alone. A row that breaks the rule (a duplicate, a
// feature of another block) is irregular: it has no bits and no lists, and is worked off row by row.
//
// Three kernels, each started while the one before drains: `clear_counts`; `count_rows` reads the batch, finds each
// row's block and counts rows and features; `make_tiles`, a thread block a tile, ranks the block's features, finds the
// tile's rows and writes all that consumers read.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "hopper.cuh"

namespace nnue {

constexpr int kBlockFeatures = 768;               // most features a block may have
constexpr int kBlockWords = kBlockFeatures / 32;  // words of one row's bitmap
constexpr int kTileRows = 64;                     // slots of a tile
constexpr int kNearFeatures = 384;                // of a block, the most frequent
constexpr int kNearWords = kNearFeatures / 32;
constexpr int kGroupFeatures = 384;            // features of a block that the weight gradient's product takes at once
constexpr int kLastDenseClass = 16;            // features as frequent as this go into the product
constexpr int kGroupRows = 4;                  // rows of a tile that the fp32 forward takes at a time
constexpr int kGroupCost = 4;                  // of a group besides its near features, in features; measured
constexpr int kNoFeature = 2 * kNearFeatures;  // behind the end of a near list

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

// A row of the fp32 forward.
struct alignas(16) RowEntry {
    int target, slot;  // as in BlockRows; target −1: padding, or an irregular row
    // Features in its near list, from bit 9 on those in its far list, from bit 18 on the first of them; −1 without
    // a row.
    int counts;
    int far_begin;  // of its far entries, in the tile's
};

struct BlockRows {
    int32_t* slot_target;  // [slots]: 2 · position + (0 side to move, 1 other side); −1 padding
    int32_t* tile_begin;   // [num_blocks + 1]
    int32_t* ranked;       // [num_blocks, 768]: the block's features, most frequent first; ~feature if no row has it
    int32_t* dense;        // [num_blocks]: the first ranks, a multiple of 64, that are worth a product; others are rare
    int32_t* used;         // [num_blocks]: the first ranks, of features that some row has
    int32_t* row_slot;     // [rows]: its slot; ~slot of an irregular row
    int32_t* irregular;    // [1]: how many rows are irregular
    uint2* feature_bits;   // [tiles, 768], by rank: bit p of (x, y) = slot index_of_bit(p), and 32 + that, of the tile
    uint32_t* near_bits;   // [slots, 12]: bit p of word w = rank 32 w + index_of_bit(p)
    int32_t* far_begin;    // [tiles, 65]: where a slot's far entries begin in the tile's; the last is their number
    uint16_t* far;         // [tiles, 64 · pitch]: far features, less the block's first, slot by slot
    uint32_t* row_bits;    // [slots, 24]: as near_bits, of features in their own order

    // For the fp32 forward, where there are no loose features. Rows of a tile come in order of their near lists'
    // length, longest first.
    RowEntry* entries;   // [slots]
    uint16_t* near;      // [slots, pitch]: twice the rank of a near feature; then kNoFeature
    int32_t* tile_cost;  // [tiles]: work for the tile's rows in a slab, in features

    int pitch;                // places for a row's features, a multiple of 8
    int stretch_rows;         // rows of a stretch: a multiple of kChunkRows
    int stretches;            // at most kMaxStretches
    uint16_t* row_block;      // scratch [stretches, stretch_rows]: the row's block; with kIrregularRow, kNoBlock
    int32_t* stretch_counts;  // scratch [num_blocks, stretches]: rows of the block in a stretch
    int32_t* counts;          // scratch [num_blocks, 768]: entries of each feature
    int32_t* totals;          // scratch [num_blocks]: rows; zeroed with counts and irregular

    static constexpr int kChunkRows = 256, kMaxStretches = 1024;
    static constexpr int kIrregularRow = 0x8000, kNoBlock = 0x7fff;

    static __host__ __device__ int tiles(int positions, int num_blocks) {
        return (2 * positions + kTileRows - 1) / kTileRows + num_blocks;
    }
    static __host__ __device__ size_t zeroed(int num_blocks) { return size_t(num_blocks) * (kBlockFeatures + 1) + 1; }
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

inline BlockRows carve_rows(Carver& carver, const IndexRows& in) {
    const size_t tiles = BlockRows::tiles(in.positions, in.num_blocks), slots = tiles * kTileRows;
    const size_t row_count = 2 * size_t(in.positions), blocks = in.num_blocks;
    BlockRows rows{};
    rows.pitch = (std::max(1, std::min(in.max_active, kBlockFeatures)) + 7) / 8 * 8;
    constexpr size_t kShare = size_t(BlockRows::kMaxStretches) * BlockRows::kChunkRows;
    rows.stretch_rows = int(std::max<size_t>(1, (row_count + kShare - 1) / kShare)) * BlockRows::kChunkRows;
    rows.stretches = int((row_count + rows.stretch_rows - 1) / rows.stretch_rows);
    rows.slot_target = carver.take<int32_t>(slots);
    rows.tile_begin = carver.take<int32_t>(blocks + 1);
    rows.ranked = carver.take<int32_t>(blocks * kBlockFeatures);
    rows.dense = carver.take<int32_t>(blocks);
    rows.used = carver.take<int32_t>(blocks);
    rows.row_slot = carver.take<int32_t>(row_count);
    rows.feature_bits = carver.take<uint2>(tiles * kBlockFeatures);
    rows.near_bits = carver.take<uint32_t>(slots * kNearWords);
    rows.far_begin = carver.take<int32_t>(tiles * (kTileRows + 1));
    rows.far = carver.take<uint16_t>(slots * rows.pitch);
    rows.row_bits = carver.take<uint32_t>(slots * kBlockWords);
    if (in.num_loose == 0) {
        rows.entries = carver.take<RowEntry>(slots);
        rows.near = carver.take<uint16_t>(slots * rows.pitch);
        rows.tile_cost = carver.take<int32_t>(tiles);
    }
    rows.row_block = carver.take<uint16_t>(size_t(rows.stretches) * rows.stretch_rows);
    rows.stretch_counts = carver.take<int32_t>(blocks * rows.stretches);
    rows.counts = carver.take<int32_t>(BlockRows::zeroed(in.num_blocks));
    rows.totals = rows.counts + blocks * kBlockFeatures;
    rows.irregular = rows.totals + blocks;
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

constexpr int kClearThreads = 256;
constexpr int kCountThreads = 1024, kCountWarps = kCountThreads / 32;
constexpr int kBatch = BlockRows::kChunkRows / kCountWarps;  // rows of which a warp has the loads in flight
constexpr int kSharedBlocks = 48;                            // so many blocks' features are counted in shared memory
constexpr int kCountBlocks = 132;
constexpr int kTileThreads = 256, kTileWarps = kTileThreads / 32;
constexpr int kTileBlocksEach = 5, kTileBlocks = 132 * kTileBlocksEach;  // on a multiprocessor, and in all
// Copies of the counters of loose features: the most frequent ones are in a third of the rows.
constexpr int kLooseCopies = 16;

__device__ __forceinline__ const int32_t* row_pointer(const IndexRows& in, int row) {
    return row < in.positions ? in.white + size_t(row) * in.max_active
                              : in.black + size_t(row - in.positions) * in.max_active;
}

__device__ __forceinline__ int warp_inclusive_sum(int x, int lane) {
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, x, d);
        if (lane >= d) x += other;
    }
    return x;
}

// The entries [base, base + 32) of a row, a lane each; −1 where there is no row or no such entry.
__device__ __forceinline__ int load_entry(const IndexRows& in, bool has_row, int row, int base, int lane) {
    return has_row && base + lane < in.max_active ? __ldg(row_pointer(in, row) + base + lane) : -1;
}

__global__ void __launch_bounds__(kClearThreads) clear_counts(BlockRows out, int count) {
    hopper::let_next_kernel_start();
    for (int i = blockIdx.x * kClearThreads + threadIdx.x; i < count; i += gridDim.x * kClearThreads) out.counts[i] = 0;
}

// Each row's block, rows of each block in each stretch, entries of each feature (rows that turn out to be irregular
// included), entries of loose features. A warp takes kBatch rows at a time, a lane an entry.
template <bool kShared>
__global__ void __launch_bounds__(kCountThreads) count_rows(IndexRows in, BlockRows out, uint32_t* loose_counts) {
    // Features of a row. In chess, where a feature is 64 times a kind plus a square, this order of bits keeps those of
    // a row apart: a word has two squares.
    __shared__ __align__(16) uint32_t seen[kCountWarps][kBatch][32];
    __shared__ int irregular;
    extern __shared__ __align__(16) int counts[];  // [num_blocks, 768] if kShared
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = 2 * in.positions;
    const int cells = kShared ? in.num_blocks * kBlockFeatures : 0;
    int* stretch = counts + cells;          // [num_blocks]: rows in the stretch
    int* totals = stretch + in.num_blocks;  // [num_blocks]
    uint32_t* my_loose = loose_counts + size_t(blockIdx.x % kLooseCopies) * in.num_loose;
    hopper::let_next_kernel_start();

    const int chunks = out.stretch_rows / BlockRows::kChunkRows;
    int at = blockIdx.x, chunk = 0;
    const auto first_row = [&] { return at * out.stretch_rows + chunk * BlockRows::kChunkRows + warp * kBatch; };
    int next[kBatch];
    const auto load_next = [&] {
        const int first = first_row();
#pragma unroll
        for (int r = 0; r < kBatch; ++r)
            next[r] = load_entry(in, at < out.stretches && first + r < rows, first + r, 0, lane);
    };
    load_next();
    for (int i = threadIdx.x; i < cells / 4; i += kCountThreads) reinterpret_cast<int4*>(counts)[i] = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < 2 * in.num_blocks; i += kCountThreads) stretch[i] = 0;
    if (threadIdx.x == 0) irregular = 0;
    __syncthreads();
    if constexpr (!kShared) hopper::wait_for_kernels_before();
    int* const features_of = kShared ? counts : out.counts;

    while (at < out.stretches) {
        const int first = first_row(), stretch_now = at;
        int features[kBatch], blocks[kBatch];
        unsigned open = 0, bad = 0;  // of a bit for each row
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            features[r] = next[r], blocks[r] = -1;
            if (first + r < rows) open |= 1u << r;
            seen[warp][r][lane] = 0;
        }
        if (++chunk == chunks) chunk = 0, at += gridDim.x;
        load_next();
        __syncwarp();
        for (int base = 0;;) {
#pragma unroll
            for (int r = 0; r < kBatch; ++r) {
                const int feature = features[r];
                const unsigned ends = __ballot_sync(~0u, feature < 0);
                const bool mine = (ends & ((2u << lane) - 1)) == 0;  // no −1 up to here
                const bool is_loose = feature >= in.num_features;
                if (blocks[r] < 0) {
                    const unsigned blocked = __ballot_sync(~0u, mine && !is_loose);
                    if (blocked != 0) blocks[r] = __shfl_sync(~0u, feature, __ffs(int(blocked)) - 1) / in.block_size;
                }
                if (mine && is_loose) {
                    // index_check.cuh speaks of the others.
                    if (feature < in.num_features + in.num_loose) atomicAdd(my_loose + (feature - in.num_features), 1u);
                } else if (mine) {
                    const int local = feature - blocks[r] * in.block_size;
                    if (local < 0 || local >= in.block_size) {
                        bad |= 1u << r;
                    } else {
                        const uint32_t bit = 1u << (local >> 5);
                        if (atomicOr(&seen[warp][r][local & 31], bit) & bit) bad |= 1u << r;
                        atomicAdd(features_of + blocks[r] * kBlockFeatures + local, 1);
                    }
                }
                if (ends != 0) open &= ~(1u << r);
            }
            base += 32;
            if (open == 0 || base >= in.max_active) break;
#pragma unroll
            for (int r = 0; r < kBatch; ++r) features[r] = load_entry(in, (open >> r & 1) != 0, first + r, base, lane);
        }
        bad = __reduce_or_sync(~0u, bad);
        int mine = BlockRows::kNoBlock;  // of the row that is this lane's
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
            if (lane == r && first + r < rows)
                mine = max(blocks[r], 0) | ((bad >> r & 1) != 0 ? BlockRows::kIrregularRow : 0);
        }
        if (lane < kBatch) {
            out.row_block[size_t(first) + lane] = uint16_t(mine);
            if (mine != BlockRows::kNoBlock) atomicAdd(&stretch[mine & BlockRows::kNoBlock], 1);
            if (mine & BlockRows::kIrregularRow) atomicAdd(&irregular, 1);
        }
        if (chunk == 0) {
            __syncthreads();
            for (int b = threadIdx.x; b < in.num_blocks; b += kCountThreads) {
                out.stretch_counts[size_t(b) * out.stretches + stretch_now] = stretch[b];
                totals[b] += stretch[b];
                stretch[b] = 0;
            }
            __syncthreads();
        }
    }
    if constexpr (kShared) hopper::wait_for_kernels_before();
    for (int i = threadIdx.x; i < cells / 4; i += kCountThreads) {
        const int4 four = reinterpret_cast<const int4*>(counts)[i];
        const int values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (values[j] > 0) atomicAdd(out.counts + 4 * i + j, values[j]);
    }
    for (int b = threadIdx.x; b < in.num_blocks; b += kCountThreads)
        if (totals[b] > 0) atomicAdd(out.totals + b, totals[b]);
    if (threadIdx.x == 0 && irregular > 0) atomicAdd(out.irregular, irregular);
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

// How frequent a feature is in its block, in half octaves: classes 0 … 16 are features of at least one row in 256, the
// last one those that no row has.
constexpr int kClasses = 32;
__device__ __forceinline__ int frequency_class(int count, int tiles) {
    if (count == 0) return kClasses - 1;
    const float rows_in_256 = float(count) * 4 / float(tiles);
    return max(0, min(kClasses - 2, 270 - int(__float_as_uint(rows_in_256) >> 22)));
}

// What a thread block of make_tiles keeps in shared memory.
struct TileShared {
    int tile_begin[kTileThreads + 1];
    int warp_sums[kTileWarps];
    // Of the block: ranks of its features, rows before each stretch.
    uint16_t rank_of[kBlockFeatures];
    int cells[kBlockFeatures];  // [kClasses, 24 groups of 32 features]
    int rows_before[BlockRows::kMaxStretches + 1];
    int rare_entries;
    // Of the tile.
    int found, stretches[kTileRows];  // stretches that have rows of it, in any order
    int rows[kTileRows];              // ~row of an irregular row, kNoRow padding
    int targets[kTileRows];
    int near_counts[kTileRows], far_counts[kTileRows];  // −1 and 0 without a regular row
    int cost;
    uint32_t bits[2][kBlockFeatures];  // feature_bits
    __align__(16) uint32_t near_bits[kTileRows * kNearWords];
    __align__(16) uint32_t row_bits[kTileRows * kBlockWords];
};
constexpr int kNoRow = INT32_MIN;

// All threads, a number each: the sum of those before. The sums of warps stay in `warp_sums` until the next call.
__device__ __forceinline__ int sum_before(int x, int* warp_sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int inclusive = warp_inclusive_sum(x, lane);
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    int sum = inclusive - x;
    for (int w = 0; w < warp; ++w) sum += warp_sums[w];
    return sum;
}

// Ranks the block's features by class, within a class in their own order; `write`: for all consumers. In chess an
// eighth of a block's features has nearly nine tenths of its rows' entries, and a quarter of them has none. A second
// group of features is worth its product only if more than two entries a row would otherwise be gathered.
__device__ __forceinline__ void rank_block(const BlockRows& out, TileShared& s, int block, int tiles,
                                           const int (&counts)[3], bool write) {
    constexpr int kGroups = kBlockFeatures / 32, kEach = kBlockFeatures / kTileThreads;
    static_assert(kClasses * kGroups == kBlockFeatures && kEach == 3);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int classes[kEach], before[kEach];
    for (int i = threadIdx.x; i < kBlockFeatures; i += kTileThreads) s.cells[i] = 0;
    if (threadIdx.x == 0) s.rare_entries = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        classes[j] = frequency_class(counts[j], tiles);
        const unsigned same = __match_any_sync(~0u, classes[j]);
        before[j] = __popc(same & ((1u << lane) - 1));
        if (before[j] == 0) s.cells[classes[j] * kGroups + j * kTileWarps + warp] = __popc(same);
    }
    __syncthreads();
    int cells[kEach], sum = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) sum += cells[j] = s.cells[threadIdx.x * kEach + j];
    sum = sum_before(sum, s.warp_sums);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        s.cells[threadIdx.x * kEach + j] = sum;
        sum += cells[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int feature = j * kTileThreads + threadIdx.x;
        const int rank = s.cells[classes[j] * kGroups + j * kTileWarps + warp] + before[j];
        s.rank_of[feature] = uint16_t(rank);
        if (!write) continue;
        out.ranked[block * kBlockFeatures + rank] = counts[j] > 0 ? feature : ~feature;
        if (rank >= kGroupFeatures && counts[j] > 0) atomicAdd(&s.rare_entries, counts[j]);
    }
    __syncthreads();
    if (write && threadIdx.x == 0) {
        int dense = (s.cells[(kLastDenseClass + 1) * kGroups] + 63) / 64 * 64;
        if (dense > kGroupFeatures && s.rare_entries < 2LL * tiles * kTileRows) dense = kGroupFeatures;
        out.dense[block] = dense;
        out.used[block] = s.cells[(kClasses - 1) * kGroups];
    }
}

// The tile's rows: those of the block whose number among its rows is first … first + 63.
__device__ __forceinline__ void find_rows(const BlockRows& out, TileShared& s, int block, int first) {
    constexpr int kAhead = 4;  // stretches of which a warp has the loads in flight
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < out.stretches; i += kTileThreads) {
        const int begin = s.rows_before[i], end = s.rows_before[i + 1];
        if (begin < end && begin < first + kTileRows && end > first) s.stretches[atomicAdd(&s.found, 1)] = i;
    }
    __syncthreads();
    for (int item = warp; item < s.found; item += kAhead * kTileWarps) {
        int places[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a)
            places[a] =
                item + a * kTileWarps < s.found ? s.rows_before[s.stretches[item + a * kTileWarps]] - first : kTileRows;
        for (int chunk = 0; chunk < out.stretch_rows; chunk += BlockRows::kChunkRows) {
            uint4 eight[kAhead];
            int rows[kAhead];
#pragma unroll
            for (int a = 0; a < kAhead; ++a) {
                if (item + a * kTileWarps >= s.found) break;
                rows[a] = s.stretches[item + a * kTileWarps] * out.stretch_rows + chunk + lane * 8;
                eight[a] = __ldg(reinterpret_cast<const uint4*>(out.row_block + rows[a]));
            }
#pragma unroll
            for (int a = 0; a < kAhead; ++a) {
                if (item + a * kTileWarps >= s.found) break;
                const uint32_t words[4] = {eight[a].x, eight[a].y, eight[a].z, eight[a].w};
                unsigned has = 0;
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    has |= unsigned((words[j / 2] >> (j % 2 * 16) & BlockRows::kNoBlock) == unsigned(block)) << j;
                const int inclusive = warp_inclusive_sum(__popc(has), lane);
                int place = places[a] + inclusive - __popc(has);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    if ((has >> j & 1) == 0) continue;
                    if (place >= 0 && place < kTileRows)
                        s.rows[place] =
                            words[j / 2] >> (j % 2 * 16) & BlockRows::kIrregularRow ? ~(rows[a] + j) : rows[a] + j;
                    ++place;
                }
                places[a] += __shfl_sync(~0u, inclusive, 31);
            }
        }
    }
    __syncthreads();
}

// Thread blocks take equal stretches of the tiles, as a rule one tile each.
__global__ void __launch_bounds__(kTileThreads, kTileBlocksEach) make_tiles(IndexRows in, BlockRows out) {
    constexpr int kRows = kTileRows / kTileWarps;  // of a tile, that a warp takes
    __shared__ TileShared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = out.pitch;
    const auto clear_tile = [&] {
        for (int i = threadIdx.x; i < 2 * kBlockFeatures; i += kTileThreads) s.bits[0][i] = 0;
        for (int i = threadIdx.x; i < kTileRows * kBlockWords; i += kTileThreads) s.row_bits[i] = 0;
        if (threadIdx.x < kTileRows) s.rows[threadIdx.x] = kNoRow;
        if (threadIdx.x == 0) s.found = s.cost = 0;
    };
    clear_tile();
    hopper::let_next_kernel_start();
    hopper::wait_for_kernels_before();

    static_assert(kTileThreads >= 255);
    const int my_tiles = int(threadIdx.x) < in.num_blocks ? (out.totals[threadIdx.x] + kTileRows - 1) / kTileRows : 0;
    const int tiles_before = sum_before(my_tiles, s.warp_sums);
    s.tile_begin[threadIdx.x] = tiles_before;
    if (threadIdx.x == kTileThreads - 1) s.tile_begin[kTileThreads] = tiles_before + my_tiles;
    if (blockIdx.x == 0)
        for (int b = threadIdx.x; b <= in.num_blocks; b += kTileThreads) out.tile_begin[b] = tiles_before;
    __syncthreads();
    for (int b = blockIdx.x; b < in.num_blocks; b += gridDim.x) {  // blocks without rows
        if (s.tile_begin[b] < s.tile_begin[b + 1]) continue;
        for (int i = threadIdx.x; i < kBlockFeatures; i += kTileThreads) out.ranked[b * kBlockFeatures + i] = ~i;
        if (threadIdx.x == 0) out.dense[b] = out.used[b] = 0;
    }

    const long long tiles = s.tile_begin[in.num_blocks];
    const int end = int(tiles * (blockIdx.x + 1) / gridDim.x);
    int block = -1;
    for (int tile = int(tiles * blockIdx.x / gridDim.x); tile < end; ++tile) {
        const int last_block = block;
        block = __syncthreads_count(int(threadIdx.x) < in.num_blocks && s.tile_begin[threadIdx.x + 1] <= tile);
        const int first_tile = s.tile_begin[block];
        if (block != last_block) {
            int counts[kBlockFeatures / kTileThreads];
#pragma unroll
            for (int j = 0; j < kBlockFeatures / kTileThreads; ++j)
                counts[j] = __ldg(out.counts + block * kBlockFeatures + j * kTileThreads + threadIdx.x);
            constexpr int kEach = BlockRows::kMaxStretches / kTileThreads;
            int rows[kEach], sum = 0;
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const int at = threadIdx.x * kEach + j;
                sum += rows[j] =
                    at < out.stretches ? __ldg(out.stretch_counts + size_t(block) * out.stretches + at) : 0;
            }
            rank_block(out, s, block, s.tile_begin[block + 1] - first_tile, counts, tile == first_tile);
            sum = sum_before(sum, s.warp_sums);
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                s.rows_before[threadIdx.x * kEach + j] = sum;
                sum += rows[j];
            }
            if (threadIdx.x == kTileThreads - 1) s.rows_before[BlockRows::kMaxStretches] = sum;
            __syncthreads();
        }
        find_rows(out, s, block, (tile - first_tile) * kTileRows);

        const int first_slot = tile * kTileRows, first_feature = block * in.block_size;
        const int my_row = s.rows[warp * kRows + lane % kRows];  // numbers of row r are kept by lane r
        const unsigned regular = __ballot_sync(~0u, lane < kRows && my_row >= 0);
        int features[kRows];
        const auto load = [&](unsigned open, int base) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int row = __shfl_sync(~0u, my_row, r);
                features[r] = load_entry(in, (open >> r & 1) != 0, row, base, lane);
            }
        };
        load(regular, 0);
        if (threadIdx.x < kTileRows) {
            const int slot = first_slot + threadIdx.x, found = s.rows[threadIdx.x], row = found < 0 ? ~found : found;
            int target = -1;
            if (found != kNoRow) {
                const int is_black = row >= in.positions, position = row - (is_black ? in.positions : 0);
                target = 2 * position + (is_black != (in.black_to_move[position] != 0));
                out.row_slot[row] = found < 0 ? ~slot : slot;
            }
            out.slot_target[slot] = s.targets[threadIdx.x] = target;
        }
        // Calls visit(r, mine, feature, rank, near, far) for the warp's rows, 32 entries at a time: whether this lane
        // has one, its feature less the block's first, and which lanes have near and far ones.
        const auto for_each_entry = [&](const auto& visit) {
            unsigned open = regular;
            for (int base = 0; base < in.max_active && open != 0; base += 32) {
                if (in.max_active > 32) load(open, base);
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    const unsigned ends = __ballot_sync(~0u, features[r] < 0);
                    const bool mine = (ends & ((2u << lane) - 1)) == 0 && features[r] < in.num_features;
                    const int feature = mine ? features[r] - first_feature : 0, rank = s.rank_of[feature];
                    const unsigned near = __ballot_sync(~0u, mine && rank < kNearFeatures);
                    const unsigned far = __ballot_sync(~0u, mine && rank >= kNearFeatures);
                    visit(r, mine, feature, rank, near, far);
                    if (ends != 0) open &= ~(1u << r);
                }
            }
        };
        int my_near = 0, my_far = 0;  // how many
        for_each_entry([&](int r, bool mine, int feature, int rank, unsigned near, unsigned far) {
            const int slot = warp * kRows + r;
            if (mine) {
                atomicOr(&s.bits[slot / 32][rank], 1u << bit_of_index(slot % 32));
                atomicOr(&s.row_bits[slot * kBlockWords + feature / 32], 1u << bit_of_index(feature % 32));
            }
            if (lane == r) my_near += __popc(near), my_far += __popc(far);
        });
        if (lane < kRows) {
            s.near_counts[warp * kRows + lane] = my_row >= 0 ? my_near : -1;
            s.far_counts[warp * kRows + lane] = my_far;
        }
        __syncthreads();

        // Far entries go slot by slot, near lists in order of their length.
        const int far_first = s.far_counts[lane], far_second = s.far_counts[32 + lane];
        const int far_until_first = warp_inclusive_sum(far_first, lane);
        const int far_until_second = __shfl_sync(~0u, far_until_first, 31) + warp_inclusive_sum(far_second, lane);
        if (warp == 0) {
            int32_t* far_begin = out.far_begin + size_t(tile) * (kTileRows + 1);
            far_begin[lane] = far_until_first - far_first;
            far_begin[32 + lane] = far_until_second - far_second;
            if (lane == 31) far_begin[kTileRows] = far_until_second;
        }
        const int my_slot = warp * kRows + lane % kRows;
        const int far_of_first = __shfl_sync(~0u, far_until_first - far_first, my_slot % 32);
        const int far_of_second = __shfl_sync(~0u, far_until_second - far_second, my_slot % 32);
        const int my_far_begin = my_slot < 32 ? far_of_first : far_of_second;
        const int near_first = s.near_counts[lane], near_second = s.near_counts[32 + lane];
        int my_place = 0, my_near_at = 0, my_far_at = my_far_begin, my_first_far = 0;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int slot = warp * kRows + r, count = s.near_counts[slot];
            const int place =
                __popc(__ballot_sync(~0u, near_first > count || (near_first == count && lane < slot))) +
                __popc(__ballot_sync(~0u, near_second > count || (near_second == count && 32 + lane < slot)));
            if (lane == r) my_place = place;
        }
        uint16_t* const tile_far = out.far + size_t(first_slot) * pitch;
        uint16_t* const tile_near = out.near + size_t(first_slot) * pitch;
        const bool has_lists = in.num_loose == 0;
        for_each_entry([&](int r, bool mine, int feature, int rank, unsigned near, unsigned far) {
            const unsigned before = (1u << lane) - 1;
            const int near_at = __shfl_sync(~0u, my_place * pitch + my_near_at, r);
            if (has_lists && (near >> lane & 1) != 0) tile_near[near_at + __popc(near & before)] = uint16_t(2 * rank);
            if (far != 0) {
                const int far_at = __shfl_sync(~0u, my_far_at, r);
                const int first = __shfl_sync(~0u, feature, __ffs(int(far)) - 1);
                if ((far >> lane & 1) != 0) tile_far[far_at + __popc(far & before)] = uint16_t(feature);
                if (lane == r && my_far_at == my_far_begin) my_first_far = first;
            }
            if (lane == r) my_near_at += __popc(near), my_far_at += __popc(far);
        });
        if (has_lists) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int begin = __shfl_sync(~0u, my_place * pitch, r), count = __shfl_sync(~0u, my_near, r);
                for (int i = count + lane; i < pitch; i += 32) tile_near[begin + i] = kNoFeature;
            }
            if (lane < kRows) {
                const bool exists = my_row >= 0;
                out.entries[first_slot + my_place] = {exists ? s.targets[my_slot] : -1, first_slot + my_slot,
                                                      exists ? my_near | my_far << 9 | my_first_far << 18 : -1,
                                                      my_far_begin};
                if (exists) atomicAdd(&s.cost, (my_place % kGroupRows == 0 ? my_near + kGroupCost : 0) + my_far);
            }
        }
        for (int i = warp; i < 2 * kNearWords; i += kTileWarps) {
            const int half = i % 2, word = i / 2, index = index_of_bit(lane);
            s.near_bits[(32 * half + index) * kNearWords + word] =
                warp_transpose(s.bits[half][word * 32 + index], lane);
        }
        for (int i = threadIdx.x; i < kBlockFeatures; i += kTileThreads)
            out.feature_bits[size_t(tile) * kBlockFeatures + i] = {s.bits[0][i], s.bits[1][i]};
        for (int i = threadIdx.x; i < kTileRows * kBlockWords / 4; i += kTileThreads)
            reinterpret_cast<uint4*>(out.row_bits)[size_t(first_slot) * (kBlockWords / 4) + i] =
                reinterpret_cast<const uint4*>(s.row_bits)[i];
        __syncthreads();
        if (threadIdx.x < kTileRows * kNearWords / 4)
            reinterpret_cast<uint4*>(out.near_bits)[size_t(first_slot) * (kNearWords / 4) + threadIdx.x] =
                reinterpret_cast<const uint4*>(s.near_bits)[threadIdx.x];
        if (has_lists && threadIdx.x == 0) out.tile_cost[tile] = s.cost;
        __syncthreads();
        clear_tile();
    }
}

// Rows that have become irregular since: their bits go. A thread block a row.
__global__ void __launch_bounds__(kTileThreads) drop_irregular_rows(IndexRows in, BlockRows out) {
    if (*out.irregular == 0) return;
    for (int row = blockIdx.x; row < 2 * in.positions; row += gridDim.x) {
        const int slot = ~out.row_slot[row];
        if (slot < 0) continue;
        const int tile = slot / kTileRows, in_tile = slot % kTileRows;
        const uint32_t keep = ~(1u << bit_of_index(in_tile % 32));
        for (int i = threadIdx.x; i < kBlockFeatures; i += kTileThreads) {
            uint2* bits = out.feature_bits + size_t(tile) * kBlockFeatures + i;
            atomicAnd(in_tile < 32 ? &bits->x : &bits->y, keep);
        }
        if (threadIdx.x < kNearWords) out.near_bits[size_t(slot) * kNearWords + threadIdx.x] = 0;
    }
}

inline cudaError_t place(const IndexRows& in, const BlockRows& out, uint32_t* loose_counts, cudaStream_t stream) {
    const int zeroed = int(BlockRows::zeroed(in.num_blocks));
    clear_counts<<<std::min((zeroed + kClearThreads - 1) / kClearThreads, 132), kClearThreads, 0, stream>>>(out,
                                                                                                            zeroed);
    const bool is_shared = in.num_blocks <= kSharedBlocks;
    const auto count = is_shared ? count_rows<true> : count_rows<false>;
    const size_t shared = (size_t(is_shared ? in.num_blocks * kBlockFeatures : 0) + 2 * in.num_blocks) * sizeof(int);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(count, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared));
    if (error == cudaSuccess)
        error = hopper::launch_early(count, std::min(out.stretches, kCountBlocks), kCountThreads, shared, stream, in,
                                     out, loose_counts);
    if (error == cudaSuccess)
        error = hopper::launch_early(make_tiles, std::min(BlockRows::tiles(in.positions, in.num_blocks), kTileBlocks),
                                     kTileThreads, 0, stream, in, out);
    return error;
}

// After loose_rows::build, where a row may become irregular.
inline cudaError_t drop_irregular(const IndexRows& in, const BlockRows& out, cudaStream_t stream) {
    drop_irregular_rows<<<std::min(2 * in.positions, 1056), kTileThreads, 0, stream>>>(in, out);
    return cudaGetLastError();
}

}  // namespace block_rows
}  // namespace nnue
