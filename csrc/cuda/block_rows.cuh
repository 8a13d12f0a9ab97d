// Index rows of a batch grouped by feature block, once per batch, for every consumer.
//
// King-bucketed feature sets come in blocks of `block_size` (at most 768) features, and all features of one index row
// lie in one block. A *row* is one perspective of one position; rows of one block get consecutive *slots*, a block
// starts at a multiple of 64 slots (a *tile*), and unused slots are padding. Within a block rows keep their order. A
// block's features are *ranked*, most frequent first: the first 384 ranks, which have nearly all entries, are *near*,
// the others *far*. So everything here is a function of the batch alone. A row that breaks the rule (a duplicate, a
// feature of another block) is irregular: it has no bits and no lists, and is worked off row by row.
//
// Four kernels, the last three started while the one before drains: `clear_counts`; `count_rows` reads the batch, finds
// each row's block and counts rows and features; `assign_slots` ranks each block's features and gives every row its
// slot; `make_tiles`, a thread block a tile, writes all else that consumers read.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopper.cuh"

namespace nnue {

constexpr int kBlockFeatures = 768;               // most features a block may have
constexpr int kBlockWords = kBlockFeatures / 32;  // words of one row's bitmap
constexpr int kTileRows = 64;                     // slots of a tile
constexpr int kNearFeatures = 384;                // of a block, the most frequent
constexpr int kNearWords = kNearFeatures / 32;
constexpr int kGroupFeatures = 384;  // features of a block that the weight gradient's product takes at once
constexpr int kLastDenseClass = 16;  // features as frequent as this go into the product
constexpr int kGroupRows = 4;        // rows of a tile that the fp32 forward takes at a time
constexpr int kNearCost = 2, kGroupCost = 31, kFarCost = 3;  // of a place, a group, a far feature there; measured

// What the fp32 forward keeps of a block, in *places*: a place of zeros, all sums of a few of the most frequent
// features, so that a row adds such features up with one read, and the other near features. Of the first 32 ranks each
// four consecutive ones are a *team*: of the first kFours teams there are all 15 sums, of the others the 7 sums of
// three and the fourth alone. Sum v is of those whose bits v has. Those of team kBiasTeam have the bias as well: every
// row begins with one of them, be it sum 0.
constexpr int kSummedRanks = 32, kTeams = kSummedRanks / 4, kFours = 4, kBiasTeam = kFours, kNoFeature = 0;
__host__ __device__ constexpr int team_place(int team, int sum) {
    return team < kFours ? 15 * team + sum : 15 * kFours + 7 * (team - kFours) + 1 + sum;
}
// Of a feature that is in no sum: the fourth of a team, or behind all teams.
__host__ __device__ constexpr int single_place(int rank) {
    constexpr int kFirst = team_place(kTeams, 1);
    return rank < kSummedRanks ? kFirst + rank / 4 - kFours : kFirst + kTeams - kFours + rank - kSummedRanks;
}
__host__ __device__ constexpr bool is_single(int rank) {
    return rank >= kSummedRanks || (rank >= 4 * kFours && rank % 4 == 3);
}
constexpr int kPlaces = single_place(kNearFeatures);

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
    // Places in its near list, from bit 9 on features in its far list, from bit 18 on the first of them, from bit 28 on
    // the sum of team kBiasTeam; −1 without a row.
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

    // For the fp32 forward, where there are no loose features. Rows of a tile come in order of their near lists'
    // length, longest first.
    RowEntry* entries;               // [slots]
    uint16_t* near;                  // [slots, pitch]: twice the places of near features; then kNoFeature
    unsigned long long* block_cost;  // [num_blocks]: work for the block's rows in a slab

    int pitch;                // places for a row's features, a multiple of 8
    int stretch_rows;         // rows of a stretch: a multiple of kChunkRows
    int stretches;            // at most kMaxStretches
    uint32_t block_inverse;   // feature · this >> 32 is its block; exact, as there are < 2^18 features
    uint16_t* row_block;      // scratch [stretches, stretch_rows]: the row's block, or kNoBlock; flags
    int32_t* stretch_counts;  // scratch [stretches, num_blocks]: rows of the block in a stretch
    uint16_t* rank_of;        // scratch [num_blocks, 768]: ranks of features; from bit 10 on the rank's bit in a word
    uint16_t* tile_block;     // scratch [tiles]
    int32_t* slot_row;        // scratch [slots]: ~row of an irregular row, kNoRow padding
    int32_t* counts;          // scratch [num_blocks, 768]: entries of each feature
    int32_t* totals;          // scratch [num_blocks]: rows. block_cost, counts, this and irregular lie in a row

