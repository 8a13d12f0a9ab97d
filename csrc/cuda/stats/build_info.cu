// How the library of statistics was built.

#include "../../build_info.h"

NNUE_CUDA_BUILD_INFO("stats_cuda");
