// Index rows of a batch grouped by feature block, once per batch, for every consumer.
//
// King-bucketed feature sets come in blocks of `block_size` (at most 768) features, and all features of one index row
// lie in one block. A *row* is one perspective of one position; rows of one block get consecutive *slots*, a block
// starts at a multiple of 64 slots (a *tile*), and unused slots are padding. Within a block rows keep their order. A
// block's features are *ranked*, most frequent first: the first 384 ranks, which have nearly all entries, are *near*,
// the others *far*. So everything here is a function of the batch alone. A row that breaks the rule (a duplicate, a
// feature of another block) is irregular: it has no bits and no lists, and is worked off row by row.
//
// Three kernels, the last two started while the one before drains: `clear_counts`; `count_rows` reads the batch in
// chunks of 256 rows, finds each row's block, counts rows and features and lists each chunk's rows by block;
// `make_tiles`, a thread block for a tile or a few, ranks the features of their block, finds their rows in those lists
// and writes all that consumers read.
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

// A row of the forward where there are loose features: where its sums go, its number in the batch and how many entries
// it has. Rows of a tile come in order, most entries first; padding last, with target −1.
struct alignas(16) RowOrder {
    int slot, target;
    int row, count;
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

    int pitch;               // places for a row's features, a multiple of 8
    int chunks;              // of kChunkRows rows
    int group_chunks;        // of a group of chunks; there are at most kMaxGroups
    uint32_t block_inverse;  // feature · this >> 32 is its block; exact, as there are < 2^18 features
    uint16_t* listed;        // scratch [chunks, kChunkRows]: a chunk's rows by block: number in the chunk, flags
    uint32_t*
        chunk_rows;   // scratch [num_blocks, chunks]: how many of them; from bit 16 on where they begin in `listed`
    int32_t* counts;  // [num_blocks, 768]: entries of each feature, by its number in the block
    int32_t* totals;  // scratch [num_blocks]: rows. block_cost, counts, this and irregular lie in a row

    static constexpr int kChunkRows = 256, kMaxGroups = 512;
    static constexpr int kIrregularRow = 0x8000, kSecondSide = 0x4000;

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
    rows.chunks = int((row_count + BlockRows::kChunkRows - 1) / BlockRows::kChunkRows);
    rows.group_chunks = (rows.chunks + BlockRows::kMaxGroups - 1) / BlockRows::kMaxGroups;
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
    rows.listed = carver.take<uint16_t>(size_t(rows.chunks) * BlockRows::kChunkRows);
    rows.chunk_rows = carver.take<uint32_t>(blocks * rows.chunks);
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
constexpr int kCountThreads = 1024, kCountWarps = kCountThreads / 32;
constexpr int kListThreads = BlockRows::kChunkRows, kListWarps = kListThreads / 32;
constexpr int kSharedBlocks = 48;  // so many blocks' features are counted in shared memory
constexpr int kCountBlocks = 132;
constexpr int kTileThreads = 256, kTileWarps = kTileThreads / 32, kTileBlocks = 4 * 132;
constexpr int kHalf = kTileThreads / 2, kRanksEach = kBlockFeatures / kHalf;

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

// On shared memory, by address. `otherwise` where the condition does not hold; without a branch.
__device__ __forceinline__ uint32_t load_if(bool condition, uint32_t address, uint32_t otherwise) {
    uint32_t value = otherwise;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.shared.u32 %0, [%1];\n}\n"
                 : "+r"(value)
                 : "r"(address), "r"(uint32_t(condition))
                 : "memory");
    return value;
}
__device__ __forceinline__ void shared_or(uint32_t address, uint32_t bits) {
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}
__device__ __forceinline__ void shared_increment(uint32_t address) {
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address) : "memory");
}
__device__ __forceinline__ void shared_store_16(uint32_t address, int value) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(uint16_t(value)) : "memory");
}

// A few lanes take a row, kEach entries each at a time: entries first … first + kEach − 1; −1 where there is no row or
// no such entry.
template <int kEach>
__device__ __forceinline__ void load_entries(int (&entries)[kEach], const IndexRows& in, bool has_row, int row,
                                             int first) {
    const int32_t* from = row_pointer(in, has_row ? row : 0) + first;
    const bool aligned = (reinterpret_cast<uintptr_t>(from) | in.max_active * sizeof(int32_t)) % 16 == 0;
    const int there = has_row ? in.max_active - first : 0;
    if (there >= kEach && aligned) {
#pragma unroll
        for (int i = 0; i < kEach; i += 4) {
            const int4 four = __ldg(reinterpret_cast<const int4*>(from + i));
            entries[i] = four.x, entries[i + 1] = four.y, entries[i + 2] = four.z, entries[i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i) entries[i] = i < there ? __ldg(from + i) : -1;
    }
}

// Whether all of a lane's entries are some, and of the `kLanes` lanes of its row: those before it, and all.
struct Reach {
    bool before, all;
};
template <int kLanes, int kEach>
__device__ __forceinline__ Reach reach(const int (&entries)[kEach], int lane) {
    int any_end = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) any_end |= entries[j];
    const unsigned full = __ballot_sync(~0u, any_end >= 0) >> lane / kLanes * kLanes & ((1u << kLanes) - 1);
    const unsigned before = (1u << lane % kLanes) - 1;
    return {(full & before) == before, full == (1u << kLanes) - 1};
}

