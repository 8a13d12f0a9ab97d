// The backward of the fused operators: the weight gradient. The row gradients come first (row_gradients.cuh), then the
// products for the frequent features of each bucket (backward_schedule.cuh), beside the lists of unbucketed features.
// finish_kernel uses multiprocessors as they become free, for rare features and the sums of partial products.
#pragma once

#include "irregular_rows.cuh"
#include "row_gradients.cuh"

namespace nnue::one_hot_product {

// Where the pieces of a slot's row gradient are, in pieces: piece i of an atom is at this place ^ i (operand_offset).
__device__ __forceinline__ unsigned place_of(unsigned slot) {
    return (slot + (slot & ~(kTileRows - 1u))) * 8 + slot % 8;
}

// The pieces `base`, base + 32, … of row gradients, which one lane adds up.
template <int kTerms, int kCount>
struct Pieces {
    using Shape = GradientShape<kTerms>;
    const char* first[kCount];     // where those of all slots begin
    const int* exponents[kCount];  // by tile
    const unsigned swizzle, bytes = bucket_plan::keep(16u);

    __device__ __forceinline__ Pieces(const BackwardProblem& p, int base) : swizzle(base % 8) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
            const int slab = min((base + 32 * c) / 16, Shape::slabs(p.num_outputs) - 1);
            first[c] = operand_of<kTerms>(p, slab, 0) + base % 16 / 8 * Shape::kAtomBytes;
            exponents[c] = p.exponents + size_t(slab) * p.max_tiles;
        }
    }
    struct OfRow {
        uint4 values[kCount];
        int exponent[kCount];
    };
    __device__ __forceinline__ OfRow load(unsigned place) const {
        OfRow row;
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
            row.values[c] = __ldcg(reinterpret_cast<const uint4*>(row_of(first[c], place ^ swizzle, bytes)));
            if (kTerms == 2) row.exponent[c] = __ldcg(exponents[c] + place / (16 * kTileRows));
        }
        return row;
    }
    __device__ __forceinline__ static void add(float (&sum)[kCount][8], const OfRow& row) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
            const float scale = kTerms == 2 ? power_of_two(row.exponent[c]) : 1.0f;
            const uint32_t words[4] = {row.values[c].x, row.values[c].y, row.values[c].z, row.values[c].w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 two = unpack(words[j], kTerms == 1 ? Float::kBFloat16 : Float::kFloat16);
                sum[c][2 * j] += two.x * scale, sum[c][2 * j + 1] += two.y * scale;
            }
        }
    }
};

// Called by all lanes. Neighbouring lanes hold neighbouring pieces.
template <int kTerms>
__device__ __forceinline__ void store_piece(const BackwardProblem& p, float (&sum)[8], int feature, int slab, int piece,
                                            bool stores) {
    using Shape = GradientShape<kTerms>;
    if constexpr (kTerms == 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sum[i] = sum[i] + kLowScale * __shfl_xor_sync(~0u, sum[i], 8);  // correct where piece < 8
    }
    const int half = p.num_outputs / 2, column = Shape::column(slab, piece);
    if (!stores || column >= half || (kTerms == 2 && piece >= 8)) return;
    const size_t at = size_t(feature) * p.num_outputs + Shape::half(piece) * half + column;
    if constexpr (kTerms == 2) {
        float4* target = reinterpret_cast<float4*>(static_cast<float*>(p.grad_weight) + at);
        __stcs(target, float4{sum[0], sum[1], sum[2], sum[3]});
        __stcs(target + 1, float4{sum[4], sum[5], sum[6], sum[7]});
    } else {
        __stcs(reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.grad_weight) + at),
               uint4{pack(sum[0], sum[1], p.weight_type), pack(sum[2], sum[3], p.weight_type),
                     pack(sum[4], sum[5], p.weight_type), pack(sum[6], sum[7], p.weight_type)});
    }
}

// Adds rows `first`, first + 1, … of a list, kRows · kSplit of them; lanes 0, 1, … hold the places of the list's
// `count` rows. If kSplit is 1, each lane has two pieces of every row. If it is 2, half of the warp has a piece of
// every second row, and rows after the last one are left out. All loads come first, and none of them is conditional,
// because the code would wait for a conditional load at once. (To read zeros from a fixed address for absent rows is
// slower still: all of these loads meet at one place, and 400 us became 1,060.)
template <int kSplit, int kRows, typename OwnPieces>
__device__ __forceinline__ void add_rows(float (&sum)[2 / kSplit][8], const OwnPieces& pieces, unsigned place,
                                         int first, int count) {
    const int row = first + (kSplit == 2 ? threadIdx.x % 32 / 16 : 0);
    typename OwnPieces::OfRow rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
        rows[r] = pieces.load(__shfl_sync(~0u, place, kSplit == 2 ? min(row + 2 * r, count - 1) : row + r));
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRows; ++r)
        if (kSplit == 1 || row + 2 * r < count) pieces.add(sum, rows[r]);
}

