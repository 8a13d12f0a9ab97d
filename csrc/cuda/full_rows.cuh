// Rows of a set with loose features as the 16-bit forward reads them (full_forward.cuh), and the order of rows for the
// fp32 one (slab_forward.cuh).
//
// The product takes a block's most frequent features and the batch's most frequent loose ones, the *hot* ones: bits.
// All else of a row is a list of features. Which features are hot decides nothing but the order of a sum: they are
// chosen by a sample of the rows, beside the kernels that sort rows by block. Features that are equally frequent in the
// sample are taken in a fixed order, so everything here is a function of the batch alone.
//
// A row of which a list cannot say all by bits, since it is irregular or has a hot feature twice, has it in its list.
#pragma once

#include "block_rows.cuh"

namespace nnue {

// A row of the fp32 forward: where its sums go, its number in the batch and how many entries it has.
struct alignas(16) RowOrder {
    int slot, target, row, count;
};

// A row of the 16-bit forward: its place among the slots, where its sums go, entries in its list, and in the longer one
// of this and its neighbour's: two are added up at a time.
struct alignas(16) FullRow {
    int slot, target, count, most;
};

struct FullRows {
    static constexpr int kNearChunks = 4, kHotChunks = 6;  // of 64 features
    static constexpr int kNear = 64 * kNearChunks, kHot = 64 * kHotChunks;
    static constexpr int kWords = 2 * (kNearChunks + kHotChunks);  // of a row's bits
    static constexpr int kHead = 32;                               // entries
    static constexpr int kSample = 2048;                           // rows, or a few more
    static constexpr int kChooseThreads = 1024, kChooseStep = 4 * kChooseThreads;
    static constexpr int kNotHot = 0xffff;

    RowOrder* order;         // [slots]: a tile's slots, most entries first; padding last, with target −1
    FullRow* rows;           // [slots]: of a tile, ordered by how much their lists have
    uint32_t* bits;          // [slots, kWords], as rows: near ones, then hot ones, each as BlockRows::near_bits
    int32_t* heads;          // [slots, kHead], as rows: how their lists begin; −1 behind the end
    int32_t* lists;          // [slots, max_active]: a slot's list, from place kHead on
    int32_t* hot;            // [kHot]: the hot features; −1 behind them
    int32_t* hot_count;      // [1]
    int32_t* block_entries;  // [num_blocks]: entries in the lists of the block's rows
    uint16_t* hot_rank;      // scratch [num_loose, rounded up]: or kNotHot
    uint4* zeros;            // [1]: zeros, for who has nothing to read; lies behind block_entries
    uint32_t* counts;        // scratch [num_loose, rounded up]: entries in the sample; lies behind that

