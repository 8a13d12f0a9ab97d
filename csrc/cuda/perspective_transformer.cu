// The operators of perspective_transformer.h on CUDA: checks, and the choice between the two sets of kernels. The
// kernels themselves are elsewhere: those of compute capability 9.0 in hopper/, those of every GPU in portable/.
// setup.py builds hopper/ only into a library for 9.0.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../capabilities.h"
#include "../enumerations.h"
#include "../perspective_transformer.h"
#include "common.cuh"
#include "hopper/bucketed.cuh"
#include "index_check.cuh"
#include "perspective_transformer.cuh"
#include "portable/portable.cuh"

namespace nnue::perspective_transformer {
namespace {

using namespace nnue::cuda;

// A GPU and what this library has for it, without kPortableCode; capability 0 if there is no such GPU.
capabilities::Machine machine_of(int device) {
    using namespace capabilities;
    int major = 0, minor = 0, multiprocessors = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
        (void)cudaGetLastError();
        return {};
    }
    const int64_t code = kBuiltFor90 ? kLibrary | kHopperCode : kLibrary;
    return {10 * major + minor, multiprocessors, code, kPortableCode | kHopperCode};
}

// Fails because the kernels that bucket_size selects are not in this library.
[[noreturn]] void refuse(const char* op, PlanLayout layout, const std::string& where = "") {
    fail(op, "bucket_size", text(layout.bucket_size) + where + ", with a library for " NNUE_STRINGIZE(NNUE_CUDA_ARCHS),
         "0, which stands for the kernels of every GPU");
}

// The kernels that bucket_size selects.
const Kernels& kernels_of(const char* op, PlanLayout layout) {
    if (layout.bucket_size == 0) return portable::kKernels;
    if constexpr (kBuiltFor90)
        return bucketed::kKernels;
    else
        refuse(op, layout);
}

}  // namespace

void check_plan_arguments(const char* op, const Tensor& white, const Tensor& black, int64_t num_features,
                          PlanLayout layout) {
    check_index_rows(op, white, black, num_features, Device::cuda);
    const bool is_portable = layout.bucket_size == 0;
    if (is_portable || kBuiltFor90) kernels_of(op, layout).check_sizes(op, white, num_features, layout);
    if (is_portable) return;
    const capabilities::Machine machine = machine_of(white.get_device_index());
    if (!capabilities::has_hopper(machine)) {
        const int64_t capability = machine.capability;
        refuse(op, layout, " on a GPU of compute capability " + text(capability / 10) + "." + text(capability % 10));
    }
}

