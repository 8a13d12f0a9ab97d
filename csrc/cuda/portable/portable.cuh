// The portable kernels of perspective_transformer.h, for every GPU.
#pragma once

#include "../perspective_transformer.cuh"

namespace nnue::portable {

extern const perspective_transformer::Kernels kKernels;

// Whether this library has code for a device.
bool runs_on(int device);

}  // namespace nnue::portable
