// The feature transformer of both perspectives in one operator: the contract, and the checks that hold on every device.
//
// acc[p, b] = bias + the sum of weight[i] over the indices i of row b of perspective p (white, black). Each accumulator
// is activated and multiplied by `scale`, and the two results of a position are joined, side to move first:
//
//   white, black    int32 [B, K]    rows as in feature_transformer.h
//   black_to_move   uint8 [B]
//   weight          [F, N]          float32, float16 or bfloat16; sums are float32
//   bias            [N]             float32
//   output          [B, 2 W]        W = N / 2 for pairwise, else N; float32, float16 or bfloat16, rounded once
//   psqt            float32 [F, P]  optional, and with it `psqt_bucket` int64 [B]
//   psqt output     float32 [B]     (the sum of psqt[i, psqt_bucket[b]] over the side to move's indices - the same over
//                                   the other side's) / 2; no elements if there is no psqt
//
// _perspective_plan makes the plan of a batch, which forward and backward share. Without `check_indices`, CUDA skips
// illegal indices and reports none. A call is described by typed fields,
// which a net computes once:
//
//   batch         [white, black, plan]; with psqt also psqt_bucket
//   transformer   [F, N, P, bucket_size, num_bucketed, weight_bytes, activation, rounds_down]: the sizes (P = 0: no
//                 psqt), what the plan was made with, the activation (activation.h), and a flag
//   range         [bound, scale]
//
// With `rounds_down` (CUDA only) the forward rounds its output down before it rounds it to the dtype, as an engine with
// integers does.
//
// `saved` is what the forward leaves for the backward if `save` is set. Without grad_psqt the backward makes no
// gradient of psqt, and returns one without elements.
//
// In C++ the layer after the transformer may give the backward something else than the gradient of `output`
// (OutputGradients): the two factors of it, if that layer has one output; or the gradients of rows, which
// _layer_stacks_gradients or _layer_stacks_loss (layer_stacks.h) makes for the kernels of 9.0.
//
// The layouts of `plan` and `saved` are private to this version of the library and to the kernels;
// _perspective_transformer_layout describes those of CUDA, for fake kernels and tests, in a text of uint8 [n]. A PSQT
// bucket outside [0, P) is an error, which CUDA reports as it reports an illegal index (cuda/index_check.cuh).
//
// On CUDA there are two sets of kernels, and bucket_size selects one: 0 is for the portable ones, which
// every GPU of compute capability 7.5 or later has and which take any rows (num_bucketed is not used); N must be a
// multiple of 16 and 2 B K < 2^31. Any other bucket_size is for those of compute capability 9.0.
// capabilities.h lists the kernels of each device.
//
// Those of 9.0 group the rows by king bucket. The first `num_bucketed` features are divided into buckets of
// `bucket_size` consecutive ones. The kernels are made for feature sets in which all bucketed features of a row lie in
// one bucket and none occurs twice. Rows that break this rule are legal and slow. The features from `num_bucketed` on
// are unbucketed: a row may hold any of them, mixed with the others in any order. They are fastest if few of them make
// up most of the batch (threats, pawn pairs). Rows that have one twice are legal and slow. N must be a multiple of 16,
// bucket_size at most 768, and there are at most 255 buckets.
//
// Their plan is made for weights of `weight_bytes` each, 4 (float32) or 2 (float16, bfloat16), since each forward reads
// lists of its own. It serves a forward with such weights, and the backward of that forward. Of a plan the operators
// check the size alone, so they may not notice that it was made for something else.
//
// The CPU takes any even N and ignores what the plan was made for.
//
// The derivative of the forward, which Python registers, gives the gradient of the weight to `leaf`, if there is one,
// in its dtype; with `sparse_grad` (CPU only) that is a sparse tensor. The kernels use neither.
//
// _perspective_psqt (CUDA only) gives the psqt output alone, of positions begin … end - 1. With `psqt_apart` (CUDA
// only) the forward leaves the psqt output unwritten, and the backward makes the gradient of psqt nevertheless, from
// that of the psqt output of all positions. So several processes that share a batch need not each compute the psqt
// output of all of it. With `saved_alone` (CUDA, king buckets, 16-bit weights) the output has no rows: only `saved` is
// read.
//
// _perspective_transformer_backward_rows (CPU only) leaves out the rows of the gradient of the weight that are zeros
// because no position of the batch has the feature: `grad_rows` [R, N] are the others, and `rows` int64 [R], ascending,
// are their numbers. The gradients of bias and psqt are those of _perspective_transformer_backward.
//
// Equal inputs always give equal bits, on the CPU for any number of threads and every instruction set.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "activation.h"
#include "feature_transformer.h"

