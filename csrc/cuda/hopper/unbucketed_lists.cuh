// The unbucketed features of a batch, as part of its plan, for the backward: bitmaps of the dense features and lists of
// slots of the others.
//
// They are ranked, the most frequent first. The first ones are *dense* (at most 640): one more bucket of the product.
// Each of the others has an ascending list of slots. Which features are dense is decided from an even sample of at
// least 2,048 rows, which is as good as counting all rows. The limit never separates features with equal counts in the
// sample, so the choice is a function of the batch alone. The order of features with equal counts is not, but no result
// depends on it.
//
// The lists come out in order without a sort. Each chunk of kChunkTiles tiles lists its entries by residue of the
// feature modulo kResidues, in the order of the rows. Then one thread block per residue goes through the entries of all
// chunks in order, once to count them and once to put slots into lists, and waits for no other thread block.
#pragma once

#include "bucket_plan.cuh"

namespace nnue {

constexpr int kDenseFeatures = 640, kDenseWords = kDenseFeatures / 32;
static_assert(kDenseFeatures % 32 == 0 && kDenseFeatures <= kBucketFeatures, "dense_bits has as many as a bucket");

struct UnbucketedSummary {
    int dense;        // number of dense ranks
    int first_empty;  // the rank of the first feature that no row has
};

struct UnbucketedLists {
    static constexpr int kBins = 512, kBinPitch = 16, kResidues = 256, kChunkTiles = 4;
    static constexpr int kChunkSlots = kChunkTiles * kTileRows;
    // sampled … left_out follow one another in memory and are zeroed together.
    uint32_t* sampled;   // scratch [num_unbucketed]: entries in the sample
    uint32_t* at_least;  // scratch [kBins, kBinPitch]: [bin, 0]: features whose count in the sample is in this bin or a
                         // higher one
    uint32_t* taken;     // scratch [kBins]: ranks given to dense features of each bin
    uint32_t* bins;      // scratch [kBins]: number of features that are not dense, by bin of their count
    uint32_t* ranked;    // scratch [kBins]: how many of them have a rank already
    uint32_t* allotted;  // scratch [1]: elements of `slots` given to lists
    int32_t* left_out_rows;      // [1]: number of regular rows left out of dense_bits
    uint8_t* left_out;           // [rows]: whether the row is one of them; they have a dense feature twice
    UnbucketedSummary* summary;  // [1]
    SlotList* by_rank;           // [num_unbucketed], by rank; of dense features only `feature` is used
    int32_t* rank;               // [num_unbucketed]
    int32_t* slots;              // [entries]: the lists
    uint2* dense_bits;           // [tiles, 768]: as BucketPlan::feature_bits, for dense features

