// The layers behind the feature transformer, with a set of weights per stack, and the loss behind them: the contract of
// the operators stack_order and layer_stacks_*, the checks, and what a position's loss is. There are kernels for CUDA
// alone; nnue_trainer/modules/layer_stacks.py has the same in torch's operators, and says which is used.
//
// A position b has inputs x[b] and a stack s. Layer 0 sees x, layer l the activations of layer l - 1:
//
//   y_l = weight_l[s] · v_l + bias_l[s],   v_0 = x,   v_(l + 1) = activation_l(the first `activated` of y_l)
//
// The last layer has one output. It sees v of the layer before, behind those v of earlier layers that have `to_output`,
// each multiplied by its `output_scale`. What it gives, the skip connections y_l[plus] - y_l[minus] of all layers and
// psqt[b] add up to output[b].
//
//   order        int32, from stack_order: positions by stack. Its contents are private (Order)
//   parameters   weight_0, bias_0, weight_1, …: float32 [S, outputs, inputs] and [S, outputs], contiguous
//   layers       every layer but the last, separated by "; ": "outputs=16 activated=15 activation=dual plus=15
//                largest=1 square=0.99". Besides there are minus, low, to_output (0 or 1) and output_scale; all but the
//                first two may be left out. Activations, y → v:
//                  none     y clamped to [low, largest]
//                  crelu    y clamped to [0, largest]
//                  screlu   its square
//                  dual     [min(square · y², largest), crelu], twice as many values
//
// Behind the layers there may be one more piece, "; integers divide=255 multiply=9600 …". Then x, the parameters and
// psqt are an engine's integers, held as float32, and the operators round as the engine does: x down, psqt and every
// quotient toward zero (trunc). Gradients go straight through the rounding. The operators then compute
//
//   y_0    = trunc(weight_0 · floor(x) / divide) + bias_0
//   v      none, crelu  floor(step · clamped y)
//          screlu       floor(square · y²) of the clamped y
//          dual         [floor(min(square · y², step · largest)), crelu]
//   skip   = trunc((y[plus] - y[minus]) · skip_multiply / skip_divide)
//   layers = trunc((last y + skips) · multiply / by)
//   output = trunc((trunc(psqt) + layers) · score_multiply / score_divide) / unit
//
// With apart=1 the two parts of the output are multiplied, divided and rounded each by itself. `step` and `square` are
// powers of two. grad_x is also multiplied by `x_scale`, and grad_psqt by `psqt_scale`. Words that are left out are 1,
// `apart` 0. `step`, `skip_multiply` and `skip_divide` are words of a layer. x must be float32. layer_stacks_first does
// not round.
//
// stack_order(bucket int64 [B], S) orders positions; a bucket outside 0 … S - 1 is taken for the nearest one (who
// computes it reports it). It depends on the batch alone, so it may be made ahead of time.
//
// layer_stacks_first(x, order, weight_0) gives sums = weight_0 · x, float32 [B, O]. x is float32, float16 or bfloat16
// [B, N], N a multiple of 16.
//
// layer_stacks_forward gives (output float32 [B], sums). With `is_sums` x is these sums, and layer 0 is left out.
//
// layer_stacks_backward(grad_output, sums, …) gives (grad_sums float32 [B, O], partials): `partials` has the gradients
// of all parameters but weight_0, tile by tile. What else it has is private.
//
// layer_stacks_loss does all of this for a loss that is known by name: it gives (totals, grad_sums, grad_output,
// partials). `targets` are score int16 [B], result int8 [B] and λ float32, a scalar or [B]; `constants` are the number
// of engine units in 1 of the output, then those of the loss. totals is float32 [3]: Σ weight · loss, Σ weight, and
// their quotient (0 where Σ weight is 0); gradients are those of the first total. `order` holds a counter that is 0
// again afterwards, so two such calls with one order may not run at the same time.
//
// layer_stacks_gradients takes what the two above give, and gives (grad_x, grad_weight_0, grad_psqt, gradients), all
// multiplied by scales[0] (float32 scalar), if it is given, and divided by scales[1][1], if it is: totals, so Σ weight.
// `gradients` is flat: bias_0, weight_1, bias_1, … each from a multiple of 4 on. Without x the first two have no
// elements; without partials the last; without grad_output the third. grad_x is of `grad_dtype`, whatever x is; "none":
// nobody needs it.
//
// layer_stacks_gradients_through does the same where x is the output of perspective_transformer_forward with pairwise
// products, by the kernels of 9.0. Neither x nor its gradient is there: x is made again from `saved`, and its gradient
// goes on through the transformer's activation. `batch`, `made_for`, `saved`, F and `bound_and_scale` are those of that
// operator (perspective_transformer.h); `saved` is of fp32 or bfloat16 weights. It gives (row_gradients, grad_bias,
// grad_weight_0, grad_psqt, gradients): what perspective_transformer_backward takes in the place of the gradient of its
// output, and the gradient of the transformer's bias. There must be a position, layers that do not round, N a multiple
// of 64, and in 16 bits a bound of 1/64 to 128. There the inputs that the gradient of weight_0 is made of are those of
// `saved`, not those of x before it was rounded.
//
// layer_stacks_add_shares takes float32 [P, n + 3]: of each of P processes the n numbers of `gradients`, for its share
// of the positions and not scaled, and behind them its totals. It adds them up in the order of the processes, and gives
// (totals of all, gradients divided by totals[1]).
//
// If there is one layer, nothing rounds, and a position's x has at most 16 KB, layer_stacks_loss reads x once: then
// `partials` has more than N numbers per tile, the gradient of weight_0 among them, and x is needed for grad_x alone.
// grad_x[b] is grad_psqt[b] · weight_0[s]; perspective_transformer_backward takes it as these two factors.
//
// Exactness: products of layer 0 are made of bfloat16 parts, whose products are exact. With float32 x every factor is
// three parts, and products of parts of at most 2^-25 of the whole are left out. With x of 16 bits, x is exact, but the
// weights and gradients that it meets are two parts, so rounded to 2^-18 of themselves, whatever grad_dtype is;
// products of parts of at most 2^-18 of the whole are left out. Sums are float32. The rest is float32. Sums have a
// fixed order on every kind of GPU, which depends on the number of its multiprocessors: equal inputs give equal bits.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
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
    // Of all layers but the last.
    int activated, activation, plus, minus;
    float largest, low, square;
    int values;         // that the layer behind sees
    int output_offset;  // of these among the inputs of the last layer, -1 where it does not see them
    float output_scale;
    // With rounding.
    float step;
    double skip_multiply, skip_divide;
    float skip_slope;
};

