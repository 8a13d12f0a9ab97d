// The hot loops for any CPU, and the choice among the builds.
#include "pipeline/kernels.h"

#include <cstdlib>
#include <string_view>
#include <vector>

#include "pipeline/kernels_impl.h"

namespace nnue::data {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NNUE_X86_BUILDS
extern const Kernels kKernelsAvx2, kKernelsAvx2Bmi2;
#endif

std::span<const Kernels* const> all_kernels() {
    static const std::vector<const Kernels*> all = [] {
        static constexpr Kernels baseline = kTable;
        std::vector<const Kernels*> list{&baseline};
#if defined(NNUE_X86_BUILDS)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
            __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("fma")) {
            list.push_back(&kKernelsAvx2);
            if (!__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2")) list.push_back(&kKernelsAvx2Bmi2);
        }
#endif
        return list;
    }();
    return all;
}

const Kernels& kernels() {
    static const Kernels& chosen = []() -> const Kernels& {
        const char* forced = std::getenv("NNUE_DATA_ISA");
        for (const Kernels* k : all_kernels()) {
            if (forced && std::string_view(forced) == k->isa) return *k;
        }
        return *all_kernels().back();
    }();
    return chosen;
}

}  // namespace nnue::data
