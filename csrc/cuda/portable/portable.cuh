// The portable kernels of perspective_transformer.h as functions on tensors, which perspective_transformer.cu calls
// where bucket_size is 0. It has checked everything that holds for both sets of kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../../perspective_transformer.h"

namespace nnue::portable {

using perspective_transformer::Batch;
using perspective_transformer::OutputGradients;
using perspective_transformer::PositionRange;
using perspective_transformer::Range;
using perspective_transformer::Sizes;
using perspective_transformer::Three;

// Throws where there are more rows than the kernels can count.
void check_sizes(const char* op, const Tensor& white);

// Index rows and black_to_move are contiguous.
Tensor plan(const Tensor& white, const Tensor& black, const Tensor& black_to_move, int64_t num_features);

Three forward(const Batch& batch, const Tensor& weight, const Tensor& bias, const std::optional<Tensor>& psqt,
              Activation activation, Range range, ScalarType output_dtype, bool save);

// The psqt output alone. The batch has a psqt_bucket.
Tensor psqt_output(const Batch& batch, const Tensor& psqt, PositionRange wanted);

Three backward(const OutputGradients& gradients, const Batch& batch, const Tensor& saved, Sizes sizes,
               Activation activation, Range range, ScalarType weight_dtype);

std::string layout_text(int64_t positions, int64_t max_active, int64_t num_features);

// Whether this library has code for a device.
bool runs_on(int device);

}  // namespace nnue::portable
