// The operators of the feature transformer on CUDA. Tensors are checked, made contiguous and taken apart here, and the
// kernels of feature_transformer.cuh are launched on torch's current stream.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

#include "feature_transformer.cuh"
#include "index_check.cuh"

namespace nnue::feature_transformer {
namespace {

using namespace nnue::cuda;

// The second dimension of the kernels' grids is for columns, and CUDA limits it to 65535.
void check_num_outputs(const char* op, const char* argument, int64_t num_outputs) {
    constexpr int64_t kMost = int64_t(65535) * kWarp;
    if (num_outputs > kMost) fail(op, argument, "N = " + text(num_outputs), "N <= " + text(kMost) + " on CUDA");
}

template <class T>
Rows<T> rows_of(const Tensor& indices, const std::optional<Tensor>& values, const Sizes& sizes) {
    return {const_data<int32_t>(indices), const_data<sum_t<T>>(values), sizes.rows, static_cast<int>(sizes.max_active),
            static_cast<int>(sizes.num_features)};
}

Tensor forward_op(const Tensor& indices_in, const std::optional<Tensor>& values_in, const Tensor& weight_in,
                  const Tensor& bias_in, std::optional<bool>) {
    const Sizes sizes = check_forward(indices_in, values_in, weight_in, bias_in, Device::cuda);
    check_num_outputs(kForward, "weight", sizes.num_outputs);
    const torch::stable::accelerator::DeviceGuard guard(weight_in.get_device_index());
    const Tensor indices = torch::stable::contiguous(indices_in), weight = torch::stable::contiguous(weight_in),
                 bias = torch::stable::contiguous(bias_in);
    const std::optional<Tensor> values = contiguous(values_in);
    const cudaStream_t stream = current_stream(weight);
    IndexCheck check(kForward, const_data<int32_t>(indices), sizes.rows, sizes.max_active, sizes.num_features,
                     weight.get_device_index(), stream);
    Tensor output = torch::stable::new_empty(weight, {sizes.rows, sizes.num_outputs});
    dispatch_weight_dtype<__half, __nv_bfloat16>(weight.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        launch_forward<T>(rows_of<T>(indices, values, sizes), const_data<T>(weight), const_data<T>(bias),
                          mutable_data<T>(output), sizes.num_outputs, stream);
    });
    check.finish();
    return output;
}

template <class T>
Tensor weight_gradient(const Rows<T>& batch, const Tensor& grad_output, int64_t num_outputs, bool deterministic,
                       cudaStream_t stream) {
    const int64_t features = batch.num_features;
    if (deterministic) {
        Tensor grad_weight = torch::stable::new_empty(grad_output, {features, num_outputs});
        const size_t bytes = deterministic_scratch_bytes(batch, num_outputs);
        const Tensor scratch = torch::stable::new_empty(grad_output, {static_cast<int64_t>(bytes)}, ScalarType::Byte);
        launch_weight_gradient_deterministic(batch, const_data<T>(grad_output), mutable_data<T>(grad_weight),
                                             num_outputs, scratch.mutable_data_ptr(), stream);
        return grad_weight;
    }
    Tensor sums = torch::stable::new_empty(grad_output, {features, num_outputs}, sum_dtype(grad_output.scalar_type()));
    check_cuda(cudaMemsetAsync(sums.mutable_data_ptr(), 0, sums.numel() * sizeof(sum_t<T>), stream), "memset");
    launch_weight_gradient_atomic(batch, const_data<T>(grad_output), mutable_data<sum_t<T>>(sums), num_outputs, stream);
    if constexpr (std::is_same_v<T, sum_t<T>>) {
        return sums;
    } else {
        Tensor grad_weight = torch::stable::new_empty(grad_output, {features, num_outputs});
        launch_round(const_data<sum_t<T>>(sums), mutable_data<T>(grad_weight), sums.numel(), stream);
        return grad_weight;
    }
}

std::tuple<Tensor, Tensor, Tensor> backward_op(const Tensor& grad_output_in, const Tensor& indices_in,
                                               const std::optional<Tensor>& values_in,
                                               const std::optional<Tensor>& weight_in, int64_t num_features,
                                               std::vector<bool> needs_in, std::optional<bool> deterministic,
                                               bool check_indices) {
    const Needs needs = needs_of(needs_in);
    const Sizes sizes =
        check_backward(grad_output_in, indices_in, values_in, weight_in, num_features, needs, Device::cuda);
    check_num_outputs(kBackward, "grad_output", sizes.num_outputs);
    const torch::stable::accelerator::DeviceGuard guard(grad_output_in.get_device_index());
    const Tensor grad_output = torch::stable::contiguous(grad_output_in),
                 indices = torch::stable::contiguous(indices_in);
    const std::optional<Tensor> values = contiguous(values_in);
    const cudaStream_t stream = current_stream(grad_output);
    std::optional<IndexCheck> check;
    if (check_indices) {
        check.emplace(kBackward, const_data<int32_t>(indices), sizes.rows, sizes.max_active, sizes.num_features,
                      grad_output.get_device_index(), stream);
    }
    const ScalarType sums = sum_dtype(grad_output.scalar_type());
    Tensor grad_weight = torch::stable::new_empty(grad_output, {0}),
           grad_bias = torch::stable::new_empty(grad_output, {0}),
           grad_values = torch::stable::new_empty(grad_output, {0}, sums);
    dispatch_weight_dtype<__half, __nv_bfloat16>(grad_output.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const Rows<T> batch = rows_of<T>(indices, values, sizes);
        const T* gradient = const_data<T>(grad_output);
        if (needs.weight) {
            // Lists are at least twice as fast as atomics on the H200: benchmarks/results/.
            grad_weight = weight_gradient(batch, grad_output, sizes.num_outputs, deterministic.value_or(true), stream);
        }
        if (needs.bias) {
            grad_bias = torch::stable::new_empty(grad_output, {sizes.num_outputs});
            const Tensor partial =
                torch::stable::new_empty(grad_output, {bias_gradient_parts(sizes.rows), sizes.num_outputs}, sums);
            launch_bias_gradient(gradient, sizes.rows, sizes.num_outputs, mutable_data<sum_t<T>>(partial),
                                 mutable_data<T>(grad_bias), stream);
        }
        if (needs.values) {
            const Tensor weight = torch::stable::contiguous(*weight_in);
            grad_values = torch::stable::new_empty(*values, {sizes.rows, sizes.max_active});
            launch_values_gradient(batch, gradient, const_data<T>(weight), mutable_data<sum_t<T>>(grad_values),
                                   sizes.num_outputs, stream);
        }
    });
    if (check) check->finish();
    return {grad_weight, grad_bias, grad_values};
}

}  // namespace
}  // namespace nnue::feature_transformer

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "feature_transformer_forward", &nnue::feature_transformer::forward_op);
    NNUE_IMPL(m, "feature_transformer_backward", &nnue::feature_transformer::backward_op);
}
