// The evaluator's hot loops for CPUs with AVX2. The notes in pipeline/kernels_x86.h hold here, too.
#define NNUE_ISA avx2

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "chess/types.h"
#include "evaluate/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#include "evaluate/kernels_impl.h"
#pragma GCC pop_options

namespace nnue::data {
extern const EvaluateKernels kEvaluateAvx2;
const EvaluateKernels kEvaluateAvx2 = NNUE_ISA::kEvaluateTable;
}  // namespace nnue::data

#endif
