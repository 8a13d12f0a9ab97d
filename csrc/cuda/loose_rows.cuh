// Loose features of a batch: what the backward needs of them, beside block_rows.cuh. It is made beside the forward
// (side_stream.cuh), which has lists of its own (full_rows.cuh).
//
// Loose features come in no blocks: a row may hold any of them. In chess few of them make up most of a batch (of 64,368
// threats and pawn pairs the 384 most frequent have two thirds of the entries), so they are *ranked*, most frequent
// first, and dealt with by rank:
//
//   [0, dense)   one more block of a product, all rows × at most 384 features, a bitmap a row
//   the others   each has the list of its slots, ascending
//
// Counts are rounded down to five significant bits for ranking, and a limit never cuts through features of equal
// rounded counts. So which features are dense is a function of the batch alone; the order among equal ones is
// not, and nothing that is computed depends on it.
#pragma once

#include "block_rows.cuh"

namespace nnue {

constexpr int kDenseFeatures = 384, kDenseWords = kDenseFeatures / 32;
constexpr int kDenseChunks = 16;  // stretches of tiles with products of their own, so that work can be shared out
constexpr int kLongList = 64;     // a list of so many slots or more is sorted by a thread block
constexpr int kShortList = 8;     // a list of up to so many is summed in one go

struct LooseSummary {
    int dense;         // ranks, see above
    int first_middle;  // rank of the first list of fewer than kLongList entries
    int first_short;   // of at most kShortList
    int first_empty;   // of the first feature that no row has
};

struct LooseList {
    int feature;  // less the features in blocks
    uint32_t begin, count;
};

// Copies of the counters of entries: the most frequent features are in a third of the rows.
constexpr int kCounterCopies = 16;

struct LooseRows {
    static constexpr int kBins = 512;
    uint32_t* counts;          // scratch [kCounterCopies, num_loose]: entries in the batch
    uint32_t* bins;            // scratch [kBins]: features by rounded count
    uint32_t* taken;           // scratch [kBins]: ranks given out of each bin
    uint32_t* allotted;        // scratch [1]: places given out to lists
    int32_t* left_out_rows;    // [1]: how many rows are left out of dense_bits though they are regular
    LooseSummary* summary;     // [1]
    LooseList* lists;          // [num_loose], by rank
    int32_t* rank;             // [num_loose]
    uint32_t* next;            // scratch [num_loose]: its count, then the next free place of its list
    uint32_t* keys;            // scratch [places]: slot · max_active + place in the index row, in any order
    int32_t* slots;            // [places]: the lists
    uint32_t* dense_row_bits;  // scratch [slots, 12]
    uint2* dense_bits;         // [tiles, 768]: as BlockRows::feature_bits, of dense features
    int32_t* dense_tiles;      // [kDenseChunks + 1]: first tiles of the chunks
    int32_t* dense_counts;     // [kDenseChunks]: BlockRows::dense of the chunks
    int32_t* dense_ranked;     // [kDenseChunks, 768]: BlockRows::ranked of the chunks
    uint8_t* left_out;         // [rows]: which, since they have a dense feature twice

