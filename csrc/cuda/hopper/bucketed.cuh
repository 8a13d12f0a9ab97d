// The kernels of perspective_transformer.h for compute capability 9.0 and feature sets with king buckets.
#pragma once

#include "../perspective_transformer.cuh"

namespace nnue::cuda::stacks {
struct FirstBackward;
struct TileArguments;
}  // namespace nnue::cuda::stacks
namespace nnue::layer_stacks {
struct Integers;
}

namespace nnue::perspective_transformer::bucketed {

extern const Kernels kKernels;

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

// The loss of one layer with one output, from 16-bit sums, down to the row gradients, which it returns. `a` has all
// results but these. `of.range` is that of the backward, and `x_scale` the factor of the forward's outputs.
Tensor one_output_through(const Batch& batch, const Transformer& of, const Tensor& saved, float x_scale,
                          const cuda::stacks::TileArguments& a);

}  // namespace nnue::perspective_transformer::bucketed
