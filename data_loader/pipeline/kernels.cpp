// The hot loops for any CPU, and the choice among the builds.
#include "pipeline/kernels.h"

#include <vector>

#include "base/isa.h"
#include "pipeline/kernels_impl.h"

namespace nnue::data {

#if defined(NNUE_HAS_ISA_LEVELS) && !defined(__clang__)
#define NNUE_X86_BUILDS
extern const Kernels kKernelsAvx2, kKernelsAvx2Bmi2;
#endif

namespace {

constexpr Kernels kBaseline = kTable;

const Kernels& build_of(Isa isa) {
#if defined(NNUE_X86_BUILDS)
    if (isa == Isa::avx2) return kKernelsAvx2;
    if (isa == Isa::avx2_bmi2) return kKernelsAvx2Bmi2;
#endif
    static_cast<void>(isa);
    return kBaseline;
}

#if defined(NNUE_X86_BUILDS)
constexpr std::initializer_list<Isa> kCompiled = {Isa::baseline, Isa::avx2, Isa::avx2_bmi2};
#else
constexpr std::initializer_list<Isa> kCompiled = {Isa::baseline};
#endif

}  // namespace

std::span<const Kernels* const> all_kernels() {
    static const std::vector<const Kernels*> all = [] {
        std::vector<const Kernels*> list;
        for (const Isa isa : kCompiled) {
            if (cpu_has(isa)) list.push_back(&build_of(isa));
        }
        return list;
    }();
    return all;
}

const Kernels& kernels() {
    static const Kernels& chosen = build_of(choose_isa(kCompiled, "NNUE_DATA_ISA"));
    return chosen;
}

}  // namespace nnue::data
