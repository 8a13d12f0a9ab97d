// All operator schemas of statistics, in namespace nnue as those of library.cpp are. Their libraries, of
// cpu/stats/ and cuda/stats/, are loaded when nnue_trainer.stats is first used, and need nothing of the others.

#include <torch/csrc/stable/library.h>

#include "build_info.h"

STABLE_TORCH_LIBRARY_FRAGMENT(nnue, m) {
    // Contract: enumerations.h.
    m.def("stats_enumerations() -> Tensor");

    // Contracts: rolling.h.
    m.def(
        "rolling(Tensor x, Tensor? y, int statistic, int first, int length, int min_periods, float ddof=1.0) -> "
        "Tensor");
    m.def(
        "rolling_quantile(Tensor x, int first, int length, int min_periods, float quantile, int interpolation) -> "
        "Tensor");

    // Contract: ewm.h.
    m.def(
        "ewm(Tensor x, int statistic, float alpha, bool adjust=True, bool ignore_na=False, bool bias=False, "
        "int min_periods=0) -> Tensor");

    // Contract: random.h.
    m.def(
        "random_fill(Tensor(a!) out, int distribution, int seed, int stream, int offset, float a=0.0, float b=1.0, "
        "int low=0, int high=0, int block=0) -> ()");

    // Contracts: matrix.h.
    m.def("transpose(Tensor x) -> Tensor");
    m.def("row_norms(Tensor x, Tensor(a!)? sums, Tensor(b!)? roots, Tensor(c!)? largest) -> ()");

    // Contract: row_function.h.
    m.def("_row_function(Tensor x, Tensor(a!) out, int functions) -> ()");
    m.def("_row_function_of(Tensor[] rows, Tensor(a!) out, int functions) -> ()");

    // Contracts: graph.h.
    m.def("pack_bits(Tensor active) -> Tensor");
    m.def("bit_counts(Tensor a, Tensor? b=None) -> Tensor");
    m.def(
        "random_walks(Tensor offsets, Tensor targets, Tensor? thresholds, int first_round, int rounds, float restart, "
        "int seed, int stream=0) -> Tensor");
}

// Whether the CUDA library was built together with this one, as in library.cpp.
#ifndef NNUE_CUDA_BUILD
#define NNUE_CUDA_BUILD unknown
#endif
NNUE_BUILD_INFO("\"library\": \"stats_cpu\", \"cuda_build\": \"" NNUE_STRINGIZE(NNUE_CUDA_BUILD) "\"");
