// Loose features of a batch: what the backward needs of them, beside block_rows.cuh, and the forward's order of rows.
// The order is made with the blocks' rows; the rest beside the forward (side_stream.cuh), which does not need it.
//
// Loose features come in no blocks: a row may hold any of them. In chess few of them make up most of a batch (of 64,368
// threats and pawn pairs the 384 most frequent have two thirds of the entries), so they are *ranked*, most frequent
// first, and dealt with by rank:
//
//   [0, dense)   one more block of a product, all rows × at most 640 features, a bitmap a feature and tile
//   the others   each has the list of its slots, ascending; long, middling and short ones (loose_gradient.cuh)
//
// Which features are dense is chosen from a sample of 2,048 rows or more, evenly spread: as good as counting all. A
// limit never cuts through features of equal counts there, so the choice is a function of the batch alone; the order
// among equal ones is not, and nothing that is computed depends on it.
//
// Lists come out in order without a sort. Features are dealt to kBuckets buckets, rows to chunks of kChunkTiles tiles
// in the order of their slots. Each chunk lists its entries by bucket, in order of their rows, at a place of its own;
// then a thread block a bucket goes through the bucket's pieces of all chunks in order, once to count and once to put
// slots in their lists. Between them nothing but counts in shared memory, so no thread block waits for another.
//
// Five kernels: `sample_rows`, `choose_dense`, `split_rows` (a thread block a chunk: bitmaps, entries by bucket),
// `make_lists` (a thread block a bucket), `rank_lists`.
#pragma once

#include "block_rows.cuh"

namespace nnue {

constexpr int kDenseFeatures = 640, kDenseWords = kDenseFeatures / 32;
constexpr int kLongList = 128;  // slots; see loose_gradient.cuh
constexpr int kShortList = 8;
static_assert((kLongList & (kLongList - 1)) == 0, "where a bin begins");
static_assert(kShortList < 15 && kShortList < kLongList, "a bin for each count up to one more");
static_assert(kDenseFeatures % 32 == 0 && kDenseFeatures <= kBlockFeatures, "dense_bits has as many as a block");

struct LooseSummary {
    int dense;         // ranks, see above
    int first_middle;  // of fewer than kLongList
    int first_short;   // of at most kShortList
    int first_empty;   // of the first feature that no row has
};

struct LooseList {
    int feature;  // less the features in blocks
    uint32_t begin, count;
};

struct LooseRows {
    static constexpr int kBins = 512, kBinPitch = 16, kBuckets = 256, kChunkTiles = 4;
    static constexpr int kChunkSlots = kChunkTiles * kTileRows;
    // Zeroed, in a row: sampled … left_out.
    uint32_t* sampled;       // scratch [num_loose]: entries in the sample
    uint32_t* at_least;      // scratch [kBins, kBinPitch]: [bin, 0]: features there of this bin or a higher one
    uint32_t* taken;         // scratch [kBins]: ranks given out of each bin to dense features
    uint32_t* bins;          // scratch [kBins]: features that are not dense by rounded count
    uint32_t* ranked;        // scratch [kBins]: how many of them have their ranks
    uint32_t* allotted;      // scratch [1]: places given out to lists
    int32_t* left_out_rows;  // [1]: how many rows are left out of dense_bits though they are regular
    uint8_t* left_out;       // [rows]: which, since they have a dense feature twice
    LooseSummary* summary;   // [1]
    LooseList* lists;        // [num_loose], by rank; dense ones have none
    int32_t* rank;           // [num_loose]
    int16_t* dense_bit;      // scratch [num_loose]: word and bit of a dense feature in a row's bitmap; −1: not dense
    uint32_t* begins;        // scratch [chunks, kBuckets + 1]: where a bucket's entries begin in the chunk's keys
    uint32_t* keys;          // scratch [chunks, kChunkSlots · max_active]: feature / kBuckets, and slot in the chunk
    uint2* found;            // scratch [num_loose]: where its list begins, and its length
    int32_t* slots;          // [places]: the lists
    uint2* dense_bits;       // [tiles, 768]: as BlockRows::feature_bits, of dense features

