// The weight gradient of unbucketed features: sums of row gradients over the lists of unbucketed_lists.cuh.
//
// A warp takes eight lists of similar length and one slab of columns. In each *turn* it copies four row gradients of
// every list to shared memory, two turns before they are added up by a product on tensor cores, [columns, 32 entries] ×
// [32 entries, 8 lists]. A long list is divided into quarters, and a warp takes two such lists at a time. Lists of
// more than kShortList slots are processed slab by slab: one slab of all row gradients, 9 MB for 32,768 rows, stays in
// the L2 cache while every list passes over it. Dense features are a bucket of the products (backward_wgmma.cuh), which
// also clear the gradients of features that no row has.
//
// The order in which a list is summed depends on its length alone, and its fp32 scale on the exponents of its own
// entries. The entries of the other lists are multiplied by zero, which leaves the bits of the sum unchanged as long as
// those entries are finite.
#pragma once

#include <algorithm>

#include "backward_wgmma.cuh"

namespace nnue::unbucketed_gradient {

using namespace one_hot_product;

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kLists = 8, kEach = 4, kEntries = kLists * kEach;  // per turn: entries of one list, of all lists
constexpr int kPieceBytes = 16, kRowBytes = 256, kTurnBytes = kEntries * kRowBytes;
// Row gradients are copied kAhead turns ahead. Slots are copied earlier, so that they are there when the row gradients
// are copied.
constexpr int kAhead = 2, kStages = kAhead + 1, kSlotsAhead = 2 * kAhead + 1, kTurns = 8;
constexpr int kShortSlabs = 4;  // slabs of short lists that a warp takes
constexpr int kQuarters = 4;    // of a long list, which shortens the work of one warp
constexpr int kHeadroom = 4;    // added to the exponents of lists, so that they seldom change
// Products on tensor cores round towards zero. So in fp32 the sums of this many turns are added to separate sums, which
// round to nearest.
constexpr int kTurnsTogether = 16;
// A flag beside the place of an entry's row gradient. A place is less than 16 · slots, and there are fewer than 2^27
// slots.
constexpr unsigned kExists = 1u << 31;

// Data of a turn that a warp stores in shared memory, as byte offsets. Entry i of a turn is entry i % 4 of list i / 4.
struct Turn {
    static constexpr int kSlots = 0;  // of entries; later the places of their row gradients, in the order of copy_rows
    static constexpr int kExponents = kSlots + kEntries * 4;  // of entries
    static constexpr int kOfLists = kExponents + kEntries * 4;
    // 16 bytes for each list or quarter of a list:
    //   kLeft     how many entries it has left, which may be negative
    //   kFeature  its feature; −1 if there is no such list, and for all quarters but the first
    //   kMost     the most entries that any list has left: 1 to 4 in the last turn of these lists, 0 if no turn is left
    //   kSlab     the slab, or its complement if the lists are divided into quarters
    static constexpr int kLeft = kOfLists, kFeature = kOfLists + 4, kMost = kOfLists + 8, kSlab = kOfLists + 12;
    static constexpr int kBytes = kOfLists + kLists * 16;
};

// Each warp has room for the row gradients of kStages turns and for kTurns descriptions.
constexpr int kWarpBytes = kStages * kTurnBytes + kTurns * Turn::kBytes;
constexpr int kSharedBytes = kWarps * kWarpBytes + kRowBytes;
static_assert(kTurns > kSlotsAhead && kWarpBytes % kRowBytes == 0);

// The lists that a warp sums at once, eight or the quarters of two long ones, and their slabs.
struct Bundle {
    SlotList list;  // that of lane / 4; its count is 0 if there is none
    int slab, end;
    bool in_quarters;  // each list has kQuarters, which take four entries each in turn
};

// The turns of a warp's bundles, one after the other. The lists of the next bundle are loaded ahead.
template <int kTerms>
class Turns {
  public:
    __device__ __forceinline__ explicit Turns(const BackwardProblem& p)
        : p_(p), summary_(*p.unbucketed.summary), numbers_(&p.sync->list_ticket) {
        now_ = open(numbers_.now()), most_ = longest(now_.list);
        next_ = open(numbers_.next());
    }

