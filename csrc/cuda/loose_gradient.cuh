// The weight gradient of loose features: sums of row gradients over the lists of loose_rows.cuh.
//
// Lists of more than kShortList slots go by slabs of columns, the slab outermost: a slab of all row gradients, 9 MB at
// 32,768 rows in 16 bits, stays in the L2 cache while every list passes over it. Warps take lists as they get free,
// longest first. Short lists take whole rows, more columns at once instead of more rows. Dense features are
// a block of the products (block_gradient.cuh), which also clear the gradients of features that no row has. Each list
// is summed in an order that its length alone decides, each element is written once.
#pragma once

#include "block_gradient.cuh"

namespace nnue::loose_gradient {

using namespace block_product;

// The kernel's thread blocks have a multiprocessor each. It leaves some to the products, which take the others when it
// is done: it is bound by the L2 cache, they by tensor cores.
constexpr int kThreads = 256;
template <int kParts>
constexpr int kCtas = 4 * kWorkers;

template <int kParts>
__global__ void __launch_bounds__(kThreads, 4) list_kernel(BackwardProblem p) {
    const int lane = threadIdx.x % 32;
    let_next_kernel_start();
    if (threadIdx.x == 0) flag_wait(&p.sync->begun);
    __syncthreads();
    const int slabs = Slab<kParts>::slabs(p.num_outputs), pieces_of_row = slabs * Slab<kParts>::kPieces;
    const LooseRows& rows = p.loose;
    const LooseSummary summary = *rows.summary;

    // Half a warp takes a slab of a row, sixteen rows are in flight.
    const int long_lists = summary.first_short - summary.dense;
    for_each_list(
        rows.slots, p.sync->list_tickets, (long long)slabs * long_lists,
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
                        pieces[i] = {{0, 0, 0, 0}, 0};
                        if (slot >= 0) pieces[i] = load_piece<kParts>(p, slot, slab, piece);
                    }
#pragma unroll
                    for (int i = 0; i < 8; ++i) add_piece<kParts>(sum, pieces[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += __shfl_xor_sync(~0u, sum[i], 16);
            store_piece<kParts>(p, sum, p.in.num_features + list.feature, slab, piece, lane < 16);
        },
        true);

    for_each_list(
        rows.slots, p.sync->list_tickets + 1, summary.first_empty - summary.first_short,
        [&](long long number) { return rows.lists[summary.first_short + number]; },
        [&](const Item& item) {
            for (int base = 0; base < pieces_of_row; base += 64)
                sum_list<kParts, 4>(p, p.in.num_features + item.list.feature, rows.slots + item.list.begin,
                                    item.list.count, item.slot, base);
        },
        true);
    wait_for_kernels_before();
}

// The gradients of loose features that have lists.
template <int kParts>
cudaError_t run(const BackwardProblem& p, cudaStream_t stream) {
    return hopper::launch_early(list_kernel<kParts>, kCtas<kParts>, kThreads, 0, stream, p);
}

}  // namespace nnue::loose_gradient
