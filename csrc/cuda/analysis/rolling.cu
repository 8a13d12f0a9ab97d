// Operator rolling on CUDA; the contract is in rolling.h. rolling_quantile on CUDA is made of torch's operators, in
// nnue_trainer/stats/windows.py.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "rolling_kernels.cuh"

namespace nnue::cuda::analysis {
namespace {

using rolling::kName;

// The states of what lies between the tile where windows begin and the tile where they end: [rows, tiles], in device
// memory.
template <class M>
Tensor states_between(const Job& job, const Tensor& x, cudaStream_t stream) {
    const Windows& w = job.windows;
    using S = StateOf<M>;
    const auto states = [&](int64_t count) {
        return torch::stable::new_empty(x, {count * M::kNumbers}, ScalarType::Double);
    };
    const auto pointer = [](const Tensor& t) { return reinterpret_cast<S*>(mutable_data<double>(t)); };
    const Tensor sums = states(w.rows * w.summed), doubled = states(w.rows * w.summed),
                 between = states(w.rows * w.tiles);
    S *from = pointer(sums), *to = pointer(doubled), *const found = pointer(between);
    launch("rolling_sums", sum_ranges<M>, thread_blocks_for(w.rows * w.summed, 1), kRollThreads, 0, stream, job,
           w.first, w.tile, w.tile, w.summed, from, false);
    int64_t offset = 1;
    for (int64_t size = 1; size < w.whole; size *= 2) {
        const bool takes = ((w.whole - 1) & size) != 0, more = size * 2 < w.whole;
        launch("rolling_between", double_tiles<M>,
               thread_blocks_for(w.rows * std::max(w.tiles, w.summed), kRollThreads), kRollThreads, 0, stream, w,
               static_cast<const S*>(from), to, found, offset, size, size == 1, takes, more);
        if (takes) offset += size;
        std::swap(from, to);
    }
    if (w.rest > 0) {
        launch("rolling_rest", sum_ranges<M>, thread_blocks_for(w.rows * w.tiles, 1), kRollThreads, 0, stream, job,
               w.first + w.whole * w.tile, w.tile, w.rest, w.tiles, found, true);
    }
    return between;
}

template <class M, bool kCut>
void roll_tiles(Job job, const Tensor& x, cudaStream_t stream) {
    Windows& w = job.windows;
    job.in_ring = w.length <= kLongestInRing / Shared<M>::kRings;
    job.tile = static_cast<int>(w.tile);
    job.segment = static_cast<int>(w.length);
    job.slots = 4;
    Tensor between;
    if (job.in_ring) {
        job.whole = static_cast<int>(w.whole), job.rest = static_cast<int>(w.rest);
        job.lead = job.whole + (job.rest > 0 ? 1 : 0);
        job.slots = job.lead + 2;
    } else {
        between = states_between<M>(job, x, stream);
        job.between = const_data<double>(between);
    }
    const double length = static_cast<double>(w.length);
    job.finish_all = FinishOf(job.finish, length);
    static_assert(kWindows<M> <= kMostWindows);
    for (int j = 0; j < kWindows<M>; ++j) {
        const double k = kWindows<M> - j;
        job.joined[j] = Weights(k, length - k), job.next[j] = Weights(length - k, 1);
    }
    const int threads = threads_for(w.tile, kWindows<M>);
    const size_t bytes = Shared<M>(job, kCut).bytes(threads);
    const auto kernel = roll<M, kCut>;
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
               "rolling");
    job.run = std::min(divide_up(w.rows * w.tiles, resident_blocks("rolling", kernel, threads, bytes)), w.tiles);
    job.runs = divide_up(w.tiles, job.run);
    launch("rolling", kernel, thread_blocks_for(w.rows * job.runs, 1), threads, bytes, stream, job);
}

template <class M>
void roll_windows(Job job, const Tensor& x, cudaStream_t stream) {
    Windows& w = job.windows;
    const int64_t most = std::min<int64_t>(static_cast<int64_t>(kRollThreads) * kWindows<M>, w.n);
    if (w.length <= most) {
        w.cut(most / w.length * w.length);
        roll_tiles<M, true>(job, x, stream);
    } else {
        w.cut(rolling::even_tile(w.length, most));
        roll_tiles<M, false>(job, x, stream);
    }
}

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
}  // namespace nnue::cuda::analysis

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "rolling", &nnue::cuda::analysis::rolling_op);
}
