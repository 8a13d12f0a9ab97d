// A build of the hot loops for newer x86 CPUs; included once by each kernels_avx2*.cpp, which defines NNUE_ISA,
// NNUE_TABLE and, where the CPU is fast at it, NNUE_BMI2.
//
// Everything of the standard library comes before the pragma: what is compiled after it must be ours and live in the
// namespace NNUE_ISA, or the linker could hand an AVX2 function to an older CPU.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "chess/types.h"
#include "features/feature_set.h"
#include "pipeline/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

// Not __AVX2__: a compiler that gets preprocessed text, as from ccache, has not defined it after the pragma.
#define NNUE_AVX2

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#include "pipeline/kernels_impl.h"
#pragma GCC pop_options

namespace nnue::data {
extern const Kernels NNUE_TABLE;
const Kernels NNUE_TABLE = NNUE_ISA::kTable;
}  // namespace nnue::data

#endif