    static constexpr int kChunkRows = 256, kMaxStretches = 1024;
    static constexpr int kIrregularRow = 0x8000, kSecondSide = 0x4000, kNoBlock = 0x3fff, kNoRow = INT32_MIN;

    static __host__ __device__ int tiles(int positions, int num_blocks) {
        return (2 * positions + kTileRows - 1) / kTileRows + num_blocks;
    }
    static __host__ __device__ size_t zeroed(int num_blocks) { return size_t(num_blocks) * (kBlockFeatures + 3) + 1; }
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
    rows.block_inverse = uint32_t(((uint64_t(1) << 32) + in.block_size - 1) / std::max(in.block_size, 2));
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
    if (in.num_loose == 0) {
        rows.entries = carver.take<RowEntry>(slots);
        rows.near = carver.take<uint16_t>(slots * rows.pitch);
    }
    rows.row_block = carver.take<uint16_t>(size_t(rows.stretches) * rows.stretch_rows);
    rows.stretch_counts = carver.take<int32_t>(blocks * rows.stretches);
    rows.rank_of = carver.take<uint16_t>(blocks * kBlockFeatures);
    rows.tile_block = carver.take<uint16_t>(tiles);
    rows.slot_row = carver.take<int32_t>(slots);
    rows.block_cost = carver.take<unsigned long long>((BlockRows::zeroed(in.num_blocks) + 1) / 2);
    rows.counts = reinterpret_cast<int32_t*>(rows.block_cost + blocks);
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
constexpr int kCountThreads = 1024;
constexpr int kSharedBlocks = 48;  // so many blocks' features are counted in shared memory
constexpr int kCountBlocks = 132;
constexpr int kSlotThreads = BlockRows::kChunkRows, kSlotWarps = kSlotThreads / 32;
constexpr int kRanksEach = kBlockFeatures / kSlotThreads;
constexpr int kTileThreads = 256, kTileWarps = kTileThreads / 32;

__device__ __forceinline__ const int32_t* row_pointer(const IndexRows& in, int row) {
    return row < in.positions ? in.white + size_t(row) * in.max_active
                              : in.black + size_t(row - in.positions) * in.max_active;
}

template <typename T>
__device__ __forceinline__ T warp_inclusive_sum(T x, int lane) {
    for (int d = 1; d < 32; d *= 2) {
        const T other = __shfl_up_sync(~0u, x, d);
        if (lane >= d) x += other;
    }
    return x;
}

// The compiler may not compute it again where it is used.
template <typename T>
__device__ __forceinline__ T keep(T x) {
    asm volatile("" : "+r"(x));
    return x;
}

// On shared memory, by address.
__device__ __forceinline__ void shared_or(uint32_t address, uint32_t bits) {
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}
__device__ __forceinline__ uint32_t shared_fetch_or(uint32_t address, uint32_t bits) {
    uint32_t before;
    asm volatile("atom.shared.or.b32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(bits) : "memory");
    return before;
}
__device__ __forceinline__ void shared_increment(uint32_t address) {
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address) : "memory");
}
__device__ __forceinline__ int shared_load_16(uint32_t address) {
    uint16_t value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
    return value;
}
__device__ __forceinline__ void shared_store_16(uint32_t address, int value) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(uint16_t(value)) : "memory");
}

// Four lanes take a row, eight entries each at a time.
constexpr int kLanesEach = 4, kEntriesEach = 8, kEntries = kLanesEach * kEntriesEach;

// Entries first … first + 7 of a row; −1 where there is no row or no such entry.
__device__ __forceinline__ void load_entries(int (&entries)[kEntriesEach], const IndexRows& in, bool has_row, int row,
                                             int first) {
    const int32_t* from = row_pointer(in, has_row ? row : 0) + first;
    const bool aligned = (reinterpret_cast<uintptr_t>(from) | in.max_active * sizeof(int32_t)) % 16 == 0;
#pragma unroll
    for (int i = 0; i < kEntriesEach; i += 4) {
        const int there = has_row ? in.max_active - first - i : 0;
        if (there >= 4 && aligned) {
            const int4 four = __ldg(reinterpret_cast<const int4*>(from + i));
            entries[i] = four.x, entries[i + 1] = four.y, entries[i + 2] = four.z, entries[i + 3] = four.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) entries[i + j] = j < there ? __ldg(from + i + j) : -1;
        }
    }
}

