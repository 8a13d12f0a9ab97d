// The weight gradient of loose features: sums of row gradients over the lists of loose_rows.cuh.
//
// Lists of more than kShortList slots go by slabs of columns, the slab outermost: a slab of all row gradients, 9 MB at
// 32,768 rows in 16 bits, stays in the L2 cache while every list passes over it. Warps take lists as they get free,
// longest first. Short lists take whole rows, more columns at once instead of more rows. Dense features have their
// gradient already but for the sums over chunks, from a product (block_product.cuh) whose blocks are chunks of all
// rows; features that no row has get zeros. Each list is summed in an order that its length alone decides, each element
// is written once.
#pragma once

#include "block_gradient.cuh"

namespace nnue::loose_gradient {

using namespace block_product;

// The kernel's thread blocks have a multiprocessor each. It leaves some to the products, which take the others when it
// is done: it is bound by the L2 cache, they by tensor cores.
constexpr int kCtas = 92, kThreads = 768;

// What a list takes of a row at a time is a slab of GradientShape: 16 pieces of 16 bytes, 8 columns each. One part:
// pieces 0…7 are 64 columns of the first half, 8…15 the same of the second. Two parts: pieces 0…7 are 32 columns of
// each half, high parts, and 8…15 the low parts.
template <int kParts>
struct Slab : GradientShape<kParts> {
    static constexpr int kPieces = 16;
    // First column of a piece in its half, and which half.
    __device__ static int column(int slab, int piece) { return slab * (64 / kParts) + piece % (8 / kParts) * 8; }
    __device__ static int half(int piece) { return kParts == 1 ? piece / 8 : piece % 8 / 4; }
};

struct Piece {
    uint4 values;
    float scale;
};

template <int kParts>
__device__ __forceinline__ Piece load_piece(const BackwardProblem& p, int slot, int slab, int piece) {
    using Shape = Slab<kParts>;
    if (slot < 0 || Shape::column(slab, piece) >= p.num_outputs / 2) return {{0, 0, 0, 0}, 0.0f};
    const int tile = slot / kTileRows;
    const size_t operand = size_t(slab) * p.max_tiles + tile;
    const char* from = static_cast<const char*>(p.grad_rows) + operand * Shape::kOperandBytes +
                       piece / 8 * Shape::kAtomBytes + operand_offset(slot % kTileRows, piece % 8);
    return {__ldcg(reinterpret_cast<const uint4*>(from)),
            kParts == 2 ? power_of_two(__ldg(p.exponents + operand)) : 1.0f};
}

template <int kParts>
__device__ __forceinline__ void add_piece(float (&sum)[8], const Piece& piece) {
    const uint32_t words[4] = {piece.values.x, piece.values.y, piece.values.z, piece.values.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 two = unpack(words[j], kParts == 1 ? Float::kBFloat16 : Float::kFloat16);
        if constexpr (kParts == 1) {
            sum[2 * j] += two.x, sum[2 * j + 1] += two.y;
        } else {
            sum[2 * j] += two.x * piece.scale, sum[2 * j + 1] += two.y * piece.scale;
        }
    }
}

// All lanes; neighbouring lanes hold neighbouring pieces.
template <int kParts>
__device__ __forceinline__ void store_piece(const BackwardProblem& p, float (&sum)[8], int feature, int slab, int piece,
                                            bool write) {
    using Shape = Slab<kParts>;
    if constexpr (kParts == 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sum[i] = sum[i] + kLowScale * __shfl_xor_sync(~0u, sum[i], 8);  // right where piece < 8
    }
    const int half = p.num_outputs / 2, column = Shape::column(slab, piece);
    if (!write || column >= half || (kParts == 2 && piece >= 8)) return;
    const size_t at = size_t(p.in.num_features + feature) * p.num_outputs + Shape::half(piece) * half + column;
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

// The warps of a grid take items as they get free, longest first. A list and its first slots are on their way while the
// items before are worked off: what a lane knows of an item.
struct Item {
    long long number;
    LooseList list;
    int slot;  // of the lane's number in the list, −1 if there is none
};

template <typename ListOf, typename Visit>
__device__ __forceinline__ void for_each_list(const LooseRows& rows, unsigned* ticket, long long count,
                                              const ListOf& list_of, const Visit& visit) {
    const int lane = threadIdx.x % 32;
    const auto take = [&] { return lane == 0 ? atomicAdd(ticket, 1u) : 0u; };
    const auto open = [&](unsigned taken) {
        Item item{};
        item.number = __shfl_sync(~0u, taken, 0);
        if (item.number < count) item.list = list_of(item.number);
        return item;
    };
    const auto fetch = [&](Item& item) {
        item.slot = lane < item.list.count ? __ldg(rows.slots + item.list.begin + lane) : -1;
    };
    unsigned taken = take();
    Item now = open(taken);
    taken = take();
    fetch(now);
    Item next = open(taken);
    taken = take();
    while (now.number < count) {
        fetch(next);
        const Item after = open(taken);
        taken = take();
        visit(now);
        now = next, next = after;
    }
}

template <int kParts>
__global__ void __launch_bounds__(kThreads, 1) list_kernel(BackwardProblem p) {
    const int lane = threadIdx.x % 32;
    wait_for_kernels_before();
    if (blockIdx.x == 0 && threadIdx.x == 0) flag_set(&p.sync->begun);
    let_next_kernel_start();
    const int slabs = Slab<kParts>::slabs(p.num_outputs), pieces_of_row = slabs * Slab<kParts>::kPieces;
    const LooseRows& rows = p.loose;
    const LooseSummary summary = *rows.summary;

    // Half a warp takes a slab of a row, sixteen rows are in flight.
    const int long_lists = summary.first_short - summary.dense;
    for_each_list(
        rows, p.sync->list_tickets, (long long)slabs * long_lists,
        [&](long long task) { return rows.lists[summary.dense + int(task % long_lists)]; },
        [&](const Item& item) {
            const int slab = int(item.number / long_lists), piece = lane % 16;
            const LooseList& list = item.list;
            int my_slot = item.slot;
            float sum[8] = {};
            for (uint32_t base = 0; base < list.count; base += 32) {
                if (base > 0) my_slot = base + lane < list.count ? __ldg(rows.slots + list.begin + base + lane) : -1;
                const int count = int(min(list.count - base, 32u));
                for (int first = 0; first < count; first += 16) {
                    Piece pieces[8];
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const int slot = __shfl_sync(~0u, my_slot, first + 2 * i + lane / 16);
                        pieces[i] = load_piece<kParts>(p, slot, slab, piece);
                    }
#pragma unroll
                    for (int i = 0; i < 8; ++i) add_piece<kParts>(sum, pieces[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += __shfl_xor_sync(~0u, sum[i], 16);
            store_piece<kParts>(p, sum, list.feature, slab, piece, lane < 16);
        });

    // 64 pieces of a row at a time, four rows in flight.
    for_each_list(
        rows, p.sync->list_tickets + 1, summary.first_empty - summary.first_short,
        [&](long long number) { return rows.lists[summary.first_short + number]; },
        [&](const Item& item) {
            for (int base = lane; base - lane < pieces_of_row; base += 64) {
                float sum[2][8] = {};
                for (int first = 0; first < item.list.count; first += 4) {
                    Piece pieces[4][2];
#pragma unroll
                    for (int r = 0; r < 4; ++r) {
                        const int slot = __shfl_sync(~0u, item.slot, first + r);
#pragma unroll
                        for (int c = 0; c < 2; ++c) {
                            const int q = base + c * 32;
                            pieces[r][c] = load_piece<kParts>(p, slot, q / 16, q % 16);
                        }
                    }
#pragma unroll
                    for (int r = 0; r < 4; ++r)
#pragma unroll
                        for (int c = 0; c < 2; ++c) add_piece<kParts>(sum[c], pieces[r][c]);
                }
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int q = base + c * 32;
                    store_piece<kParts>(p, sum[c], item.list.feature, q / 16, q % 16, true);
                }
            }
        });
}

// The gradients of loose features that have lists.
template <int kParts>
cudaError_t run(const BackwardProblem& p, cudaStream_t stream) {
    return hopper::launch_early(list_kernel<kParts>, kCtas, kThreads, 0, stream, p);
}

}  // namespace nnue::loose_gradient