// For one warp: sums a list of slots, and stores the sum as the weight gradient of a feature. It takes 64 pieces of a
// row with up to eight rows in flight, or 16 pieces, a slab, with up to 32 rows in flight: then a long list is done
// sooner, and there are more warps with work. `slot` is the element of the list with the lane's number.
template <int kTerms, int kSplit>
__device__ __forceinline__ void sum_list(const BackwardProblem& p, int feature, const int* slots, int count, int slot,
                                         int group) {
    constexpr int kMost = 8 * kSplit;  // rows in flight of a lane
    const int lane = threadIdx.x % 32, base = kSplit == 1 ? group * 64 + lane : group * 16 + lane % 16;
    float sum[2 / kSplit][8] = {};
    const Pieces<kTerms, 2 / kSplit> pieces(p, base);
    for (int begin = 0; begin < count; begin += 32) {
        if (begin > 0) slot = begin + lane < count ? __ldcg(slots + begin + lane) : -1;
        const unsigned place = place_of(slot);
        const int here = min(count - begin, 32);
        int first = 0;
        const auto left = [&] { return (here - first + kSplit - 1) / kSplit; };
        const auto add = [&](auto rows) {
            add_rows<kSplit, rows>(sum, pieces, place, first, here);
            first += rows * kSplit;
        };
        while (left() >= kMost) add(std::integral_constant<int, kMost>());
        if (kSplit == 2 && left() >= 8) add(std::integral_constant<int, 8>());
        if (left() >= 4) add(std::integral_constant<int, 4>());
        if (left() == 3) add(std::integral_constant<int, 3>());
        if (left() == 2) add(std::integral_constant<int, 2>());
        if (left() == 1) add(std::integral_constant<int, 1>());
    }
#pragma unroll
    for (int c = 0; c < 2 / kSplit; ++c) {
        if constexpr (kSplit == 2) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[c][i] += __shfl_xor_sync(~0u, sum[c][i], 16);
        }
        const int q = base + c * 32;
        store_piece<kTerms>(p, sum[c], feature, q / 16, q % 16, kSplit == 1 || lane < 16);
    }
}

// The numbers of a warp's work items. Neighbouring numbers go to different thread blocks. Without a ticket the first
// warp has number 0, the others follow, and each warp's numbers are the number of warps apart; if there were items
// `before` these, the warp that would have the next of them is the first one. With a ticket a warp begins with its own
// number, takes the next free one, and requests it ahead of time.
class Numbers {
  public:
    // The shuffle shows ptxas that all lanes have the same value; without it, registers are spilled.
    __device__ __forceinline__ explicit Numbers(unsigned* ticket, unsigned before = 0) : ticket_(ticket) {
        const unsigned own = threadIdx.x / 32 * gridDim.x + blockIdx.x,
                       first = ticket == nullptr ? before % warps() : 0;
        now_ = __shfl_sync(~0u, own >= first ? own - first : own + warps() - first, 0);
        take();
    }
    __device__ __forceinline__ unsigned now() const { return now_; }
    __device__ __forceinline__ unsigned next() {
        now_ = ticket_ == nullptr ? now_ + warps() : __shfl_sync(~0u, taken_, 0) + warps();
        take();
        return now_;
    }

  private:
    __device__ __forceinline__ static unsigned warps() { return gridDim.x * (blockDim.x / 32); }
    __device__ __forceinline__ void take() {
        taken_ = ticket_ != nullptr && threadIdx.x % 32 == 0 ? atomicAdd(ticket_, 1u) : 0u;
    }

    unsigned* const ticket_;
    unsigned now_, taken_;
};

// Sums `count` lists, of which list_of(i) gives number i. An item is a list and a part of the columns; `by_columns`:
// all lists come for one part of the columns, then for the next. The list of an item and its first slots are loaded
// while earlier items are summed. Returns the number of items.
template <int kTerms, int kSplit, typename ListOf>
__device__ __forceinline__ unsigned sum_lists(const BackwardProblem& p, const int* slots, unsigned* ticket, int count,
                                              bool by_columns, const ListOf& list_of) {
    const int slabs = GradientShape<kTerms>::slabs(p.num_outputs), groups = kSplit == 1 ? (slabs + 3) / 4 : slabs;
    const unsigned items = unsigned(count) * groups, lane = threadIdx.x % 32;
    struct Item {
        unsigned number;
        SlotList list;
        int slot;  // element of the list with the lane's number; −1 if there is none
    };
    const auto open = [&](unsigned number) {
        Item item{number};
        if (number < items) item.list = list_of(int(by_columns ? number % count : number / groups));
        return item;
    };
    const auto fetch = [&](Item& item) {
        item.slot = lane < item.list.count ? __ldcg(slots + item.list.begin + lane) : -1;
    };
    Numbers numbers(ticket);
    Item now = open(numbers.now());
    fetch(now);
    Item next = open(numbers.next());
    while (now.number < items) {
        fetch(next);
        const Item after = open(numbers.next());
        sum_list<kTerms, kSplit>(p, now.list.feature, slots + now.list.begin, now.list.count, now.slot,
                                 int(by_columns ? now.number / count : now.number % groups));
        now = next, next = after;
    }
    return items;
}

