// The weight gradient of loose features: sums of row gradients over the lists of loose_rows.cuh.
//
// A warp takes eight lists, neighbours in length, and a slab of columns. By *turns* four row gradients of each list are
// copied to shared memory, two turns ahead of the one that is added up: as a product on tensor cores, [columns, 32
// entries] × [32 entries, 8 lists], whose right operand has a one where the entry is of the list. So what is on its way
// takes no registers, and a row gradient few instructions.
//
// A long list is taken in four parts, two such lists at a time: else the longest would last as long as all the others.
// Lists of more than kShortList slots go slab by slab: a slab of all row gradients, 9 MB at 32,768 rows, stays in the
// L2 cache while every list passes over it. Short lists take a few slabs at a time. Dense features are a block of the
// products (block_gradient.cuh), which also clear the gradients of features that no row has. Each list is summed in an
// order that its length alone decides, in fp32 by a scale that its own entries' exponents decide; zeros times other
// lists' entries, as long as they are finite, leave its bits as they are. Each element is written once.
#pragma once

#include "block_gradient.cuh"

namespace nnue::loose_gradient {

using namespace block_product;

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kLists = 8, kEach = 4, kEntries = kLists * kEach;  // of a turn: entries of a list, of all
constexpr int kPieceBytes = 16, kRowBytes = 256, kTurnBytes = kEntries * kRowBytes;
// Row gradients of so many turns are on their way, and slots of so many that they are there when those are copied.
constexpr int kAhead = 2, kStages = kAhead + 1, kSlotsAhead = 2 * kAhead + 1, kTurns = 8;
constexpr int kShortSlabs = 4;  // that a warp takes of short lists
constexpr int kLongParts = 4;   // of a long list: what a warp does one after the other is the shorter
constexpr int kHeadroom = 4;    // of lists' exponents, so that they seldom change
// Products on tensor cores round towards zero; so in fp32 the sums of so many turns are added to sums of their own.
constexpr int kTurnsTogether = 16;
// Of an entry's place in shared memory. A place is less than 16 · slots, so there are no more than 2^27 of those.
constexpr unsigned kExists = 1u << 31;

// What a warp knows of a turn, in shared memory. Entry i of a turn is number i % 4 of list i / 4.
struct Turn {
    static constexpr int kSlots = 0;  // of entries; then where their row gradients are, in copy_rows' order
    static constexpr int kExponents = kSlots + kEntries * 4;  // of entries
    static constexpr int kOfLists = kExponents + kEntries * 4;
    // Of each list or part 16 bytes: how many entries it has left, maybe < 0, and the gradient's row, or −1 if there is
    // no such list, and for all parts but the first; the most that any of them has left, no more than four if this is
    // the last turn of these lists, 0 where there are no more turns; and the slab, its complement where lists have
    // parts.
    static constexpr int kLeft = kOfLists, kRow = kOfLists + 4, kMost = kOfLists + 8, kSlab = kOfLists + 12;
    static constexpr int kBytes = kOfLists + kLists * 16;
};

// A warp has row gradients of kStages turns there, and kTurns descriptions.
constexpr int kWarpBytes = kStages * kTurnBytes + kTurns * Turn::kBytes;
constexpr int kSharedBytes = kWarps * kWarpBytes + kRowBytes;
static_assert(kTurns > kSlotsAhead && kWarpBytes % kRowBytes == 0);

// What a warp sums: eight lists, or two that are long in four parts each; and the slabs it does so in.
struct Group {
    LooseList list;  // of lane / 4; none: its count is 0
    int slab, end;
    bool in_parts;  // a list has kLongParts parts, each of them every so-manyth four entries
};

// The turns of a warp's groups, one after the other. The next group's lists are on their way meanwhile.
template <int kParts>
class Turns {
  public:
    __device__ __forceinline__ explicit Turns(const BackwardProblem& p)
        : p_(p), summary_(*p.loose.summary), numbers_(&p.sync->list_ticket) {
        now_ = open(numbers_.now()), most_ = longest(now_.list);
        next_ = open(numbers_.next());
    }