// How many of this lane's entries come before the row's first −1, given that all before them did; `goes_on`: all of
// the four lanes' entries did.
__device__ __forceinline__ int count_entries(const int (&entries)[kEntriesEach], int lane, bool& goes_on) {
    int count = kEntriesEach;
#pragma unroll
    for (int j = kEntriesEach - 1; j >= 0; --j)
        if (entries[j] < 0) count = j;
    const unsigned full = __ballot_sync(~0u, count == kEntriesEach) >> lane / kLanesEach * kLanesEach & 15;
    const unsigned before = (1u << lane % kLanesEach) - 1;
    goes_on = full == 15;
    return (full & before) == before ? count : 0;
}

__global__ void __launch_bounds__(kClearThreads) clear_counts(int32_t* counts, int count) {
    hopper::let_next_kernel_start();
    for (int i = blockIdx.x * kClearThreads + threadIdx.x; i < count; i += gridDim.x * kClearThreads) counts[i] = 0;
}

// Each row's block, rows of each block in each stretch, entries of each feature (rows that turn out to be irregular
// included). A thread block takes kChunkRows rows at a time.
template <bool kShared>
__global__ void __launch_bounds__(kCountThreads) count_rows(IndexRows in, BlockRows out) {
    // Features of a row. In chess, where a feature is 64 times a kind plus a square, this order of bits keeps those of
    // a row apart: a word has two squares.
    constexpr int kSeenPitch = 33;
    __shared__ uint32_t seen[BlockRows::kChunkRows * kSeenPitch];
    __shared__ int irregular;
    extern __shared__ __align__(16) int counts[];  // [num_blocks, 768] if kShared
    const int lane = threadIdx.x % 32, rows = 2 * in.positions;
    const int in_chunk = threadIdx.x / kLanesEach, first_lane = lane / kLanesEach * kLanesEach;
    const int cells = kShared ? in.num_blocks * kBlockFeatures : 0;
    int* stretch = counts + cells;          // [num_blocks]: rows in the stretch
    int* totals = stretch + in.num_blocks;  // [num_blocks]
    const uint32_t my_seen = keep(hopper::shared_address(seen + in_chunk * kSeenPitch));
    const uint32_t shared_counts = keep(hopper::shared_address(counts));
    uint32_t* const warp_seen = seen + threadIdx.x / 32 * (32 / kLanesEach) * kSeenPitch;
    hopper::let_next_kernel_start();

    const int chunks = out.stretch_rows / BlockRows::kChunkRows;
    int at = blockIdx.x, chunk = 0;
    const auto chunk_row = [&] { return at * out.stretch_rows + chunk * BlockRows::kChunkRows + in_chunk; };
    int next[kEntriesEach], next_flags = 0;
    const auto load_next = [&] {
        const int row = chunk_row();
        const bool has_row = at < out.stretches && row < rows;
        load_entries(next, in, has_row, row, lane % kLanesEach * kEntriesEach);
        if (has_row && lane == first_lane) {
            const bool is_black = row >= in.positions;
            const bool second = is_black != (__ldg(in.black_to_move + row - (is_black ? in.positions : 0)) != 0);
            next_flags = second ? BlockRows::kSecondSide : 0;
        }
    };
    load_next();
    for (int i = threadIdx.x; i < cells / 4; i += kCountThreads) reinterpret_cast<int4*>(counts)[i] = {0, 0, 0, 0};
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * in.num_blocks; i += kCountThreads) stretch[i] = 0;
    if (threadIdx.x == 0) irregular = 0;
    __syncthreads();
    if constexpr (!kShared) hopper::wait_for_kernels_before();

    while (at < out.stretches) {
        const int row = chunk_row(), stretch_now = at, flags = next_flags;
        int entries[kEntriesEach];
#pragma unroll
        for (int j = 0; j < kEntriesEach; ++j) entries[j] = next[j];
        __syncwarp();  // the last rows' bits have been read
#pragma unroll
        for (int i = lane; i < 32 / kLanesEach * kSeenPitch; i += 32) warp_seen[i] = 0;
        if (++chunk == chunks) chunk = 0, at += gridDim.x;
        load_next();
        __syncwarp();
        int block = -1;
        bool bad = false, open = row < rows;
        for (int base = 0;;) {
            bool goes_on;
            const int count = count_entries(entries, lane, goes_on);
            int first = count > 0 ? entries[0] : INT32_MAX;  // this lane's first that is in a block
            if (count > 0 && first >= in.num_features) {
                first = INT32_MAX;
#pragma unroll
                for (int j = kEntriesEach - 1; j > 0; --j)
                    if (j < count && entries[j] < in.num_features) first = entries[j];
            }
            const unsigned have = __ballot_sync(~0u, first != INT32_MAX) >> first_lane & 15;
            first = __shfl_sync(~0u, first, first_lane + __ffs(int(have | 16)) - 1);
            if (block < 0 && have != 0)
                block = in.block_size == 1 ? first : int(__umulhi(uint32_t(first), out.block_inverse));
            const int first_feature = keep(block * in.block_size);
            // The last block may not be full.
            const unsigned features = keep(block < 0 ? 0 : min(in.block_size, in.num_features - first_feature));
            const uint32_t features_of = keep(shared_counts + block * (kBlockFeatures * 4));
            bool others = false;
            uint32_t again = 0;
#pragma unroll
            for (int j = 0; j < kEntriesEach; ++j) {
                const int local = entries[j] - first_feature;
                const bool inside = j < count && unsigned(local) < features;
                others |= j < count && !inside;
                const uint32_t bit = 1u << (local >> 5);
                if (inside) {
                    again |= shared_fetch_or(my_seen + (local & 31) * 4, bit) & bit;
                    if constexpr (kShared)
                        shared_increment(features_of + local * 4);
                    else
                        atomicAdd(out.counts + block * kBlockFeatures + local, 1);
                }
            }
            bad |= again != 0;
            if (others) {
#pragma unroll
                for (int j = 0; j < kEntriesEach; ++j)
                    bad |=
                        j < count && entries[j] < in.num_features && unsigned(entries[j] - first_feature) >= features;
            }
            open = open && goes_on;
            base += kEntries;
            if (base >= in.max_active || !__any_sync(~0u, open)) break;
            load_entries(entries, in, open, row, base + lane % kLanesEach * kEntriesEach);
        }
        const bool is_irregular = (__ballot_sync(~0u, bad) >> first_lane & 15) != 0;
        if (lane == first_lane) {
            int mine = BlockRows::kNoBlock;
            if (row < rows) {
                mine = max(block, 0) | flags;
                atomicAdd(&stretch[mine & BlockRows::kNoBlock], 1);
                if (is_irregular) {
                    mine |= BlockRows::kIrregularRow;
                    atomicAdd(&irregular, 1);
                }
            }
            out.row_block[row] = uint16_t(mine);
        }
        if (chunk == 0) {
            __syncthreads();
#pragma unroll 1
            for (int b = threadIdx.x; b < in.num_blocks; b += kCountThreads) {
                out.stretch_counts[size_t(stretch_now) * in.num_blocks + b] = stretch[b];
                totals[b] += stretch[b];
                stretch[b] = 0;
            }
            __syncthreads();
        }
    }
    if constexpr (kShared) hopper::wait_for_kernels_before();
    for (int i = threadIdx.x; i < cells / 4; i += kCountThreads) {
        const int4 four = reinterpret_cast<const int4*>(counts)[i];
        if ((four.x | four.y | four.z | four.w) == 0) continue;
        int* to = out.counts + 4 * i;
        if (four.x != 0) atomicAdd(to, four.x);
        if (four.y != 0) atomicAdd(to + 1, four.y);
        if (four.z != 0) atomicAdd(to + 2, four.z);
        if (four.w != 0) atomicAdd(to + 3, four.w);
    }
