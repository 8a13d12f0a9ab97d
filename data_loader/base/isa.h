// Instruction sets: the levels that code is compiled for, which of them this CPU has, and which one is used.
//
// Hot loops are compiled for several levels: in the data library each level is a separate translation unit
// (pipeline/kernels*.cpp), the CPU operators have all levels in one (csrc/cpu/for_each_isa.h). Both choose here.
//
// With NNUE_ONLY_ISA, an integer of enum Isa, only that level is compiled (setup.py: NNUE_ISA=native).
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#ifdef NNUE_ONLY_ISA
#define NNUE_COMPILES_ISA(NUMBER) (NNUE_ONLY_ISA == (NUMBER))
#else
#define NNUE_COMPILES_ISA(NUMBER) 1
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define NNUE_HAS_ISA_LEVELS 1
#endif

namespace nnue {

// In ascending order: a CPU that has one has those before it, except for avx2_bmi2, which avx512 does not require.
enum class Isa {
    baseline,   // any CPU
    avx2,       // AVX2, FMA, BMI 1 and 2
    avx2_bmi2,  // the same where PEXT and PDEP are fast: AMD's Zen 1 and 2 have them in microcode, at hundreds of
                // cycles
    avx512,     // F, BW, DQ, VL
};

constexpr const char* isa_name(Isa isa) {
    constexpr const char* kNames[] = {"baseline", "avx2", "avx2_bmi2", "avx512"};
    return kNames[static_cast<int>(isa)];
}

inline bool cpu_has(Isa isa) {
    if (isa == Isa::baseline) return true;
#ifdef NNUE_HAS_ISA_LEVELS
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt") &&
                      __builtin_cpu_supports("fma");
    switch (isa) {
        case Isa::avx2:
            return avx2;
        case Isa::avx2_bmi2:
            return avx2 && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
        case Isa::avx512:
            return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        default:
            break;
    }
#endif
    return false;
}

// The last of the levels `compiled` that this CPU has; or that which the environment variable names, if the CPU has it.
inline Isa choose_isa(std::initializer_list<Isa> compiled, const char* variable) {
    const char* value = std::getenv(variable);
    const std::string_view wanted = value ? value : "";
    Isa best = Isa::baseline;
    for (const Isa isa : compiled) {
        if (!cpu_has(isa)) continue;
        best = isa;
        if (wanted == isa_name(isa)) break;
    }
    return best;
}

#ifdef NNUE_ONLY_ISA
// The folder may have been built on another machine.
inline void check_only_isa() {
    constexpr auto kOnly = static_cast<Isa>(NNUE_ONLY_ISA);
    static const bool usable = cpu_has(kOnly);
    if (!usable)
        throw std::runtime_error(std::string("the native parts were built for ") + isa_name(kOnly) +
                                 " only, which this CPU lacks: run make build");
}
#endif

}  // namespace nnue