// The feature of a rank, as the weight gradient counts it, or −1 if there is none. `entry` comes from `ranked` or from
// a list.
__device__ __forceinline__ int feature_of(const BackwardProblem& p, int unbucketed_dense, int bucket, int rank,
                                          int entry) {
    if (bucket == p.in.num_buckets) return rank < unbucketed_dense ? p.in.num_bucketed + entry : -1;
    const int local = entry ^ entry >> 31, feature = bucket * p.in.bucket_size + local;
    return local < p.in.bucket_size && feature < p.in.num_bucketed ? feature : -1;
}
__device__ __forceinline__ const int* rank_entry(const BackwardProblem& p, int bucket, int rank) {
    return bucket == p.in.num_buckets ? &p.unbucketed.by_rank[min(rank, p.in.num_unbucketed - 1)].feature
                                      : p.plan.ranked + bucket * kBucketFeatures + rank;
}

// For one warp: adds up the products of a bucket's parts for kMergeRanks ranks, with eight loads of each part in
// flight.
template <int kTerms>
constexpr int kMergeRanks = 8 * kTerms;
template <int kTerms>
__device__ __forceinline__ void merge(const BackwardProblem& p, const MergeUnit& unit, int slab, int first_rank,
                                      int unbucketed_dense) {
    using Shape = GradientShape<kTerms>;
    constexpr int kLanes = Shape::kColumns / 4, kRows = 32 / kLanes, kTogether = kMergeRanks<kTerms> / kRows;
    const int lane = threadIdx.x % 32, slabs = Shape::slabs(p.num_outputs);
    const int in_slab = lane % kLanes * 4, in_half = slab * Shape::kSlab + in_slab % Shape::kSlab;
    const int column = in_slab / Shape::kSlab * (p.num_outputs / 2) + in_half;
    first_rank += lane / kLanes;
    int entries[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
        entries[i] = *rank_entry(p, unit.bucket, unit.first_rank + first_rank + i * kRows);
    if (lane == 0) counter_wait(p.sync->parts_done + unit.partial * slabs + slab, unit.parts);
    __syncwarp();
    const size_t stride = size_t(slabs) * Shape::kPartialFloats / 4;
    const float4* from = reinterpret_cast<const float4*>(p.partial) +
                         (size_t(unit.partial) * slabs + slab) * (Shape::kPartialFloats / 4) + first_rank * kLanes +
                         lane % kLanes;
    float4 sums[kTogether] = {};
#pragma unroll 2
    for (int part = 0; part < unit.parts; ++part, from += stride) {
        float4 values[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) values[i] = __ldcg(from + i * kRows * kLanes);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            sums[i].x += values[i].x, sums[i].y += values[i].y;
            sums[i].z += values[i].z, sums[i].w += values[i].w;
        }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
        const int feature =
            feature_of(p, unbucketed_dense, unit.bucket, unit.first_rank + first_rank + i * kRows, entries[i]);
        if (feature < 0 || in_half >= p.num_outputs / 2) continue;
        const size_t at = size_t(feature) * p.num_outputs + column;
        if constexpr (kTerms == 2)
            __stcs(reinterpret_cast<float4*>(static_cast<float*>(p.grad_weight) + at), sums[i]);
        else
            __stcs(reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.grad_weight) + at),
                   uint2{pack(sums[i].x, sums[i].y, p.weight_type), pack(sums[i].z, sums[i].w, p.weight_type)});
    }
}

// The weight gradient of unbucketed features that are not dense, for one part of the columns, then for the next: the
// row gradients of all columns do not fit into L2. Each thread block occupies a multiprocessor. The products run on the
// rest, and on all once this kernel is done: it is limited by the L2 cache, the products by tensor cores.
constexpr int kListThreads = 640;

template <int kTerms>
__global__ void __launch_bounds__(kListThreads, 1) list_kernel(BackwardProblem p) {
    wait_for_kernels_before();
    if (blockIdx.x == 0 && threadIdx.x == 0) counter_add(&p.sync->begun);
    let_next_kernel_start();
    const int dense = p.unbucketed.summary->dense, lists = p.unbucketed.summary->first_empty - dense;
    sum_lists<kTerms, 1>(p, p.unbucketed.slots, &p.sync->list_ticket, lists, true, [&](int number) {
        SlotList list = p.unbucketed.by_rank[dense + number];
        list.feature += p.in.num_bucketed;
        return list;
    });
}