    static size_t zeroed(const IndexRows& in) {
        return (size_t(in.num_unbucketed) + kBins * (kBinPitch + 3) + 2) * sizeof(uint32_t) + 2 * size_t(in.positions);
    }
    static __host__ __device__ int chunks(const IndexRows& in) {
        return (BucketPlan::tiles(in.positions, in.num_buckets) + kChunkTiles - 1) / kChunkTiles;
    }
    static size_t entries(const IndexRows& in) { return size_t(chunks(in)) * kChunkSlots * in.max_active; }
};

// More scratch of the kernels below. It is as large as the lists, so it is not part of the plan, which lives longer.
struct ListScratch {
    int16_t* dense_bit;  // [num_unbucketed]: word and bit of a dense feature in a row's bitmap; −1: not dense
    uint32_t* begins;    // [chunks, kResidues + 1]: where the entries of a residue begin among the chunk's keys
    uint32_t* keys;      // [chunks, kChunkSlots · max_active]: feature / kResidues, and slot within the chunk
    uint2* found;        // [num_unbucketed]: where its list begins, and its length
};

inline UnbucketedLists carve_unbucketed_lists(Carver& carver, const IndexRows& in) {
    const size_t tiles = BucketPlan::tiles(in.positions, in.num_buckets);
    UnbucketedLists lists{};
    if (in.num_unbucketed == 0) return lists;
    lists.sampled = reinterpret_cast<uint32_t*>(carver.take<char>("sampled", UnbucketedLists::zeroed(in)));
    lists.at_least = lists.sampled + in.num_unbucketed;
    lists.taken = lists.at_least + UnbucketedLists::kBins * UnbucketedLists::kBinPitch;
    lists.bins = lists.taken + UnbucketedLists::kBins;
    lists.ranked = lists.bins + UnbucketedLists::kBins;
    lists.allotted = lists.ranked + UnbucketedLists::kBins;
    lists.left_out_rows = reinterpret_cast<int32_t*>(lists.allotted + 1);
    lists.left_out = reinterpret_cast<uint8_t*>(lists.left_out_rows + 1);
    lists.summary = carver.take<UnbucketedSummary>("summary", 1);
    lists.by_rank = carver.take<SlotList>("by_rank", in.num_unbucketed);
    lists.rank = carver.take<int32_t>("rank", in.num_unbucketed);
    lists.slots = carver.take<int32_t>("slots", UnbucketedLists::entries(in));
    lists.dense_bits = carver.take<uint2>("dense_bits", tiles * kBucketFeatures);
    return lists;
}

inline ListScratch carve_list_scratch(Carver& carver, const IndexRows& in) {
    ListScratch scratch{};
    scratch.dense_bit = carver.take<int16_t>("dense_bit", in.num_unbucketed);
    scratch.begins =
        carver.take<uint32_t>("begins", size_t(UnbucketedLists::chunks(in)) * (UnbucketedLists::kResidues + 1));
    scratch.keys = carver.take<uint32_t>("keys", UnbucketedLists::entries(in));
    scratch.found = carver.take<uint2>("found", in.num_unbucketed);
    return scratch;
}

namespace unbucketed_lists {

// The bin of a count. Counts up to 15 have a bin each; the bins of larger ones are sixteenths of an octave.
__device__ __forceinline__ int bin_of_count(uint32_t count) {
    if (count < 16) return int(count);
    const int e = 31 - __clz(int(count));
    return 16 * (e - 3) + int(count >> (e - 4) & 15);
}

// Calls visit(base, features) for the entries of kBatch rows. These are number `first` and the following ones out of
// `count` rows, which are `step` apart in the batch. Each call has 2 · 32 entries per row: entry base + 32 · j +
// lane, or −1 if there is none or it is bucketed.
template <int kBatch, typename Visit>
__device__ __forceinline__ void for_each_unbucketed(const IndexRows& in, int first, int count, int step,
                                                    const Visit& visit) {
    const int lane = threadIdx.x % 32;
    bool open[kBatch];
    for (int r = 0; r < kBatch; ++r) open[r] = first + r < count;
    for (int base = 0; base < in.max_active; base += 64) {
        int features[kBatch][2];
        for (int r = 0; r < kBatch; ++r)
            for (int j = 0; j < 2; ++j) {
                const int k = base + 32 * j + lane;
                features[r][j] =
                    open[r] && k < in.max_active ? bucket_plan::row_pointer(in, (first + r) * step)[k] : -1;
            }
        bool any = false;
        for (int r = 0; r < kBatch; ++r) {
            for (int j = 0; j < 2; ++j) {
                int& feature = features[r][j];
                const unsigned ends = __ballot_sync(~0u, feature < 0);
                if (!open[r] || (ends & ((2u << lane) - 1)) != 0) feature = -1;  // it is past the end
                if (ends != 0) open[r] = false;
                // Bucketed features are skipped, and those that are too large, which the index check reports.
                if (feature < in.num_bucketed || feature >= in.num_bucketed + in.num_unbucketed) feature = -1;
            }
            any |= open[r];
        }
        visit(base, features);
        if (!any) break;
    }
}

// A sample of the batch: rows at equal distances, or all rows of a small batch.
struct Sample {
    int step, num_rows;
    uint32_t least;  // a feature with at least this many entries in it may be dense: one row in 256, measured
};
__host__ __device__ inline Sample sample_of(const IndexRows& in) {
    const int all = 2 * in.positions, step = all < 2 * 2048 ? 1 : all / 2048, num_rows = (all + step - 1) / step;
    return {step, num_rows, num_rows < 512 ? 1u : uint32_t(num_rows) / 256};
}

constexpr int kSampleThreads = 256, kSampleBatch = 2, kSampleRows = kSampleThreads / 32 * kSampleBatch;

// Counts the entries of each feature in the sample. The thread whose addition brings a feature's count into a new bin
// counts the feature in at_least.
__global__ void __launch_bounds__(kSampleThreads) sample_rows(IndexRows in, UnbucketedLists lists) {
    const Sample sample = sample_of(in);
    const int first = blockIdx.x * kSampleRows + threadIdx.x / 32 * kSampleBatch;
    for_each_unbucketed<kSampleBatch>(
        in, first, sample.num_rows, sample.step, [&](int, const int(&features)[kSampleBatch][2]) {
            uint32_t counts[2 * kSampleBatch];
            for (int i = 0; i < 2 * kSampleBatch; ++i) {
                const int feature = features[i / 2][i % 2];
                counts[i] = feature >= 0 ? atomicAdd(lists.sampled + (feature - in.num_bucketed), 1u) + 1 : 0;
            }
            for (int i = 0; i < 2 * kSampleBatch; ++i) {
                const int bin = bin_of_count(counts[i]);
                if (counts[i] >= sample.least && bin != bin_of_count(counts[i] - 1))
                    atomicAdd(lists.at_least + bin * UnbucketedLists::kBinPitch, 1u);
            }
        });
}

constexpr int kRankThreads = 512;
static_assert(kRankThreads == UnbucketedLists::kBins);

// Gives the first ranks to the most frequent features of the sample: to as many bins of them as fit into
// kDenseFeatures.
__global__ void __launch_bounds__(kRankThreads, 4)
    choose_dense(IndexRows in, UnbucketedLists lists, ListScratch scratch) {
    constexpr int kBins = UnbucketedLists::kBins;
    __shared__ int fewest;
    if (threadIdx.x == 0) fewest = kBins;
    __syncthreads();
    const int feature = blockIdx.x * kRankThreads + threadIdx.x;
    const uint32_t count = feature < in.num_unbucketed ? lists.sampled[feature] : 0;
    const bool may = int(threadIdx.x) >= bin_of_count(sample_of(in).least) &&
                     lists.at_least[threadIdx.x * UnbucketedLists::kBinPitch] <= kDenseFeatures;
    const unsigned who = __ballot_sync(~0u, may);
    if (threadIdx.x % 32 == 0 && who != 0) atomicMin(&fewest, int(threadIdx.x) + __ffs(int(who)) - 1);
    __syncthreads();
    const int least = fewest;  // there is always one, since the last bin has no features
    if (feature == 0) *lists.summary = {int(lists.at_least[least * UnbucketedLists::kBinPitch])};
    if (feature >= in.num_unbucketed) return;
    const int bin = bin_of_count(count);
    int bit = -1;
    if (bin >= least) {
        const int rank = int(lists.at_least[(bin + 1) * UnbucketedLists::kBinPitch] + atomicAdd(lists.taken + bin, 1u));
        bit = rank / 32 * 32 + bit_of_index(rank % 32);
    }
    scratch.dense_bit[feature] = int16_t(bit);
}

// Gives each lane that has an entry the next place of its cell, in the order of the lanes.
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
constexpr int kSplitRows = UnbucketedLists::kChunkSlots / kSplitWarps;
constexpr int kSplitBatch = 4, kSplitLoads = 3;  // rows whose first 96 entries are loaded together
constexpr int kPlaceBatch = 6;                   // entries that each lane loads at once
static_assert(kSplitThreads == UnbucketedLists::kResidues && kSplitThreads == UnbucketedLists::kChunkSlots);

struct SplitShared {
    int row[UnbucketedLists::kChunkSlots];    // the row of each slot
    int count[UnbucketedLists::kChunkSlots];  // their numbers of entries; later −1 if a dense feature is there twice
    // The bits of dense features of each slot. One more word avoids bank conflicts.
    uint32_t bits[UnbucketedLists::kChunkSlots][kDenseWords + 1];
    // How many entries of a residue a warp has; later the place of the next one.
    uint32_t places[kSplitWarps][UnbucketedLists::kResidues];
    int warp_sums[kSplitWarps];
};

// Each thread block takes a chunk: it writes the bits of dense features of its tiles, and lists the other unbucketed
// entries by residue, in the order of the slots. A row that has a dense feature twice is left out of the bits;
// irregular_rows.cuh adds it.
// long: loads of the next rows are in flight while the entries of these rows are sorted.
__global__ void __launch_bounds__(kSplitThreads, 4)
    split_rows(IndexRows in, BucketPlan plan, UnbucketedLists lists, ListScratch scratch) {
    constexpr int kResidues = UnbucketedLists::kResidues, kChunkSlots = UnbucketedLists::kChunkSlots;
    __shared__ SplitShared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int tiles = plan.tile_begin[in.num_buckets], first_tile = blockIdx.x * UnbucketedLists::kChunkTiles;
    const int first_slot = first_tile * kTileRows, own_tile = first_tile + int(threadIdx.x) / kTileRows;
    RowOrder own{first_slot + int(threadIdx.x), -1, 0, 0};
    if (own_tile < BucketPlan::tiles(in.positions, in.num_buckets)) {
        const RowOrder there = plan.order[first_slot + threadIdx.x];
        if (own_tile < tiles) own = there;
    }
    uint32_t* const begins = scratch.begins + size_t(blockIdx.x) * (kResidues + 1);
    if (first_tile >= tiles) {
        begins[threadIdx.x] = begins[threadIdx.x + 1] = 0;
        return;
    }
    const int own_slot = own.slot - first_slot;
    s.row[own_slot] = own.row;
    s.count[own_slot] = own.target >= 0 ? own.count : 0;
    const int slot_or_not = own.target >= 0 ? plan.row_slot[own.row] : 0;  // negative if the row is irregular
    for (int i = threadIdx.x; i < kChunkSlots * (kDenseWords + 1); i += kSplitThreads)
        reinterpret_cast<uint32_t*>(&s.bits)[i] = 0;
    for (int w = 0; w < kSplitWarps; ++w) s.places[w][threadIdx.x] = 0;
    __syncthreads();

    // Each warp takes a stretch of slots. It sets bits, and lists the other entries in the order of their slots in
    // memory that will later hold the lists.
    const size_t chunk_begin = size_t(blockIdx.x) * kChunkSlots * in.max_active;
    uint32_t* const listed =
        reinterpret_cast<uint32_t*>(lists.slots) + chunk_begin + size_t(warp) * kSplitRows * in.max_active;
    uint32_t num_listed = 0;
    int more = 0;  // the row's dense entries less its bits; more than 0 if it has a dense feature twice
    const auto row_at = [&](int slot) { return bucket_plan::row_pointer(in, s.row[slot]) + lane; };
    const auto bit_of = [&](int feature) {
        return unsigned(feature) < unsigned(in.num_unbucketed) ? int(scratch.dense_bit[feature]) : -2;
    };
    const auto visit = [&](int slot, int feature, int bit) {
        if (bit >= 0) atomicOr(&s.bits[slot][bit / 32], 1u << bit % 32), ++more;
        const unsigned others = __ballot_sync(~0u, bit == -1);
        if (bit == -1) {
            atomicAdd(&s.places[warp][feature % kResidues], 1u);
            listed[num_listed + __popc(others & ((1u << lane) - 1))] = uint32_t(feature) * kChunkSlots + slot;
        }
        num_listed += __popc(others);
    };
    int next[kSplitBatch][kSplitLoads];
    const auto load = [&](int slot) {
        for (int r = 0; r < kSplitBatch; ++r) {
            const int count = s.count[slot + r];
            const int32_t* from = row_at(slot + r);
            for (int j = 0; j < kSplitLoads; ++j)
                next[r][j] = 32 * j + lane < count ? from[32 * j] - in.num_bucketed : -1;
        }
    };
    const int warp_slot = warp * kSplitRows;
    load(warp_slot);
#pragma unroll 1
    for (int i = 0; i < kSplitRows; i += kSplitBatch) {
        int features[kSplitBatch][kSplitLoads], bits[kSplitBatch][kSplitLoads];
        for (int r = 0; r < kSplitBatch; ++r)
            for (int j = 0; j < kSplitLoads; ++j) {
                features[r][j] = next[r][j];
                bits[r][j] = bit_of(features[r][j]);
            }
        if (i + kSplitBatch < kSplitRows) load(warp_slot + i + kSplitBatch);
        for (int r = 0; r < kSplitBatch; ++r) {
            const int slot = warp_slot + i + r, count = s.count[slot];
            for (int j = 0; j < kSplitLoads; ++j)
                if (32 * j < count) visit(slot, features[r][j], bits[r][j]);
#pragma unroll 1
            for (int base = 32 * kSplitLoads; base < count; base += 32) {
                const int feature = base + lane < count ? row_at(slot)[base] - in.num_bucketed : -1;
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
        if (!irregular) lists.left_out[own.row] = 1, atomicAdd(lists.left_out_rows, 1);
    }

    // Each thread takes a residue and gives places to its entries, one warp after the other.
    int counts[kSplitWarps], count = 0;
    for (int w = 0; w < kSplitWarps; ++w) count += counts[w] = int(s.places[w][threadIdx.x]);
    int begin = bucket_plan::sum_before(count, s.warp_sums, warp, lane, [] { __syncthreads(); });
    begins[threadIdx.x] = begin;
    if (threadIdx.x == kResidues - 1) begins[kResidues] = begin + count;
    for (int w = 0; w < kSplitWarps; ++w) {
        s.places[w][threadIdx.x] = begin;
        begin += counts[w];
    }
    __syncthreads();
    uint32_t* const keys = scratch.keys + chunk_begin;
#pragma unroll 1
    for (uint32_t base = 0; base < num_listed; base += 32 * kPlaceBatch) {
        uint32_t entries[kPlaceBatch];
        for (int i = 0; i < kPlaceBatch; ++i)
            entries[i] = base + 32 * i + lane < num_listed ? __ldcg(listed + base + 32 * i + lane) : ~0u;
        for (int i = 0; i < kPlaceBatch; ++i) {
            if (base + 32 * i >= num_listed) break;
            const uint32_t feature = entries[i] / kChunkSlots, slot = entries[i] % kChunkSlots;
            const bool has = entries[i] != ~0u;
            const uint32_t place = next_place(s.places[warp], feature % kResidues, has);
            if (has) keys[place] = feature / kResidues * kChunkSlots + slot;
        }
    }
#pragma unroll 1
    for (int item = warp; item < UnbucketedLists::kChunkTiles * kDenseWords; item += kSplitWarps) {
        const int tile = item / kDenseWords, word = item % kDenseWords;
        if (first_tile + tile >= tiles) break;
        const int slot = tile * kTileRows + index_of_bit(lane);
        lists.dense_bits[size_t(first_tile + tile) * kBucketFeatures + word * 32 + index_of_bit(lane)] = {
            bucket_plan::warp_transpose(s.bits[slot][word], lane),
            bucket_plan::warp_transpose(s.bits[slot + 32][word], lane)};
    }
}

// In a batch of 16,384 positions each warp has 28 chunks, and usually loads all their entries at once.
constexpr int kListWarps = 5, kListThreads = 32 * kListWarps, kListFeatures = 256, kListAhead = 10;

// Shared memory of make_lists.
struct ListShared {
    uint32_t places[kListWarps][kListFeatures];  // the number of each warp's slots; later the place of the next one
    int warp_sums[kListWarps];
    uint32_t begin;
};

// How a warp goes through the entries of one residue in a range of chunks, in order: 32 chunks at a time, with
// kListAhead entries per lane. The first entries stay in registers for the second pass.
struct ResidueWalk {
    const ListScratch& scratch;
    const size_t pitch;  // of a chunk's keys
    const int residue, first, end;

    struct Chunks {
        uint32_t begin, until, all;  // of a lane's chunk: where it begins, less the entries before it; entries up to
                                     // its end; entries of all 32 chunks
    };
    struct Entries {
        uint32_t keys[kListAhead];  // ~0: none
        int chunks[kListAhead];
    };

    __device__ __forceinline__ Chunks find(int from) const {
        const int lane = threadIdx.x % 32;
        uint32_t begin = 0, count = 0;
        if (from + lane < end) {
            const uint32_t* begins = scratch.begins + size_t(from + lane) * (UnbucketedLists::kResidues + 1) + residue;
            begin = begins[0], count = begins[1] - begin;
        }
        const uint32_t until = bucket_plan::inclusive_sum(count, lane);
        return {begin - (until - count), until, __shfl_sync(~0u, until, 31)};
    }
    __device__ __forceinline__ void load(Entries& entries, const Chunks& chunks, int from, uint32_t base) const {
        for (int i = 0; i < kListAhead; ++i) {
            const uint32_t number = base + 32 * i + threadIdx.x % 32;
            int which = 0;  // which of these chunks has it
            for (int step = 16; step > 0; step /= 2)
                which += __shfl_sync(~0u, chunks.until, which + step - 1) <= number ? step : 0;
            const uint32_t place = __shfl_sync(~0u, chunks.begin, which) + number;
            entries.chunks[i] = from + which;
            entries.keys[i] = number < chunks.all ? scratch.keys[entries.chunks[i] * pitch + place] : ~0u;
        }
    }
    template <typename Visit>
    __device__ __forceinline__ void visit_all(const Entries& entries, uint32_t left, const Visit& visit) const {
        for (int i = 0; i < kListAhead; ++i)
            if (32 * i < left) visit(entries.chunks[i], entries.keys[i]);
    }
    // Calls visit(chunk, key) for 32 entries at once, with key ~0 if there is none.
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

// Each thread block makes the lists of 256 features of one residue, which usually are all of them.
__global__ void __launch_bounds__(kListThreads, 6)
    make_lists(IndexRows in, UnbucketedLists lists, ListScratch scratch) {
    constexpr int kResidues = UnbucketedLists::kResidues, kChunkSlots = UnbucketedLists::kChunkSlots;
    __shared__ ListShared s;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int residue = blockIdx.x, first_feature = blockIdx.y * kListFeatures;  // feature / kResidues
    const int chunks = UnbucketedLists::chunks(in), each = (chunks + kListWarps - 1) / kListWarps, first = warp * each;
    const ResidueWalk walk{scratch, size_t(kChunkSlots) * in.max_active, residue, first, min(first + each, chunks)};
    const ResidueWalk::Chunks first_chunks = walk.find(first);
    ResidueWalk::Entries first_entries;
    walk.load(first_entries, first_chunks, first, 0);
    for (int i = threadIdx.x; i < kListWarps * kListFeatures; i += kListThreads)
        reinterpret_cast<uint32_t*>(&s.places)[i] = 0;
    __syncthreads();
    walk(first_chunks, first_entries, [&](int, uint32_t key) {
        const uint32_t local = key / kChunkSlots - first_feature;
        if (key != ~0u && local < kListFeatures) atomicAdd(&s.places[warp][local], 1u);
    });
    __syncthreads();

    // Each thread takes two features.
    uint32_t counts[2] = {};
    int features[2];
    for (int j = 0; j < 2; ++j) {
        const int local = 2 * threadIdx.x + j;
        const long long number = (long long)(first_feature + local) * kResidues + residue;
        features[j] = local < kListFeatures && number < in.num_unbucketed ? int(number) : -1;
        if (features[j] < 0) continue;
        for (int w = 0; w < kListWarps; ++w) counts[j] += s.places[w][local];
    }
    const int before =
        bucket_plan::sum_before(int(counts[0] + counts[1]), s.warp_sums, warp, lane, [] { __syncthreads(); });
    if (threadIdx.x == kListThreads - 1) s.begin = before > 0 ? atomicAdd(lists.allotted, uint32_t(before)) : 0;
    for (int j = 0; j < 2; ++j) {
        // Dense features have no entries here, and they must not be counted in bin 0.
        const bool listed = features[j] >= 0 && (counts[j] > 0 || scratch.dense_bit[features[j]] < 0);
        const int bin = listed ? bin_of_count(counts[j]) : -1;
        const unsigned same = __match_any_sync(~0u, bin);
        if (bin >= 0 && (same & ((1u << lane) - 1)) == 0) atomicAdd(lists.bins + bin, unsigned(__popc(same)));
    }
    __syncthreads();
    uint32_t place = s.begin + before;
    for (int j = 0; j < 2; ++j) {
        if (features[j] < 0) break;
        scratch.found[features[j]] = {place, counts[j]};
        uint32_t next = place;
        for (int w = 0; w < kListWarps; ++w) {
            const uint32_t of_warp = s.places[w][2 * threadIdx.x + j];
            s.places[w][2 * threadIdx.x + j] = next;
            next += of_warp;
        }
        place += counts[j];
    }
    __syncthreads();
    walk(first_chunks, first_entries, [&](int chunk, uint32_t key) {
        const uint32_t local = key / kChunkSlots - first_feature;
        const bool has = key != ~0u && local < kListFeatures;
        const uint32_t to = next_place(s.places[warp], local, has);
        if (has) lists.slots[to] = chunk * kChunkSlots + int(key % kChunkSlots);
    });
}

// Ranks the lists by their length, after the dense features. Within a bin the features of a thread block stay
// together.
__global__ void __launch_bounds__(kRankThreads, 4)
    rank_lists(IndexRows in, UnbucketedLists lists, ListScratch scratch) {
    constexpr int kBins = UnbucketedLists::kBins;
    // How many of this thread block's features are in each bin; later the rank of the first of them.
    __shared__ uint32_t mine[kBins];
    __shared__ int warp_sums[kRankThreads / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, dense = lists.summary->dense;
    const int feature = blockIdx.x * kRankThreads + threadIdx.x;
    const bool exists = feature < in.num_unbucketed;
    const uint2 found = exists ? scratch.found[feature] : uint2{0, 0};
    const int bit = exists ? scratch.dense_bit[feature] : 0;
    const int bin = kBins - 1 - int(threadIdx.x);  // longest lists first
    const int features = int(lists.bins[bin]);
    mine[threadIdx.x] = 0;
    __syncthreads();
    const int own_bin = bit < 0 ? bin_of_count(found.y) : -1;
    const unsigned same = __match_any_sync(~0u, own_bin);
    uint32_t in_bin = 0;
    if (own_bin >= 0 && (same & ((1u << lane) - 1)) == 0) in_bin = atomicAdd(&mine[own_bin], unsigned(__popc(same)));
    in_bin = __shfl_sync(~0u, in_bin, __ffs(int(same)) - 1) + __popc(same & ((1u << lane) - 1));
    const int first = dense + bucket_plan::sum_before(features, warp_sums, warp, lane, [] { __syncthreads(); });
    if (mine[bin] > 0) mine[bin] = first + atomicAdd(lists.ranked + bin, mine[bin]);
    if (blockIdx.x == 0 && bin == 1) lists.summary->first_empty = first + features;
    __syncthreads();
    if (!exists) return;
    const int rank = bit >= 0 ? bit / 32 * 32 + index_of_bit(bit % 32) : int(mine[own_bin] + in_bin);
    lists.rank[feature] = rank;
    lists.by_rank[rank] = {feature, found.x, found.y};
}

// Makes everything about unbucketed features that the backward needs, from the rest of the plan.
inline void build(const IndexRows& in, const BucketPlan& plan, const UnbucketedLists& lists, const ListScratch& scratch,
                  cudaStream_t stream) {
    bucket_plan::clear(lists.sampled, UnbucketedLists::zeroed(in), stream);  // a piece ends at a multiple of 256 bytes
    const int rank_grid = (in.num_unbucketed + kRankThreads - 1) / kRankThreads;
    constexpr int kResidueFeatures = UnbucketedLists::kResidues * kListFeatures;
    cuda::launch("sample_rows", sample_rows, (sample_of(in).num_rows + kSampleRows - 1) / kSampleRows, kSampleThreads,
                 0, stream, in, lists);
    cuda::launch("choose_dense", choose_dense, rank_grid, kRankThreads, 0, stream, in, lists, scratch);
    cuda::launch("split_rows", split_rows, UnbucketedLists::chunks(in), kSplitThreads, 0, stream, in, plan, lists,
                 scratch);
    const dim3 residues(UnbucketedLists::kResidues, (in.num_unbucketed + kResidueFeatures - 1) / kResidueFeatures);
    cuda::launch("make_lists", make_lists, residues, kListThreads, 0, stream, in, lists, scratch);
    cuda::launch("rank_lists", rank_lists, rank_grid, kRankThreads, 0, stream, in, lists, scratch);
}

}  // namespace unbucketed_lists
}  // namespace nnue
