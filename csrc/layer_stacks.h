// The contract of the operators _stack_order and _layer_stacks_*: the layers after the feature transformer, with a set
// of weights per stack, and the loss after them. Also their checks, and the loss of a position. The kernels are for
// CUDA only; nnue_trainer/modules/layer_stacks.py does the same with torch's operators, and selects one of the two.
//
// A position b has inputs x[b] and a stack s. Layer 0 reads x, layer l reads the activations of layer l - 1:
//
//   y_l = weight_l[s] · v_l + bias_l[s],   v_0 = x,   v_(l + 1) = activation_l(the first `activated` of y_l)
//
// The last layer has one output. It reads v of the layer before, after those v of earlier layers that have `to_output`,
// each multiplied by its `output_scale`. Its result, the skip connections y_l[plus] - y_l[minus] of all layers and
// psqt[b] add up to output[b].
//
//   order        int32, from _stack_order: positions by stack. Its contents are private (Order)
//   parameters   weight_0, bias_0, weight_1, …: float32 [S, outputs, inputs] and [S, outputs], contiguous
//   layers       the number of a description, see _layer_stacks_describe
//
// _layer_stacks_describe(inputs, stacks, hidden, constants, integers) gives a description of these layers its number,
// the same one for the same layers. For each layer but the last, `hidden` has the number of outputs, how many of them
// are activated, the activation, plus and minus (-1: none) and to_output (0 or 1), and `constants` largest, low,
// square, output_scale, step, skip_multiply and skip_divide. Activations, y → v:
//                  0 none     y clamped to [low, largest]
//                  1 crelu    y clamped to [0, largest]
//                  2 screlu   its square
//                  3 dual     [min(square · y², largest), crelu], twice as many values
//
// `integers` is empty, or has divide, multiply, by, score_multiply, score_divide, apart (0 or 1), unit, x_scale,
// psqt_scale and square. Then x, the parameters and psqt are an engine's integers, x of any dtype that holds them, and
// the operators round as the engine does: psqt and every quotient toward zero (trunc). Gradients go straight through
// the rounding. The operators then compute
//
//   y_0    = trunc(weight_0 · x / divide) + bias_0
//   v      none, crelu  floor(step · clamped y)
//          screlu       floor(square · y²) of the clamped y
//          dual         [floor(min(square · y², step · largest)), crelu]
//   skip   = trunc((y[plus] - y[minus]) · skip_multiply / skip_divide)
//   layers = trunc((last y + skips) · multiply / by)
//   output = trunc((trunc(psqt) + layers) · score_multiply / score_divide) / unit
//
// With `apart` the two parts of the output are multiplied, divided and rounded separately. `step` and `square` are
// powers of two. grad_x is also multiplied by `x_scale`, and grad_psqt by `psqt_scale`. x is float32 or
// bfloat16. If `square` is not 0, layer 0 reads floor(square · x²) instead of x; only _layer_stacks_loss with one layer
// supports this, and it does not compute the gradient of x. _layer_stacks_first does not round.
//
// _stack_order(bucket int64 [B], S) orders positions; a bucket outside 0 … S - 1 is clamped
// (the code that computes it reports it). It depends only on the batch, so it can be computed ahead of time.
//
// _layer_stacks_first(x, order, weight_0) gives sums = weight_0 · x, float32 [B, O]. x is float32, float16 or bfloat16
// [B, N], N a multiple of 16.
//
// _layer_stacks_forward gives (output float32 [B], sums). With `is_sums` x is these sums, and layer 0 is left out.
//
// _layer_stacks_backward(grad_output, sums, …) gives (grad_sums float32 [B, O], partials): `partials` has the gradients
// of all parameters but weight_0, tile by tile. Its other contents are private.
//
// _layer_stacks_loss does all of this for a loss that it supports, a LossKind below: it gives (totals, grad_sums,
// grad_output, partials). `targets` are score int16 [B], result int8 [B] and λ float32, a scalar or [B];
// `constants` are the number of engine units in 1 of the output, then those of the loss. totals is float32 [3]: Σ
// weight · loss, Σ weight, and their quotient (0 where Σ weight is 0); gradients are those of the first total. `order`
// holds a counter that is 0 again afterwards, so two such calls with one order may not run at the same time.
//
// With `transformer` it goes on through the transformer, on 9.0: x is what _perspective_transformer_forward saved, of
// 16-bit weights, `targets` also have white, black and plan, and `range` is that of the backward, with the factor of
// the forward's output behind it. Instead of grad_sums it gives row gradients, which are divided by Σ weight already.
// There is one layer, x would have at most 16 KB for each position, and the activation is CReLU or SCReLU.
//
// _layer_stacks_gradients takes what the two above give, and gives (grad_x, grad_bias, grad_psqt, grad_weight_0,
// gradients), all multiplied by scales[0] (float32 scalar), if it is given, and divided by scales[1][1], if it is:
// totals, so Σ weight. `gradients` is flat: bias_0, weight_1, bias_1, … each from a multiple of 4 on. Without x grad_x
// and grad_weight_0 have no elements; without partials `gradients`; without grad_output grad_psqt. grad_x has the dtype
// `grad_dtype`, independent of x's; none: it is not computed. grad_bias has elements only for row
// gradients.
//
// If `through` is not empty, x is the output of _perspective_transformer_forward, and the operator goes on through it:
// grad_x, grad_bias and grad_psqt are the gradients of its weight, bias and PSQT columns, and that of x is not made.
// `through` has `saved`, the stack of each position, `bucket` int64 [B], and then the `batch` of
// _perspective_transformer_backward, whose `transformer`, `range` and `weight_dtype` are given as well, the last as
// `grad_dtype` (perspective_transformer.h). With `leaves_unused` it need not write rows of the gradient of the weight
// whose feature no position has.
//
// If there is one layer, the gradient of x is the product of two factors, that of the output and the layer's weight,
// unless grad_sums are row gradients; scales[0] must be 1 then, which is not checked. There is no psqt. Where the layer
// rounds, `range` must scale by x_scale · multiply / (psqt_scale · by · divide), too: the first factor has psqt_scale.
//
// If there are more layers, the kernels of 9.0 make x again from `saved`, of fp32 or bfloat16 weights; x is not read.
// The activation must be pairwise, N a multiple of 64, in 16 bits the bound 1/64 to 255, and there must be a position.
// If the layers round, the forward must have rounded down. There the inputs that the gradient of weight_0 is made of
// are those of `saved`, not those of x before it was rounded.
//
// _layer_stacks_add_shares takes float32 [P, n + 3]: of each of P processes the n numbers of `gradients`, for its share
// of the positions and not scaled, and after them its totals. It adds them up in the order of the processes, and gives
// (totals of all, gradients divided by totals[1]).
//
// If there is one layer and a position's x has at most 16 KB, _layer_stacks_loss reads x once: then `partials` has more
// than N numbers per tile, among them the gradient of weight_0, and x is needed only for grad_x.
//
// Exactness: products of layer 0 are made of bfloat16 parts, whose products are exact. With float32 x every factor is
// three parts, and products of parts of at most 2^-25 of the whole are left out. With x of 16 bits, x is exact, but the
// weights and gradients that it meets are two parts, so rounded to 2^-18 of themselves, whatever grad_dtype is;
// products of parts of at most 2^-18 of the whole are left out. Sums are float32. The rest is float32. Sums have a
// fixed order on every kind of GPU, which depends on the number of its multiprocessors: equal inputs give equal bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "checks.h"
#include "dtypes.h"
#include "host_device.h"

