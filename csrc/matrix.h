// Transposition and norms of rows: the contracts of the operators and the checks that hold on every device.
//
// transpose
//   x        [..., R, C], elements of 1, 2, 4 or 8 bytes of any dtype
//   output   [..., C, R], contiguous: a copy of x with the last two dimensions swapped
//
// row_norms: norms along the last dimension, all that are requested in one pass
//   x        [..., n] float32, float64, float16 or bfloat16
//   sums     [...] sum of |x|, or absent; roots: root of the sum of squares; largest: largest |x|. Contiguous, of the
//            dtype of x. A row without elements has norms 0. A NaN in a row makes its norms NaN.
//   Sums run in double. Squares neither overflow nor vanish, however large or small the numbers are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "checks.h"
#include "dtypes.h"
#include "host_device.h"

namespace nnue::matrix {

constexpr const char* kTranspose = "transpose";
constexpr const char* kNorms = "row_norms";

// A sum of squares of any numbers of double. Squares of large and of small numbers are added up apart from the others,
// and are scaled by powers of two (J. L. Blue: A portable Fortran program to find the Euclidean norm of a vector;
// 1978).
struct Squares {
    double small, middle, large;

    NNUE_HOST_DEVICE void add(double magnitude) {
        if (magnitude > 0x1p486) {
            magnitude *= 0x1p-538;
            large += magnitude * magnitude;
        } else if (magnitude < 0x1p-511) {
            magnitude *= 0x1p537;
            small += magnitude * magnitude;
        } else {
            middle += magnitude * magnitude;
        }
    }
    NNUE_HOST_DEVICE void add(const Squares& b) { small += b.small, middle += b.middle, large += b.large; }

    NNUE_HOST_DEVICE double root() const {
        if (large != 0) return sqrt(large + middle * 0x1p-538 * 0x1p-538) * 0x1p538;
        if (small == 0) return sqrt(middle);
        const double of_small = sqrt(small) * 0x1p-537, of_middle = sqrt(middle);
        const double more = of_middle > of_small ? of_middle : of_small,
                     less = of_middle > of_small ? of_small : of_middle;
        return more * sqrt(1 + less / more * (less / more));
    }
};

// The sizes of x seen as [count, rows, columns].
struct Matrices {
    int64_t count, rows, columns;
    int bytes;  // of an element
};

inline Matrices check_matrices(const Tensor& x, Device device) {
    check_device(kTranspose, "x", x, device, x, "x");
    if (x.dim() < 2) fail(kTranspose, "x", std::to_string(x.dim()) + " dimensions", "shape [..., R, C]");
    const int64_t bytes = x.element_size();
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) {
        fail(kTranspose, "x", dtype_name(x.scalar_type()), "a dtype of 1, 2, 4 or 8 bytes");
    }
    const int64_t rows = x.size(x.dim() - 2), columns = x.size(x.dim() - 1);
    return {x.numel() == 0 ? 0 : x.numel() / rows / columns, rows, columns, static_cast<int>(bytes)};
}

// The shape of the transposed tensor, for new_empty.
inline std::vector<int64_t> transposed_shape(const Tensor& x) {
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
    return shape;
}

// Calls body with a null pointer to the unsigned integer type of this many bytes; only the type matters.
template <class Body>
void dispatch_bytes(int bytes, const Body& body) {
    switch (bytes) {
        case 1:
            return body(static_cast<uint8_t*>(nullptr));
        case 2:
            return body(static_cast<uint16_t*>(nullptr));
        case 4:
            return body(static_cast<uint32_t*>(nullptr));
        default:
            return body(static_cast<uint64_t*>(nullptr));
    }
}

inline int64_t check_norms(const Tensor& x, const std::optional<Tensor>& sums, const std::optional<Tensor>& roots,
                           const std::optional<Tensor>& largest, Device device) {
    check_device(kNorms, "x", x, device, x, "x");
    check_dtype(kNorms, "x", x, {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16});
    if (x.dim() == 0) fail(kNorms, "x", "no dimension", "shape [..., n]");
    int64_t rows = 1;
    for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
    const auto check = [&](const char* name, const std::optional<Tensor>& out) {
        if (!out) return;
        check_device(kNorms, name, *out, device, x, "x");
        check_dtype(kNorms, name, *out, {x.scalar_type()});
        const auto found = out->sizes(), all = x.sizes();
        if (out->dim() != x.dim() - 1 || !std::equal(found.begin(), found.end(), all.begin())) {
            fail(kNorms, name, "shape " + shape_text(found),
                 "shape " + shape_text(std::vector<int64_t>(all.begin(), all.end() - 1)));
        }
        if (!out->is_contiguous()) fail(kNorms, name, "a tensor that is not contiguous", "a contiguous one");
        check_apart(kNorms, name, *out, x, "x");
    };
    check("sums", sums), check("roots", roots), check("largest", largest);
    if (sums && roots) check_apart(kNorms, "roots", *roots, *sums, "sums");
    if (sums && largest) check_apart(kNorms, "largest", *largest, *sums, "sums");
    if (roots && largest) check_apart(kNorms, "largest", *largest, *roots, "roots");
    return rows;
}

}  // namespace nnue::matrix
