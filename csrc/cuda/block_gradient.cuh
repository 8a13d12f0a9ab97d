// The backward of king-bucketed sets: row gradients, and the weight gradient as a product on tensor cores
// (block_product.cuh) over each block's frequent features; rare ones are gathered.
//
// Row gradients first, as fast as memory allows; beside them the lists of the rows that have rare features. Then the
// products (gradient_plan.cuh), and as multiprocessors get free of them, rare features and sums of partial products.
#pragma once

#include "gradient_plan.cuh"
#include "irregular_rows.cuh"

namespace nnue::block_product {

// Row gradients lie as the product reads them: for each (slab, tile of 64 slots) one operand of 64 rows × 128 columns,
// two swizzled atoms. bf16: the slab's 64 columns of each half. Two fp16 parts: an atom of 32 columns of each half with
// the high parts, one with the low parts, times the power of two of `exponents` for this (slab, tile).
template <int kParts>
struct GradientShape {
    static constexpr int kSlab = 64 / kParts;  // columns of each half
    static constexpr int kAtomBytes = kTileRows * 128, kOperandBytes = 2 * kAtomBytes;
    static constexpr int kColumns = 2 * kSlab;  // of a gradient
    static constexpr int kPartialFloats = kGroupFeatures * kColumns;
    static constexpr int kThreads = 256, kWarps = kThreads / 32, kGroups = kSlab / 8, kRows = kThreads / kGroups;

    __host__ __device__ static int slabs(int num_outputs) { return (num_outputs / 2 + kSlab - 1) / kSlab; }
    // Of eight columns of half `h` in row `row` of an operand; the low parts lie an atom further on.
    __device__ static uint32_t offset(int h, int row, int group) {
        return kParts == 1 ? h * kAtomBytes + operand_offset(row, group) : operand_offset(row, h * kGroups + group);
    }
};

// A stretch of tiles to a thread block of the row gradients; its sums are a part of the bias gradient.
__host__ __device__ inline int stretch_tiles(int max_tiles) {
    return max(4, (max_tiles + 1023) / 1024);
}
__host__ __device__ inline int stretches(int max_tiles) {
    return (max_tiles + stretch_tiles(max_tiles) - 1) / stretch_tiles(max_tiles);
}

constexpr int kNoExponent = -1000;  // of a tile of zeros

// The exponent of the power of two that leaves numbers of up to this magnitude (its bits) just inside fp16's range.
__device__ __forceinline__ int tile_exponent(unsigned largest) {
    if (largest == 0) return kNoExponent;
    if (largest >= 0x7f800000u) return 0;  // not finite, and stays so
    return max(int(largest >> 23) - 127 - 14, -120);
}
// 2^exponent as a float, 0 below its normal range.
__device__ __forceinline__ float power_of_two(int exponent) {
    return exponent < -126 ? 0.0f : __int_as_float((exponent + 127) << 23);
}

// Eight numbers as they lie in memory.
template <typename T>
struct Eight {
    uint4 raw[sizeof(T) / 2] = {};

    __device__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < int(sizeof(T) / 2); ++i) raw[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    }
    __device__ void unpack_to(float (&x)[8], Float type) const {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t* words = &raw[j * sizeof(T) / 8].x;
            float2 two;
            if constexpr (sizeof(T) == 4)
                two = {__uint_as_float(words[2 * j % 4]), __uint_as_float(words[2 * j % 4 + 1])};
            else
                two = unpack(words[j], type);
            x[2 * j] = two.x, x[2 * j + 1] = two.y;
        }
    }
};

// What products leave out.
struct RareFeatures {
    int begin[kMaxBlocks + 1];  // of each block's in the list of all
    int group[kMaxBlocks + 1];  // the same in groups of 32 of a block

    // A warp.
    __device__ void load(const BackwardProblem& p) {
        const auto count = [&](int block) { return max(p.rows.used[block] - p.rows.dense[block], 0); };
        sums_before(begin, p.in.num_blocks, count);
        sums_before(group, p.in.num_blocks, [&](int block) { return (count(block) + 31) / 32; });
    }
};

