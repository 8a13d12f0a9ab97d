// Operator random_fill on CUDA; the contract is in random.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "../../random.h"
#include "../common.cuh"

namespace nnue::cuda::analysis {
namespace {

template <class T>
__global__ void random_fill(T* out, int64_t count, const random::Rule rule) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        out[i] = rule.element<T>(static_cast<uint64_t>(i));
    }
}

void random_fill_op(const Tensor& out, int64_t distribution, int64_t seed, int64_t stream, int64_t offset, double a,
                    double b, int64_t low, int64_t high) {
    const random::Rule rule =
        random::check_rule(out, Device::cuda, distribution, seed, stream, offset, a, b, low, high);
    const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
    constexpr int kBlock = 256;
    random::dispatch(out.scalar_type(), [&]<class T>(T*) {
        launch("random_fill", random_fill<T>, thread_blocks_for(out.numel(), kBlock), kBlock, 0, current_stream(out),
               mutable_data<T>(out), out.numel(), rule);
    });
}

}  // namespace
}  // namespace nnue::cuda::analysis

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "random_fill", &nnue::cuda::analysis::random_fill_op);
}