    static size_t places(int positions, int max_active, int num_loose) {
        return 2 * size_t(positions) * max_active + 3 * size_t(num_loose);  // lists begin at multiples of four
    }
    static size_t zeroed(int num_loose) { return size_t(kCounterCopies) * num_loose + 2 * kBins + 2; }
};

inline LooseRows carve_loose_rows(Carver& carver, const IndexRows& in) {
    const size_t tiles = BlockRows::tiles(in.positions, in.num_blocks), slots = tiles * kTileRows;
    const size_t places = LooseRows::places(in.positions, in.max_active, in.num_loose);
    LooseRows rows{};
    if (in.num_loose == 0) return rows;
    rows.counts = carver.take<uint32_t>(LooseRows::zeroed(in.num_loose));
    rows.bins = rows.counts + size_t(kCounterCopies) * in.num_loose;
    rows.taken = rows.bins + LooseRows::kBins;
    rows.allotted = rows.taken + LooseRows::kBins;
    rows.left_out_rows = reinterpret_cast<int32_t*>(rows.allotted + 1);
    rows.summary = carver.take<LooseSummary>(1);
    rows.lists = carver.take<LooseList>(in.num_loose);
    rows.rank = carver.take<int32_t>(in.num_loose);
    rows.next = carver.take<uint32_t>(in.num_loose);
    rows.keys = carver.take<uint32_t>(places);
    rows.slots = carver.take<int32_t>(places);
    rows.dense_row_bits = carver.take<uint32_t>(slots * kDenseWords);
    rows.dense_bits = carver.take<uint2>(tiles * kBlockFeatures);
    rows.dense_tiles = carver.take<int32_t>(kDenseChunks + 1);
    rows.dense_counts = carver.take<int32_t>(kDenseChunks);
    rows.dense_ranked = carver.take<int32_t>(kDenseChunks * kBlockFeatures);
    rows.left_out = carver.take<uint8_t>(2 * size_t(in.positions));
    return rows;
}

namespace loose_rows {

// Counts up to 15 have a bin each, larger ones a sixteenth of an octave.
__host__ __device__ inline int bin_of_count(uint32_t count) {
    if (count < 16) return int(count);
#ifdef __CUDA_ARCH__
    const int e = 31 - __clz(int(count));
#else
    const int e = 31 - __builtin_clz(count);
#endif
    return 16 * (e - 3) + int(count >> (e - 4) & 15);
}

// Calls visit(base, features) for the entries of kBatch rows from `first_row` on, two times 32 of each row at a time:
// entry base + 32 · part + lane of row first_row + r, −1 if there is none or it is not loose.
template <int kBatch, typename Visit>
__device__ __forceinline__ void for_each_loose(const IndexRows& in, int first_row, const Visit& visit) {
    const int lane = threadIdx.x % 32;
    bool open[kBatch];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) open[r] = first_row + r < 2 * in.positions;
    for (int base = 0; base < in.max_active; base += 64) {
        int features[kBatch][2];
#pragma unroll
        for (int r = 0; r < kBatch; ++r)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const int k = base + 32 * part + lane;
                features[r][part] = open[r] && k < in.max_active ? block_rows::row_pointer(in, first_row + r)[k] : -1;
            }
        bool any = false;
#pragma unroll
        for (int r = 0; r < kBatch; ++r) {
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                int& feature = features[r][part];
                const unsigned ends = __ballot_sync(~0u, feature < 0);
                if (!open[r] || (ends & ((2u << lane) - 1)) != 0) feature = -1;  // behind the end
                if (ends != 0) open[r] = false;
                // index_check.cuh speaks of those that are too large.
                if (feature < in.num_features || feature >= in.num_features + in.num_loose) feature = -1;
            }
            any |= open[r];
        }
        visit(base, features);
        if (!any) break;
    }
}

constexpr int kCountThreads = 256, kCountBatch = 4;  // rows of which a warp has the loads in flight

__global__ void __launch_bounds__(kCountThreads) count_entries(IndexRows in, LooseRows rows) {
    uint32_t* counts = rows.counts + size_t(blockIdx.x % kCounterCopies) * in.num_loose;
    const int warp = blockIdx.x * (kCountThreads / 32) + threadIdx.x / 32;
    for_each_loose<kCountBatch>(in, warp * kCountBatch, [&](int, const int(&features)[kCountBatch][2]) {
#pragma unroll
        for (int i = 0; i < 2 * kCountBatch; ++i) {
            const int feature = features[i / 2][i % 2];
            if (feature >= 0) atomicAdd(counts + (feature - in.num_features), 1u);
        }
    });
}

constexpr int kRankThreads = 1024;

// Features by count; those that no row has are left out.
__global__ void __launch_bounds__(kRankThreads) bin_counts(LooseRows rows, int num_loose) {
    __shared__ uint32_t bins[LooseRows::kBins];
    if (threadIdx.x < LooseRows::kBins) bins[threadIdx.x] = 0;
    __syncthreads();
    const int feature = blockIdx.x * kRankThreads + threadIdx.x;
    uint32_t count = 0;
    if (feature < num_loose) {
#pragma unroll
        for (int copy = 0; copy < kCounterCopies; ++copy) count += rows.counts[size_t(copy) * num_loose + feature];
        rows.next[feature] = count;
    }
    if (count > 0) atomicAdd(&bins[bin_of_count(count)], 1u);
    __syncthreads();
    if (threadIdx.x < LooseRows::kBins && bins[threadIdx.x] > 0) atomicAdd(rows.bins + threadIdx.x, bins[threadIdx.x]);
}