// The lists of the slots that have a rare feature, by the first kListBlocks thread blocks: 32 features of a block at a
// time, whose bitmaps lie side by side; a lane has a feature, a warp an eighth of the block's tiles.
constexpr int kListBlocks = 128;
__device__ __forceinline__ void list_rare_rows(const BackwardProblem& p) {
    constexpr int kWarps = GradientShape<1>::kWarps, kTogether = 8;  // tiles whose loads are in flight
    static_assert(kWarps == GradientShape<2>::kWarps);
    __shared__ RareFeatures rare;
    __shared__ int counts[2][kWarps][33];  // of a warp's tiles; the last: entries of the features before
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_blocks = p.in.num_blocks;
    if (warp == 0) rare.load(p);
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) p.sync->rare = rare.begin[num_blocks];
    int parity = 0;
    for (int item = blockIdx.x; item < rare.group[num_blocks]; item += kListBlocks, parity ^= 1) {
        const int block = last_begun(rare.group, num_blocks, item), first = (item - rare.group[block]) * 32;
        const int number = rare.begin[block] + first + lane, dense = p.rows.dense[block];
        const bool has_feature = number < rare.begin[block + 1];
        const int all = p.rows.tile_begin[block], tiles = p.rows.tile_begin[block + 1] - all;
        const int begin = all + tiles * warp / kWarps, end = all + tiles * (warp + 1) / kWarps;
        const uint2* bits = p.rows.feature_bits + dense + first + (has_feature ? lane : 0);
        const auto for_each_word = [&](const auto& visit) {
            for (int base = begin; base < end; base += kTogether) {
                uint2 words[kTogether] = {};
#pragma unroll
                for (int i = 0; i < kTogether; ++i)
                    if (has_feature && base + i < end) words[i] = __ldg(bits + size_t(base + i) * kBlockFeatures);
#pragma unroll
                for (int i = 0; i < kTogether; ++i) visit(base + i, words[i]);
            }
        };
        int before = 0;  // entries of features before these, irregular rows' included: as many places at the most
        for (int i = threadIdx.x; i < first; i += kWarps * 32)
            before += __ldg(p.rows.counts + block * kBlockFeatures +
                            __ldg(p.rows.ranked + block * kBlockFeatures + dense + i));
        before = __reduce_add_sync(~0u, before);
        int count = 0;
        for_each_word([&](int, uint2 word) { count += __popc(word.x) + __popc(word.y); });
        counts[parity][warp][lane] = count;
        if (lane == 0) counts[parity][warp][32] = before;
        __syncthreads();
        int total = 0, mine = 0, place = rare_place(all);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            mine += w < warp ? counts[parity][w][lane] : 0;
            total += counts[parity][w][lane];
            place += counts[parity][w][32];
        }
        place += block_rows::warp_inclusive_sum(total, lane) - total;
        if (warp == 0 && has_feature) {
            const int local = __ldg(p.rows.ranked + block * kBlockFeatures + dense + first + lane);
            p.rare[number] = {block * p.in.block_size + local, uint32_t(place), uint32_t(total)};
        }
        int* to = p.rare_slots + place + mine;
        for_each_word([&](int tile, uint2 word) {
            const int slot = tile * kTileRows;
            for (uint32_t b = word.x; b != 0; b &= b - 1) *to++ = slot + index_of_bit(__ffs(b) - 1);
            for (uint32_t b = word.y; b != 0; b &= b - 1) *to++ = slot + 32 + index_of_bit(__ffs(b) - 1);
        });
    }
}

// Row gradients in slot order, 0 in padding, and their sums over each stretch of tiles. The first kListBlocks thread
// blocks list rare features' slots instead; then all slabs of a stretch follow each other, as they share rows of
// memory.
template <int kParts, typename Grad, Activation kActivation>
__global__ void __launch_bounds__(GradientShape<kParts>::kThreads, 4) row_gradient_kernel(BackwardProblem p) {
    using Shape = GradientShape<kParts>;
    using Saved = std::conditional_t<kParts == 1, uint16_t, float>;
    constexpr bool kPairwise = kActivation == Activation::kPairwise;
    constexpr int kRows = Shape::kRows, kWarps = Shape::kWarps;
    __shared__ float sums[kRows][Shape::kGroups][17];
    __shared__ unsigned largest[2][kWarps];
    const int group = threadIdx.x % Shape::kGroups, row = threadIdx.x / Shape::kGroups;
    const int max_tiles = p.max_tiles, stretch = stretch_tiles(max_tiles), slabs = Shape::slabs(p.num_outputs);
    const int item = int(blockIdx.x) - kListBlocks, slab = item % slabs, number = item / slabs;
    const int half = p.num_outputs / 2, column = slab * Shape::kSlab + group * 8;
    const float limit = kParts == 1 ? __half2float(__float2half_ru(p.bound)) : p.bound;
    wait_for_kernels_before();
    let_next_kernel_start();
    if (item < 0) {
        if (blockIdx.x == 0)
            for (int i = threadIdx.x; i < int(sizeof(GradientSync) / 4); i += Shape::kThreads)
                reinterpret_cast<unsigned*>(p.sync)[i] = 0;
        list_rare_rows(p);
        return;
    }
    const int first = number * stretch, last = min(first + stretch, p.rows.tile_begin[p.in.num_blocks]);
    float bias[2][8] = {};
    constexpr int kPasses = kTileRows / kRows;
    for (int tile = first; tile < last; ++tile) {
        char* operand = static_cast<char*>(p.grad_rows) + (size_t(slab) * max_tiles + tile) * Shape::kOperandBytes;
        int targets[kPasses];
        Eight<Grad> grads[kPasses][kPairwise ? 1 : 2];
        Eight<Saved> sums_saved[kPasses][2];
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass)
            targets[pass] = column < half ? __ldg(p.rows.slot_target + tile * kTileRows + pass * kRows + row) : -1;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {  // all loads first
            if (targets[pass] < 0) continue;
            const Grad* grad = static_cast<const Grad*>(p.grad_out) +
                               size_t(targets[pass]) * (kPairwise ? half : p.num_outputs) + column;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (h == 0 || !kPairwise) grads[pass][h].load(grad + h * half);
                if constexpr (kActivation != Activation::kIdentity)
                    sums_saved[pass][h].load(static_cast<const Saved*>(p.saved) +
                                             saved_at(tile * kTileRows + pass * kRows + row, h, column, p.num_outputs));
            }
        }
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const int r = pass * kRows + row;
            float g[2][8], s[2][8];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                grads[pass][kPairwise ? 0 : h].unpack_to(g[h], p.grad_type);
                sums_saved[pass][h].unpack_to(s[h], Float::kFloat16);
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) {  // of zeros where there is no row
                g[0][j] *= p.scale;
                g[1][j] *= p.scale;
                differentiate<kActivation>(g[0][j], g[1][j], s[0][j], s[1][j], p.bound, limit);
                bias[0][j] += g[0][j];
                bias[1][j] += g[1][j];
            }
            float scale = 1;
            if constexpr (kParts == 2) {
                static_assert(kRows == kTileRows);
                unsigned mine = 0;
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    mine =
                        max(mine, max(__float_as_uint(g[0][j]) & 0x7fffffffu, __float_as_uint(g[1][j]) & 0x7fffffffu));
                mine = __reduce_max_sync(~0u, mine);
                if (threadIdx.x % 32 == 0) largest[tile % 2][threadIdx.x / 32] = mine;
                __syncthreads();
#pragma unroll
                for (int w = 0; w < kWarps; ++w) mine = max(mine, largest[tile % 2][w]);
                const int exponent = tile_exponent(mine);
                if (threadIdx.x == 0) p.exponents[size_t(slab) * max_tiles + tile] = exponent;
                scale = power_of_two(mine == 0 ? 0 : -exponent);
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                uint32_t high[4], low[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    if constexpr (kParts == 1) {
                        high[j] = pack(g[h][2 * j], g[h][2 * j + 1], Float::kBFloat16);
                    } else {
                        split(g[h][2 * j] * scale, g[h][2 * j + 1] * scale, high[j], low[j]);
                    }
                }
                char* to = operand + Shape::offset(h, r, group);
                *reinterpret_cast<uint4*>(to) = {high[0], high[1], high[2], high[3]};
                if constexpr (kParts == 2)
                    *reinterpret_cast<uint4*>(to + Shape::kAtomBytes) = {low[0], low[1], low[2], low[3]};
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) sums[row][group][i] = bias[i / 8][i % 8];
    __syncthreads();
    for (int i = threadIdx.x; i < Shape::kGroups * 16; i += Shape::kThreads) {
        const int c = slab * Shape::kSlab + i / 16 * 8 + i % 8;
        float sum = 0;
#pragma unroll 8
        for (int y = 0; y < kRows; ++y) sum += sums[y][i / 16][i % 16];
        if (c < half) p.bias_partial[size_t(number) * p.num_outputs + i % 16 / 8 * half + c] = sum;
    }
}