    // Writes down at `turn` what the next turn is, and begins to copy its slots.
    __device__ __forceinline__ void describe(uint32_t turn) {
        const int lane = threadIdx.x % 32, part = now_.in_parts ? lane / kEach % kLongParts : 0;
        const int own = done_ + part * kEach, left = int(now_.list.count) - own;
        const int step = now_.in_parts ? kEach * kLongParts : kEach;
        const bool last = most_ - done_ <= step;
        const int most = max(last && now_.in_parts ? min(most_ - done_, kEach) : most_ - done_, 0);
        if (lane % kEach == 0) {
            copy_async_16(turn + Turn::kSlots + lane * 4, p_.loose.slots + now_.list.begin + (left > 0 ? own : 0),
                          left > 0);
            store_shared_16(turn + Turn::kOfLists + lane / kEach * 16, left,
                            now_.list.count > 0 && part == 0 ? p_.in.num_features + now_.list.feature : -1, most,
                            now_.in_parts ? ~now_.slab : now_.slab);
        }
        done_ += step;
        if (!last || most == 0) return;
        done_ = 0;
        if (++now_.slab < now_.end) return;
        now_ = next_, most_ = longest(now_.list);
        next_ = open(numbers_.next());
    }

  private:
    __device__ __forceinline__ static int longest(const LooseList& list) {
        return __reduce_max_sync(~0u, int(list.count));
    }

    // Long lists and others slab by slab, then short ones, a few slabs at a time.
    __device__ __forceinline__ Group open(unsigned task) const {
        const int slabs = Slab<kParts>::slabs(p_.num_outputs), stretches = (slabs + kShortSlabs - 1) / kShortSlabs;
        const auto groups = [](int begin, int end, int lists) { return unsigned(end - begin + lists - 1) / lists; };
        constexpr int kLongLists = kLists / kLongParts;
        const unsigned long_groups = groups(summary_.dense, summary_.first_middle, kLongLists),
                       of_slab = long_groups + groups(summary_.first_middle, summary_.first_short, kLists),
                       short_groups = groups(summary_.first_short, summary_.first_empty, kLists);
        Group group{};
        int list = int(threadIdx.x % 32) / kEach, end = 0;
        if (task < of_slab * slabs) {
            const unsigned number = task % of_slab;
            group.slab = int(task / of_slab), group.end = group.slab + 1;
            if (number < long_groups) {
                group.in_parts = true;
                list = summary_.dense + int(number) * kLongLists + list / kLongParts, end = summary_.first_middle;
            } else {
                list += summary_.first_middle + int(number - long_groups) * kLists, end = summary_.first_short;
            }
        } else if (task - of_slab * slabs < short_groups * stretches) {
            const unsigned number = task - of_slab * slabs;
            group.slab = int(number % unsigned(stretches)) * kShortSlabs;
            group.end = min(group.slab + kShortSlabs, slabs);
            list += summary_.first_short + int(number / unsigned(stretches)) * kLists, end = summary_.first_empty;
        }
        if (list < end) group.list = p_.loose.lists[list];
        return group;
    }

    const BackwardProblem& p_;
    const LooseSummary summary_;
    Numbers numbers_;
    Group now_, next_;
    int most_, done_ = 0;  // entries of the longest list, and of each that have had their turn; 0: no list is left
};

__device__ __forceinline__ int slab_of(uint32_t word) {
    return int(word) < 0 ? ~int(word) : int(word);
}

// Begins to copy a turn's row gradients, of two entries of each list or of all. Lanes 0 … 15 copy those of entries 0
// and 2, the others those of 1 and 3.
template <int kParts>
__device__ __forceinline__ void copy_rows(const BackwardProblem& p, uint32_t turn, uint32_t rows) {
    using Shape = Slab<kParts>;
    const int lane = threadIdx.x % 32, piece = lane % 16, h = lane / 16;
    const int most = int(load_shared_4(turn + Turn::kMost)), slab = slab_of(load_shared_4(turn + Turn::kSlab));
    const int left = int(load_shared_4(turn + Turn::kLeft + lane / kEach * 16));
    const unsigned slot = load_shared_4(turn + Turn::kSlots + lane * 4);
    if (most == 0) return;
    const bool exists = lane % kEach < left;
    // Of the slot's first piece as operand_offset has it, in pieces; the swizzle is the row's.
    const unsigned place = (slot + (slot & ~(kTileRows - 1u))) * 8 + (slot & 7);
    if constexpr (kParts == 2) {
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
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 four = load_shared_16<true>(turn + Turn::kSlots + h * 64 + i * 16);
        at[4 * i] = four.x, at[4 * i + 1] = four.y, at[4 * i + 2] = four.z, at[4 * i + 3] = four.w;
    }
    const char* const from = static_cast<const char*>(p.grad_rows) + size_t(slab) * p.max_tiles * Shape::kOperandBytes +
                             piece / 8 * Shape::kAtomBytes;
    const uint32_t to = rows + h * kRowBytes + ((piece ^ h) << 4);
    const unsigned piece_bytes = block_rows::keep(kPieceBytes);  // for row_of
    const auto sixteen = [&](int s) {
#pragma unroll
        for (int i = 0; i < kLists; ++i) {
            const unsigned word = at[2 * i + s], own_piece = (word ^ (piece & 7)) & ~kExists;
            copy_async_16((to ^ (2 * i % 8 << 4)) + i * 2 * kRowBytes + s * (kTurnBytes / 2),
                          row_of(from, own_piece, piece_bytes), word & kExists);
        }
    };
    sixteen(0);
    if (most > kEach / 2) sixteen(1);
}

// Sums of eight lists: a lane has those of lists 2 · (lane % 4) and the next one.
template <int kParts>
class Sums {
  public:
    using Shape = Slab<kParts>;