    static size_t rounded(int num_loose) { return (size_t(num_loose) + kChooseStep - 1) / kChooseStep * kChooseStep; }
    static size_t zeroed(int num_blocks, int num_loose) { return rounded(num_loose) + (num_blocks + 3) / 4 * 4 + 4; }
};

inline FullRows carve_full_rows(Carver& carver, const IndexRows& in) {
    const size_t slots = size_t(BlockRows::tiles(in.positions, in.num_blocks)) * kTileRows;
    FullRows rows{};
    if (in.num_loose == 0) return rows;
    rows.order = carver.take<RowOrder>(slots);
    rows.rows = carver.take<FullRow>(slots);
    rows.bits = carver.take<uint32_t>(slots * FullRows::kWords);
    rows.heads = carver.take<int32_t>(slots * FullRows::kHead);
    rows.lists = carver.take<int32_t>(slots * in.max_active);
    rows.hot = carver.take<int32_t>(FullRows::kHot);
    rows.hot_count = carver.take<int32_t>(1);
    rows.hot_rank = carver.take<uint16_t>((size_t(in.num_loose) + 3) / 4 * 4);
    rows.block_entries = carver.take<int32_t>(FullRows::zeroed(in.num_blocks, in.num_loose));
    rows.zeros = reinterpret_cast<uint4*>(rows.block_entries + (in.num_blocks + 3) / 4 * 4);
    rows.counts = reinterpret_cast<uint32_t*>(rows.zeros + 1);
    return rows;
}

namespace full_rows {

using block_rows::row_pointer;

// The entries of kBatch rows, two times 32 of each at a time: visit(base, features), where features[r][part] is entry
// base + 32 · part + lane of rows[r], −1 behind its end. `open`: whether there is such a row.
template <int kBatch, typename Visit>
__device__ __forceinline__ void for_each_entry(const IndexRows& in, const int32_t* const (&lists)[kBatch],
                                               bool (&open)[kBatch], const Visit& visit) {
    const int lane = threadIdx.x % 32;
    for (int base = 0; base < in.max_active; base += 64) {
        int features[kBatch][2];
#pragma unroll
        for (int r = 0; r < kBatch; ++r)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const int k = base + 32 * part + lane;
                features[r][part] = open[r] && k < in.max_active ? __ldg(lists[r] + k) : -1;
            }
        bool any = false;
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const unsigned ends = __ballot_sync(~0u, features[r][part] < 0);
                if (!open[r] || (ends & ((2u << lane) - 1)) != 0) features[r][part] = -1;
                if (ends != 0) open[r] = false;
            }
            any |= open[r];
        }
        visit(base, features);
        if (!any) break;
    }
}

constexpr int kSampleThreads = 256, kSampleBatch = 2;

__global__ void __launch_bounds__(kSampleThreads) count_sample(IndexRows in, FullRows rows, int stride) {
    const int first = (blockIdx.x * (kSampleThreads / 32) + threadIdx.x / 32) * kSampleBatch;
    const int32_t* lists[kSampleBatch];
    bool open[kSampleBatch];
#pragma unroll
    for (int r = 0; r < kSampleBatch; ++r) {
        const long long row = (long long)(first + r) * stride;
        open[r] = row < 2LL * in.positions;
        lists[r] = row_pointer(in, open[r] ? int(row) : 0);
    }
    for_each_entry<kSampleBatch>(in, lists, open, [&](int, const int(&features)[kSampleBatch][2]) {
#pragma unroll
        for (int i = 0; i < 2 * kSampleBatch; ++i) {
            const int local = features[i / 2][i % 2] - in.num_features;
            if (local >= 0 && local < in.num_loose) atomicAdd(rows.counts + local, 1u);
        }
    });
}

