// Functions that are the same lines of code on CPU and CUDA. They are always inlined: on the CPU a kernel that is
// compiled for AVX must not share one copy of them with a kernel that is not.
#pragma once

#ifdef __CUDACC__
#define NNUE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NNUE_HOST_DEVICE inline __attribute__((always_inline))
#endif
