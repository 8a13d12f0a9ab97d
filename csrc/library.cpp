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

    // Contracts: perspective_transformer.h.
    m.def(
        "perspective_rows(Tensor white, Tensor black, Tensor black_to_move, int num_features, int block_size, "
        "int num_blocked, bool near_lists=True) -> Tensor");
    m.def(
        "perspective_transformer_forward(Tensor white, Tensor black, Tensor rows, Tensor weight, Tensor bias, "
        "Tensor? psqt, Tensor? bucket, int block_size, int num_blocked, int activation, float bound, float scale, "
        "int output_dtype, bool save) -> (Tensor output, Tensor psqt_output, Tensor saved, "
        "Tensor lists)");
    m.def(
        "perspective_transformer_backward(Tensor grad_output, Tensor? grad_psqt, Tensor white, Tensor black, "
        "Tensor rows, Tensor saved, Tensor lists, Tensor? bucket, int num_features, int num_outputs, "
        "int psqt_buckets, int block_size, int num_blocked, int activation, float bound, float scale, int "
        "weight_dtype) "
        "-> (Tensor grad_weight, Tensor grad_bias, Tensor grad_psqt)");
    m.def("perspective_transformer_available(int device) -> bool");

    // Contracts: expand_features.h.
    m.def(
        "expand_features(Tensor records, int feature_set, bool check_records=True) -> "
        "(Tensor white, Tensor black, Tensor counts, Tensor black_to_move, Tensor score, Tensor result, Tensor "
        "piece_count)");
    m.def(
        "expand_features_into(Tensor records, int feature_set, Tensor(a!) white, Tensor(b!) black, "
        "Tensor(c!) counts, Tensor(d!) black_to_move, Tensor(e!) score, Tensor(f!) result, Tensor(g!) piece_count, "
        "bool check_records=True) -> ()");

    // Contracts: cuda/index_check.cuh.
    m.def("set_cuda_index_check(int mode) -> int");
    m.def("raise_cuda_index_errors() -> ()");
}

NNUE_BUILD_INFO("\"library\": \"cpu\"");
