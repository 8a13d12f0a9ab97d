// Floating-point types, as run-time arguments of kernels.
#pragma once

namespace nnue {

enum class Float : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat64 = 3 };

}  // namespace nnue
