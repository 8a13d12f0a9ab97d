// The feature transformer on CPU: column slabs, threads from torch's own pool (torch.set_num_threads holds).
//
// Forward: rows are visited in an order that keeps weights in the cache; each sums its entries in order. Backward:
// the batch is transposed once into (feature -> rows) lists by a counting sort that keeps row order; each gradient row
// is then one sum over its list and one plain store. No atomics, no zero fill; the same bits for any thread count.

#include "../feature_transformer.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "huge_pages.h"
#include "index_rows.h"
#include "vector.h"

namespace nnue {

template <class T>
struct ForwardArguments {
    const int32_t* indices;
    const int64_t* lengths;
    const int64_t* order;    // in which to visit the rows
    const sum_t<T>* values;  // or null
    const T* weight;
    const T* bias;
    T* output;
    int64_t max_active;
    int64_t num_outputs;
};

template <class T>
struct WeightGradientArguments {
    const int64_t* starts;   // [F + 1]
    const int64_t* rows;     // of each feature, ascending
    const sum_t<T>* values;  // in the order of `rows`, or null
    const T* grad_output;
    T* grad_weight;
    int64_t num_outputs;
};

template <class T>
struct ValuesGradientArguments {
    const int32_t* indices;
    const int64_t* lengths;
    const T* grad_output;
    const T* weight;
    sum_t<T>* grad_values;
    int64_t max_active;
    int64_t num_outputs;
};

}  // namespace nnue

#define NNUE_KERNELS "feature_transformer_kernels.h"
#include "for_each_isa.h"

namespace nnue::feature_transformer {
namespace {

// Columns a task works on. Forward: wide, since rows of one king bucket come together and a row's page is looked up
// once. Backward: rows of a hot feature are thousands, 1 KiB of each fits the cache of a core better than all.
constexpr int64_t kForwardSlab = 1024;
constexpr int64_t kBackwardSlab = 256;
constexpr int64_t kRowBlock = 256;

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// (feature -> rows) lists of a batch. Each thread scans all indices and files those of its own features, so that the
// order within a list is that of the rows.
template <class S>
struct Transposed {
    std::vector<int64_t> starts;  // [F + 1]
    std::vector<int64_t> rows;
    std::vector<S> values;

    Transposed(const int32_t* indices, const int64_t* lengths, const S* from_values, const Sizes& sizes)
        : starts(sizes.num_features + 1) {
        std::vector<int64_t> next(sizes.num_features);
        const auto own_features = [&](const auto& visit) {
            // Every thread reads every index: few, large parts.
            const int64_t grain = std::max<int64_t>(1024, sizes.num_features / torch::stable::get_num_threads());
            torch::stable::parallel_for(0, sizes.num_features, grain, [&](int64_t begin, int64_t end) {
                for (int64_t b = 0; b < sizes.rows; ++b) {
                    for (int64_t p = b * sizes.max_active; p < b * sizes.max_active + lengths[b]; ++p) {
                        if (indices[p] >= begin && indices[p] < end) visit(indices[p], b, p);
                    }
                }
            });
        };
        own_features([&](int32_t feature, int64_t, int64_t) { ++next[feature]; });
        for (int64_t f = 0; f < sizes.num_features; ++f) {
            starts[f + 1] = starts[f] + next[f];
            next[f] = starts[f];
        }
        rows.resize(starts.back());
        if (from_values != nullptr) values.resize(starts.back());
        own_features([&](int32_t feature, int64_t b, int64_t p) {
            const int64_t slot = next[feature]++;
            rows[slot] = b;
            if (from_values != nullptr) values[slot] = from_values[p];
        });
    }
};

// Rows in the order of their first index. Features of one king bucket are neighbours in every king-bucketed set, so
// that rows of one bucket come together and find its weights in the cache.
std::vector<int64_t> visiting_order(const int32_t* indices, const int64_t* lengths, const Sizes& sizes) {
    std::vector<int64_t> starts(sizes.num_features + 2), order(sizes.rows);
    const auto key = [&](int64_t b) -> int64_t { return lengths[b] == 0 ? 0 : indices[b * sizes.max_active]; };
    for (int64_t b = 0; b < sizes.rows; ++b) ++starts[key(b) + 1];
    for (int64_t f = 0; f < sizes.num_features; ++f) starts[f + 1] += starts[f];
    for (int64_t b = 0; b < sizes.rows; ++b) order[starts[key(b)]++] = b;
    return order;
}

template <class T>
void forward(const ForwardArguments<T>& a, const Sizes& sizes) {
    const int64_t blocks = divide_up(sizes.rows, kRowBlock);
    torch::stable::parallel_for(
        0, divide_up(sizes.num_outputs, kForwardSlab) * blocks, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t column = task / blocks * kForwardSlab, row = task % blocks * kRowBlock;
                NNUE_CALL_BEST_ISA(forward_slab, a, column, std::min(kForwardSlab, sizes.num_outputs - column), row,
                                   std::min(row + kRowBlock, sizes.rows));
            }
        });
}

