// Every operator schema of the library, namespace nnue, in one place.
//
// The kernels live in cpu/ and cuda/ and register themselves at the foot of their own file. Autograd, fake kernels and
// autocast are registered in nnue_trainer/ops.py. This file is part of the CPU library: it is loaded first, the CUDA
// library only adds implementations.

#include <torch/csrc/stable/library.h>

#include "build_info.h"

STABLE_TORCH_LIBRARY(nnue, m) {
    // Contracts: feature_transformer.h.
    m.def(
        "feature_transformer_forward(Tensor indices, Tensor? values, Tensor weight, Tensor bias, "
        "bool? deterministic=None) -> Tensor");
    m.def(
        "feature_transformer_backward(Tensor grad_output, Tensor indices, Tensor? values, Tensor? weight, "
        "int num_features, bool needs_weight_grad=True, bool needs_bias_grad=True, bool needs_values_grad=False, "
        "bool? deterministic=None, bool check_indices=True) -> (Tensor, Tensor, Tensor)");

    // Contracts: cuda/index_check.cuh.
    m.def("set_cuda_index_check(int mode) -> int");
    m.def("raise_cuda_index_errors() -> ()");
}

NNUE_BUILD_INFO("\"library\": \"cpu\"");