// Gives every feature its rank and its list. A feature is worth a place in a product from so many rows on: measured,
// relative to the batch.
__global__ void __launch_bounds__(kRankThreads) rank_features(IndexRows in, BlockRows blocks, LooseRows rows) {
    constexpr int kBins = LooseRows::kBins;
    __shared__ int first_rank[kBins], warp_sums[kBins / 32];
    __shared__ LooseSummary summary;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) summary = {};
    int sum = 0, features = 0;
    const int bin = kBins - 1 - int(threadIdx.x);
    if (threadIdx.x < kBins) {
        features = int(rows.bins[bin]);
        sum = block_rows::warp_inclusive_sum(features, lane);
        if (lane == 31) warp_sums[warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < kBins) {
        for (int w = 0; w < warp; ++w) sum += warp_sums[w];
        first_rank[bin] = sum - features;
        const uint32_t batch = 2 * uint32_t(in.positions);
        if (bin >= max(1, bin_of_count(batch / 256)) && sum <= kDenseFeatures) atomicMax(&summary.dense, sum);
        if (bin == bin_of_count(kLongList)) summary.first_middle = sum;
        if (bin == kShortList + 1) summary.first_short = sum;
        if (bin == 1) summary.first_empty = sum;
    }
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        summary.first_middle = max(summary.first_middle, summary.dense);
        summary.first_short = max(summary.first_short, summary.dense);
        *rows.summary = summary;
        const int tiles = blocks.tile_begin[in.num_blocks];
        for (int c = 0; c <= kDenseChunks; ++c) rows.dense_tiles[c] = int((long long)tiles * c / kDenseChunks);
        for (int c = 0; c < kDenseChunks; ++c) rows.dense_counts[c] = (summary.dense + 63) / 64 * 64;
    }

    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < kDenseChunks * kBlockFeatures; i += kRankThreads)
            rows.dense_ranked[i] = i % kBlockFeatures;

    const int feature = blockIdx.x * kRankThreads + threadIdx.x;
    const bool exists = feature < in.num_loose;
    const uint32_t count = exists ? rows.next[feature] : 0;
    const int mine = exists ? bin_of_count(count) : -1;
    const unsigned same = __match_any_sync(~0u, mine);
    const int leader = __ffs(same) - 1;
    int taken = 0;
    if (exists && lane == leader) taken = int(atomicAdd(rows.taken + mine, unsigned(__popc(same))));
    taken = __shfl_sync(~0u, taken, leader) + __popc(same & ((1u << lane) - 1));
    const int rank = !exists ? 0 : taken + (mine > 0 ? first_rank[mine] : summary.first_empty);
    const int places = exists && rank >= summary.dense ? int(count + 3) / 4 * 4 : 0;
    const int inclusive = block_rows::warp_inclusive_sum(places, lane);
    uint32_t begin = 0;
    if (lane == 31 && inclusive > 0) begin = atomicAdd(rows.allotted, uint32_t(inclusive));
    begin = __shfl_sync(~0u, begin, 31) + uint32_t(inclusive - places);
    if (!exists) return;
    rows.rank[feature] = rank;
    rows.next[feature] = begin;
    rows.lists[rank] = {feature, begin, count};
}

constexpr int kSplitThreads = 256, kSplitBatch = 2;

// A warp per row, two at a time: bits of dense features, places in the lists of the others. A row that has a dense
// feature twice is left out of the bits; irregular_rows.cuh sees to it.
__global__ void __launch_bounds__(kSplitThreads, 4) split_rows(IndexRows in, BlockRows blocks, LooseRows rows) {
    constexpr int kWarps = kSplitThreads / 32, kBatch = kSplitBatch;
    __shared__ uint32_t bits[kWarps][kBatch][kDenseWords];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = (blockIdx.x * kWarps + warp) * kBatch;
    const LooseSummary summary = *rows.summary;
    for (int i = lane; i < kBatch * kDenseWords; i += 32) bits[warp][0][i] = 0;
    __syncwarp();
    int slots[kBatch];
    bool irregular[kBatch], twice[kBatch] = {};
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
        slots[r] = first_row + r < 2 * in.positions ? blocks.row_slot[first_row + r] : 0;
        irregular[r] = slots[r] < 0;
        if (irregular[r]) slots[r] = ~slots[r];
    }
    for_each_loose<kBatch>(in, first_row, [&](int base, const int(&features)[kBatch][2]) {
        int ranks[kBatch][2];
#pragma unroll
        for (int i = 0; i < 2 * kBatch; ++i) {
            const int feature = features[i / 2][i % 2];
            ranks[i / 2][i % 2] = feature >= 0 ? __ldg(rows.rank + (feature - in.num_features)) : -1;
        }
#pragma unroll
        for (int i = 0; i < 2 * kBatch; ++i) {
            const int r = i / 2, part = i % 2, rank = ranks[r][part];
            if (rank < 0) continue;
            if (rank < summary.dense) {
                const uint32_t bit = 1u << bit_of_index(rank & 31);
                twice[r] |= (atomicOr(&bits[warp][r][rank >> 5], bit) & bit) != 0;
            } else {
                const uint32_t place = atomicAdd(rows.next + (features[r][part] - in.num_features), 1u);
                rows.keys[place] = uint32_t(slots[r]) * in.max_active + (base + 32 * part + lane);
            }
        }
    });
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
        const int row = first_row + r;
        if (row >= 2 * in.positions) break;
        const bool found = __any_sync(~0u, twice[r]) && !irregular[r];
        if (lane < kDenseWords)
            rows.dense_row_bits[size_t(slots[r]) * kDenseWords + lane] =
                irregular[r] || found ? 0 : bits[warp][r][lane];
        if (lane == 0) rows.left_out[row] = found;
        if (lane == 0 && found) atomicAdd(rows.left_out_rows, 1);
    }
}

