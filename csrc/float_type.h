// The floating point types, for kernels that learn them when they run.
#pragma once

namespace nnue {

enum class Float : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat64 = 3 };

}  // namespace nnue
