// The operators _stack_order and _layer_stacks_* on CUDA. Their contracts are in ../../layer_stacks.h;
// docs/kernels.md describes the kernels.

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../../capabilities.h"
#include "../../handles.h"
#include "../hopper/bucketed.cuh"
#include "../perspective_transformer.cuh"
#include "finish.cuh"
#include "one_output.cuh"
#include "order.cuh"

namespace nnue::cuda::stacks {
namespace {

using Numbers = std::vector<double>;

template <class T, bool kIsSmall>
constexpr size_t kBackwardBytes = std::max(sizeof(BackwardMemory<InputRows<T>, 1, kIsSmall>),
                                           sizeof(BackwardMemory<InputRows<T>, 2, kIsSmall>));
static_assert(std::max(kBackwardBytes<float, false>, kBackwardBytes<__half, false>) <= most_shared_bytes(80) &&
              std::max(kBackwardBytes<float, true>, kBackwardBytes<__half, true>) <= most_shared_bytes(75));

// The compute capability, times ten, of the code for a tensor's device.
int code_for(const Tensor& on) {
    const torch::stable::accelerator::DeviceGuard guard(on.get_device_index());
    return code_version(reinterpret_cast<const void*>(count_stacks));
}

// The shared memory that this many thread blocks need, or as many of them as fit, in percent of the most that a
// multiprocessor has.
int percent_shared(size_t of_block, int together) {
    const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, current_device());
    const size_t each = of_block + 1024 + 128;  // 1 KB of a thread block is reserved, and sizes are rounded up
    const size_t fitting = std::clamp<size_t>(most / each, 1, together);
    return static_cast<int>(std::min<size_t>(100, divide_up(100 * fitting * each, most)));
}

// Shared memory of a thread block, in bytes: that of this launch, and what the kernel has declared. `together`: the
// thread blocks that a multiprocessor is to hold.
struct SharedMemory {
    size_t dynamic, declared;
    int together;
};

// Kernels start early: they take the places that the last thread blocks of the kernel before leave free.
// A multiprocessor is set to the shared memory of these thread blocks and for the rest as L1 cache. Without this
// hint it keeps the division that the kernel before had, which may leave almost no cache.
template <class Kernel>
void launch_tiles(const char* name, Kernel kernel, int64_t blocks, const SharedMemory& shared, cudaStream_t stream,
                  const auto&... arguments) {
    const auto set = [&](cudaFuncAttribute attribute, size_t value) {
        check_cuda(cudaFuncSetAttribute(kernel, attribute, static_cast<int>(value)), "shared memory");
    };
    // The same value in every call, because it belongs to the kernel, which another thread may be launching, too.
    const int code = code_version(reinterpret_cast<const void*>(kernel));
    set(cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes(code) - shared.declared);
    set(cudaFuncAttributePreferredSharedMemoryCarveout,
        percent_shared(shared.dynamic + shared.declared, shared.together));
    launch_behind(true, name, kernel, static_cast<unsigned>(blocks), kThreads, shared.dynamic, stream, arguments...);
}

// Calls `body` with NT of first_layer_sums, as a constant.
template <class Body>
void dispatch_outputs(int outputs, const Body& body) {
    const int blocks = output_blocks(outputs);
    if (blocks == 1) return body.template operator()<1>();
    if (blocks == 2) return body.template operator()<2>();
    body.template operator()<4>();
}

void check_fits(const char* op, const Layers& layers, const Tensor& weight) {
    if (capabilities::why_not_tiles(code_for(weight), layers) != capabilities::Reason::fastest)
        fail(op, "parameters", "layers that the kernels do not support",
             "N a multiple of 16, at most 32 outputs of layer 0, and layers that fit 99 KB together (64 KB on 7.5)");
}

Handles<Layers>& descriptions() {
    static Handles<Layers> all;
    return all;
}

// The layers of a description, with the parameters checked against it, if the kernels support them.
const Layers& layers_of(const char* op, const Tensors& parameters, int64_t description) {
    const Layers& layers = descriptions().at(op, "layers", description, "_layer_stacks_describe");
    check_parameters(op, parameters, layers, Device::cuda);
    check_fits(op, layers, parameters[0]);
    return layers;
}

// All tensors are on the device of weight_0, `like`.
void check_tensor(const char* op, const char* argument, const Tensor& tensor, std::initializer_list<ScalarType> dtypes,
                  std::initializer_list<int64_t> shape, const char* letters, const Tensor& like) {
    check_device(op, argument, tensor, Device::cuda, like, "weight_0");
    check_dtype(op, argument, tensor, dtypes);
    check_shape(op, argument, tensor, shape, letters);
}

void check_floats(const char* op, const char* argument, const Tensor& tensor, std::initializer_list<int64_t> shape,
                  const char* letters, const Tensor& like) {
    check_tensor(op, argument, tensor, {ScalarType::Float}, shape, letters, like);
}

Order check_order(const char* op, const Tensor& order, int64_t positions, int64_t stacks, const Tensor& like) {
    const Order o{positions, stacks};
    check_tensor(op, "order", order, {ScalarType::Int}, {-1}, "[n]", like);
    if (order.size(0) != o.size())
        fail(op, "order", "shape " + shape_text(order.sizes()),
             "[" + text(o.size()) + "], what _stack_order gives for these positions and stacks");
    return o;
}

void check_aligned(const char* op, const char* argument, const Tensor& tensor) {
    if (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 != 0)
        fail(op, argument, "an address that is not a multiple of 16", "an aligned tensor, as new tensors are");
}

Tensor floats_like(const Tensor& like, std::initializer_list<int64_t> shape, ScalarType dtype = ScalarType::Float) {
    return torch::stable::new_empty(like, std::vector<int64_t>(shape), dtype);
}

Tensor order_op(const Tensor& bucket_in, int64_t stacks) {
    constexpr const char* op = "_stack_order";
    check_tensor(op, "bucket", bucket_in, {ScalarType::Long}, {-1}, "[B]", bucket_in);
    if (stacks < 1 || stacks > kMostStacks) fail(op, "num_stacks", stacks, "1 to " + std::to_string(kMostStacks));
    const torch::stable::accelerator::DeviceGuard guard(bucket_in.get_device_index());
    const Tensor bucket = torch::stable::contiguous(bucket_in);
    const Order o{bucket.size(0), stacks};
    if (o.positions > INT32_MAX / 2) fail(op, "bucket", o.positions, "at most 2^30 positions");
    const Tensor order = floats_like(bucket, {o.size()}, ScalarType::Int);
    const unsigned chunks = static_cast<unsigned>(std::max<int64_t>(1, divide_up(o.positions, kChunk)));
    const Tensor counts = floats_like(bucket, {static_cast<int64_t>(chunks) * stacks}, ScalarType::Int);
    const cudaStream_t stream = current_stream(bucket);
    launch("count_stacks", count_stacks, chunks, kOrderThreads, 0, stream, const_data<int64_t>(bucket),
           mutable_data<int>(counts), o.positions, static_cast<int>(stacks));
    launch("place_positions", place_positions, chunks, kOrderThreads, 0, stream, const_data<int64_t>(bucket),
           const_data<int>(counts), mutable_data<int>(order), o);
    return order;
}

// The sums of layer 0, [B, O].
Tensor first_sums(const Tensor& x, const Tensor& weight, const Layers& layers, const Tensor& order, const Order& o) {
    const Layer& first = layers.at[0];
    const Tensor sums = floats_like(x, {o.positions, first.outputs});
    const FirstForward a{const_data<int>(order), o, const_data<float>(weight), mutable_data<float>(sums), first.inputs,
                         first.outputs};
    const SharedMemory shared{sizeof(float) * share_floats(first.outputs), sizeof(TilePositions) + 64, kFirstTogether};
    dispatch_input(x.scalar_type(), [&]<class T>() {
        dispatch_outputs(first.outputs, [&]<int NT>() {
            launch_tiles("first_layer_forward", first_layer_forward<T, NT>, o.most_tiles(), shared, current_stream(x),
                         const_data<T>(x), a);
        });
    });
    return sums;
}

void run_rest(const Tensor& sums, TileArguments& a) {
    a.sums = const_data<float>(sums);
    const auto kernel = a.layers.integers.rounds ? rest_kernel<true> : rest_kernel<false>;
    const SharedMemory shared{sizeof(float) * a.places.floats, kDeclaredBytes, kRestsTogether};
    launch_tiles("rest_kernel", kernel, a.of_order.most_tiles(), shared, current_stream(sums), a);
}

// Checks x, or the sums of layer 0 that are given in its place, and returns it contiguous.
Tensor check_start(const char* op, const Tensor& x_in, bool is_sums, const Layers& layers, const Tensor& like) {
    if (is_sums)
        check_floats(op, "x", x_in, {-1, layers.at[0].outputs}, "[B, O]", like);
    else
        check_tensor(op, "x", x_in, {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16},
                     {-1, layers.at[0].inputs}, "[B, N]", like);
    if (layers.integers.rounds) check_dtype(op, "x", x_in, {ScalarType::Float, ScalarType::BFloat16});
    const Tensor x = torch::stable::contiguous(x_in);
    check_aligned(op, "x", x);
    return x;
}

// The checked, contiguous arguments of an operator on tiles, and the kernel arguments that all of them set.
struct TileCall {
    const Layers& layers;
    const Tensor x;  // or the sums
    const Order of_order;
    Tensors parameters;
    const std::optional<Tensor> psqt;
    const GradientLayout layout;
    TileArguments arguments{};

