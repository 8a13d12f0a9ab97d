// The arithmetic of a net in integers, as data. The words, stage by stage, are those of
// nnue_trainer/nets/integer_forward.py, which is also the reference. No net has a name here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nnue::data {

// Integers of a net, row-major, in the caller's memory.
struct IntegerTensor {
    std::string name;  // for messages
    const void* data = nullptr;
    int bytes = 0;  // of an element: 1, 2 or 4, signed
    std::size_t rows = 0, columns = 0;
    bool is_float = false;                        // fp32
    std::shared_ptr<const void> owner = nullptr;  // keeps the memory alive; null: the caller does
};

enum class FirstActivation { kCrelu, kScrelu, kPairwise };
enum class LayerActivation { kCrelu, kScrelu, kDual, kNone };
enum class Sides { kBoth, kMover, kWhite };

struct FirstLayer {
    IntegerTensor bias;                  // int16 [1, width]
    std::vector<IntegerTensor> weights;  // int8 or int16 [features, width], one for each part of the feature set
    std::vector<IntegerTensor> psqt;     // int32 [features, stacks], as many or none
    FirstActivation activation = FirstActivation::kCrelu;
    int clip = 0, product_shift = 0, accumulator_shift = 0;
    Sides sides = Sides::kBoth;
};

struct ForwardLayer {
    IntegerTensor weight;  // int8 or int16 [stacks · outputs, at least the inputs]
    IntegerTensor bias;    // int16 or int32, stacks · outputs numbers
    int outputs = 0;
    std::vector<int> inputs;  // vectors: 0 the first activations, k + 1 those of layer k
    std::int64_t divide = 1;  // of the sum of weight · input, which has 64 bits; quotient + bias wraps around at 32
    int activated = 0;
    LayerActivation activation = LayerActivation::kCrelu;
    int shift = 0, square_shift = 0, clip = 0;
    std::optional<double> factor = std::nullopt;  // none: integers; else floats: the bias is fp32, the weight may be

    bool is_float() const { return factor.has_value(); }
};

// ln(E / (1 − E)) of E = win + draw / 2, the expected points by the softmax of the three logits.
inline double log_odds(double loss, double draw, double win) {
    const auto log_sum = [](double a, double b) { return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))); };
    const double half = draw - 0.69314718055994531;  // ln 2
    return log_sum(win, half) - log_sum(loss, half);
}

struct Skip {
    int layer = 0, plus = 0;
    std::optional<int> minus = std::nullopt;
    std::int64_t multiply = 1, divide = 1;
    bool wraps = false;
};

struct Forward {
    std::string feature_set;
    FirstLayer first;
    std::vector<ForwardLayer> layers;
    int num_stacks = 1;
    std::vector<int> stacks;  // the stack for each number of pieces, 0 to 32, and each `material` of a batch, 0 to 15
    // For each feature; empty: `stacks` is as above. Otherwise it has the stack for each sum of them over the features
    // of the side to move.
    std::vector<std::int32_t> feature_weights;
    std::vector<Skip> skips;
    std::int64_t multiply = 1, divide = 1;
    std::int64_t score_multiply = 1, score_divide = 1;
    bool score_apart = false;
    bool wdl = false;  // the last layer has three outputs: of loss, draw and win
};

}  // namespace nnue::data