#pragma unroll 1
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
__device__ __forceinline__ int frequency_class(int count, float rows_in_256_each) {
    if (count == 0) return kClasses - 1;
    const float rows_in_256 = float(count) * rows_in_256_each;
    return max(0, min(kClasses - 2, 270 - int(__float_as_uint(rows_in_256) >> 22)));
}

// What a thread block of assign_slots keeps in shared memory.
struct SlotShared {
    int tile_begin[kSlotThreads + 1];
    int warp_sums[kSlotWarps], total;
    union {
        struct {
            int cells[kBlockFeatures];  // [kClasses, 24 groups of 32 features]
            int rare_entries;
        };
        struct {
            int before[kSlotThreads];                   // rows of each block in the stretches and chunks before
            int warp_counts[kSlotWarps][kSlotThreads];  // and of this chunk, in each warp
        };
    };
};

// All threads, a number each: the sum of those before. The sums of warps stay in `warp_sums` until the next call.
__device__ __forceinline__ int sum_before(int x, int* warp_sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int inclusive = warp_inclusive_sum(x, lane);
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    int sum = inclusive - x;
#pragma unroll
    for (int w = 0; w < kSlotWarps; ++w) sum += w < warp ? warp_sums[w] : 0;
    return sum;
}

// Ranks a block's features by class, within a class in their own order. In chess an eighth of a block's features has
// nearly nine tenths of its rows' entries, and a quarter of them has none. A second group of features is worth its
// product only if more than two entries a row would otherwise be gathered.
__device__ __forceinline__ void rank_block(const BlockRows& out, SlotShared& s, int block, int tiles,
                                           const int (&counts)[kRanksEach]) {
    constexpr int kGroups = kBlockFeatures / 32, kEach = kRanksEach;
    static_assert(kClasses * kGroups == kBlockFeatures && kEach * kSlotThreads == kBlockFeatures);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float each = 4 / float(tiles);
    int classes[kEach], before[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        classes[j] = frequency_class(counts[j], each);
        const unsigned same = __match_any_sync(~0u, classes[j]);
        before[j] = __popc(same & ((1u << lane) - 1));
        if (before[j] == 0) s.cells[classes[j] * kGroups + j * kSlotWarps + warp] = __popc(same);
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
        const int feature = j * kSlotThreads + threadIdx.x;
        const int rank = s.cells[classes[j] * kGroups + j * kSlotWarps + warp] + before[j];
        out.rank_of[block * kBlockFeatures + feature] = uint16_t(rank | bit_of_index(rank % 32) << 10);
        out.ranked[block * kBlockFeatures + rank] = counts[j] > 0 ? feature : ~feature;
        if (rank >= kGroupFeatures && counts[j] > 0) atomicAdd(&s.rare_entries, counts[j]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int dense = (s.cells[(kLastDenseClass + 1) * kGroups] + 63) / 64 * 64;
        if (dense > kGroupFeatures && s.rare_entries < 2LL * tiles * kTileRows) dense = kGroupFeatures;
        out.dense[block] = dense;
        out.used[block] = s.cells[(kClasses - 1) * kGroups];
    }
}

// The first thread blocks take a block each: its features' ranks, what there is to say of its tiles, its padding. The
// others take a stretch of rows each: their slots.
__global__ void __launch_bounds__(kSlotThreads) assign_slots(IndexRows in, BlockRows out) {
    __shared__ SlotShared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_blocks = in.num_blocks;
    const int stretch = int(blockIdx.x) - num_blocks, first_row = stretch * out.stretch_rows;
    if (stretch < 0) {
        for (int i = threadIdx.x; i < kBlockFeatures; i += kSlotThreads) s.cells[i] = 0;
        if (threadIdx.x == 0) s.rare_entries = 0;
    } else {
        s.before[threadIdx.x] = 0;
        for (int w = 0; w < kSlotWarps; ++w) s.warp_counts[w][threadIdx.x] = 0;
    }
    __syncthreads();
    hopper::let_next_kernel_start();
    hopper::wait_for_kernels_before();

    static_assert(kSlotThreads > 255);
    const int total = int(threadIdx.x) < num_blocks ? out.totals[threadIdx.x] : 0;
    int found = 0, counts[kRanksEach] = {};
    if (stretch < 0) {
#pragma unroll
        for (int j = 0; j < kRanksEach; ++j)
            counts[j] = __ldg(out.counts + blockIdx.x * kBlockFeatures + j * kSlotThreads + threadIdx.x);
    } else {
        found = out.row_block[first_row + threadIdx.x];
        for (int base = 0; base < num_blocks; base += 32) {
            const int block = base + lane;
            int sum = 0;
            if (block < num_blocks) {
#pragma unroll 16
                for (int i = warp; i < stretch; i += kSlotWarps)
                    sum += __ldg(out.stretch_counts + size_t(i) * num_blocks + block);
            }
            if (sum > 0) atomicAdd(&s.before[block], sum);
        }
    }
    const int tiles_before = sum_before((total + kTileRows - 1) / kTileRows, s.warp_sums);
    s.tile_begin[threadIdx.x] = tiles_before;
    if (stretch < 0 && threadIdx.x == blockIdx.x) s.total = total;
    __syncthreads();
    if (stretch < 0) {
        const int block = blockIdx.x, first_tile = s.tile_begin[block], end_tile = s.tile_begin[block + 1];
        if (block == 0 && int(threadIdx.x) <= num_blocks) out.tile_begin[threadIdx.x] = tiles_before;
        for (int tile = first_tile + threadIdx.x; tile < end_tile; tile += kSlotThreads)
            out.tile_block[tile] = uint16_t(block);
        const int slot = first_tile * kTileRows + s.total + threadIdx.x;
        if (slot < end_tile * kTileRows) out.slot_row[slot] = BlockRows::kNoRow, out.slot_target[slot] = -1;
        rank_block(out, s, block, end_tile - first_tile, counts);
        return;
    }

    for (int chunk = 0;;) {
        const int row = first_row + chunk + threadIdx.x, block = found & BlockRows::kNoBlock;
        const bool has_row = block != BlockRows::kNoBlock;
        const unsigned same = __match_any_sync(~0u, block);
        const int before = __popc(same & ((1u << lane) - 1));
        if (has_row && before == 0) s.warp_counts[warp][block] = __popc(same);
        __syncthreads();
        if (has_row) {
            int slot = s.tile_begin[block] * kTileRows + s.before[block] + before;
            for (int w = 0; w < warp; ++w) slot += s.warp_counts[w][block];
            const bool regular = (found & BlockRows::kIrregularRow) == 0;
            out.row_slot[row] = regular ? slot : ~slot;
            out.slot_row[slot] = regular ? row : ~row;
            out.slot_target[slot] =
                2 * (row < in.positions ? row : row - in.positions) + ((found & BlockRows::kSecondSide) != 0 ? 1 : 0);
        }
        chunk += BlockRows::kChunkRows;
        if (chunk == out.stretch_rows) break;
        found = out.row_block[first_row + chunk + threadIdx.x];
        __syncthreads();
        for (int w = 0; w < kSlotWarps; ++w) {
            s.before[threadIdx.x] += s.warp_counts[w][threadIdx.x];
            s.warp_counts[w][threadIdx.x] = 0;
        }
        __syncthreads();
    }
}

// What a thread block of make_tiles keeps in shared memory.
struct TileShared {
    __align__(16) uint16_t rank_of[kBlockFeatures];
    __align__(16) int keys[kTileRows];  // by which slots are ordered: from bit 6 on the near list's length + 1, 0: none
    int far_counts[kTileRows];
    int slot_at[kTileRows];  // in that order
    int cost;
    __align__(16) uint32_t bits[2][kBlockFeatures];  // feature_bits
    __align__(
        16) uint32_t rank_bits[kTileRows * kBlockWords];  // a row's bits by rank, of which the near ones are wanted
};

// A thread block a tile, four lanes a row.
__global__ void __launch_bounds__(kTileThreads, 5) make_tiles(IndexRows in, BlockRows out) {
    static_assert(kTileThreads == kTileRows * kLanesEach);
    __shared__ TileShared s;
    extern __shared__ __align__(16)
        uint16_t stages[];  // [kTileRows, pitch]: near lists from the front, far from behind
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = out.pitch, tile = blockIdx.x;
    const int slot = threadIdx.x / kLanesEach, quarter = threadIdx.x % kLanesEach, first_slot = tile * kTileRows;
    const uint32_t slot_bit = keep(1u << bit_of_index(slot % 32));
    const bool has_lists = in.num_loose == 0;
    const uint32_t ranks = keep(hopper::shared_address(s.rank_of)),
                   bits = keep(hopper::shared_address(s.bits[slot / 32]));
    const uint32_t rank_bits = keep(hopper::shared_address(s.rank_bits + slot * kBlockWords));
    const uint32_t stage = keep(hopper::shared_address(stages + slot * pitch)), stage_last = stage + 2 * pitch - 2;
    // Calls visit(i) for a share of the numbers below kCount, all loads and stores in flight.
    const auto for_share = [&]<int kCount>(std::integral_constant<int, kCount>, const auto& visit) {
#pragma unroll
        for (int first = 0; first < kCount; first += kTileThreads)
            if (int(first + threadIdx.x) < kCount) visit(int(first + threadIdx.x));
    };
    constexpr std::integral_constant<int, kBlockFeatures / 2> kBitPieces;  // of 16 bytes
    constexpr std::integral_constant<int, kTileRows * kBlockWords / 4> kRowPieces;
    for_share(kBitPieces, [&](int i) { reinterpret_cast<uint4*>(s.bits[0])[i] = {0, 0, 0, 0}; });
    for_share(kRowPieces, [&](int i) { reinterpret_cast<uint4*>(s.rank_bits)[i] = {0, 0, 0, 0}; });
    if (threadIdx.x == 0) s.cost = 0;
    hopper::let_next_kernel_start();
    hopper::wait_for_kernels_before();

    const int tiles = out.tile_begin[in.num_blocks], block = out.tile_block[tile];
    const int found = out.slot_row[first_slot + slot];
    if (tile >= tiles) return;
    if (threadIdx.x < kBlockFeatures / 8)
        reinterpret_cast<uint4*>(s.rank_of)[threadIdx.x] =
            __ldg(reinterpret_cast<const uint4*>(out.rank_of + block * kBlockFeatures) + threadIdx.x);
    const bool regular = found >= 0;
    int entries[kEntriesEach];
    load_entries(entries, in, regular, found, quarter * kEntriesEach);
    const int target = quarter == 0 && regular ? __ldg(out.slot_target + first_slot + slot) : -1;
    const int first_feature = block * in.block_size;
    __syncthreads();

    int near_count = 0, far_count = 0;  // of the row
    bool open = regular;
    for (int base = 0; base < in.max_active;) {
        const int count = count_entries(entries, lane, open);
        int values[kEntriesEach], have = 0;  // near ones, 65536 times the far ones
        unsigned is_near = 0, is_far = 0;
#pragma unroll
        for (int j = 0; j < kEntriesEach; ++j) {
            const bool has = j < count && entries[j] < in.num_features;
            const int local = entries[j] - first_feature;
            int rank = 0;
            if (has) {
                const int rank_bit = shared_load_16(ranks + 2 * local);
                rank = rank_bit & 1023;
                shared_or(bits + 4 * rank, slot_bit);
                shared_or(rank_bits + (rank >> 5) * 4, 1u << (rank_bit >> 10));
            }
            const bool near = rank < kNearFeatures;
            values[j] = near ? 2 * single_place(rank) : local;
            if (has && near && is_single(rank)) is_near |= 1u << j;
            if (has && !near) is_far |= 1u << j;
        }
        have = __popc(is_near) | __popc(is_far) << 16;
        int until = have;
#pragma unroll
        for (int d = 1; d < kLanesEach; d *= 2) {
            const int other = __shfl_up_sync(~0u, until, d, kLanesEach);
            if (quarter >= d) until += other;
        }
        const int all = __shfl_sync(~0u, until, kLanesEach - 1, kLanesEach);
        uint32_t to_near = stage + 2 * (near_count + ((until - have) & 0xffff));
#pragma unroll
        for (int j = 0; j < kEntriesEach; ++j) {
            const bool near = (is_near >> j & 1) != 0;
            if (near) shared_store_16(to_near, values[j]);
            to_near += near ? 2 : 0;
        }
        if (is_far != 0) {
            uint32_t to_far = stage_last - 2 * (far_count + ((until - have) >> 16));
#pragma unroll
            for (int j = 0; j < kEntriesEach; ++j) {
                const bool far = (is_far >> j & 1) != 0;
                if (far) shared_store_16(to_far, values[j]);
                to_far -= far ? 2 : 0;
            }
        }
        near_count += all & 0xffff, far_count += all >> 16;
        base += kEntries;
        if (base >= in.max_active || !__any_sync(~0u, open)) break;
        load_entries(entries, in, open, found, base + quarter * kEntriesEach);
    }
    int with_bias = 0;
    if (has_lists) {  // a lane adds one sum of four and one of three
        static_assert(kFours == kLanesEach && kTeams == 2 * kLanesEach);
        __syncwarp();
        const uint32_t word = hopper::load_shared_4(rank_bits) >> bit_of_index(4 * quarter);
        const auto sum_of = [](uint32_t bits) {  // bits of four consecutive ranks lie at 0, 16, 4, 20
            bits &= 0x00110011;
            bits |= bits >> 15;
            return int(bits | bits >> 2) & 15;
        };
        const int four = sum_of(word), three = sum_of(word >> 2) & 7;
        const bool listed = three != 0 && kFours + quarter != kBiasTeam;
        const int have = (four != 0) + listed;
        with_bias = __shfl_sync(~0u, three, kBiasTeam - kFours, kLanesEach);
        int until = have;
#pragma unroll
        for (int d = 1; d < kLanesEach; d *= 2) {
            const int other = __shfl_up_sync(~0u, until, d, kLanesEach);
            if (quarter >= d) until += other;
        }
        uint32_t to = stage + 2 * (near_count + until - have);
        near_count += __shfl_sync(~0u, until, kLanesEach - 1, kLanesEach);
        if (four != 0) shared_store_16(to, 2 * team_place(quarter, four)), to += 2;
        if (listed) shared_store_16(to, 2 * team_place(kFours + quarter, three));
    }
    const int key = (regular ? near_count + 1 : 0) * kTileRows + kTileRows - 1 - slot;
    if (quarter == 0) s.keys[slot] = key, s.far_counts[slot] = far_count;
    __syncthreads();

    // Far entries go slot by slot, near lists in order of their length.
    const int far_until_first = warp_inclusive_sum(s.far_counts[lane], lane);
    const int far_until_second =
        __shfl_sync(~0u, far_until_first, 31) + warp_inclusive_sum(s.far_counts[32 + lane], lane);
    const int far_until = __shfl_sync(~0u, warp < kTileWarps / 2 ? far_until_first : far_until_second, slot % 32);
    const int far_begin = far_until - far_count;
    int32_t* const tile_far_begin = out.far_begin + size_t(tile) * (kTileRows + 1);
    if (quarter == 0) tile_far_begin[slot] = far_begin;
    if (threadIdx.x == kTileThreads - 1) tile_far_begin[kTileRows] = far_until;
#pragma unroll 1
    for (int i = quarter; i < far_count; i += kLanesEach)
        out.far[size_t(first_slot) * pitch + far_begin + i] = stages[(slot + 1) * pitch - 1 - i];
    if (has_lists) {
        int place = 0;
#pragma unroll
        for (int i = 0; i < kTileRows / kLanesEach; i += 4) {
            const int4 four = reinterpret_cast<const int4*>(s.keys)[(quarter * (kTileRows / kLanesEach) + i) / 4];
            place += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
        }
#pragma unroll
        for (int d = 1; d < kLanesEach; d *= 2) place += __shfl_xor_sync(~0u, place, d);
        int cost = 0;
        if (quarter == 0) {
            s.slot_at[place] = slot;
            out.entries[first_slot + place] = {
                target, first_slot + slot,
                regular ? near_count | far_count << 9 | (far_count > 0 ? stages[(slot + 1) * pitch - 1] << 18 : 0) |
                              with_bias << 28
                        : -1,
                far_begin};
            if (regular)
                cost = (place % kGroupRows == 0 ? kNearCost * near_count + kGroupCost : 0) + kFarCost * far_count;
        }
        cost = __reduce_add_sync(~0u, cost);
        if (lane == 0) atomicAdd(&s.cost, cost);
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(out.block_cost + block, (unsigned long long)s.cost);
        const int from_slot = s.slot_at[slot], length = (s.keys[from_slot] >> 6) - 1;
        const uint4* from = reinterpret_cast<const uint4*>(stages + from_slot * pitch);
        uint4* to = reinterpret_cast<uint4*>(out.near + size_t(first_slot + slot) * pitch);
#pragma unroll 1
        for (int i = quarter; i < pitch / 8; i += kLanesEach) {
            const uint4 eight = from[i];
            uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int more = length - 8 * i - 2 * j;
                words[j] =
                    more >= 2 ? words[j] : kNoFeature << 16 | (more == 1 ? words[j] & 0xffff : uint32_t(kNoFeature));
            }
            to[i] = {words[0], words[1], words[2], words[3]};
        }
    }
    for_share(kBitPieces, [&](int i) {
        const uint2 low = reinterpret_cast<const uint2*>(s.bits[0])[i],
                    high = reinterpret_cast<const uint2*>(s.bits[1])[i];
        reinterpret_cast<uint4*>(out.feature_bits)[size_t(tile) * kBitPieces + i] = {low.x, high.x, low.y, high.y};
    });
    constexpr int kNearPieces = kNearWords / 4, kPieces = kBlockWords / 4;
    if (threadIdx.x < kTileRows * kNearPieces)
        reinterpret_cast<uint4*>(out.near_bits)[size_t(first_slot) * kNearPieces + threadIdx.x] =
            reinterpret_cast<const uint4*>(
                s.rank_bits)[threadIdx.x / kNearPieces * kPieces + threadIdx.x % kNearPieces];
}

