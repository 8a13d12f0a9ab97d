// The plan of a batch: its index rows grouped by king bucket, and each bucket's features ranked by frequency. It is a
// function of the batch alone. docs/kernels.md explains its words: row, slot, tile, rank, irregular.
//
// `clear_counts` clears the counters. `count_rows` reads the batch in chunks of 256 rows, finds the bucket of each row,
// counts rows and features, and lists the rows of each chunk by bucket. In `make_tiles` each thread block makes one or
// a few tiles: it ranks the features of their bucket, finds their rows in those lists, and writes all else.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../carver.cuh"
#include "../common.cuh"

namespace nnue {

// Launches a kernel that may start while the kernel before it is still finishing (ptx::launch_early). `most`: the most
// dynamic shared memory of any of its launches, since the kernel has this attribute for all of them; −1 for the
// defaults.
template <typename... Parameters, typename... Arguments>
void start(const char* name, void (*kernel)(Parameters...), int most, dim3 grid, int threads, size_t shared,
           cudaStream_t stream, const Arguments&... arguments) {
    if (most >= 0) cuda::check_cuda(ptx::set_shared_memory(kernel, most), name);
    cuda::launch_behind(true, name, kernel, grid, threads, shared, stream, arguments...);
}

constexpr int kBucketFeatures = 768;                // the most features that a bucket may have
constexpr int kBucketWords = kBucketFeatures / 32;  // of the bitmap of one row
constexpr int kTileRows = 64;                       // slots per tile
constexpr int kSectionFeatures = 384;  // the ranks of a *section*, which the weight gradient's product sums at once
constexpr int kLastDenseClass = 16;    // features of this frequency class and of more frequent ones go into the product

struct IndexRows {
    const int32_t* white;          // [positions, max_active]
    const int32_t* black;          // [positions, max_active]
    const uint8_t* black_to_move;  // [positions]
    int positions;
    int max_active;
    int num_bucketed;    // features [0, num_bucketed) lie in king buckets
    int num_unbucketed;  // the features after those; a row may have any of them
    int bucket_size;
    int num_buckets;
    int weight_bytes;  // of each weight that the plan is made for: 4 (fp32) or 2
};

// A list of slots that have one feature.
struct SlotList {
    int feature;  // counted from the first unbucketed feature, if it is one of those
    uint32_t begin, count;
};

// Where the lists of a bucket's rare features begin in `rare_slots`, if the bucket begins with this tile: there is room
// for three entries per row. Either each of a bucket's 768 features is in at most one row in 256, or all of them
// together have fewer than two entries per row.
__host__ __device__ inline int rare_place(int tile) {
    return kBucketFeatures * kTileRows / 256 * tile;
}

// A row as the forward reads it: its slot, where its sums go, its number in the batch, and how many entries it has. The
// rows of a tile are in order, those with the most entries first. Padding comes last, with target −1.
struct alignas(16) RowOrder {
    int slot, target;
    int row, count;
};

struct BucketPlan {
    int32_t* slot_target;  // [slots]: 2 · position + (0 for the side to move, 1 for the other side); −1 for padding
    int32_t* tile_begin;   // [num_buckets + 1]
    int32_t* ranked;  // [num_buckets, 768]: the features of a bucket, most frequent first; ~feature where no row has it
    int32_t* dense;   // [num_buckets]: ranks that go into the product, a multiple of 64; used ones after them are rare
    int32_t* used;    // [num_buckets]: how many features occur in some row; they have the first ranks
    int32_t* row_slot;    // [rows]: the slot of a row; ~slot where the row is irregular
    int32_t* irregular;   // [1]: the number of irregular rows
    uint2* feature_bits;  // [tiles, 768], by rank: bit p of (x, y) stands for slots index_of_bit(p) and 32 +
                          // index_of_bit(p)
    SlotList* rare;       // [num_buckets · 768]: the features that the backward's products leave out, bucket by bucket
    int* rare_slots;      // the slots of their lists
    int* num_rare;        // [1]: the number of these features

    RowOrder* order;  // [slots]

    int chunks;               // of kChunkRows rows
    int span_chunks;          // chunks per span; there are at most kMaxSpans spans
    uint32_t bucket_inverse;  // feature · bucket_inverse >> 32 is the bucket of a feature, exact below 2^18 features
    uint16_t* listed;         // scratch [chunks, kChunkRows]: a chunk's rows by bucket: number in the chunk, and flags
    uint32_t*
        chunk_rows;   // scratch [num_buckets, chunks]: rows of the bucket; from bit 16 on, where they begin in `listed`
    int32_t* counts;  // [num_buckets, 768]: the entries of each feature, by its number in the bucket
    int32_t* totals;  // scratch [num_buckets]: rows. counts, totals and irregular are neighbours in memory

    static constexpr int kChunkRows = 256, kMaxSpans = 512;
    static constexpr int kIrregularRow = 0x8000, kSecondSide = 0x4000;

