// The kernels of perspective_transformer.h for compute capability 9.0 and feature sets with king buckets, as functions
// on tensors. perspective_transformer.cu calls them if bucket_size is not 0. It has already checked what both these
// kernels and the portable ones (../portable/portable.cuh) require.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../../perspective_transformer.h"

namespace nnue::cuda::stacks {
struct FirstBackward;
}
namespace nnue::layer_stacks {
struct Integers;
}

namespace nnue::perspective_transformer::bucketed {

// Throws if the kernels are not made for these sizes.
void check_sizes(const char* op, const Tensor& white, int64_t num_features, PlanLayout layout);

// Index rows and black_to_move are contiguous.
Tensor plan(const Tensor& white, const Tensor& black, const Tensor& black_to_move, int64_t num_features,
            PlanLayout layout);

Three forward(const Batch& batch, PlanLayout layout, const Tensor& weight, const Tensor& bias,
              const std::optional<Tensor>& psqt, Activation activation, Range range, ScalarType out_dtype, bool save);

// The psqt output alone. The batch has a psqt_bucket.
Tensor psqt_output(const Batch& batch, PlanLayout layout, const Tensor& psqt, PositionRange wanted);

// The backward of the layer after the transformer, where it reads nothing but pairwise products, down to the row
// gradients. `a` is its problem; what the kernel leaves for finish_kernel (../stacks/finish.cuh) is in the result.
struct Through {
    Tensor row_gradients;  // for `backward`, in the place of the gradient of the output
    Tensor segments;
    Tensor bias_segments;
    int workers, padded_outputs;
};
Through first_layer_backward(const Batch& batch, PlanLayout layout, const Tensor& saved, int64_t num_features,
                             Range range, const layer_stacks::Integers& integers, cuda::stacks::FirstBackward a);

Three backward(const OutputGradients& gradients, const Batch& batch, PlanLayout layout, const Tensor& saved,
               Sizes sizes, Activation activation, Range range, ScalarType dtype);

std::string layout_text(int64_t positions, int64_t max_active, int64_t num_features, PlanLayout layout);

}  // namespace nnue::perspective_transformer::bucketed
