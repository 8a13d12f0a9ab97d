// Operator rolling on CUDA; the contract is in rolling.h. rolling_quantile on CUDA is made of torch's operators, in
// nnue_trainer/stats/windows.py.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <type_traits>

#include "rolling_windows.cuh"

namespace nnue::cuda::stats {
namespace {

using rolling::kName;

void roll_any(const Tensor& x, const std::optional<Tensor>& y, const Windows& w, const Finish& finish,
              const Tensor& out) {
    const cudaStream_t stream = current_stream(x);
    Job job{};
    job.windows = w, job.finish = finish;
    job.x = x.const_data_ptr(), job.y = y ? y->const_data_ptr() : nullptr, job.out = out.mutable_data_ptr();
    job.is_double = x.scalar_type() == ScalarType::Double;
    if (w.length > 0)
        return rolling::with_monoid(finish.statistic, [&]<class M>() { roll_windows<M>(job, x, stream); });
    const double value = finish(rolling::Sum::identity<double>());
    const auto fill_out = [&](auto* to) {
        using T = std::remove_pointer_t<decltype(to)>;
        launch("rolling_fill", fill<T>, thread_blocks_for(w.rows * w.n, kRollThreads), kRollThreads, 0, stream, to,
               w.rows * w.n, static_cast<T>(value));
    };
    job.is_double ? fill_out(static_cast<double*>(job.out)) : fill_out(static_cast<float*>(job.out));
}

Tensor rolling_op(const Tensor& x_in, const std::optional<Tensor>& y_in, int64_t statistic, int64_t first,
                  int64_t length, int64_t min_periods, double ddof) {
    const Windows w = rolling::check_windows(kName, x_in, Device::cuda, first, length, min_periods);
    const Finish finish(check_enumeration<rolling::Statistic>(kName, "statistic", statistic), min_periods, ddof);
    rolling::check_second(x_in, y_in, finish.statistic, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const std::optional<Tensor> y = contiguous(y_in);
    Tensor out = torch::stable::new_empty(x, x.sizes());
    if (w.rows * w.n == 0) return out;
    roll_any(x, y, w, finish, out);
    return out;
}

}  // namespace
}  // namespace nnue::cuda::stats

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "rolling", &nnue::cuda::stats::rolling_op);
}