    // Writes the description of the next turn to `turn` and begins to copy its slots.
    __device__ __forceinline__ void describe(uint32_t turn) {
        const int lane = threadIdx.x % 32, quarter = now_.in_quarters ? lane / kEach % kQuarters : 0;
        const int own = done_ + quarter * kEach, left = int(now_.list.count) - own;
        const int step = now_.in_quarters ? kEach * kQuarters : kEach;
        const bool last = most_ - done_ <= step;
        const int most = max(last && now_.in_quarters ? min(most_ - done_, kEach) : most_ - done_, 0);
        if (lane % kEach == 0) {
            copy_async_16(turn + Turn::kSlots + lane * 4, p_.unbucketed.slots + now_.list.begin + (left > 0 ? own : 0),
                          left > 0);
            store_shared_16(turn + Turn::kOfLists + lane / kEach * 16, left,
                            now_.list.count > 0 && quarter == 0 ? p_.in.num_bucketed + now_.list.feature : -1, most,
                            now_.in_quarters ? ~now_.slab : now_.slab);
        }
        done_ += step;
        if (!last || most == 0) return;
        done_ = 0;
        if (++now_.slab < now_.end) return;
        now_ = next_, most_ = longest(now_.list);
        next_ = open(numbers_.next());
    }

  private:
    __device__ __forceinline__ static int longest(const SlotList& list) {
        return __reduce_max_sync(~0u, int(list.count));
    }

    // First long and medium lists, slab by slab, then short lists, several slabs at a time.
    __device__ __forceinline__ Bundle open(unsigned task) const {
        const int slabs = GradientShape<kTerms>::slabs(p_.num_outputs),
                  stretches = (slabs + kShortSlabs - 1) / kShortSlabs;
        const auto bundles = [](int begin, int end, int lists) { return unsigned(end - begin + lists - 1) / lists; };
        constexpr int kLongLists = kLists / kQuarters;
        const unsigned long_bundles = bundles(summary_.dense, summary_.first_middle, kLongLists),
                       of_slab = long_bundles + bundles(summary_.first_middle, summary_.first_short, kLists),
                       short_bundles = bundles(summary_.first_short, summary_.first_empty, kLists);
        Bundle bundle{};
        int list = int(threadIdx.x % 32) / kEach, end = 0;
        if (task < of_slab * slabs) {
            const unsigned number = task % of_slab;
            bundle.slab = int(task / of_slab), bundle.end = bundle.slab + 1;
            if (number < long_bundles) {
                bundle.in_quarters = true;
                list = summary_.dense + int(number) * kLongLists + list / kQuarters, end = summary_.first_middle;
            } else {
                list += summary_.first_middle + int(number - long_bundles) * kLists, end = summary_.first_short;
            }
        } else if (task - of_slab * slabs < short_bundles * stretches) {
            const unsigned number = task - of_slab * slabs;
            bundle.slab = int(number % unsigned(stretches)) * kShortSlabs;
            bundle.end = min(bundle.slab + kShortSlabs, slabs);
            list += summary_.first_short + int(number / unsigned(stretches)) * kLists, end = summary_.first_empty;
        }
        if (list < end) bundle.list = p_.unbucketed.by_rank[list];
        return bundle;
    }

