// Operators transpose and row_norms on CUDA; the contracts are in rows.h.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "../../rows.h"
#include "scan.cuh"

namespace nnue::cuda::analysis {
namespace {

using rows::Matrices;
using rows::Norms;

// The side of a tile. Its rows have at least 128 bytes, before and after the transposition.
template <class T>
constexpr int kSide = sizeof(T) == 8   ? 32
                      : sizeof(T) == 1 ? 128
                                       : 64;
constexpr int kAcross = 32, kDown = 8;

template <class T>
__global__ void __launch_bounds__(kAcross* kDown) transpose(const T* x, T* out, const Matrices m) {
    constexpr int kTile = kSide<T>;
    // Each row begins one bank further on than the row before, so that the words of a column are in different banks.
    __shared__ T tile[kTile][kTile + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)];
    const int64_t down = divide_up(m.rows, kTile), across = divide_up(m.columns, kTile);
    const int lane = threadIdx.x % kAcross, line = threadIdx.x / kAcross;
    for (int64_t block = blockIdx.x; block < m.count * down * across; block += gridDim.x) {
        const int64_t start = block / (down * across) * m.rows * m.columns, place = block % (down * across);
        const int64_t row = place / across * kTile, column = place % across * kTile;
#pragma unroll 4
        for (int r = line; r < kTile; r += kDown) {
            for (int c = lane; c < kTile; c += kAcross) {
                if (row + r < m.rows && column + c < m.columns)
                    tile[r][c] = x[start + (row + r) * m.columns + column + c];
            }
        }
        __syncthreads();
#pragma unroll 4
        for (int c = line; c < kTile; c += kDown) {
            for (int r = lane; r < kTile; r += kAcross) {
                if (row + r < m.rows && column + c < m.columns)
                    out[start + (column + c) * m.rows + row + r] = tile[r][c];
            }
        }
        __syncthreads();
    }
}

Tensor transpose_op(const Tensor& x_in) {
    const Matrices m = rows::check_matrices(x_in, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, rows::transposed_shape(x));
    if (m.count == 0) return out;
    rows::dispatch_bytes(m.bytes, [&]<class T>(T*) {
        const int64_t tiles = m.count * divide_up(m.rows, kSide<T>) * divide_up(m.columns, kSide<T>);
        launch("transpose", transpose<T>, thread_blocks_for(tiles, 1), kAcross * kDown, 0, current_stream(x),
               const_data<T>(x), mutable_data<T>(out), m);
    });
    return out;
}

struct AddNorms {
    __device__ Norms operator()(Norms a, const Norms& b) const {
        a.add(b);
        return a;
    }
};

template <class T>
struct NormsOut {
    T *sums, *roots, *largest;
};

// One thread block per row.
template <class T>
__global__ void __launch_bounds__(kThreads) row_norms(const T* x, int64_t count, int64_t n, const NormsOut<T> out) {
    __shared__ double memory[kWarp * sizeof(Norms) / sizeof(double)];
    for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
        Norms mine, total;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) mine.add(static_cast<double>(to_sum(x[row * n + i])));
        exclusive_scan<false>(mine, Norms(), reinterpret_cast<Norms*>(memory), AddNorms(), &total);
        if (threadIdx.x != 0) continue;
        if (out.sums != nullptr) out.sums[row] = from_sum<T>(static_cast<sum_t<T>>(total.sum));
        if (out.roots != nullptr) out.roots[row] = from_sum<T>(static_cast<sum_t<T>>(sqrt(total.squares)));
        if (out.largest != nullptr) out.largest[row] = from_sum<T>(static_cast<sum_t<T>>(total.largest));
    }
}

void row_norms_op(const Tensor& x_in, const std::optional<Tensor>& sums, const std::optional<Tensor>& roots,
                  const std::optional<Tensor>& largest) {
    const int64_t count = rows::check_norms(x_in, sums, roots, largest, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor x = torch::stable::contiguous(x_in);
    const int64_t n = x.size(x.dim() - 1);
    dispatch_weight_dtype<__half, __nv_bfloat16>(x.scalar_type(), [&]<class T>(T*) {
        const auto pointer = [](const std::optional<Tensor>& to) { return to ? mutable_data<T>(*to) : nullptr; };
        launch("row_norms", row_norms<T>, thread_blocks_for(count, 1), threads_for(std::max<int64_t>(n, 1), 8), 0,
               current_stream(x), const_data<T>(x), count, n,
               NormsOut<T>{pointer(sums), pointer(roots), pointer(largest)});
    });
}

}  // namespace
}  // namespace nnue::cuda::analysis

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    m.impl("transpose", TORCH_BOX(&nnue::cuda::analysis::transpose_op));
    m.impl("row_norms", TORCH_BOX(&nnue::cuda::analysis::row_norms_op));
}