template <class T>
void weight_gradient(const WeightGradientArguments<T>& a, const Sizes& sizes) {
    // Features in ranges of about equal work: an entry is a row read, a feature a row written.
    constexpr int64_t kRanges = 64;
    const auto work_before = [&](int64_t f) { return a.starts[f] + f; };
    std::vector<int64_t> bounds(kRanges + 1, sizes.num_features);
    bounds[0] = 0;
    for (int64_t r = 1, f = 0; r < kRanges; ++r) {
        const int64_t target = work_before(sizes.num_features) / kRanges * r;
        while (f < sizes.num_features && work_before(f) < target) ++f;
        bounds[r] = f;
    }
    torch::stable::parallel_for(
        0, divide_up(sizes.num_outputs, kBackwardSlab) * kRanges, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t column = task / kRanges * kBackwardSlab, range = task % kRanges;
                NNUE_CALL_BEST_ISA(weight_gradient_slab, a, column, std::min(kBackwardSlab, sizes.num_outputs - column),
                                   bounds[range], bounds[range + 1]);
            }
        });
}

// Calls `body` with a null pointer of the C++ type of a weight dtype, which the caller has checked.
template <class Body>
void dispatch_weight_dtype(ScalarType dtype, const Body& body) {
    switch (dtype) {
        case ScalarType::Float:
            return body(static_cast<float*>(nullptr));
        case ScalarType::Double:
            return body(static_cast<double*>(nullptr));
        case ScalarType::Half:
            return body(static_cast<Half*>(nullptr));
        default:
            return body(static_cast<BFloat16*>(nullptr));
    }
}

template <class T>
const T* data(const std::optional<Tensor>& tensor) {
    return tensor ? static_cast<const T*>(tensor->const_data_ptr()) : nullptr;
}

Tensor new_output(const Tensor& like, int64_t rows, int64_t columns) {
    Tensor output = torch::stable::new_empty(like, {rows, columns});
    want_huge_pages(output.mutable_data_ptr(), output.numel() * output.element_size());
    return output;
}

Tensor forward_op(const Tensor& indices_in, const std::optional<Tensor>& values_in, const Tensor& weight_in,
                  const Tensor& bias_in, std::optional<bool>) {
    const Sizes sizes = check_forward(indices_in, values_in, weight_in, bias_in, Device::cpu);
    const Tensor indices = torch::stable::contiguous(indices_in), weight = torch::stable::contiguous(weight_in),
                 bias = torch::stable::contiguous(bias_in);
    const std::optional<Tensor> values = contiguous(values_in);
    const auto lengths =
        checked_row_lengths(kForward, data<int32_t>(indices), sizes.rows, sizes.max_active, sizes.num_features);
    Tensor output = new_output(weight, sizes.rows, sizes.num_outputs);
    const auto order = visiting_order(data<int32_t>(indices), lengths.data(), sizes);
    dispatch_weight_dtype(weight.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        forward<T>({data<int32_t>(indices), lengths.data(), order.data(), data<sum_t<T>>(values), data<T>(weight),
                    data<T>(bias), static_cast<T*>(output.mutable_data_ptr()), sizes.max_active, sizes.num_outputs},
                   sizes);
    });
    return output;
}