    const BackwardProblem& p_;
    const UnbucketedSummary summary_;
    Numbers numbers_;
    Bundle now_, next_;
    // Entries of the longest list (0: no list is left), and how many entries of each list have had their turn.
    int most_, done_ = 0;
};

__device__ __forceinline__ int slab_of(uint32_t word) {
    return int(word) < 0 ? ~int(word) : int(word);
}

// Begins to copy the row gradients of a turn: of two entries of each list or of all four. Lanes 0 … 15 copy those of
// entries 0 and 2, the other lanes those of entries 1 and 3.
template <int kTerms>
__device__ __forceinline__ void copy_rows(const BackwardProblem& p, uint32_t turn, uint32_t rows) {
    using Shape = GradientShape<kTerms>;
    const int lane = threadIdx.x % 32, piece = lane % 16, h = lane / 16;
    const int most = int(load_shared_4(turn + Turn::kMost)), slab = slab_of(load_shared_4(turn + Turn::kSlab));
    const int left = int(load_shared_4(turn + Turn::kLeft + lane / kEach * 16));
    const unsigned slot = load_shared_4(turn + Turn::kSlots + lane * 4);
    if (most == 0) return;
    const bool exists = lane % kEach < left;
    // The place of the slot's first piece as operand_offset gives it, in pieces. The swizzle depends on the row.
    const unsigned place = (slot + (slot & ~(kTileRows - 1u))) * 8 + (slot & 7);
    if constexpr (kTerms == 2) {
        if (exists)
            copy_async_4(turn + Turn::kExponents + lane * 4,
                         p.exponents + size_t(slab) * p.max_tiles + slot / kTileRows);
        else
            store_shared_4(turn + Turn::kExponents + lane * 4, uint32_t(kNoExponent));
    }
    __syncwarp();
    store_shared_4(turn + Turn::kSlots + (lane % 2 * 16 + lane / kEach * 2 + lane / 2 % 2) * 4,
                   exists ? place | kExists : 0);
    __syncwarp();
    unsigned at[16];
    for (int i = 0; i < 4; ++i) {
        const uint4 four = load_shared_16<true>(turn + Turn::kSlots + h * 64 + i * 16);
        at[4 * i] = four.x, at[4 * i + 1] = four.y, at[4 * i + 2] = four.z, at[4 * i + 3] = four.w;
    }
    const char* const from = static_cast<const char*>(p.grad_rows) + size_t(slab) * p.max_tiles * Shape::kOperandBytes +
                             piece / 8 * Shape::kAtomBytes;
    const uint32_t to = rows + h * kRowBytes + ((piece ^ h) << 4);
    const unsigned piece_bytes = bucket_plan::keep(kPieceBytes);  // for row_of
    const auto sixteen = [&](int s) {
        for (int i = 0; i < kLists; ++i) {
            const unsigned word = at[2 * i + s], own_piece = (word ^ (piece & 7)) & ~kExists;
            copy_async_16((to ^ (2 * i % 8 << 4)) + i * 2 * kRowBytes + s * (kTurnBytes / 2),
                          row_of(from, own_piece, piece_bytes), word & kExists);
        }
    };
    sixteen(0);
    if (most > kEach / 2) sixteen(1);
}

// The sums of eight lists. Each lane has those of lists 2 · (lane % 4) and 2 · (lane % 4) + 1.
template <int kTerms>
class Sums {
  public:
    using Shape = GradientShape<kTerms>;

    __device__ __forceinline__ void add(uint32_t turn, int most, uint32_t rows) {
        const int lane = threadIdx.x % 32, list = lane / 4, t = lane % 4;
        uint32_t ones = kOneBf16 << 16 | kOneBf16;
        if constexpr (kTerms == 2) {
            const int exponent = int(load_shared_4(turn + Turn::kExponents + lane * 4));
            int largest = max(exponent, __shfl_xor_sync(~0u, exponent, 1));
            largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
            if (__any_sync(~0u, largest > reference_)) {
                const int now = largest > reference_ ? largest + kHeadroom : reference_;
                scale(power_of_two(reference_ - now));
                reference_ = now;
            }
            if (++turns_ == kTurnsTogether) gather();
            const uint32_t one = relative_one(exponent, reference_);
            ones = __shfl_xor_sync(~0u, one, 1) << 16 | one;  // used from even lanes only
        }
        // Matrix lane / 8 has entries lane / 16 · 8 … and piece lane / 8 % 2.
        const uint32_t operand = rows + (lane / 16 * 8 + lane % 8) * kRowBytes + ((lane / 8 % 2 ^ lane % 8) << 4);
        const auto sixteen = [&](int s) {
            const uint32_t own = kTerms == 2 ? __shfl_sync(~0u, ones, (lane & ~3) + 2 * s) : ones;
            const uint32_t right[2] = {t == list ? own : 0, t + 4 == list ? own : 0};
            for (int m = 0; m < 8; ++m) {
                uint32_t left[4];
                load_matrices_transposed(left, (operand ^ (m << 5)) + s * (kTurnBytes / 2));
                mma_k16<kTerms == 1>(sum_[m], left, right);
            }
        };
        sixteen(0);
        if (most > kEach / 2) sixteen(1);
    }