namespace {

Tensor plan_op(const Tensor& white_in, const Tensor& black_in, const Tensor& black_to_move_in, int64_t num_features,
               int64_t bucket_size, int64_t num_bucketed, int64_t weight_bytes, bool check_indices) {
    const PlanLayout layout{bucket_size, num_bucketed, weight_bytes};
    check_plan_arguments(kPlan, white_in, black_in, num_features, layout);
    check_black_to_move(black_to_move_in, white_in, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(white_in.get_device_index());
    const Tensor white = torch::stable::contiguous(white_in), black = torch::stable::contiguous(black_in),
                 black_to_move = torch::stable::contiguous(black_to_move_in);
    std::optional<IndexCheck> check;
    if (check_indices) {
        check.emplace(kPlan, std::initializer_list{const_data<int32_t>(white), const_data<int32_t>(black)},
                      white.size(0), white.size(1), num_features, white.get_device_index(), current_stream(white));
    }
    const Tensor plan = kernels_of(kPlan, layout).plan(white, black, black_to_move, num_features, layout);
    if (check) check->finish();
    return plan;
}

Batch contiguous_batch(const Batch& batch) {
    return {torch::stable::contiguous(batch.white), torch::stable::contiguous(batch.black), batch.plan,
            batch.psqt_bucket};
}

Three forward_op(std::vector<Tensor> batch_in, const Tensor& weight_in, const Tensor& bias_in,
                 const std::optional<Tensor>& psqt, std::vector<int64_t> transformer, std::vector<double> range,
                 ScalarType output_dtype, bool save, const std::optional<Tensor>& /*leaf*/, bool /*sparse_grad*/,
                 bool psqt_apart, bool saved_alone) {
    const Batch given = batch_of(kForward, batch_in);
    const Transformer of = transformer_of(kForward, transformer, range, kMultiple);
    check_parameters(weight_in, bias_in, of.sizes, given.white, Device::cuda);
    check_plan_arguments(kForward, given.white, given.black, of.sizes.num_features, of.layout);
    check_device(kForward, "plan", given.plan, Device::cuda, given.white, "white");
    if (psqt) {
        check_psqt(kForward, *psqt, given.psqt_bucket, given.white, of.sizes.num_features, Device::cuda);
        check_shape(kForward, "psqt", *psqt, {of.sizes.num_features, of.sizes.psqt_buckets}, "[F, P]");
    }
    const torch::stable::accelerator::DeviceGuard guard(weight_in.get_device_index());
    const Tensor weight = aligned(weight_in), bias = aligned(bias_in);
    const Batch batch = contiguous_batch(given);
    std::optional<ScalarType> out_dtype = check_float_dtype(kForward, "output_dtype", output_dtype);
    if (saved_alone &&
        (!save || of.layout.bucket_size == 0 || of.layout.weight_bytes != 2 || of.activation == Activation::kIdentity))
        fail(kForward, "saved_alone", "a call that it does not fit",
             "save, 16-bit weights, king buckets and an activation");
    if (saved_alone) out_dtype = std::nullopt;
    const std::optional<Tensor> columns = psqt_apart ? std::nullopt : psqt;
    auto [output, psqt_output, saved] =
        kernels_of(kForward, of.layout)
            .forward(batch, of.layout, weight, bias, columns, of.activation, of.range, out_dtype, save);
    if (psqt && psqt_apart) psqt_output = torch::stable::new_empty(bias, {given.white.size(0)}, ScalarType::Float);
    return {output, psqt_output, saved};
}

}  // namespace

Three backward(const OutputGradients& given, const Batch& batch_in, const Transformer& of, const Tensor& saved_in,
               ScalarType weight_dtype) {
    const char* const op = given.op;
    const char* const output_name = given.factors ? "weight_0" : "grad_output";
    const Tensor& white_in = batch_in.white;
    check_plan_arguments(op, white_in, batch_in.black, of.sizes.num_features, of.layout);
    for (const auto& [name, tensor] :
         {std::pair{output_name, &given.output}, {"plan", &batch_in.plan}, {"saved", &saved_in}}) {
        check_device(op, name, *tensor, Device::cuda, white_in, "white");
    }
    const ScalarType dtype = check_float_dtype(op, "weight_dtype", weight_dtype);
    Sizes sizes = of.sizes;
    if (!given.psqt) sizes.psqt_buckets = 0;
    if (sizes.psqt_buckets != 0)
        check_grad_psqt(op, given.psqt, batch_in.psqt_bucket, white_in, sizes.psqt_buckets, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(white_in.get_device_index());
    const int64_t positions = white_in.size(0), width = output_width(of.activation, sizes.num_outputs);
    std::optional<Factors> factors = given.factors;
    // Row gradients, which only the kernels of 9.0 have.
    const bool rows_are_made = given.output.scalar_type() == ScalarType::Byte && of.layout.bucket_size != 0 && !factors;
    if (factors) {
        check_shape(op, output_name, given.output, {-1, 1, width}, "[S, 1, 2 W]");
        if (given.output.size(0) < 1) fail(op, output_name, "no stack", "at least one");
        check_by_position(op, "grad_output", factors->gradient, {ScalarType::Float}, white_in, Device::cuda);
        check_by_position(op, "bucket", factors->stack, {ScalarType::Long}, white_in, Device::cuda);
        factors = Factors{torch::stable::contiguous(factors->gradient), torch::stable::contiguous(factors->stack)};
    } else if (!rows_are_made) {
        check_shape(op, "grad_output", given.output, {positions, width}, "[B, 2 W]");
    }
    if ((dtype == ScalarType::Float && !rows_are_made) || factors)
        check_dtype(op, output_name, given.output, {ScalarType::Float});
    const OutputGradients gradients{op, aligned(given.output), factors, given.psqt, given.leaves_unused};
    const Tensor saved = aligned(saved_in);
    const Batch batch = contiguous_batch(batch_in);
    return kernels_of(op, of.layout)
        .backward(gradients, batch, of.layout, saved, sizes, of.activation, of.range, dtype);
}

namespace {

Three backward_op(const Tensor& grad_output, const std::optional<Tensor>& grad_psqt, std::vector<Tensor> batch,
                  const Tensor& saved, std::vector<int64_t> transformer, std::vector<double> range,
                  ScalarType weight_dtype) {
    check_float(kBackward, "grad_output", grad_output);
    const Transformer of = transformer_of(kBackward, transformer, range, kMultiple);
    return backward({kBackward, grad_output, std::nullopt, grad_psqt}, batch_of(kBackward, batch), of, saved,
                    weight_dtype);
}

Tensor psqt_op(std::vector<Tensor> batch_in, const Tensor& psqt, std::vector<int64_t> transformer, int64_t begin,
               int64_t end) {
    const Batch given = batch_of(kPsqt, batch_in);
    const Transformer of = transformer_of(kPsqt, transformer, {1.0, 1.0}, kMultiple);
    check_plan_arguments(kPsqt, given.white, given.black, of.sizes.num_features, of.layout);
    check_device(kPsqt, "plan", given.plan, Device::cuda, given.white, "white");
    check_psqt(kPsqt, psqt, given.psqt_bucket, given.white, of.sizes.num_features, Device::cuda);
    if (begin < 0 || begin > end || end > given.white.size(0))
        fail(kPsqt, "begin", text(begin) + " and end " + text(end),
             "0 <= begin <= end <= B = " + text(given.white.size(0)));
    const torch::stable::accelerator::DeviceGuard guard(given.white.get_device_index());
    const Batch batch = contiguous_batch(given);
    return kernels_of(kPsqt, of.layout).psqt_output(batch, of.layout, psqt, {begin, end});
}

// Where the pieces of a plan lie, and how many rows `saved` has, as JSON: {"slots": rows of saved, "plan": {"bytes": …,
// "pieces": {name: [begin, bytes], …}}}.
Tensor layout_op(int64_t positions, int64_t max_active, int64_t num_features, int64_t bucket_size, int64_t num_bucketed,
                 int64_t weight_bytes) {
    const PlanLayout layout{bucket_size, num_bucketed, weight_bytes};
    const Kernels& kernels = kernels_of("_perspective_transformer_layout", layout);
    return text_tensor(kernels.layout_text(positions, max_active, num_features, layout));
}

// The properties of a GPU that capabilities.h takes; capability 0 if there is no GPU. A GPU that runs code for 7.5 has
// the limits of 7.5, whatever it is.
std::tuple<int64_t, int64_t, int64_t> describe_op(int64_t device) {
    capabilities::Machine machine = machine_of(static_cast<int>(device));
    if (machine.capability >= capabilities::kOldestGpu) {
        const int code = portable::code_for(static_cast<int>(device));
        if (code != 0) machine.code |= capabilities::kPortableCode;
        if (code != 0 && code < 80) machine.capability = code;
    }
    return {machine.capability, machine.multiprocessors, machine.code};
}

}  // namespace
}  // namespace nnue::perspective_transformer

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "_perspective_plan", &nnue::perspective_transformer::plan_op);
    NNUE_IMPL(m, "_perspective_transformer_forward", &nnue::perspective_transformer::forward_op);
    NNUE_IMPL(m, "_perspective_transformer_backward", &nnue::perspective_transformer::backward_op);
    NNUE_IMPL(m, "_perspective_psqt", &nnue::perspective_transformer::psqt_op);
}

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "_describe_gpu", &nnue::perspective_transformer::describe_op);
    NNUE_IMPL(m, "_perspective_transformer_layout", &nnue::perspective_transformer::layout_op);
}