// One thread block: all features above a count are hot, and of those that have it as many as there is room for.
__global__ void __launch_bounds__(FullRows::kChooseThreads) choose_hot(IndexRows in, FullRows rows, int least) {
    constexpr int kThreads = FullRows::kChooseThreads, kBins = 1024, kWarps = kThreads / 32;
    static_assert(kBins == kThreads);
    __shared__ int bins[kBins], warp_sums[2][kWarps];
    __shared__ int limit, above;  // features with more than `limit` of the sample's rows, and how many these are
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    bins[thread] = 0;
    if (thread == 0) limit = least - 1, above = 0;
    if (thread < FullRows::kHot) rows.hot[thread] = -1;
    __syncthreads();
    const auto for_counts = [&](const auto& visit) {
#pragma unroll 8
        for (int first = 0; first < in.num_loose; first += FullRows::kChooseStep) {
            const uint4 four = reinterpret_cast<const uint4*>(rows.counts + first)[thread];
            const int counts[4] = {int(min(four.x, kBins - 1u)), int(min(four.y, kBins - 1u)),
                                   int(min(four.z, kBins - 1u)), int(min(four.w, kBins - 1u))};
            visit(first + 4 * thread, counts);
        }
    };
    for_counts([&](int, const int(&counts)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (counts[i] >= least) atomicAdd(&bins[counts[i]], 1);
    });
    __syncthreads();
    {  // from the highest count down
        const int bin = kBins - 1 - thread, features = bins[bin];
        int sum = block_rows::warp_inclusive_sum(features, lane);
        if (lane == 31) warp_sums[0][warp] = sum;
        __syncthreads();
        for (int w = 0; w < warp; ++w) sum += warp_sums[0][w];
        // The bin in which there are too many, if there is one.
        if (bin >= least && sum > FullRows::kHot && sum - features <= FullRows::kHot)
            limit = bin, above = sum - features;
        if (bin == least && sum <= FullRows::kHot) above = sum;
        __syncthreads();
    }
    const int bound = limit, have = above;
    int more = 0, equal = 0;
    for_counts([&](int, const int(&counts)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) more += counts[i] > bound, equal += counts[i] == bound && bound >= least;
    });
    int more_before = block_rows::warp_inclusive_sum(more, lane),
        equal_before = block_rows::warp_inclusive_sum(equal, lane);
    if (lane == 31) warp_sums[0][warp] = more_before, warp_sums[1][warp] = equal_before;
    __syncthreads();
    more_before -= more, equal_before -= equal;
    int all_equal = 0;
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) more_before += warp_sums[0][w], equal_before += warp_sums[1][w];
        all_equal += warp_sums[1][w];
    }
    int rank = more_before, equal_rank = have + equal_before;
    for_counts([&](int first, const int(&counts)[4]) {
        if (first >= in.num_loose) return;
        unsigned ranks[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // those behind the last feature have no entries
            int mine = FullRows::kNotHot;
            if (counts[i] > bound) mine = rank++;
            if (counts[i] == bound && bound >= least) mine = equal_rank++;
            const bool is_hot = mine < FullRows::kHot;
            ranks[i] = unsigned(is_hot ? mine : FullRows::kNotHot);
            if (is_hot) rows.hot[mine] = in.num_features + first + i;
        }
        *reinterpret_cast<uint2*>(rows.hot_rank + first) = {ranks[0] | ranks[1] << 16, ranks[2] | ranks[3] << 16};
    });
    if (thread == 0) *rows.hot_count = min(have + all_equal, FullRows::kHot);
}

constexpr int kSplitThreads = 256;

// What a thread block of split_tiles keeps in shared memory, by slot.
struct SplitShared {
    static constexpr int kHotWords = 2 * FullRows::kHotChunks;
    __align__(16) uint16_t rank_of[kBlockFeatures];
    __align__(16) int keys[2][kTileRows];  // by which slots are ordered: 64 times the entries of rows, of lists
    int targets[kTileRows], rows[kTileRows], entries[kTileRows], counts[kTileRows];
    int slot_at[kTileRows];  // by place among FullRows::rows
    uint32_t hot_bits[kTileRows][kHotWords];
    int heads[kTileRows][FullRows::kHead + 1];
};