    __device__ __forceinline__ void add(uint32_t turn, int most, uint32_t rows) {
        const int lane = threadIdx.x % 32, list = lane / 4, t = lane % 4;
        uint32_t ones = kOneBf16 << 16 | kOneBf16;
        if constexpr (kParts == 2) {
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
            ones = __shfl_xor_sync(~0u, one, 1) << 16 | one;  // right in even lanes
        }
        // Of matrix lane / 8: entries lane / 16 · 8 …, piece lane / 8 % 2.
        const uint32_t operand = rows + (lane / 16 * 8 + lane % 8) * kRowBytes + ((lane / 8 % 2 ^ lane % 8) << 4);
        const auto sixteen = [&](int s) {
            const uint32_t own = kParts == 2 ? __shfl_sync(~0u, ones, (lane & ~3) + 2 * s) : ones;
            const uint32_t right[2] = {t == list ? own : 0, t + 4 == list ? own : 0};
#pragma unroll
            for (int m = 0; m < 8; ++m) {
                uint32_t left[4];
                load_matrices_transposed(left, (operand ^ (m << 5)) + s * (kTurnBytes / 2));
                mma_k16<kParts == 1>(sum_[m], left, right);
            }
        };
        sixteen(0);
        if (most > kEach / 2) sixteen(1);
    }

    // Stores the sums and makes them zero; `rows` is free.
    __device__ __forceinline__ void store(const BackwardProblem& p, uint32_t turn, uint32_t rows) {
        const int lane = threadIdx.x % 32, half = p.num_outputs / 2;
        const uint32_t word = load_shared_4(turn + Turn::kSlab);
        const int slab = slab_of(word);
        if constexpr (kParts == 2) {
#pragma unroll
            for (int m = 0; m < 8; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum_[m][i] += all_[m][i], all_[m][i] = 0;
            turns_ = 0;
        }
        if (int(word) < 0) add_parts();
        const auto row_of_list = [&](int list) { return int(load_shared_4(turn + Turn::kRow + list * 16)); };
        if constexpr (kParts == 2) {
            const float unscale = power_of_two(reference_) * 0x1p-15f;
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const float factor = of_list(unscale, odd);
                const int row = row_of_list(lane % 4 * 2 + odd), column = slab * Shape::kSlab + lane / 4;
                float* const to = static_cast<float*>(p.grad_weight) + size_t(row) * p.num_outputs + column;
#pragma unroll
                for (int m = 0; m < 4; ++m)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int of_half = m % 2 * 16 + i * 8;
                        const float v = (sum_[m][2 * i + odd] + sum_[m + 4][2 * i + odd] * kLowScale) * factor;
                        if (row >= 0 && column + of_half < half) __stcs(to + m / 2 * half + of_half, v);
                    }
            }
            reference_ = kNoExponent;
        } else {
            // Turned around: a row for each list.
            const int list = lane % 8, matrix = lane / 8;
#pragma unroll
            for (int m = 0; m < 8; m += 2)
                store_matrices_transposed(
                    rows + list * kRowBytes + ((2 * m + matrix ^ list) << 4),
                    {pack(sum_[m][0], sum_[m][1], p.weight_type), pack(sum_[m][2], sum_[m][3], p.weight_type),
                     pack(sum_[m + 1][0], sum_[m + 1][1], p.weight_type),
                     pack(sum_[m + 1][2], sum_[m + 1][3], p.weight_type)});
            __syncwarp();
            const int piece = lane % 16, column = Shape::column(slab, piece);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int stored = 2 * i + lane / 16, row = row_of_list(stored);
                const uint4 v = load_shared_16<true>(rows + stored * kRowBytes + ((piece ^ stored) << 4));
                if (row >= 0 && column < half)
                    __stcs(reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.grad_weight) +
                                                    size_t(row) * p.num_outputs + Shape::half(piece) * half + column),
                           v);
            }
        }