// The remaining work: rare features, and the sums of partial products. This kernel runs on multiprocessors that the
// products leave free. A warp takes 64 pieces of the rows of a rare feature, and loads the slots of the next one
// meanwhile. The features of the last buckets, which are the largest ones, come first.
constexpr int kFinishThreads = 128, kFinishBlocks = 4;  // per multiprocessor
// Without unbucketed features and with no more tiles than this, each warp takes a fixed share of the work. If warps
// that are ready early took more, they would slow down the products. With more tiles the lists are long and tickets are
// faster (measured).
constexpr int kShareTiles = 1024;
// So few lists, times slabs, are summed by a warp per slab, since they are long and there are warps enough.
constexpr int kFewLists = 4096;

template <int kTerms>
__global__ void __launch_bounds__(kFinishThreads, kFinishBlocks) finish_kernel(BackwardProblem p) {
    const int slabs = GradientShape<kTerms>::slabs(p.num_outputs);
    __shared__ MergeUnit units[kMaxMergeUnits + 1];
    // The products are not done at this point, but the row gradients, the lists and the merge units are there.
    if (threadIdx.x == 0) counter_wait(&p.sync->scheduled, 1);
    __syncthreads();
    const bool by_ticket = p.in.num_unbucketed > 0 || p.max_tiles > kShareTiles;
    const int num_units = __ldcg(&p.sync->merge_units), count = __ldcg(p.plan.num_rare);
    const int unit_words = (num_units + 1) * int(sizeof(MergeUnit) / 4);
    for (int i = threadIdx.x; i < unit_words; i += kFinishThreads)
        reinterpret_cast<int*>(units)[i] = __ldcg(reinterpret_cast<const int*>(p.merges) + i);
    __syncthreads();
    const auto sum_rare = [&](auto split) {
        return sum_lists<kTerms, split>(p, p.plan.rare_slots, by_ticket ? p.sync->finish_tickets : nullptr, count,
                                        false, [&](int number) { return p.plan.rare[count - 1 - number]; });
    };
    const bool few = (long long)count * slabs <= kFewLists;
    const unsigned items =
        few ? sum_rare(std::integral_constant<int, 2>()) : sum_rare(std::integral_constant<int, 1>());
    Numbers numbers(by_ticket ? p.sync->finish_tickets + 1 : nullptr, items);
    const int unbucketed_dense = p.in.num_unbucketed > 0 ? p.unbucketed.summary->dense : 0;
    const unsigned merges = units[num_units].begin / kMergeRanks<kTerms> * slabs;
    int unit = 0;
    for (unsigned item = numbers.now(); item < merges; item = numbers.next()) {
        const int rank = int(item / unsigned(slabs)) * kMergeRanks<kTerms>;
        while (units[unit + 1].begin <= rank) ++unit;
        merge<kTerms>(p, units[unit], int(item % unsigned(slabs)), rank - units[unit].begin, unbucketed_dense);
    }
    // Later kernels wait only for this one, so this one must wait for the kernels before it.
    wait_for_kernels_before();
}

// For one warp: eight columns of the bias gradient, four per lane. Lanes with the same columns share the stretches.
constexpr int kBiasColumns = 8;
__device__ __forceinline__ void sum_bias(const BackwardProblem& p, int columns, int lane) {
    const int stretch = stretch_tiles(p.max_tiles), column = columns * kBiasColumns + lane % 2 * 4;
    const int count = (p.plan.tile_begin[p.in.num_buckets] + stretch - 1) / stretch;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 2
    for (int i = lane / 2; i < count; i += 16) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(p.bias_partial + size_t(i) * p.num_outputs + column));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
#pragma unroll
    for (int step = 2; step < 32; step *= 2) {
        sum.x += __shfl_xor_sync(~0u, sum.x, step), sum.y += __shfl_xor_sync(~0u, sum.y, step);
        sum.z += __shfl_xor_sync(~0u, sum.z, step), sum.w += __shfl_xor_sync(~0u, sum.w, step);
    }
    if (lane < 2) *reinterpret_cast<float4*>(p.grad_bias + column) = sum;
}

// ---- products: two warpgroups hold the sums of a task's features × 128 operand columns in registers and multiply
// bitmaps by row gradients. Another warp copies row gradients and bitmaps ahead of them.
template <int kTerms>
struct BackwardShape : GradientShape<kTerms> {
    using GradientShape<kTerms>::kOperandBytes;
    static constexpr int kBitBytes = kSectionFeatures * sizeof(uint2);
    static constexpr int kStages = 8;
    static constexpr int kConsumers = GradientShape<kTerms>::kThreads, kThreads = kConsumers + 128,
                         kWarps = kConsumers / 32;
    static constexpr int kFeatureTiles = kSectionFeatures / 64 / (kConsumers / 128);  // of 64 features, per warpgroup
    // A consumer warp transposes 16 rows of results, 256 bytes each, through shared memory. The stride avoids bank
    // conflicts.
    static constexpr int kRowStride = kTerms == 1 ? 272 : 288, kTurnBytes = 16 * kRowStride;
    static constexpr int kTasks = 2;  // one in progress and one prepared
    // The layout of shared memory after the operands: for each stage its bitmaps, its barriers "full" and "empty", and
    // the `one` of its left operand; for each consumer warp its room for transposing and the features of the task; for
    // each task two barriers.
    static constexpr int kBits = kStages * kOperandBytes, kTurn = kBits + kStages * kBitBytes,
                         kFeatures = kTurn + kWarps * kTurnBytes, kFull = kFeatures + kWarps * kFeatureTiles * 64,
                         kEmpty = kFull + kStages * 8, kTaskFull = kEmpty + kStages * 8,
                         kTaskEmpty = kTaskFull + kTasks * 8, kOnes = kTaskEmpty + kTasks * 8;
    static constexpr int kSharedBytes = kOnes + kStages * 4 + 1024;
};