// How an engine rounds; `rounds` is false where nothing does.
struct Integers {
    bool rounds = false, apart = false;
    float divide = 1, x_scale = 1;
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

// The pieces of a text between separators.
inline std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> pieces;
    std::istringstream stream(text);
    for (std::string piece; std::getline(stream, piece, separator);) {
        if (piece.find_first_not_of(' ') != std::string::npos) pieces.push_back(piece);
    }
    return pieces;
}

// One piece of `layers`: "NAME=NUMBER …". Each name is one of `numbers`, or `other(name, value)` takes it.
template <class Other>
void read_words(const char* op, const std::vector<std::string>& words,
                const std::vector<std::pair<const char*, double*>>& numbers, const Other& other) {
    for (const std::string& word : words) {
        const size_t equals = std::min(word.find('='), word.size());
        const std::string key = word.substr(0, equals), value = word.substr(std::min(equals + 1, word.size()));
        bool known = other(key, value);
        for (const auto& [name, number] : numbers) {
            if (key != name) continue;
            const auto end = std::from_chars(value.data(), value.data() + value.size(), *number);
            known = end.ec == std::errc() && end.ptr == value.data() + value.size();
        }
        if (!known) fail(op, "layers", "'" + word + "'", "words of csrc/layer_stacks.h, such as outputs=16");
    }
}

// One layer as `layers` says it; numbers as they stand there.
struct LayerWords {
    double outputs = 0, activated = 0, plus = -1, minus = -1, to_output = 0, largest = 1, low = 0, square = 1,
           output_scale = 1, step = 1, skip_multiply = 1, skip_divide = 1;
    int activation = kNone;

