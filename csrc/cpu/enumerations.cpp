// Operator enumerations: uint8 [n], the lines "operator.argument: word, word, …" of all choices among words; see
// enumerations.h.

#include "../enumerations.h"

#include <torch/csrc/stable/library.h>

#include "../capabilities.h"

namespace nnue {
namespace {

Tensor enumerations_op() {
    return text_tensor(
        line_of<CheckMode>("set_cuda_index_check.mode") + line_of<capabilities::Transformer>("kernels.transformer") +
        line_of<capabilities::Stacks>("kernels.stacks") + line_of<capabilities::Between>("kernels.between") +
        line_of<capabilities::Update>("kernels.update") + line_of<capabilities::Mode>("kernels.mode") +
        line_of<capabilities::MatrixStep>("kernels.matrix_step"));
}

}  // namespace
}  // namespace nnue

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "enumerations", &nnue::enumerations_op);
}
