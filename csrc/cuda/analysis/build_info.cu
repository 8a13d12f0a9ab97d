// How the library for analysis was built.

#include "../../build_info.h"

NNUE_CUDA_BUILD_INFO("analysis");