// What a list takes of a row at a time is a slab of GradientShape: 16 pieces of 16 bytes, 8 columns each. One part:
// pieces 0…7 are 64 columns of the first half, 8…15 the same of the second. Two parts: pieces 0…7 are 32 columns of
// each half, high parts, and 8…15 the low parts.
template <int kParts>
struct Slab : GradientShape<kParts> {
    using GradientShape<kParts>::kSlab, GradientShape<kParts>::kGroups;
    // First column of a piece in its half, and which half.
    __device__ static int column(int slab, int piece) { return slab * kSlab + piece % kGroups * 8; }
    __device__ static int half(int piece) { return kParts == 1 ? piece / 8 : piece % 8 / 4; }
};

struct Piece {
    uint4 values;
    int exponent;
};

// There is such a slot and such a slab.
template <int kParts>
__device__ __forceinline__ Piece load_piece(const BackwardProblem& p, int slot, int slab, int piece) {
    using Shape = Slab<kParts>;
    const int tile = slot / kTileRows;
    const size_t operand = size_t(slab) * p.max_tiles + tile;
    const char* from = static_cast<const char*>(p.grad_rows) + operand * Shape::kOperandBytes +
                       piece / 8 * Shape::kAtomBytes + operand_offset(slot % kTileRows, piece % 8);
    return {__ldcg(reinterpret_cast<const uint4*>(from)), kParts == 2 ? __ldcg(p.exponents + operand) : 0};
}

template <int kParts>
__device__ __forceinline__ void add_piece(float (&sum)[8], const Piece& piece) {
    const float scale = kParts == 2 ? power_of_two(piece.exponent) : 1.0f;
    const uint32_t words[4] = {piece.values.x, piece.values.y, piece.values.z, piece.values.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 two = unpack(words[j], kParts == 1 ? Float::kBFloat16 : Float::kFloat16);
        if constexpr (kParts == 1) {
            sum[2 * j] += two.x, sum[2 * j + 1] += two.y;
        } else {
            sum[2 * j] += two.x * scale, sum[2 * j + 1] += two.y * scale;
        }
    }
}

// All lanes; neighbouring lanes hold neighbouring pieces.
template <int kParts>
__device__ __forceinline__ void store_piece(const BackwardProblem& p, float (&sum)[8], int row, int slab, int piece) {
    using Shape = Slab<kParts>;
    if constexpr (kParts == 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sum[i] = sum[i] + kLowScale * __shfl_xor_sync(~0u, sum[i], 8);  // right where piece < 8
    }
    const int half = p.num_outputs / 2, column = Shape::column(slab, piece);
    if (column >= half || (kParts == 2 && piece >= 8)) return;
    const size_t at = size_t(row) * p.num_outputs + Shape::half(piece) * half + column;
    if constexpr (kParts == 2) {
        float4* target = reinterpret_cast<float4*>(static_cast<float*>(p.grad_weight) + at);
        __stcs(target, float4{sum[0], sum[1], sum[2], sum[3]});
        __stcs(target + 1, float4{sum[4], sum[5], sum[6], sum[7]});
    } else {
        __stcs(reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.grad_weight) + at),
               uint4{pack(sum[0], sum[1], p.weight_type), pack(sum[2], sum[3], p.weight_type),
                     pack(sum[4], sum[5], p.weight_type), pack(sum[6], sum[7], p.weight_type)});
    }
}