__global__ void __launch_bounds__(kClearThreads) clear_counts(int32_t* counts, int count) {
    hopper::let_next_kernel_start();
    for (int i = blockIdx.x * kClearThreads + threadIdx.x; i < count; i += gridDim.x * kClearThreads) counts[i] = 0;
}

// The sum of x over the threads before; `warp_sums` has a place for each of their warps, which all call `wait`.
template <int kWarps, typename Wait>
__device__ __forceinline__ int sum_before(int x, int (&warp_sums)[kWarps], int warp, int lane, const Wait& wait) {
    const int inclusive = warp_inclusive_sum(x, lane);
    if (lane == 31) warp_sums[warp] = inclusive;
    wait();
    int sum = inclusive - x;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += w < warp ? warp_sums[w] : 0;
    return sum;
}

// What count_rows keeps in shared memory of a chunk whose rows are being listed.
struct ListShared {
    uint16_t found[2][BlockRows::kChunkRows];   // blocks of a chunk's rows, and whether they are irregular; two chunks
    uint16_t places[kListWarps][kListThreads];  // rows of each block in each warp; then where they go
    int warp_sums[kListWarps];
};

// Threads 0 … kListThreads − 1, a row each: lists a chunk's rows by block, in their order. Thread b returns how many
// rows block b has.
__device__ __forceinline__ int list_chunk(const IndexRows& in, const BlockRows& out, ListShared& s, int chunk,
                                          int found) {
    const auto wait = hopper::named_barrier<1, kListThreads>;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32,
              row = chunk * BlockRows::kChunkRows + thread;
    const bool has_row = row < 2 * in.positions, is_black = row >= in.positions;
    const bool side = has_row && __ldg(in.black_to_move + row - (is_black ? in.positions : 0)) != 0;
    wait();  // the last chunk's places have been read
#pragma unroll
    for (int w = 0; w < kListWarps; ++w) s.places[w][thread] = 0;
    const int block = has_row ? found & 0xff : -1;
    const unsigned same = __match_any_sync(~0u, block);
    const int before = __popc(same & ((1u << lane) - 1));
    wait();
    if (has_row && before == 0) s.places[warp][block] = uint16_t(__popc(same));
    wait();
    int count = 0, counts[kListWarps];
#pragma unroll
    for (int w = 0; w < kListWarps; ++w) count += counts[w] = s.places[w][thread];
    int begin = sum_before(count, s.warp_sums, warp, lane, wait);
    if (thread < in.num_blocks) out.chunk_rows[size_t(thread) * out.chunks + chunk] = uint32_t(count | begin << 16);
#pragma unroll
    for (int w = 0; w < kListWarps; ++w) {
        s.places[w][thread] = uint16_t(begin);
        begin += counts[w];
    }
    wait();
    if (has_row)
        out.listed[size_t(chunk) * BlockRows::kChunkRows + s.places[warp][block] + before] =
            uint16_t(thread | (found & BlockRows::kIrregularRow) | (side != is_black ? BlockRows::kSecondSide : 0));
    return count;
}