// The fp16 number that a set bit of the left operand becomes. With two fp16 terms it is a power of two that depends on
// the tile, relative to the task's largest: from 2^15 down to 2^-21.
__device__ __forceinline__ uint32_t relative_one(int exponent, int reference) {
    const int e = exponent - reference + 15;
    return e >= -14 ? uint32_t(e + 15) << 10 : e >= -21 ? 1u << (e + 24) : 0;
}

// Adds the products of `count` tiles, for the first `my_tiles` of the warpgroup's tiles of 64 features. `copied` counts
// the tiles that have been used, over all tasks.
template <int kTerms>
__device__ __forceinline__ void multiply(float (&acc)[BackwardShape<kTerms>::kFeatureTiles][64], int my_tiles,
                                         int count, uint32_t shared, uint32_t& copied) {
    using Shape = BackwardShape<kTerms>;
    constexpr uint32_t kStages = Shape::kStages;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Warpgroup 0 has the even tiles of the task's features, and warpgroup 1 the odd ones.
    const uint32_t first_bits = shared + Shape::kBits + (warp / 4 * 64 + warp % 4 * 16 + lane / 4) * 8;
    // Every thread releases the stage for itself, since any of them may still be reading it.
    const auto release = [&](uint32_t tile) { barrier_arrive(shared + Shape::kEmpty + tile % kStages * 8); };
    my_tiles = __shfl_sync(~0u, my_tiles, 0),
    count = __shfl_sync(~0u, count, 0);  // shows ptxas that these are the same in all lanes
    for (int left = count; left > 0; --left) {
        const uint32_t stage = copied % kStages;
        barrier_wait(shared + Shape::kFull + stage * 8, copied / kStages % 2);
        const uint32_t operand = operand_descriptor(shared + stage * Shape::kOperandBytes, Shape::kAtomBytes);
        const uint32_t bits = first_bits + stage * Shape::kBitBytes;
        const uint32_t one = kTerms == 1 ? kOneBf16 : load_shared_4(shared + Shape::kOnes + stage * 4);
        uint32_t a[2][2][4];
#pragma unroll
        for (int m = 0; m < Shape::kFeatureTiles; ++m) {
            if (m == my_tiles) break;
            const uint2 low = load_shared_8(bits + m * 1024), high = load_shared_8(bits + m * 1024 + 64);
#pragma unroll
            for (int word = 0; word < 2; ++word) {
                wgmma_wait<1>();
                const int shift = 4 * (lane % 4);
                const uint32_t word_low = (word ? low.y : low.x) >> shift,
                               word_high = (word ? high.y : high.x) >> shift;
                multiply_word<kTerms == 1>(acc[m], a[word], word_low, word_high, one, operand + word * 256);
            }
        }
        if (left < count) release(copied - 1);  // the products of the tile before are done
        ++copied;
    }
    wgmma_wait<0>();
    release(copied - 1);
}

// Writes zeros for features that no row has. Warps that have nothing else to do call this while others multiply. An
// item is a rank.
__device__ __forceinline__ void clear_unused(const BackwardProblem& p, int warp, int warps, int lane) {
    const int row_bytes = p.num_outputs * (p.weight_type == Float::kFloat32 ? 4 : 2);
    const auto clear = [&](int items, const auto& feature_of) {
        for (int first = warp; first < items; first += warps * 32) {
            const int item = first + lane * warps;  // each lane checks one of the warp's next items
            const int feature = item < items ? feature_of(item) : -1;
            for (unsigned todo = __ballot_sync(~0u, feature >= 0); todo != 0; todo &= todo - 1) {
                char* to =
                    static_cast<char*>(p.grad_weight) + size_t(__shfl_sync(~0u, feature, __ffs(todo) - 1)) * row_bytes;
                for (int i = lane * 16; i < row_bytes; i += 512)
                    __stcs(reinterpret_cast<uint4*>(to + i), uint4{0, 0, 0, 0});
            }
        }
    };
    clear(p.in.num_buckets * kBucketFeatures, [&](int item) {
        const int bucket = item / kBucketFeatures, local = ~p.plan.ranked[item];
        // The products write the ranks that they include.
        if (local < 0 || local >= p.in.bucket_size || item % kBucketFeatures < p.plan.dense[bucket]) return -1;
        const int feature = bucket * p.in.bucket_size + local;
        return feature < p.in.num_bucketed ? feature : -1;
    });
    if (p.in.num_unbucketed == 0) return;
    const int first_empty = p.unbucketed.summary->first_empty;
    clear(p.in.num_unbucketed - first_empty,
          [&](int item) { return p.in.num_bucketed + p.unbucketed.by_rank[first_empty + item].feature; });
}

