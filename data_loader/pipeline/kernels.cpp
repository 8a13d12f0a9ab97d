// The hot loops for any CPU, and the choice among the builds.
#include "pipeline/kernels.h"

#include <vector>

#include "base/isa.h"

#if NNUE_COMPILES_ISA(0)
#include "pipeline/kernels_impl.h"
#endif

namespace nnue::data {

#if defined(NNUE_HAS_ISA_LEVELS) && !defined(__clang__)
extern const Kernels kKernelsAvx2, kKernelsAvx2Bmi2;
#define NNUE_COMPILES_X86(NUMBER) NNUE_COMPILES_ISA(NUMBER)
#else
#define NNUE_COMPILES_X86(NUMBER) 0
#endif

namespace {

const Kernels& build_of(Isa isa) {
#if NNUE_COMPILES_X86(1)
    if (isa == Isa::avx2) return kKernelsAvx2;
#endif
#if NNUE_COMPILES_X86(2)
    if (isa == Isa::avx2_bmi2) return kKernelsAvx2Bmi2;
#endif
#if NNUE_COMPILES_ISA(0)
    if (isa == Isa::baseline) return kTable;
#endif
    throw std::logic_error(std::string("no kernels are compiled for ") + isa_name(isa));
}

constexpr std::initializer_list<Isa> kCompiled = {
#if NNUE_COMPILES_ISA(0)
    Isa::baseline,
#endif
#if NNUE_COMPILES_X86(1)
    Isa::avx2,
#endif
#if NNUE_COMPILES_X86(2)
    Isa::avx2_bmi2,
#endif
};

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
#ifdef NNUE_ONLY_ISA
    check_only_isa();
#endif
    static const Kernels& chosen = build_of(choose_isa(kCompiled, "NNUE_DATA_ISA"));
    return chosen;
}

}  // namespace nnue::data