namespace nnue::layer_stacks {

constexpr int kTile = 64;       // positions
constexpr int kMostHidden = 8;  // layers but the last
constexpr int kMostStacks = 64;
constexpr int kMostFirstOutputs = 32;

// ---- the order of positions ----------------------------------------------------------------------------------------

// Where things are in `order`. Positions of a stack are neighbours, and every stack begins with a new tile; slots that
// are left over hold -1, and tiles that are left over belong to stack -1.
struct Order {
    int64_t positions, stacks;

    NNUE_HOST_DEVICE int64_t most_tiles() const { return positions / kTile + stacks; }
    static constexpr int64_t tiles = 0;               // how many there are
    static constexpr int64_t counter = 1;             // of thread blocks that are done, for the loss
    static constexpr int64_t first_tile = 2;          // [S + 1]
    NNUE_HOST_DEVICE int64_t stack_of_tile() const {  // [most_tiles]
        return divide_up(first_tile + stacks + 1, 4) * 4;
    }
    NNUE_HOST_DEVICE int64_t slots() const {  // [most_tiles, kTile]
        return stack_of_tile() + divide_up(most_tiles(), 4) * 4;
    }
    NNUE_HOST_DEVICE int64_t size() const { return slots() + most_tiles() * kTile; }
};

// ---- the layers ----------------------------------------------------------------------------------------------------

enum Activation : int { kNone, kCrelu, kScrelu, kDual };

struct Layer {
    int inputs, outputs;
    // For all layers but the last.
    int activated, activation, plus, minus;
    float largest, low, square;
    int values;         // that the next layer reads
    int output_offset;  // of these among the inputs of the last layer, -1 if it does not read them
    float output_scale;
    // With rounding.
    float step;
    double skip_multiply, skip_divide;
    float skip_slope;
};

// How an engine rounds; `rounds` is false where nothing does.
struct Integers {
    bool rounds = false, apart = false;
    float divide = 1, x_scale = 1, square = 0;
    double multiply = 1, by = 1, score_multiply = 1, score_divide = 1, unit = 1;
    float layers_slope = 1, psqt_slope = 1;  // derivatives of the output by what the last layer gives, and by psqt
};

struct Layers {
    int count = 0;  // the last one included
    int64_t stacks = 0;
    Layer at[kMostHidden + 1]{};
    Integers integers;

