// The floating point types of weights, outputs and gradients, for kernels that learn them when they run.
#pragma once

namespace nnue {

enum class Float : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

}  // namespace nnue
