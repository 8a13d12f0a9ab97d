// The loss of a net whose only layer has one output, with the gradients of the layer, in one kernel (one_output.cu).
#pragma once

#include "tile.cuh"

namespace nnue::cuda::stacks {

// The numbers of a tile in `partials`: the gradient of the stack's weight, then that of its bias.
inline int numbers_with_weight(const Layers& layers, const GradientLayout& layout) {
    return round4(layers.at[0].inputs + layout.tile);
}

// Launches the kernel for the tiles of `a`. x has at most capabilities::kOnePass bytes for each position.
void run_one_output(const Tensor& x, const TileArguments& a, cudaStream_t stream);

}  // namespace nnue::cuda::stacks