    // Stores the sums and sets them to zero. It may overwrite `rows`.
    __device__ __forceinline__ void store(const BackwardProblem& p, uint32_t turn, uint32_t rows) {
        const int lane = threadIdx.x % 32, half = p.num_outputs / 2;
        const uint32_t word = load_shared_4(turn + Turn::kSlab);
        const int slab = slab_of(word);
        if constexpr (kTerms == 2) {
            for (int m = 0; m < 8; ++m)
                for (int i = 0; i < 4; ++i) sum_[m][i] += all_[m][i], all_[m][i] = 0;
            turns_ = 0;
        }
        if (int(word) < 0) add_quarters();
        const auto feature_of_list = [&](int list) { return int(load_shared_4(turn + Turn::kFeature + list * 16)); };
        if constexpr (kTerms == 2) {
            const float unscale = power_of_two(reference_) * 0x1p-15f;
            for (int odd = 0; odd < 2; ++odd) {
                const float factor = of_list(unscale, odd);
                const int feature = feature_of_list(lane % 4 * 2 + odd), column = slab * Shape::kSlab + lane / 4;
                float* const to = static_cast<float*>(p.grad_weight) + size_t(feature) * p.num_outputs + column;
                for (int m = 0; m < 4; ++m)
                    for (int i = 0; i < 2; ++i) {
                        const int of_half = m % 2 * 16 + i * 8;
                        const float v = (sum_[m][2 * i + odd] + sum_[m + 4][2 * i + odd] * kLowScale) * factor;
                        if (feature >= 0 && column + of_half < half) __stcs(to + m / 2 * half + of_half, v);
                    }
            }
            reference_ = kNoExponent;
        } else {
            // Transposed by stmatrix, so that each list has a row in shared memory.
            const int list = lane % 8, matrix = lane / 8;
            for (int m = 0; m < 8; m += 2)
                store_matrices_transposed(
                    rows + list * kRowBytes + ((2 * m + matrix ^ list) << 4),
                    {pack(sum_[m][0], sum_[m][1], p.weight_type), pack(sum_[m][2], sum_[m][3], p.weight_type),
                     pack(sum_[m + 1][0], sum_[m + 1][1], p.weight_type),
                     pack(sum_[m + 1][2], sum_[m + 1][3], p.weight_type)});
            __syncwarp();
            const int piece = lane % 16, column = Shape::column(slab, piece);
            for (int i = 0; i < 4; ++i) {
                const int stored = 2 * i + lane / 16, feature = feature_of_list(stored);
                const uint4 v = load_shared_16<true>(rows + stored * kRowBytes + ((piece ^ stored) << 4));
                if (feature >= 0 && column < half)
                    __stcs(
                        reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.grad_weight) +
                                                 size_t(feature) * p.num_outputs + Shape::half(piece) * half + column),
                        v);
            }
        }
        for (auto& s : sum_)
            for (float& x : s) x = 0;
    }

  private:
    template <typename T>
    __device__ __forceinline__ static T of_list(T x, int odd) {
        return __shfl_sync(~0u, x, threadIdx.x % 4 * 8 + odd * 4);
    }

    // Adds the sums of the last turns to those of all turns before, rounding to nearest.
    __device__ __forceinline__ void gather() {
        turns_ = 0;
        for (int m = 0; m < 8; ++m)
            for (int i = 0; i < 4; ++i) all_[m][i] += sum_[m][i], sum_[m][i] = 0;
    }

    // Adds the sums of the quarters of a list to those of the first one.
    __device__ __forceinline__ void add_quarters() {
        static_assert(kQuarters == 4);
        if constexpr (kTerms == 2) {
            int largest = max(reference_, __shfl_xor_sync(~0u, reference_, 4));
            largest = max(largest, __shfl_xor_sync(~0u, largest, 8));
            scale(power_of_two(reference_ - largest));
            reference_ = largest;
        }
        for (auto& s : sum_)
            for (int i = 0; i < 4; i += 2) {
                s[i] += s[i + 1];
                s[i] += __shfl_xor_sync(~0u, s[i], 1);
            }
    }

    // Multiplies the sums of each list i by a factor that lanes 4 i … 4 i + 3 hold.
    __device__ __forceinline__ void scale(float factor) {
        const float even = of_list(factor, 0), odd = of_list(factor, 1);
        for (auto& s : sum_) s[0] *= even, s[1] *= odd, s[2] *= even, s[3] *= odd;
        for (auto& s : all_) s[0] *= even, s[1] *= odd, s[2] *= even, s[3] *= odd;
    }

    float sum_[8][4] = {};
    float all_[8][4] = {};  // for fp32: sums of all turns but the last few
    int turns_ = 0;
    int reference_ = kNoExponent;  // of list lane / 4
};

