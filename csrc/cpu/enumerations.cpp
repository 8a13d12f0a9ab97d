// Operator enumerations: uint8 [n], the lines "operator.argument: word, word, …" of all choices among words; see
// enumerations.h.

#include "../enumerations.h"

#include <torch/csrc/stable/library.h>

#include <string>

#include "../capabilities.h"
#include "../ewm.h"
#include "../random.h"
#include "../rolling.h"

namespace nnue {
namespace {

template <class E>
std::string line(const char* argument, E of = {}) {
    return std::string(argument) + ": " + words_of(of) + "\n";
}

Tensor enumerations_op() {
    return text_tensor(
        line<rolling::Statistic>("rolling.statistic") + line<rolling::Interpolation>("rolling_quantile.interpolation") +
        line<ewm::Statistic>("ewm.statistic") + line<random::Distribution>("random_fill.distribution") +
        line<CheckMode>("set_cuda_index_check.mode") + line<capabilities::Transformer>("kernels.transformer") +
        line<capabilities::Stacks>("kernels.stacks") + line<capabilities::Between>("kernels.between") +
        line<capabilities::Update>("kernels.update") + line<capabilities::Mode>("kernels.mode") +
        line<capabilities::MatrixStep>("kernels.matrix_step"));
}

}  // namespace
}  // namespace nnue

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "enumerations", &nnue::enumerations_op);
}