// Adds kRows rows, whose slots lanes first … know; a lane has pieces `base` and `base` + 32 of each. All loads first,
// and none that depends on a condition: that would be waited for where it stands. (An address of zeros for rows that
// are not there is no way out: it lies in one place, and 400 us became 1,060.)
template <int kParts, int kRows>
__device__ __forceinline__ void add_rows(float (&sum)[2][8], const BackwardProblem& p, int slot, int first, int base) {
    const int last_slab = Slab<kParts>::slabs(p.num_outputs) - 1;
    Piece pieces[kRows][2];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const int at = __shfl_sync(~0u, slot, first + r);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int q = base + c * 32;
            pieces[r][c] = load_piece<kParts>(p, at, min(q / 16, last_slab), q % 16);
        }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int c = 0; c < 2; ++c) add_piece<kParts>(sum[c], pieces[r][c]);
}

// A warp: the sum of a list of slots, 64 pieces of a row from `base` on; up to eight rows in flight. `slot`: of the
// lane's number in the list; `row`: of the gradient.
template <int kParts>
__device__ __forceinline__ void sum_list(const BackwardProblem& p, int row, const int* slots, int count, int slot,
                                         int base) {
    const int lane = threadIdx.x % 32;
    float sum[2][8] = {};
    base += lane;
    for (int begin = 0; begin < count; begin += 32) {
        if (begin > 0) slot = begin + lane < count ? __ldcg(slots + begin + lane) : -1;
        const int here = min(count - begin, 32);
        int first = 0;
        for (; first + 8 <= here; first += 8) add_rows<kParts, 8>(sum, p, slot, first, base);
        if (here - first >= 4) add_rows<kParts, 4>(sum, p, slot, first, base), first += 4;
        if (here - first == 3) add_rows<kParts, 3>(sum, p, slot, first, base);
        if (here - first == 2) add_rows<kParts, 2>(sum, p, slot, first, base);
        if (here - first == 1) add_rows<kParts, 1>(sum, p, slot, first, base);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const int q = base + c * 32;
        store_piece<kParts>(p, sum[c], row, q / 16, q % 16);
    }
}

// Numbers of items for the warps of a grid, neighbouring ones in different thread blocks: a warp's first is its own;
// then each so-manyth, or, with a ticket, the next one as the warp gets free, asked for ahead.
class Numbers {
  public:
    // Shuffled, so that ptxas knows that all lanes have the same; it spills otherwise.
    __device__ __forceinline__ explicit Numbers(unsigned* ticket)
        : ticket_(ticket), now_(__shfl_sync(~0u, threadIdx.x / 32 * gridDim.x + blockIdx.x, 0)) {
        take();
    }
    __device__ __forceinline__ unsigned now() const { return now_; }
    __device__ __forceinline__ unsigned next() {
        const unsigned warps = gridDim.x * (blockDim.x / 32);
        now_ = ticket_ == nullptr ? now_ + warps : __shfl_sync(~0u, taken_, 0) + warps;
        take();
        return now_;
    }

  private:
    __device__ __forceinline__ void take() {
        taken_ = ticket_ != nullptr && threadIdx.x % 32 == 0 ? atomicAdd(ticket_, 1u) : 0u;
    }

    unsigned* const ticket_;
    unsigned now_, taken_;
};

// A list and its first slots are on their way while the items before are worked off: what a lane knows of an item.
struct Item {
    long long number;
    LooseList list;
    int slot;  // of the lane's number in the list, −1 if there is none
};

template <typename ListOf, typename Visit>
__device__ __forceinline__ void for_each_list(const int* slots, unsigned* ticket, long long count,
                                              const ListOf& list_of, const Visit& visit) {
    const int lane = threadIdx.x % 32;
    const auto open = [&](unsigned number) {
        Item item{};
        item.number = number;
        if (item.number < count) item.list = list_of(item.number);
        return item;
    };
    const auto fetch = [&](Item& item) {
        item.slot = lane < item.list.count ? __ldcg(slots + item.list.begin + lane) : -1;
    };
    Numbers numbers(ticket);
    Item now = open(numbers.now());
    fetch(now);
    Item next = open(numbers.next());
    while (now.number < count) {
        fetch(next);
        const Item after = open(numbers.next());
        visit(now);
        now = next, next = after;
    }
}

// The gradient's row of a feature; −1: there is none. `entry`: of `ranked`, or of a list.
__device__ __forceinline__ int gradient_row(const BackwardProblem& p, int loose_dense, int block, int rank, int entry) {
    if (block == p.in.num_blocks) return rank < loose_dense ? p.in.num_features + entry : -1;
    const int local = entry ^ entry >> 31, feature = block * p.in.block_size + local;
    return local < p.in.block_size && feature < p.in.num_features ? feature : -1;
}
__device__ __forceinline__ const int* rank_entry(const BackwardProblem& p, int block, int rank) {
    return block == p.in.num_blocks ? &p.loose.lists[min(rank, p.in.num_loose - 1)].feature
                                    : p.rows.ranked + block * kBlockFeatures + rank;
}

// A warp: the sum of the products of a block's parts, eight loads of each part together.
template <int kParts>
constexpr int kMergeRanks = 8 * kParts;
template <int kParts>
__device__ __forceinline__ void merge(const BackwardProblem& p, const MergeUnit& unit, int slab, int first_rank,
                                      int loose_dense) {
    using Shape = GradientShape<kParts>;
    constexpr int kLanes = Shape::kColumns / 4, kRows = 32 / kLanes, kTogether = kMergeRanks<kParts> / kRows;
    const int lane = threadIdx.x % 32, slabs = Shape::slabs(p.num_outputs);
    const int in_slab = lane % kLanes * 4, in_half = slab * Shape::kSlab + in_slab % Shape::kSlab;
    const int column = in_slab / Shape::kSlab * (p.num_outputs / 2) + in_half;
    first_rank += lane / kLanes;
    const int in_group = unit.group * kGroupFeatures;
    int entries[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
        entries[i] = __ldg(rank_entry(p, unit.block, in_group + first_rank + i * kRows));
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
        const int row = gradient_row(p, loose_dense, unit.block, in_group + first_rank + i * kRows, entries[i]);
        if (row < 0 || in_half >= p.num_outputs / 2) continue;
        const size_t at = size_t(row) * p.num_outputs + column;
        if constexpr (kParts == 2)
            __stcs(reinterpret_cast<float4*>(static_cast<float*>(p.grad_weight) + at), sums[i]);
        else
            __stcs(reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.grad_weight) + at),
                   uint2{pack(sums[i].x, sums[i].y, p.weight_type), pack(sums[i].z, sums[i].w, p.weight_type)});
    }
}

