// Operators pack_bits, bit_counts and random_walks on CUDA; the contracts are in graph.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "graph_kernels.cuh"

namespace nnue::cuda::stats {
namespace {

using graph::Bits;
using graph::Flags;
using graph::Walks;

// Thread blocks per multiprocessor. There are more than run at a time, so that little is idle while the last ones
// finish.
constexpr int kCountBlocks = 16, kWalkBlocks = 8;

Tensor pack_bits_op(const Tensor& active_in) {
    const Flags f = graph::check_flags(active_in, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(active_in.get_device_index());
    const Tensor active = torch::stable::contiguous(active_in);
    const Tensor out = torch::stable::new_empty(active, {f.neurons, f.words}, ScalarType::Long);
    const int64_t blocks = divide_up(f.neurons, kWarp) * divide_up(f.words, kPackWords);
    launch("pack_bits", pack_bits, thread_blocks_for(blocks, 1), kWarp * kPackWords, 0, current_stream(active),
           const_data<uint8_t>(active), mutable_data<unsigned long long>(out), f);
    return out;
}

Tensor bit_counts_op(const Tensor& a_in, const std::optional<Tensor>& b_in) {
    const Bits bits = graph::check_bits(a_in, b_in, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(a_in.get_device_index());
    const Tensor a = torch::stable::contiguous(a_in);
    const std::optional<Tensor> b = contiguous(b_in);
    const Tensor out = torch::stable::new_empty(a, {bits.rows, bits.columns}, ScalarType::Int);
    const cudaStream_t stream = current_stream(a);
    check_cuda(cudaMemsetAsync(out.mutable_data_ptr(), 0, out.numel() * sizeof(int32_t), stream), "memset");
    const int64_t tiles = divide_up(bits.rows, kCountTile) * divide_up(bits.columns, kCountTile);
    if (tiles == 0 || bits.words == 0) return out;
    const int64_t chunks = divide_up(bits.words, kCountWords);
    const int64_t wanted = divide_up(int64_t{kCountBlocks} * multiprocessors(current_device()), tiles);
    const int64_t slice = divide_up(chunks, std::min<int64_t>({wanted, chunks, 65535})) * kCountWords;
    const auto* const pointer = const_data<unsigned long long>(a);
    const CountJob job{pointer, b ? const_data<unsigned long long>(*b) : pointer, mutable_data<int32_t>(out), bits,
                       slice};
    const dim3 grid(thread_blocks_for(tiles, 1), static_cast<unsigned>(divide_up(bits.words, slice)));
    launch("bit_counts", bit_counts, grid, kCountThreads, 0, stream, job);
    return out;
}

Tensor random_walks_op(const Tensor& offsets, const Tensor& targets, const std::optional<Tensor>& thresholds,
                       int64_t first_round, int64_t rounds, double restart, int64_t seed, int64_t stream) {
    const Walks w =
        graph::check_walks(offsets, targets, thresholds, first_round, rounds, restart, seed, stream, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(offsets.get_device_index());
    const Tensor out = torch::stable::new_empty(offsets, {w.nodes}, ScalarType::Long);
    const cudaStream_t current = current_stream(offsets);
    check_cuda(cudaMemsetAsync(out.mutable_data_ptr(), 0, w.nodes * sizeof(int64_t), current), "memset");
    if (w.count == 0) return out;
    const int64_t most = int64_t{kWalkBlocks} * multiprocessors(current_device());
    const unsigned blocks = static_cast<unsigned>(std::min(divide_up(w.count, kWalkThreads), most));
    launch("random_walks", random_walks, blocks, kWalkThreads, 0, current, w, mutable_data<unsigned long long>(out));
    return out;
}

}  // namespace
}  // namespace nnue::cuda::stats

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "pack_bits", &nnue::cuda::stats::pack_bits_op);
    NNUE_IMPL(m, "bit_counts", &nnue::cuda::stats::bit_counts_op);
    NNUE_IMPL(m, "random_walks", &nnue::cuda::stats::random_walks_op);
}