// A thread block a tile, four lanes a row.
__global__ void __launch_bounds__(kSplitThreads, 4) split_tiles(IndexRows in, BlockRows blocks, FullRows out) {
    using namespace block_rows;
    constexpr int kNearWordsUsed = 2 * FullRows::kNearChunks;
    static_assert(kSplitThreads == kTileRows * kLanesEach);
    __shared__ SplitShared s;
    const int tile = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_slot = tile * kTileRows;
    const int slot = threadIdx.x / kLanesEach, quarter = threadIdx.x % kLanesEach;
    const int tiles = blocks.tile_begin[in.num_blocks], block = blocks.tile_block[tile];
    const int found = blocks.slot_row[first_slot + slot];
    if (tile >= tiles) return;
    const bool has_row = found != BlockRows::kNoRow, regular = found >= 0;
    const int row = !has_row ? 0 : regular ? found : ~found;
    int entries[kEntriesEach];
    load_entries(entries, in, has_row, row, quarter * kEntriesEach);
    for (int i = threadIdx.x; i < kBlockFeatures / 8; i += kSplitThreads)
        reinterpret_cast<uint4*>(s.rank_of)[i] =
            __ldg(reinterpret_cast<const uint4*>(blocks.rank_of + block * kBlockFeatures) + i);
    for (int i = threadIdx.x; i < kTileRows * SplitShared::kHotWords; i += kSplitThreads) s.hot_bits[0][i] = 0;
    __syncthreads();

    const uint32_t hot_bits = keep(hopper::shared_address(s.hot_bits[slot])),
                   ranks_of = keep(hopper::shared_address(s.rank_of)),
                   head = keep(hopper::shared_address(s.heads[slot]));
    const int first_feature = keep(block * in.block_size);
    int32_t* const list = out.lists + size_t(first_slot + slot) * in.max_active;
    int all_entries = 0, listed = 0;  // of this lane, of the row
    // A row that has a hot feature twice is listed again, with all its loose features.
    bool takes_hot = regular, again = false;
    for (bool open = has_row;;) {
        uint32_t seen = 0;
        for (int base = 0;;) {
            bool goes_on;
            const int count = count_entries(entries, lane, goes_on);
            int ranks[kEntriesEach];
#pragma unroll
            for (int j = 0; j < kEntriesEach; ++j) {
                const int local = entries[j] - in.num_features;
                const bool looks = takes_hot && j < count && local >= 0 && local < in.num_loose;
                ranks[j] = looks ? __ldg(out.hot_rank + local) : FullRows::kNotHot;
            }
            unsigned listing = 0;
#pragma unroll
            for (int j = 0; j < kEntriesEach; ++j) {
                if (j >= count) break;
                const int feature = entries[j];
                if (ranks[j] != FullRows::kNotHot) {
                    const uint32_t bit = 1u << bit_of_index(ranks[j] & 31);
                    seen |= shared_fetch_or(hot_bits + (ranks[j] >> 5) * 4, bit) & bit;
                } else if (feature < in.num_features && regular) {
                    if ((shared_load_16(ranks_of + 2 * (feature - first_feature)) & 1023) >= FullRows::kNear)
                        listing |= 1u << j;
                } else if (feature < in.num_features + in.num_loose) {
                    listing |= 1u << j;
                }
            }
            const int mine = __popc(listing);
            int until = mine;
#pragma unroll
            for (int d = 1; d < kLanesEach; d *= 2) {
                const int other = __shfl_up_sync(~0u, until, d, kLanesEach);
                if (quarter >= d) until += other;
            }
            int place = listed + until - mine;
#pragma unroll
            for (int j = 0; j < kEntriesEach; ++j) {
                if ((listing >> j & 1) == 0) continue;
                if (place < FullRows::kHead)
                    hopper::store_shared_4(head + 4 * place, uint32_t(entries[j]));
                else
                    list[place] = entries[j];
                ++place;
            }
            listed += __shfl_sync(~0u, until, kLanesEach - 1, kLanesEach);
            if (!again) all_entries += count;
            open = open && goes_on;
            base += kEntries;
            if (base >= in.max_active || !__any_sync(~0u, open)) break;
            load_entries(entries, in, open, row, base + quarter * kEntriesEach);
        }
        const bool twice = (__ballot_sync(~0u, seen != 0) >> lane / kLanesEach * kLanesEach & 15) != 0;
        if (!__any_sync(~0u, twice)) break;
        again = true, takes_hot = takes_hot && !twice, open = twice;
        if (twice) {
            listed = 0;
            for (int i = quarter; i < SplitShared::kHotWords; i += kLanesEach) s.hot_bits[slot][i] = 0;
        }
        load_entries(entries, in, open, row, quarter * kEntriesEach);
    }
#pragma unroll
    for (int d = 1; d < kLanesEach; d *= 2) all_entries += __shfl_xor_sync(~0u, all_entries, d);
    if (quarter == 0) {
        const int last = kTileRows - 1 - slot;
        s.targets[slot] = has_row ? __ldg(blocks.slot_target + first_slot + slot) : -1;
        s.rows[slot] = row, s.entries[slot] = all_entries, s.counts[slot] = listed;
        // Padding comes last.
        s.keys[0][slot] = has_row ? all_entries * kTileRows + last : last - kTileRows;
        s.keys[1][slot] = has_row ? listed * kTileRows + last : last - kTileRows;
    }
    __syncthreads();
    if (threadIdx.x < 2 * kTileRows) {
        const int of = threadIdx.x % kTileRows, which = threadIdx.x / kTileRows, key = s.keys[which][of];
        int place = 0;
#pragma unroll
        for (int i = 0; i < kTileRows / 4; ++i) {
            const int4 four = reinterpret_cast<const int4*>(s.keys[which])[i];
            place += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
        }
        if (which == 0) {
            out.order[first_slot + place] = {first_slot + of, s.targets[of], s.rows[of], s.entries[of]};
        } else {
            // A warp of the forward takes every eighth pair of rows: to and fro, so that all have as much to add.
            const int round = place / 16;
            if (round % 2 != 0) place = 16 * round + 15 - place % 16;
            s.slot_at[place] = of;
        }
    } else if (warp == 2 * kTileRows / 32) {
        const int all = __reduce_add_sync(~0u, s.counts[lane] + s.counts[32 + lane]);
        if (lane == 0 && all > 0) atomicAdd(out.block_entries + block, all);
    }
    __syncthreads();
    if (threadIdx.x < kTileRows) {
        const int of = s.slot_at[threadIdx.x], other = s.slot_at[threadIdx.x ^ 1];
        out.rows[first_slot + threadIdx.x] = {first_slot + of, s.targets[of], s.counts[of],
                                              max(s.counts[of], s.counts[other])};
    }
#pragma unroll
    for (int i = threadIdx.x; i < kTileRows * FullRows::kHead; i += kSplitThreads) {
        const int place = i % FullRows::kHead, of = s.slot_at[i / FullRows::kHead];
        out.heads[size_t(first_slot) * FullRows::kHead + i] = place < s.counts[of] ? s.heads[of][place] : -1;
    }
#pragma unroll
    for (int i = threadIdx.x; i < kTileRows * FullRows::kWords; i += kSplitThreads) {
        const int place = i / FullRows::kWords, word = i % FullRows::kWords, of = s.slot_at[place];
        out.bits[size_t(first_slot) * FullRows::kWords + i] =
            word < kNearWordsUsed ? __ldg(blocks.near_bits + size_t(first_slot + of) * kNearWords + word)
                                  : s.hot_bits[of][word - kNearWordsUsed];
    }
}