    static __host__ __device__ int tiles(int positions, int num_buckets) {
        return (2 * positions + kTileRows - 1) / kTileRows + num_buckets;
    }
    static __host__ __device__ size_t zeroed(int num_buckets) {
        return size_t(num_buckets) * (kBucketFeatures + 1) + 1;
    }
};

inline BucketPlan carve_bucket_plan(Carver& carver, const IndexRows& in) {
    const size_t tiles = BucketPlan::tiles(in.positions, in.num_buckets), slots = tiles * kTileRows;
    const size_t row_count = 2 * size_t(in.positions), buckets = in.num_buckets;
    BucketPlan plan{};
    plan.chunks = int((row_count + BucketPlan::kChunkRows - 1) / BucketPlan::kChunkRows);
    plan.span_chunks = (plan.chunks + BucketPlan::kMaxSpans - 1) / BucketPlan::kMaxSpans;
    plan.bucket_inverse = uint32_t(((uint64_t(1) << 32) + in.bucket_size - 1) / std::max(in.bucket_size, 2));
    plan.slot_target = carver.take<int32_t>("slot_target", slots);
    plan.tile_begin = carver.take<int32_t>("tile_begin", buckets + 1);
    plan.ranked = carver.take<int32_t>("ranked", buckets * kBucketFeatures);
    plan.dense = carver.take<int32_t>("dense", buckets);
    plan.used = carver.take<int32_t>("used", buckets);
    plan.row_slot = carver.take<int32_t>("row_slot", row_count);
    plan.feature_bits = carver.take<uint2>("feature_bits", tiles * kBucketFeatures);
    plan.rare = carver.take<SlotList>("rare", buckets * kBucketFeatures);
    plan.rare_slots = carver.take<int>("rare_slots", rare_place(int(tiles)));
    plan.num_rare = carver.take<int>("num_rare", 1);
    plan.order = carver.take<RowOrder>("order", slots);
    plan.listed = carver.take<uint16_t>("listed", size_t(plan.chunks) * BucketPlan::kChunkRows);
    plan.chunk_rows = carver.take<uint32_t>("chunk_rows", buckets * plan.chunks);
    plan.counts = carver.take<int32_t>("counts", BucketPlan::zeroed(in.num_buckets));
    plan.totals = plan.counts + buckets * kBucketFeatures;
    plan.irregular = plan.totals + buckets;
    return plan;
}

// The bit of a bitmap word where index i (0…31) is stored. Of 32 consecutive k, wgmma takes the pairs (16 s + 8 h + 2
// t, + 1) in lane t of a quad. The two bits of a pair are 16 apart, so one `and` and one multiplication make the pair
// of 16-bit floats. A lane finds its four pairs at bits 4 t … 4 t + 3.
__host__ __device__ constexpr int bit_of_index(int i) {
    return ((i & 1) << 4) | (((i >> 1) & 3) << 2) | (((i >> 4) & 1) << 1) | ((i >> 3) & 1);
}
__host__ __device__ constexpr int index_of_bit(int p) {
    return ((p >> 4) & 1) | (((p >> 2) & 3) << 1) | (((p >> 1) & 1) << 4) | ((p & 1) << 3);
}

namespace bucket_plan {

constexpr int kClearThreads = 256;
constexpr int kCountThreads = 1024;
constexpr int kListThreads = BucketPlan::kChunkRows, kListWarps = kListThreads / 32;
constexpr int kSharedBuckets = 64;  // up to this number of buckets features are counted in shared memory
constexpr int kTileThreads = 256, kTileWarps = kTileThreads / 32, kTileBlocks = 4;  // per multiprocessor
constexpr int kHalf = kTileThreads / 2, kRanksEach = kBucketFeatures / kHalf;

__device__ __forceinline__ const int32_t* row_pointer(const IndexRows& in, int row) {
    return row < in.positions ? in.white + size_t(row) * in.max_active
                              : in.black + size_t(row - in.positions) * in.max_active;
}

// For groups of kLanes lanes: the sum of x up to lane `lane` of the group, and over all of its lanes.
template <int kLanes = 32, typename T>
__device__ __forceinline__ T inclusive_sum(T x, int lane) {
    for (int d = 1; d < kLanes; d *= 2) {
        const T other = __shfl_up_sync(~0u, x, d, kLanes);
        if (lane >= d) x += other;
    }
    return x;
}
template <int kLanes>
__device__ __forceinline__ int group_sum(int x) {
    for (int d = 1; d < kLanes; d *= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

using ptx::keep;

// Loads from an address in shared memory, without a branch. Gives `otherwise` if the condition is false.
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

// For several lanes that read one row, kEach entries each at a time: loads entries first … first + kEach − 1, and gives
// −1 for entries that do not exist.
template <int kEach>
__device__ __forceinline__ void load_entries(int (&entries)[kEach], const IndexRows& in, bool has_row, int row,
                                             int first) {
    const int32_t* from = row_pointer(in, has_row ? row : 0) + first;
    const bool aligned = (reinterpret_cast<uintptr_t>(from) | in.max_active * sizeof(int32_t)) % 16 == 0;
    const int there = has_row ? in.max_active - first : 0;
    if (there >= kEach && aligned) {
        for (int i = 0; i < kEach; i += 4) {
            const int4 four = *reinterpret_cast<const int4*>(from + i);
            entries[i] = four.x, entries[i + 1] = four.y, entries[i + 2] = four.z, entries[i + 3] = four.w;
        }
    } else {
        for (int i = 0; i < kEach; ++i) entries[i] = i < there ? from[i] : -1;
    }
}

// How far a row's entries reach, for kLanes lanes that hold kEach entries of it each. before: no lane of the row in
// front of this one holds the end. all: no lane of the row does.
struct Reach {
    bool before, all;
};
template <int kLanes, int kEach>
__device__ __forceinline__ Reach reach(const int (&entries)[kEach], int lane) {
    int any_end = 0;
    for (int j = 0; j < kEach; ++j) any_end |= entries[j];
    const unsigned full = __ballot_sync(~0u, any_end >= 0) >> lane / kLanes * kLanes & ((1u << kLanes) - 1);
    const unsigned before = (1u << lane % kLanes) - 1;
    return {(full & before) == before, full == (1u << kLanes) - 1};
}

__global__ void __launch_bounds__(kClearThreads) clear_counts(int32_t* counts, int count) {
    ptx::let_next_kernel_start();
    for (int i = blockIdx.x * kClearThreads + threadIdx.x; i < count; i += gridDim.x * kClearThreads) counts[i] = 0;
}

// Clears pieces of memory, up to the next multiple of four bytes. An ordinary launch: a kernel behind it starts early
// and may write before it waits, so this one must not start before earlier kernels are done with what that one writes.
// Not a memset: in a CUDA graph it does not get the priority of the stream, and waits until another kernel's last
// thread block has begun.
inline void clear(void* memory, size_t bytes, cudaStream_t stream) {
    const int count = int((bytes + 3) / 4);
    const int most = cuda::multiprocessors(cuda::current_device());
    cuda::launch("clear_counts", clear_counts, std::min((count + kClearThreads - 1) / kClearThreads, most),
                 kClearThreads, 0, stream, static_cast<int32_t*>(memory), count);
}

// The sum of x over the threads in front of this one. `warp_sums` has one element per warp; `wait` is a barrier of all
// these threads.
template <int kWarps, typename Wait>
__device__ __forceinline__ int sum_before(int x, int (&warp_sums)[kWarps], int warp, int lane, const Wait& wait) {
    const int inclusive = inclusive_sum(x, lane);
    if (lane == 31) warp_sums[warp] = inclusive;
    wait();
    int sum = inclusive - x;
    for (int w = 0; w < kWarps; ++w) sum += w < warp ? warp_sums[w] : 0;
    return sum;
}

// Shared memory of count_rows for the chunk whose rows are being listed.
struct ChunkShared {
    uint16_t found[2][BucketPlan::kChunkRows];  // of two chunks: each row's bucket, and whether it is irregular
    uint16_t places[kListWarps][kListThreads];  // how many rows of each bucket a warp has; then where they go
    int warp_sums[kListWarps];
};

static_assert(kSharedBuckets * kBucketFeatures * sizeof(int) + sizeof(ChunkShared) <= 227 * 1024,
              "the counters of count_rows must fit in the shared memory of a thread block");

// Lists the rows of a chunk by bucket, in their order. Threads 0 … kListThreads − 1 take one row each. Thread b returns
// how many rows bucket b has.
__device__ __forceinline__ int list_chunk(const IndexRows& in, const BucketPlan& out, ChunkShared& s, int chunk,
                                          int found) {
    const auto wait = ptx::named_barrier<1, kListThreads>;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32,
              row = chunk * BucketPlan::kChunkRows + thread;
    const bool has_row = row < 2 * in.positions, is_black = row >= in.positions;
    const bool side = has_row && in.black_to_move[row - (is_black ? in.positions : 0)] != 0;
    wait();  // until the places of the chunk before have been read
    for (int w = 0; w < kListWarps; ++w) s.places[w][thread] = 0;
    const int bucket = has_row ? found & 0xff : -1;
    const unsigned same = __match_any_sync(~0u, bucket);
    const int before = __popc(same & ((1u << lane) - 1));
    wait();
    if (has_row && before == 0) s.places[warp][bucket] = uint16_t(__popc(same));
    wait();
    int count = 0, counts[kListWarps];
    for (int w = 0; w < kListWarps; ++w) count += counts[w] = s.places[w][thread];
    int begin = sum_before(count, s.warp_sums, warp, lane, wait);
    if (thread < in.num_buckets) out.chunk_rows[size_t(thread) * out.chunks + chunk] = uint32_t(count | begin << 16);
    for (int w = 0; w < kListWarps; ++w) {
        s.places[w][thread] = uint16_t(begin);
        begin += counts[w];
    }
    wait();
    if (has_row)
        out.listed[size_t(chunk) * BucketPlan::kChunkRows + s.places[warp][bucket] + before] =
            uint16_t(thread | (found & BucketPlan::kIrregularRow) | (side != is_black ? BucketPlan::kSecondSide : 0));
    return count;
}

// Finds the bucket of each row, lists the rows of each chunk by bucket, and counts the entries of each feature.
// Irregular rows are counted as well, since only make_tiles finds those that have a feature twice.
// long: entries of the next rows are loaded while those of these rows are counted, in the same registers.
template <bool kShared>
__global__ void __launch_bounds__(kCountThreads, 1) count_rows(IndexRows in, BucketPlan out) {
    __shared__ ChunkShared s;
    extern __shared__ __align__(16) int counts[];  // [num_buckets, 768] if kShared
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = 2 * in.positions;
    constexpr int kLanes = kCountThreads / BucketPlan::kChunkRows, kEach = 8;
    const int in_chunk = threadIdx.x / kLanes, first_lane = lane / kLanes * kLanes;
    const int cells = kShared ? in.num_buckets * kBucketFeatures : 0;
    const uint32_t shared_counts = keep(ptx::shared_address(counts));
    ptx::let_next_kernel_start();

    int chunk = blockIdx.x, next[kEach];
    const auto load_next = [&] {
        const int row = chunk * BucketPlan::kChunkRows + in_chunk;
        load_entries(next, in, chunk < out.chunks && row < rows, row, lane % kLanes * kEach);
    };
    load_next();
    for (int i = threadIdx.x; i < cells / 4; i += kCountThreads) reinterpret_cast<int4*>(counts)[i] = {0, 0, 0, 0};
    __syncthreads();
    if constexpr (!kShared) ptx::wait_for_kernels_before();

    int total = 0, irregular = 0;  // rows of this thread's bucket, and irregular ones among this thread's rows
    for (int parity = 0; chunk < out.chunks; parity ^= 1) {
        const int chunk_now = chunk, row = chunk * BucketPlan::kChunkRows + in_chunk;
        int entries[kEach];
        for (int j = 0; j < kEach; ++j) entries[j] = next[j];
        chunk += gridDim.x;
        load_next();
        int bucket = -1;
        bool bad = false, open = row < rows;
        for (int base = 0;;) {
            const auto [before, goes_on] = reach<kLanes>(entries, lane);
            if (!before) entries[0] = -1;
            int first =
                unsigned(entries[0]) < unsigned(in.num_bucketed) ? entries[0] : INT32_MAX;  // the first bucketed one
            if (entries[0] >= in.num_bucketed) {
                bool alive = true;
                for (int j = 1; j < kEach; ++j) {
                    alive = alive && entries[j] >= 0;
                    if (alive && entries[j] < in.num_bucketed) first = min(first, entries[j]), alive = false;
                }
            }
            const unsigned have = __ballot_sync(~0u, first != INT32_MAX) >> first_lane & 15;
            first = __shfl_sync(~0u, first, first_lane + __ffs(int(have | 16)) - 1);
            if (bucket < 0 && have != 0)
                bucket = in.bucket_size == 1 ? first : int(__umulhi(uint32_t(first), out.bucket_inverse));
            const int first_feature = keep(bucket * in.bucket_size);
            // The last bucket may have fewer features than the others.
            const unsigned features = keep(bucket < 0 ? 0 : min(in.bucket_size, in.num_bucketed - first_feature));
            const uint32_t features_of = keep(shared_counts + bucket * (kBucketFeatures * 4));
            bool others = false, alive = true;
            for (int j = 0; j < kEach; ++j) {
                const int local = entries[j] - first_feature;
                alive = alive && entries[j] >= 0;
                const bool inside = alive && unsigned(local) < features;
                others |= alive && !inside;
                if (inside) {
                    if constexpr (kShared)
                        shared_increment(features_of + local * 4);
                    else
                        atomicAdd(out.counts + bucket * kBucketFeatures + local, 1);
                }
            }
            if (others) {
                alive = true;
                for (int j = 0; j < kEach; ++j) {
                    alive = alive && entries[j] >= 0;
                    bad |= alive && entries[j] < in.num_bucketed && unsigned(entries[j] - first_feature) >= features;
                }
            }
            open = open && goes_on;
            base += kLanes * kEach;
            if (base >= in.max_active || !__any_sync(~0u, open)) break;
            load_entries(entries, in, open, row, base + lane % kLanes * kEach);
        }
        const bool is_irregular = (__ballot_sync(~0u, bad) >> first_lane & 15) != 0;
        if (lane == first_lane)
            s.found[parity][in_chunk] = uint16_t(max(bucket, 0) | (is_irregular ? BucketPlan::kIrregularRow : 0));
        __syncthreads();
        // These warps list while the others read the next chunk, or add up the counts at the end.
        if (warp < kListWarps) {
            const int found = s.found[parity][threadIdx.x];
            if (chunk_now * BucketPlan::kChunkRows + int(threadIdx.x) < rows)
                irregular += (found & BucketPlan::kIrregularRow) != 0;
            total += list_chunk(in, out, s, chunk_now, found);
        }
    }
    if constexpr (kShared) ptx::wait_for_kernels_before();
    if (warp < kListWarps) {
        if (total > 0) atomicAdd(out.totals + threadIdx.x, total);
        irregular = __reduce_add_sync(~0u, irregular);
        if (lane == 0 && irregular > 0) atomicAdd(out.irregular, irregular);
    } else {
        // One atomic adds two counts. Each thread block begins at another bucket, so that they seldom add to the same
        // address.
        const uint2* pairs = reinterpret_cast<const uint2*>(counts);
        auto* to = reinterpret_cast<unsigned long long*>(out.counts);
        const int first = int(blockIdx.x % unsigned(in.num_buckets)) * (kBucketFeatures / 2);
#pragma unroll 4
        for (int i = threadIdx.x - kListThreads; i < cells / 2; i += kCountThreads - kListThreads) {
            const int pair = i + first < cells / 2 ? i + first : i + first - cells / 2;
            const uint2 two = pairs[pair];
            if ((two.x | two.y) != 0) atomicAdd(to + pair, two.x | (unsigned long long)two.y << 32);
        }
    }
}

// Bit j of lane i becomes bit i of lane j.
__device__ __forceinline__ uint32_t warp_transpose(uint32_t x, int lane) {
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

// How frequent a feature is in its bucket, in half octaves. Classes 0 … 16 are the features of at least one row in 256;
// the last class has the features that no row has.
constexpr int kClasses = 32;
__device__ __forceinline__ int frequency_class(int count, float rows_in_256_each) {
    if (count == 0) return kClasses - 1;
    const float rows_in_256 = float(count) * rows_in_256_each;
    return max(0, min(kClasses - 2, 270 - int(__float_as_uint(rows_in_256) >> 22)));
}

static_assert(kClasses * kBucketWords == kBucketFeatures && kRanksEach * kHalf == kBucketFeatures &&
              kHalf >= kTileRows);

// The element of TileShared::rank_of for a rank: from bit 20 on four times the rank, from bit 8 on four times its word
// in a bitmap (both as byte offsets), in the low bits its bit in the word.
__device__ __forceinline__ uint32_t rank_entry(int rank) {
    return uint32_t(rank) << 22 | uint32_t(rank / 32) << 10 | uint32_t(bit_of_index(rank % 32));
}
constexpr uint32_t kNowhere = uint32_t(kBucketFeatures) << 22;  // larger than the entry of any feature

// The number of spans of chunks, rounded up to a power of two; the last ones may be empty.
__host__ __device__ inline int spans_of(const BucketPlan& plan) {
    int spans = 1;
    while (spans * plan.span_chunks < plan.chunks) spans *= 2;
    return spans;
}

constexpr int kBitsPitch = kBucketFeatures + 32, kRowPitch = kBucketWords + 4;

// Shared memory of make_tiles.
struct TileShared {
    uint64_t halves[2];  // barriers of the two halves of the threads
    int warp_sums[2][kHalf / 32];
    int rows;  // of the bucket
    int rare_entries;
    // [kClasses, kBucketWords]: how many of 32 features are of the class; then how many features come before them.
    __align__(16) uint32_t cells[kBucketFeatures];
    __align__(16) uint32_t rank_of[kBucketFeatures];
    int row[kTileRows];  // of a slot; −1 if there is none
    int target[kTileRows];
    uint16_t listed[kTileRows];         // the row's flags
    __align__(16) int keys[kTileRows];  // the slots are ordered by these, which are made of length and slot
    // feature_bits, and for each row its bits by rank. Both have spare room, to which lanes without an entry write.
    __align__(16) uint32_t bits[2][kBitsPitch];
    __align__(16) uint32_t rank_bits[kTileRows * kRowPitch];
};

// Ranks the features of a bucket by class, and within a class by their number. The second half of the threads does
// this. In chess an eighth of a bucket's features has nearly nine tenths of the entries, and a quarter of the features
// has none. A second section is worth its product only if otherwise at least two entries per row would have to be
// gathered.
template <typename Wait>
__device__ __forceinline__ void rank_bucket(const BucketPlan& out, TileShared& s, int bucket, int tiles, bool tells,
                                            const Wait& wait) {
    const int thread = int(threadIdx.x) - kHalf, warp = thread / 32, lane = thread % 32;
    uint32_t(&cells)[kBucketFeatures] = s.cells;
    int counts[kRanksEach], places[kRanksEach];  // entries of a feature; its cell, and from bit 16 on its place there
    for (int j = 0; j < kRanksEach; ++j) counts[j] = out.counts[bucket * kBucketFeatures + j * kHalf + thread];
    for (int j = 0; j < kRanksEach; ++j) cells[j * kHalf + thread] = 0;
    if (thread == 0) s.rare_entries = 0;
    wait();
    const float rows_in_256_each = 4 / float(tiles);
    for (int j = 0; j < kRanksEach; ++j) {
        const int cell = frequency_class(counts[j], rows_in_256_each) * kBucketWords + j * (kHalf / 32) + warp;
        const unsigned same = __match_any_sync(~0u, cell);
        const int before = __popc(same & ((1u << lane) - 1));
        if (before == 0) cells[cell] = __popc(same);
        places[j] = cell | before << 16;
    }
    wait();
    int in_cell[kRanksEach], sum = 0;
    for (int j = 0; j < kRanksEach; ++j) sum += in_cell[j] = cells[thread * kRanksEach + j];
    sum = sum_before(sum, s.warp_sums[1], warp, lane, wait);
    for (int j = 0; j < kRanksEach; ++j) {
        cells[thread * kRanksEach + j] = sum;
        sum += in_cell[j];
    }
    wait();
    int ranks[kRanksEach];
    for (int j = 0; j < kRanksEach; ++j) ranks[j] = cells[places[j] & 0xffff] + (places[j] >> 16);
    const int used = cells[(kClasses - 1) * kBucketWords];
    int dense = (cells[(kLastDenseClass + 1) * kBucketWords] + 63) / 64 * 64;
    for (int j = 0; j < kRanksEach; ++j) s.rank_of[j * kHalf + thread] = rank_entry(ranks[j]);
    if (!tells) return;
    int rare = 0;
    for (int j = 0; j < kRanksEach; ++j) {
        const int feature = j * kHalf + thread;
        out.ranked[bucket * kBucketFeatures + ranks[j]] = counts[j] > 0 ? feature : ~feature;
        if (ranks[j] >= kSectionFeatures) rare += counts[j];
    }
    rare = __reduce_add_sync(~0u, rare);
    if (lane == 0) atomicAdd(&s.rare_entries, rare);
    wait();
    if (thread != 0) return;
    if (dense > kSectionFeatures && s.rare_entries < 2LL * tiles * kTileRows) dense = kSectionFeatures;
    out.dense[bucket] = dense;
    out.used[bucket] = used;
}

// Counts the rows of a bucket in each span of chunks. The first half of the threads does this.
template <typename Wait>
__device__ __forceinline__ void count_spans(const BucketPlan& out, TileShared& s, const uint32_t* chunk_rows, int spans,
                                            int* span_begin, uint32_t* span_first, const Wait& wait) {
    constexpr int kMost = BucketPlan::kMaxSpans / kHalf;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Each thread has `each` neighbouring spans, a power of two.
    const int each = max(1, spans / kHalf);
    uint32_t firsts[kMost];
    for (int j = 0; j < kMost; ++j) {
        const int first = (thread * each + j) * out.span_chunks;
        firsts[j] = j < each && first < out.chunks ? chunk_rows[first] : 0;
    }
    int sums[kMost], sum = 0;
    for (int j = 0; j < kMost; ++j) sums[j] = int(firsts[j] & 0xffff);
    if (out.span_chunks > 1) {
        for (int j = 0; j < kMost; ++j) {
            const int first = (thread * each + j) * out.span_chunks;
#pragma unroll 1
            for (int c = 1; j < each && c < out.span_chunks && first + c < out.chunks; ++c)
                sums[j] += int(chunk_rows[first + c] & 0xffff);
        }
    }
    for (int j = 0; j < kMost; ++j) sum += sums[j];
    int rows_before = sum_before(sum, s.warp_sums[0], warp, lane, wait);
    for (int j = 0; j < kMost; ++j) {
        const int span = thread * each + j;
        if (j < each && span < spans) span_begin[span] = rows_before, span_first[span] = firsts[j];
        rows_before += sums[j];
    }
    if (thread == kHalf - 1) s.rows = rows_before;
    wait();
}

// Removes a row that has a feature twice from the tile's bits. The four lanes that have set its bits call this.
__device__ __forceinline__ void forget_row(const IndexRows& in, TileShared& s, int row, int entries, int first_feature,
                                           int slot, int in_row) {
    constexpr int kLanes = kTileThreads / kTileRows;
    const int32_t* list = row_pointer(in, row);
    const uint32_t slot_bit = 1u << bit_of_index(slot % 32);
#pragma unroll 1
    for (int k = 0; k < min(entries, in.max_active) && list[k] >= 0; ++k)
        if (k % kLanes == in_row && list[k] < in.num_bucketed)
            atomicAnd(&s.bits[slot / 32][s.rank_of[list[k] - first_feature] >> 22], ~slot_bit);
#pragma unroll 1
    for (int w = in_row; w < kBucketWords; w += kLanes) s.rank_bits[slot * kRowPitch + w] = 0;
}

// The bucket of a tile, and the tiles of that bucket, first … end − 1. All lanes of a warp get the same answer.
struct TileRange {
    int bucket, first, end;
};
__device__ __forceinline__ TileRange find_bucket(const BucketPlan& out, int num_buckets, int tile, int& tiles) {
    const int lane = threadIdx.x % 32;
    TileRange found{-1, 0, 0};
    tiles = 0;
    for (int base = 0; base < num_buckets; base += 32) {
        const int own = base + lane < num_buckets ? (out.totals[base + lane] + kTileRows - 1) / kTileRows : 0;
        const int end = tiles + inclusive_sum(own, lane);
        const unsigned behind = __ballot_sync(~0u, end > tile);
        tiles = __shfl_sync(~0u, end, 31);
        if (found.bucket >= 0 || behind == 0) continue;
        const int which = __ffs(int(behind)) - 1;
        found = {base + which, __shfl_sync(~0u, end - own, which), __shfl_sync(~0u, end, which)};
    }
    return found;
}

// Writes where the tiles of each bucket begin, and the results for buckets without rows. One warp does this.
__device__ __forceinline__ void describe_buckets(const BucketPlan& out, int num_buckets) {
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x % 32;
    int tiles = 0;
    for (int base = 0; base < num_buckets; base += 32) {
        const int bucket = base + lane, rows = bucket < num_buckets ? out.totals[bucket] : -1;
        const int own = (max(rows, 0) + kTileRows - 1) / kTileRows, end = tiles + inclusive_sum(own, lane);
        if (rows >= 0) out.tile_begin[bucket] = end - own;
        if (bucket == num_buckets - 1) out.tile_begin[num_buckets] = end;
        if (rows == 0) out.dense[bucket] = out.used[bucket] = 0;
        for (unsigned empty = __ballot_sync(~0u, rows == 0); empty != 0; empty &= empty - 1)
            for (int i = lane; i < kBucketFeatures; i += 32)
                out.ranked[(base + __ffs(int(empty)) - 1) * kBucketFeatures + i] = ~i;
        tiles = __shfl_sync(~0u, end, 31);
    }
}

// Each thread block makes one or a few tiles, with four lanes per row. One half of the threads finds the rows of the
// tile while the other half ranks the features of the bucket. All thread blocks of a bucket repeat this ranking, which
// is faster than exchanging it. The last thread block describes the buckets.
// long: both halves of a thread block meet at barriers between phases that share memory.
__global__ void __launch_bounds__(kTileThreads, kTileBlocks) make_tiles(IndexRows in, BucketPlan out) {
    constexpr int kLanes = kTileThreads / kTileRows, kEach = 32 / kLanes;
    __shared__ TileShared s;
    // For each span of chunks, the number of the bucket's rows in front of it. Behind these, for each span, its first
    // element of chunk_rows.
    extern __shared__ __align__(16) int span_begin[];
    const int lane = threadIdx.x % 32;
    ptx::let_next_kernel_start();
    if (blockIdx.x == gridDim.x - 1) {
        ptx::wait_for_kernels_before();
        return describe_buckets(out, in.num_buckets);
    }
    const int slot = threadIdx.x / kLanes, in_row = threadIdx.x % kLanes;
    const uint32_t slot_bit = keep(1u << bit_of_index(slot % 32));
    const uint32_t nowhere = keep(kNowhere + (uint32_t(lane) << 22 | uint32_t(kBucketWords) << 10));
    const uint32_t ranks = ptx::shared_address(s.rank_of), bits = keep(ptx::shared_address(s.bits[slot / 32]));
    const uint32_t rank_bits = keep(ptx::shared_address(s.rank_bits + slot * kRowPitch));
    // Calls visit(i) for this thread's share of the numbers below kCount. The loop is unrolled, so that all loads and
    // stores are in flight together.
    const auto for_share = [&]<int kCount>(std::integral_constant<int, kCount>, const auto& visit) {
        for (int first = 0; first < kCount; first += kTileThreads)
            if (int(first + threadIdx.x) < kCount) visit(int(first + threadIdx.x));
    };
    constexpr std::integral_constant<int, kBucketFeatures / 2> kBitPieces;  // of 16 bytes each
    const auto clear_bits = [&] {
        constexpr std::integral_constant<int, 2 * kBitsPitch / 4> kBits;
        constexpr std::integral_constant<int, kTileRows * kRowPitch / 4> kRowPieces;
        for_share(kBits, [&](int i) { reinterpret_cast<uint4*>(s.bits[0])[i] = {0, 0, 0, 0}; });
        for_share(kRowPieces, [&](int i) { reinterpret_cast<uint4*>(s.rank_bits)[i] = {0, 0, 0, 0}; });
    };
    // The threads of one half wait for each other. Named barriers would do, but compute-sanitizer takes them for
    // barriers of all threads.
    const uint32_t barrier = keep(ptx::shared_address(s.halves + threadIdx.x / kHalf));
    uint32_t phase = 0;
    const auto wait_for_half = [&] {
        ptx::barrier_arrive(barrier);
        ptx::barrier_wait(barrier, phase);
        phase ^= 1;
    };
    if (threadIdx.x % kHalf == 0) ptx::barrier_init(barrier, kHalf);
    clear_bits();
    __syncthreads();
    ptx::wait_for_kernels_before();

    const int workers = int(gridDim.x) - 1;
    int tile = blockIdx.x, tiles = 0;
    TileRange bucket = find_bucket(out, in.num_buckets, tile, tiles);
    int end_tile = min(tile + 1, tiles);
    if (tiles > workers) {  // more tiles than thread blocks: each takes a stretch of them
        const int each = tiles / workers, rest = tiles % workers;
        tile = int(blockIdx.x) * each + min(int(blockIdx.x), rest);
        end_tile = tile + each + (int(blockIdx.x) < rest ? 1 : 0);
        bucket = find_bucket(out, in.num_buckets, tile, tiles);
    }
    if (tile >= end_tile) return;

    for (bool is_new = true;;) {
        const int first_slot = tile * kTileRows, first_feature = bucket.bucket * in.bucket_size;
        if (threadIdx.x < kHalf) {
            const int spans = spans_of(out);
            uint32_t* const span_first = reinterpret_cast<uint32_t*>(span_begin + spans);
            const uint32_t* const chunk_rows = out.chunk_rows + size_t(bucket.bucket) * out.chunks;
            if (is_new) count_spans(out, s, chunk_rows, spans, span_begin, span_first, wait_for_half);
            // The row of a slot: find its span of chunks, then its chunk, then its place in the chunk.
            if (threadIdx.x < kTileRows) {
                const int in_bucket = (tile - bucket.first) * kTileRows + int(threadIdx.x);
                int row = -1, listed = 0;
                if (in_bucket < s.rows) {
                    int span = 0;
#pragma unroll 1
                    for (int step = spans / 2; step > 0; step /= 2)
                        span += span_begin[span + step] <= in_bucket ? step : 0;
                    int skip = in_bucket - span_begin[span], chunk = span * out.span_chunks;
                    uint32_t there = span_first[span];
#pragma unroll 1
                    for (; skip >= int(there & 0xffff); there = chunk_rows[++chunk]) skip -= int(there & 0xffff);
                    row = chunk * BucketPlan::kChunkRows;
                    listed = out.listed[size_t(row) + (there >> 16) + skip];
                    row += listed % BucketPlan::kChunkRows;
                }
                const int position = row < in.positions ? row : row - in.positions;
                const int target = row < 0 ? -1 : 2 * position + ((listed & BucketPlan::kSecondSide) != 0 ? 1 : 0);
                s.row[threadIdx.x] = row;
                s.target[threadIdx.x] = target;
                s.listed[threadIdx.x] = uint16_t(listed);
                out.slot_target[first_slot + threadIdx.x] = target;
            }
        } else if (is_new) {
            rank_bucket(out, s, bucket.bucket, bucket.end - bucket.first, tile == bucket.first, wait_for_half);
        }
        __syncthreads();
        const int row = s.row[slot];
        const bool has_row = row >= 0;
        bool regular = has_row && (s.listed[slot] & BucketPlan::kIrregularRow) == 0, open = has_row;
        int entries[kEach];
        load_entries(entries, in, has_row, row, in_row * kEach);

        const uint32_t ranks_of = keep(ranks - 4 * first_feature);
        int length = 0, feature_count = 0;  // of this lane's entries, of those in the row's bucket
        for (int base = 0;;) {
            const auto [reached, passed] = reach<kLanes>(entries, lane);
            bool alive = reached;
            open = passed;
            uint32_t places[kEach];
            const unsigned features = regular ? in.num_bucketed : 0;
            for (int j = 0; j < kEach; ++j) {
                alive = alive && entries[j] >= 0;
                length += alive ? 1 : 0;
                const bool has = alive && unsigned(entries[j]) < features;
                places[j] = load_if(has, ranks_of + 4 * entries[j], nowhere);
                feature_count += has ? 1 : 0;
            }
            for (int j = 0; j < kEach; ++j) {
                shared_or(bits + (places[j] >> 20), slot_bit);
                shared_or(rank_bits + __byte_perm(places[j], 0, 0x4441), 1u << (places[j] & 31));
            }
            base += kLanes * kEach;
            const bool goes_on = base < in.max_active && __any_sync(~0u, open);
            // A row that has a feature twice has fewer bits than features.
            if (!goes_on || in.max_active > kBucketFeatures) {
                __syncwarp();
                int set = -feature_count;
                for (int w = in_row; w < kBucketWords / 2; w += kLanes) {
                    const uint2 two = ptx::load_shared_8(rank_bits + 8 * w);
                    set += __popc(two.x) + __popc(two.y);
                }
                const bool twice = group_sum<kLanes>(set) != 0;
                if (__any_sync(~0u, twice)) {
                    __syncwarp();
                    if (twice) {
                        forget_row(in, s, row, base, first_feature, slot, in_row);
                        if (in_row == 0) atomicAdd(out.irregular, 1);
                        regular = false, feature_count = 0;
                    }
                    __syncwarp();
                }
            }
            if (!goes_on) break;
            load_entries(entries, in, open, row, base + in_row * kEach);
        }
        length = group_sum<kLanes>(length);
        const int key = has_row ? length * kTileRows + kTileRows - 1 - slot : slot - kTileRows;
        if (in_row == 0) {
            s.keys[slot] = key;
            if (has_row) out.row_slot[row] = regular ? first_slot + slot : ~(first_slot + slot);
        }
        __syncthreads();

        int place = 0;
        for (int i = 0; i < kTileRows / kLanes; i += 4) {
            const int4 four = reinterpret_cast<const int4*>(s.keys)[(in_row * (kTileRows / kLanes) + i) / 4];
            place += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
        }
        place = group_sum<kLanes>(place);
        if (in_row == 0) out.order[first_slot + place] = {first_slot + slot, s.target[slot], max(row, 0), length};
        for_share(kBitPieces, [&](int i) {
            const uint2 low = reinterpret_cast<const uint2*>(s.bits[0])[i],
                        high = reinterpret_cast<const uint2*>(s.bits[1])[i];
            reinterpret_cast<uint4*>(out.feature_bits)[size_t(tile) * kBitPieces + i] = {low.x, high.x, low.y, high.y};
        });
        if (++tile == end_tile) break;
        is_new = tile == bucket.end;
        if (is_new) bucket = find_bucket(out, in.num_buckets, tile, tiles);
        __syncthreads();
        clear_bits();
    }
}

inline void place(const IndexRows& in, const BucketPlan& out, cudaStream_t stream) {
    constexpr int kMostCounts = kSharedBuckets * kBucketFeatures * sizeof(int);
    constexpr int kMostSpans = BucketPlan::kMaxSpans * 2 * sizeof(int);
    const int multiprocessors = cuda::multiprocessors(cuda::current_device());
    cuda::check_cuda(ptx::set_shared_memory(clear_counts, 0), "clear_counts");
    clear(out.counts, BucketPlan::zeroed(in.num_buckets) * sizeof(int32_t), stream);
    const bool is_shared = in.num_buckets <= kSharedBuckets;
    const size_t counts = size_t(is_shared ? in.num_buckets * kBucketFeatures : 0) * sizeof(int);
    start("count_rows", is_shared ? count_rows<true> : count_rows<false>, kMostCounts,
          std::min(out.chunks, multiprocessors), kCountThreads, counts, stream, in, out);
    const size_t spans = size_t(spans_of(out)) * 2 * sizeof(int);
    const int workers = std::min(BucketPlan::tiles(in.positions, in.num_buckets), kTileBlocks * multiprocessors);
    start("make_tiles", make_tiles, kMostSpans, workers + 1, kTileThreads, spans, stream, in, out);
}

}  // namespace bucket_plan
}  // namespace nnue
