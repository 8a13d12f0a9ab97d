// Operator rolling on CUDA; the contract is in rolling.h. rolling_quantile on CUDA is made of torch's operators, in
// nnue_trainer/analysis/rolling.py.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <utility>

#include "rolling_kernels.cuh"

namespace nnue::cuda::analysis {
namespace {

using rolling::kName;

template <class... Parameters, class... Arguments>
void launch_with(const char* name, void (*kernel)(Parameters...), unsigned grid, int threads, size_t bytes,
                 cudaStream_t stream, const Arguments&... arguments) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
               name);
    launch(name, kernel, grid, threads, bytes, stream, arguments...);
}

template <class M, class T>
void roll(Job<T> job, const Tensor& x, cudaStream_t stream) {
    Windows& w = job.windows;
    constexpr int kNumbers = M::kNumbers;
    if (w.length <= kShort) {
        const int threads = threads_for(w.n, kMostThreads<M>);
        w.tile = static_cast<int64_t>(threads) * kChunk;
        w.tiles = divide_up(w.n, w.tile);
        const size_t bytes = shared_bytes<M, T>(short_elements(threads, w.length), short_states<M>(threads, w.length));
        launch_with("rolling_short", roll_short<M, T>, thread_blocks_for(w.rows * w.tiles, 1), threads, bytes, stream,
                    job);
        return;
    }
    w.cut(rolling::even_tile(w.length, static_cast<int64_t>(kMostThreads<M>) * kChunk));
    const int threads = threads_for(w.tile, kMostThreads<M>);
    const size_t bytes = shared_bytes<M, T>(static_cast<int64_t>(threads) * kChunk, kWarp);
    const int64_t sums_size = w.rows * w.summed * kNumbers;
    Tensor sums, doubled, between;
    if (w.whole > 1) {
        const auto doubles = [&](int64_t count) { return torch::stable::new_empty(x, {count}, ScalarType::Double); };
        sums = doubles(sums_size), doubled = doubles(sums_size), between = doubles(w.rows * w.tiles * kNumbers);
        job.sums = mutable_data<double>(sums);
        job.between = mutable_data<double>(between);
        launch_with("rolling_sums", sum_tiles<M, T>, thread_blocks_for(w.rows * w.summed, 1), threads, bytes, stream,
                    job);
        auto *from = reinterpret_cast<StateOf<M>*>(job.sums),
             *to = reinterpret_cast<StateOf<M>*>(mutable_data<double>(doubled));
        int64_t offset = 1;
        for (int64_t size = 1; size < w.whole; size *= 2) {
            const bool takes = ((w.whole - 1) & size) != 0, more = size * 2 < w.whole;
            launch("rolling_between", double_tiles<M>,
                   thread_blocks_for(w.rows * std::max(w.tiles, w.summed), kThreads), kThreads, 0, stream, w,
                   static_cast<const StateOf<M>*>(from), to, reinterpret_cast<StateOf<M>*>(job.between), offset, size,
                   size == 1, takes, more);
            if (takes) offset += size;
            std::swap(from, to);
        }
    }
    launch_with("rolling_long", roll_long<M, T>, thread_blocks_for(w.rows * w.tiles, 1), threads, bytes, stream, job);
}

template <class T>
void roll_any(const Tensor& x, const std::optional<Tensor>& y, const Windows& w, const Finish& finish,
              const Tensor& out) {
    const cudaStream_t stream = current_stream(x);
    Job<T> job{w, const_data<T>(x), const_data<T>(y), mutable_data<T>(out), finish, nullptr, nullptr};
    if (w.length == 0) {
        const T value = static_cast<T>(finish(rolling::Sum::identity<double>()));
        launch("rolling_fill", fill<T>, thread_blocks_for(w.rows * w.n, kThreads), kThreads, 0, stream, job.out,
               w.rows * w.n, value);
        return;
    }
    rolling::with_monoid(finish.statistic, [&]<class M>() { roll<M>(job, x, stream); });
}

Tensor rolling_op(const Tensor& x_in, const std::optional<Tensor>& y_in, const std::string& statistic, int64_t first,
                  int64_t length, int64_t min_periods, double ddof) {
    const Windows w = rolling::check_windows(kName, x_in, Device::cuda, first, length, min_periods);
    const Finish finish{rolling::check_statistic(statistic), static_cast<double>(min_periods), ddof};
    rolling::check_second(x_in, y_in, finish.statistic, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const std::optional<Tensor> y = contiguous(y_in);
    Tensor out = torch::stable::new_empty(x, x.sizes());
    if (w.rows * w.n == 0) return out;
    x.scalar_type() == ScalarType::Double ? roll_any<double>(x, y, w, finish, out)
                                          : roll_any<float>(x, y, w, finish, out);
    return out;
}

}  // namespace
}  // namespace nnue::cuda::analysis

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    m.impl("rolling", TORCH_BOX(&nnue::cuda::analysis::rolling_op));
}