std::tuple<Tensor, Tensor, Tensor> backward_op(const Tensor& grad_output_in, const Tensor& indices_in,
                                               const std::optional<Tensor>& values_in,
                                               const std::optional<Tensor>& weight_in, int64_t num_features,
                                               bool needs_weight_grad, bool needs_bias_grad, bool needs_values_grad,
                                               std::optional<bool> /*deterministic: always*/,
                                               bool /*check_indices: always*/) {
    const Sizes sizes =
        check_backward(grad_output_in, indices_in, values_in, weight_in, num_features, needs_values_grad, Device::cpu);
    const Tensor grad_output = torch::stable::contiguous(grad_output_in),
                 indices = torch::stable::contiguous(indices_in);
    const std::optional<Tensor> values = contiguous(values_in);
    const auto lengths =
        checked_row_lengths(kBackward, data<int32_t>(indices), sizes.rows, sizes.max_active, sizes.num_features);
    Tensor grad_weight = torch::stable::new_empty(grad_output, {0}),
           grad_bias = torch::stable::new_empty(grad_output, {0}),
           grad_values = torch::stable::new_empty(grad_output, {0}, sum_dtype(grad_output.scalar_type()));
    dispatch_weight_dtype(grad_output.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        using S = sum_t<T>;
        const T* gradient = data<T>(grad_output);
        if (needs_weight_grad) {
            grad_weight = new_output(grad_output, sizes.num_features, sizes.num_outputs);
            const Transposed<S> lists(data<int32_t>(indices), lengths.data(), data<S>(values), sizes);
            weight_gradient<T>({lists.starts.data(), lists.rows.data(), values ? lists.values.data() : nullptr,
                                gradient, static_cast<T*>(grad_weight.mutable_data_ptr()), sizes.num_outputs},
                               sizes);
        }
        if (needs_bias_grad) {
            grad_bias = torch::stable::new_empty(grad_output, {sizes.num_outputs});
            T* out = static_cast<T*>(grad_bias.mutable_data_ptr());
            torch::stable::parallel_for(
                0, divide_up(sizes.num_outputs, kBackwardSlab), 1, [&](int64_t begin, int64_t end) {
                    for (int64_t slab = begin; slab < end; ++slab) {
                        NNUE_CALL_BEST_ISA(bias_gradient_slab, gradient, sizes.rows, sizes.num_outputs, out,
                                           slab * kBackwardSlab,
                                           std::min(kBackwardSlab, sizes.num_outputs - slab * kBackwardSlab));
                    }
                });
        }
        if (needs_values_grad) {
            const Tensor weight = torch::stable::contiguous(*weight_in);
            grad_values = torch::stable::new_empty(*values, {sizes.rows, sizes.max_active});
            const ValuesGradientArguments<T> a{data<int32_t>(indices),
                                               lengths.data(),
                                               gradient,
                                               data<T>(weight),
                                               static_cast<S*>(grad_values.mutable_data_ptr()),
                                               sizes.max_active,
                                               sizes.num_outputs};
            torch::stable::parallel_for(0, sizes.rows, 64, [&](int64_t begin, int64_t end) {
                NNUE_CALL_BEST_ISA(values_gradient_rows, a, begin, end);
            });
        }
    });
    return {grad_weight, grad_bias, grad_values};
}

}  // namespace
}  // namespace nnue::feature_transformer

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    m.impl("feature_transformer_forward", TORCH_BOX(&nnue::feature_transformer::forward_op));
    m.impl("feature_transformer_backward", TORCH_BOX(&nnue::feature_transformer::backward_op));
}
