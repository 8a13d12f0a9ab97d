// Operator ewm on CUDA; the contract is in ewm.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "ewm_kernels.cuh"

namespace nnue::cuda::stats {
namespace {

template <bool kVariance>
void run(EwmJob job, const Tensor& x, cudaStream_t stream) {
    using S = ewm::State<kVariance>;
    constexpr int kBlock = kEwmWarps * kWarp;
    // One part per warp that can run at the same time.
    const int64_t turns = divide_up(job.n, kTurn);
    const int64_t at_work = resident_blocks("ewm", ewm_walk<kVariance, true>, kBlock, 0) * kEwmWarps;
    const int64_t part = std::min(divide_up(job.rows * turns, at_work), turns);
    job.part = part * kTurn;
    job.parts = divide_up(turns, part);
    const int64_t parts = job.rows * job.parts;
    const auto doubles = [&](int64_t count) { return torch::stable::new_empty(x, {count}, ScalarType::Double); };
    const unsigned grid = thread_blocks_for(parts, kEwmWarps), rows = thread_blocks_for(job.rows, 1);
    const int scanners = threads_for(job.parts, 1);
    Tensor last, states = doubles(parts * static_cast<int64_t>(sizeof(S) / sizeof(double)));
    job.states = mutable_data<double>(states);
    if (job.rule.needs_last()) {
        last = doubles(parts);
        job.last = mutable_data<double>(last);
        launch("ewm_last", ewm_last, grid, kBlock, 0, stream, job);
        launch("ewm_last_carry", carry<Place, Later>, rows, scanners, kWarp * sizeof(Place), stream,
               reinterpret_cast<Place*>(job.last), job.rows, job.parts, Place(), Later());
    }
    launch("ewm_states", ewm_walk<kVariance, false>, grid, kBlock, 0, stream, job);
    launch("ewm_carry", carry<S, EwmMerge<kVariance>>, rows, scanners, kWarp * sizeof(S), stream,
           reinterpret_cast<S*>(job.states), job.rows, job.parts, S(), EwmMerge<kVariance>());
    launch("ewm", ewm_walk<kVariance, true>, grid, kBlock, 0, stream, job);
}

void ewm_any(const ewm::Rule& rule, const Tensor& x, const Tensor& out) {
    EwmJob job{};
    job.rule = rule, job.x = x.const_data_ptr(), job.out = out.mutable_data_ptr();
    job.is_double = x.scalar_type() == ScalarType::Double;
    job.n = x.size(x.dim() - 1), job.rows = x.numel() / job.n;
    rule.statistic == ewm::Statistic::mean ? run<false>(job, x, current_stream(x))
                                           : run<true>(job, x, current_stream(x));
}

Tensor ewm_op(const Tensor& x_in, int64_t statistic, double alpha, bool adjust, bool ignore_na, bool bias,
              int64_t min_periods) {
    const ewm::Rule rule = ewm::check_rule(x_in, Device::cuda, statistic, alpha, adjust, ignore_na, bias, min_periods);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, x.sizes());
    if (x.numel() == 0) return out;
    ewm_any(rule, x, out);
    return out;
}

}  // namespace
}  // namespace nnue::cuda::stats

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "ewm", &nnue::cuda::stats::ewm_op);
}
