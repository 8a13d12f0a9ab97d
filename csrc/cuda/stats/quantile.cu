// Operator rolling_quantile on CUDA; the contract is in rolling.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "quantile_kernels.cuh"

namespace nnue::cuda::stats {
namespace {

using rolling::kQuantileName;

// The elements in ascending order, and the index int64 that each of them had in x.
std::pair<Tensor, Tensor> sort(const Tensor& x) {
    std::array<StableIValue, 3> stack{torch::stable::detail::from(x), torch::stable::detail::from<int64_t>(-1),
                                      torch::stable::detail::from(false)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::sort", "", stack.data(), TORCH_ABI_VERSION));
    return {torch::stable::detail::to<Tensor>(stack[0]), torch::stable::detail::to<Tensor>(stack[1])};
}

// Windows [first, last), with a matrix in device memory.
void long_quantiles(QuantileJob job, const Tensor& x, int64_t first, int64_t last, cudaStream_t stream) {
    const auto reach = job.reach(first, last);
    const int64_t size = reach.end - reach.begin;
    if (size > INT32_MAX)
        fail(kQuantileName, "length", job.windows.length, "at most 2^30 elements that a window reaches");
    const auto memory = [&](int64_t bytes) {
        return torch::stable::new_empty(x, {divide_up(bytes, sizeof(int64_t))}, ScalarType::Long);
    };
    const Tensor keys = torch::stable::new_empty(x, {size}, ScalarType::Double);
    const auto grid = [&](int64_t items) { return thread_blocks_for(items, kCellsTogether); };
    launch("quantile_keys", long_keys, grid(size), kCellsTogether, 0, stream, job, reach.begin, size,
           mutable_data<double>(keys));
    const auto [in_order, order] = sort(keys);

    job.bits = std::max(static_cast<int>(std::bit_width(static_cast<uint64_t>(size - 1))), 1);
    const int64_t cells = Matrix::cells(static_cast<uint32_t>(size)), blocks = divide_up(cells, kCellsTogether);
    const Tensor levels = memory((job.bits + 1) * cells * sizeof(Cell)), ones = memory(blocks * sizeof(Ones));
    const Tensor rank_memory = memory(size * sizeof(uint32_t)), moved_memory = memory(size * sizeof(uint32_t));
    auto *ranks = mutable_data<uint32_t>(rank_memory), *moved = mutable_data<uint32_t>(moved_memory);
    launch("quantile_ranks", long_ranks, grid(size), kCellsTogether, 0, stream, const_data<int64_t>(order), size,
           ranks);
    const Matrix matrix{const_data<Cell>(levels), job.bits, static_cast<uint32_t>(size)};
    // The first level to be made is the one that marks the observations.
    for (int bit = job.bits; bit >= 0; --bit) {
        Cell* const level = mutable_data<Cell>(levels) + bit * cells;
        auto* const found = mutable_data<Ones>(ones);
        const bool is_first = bit == job.bits, moves = !is_first && bit > 0;
        launch("quantile_bits", mark_ones, static_cast<unsigned>(blocks), kCellsTogether, 0, stream, ranks,
               is_first ? const_data<double>(in_order) : nullptr, matrix.size, bit, level, found);
        launch("quantile_carry", carry<Ones, AddOnes>, 1u, threads_for(blocks, 1), kWarp * sizeof(Ones), stream, found,
               static_cast<int64_t>(1), blocks, Ones(), AddOnes());
        launch("quantile_sort", sort_by_bit, static_cast<unsigned>(blocks), kCellsTogether, 0, stream, ranks,
               matrix.size, bit, level, found, moves ? moved : nullptr);
        if (moves) std::swap(ranks, moved);
    }
    launch(kQuantileName, write_quantiles, grid(last - first), kCellsTogether, 0, stream, job, matrix,
           const_data<double>(in_order), reach.begin, first, last);
}

void quantiles(const Tensor& x, const rolling::Windows& w, const rolling::Quantile& quantile, const Tensor& out) {
    QuantileJob job{};
    job.windows = w, job.quantile = quantile;
    job.x = x.const_data_ptr(), job.out = out.mutable_data_ptr();
    job.is_double = x.scalar_type() == ScalarType::Double;
    job.low = std::clamp<int64_t>(w.first, -w.n, 0), job.high = std::clamp<int64_t>(w.first + w.length, 1, w.n);
    const cudaStream_t stream = current_stream(x);
    const int64_t all = w.rows * w.n, halo = job.high - job.low - 1;
    // The elements of a matrix in shared memory: a power of 2, no less than one warp sorts and no more than fit.
    const int64_t least = kSortedByThread * kWarp, most = std::clamp<int64_t>(all, least, kMostSorted);
    job.bits = std::bit_width(static_cast<uint64_t>(most - 1));
    const size_t room = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device());
    while (quantile_bytes(job.bits) > room) --job.bits;
    const int64_t size = static_cast<int64_t>(1) << job.bits;
    job.tile = size >= all ? all : size - halo;
    if (job.tile < std::min(all, size / kLeastShare)) {
        job.tile = std::max<int64_t>(kLongMatrix - halo, halo);
        for (int64_t first = 0; first < all; first += job.tile) {
            long_quantiles(job, x, first, std::min(first + job.tile, all), stream);
        }
        return;
    }
    const size_t bytes = quantile_bytes(job.bits);
    check_cuda(
        cudaFuncSetAttribute(roll_quantiles, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        kQuantileName);
    launch(kQuantileName, roll_quantiles, thread_blocks_for(all, job.tile),
           static_cast<unsigned>(size / kSortedByThread), bytes, stream, job);
}

Tensor rolling_quantile_op(const Tensor& x_in, int64_t first, int64_t length, int64_t min_periods, double quantile,
                           int64_t interpolation) {
    const rolling::Windows w = rolling::check_windows(kQuantileName, x_in, Device::cuda, first, length, min_periods);
    const rolling::Quantile q = rolling::check_quantile(min_periods, quantile, interpolation);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, x.sizes());
    if (w.rows * w.n > 0) quantiles(x, w, q, out);
    return out;
}

}  // namespace
}  // namespace nnue::cuda::stats

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "rolling_quantile", &nnue::cuda::stats::rolling_quantile_op);
}
