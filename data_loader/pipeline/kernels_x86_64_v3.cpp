// The hot loops for x86-64-v3. Everything of the standard library comes before the pragma: what it compiles afterwards
// must be ours and live in the namespace NNUE_ISA, or the linker could hand an AVX2 function to an older CPU.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#define NNUE_ISA x86_64_v3
#include "chess/types.h"
#include "features/registry.h"
#include "pipeline/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define NNUE_BMI2
#include "pipeline/kernels_impl.h"
#pragma GCC pop_options

namespace nnue::data {
namespace {
constexpr Kernels kTable{"x86-64-v3", x86_64_v3::decode_chains, x86_64_v3::expand, x86_64_v3::gather};
}
extern const Kernels* const kKernelsX86_64V3;
const Kernels* const kKernelsX86_64V3 = &kTable;
}  // namespace nnue::data

#else

namespace nnue::data {
extern const Kernels* const kKernelsX86_64V3;
const Kernels* const kKernelsX86_64V3 = nullptr;
}  // namespace nnue::data

#endif