// Each row's block, each chunk's rows by block, entries of each feature (rows that turn out to be irregular included).
// Features that a row has twice are found by make_tiles.
template <bool kShared>
__global__ void __launch_bounds__(kCountThreads, 1) count_rows(IndexRows in, BlockRows out) {
    __shared__ ListShared s;
    extern __shared__ __align__(16) int counts[];  // [num_blocks, 768] if kShared
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = 2 * in.positions;
    constexpr int kLanes = kCountThreads / BlockRows::kChunkRows, kEach = 8;
    const int in_chunk = threadIdx.x / kLanes, first_lane = lane / kLanes * kLanes;
    const int cells = kShared ? in.num_blocks * kBlockFeatures : 0;
    const uint32_t shared_counts = keep(hopper::shared_address(counts));
    hopper::let_next_kernel_start();

    int chunk = blockIdx.x, next[kEach];
    const auto load_next = [&] {
        const int row = chunk * BlockRows::kChunkRows + in_chunk;
        load_entries(next, in, chunk < out.chunks && row < rows, row, lane % kLanes * kEach);
    };
    load_next();
    for (int i = threadIdx.x; i < cells / 4; i += kCountThreads) reinterpret_cast<int4*>(counts)[i] = {0, 0, 0, 0};
    __syncthreads();
    if constexpr (!kShared) hopper::wait_for_kernels_before();

    int total = 0, irregular = 0;  // of the block, and of the rows, that a thread of list_chunk has
    for (int parity = 0; chunk < out.chunks; parity ^= 1) {
        const int chunk_now = chunk, row = chunk * BlockRows::kChunkRows + in_chunk;
        int entries[kEach];
#pragma unroll
        for (int j = 0; j < kEach; ++j) entries[j] = next[j];
        chunk += gridDim.x;
        load_next();
        int block = -1;
        bool bad = false, open = row < rows;
        for (int base = 0;;) {
            const auto [before, goes_on] = reach<kLanes>(entries, lane);
            if (!before) entries[0] = -1;
            int first =
                unsigned(entries[0]) < unsigned(in.num_features) ? entries[0] : INT32_MAX;  // that is in a block
            if (entries[0] >= in.num_features) {
                bool alive = true;
#pragma unroll
                for (int j = 1; j < kEach; ++j) {
                    alive = alive && entries[j] >= 0;
                    if (alive && entries[j] < in.num_features) first = min(first, entries[j]), alive = false;
                }
            }
            const unsigned have = __ballot_sync(~0u, first != INT32_MAX) >> first_lane & 15;
            first = __shfl_sync(~0u, first, first_lane + __ffs(int(have | 16)) - 1);
            if (block < 0 && have != 0)
                block = in.block_size == 1 ? first : int(__umulhi(uint32_t(first), out.block_inverse));
            const int first_feature = keep(block * in.block_size);
            // The last block may not be full.
            const unsigned features = keep(block < 0 ? 0 : min(in.block_size, in.num_features - first_feature));
            const uint32_t features_of = keep(shared_counts + block * (kBlockFeatures * 4));
            bool others = false, alive = true;
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const int local = entries[j] - first_feature;
                alive = alive && entries[j] >= 0;
                const bool inside = alive && unsigned(local) < features;
                others |= alive && !inside;
                if (inside) {
                    if constexpr (kShared)
                        shared_increment(features_of + local * 4);
                    else
                        atomicAdd(out.counts + block * kBlockFeatures + local, 1);
                }
            }
            if (others) {
                alive = true;
#pragma unroll
                for (int j = 0; j < kEach; ++j) {
                    alive = alive && entries[j] >= 0;
                    bad |= alive && entries[j] < in.num_features && unsigned(entries[j] - first_feature) >= features;
                }
            }
            open = open && goes_on;
            base += kLanes * kEach;
            if (base >= in.max_active || !__any_sync(~0u, open)) break;
            load_entries(entries, in, open, row, base + lane % kLanes * kEach);
        }
        const bool is_irregular = (__ballot_sync(~0u, bad) >> first_lane & 15) != 0;
        if (lane == first_lane)
            s.found[parity][in_chunk] = uint16_t(max(block, 0) | (is_irregular ? BlockRows::kIrregularRow : 0));
        __syncthreads();
        // Beside the others' next chunk, or their last sums.
        if (warp < kListWarps) {
            const int found = s.found[parity][threadIdx.x];
            if (chunk_now * BlockRows::kChunkRows + int(threadIdx.x) < rows)
                irregular += (found & BlockRows::kIrregularRow) != 0;
            total += list_chunk(in, out, s, chunk_now, found);
        }
    }
    if constexpr (kShared) hopper::wait_for_kernels_before();
    if (warp < kListWarps) {
        if (total > 0) atomicAdd(out.totals + threadIdx.x, total);
        irregular = __reduce_add_sync(~0u, irregular);
        if (lane == 0 && irregular > 0) atomicAdd(out.irregular, irregular);
    } else {
        // Two sums an addition; thread blocks begin at different blocks.
        const uint2* pairs = reinterpret_cast<const uint2*>(counts);
        auto* to = reinterpret_cast<unsigned long long*>(out.counts);
        const int first = int(blockIdx.x % unsigned(in.num_blocks)) * (kBlockFeatures / 2);
#pragma unroll 4
        for (int i = threadIdx.x - kListThreads; i < cells / 2; i += kCountThreads - kListThreads) {
            const int pair = i + first < cells / 2 ? i + first : i + first - cells / 2;
            const uint2 two = pairs[pair];
            if ((two.x | two.y) != 0) atomicAdd(to + pair, two.x | (unsigned long long)two.y << 32);
        }
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

// How frequent a feature is in its block, in half octaves: classes 0 … 16 are features of at least one row in 256, the
// last one those that no row has.
constexpr int kClasses = 32;
__device__ __forceinline__ int frequency_class(int count, float rows_in_256_each) {
    if (count == 0) return kClasses - 1;
    const float rows_in_256 = float(count) * rows_in_256_each;
    return max(0, min(kClasses - 2, 270 - int(__float_as_uint(rows_in_256) >> 22)));
}

constexpr int kGroups = kBlockFeatures / 32;  // of 32 features of a block
static_assert(kClasses * kGroups == kBlockFeatures && kRanksEach * kHalf == kBlockFeatures && kHalf >= kTileRows);

// Of a rank: from bit 20 on four times the rank, from bit 8 on four times its word in a bitmap, its bit in the word.
// For near lists: kListed if they have it by itself, from bit 16 on what its place is besides rank and kPlaceOffset.
constexpr int kPlaceOffset = single_place(kSummedRanks) - kSummedRanks;
constexpr uint32_t kListed = 1 << 5;
static_assert(single_place(4 * kFours + 3) - (4 * kFours + 3) - kPlaceOffset < 16);
template <bool kLists>
__device__ __forceinline__ uint32_t rank_entry(int rank) {
    const uint32_t entry = uint32_t(rank) << 22 | uint32_t(rank / 32) << 10 | uint32_t(bit_of_index(rank % 32));
    if (!kLists || rank >= kNearFeatures || !is_single(rank)) return entry;
    return entry | uint32_t(single_place(rank) - rank - kPlaceOffset) << 16 | kListed;
}
// What a near list has for it.
__device__ __forceinline__ int listed_place(uint32_t entry) {
    return int((entry >> 21) + ((entry & 0xf0000) >> 15) + 2 * kPlaceOffset);
}
constexpr uint32_t kFarEntry = uint32_t(kNearFeatures) << 22;  // the least of a far feature
constexpr uint32_t kNowhere = uint32_t(kBlockFeatures) << 22;  // of none

// A power of two: groups of chunks, and empty ones.
__host__ __device__ inline int groups_of(const BlockRows& rows) {
    int groups = 1;
    while (groups * rows.group_chunks < rows.chunks) groups *= 2;
    return groups;
}

constexpr int kBitsPitch = kBlockFeatures + 32, kRowPitch = kBlockWords + 4;

// What a thread block of make_tiles keeps in shared memory.
struct TileShared {
    uint64_t halves[2];  // barriers
    int warp_sums[2][kHalf / 32];
    int rows;  // of the block
    int rare_entries, cost;
    __align__(16) uint32_t cells[kBlockFeatures];  // [kClasses, 24 groups of 32 features]: of the class; those before
    __align__(16) uint32_t rank_of[kBlockFeatures];
    int row[kTileRows];  // of a slot, −1: none
    int target[kTileRows];
    uint16_t listed[kTileRows];         // its flags
    __align__(16) int keys[kTileRows];  // by which slots are ordered, a function of length and slot
    int far_counts[kTileRows];
    int slot_at[kTileRows];  // in that order
    // feature_bits; and a row's bits by rank, of which the near ones are wanted. Either with places for lanes that have
    // nothing to put there.
    __align__(16) uint32_t bits[2][kBitsPitch];
    __align__(16) uint32_t rank_bits[kTileRows * kRowPitch];
};

// Ranks a block's features by class, within a class in their own order; the second half of the threads. In chess an
// eighth of a block's features has nearly nine tenths of its rows' entries, and a quarter of them has none. A second
// group of features is worth its product only if more than two entries a row would otherwise be gathered.
template <bool kLists, typename Wait>
__device__ __forceinline__ void rank_block(const BlockRows& out, TileShared& s, int block, int tiles, bool tells,
                                           const Wait& wait) {
    const int thread = int(threadIdx.x) - kHalf, warp = thread / 32, lane = thread % 32;
    uint32_t(&cells)[kBlockFeatures] = s.cells;
    int counts[kRanksEach], places[kRanksEach];  // a feature's: its entries, its cell and its place there
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) counts[j] = __ldg(out.counts + block * kBlockFeatures + j * kHalf + thread);
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) cells[j * kHalf + thread] = 0;
    if (thread == 0) s.rare_entries = 0;
    wait();
    const float rows_in_256_each = 4 / float(tiles);
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) {
        const int cell = frequency_class(counts[j], rows_in_256_each) * kGroups + j * (kHalf / 32) + warp;
        const unsigned same = __match_any_sync(~0u, cell);
        const int before = __popc(same & ((1u << lane) - 1));
        if (before == 0) cells[cell] = __popc(same);
        places[j] = cell | before << 16;
    }
    wait();
    int in_cell[kRanksEach], sum = 0;
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) sum += in_cell[j] = cells[thread * kRanksEach + j];
    sum = sum_before(sum, s.warp_sums[1], warp, lane, wait);
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) {
        cells[thread * kRanksEach + j] = sum;
        sum += in_cell[j];
    }
    wait();
    int ranks[kRanksEach];
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) ranks[j] = cells[places[j] & 0xffff] + (places[j] >> 16);
    const int used = cells[(kClasses - 1) * kGroups];
    int dense = (cells[(kLastDenseClass + 1) * kGroups] + 63) / 64 * 64;
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) s.rank_of[j * kHalf + thread] = rank_entry<kLists>(ranks[j]);
    if (!tells) return;
    int rare = 0;
