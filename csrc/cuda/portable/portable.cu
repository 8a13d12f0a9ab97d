// The portable kernels on tensors (portable.cuh): every GPU of compute capability 7.5 and later.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../index_check.cuh"
#include "../perspective_transformer.cuh"
#include "backward.cuh"
#include "forward.cuh"
#include "plan.cuh"
#include "portable.cuh"
#include "psqt.cuh"

namespace nnue::portable {
namespace {

using namespace nnue::cuda;
using namespace nnue::perspective_transformer;

IndexRows sizes_of_rows(int64_t positions, int64_t max_active, int64_t num_features) {
    IndexRows in{};
    in.positions = static_cast<int>(positions), in.max_active = static_cast<int>(max_active);
    in.num_features = static_cast<int>(num_features);
    return in;
}

IndexRows index_rows(const Tensor& white, const Tensor& black, int64_t num_features) {
    IndexRows in = sizes_of_rows(white.size(0), white.size(1), num_features);
    in.white = const_data<int32_t>(white);
    in.black = const_data<int32_t>(black);
    return in;
}

Plan open_plan(const char* op, const Tensor& plan, const IndexRows& in) {
    return open_tensor(op, "plan", plan, carve_plan, in, kMadeByPlan);
}

Tensor floats(const Tensor& like, std::initializer_list<int64_t> shape) {
    return torch::stable::new_empty(like, std::vector<int64_t>(shape), ScalarType::Float);
}

// The gradient of psqt. `p` has what does not depend on the columns.
Tensor psqt_backward(Backward p, const IndexRows& in, const Tensor& grad_in, const Tensor& psqt_bucket_in,
                     int64_t psqt_buckets, cudaStream_t stream) {
    constexpr int kMultiple = 2 * kColumns<float>;  // of columns, for sum_kernel
    const Tensor grad = torch::stable::contiguous(grad_in), psqt_bucket = torch::stable::contiguous(psqt_bucket_in);
    const int64_t columns = divide_up(psqt_buckets, kMultiple) * kMultiple, numbers = in.rows() * columns;
    const Tensor rows = floats(grad, {in.rows(), columns}), partials = floats(grad, {in.lists().partials(), columns});
    Tensor sums = floats(grad, {in.num_features, columns});
    p.row_gradients = rows.mutable_data_ptr();
    p.partials = mutable_data<float>(partials);
    p.grad_weight = sums.mutable_data_ptr();
    p.num_outputs = static_cast<int>(columns);
    launch("psqt rows", psqt_row_kernel, thread_blocks_for(numbers, kPlanThreads), kPlanThreads, 0, stream, p.plan,
           const_data<int64_t>(psqt_bucket), const_data<float>(grad), numbers, p.num_outputs,
           static_cast<int>(psqt_buckets), mutable_data<float>(rows));
    launch_sums<float>(p, 0, multiprocessors(grad.get_device_index()), stream);
    return torch::stable::contiguous(torch::stable::narrow(sums, 1, 0, psqt_buckets));
}

ScalarType slope_dtype(ScalarType weight) {
    return weight == ScalarType::Float ? ScalarType::Float : ScalarType::Half;
}

void check_sizes(const char* op, const Tensor& white, int64_t /*num_features*/, PlanLayout /*layout*/) {
    if (2 * white.size(0) * std::max<int64_t>(white.size(1), 1) >= int64_t(1) << 31) {
        fail(op, "white", shape_text(white.sizes()), "2 B K < 2^31");
    }
}

Tensor plan(const Tensor& white, const Tensor& black, const Tensor& black_to_move, int64_t num_features,
            PlanLayout /*layout*/) {
    IndexRows in = index_rows(white, black, num_features);
    in.black_to_move = const_data<uint8_t>(black_to_move);
    Tensor memory = memory_for(carve_plan, in, white);
    if (in.positions == 0) return memory;
    const Tensor scratch = memory_for(carve_plan_scratch, in, white);
    Carver carver{static_cast<char*>(scratch.mutable_data_ptr())};
    make_plan(in, open_plan(kPlan, memory, in), carve_plan_scratch(carver, in), current_stream(white));
    return memory;
}

Three forward(const Batch& batch, PlanLayout /*layout*/, const Tensor& weight, const Tensor& bias,
              const std::optional<Tensor>& psqt, Activation activation, Range range,
              std::optional<ScalarType> output_dtype, bool save) {
    const cudaStream_t stream = current_stream(weight);
    const int64_t num_outputs = weight.size(1);
    const IndexRows in = index_rows(batch.white, batch.black, weight.size(0));
    const Plan plan = open_plan(kForward, batch.plan, in);
    Tensor out = torch::stable::new_empty(weight, {in.positions, output_width(activation, num_outputs)}, output_dtype);
    const bool saves = save && activation != Activation::kIdentity;
    if (saves && weight.scalar_type() != ScalarType::Float && !(range.bound <= 65504)) {  // the largest fp16
        fail(kForward, "bound", std::to_string(range.bound), "at most 65504 with 16-bit weights");
    }
    Tensor slopes =
        torch::stable::new_empty(weight, {saves ? in.rows() : 0, num_outputs}, slope_dtype(weight.scalar_type()));
    Tensor psqt_out = psqt ? psqt_forward(kForward, in, in.num_features, BlackFirst{plan.black_first}, *psqt,
                                          *batch.psqt_bucket, {0, in.positions}, stream)
                           : floats(weight, {0});
    if (in.positions == 0) return {out, psqt_out, slopes};
    Forward p{};
    p.in = in;
    p.plan = plan;
    p.weight = weight.const_data_ptr();
    p.bias = const_data<float>(bias);
    p.out = out.mutable_data_ptr();
    p.slopes = saves ? slopes.mutable_data_ptr() : nullptr;
    p.num_outputs = static_cast<int>(num_outputs);
    p.activation = activation;
    p.bound = range.bound;
    p.scale = range.scale;
    p.rounds_down = range.rounds_down;
    p.out_type = float_type(kForward, "output_dtype", *output_dtype);
    const auto run = weight.scalar_type() == ScalarType::Float  ? launch_forward<float>
                     : weight.scalar_type() == ScalarType::Half ? launch_forward<__half>
                                                                : launch_forward<__nv_bfloat16>;
    run(p, multiprocessors(weight.get_device_index()), stream);
    return {out, psqt_out, slopes};
}

Tensor psqt_output(const Batch& batch, PlanLayout /*layout*/, const Tensor& psqt, PositionRange wanted) {
    const IndexRows in = index_rows(batch.white, batch.black, psqt.size(0));
    const BlackFirst black_first{open_plan(kPsqt, batch.plan, in).black_first};
    return psqt_forward(kPsqt, in, in.num_features, black_first, psqt, *batch.psqt_bucket, wanted,
                        current_stream(psqt));
}

Three backward(const OutputGradients& gradients, const Batch& batch, PlanLayout /*layout*/, const Tensor& saved,
               Sizes sizes, Activation activation, Range range, ScalarType weight_dtype) {
    const Tensor& grad_output = gradients.output;
    const cudaStream_t stream = current_stream(grad_output);
    const auto [num_features, num_outputs, psqt_buckets] = sizes;
    const IndexRows in = index_rows(batch.white, batch.black, num_features);
    const Plan plan = open_plan(gradients.op, batch.plan, in);
    const bool has_slopes = activation != Activation::kIdentity, is_float = weight_dtype == ScalarType::Float;
    if (has_slopes) {
        check_shape(gradients.op, "saved", saved, {in.rows(), num_outputs}, "what the forward saved");
        check_dtype(gradients.op, "saved", saved, {slope_dtype(weight_dtype)});
    }
    using Shape = std::vector<int64_t>;
    const Shape of_weight{num_features, num_outputs}, of_bias{num_outputs},
        of_psqt = psqt_buckets == 0 ? Shape{0} : Shape{num_features, psqt_buckets};
    if (in.positions == 0) {
        const auto zeros = [&](const Shape& shape, ScalarType type) {
            return torch::stable::new_zeros(grad_output, shape, type);
        };
        return {zeros(of_weight, weight_dtype), zeros(of_bias, ScalarType::Float), zeros(of_psqt, ScalarType::Float)};
    }
    const Tensor grad_weight = torch::stable::new_empty(grad_output, of_weight, weight_dtype);
    const Tensor grad_bias = torch::stable::new_empty(grad_output, of_bias, ScalarType::Float);
    Backward p{};
    p.plan = plan;
    p.rows = static_cast<int>(in.rows());
    p.max_tasks = static_cast<int>(in.lists().tasks());
    p.max_long_lists = static_cast<int>(in.lists().long_lists());
    const Tensor grad_of_psqt = psqt_buckets == 0
                                    ? floats(grad_output, {0})
                                    : psqt_backward(p, in, *gradients.psqt, *batch.psqt_bucket, psqt_buckets, stream);
    p.grad_out = output_gradient(gradients);
    p.slopes = has_slopes ? saved.const_data_ptr() : nullptr;
    p.grad_weight = grad_weight.mutable_data_ptr();
    p.grad_bias = mutable_data<float>(grad_bias);
    p.num_outputs = static_cast<int>(num_outputs);
    p.activation = activation;
    p.slope_scale = slope_scale(activation, range.scale);
    const auto carve = [&](Carver& carver, const IndexRows& rows) {
        p.row_gradients = carver.take<char>("row_gradients", size_t(rows.rows()) * num_outputs * (is_float ? 4 : 2));
        p.partials = carver.take<float>("partials", size_t(rows.lists().partials()) * num_outputs);
        p.bias_parts = carver.take<float>("bias_parts", size_t(bias_parts(rows.rows())) * num_outputs);
    };
    const Tensor scratch = memory_for(carve, in, grad_output);
    Carver carver{static_cast<char*>(scratch.mutable_data_ptr())};
    carve(carver, in);

    using Run = void (*)(const Backward&, int, cudaStream_t);
    // Calls the kernel for the types of weight and gradient; an fp32 weight has an fp32 gradient.
    constexpr Run kRuns[3][3] = {
        {launch_backward<float, float>, nullptr, nullptr},
        {launch_backward<__half, float>, launch_backward<__half, __half>, launch_backward<__half, __nv_bfloat16>},
        {launch_backward<__nv_bfloat16, float>, launch_backward<__nv_bfloat16, __half>,
         launch_backward<__nv_bfloat16, __nv_bfloat16>},
    };
    const Float weight_type = float_type(gradients.op, "weight_dtype", weight_dtype),
                grad_type = float_type(gradients.op, "grad_output", grad_output.scalar_type());
    kRuns[static_cast<int>(weight_type)][static_cast<int>(grad_type)](
        p, multiprocessors(grad_output.get_device_index()), stream);
    return {grad_weight, grad_bias, grad_of_psqt};
}

std::string layout_text(int64_t positions, int64_t max_active, int64_t num_features, PlanLayout /*layout*/) {
    const IndexRows in = sizes_of_rows(positions, max_active, num_features);
    return "{\"slots\": " + std::to_string(in.rows()) + ", \"plan\": " + described(carve_plan, in) + "}";
}

}  // namespace

const Kernels kKernels{check_sizes, plan, forward, psqt_output, backward, layout_text};

int code_for(int device) {
    const torch::stable::accelerator::DeviceGuard guard(device);
    return cuda::code_version(reinterpret_cast<const void*>(forward_kernel<float>));
}

}  // namespace nnue::portable
