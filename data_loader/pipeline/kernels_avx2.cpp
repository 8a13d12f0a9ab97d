// AVX2 without PEXT and PDEP: AMD's Zen 1 and 2 have them, but in microcode, at hundreds of cycles.
#include "base/isa.h"

#if NNUE_COMPILES_ISA(1)
#define NNUE_ISA avx2
#define NNUE_TABLE kKernelsAvx2
#include "pipeline/kernels_x86.h"
#endif