// Which loose features are hot: from the batch alone, beside the blocks' rows.
inline cudaError_t choose(const IndexRows& in, const FullRows& rows, cudaStream_t stream) {
    const cudaError_t error =
        cudaMemsetAsync(rows.block_entries, 0, FullRows::zeroed(in.num_blocks, in.num_loose) * sizeof(int32_t), stream);
    if (error != cudaSuccess) return error;
    const int all = 2 * in.positions, stride = std::max(1, all / FullRows::kSample);
    const int sampled = (all + stride - 1) / stride, each = kSampleThreads / 32 * kSampleBatch;
    count_sample<<<(sampled + each - 1) / each, kSampleThreads, 0, stream>>>(in, rows, stride);
    // One row in so many is not worth a place; of a small sample every feature is.
    choose_hot<<<1, FullRows::kChooseThreads, 0, stream>>>(in, rows, std::max(1, sampled / 512));
    return cudaGetLastError();
}

// After that and the blocks' rows.
inline cudaError_t split(const IndexRows& in, const BlockRows& blocks, const FullRows& rows, cudaStream_t stream) {
    split_tiles<<<BlockRows::tiles(in.positions, in.num_blocks), kSplitThreads, 0, stream>>>(in, blocks, rows);
    return cudaGetLastError();
}

}  // namespace full_rows
}  // namespace nnue
