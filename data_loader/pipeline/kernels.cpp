// The hot loops for any CPU, and the choice between them and the faster build.
#include "pipeline/kernels.h"

#include <cstdlib>
#include <string_view>

#include "pipeline/kernels_impl.h"

namespace nnue::data {

extern const Kernels* const kKernelsX86_64V3;  // null where the compiler cannot build it

namespace {

constexpr Kernels kBaseline{"baseline", decode_chains, expand};

const Kernels& choose() {
    const char* forced = std::getenv("NNUE_DATA_ISA");
    if (forced && std::string_view(forced) == kBaseline.isa) return kBaseline;
#if defined(__x86_64__)
    if (kKernelsX86_64V3 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("fma")) {
        return *kKernelsX86_64V3;
    }
#endif
    return kBaseline;
}

}  // namespace

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

}  // namespace nnue::data