    LayerWords(const char* op, const std::string& text) {
        static constexpr const char* kActivations[] = {"none", "crelu", "screlu", "dual"};
        const auto is_activation = [this](const std::string& key, const std::string& value) {
            for (int kind = kNone; key == "activation" && kind <= kDual; ++kind) {
                if (value == kActivations[kind]) return activation = kind, true;
            }
            return false;
        };
        read_words(op, split(text, ' '),
                   {{"outputs", &outputs},
                    {"activated", &activated},
                    {"plus", &plus},
                    {"minus", &minus},
                    {"to_output", &to_output},
                    {"largest", &largest},
                    {"low", &low},
                    {"square", &square},
                    {"output_scale", &output_scale},
                    {"step", &step},
                    {"skip_multiply", &skip_multiply},
                    {"skip_divide", &skip_divide}},
                   is_activation);
        const auto is_output = [&](double number) { return number >= -1 && number < outputs; };
        if (!(outputs >= 1 && outputs <= 1 << 20 && activated >= 1 && activated <= outputs && is_output(plus) &&
              is_output(minus)))
            fail(op, "layers", "'" + text + "'", "1 to 2^20 outputs; activated, plus and minus among them");
        int exponent;
        if (std::frexp(step, &exponent) != 0.5 || !(skip_divide > 0))
            fail(op, "layers", "'" + text + "'", "a power of two as step, and a positive skip_divide");
    }
};

// The piece "integers …".
inline Integers read_integers(const char* op, const std::string& text) {
    Integers integers;
    double divide = 1, x_scale = 1, psqt_scale = 1, apart = 0;
    std::vector<std::string> words = split(text, ' ');
    words.erase(words.begin());
    read_words(op, words,
               {{"divide", &divide},
                {"multiply", &integers.multiply},
                {"by", &integers.by},
                {"score_multiply", &integers.score_multiply},
                {"score_divide", &integers.score_divide},
                {"apart", &apart},
                {"unit", &integers.unit},
                {"x_scale", &x_scale},
                {"psqt_scale", &psqt_scale}},
               [](const std::string&, const std::string&) { return false; });
    if (!(divide > 0 && integers.by > 0 && integers.score_divide > 0 && integers.unit > 0))
        fail(op, "layers", "'" + text + "'", "positive divisors");
    integers.rounds = true;
    integers.apart = apart != 0;
    integers.divide = static_cast<float>(divide);
    integers.x_scale = static_cast<float>(x_scale);
    const double of_score = integers.score_multiply / integers.score_divide / integers.unit;
    integers.layers_slope = static_cast<float>(integers.multiply / integers.by * of_score);
    integers.psqt_slope = static_cast<float>(psqt_scale * of_score);
    return integers;
}

// The pieces of `layers`: one for each layer but the last, and the one about integers, or nothing.
struct Description {
    std::vector<std::string> hidden;
    std::string integers;

    explicit Description(const std::string& text) : hidden(split(text, ';')) {
        if (hidden.empty() || split(hidden.back(), ' ').front() != "integers") return;
        integers = hidden.back();
        hidden.pop_back();
    }
};

// Reads `layers`.
inline Layers read_layout(const char* op, int64_t inputs, int64_t stacks, const std::string& text) {
    Layers layers;
    const Description description(text);
    const size_t hidden = description.hidden.size();
    if (hidden > kMostHidden) fail(op, "layers", std::to_string(hidden) + " layers", "at most 8 but the last");
    if (stacks < 1 || stacks > kMostStacks)
        fail(op, "weight_0", std::to_string(stacks) + " stacks", "1 to " + std::to_string(kMostStacks));
    layers.count = static_cast<int>(hidden) + 1;
    layers.stacks = stacks;
    if (!description.integers.empty()) layers.integers = read_integers(op, description.integers);
    int seen_by_last = 0;
    for (size_t l = 0; l <= hidden; ++l) {
        Layer& layer = layers.at[l];
        layer.plus = layer.minus = layer.output_offset = -1;
        layer.inputs = l == 0 ? static_cast<int>(inputs) : l == hidden ? seen_by_last : layers.at[l - 1].values;
        layer.outputs = 1;
        if (l == hidden) break;
        const LayerWords of(op, description.hidden[l]);
        layer.outputs = static_cast<int>(of.outputs);
        layer.activated = static_cast<int>(of.activated);
        layer.activation = of.activation;
        layer.plus = static_cast<int>(of.plus);
        layer.minus = static_cast<int>(of.minus);
        layer.largest = static_cast<float>(of.largest);
        layer.low = static_cast<float>(of.low);
        layer.square = static_cast<float>(of.square);
        layer.step = static_cast<float>(of.step);
        layer.skip_multiply = of.skip_multiply;
        layer.skip_divide = of.skip_divide;
        layer.skip_slope = static_cast<float>(of.skip_multiply / of.skip_divide);
        layer.values = layer.activated * (layer.activation == kDual ? 2 : 1);
        const bool before_last = l + 1 == hidden;
        if (of.to_output == 0 && !before_last) continue;
        layer.output_offset = seen_by_last;
        layer.output_scale = before_last ? 1.0f : static_cast<float>(of.output_scale);
        seen_by_last += layer.values;
    }
    return layers;
}