    const Layer& last() const { return at[count - 1]; }
};

using Tensors = std::vector<Tensor>;

// A layer as _layer_stacks_describe takes it: `hidden` has kHiddenInts numbers for each, `constants` kHiddenFloats.
constexpr size_t kHiddenInts = 6, kHiddenFloats = 7, kIntegerNumbers = 10;

inline Layer read_layer(const char* op, const int64_t* ints, const double* floats, const std::string& which) {
    const int64_t outputs = ints[0], activated = ints[1], activation = ints[2], plus = ints[3], minus = ints[4];
    const double step = floats[4], skip_multiply = floats[5], skip_divide = floats[6];
    const auto is_output = [&](int64_t number) { return number >= -1 && number < outputs; };
    if (!(outputs >= 1 && outputs <= 1 << 20 && activated >= 1 && activated <= outputs && is_output(plus) &&
          is_output(minus)))
        fail(op, "hidden",
             which + " of " + text(outputs) + " outputs, " + text(activated) + " activated, plus " + text(plus) +
                 ", minus " + text(minus),
             "1 to 2^20 outputs; activated, plus and minus among them");
    if (activation < kNone || activation > kDual)
        fail(op, "hidden", which + " with activation " + text(activation),
             "0 (none), 1 (crelu), 2 (screlu) or 3 (dual)");
    int exponent;
    if (std::frexp(step, &exponent) != 0.5 || !(skip_divide > 0))
        fail(op, "constants",
             which + " with step " + std::to_string(step) + " and skip_divide " + std::to_string(skip_divide),
             "a power of two as step, and a positive skip_divide");
    Layer layer{};
    layer.outputs = static_cast<int>(outputs);
    layer.activated = static_cast<int>(activated);
    layer.activation = static_cast<int>(activation);
    layer.plus = static_cast<int>(plus);
    layer.minus = static_cast<int>(minus);
    layer.largest = static_cast<float>(floats[0]);
    layer.low = static_cast<float>(floats[1]);
    layer.square = static_cast<float>(floats[2]);
    layer.output_scale = static_cast<float>(floats[3]);
    layer.step = static_cast<float>(step);
    layer.skip_multiply = skip_multiply;
    layer.skip_divide = skip_divide;
    layer.skip_slope = static_cast<float>(skip_multiply / skip_divide);
    layer.values = layer.activated * (layer.activation == kDual ? 2 : 1);
    return layer;
}

inline Integers read_integers(const char* op, const std::vector<double>& numbers) {
    Integers integers;
    if (numbers.empty()) return integers;
    if (numbers.size() != kIntegerNumbers)
        fail(op, "integers", text(numbers.size()) + " numbers", "none, or " + text(kIntegerNumbers));
    integers.rounds = true;
    integers.divide = static_cast<float>(numbers[0]);
    integers.multiply = numbers[1], integers.by = numbers[2];
    integers.score_multiply = numbers[3], integers.score_divide = numbers[4];
    integers.apart = numbers[5] != 0;
    integers.unit = numbers[6];
    integers.x_scale = static_cast<float>(numbers[7]);
    integers.square = static_cast<float>(numbers[9]);
    if (!(numbers[0] > 0 && integers.by > 0 && integers.score_divide > 0 && integers.unit > 0))
        fail(op, "integers",
             "divide " + std::to_string(numbers[0]) + ", by " + std::to_string(integers.by) + ", score_divide " +
                 std::to_string(integers.score_divide) + ", unit " + std::to_string(integers.unit),
             "positive divisors");
    const double of_score = integers.score_multiply / integers.score_divide / integers.unit;
    integers.layers_slope = static_cast<float>(integers.multiply / integers.by * of_score);
    integers.psqt_slope = static_cast<float>(numbers[8] * of_score);
    return integers;
}

// Reads the arguments of _layer_stacks_describe.
inline Layers read_description(int64_t inputs, int64_t stacks, const std::vector<int64_t>& ints,
                               const std::vector<double>& constants, const std::vector<double>& integers) {
    constexpr const char* op = "_layer_stacks_describe";
    const size_t hidden = ints.size() / kHiddenInts;
    if (ints.size() % kHiddenInts != 0 || constants.size() != hidden * kHiddenFloats)
        fail(op, "hidden", text(ints.size()) + " numbers and " + text(constants.size()) + " constants",
             text(kHiddenInts) + " and " + text(kHiddenFloats) + " for each layer but the last");
    if (hidden > kMostHidden) fail(op, "hidden", text(hidden) + " layers", "at most 8 but the last");
    if (stacks < 1 || stacks > kMostStacks) fail(op, "stacks", stacks, "1 to " + std::to_string(kMostStacks));
    if (inputs < 1 || inputs > INT32_MAX) fail(op, "inputs", inputs, "1 to 2^31 - 1");
    Layers layers;
    layers.count = static_cast<int>(hidden) + 1;
    layers.stacks = stacks;
    layers.integers = read_integers(op, integers);
    int seen_by_last = 0, seen = static_cast<int>(inputs);
    for (size_t l = 0; l < hidden; ++l) {
        const int64_t* const of = ints.data() + l * kHiddenInts;
        Layer& layer = layers.at[l];
        layer = read_layer(op, of, constants.data() + l * kHiddenFloats, "layer " + text(l));
        layer.inputs = seen;
        seen = layer.values;
        layer.output_offset = -1;
        const bool before_last = l + 1 == hidden;
        if (of[5] == 0 && !before_last) continue;
        if (before_last) layer.output_scale = 1.0f;
        layer.output_offset = seen_by_last;
        seen_by_last += layer.values;
    }
    Layer& last = layers.at[hidden];
    last.inputs = hidden == 0 ? seen : seen_by_last;
    last.outputs = 1;
    last.plus = last.minus = last.output_offset = -1;
    return layers;
}

// Checks the parameters' shapes against a description.
inline void check_parameters(const char* op, const Tensors& parameters, const Layers& layers, Device device) {
    const size_t wanted = 2 * static_cast<size_t>(layers.count);
    if (parameters.size() != wanted)
        fail(op, "parameters", std::to_string(parameters.size()) + " tensors",
             std::to_string(wanted) + ", weight and bias of each layer");
    for (int l = 0; l < layers.count; ++l) {
        const Layer& layer = layers.at[l];
        for (int part = 0; part < 2; ++part) {
            const Tensor& tensor = parameters[2 * l + part];
            const std::string name = (part == 0 ? "weight_" : "bias_") + std::to_string(l);
            check_device(op, name.c_str(), tensor, device, parameters[0], "weight_0");
            check_dtype(op, name.c_str(), tensor, {ScalarType::Float});
            if (part == 0)
                check_shape(op, name.c_str(), tensor, {layers.stacks, layer.outputs, layer.inputs}, "[S, O, I]");
            else
                check_shape(op, name.c_str(), tensor, {layers.stacks, layer.outputs}, "[S, O]");
        }
    }
}

// Where the gradients of the parameters but weight_0 lie, in the order bias_0, weight_1, bias_1, …: numbers per stack,
// where they begin in a tile's sums, and where the parameter begins in the flat result.
struct GradientLayout {
    int count = 0;
    int size[2 * kMostHidden + 1]{}, in_tile[2 * kMostHidden + 1]{};
    int64_t in_result[2 * kMostHidden + 1]{};
    int tile = 0;  // all numbers of a tile
    int64_t result = 0;

