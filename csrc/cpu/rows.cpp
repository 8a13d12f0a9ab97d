// Operators transpose and row_norms on CPU, threads from torch's own pool; the contracts are in rows.h.

#include "../rows.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>

#include "vector.h"

namespace nnue::rows {
namespace {

// The tile that is read and the tile that is written fit into the first-level cache together, and a row of a tile fills
// whole cache lines.
constexpr int64_t kTile = 64;

template <class T>
void transpose_tile(const T* __restrict__ from, T* __restrict__ to, const Matrices& m, int64_t row, int64_t column) {
    const int64_t last_row = std::min(row + kTile, m.rows), last_column = std::min(column + kTile, m.columns);
    for (int64_t c = column; c < last_column; ++c) {
        for (int64_t r = row; r < last_row; ++r) to[c * m.rows + r] = from[r * m.columns + c];
    }
}

Tensor transpose_op(const Tensor& x_in) {
    const Matrices m = check_matrices(x_in, Device::cpu);
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, transposed_shape(x));
    if (m.count == 0) return out;
    const int64_t down = divide_up(m.rows, kTile), across = divide_up(m.columns, kTile);
    dispatch_bytes(m.bytes, [&]<class T>(T*) {
        torch::stable::parallel_for(0, m.count * down * across, 16, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t first = i / (down * across) * m.rows * m.columns, tile = i % (down * across);
                transpose_tile(const_data<T>(x) + first, mutable_data<T>(out) + first, m, tile / across * kTile,
                               tile % across * kTile);
            }
        });
    });
    return out;
}

// Sixteen sums side by side, added in a fixed order.
template <class T>
Norms norms_of(const T* from, int64_t count) {
    constexpr int kSums = 16;
    double sums[kSums] = {}, squares[kSums] = {}, largest[kSums] = {};
    int64_t i = 0;
    for (; i + kSums <= count; i += kSums) {
        for (int s = 0; s < kSums; ++s) {
            const double x = std::fabs(static_cast<double>(from[i + s]));
            sums[s] += x;
            squares[s] += x * x;
            largest[s] = x < largest[s] ? largest[s] : x;
        }
    }
    Norms all;
    for (int s = 0; s < kSums; ++s) all.add(Norms{sums[s], squares[s], largest[s]});
    for (; i < count; ++i) all.add(static_cast<double>(from[i]));
    if (all.sum != all.sum) all.largest = all.sum;  // a NaN that a comparison above has lost
    return all;
}

void row_norms_op(const Tensor& x_in, const std::optional<Tensor>& sums, const std::optional<Tensor>& roots,
                  const std::optional<Tensor>& largest) {
    const int64_t rows = check_norms(x_in, sums, roots, largest, Device::cpu);
    const Tensor x = torch::stable::contiguous(x_in);
    const int64_t n = x.size(x.dim() - 1);
    dispatch_weight_dtype<Half, BFloat16>(x.scalar_type(), [&]<class T>(T*) {
        torch::stable::parallel_for(0, rows, divide_up(1 << 14, n + 1), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const Norms found = norms_of(const_data<T>(x) + row * n, n);
                const auto put = [&](const std::optional<Tensor>& to, double value) {
                    if (to) mutable_data<T>(*to)[row] = static_cast<T>(static_cast<sum_t<T>>(value));
                };
                put(sums, found.sum), put(roots, std::sqrt(found.squares)), put(largest, found.largest);
            }
        });
    });
}

}  // namespace
}  // namespace nnue::rows

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    m.impl("transpose", TORCH_BOX(&nnue::rows::transpose_op));
    m.impl("row_norms", TORCH_BOX(&nnue::rows::row_norms_op));
}
