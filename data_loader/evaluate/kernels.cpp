#include "evaluate/kernels.h"

#include "evaluate/kernels_impl.h"

namespace nnue::data {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NNUE_X86_BUILDS
extern const EvaluateKernels kEvaluateAvx2;
#endif

const EvaluateKernels& evaluate_kernels([[maybe_unused]] std::string_view isa) {
    static constexpr EvaluateKernels baseline = kEvaluateTable;
#if defined(NNUE_X86_BUILDS)
    if (isa.starts_with("avx2")) return kEvaluateAvx2;  // PEXT and PDEP make no difference here
#endif
    return baseline;
}

}  // namespace nnue::data
