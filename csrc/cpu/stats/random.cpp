// Operator random_fill on CPU, threads from torch's own pool; the contract is in random.h.

#include "../../random.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../vector.h"

namespace nnue::random {

constexpr int64_t kWords = 512;  // made at a time, a multiple of the words that the kernels make together

}  // namespace nnue::random

#define NNUE_KERNELS "stats/random_kernels.h"
#include "../for_each_isa.h"

namespace nnue::random {
namespace {

void random_fill_op(const Tensor& out, int64_t distribution, int64_t seed, int64_t stream, int64_t offset, double a,
                    double b, int64_t low, int64_t high, int64_t block) {
    const Rule rule = check_rule(out, Device::cpu, distribution, seed, stream, offset, a, b, low, high, block);
    dispatch(rule, out.scalar_type(), [&]<Distribution kind, int each, class T> {
        T* const to = mutable_data<T>(out);
        torch::stable::parallel_for(0, out.numel(), 1 << 12, [&](int64_t begin, int64_t end) {
            NNUE_CALL_BEST_ISA(fill<kind>, rule, begin, end, to, std::integral_constant<int, each>());
        });
    });
}

}  // namespace
}  // namespace nnue::random

STABLE_TORCH_LIBRARY_IMPL(nnue, CPU, m) {
    NNUE_IMPL(m, "random_fill", &nnue::random::random_fill_op);
}