#pragma unroll
    for (int j = 0; j < kRanksEach; ++j) {
        const int feature = j * kHalf + thread;
        out.ranked[block * kBlockFeatures + ranks[j]] = counts[j] > 0 ? feature : ~feature;
        if (ranks[j] >= kGroupFeatures) rare += counts[j];
    }
    rare = __reduce_add_sync(~0u, rare);
    if (lane == 0) atomicAdd(&s.rare_entries, rare);
    wait();
    if (thread != 0) return;
    if (dense > kGroupFeatures && s.rare_entries < 2LL * tiles * kTileRows) dense = kGroupFeatures;
    out.dense[block] = dense;
    out.used[block] = used;
}

// Finds a block's rows in each group of chunks; the first half of the threads.
template <typename Wait>
__device__ __forceinline__ void count_groups(const BlockRows& out, TileShared& s, const uint32_t* chunk_rows,
                                             int groups, int* group_begin, uint32_t* group_first, const Wait& wait) {
    constexpr int kMost = BlockRows::kMaxGroups / kHalf;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // A thread has `each` neighbouring groups, a power of two.
    const int each = max(1, groups / kHalf);
    uint32_t firsts[kMost];
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
        const int first = (thread * each + j) * out.group_chunks;
        firsts[j] = j < each && first < out.chunks ? __ldg(chunk_rows + first) : 0;
    }
    int sums[kMost], sum = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) sums[j] = int(firsts[j] & 0xffff);
    if (out.group_chunks > 1) {
#pragma unroll
        for (int j = 0; j < kMost; ++j) {
            const int first = (thread * each + j) * out.group_chunks;
#pragma unroll 1
            for (int c = 1; j < each && c < out.group_chunks && first + c < out.chunks; ++c)
                sums[j] += int(__ldg(chunk_rows + first + c) & 0xffff);
        }
    }
