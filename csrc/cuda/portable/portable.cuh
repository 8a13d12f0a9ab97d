// The portable kernels of perspective_transformer.h, for every GPU.
#pragma once

#include "../perspective_transformer.cuh"

namespace nnue::portable {

extern const perspective_transformer::Kernels kKernels;

// The compute capability, times ten, of this library's code for a device; 0 if it has none.
int code_for(int device);

}  // namespace nnue::portable