// One warp per (tile, word), as for the blocks' features.
__global__ void transpose_dense(BlockRows blocks, LooseRows rows) {
    const int item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tile = item / kDenseWords, word = item % kDenseWords;
    if (tile >= rows.dense_tiles[kDenseChunks]) return;
    const int slot = tile * kTileRows + index_of_bit(lane);
    uint32_t words[2];
    for (int h = 0; h < 2; ++h) {
        const int s = slot + 32 * h;
        words[h] = blocks.slot_target[s] >= 0 ? rows.dense_row_bits[size_t(s) * kDenseWords + word] : 0;
    }
    rows.dense_bits[size_t(tile) * kBlockFeatures + word * 32 + index_of_bit(lane)] = {
        block_rows::warp_transpose(words[0], lane), block_rows::warp_transpose(words[1], lane)};
}

constexpr int kSortThreads = 256, kSortBlocks = 8 * 132;

// By `threads` threads, of which this is number `thread`: an entry's place is the number of smaller keys. Quadratic,
// but lists are short where they are many. Keys differ, as a place in the index rows is part of them.
template <typename Sync>
__device__ __forceinline__ void sort_list(const LooseRows& rows, const LooseList& list, int max_active, int thread,
                                          int threads, const Sync& sync) {
    uint32_t* keys = rows.keys + list.begin;
    const uint32_t quads = (list.count + 3) / 4;
    if (list.count + thread < 4 * quads) keys[list.count + thread] = ~0u;
    sync();
    for (uint32_t i = thread; i < list.count; i += threads) {
        const uint32_t key = keys[i];
        int smaller = 0;
#pragma unroll 4
        for (uint32_t q = 0; q < quads; ++q) {
            const uint4 four = reinterpret_cast<const uint4*>(keys)[q];
            smaller += (four.x < key) + (four.y < key) + (four.z < key) + (four.w < key);
        }
        rows.slots[list.begin + smaller] = int(key / uint32_t(max_active));
    }
}

// A thread block per long list, then a warp per list.
__global__ void __launch_bounds__(kSortThreads) sort_lists(LooseRows rows, int max_active) {
    constexpr int kWarps = kSortThreads / 32;
    const LooseSummary summary = *rows.summary;
    for (int rank = summary.dense + blockIdx.x; rank < summary.first_middle; rank += gridDim.x)
        sort_list(rows, rows.lists[rank], max_active, threadIdx.x, kSortThreads, [] { __syncthreads(); });
    for (int rank = summary.first_middle + blockIdx.x * kWarps + threadIdx.x / 32; rank < summary.first_empty;
         rank += gridDim.x * kWarps)
        sort_list(rows, rows.lists[rank], max_active, threadIdx.x % 32, 32, [] { __syncwarp(); });
}

// All the backward needs, after the blocks' rows.
inline cudaError_t build(const IndexRows& in, const BlockRows& blocks, const LooseRows& rows, cudaStream_t stream) {
    const cudaError_t error =
        cudaMemsetAsync(rows.counts, 0, LooseRows::zeroed(in.num_loose) * sizeof(uint32_t), stream);
    if (error != cudaSuccess) return error;
    const int rank_blocks = (in.num_loose + kRankThreads - 1) / kRankThreads;
    const auto row_blocks = [&](int rows_each) { return (2 * in.positions + rows_each - 1) / rows_each; };
    count_entries<<<row_blocks(kCountThreads / 32 * kCountBatch), kCountThreads, 0, stream>>>(in, rows);
    bin_counts<<<rank_blocks, kRankThreads, 0, stream>>>(rows, in.num_loose);
    rank_features<<<rank_blocks, kRankThreads, 0, stream>>>(in, blocks, rows);
    split_rows<<<row_blocks(kSplitThreads / 32 * kSplitBatch), kSplitThreads, 0, stream>>>(in, blocks, rows);
    const int words = BlockRows::tiles(in.positions, in.num_blocks) * kDenseWords;
    transpose_dense<<<(words + 7) / 8, 256, 0, stream>>>(blocks, rows);
    sort_lists<<<kSortBlocks, kSortThreads, 0, stream>>>(rows, in.max_active);
    return cudaGetLastError();
}

}  // namespace loose_rows
}  // namespace nnue