#pragma unroll
        for (auto& s : sum_)
#pragma unroll
            for (float& x : s) x = 0;
    }

  private:
    template <typename T>
    __device__ __forceinline__ static T of_list(T x, int odd) {
        return __shfl_sync(~0u, x, threadIdx.x % 4 * 8 + odd * 4);
    }

    // Adds the sums of the turns before to those of all, to nearest.
    __device__ __forceinline__ void gather() {
        turns_ = 0;
#pragma unroll
        for (int m = 0; m < 8; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) all_[m][i] += sum_[m][i], sum_[m][i] = 0;
    }

    // The sums of the four parts of a list, to the first one's.
    __device__ __forceinline__ void add_parts() {
        static_assert(kLongParts == 4);
        if constexpr (kParts == 2) {
            int largest = max(reference_, __shfl_xor_sync(~0u, reference_, 4));
            largest = max(largest, __shfl_xor_sync(~0u, largest, 8));
            scale(power_of_two(reference_ - largest));
            reference_ = largest;
        }
#pragma unroll
        for (auto& s : sum_)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                s[i] += s[i + 1];
                s[i] += __shfl_xor_sync(~0u, s[i], 1);
            }
    }

    // Each list's sums by a factor that lanes 4 i … 4 i + 3 know for list i.
    __device__ __forceinline__ void scale(float factor) {
        const float even = of_list(factor, 0), odd = of_list(factor, 1);
#pragma unroll
        for (auto& s : sum_) s[0] *= even, s[1] *= odd, s[2] *= even, s[3] *= odd;
#pragma unroll
        for (auto& s : all_) s[0] *= even, s[1] *= odd, s[2] *= even, s[3] *= odd;
    }

    float sum_[8][4] = {};
    float all_[8][4] = {};  // in fp32: of the turns before the last few
    int turns_ = 0;
    int reference_ = kNoExponent;  // of list lane / 4
};

// The kernel's thread blocks have a multiprocessor each. It leaves some to the products, which take the others when it
// is done: it is bound by the L2 cache, they by tensor cores.
constexpr int kCtas = 88;  // measured

template <int kParts>
__global__ void __launch_bounds__(kThreads, 1) list_kernel(BackwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char shared_raw[];
    wait_for_kernels_before();
    if (blockIdx.x == 0 && threadIdx.x == 0) flag_set(&p.sync->begun);
    let_next_kernel_start();
    const uint32_t shared =
        ((shared_address(shared_raw) + kRowBytes - 1) & ~uint32_t(kRowBytes - 1)) + threadIdx.x / 32 * kWarpBytes;
    const auto turn_of = [&](unsigned number) {
        return shared + kStages * kTurnBytes + number % kTurns * Turn::kBytes;
    };
    Turns<kParts> turns(p);
#pragma unroll 1
    for (int i = 0; i < kSlotsAhead; ++i) turns.describe(turn_of(i));
    copy_async_wait_all();
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) {
        copy_rows<kParts>(p, turn_of(i), shared + i * kTurnBytes);
        copy_async_commit();
    }
    Sums<kParts> sums;
    uint32_t rows = shared, free_rows = shared + kAhead * kTurnBytes;  // of this turn, of the one before
#pragma unroll 1
    for (unsigned number = 0;; ++number) {
        copy_rows<kParts>(p, turn_of(number + kAhead), free_rows);
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
#endif
}

// The gradients of loose features that have lists.
template <int kParts>
cudaError_t run(const BackwardProblem& p, cudaStream_t stream) {
    const cudaError_t error =
        hopper::set_shared_memory(reinterpret_cast<const void*>(list_kernel<kParts>), kSharedBytes);
    if (error != cudaSuccess) return error;
    return hopper::launch_early(list_kernel<kParts>, kCtas, kThreads, kSharedBytes, stream, p);
}

}  // namespace nnue::loose_gradient
