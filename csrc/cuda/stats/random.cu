// Operator random_fill on CUDA; the contract is in random.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "../../random.h"
#include "../common.cuh"

namespace nnue::cuda::stats {
namespace {

// Quadruples that a thread works on side by side.
constexpr int kAhead = 2;

// Stores a quadruple's elements to start[q * kEach] and on; all lanes of a warp call it, neighbours for neighbours. If
// they have more than 16 bytes, two lanes exchange halves, so that together they store whole sectors of 32 bytes.
template <int kEach, class T>
__device__ void store_quadruple(T* start, int64_t q, const Pack<T, kEach>& made) {
    if constexpr (sizeof made <= 16) {
        reinterpret_cast<Pack<T, kEach>*>(start)[q] = made;
    } else {
        using Half = Pack<T, kEach / 2>;
        const bool odd = threadIdx.x % 2 != 0;
        Half first, second;
#pragma unroll
        for (int i = 0; i < kEach / 2; ++i) {
            const T others = __shfl_xor_sync(kAllLanes, odd ? made.at[i] : made.at[i + kEach / 2], 1);
            first.at[i] = odd ? others : made.at[i];
            second.at[i] = odd ? made.at[i + kEach / 2] : others;
        }
        Half* const to = reinterpret_cast<Half*>(start) + (q - odd) * 2 + odd;
        to[0] = first, to[2] = second;
    }
}

// A thread makes the elements of kAhead quadruples at a time, and stores each quadruple together where all elements of
// its warp are inside and aligned.
template <random::Distribution kind, int kEach, class T>
__global__ void random_fill(T* out, int64_t count, const random::Rule rule) {
    const int64_t skipped = static_cast<int64_t>(rule.offset % kEach), end = skipped + count;
    const uint64_t first = rule.block + rule.offset / kEach;
    T* const start = out - skipped;
    const bool aligned = reinterpret_cast<uintptr_t>(start) % std::min<size_t>(kEach * sizeof(T), 16) == 0;
    const int lane = threadIdx.x % kWarp;
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * kAhead;
    for (int64_t q = static_cast<int64_t>(blockIdx.x) * blockDim.x * kAhead + threadIdx.x; (q - lane) * kEach < end;
         q += step) {
        Pack<T, kEach> made[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            rule.elements<kind, kEach>(first + static_cast<uint64_t>(q + i * static_cast<int>(blockDim.x)), made[i].at);
        }
        const int64_t last = (q - lane + kWarp + (kAhead - 1) * static_cast<int>(blockDim.x)) * kEach;
        if (aligned && (q - lane) * kEach >= skipped && last <= end) {
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                store_quadruple<kEach>(start, q + i * static_cast<int>(blockDim.x), made[i]);
            }
            continue;
        }
        for (int i = 0; i < kAhead; ++i) {
            for (int j = 0; j < kEach; ++j) {
                const int64_t at = (q + i * static_cast<int>(blockDim.x)) * kEach + j;
                if (at >= skipped && at < end) start[at] = made[i].at[j];
            }
        }
    }
}

void random_fill_op(const Tensor& out, int64_t distribution, int64_t seed, int64_t stream, int64_t offset, double a,
                    double b, int64_t low, int64_t high, int64_t block) {
    const random::Rule rule =
        random::check_rule(out, Device::cuda, distribution, seed, stream, offset, a, b, low, high, block);
    if (out.numel() == 0) return;
    const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
    // More thread blocks than run at a time are slower: each begins anew with addresses and keys.
    constexpr int kBlock = 256, kBlocksAtATime = 8;
    const unsigned most = static_cast<unsigned>(multiprocessors(current_device()) * kBlocksAtATime);
    random::dispatch(rule, out.scalar_type(), [&]<random::Distribution kind, int kEach, class T> {
        const int64_t quadruples = divide_up(out.numel() + rule.offset % kEach, kEach);
        launch("random_fill", random_fill<kind, kEach, T>,
               std::min(thread_blocks_for(quadruples, kBlock * kAhead), most), kBlock, 0, current_stream(out),
               mutable_data<T>(out), out.numel(), rule);
    });
}

}  // namespace
}  // namespace nnue::cuda::stats

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "random_fill", &nnue::cuda::stats::random_fill_op);
}
