// Operator stats_enumerations: the table of the operators of statistics, as ../enumerations.cpp gives that of training.

#include "../../enumerations.h"

#include <torch/csrc/stable/library.h>

#include "../../ewm.h"
#include "../../random.h"
#include "../../rolling.h"

namespace nnue {
namespace {

Tensor stats_enumerations_op() {
    return text_tensor(line_of<rolling::Statistic>("rolling.statistic") +
                       line_of<rolling::Interpolation>("rolling_quantile.interpolation") +
                       line_of<ewm::Statistic>("ewm.statistic") +
                       line_of<random::Distribution>("random_fill.distribution"));
}

}  // namespace
}  // namespace nnue

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "stats_enumerations", &nnue::stats_enumerations_op);
}