// Each thread block of this kernel occupies a multiprocessor. The products run on the rest, and on all once this kernel
// is done: it is limited by the L2 cache, the products by tensor cores.
constexpr int grid(int multiprocessors) {
    return std::max(multiprocessors * 2 / 3, 1);  // measured, with 132
}

template <int kTerms>
__global__ void __launch_bounds__(kThreads, 1) list_kernel(BackwardProblem p) {
    extern __shared__ char shared_raw[];
    wait_for_kernels_before();
    if (blockIdx.x == 0 && threadIdx.x == 0) flag_set(&p.sync->begun);
    let_next_kernel_start();
    const uint32_t shared =
        ((shared_address(shared_raw) + kRowBytes - 1) & ~uint32_t(kRowBytes - 1)) + threadIdx.x / 32 * kWarpBytes;
    const auto turn_of = [&](unsigned number) {
        return shared + kStages * kTurnBytes + number % kTurns * Turn::kBytes;
    };
    Turns<kTerms> turns(p);
#pragma unroll 1
    for (int i = 0; i < kSlotsAhead; ++i) turns.describe(turn_of(i));
    copy_async_wait_all();
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) {
        copy_rows<kTerms>(p, turn_of(i), shared + i * kTurnBytes);
        copy_async_commit();
    }
    Sums<kTerms> sums;
    // The stage of this turn, and the one that the turn before has left.
    uint32_t rows = shared, free_rows = shared + kAhead * kTurnBytes;
#pragma unroll 1
    for (unsigned number = 0;; ++number) {
        copy_rows<kTerms>(p, turn_of(number + kAhead), free_rows);
        turns.describe(turn_of(number + kSlotsAhead));
        copy_async_commit();
        copy_async_wait<kAhead>();
        __syncwarp();
        const uint32_t turn = turn_of(number);
        const int most = int(load_shared_4(turn + Turn::kMost));
        if (most == 0) break;
        sums.add(turn, most, rows);
        __syncwarp();
        if (most <= kEach) {
            sums.store(p, turn, rows);
            __syncwarp();
        }
        free_rows = rows;
        rows = rows == shared + kAhead * kTurnBytes ? shared : rows + kTurnBytes;
    }
    copy_async_wait_all();
}

// The gradients of the unbucketed features that have lists.
template <int kTerms>
void run(const BackwardProblem& p, int multiprocessors, cudaStream_t stream) {
    start("list_kernel", list_kernel<kTerms>, kSharedBytes, grid(multiprocessors), kThreads, kSharedBytes, stream, p);
}

}  // namespace nnue::unbucketed_gradient
