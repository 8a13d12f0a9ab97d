// The feature transformer on CPU, in slabs of columns. Its threads are those of torch's own pool, so
// torch.set_num_threads holds.
//
// Forward: the rows are visited in an order that keeps weights in the cache, and each row sums its entries in order.
// Backward: the batch is transposed once into lists (feature -> rows), by a counting sort that keeps the order of the
// rows. Each gradient row is then one sum over its list and one plain store. There are no atomics and no zero fill, and
// the bits are the same for any number of threads.

#include "../feature_transformer.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "feature_lists.h"
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

// Columns per task. The forward's slabs are wide, because rows of one king bucket come together and the page of a row
// is then looked up once. In the backward a frequent feature has thousands of rows, and 1 KiB of each fits in the cache
// of a core better than whole rows.
constexpr int64_t kForwardSlab = 1024;
constexpr int64_t kBackwardSlab = 256;
constexpr int64_t kRowChunk = 256;

template <class T>
void forward(const ForwardArguments<T>& a, const Sizes& sizes) {
    const int64_t chunks = divide_up(sizes.rows, kRowChunk);
    torch::stable::parallel_for(
        0, divide_up(sizes.num_outputs, kForwardSlab) * chunks, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t column = task / chunks * kForwardSlab, row = task % chunks * kRowChunk;
                NNUE_CALL_BEST_ISA(forward_slab, a, column, std::min(kForwardSlab, sizes.num_outputs - column), row,
                                   std::min(row + kRowChunk, sizes.rows));
            }
        });
}

template <class T>
void weight_gradient(const FeatureLists<sum_t<T>>& lists, const T* grad_output, T* grad_weight, const Sizes& sizes) {
    constexpr int64_t kRanges = 64;
    const std::vector<int64_t> bounds = even_ranges(lists.starts, kRanges);
    torch::stable::parallel_for(
        0, divide_up(sizes.num_outputs, kBackwardSlab) * kRanges, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t column = task / kRanges * kBackwardSlab, range = task % kRanges;
                const WeightGradientArguments<T, T> a{
                    lists.starts.data(),  lists.rows.data(), lists.values.empty() ? nullptr : lists.values.data(),
                    grad_output + column, sizes.num_outputs, grad_weight,
                    sizes.num_outputs};
                NNUE_CALL_BEST_ISA(weight_gradient_slab, a, column, std::min(kBackwardSlab, sizes.num_outputs - column),
                                   bounds[range], bounds[range + 1]);
            }
        });
}

// A function that gives the span of a row's indices.
auto entries_of(const Tensor& indices, const std::vector<int64_t>& lengths, const Sizes& sizes) {
    return [first = const_data<int32_t>(indices), &lengths, length = sizes.max_active](int64_t b) {
        return std::span(first + b * length, static_cast<size_t>(lengths[b]));
    };
}

Tensor forward_op(const Tensor& indices_in, const std::optional<Tensor>& values_in, const Tensor& weight_in,
                  const Tensor& bias_in, std::optional<bool>) {
    const Sizes sizes = check_forward(indices_in, values_in, weight_in, bias_in, Device::cpu);
    const Tensor indices = torch::stable::contiguous(indices_in), weight = torch::stable::contiguous(weight_in),
                 bias = torch::stable::contiguous(bias_in);
    const std::optional<Tensor> values = contiguous(values_in);
    const auto lengths =
        checked_row_lengths(kForward, const_data<int32_t>(indices), sizes.rows, sizes.max_active, sizes.num_features);
    Tensor output = new_output(weight, sizes.rows, sizes.num_outputs, weight.scalar_type());
    const auto order = visiting_order(sizes.rows, sizes.num_features, entries_of(indices, lengths, sizes));
    dispatch_weight_dtype<Half, BFloat16>(weight.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        forward<T>(
            {const_data<int32_t>(indices), lengths.data(), order.data(), const_data<sum_t<T>>(values),
             const_data<T>(weight), const_data<T>(bias), mutable_data<T>(output), sizes.max_active, sizes.num_outputs},
            sizes);
    });
    return output;
}

std::tuple<Tensor, Tensor, Tensor> backward_op(const Tensor& grad_output_in, const Tensor& indices_in,
                                               const std::optional<Tensor>& values_in,
                                               const std::optional<Tensor>& weight_in, int64_t num_features,
                                               std::vector<bool> needs_in,
                                               std::optional<bool> /*deterministic: always*/,
                                               bool /*check_indices: always*/) {
    const Needs needs = needs_of(needs_in);
    const Sizes sizes =
        check_backward(grad_output_in, indices_in, values_in, weight_in, num_features, needs, Device::cpu);
    const Tensor grad_output = torch::stable::contiguous(grad_output_in),
                 indices = torch::stable::contiguous(indices_in);
    const std::optional<Tensor> values = contiguous(values_in);
    const auto lengths =
        checked_row_lengths(kBackward, const_data<int32_t>(indices), sizes.rows, sizes.max_active, sizes.num_features);
    Tensor grad_weight = torch::stable::new_empty(grad_output, {0}),
           grad_bias = torch::stable::new_empty(grad_output, {0}),
           grad_values = torch::stable::new_empty(grad_output, {0}, sum_dtype(grad_output.scalar_type()));
    dispatch_weight_dtype<Half, BFloat16>(grad_output.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        using S = sum_t<T>;
        const T* gradient = const_data<T>(grad_output);
        if (needs.weight) {
            grad_weight = new_output(grad_output, sizes.num_features, sizes.num_outputs, grad_output.scalar_type());
            const FeatureLists<S> lists(
                sizes.rows, sizes.num_features, values.has_value(), entries_of(indices, lengths, sizes),
                [from = const_data<S>(values), &sizes](int64_t b) { return from + b * sizes.max_active; });
            weight_gradient(lists, gradient, mutable_data<T>(grad_weight), sizes);
        }
        if (needs.bias) {
            grad_bias = torch::stable::new_empty(grad_output, {sizes.num_outputs});
            T* out = mutable_data<T>(grad_bias);
            torch::stable::parallel_for(
                0, divide_up(sizes.num_outputs, kBackwardSlab), 1, [&](int64_t begin, int64_t end) {
                    for (int64_t slab = begin; slab < end; ++slab) {
                        NNUE_CALL_BEST_ISA(bias_gradient_slab, gradient, sizes.rows, sizes.num_outputs, out,
                                           slab * kBackwardSlab,
                                           std::min(kBackwardSlab, sizes.num_outputs - slab * kBackwardSlab));
                    }
                });
        }
        if (needs.values) {
            const Tensor weight = torch::stable::contiguous(*weight_in);
            grad_values = torch::stable::new_empty(*values, {sizes.rows, sizes.max_active});
            const ValuesGradientArguments<T> a{
                const_data<int32_t>(indices), lengths.data(),   gradient,         const_data<T>(weight),
                mutable_data<S>(grad_values), sizes.max_active, sizes.num_outputs};
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
    NNUE_IMPL(m, "feature_transformer_forward", &nnue::feature_transformer::forward_op);
    NNUE_IMPL(m, "feature_transformer_backward", &nnue::feature_transformer::backward_op);
}
