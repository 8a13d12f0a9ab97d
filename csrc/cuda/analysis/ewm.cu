// Operator ewm on CUDA; the contract is in ewm.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "ewm_kernels.cuh"

namespace nnue::cuda::analysis {
namespace {

template <bool kVariance, class T>
void run(EwmJob<T> job, const Tensor& x, cudaStream_t stream) {
    using S = ewm::State<kVariance>;
    const int threads = threads_for(job.n);
    const int64_t tile = static_cast<int64_t>(threads) * kChunk;
    job.tiles = divide_up(job.n, tile);
    const auto doubles = [&](int64_t count) { return torch::stable::new_empty(x, {count}, ScalarType::Double); };
    const int64_t tiles = job.rows * job.tiles;
    const unsigned grid = thread_blocks_for(tiles, 1), rows = thread_blocks_for(job.rows, 1);
    const size_t bytes = padded(tile) * sizeof(T);
    const int scanners = threads_for(job.tiles * kChunk);
    Tensor last, states = doubles(tiles * static_cast<int64_t>(sizeof(S) / sizeof(double)));
    job.states = mutable_data<double>(states);
    if (job.rule.needs_last()) {
        last = doubles(tiles);
        job.last = mutable_data<double>(last);
        launch("ewm_last", ewm_last<T>, grid, threads, bytes, stream, job);
        launch("ewm_last_carry", carry<Place, Later>, rows, scanners, kWarp * sizeof(Place), stream,
               reinterpret_cast<Place*>(job.last), job.rows, job.tiles, Place(), Later());
    }
    const size_t room = kWarp * sizeof(S) + bytes;
    launch("ewm_states", ewm_tiles<kVariance, false, T>, grid, threads, room, stream, job);
    launch("ewm_carry", carry<S, EwmMerge<kVariance>>, rows, scanners, kWarp * sizeof(S), stream,
           reinterpret_cast<S*>(job.states), job.rows, job.tiles, S(), EwmMerge<kVariance>());
    launch("ewm", ewm_tiles<kVariance, true, T>, grid, threads, room, stream, job);
}

template <class T>
void ewm_any(const ewm::Rule& rule, const Tensor& x, const Tensor& out) {
    const int64_t n = x.size(x.dim() - 1);
    const EwmJob<T> job{rule, const_data<T>(x), mutable_data<T>(out), x.numel() / n, n, 0, nullptr, nullptr};
    rule.statistic == ewm::Statistic::mean ? run<false>(job, x, current_stream(x))
                                           : run<true>(job, x, current_stream(x));
}

Tensor ewm_op(const Tensor& x_in, const std::string& statistic, double alpha, bool adjust, bool ignore_na, bool bias,
              int64_t min_periods) {
    const ewm::Rule rule = ewm::check_rule(x_in, Device::cuda, statistic, alpha, adjust, ignore_na, bias, min_periods);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, x.sizes());
    if (x.numel() == 0) return out;
    x.scalar_type() == ScalarType::Double ? ewm_any<double>(rule, x, out) : ewm_any<float>(rule, x, out);
    return out;
}

}  // namespace
}  // namespace nnue::cuda::analysis

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    m.impl("ewm", TORCH_BOX(&nnue::cuda::analysis::ewm_op));
}
