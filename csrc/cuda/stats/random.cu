// Operator random_fill on CUDA; the contract is in random.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "../../random.h"
#include "../common.cuh"

namespace nnue::cuda::stats {
namespace {

// A thread makes the elements of a quadruple, and stores them together where they are all inside and aligned.
template <random::Distribution kind, class T>
__global__ void random_fill(T* out, int64_t count, const random::Rule rule) {
    constexpr int kEach = random::numbers_in_quadruple<T>(kind);
    const int64_t skipped = static_cast<int64_t>(rule.offset % kEach);
    const uint64_t first = rule.block + rule.offset / kEach;
    const bool aligned = reinterpret_cast<uintptr_t>(out - skipped) % (kEach * sizeof(T)) == 0;
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t q = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; q * kEach < skipped + count;
         q += step) {
        Pack<T, kEach> made;
        rule.elements<kind>(first + static_cast<uint64_t>(q), made.at);
        const int64_t at = q * kEach - skipped;
        if (aligned && at >= 0 && at + kEach <= count) {
            *reinterpret_cast<Pack<T, kEach>*>(out + at) = made;
        } else {
            for (int i = 0; i < kEach; ++i) {
                if (at + i >= 0 && at + i < count) out[at + i] = made.at[i];
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
    constexpr int kBlock = 256;
    random::dispatch(rule.distribution, out.scalar_type(), [&]<random::Distribution kind, class T> {
        constexpr int kEach = random::numbers_in_quadruple<T>(kind);
        const int64_t quadruples = divide_up(out.numel() + rule.offset % kEach, kEach);
        launch("random_fill", random_fill<kind, T>, thread_blocks_for(quadruples, kBlock), kBlock, 0,
               current_stream(out), mutable_data<T>(out), out.numel(), rule);
    });
}

}  // namespace
}  // namespace nnue::cuda::stats

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "random_fill", &nnue::cuda::stats::random_fill_op);
}
