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
//
// perspective_rows groups the rows of a batch by feature block and is shared by forward and backward. The first
// `num_blocked` features come in blocks of `block_size` consecutive ones; the kernels are made for feature sets in
// which all such features of a row lie in one block and none comes twice (king buckets). Rows that break this are legal
// and slow. The features from `num_blocked` on are loose: a row may hold any of them, mixed with the others in any
// order, and they are fastest where few of them make up most of the batch (threats, pawn pairs). The layout of `rows`
// and of `saved`, which the forward leaves for the backward, is private to this version of the library.
//
// The kernels need a GPU of compute capability 9.0 (perspective_transformer_available) and take N a multiple of 16,
// block_size up to 768 and up to 255 blocks. Equal inputs give equal bits, always.
#pragma once

#include "feature_transformer.h"

namespace nnue::perspective_transformer {

constexpr const char* kRows = "perspective_rows";
constexpr const char* kForward = "perspective_transformer_forward";
constexpr const char* kBackward = "perspective_transformer_backward";

inline void check_rows_arguments(const char* op, const Tensor& white, const Tensor& black, int64_t num_features,
                                 int64_t block_size, int64_t num_blocked) {
    feature_transformer::check_indices(op, white);
    check_shape(op, "black", black, {white.size(0), white.size(1)}, "[B, K]");
    check_dtype(op, "black", black, {ScalarType::Int});
    check_device(op, "white", white, Device::cuda, white, "white");
    check_device(op, "black", black, Device::cuda, white, "white");
    feature_transformer::check_num_features(op, "num_features", num_features);
    if (num_features < 1) fail(op, "num_features", num_features, "at least 1");
    if (white.size(0) > (int64_t(1) << 28)) fail(op, "white", "B = " + std::to_string(white.size(0)), "B <= 2^28");
    if (block_size < 1 || block_size > 768) fail(op, "block_size", block_size, "1 <= block_size <= 768");
    if (num_blocked < 0 || num_blocked > num_features) {
        fail(op, "num_blocked", num_blocked, "0 <= num_blocked <= F = " + std::to_string(num_features));
    }
    if (num_blocked != num_features) fail(op, "num_blocked", num_blocked, "F: the loose kernels are on their way");
    const int64_t blocks = (num_blocked + block_size - 1) / block_size;
    if (blocks > 255) fail(op, "block_size", std::to_string(blocks) + " blocks", "at most 255");
}

inline void check_activation(const char* op, int64_t activation, int64_t num_outputs) {
    if (activation < 0 || activation > 3) {
        fail(op, "activation", activation, "0 identity, 1 crelu, 2 screlu or 3 pairwise");
    }
    if (num_outputs < 16 || num_outputs % 16 != 0) {
        fail(op, "weight", "N = " + std::to_string(num_outputs), "a multiple of 16");
    }
}

}  // namespace nnue::perspective_transformer