    // `positions`: how many there are, where x is what the transformer has saved of them; it is not checked then.
    TileCall(const char* op, const Tensor& x_in, bool is_sums, const Tensor& order, const Tensors& parameters_in,
             const std::optional<Tensor>& psqt_in, int64_t description, int64_t positions = -1)
        : layers(layers_of(op, parameters_in, description)),
          x(positions < 0 ? check_start(op, x_in, is_sums, layers, parameters_in[0])
                          : perspective_transformer::aligned(x_in)),
          of_order(check_order(op, order, positions < 0 ? x.size(0) : positions, layers.stacks, parameters_in[0])),
          psqt(contiguous(psqt_in)),
          layout(layers) {
        if (psqt) check_floats(op, "psqt", *psqt, {of_order.positions}, "[B]", parameters_in[0]);
        for (const Tensor& parameter : parameters_in) parameters.push_back(torch::stable::contiguous(parameter));
        check_aligned(op, "weight_0", parameters[0]);
        TileArguments& a = arguments;
        a.layers = layers;
        a.places = tile_layout(layers);
        for (int l = 0; l < layers.count; ++l) {
            a.weights[l] = const_data<float>(parameters[2 * l]);
            a.biases[l] = const_data<float>(parameters[2 * l + 1]);
            a.of_bias[l] = layout.of_bias(l);
            if (l > 0) a.of_weight[l] = layout.of_weight(l);
        }
        a.tile_numbers = layout.tile;
        a.order = const_data<int>(order);
        a.of_order = of_order;
        a.psqt = const_data<float>(psqt);
    }