// One task of the product: makes the sums and stores them.
template <int kTerms>
__device__ __forceinline__ void multiply_part(const BackwardProblem& p, const Schedule& schedule,
                                              const volatile Task& task, uint32_t shared, uint32_t& copied) {
    using Shape = BackwardShape<kTerms>;
    const int thread = thread_number(), warp = thread / 32, lane = thread % 32;
    float acc[Shape::kFeatureTiles][64];
#pragma unroll
    for (int m = 0; m < Shape::kFeatureTiles; ++m)
#pragma unroll
        for (float& x : acc[m]) x = 0;
    const int my_tiles = (task.feature_tiles + 1 - warp / 4) / 2;
    const uint32_t my_features = shared + Shape::kFeatures + warp * (Shape::kFeatureTiles * 64);
    // The rank, within the task, of the warp's row r of feature tile m.
    const auto rank_of = [&](int m, int r) { return (m * 2 + warp / 4) * 64 + warp % 4 * 16 + r; };
    __syncwarp();
    if (task.partial < 0) {  // copy the features, which are needed at the end
        for (int i = lane; i < my_tiles * 16; i += 32)
            copy_async_4(my_features + i * 4, rank_entry(p, task.bucket, task.first_rank + rank_of(i / 16, i % 16)));
    }
    copy_async_commit();
    multiply<kTerms>(acc, my_tiles, task.last - task.first, shared, copied);
    const float unscale = kTerms == 2 ? ldexpf(1.0f, task.reference - 15) : 1.0f;

    if (task.partial >= 0) {  // one of several parts
        float* partial = p.partial +
                         (size_t(task.partial + task.part) * schedule.slabs + task.slab) * Shape::kPartialFloats +
                         lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < Shape::kFeatureTiles; ++m) {
            if (m == my_tiles) break;
#pragma unroll
            for (int i = 0; i < 64 / kTerms; i += 2) {
                float* to = partial + rank_of(m, lane / 4 + i % 4 / 2 * 8) * Shape::kColumns + i / 4 * 8;
                if constexpr (kTerms == 1)
                    __stcg(reinterpret_cast<float2*>(to), float2{acc[m][i], acc[m][i + 1]});
                else
                    __stcg(reinterpret_cast<float2*>(to),
                           float2{(acc[m][i] + acc[m][32 + i] * kLowScale) * unscale,
                                  (acc[m][i + 1] + acc[m][33 + i] * kLowScale) * unscale});
            }
        }
        named_barrier<1, Shape::kConsumers>();
        if (thread == 0) counter_add(p.sync->parts_done + task.partial * schedule.slabs + task.slab);
        return;
    }

    const uint32_t turn = shared + Shape::kTurn + warp * Shape::kTurnBytes;
    // Each lane stores 16 bytes of every second row: columns lane % 8 · kEach of a half.
    constexpr int kEach = 8 / kTerms;
    const int half = p.num_outputs / 2, column = task.slab * Shape::kSlab + lane % 8 * kEach;
    const int in_row = lane % 16 / 8 * half + column;
    copy_async_wait<0>();
    __syncwarp();
    const int bucket = task.bucket, first_rank = task.first_rank;
    for (int i = lane; i < my_tiles * 16; i += 32) {
        const uint32_t at = my_features + i * 4;
        store_shared_4(at, feature_of(p, schedule.unbucketed_dense, bucket, first_rank + rank_of(i / 16, i % 16),
                                      int(load_shared_4(at))));
    }
    const unsigned row_bytes = p.num_outputs * (16 / kEach);
    char* const to_column = static_cast<char*>(p.grad_weight) + in_row * (16 / kEach);
