// All operator schemas of training, namespace nnue, in one place; stats_library.cpp has those of statistics.
//
// The kernels live in cpu/ and cuda/, and each file registers its own at its end. Autograd, vmap, fake kernels and
// autocast are registered in Python: in nnue_trainer/ops/_*.py, and for the operators of both perspectives in
// nnue_trainer/ops/perspectives.py. This file is part of the CPU library, which is loaded first; the CUDA library only
// adds implementations.

#include <torch/csrc/stable/library.h>

#include "build_info.h"

// long: a list of schemas, one statement each.
STABLE_TORCH_LIBRARY(nnue, m) {
    // Contract: enumerations.h.
    m.def("enumerations() -> Tensor");

    // Contracts: feature_transformer.h.
    m.def(
        "feature_transformer_forward(Tensor indices, Tensor? values, Tensor weight, Tensor bias, "
        "bool? deterministic=None) -> Tensor");
    m.def(
        "feature_transformer_backward(Tensor grad_output, Tensor indices, Tensor? values, Tensor? weight, "
        "int num_features, bool[3] needs=[True, True, False], bool? deterministic=None, bool check_indices=True) -> "
        "(Tensor grad_weight, Tensor grad_bias, Tensor grad_values)");

    // Contracts: perspective_transformer.h.
    m.def(
        "_perspective_plan(Tensor white, Tensor black, Tensor black_to_move, int num_features, int bucket_size, "
        "int num_bucketed, int weight_bytes, bool check_indices=True) -> Tensor");
    m.def(
        "_perspective_transformer_forward(Tensor[] batch, Tensor weight, Tensor bias, Tensor? psqt, int[] transformer, "
        "float[] range, ScalarType output_dtype, bool save, Tensor? leaf=None, bool sparse_grad=False, "
        "bool psqt_apart=False, bool saved_alone=False) -> (Tensor output, Tensor psqt_output, Tensor saved)");
    m.def("_perspective_psqt(Tensor[] batch, Tensor psqt, int[] transformer, int begin, int end) -> Tensor");
    m.def(
        "_perspective_transformer_backward(Tensor grad_output, Tensor? grad_psqt, Tensor[] batch, Tensor saved, "
        "int[] transformer, float[] range, ScalarType weight_dtype) "
        "-> (Tensor grad_weight, Tensor grad_bias, Tensor grad_psqt)");
    m.def(
        "_perspective_transformer_backward_rows(Tensor grad_output, Tensor? grad_psqt, Tensor[] batch, Tensor saved, "
        "int[] transformer, float[] range, ScalarType weight_dtype) "
        "-> (Tensor rows, Tensor grad_rows, Tensor grad_bias, Tensor grad_psqt)");
    m.def(
        "_perspective_transformer_layout(int positions, int max_active, int num_features, int bucket_size, "
        "int num_bucketed, int weight_bytes) -> Tensor");

    // Contracts: capabilities.h.
    m.def("_kernel_reasons() -> Tensor");
    m.def("_describe_gpu(int device) -> (int capability, int multiprocessors, int code)");
    m.def(
        "_transformer_kernels(int[] machine, ScalarType weight_dtype, int num_features, int num_outputs, "
        "int bucket_size, int num_bucketed, ScalarType output_dtype, bool has_values=False, int mode=0) "
        "-> (int kernels, int reason)");
    m.def(
        "_stack_kernels(int[] machine, int inputs, int stacks, int[] hidden, float[] constants, float[] integers, "
        "ScalarType x_dtype, ScalarType weight_dtype, bool is_aligned, bool wide_sums, int mode) "
        "-> (int kernels, int reason)");
    m.def(
        "_layer_kernels(int[] machine, ScalarType x_dtype, ScalarType weight_dtype, int mode) -> (int kernels, int "
        "reason)");
    m.def(
        "_gradient_between(int transformer, int stacks, ScalarType trained_dtype, ScalarType output_dtype, "
        "int num_outputs, int hidden, int activation, float bound, bool has_psqt, bool divided, bool "
        "is_needed) -> (int kernels, int reason)");
    m.def("_row_update(int[] machine, int rows, int tensors, int positions) -> (int kernels, int reason)");
    m.def("_matrix_step(int[] machine, int rows, int columns) -> (int kernels, int reason)");

    // Contracts: expand_features.h.
    m.def(
        "expand_features(Tensor records, int feature_set, bool check_records=True) -> "
        "(Tensor white, Tensor black, Tensor counts, Tensor black_to_move, Tensor score, Tensor result, Tensor "
        "piece_count, Tensor material)");
    m.def("expand_features_into(Tensor records, int feature_set, Tensor(a!)[] fields, bool check_records=True) -> ()");

    m.def("name_feature_set(Tensor name) -> int");
    m.def("name_cuda_feature_set(Tensor name) -> int");
    m.def("add_feature_set(Tensor name, Tensor library) -> ()");
    m.def("add_cuda_feature_set(Tensor name, Tensor library, Tensor cuda_library) -> ()");

    // Contracts: optimizer.h.
    m.def("_optimizer_describe(Tensor device, int rule, float[] constants, float[] betas, float[] parts) -> int");
    m.def(
        "_optimizer_step(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] moments, Tensor(c!)[] copies, "
        "Tensor(d!)[] late, Tensor[] rows, Tensor(e!)[] state, Tensor loss, Tensor lr, Tensor[] also, "
        "int[] also_shared, Tensor? norm, int optimizer) -> ()");
    m.def("_optimizer_norm(Tensor[] gradients, int[] shared_rows, Tensor[] rows, Tensor numbers) -> Tensor");
    m.def("_optimizer_mark_rows(Tensor white, Tensor black, Tensor(a!) rows) -> ()");
    m.def(
        "_optimizer_catch_up(Tensor(a!)[] weights, Tensor(b!)[] moments, Tensor(c!)[] copies, Tensor(d!)[] late, "
        "Tensor[] rows, Tensor[] state, int[] parts, int optimizer) -> ()");

    // Contract: muon.h.
    m.def(
        "_optimizer_update_matrices(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] momenta, Tensor lr, "
        "Tensor[] state, float[] settings, float[] constants) -> ()");

    // Contracts: stacked_linear.h.
    m.def("_stacked_linear_forward(Tensor x, Tensor bucket, Tensor weight, Tensor bias) -> Tensor");
    m.def(
        "_stacked_linear_backward(Tensor grad_output, Tensor x, Tensor bucket, Tensor weight, bool needs_x_grad=True) "
        "-> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)");

    // Contracts: integers.h.
    m.def("_to_integers(Tensor[] parameters, int[] ranges, float[] scales, int[] limits) -> Tensor");
    m.def(
        "_to_integers_backward(Tensor[] gradients, Tensor[] parameters, int[] ranges, float[] scales, int[] limits) -> "
        "Tensor");

    // Contracts: layer_stacks.h.
    m.def("_stack_order(Tensor bucket, int num_stacks) -> Tensor");
    m.def("_layer_stacks_first(Tensor x, Tensor order, Tensor weight) -> Tensor");
    m.def(
        "_layer_stacks_forward(Tensor x, Tensor order, Tensor[] parameters, Tensor? psqt, int layers, "
        "bool is_sums=False) -> (Tensor output, Tensor sums)");
    m.def(
        "_layer_stacks_backward(Tensor grad_output, Tensor sums, Tensor order, Tensor[] parameters, int layers) -> "
        "(Tensor grad_sums, Tensor partials)");
    m.def(
        "_layer_stacks_loss(Tensor x, Tensor(a!) order, Tensor[] parameters, Tensor? psqt, Tensor[] targets, "
        "int layers, int loss, float[] constants, bool is_sums=False, int[] transformer=[], float[] range=[]) -> "
        "(Tensor totals, Tensor grad_sums, "
        "Tensor grad_output, Tensor partials)");
    m.def(
        "_layer_stacks_gradients(Tensor? x, Tensor order, Tensor[] parameters, Tensor? grad_sums, Tensor? partials, "
        "Tensor? grad_output, Tensor[] scales, int layers, ScalarType? grad_dtype, Tensor[] through, "
        "int[] transformer=[], float[] range=[], bool leaves_unused=False) -> (Tensor grad_x, Tensor grad_bias, "
        "Tensor grad_psqt, Tensor grad_weight, Tensor gradients)");
    m.def("_layer_stacks_add_shares(Tensor shares) -> (Tensor totals, Tensor gradients)");
    m.def("_layer_stacks_describe(int inputs, int stacks, int[] hidden, float[] constants, float[] integers) -> int");

    // Contracts: cuda/index_check.cuh.
    m.def("set_cuda_index_check(int mode) -> int");
    m.def("raise_cuda_index_errors() -> ()");
}

// Whether the CUDA library was built together with this one, or why not. `nnue info` prints it if there is no CUDA
// library.
#ifndef NNUE_CUDA_BUILD
#define NNUE_CUDA_BUILD unknown
#endif
NNUE_BUILD_INFO("\"library\": \"cpu\", \"cuda_build\": \"" NNUE_STRINGIZE(NNUE_CUDA_BUILD) "\"");
