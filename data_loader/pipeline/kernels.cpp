// The hot loops for any CPU, and the choice between them and the faster build.
#include "pipeline/kernels.h"

#include <cstdlib>
#include <string_view>

#include "pipeline/kernels_impl.h"

namespace nnue::data {

extern const Kernels* const kKernelsX86_64V3;  // null where the compiler cannot build it

namespace {

constexpr Kernels kBaseline{"baseline", decode_chains, expand, gather};

bool can_run_x86_64_v3() {
#if defined(__x86_64__)
    return kKernelsX86_64V3 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

}  // namespace

std::span<const Kernels* const> all_kernels() {
    static const Kernels* const all[] = {&kBaseline, kKernelsX86_64V3};
    return {all, can_run_x86_64_v3() ? 2u : 1u};
}

const Kernels& kernels() {
    static const Kernels& chosen = []() -> const Kernels& {
        const char* forced = std::getenv("NNUE_DATA_ISA");
        return forced && std::string_view(forced) == kBaseline.isa ? kBaseline : *all_kernels().back();
    }();
    return chosen;
}

}  // namespace nnue::data