#pragma unroll
    for (int j = 0; j < kMost; ++j) sum += sums[j];
    int rows_before = sum_before(sum, s.warp_sums[0], warp, lane, wait);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
        const int group = thread * each + j;
        if (j < each && group < groups) group_begin[group] = rows_before, group_first[group] = firsts[j];
        rows_before += sums[j];
    }
    if (thread == kHalf - 1) s.rows = rows_before;
    wait();
}

// Takes a row, which has a feature twice, out of the tile's bits; the four lanes that have put it in.
__device__ __forceinline__ void forget_row(const IndexRows& in, TileShared& s, int row, int entries, int first_feature,
                                           int slot, int part) {
    constexpr int kLanes = kTileThreads / kTileRows;
    const int32_t* list = row_pointer(in, row);
    const uint32_t slot_bit = 1u << bit_of_index(slot % 32);
#pragma unroll 1
    for (int k = 0; k < min(entries, in.max_active) && list[k] >= 0; ++k)
        if (k % kLanes == part && list[k] < in.num_features)
            atomicAnd(&s.bits[slot / 32][s.rank_of[list[k] - first_feature] >> 22], ~slot_bit);
#pragma unroll 1
    for (int w = part; w < kBlockWords; w += kLanes) s.rank_bits[slot * kRowPitch + w] = 0;
}

// The block of a tile and its tiles, first … end − 1; all of a warp's lanes alike.
struct TileRange {
    int block, first, end;
};
__device__ __forceinline__ TileRange find_block(const BlockRows& out, int num_blocks, int tile, int& tiles) {
    const int lane = threadIdx.x % 32;
    TileRange found{-1, 0, 0};
    tiles = 0;
    for (int base = 0; base < num_blocks; base += 32) {
        const int own = base + lane < num_blocks ? (__ldg(out.totals + base + lane) + kTileRows - 1) / kTileRows : 0;
        const int end = tiles + warp_inclusive_sum(own, lane);
        const unsigned behind = __ballot_sync(~0u, end > tile);
        tiles = __shfl_sync(~0u, end, 31);
        if (found.block >= 0 || behind == 0) continue;
        const int which = __ffs(int(behind)) - 1;
        found = {base + which, __shfl_sync(~0u, end - own, which), __shfl_sync(~0u, end, which)};
    }
    return found;
}

// Says where blocks' tiles begin, and what there is to say of blocks without rows. One warp does.
__device__ __forceinline__ void describe_blocks(const BlockRows& out, int num_blocks) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x % 32;
    int tiles = 0;
    for (int base = 0; base < num_blocks; base += 32) {
        const int block = base + lane, rows = block < num_blocks ? __ldg(out.totals + block) : -1;
        const int own = (max(rows, 0) + kTileRows - 1) / kTileRows, end = tiles + warp_inclusive_sum(own, lane);
        if (rows >= 0) out.tile_begin[block] = end - own;
        if (block == num_blocks - 1) out.tile_begin[num_blocks] = end;
        if (rows == 0) out.dense[block] = out.used[block] = 0;
        for (unsigned empty = __ballot_sync(~0u, rows == 0); empty != 0; empty &= empty - 1)
            for (int i = lane; i < kBlockFeatures; i += 32)
                out.ranked[(base + __ffs(int(empty)) - 1) * kBlockFeatures + i] = ~i;
        tiles = __shfl_sync(~0u, end, 31);
    }
}

