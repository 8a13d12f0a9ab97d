// The launches of rolling for one monoid, with the memory that its kernels need. rolling.cu has the operator, and
// compiles them for the simple monoids; rolling_moments.cu compiles them for the others, since all in one unit would be
// the longest unit of the build.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <utility>

#include "rolling_kernels.cuh"

namespace nnue::cuda::stats {

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
    const bool is_small = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device()) < 99 * 1024;
    job.in_ring = w.length <= kLongestInRing / Shared<M>::kRings / (is_small ? 2 : 1);
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
    const Tensor marked = torch::stable::new_zeros(x, {1}, ScalarType::Int);
    job.marked = mutable_data<int32_t>(marked);
    launch("rolling", kernel, thread_blocks_for(w.rows * job.runs, 1), threads, bytes, stream, job);
    if (M::kSpreads && job.is_double) {
        const int64_t blocks = resident_blocks("rolling_mend", mend<M>, kRollThreads, 0);
        launch("rolling_mend", mend<M>, thread_blocks_for(std::min(blocks * kRollThreads, w.rows * w.n), kRollThreads),
               kRollThreads, 0, stream, job);
    }
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

extern template void roll_windows<rolling::Moments<2>>(Job, const Tensor&, cudaStream_t);
extern template void roll_windows<rolling::Moments<3>>(Job, const Tensor&, cudaStream_t);
extern template void roll_windows<rolling::Moments<4>>(Job, const Tensor&, cudaStream_t);
extern template void roll_windows<rolling::Pairs>(Job, const Tensor&, cudaStream_t);

}  // namespace nnue::cuda::stats
