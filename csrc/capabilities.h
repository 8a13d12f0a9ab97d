// Which kernels serve which part of a training step: the one table. The operators check their arguments against it, and
// Python chooses by it (nnue_trainer/ops/capabilities.py, the operators of cpu/capabilities.cpp). It is host code that
// takes a machine as data, so it can be evaluated for a GPU that is not there: `nnue explain RECIPE --gpu 8.9`.
//
// Every function returns the kernels and, where others would be faster, the reason why those are not taken. Kernels
// come in the order of their speed, the slowest first.
//
// How torch runs a call is an argument as well (`Mode`): Python finds it out for each call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "activation.h"
#include "enumerations.h"
#include "tile_memory.h"

namespace nnue::capabilities {

// Each reason with its text. The operator `kernel_reasons` gives the texts to Python, in this order.
#define NNUE_REASONS(X)                                                                                   \
    X(fastest, "")                                                                                        \
    X(weight_dtype, "the dtype of the weights is not float32, float16 or bfloat16")                       \
    X(no_features, "there are no features or no outputs")                                                 \
    X(odd_width, "the width of the feature transformer is odd")                                           \
    X(width_16, "the width of the feature transformer is not a multiple of 16")                           \
    X(no_library, "the CUDA operators are not loaded")                                                    \
    X(old_gpu, "the compute capability is below 7.5")                                                     \
    X(no_code, "the CUDA operators have no code for this GPU")                                            \
    X(forbidden, "set_cuda_kernels or NNUE_CUDA_KERNELS does not allow faster ones")                      \
    X(not_90, "the faster kernels need compute capability 9.0")                                           \
    X(no_90, "the CUDA operators were built without the kernels of compute capability 9.0")               \
    X(no_king_buckets, "the feature set has no king buckets, or its sizes do not show them")              \
    X(large_buckets, "a king bucket has more than 768 features")                                          \
    X(many_buckets, "there are more than 255 king buckets")                                               \
    X(many_unbucketed, "2^20 or more features lie outside king buckets")                                  \
    X(first_outputs, "the first layer after the transformer has more than 32 outputs")                    \
    X(inputs_16, "the number of inputs of the first layer after the transformer is not a multiple of 16") \
    X(shared_memory, "the layers need more than 99 KB of shared memory (64 KB on 7.5)")                   \
    X(many_layers, "there are more than 9 layers after the transformer, or more than 64 stacks")          \
    X(rounded_dtype, "layers that round take inputs in float32 and bfloat16 only")                        \
    X(output_dtype, "the dtype of the output is not float32, float16 or bfloat16")                        \
    X(values, "the features have values, which only the plain operator multiplies by")                    \
    X(wide_sums, "some sums of the layers are computed in float64")                                       \
    X(input_dtype, "the inputs of the layers are not float32, float16 or bfloat16")                       \
    X(cpu_dtype, "on a CPU the operators of the layers take float32 only")                                \
    X(stack_dtype, "the weights of the layers are not float32")                                           \
    X(unaligned, "the inputs or the first weight of the layers are not aligned to 16 bytes")              \
    X(one_by_one, "on a GPU there are operators for all layers together only")                            \
    X(autocast, "on a CPU, autocast uses torch's operators for the layers")                               \
    X(compiled, "on a GPU, torch.compile uses torch's operators for the layers")                          \
    X(onnx, "torch.onnx uses torch's operators for the layers")                                           \
    X(transformed, "torch.func and forward mode use torch's operators")                                   \
    X(not_needed, "the transformer is not trained, or the batch is empty")                                \
    X(on_cpu, "on a CPU the transformer takes the gradient of its output")                                \
    X(layers_in_torch, "the layers after the transformer are computed by torch")                          \
    X(transformer_in_torch, "the transformer is computed by torch")                                       \
    X(one_layer_psqt, "there is one layer after the transformer, and PSQT columns")                       \
    X(divided_layer, "there is one layer after the transformer, and divided columns")                     \
    X(not_pairwise, "the activation is not pairwise")                                                     \
    X(width_64, "the width of the feature transformer is not a multiple of 64")                           \
    X(gradient_dtype, "the trained weights are float16, or their dtype is not that of the output")        \
    X(bound, "the bound of the activation is outside 1/64 to 255, which 16-bit products need")            \
    X(portable, "the portable kernels of the transformer take the gradient of its output")                \
    X(x_16_kb, "the inputs of a position take more than 16 KB")                                           \
    X(few_rows, "weight and moments have few of these rows, and most are in every batch")                 \
    X(cpu_matrices, "on a CPU the directions of matrices are computed by torch")                          \
    X(long_sides, "the matrices have more than 64 rows and more than 64 columns (52 on 7.5)")

enum class Reason : int {
#define NNUE_NAME(name, text) name,
    NNUE_REASONS(NNUE_NAME)
#undef NNUE_NAME
};

constexpr std::string_view kReasonTexts[] = {
#define NNUE_TEXT(name, text) text,
    NNUE_REASONS(NNUE_TEXT)
#undef NNUE_TEXT
};

template <class Kernels>
struct Choice {
    Kernels kernels;
    Reason reason = Reason::fastest;
};

// ---- machines ------------------------------------------------------------------------------------------------------

// The CPU, or a GPU and what the library has for it.
struct Machine {
    int64_t capability;       // 10 · major + minor; 0: the CPU
    int64_t multiprocessors;  // of a GPU
    int64_t code;             // that can run there: Code, or 0 if no library is loaded
    int64_t allowed;          // Code; what set_cuda_kernels leaves

