// The feature transformer: the contract of its two operators, and the checks that hold on every device.
//
// out[b] = bias + sum over k of values[b, k] * weight[indices[b, k]]
//
//   indices  int32 [B, K]   Rows are left-packed: the first -1 ends a row, and what follows it is ignored. Duplicates
//                           add up. Any other index outside 0 <= index < F is an error.
//   values   [B, K]         Optional, 1 when absent. float32; float64 if the weight is float64.
//   weight   [F, N]         float32, float64, float16 or bfloat16. Sums are float32 (float64 for float64).
//   bias     [N]            The dtype of the weight.
//   output   [B, N]         The dtype of the weight, rounded once.
//
// The backward takes grad_output [B, N] in the dtype of the output. It takes F as a number, so that no weight is kept
// alive for its shape; the weight itself is needed only for the gradient of the values. It returns (grad_weight [F, N],
// grad_bias [N], grad_values [B, K]); `needs` has a flag for each of them, in this order, and the others have no
// elements. Gradients have the dtype of their tensor. grad_values is 0 from the end of a row on.
//
// With deterministic = true, equal inputs give equal bits. false selects the kernel with atomics on CUDA, which skips
// gradients that are zero. None selects the deterministic one. The CPU is always deterministic, for any number of
// threads. check_indices = false is for indices that a forward has just checked: CUDA kernels then silently skip
// illegal ones (index_check.cuh), while the CPU always checks.
//
// B, K, N and F may be 0. Inputs need not be contiguous.
#pragma once

#include <optional>
#include <vector>

#include "checks.h"
#include "dtypes.h"

namespace nnue::feature_transformer {

constexpr const char* kForward = "feature_transformer_forward";
constexpr const char* kBackward = "feature_transformer_backward";

// B, K, F and N of one call.
struct Sizes {
    int64_t rows = 0;
    int64_t max_active = 0;
    int64_t num_features = 0;
    int64_t num_outputs = 0;
};

// Which gradients a backward computes.
struct Needs {
    bool weight, bias, values;
};

inline Needs needs_of(const std::vector<bool>& needs) {
    if (needs.size() != 3) fail(kBackward, "needs", text(needs.size()) + " flags", "weight, bias and values");
    return {needs[0], needs[1], needs[2]};
}

// The dtype of sums and values for a weight of this dtype.
inline ScalarType sum_dtype(ScalarType weight) {
    return weight == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline void check_indices(const char* op, const Tensor& indices) {
    check_shape(op, "indices", indices, {-1, -1}, "[B, K]");
    if (indices.scalar_type() == ScalarType::Long) {
        fail(op, "indices", std::string("int64"), "int32; nnue_trainer.ops.index_rows converts int64");
    }
    check_dtype(op, "indices", indices, {ScalarType::Int});
    if (indices.size(1) > INT32_MAX) fail(op, "indices", "K = " + std::to_string(indices.size(1)), "K < 2^31");
}

inline void check_values(const char* op, const Tensor& values, const Tensor& indices, ScalarType weight_dtype,
                         Device device) {
    check_device(op, "values", values, device, indices, "indices");
    check_shape(op, "values", values, {indices.size(0), indices.size(1)}, "[B, K]");
    check_dtype(op, "values", values, {sum_dtype(weight_dtype)});
}

inline void check_num_features(const char* op, const char* argument, int64_t num_features) {
    if (num_features < 0 || num_features > INT32_MAX) {
        fail(op, argument, "F = " + std::to_string(num_features), "0 <= F < 2^31, for int32 indices");
    }
}

inline Sizes check_forward(const Tensor& indices, const std::optional<Tensor>& values, const Tensor& weight,
                           const Tensor& bias, Device device) {
    check_indices(kForward, indices);
    check_device(kForward, "indices", indices, device, weight, "weight");
    check_shape(kForward, "weight", weight, {-1, -1}, "[F, N]");
    check_dtype(kForward, "weight", weight,
                {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16});
    check_num_features(kForward, "weight", weight.size(0));
    check_device(kForward, "bias", bias, device, weight, "weight");
    check_shape(kForward, "bias", bias, {weight.size(1)}, "[N]");
    check_dtype(kForward, "bias", bias, {weight.scalar_type()});
    if (values) check_values(kForward, *values, indices, weight.scalar_type(), device);
    return {indices.size(0), indices.size(1), weight.size(0), weight.size(1)};
}

inline Sizes check_backward(const Tensor& grad_output, const Tensor& indices, const std::optional<Tensor>& values,
                            const std::optional<Tensor>& weight, int64_t num_features, const Needs& needs,
                            Device device) {
    check_indices(kBackward, indices);
    check_device(kBackward, "grad_output", grad_output, device, indices, "indices");
    check_device(kBackward, "indices", indices, device, grad_output, "grad_output");
    check_shape(kBackward, "grad_output", grad_output, {indices.size(0), -1}, "[B, N]");
    check_dtype(kBackward, "grad_output", grad_output,
                {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16});
    check_num_features(kBackward, "num_features", num_features);
    if (values) check_values(kBackward, *values, indices, grad_output.scalar_type(), device);
    if (needs.values && !values) fail(kBackward, "values", "none", "a tensor, since its gradient is requested");
    if (needs.values && !weight) fail(kBackward, "weight", "none", "a tensor, for the gradient of values");
    if (weight) {
        check_device(kBackward, "weight", *weight, device, grad_output, "grad_output");
        check_shape(kBackward, "weight", *weight, {num_features, grad_output.size(1)}, "[F, N]");
        check_dtype(kBackward, "weight", *weight, {grad_output.scalar_type()});
    }
    return {indices.size(0), indices.size(1), num_features, grad_output.size(1)};
}

}  // namespace nnue::feature_transformer
