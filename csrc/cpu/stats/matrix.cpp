// Operators transpose and row_norms on CPU, threads from torch's own pool; the contracts are in matrix.h.

#include "../../matrix.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../huge_pages.h"
#include "../vector.h"

namespace nnue::matrix {

constexpr int kRows = 64;    // rows of a tile: of elements of any size they fill whole lines of the output
constexpr int kStrip = 256;  // bytes of each row in a strip

// Rows [row, row + height) and columns [column, column + width) by themselves. Inlined, so that each caller has it for
// its own instruction set, and that of small matrices without offsets.
template <class T>
[[gnu::always_inline]] inline void transpose_plainly(const T* __restrict__ from, T* __restrict__ to, const Matrices& m,
                                                     int64_t row, int64_t column, int64_t height, int64_t width) {
    for (int64_t c = column; c < column + width; ++c) {
        for (int64_t r = row; r < row + height; ++r) to[c * m.rows + r] = from[r * m.columns + c];
    }
}

constexpr int kSums = 16;  // side by side, of long rows

// The sums from which the norms of a row are made.
struct Sums {
    double sum = 0, squares = 0, largest = 0;

    template <bool kAll>
    [[gnu::always_inline]] void add(double x) {
        squares += x * x;
        if constexpr (kAll) {
            x = std::fabs(x);
            sum += x;
            largest = x < largest ? largest : x;
        }
    }
};

// The root of the sum of squares. Only rows of float64 whose squares leave the range of double are read once more.
template <class T>
[[gnu::always_inline]] inline double root_of(const T* from, int64_t count, double sum) {
    const bool right = sum > 0x1p-960 && sum <= std::numeric_limits<double>::max();
    if (!std::is_same_v<T, double> || right) return std::sqrt(sum);
    Squares squares{};
    for (int64_t i = 0; i < count; ++i) squares.add(std::fabs(static_cast<double>(from[i])));
    return squares.root();
}

template <class T>
[[gnu::always_inline]] inline T narrowed(double value) {
    return static_cast<T>(static_cast<sum_t<T>>(value));
}

}  // namespace nnue::matrix

#define NNUE_KERNELS "stats/matrix_kernels.h"
#include "../for_each_isa.h"

namespace nnue::matrix {
namespace {

constexpr int64_t kTaskRows = 16 * kRows;
constexpr int64_t kTaskBytes = 1 << 16;  // the least work that is worth a thread
// Outputs of this many bytes are in huge pages, and are written past the caches, which would hold only a part of them.
constexpr int64_t kLargeBytes = 1 << 23;

// Matrices of fewer elements are not worth a call of the kernel.
constexpr int64_t kSmall = 1024;

Tensor transpose_op(const Tensor& x_in) {
    const Matrices m = check_matrices(x_in, Device::cpu);
    const Tensor x = torch::stable::contiguous(x_in);
    const Tensor out = torch::stable::new_empty(x, transposed_shape(x));
    if (m.count == 0) return out;
    const int64_t size = out.numel() * m.bytes;
    if (size >= kLargeBytes) system::request_huge_pages(out.mutable_data_ptr(), size);
    // Lines can be written past the caches only where each row of the output begins with a line.
    const bool stream = size >= kLargeBytes && m.rows * m.bytes % kLineBytes == 0 &&
                        reinterpret_cast<uintptr_t>(out.mutable_data_ptr()) % kLineBytes == 0;
    const int64_t down = divide_up(m.rows, kTaskRows), across = divide_up(m.columns * m.bytes, kStrip);
    const int64_t tasks = m.count * down * across;
    dispatch_bytes(m.bytes, [&]<class T>(T*) {
        const int64_t grain = divide_up(kTaskBytes * tasks, size);
        if (m.rows * m.columns < kSmall) {
            return torch::stable::parallel_for(0, m.count, grain, [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                    const int64_t first = i * m.rows * m.columns;
                    transpose_plainly(const_data<T>(x) + first, mutable_data<T>(out) + first, m, 0, 0, m.rows,
                                      m.columns);
                }
            });
        }
        torch::stable::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t first = i / (down * across) * m.rows * m.columns, place = i % (down * across);
                const int64_t row = place % down * kTaskRows, column = place / down * (kStrip / m.bytes);
                NNUE_CALL_BEST_ISA(transpose_strip<T>, const_data<T>(x) + first, mutable_data<T>(out) + first, m, row,
                                   std::min(row + kTaskRows, m.rows), column, stream);
            }
        });
    });
    return out;
}

void row_norms_op(const Tensor& x_in, const std::optional<Tensor>& sums, const std::optional<Tensor>& roots,
                  const std::optional<Tensor>& largest) {
    const int64_t rows = check_norms(x_in, sums, roots, largest, Device::cpu);
    const Tensor x = torch::stable::contiguous(x_in);
    const int64_t n = x.size(x.dim() - 1);
    dispatch_weight_dtype<Half, BFloat16>(x.scalar_type(), [&]<class T>(T*) {
        // The address of a tensor is a call, which costs more than a short row.
        const auto at = [](const std::optional<Tensor>& to) { return to ? mutable_data<T>(*to) : nullptr; };
        const T* const from = const_data<T>(x);
        T *const to_sums = at(sums), *const to_roots = at(roots), *const to_largest = at(largest);
        torch::stable::parallel_for(0, rows, divide_up(1 << 14, n + 1), [&](int64_t begin, int64_t end) {
            const T* const first = from + begin * n;
            const auto place = [&](T* to) { return to == nullptr ? to : to + begin; };
            if (to_sums == nullptr && to_largest == nullptr) {  // a third of the time of all three
                NNUE_CALL_BEST_ISA(template norms_of_rows<false>, first, end - begin, n, place(to_sums),
                                   place(to_roots), place(to_largest));
            } else {
                NNUE_CALL_BEST_ISA(template norms_of_rows<true>, first, end - begin, n, place(to_sums), place(to_roots),
                                   place(to_largest));
            }
        });
    });
}

}  // namespace
}  // namespace nnue::matrix

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "transpose", &nnue::matrix::transpose_op);
    NNUE_IMPL(m, "row_norms", &nnue::matrix::row_norms_op);
}