    // New memory for grad_sums and partials, which every backward returns.
    std::tuple<Tensor, Tensor> start_backward() {
        const Tensor grad_sums = floats_like(x, {of_order.positions, layers.at[0].outputs});
        const Tensor partials = floats_like(x, {of_order.most_tiles(), arguments.tile_numbers});
        arguments.backward = true;
        arguments.grad_sums = mutable_data<float>(grad_sums);
        arguments.partials = mutable_data<float>(partials);
        return {grad_sums, partials};
    }
};

Tensor first_op(const Tensor& x_in, const Tensor& order, const Tensor& weight_in) {
    constexpr const char* op = "_layer_stacks_first";
    check_floats(op, "weight_0", weight_in, {-1, -1, -1}, "[S, O, I]", weight_in);
    Layers layers;
    layers.count = 1;
    layers.stacks = weight_in.size(0);
    layers.at[0].inputs = static_cast<int>(weight_in.size(2));
    layers.at[0].outputs = static_cast<int>(weight_in.size(1));
    check_fits(op, layers, weight_in);
    const Tensor x = check_start(op, x_in, false, layers, weight_in);
    const Order o = check_order(op, order, x.size(0), layers.stacks, weight_in);
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    const Tensor weight = torch::stable::contiguous(weight_in);
    check_aligned(op, "weight_0", weight);
    return first_sums(x, weight, layers, order, o);
}

std::tuple<Tensor, Tensor> forward_op(const Tensor& x_in, const Tensor& order, Tensors parameters,
                                      const std::optional<Tensor>& psqt, int64_t description, bool is_sums) {
    TileCall call("_layer_stacks_forward", x_in, is_sums, order, parameters, psqt, description);
    const torch::stable::accelerator::DeviceGuard guard(x_in.get_device_index());
    const Tensor output = floats_like(call.x, {call.of_order.positions});
    const Tensor sums = is_sums ? call.x : first_sums(call.x, call.parameters[0], call.layers, order, call.of_order);
    call.arguments.output = mutable_data<float>(output);
    run_rest(sums, call.arguments);
    return {output, is_sums ? floats_like(call.x, {0, call.layers.at[0].outputs}) : sums};
}

std::tuple<Tensor, Tensor> backward_op(const Tensor& grad_output_in, const Tensor& sums, const Tensor& order,
                                       Tensors parameters, int64_t description) {
    constexpr const char* op = "_layer_stacks_backward";
    TileCall call(op, sums, true, order, parameters, std::nullopt, description);
    check_floats(op, "grad_output", grad_output_in, {call.of_order.positions}, "[B]", parameters[0]);
    const torch::stable::accelerator::DeviceGuard guard(sums.get_device_index());
    const Tensor grad_output = torch::stable::contiguous(grad_output_in);
    const auto made = call.start_backward();
    call.arguments.grad_in = const_data<float>(grad_output);
    run_rest(call.x, call.arguments);
    return made;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> loss_op(const Tensor& x_in, const Tensor& order, Tensors parameters,
                                                   const std::optional<Tensor>& psqt, Tensors targets,
                                                   int64_t description, int64_t loss, Numbers constants, bool is_sums,
                                                   std::vector<int64_t> transformer, Numbers range) {
    constexpr const char* op = "_layer_stacks_loss";
    const bool goes_on = !transformer.empty();  // through the transformer
    if (targets.size() != (goes_on ? 6 : 3))
        fail(op, "targets", text(targets.size()) + " tensors",
             "score, result and lambda; with `transformer` then white, black and plan");
    TileCall call(op, x_in, is_sums, order, parameters, psqt, description, goes_on ? targets[3].size(0) : -1);
    const Layers& layers = call.layers;
    const Tensor &like = parameters[0], &x = call.x;
    const Order& o = call.of_order;
    check_tensor(op, "score", targets[0], {ScalarType::Short}, {o.positions}, "[B]", like);
    check_tensor(op, "result", targets[1], {ScalarType::Char}, {o.positions}, "[B]", like);
    const bool by_position = targets[2].dim() == 1;
    if (by_position)
        check_floats(op, "lambda", targets[2], {o.positions}, "[B]", like);
    else
        check_floats(op, "lambda", targets[2], {}, "[]", like);
    const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
    for (Tensor& target : targets) target = torch::stable::contiguous(target);
    const Tensor totals = floats_like(x, {3}), tile_totals = floats_like(x, {o.most_tiles(), 2});
    const Tensor grad_output = floats_like(x, {o.positions});
    const bool in_one_pass =
        !is_sums && capabilities::is_one_pass(layers, x.scalar_type() == ScalarType::Float ? 4 : 2);
    if (layers.integers.square != 0 && !in_one_pass)
        fail(op, "layers", "layers that read squares of x", "one layer, and x of at most 16 KB for each position");
    TileArguments& a = call.arguments;
    if (in_one_pass) a.tile_numbers = numbers_with_weight(layers, call.layout, goes_on);
    const auto [grad_sums, partials] = call.start_backward();
    a.loss = read_loss(op, loss, constants);
    a.score = const_data<int16_t>(targets[0]);
    a.result = const_data<int8_t>(targets[1]);
    a.lambda = const_data<float>(targets[2]);
    a.lambda_by_position = by_position;
    a.tile_totals = mutable_data<float>(tile_totals);
    a.totals = mutable_data<float>(totals);
    a.counter = mutable_data<int>(order) + Order::counter;
    a.grad_output = mutable_data<float>(grad_output);
    if (goes_on) {
        namespace pt = perspective_transformer;
        if (range.size() != 3) fail(op, "range", text(range.size()) + " numbers", "bound, scale and the factor of x");
        const pt::Transformer of = pt::transformer_of(op, transformer, {range[0], range[1]}, pt::kMultiple);
        check_device(op, "x", x, Device::cuda, like, "weight_0");
        if (!pt::kBuiltFor90 || of.layout.bucket_size == 0 || !in_one_pass || psqt || o.positions == 0)
            fail(op, "parameters", "a net that the kernel does not support",
                 "king buckets, one layer without psqt, x of at most 16 KB for each position, and a position");
        const pt::Batch batch = pt::batch_of(op, {targets.begin() + 3, targets.end()});
        pt::check_plan_arguments(op, batch.white, batch.black, of.sizes.num_features, of.layout);
        Tensor rows;
        if constexpr (pt::kBuiltFor90)
            rows = pt::bucketed::one_output_through(batch, of, x, static_cast<float>(range[2]), a);
        return {totals, rows, grad_output, partials};
    }
    if (in_one_pass)
        run_one_output(x, a, current_stream(x));
    else
        run_rest(is_sums ? x : first_sums(x, call.parameters[0], layers, order, o), a);
    return {totals, grad_sums, grad_output, partials};
}

// _layer_stacks_gradients without the kernel of layer 0.
struct Gradients {
    static constexpr const char* op = "_layer_stacks_gradients";

    // `reads_x`: the gradient of weight_0 is made of x or of what x is made of, unless it is among the partials
    // already.
    Gradients(int64_t positions, bool reads_x, const Tensor& order, const Tensors& parameters,
              const std::optional<Tensor>& partials, const std::optional<Tensor>& grad_output, const Tensors& scales,
              int64_t description)
        : layers(layers_of(op, parameters, description)), layout_(layers) {
        const Tensor& like = parameters[0];
        of_order = check_order(op, order, positions, layers.stacks, like);
        if (scales.size() > 2)
            fail(op, "scales", text(scales.size()) + " tensors", "at most two: a factor, and totals");
        if (scales.size() > 0) check_floats(op, "scales[0]", scales[0], {}, "[]", like);
        if (scales.size() > 1) check_floats(op, "scales[1]", scales[1], {3}, "[3]", like);
        const int64_t with_weight = numbers_with_weight(layers, layout_),
                      with_rows = numbers_with_weight(layers, layout_, true);
        const int64_t given = layers.count == 1 && partials && partials->dim() == 2 ? partials->size(1) : 0;
        has_weight = given == with_weight || given == with_rows;
        grad_bias = floats_like(like, {given == with_rows ? layers.at[0].inputs / 2 : 0});
        if (partials) {
            const int64_t numbers = has_weight ? given : layout_.tile;
            check_floats(op, "partials", *partials, {of_order.most_tiles(), numbers}, "[tiles, …]", like);
        }
        if (grad_output) check_floats(op, "grad_output", *grad_output, {positions}, "[B]", like);
        partials_ = contiguous(partials);
        grad_output_ = contiguous(grad_output);
        weight_ = torch::stable::contiguous(like);
        check_aligned(op, "weight_0", weight_);
        const Layer& first = layers.at[0];
        grad_weight =
            floats_like(like, {reads_x || has_weight ? layers.stacks : 0, int64_t{first.outputs}, first.inputs});
        grad_psqt = floats_like(like, {grad_output ? positions : 0});
        gradients = floats_like(like, {partials ? layout_.result : 0});
        finish_.order = const_data<int>(order);
        finish_.of_order = of_order;
        finish_.layout = layout_;
        finish_.scale = {scales.empty() ? nullptr : const_data<float>(scales[0]),
                         scales.size() < 2 ? nullptr : const_data<float>(scales[1])};
    }

    // The problem of the kernel of layer 0, except for its segments.
    FirstBackward first_layer(const std::optional<Tensor>& grad_sums) {
        const Layer& first = layers.at[0];
        if (!grad_sums) fail(op, "grad_sums", "none", "a tensor, since there is x");
        check_floats(op, "grad_sums", *grad_sums, {of_order.positions, first.outputs}, "[B, O]", weight_);
        grad_sums_ = torch::stable::contiguous(*grad_sums);
        FirstBackward a{};
        a.order = finish_.order;
        a.of_order = of_order;
        a.weight = const_data<float>(weight_);
        a.grad_sums = const_data<float>(grad_sums_);
        a.inputs = first.inputs;
        a.outputs = first.outputs;
        a.slabs = static_cast<int>(divide_up(first.inputs, kSlab));
        a.scale = finish_.scale;
        return a;
    }

    // Gives where the segments of weight_0 are, which that kernel has left.
    void add_segments(const FirstBackward& a, int workers, int padded_outputs) {
        finish_.segments = a.segments;
        finish_.grad_weight = mutable_data<float>(grad_weight);
        finish_.inputs = a.inputs;
        finish_.outputs = a.outputs;
        finish_.padded_outputs = padded_outputs;
        finish_.slabs = a.slabs;
        finish_.workers = workers;
        finish_.of_weight = static_cast<int>(divide_up(layers.stacks * a.outputs * (a.inputs / 4), kThreads));
    }
    void add_bias(const Tensor& bias_segments, Tensor& grad_bias) {
        finish_.bias_segments = const_data<float>(bias_segments);
        finish_.grad_bias = mutable_data<float>(grad_bias);
        finish_.of_bias = static_cast<int>(divide_up(grad_bias.size(0), kThreads));
    }

    void finish() {
        Finish& f = finish_;
        if (partials_) {
            f.partials = const_data<float>(*partials_);
            f.gradients = mutable_data<float>(gradients);
            f.tile_numbers = static_cast<int>(partials_->size(1));
            if (has_weight) {
                f.grad_weight = mutable_data<float>(grad_weight);
                f.weight_numbers = layers.at[0].inputs;
            }
            f.blocks_per_stack = static_cast<int>(divide_up(f.weight_numbers + layout_.tile, kColumns));
            f.of_partials = static_cast<int>(f.blocks_per_stack * layers.stacks);
            if (grad_bias.size(0) > 0) {
                f.grad_bias = mutable_data<float>(grad_bias);
                f.row_numbers = static_cast<int>(grad_bias.size(0));
                f.of_partials += static_cast<int>(divide_up(grad_bias.size(0), kColumns));
            }
        }
        if (grad_output_) {
            f.grad_output = const_data<float>(*grad_output_);
            f.grad_psqt = mutable_data<float>(grad_psqt);
            f.psqt_slope = layers.integers.psqt_slope;
            f.of_psqt = static_cast<int>(divide_up(of_order.positions, kThreads));
        }
        launch_behind(true, "finish_kernel", finish_kernel, f.of_weight + f.of_bias + f.of_partials + f.of_psqt,
                      kThreads, 0, current_stream(weight_), f);
    }

    const Layers& layers;
    Order of_order;
    bool has_weight;  // whether one_output_kernel has made the gradient of weight_0, too
    Tensor grad_bias, grad_weight, grad_psqt, gradients;  // grad_bias: of the transformer, where row gradients are made

  private:
    const GradientLayout layout_;
    std::optional<Tensor> partials_, grad_output_;
    Tensor weight_, grad_sums_;
    Finish finish_{};
};

// grad_x, grad_bias, grad_psqt, grad_weight, gradients
using AllGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

AllGradients gradients_of(const std::optional<Tensor>& x_in, const Tensor& order, const Tensors& parameters,
                          const std::optional<Tensor>& grad_sums, const std::optional<Tensor>& partials,
                          const std::optional<Tensor>& grad_output, const Tensors& scales, int64_t description,
                          std::optional<ScalarType> grad_dtype) {
    constexpr const char* op = Gradients::op;
    if (!x_in && !grad_output) fail(op, "x", "neither x nor grad_output", "one of them");
    check_floats(op, "weight_0", parameters.at(0), {-1, -1, -1}, "[S, O, I]", parameters.at(0));
    const torch::stable::accelerator::DeviceGuard guard(parameters[0].get_device_index());
    Gradients all(x_in ? x_in->size(0) : grad_output->size(0), x_in.has_value(), order, parameters, partials,
                  grad_output, scales, description);
    const bool needs_x_grad = grad_dtype.has_value();
    const ScalarType to = grad_dtype.value_or(ScalarType::Float);
    const Float to_type = perspective_transformer::float_type(op, "grad_dtype", to);
    const Layer& first = all.layers.at[0];
    const Tensor grad_x =
        floats_like(parameters[0], {x_in && needs_x_grad ? all.of_order.positions : 0, first.inputs}, to);
    std::optional<Tensor> segments;
    if (x_in && (needs_x_grad || !all.has_weight)) {
        const Tensor x = check_start(op, *x_in, false, all.layers, parameters[0]);
        FirstBackward a = all.first_layer(grad_sums);
        dispatch_input(x.scalar_type(), [&]<class T>() {
            using Source = InputRows<T>;
            const Source source{const_data<T>(x), needs_x_grad ? grad_x.mutable_data_ptr() : nullptr, to_type,
                                all.layers.integers.x_scale, first.inputs};
            const auto run = [&]<int KO>() {
                constexpr int kTogether = kWorkers<Source, KO>;
                const int workers = multiprocessors(x.get_device_index()) * kTogether;
                segments = floats_like(x, {workers + a.slabs * all.layers.stacks, KO * 16, kSlab});
                a.segments = mutable_data<float>(*segments);
                const size_t bytes =
                    code_for(x) < 80 ? sizeof(BackwardMemory<Source, KO, true>) : sizeof(BackwardMemory<Source, KO>);
                launch_tiles("first_layer_backward", first_layer_backward<Source, KO>, workers,
                             SharedMemory{bytes, 0, kTogether}, current_stream(x), source, a);
                if (!all.has_weight) all.add_segments(a, workers, KO * 16);
            };
            first.outputs <= 16 ? run.template operator()<1>() : run.template operator()<2>();
        });
    }
    all.finish();
    return {grad_x, all.grad_bias, all.grad_psqt, all.grad_weight, all.gradients};
}

AllGradients gradients_op(const std::optional<Tensor>& x, const Tensor& order, Tensors parameters,
                          const std::optional<Tensor>& grad_sums, const std::optional<Tensor>& partials,
                          const std::optional<Tensor>& grad_output, Tensors scales, int64_t description,
                          std::optional<ScalarType> grad_dtype, Tensors through, std::vector<int64_t> transformer,
                          Numbers range_in, bool leaves_unused) {
    if (through.empty())
        return gradients_of(x, order, parameters, grad_sums, partials, grad_output, scales, description, grad_dtype);
    constexpr const char* op = Gradients::op;
    namespace pt = perspective_transformer;
    if (through.size() != 5 && through.size() != 6)
        fail(op, "through", text(through.size()) + " tensors",
             "saved, bucket, white, black, plan and perhaps psqt_bucket");
    if (!grad_dtype) fail(op, "grad_dtype", "none", "the dtype of the transformer's weight");
    const Tensor saved = through[0], bucket = through[1];
    const ScalarType weight_dtype = pt::check_float_dtype(op, "grad_dtype", *grad_dtype);
    const pt::Batch batch = pt::batch_of(op, {through.begin() + 2, through.end()});
    const pt::Transformer of = pt::transformer_of(op, transformer, range_in, pt::kMultiple);
    if (layers_of(op, parameters, description).count == 1) {
        const bool has_rows = grad_sums && grad_sums->scalar_type() == ScalarType::Byte;
        const auto [_, of_rows, factor, grad_weight, gradients] =
            gradients_of(x, order, parameters, grad_sums, partials, grad_output, scales, description, std::nullopt);
        if (has_rows) {
            const auto [made, no_bias, no_psqt] = pt::backward(
                {op, *grad_sums, std::nullopt, std::nullopt, leaves_unused}, batch, of, saved, weight_dtype);
            return {made, of_rows, no_psqt, grad_weight, gradients};
        }
        const auto [grad_rows, grad_bias, grad_psqt] =
            pt::backward({op, parameters[0], pt::Factors{factor, bucket}, std::nullopt, leaves_unused}, batch, of,
                         saved, weight_dtype);
        return {grad_rows, grad_bias, grad_psqt, grad_weight, gradients};
    }
    pt::check_plan_arguments(op, batch.white, batch.black, of.sizes.num_features, of.layout);
    check_device(op, "white", batch.white, Device::cuda, parameters[0], "weight_0");
    check_device(op, "plan", batch.plan, Device::cuda, parameters[0], "weight_0");
    check_device(op, "saved", saved, Device::cuda, parameters[0], "weight_0");
    const torch::stable::accelerator::DeviceGuard guard(parameters[0].get_device_index());
    Gradients all(batch.white.size(0), true, order, parameters, partials, grad_output, scales, description);
    const Layer& first = all.layers.at[0];
    if (!pt::kBuiltFor90 || of.layout.bucket_size == 0 || of.activation != nnue::Activation::kPairwise ||
        first.inputs % capabilities::kRowsMultiple != 0)
        fail(op, "parameters", "layers that the kernel does not support",
             "king buckets, pairwise products, and N a multiple of 64");
    if (weight_dtype != ScalarType::Float && weight_dtype != ScalarType::BFloat16)
        fail(op, "grad_dtype", dtype_name(weight_dtype), "float32 or bfloat16");
    if (saved.scalar_type() != ScalarType::Float && !capabilities::fits_16_bits(of.range.bound))
        fail(op, "bound", std::to_string(of.range.bound), "1/64 to 255 in 16 bits");
    if (all.of_order.positions == 0) fail(op, "white", "no positions", "at least one");
    FirstBackward a = all.first_layer(grad_sums);
    pt::bucketed::Through made;
    if constexpr (pt::kBuiltFor90)
        made = pt::bucketed::first_layer_backward(
            {torch::stable::contiguous(batch.white), torch::stable::contiguous(batch.black), batch.plan,
             batch.psqt_bucket},
            of.layout, pt::aligned(saved), of.sizes.num_features, of.range, all.layers.integers, a);
    Tensor grad_bias = floats_like(parameters[0], {first.inputs});
    a.segments = mutable_data<float>(made.segments);
    if (!all.has_weight) all.add_segments(a, made.workers, made.padded_outputs);
    all.add_bias(made.bias_segments, grad_bias);
    all.finish();
    std::optional<Tensor> of_psqt;
    if (grad_output) of_psqt = all.grad_psqt;
    const auto [grad_rows, _, grad_psqt] =
        pt::backward({op, made.row_gradients, std::nullopt, of_psqt, leaves_unused}, batch, of, saved, weight_dtype);
    return {grad_rows, grad_bias, grad_psqt, all.grad_weight, all.gradients};
}

std::tuple<Tensor, Tensor> add_shares_op(const Tensor& shares_in) {
    constexpr const char* op = "_layer_stacks_add_shares";
    check_floats(op, "shares", shares_in, {-1, -1}, "[P, n + 3]", shares_in);
    const int64_t processes = shares_in.size(0), numbers = shares_in.size(1) - 3;
    if (processes < 1 || numbers < 0)
        fail(op, "shares", "shape " + shape_text(shares_in.sizes()), "[P, n + 3] with P at least 1");
    const torch::stable::accelerator::DeviceGuard guard(shares_in.get_device_index());
    const Tensor shares = torch::stable::contiguous(shares_in);
    const Tensor totals = floats_like(shares, {3}), gradients = floats_like(shares, {numbers});
    const unsigned blocks = static_cast<unsigned>(std::max<int64_t>(1, divide_up(numbers, kThreads)));
    launch("shares_kernel", shares_kernel, blocks, kThreads, 0, current_stream(shares), const_data<float>(shares),
           processes, numbers, mutable_data<float>(totals), mutable_data<float>(gradients));
    return {totals, gradients};
}

int64_t describe_op(int64_t inputs, int64_t stacks, std::vector<int64_t> hidden, Numbers constants, Numbers integers) {
    const Layers layers = read_description(inputs, stacks, hidden, constants, integers);
    Numbers numbers{static_cast<double>(inputs), static_cast<double>(stacks)};
    numbers.insert(numbers.end(), hidden.begin(), hidden.end());
    numbers.insert(numbers.end(), constants.begin(), constants.end());
    numbers.insert(numbers.end(), integers.begin(), integers.end());
    return descriptions().add(layers, std::move(numbers));
}

}  // namespace
}  // namespace nnue::cuda::stacks

STABLE_TORCH_LIBRARY_IMPL(nnue, CUDA, m) {
    NNUE_IMPL(m, "_stack_order", &nnue::cuda::stacks::order_op);
    NNUE_IMPL(m, "_layer_stacks_first", &nnue::cuda::stacks::first_op);
    NNUE_IMPL(m, "_layer_stacks_forward", &nnue::cuda::stacks::forward_op);
    NNUE_IMPL(m, "_layer_stacks_backward", &nnue::cuda::stacks::backward_op);
    NNUE_IMPL(m, "_layer_stacks_loss", &nnue::cuda::stacks::loss_op);
    NNUE_IMPL(m, "_layer_stacks_gradients", &nnue::cuda::stacks::gradients_op);
    NNUE_IMPL(m, "_layer_stacks_add_shares", &nnue::cuda::stacks::add_shares_op);
}

STABLE_TORCH_LIBRARY_IMPL(nnue, CompositeExplicitAutograd, m) {
    NNUE_IMPL(m, "_layer_stacks_describe", &nnue::cuda::stacks::describe_op);
}