inline cudaError_t place(const IndexRows& in, const BlockRows& out, cudaStream_t stream) {
    // The attribute is the kernel's, whoever launches it: it must not depend on this call.
    constexpr int kMostCounts = kSharedBlocks * (kBlockFeatures + 2) * sizeof(int);
    constexpr int kMostStages = kTileRows * kBlockFeatures * sizeof(uint16_t);
    const int zeroed = int(BlockRows::zeroed(in.num_blocks));
    // An ordinary launch: count_rows writes what earlier kernels may still read, before it waits for this one.
    clear_counts<<<std::min((zeroed + kClearThreads - 1) / kClearThreads, 132), kClearThreads, 0, stream>>>(
        reinterpret_cast<int32_t*>(out.block_cost), zeroed);
    const bool is_shared = in.num_blocks <= kSharedBlocks;
    const auto count = is_shared ? count_rows<true> : count_rows<false>;
    const size_t shared = (size_t(is_shared ? in.num_blocks * kBlockFeatures : 0) + 2 * in.num_blocks) * sizeof(int);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(count, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostCounts);
    if (error == cudaSuccess)
        error =
            hopper::launch_early(count, std::min(out.stretches, kCountBlocks), kCountThreads, shared, stream, in, out);
    const size_t stages = size_t(kTileRows) * out.pitch * sizeof(uint16_t);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(make_tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostStages);
    if (error == cudaSuccess)
        error = hopper::launch_early(assign_slots, in.num_blocks + out.stretches, kSlotThreads, 0, stream, in, out);
    if (error == cudaSuccess)
        error = hopper::launch_early(make_tiles, BlockRows::tiles(in.positions, in.num_blocks), kTileThreads, stages,
                                     stream, in, out);
    return error;
}

}  // namespace block_rows
}  // namespace nnue
