// AVX2 with PEXT and PDEP.
#include "base/isa.h"

#if NNUE_COMPILES_ISA(2)
#define NNUE_ISA avx2_bmi2
#define NNUE_TABLE kKernelsAvx2Bmi2
#define NNUE_BMI2
#include "pipeline/kernels_x86.h"
#endif