// A thread block a tile or a few, four lanes a row. One half of the threads finds the tile's rows while the other ranks
// the block's features: thread blocks of one block do the same, which is quicker than telling each other. The first
// thread block describes the blocks.
template <bool kLoose>
__global__ void __launch_bounds__(kTileThreads, 4) make_tiles(IndexRows in, BlockRows out, RowOrder* order) {
    constexpr int kLanes = kTileThreads / kTileRows, kEach = 32 / kLanes;
    __shared__ TileShared s;
    // [kTileRows, pitch]: near lists from the front, far from behind. Then for each group of chunks the block's rows
    // before it, and its first chunk_rows.
    extern __shared__ __align__(16) uint16_t stages[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = out.pitch;
    hopper::let_next_kernel_start();
    if (blockIdx.x == gridDim.x - 1) {
        hopper::wait_for_kernels_before();
        return describe_blocks(out, in.num_blocks);
    }
    const int slot = threadIdx.x / kLanes, part = threadIdx.x % kLanes;
    const uint32_t slot_bit = keep(1u << bit_of_index(slot % 32));
    const uint32_t nowhere = keep(kNowhere + (uint32_t(lane) << 22 | uint32_t(kBlockWords) << 10));
    const uint32_t ranks = hopper::shared_address(s.rank_of), bits = keep(hopper::shared_address(s.bits[slot / 32]));
    const uint32_t rank_bits = keep(hopper::shared_address(s.rank_bits + slot * kRowPitch));
    const uint32_t stage = hopper::shared_address(stages + slot * pitch);
    // Calls visit(i) for a share of the numbers below kCount, all loads and stores in flight.
    const auto for_share = [&]<int kCount>(std::integral_constant<int, kCount>, const auto& visit) {
#pragma unroll
        for (int first = 0; first < kCount; first += kTileThreads)
            if (int(first + threadIdx.x) < kCount) visit(int(first + threadIdx.x));
    };
    constexpr std::integral_constant<int, kBlockFeatures / 2> kBitPieces;  // of 16 bytes
    const auto clear_bits = [&] {
        constexpr std::integral_constant<int, 2 * kBitsPitch / 4> kBits;
        constexpr std::integral_constant<int, kTileRows * kRowPitch / 4> kRowPieces;
        for_share(kBits, [&](int i) { reinterpret_cast<uint4*>(s.bits[0])[i] = {0, 0, 0, 0}; });
        for_share(kRowPieces, [&](int i) { reinterpret_cast<uint4*>(s.rank_bits)[i] = {0, 0, 0, 0}; });
        if (threadIdx.x == 0) s.cost = 0;
    };
    // The threads of a half wait for each other. Not at named barriers: compute-sanitizer takes them for those of all.
    const uint32_t barrier = keep(hopper::shared_address(s.halves + threadIdx.x / kHalf));
    uint32_t phase = 0;
    const auto wait_for_half = [&] {
        hopper::barrier_arrive(barrier);
        hopper::barrier_wait(barrier, phase);
        phase ^= 1;
    };
    if (threadIdx.x % kHalf == 0) hopper::barrier_init(barrier, kHalf);
    clear_bits();
    __syncthreads();
    hopper::wait_for_kernels_before();

    const int workers = int(gridDim.x) - 1;
    int tile = blockIdx.x, tiles = 0;
    TileRange block = find_block(out, in.num_blocks, tile, tiles);
    int end_tile = min(tile + 1, tiles);
    if (tiles > workers) {  // there are as many thread blocks as there can be
        const int each = tiles / kTileBlocks, rest = tiles % kTileBlocks;
        tile = int(blockIdx.x) * each + min(int(blockIdx.x), rest);
        end_tile = tile + each + (int(blockIdx.x) < rest ? 1 : 0);
        block = find_block(out, in.num_blocks, tile, tiles);
    }
    if (tile >= end_tile) return;

    for (bool is_new = true;;) {
        const int first_slot = tile * kTileRows, first_feature = block.block * in.block_size;
        if (threadIdx.x < kHalf) {
            const int groups = groups_of(out);
            int* const group_begin = reinterpret_cast<int*>(stages + kTileRows * pitch);
            uint32_t* const group_first = reinterpret_cast<uint32_t*>(group_begin + groups);
            const uint32_t* const chunk_rows = out.chunk_rows + size_t(block.block) * out.chunks;
            if (is_new) count_groups(out, s, chunk_rows, groups, group_begin, group_first, wait_for_half);
            // A slot's row: its group of chunks, its chunk, its place there.
            if (threadIdx.x < kTileRows) {
                const int in_block = (tile - block.first) * kTileRows + int(threadIdx.x);
                int row = -1, listed = 0;
                if (in_block < s.rows) {
                    int group = 0;
#pragma unroll 1
                    for (int step = groups / 2; step > 0; step /= 2)
                        group += group_begin[group + step] <= in_block ? step : 0;
                    int skip = in_block - group_begin[group], chunk = group * out.group_chunks;
                    uint32_t there = group_first[group];
#pragma unroll 1
                    for (; skip >= int(there & 0xffff); there = __ldg(chunk_rows + ++chunk))
                        skip -= int(there & 0xffff);
                    row = chunk * BlockRows::kChunkRows;
                    listed = out.listed[size_t(row) + (there >> 16) + skip];
                    row += listed % BlockRows::kChunkRows;
                }
                const int position = row < in.positions ? row : row - in.positions;
                const int target = row < 0 ? -1 : 2 * position + ((listed & BlockRows::kSecondSide) != 0 ? 1 : 0);
                s.row[threadIdx.x] = row;
                s.target[threadIdx.x] = target;
                s.listed[threadIdx.x] = uint16_t(listed);
                out.slot_target[first_slot + threadIdx.x] = target;
            }
        } else if (is_new) {
            rank_block<!kLoose>(out, s, block.block, block.end - block.first, tile == block.first, wait_for_half);
        }
        __syncthreads();
        const int row = s.row[slot];
        const bool has_row = row >= 0;
        bool regular = has_row && (s.listed[slot] & BlockRows::kIrregularRow) == 0;
        int entries[kEach];
        load_entries(entries, in, kLoose ? has_row : regular, row, part * kEach);

        const uint32_t ranks_of = keep(ranks - 4 * first_feature);
        int near_count = 0, far_count = 0, length = 0;  // of the row
        int feature_count = 0;                          // of this lane's entries
        bool open = kLoose ? has_row : regular;
        for (int base = 0;;) {
            const auto [reached, passed] = reach<kLanes>(entries, lane);
            bool alive = reached;
            open = passed;
            uint32_t places[kEach];
            int have = 0, near = 0, listed = 0;
            const unsigned features = regular ? in.num_features : 0;
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                alive = alive && entries[j] >= 0;
                if constexpr (kLoose) length += alive ? 1 : 0;
                const bool has = alive && unsigned(entries[j]) < features;
                places[j] = load_if(has, ranks_of + 4 * entries[j], nowhere);
                have += has ? 1 : 0;
            }
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                shared_or(bits + (places[j] >> 20), slot_bit);
                shared_or(rank_bits + __byte_perm(places[j], 0, 0x4441), 1u << (places[j] & 31));
                near += places[j] < kFarEntry ? 1 : 0;
                if constexpr (!kLoose) listed += (places[j] & kListed) != 0 ? 1 : 0;
            }
            feature_count += have;
            base += kLanes * kEach;
            const bool goes_on = base < in.max_active && __any_sync(~0u, open);
            have = listed | (have - near) << 16;  // listed near ones, 65536 times the far ones
            int until = have;
#pragma unroll
            for (int d = 1; d < kLanes; d *= 2) {
                const int other = __shfl_up_sync(~0u, until, d, kLanes);
                if (part >= d) until += other;
            }
            int all = __shfl_sync(~0u, until, kLanes - 1, kLanes);
            // A row that has a feature twice has fewer bits than features.
            if (!goes_on || in.max_active > kBlockFeatures) {
                __syncwarp();
                int set = -feature_count;
#pragma unroll
                for (int w = part; w < kBlockWords / 2; w += kLanes) {
                    const uint2 two = hopper::load_shared_8(rank_bits + 8 * w);
                    set += __popc(two.x) + __popc(two.y);
                }
#pragma unroll
                for (int d = 1; d < kLanes; d *= 2) set += __shfl_xor_sync(~0u, set, d);
                const bool twice = set != 0;
                if (__any_sync(~0u, twice)) {
                    __syncwarp();
                    if (twice) {
                        forget_row(in, s, row, base, first_feature, slot, part);
                        if (part == 0) atomicAdd(out.irregular, 1);
                        regular = false, near_count = far_count = feature_count = all = have = until = 0;
                        if (!kLoose) open = false;
#pragma unroll
                        for (int j = 0; j < kEach; ++j) places[j] = kNowhere;
                    }
                    __syncwarp();
                }
            }
            if constexpr (!kLoose) {
                uint32_t to_near = stage + 2 * (near_count + ((until - have) & 0xffff));
#pragma unroll
                for (int j = 0; j < kEach; ++j) {
                    const bool is_listed = (places[j] & kListed) != 0;
                    if (is_listed) shared_store_16(to_near, listed_place(places[j]));
                    to_near += is_listed ? 2 : 0;
                }
            }
            if (have >> 16 != 0) {
                uint32_t to_far = stage + 2 * pitch - 2 - 2 * (far_count + ((until - have) >> 16));
#pragma unroll
                for (int j = 0; j < kEach; ++j) {
                    const bool is_far = places[j] >= kFarEntry && places[j] < kNowhere;
                    if (is_far) shared_store_16(to_far, entries[j] - first_feature);
                    to_far -= is_far ? 2 : 0;
                }
            }
            near_count += all & 0xffff, far_count += all >> 16;
            if (!goes_on) break;
            load_entries(entries, in, open, row, base + part * kEach);
        }
        int with_bias = 0;
        if constexpr (kLoose) {
#pragma unroll
            for (int d = 1; d < kLanes; d *= 2) length += __shfl_xor_sync(~0u, length, d);
        } else {  // a lane lists one sum of four and one of three; the row's bits have been waited for
            static_assert(kFours == kLanes && kTeams == 2 * kLanes);
            const uint32_t word = hopper::load_shared_4(rank_bits) >> bit_of_index(4 * part);
            const auto sum_of = [](uint32_t bits) {  // bits of four consecutive ranks lie at 0, 16, 4, 20
                bits &= 0x00110011;
                bits |= bits >> 15;
                return int(bits | bits >> 2) & 15;
            };
            const int four = sum_of(word), three = sum_of(word >> 2) & 7;
            const bool is_listed = three != 0 && kFours + part != kBiasTeam;
            const int have = (four != 0) + is_listed;
            with_bias = __shfl_sync(~0u, three, kBiasTeam - kFours, kLanes);
            int until = have;
#pragma unroll
            for (int d = 1; d < kLanes; d *= 2) {
                const int other = __shfl_up_sync(~0u, until, d, kLanes);
                if (part >= d) until += other;
            }
            uint32_t to = stage + 2 * (near_count + until - have);
            near_count += __shfl_sync(~0u, until, kLanes - 1, kLanes);
            if (four != 0) shared_store_16(to, 2 * team_place(part, four)), to += 2;
            if (is_listed) shared_store_16(to, 2 * team_place(kFours + part, three));
        }
        const int longest_first = kTileRows - 1 - slot;
        const int key = !kLoose   ? (regular ? near_count + 1 : 0) * kTileRows + longest_first
                        : has_row ? length * kTileRows + longest_first
                                  : slot - kTileRows;
        if (part == 0) {
            s.keys[slot] = key, s.far_counts[slot] = far_count;
            if (has_row) out.row_slot[row] = regular ? first_slot + slot : ~(first_slot + slot);
        }
        __syncthreads();

        // Far entries go slot by slot, lists in order of their length.
        const int far_until_first = warp_inclusive_sum(s.far_counts[lane], lane);
        const int far_until_second =
            __shfl_sync(~0u, far_until_first, 31) + warp_inclusive_sum(s.far_counts[32 + lane], lane);
        const int far_until = __shfl_sync(~0u, warp < kTileWarps / 2 ? far_until_first : far_until_second, slot % 32);
        const int far_begin = far_until - far_count;
        int32_t* const tile_far_begin = out.far_begin + size_t(tile) * (kTileRows + 1);
        if (part == 0) tile_far_begin[slot] = far_begin;
        if (threadIdx.x == kTileThreads - 1) tile_far_begin[kTileRows] = far_until;
#pragma unroll 1
        for (int i = part; i < far_count; i += kLanes)
            out.far[size_t(first_slot) * pitch + far_begin + i] = stages[(slot + 1) * pitch - 1 - i];
        int place = 0;
#pragma unroll
        for (int i = 0; i < kTileRows / kLanes; i += 4) {
            const int4 four = reinterpret_cast<const int4*>(s.keys)[(part * (kTileRows / kLanes) + i) / 4];
            place += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
        }
#pragma unroll
        for (int d = 1; d < kLanes; d *= 2) place += __shfl_xor_sync(~0u, place, d);
        if constexpr (kLoose) {
            if (part == 0) order[first_slot + place] = {first_slot + slot, s.target[slot], max(row, 0), length};
        } else {
            int cost = 0;
            if (part == 0) {
                s.slot_at[place] = slot;
                const int first_far = far_count > 0 ? stages[(slot + 1) * pitch - 1] << 18 : 0;
                out.entries[first_slot + place] = {
                    regular ? s.target[slot] : -1, first_slot + slot,
                    regular ? near_count | far_count << 9 | first_far | with_bias << 28 : -1, far_begin};
                if (regular)
                    cost = (place % kGroupRows == 0 ? kNearCost * near_count + kGroupCost : 0) + kFarCost * far_count;
            }
            cost = __reduce_add_sync(~0u, cost);
            if (lane == 0) atomicAdd(&s.cost, cost);
            __syncthreads();
            if (threadIdx.x == 0) atomicAdd(out.block_cost + block.block, (unsigned long long)s.cost);
            const int from_slot = s.slot_at[slot], near_length = (s.keys[from_slot] >> 6) - 1;
            const uint4* from = reinterpret_cast<const uint4*>(stages + from_slot * pitch);
            uint4* to = reinterpret_cast<uint4*>(out.near + size_t(first_slot + slot) * pitch);
#pragma unroll 1
            for (int i = part; i < pitch / 8; i += kLanes) {
                const uint4 eight = from[i];
                uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int more = near_length - 8 * i - 2 * j;
                    words[j] = more >= 2 ? words[j]
                                         : kNoFeature << 16 | (more == 1 ? words[j] & 0xffff : uint32_t(kNoFeature));
                }
                to[i] = {words[0], words[1], words[2], words[3]};
            }
        }
        for_share(kBitPieces, [&](int i) {
            const uint2 low = reinterpret_cast<const uint2*>(s.bits[0])[i],
                        high = reinterpret_cast<const uint2*>(s.bits[1])[i];
            reinterpret_cast<uint4*>(out.feature_bits)[size_t(tile) * kBitPieces + i] = {low.x, high.x, low.y, high.y};
        });
        constexpr int kNearPieces = kNearWords / 4, kPieces = kRowPitch / 4;
        for_share(std::integral_constant<int, kTileRows * kNearPieces>(), [&](int i) {
            reinterpret_cast<uint4*>(out.near_bits)[size_t(first_slot) * kNearPieces + i] =
                reinterpret_cast<const uint4*>(s.rank_bits)[i / kNearPieces * kPieces + i % kNearPieces];
        });
        if (++tile == end_tile) break;
        is_new = tile == block.end;
        if (is_new) block = find_block(out, in.num_blocks, tile, tiles);
        __syncthreads();
        clear_bits();
    }
}

