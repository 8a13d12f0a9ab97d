// The operators of the feature transformer on CUDA. Tensors are checked, made contiguous and taken apart here, and the
// kernels are launched on torch's current stream.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

#include "feature_transformer_kernels.cuh"
#include "index_check.cuh"

namespace nnue::feature_transformer {
namespace {

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
    IndexCheck check(kForward, {const_data<int32_t>(indices)}, sizes.rows, sizes.max_active, sizes.num_features,
                     weight.get_device_index(), stream);
    Tensor output = torch::stable::new_empty(weight, {sizes.rows, sizes.num_outputs});
    dispatch_weight_dtype<__half, __nv_bfloat16>(weight.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const T *const w = const_data<T>(weight), *const b = const_data<T>(bias);
        T* const out = mutable_data<T>(output);
        with_width<T>(is_wide(sizes.num_outputs, sizeof(T), w, b, out), [&]<int V>() {
            launch("feature_transformer_forward", forward_kernel<T, V>, grid_for<V>(sizes.rows, sizes.num_outputs),
                   kBlock, 0, stream, rows_of<T>(indices, values, sizes), w, b, out, sizes.num_outputs);
        });
    });
    check.finish();
    return output;
}

// The gradients that the backward operator returns.
template <class T>
struct Gradients {
    const Rows<T> batch;
    const Tensor& grad_output;
    const T* const from;
    const int64_t n;
    const cudaStream_t stream;

    Tensor of_weight() const {
        const int64_t features = batch.num_features, places = batch.rows * batch.max_active;
        Tensor made = torch::stable::new_empty(grad_output, {features, n});
        if (features == 0) return made;
        const auto scratch = [&](int64_t count, ScalarType type) {
            return torch::stable::new_empty(grad_output, {count}, type);
        };
        const Tensor keys = scratch(2 * places, ScalarType::Int), values = scratch(2 * places, ScalarType::Long);
        const Tensor list_starts = scratch(features + 1, ScalarType::Long);
        const size_t bytes = sorted_lists::sort_bytes<int64_t>(places, features);
        const Tensor cub = scratch(static_cast<int64_t>(bytes), ScalarType::Byte);
        int32_t* const key = mutable_data<int32_t>(keys);
        int64_t *const place = mutable_data<int64_t>(values), *const starts = mutable_data<int64_t>(list_starts);
        launch("weight_gradient_keys", key_kernel, thread_blocks_for(batch.rows, kWarpsPerBlock), kBlock, 0, stream,
               batch.indices, batch.rows, batch.max_active, batch.num_features, key, place);
        sorted_lists::sort<int64_t>({cub.mutable_data_ptr(), bytes}, key, key + places, place, place + places, places,
                                    features, stream);
        sorted_lists::find_starts(key + places, places, features, starts, stream);
        T* const to = mutable_data<T>(made);
        with_width<T>(is_wide(n, sizeof(T), from, to), [&]<int V>() {
            launch("weight_gradient", weight_gradient_kernel<T, V>, grid_for<V>(features, n), kBlock, 0, stream, batch,
                   starts, place + places, from, to, n);
        });
        return made;
    }

    // The order of the additions varies from run to run. A lane has at most four columns, whose sums are 16 bytes of
    // float32, so that the atomics of a warp fill whole sectors of memory, also for gradients of 16 bits.
    Tensor of_weight_by_atomics() const {
        const int64_t features = batch.num_features;
        const Tensor sums = torch::stable::new_zeros(grad_output, {features, n}, sum_dtype(grad_output.scalar_type()));
        sum_t<T>* const to = mutable_data<sum_t<T>>(sums);
        with_width<T>(is_wide(n, sizeof(T), from, to), [&]<int V>() {
            constexpr int kColumns = std::min(V, 4);
            launch("weight_gradient_atomic", weight_gradient_atomic_kernel<T, kColumns>,
                   grid_for<kColumns>(batch.rows, n), kBlock, 0, stream, batch, from, to, n);
        });
        return torch::stable::to(sums, grad_output.scalar_type());
    }

    Tensor of_values(const Tensor& weight_in, const Tensor& values) const {
        const Tensor weight = torch::stable::contiguous(weight_in);
        const T* const w = const_data<T>(weight);
        // Local copies: nvcc 13.0 generates invalid C++ for an initializer list that depends on T.
        const int64_t rows = batch.rows, max_active = batch.max_active;
        Tensor made = torch::stable::new_empty(values, {rows, max_active});
        with_width<T>(is_wide(n, sizeof(T), from, w), [&]<int V>() {
            launch("values_gradient", values_gradient_kernel<T, V>, thread_blocks_for(batch.rows, kWarpsPerBlock),
                   kBlock, 0, stream, batch, from, w, mutable_data<sum_t<T>>(made), n);
        });
        return made;
    }
};

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
        check.emplace(kBackward, std::initializer_list{const_data<int32_t>(indices)}, sizes.rows, sizes.max_active,
                      sizes.num_features, grad_output.get_device_index(), stream);
    }
    Tensor grad_weight = torch::stable::new_empty(grad_output, {0}),
           grad_bias = torch::stable::new_empty(grad_output, {0}),
           grad_values = torch::stable::new_empty(grad_output, {0}, sum_dtype(grad_output.scalar_type()));
    dispatch_weight_dtype<__half, __nv_bfloat16>(grad_output.scalar_type(), [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        const Gradients<T> gradients{rows_of<T>(indices, values, sizes), grad_output, const_data<T>(grad_output),
                                     sizes.num_outputs, stream};
        if (needs.weight)
            grad_weight = deterministic.value_or(true) ? gradients.of_weight() : gradients.of_weight_by_atomics();
        if (needs.values) grad_values = gradients.of_values(*weight_in, *values);
    });
    // Torch's sum has a fixed order, too. The dtype is given because autocast would choose another one.
    if (needs.bias)
        grad_bias = torch::stable::sum(grad_output, std::vector<int64_t>{0}, false, grad_output.scalar_type());
    if (check) check->finish();
    return {grad_weight, grad_bias, grad_values};
}

}  // namespace
}  // namespace nnue::feature_transformer

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "feature_transformer_forward", &nnue::feature_transformer::forward_op);
    NNUE_IMPL(m, "feature_transformer_backward", &nnue::feature_transformer::backward_op);
}