// What is left: rare features, and sums of parts. It fills the multiprocessors that the products have left. A warp
// takes 64 pieces of a rare feature's rows, those of the largest blocks, which are the last, first; the next one's
// slots are on their way meanwhile.
constexpr int kFinishThreads = 128, kFinishBlocks = 4 * kWorkers;
// Up to so many tiles, and without loose features, each warp takes its share: those that are free early and take more
// would slow down the products. With more tiles lists are long, and tickets are quicker (measured).
constexpr int kShareTiles = 1024;

template <int kParts>
__global__ void __launch_bounds__(kFinishThreads, 4) finish_kernel(BackwardProblem p) {
    const int parts = (Slab<kParts>::slabs(p.num_outputs) + 3) / 4;  // of a row
    __shared__ MergeUnit units[kMaxMergeUnits + 1];
    // The products are not done, but say that row gradients, lists and plan are there.
    if (threadIdx.x == 0) flag_wait(&p.sync->planned);
    __syncthreads();
    const bool by_ticket = p.in.num_loose > 0 || p.max_tiles > kShareTiles;
    const int num_units = __ldcg(&p.sync->merge_units), count = __ldcg(&p.sync->rare);
    const int unit_words = (num_units + 1) * int(sizeof(MergeUnit) / 4), thread = threadIdx.x;
    const auto unit_word = [&](int i) { return __ldcg(reinterpret_cast<const int*>(p.merges) + i); };
    // Asked for now and waited for behind the lists, as is whoever is later than this warp.
    const int own_word = thread < unit_words ? unit_word(thread) : 0;
    for_each_list(
        p.rare_slots, by_ticket ? p.sync->finish_tickets : nullptr, (long long)count * parts,
        [&](long long number) { return p.rare[count - 1 - int(number / parts)]; },
        [&](const Item& item) {
            const LooseList& list = item.list;
            sum_list<kParts>(p, list.feature, p.rare_slots + list.begin, list.count, item.slot,
                             int(item.number % parts) * 64);
        });
    Numbers numbers(by_ticket ? p.sync->finish_tickets + 1 : nullptr);
    for (int i = thread; i < unit_words; i += kFinishThreads)
        reinterpret_cast<int*>(units)[i] = i == thread ? own_word : unit_word(i);
    __syncthreads();
    const int slabs = Slab<kParts>::slabs(p.num_outputs), loose_dense = p.in.num_loose > 0 ? p.loose.summary->dense : 0;
    const unsigned merges = units[num_units].begin / kMergeRanks<kParts> * slabs;
    int unit = 0;
    for (unsigned item = numbers.now(); item < merges; item = numbers.next()) {
        const int rank = int(item / unsigned(slabs)) * kMergeRanks<kParts>;
        while (units[unit + 1].begin <= rank) ++unit;
        merge<kParts>(p, units[unit], int(item % unsigned(slabs)), rank - units[unit].begin, loose_dense);
    }
    // Kernels that follow wait for this one, and it for what was before.
    wait_for_kernels_before();
}