    static size_t zeroed(const IndexRows& in) {
        return (size_t(in.num_loose) + kBins * (kBinPitch + 3) + 2) * sizeof(uint32_t) + 2 * size_t(in.positions);
    }
    static __host__ __device__ int chunks(const IndexRows& in) {
        return (BlockRows::tiles(in.positions, in.num_blocks) + kChunkTiles - 1) / kChunkTiles;
    }
    static size_t keys_of_chunks(const IndexRows& in) { return size_t(chunks(in)) * kChunkSlots * in.max_active; }
    // Lists begin at multiples of four.
    static size_t places(const IndexRows& in) { return keys_of_chunks(in) + 3 * size_t(in.num_loose); }
};

// [slots]: a tile's slots, most entries first; padding last, with target −1.
inline RowOrder* carve_row_order(Carver& carver, const IndexRows& in) {
    if (in.num_loose == 0) return nullptr;
    return carver.take<RowOrder>(size_t(BlockRows::tiles(in.positions, in.num_blocks)) * kTileRows);
}

inline LooseRows carve_loose_rows(Carver& carver, const IndexRows& in) {
    const size_t tiles = BlockRows::tiles(in.positions, in.num_blocks), chunks = LooseRows::chunks(in);
    LooseRows rows{};
    if (in.num_loose == 0) return rows;
    rows.sampled = reinterpret_cast<uint32_t*>(carver.take<char>(LooseRows::zeroed(in)));
    rows.at_least = rows.sampled + in.num_loose;
    rows.taken = rows.at_least + LooseRows::kBins * LooseRows::kBinPitch;
    rows.bins = rows.taken + LooseRows::kBins;
    rows.ranked = rows.bins + LooseRows::kBins;
    rows.allotted = rows.ranked + LooseRows::kBins;
    rows.left_out_rows = reinterpret_cast<int32_t*>(rows.allotted + 1);
    rows.left_out = reinterpret_cast<uint8_t*>(rows.left_out_rows + 1);
    rows.summary = carver.take<LooseSummary>(1);
    rows.lists = carver.take<LooseList>(in.num_loose);
    rows.rank = carver.take<int32_t>(in.num_loose);
    rows.dense_bit = carver.take<int16_t>(in.num_loose);
    rows.begins = carver.take<uint32_t>(chunks * (LooseRows::kBuckets + 1));
    rows.keys = carver.take<uint32_t>(LooseRows::keys_of_chunks(in));
    rows.found = carver.take<uint2>(in.num_loose);
    rows.slots = carver.take<int32_t>(LooseRows::places(in));
    rows.dense_bits = carver.take<uint2>(tiles * kBlockFeatures);
    return rows;
}

namespace loose_rows {

// Counts up to 15 have a bin each, larger ones a sixteenth of an octave.
__device__ __forceinline__ int bin_of_count(uint32_t count) {
    if (count < 16) return int(count);
    const int e = 31 - __clz(int(count));
    return 16 * (e - 3) + int(count >> (e - 4) & 15);
}

// Calls visit(base, features) for the entries of kBatch rows, numbers first, … of `count` rows that lie `step` apart,
// two times 32 of each row at a time: entry base + 32 · part + lane, −1 if there is none or it is not loose.
template <int kBatch, typename Visit>
__device__ __forceinline__ void for_each_loose(const IndexRows& in, int first, int count, int step,
                                               const Visit& visit) {
    const int lane = threadIdx.x % 32;
    bool open[kBatch];
#pragma unroll
    for (int r = 0; r < kBatch; ++r) open[r] = first + r < count;
    for (int base = 0; base < in.max_active; base += 64) {
        int features[kBatch][2];
#pragma unroll
        for (int r = 0; r < kBatch; ++r)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const int k = base + 32 * part + lane;
                features[r][part] =
                    open[r] && k < in.max_active ? block_rows::row_pointer(in, (first + r) * step)[k] : -1;
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

// A sample of the batch: every so-manyth row, all of a small batch.
struct Sample {
    int step, rows;
    uint32_t least;  // a dense feature has so many entries in it: one row in 256, measured
};
__host__ __device__ inline Sample sample_of(const IndexRows& in) {
    const int all = 2 * in.positions, step = all < 2 * 2048 ? 1 : all / 2048, rows = (all + step - 1) / step;
    return {step, rows, rows < 512 ? 1u : uint32_t(rows) / 256};
}

constexpr int kSampleThreads = 256, kSampleBatch = 2, kSampleRows = kSampleThreads / 32 * kSampleBatch;

// Entries of each feature in the sample. Whoever makes a feature's count the first of a bin says so to at_least.
__global__ void __launch_bounds__(kSampleThreads) sample_rows(IndexRows in, LooseRows rows) {
    const Sample sample = sample_of(in);
    const int first = blockIdx.x * kSampleRows + threadIdx.x / 32 * kSampleBatch;
    for_each_loose<kSampleBatch>(in, first, sample.rows, sample.step, [&](int, const int(&features)[kSampleBatch][2]) {
        uint32_t counts[2 * kSampleBatch];
#pragma unroll
        for (int i = 0; i < 2 * kSampleBatch; ++i) {
            const int feature = features[i / 2][i % 2];
            counts[i] = feature >= 0 ? atomicAdd(rows.sampled + (feature - in.num_features), 1u) + 1 : 0;
        }
#pragma unroll
        for (int i = 0; i < 2 * kSampleBatch; ++i) {
            const int bin = bin_of_count(counts[i]);
            if (counts[i] >= sample.least && bin != bin_of_count(counts[i] - 1))
                atomicAdd(rows.at_least + bin * LooseRows::kBinPitch, 1u);
        }
    });
}

constexpr int kRankThreads = 512;
static_assert(kRankThreads == LooseRows::kBins);

// The most frequent features of the sample get the first ranks, as many of them as there may be.
__global__ void __launch_bounds__(kRankThreads, 4) choose_dense(IndexRows in, LooseRows rows) {
    constexpr int kBins = LooseRows::kBins;
    __shared__ int fewest;
    if (threadIdx.x == 0) fewest = kBins;
    __syncthreads();
    const int feature = blockIdx.x * kRankThreads + threadIdx.x;
    const uint32_t count = feature < in.num_loose ? rows.sampled[feature] : 0;
    const bool may = int(threadIdx.x) >= bin_of_count(sample_of(in).least) &&
                     rows.at_least[threadIdx.x * LooseRows::kBinPitch] <= kDenseFeatures;
    const unsigned who = __ballot_sync(~0u, may);
    if (threadIdx.x % 32 == 0 && who != 0) atomicMin(&fewest, int(threadIdx.x) + __ffs(int(who)) - 1);
    __syncthreads();
    const int least = fewest;  // the last bin has no features, so there is one
    if (feature == 0) *rows.summary = {int(rows.at_least[least * LooseRows::kBinPitch])};
    if (feature >= in.num_loose) return;
    const int bin = bin_of_count(count);
    int bit = -1;
    if (bin >= least) {
        const int rank = int(rows.at_least[(bin + 1) * LooseRows::kBinPitch] + atomicAdd(rows.taken + bin, 1u));
        bit = rank / 32 * 32 + bit_of_index(rank % 32);
    }
    rows.dense_bit[feature] = int16_t(bit);
}

// The next place of each lane's cell, in order of the lanes; of those that have one.
__device__ __forceinline__ uint32_t next_place(uint32_t* places, uint32_t cell, bool has) {
    const unsigned same = __match_any_sync(~0u, has ? cell : ~0u);
    const int before = __popc(same & ((1u << threadIdx.x % 32) - 1));
    const uint32_t place = has ? places[cell] + before : 0;
    __syncwarp();
    if (has && before == 0) places[cell] = place + __popc(same);
    __syncwarp();
    return place;
}

constexpr int kSplitThreads = 256, kSplitWarps = kSplitThreads / 32;
constexpr int kSplitRows = LooseRows::kChunkSlots / kSplitWarps;
constexpr int kSplitBatch = 4, kSplitParts = 3;  // rows whose first 96 entries are on their way together
constexpr int kPlaceBatch = 6;                   // entries that a lane asks for at once
static_assert(kSplitThreads == LooseRows::kBuckets && kSplitThreads == LooseRows::kChunkSlots);

struct SplitShared {
    int row[LooseRows::kChunkSlots];    // of a slot
    int count[LooseRows::kChunkSlots];  // of its entries; then −1 if one of them is dense and there twice
    uint32_t bits[LooseRows::kChunkSlots][kDenseWords + 1];  // of dense features; the last word is for the banks
    uint32_t places[kSplitWarps][LooseRows::kBuckets];       // of each warp's entries: how many, then the next one's
    int warp_sums[kSplitWarps];
};

// A thread block a chunk: dense features' bits of its tiles, and its other loose entries by bucket, in order of their
// slots. A row that has a dense feature twice is left out of the bits; irregular_rows.cuh sees to it.
__global__ void __launch_bounds__(kSplitThreads, 4)
    split_rows(IndexRows in, BlockRows blocks, const RowOrder* order, LooseRows rows) {
    constexpr int kBuckets = LooseRows::kBuckets, kChunkSlots = LooseRows::kChunkSlots;
    __shared__ SplitShared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tiles = blocks.tile_begin[in.num_blocks], first_tile = blockIdx.x * LooseRows::kChunkTiles;
    const int first_slot = first_tile * kTileRows, own_tile = first_tile + int(threadIdx.x) / kTileRows;
    RowOrder own{first_slot + int(threadIdx.x), -1, 0, 0};
    if (own_tile < BlockRows::tiles(in.positions, in.num_blocks)) {
        const RowOrder there = order[first_slot + threadIdx.x];
        if (own_tile < tiles) own = there;
    }
    uint32_t* const begins = rows.begins + size_t(blockIdx.x) * (kBuckets + 1);
    if (first_tile >= tiles) {
        begins[threadIdx.x] = begins[threadIdx.x + 1] = 0;
        return;
    }
    const int own_slot = own.slot - first_slot;
    s.row[own_slot] = own.row;
    s.count[own_slot] = own.target >= 0 ? own.count : 0;
    const int slot_or_not = own.target >= 0 ? blocks.row_slot[own.row] : 0;  // < 0: irregular; not needed soon
    for (int i = threadIdx.x; i < kChunkSlots * (kDenseWords + 1); i += kSplitThreads)
        reinterpret_cast<uint32_t*>(&s.bits)[i] = 0;
#pragma unroll
    for (int w = 0; w < kSplitWarps; ++w) s.places[w][threadIdx.x] = 0;
    __syncthreads();

    // A warp has a stretch of slots: it sets bits and lists other entries in order of their slots, at a place of its
    // own where lists will be.
    const size_t chunk_begin = size_t(blockIdx.x) * kChunkSlots * in.max_active;
    uint32_t* const listed =
        reinterpret_cast<uint32_t*>(rows.slots) + chunk_begin + size_t(warp) * kSplitRows * in.max_active;
    uint32_t num_listed = 0;
    int more = 0;  // dense entries of the row than bits
    const auto row_at = [&](int slot) { return block_rows::row_pointer(in, s.row[slot]) + lane; };
    const auto bit_of = [&](int feature) {
        return unsigned(feature) < unsigned(in.num_loose) ? int(rows.dense_bit[feature]) : -2;
    };
    const auto visit = [&](int slot, int feature, int bit) {
        if (bit >= 0) atomicOr(&s.bits[slot][bit / 32], 1u << bit % 32), ++more;
        const unsigned others = __ballot_sync(~0u, bit == -1);
        if (bit == -1) {
            atomicAdd(&s.places[warp][feature % kBuckets], 1u);
            listed[num_listed + __popc(others & ((1u << lane) - 1))] = uint32_t(feature) * kChunkSlots + slot;
        }
        num_listed += __popc(others);
    };
    int next[kSplitBatch][kSplitParts];
    const auto load = [&](int slot) {
#pragma unroll
        for (int r = 0; r < kSplitBatch; ++r) {
            const int count = s.count[slot + r];
            const int32_t* from = row_at(slot + r);
#pragma unroll
            for (int part = 0; part < kSplitParts; ++part)
                next[r][part] = 32 * part + lane < count ? __ldg(from + 32 * part) - in.num_features : -1;
        }
    };
    const int warp_slot = warp * kSplitRows;
    load(warp_slot);
#pragma unroll 1
    for (int i = 0; i < kSplitRows; i += kSplitBatch) {
        int features[kSplitBatch][kSplitParts], bits[kSplitBatch][kSplitParts];
#pragma unroll
        for (int r = 0; r < kSplitBatch; ++r)
#pragma unroll
            for (int part = 0; part < kSplitParts; ++part) {
                features[r][part] = next[r][part];
                bits[r][part] = bit_of(features[r][part]);
            }
        if (i + kSplitBatch < kSplitRows) load(warp_slot + i + kSplitBatch);
#pragma unroll
        for (int r = 0; r < kSplitBatch; ++r) {
            const int slot = warp_slot + i + r, count = s.count[slot];
#pragma unroll
            for (int part = 0; part < kSplitParts; ++part)
                if (32 * part < count) visit(slot, features[r][part], bits[r][part]);
#pragma unroll 1
            for (int base = 32 * kSplitParts; base < count; base += 32) {
                const int feature = base + lane < count ? __ldg(row_at(slot) + base) - in.num_features : -1;
                visit(slot, feature, bit_of(feature));
            }
            __syncwarp();
            if (lane < kDenseWords) more -= __popc(s.bits[slot][lane]);
            const bool twice = __reduce_add_sync(~0u, more) > 0;
            if (lane == 0 && twice) s.count[slot] = -1;
            more = 0;
        }
    }
    __syncthreads();
    const bool irregular = slot_or_not < 0;
    if (irregular || s.count[own_slot] < 0) {
        for (int w = 0; w < kDenseWords; ++w) s.bits[own_slot][w] = 0;
        if (!irregular) rows.left_out[own.row] = 1, atomicAdd(rows.left_out_rows, 1);
    }

    // A thread a bucket: places for its entries of one warp after the other.
    int counts[kSplitWarps], count = 0;
#pragma unroll
    for (int w = 0; w < kSplitWarps; ++w) count += counts[w] = int(s.places[w][threadIdx.x]);
    int begin = block_rows::sum_before(count, s.warp_sums, warp, lane, [] { __syncthreads(); });
    begins[threadIdx.x] = begin;
    if (threadIdx.x == kBuckets - 1) begins[kBuckets] = begin + count;
#pragma unroll
    for (int w = 0; w < kSplitWarps; ++w) {
        s.places[w][threadIdx.x] = begin;
        begin += counts[w];
    }
    __syncthreads();
    uint32_t* const keys = rows.keys + chunk_begin;
#pragma unroll 1
    for (uint32_t base = 0; base < num_listed; base += 32 * kPlaceBatch) {
        uint32_t entries[kPlaceBatch];
#pragma unroll
        for (int i = 0; i < kPlaceBatch; ++i)
            entries[i] = base + 32 * i + lane < num_listed ? __ldcg(listed + base + 32 * i + lane) : ~0u;
#pragma unroll
        for (int i = 0; i < kPlaceBatch; ++i) {
            if (base + 32 * i >= num_listed) break;
            const uint32_t feature = entries[i] / kChunkSlots, slot = entries[i] % kChunkSlots;
            const bool has = entries[i] != ~0u;
            const uint32_t place = next_place(s.places[warp], feature % kBuckets, has);
            if (has) keys[place] = feature / kBuckets * kChunkSlots + slot;
        }
    }
#pragma unroll 1
    for (int item = warp; item < LooseRows::kChunkTiles * kDenseWords; item += kSplitWarps) {
        const int tile = item / kDenseWords, word = item % kDenseWords;
        if (first_tile + tile >= tiles) break;
        const int slot = tile * kTileRows + index_of_bit(lane);
        rows.dense_bits[size_t(first_tile + tile) * kBlockFeatures + word * 32 + index_of_bit(lane)] = {
            block_rows::warp_transpose(s.bits[slot][word], lane),
            block_rows::warp_transpose(s.bits[slot + 32][word], lane)};
    }
}

// A batch of 16,384 has 28 chunks for each warp: it finds its entries at one go, as a rule.
constexpr int kListWarps = 5, kListThreads = 32 * kListWarps, kListFeatures = 256, kListAhead = 10;

struct ListShared {
    uint32_t places[kListWarps][kListFeatures];  // of each warp's slots: how many, then the next one's
    int warp_sums[kListWarps];
    uint32_t begin;
};

// A warp's way through the entries of a bucket in some chunks, in order: 32 chunks at a time, and of those kListAhead
// entries a lane. The first of these stay in registers.
struct BucketWalk {
    const LooseRows& rows;
    const size_t pitch;  // of a chunk's keys
    const int bucket, first, end;

    struct Chunks {
        uint32_t begin, until, all;  // a lane's chunk: less the entries before; those in it and before; all
    };
    struct Entries {
        uint32_t keys[kListAhead];  // ~0: none
        int chunks[kListAhead];
    };

    __device__ __forceinline__ Chunks find(int from) const {
        const int lane = threadIdx.x % 32;
        uint32_t begin = 0, count = 0;
        if (from + lane < end) {
            const uint32_t* begins = rows.begins + size_t(from + lane) * (LooseRows::kBuckets + 1) + bucket;
            begin = __ldg(begins), count = __ldg(begins + 1) - begin;
        }
        const uint32_t until = block_rows::warp_inclusive_sum(count, lane);
        return {begin - (until - count), until, __shfl_sync(~0u, until, 31)};
    }
    __device__ __forceinline__ void load(Entries& entries, const Chunks& chunks, int from, uint32_t base) const {
#pragma unroll
        for (int i = 0; i < kListAhead; ++i) {
            const uint32_t number = base + 32 * i + threadIdx.x % 32;
            int which = 0;  // of the chunks, the one that has it
#pragma unroll
            for (int step = 16; step > 0; step /= 2)
                which += __shfl_sync(~0u, chunks.until, which + step - 1) <= number ? step : 0;
            const uint32_t place = __shfl_sync(~0u, chunks.begin, which) + number;
            entries.chunks[i] = from + which;
            entries.keys[i] = number < chunks.all ? __ldg(rows.keys + entries.chunks[i] * pitch + place) : ~0u;
        }
    }
    template <typename Visit>
    __device__ __forceinline__ void visit_all(const Entries& entries, uint32_t left, const Visit& visit) const {
#pragma unroll
        for (int i = 0; i < kListAhead; ++i)
            if (32 * i < left) visit(entries.chunks[i], entries.keys[i]);
    }
    // Calls visit(chunk, key) 32 times at once, key ~0 where there is none.
    template <typename Visit>
    __device__ __forceinline__ void operator()(const Chunks& chunks, const Entries& entries, const Visit& visit) const {
        visit_all(entries, chunks.all, visit);
        Chunks now = chunks;
        uint32_t base = 32 * kListAhead;
#pragma unroll 1
        for (int from = first;;) {
#pragma unroll 1
            for (; base < now.all; base += 32 * kListAhead) {
                Entries others;
                load(others, now, from, base);
                visit_all(others, now.all - base, visit);
            }
            from += 32, base = 0;
            if (from >= end) break;
            now = find(from);
        }
    }
};

// A thread block a bucket, or 256 of its features: their lists.
__global__ void __launch_bounds__(kListThreads) make_lists(IndexRows in, LooseRows rows) {
    constexpr int kBuckets = LooseRows::kBuckets, kChunkSlots = LooseRows::kChunkSlots;
    __shared__ ListShared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int bucket = blockIdx.x, first_feature = blockIdx.y * kListFeatures;  // / kBuckets
    const int chunks = LooseRows::chunks(in), each = (chunks + kListWarps - 1) / kListWarps, first = warp * each;
    const BucketWalk walk{rows, size_t(kChunkSlots) * in.max_active, bucket, first, min(first + each, chunks)};
    const BucketWalk::Chunks first_chunks = walk.find(first);
    BucketWalk::Entries first_entries;
    walk.load(first_entries, first_chunks, first, 0);
    for (int i = threadIdx.x; i < kListWarps * kListFeatures; i += kListThreads)
        reinterpret_cast<uint32_t*>(&s.places)[i] = 0;
    __syncthreads();
    walk(first_chunks, first_entries, [&](int, uint32_t key) {
        const uint32_t local = key / kChunkSlots - first_feature;
        if (key != ~0u && local < kListFeatures) atomicAdd(&s.places[warp][local], 1u);
    });
    __syncthreads();

    // A thread two features.
    uint32_t counts[2] = {};
    int features[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int local = 2 * threadIdx.x + j;
        const long long number = (long long)(first_feature + local) * kBuckets + bucket;
        features[j] = local < kListFeatures && number < in.num_loose ? int(number) : -1;
        if (features[j] < 0) continue;
#pragma unroll
        for (int w = 0; w < kListWarps; ++w) counts[j] += s.places[w][local];
    }
    const int places[2] = {int(counts[0] + 3) / 4 * 4, int(counts[1] + 3) / 4 * 4};
    const int before = block_rows::sum_before(places[0] + places[1], s.warp_sums, warp, lane, [] { __syncthreads(); });
    if (threadIdx.x == kListThreads - 1) s.begin = before > 0 ? atomicAdd(rows.allotted, uint32_t(before)) : 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        // Dense features have no entries here, and are none of bin 0 either.
        const bool listed = features[j] >= 0 && (counts[j] > 0 || rows.dense_bit[features[j]] < 0);
        const int bin = listed ? bin_of_count(counts[j]) : -1;
        const unsigned same = __match_any_sync(~0u, bin);
        if (bin >= 0 && (same & ((1u << lane) - 1)) == 0) atomicAdd(rows.bins + bin, unsigned(__popc(same)));
    }
    __syncthreads();
    uint32_t place = s.begin + before;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        if (features[j] < 0) break;
        rows.found[features[j]] = {place, counts[j]};
        uint32_t next = place;
#pragma unroll
        for (int w = 0; w < kListWarps; ++w) {
            const uint32_t of_warp = s.places[w][2 * threadIdx.x + j];
            s.places[w][2 * threadIdx.x + j] = next;
            next += of_warp;
        }
        place += places[j];
    }
    __syncthreads();
    walk(first_chunks, first_entries, [&](int chunk, uint32_t key) {
        const uint32_t local = key / kChunkSlots - first_feature;
        const bool has = key != ~0u && local < kListFeatures;
        const uint32_t to = next_place(s.places[warp], local, has);
        if (has) rows.slots[to] = chunk * kChunkSlots + int(key % kChunkSlots);
    });
}

// Ranks lists by their length, behind the dense features; neighbouring features together.
__global__ void __launch_bounds__(kRankThreads, 4) rank_lists(IndexRows in, LooseRows rows) {
    constexpr int kBins = LooseRows::kBins;
    __shared__ uint32_t mine[kBins];  // features of each bin here; then the first one's rank
    __shared__ int warp_sums[kRankThreads / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dense = rows.summary->dense;
    const int feature = blockIdx.x * kRankThreads + threadIdx.x;
    const bool exists = feature < in.num_loose;
    const uint2 found = exists ? rows.found[feature] : uint2{0, 0};
    const int bit = exists ? rows.dense_bit[feature] : 0;
    const int bin = kBins - 1 - int(threadIdx.x);  // longest first
    const int features = int(rows.bins[bin]);
    mine[threadIdx.x] = 0;
    __syncthreads();
    const int own_bin = bit < 0 ? bin_of_count(found.y) : -1;
    const unsigned same = __match_any_sync(~0u, own_bin);
    uint32_t in_bin = 0;
    if (own_bin >= 0 && (same & ((1u << lane) - 1)) == 0) in_bin = atomicAdd(&mine[own_bin], unsigned(__popc(same)));
    in_bin = __shfl_sync(~0u, in_bin, __ffs(int(same)) - 1) + __popc(same & ((1u << lane) - 1));
    const int first = dense + block_rows::sum_before(features, warp_sums, warp, lane, [] { __syncthreads(); });
    if (mine[bin] > 0) mine[bin] = first + atomicAdd(rows.ranked + bin, mine[bin]);
    if (blockIdx.x == 0) {
        if (bin == bin_of_count(kLongList)) rows.summary->first_middle = first + features;
        if (bin == kShortList + 1) rows.summary->first_short = first + features;
        if (bin == 1) rows.summary->first_empty = first + features;
    }
    __syncthreads();
    if (!exists) return;
    const int rank = bit >= 0 ? bit / 32 * 32 + index_of_bit(bit % 32) : int(mine[own_bin] + in_bin);
    rows.rank[feature] = rank;
    rows.lists[rank] = {feature, found.x, found.y};
}

// All the backward needs, after the blocks' rows.
inline cudaError_t build(const IndexRows& in, const BlockRows& blocks, const RowOrder* order, const LooseRows& rows,
                         cudaStream_t stream) {
    const cudaError_t error = cudaMemsetAsync(rows.sampled, 0, LooseRows::zeroed(in), stream);
    if (error != cudaSuccess) return error;
    const int rank_blocks = (in.num_loose + kRankThreads - 1) / kRankThreads;
    constexpr int kBucketFeatures = LooseRows::kBuckets * kListFeatures;
    sample_rows<<<(sample_of(in).rows + kSampleRows - 1) / kSampleRows, kSampleThreads, 0, stream>>>(in, rows);
    choose_dense<<<rank_blocks, kRankThreads, 0, stream>>>(in, rows);
    split_rows<<<LooseRows::chunks(in), kSplitThreads, 0, stream>>>(in, blocks, order, rows);
    const dim3 buckets(LooseRows::kBuckets, (in.num_loose + kBucketFeatures - 1) / kBucketFeatures);
    make_lists<<<buckets, kListThreads, 0, stream>>>(in, rows);
    rank_lists<<<rank_blocks, kRankThreads, 0, stream>>>(in, rows);
    return cudaGetLastError();
}

}  // namespace loose_rows
}  // namespace nnue
