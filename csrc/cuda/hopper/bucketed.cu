// The kernels of compute capability 9.0 on tensors (bucketed.cuh), launched on torch's current stream.

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>

#include "../index_check.cuh"
#include "../perspective_transformer.cuh"
#include "backward_wgmma.cuh"
#include "bucketed.cuh"
#include "first_layer_through.cuh"
#include "forward_gather_fp32.cuh"
#include "forward_wgmma_16bit.cuh"
#include "one_output_through.cuh"
#include "psqt.cuh"
#include "rare_features.cuh"

namespace nnue::perspective_transformer::bucketed {
namespace {

using namespace nnue::cuda;

// The sizes of index rows, without their data.
IndexRows sizes_of_rows(int64_t positions, int64_t max_active, int64_t num_features, PlanLayout layout) {
    const auto [bucket_size, num_bucketed, weight_bytes] = layout;
    IndexRows in{};
    in.positions = static_cast<int>(positions);
    in.max_active = static_cast<int>(max_active);
    in.num_bucketed = static_cast<int>(num_bucketed);
    in.num_unbucketed = static_cast<int>(num_features - num_bucketed);
    in.bucket_size = static_cast<int>(bucket_size);
    in.num_buckets = static_cast<int>(std::max<int64_t>(1, divide_up(num_bucketed, bucket_size)));
    in.weight_bytes = static_cast<int>(weight_bytes);
    return in;
}

IndexRows index_rows(const Tensor& white, const Tensor& black, int64_t num_features, PlanLayout layout) {
    IndexRows in = sizes_of_rows(white.size(0), white.size(1), num_features, layout);
    in.white = const_data<int32_t>(white);
    in.black = const_data<int32_t>(black);
    return in;
}

// The result of _perspective_plan.
struct Plan {
    BucketPlan buckets;
    GroupFeatures group_features;  // for 16-bit weights
    UnbucketedLists lists;         // where there are unbucketed features
};

Plan carve_plan(Carver& carver, const IndexRows& in) {
    const BucketPlan buckets = carve_bucket_plan(carver, in);
    const GroupFeatures group_features = carve_group_features(carver, in);
    return {buckets, group_features, carve_unbucketed_lists(carver, in)};
}

Plan open_plan(const char* op, const Tensor& plan, const IndexRows& in) {
    return open_tensor(op, "plan", plan, carve_plan, in, kMadeByPlan);
}

int64_t slots(const IndexRows& in) {
    return int64_t(BucketPlan::tiles(in.positions, in.num_buckets)) * kTileRows;
}

psqt::Problem psqt_problem(const IndexRows& in, const BucketPlan& plan, const Tensor& psqt_bucket,
                           int64_t psqt_buckets) {
    return {in, plan, const_data<int64_t>(psqt_bucket), in.num_bucketed + in.num_unbucketed,
            static_cast<int>(psqt_buckets)};
}

// Allocates memory for the pieces that `carve` takes, and carves it.
template <class Carve>
Tensor new_pieces(const Carve& carve, const Tensor& like) {
    const Tensor memory = memory_for([&](Carver& carver, int) { carve(carver); }, 0, like);
    Carver carver{static_cast<char*>(memory.mutable_data_ptr())};
    carve(carver);
    return memory;
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
    psqt::Scratch scratch;
    const Tensor memory =
        new_pieces([&](Carver& carver) { scratch = psqt::carve_scratch(carver, grad_psqt.numel()); }, grad);
    psqt::launch_backward(psqt_problem(in, plan, psqt_bucket, psqt_buckets), const_data<float>(grad),
                          mutable_data<float>(grad_psqt), scratch, stream);
    return grad_psqt;
}

template <class Weight>
void run_forward(const ForwardProblem& p, int workers, cudaStream_t stream) {
    if constexpr (sizeof(Weight) == 2)
        one_hot_product::forward<Weight>(p, workers, stream);
    else
        forward_gather::forward(p, workers, stream);
}

// `makes_rows`: the row gradients are not there yet.
template <class Weight>
void run_backward(const BackwardProblem& p, bool makes_rows, int workers, cudaStream_t stream) {
    using namespace one_hot_product;
    constexpr int kTerms = sizeof(Weight) == 4 ? 2 : 1;
    if (makes_rows && (kTerms == 2 || p.grad_type == Float::kFloat32)) {
        make_row_gradients<kTerms, float>(p, stream);
    } else if (makes_rows) {
        make_row_gradients<1, uint16_t>(p, stream);
    }
    multiply_and_finish<kTerms>(p, workers, stream);
    start("irregular_backward_kernel", irregular_backward_kernel<Weight>, -1, (p.num_outputs / 2 + 63) / 64, 64, 0,
          stream, p);
}

constexpr const char* kMadeByStacks = "what _layer_stacks_gradients or _layer_stacks_loss makes for these sizes";

void open_row_gradients(const char* op, const Tensor& rows, BackwardProblem& p) {
    const auto carve = [&](Carver& carver, const IndexRows&) {
        one_hot_product::carve_row_gradients(carver, p);
        return p.grad_rows;
    };
    open_tensor(op, "grad_output", rows, carve, p.in, kMadeByStacks);
}

void check_saved(const char* op, const Tensor& saved, const IndexRows& in, int64_t num_outputs, ScalarType dtype) {
    check_shape(op, "saved", saved, {slots(in), num_outputs}, "what the forward saved");
    check_dtype(op, "saved", saved, {dtype});
}

// `kOutputs`: groups of 16 outputs. `x_scale`: what the gradient of the output is multiplied by.
template <int kTerms, int kOutputs, bool kRounds>
Through run_through(const BackwardProblem& p, cuda::stacks::FirstBackward a, float x_scale, const Tensor& like,
                    cudaStream_t stream) {
    using Source = first_layer_through::SavedRows<kTerms, kRounds>;
    using cuda::stacks::kSlab;
    const int workers = multiprocessors(like.get_device_index()) * cuda::stacks::kWorkers<Source, kOutputs>;
    const auto floats = [&](std::initializer_list<int64_t> shape) {
        return torch::stable::new_empty(like, std::vector<int64_t>(shape), ScalarType::Float);
    };
    Through made;
    made.workers = workers;
    made.padded_outputs = 16 * kOutputs;
    made.segments = floats({workers + a.slabs * a.of_order.stacks, made.padded_outputs, kSlab});
    made.bias_segments = floats({workers + a.slabs, 2, kSlab});
    const Tensor largest = floats({first_layer_through::kLargestGrid, 2});
    a.segments = mutable_data<float>(made.segments);
    const Source source{p, x_scale, reinterpret_cast<uint2*>(mutable_data<float>(largest)),
                        mutable_data<float>(made.bias_segments)};
    if (kTerms == 2)
        start("find_largest", first_layer_through::find_largest, -1, first_layer_through::kLargestGrid,
              first_layer_through::kLargestThreads, 0, stream, a.grad_sums, a.of_order.positions * a.outputs, a.weight,
              a.of_order.stacks * a.outputs * int64_t{a.inputs}, const_cast<uint2*>(source.largest));
    constexpr size_t kShared = sizeof(cuda::stacks::BackwardMemory<Source, kOutputs>);
    start("first_layer_backward", cuda::stacks::first_layer_backward<Source, kOutputs>, kShared, workers,
          cuda::stacks::kThreads, kShared, stream, source, a);
    return made;
}

void check_sizes(const char* op, const Tensor& white, int64_t num_features, PlanLayout layout) {
    const auto [bucket_size, num_bucketed, weight_bytes] = layout;
    if (weight_bytes != 2 && weight_bytes != 4) fail(op, "weight_bytes", weight_bytes, "2 or 4");
    if (bucket_size < 0 || bucket_size > capabilities::kLargestBucket) {
        fail(op, "bucket_size", bucket_size, "0 <= bucket_size <= " + text(capabilities::kLargestBucket));
    }
    if (num_bucketed < 0 || num_bucketed > num_features) {
        fail(op, "num_bucketed", num_bucketed, "0 <= num_bucketed <= F = " + text(num_features));
    }
    const int64_t buckets = divide_up(num_bucketed, bucket_size);
    if (buckets > capabilities::kMostBuckets) {
        fail(op, "bucket_size", text(buckets) + " buckets", "at most " + text(capabilities::kMostBuckets));
    }
    const int64_t slots = 2 * white.size(0) + 64 * (buckets + 1);
    if (slots >= 1 << 27 || (num_bucketed < num_features && slots * white.size(1) >= (int64_t(1) << 32)))
        fail(op, "white", shape_text(white.sizes()), "2 B < 2^27, and 2 B K < 2^32 if there are unbucketed features");
    if (num_features - num_bucketed >= capabilities::kMostUnbucketed)
        fail(op, "F", num_features, "F - num_bucketed < 2^20");
}

Tensor plan(const Tensor& white, const Tensor& black, const Tensor& black_to_move, int64_t num_features,
            PlanLayout layout) {
    IndexRows in = index_rows(white, black, num_features, layout);
    in.black_to_move = const_data<uint8_t>(black_to_move);
    Tensor memory = memory_for(carve_plan, in, white);
    if (in.positions == 0) return memory;
    const Plan open = open_plan(kPlan, memory, in);
    const cudaStream_t stream = current_stream(white);
    bucket_plan::place(in, open.buckets, stream);
    rare_features::list(in, open.buckets, stream);
    if (in.num_unbucketed > 0) {
        ListScratch lists;
        const Tensor scratch = new_pieces([&](Carver& carver) { lists = carve_list_scratch(carver, in); }, white);
        unbucketed_lists::build(in, open.buckets, open.lists, lists, stream);
    }
    if (has_group_features(in))
        group_features::build<capabilities::kMostFeatures>(in, open.buckets, open.group_features, stream);
    return memory;
}

Three forward(const Batch& batch, PlanLayout layout, const Tensor& weight, const Tensor& bias,
              const std::optional<Tensor>& psqt, Activation activation, Range range,
              std::optional<ScalarType> out_dtype, bool save) {
    const auto& [white, black, plan, psqt_bucket] = batch;
    const int64_t num_features = weight.size(0), num_outputs = weight.size(1);
    const cudaStream_t stream = current_stream(weight);
    const Float weight_type = float_type(kForward, "weight", weight.scalar_type());
    const auto weight_bytes = static_cast<int64_t>(weight.element_size());
    if (layout.weight_bytes != weight_bytes)
        fail(kForward, "layout", "weight_bytes " + text(layout.weight_bytes), text(weight_bytes) + ", as weight has");
    ForwardProblem p{};
    p.in = index_rows(white, black, num_features, layout);
    const Plan open = open_plan(kForward, plan, p.in);
    p.plan = open.buckets;
    p.group_features = open.group_features;
    p.num_outputs = static_cast<int>(num_outputs);
    p.activation = activation;
    p.bound = range.bound;
    p.scale = range.scale;
    p.rounds_down = range.rounds_down;
    if (out_dtype) p.out_type = float_type(kForward, "output_dtype", *out_dtype);
    Tensor out = torch::stable::new_empty(
        weight, {out_dtype ? p.in.positions : 0, output_width(p.activation, num_outputs)}, out_dtype);
    // The backward of the identity needs no sums.
    const bool saves = save && p.activation != Activation::kIdentity;
    Tensor saved = torch::stable::new_empty(weight, {saves ? slots(p.in) : 0, num_outputs},
                                            weight_type == Float::kFloat32 ? ScalarType::Float : ScalarType::Half);
    Tensor psqt_out = psqt ? psqt_forward(kForward, p.in, p.in.num_bucketed + p.in.num_unbucketed,
                                          psqt::BlackFirst{p.plan}, *psqt, *psqt_bucket, {0, p.in.positions}, stream)
                           : torch::stable::new_empty(weight, {0}, ScalarType::Float);
    if (p.in.positions == 0) return {out, psqt_out, saved};
    p.weight = weight.const_data_ptr();
    p.bias = const_data<float>(bias);
    p.out = out_dtype ? out.mutable_data_ptr() : nullptr;
    p.saved = saves ? saved.mutable_data_ptr() : nullptr;
    const auto run = weight_type == Float::kFloat32   ? run_forward<float>
                     : weight_type == Float::kFloat16 ? run_forward<__half>
                                                      : run_forward<__nv_bfloat16>;
    run(p, multiprocessors(weight.get_device_index()), stream);
    return {out, psqt_out, saved};
}

Tensor psqt_output(const Batch& batch, PlanLayout layout, const Tensor& psqt, PositionRange wanted) {
    const int64_t num_features = psqt.size(0);
    const IndexRows in = index_rows(batch.white, batch.black, num_features, layout);
    const psqt::BlackFirst black_first{open_plan(kPsqt, batch.plan, in).buckets};
    return psqt_forward(kPsqt, in, static_cast<int>(num_features), black_first, psqt, *batch.psqt_bucket, wanted,
                        current_stream(psqt));
}

Three backward(const OutputGradients& gradients, const Batch& batch, PlanLayout layout, const Tensor& saved,
               Sizes sizes, Activation activation, Range range, ScalarType dtype) {
    const Tensor& grad_output = gradients.output;
    const auto& [white, black, plan, psqt_bucket] = batch;
    const auto [num_features, num_outputs, psqt_buckets] = sizes;
    const cudaStream_t stream = current_stream(grad_output);
    BackwardProblem p{};
    p.leaves_unused = gradients.leaves_unused;
    p.activation = activation;
    p.in = index_rows(white, black, num_features, layout);
    const Plan open = open_plan(gradients.op, plan, p.in);
    p.plan = open.buckets;
    p.unbucketed = open.lists;
    p.num_outputs = static_cast<int>(num_outputs);
    p.bound = range.bound;
    p.scale = range.scale;
    // Bytes are row gradients, made by first_layer_backward.
    const bool makes_rows = grad_output.scalar_type() != ScalarType::Byte;
    if (makes_rows) p.grad_type = float_type(gradients.op, "grad_output", grad_output.scalar_type());
    p.weight_type = float_type(gradients.op, "weight_dtype", dtype);
    if (p.activation != Activation::kIdentity)
        check_saved(gradients.op, saved, p.in, num_outputs,
                    dtype == ScalarType::Float ? ScalarType::Float : ScalarType::Half);
    Tensor grad_weight = torch::stable::new_empty(grad_output, {num_features, num_outputs}, dtype);
    Tensor grad_bias = torch::stable::new_empty(grad_output, {makes_rows ? num_outputs : 0}, ScalarType::Float);
    Tensor grad_psqt = psqt_buckets == 0
                           ? torch::stable::new_empty(grad_output, {0}, ScalarType::Float)
                           : psqt_backward(p.in, p.plan, *gradients.psqt, *psqt_bucket, psqt_buckets, stream);
    p.grad_weight = grad_weight.mutable_data_ptr();
    p.grad_bias = makes_rows ? static_cast<float*>(grad_bias.mutable_data_ptr()) : nullptr;
    if (p.in.positions == 0) {
        const size_t bytes = size_t(num_features) * num_outputs * (dtype == ScalarType::Float ? 4 : 2);
        check_cuda(cudaMemsetAsync(p.grad_weight, 0, bytes, stream), "memset");
        if (makes_rows) check_cuda(cudaMemsetAsync(p.grad_bias, 0, num_outputs * sizeof(float), stream), "memset");
        return {grad_weight, grad_bias, grad_psqt};
    }
    p.grad_out = output_gradient(gradients);
    p.saved = saved.const_data_ptr();
    if (!makes_rows) open_row_gradients(gradients.op, grad_output, p);
    const auto carve = [&](Carver& carver) {
        if (makes_rows) one_hot_product::carve_row_gradients(carver, p);
        one_hot_product::carve_scratch(carver, p);
    };
    const Tensor scratch = new_pieces(carve, grad_output);
    const auto run = p.weight_type == Float::kFloat32   ? run_backward<float>
                     : p.weight_type == Float::kFloat16 ? run_backward<__half>
                                                        : run_backward<__nv_bfloat16>;
    run(p, makes_rows, multiprocessors(grad_output.get_device_index()), stream);
    return {grad_weight, grad_bias, grad_psqt};
}

std::string layout_text(int64_t positions, int64_t max_active, int64_t num_features, PlanLayout layout) {
    const IndexRows in = sizes_of_rows(positions, max_active, num_features, layout);
    return "{\"slots\": " + std::to_string(slots(in)) + ", \"plan\": " + described(carve_plan, in) + "}";
}

}  // namespace

const Kernels kKernels{check_sizes, plan, forward, psqt_output, backward, layout_text};

Through first_layer_backward(const Batch& batch, PlanLayout layout, const Tensor& saved, int64_t num_features,
                             Range range, const layer_stacks::Integers& integers, cuda::stacks::FirstBackward a) {
    constexpr const char* op = "_layer_stacks_gradients";
    const auto& [white, black, plan, psqt_bucket] = batch;
    BackwardProblem p{};
    p.in = index_rows(white, black, num_features, layout);
    p.plan = open_plan(op, plan, p.in).buckets;
    p.num_outputs = a.inputs;
    p.activation = Activation::kPairwise;
    p.bound = range.bound;
    p.scale = range.scale;
    const bool wide = saved.scalar_type() == ScalarType::Float;
    p.weight_type = wide ? Float::kFloat32 : Float::kBFloat16;
    check_saved(op, saved, p.in, p.num_outputs, wide ? ScalarType::Float : ScalarType::Half);
    p.saved = saved.const_data_ptr();
    const Tensor rows = new_pieces([&](Carver& carver) { one_hot_product::carve_row_gradients(carver, p); }, saved);
    const cudaStream_t stream = current_stream(saved);
    static_assert(layer_stacks::kMostFirstOutputs == 32);
    const auto choose = [&]<bool kRounds>() {
        return a.outputs <= 16 ? (wide ? run_through<2, 1, kRounds> : run_through<1, 1, kRounds>)
                               : (wide ? run_through<2, 2, kRounds> : run_through<1, 2, kRounds>);
    };
    const auto run = integers.rounds ? choose.template operator()<true>() : choose.template operator()<false>();
    Through made = run(p, a, integers.x_scale, saved, stream);
    made.row_gradients = rows;
    return made;
}

Tensor one_output_through(const Batch& batch, const Transformer& of, const Tensor& saved, float x_scale,
                          const cuda::stacks::TileArguments& a) {
    using one_output_through::SavedOutputs;
    constexpr const char* op = "_layer_stacks_loss";
    BackwardProblem p{};
    const bool clips = of.activation == Activation::kCReLU || of.activation == Activation::kSCReLU;
    if (of.layout.weight_bytes != 2 || !clips || a.layers.at[0].inputs != 2 * of.sizes.num_outputs)
        fail(op, "transformer", "one that the kernel does not support",
             "16-bit weights, CReLU or SCReLU, and 2 N inputs");
    if (!capabilities::fits_16_bits(of.range.bound))
        fail(op, "bound", std::to_string(of.range.bound), "1/64 to 255 in 16 bits");
    p.in = index_rows(batch.white, batch.black, of.sizes.num_features, of.layout);
    p.plan = open_plan(op, batch.plan, p.in).buckets;
    p.num_outputs = static_cast<int>(of.sizes.num_outputs);
    p.bound = of.range.bound;
    p.scale = of.range.scale;
    p.weight_type = Float::kBFloat16;
    check_saved(op, saved, p.in, p.num_outputs, ScalarType::Half);
    p.saved = saved.const_data_ptr();
    const Tensor rows = new_pieces([&](Carver& carver) { one_hot_product::carve_row_gradients(carver, p); }, saved);
    const Tensor shares = torch::stable::new_empty(saved, {one_output_through::kShares}, ScalarType::Float);
    const cudaStream_t stream = current_stream(saved);
    start("weigh_positions", one_output_through::weigh_positions, -1, one_output_through::kShares,
          cuda::stacks::kThreads, 0, stream, a, mutable_data<float>(shares));
    const auto tiles = static_cast<unsigned>(a.of_order.most_tiles());
    const auto run = [&]<bool kSquares, bool kRounds>() {
        cuda::stacks::dispatch_packs<__half>(2 * p.num_outputs, [&]<int kPacks>() {
            const SavedOutputs<kSquares, kRounds> source{p, x_scale, const_data<float>(shares)};
            const auto kernel = cuda::stacks::one_output_kernel<SavedOutputs<kSquares, kRounds>, kPacks, kRounds>;
            start("one_output_kernel", kernel, -1, tiles, cuda::stacks::kThreads, 0, stream, source, a);
        });
    };
    const bool squares = of.activation == Activation::kSCReLU;
    if (a.layers.integers.rounds)
        squares ? run.template operator()<true, true>() : run.template operator()<false, true>();
    else
        squares ? run.template operator()<true, false>() : run.template operator()<false, false>();
    return rows;
}

}  // namespace nnue::perspective_transformer::bucketed