// A warp: eight columns of the bias gradient, four of them a lane; the lanes share the stretches.
constexpr int kBiasColumns = 8;
__device__ __forceinline__ void sum_bias(const BackwardProblem& p, int columns, int lane) {
    const int stretch = stretch_tiles(p.max_tiles), column = columns * kBiasColumns + lane % 2 * 4;
    const int parts = (p.rows.tile_begin[p.in.num_blocks] + stretch - 1) / stretch;
    float4 sum = {0, 0, 0, 0};
#pragma unroll 2
    for (int part = lane / 2; part < parts; part += 16) {
        const float4 v =
            __ldcg(reinterpret_cast<const float4*>(p.bias_partial + size_t(part) * p.num_outputs + column));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
#pragma unroll
    for (int step = 2; step < 32; step *= 2) {
        sum.x += __shfl_xor_sync(~0u, sum.x, step), sum.y += __shfl_xor_sync(~0u, sum.y, step);
        sum.z += __shfl_xor_sync(~0u, sum.z, step), sum.w += __shfl_xor_sync(~0u, sum.w, step);
    }
    if (lane < 2) *reinterpret_cast<float4*>(p.grad_bias + column) = sum;
}

// ---- products: two warpgroups hold the sums of a task's features × 128 operand columns in registers and turn bitmaps
// into products; a warp has row gradients and bitmaps copied ahead of them.
template <int kParts>
struct BackwardShape : GradientShape<kParts> {
    using GradientShape<kParts>::kOperandBytes;
    static constexpr int kBitBytes = kGroupFeatures * sizeof(uint2);
    static constexpr int kStages = 8;
    static constexpr int kConsumers = GradientShape<kParts>::kThreads, kThreads = kConsumers + 128,
                         kWarps = kConsumers / 32;
    static constexpr int kFeatureTiles = kGroupFeatures / 64 / (kConsumers / 128);  // of 64 features, per warpgroup
    // A consumer warp turns 16 rows of results, 256 bytes each, around in shared memory; banks ask for the stride.
    static constexpr int kRowStride = kParts == 1 ? 272 : 288, kTurnBytes = 16 * kRowStride;
    static constexpr int kTasks = 2;  // one at work, one that is prepared
    // Behind the operands: for each stage bitmaps, the barriers "full" and "empty", the left operand's `one`; for each
    // consumer warp the above and the task's features; for each task two barriers.
    static constexpr int kBits = kStages * kOperandBytes, kTurn = kBits + kStages * kBitBytes,
                         kFeatures = kTurn + kWarps * kTurnBytes, kFull = kFeatures + kWarps * kFeatureTiles * 64,
                         kEmpty = kFull + kStages * 8, kTaskFull = kEmpty + kStages * 8,
                         kTaskEmpty = kTaskFull + kTasks * 8, kOnes = kTaskEmpty + kTasks * 8;
    static constexpr int kSharedBytes = kOnes + kStages * 4 + 1024;
};

// One bit of a word of the left operand becomes `one`. For two fp16 parts it is a power of two that depends on the
// tile, relative to the task's largest: 2^15, down to 2^-21.
__device__ __forceinline__ uint32_t relative_one(int exponent, int reference) {
    const int e = exponent - reference + 15;
    return e >= -14 ? uint32_t(e + 15) << 10 : e >= -21 ? 1u << (e + 24) : 0;
}

// Adds the products of `count` tiles, for the first `my_tiles` of the warpgroup's tiles of 64 features. `copied` counts
// the tiles that have come.
template <int kParts>
__device__ __forceinline__ void multiply(float (&acc)[BackwardShape<kParts>::kFeatureTiles][64], int my_tiles,
                                         int count, uint32_t shared, uint32_t& copied) {
    using Shape = BackwardShape<kParts>;
    constexpr uint32_t kStages = Shape::kStages;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Warpgroup 0 has the even tiles of the task's features, 1 the odd ones.
    const uint32_t first_bits = shared + Shape::kBits + (warp / 4 * 64 + warp % 4 * 16 + lane / 4) * 8;
    // By every thread: none may still be reading what is overwritten.
    const auto release = [&](uint32_t tile) { barrier_arrive(shared + Shape::kEmpty + tile % kStages * 8); };
    my_tiles = __shfl_sync(~0u, my_tiles, 0), count = __shfl_sync(~0u, count, 0);  // uniform, as ptxas has to know
    for (int left = count; left > 0; --left) {
        const uint32_t stage = copied % kStages;
        barrier_wait(shared + Shape::kFull + stage * 8, copied / kStages % 2);
        const uint32_t operand = operand_descriptor(shared + stage * Shape::kOperandBytes, Shape::kAtomBytes);
        const uint32_t bits = first_bits + stage * Shape::kBitBytes;
        const uint32_t one = kParts == 1 ? kOneBf16 : load_shared_4(shared + Shape::kOnes + stage * 4);
        uint32_t a[2][2][4];
#pragma unroll
        for (int m = 0; m < Shape::kFeatureTiles; ++m) {
            if (m == my_tiles) break;
            const uint2 low = load_shared_8(bits + m * 1024), high = load_shared_8(bits + m * 1024 + 64);
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                wgmma_wait<1>();
                const int shift = 4 * (lane % 4);
                const uint32_t word_low = (part ? low.y : low.x) >> shift,
                               word_high = (part ? high.y : high.x) >> shift;
                multiply_word<kParts == 1>(acc[m], a[part], word_low, word_high, one, operand + part * 256);
            }
        }
        if (left < count) release(copied - 1);  // the last tile's products are done
        ++copied;
    }
    wgmma_wait<0>();
    release(copied - 1);
}

// Zeros for features that no row has; by warps that have nothing else to do while others multiply. An item is a
// feature's rank.
__device__ __forceinline__ void clear_unused(const BackwardProblem& p, int warp, int warps, int lane) {
    const int row_bytes = p.num_outputs * (p.weight_type == Float::kFloat32 ? 4 : 2);
    const auto clear = [&](int items, const auto& feature_of) {
        for (int first = warp; first < items; first += warps * 32) {
            const int item = first + lane * warps;  // a lane looks at each of the warp's next items
            const int feature = item < items ? feature_of(item) : -1;
            for (unsigned todo = __ballot_sync(~0u, feature >= 0); todo != 0; todo &= todo - 1) {
                char* row =
                    static_cast<char*>(p.grad_weight) + size_t(__shfl_sync(~0u, feature, __ffs(todo) - 1)) * row_bytes;
                for (int i = lane * 16; i < row_bytes; i += 512)
                    __stcs(reinterpret_cast<uint4*>(row + i), uint4{0, 0, 0, 0});
            }
        }
    };
    clear(p.in.num_blocks * kBlockFeatures, [&](int item) {
        const int block = item / kBlockFeatures, local = ~__ldg(p.rows.ranked + item);
        // Ranks within the product are written there.
        if (local < 0 || local >= p.in.block_size || item % kBlockFeatures < p.rows.dense[block]) return -1;
        const int feature = block * p.in.block_size + local;
        return feature < p.in.num_features ? feature : -1;
    });
    if (p.in.num_loose == 0) return;
    const int first_empty = p.loose.summary->first_empty;
    clear(p.in.num_loose - first_empty,
          [&](int item) { return p.in.num_features + p.loose.lists[first_empty + item].feature; });
}