namespace nnue::perspective_transformer {

constexpr const char* kPlan = "_perspective_plan";
constexpr const char* kForward = "_perspective_transformer_forward";
constexpr const char* kBackward = "_perspective_transformer_backward";
constexpr const char* kPsqt = "_perspective_psqt";

struct Batch {
    Tensor white, black, plan;
    std::optional<Tensor> psqt_bucket;
};

inline Batch batch_of(const char* op, const std::vector<Tensor>& batch) {
    if (batch.size() != 3 && batch.size() != 4) {
        fail(op, "batch", text(batch.size()) + " tensors", "white, black, plan and perhaps psqt_bucket");
    }
    return {batch[0], batch[1], batch[2], batch.size() == 4 ? std::optional(batch[3]) : std::nullopt};
}

// The sizes that determine the layout of a plan, besides its batch.
struct PlanLayout {
    int64_t bucket_size, num_bucketed, weight_bytes;
};

// Positions begin … end - 1 of a batch.
struct PositionRange {
    int64_t begin, end;
};

struct Range {
    float bound, scale;
    bool rounds_down = false;  // the output of the forward
};

// The values that the layer after the transformer has for each position, where the gradient of the output is given as
// factors: the gradient of that layer's output, float32 [B], and the stack of each position, int64 [B]. The gradient of
// row b of the output is gradient[b] · weight[stack[b], 0]; a stack that does not exist stands for the nearest one.
struct Factors {
    Tensor gradient, stack;
};

// The gradients that the backward is given. `op`: the operator that was called, for errors. `output`: the gradient of
// the output; with `factors` the weight of the layer after, float32 [S, 1, 2 W]; or row gradients of bytes. With those,
// no gradient of the bias is made. `leaves_unused`: the kernels need not write rows of the gradient of the weight whose
// feature no position has.
struct OutputGradients {
    const char* op;
    Tensor output;
    std::optional<Factors> factors;
    std::optional<Tensor> psqt;
    bool leaves_unused = false;
};

struct Sizes {
    int64_t num_features, num_outputs, psqt_buckets;
};

// The output, the psqt output and saved; or the gradients of weight, bias and psqt.
using Three = std::tuple<Tensor, Tensor, Tensor>;

inline void check_index_rows(const char* op, const Tensor& white, const Tensor& black, int64_t num_features,
                             Device device) {
    feature_transformer::check_indices(op, white);
    check_shape(op, "black", black, {white.size(0), white.size(1)}, "[B, K]");
    check_dtype(op, "black", black, {ScalarType::Int});
    check_device(op, "white", white, device, white, "white");
    check_device(op, "black", black, device, white, "white");
    feature_transformer::check_num_features(op, "num_features", num_features);
    if (num_features < 1) fail(op, "num_features", num_features, "at least 1");
    if (white.size(0) > (int64_t(1) << 28)) fail(op, "white", "B = " + text(white.size(0)), "B <= 2^28");
}

// A tensor with one number for each position.
inline void check_by_position(const char* op, const char* argument, const Tensor& tensor,
                              std::initializer_list<ScalarType> dtypes, const Tensor& white, Device device) {
    check_device(op, argument, tensor, device, white, "white");
    check_shape(op, argument, tensor, {white.size(0)}, "[B]");
    check_dtype(op, argument, tensor, dtypes);
}

inline void check_black_to_move(const Tensor& black_to_move, const Tensor& white, Device device) {
    check_by_position(kPlan, "black_to_move", black_to_move, {ScalarType::Byte, ScalarType::Bool}, white, device);
}

// `multiple`: N must be a multiple of this on the device.
inline Activation check_activation(const char* op, int64_t activation, int64_t num_outputs, int64_t multiple) {
    if (activation < 0 || activation > static_cast<int64_t>(Activation::kPairwise))
        fail(op, "activation", activation, "0 (identity), 1 (crelu), 2 (screlu) or 3 (pairwise)");
    if (num_outputs < 1 || num_outputs % multiple != 0) {
        fail(op, "weight", "N = " + text(num_outputs), "a multiple of " + text(multiple));
    }
    return static_cast<Activation>(activation);
}

// A feature transformer, as the operators take it.
struct Transformer {
    Sizes sizes;
    PlanLayout layout;
    Activation activation;
    Range range;
};

inline Transformer transformer_of(const char* op, const std::vector<int64_t>& numbers, const std::vector<double>& range,
                                  int64_t multiple) {
    if (numbers.size() != 8)
        fail(op, "transformer", text(numbers.size()) + " numbers",
             "eight: F, N, P, bucket_size, num_bucketed, weight_bytes, activation, rounds_down");
    if (range.size() != 2) fail(op, "range", text(range.size()) + " numbers", "bound and scale");
    return {{numbers[0], numbers[1], numbers[2]},
            {numbers[3], numbers[4], numbers[5]},
            check_activation(op, numbers[6], numbers[1], multiple),
            {static_cast<float>(range[0]), static_cast<float>(range[1]), numbers[7] != 0}};
}

inline int64_t output_width(Activation activation, int64_t num_outputs) {
    return activation == Activation::kPairwise ? num_outputs : 2 * num_outputs;
}

inline ScalarType check_float_dtype(const char* op, const char* argument, ScalarType dtype) {
    if (dtype != ScalarType::Float && dtype != ScalarType::Half && dtype != ScalarType::BFloat16)
        fail(op, argument, dtype_name(dtype), "float32, float16 or bfloat16");
    return dtype;
}

inline void check_float(const char* op, const char* argument, const Tensor& tensor) {
    check_dtype(op, argument, tensor, {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16});
}

inline void check_parameters(const Tensor& weight, const Tensor& bias, const Sizes& sizes, const Tensor& white,
                             Device device) {
    check_device(kForward, "weight", weight, device, white, "white");
    check_shape(kForward, "weight", weight, {sizes.num_features, sizes.num_outputs}, "[F, N]");
    check_float(kForward, "weight", weight);
    check_device(kForward, "bias", bias, device, white, "white");
    check_shape(kForward, "bias", bias, {sizes.num_outputs}, "[N]");
    check_dtype(kForward, "bias", bias, {ScalarType::Float});
}

inline void check_psqt_bucket(const char* op, const std::optional<Tensor>& psqt_bucket, const Tensor& white,
                              Device device) {
    if (!psqt_bucket) fail(op, "psqt_bucket", std::string("none"), "a tensor, since there is psqt");
    check_by_position(op, "psqt_bucket", *psqt_bucket, {ScalarType::Long}, white, device);
}

inline void check_psqt(const char* op, const Tensor& psqt, const std::optional<Tensor>& psqt_bucket,
                       const Tensor& white, int64_t num_features, Device device) {
    check_device(op, "psqt", psqt, device, white, "white");
    check_shape(op, "psqt", psqt, {num_features, -1}, "[F, P]");
    check_dtype(op, "psqt", psqt, {ScalarType::Float});
    check_psqt_bucket(op, psqt_bucket, white, device);
}

inline void check_grad_psqt(const char* op, const std::optional<Tensor>& grad_psqt,
                            const std::optional<Tensor>& psqt_bucket, const Tensor& white, int64_t psqt_buckets,
                            Device device) {
    if (psqt_buckets < 0 || psqt_buckets > INT32_MAX) fail(op, "psqt_buckets", psqt_buckets, "P >= 0");
    if (!grad_psqt) fail(op, "grad_psqt", std::string("none"), "a tensor, since psqt_buckets is not 0");
    check_by_position(op, "grad_psqt", *grad_psqt, {ScalarType::Float}, white, device);
    check_psqt_bucket(op, psqt_bucket, white, device);
}

// The error for a PSQT bucket outside the contract, with the same words on every device.
[[noreturn]] inline void fail_psqt_bucket(const char* op, int64_t row, int64_t value, int64_t psqt_buckets) {
    fail(op, "psqt_bucket", "bucket " + text(value) + " in row " + text(row), "0 <= bucket < " + text(psqt_buckets));
}

}  // namespace nnue::perspective_transformer