#pragma unroll
    for (int m = 0; m < Shape::kFeatureTiles; ++m) {
        if (m == my_tiles) break;
        __syncwarp();
        if constexpr (kTerms == 1) {
            const uint32_t to = turn + lane % 16 * Shape::kRowStride + lane / 16 * 16;
            const auto store_all = [&](Float type) {
#pragma unroll
                for (int j = 0; j < 16; j += 2)
                    store_matrices(to + j * 16, {pack(acc[m][4 * j], acc[m][4 * j + 1], type),
                                                 pack(acc[m][4 * j + 2], acc[m][4 * j + 3], type),
                                                 pack(acc[m][4 * j + 4], acc[m][4 * j + 5], type),
                                                 pack(acc[m][4 * j + 6], acc[m][4 * j + 7], type)});
            };
            if (p.weight_type == Float::kBFloat16)
                store_all(Float::kBFloat16);
            else
                store_all(Float::kFloat16);
        } else {
#pragma unroll
            for (int i = 0; i < 32; i += 2)
                store_shared_8(turn + (lane / 4 + i % 4 / 2 * 8) * Shape::kRowStride + i / 4 * 32 + lane % 4 * 8,
                               (acc[m][i] + acc[m][32 + i] * kLowScale) * unscale,
                               (acc[m][i + 1] + acc[m][33 + i] * kLowScale) * unscale);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int r = 2 * i + lane / 16, feature = int(load_shared_4(my_features + (m * 16 + r) * 4));
            const uint4 v = load_shared_16<true>(turn + r * Shape::kRowStride + lane % 16 * 16);
            store_global_16(row_of(to_column, feature, row_bytes), v, column < half && feature >= 0);
        }
    }
}

// long: the warps that plan, copy and multiply share tasks, stages and barriers.
template <int kTerms>
__global__ void __launch_bounds__(BackwardShape<kTerms>::kThreads, 1) weight_gradient_kernel(BackwardProblem p) {
    using Shape = BackwardShape<kTerms>;
    constexpr int kTasks = Shape::kTasks;
    extern __shared__ char shared_raw[];
    __shared__ Schedule schedule;
    __shared__ Task tasks[kTasks];
    const uint32_t shared = (shared_address(shared_raw) + 1023) & ~1023u;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < Shape::kStages; ++s) {
            barrier_init(shared + Shape::kFull + s * 8, 1);
            barrier_init(shared + Shape::kEmpty + s * 8, Shape::kConsumers);
        }
        for (int s = 0; s < kTasks; ++s) {
            barrier_init(shared + Shape::kTaskFull + s * 8, 1);
            barrier_init(shared + Shape::kTaskEmpty + s * 8, Shape::kConsumers);
        }
        fence_barrier_init();
    }
    // The schedule reads the plan alone, which was complete before any kernel of this backward went on from its wait,
    // and by now one has.
    schedule.load(p, Shape::slabs(p.num_outputs));
    if (p.in.num_unbucketed > 0) {  // list_kernel has begun, and may still run
        if (threadIdx.x == 0) counter_wait(&p.sync->begun, 1);
        __syncthreads();
    } else {
        wait_for_kernels_before();
    }
    let_next_kernel_start();

    if (warp > Shape::kWarps) {
        give_registers<24>();
        const int number = blockIdx.x * 3 + warp - Shape::kWarps - 1, count = gridDim.x * 3;
        if (number == count - 1) {
            const int units = schedule.list_merges(p.merges);
            __threadfence();
            __syncwarp();
            if (lane == 0) {
                p.sync->merge_units = units;
                counter_add(&p.sync->scheduled);
            }
        }
        if (p.grad_bias != nullptr)
            for (int columns = number; columns * kBiasColumns < p.num_outputs; columns += count)
                sum_bias(p, columns, lane);
        // Irregular rows are added to what is there.
        if (!p.leaves_unused || *p.plan.irregular != 0) clear_unused(p, number, count, lane);
    } else if (warp == Shape::kWarps) {  // ---- copies
        give_registers<24>();
        fence_global_for_copies();
        int stage = 0;
        uint32_t phase = 1;  // the first pass over the stages does not wait
        for (int number = 0;; ++number) {
            const int place = number % kTasks;
            barrier_wait(shared + Shape::kTaskEmpty + place * 8, number / kTasks % 2 ^ 1);
            // The first task is that with the thread block's own number; the others are taken by ticket.
            unsigned ticket = blockIdx.x;
            if (number > 0 && lane == 0) ticket = gridDim.x + atomicAdd(&p.sync->ticket, 1u);
            Task task = schedule.task(__shfl_sync(~0u, ticket, 0));
            const int* exponents = p.exponents + size_t(task.slab) * p.max_tiles;
            if (task.parts > 0) {
                task.reference = kNoExponent;
                if (kTerms == 2) {
                    for (int i = task.first + lane; i < task.last; i += 32)
                        task.reference = max(task.reference, __ldcg(exponents + i));
                    task.reference = __reduce_max_sync(~0u, task.reference);
                }
            }
            if (lane == 0) {
                tasks[place] = task;
                barrier_arrive(shared + Shape::kTaskFull + place * 8);
            }
            __syncwarp();
            if (task.parts == 0) break;
            const bool unbucketed = schedule.is_unbucketed(task.bucket);
            const char* source = static_cast<const char*>(p.grad_rows) +
                                 (size_t(task.slab) * p.max_tiles + task.first) * Shape::kOperandBytes;
            const uint2* bits = (unbucketed ? p.unbucketed.dense_bits : p.plan.feature_bits) +
                                size_t(task.first) * kBucketFeatures + task.first_rank;
            const uint32_t bit_bytes = task.feature_tiles * 64 * sizeof(uint2);
            const int count = task.last - task.first, reference = task.reference;
            exponents += task.first;
            int exponent = 0;
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                if (kTerms == 2 && i % 32 == 0 && i + lane < count) exponent = __ldcg(exponents + i + lane);
                const int now = __shfl_sync(~0u, exponent, i % 32);
                barrier_wait(shared + Shape::kEmpty + stage * 8, phase);
                if (lane == 0) {
                    const uint32_t full = shared + Shape::kFull + stage * 8;
                    if (kTerms == 2) store_shared_4(shared + Shape::kOnes + stage * 4, relative_one(now, reference));
                    barrier_expect(full, Shape::kOperandBytes + bit_bytes);
                    copy_bulk(shared + stage * Shape::kOperandBytes, source, Shape::kOperandBytes, full);
                    copy_bulk(shared + Shape::kBits + stage * Shape::kBitBytes, bits, bit_bytes, full);
                }
                source += Shape::kOperandBytes;
                bits += kBucketFeatures;
                if (++stage == Shape::kStages) stage = 0, phase ^= 1;
            }
        }
    } else {  // ---- consumers
        take_registers<240>();
        uint32_t copied = 0;
        for (int number = 0;; ++number) {
            const int place = number % kTasks;
            barrier_wait(shared + Shape::kTaskFull + place * 8, number / kTasks % 2);
            const volatile Task& task = tasks[place];  // volatile, because registers are scarce
            if (task.parts == 0) break;
            multiply_part<kTerms>(p, schedule, task, shared, copied);
            barrier_arrive(shared + Shape::kTaskEmpty + place * 8);
        }
    }
    // Later kernels wait only for this one, so this one must wait for the kernels before it.
    wait_for_kernels_before();
}