// A product task: sums and what becomes of them.
template <int kParts>
__device__ __forceinline__ void multiply_part(const BackwardProblem& p, const Plan& plan, const volatile Task& task,
                                              uint32_t shared, uint32_t& copied) {
    using Shape = BackwardShape<kParts>;
    const int thread = thread_number(), warp = thread / 32, lane = thread % 32;
    float acc[Shape::kFeatureTiles][64];
#pragma unroll
    for (int m = 0; m < Shape::kFeatureTiles; ++m)
#pragma unroll
        for (float& x : acc[m]) x = 0;
    const int my_tiles = (plan.feature_tiles(task.block, task.group) + 1 - warp / 4) / 2;
    const uint32_t my_features = shared + Shape::kFeatures + warp * (Shape::kFeatureTiles * 64);
    // Of the warp's row r of feature tile m, in the task's ranks.
    const auto rank_of = [&](int m, int r) { return (m * 2 + warp / 4) * 64 + warp % 4 * 16 + r; };
    __syncwarp();
    if (task.partial < 0) {  // the features, for the end
        for (int i = lane; i < my_tiles * 16; i += 32)
            copy_async_4(my_features + i * 4,
                         rank_entry(p, task.block, task.group * kGroupFeatures + rank_of(i / 16, i % 16)));
    }
    copy_async_commit();
    multiply<kParts>(acc, my_tiles, task.last - task.first, shared, copied);
    const float unscale = kParts == 2 ? ldexpf(1.0f, task.reference - 15) : 1.0f;

    if (task.partial >= 0) {  // one of several parts
        float* partial = p.partial +
                         (size_t(task.partial + task.part) * plan.slabs + task.slab) * Shape::kPartialFloats +
                         lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < Shape::kFeatureTiles; ++m) {
            if (m == my_tiles) break;
#pragma unroll
            for (int i = 0; i < 64 / kParts; i += 2) {
                float* to = partial + rank_of(m, lane / 4 + i % 4 / 2 * 8) * Shape::kColumns + i / 4 * 8;
                if constexpr (kParts == 1)
                    __stcg(reinterpret_cast<float2*>(to), float2{acc[m][i], acc[m][i + 1]});
                else
                    __stcg(reinterpret_cast<float2*>(to),
                           float2{(acc[m][i] + acc[m][32 + i] * kLowScale) * unscale,
                                  (acc[m][i + 1] + acc[m][33 + i] * kLowScale) * unscale});
            }
        }
        named_barrier<1, Shape::kConsumers>();
        if (thread == 0) counter_add(p.sync->parts_done + task.partial * plan.slabs + task.slab);
        return;
    }

    const uint32_t turn = shared + Shape::kTurn + warp * Shape::kTurnBytes;
    // A lane stores 16 bytes, of every second row: columns lane % 8 · kEach of a half.
    constexpr int kEach = 8 / kParts;
    const int half = p.num_outputs / 2, column = task.slab * Shape::kSlab + lane % 8 * kEach;
    const int in_row = lane % 16 / 8 * half + column;
    copy_async_wait<0>();
    __syncwarp();
    const int block = task.block, first_rank = task.group * kGroupFeatures;
    for (int i = lane; i < my_tiles * 16; i += 32) {
        const uint32_t at = my_features + i * 4;
        store_shared_4(
            at, gradient_row(p, plan.loose_dense, block, first_rank + rank_of(i / 16, i % 16), int(load_shared_4(at))));
    }
    const unsigned row_bytes = p.num_outputs * (16 / kEach);
    char* const to_row = static_cast<char*>(p.grad_weight) + in_row * (16 / kEach);
#pragma unroll
    for (int m = 0; m < Shape::kFeatureTiles; ++m) {
        if (m == my_tiles) break;
        __syncwarp();
        if constexpr (kParts == 1) {
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
            const int r = 2 * i + lane / 16, row = int(load_shared_4(my_features + (m * 16 + r) * 4));
            const uint4 v = load_shared_16<true>(turn + r * Shape::kRowStride + lane % 16 * 16);
            store_global_16(row_of(to_row, row, row_bytes), v, column < half && row >= 0);
        }
    }
}

