// Compiles one kernel file once for every instruction set level, and picks the best level of the machine at run time.
//
// A .cpp file sets NNUE_KERNELS to a header that has no include guard and includes nothing, and then includes this
// file. The functions of the header then exist in nnue::baseline, nnue::avx2 and nnue::avx512 (on other processors only
// in the first). Everything else is included before, so that no shared inline function is compiled for a level that the
// machine may lack. NNUE_VECTOR_BYTES is the width of the level's registers. Kernels keep the order of each sum for
// every width, so that every level computes the same bits.

#include "base/isa.h"

#if NNUE_COMPILES_ISA(0)
#define NNUE_VECTOR_BYTES 16
namespace nnue::baseline {
#include NNUE_KERNELS
}  // namespace nnue::baseline
#undef NNUE_VECTOR_BYTES
#endif

#ifdef NNUE_HAS_ISA_LEVELS

#if NNUE_COMPILES_ISA(1)

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi2,fma")
#endif
#define NNUE_VECTOR_BYTES 32
namespace nnue::avx2 {
#include NNUE_KERNELS
}  // namespace nnue::avx2
#undef NNUE_VECTOR_BYTES
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#if NNUE_COMPILES_ISA(3)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define NNUE_VECTOR_BYTES 64
namespace nnue::avx512 {
#include NNUE_KERNELS
}  // namespace nnue::avx512
#undef NNUE_VECTOR_BYTES
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#endif  // NNUE_HAS_ISA_LEVELS

namespace nnue {

// NNUE_CPU_ISA=baseline, avx2 or avx512 requests another level, for tests.
inline Isa best_isa() {
#ifdef NNUE_HAS_ISA_LEVELS
    static const Isa isa = choose_isa({Isa::baseline, Isa::avx2, Isa::avx512}, "NNUE_CPU_ISA");
    return isa;
#else
    return Isa::baseline;
#endif
}

// The lowest level that is compiled.
#if NNUE_COMPILES_ISA(0)
namespace lowest = baseline;
#elif NNUE_COMPILES_ISA(1)
namespace lowest = avx2;
#else
namespace lowest = avx512;
#endif

}  // namespace nnue

// Calls the FUNCTION of the best level with the arguments.
#ifdef NNUE_ONLY_ISA
#define NNUE_CALL_BEST_ISA(FUNCTION, ...) (::nnue::check_only_isa(), ::nnue::lowest::FUNCTION(__VA_ARGS__))
#elif defined(NNUE_HAS_ISA_LEVELS)
#define NNUE_CALL_BEST_ISA(FUNCTION, ...)                                              \
    (::nnue::best_isa() == ::nnue::Isa::avx512 ? ::nnue::avx512::FUNCTION(__VA_ARGS__) \
     : ::nnue::best_isa() == ::nnue::Isa::avx2 ? ::nnue::avx2::FUNCTION(__VA_ARGS__)   \
                                               : ::nnue::baseline::FUNCTION(__VA_ARGS__))
#else
#define NNUE_CALL_BEST_ISA(FUNCTION, ...) ::nnue::baseline::FUNCTION(__VA_ARGS__)
#endif