// Computes the row gradients from those of the output.
template <int kTerms, typename Grad>
void make_row_gradients(const BackwardProblem& p, cudaStream_t stream) {
    using Shape = GradientShape<kTerms>;
    const auto kernel = p.activation == Activation::kIdentity ? row_gradient_kernel<kTerms, Grad, Activation::kIdentity>
                        : p.activation == Activation::kCReLU  ? row_gradient_kernel<kTerms, Grad, Activation::kCReLU>
                        : p.activation == Activation::kSCReLU
                            ? row_gradient_kernel<kTerms, Grad, Activation::kSCReLU>
                            : row_gradient_kernel<kTerms, Grad, Activation::kPairwise>;
    start("row_gradient_kernel", kernel, -1, Shape::slabs(p.num_outputs) * stretches(p.max_tiles), Shape::kThreads, 0,
          stream, p);
}

// Launches all that follows the row gradients. `workers`: the number of multiprocessors.
template <int kTerms>
void multiply_and_finish(const BackwardProblem& p, int workers, cudaStream_t stream) {
    using Shape = BackwardShape<kTerms>;
    // weight_gradient_kernel takes nearly all of a multiprocessor's memory as shared memory. finish_kernel needs 45 KB
    // for its four thread blocks, and the rest as L1 cache for its many loads. In percent:
    cuda::check_cuda(cudaFuncSetAttribute(finish_kernel<kTerms>, cudaFuncAttributePreferredSharedMemoryCarveout, 25),
                     "finish_kernel");
    const int list_workers = std::max(workers * 2 / 3, 1);  // measured, with 132
    if (p.in.num_unbucketed > 0)
        start("list_kernel", list_kernel<kTerms>, -1, list_workers, kListThreads, 0, stream, p);
    start("weight_gradient_kernel", weight_gradient_kernel<kTerms>, Shape::kSharedBytes, workers, Shape::kThreads,
          Shape::kSharedBytes, stream, p);
    start("finish_kernel", finish_kernel<kTerms>, -1, kFinishBlocks * workers, kFinishThreads, 0, stream, p);
}

// Takes the scratch memory of a backward, besides what carve_row_gradients takes.
template <int kTerms>
void carve_scratch(Carver& carver, BackwardProblem& p) {
    using Shape = BackwardShape<kTerms>;
    p.partial = carver.take<float>(
        "partial", size_t(max_partials(p.max_tiles, Shape::slabs(p.num_outputs))) * Shape::kPartialFloats);
    p.bias_partial =
        carver.take<float>("bias_partial", p.grad_bias == nullptr ? 0 : size_t(stretches(p.max_tiles)) * p.num_outputs);
    p.merges = carver.take<MergeUnit>("merges", kMaxMergeUnits + 1);
}
inline void carve_scratch(Carver& carver, BackwardProblem& p) {
    p.weight_type == Float::kFloat32 ? carve_scratch<2>(carver, p) : carve_scratch<1>(carver, p);
}

}  // namespace nnue::one_hot_product
