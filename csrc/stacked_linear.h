// A linear layer with a set of weights per stack, where each position has its own stack: the contract of its two
// operators, and the checks.
//
//   x        float32 [B, I]
//   bucket   int64 [B], 0 <= bucket < S: the stack of each position; any other is an error that names the position
//   weight   float32 [S, O, I]
//   bias     float32 [S, O]
//
// _stacked_linear_forward returns y[b] = weight[bucket[b]] · x[b] + bias[bucket[b]], float32 [B, O].
//
// _stacked_linear_backward takes the gradient of y and returns those of x, weight and bias. Without `needs_x_grad` the
// first has no elements. The gradients of a stack without positions are zero.
//
// Each position is computed for its own stack only. Sums have a fixed order: equal inputs give equal bits, for any
// number of threads and every instruction set. There are kernels only for the CPU;
// nnue_trainer/modules/stacked_linear.py has the ways of other devices.
#pragma once

#include <cstdint>

#include "checks.h"

namespace nnue::stacked_linear {

constexpr const char* kForward = "_stacked_linear_forward";
constexpr const char* kBackward = "_stacked_linear_backward";

struct Sizes {
    int64_t positions, inputs, outputs, stacks;
};

// Everything that both operators take, on any device.
inline Sizes check(const char* op, const Tensor& x, const Tensor& bucket, const Tensor& weight, Device device) {
    check_device(op, "weight", weight, device, weight, "weight");
    check_dtype(op, "weight", weight, {ScalarType::Float});
    check_shape(op, "weight", weight, {-1, -1, -1}, "[S, O, I]");
    const Sizes s{x.dim() == 0 ? 0 : x.size(0), weight.size(2), weight.size(1), weight.size(0)};
    check_device(op, "x", x, device, weight, "weight");
    check_dtype(op, "x", x, {ScalarType::Float});
    check_shape(op, "x", x, {s.positions, s.inputs}, "[B, I]");
    check_device(op, "bucket", bucket, device, weight, "weight");
    check_dtype(op, "bucket", bucket, {ScalarType::Long});
    check_shape(op, "bucket", bucket, {s.positions}, "[B]");
    return s;
}

}  // namespace nnue::stacked_linear