    GradientLayout() = default;
    explicit GradientLayout(const Layers& layers) {
        for (int l = 0; l < layers.count; ++l) {
            if (l > 0) add(layers.at[l].inputs * layers.at[l].outputs, layers.stacks);
            add(layers.at[l].outputs, layers.stacks);
        }
    }
    int of_bias(int layer) const { return in_tile[2 * layer]; }
    int of_weight(int layer) const { return in_tile[2 * layer - 1]; }

  private:
    void add(int numbers, int64_t stacks) {
        size[count] = numbers;
        in_tile[count] = tile;
        in_result[count] = result;
        tile += numbers;
        result += divide_up(numbers * stacks, 4) * 4;
        ++count;
    }
};

// ---- the loss of a position ----------------------------------------------------------------------------------------

constexpr int kNoScore = 32002;  // of a position without a score
constexpr int kMostConstants = 11;

// A loss makes expected points of scores, compares the net's with the target, and may weigh positions. Points: one
// sigmoid, or those of Stockfish's win rates. Terms of comparison: a power of the difference, or cross-entropy.
enum class LossKind : int { none, sigmoid, win_rate, cross_entropy };

struct Loss {
    LossKind kind = LossKind::none;
    float score_scale = 1;              // engine units in one unit of output
    float constants[kMostConstants]{};  // in the order of position_loss; 0 is without effect for kinds that have fewer
};

inline Loss read_loss(const char* op, int64_t kind, const std::vector<double>& constants) {
    if (kind < 1 || kind > 3) fail(op, "loss", kind, "1 (sigmoid), 2 (win_rate) or 3 (cross_entropy)");
    constexpr size_t kConstants[] = {0, 2, kMostConstants, 1};
    const size_t wanted = 1 + kConstants[kind];
    if (constants.size() != wanted)
        fail(op, "constants", static_cast<int64_t>(constants.size()), static_cast<int64_t>(wanted));
    Loss loss;
    loss.kind = static_cast<LossKind>(kind);
    loss.score_scale = static_cast<float>(constants[0]);
    for (size_t i = 1; i < wanted; ++i) loss.constants[i - 1] = static_cast<float>(constants[i]);
    return loss;
}

// weight · loss of a position, its weight, and the derivative of the former by the net's output.
struct PositionLoss {
    float weighted, weight, gradient;
};

NNUE_HOST_DEVICE float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// |error|^exponent, and its derivative, which is 0 at 0.
NNUE_HOST_DEVICE float power(float error, float exponent, float* slope) {
    if (exponent == 2.0f) {
        *slope = 2.0f * error;
        return error * error;
    }
    const float size = fabsf(error);
    const float lower = powf(size, exponent - 1.0f);
    *slope = error > 0.0f ? exponent * lower : error < 0.0f ? -exponent * lower : 0.0f * error;
    return powf(size, exponent);
}

// The cross-entropy of `of_net`, which is sigmoid(logit), and a target from 0 to 1, minus the target's entropy.
// `of_net` may round to 0 or 1: the larger one of it and 1 - of_net has a logarithm, and the two logarithms differ by
// the logit.
NNUE_HOST_DEVICE float cross_entropy(float logit, float of_net, float target) {
    const float rest = 1.0f - target, wrong = logit > 0.0f ? rest * logit : -target * logit;
    const float entropy = (target > 0.0f ? target * logf(target) : 0.0f) + (rest > 0.0f ? rest * logf(rest) : 0.0f);
    return wrong - logf(fmaxf(of_net, 1.0f - of_net)) + entropy;
}

// Expected points of a score, and their derivative.
NNUE_HOST_DEVICE float expected_points(float score, float offset, float scaling, float* slope) {
    const float win = sigmoid((score - offset) / scaling), loss = sigmoid((-score - offset) / scaling);
    *slope = 0.5f / scaling * (win * (1.0f - win) + loss * (1.0f - loss));
    return 0.5f * (1.0f + win - loss);
}

// The same as nnue_trainer/losses: base.py for λ and positions without a score, and each loss in its file.
NNUE_HOST_DEVICE PositionLoss position_loss(const Loss& loss, float output, int score, int result, float lambda) {
    const auto& [scaling, exponent, in_offset, out_offset, out_scaling, asymmetry, boost, boost_power, proven_base,
                 proven_scale, proven_decay] = loss.constants;
    const bool has_score = score != kNoScore;
    const float net = output * loss.score_scale, known = has_score ? static_cast<float>(score) : 0.0f;
    const float share = has_score ? lambda : 0.0f, points = static_cast<float>(result) * 0.5f + 0.5f;
    float of_net, of_score, value, slope, inner;  // slope · inner is the derivative of the value by `net`
    if (loss.kind == LossKind::win_rate) {
        float ignored, proven = known;
        const float size = fabsf(known);
        if (size >= 31755.0f) {
            const float compressed = proven_base + powf(proven_decay, 32000.0f - size) * proven_scale;
            proven = known < 0.0f ? -compressed : compressed;
        }
        of_net = expected_points(net, in_offset, scaling, &inner);
        of_score = expected_points(proven, out_offset, out_scaling, &ignored);
    } else {
        of_net = sigmoid(net / scaling), of_score = sigmoid(known / scaling);
        inner = of_net * (1.0f - of_net) / scaling;
    }
    const float target = share * of_score + (1.0f - share) * points;
    float weight = has_score ? 1.0f : 1.0f - lambda;
    if (boost != 0.0f) {
        const float off = of_score - 0.5f;
        const float base = off * off * of_score * (1.0f - of_score);
        weight *= 1.0f + (exp2f(boost) - 1.0f) * powf(base < 0.0f ? 0.0f : base, boost_power);
    }
    if (loss.kind == LossKind::cross_entropy) {
        value = cross_entropy(net / scaling, of_net, target);
        slope = of_net - target, inner = 1.0f / scaling;
    } else {
        value = power(of_net - target, exponent, &slope);
        if (of_net > target) value *= 1.0f + asymmetry, slope *= 1.0f + asymmetry;
    }
    return {weight * value, weight, weight * slope * inner * loss.score_scale};
}

}  // namespace nnue::layer_stacks