template <int kParts>
__global__ void __launch_bounds__(BackwardShape<kParts>::kThreads, 1) weight_gradient_kernel(BackwardProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = BackwardShape<kParts>;
    constexpr int kTasks = Shape::kTasks;
    extern __shared__ char shared_raw[];
    __shared__ Plan plan;
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
    // What this reads was there before row gradients began, and all thread blocks of those have begun.
    plan.load(p, Shape::slabs(p.num_outputs));
    if (p.in.num_loose > 0) {
        // Lists of loose features begin beside this. That kernel is not done, but says that row gradients are.
        if (threadIdx.x == 0) flag_wait(&p.sync->begun);
        __syncthreads();
    } else {
        wait_for_kernels_before();
    }
    let_next_kernel_start();

    if (warp > Shape::kWarps) {
        give_registers<24>();
        const int number = blockIdx.x * 3 + warp - Shape::kWarps - 1, count = gridDim.x * 3;
        if (number == count - 1) {
            const int units = plan.list_merges(p.merges);
            __threadfence();
            __syncwarp();
            if (lane == 0) {
                p.sync->merge_units = units;
                flag_set(&p.sync->planned);
            }
        }
        for (int columns = number; columns * kBiasColumns < p.num_outputs; columns += count) sum_bias(p, columns, lane);
        clear_unused(p, number, count, lane);
    } else if (warp == Shape::kWarps) {  // ---- copies
        give_registers<24>();
        fence_global_for_copies();
        int stage = 0;
        uint32_t phase = 1;  // the first pass over the stages waits for nothing
        for (int number = 0;; ++number) {
            const int place = number % kTasks;
            barrier_wait(shared + Shape::kTaskEmpty + place * 8, number / kTasks % 2 ^ 1);
            // The first is given.
            unsigned ticket = blockIdx.x;
            if (number > 0 && lane == 0) ticket = gridDim.x + atomicAdd(&p.sync->ticket, 1u);
            Task task = plan.task(__shfl_sync(~0u, ticket, 0));
            const int* exponents = p.exponents + size_t(task.slab) * p.max_tiles;
            if (task.parts > 0) {
                task.reference = kNoExponent;
                if (kParts == 2) {
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
            const bool loose = plan.is_loose(task.block);
            const char* source = static_cast<const char*>(p.grad_rows) +
                                 (size_t(task.slab) * p.max_tiles + task.first) * Shape::kOperandBytes;
            const uint2* bits = (loose ? p.loose.dense_bits : p.rows.feature_bits) +
                                size_t(task.first) * kBlockFeatures + task.group * kGroupFeatures;
            const uint32_t bit_bytes = plan.feature_tiles(task.block, task.group) * 64 * sizeof(uint2);
            const int count = task.last - task.first, reference = task.reference;
            exponents += task.first;
            int exponent = 0;
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                if (kParts == 2 && i % 32 == 0 && i + lane < count) exponent = __ldcg(exponents + i + lane);
                const int now = __shfl_sync(~0u, exponent, i % 32);
                barrier_wait(shared + Shape::kEmpty + stage * 8, phase);
                if (lane == 0) {
                    const uint32_t full = shared + Shape::kFull + stage * 8;
                    if (kParts == 2) store_shared_4(shared + Shape::kOnes + stage * 4, relative_one(now, reference));
                    barrier_expect(full, Shape::kOperandBytes + bit_bytes);
                    copy_bulk(shared + stage * Shape::kOperandBytes, source, Shape::kOperandBytes, full);
                    copy_bulk(shared + Shape::kBits + stage * Shape::kBitBytes, bits, bit_bytes, full);
                }
                source += Shape::kOperandBytes;
                bits += kBlockFeatures;
                if (++stage == Shape::kStages) stage = 0, phase ^= 1;
            }
        }
    } else {  // ---- consumers
        take_registers<240>();
        uint32_t copied = 0;
        for (int number = 0;; ++number) {
            const int place = number % kTasks;
            barrier_wait(shared + Shape::kTaskFull + place * 8, number / kTasks % 2);
            const volatile Task& task = tasks[place];  // volatile: registers are short
            if (task.parts == 0) break;
            multiply_part<kParts>(p, plan, task, shared, copied);
            barrier_arrive(shared + Shape::kTaskEmpty + place * 8);
        }
    }
    // Kernels that follow wait for this one, and it for what was before.
    wait_for_kernels_before();
#endif
}

// `loose_gradient(p, stream)` launches, where there are loose features, the one kernel that gives their lists'
// gradients and sets `begun`.
template <typename Weight, typename Grad, Activation kActivation, typename Loose>
cudaError_t backward(const BackwardProblem& p, cudaStream_t stream, const Loose& loose_gradient) {
    constexpr int kParts = sizeof(Weight) == 4 ? 2 : 1;
    static_assert(kParts == 1 || sizeof(Grad) == 4);
    using Shape = BackwardShape<kParts>;
    const int half = p.num_outputs / 2, slabs = Shape::slabs(p.num_outputs);
    cudaError_t error = cudaFuncSetAttribute(weight_gradient_kernel<kParts>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
    const auto launch = [&](void (*kernel)(BackwardProblem), dim3 grid, int threads, size_t shared) {
        if (error == cudaSuccess) error = hopper::launch_early(kernel, grid, threads, shared, stream, p);
    };
    launch(row_gradient_kernel<kParts, Grad, kActivation>, kListBlocks + slabs * stretches(p.max_tiles),
           GradientShape<kParts>::kThreads, 0);
    if (error == cudaSuccess) error = loose_gradient(p, stream);
    launch(weight_gradient_kernel<kParts>, kWorkers, Shape::kThreads, Shape::kSharedBytes);
    launch(finish_kernel<kParts>, kFinishBlocks, kFinishThreads, 0);
    launch(irregular_backward_kernel<Weight, Grad, kActivation>, (half + 63) / 64, 64, 0);
    return error;
}

// The scratch of a backward, p.in and p.num_outputs given.
template <int kParts>
void carve_scratch(Carver& carver, BackwardProblem& p) {
    using Shape = BackwardShape<kParts>;
    const int max_tiles = p.max_tiles = BlockRows::tiles(p.in.positions, p.in.num_blocks);
    const int slabs = Shape::slabs(p.num_outputs);
    const size_t operands = size_t(slabs) * max_tiles;
    p.grad_rows = carver.take<char>(operands * Shape::kOperandBytes);
    p.exponents = carver.take<int32_t>(kParts == 2 ? operands : 0);
    p.partial = carver.take<float>(size_t(max_partials(max_tiles, slabs)) * Shape::kPartialFloats);
    p.bias_partial = carver.take<float>(size_t(stretches(max_tiles)) * p.num_outputs);
    p.rare = carver.take<LooseList>(size_t(p.in.num_blocks) * kBlockFeatures);
    p.rare_slots = carver.take<int>(rare_place(max_tiles));
    p.merges = carver.take<MergeUnit>(kMaxMergeUnits + 1);
    p.sync = carver.take<GradientSync>(1);
}
inline void carve_scratch(Carver& carver, BackwardProblem& p) {
    if (p.weight_type == Float::kFloat32)
        carve_scratch<2>(carver, p);
    else
        carve_scratch<1>(carver, p);
}

}  // namespace nnue::block_product