inline cudaError_t place(const IndexRows& in, const BlockRows& out, RowOrder* order, cudaStream_t stream) {
    // What set_shared_memory gets is a kernel's, whoever launches it: it must not depend on this call.
    constexpr int kMostCounts = kSharedBlocks * kBlockFeatures * sizeof(int);
    constexpr int kMostStages = kTileRows * kBlockFeatures * sizeof(uint16_t) + BlockRows::kMaxGroups * 2 * sizeof(int);
    const int zeroed = int(BlockRows::zeroed(in.num_blocks));
    cudaError_t error = hopper::set_shared_memory(reinterpret_cast<const void*>(clear_counts), 0);
    if (error != cudaSuccess) return error;
    // An ordinary launch: count_rows writes what earlier kernels may still read, before it waits for this one.
    clear_counts<<<std::min((zeroed + kClearThreads - 1) / kClearThreads, 132), kClearThreads, 0, stream>>>(
        reinterpret_cast<int32_t*>(out.block_cost), zeroed);
    const bool is_shared = in.num_blocks <= kSharedBlocks;
    const auto count = is_shared ? count_rows<true> : count_rows<false>;
    const size_t shared = size_t(is_shared ? in.num_blocks * kBlockFeatures : 0) * sizeof(int);
    error = cudaGetLastError();
    if (error == cudaSuccess) error = hopper::set_shared_memory(reinterpret_cast<const void*>(count), kMostCounts);
    if (error == cudaSuccess)
        error = hopper::launch_early(count, std::min(out.chunks, kCountBlocks), kCountThreads, shared, stream, in, out);
    const auto make = in.num_loose > 0 ? make_tiles<true> : make_tiles<false>;
    const size_t stages = size_t(kTileRows) * out.pitch * sizeof(uint16_t) + groups_of(out) * 2 * sizeof(int);
    if (error == cudaSuccess) error = hopper::set_shared_memory(reinterpret_cast<const void*>(make), kMostStages);
    if (error == cudaSuccess)
        error = hopper::launch_early(make, std::min(BlockRows::tiles(in.positions, in.num_blocks), kTileBlocks) + 1,
                                     kTileThreads, stages, stream, in, out, order);
    return error;
}

}  // namespace block_rows
}  // namespace nnue
