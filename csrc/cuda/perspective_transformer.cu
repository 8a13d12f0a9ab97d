// The operators of perspective_transformer.h on CUDA. Tensors are checked here. Where bucket_size is 0 the portable
// kernels do the rest (portable/portable.cu). Otherwise tensors are taken apart here as well, and the kernels of the
// headers below, for compute capability 9.0, are launched on torch's current stream or on a fork of it.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../build_info.h"
#include "../perspective_transformer.h"
#include "backward_wgmma.cuh"
#include "common.cuh"
#include "forward_gather_fp32.cuh"
#include "forward_wgmma_16bit.cuh"
#include "index_check.cuh"
#include "perspective_transformer.cuh"
#include "portable/portable.cuh"
#include "psqt.cuh"
#include "side_stream.cuh"
#include "unbucketed_backward_mma.cuh"
#include "unbucketed_forward_gather_fp32.cuh"
#include "unbucketed_forward_wgmma_16bit.cuh"

namespace nnue::perspective_transformer {
namespace {

using namespace nnue::cuda;

struct Capability {
    int major = 0, minor = 0;
};

Capability capability_of(int device) {
    Capability found;
    if (cudaDeviceGetAttribute(&found.major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&found.minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        (void)cudaGetLastError();
        return {};
    }
    return found;
}

// Whether bucket_size asks for the portable kernels.
bool is_portable(int64_t bucket_size) {
    return bucket_size == 0;
}

// Checks what the CUDA kernels require beyond the contract of every device.
void check_plan_arguments(const char* op, const Tensor& white, const Tensor& black, int64_t num_features,
                          int64_t bucket_size, int64_t num_bucketed) {
    check_index_rows(op, white, black, num_features, Device::cuda);
    if (is_portable(bucket_size)) return portable::check_sizes(op, white);
    if (bucket_size < 0 || bucket_size > 768) fail(op, "bucket_size", bucket_size, "0 <= bucket_size <= 768");
    const auto [major, minor] = capability_of(white.get_device_index());
    if (major != 9 || minor != 0) {
        fail(op, "bucket_size",
             text(bucket_size) + " on a GPU of compute capability " + text(major) + "." + text(minor),
             "0, which stands for the kernels of every GPU");
    }
    if (num_bucketed < 0 || num_bucketed > num_features) {
        fail(op, "num_bucketed", num_bucketed, "0 <= num_bucketed <= F = " + text(num_features));
    }
    const int64_t buckets = divide_up(num_bucketed, bucket_size);
    if (buckets > 255) fail(op, "bucket_size", text(buckets) + " buckets", "at most 255");
    const int64_t slots = 2 * white.size(0) + 64 * (buckets + 1);
    if (num_bucketed < num_features &&
        (slots >= 1 << 27 ||
         slots * std::max<int64_t>(white.size(1), 1) + 3 * (num_features - num_bucketed) >= (int64_t(1) << 32))) {
        fail(op, "white", shape_text(white.sizes()), "2 B < 2^27 and 2 B K < 2^32 where there are unbucketed features");
    }
    if (num_features - num_bucketed >= int64_t(1) << 24) fail(op, "F", num_features, "F - num_bucketed < 2^24");
}

// Index rows as far as sizes go.
IndexRows sizes_of_rows(int64_t positions, int64_t max_active, int64_t num_features, int64_t bucket_size,
                        int64_t num_bucketed) {
    IndexRows in{};
    in.positions = static_cast<int>(positions);
    in.max_active = static_cast<int>(max_active);
    in.num_bucketed = static_cast<int>(num_bucketed);
    in.num_unbucketed = static_cast<int>(num_features - num_bucketed);
    in.bucket_size = static_cast<int>(bucket_size);
    in.num_buckets = static_cast<int>(std::max<int64_t>(1, divide_up(num_bucketed, bucket_size)));
    return in;
}

IndexRows index_rows(const Tensor& white, const Tensor& black, int64_t num_features, int64_t bucket_size,
                     int64_t num_bucketed) {
    IndexRows in = sizes_of_rows(white.size(0), white.size(1), num_features, bucket_size, num_bucketed);
    in.white = const_data<int32_t>(white);
    in.black = const_data<int32_t>(black);
    return in;
}

// The contents of what perspective_plan makes.
struct Plan {
    BucketPlan buckets;
    RowOrder* order;
};

Plan carve_plan(Carver& carver, const IndexRows& in) {
    const BucketPlan buckets = carve_bucket_plan(carver, in);
    return {buckets, carve_row_order(carver, in)};
}

Plan open_plan(const char* op, const Tensor& plan, const IndexRows& in) {
    return open_tensor(op, "plan", plan, carve_plan, in, kMadeByPlan);
}

UnbucketedLists open_lists(const char* op, const Tensor& lists, const IndexRows& in) {
    return open_tensor(op, "lists", lists, carve_unbucketed_lists, in, "what the forward saved");
}

int64_t slots(const IndexRows& in) {
    return int64_t(BucketPlan::tiles(in.positions, in.num_buckets)) * kTileRows;
}

Tensor bucket_plan_of(const Tensor& white, const Tensor& black, const Tensor& black_to_move, int64_t num_features,
                      int64_t bucket_size, int64_t num_bucketed, cudaStream_t stream) {
    IndexRows in = index_rows(white, black, num_features, bucket_size, num_bucketed);
    in.black_to_move = const_data<uint8_t>(black_to_move);
    Tensor plan = memory_for(carve_plan, in, white);
    if (in.positions == 0) return plan;
    const auto [buckets, order] = open_plan(kPlan, plan, in);
    check_cuda(bucket_plan::place(in, buckets, order, stream), kPlan);
    return plan;
}

Tensor plan_op(const Tensor& white_in, const Tensor& black_in, const Tensor& black_to_move_in, int64_t num_features,
               int64_t bucket_size, int64_t num_bucketed) {
    check_plan_arguments(kPlan, white_in, black_in, num_features, bucket_size, num_bucketed);
    check_black_to_move(black_to_move_in, white_in, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(white_in.get_device_index());
    const Tensor white = torch::stable::contiguous(white_in), black = torch::stable::contiguous(black_in),
                 black_to_move = torch::stable::contiguous(black_to_move_in);
    const cudaStream_t stream = current_stream(white);
    const int device = white.get_device_index();
    const int64_t positions = white.size(0), max_active = white.size(1);
    IndexCheck white_check(kPlan, const_data<int32_t>(white), positions, max_active, num_features, device, stream);
    IndexCheck black_check(kPlan, const_data<int32_t>(black), positions, max_active, num_features, device, stream);
    Tensor plan = is_portable(bucket_size)
                      ? portable::plan(white, black, black_to_move, num_features)
                      : bucket_plan_of(white, black, black_to_move, num_features, bucket_size, num_bucketed, stream);
    white_check.finish();
    black_check.finish();
    return plan;
}

psqt::Problem psqt_problem(const IndexRows& in, const BucketPlan& plan, const Tensor& psqt_bucket,
                           int64_t psqt_buckets) {
    return {in, plan, const_data<int64_t>(psqt_bucket), in.num_bucketed + in.num_unbucketed,
            static_cast<int>(psqt_buckets)};
}

Tensor psqt_forward(const IndexRows& in, const BucketPlan& plan, const Tensor& psqt_in, const Tensor& psqt_bucket_in,
                    cudaStream_t stream) {
    const Tensor psqt = torch::stable::contiguous(psqt_in), psqt_bucket = torch::stable::contiguous(psqt_bucket_in);
    if (psqt.size(1) > INT32_MAX) fail(kForward, "psqt", "P = " + text(psqt.size(1)), "P < 2^31");
    Tensor out = torch::stable::new_empty(psqt, {in.positions});
    Check check(
        kForward, psqt.get_device_index(), stream,
        [](const Finding& found) { fail_psqt_bucket(found.op, found.row, found.value, found.num_features); },
        psqt.size(1));
    psqt::launch_forward(psqt_problem(in, plan, psqt_bucket, psqt.size(1)), const_data<float>(psqt),
                         mutable_data<float>(out), check.sink(), stream);
    check.finish();
    return out;
}

Tensor psqt_backward(const IndexRows& in, const BucketPlan& plan, const Tensor& grad_in, const Tensor& psqt_bucket_in,
                     int64_t psqt_buckets, cudaStream_t stream) {
    const Tensor grad = torch::stable::contiguous(grad_in), psqt_bucket = torch::stable::contiguous(psqt_bucket_in);
    Tensor grad_psqt = torch::stable::new_empty(grad, {in.num_bucketed + in.num_unbucketed, psqt_buckets});
    if (in.positions == 0) {  // there are no tiles
        check_cuda(cudaMemsetAsync(mutable_data<float>(grad_psqt), 0, grad_psqt.numel() * sizeof(float), stream),
                   "memset");
        return grad_psqt;
    }
    const size_t bytes = psqt::carve_scratch(nullptr, grad_psqt.numel(), nullptr);
    const Tensor memory = torch::stable::new_empty(grad, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
    psqt::Scratch scratch;
    psqt::carve_scratch(mutable_data<char>(memory), grad_psqt.numel(), &scratch);
    psqt::launch_backward(psqt_problem(in, plan, psqt_bucket, psqt_buckets), const_data<float>(grad),
                          mutable_data<float>(grad_psqt), scratch, stream);
    return grad_psqt;
}

// The lists of unbucketed features, which only the backward needs, are made beside the forward.
template <class Weight>
cudaError_t run_unbucketed_forward(const ForwardProblem& p, const UnbucketedLists* lists, cudaStream_t stream) {
    const auto forward = [&] {
        if constexpr (sizeof(Weight) == 2)
            return unbucketed_forward_product::forward<Weight>(p, stream);
        else
            return unbucketed_forward_gather::forward(p, stream);
    };
    if (lists == nullptr) return forward();
    Fork fork(stream);
    if (fork.ok() != cudaSuccess) return fork.ok();
    cudaError_t error = forward();
    if (error == cudaSuccess) error = unbucketed_lists::build(p.in, p.plan, p.order, *lists, fork.stream());
    const cudaError_t joined = fork.join();
    return error == cudaSuccess ? joined : error;
}

template <class Weight>
cudaError_t run_forward(const ForwardProblem& p, const UnbucketedLists* lists, cudaStream_t stream) {
    if (p.in.num_unbucketed > 0) return run_unbucketed_forward<Weight>(p, lists, stream);
    if constexpr (sizeof(Weight) == 2) {
        return one_hot_product::forward<Weight>(p, stream);
    } else {
        return forward_gather::forward(p, stream);
    }
}

Four forward_op(std::vector<Tensor> batch, std::vector<int64_t> buckets, const Tensor& weight_in, const Tensor& bias_in,
                const std::optional<Tensor>& psqt, const std::string& activation, std::vector<double> bound_and_scale,
                const std::string& output_dtype, bool save) {
    const auto [white_in, black_in, plan, psqt_bucket] = batch_of(kForward, batch);
    const auto [bucket_size, num_bucketed] = buckets_of(kForward, buckets);
    const auto [bound, scale] = range_of(kForward, bound_and_scale);
    check_parameters(weight_in, bias_in, white_in, Device::cuda);
    const int64_t num_features = weight_in.size(0), num_outputs = weight_in.size(1);
    check_plan_arguments(kForward, white_in, black_in, num_features, bucket_size, num_bucketed);
    check_device(kForward, "plan", plan, Device::cuda, white_in, "white");
    if (psqt) check_psqt(*psqt, psqt_bucket, white_in, num_features, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(weight_in.get_device_index());
    const Tensor white = torch::stable::contiguous(white_in), black = torch::stable::contiguous(black_in),
                 weight = aligned(weight_in), bias = aligned(bias_in);
    const cudaStream_t stream = current_stream(weight);
    const Float weight_type = float_type(kForward, "weight", weight.scalar_type());
    const ScalarType out_dtype = float_dtype(kForward, "output_dtype", output_dtype);
    const Activation kind = check_activation(kForward, activation, num_outputs, kMultiple);
    if (is_portable(bucket_size)) {
        return portable::forward({white, black, plan, psqt_bucket}, weight, bias, psqt, kind, {bound, scale}, out_dtype,
                                 save);
    }

    ForwardProblem p{};
    p.in = index_rows(white, black, num_features, bucket_size, num_bucketed);
    const Plan open = open_plan(kForward, plan, p.in);
    p.plan = open.buckets;
    p.order = open.order;
    p.num_outputs = static_cast<int>(num_outputs);
    p.activation = kind;
    p.bound = bound;
    p.scale = scale;
    p.out_type = float_type(kForward, "output_dtype", out_dtype);
    Tensor out = torch::stable::new_empty(weight, {p.in.positions, output_width(p.activation, num_outputs)}, out_dtype);
    // The gradient of the identity needs no sums.
    const bool saves = save && p.activation != Activation::kIdentity;
    Tensor saved = torch::stable::new_empty(weight, {saves ? slots(p.in) : 0, num_outputs},
                                            weight_type == Float::kFloat32 ? ScalarType::Float : ScalarType::Half);
    const bool makes_lists = save && p.in.num_unbucketed > 0;
    Tensor lists =
        torch::stable::new_empty(white, {makes_lists ? bytes_of(carve_unbucketed_lists, p.in) : 0}, ScalarType::Byte);
    Tensor psqt_out = psqt ? psqt_forward(p.in, p.plan, *psqt, *psqt_bucket, stream)
                           : torch::stable::new_empty(weight, {0}, ScalarType::Float);
    if (p.in.positions == 0) return {out, psqt_out, saved, lists};
    p.weight = weight.const_data_ptr();
    p.bias = const_data<float>(bias);
    p.out = out.mutable_data_ptr();
    p.saved = saves ? saved.mutable_data_ptr() : nullptr;
    const bool wants_tile_features = weight_type != Float::kFloat32 && p.in.num_unbucketed > 0;
    const Tensor scratch = torch::stable::new_empty(
        white, {wants_tile_features ? bytes_of(carve_tile_features, p.in) : 0}, ScalarType::Byte);
    Carver carver{static_cast<char*>(scratch.mutable_data_ptr())};
    if (wants_tile_features) p.tile_features = carve_tile_features(carver, p.in);
    std::optional<UnbucketedLists> unbucketed;
    if (makes_lists) unbucketed = open_lists(kForward, lists, p.in);
    const auto run = weight_type == Float::kFloat32   ? run_forward<float>
                     : weight_type == Float::kFloat16 ? run_forward<__half>
                                                      : run_forward<__nv_bfloat16>;
    check_cuda(run(p, unbucketed ? &*unbucketed : nullptr, stream), kForward);
    return {out, psqt_out, saved, lists};
}

template <class Weight, class Grad>
cudaError_t run_backward(const BackwardProblem& p, cudaStream_t stream) {
    constexpr auto kUnbucketed = [](const BackwardProblem& problem, cudaStream_t on) {
        constexpr int kParts = sizeof(Weight) == 4 ? 2 : 1;
        return problem.in.num_unbucketed == 0 ? cudaSuccess : unbucketed_gradient::run<kParts>(problem, on);
    };
    switch (p.activation) {
        case Activation::kIdentity:
            return one_hot_product::backward<Weight, Grad, Activation::kIdentity>(p, stream, kUnbucketed);
        case Activation::kCReLU:
            return one_hot_product::backward<Weight, Grad, Activation::kCReLU>(p, stream, kUnbucketed);
        case Activation::kSCReLU:
            return one_hot_product::backward<Weight, Grad, Activation::kSCReLU>(p, stream, kUnbucketed);
        default:
            return one_hot_product::backward<Weight, Grad, Activation::kPairwise>(p, stream, kUnbucketed);
    }
}

template <class Weight>
cudaError_t run_backward_16(const BackwardProblem& p, cudaStream_t stream) {
    return p.grad_type == Float::kFloat32 ? run_backward<Weight, float>(p, stream)
                                          : run_backward<Weight, uint16_t>(p, stream);
}

Three backward_op(const Tensor& grad_output_in, const std::optional<Tensor>& grad_psqt_in, std::vector<Tensor> batch,
                  std::vector<int64_t> buckets, std::vector<Tensor> kept, std::vector<int64_t> sizes,
                  const std::string& activation, std::vector<double> bound_and_scale, const std::string& weight_dtype) {
    const auto [white_in, black_in, plan, psqt_bucket] = batch_of(kBackward, batch);
    const auto [bucket_size, num_bucketed] = buckets_of(kBackward, buckets);
    const auto [saved_in, lists] = kept_of(kept);
    const auto [num_features, num_outputs, psqt_buckets] = sizes_of(sizes);
    const auto [bound, scale] = range_of(kBackward, bound_and_scale);
    check_plan_arguments(kBackward, white_in, black_in, num_features, bucket_size, num_bucketed);
    BackwardProblem p{};
    p.activation = check_activation(kBackward, activation, num_outputs, kMultiple);
    for (const auto& [name, tensor] :
         {std::pair{"grad_output", &grad_output_in}, {"plan", &plan}, {"saved", &saved_in}, {"lists", &lists}}) {
        check_device(kBackward, name, *tensor, Device::cuda, white_in, "white");
    }
    const ScalarType dtype = float_dtype(kBackward, "weight_dtype", weight_dtype);
    if (psqt_buckets != 0) check_grad_psqt(grad_psqt_in, psqt_bucket, white_in, psqt_buckets, Device::cuda);
    const torch::stable::accelerator::DeviceGuard guard(white_in.get_device_index());
    check_shape(kBackward, "grad_output", grad_output_in, {white_in.size(0), output_width(p.activation, num_outputs)},
                "[B, 2 W]");
    const Tensor white = torch::stable::contiguous(white_in), black = torch::stable::contiguous(black_in),
                 saved = torch::stable::contiguous(saved_in);
    if (dtype == ScalarType::Float) check_dtype(kBackward, "grad_output", grad_output_in, {ScalarType::Float});
    const Tensor grad_output = aligned(grad_output_in);
    const cudaStream_t stream = current_stream(white);
    if (is_portable(bucket_size)) {
        return portable::backward(grad_output, grad_psqt_in, {white, black, plan, psqt_bucket}, saved,
                                  {num_features, num_outputs, psqt_buckets}, p.activation, {bound, scale}, dtype);
    }
    p.in = index_rows(white, black, num_features, bucket_size, num_bucketed);
    const Plan open = open_plan(kBackward, plan, p.in);
    p.plan = open.buckets;
    if (p.in.num_unbucketed > 0) p.unbucketed = open_lists(kBackward, lists, p.in);
    p.num_outputs = static_cast<int>(num_outputs);
    p.bound = bound;
    p.scale = scale;
    p.grad_type = float_type(kBackward, "grad_output", grad_output.scalar_type());
    p.weight_type = float_type(kBackward, "weight_dtype", dtype);
    if (p.activation != Activation::kIdentity) {
        check_shape(kBackward, "saved", saved, {slots(p.in), num_outputs}, "what the forward saved");
        check_dtype(kBackward, "saved", saved, {dtype == ScalarType::Float ? ScalarType::Float : ScalarType::Half});
    }
    Tensor grad_weight = torch::stable::new_empty(grad_output, {num_features, num_outputs}, dtype);
    Tensor grad_bias = torch::stable::new_empty(grad_output, {num_outputs}, ScalarType::Float);
    Tensor grad_psqt = psqt_buckets == 0
                           ? torch::stable::new_empty(grad_output, {0}, ScalarType::Float)
                           : psqt_backward(p.in, p.plan, *grad_psqt_in, *psqt_bucket, psqt_buckets, stream);
    p.grad_weight = grad_weight.mutable_data_ptr();
    p.grad_bias = static_cast<float*>(grad_bias.mutable_data_ptr());
    if (p.in.positions == 0) {
        const size_t bytes = size_t(num_features) * num_outputs * (dtype == ScalarType::Float ? 4 : 2);
        check_cuda(cudaMemsetAsync(p.grad_weight, 0, bytes, stream), "memset");
        check_cuda(cudaMemsetAsync(p.grad_bias, 0, num_outputs * sizeof(float), stream), "memset");
        return {grad_weight, grad_bias, grad_psqt};
    }
    p.grad_out = grad_output.const_data_ptr();
    p.saved = saved.const_data_ptr();
    Carver counter{nullptr};
    one_hot_product::carve_scratch(counter, p);
    const Tensor scratch =
        torch::stable::new_empty(grad_output, {static_cast<int64_t>(counter.used)}, ScalarType::Byte);
    Carver carver{static_cast<char*>(scratch.mutable_data_ptr())};
    one_hot_product::carve_scratch(carver, p);
    const cudaError_t error = p.weight_type == Float::kFloat32   ? run_backward<float, float>(p, stream)
                              : p.weight_type == Float::kFloat16 ? run_backward_16<__half>(p, stream)
                                                                 : run_backward_16<__nv_bfloat16>(p, stream);
    check_cuda(error, kBackward);
    return {grad_weight, grad_bias, grad_psqt};
}

// Where everything lies in a plan, in the lists and in `saved`, as JSON: {"slots": rows of saved, "plan": {"bytes": …,
// "pieces": {name: [begin, bytes], …}}, "lists": the same}.
std::string layout(int64_t positions, int64_t max_active, int64_t num_features, int64_t bucket_size,
                   int64_t num_bucketed) {
    if (is_portable(bucket_size)) return portable::layout(positions, max_active, num_features);
    const IndexRows in = sizes_of_rows(positions, max_active, num_features, bucket_size, num_bucketed);
    return "{\"slots\": " + std::to_string(slots(in)) + ", \"plan\": " + described(carve_plan, in) +
           ", \"lists\": " + described(carve_unbucketed_lists, in) + "}";
}

// Which kernels a device has, the fastest first, with a space between: "hopper portable", "portable", or none.
std::string kernels(int64_t device) {
    const auto [major, minor] = capability_of(static_cast<int>(device));
    const bool built = std::strstr(NNUE_STRINGIZE(NNUE_CUDA_ARCHS), "90") != nullptr;
    if (major < 8 || !portable::runs_on(static_cast<int>(device))) return "";
    return major == 9 && minor == 0 && built ? "hopper portable" : "portable";
}

}  // namespace
}  // namespace nnue::perspective_transformer

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    m.impl("perspective_plan", TORCH_BOX(&nnue::perspective_transformer::plan_op));
    m.impl("perspective_transformer_forward", TORCH_BOX(&nnue::perspective_transformer::forward_op));
    m.impl("perspective_transformer_backward", TORCH_BOX(&nnue::perspective_transformer::backward_op));
}

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    m.impl("perspective_transformer_kernels", TORCH_BOX(&nnue::perspective_transformer::kernels));
    m.impl("perspective_transformer_layout", TORCH_BOX(&nnue::perspective_transformer::layout));
}
