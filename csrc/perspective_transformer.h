// The feature transformer of both perspectives in one operator: contract and checks.
//
// acc[p, b] = bias + sum of weight[i] over the indices i of row b of perspective p (white, black). Each accumulator is
// activated, multiplied by `scale`, and the two results of a position are joined, side to move first:
//
//   white, black    int32 [B, K]    rows as in feature_transformer.h
//   black_to_move   uint8 [B]
//   weight          [F, N]          float32, float16 or bfloat16; sums are float32
//   bias            [N]             float32
//   output          [B, 2 W]        W = N / 2 for pairwise, else N; float32, float16 or bfloat16, rounded once
//   psqt            float32 [F, P]  optional, and with it `bucket` int64 [B]
//   psqt output     float32 [B]     (sum of psqt[i, bucket[b]] over the side to move's indices - the same over the
//                                   other side's) / 2; no elements where there is no psqt
//
// perspective_rows prepares the rows of a batch, and is shared by forward and backward; its layout and those of `saved`
// and `lists`, which the forward leaves for the backward if `save` is set, are private to this version of the library
// and to the device. The backward takes what it needs of shapes as numbers; psqt_buckets = 0 leaves the gradient of
// psqt out. A bucket outside [0, P) is an error, reported on CUDA as an illegal index is (cuda/index_check.cuh).
//
// On CUDA, perspective_rows groups the rows by feature block. The first `num_blocked` features come in blocks of
// `block_size` consecutive ones; the kernels are made for feature sets in which all such features of a row lie in one
// block and none comes twice (king buckets). Rows that break this are legal and slow. The features from `num_blocked`
// on are loose: a row may hold any of them, mixed with the others in any order, and they are fastest where few of them
// make up most of the batch (threats, pawn pairs); rows that have one twice are legal and slow. The kernels need a GPU
// of compute capability 9.0 (perspective_transformer_available) and take N a multiple of 16, block_size up to 768 and
// up to 255 blocks.
//
// The CPU takes any even N, and does not look at blocks.
//
// Equal inputs give equal bits, always: on the CPU for any number of threads and every instruction set.
#pragma once

#include <tuple>

#include "activation.h"
#include "feature_transformer.h"

namespace nnue::perspective_transformer {

constexpr const char* kRows = "perspective_rows";
constexpr const char* kForward = "perspective_transformer_forward";
constexpr const char* kBackward = "perspective_transformer_backward";

// Gradients of weight, bias, psqt.
using Three = std::tuple<Tensor, Tensor, Tensor>;
// Output, psqt output, saved, lists.
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

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

inline void check_black_to_move(const Tensor& black_to_move, const Tensor& white, Device device) {
    check_device(kRows, "black_to_move", black_to_move, device, white, "white");
    check_shape(kRows, "black_to_move", black_to_move, {white.size(0)}, "[B]");
    check_dtype(kRows, "black_to_move", black_to_move, {ScalarType::Byte, ScalarType::Bool});
}

// `multiple`: what N must be a multiple of on this device.
inline Activation check_activation(const char* op, int64_t activation, int64_t num_outputs, int64_t multiple) {
    if (activation < 0 || activation > 3) {
        fail(op, "activation", activation, "0 identity, 1 crelu, 2 screlu or 3 pairwise");
    }
    if (num_outputs < 1 || num_outputs % multiple != 0) {
        fail(op, "weight", "N = " + text(num_outputs), "a multiple of " + text(multiple));
    }
    return static_cast<Activation>(activation);
}

inline int64_t output_width(Activation activation, int64_t num_outputs) {
    return activation == Activation::kPairwise ? num_outputs : 2 * num_outputs;
}

// Dtypes are numbers in the schemas: the stable ABI has none for them.
inline ScalarType float_dtype(const char* op, const char* argument, int64_t code) {
    constexpr ScalarType kTypes[] = {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16};
    if (code < 0 || code > 2) fail(op, argument, code, "0 float32, 1 float16 or 2 bfloat16");
    return kTypes[code];
}

inline void check_float(const char* op, const char* argument, const Tensor& tensor) {
    check_dtype(op, argument, tensor, {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16});
}

inline void check_parameters(const Tensor& weight, const Tensor& bias, const Tensor& white, Device device) {
    check_device(kForward, "weight", weight, device, white, "white");
    check_shape(kForward, "weight", weight, {-1, -1}, "[F, N]");
    check_float(kForward, "weight", weight);
    check_device(kForward, "bias", bias, device, white, "white");
    check_shape(kForward, "bias", bias, {weight.size(1)}, "[N]");
    check_dtype(kForward, "bias", bias, {ScalarType::Float});
}

inline void check_bucket(const char* op, const std::optional<Tensor>& bucket, const Tensor& white, Device device) {
    if (!bucket) fail(op, "bucket", std::string("none"), "a tensor, since there is psqt");
    check_device(op, "bucket", *bucket, device, white, "white");
    check_shape(op, "bucket", *bucket, {white.size(0)}, "[B]");
    check_dtype(op, "bucket", *bucket, {ScalarType::Long});
}

inline void check_psqt(const Tensor& psqt, const std::optional<Tensor>& bucket, const Tensor& white,
                       int64_t num_features, Device device) {
    check_device(kForward, "psqt", psqt, device, white, "white");
    check_shape(kForward, "psqt", psqt, {num_features, -1}, "[F, P]");
    check_dtype(kForward, "psqt", psqt, {ScalarType::Float});
    check_bucket(kForward, bucket, white, device);
}

inline void check_grad_psqt(const std::optional<Tensor>& grad_psqt, const std::optional<Tensor>& bucket,
                            const Tensor& white, int64_t psqt_buckets, Device device) {
    if (psqt_buckets < 0 || psqt_buckets > INT32_MAX) fail(kBackward, "psqt_buckets", psqt_buckets, "P >= 0");
    if (!grad_psqt) fail(kBackward, "grad_psqt", std::string("none"), "a tensor, since psqt_buckets is not 0");
    check_device(kBackward, "grad_psqt", *grad_psqt, device, white, "white");
    check_shape(kBackward, "grad_psqt", *grad_psqt, {white.size(0)}, "[B]");
    check_dtype(kBackward, "grad_psqt", *grad_psqt, {ScalarType::Float});
    check_bucket(kBackward, bucket, white, device);
}

// The error for a bucket outside the contract, the same words on every device.
[[noreturn]] inline void fail_bucket(const char* op, int64_t row, int64_t value, int64_t psqt_buckets) {
    fail(op, "bucket", "bucket " + text(value) + " in row " + text(row), "0 <= bucket < " + text(psqt_buckets));
}

}  // namespace nnue::perspective_transformer