    bool is_cpu() const { return capability == 0; }
};

enum Code : int64_t { kPortableCode = 1, kHopperCode = 2, kLibrary = 4 };

constexpr int64_t kOldestGpu = 75;

inline Reason why_no_code(const Machine& machine) {
    if (!(machine.code & kLibrary)) return Reason::no_library;
    if (machine.capability < kOldestGpu) return Reason::old_gpu;
    return machine.code & kPortableCode ? Reason::fastest : Reason::no_code;
}

// Whether the kernels of 9.0 run there.
inline bool has_hopper(const Machine& machine) {
    return machine.capability == 90 && (machine.code & kHopperCode);
}

// ---- modes ---------------------------------------------------------------------------------------------------------

// How torch runs a call: as it is, with or without reverse mode; within autocast; traced by a compiler; recorded by
// torch.onnx; in a transform of torch.func or on tensors with tangents of forward mode. Where several hold, the last.
NNUE_ENUMERATION(Mode, plain, autocast, compiled, onnx, transformed)

constexpr Reason kModeReasons[] = {Reason::fastest, Reason::autocast, Reason::compiled, Reason::onnx,
                                   Reason::transformed};

// Sets of modes that operators serve.
constexpr unsigned in(Mode mode) {
    return 1u << static_cast<int>(mode);
}
constexpr unsigned kTransformerModes = in(Mode::plain) | in(Mode::autocast) | in(Mode::compiled) | in(Mode::onnx);
constexpr unsigned kTileModes = in(Mode::plain) | in(Mode::autocast);
constexpr unsigned kCpuLayerModes = in(Mode::plain) | in(Mode::compiled);

inline Reason why_not(unsigned served, Mode mode) {
    return served & in(mode) ? Reason::fastest : kModeReasons[static_cast<int>(mode)];
}

// ---- the feature transformer of both perspectives ------------------------------------------------------------------

NNUE_ENUMERATION(Transformer, torch, cpu, portable, hopper)

// Its rows. king_buckets: whether the kernels are made for feature sets with king buckets, and for no others.
struct TransformerRow {
    Transformer kernels;
    bool on_gpu;
    int64_t capability, code;  // exactly this capability, 0: any from kOldestGpu on
    int64_t multiple;          // of the width
    bool king_buckets;
};

constexpr int64_t kGpuMultiple = 16, kCpuMultiple = 2;

constexpr TransformerRow kTransformerRows[] = {
    {Transformer::hopper, true, 90, kHopperCode, kGpuMultiple, true},
    {Transformer::portable, true, 0, kPortableCode, kGpuMultiple, false},
    {Transformer::cpu, false, 0, 0, kCpuMultiple, false},
};

constexpr int64_t kLargestBucket = 768, kMostBuckets = 255, kMostUnbucketed = int64_t{1} << 20;
constexpr int64_t kMostFeatures = kMostUnbucketed + kMostBuckets * kLargestBucket;

struct TransformerShape {
    ScalarType weight_dtype;
    int64_t num_features, num_outputs;  // num_outputs -1: a plan, which serves any
    int64_t bucket_size, num_bucketed;  // bucket_size 0: no king buckets
    ScalarType output_dtype;
    bool has_values;  // factors of the entries
};

inline bool is_float_of_operators(ScalarType dtype) {
    return dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16;
}

// Why a set of kernels does not serve a shape; `fastest` if it does.
inline Reason why_not(const TransformerRow& row, const Machine& machine, const TransformerShape& shape) {
    if (!is_float_of_operators(shape.weight_dtype)) return Reason::weight_dtype;
    if (!is_float_of_operators(shape.output_dtype)) return Reason::output_dtype;
    if (shape.has_values) return Reason::values;
    if (shape.num_features == 0 || shape.num_outputs == 0) return Reason::no_features;
    if (shape.num_outputs >= 0 && shape.num_outputs % row.multiple != 0)
        return !row.on_gpu ? Reason::odd_width : Reason::width_16;
    if (!row.on_gpu) return Reason::fastest;
    if (const Reason reason = why_no_code(machine); reason != Reason::fastest) return reason;
    if (row.capability != 0 && machine.capability != row.capability) return Reason::not_90;
    if (!(machine.code & row.code)) return Reason::no_90;
    if (!(machine.allowed & row.code)) return Reason::forbidden;
    if (!row.king_buckets) return Reason::fastest;
    if (shape.bucket_size <= 0) return Reason::no_king_buckets;
    if (shape.bucket_size > kLargestBucket) return Reason::large_buckets;
    if (shape.num_bucketed > kMostBuckets * shape.bucket_size) return Reason::many_buckets;
    if (shape.num_features - shape.num_bucketed >= kMostUnbucketed) return Reason::many_unbucketed;
    return Reason::fastest;
}

inline Choice<Transformer> transformer(const Machine& machine, const TransformerShape& shape, Mode mode) {
    // Why the fastest kernels for this machine are not used.
    Reason reason = why_not(kTransformerModes, mode);
    if (reason != Reason::fastest) return {Transformer::torch, reason};
    for (const TransformerRow& row : kTransformerRows) {
        if (row.on_gpu == machine.is_cpu()) continue;
        const Reason not_this = why_not(row, machine, shape);
        if (not_this == Reason::fastest) return {row.kernels, reason};
        // If slower kernels can run, this reason is returned with them; otherwise that of the last ones.
        reason = not_this;
    }
    return {Transformer::torch, reason};
}

// ---- the layers after it ------------------------------------------------------------------------------------------

// one_pass: tiles, and one kernel for all of a single layer of one output.
NNUE_ENUMERATION(Stacks, torch, cpu, tiles, one_pass)

constexpr int kMostOutputs = 4096;  // of a layer; its sums take 1 MB, and with more an int might not count the bytes

inline Reason why_not_tiles(int64_t capability, const layer_stacks::Layers& layers) {
    const layer_stacks::Layer& first = layers.at[0];
    if (first.outputs > layer_stacks::kMostFirstOutputs) return Reason::first_outputs;
    if (first.inputs % layer_stacks::kInputTile != 0) return Reason::inputs_16;
    for (int l = 0; l < layers.count; ++l) {
        if (layers.at[l].outputs > kMostOutputs) return Reason::shared_memory;
    }
    const size_t bytes = sizeof(float) * layer_stacks::tile_layout(layers).floats + layer_stacks::kDeclaredBytes;
    return bytes > layer_stacks::most_shared_bytes(capability) ? Reason::shared_memory : Reason::fastest;
}

constexpr int64_t kOnePass = 16 * 1024;  // bytes of x of a position up to which one kernel does all of a layer

// Whether one kernel does all of a single layer of one output. x_bytes: of each number of x.
inline bool is_one_pass(const layer_stacks::Layers& layers, int64_t x_bytes) {
    return layers.count == 1 && layers.at[0].inputs * x_bytes <= kOnePass;
}

// A call of the layers: the dtypes of the inputs of the first of them and of the weights; whether inputs and first
// weight lie at a multiple of 16 bytes; whether some sums are computed in float64.
struct StacksCall {
    ScalarType x_dtype, weight_dtype;
    bool is_aligned, wide_sums;
    Mode mode;
};

// One layer, which computes each position for its own stack.
inline Choice<Stacks> layer(const Machine& machine, const StacksCall& call) {
    if (!machine.is_cpu()) return {Stacks::torch, Reason::one_by_one};
    if (const Reason reason = why_not(kCpuLayerModes, call.mode); reason != Reason::fastest)
        return {Stacks::torch, reason};
    const bool is_float = call.x_dtype == ScalarType::Float && call.weight_dtype == ScalarType::Float;
    return is_float ? Choice<Stacks>{Stacks::cpu} : Choice<Stacks>{Stacks::torch, Reason::cpu_dtype};
}

inline Reason why_not_together(const Machine& machine, const layer_stacks::Layers& layers, const StacksCall& call) {
    if (const Reason reason = why_not(kTileModes, call.mode); reason != Reason::fastest) return reason;
    if (const Reason reason = why_no_code(machine); reason != Reason::fastest) return reason;
    if (const Reason reason = why_not_tiles(machine.capability, layers); reason != Reason::fastest) return reason;
    if (!is_float_of_operators(call.x_dtype)) return Reason::input_dtype;
    if (call.weight_dtype != ScalarType::Float) return Reason::stack_dtype;
    if (layers.integers.rounds && call.x_dtype == ScalarType::Half) return Reason::rounded_dtype;
    if (call.wide_sums) return Reason::wide_sums;
    return call.is_aligned ? Reason::fastest : Reason::unaligned;
}

inline Choice<Stacks> stacks(const Machine& machine, const layer_stacks::Layers& layers, const StacksCall& call) {
    if (machine.is_cpu()) return layer(machine, call);
    if (const Reason reason = why_not_together(machine, layers, call); reason != Reason::fastest)
        return {Stacks::torch, reason};
    if (layers.count > 1) return {Stacks::tiles};
    if (!is_one_pass(layers, call.x_dtype == ScalarType::Float ? 4 : 2)) return {Stacks::tiles, Reason::x_16_kb};
    return {Stacks::one_pass};
}

// ---- the gradient between the two ----------------------------------------------------------------------------------

// whole: the gradient of the transformer's output is made. factors: the backward of the transformer takes its two
// factors. rows: the backward of the first layer, or the loss of the only one, continues to the gradients of the
// transformer's rows.
NNUE_ENUMERATION(Between, whole, factors, rows)

struct BetweenShape {
    ScalarType trained_dtype,
        output_dtype;             // of what takes the gradient of the weight, and of the transformer's output
    int64_t num_outputs, hidden;  // N, and the layers after the transformer but the last
    Activation activation;
    double bound;
    bool has_psqt;
    bool divided;    // each of several processes has some columns of the transformer
    bool is_needed;  // the transformer is trained, and there are positions
};

constexpr int64_t kRowsMultiple = 64;  // of N, for `rows`

// Whether the products of the activation can be made in fp16.
inline bool fits_16_bits(double bound) {
    return bound >= 1.0 / 64 && bound <= 255;
}

inline Reason why_not_rows(const BetweenShape& shape) {
    if (shape.activation != Activation::kPairwise) return Reason::not_pairwise;
    if (shape.num_outputs % kRowsMultiple != 0) return Reason::width_64;
    const bool is_float = shape.trained_dtype == ScalarType::Float;
    if ((!is_float && shape.trained_dtype != ScalarType::BFloat16) || shape.output_dtype != shape.trained_dtype)
        return Reason::gradient_dtype;
    return !is_float && !fits_16_bits(shape.bound) ? Reason::bound : Reason::fastest;
}

inline Choice<Between> between(Transformer transformer, Stacks stacks, const BetweenShape& shape) {
    const auto whole = [](Reason reason) { return Choice<Between>{Between::whole, reason}; };
    if (transformer == Transformer::cpu) return whole(Reason::on_cpu);
    if (transformer == Transformer::torch) return whole(Reason::transformer_in_torch);
    if (stacks != Stacks::tiles && stacks != Stacks::one_pass) return whole(Reason::layers_in_torch);
    if (!shape.is_needed) return whole(Reason::not_needed);
    if (shape.hidden == 0) {
        if (shape.has_psqt) return whole(Reason::one_layer_psqt);
        if (shape.divided) return whole(Reason::divided_layer);
        const bool clips = shape.activation == Activation::kCReLU || shape.activation == Activation::kSCReLU;
        const bool in_pass = transformer == Transformer::hopper && stacks == Stacks::one_pass && clips &&
                             shape.trained_dtype == ScalarType::BFloat16 && fits_16_bits(shape.bound);
        return {in_pass ? Between::rows : Between::factors};
    }
    if (transformer != Transformer::hopper) return whole(Reason::portable);
    if (const Reason reason = why_not_rows(shape); reason != Reason::fastest) return whole(reason);
    return {Between::rows};
}

// ---- the update ----------------------------------------------------------------------------------------------------

// every_row: all rows of a feature transformer are updated in every step. late: when they are needed, with the same
// bits.
NNUE_ENUMERATION(Update, every_row, late)

// On a GPU: the number of rows that are trained alike, times that of the tensors that have them, weight and moments. A
// large batch has more of the rows.
constexpr int64_t kLargeBatch = 32768, kLeastLateRows = 60000, kLeastInLargeBatch = 98304;

inline Choice<Update> update(const Machine& machine, int64_t rows, int64_t tensors, int64_t positions) {
    if (machine.is_cpu()) return {Update::late};
    if (rows * tensors < (positions > kLargeBatch ? kLeastInLargeBatch : kLeastLateRows))
        return {Update::every_row, Reason::few_rows};
    return {Update::late};
}

// The step of Muon for matrices of linear layers.
NNUE_ENUMERATION(MatrixStep, torch, operators)

// Of the shorter side: three square matrices of doubles fit into 99 KB of shared memory, and into the 64 KB of 7.5.
constexpr int kMostMatrixSide = 64, kMostMatrixSideOn75 = 52;

inline Choice<MatrixStep> matrix_step(const Machine& machine, int64_t rows, int64_t columns) {
    if (machine.is_cpu()) return {MatrixStep::torch, Reason::cpu_matrices};
    if (const Reason reason = why_no_code(machine); reason != Reason::fastest) return {MatrixStep::torch, reason};
    const int most = machine.capability < 80 ? kMostMatrixSideOn75 : kMostMatrixSide;
    if (std::min(rows, columns) > most) return {MatrixStep::torch, Reason::long_sides};
    return {MatrixStep::operators};
}

}  // namespace nnue::capabilities