// The same, with the parameters' shapes checked against it.
inline Layers read_layers(const char* op, const Tensors& parameters, const std::string& text, Device device) {
    const size_t wanted = 2 * (Description(text).hidden.size() + 1);
    if (parameters.size() != wanted)
        fail(op, "parameters", std::to_string(parameters.size()) + " tensors",
             std::to_string(wanted) + ", weight and bias of each layer");
    check_shape(op, "weight_0", parameters[0], {-1, -1, -1}, "[S, O, I]");
    const Layers layers = read_layout(op, parameters[0].size(2), parameters[0].size(0), text);
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
    return layers;
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
constexpr int kMostConstants = 12;

enum class LossKind : int { none, sigmoid, win_rate };

struct Loss {
    LossKind kind = LossKind::none;
    float score_scale = 1;  // engine units in one unit of output
    float constants[kMostConstants]{};
};

inline Loss read_loss(const char* op, const std::string& name, const std::vector<double>& constants) {
    Loss loss;
    size_t wanted = 0;
    if (name == "sigmoid") loss.kind = LossKind::sigmoid, wanted = 1 + 2;
    if (name == "win_rate") loss.kind = LossKind::win_rate, wanted = 1 + 11;
    if (wanted == 0) fail(op, "loss", name, "sigmoid or win_rate");
    if (constants.size() != wanted)
        fail(op, "constants", static_cast<int64_t>(constants.size()), static_cast<int64_t>(wanted));
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

// Expected points of a score, and their derivative.
NNUE_HOST_DEVICE float expected_points(float score, float offset, float scaling, float* slope) {
    const float win = sigmoid((score - offset) / scaling), loss = sigmoid((-score - offset) / scaling);
    *slope = 0.5f / scaling * (win * (1.0f - win) + loss * (1.0f - loss));
    return 0.5f * (1.0f + win - loss);
}

// The same as nnue_trainer/losses: base.py for λ and positions without a score, and each loss in its file.
NNUE_HOST_DEVICE PositionLoss position_loss(const Loss& loss, float output, int score, int result, float lambda) {
    const float* const c = loss.constants;
    const bool has_score = score != kNoScore;
    const float net = output * loss.score_scale, known = has_score ? static_cast<float>(score) : 0.0f;
    const float share = has_score ? lambda : 0.0f, points = static_cast<float>(result) * 0.5f + 0.5f;
    float weight = has_score ? 1.0f : 1.0f - lambda;
    float value, slope, inner;
    if (loss.kind == LossKind::sigmoid) {  // scale, power
        const float of_net = sigmoid(net / c[0]);
        const float target = share * sigmoid(known / c[0]) + (1.0f - share) * points;
        value = power(of_net - target, c[1], &slope);
        inner = of_net * (1.0f - of_net) / c[0];
    } else {  // in_offset, in_scaling, out_offset, out_scaling, power, qp_asymmetry, weight_boost, weight_power,
              // proven_*
        float ignored, proven = known;
        const float size = fabsf(known);
        if (size >= 31755.0f) {
            const float compressed = c[8] + powf(c[10], 32000.0f - size) * c[9];
            proven = known < 0.0f ? -compressed : compressed;
        }
        const float of_net = expected_points(net, c[0], c[1], &inner);
        const float of_score = expected_points(proven, c[2], c[3], &ignored);
        const float target = share * of_score + (1.0f - share) * points;
        value = power(of_net - target, c[4], &slope);
        if (of_net > target) value *= 1.0f + c[5], slope *= 1.0f + c[5];
        if (c[6] != 0.0f) {
            const float off = of_score - 0.5f;
            const float base = off * off * of_score * (1.0f - of_score);
            weight *= 1.0f + (exp2f(c[6]) - 1.0f) * powf(base < 0.0f ? 0.0f : base, c[7]);
        }
    }
    return {weight * value, weight, weight * slope * inner * loss.score_scale};
}

}  // namespace nnue::layer_stacks
