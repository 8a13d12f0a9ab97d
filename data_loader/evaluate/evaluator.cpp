#include "evaluate/evaluator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "chess/fen.h"
#include "chess/record.h"
#include "pipeline/expand.h"
#include "pipeline/parallel.h"

namespace nnue::data {
namespace {

constexpr std::size_t kMaterials = 16, kStackEntries = (kMaxPieces + 1) * kMaterials;
constexpr std::size_t kChunk = 64;  // positions that a thread takes at a time
constexpr int kMost16 = std::numeric_limits<std::int16_t>::max();
constexpr double kMost32 = 2147483648.0;
constexpr double kMost64 = 4.6e18;  // below 2^62
constexpr std::int64_t kHalf16 = 1 << 15;
constexpr double kMostFloat = 1 << 30;  // of raw values that are made of floats

[[noreturn]] void refuse(const std::string& what) {
    throw FormatError("integer forward: " + what);
}

void require(bool holds, const std::string& what) {
    if (!holds) refuse(what);
}

std::size_t padded(std::size_t n) {
    return (n + kEvaluateLanes - 1) / kEvaluateLanes * kEvaluateLanes;
}

// Truncation to 16 and 32 bits, which C++20 defines.
std::int64_t wrap32(std::int64_t value) {
    return static_cast<std::int32_t>(static_cast<std::uint64_t>(value));
}

std::int64_t element(const IntegerTensor& tensor, std::size_t at) {
    switch (tensor.bytes) {
        case 1:
            return static_cast<const std::int8_t*>(tensor.data)[at];
        case 2:
            return static_cast<const std::int16_t*>(tensor.data)[at];
        default:
            return static_cast<const std::int32_t*>(tensor.data)[at];
    }
}

std::string shape(const IntegerTensor& t) {
    return t.name + (t.is_float ? ": fp" : ": int") + std::to_string(8 * t.bytes) + " [" + std::to_string(t.rows) +
           ", " + std::to_string(t.columns) + "]";
}

// A layer, ready to compute with: weights in 16 bits, rows padded with zeros.
struct PackedLayer {
    std::size_t inputs = 0, columns = 0, outputs = 0;  // columns: inputs, padded
    std::vector<std::int16_t> weight;                  // [stacks, outputs, columns]
    std::vector<std::int64_t> bias;                    // [stacks, outputs]; that of a shifted input is in it
    std::vector<std::int64_t> correction;              // [stacks, outputs]: 32768 · Σ weight where inputs are shifted
    std::vector<double> real_weight, real_bias;        // of a float layer: as `weight`, without padding, and `bias`
    // How many columns can be summed before 32 bits might overflow; 0: not even kEvaluateLanes. A sum that is not
    // divided afterwards may wrap around on the way, so there it is all columns.
    std::size_t exact_columns = 0;
    bool whole = false;  // a float layer whose weights and inputs are integers
};

// Scratch memory of one thread.
struct Scratch {
    std::vector<std::int32_t> white, black;  // index rows of a chunk
    std::vector<std::int16_t> counts, score;
    std::vector<std::int8_t> result;
    std::vector<std::uint8_t> black_to_move, piece_count, material;
    std::vector<const std::int8_t*> rows8;
    std::vector<const std::int16_t*> rows16;
    std::vector<std::uint16_t> accumulator;          // both perspectives', padded
    std::vector<std::vector<std::int16_t>> vectors;  // 0: the first activations, shifted by 32768 where they must be
    std::vector<std::int64_t> wide;                  // vector 0 where it does not fit 16 bits
    std::vector<std::int16_t> joined;                // of several vectors
    std::vector<std::vector<std::int64_t>> sums;     // of each layer
    std::vector<std::vector<double>> real_sums, real_vectors;  // of each float layer: fp32 numbers
    std::vector<double> real_joined;
    std::vector<std::uint32_t> products;
    std::vector<std::int64_t> psqt[2];
};

}  // namespace

class Evaluator::Impl {
  public:
    explicit Impl(Forward forward) : forward_(std::move(forward)), set_(feature_set(forward_.feature_set)) {
        check_first();
        double first_largest = forward_.first.clip;
        if (forward_.first.activation != FirstActivation::kCrelu) {
            first_largest = std::floor(first_largest * first_largest / std::ldexp(1.0, forward_.first.product_shift));
        }
        wide_ = first_largest >= 2 * kHalf16;
        shifted_ = !wide_ && first_largest > kMost16;
        pack_layers(first_largest);
        check_results();
    }

    const FeatureSet& features() const { return set_; }
    int num_stacks() const { return forward_.num_stacks; }

    Scratch scratch() const {
        Scratch s;
        const std::size_t rows = kChunk * static_cast<std::size_t>(set_.max_active);
        s.white.resize(rows);
        s.black.resize(rows);
        s.counts.resize(kChunk);
        s.score.resize(kChunk);
        s.result.resize(kChunk);
        s.black_to_move.resize(kChunk);
        s.piece_count.resize(kChunk);
        s.material.resize(kChunk);
        s.accumulator.resize(2 * padded(width_));
        s.vectors.emplace_back(padded(vector_sizes_[0]));
        s.wide.resize(wide_ ? vector_sizes_[0] : 0);
        std::size_t most_outputs = 1, most_columns = 0;
        for (std::size_t k = 0; k < layers_.size(); ++k) {
            s.vectors.emplace_back(padded(vector_sizes_[k + 1]));
            s.sums.emplace_back(layers_[k].outputs);
            const bool is_float = forward_.layers[k].is_float();
            s.real_sums.emplace_back(is_float ? layers_[k].outputs : 0);
            s.real_vectors.emplace_back(is_float ? vector_sizes_[k + 1] : 0);
            most_outputs = std::max(most_outputs, layers_[k].outputs);
            most_columns = std::max(most_columns, layers_[k].columns);
        }
        s.joined.resize(most_columns);
        s.products.resize(most_outputs);
        for (auto& sums : s.psqt) sums.resize(static_cast<std::size_t>(forward_.num_stacks));
        return s;
    }

    // Positions begin … end − 1, as they lie in `rows` and `out` from `begin` on.
    void evaluate(const IndexRows& rows, std::size_t begin, std::size_t end, const Evaluations& out,
                  const EvaluateKernels& kernels, std::size_t first_row, Scratch& s) const {
        for (std::size_t i = begin; i < end; ++i) position(rows, i - first_row, i, out, kernels, s);
    }

    std::size_t columns() const { return vector_sizes_[0]; }

    // Position `row` of `rows`, which is position i to the caller.
    void first_active(const IndexRows& rows, std::size_t row, std::size_t i, std::uint8_t* out,
                      const EvaluateKernels& kernels, Scratch& s) const {
        const auto sides = sides_of(rows, row);
        for (int side = 0; side < num_sides_; ++side) {
            const bool is_black = forward_.first.sides == Sides::kWhite && rows.black_to_move[row];
            accumulate(sides[static_cast<std::size_t>(is_black ? 1 : side)], rows.max_active, i, side, 0, 0, kernels,
                       s);
        }
        first_activation(kernels, s);
        const std::int16_t zero = shifted_ ? std::numeric_limits<std::int16_t>::min() : std::int16_t{0};
        for (std::size_t c = 0; c < columns(); ++c) out[c] = wide_ ? s.wide[c] != 0 : s.vectors[0][c] != zero;
    }

  private:
    using Row = const std::int32_t*;

    void check_first() {
        for (const FeaturePart& part : set_.parts) parts_.push_back({part.first_feature, part.num_features});
        for (const AppendedPart& part : set_.appended) parts_.push_back({part.first_feature, part.is.num_features});
        std::sort(parts_.begin(), parts_.end(),
                  [](const Range& a, const Range& b) { return a.first_feature < b.first_feature; });
        const FirstLayer& first = forward_.first;
        width_ = first.bias.columns;
        num_sides_ = first.sides == Sides::kBoth ? 2 : 1;
        require(first.bias.bytes == 2 && first.bias.rows == 1 && width_ > 0,
                shape(first.bias) + ", expected int16 [1, n]");
        require(first.weights.size() == parts_.size(), std::to_string(first.weights.size()) +
                                                           " first weights, expected " + std::to_string(parts_.size()) +
                                                           ", one for each feature set of the sum");
        require(first.psqt.empty() || first.psqt.size() == parts_.size(), "PSQT columns of some parts only");
        require(first.psqt.empty() || num_sides_ == 2, "PSQT columns with one perspective");
        require(forward_.num_stacks >= 1, "no stacks");
        const auto stacks = static_cast<std::size_t>(forward_.num_stacks);
        for (std::size_t part = 0; part < parts_.size(); ++part) {
            const auto features = static_cast<std::size_t>(parts_[part].num_features);
            const IntegerTensor& weight = first.weights[part];
            require((weight.bytes == 1 || weight.bytes == 2) && weight.rows == features && weight.columns == width_,
                    shape(weight) + ", expected int8 or int16 [" + std::to_string(features) + ", " +
                        std::to_string(width_) + "]");
            if (first.psqt.empty()) continue;
            const IntegerTensor& psqt = first.psqt[part];
            require(
                psqt.bytes == 4 && !psqt.is_float && psqt.rows == features && psqt.columns == stacks,
                shape(psqt) + ", expected int32 [" + std::to_string(features) + ", " + std::to_string(stacks) + "]");
        }
        require(first.clip >= 0 && first.clip <= kMost16, "a first clip that is not in 0 … 32767");
        require(first.product_shift >= 0 && first.product_shift <= 30, "a product shift that is not in 0 … 30");
        require(first.accumulator_shift >= 0 && first.accumulator_shift <= 15,
                "an accumulator shift that is not in 0 … 15");
        require(first.activation != FirstActivation::kPairwise || width_ % 2 == 0, "pairs of an odd width");
        if (forward_.feature_weights.empty()) {
            require(forward_.stacks.size() == kStackEntries,
                    "a table of " + std::to_string(forward_.stacks.size()) + " stacks, expected 528");
        } else {
            require(!forward_.stacks.empty(), "no table of stacks");
            require(forward_.feature_weights.size() == static_cast<std::size_t>(set_.num_features),
                    std::to_string(forward_.feature_weights.size()) + " weights of features, expected " +
                        std::to_string(set_.num_features));
            for (const std::int32_t weight : forward_.feature_weights) {
                require(weight >= 0 && weight <= kMost16, "a weight of a piece that is not in 0 … 32767");
            }
        }
        for (const int stack : forward_.stacks) {
            require(stack >= 0 && stack < forward_.num_stacks,
                    "stack " + std::to_string(stack) + " of " + std::to_string(forward_.num_stacks));
        }
    }

    void pack_layers(double first_largest) {
        const bool pairs = forward_.first.activation == FirstActivation::kPairwise;
        vector_sizes_ = {static_cast<std::size_t>(num_sides_) * (pairs ? width_ / 2 : width_)};
        std::vector<double> largest{first_largest};
        require(!forward_.layers.empty() && forward_.layers.back().outputs == (forward_.wdl ? 3 : 1),
                forward_.wdl ? "no last layer with three outputs" : "no last layer with one output");
        require(!forward_.wdl || (forward_.skips.empty() && forward_.first.psqt.empty()),
                "skip connections or PSQT columns beside outputs for loss, draw and win");
        for (std::size_t k = 0; k < forward_.layers.size(); ++k) {
            const ForwardLayer& layer = forward_.layers[k];
            const std::string name = "layer " + std::to_string(k) + ": ";
            require(layer.outputs >= 1 && layer.activated >= 0 && layer.activated <= layer.outputs,
                    name + std::to_string(layer.activated) + " activated of " + std::to_string(layer.outputs));
            require(layer.shift >= 0 && layer.shift <= 30 && layer.square_shift >= 0 && layer.square_shift <= 60 &&
                        2 * layer.shift + layer.square_shift <= 62,
                    name + "shifts beyond 62 bits");
            require(layer.clip >= 0 && layer.clip <= kMost16 && layer.divide >= 1,
                    name + "a clip that is not in 0 … 32767, or a divisor below 1");
            PackedLayer packed;
            packed.outputs = static_cast<std::size_t>(layer.outputs);
            double most_input = 0;
            require(!layer.inputs.empty(), name + "no inputs");
            for (const int input : layer.inputs) {
                require(input >= 0 && static_cast<std::size_t>(input) <= k, name + "an input that comes later");
                require(!((shifted_ || wide_) && input == 0) || layer.inputs.size() == 1,
                        name + "first activations of 16 bits and others");
                packed.inputs += vector_sizes_[static_cast<std::size_t>(input)];
                most_input = std::max(most_input, largest[static_cast<std::size_t>(input)]);
            }
            require(layer.is_float() || !any_float_, name + "integers behind floats");
            require(!layer.is_float() || layer.inputs.size() == 1 || !any_integer_input(layer),
                    name + "integers and floats as inputs, or several vectors of integers");
            if (layer.is_float()) {
                any_float_ = true;
                pack_float(name, layer, packed);
                most_sums_.push_back(0);  // floats have no bound that matters
                layers_.push_back(std::move(packed));
                vector_sizes_.push_back(static_cast<std::size_t>(layer.activated) *
                                        (layer.activation == LayerActivation::kDual ? 2 : 1));
                largest.push_back(kMost32);
                continue;
            }
            const bool shifted = shifted_ && layer.inputs[0] == 0;
            if (shifted) most_input = static_cast<double>(kHalf16);
            packed.columns = padded(packed.inputs);
            const double most_sum = pack(name, layer, shifted, most_input, packed);
            layers_.push_back(std::move(packed));
            most_sums_.push_back(std::min(most_sum, kMost32));
            const bool dual = layer.activation == LayerActivation::kDual;
            vector_sizes_.push_back(static_cast<std::size_t>(layer.activated) * (dual ? 2 : 1));
            largest.push_back(layer.activation == LayerActivation::kNone     ? kHalf16
                              : layer.activation == LayerActivation::kScrelu ? screlu_largest(name, layer)
                                                                             : static_cast<double>(layer.clip));
        }
    }

    static double screlu_largest(const std::string& name, const ForwardLayer& layer) {
        require(std::ldexp(layer.clip, layer.shift) < kMost32, name + "a clip beyond 32 bits");
        const double most = std::floor(std::ldexp(static_cast<double>(layer.clip) * layer.clip, -layer.square_shift));
        require(most <= kMost16, name + "squares that do not fit 16 bits");
        return most;
    }

    bool any_integer_input(const ForwardLayer& layer) const {
        return std::any_of(layer.inputs.begin(), layer.inputs.end(), [&](int input) {
            return input == 0 || !forward_.layers[static_cast<std::size_t>(input - 1)].is_float();
        });
    }

    // Fills weights and biases of a float layer.
    void pack_float(const std::string& name, const ForwardLayer& layer, PackedLayer& packed) const {
        const std::size_t rows = static_cast<std::size_t>(forward_.num_stacks) * packed.outputs;
        const IntegerTensor &weight = layer.weight, &bias = layer.bias;
        require((weight.is_float || weight.bytes <= 2) && weight.rows == rows && weight.columns >= packed.inputs,
                name + shape(weight) + ", expected fp32, int8 or int16 [" + std::to_string(rows) + ", " +
                    std::to_string(packed.inputs) + " or more]");
        require(bias.is_float && bias.rows * bias.columns == rows,
                name + shape(bias) + ", expected fp32, " + std::to_string(rows) + " numbers");
        require(std::isfinite(*layer.factor), name + "a factor that is not finite");
        packed.whole = !weight.is_float && layer.inputs.size() == 1 && any_integer_input(layer);
        packed.columns = packed.whole ? padded(packed.inputs) : packed.inputs;
        packed.weight.resize(packed.whole ? rows * packed.columns : 0);
        packed.real_weight.resize(packed.whole ? 0 : rows * packed.columns);
        packed.real_bias.resize(rows);
        packed.correction.resize(rows);
        packed.exact_columns = packed.columns;  // sums are of 32 bits, which wrap around
        const auto value_of = [](const IntegerTensor& tensor, std::size_t at) {
            return tensor.is_float ? static_cast<double>(static_cast<const float*>(tensor.data)[at])
                                   : static_cast<double>(element(tensor, at));
        };
        for (std::size_t row = 0; row < rows; ++row) {
            std::int64_t sum = 0;
            for (std::size_t i = 0; i < packed.inputs; ++i) {
                const double value = value_of(weight, row * weight.columns + i);
                require(std::isfinite(value), name + weight.name + ": a weight that is not finite");
                if (packed.whole) {
                    packed.weight[row * packed.columns + i] = static_cast<std::int16_t>(value);
                    sum += static_cast<std::int64_t>(value);
                } else {
                    packed.real_weight[row * packed.columns + i] = value;
                }
            }
            packed.correction[row] = shifted_ && layer.inputs[0] == 0 ? kHalf16 * sum : 0;
            packed.real_bias[row] = value_of(bias, row);
            require(std::isfinite(packed.real_bias[row]), name + bias.name + ": a bias that is not finite");
        }
    }

    // Fills weights and biases; returns a bound of the sums.
    double pack(const std::string& name, const ForwardLayer& layer, bool shifted, double most_input,
                PackedLayer& packed) const {
        const std::size_t rows = static_cast<std::size_t>(forward_.num_stacks) * packed.outputs;
        require((layer.weight.bytes == 1 || layer.weight.bytes == 2) && layer.weight.rows == rows &&
                    layer.weight.columns >= packed.inputs,
                name + shape(layer.weight) + ", expected int8 or int16 [" + std::to_string(rows) + ", " +
                    std::to_string(packed.inputs) + " or more]");
        require(!layer.bias.is_float && (layer.bias.bytes == 2 || layer.bias.bytes == 4) &&
                    layer.bias.rows * layer.bias.columns == rows,
                name + shape(layer.bias) + ", expected int16 or int32, " + std::to_string(rows) + " numbers");
        packed.weight.resize(rows * packed.columns);
        packed.bias.resize(rows);
        packed.correction.resize(rows);
        std::int64_t most_weight = 0, most_bias = 0, most_row = 0;
        for (std::size_t row = 0; row < rows; ++row) {
            std::int64_t sum = 0, magnitude = 0;
            for (std::size_t i = 0; i < packed.inputs; ++i) {
                const std::int64_t weight = element(layer.weight, row * layer.weight.columns + i);
                packed.weight[row * packed.columns + i] = static_cast<std::int16_t>(weight);
                sum += weight;
                magnitude += std::abs(weight);
                most_weight = std::max(most_weight, std::abs(weight));
            }
            packed.bias[row] = element(layer.bias, row);
            packed.correction[row] = shifted ? kHalf16 * sum : 0;
            most_bias = std::max(most_bias, std::abs(packed.bias[row]));
            most_row = std::max(most_row, magnitude);
        }
        if (layer.divide == 1) {
            packed.exact_columns = packed.columns;
        } else {
            const double each = std::max(1.0, most_input * static_cast<double>(most_weight));
            packed.exact_columns =
                static_cast<std::size_t>(std::floor((kMost32 - 1) / each / kEvaluateLanes)) * kEvaluateLanes;
        }
        require(static_cast<double>(most_row) * most_input < kMost64,
                name + "sums may reach " + std::to_string(static_cast<double>(most_row) * most_input));
        // Shifted inputs have twice the magnitude.
        return static_cast<double>(most_row) * most_input * (shifted ? 2 : 1) / static_cast<double>(layer.divide) +
               static_cast<double>(most_bias);
    }

    void check_results() const {
        double most = most_sums_.back();
        for (const Skip& skip : forward_.skips) {
            require(skip.layer >= 0 && static_cast<std::size_t>(skip.layer) < layers_.size(), "a skip of no layer");
            const auto layer = static_cast<std::size_t>(skip.layer);
            const int outputs = forward_.layers[layer].outputs;
            require(
                skip.plus >= 0 && skip.plus < outputs && (!skip.minus || (*skip.minus >= 0 && *skip.minus < outputs)),
                "a skip of no output");
            require(skip.multiply >= 1 && skip.divide >= 1, "a factor or divisor of a skip below 1");
            const double product = 2 * most_sums_[layer] * static_cast<double>(skip.multiply);
            require(product < kMost64, "a skip connection may reach " + std::to_string(product));
            most += product / static_cast<double>(skip.divide);
        }
        require(forward_.multiply >= 1 && forward_.divide >= 1 && forward_.score_multiply >= 1 &&
                    forward_.score_divide >= 1,
                "a factor or divisor below 1");
        if (forward_.wdl) most = kMostFloat;
        most *= static_cast<double>(forward_.multiply);
        require(most < kMost64, "the output may reach " + std::to_string(most));
        most = (most / static_cast<double>(forward_.divide) + kMost32) * static_cast<double>(forward_.score_multiply);
        require(most < kMost64, "the score may reach " + std::to_string(most));
    }

    // The index rows of a position, side to move first.
    static std::array<Row, 2> sides_of(const IndexRows& rows, std::size_t row) {
        const Row white = rows.white + row * rows.max_active, black = rows.black + row * rows.max_active;
        return rows.black_to_move[row] ? std::array{black, white} : std::array{white, black};
    }

    void position(const IndexRows& rows, std::size_t row, std::size_t i, const Evaluations& out,
                  const EvaluateKernels& kernels, Scratch& s) const {
        const int pieces = rows.piece_count[row];
        if (pieces > kMaxPieces) {
            throw FormatError("position " + std::to_string(i) + ": " + std::to_string(pieces) +
                              " pieces, expected at most 32");
        }
        const std::size_t material = rows.material[row];
        if (material >= kMaterials) {
            throw FormatError("position " + std::to_string(i) + ": material " + std::to_string(material) +
                              ", expected at most 15");
        }
        const auto sides = sides_of(rows, row);
        const auto used = static_cast<std::size_t>(
            forward_.stacks[forward_.feature_weights.empty() ? static_cast<std::size_t>(pieces) * kMaterials + material
                                                             : weight_of(sides[0], rows.max_active, i)]);
        const auto num_stacks = static_cast<std::size_t>(forward_.num_stacks);
        const std::size_t begin = out.every_stack ? 0 : used, end = out.every_stack ? num_stacks : used + 1;
        const std::size_t stride = end - begin;
        for (int side = 0; side < num_sides_; ++side) {
            const bool is_black = forward_.first.sides == Sides::kWhite && rows.black_to_move[row];
            accumulate(sides[static_cast<std::size_t>(is_black ? 1 : side)], rows.max_active, i, side, begin, end,
                       kernels, s);
        }
        first_activation(kernels, s);
        out.stack[i] = static_cast<std::int64_t>(used);
        for (std::size_t stack = begin; stack < end; ++stack) {
            const std::size_t at = i * stride + stack - begin;
            // The engine subtracts in 32 bits.
            out.psqt[at] = wrap32(s.psqt[0][stack] - s.psqt[1][stack]) / 2;
            out.positional[at] = positional(stack, kernels, s);
            if (forward_.first.sides == Sides::kWhite && rows.black_to_move[row]) out.positional[at] *= -1;
            if (stack == used) out.score[i] = score(out.psqt[at], out.positional[at]);
        }
    }

    // The sum of the weights of pieces, at most that of the last stack in the table.
    std::size_t weight_of(Row row, std::size_t max_active, std::size_t i) const {
        std::size_t sum = 0;
        for (std::size_t k = 0; k < max_active && row[k] != -1; ++k) {
            if (row[k] < 0 || row[k] >= set_.num_features) bad_index(i, row[k]);
            sum += static_cast<std::size_t>(forward_.feature_weights[static_cast<std::size_t>(row[k])]);
        }
        return std::min(sum, forward_.stacks.size() - 1);
    }

    [[noreturn]] void bad_index(std::size_t i, std::int32_t index) const {
        throw FormatError("position " + std::to_string(i) + ": index " + std::to_string(index) + ", expected 0 … " +
                          std::to_string(set_.num_features - 1));
    }

    std::int64_t score(std::int64_t psqt, std::int64_t positional) const {
        const auto scaled = [&](std::int64_t raw) { return raw * forward_.score_multiply / forward_.score_divide; };
        return forward_.score_apart ? scaled(psqt) + scaled(positional) : scaled(psqt + positional);
    }

    // One perspective's accumulator, and its PSQT sums of the stacks begin … end − 1.
    void accumulate(Row row, std::size_t max_active, std::size_t i, int side, std::size_t begin, std::size_t end,
                    const EvaluateKernels& kernels, Scratch& s) const {
        s.rows8.clear();
        s.rows16.clear();
        const auto num_stacks = static_cast<std::size_t>(forward_.num_stacks);
        std::vector<std::int64_t>& psqt = s.psqt[side];
        std::fill(psqt.begin(), psqt.end(), 0);
        for (std::size_t k = 0; k < max_active && row[k] != -1; ++k) {
            const std::int32_t index = row[k];
            if (index < 0 || index >= set_.num_features) bad_index(i, index);
            std::size_t part = 0;
            while (index >= parts_[part].first_feature + parts_[part].num_features) ++part;
            const auto feature = static_cast<std::size_t>(index - parts_[part].first_feature);
            const IntegerTensor& weight = forward_.first.weights[part];
            if (weight.bytes == 1) {
                s.rows8.push_back(static_cast<const std::int8_t*>(weight.data) + feature * width_);
            } else {
                s.rows16.push_back(static_cast<const std::int16_t*>(weight.data) + feature * width_);
            }
            if (forward_.first.psqt.empty()) continue;
            const auto* columns =
                static_cast<const std::int32_t*>(forward_.first.psqt[part].data) + feature * num_stacks;
            for (std::size_t stack = begin; stack < end; ++stack) psqt[stack] += columns[stack];
        }
        std::uint16_t* sum = s.accumulator.data() + static_cast<std::size_t>(side) * padded(width_);
        const auto* bias = static_cast<const std::uint16_t*>(forward_.first.bias.data);
        std::copy_n(bias, width_, sum);
        kernels.add_rows_i16(s.rows16.data(), s.rows16.size(), sum, width_);
        kernels.add_rows_i8(s.rows8.data(), s.rows8.size(), sum, width_);
        kernels.clip(sum, width_, forward_.first.accumulator_shift, forward_.first.clip);
        for (std::int64_t& value : psqt) value = wrap32(value);
    }

    void first_activation(const EvaluateKernels& kernels, Scratch& s) const {
        const FirstLayer& first = forward_.first;
        auto* x = reinterpret_cast<std::uint16_t*>(s.vectors[0].data());
        const bool narrow = first.clip < 256;  // 255² has 16 bits
        for (std::size_t side = 0; side < static_cast<std::size_t>(num_sides_); ++side) {
            const std::uint16_t* a = s.accumulator.data() + side * padded(width_);
            if (first.activation == FirstActivation::kCrelu) {
                std::copy_n(a, width_, x);
                x += width_;
                continue;
            }
            const bool pairs = first.activation == FirstActivation::kPairwise;
            const std::size_t n = pairs ? width_ / 2 : width_;
            const std::uint16_t* b = pairs ? a + n : a;
            if (wide_) {
                for (std::size_t i = 0; i < n; ++i) {
                    s.wide[side * n + i] = std::int64_t{a[i]} * b[i] >> first.product_shift;
                }
                continue;
            }
            (narrow ? kernels.narrow_products : kernels.products)(a, b, x, n, first.product_shift);
            x += n;
        }
        if (shifted_) {
            for (std::int16_t& value : s.vectors[0]) value = static_cast<std::int16_t>(value ^ 0x8000);
        }
    }

    std::int64_t positional(std::size_t stack, const EvaluateKernels& kernels, Scratch& s) const {
        for (std::size_t k = 0; k < layers_.size(); ++k) {
            if (forward_.layers[k].is_float()) {
                float_sums(k, stack, kernels, s);
                activate(forward_.layers[k], s.real_sums[k].data(), s.real_vectors[k].data());
                continue;
            }
            layer_sums(k, stack, inputs_of(k, s), kernels, s);
            activate(forward_.layers[k], s.sums[k].data(), s.vectors[k + 1].data());
        }
        if (forward_.wdl) return wdl_output(s);
        if (any_float_) return float_output(s);
        std::int64_t output = s.sums.back()[0];
        for (const Skip& skip : forward_.skips) {
            const std::vector<std::int64_t>& y = s.sums[static_cast<std::size_t>(skip.layer)];
            std::int64_t skipped = y[static_cast<std::size_t>(skip.plus)];
            if (skip.minus) skipped -= y[static_cast<std::size_t>(*skip.minus)];
            skipped *= skip.multiply;
            output += (skip.wraps ? wrap32(skipped) : skipped) / skip.divide;
        }
        return output * forward_.multiply / forward_.divide;
    }

    std::int64_t wdl_output(const Scratch& s) const {
        const std::size_t last = layers_.size() - 1;
        const auto logit = [&](std::size_t o) {
            const double y =
                forward_.layers[last].is_float() ? s.real_sums[last][o] : static_cast<double>(s.sums[last][o]);
            return y / static_cast<double>(forward_.divide);
        };
        const double output = log_odds(logit(0), logit(1), logit(2)) * static_cast<double>(forward_.multiply);
        return static_cast<std::int64_t>(std::clamp(output, -kMostFloat, kMostFloat));
    }

    std::int64_t float_output(const Scratch& s) const {
        const auto y = [&](int layer, int output) {
            const auto k = static_cast<std::size_t>(layer), o = static_cast<std::size_t>(output);
            return forward_.layers[k].is_float() ? s.real_sums[k][o] : static_cast<double>(s.sums[k][o]);
        };
        double output = s.real_sums.back()[0];
        for (const Skip& skip : forward_.skips) {
            double skipped = y(skip.layer, skip.plus);
            if (skip.minus) skipped -= y(skip.layer, *skip.minus);
            output += skipped * static_cast<double>(skip.multiply) / static_cast<double>(skip.divide);
        }
        output = output * static_cast<double>(forward_.multiply) / static_cast<double>(forward_.divide);
        return static_cast<std::int64_t>(std::clamp(output, -kMostFloat, kMostFloat));
    }

    // Value i of vector 0 or of an integer layer's.
    double whole_input(std::size_t vector, std::size_t i, const Scratch& s) const {
        if (vector == 0 && wide_) return static_cast<double>(s.wide[i]);
        return s.vectors[vector][i] + (vector == 0 && shifted_ ? static_cast<double>(kHalf16) : 0.0);
    }

    void float_sums(std::size_t k, std::size_t stack, const EvaluateKernels& kernels, Scratch& s) const {
        constexpr double kMost = std::numeric_limits<float>::max();
        const ForwardLayer& is = forward_.layers[k];
        const PackedLayer& layer = layers_[k];
        const std::size_t first = stack * layer.outputs, input = static_cast<std::size_t>(is.inputs[0]);
        std::vector<double>& sums = s.real_sums[k];
        if (layer.whole) {
            if (wide_ && input == 0) {
                for (std::size_t o = 0; o < layer.outputs; ++o) {
                    const std::int16_t* weight = layer.weight.data() + (first + o) * layer.columns;
                    std::int64_t sum = 0;
                    for (std::size_t i = 0; i < layer.inputs; ++i) sum += s.wide[i] * weight[i];
                    sums[o] = static_cast<double>(wrap32(sum));
                }
            } else {
                kernels.multiply(s.vectors[input].data(), layer.weight.data() + first * layer.columns, layer.columns,
                                 layer.outputs, s.products.data());
                for (std::size_t o = 0; o < layer.outputs; ++o) {
                    const std::int64_t sum = static_cast<std::int32_t>(s.products[o]);
                    sums[o] = static_cast<double>(wrap32(sum + layer.correction[first + o]));
                }
            }
        } else {
            std::vector<double>& x = s.real_joined;
            x.clear();
            for (const int number : is.inputs) {
                const auto vector = static_cast<std::size_t>(number);
                if (vector > 0 && forward_.layers[vector - 1].is_float()) {
                    x.insert(x.end(), s.real_vectors[vector - 1].begin(), s.real_vectors[vector - 1].end());
                } else {
                    for (std::size_t i = 0; i < vector_sizes_[vector]; ++i) x.push_back(whole_input(vector, i, s));
                }
            }
            for (std::size_t o = 0; o < layer.outputs; ++o) {
                const double* weight = layer.real_weight.data() + (first + o) * layer.columns;
                double parts[4] = {0, 0, 0, 0};  // independent sums: compilers make vectors of them
                std::size_t i = 0;
                for (; i + 4 <= layer.inputs; i += 4) {
                    for (std::size_t j = 0; j < 4; ++j) parts[j] += x[i + j] * weight[i + j];
                }
                for (; i < layer.inputs; ++i) parts[0] += x[i] * weight[i];
                sums[o] = (parts[0] + parts[1]) + (parts[2] + parts[3]);
            }
        }
        for (std::size_t o = 0; o < layer.outputs; ++o) {
            sums[o] = static_cast<float>(std::clamp(sums[o] * *is.factor + layer.real_bias[first + o], -kMost, kMost));
        }
    }

    static void activate(const ForwardLayer& layer, const double* y, double* out) {
        const auto n = static_cast<std::size_t>(layer.activated);
        const auto most = static_cast<float>(layer.clip);
        for (std::size_t o = 0; o < n; ++o) {
            const auto value = static_cast<float>(y[o]), clamped = std::clamp(value, 0.0f, most);
            switch (layer.activation) {
                case LayerActivation::kCrelu:
                    out[o] = clamped;
                    break;
                case LayerActivation::kScrelu:
                    out[o] = clamped * clamped;
                    break;
                case LayerActivation::kDual:
                    out[o] = std::min(value * value, most);
                    out[n + o] = clamped;
                    break;
                case LayerActivation::kNone:
                    out[o] = value;
                    break;
            }
        }
    }

    const std::int16_t* inputs_of(std::size_t k, Scratch& s) const {
        const std::vector<int>& inputs = forward_.layers[k].inputs;
        if (inputs.size() == 1) return s.vectors[static_cast<std::size_t>(inputs[0])].data();
        std::int16_t* x = s.joined.data();
        for (const int input : inputs) {
            const auto number = static_cast<std::size_t>(input);
            x = std::copy_n(s.vectors[number].data(), vector_sizes_[number], x);
        }
        return s.joined.data();
    }

    void layer_sums(std::size_t k, std::size_t stack, const std::int16_t* x, const EvaluateKernels& kernels,
                    Scratch& s) const {
        const PackedLayer& layer = layers_[k];
        const std::int64_t divide = forward_.layers[k].divide;
        const std::size_t first = stack * layer.outputs;
        const std::int16_t* weight = layer.weight.data() + first * layer.columns;
        std::vector<std::int64_t>& sums = s.sums[k];
        if (wide_ && forward_.layers[k].inputs[0] == 0) {
            for (std::size_t o = 0; o < layer.outputs; ++o) {
                sums[o] = 0;
                for (std::size_t i = 0; i < layer.inputs; ++i) sums[o] += s.wide[i] * weight[o * layer.columns + i];
            }
        } else if (layer.exact_columns >= layer.columns) {
            kernels.multiply(x, weight, layer.columns, layer.outputs, s.products.data());
            for (std::size_t o = 0; o < layer.outputs; ++o) sums[o] = static_cast<std::int32_t>(s.products[o]);
        } else {
            for (std::size_t o = 0; o < layer.outputs; ++o) {
                sums[o] = exact_sum(x, weight + o * layer.columns, layer, kernels);
            }
        }
        for (std::size_t o = 0; o < layer.outputs; ++o) {
            sums[o] = wrap32((sums[o] + layer.correction[first + o]) / divide + layer.bias[first + o]);
        }
    }

    static std::int64_t exact_sum(const std::int16_t* x, const std::int16_t* weight, const PackedLayer& layer,
                                  const EvaluateKernels& kernels) {
        std::int64_t sum = 0;
        if (layer.exact_columns == 0) {
            for (std::size_t i = 0; i < layer.columns; ++i) sum += std::int64_t{x[i]} * weight[i];
            return sum;
        }
        for (std::size_t i = 0; i < layer.columns; i += layer.exact_columns) {
            std::uint32_t part = 0;
            kernels.multiply(x + i, weight + i, std::min(layer.exact_columns, layer.columns - i), 1, &part);
            sum += static_cast<std::int32_t>(part);
        }
        return sum;
    }

    static void activate(const ForwardLayer& layer, const std::int64_t* y, std::int16_t* out) {
        const int shift = 2 * layer.shift + layer.square_shift;
        const auto n = static_cast<std::size_t>(layer.activated);
        const std::int64_t clip = layer.clip;
        for (std::size_t o = 0; o < n; ++o) {
            const std::int64_t clamped = std::clamp<std::int64_t>(y[o] >> layer.shift, 0, clip);
            std::int64_t value = clamped;
            switch (layer.activation) {
                case LayerActivation::kCrelu:
                    break;
                case LayerActivation::kScrelu: {
                    const std::int64_t inside = std::clamp<std::int64_t>(y[o], 0, clip << layer.shift);
                    value = inside * inside >> shift;
                    break;
                }
                case LayerActivation::kDual:
                    value = std::min(y[o] * y[o] >> shift, clip);
                    out[n + o] = static_cast<std::int16_t>(clamped);
                    break;
                case LayerActivation::kNone:
                    value = std::clamp<std::int64_t>(y[o] >> layer.shift, -kMost16 - 1, kMost16);
                    break;
            }
            out[o] = static_cast<std::int16_t>(value);
        }
    }

    Forward forward_;
    const FeatureSet& set_;
    // All parts of the set, ordered by first feature; also those whose entries come last in a row.
    struct Range {
        int first_feature, num_features;
    };
    std::vector<Range> parts_;
    std::size_t width_ = 0;
    int num_sides_ = 2;
    bool any_float_ = false;
    bool wide_ = false;     // the first activations need more than 16 bits
    bool shifted_ = false;  // the first activations need all 16 bits, and are kept 32768 lower
    std::vector<PackedLayer> layers_;
    std::vector<std::size_t> vector_sizes_;
    std::vector<double> most_sums_;  // bounds of each layer's
};

namespace {

// Calls body(begin, end, scratch) for chunks of [0, n) on several threads, which take the next chunk as they are ready.
// The first exception ends the work and is rethrown.
template <class MakeScratch, class Body>
void in_chunks(std::size_t n, const EvaluateOptions& options, MakeScratch&& make_scratch, Body&& body) {
    constexpr int kMostThreads = 256;
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr error;
    std::size_t error_at = n;
    const auto fail = [&](std::size_t at) {
        const std::lock_guard lock(mutex);
        if (!error || at < error_at) {
            error = std::current_exception();
            error_at = at;
        }
        next = n;
    };
    const auto work = [&](bool polls) {
        std::size_t begin = 0;
        try {
            auto scratch = make_scratch();
            auto polled = std::chrono::steady_clock::now();
            while ((begin = next.fetch_add(kChunk)) < n) {
                body(begin, std::min(begin + kChunk, n), scratch);
                if (!polls || !options.poll) continue;
                const auto now = std::chrono::steady_clock::now();
                if (now - polled < options.poll_every) continue;
                polled = now;
                options.poll();
            }
        } catch (...) {
            fail(begin);
        }
    };
    const std::size_t chunks = (n + kChunk - 1) / kChunk;
    const int wanted = std::min(options.threads <= 0 ? default_threads() : options.threads, kMostThreads);
    std::vector<std::jthread> workers;
    try {
        while (workers.size() + 1 < std::min(chunks, static_cast<std::size_t>(wanted))) {
            workers.emplace_back([&] { work(false); });
        }
    } catch (const std::system_error&) {
        // The system gives no more threads: those that there are do it all.
    }
    work(true);
    workers.clear();  // joins
    if (error) std::rethrow_exception(error);
}

const Kernels& kernels_of(const EvaluateOptions& options) {
    return options.kernels ? *options.kernels : kernels();
}

// Calls body(index rows, begin, end, scratch) for chunks of records; the rows are only those of the chunk.
template <class Impl, class Body>
void of_records(std::span<const Record> records, const Impl& impl, const EvaluateOptions& options, Body&& body) {
    const Kernels& expanding = kernels_of(options);
    const FeatureSet& set = impl.features();
    const auto max_active = static_cast<std::size_t>(set.max_active);
    in_chunks(
        records.size(), options, [&] { return impl.scratch(); },
        [&](std::size_t begin, std::size_t end, Scratch& s) {
            Entry entry;
            for (std::size_t i = begin; i < end; ++i) {
                if (const char* what = unpack(records[i], entry)) {
                    throw FormatError("record " + std::to_string(i) + ": " + what);
                }
            }
            const BatchRows rows{s.white.data(), s.black.data(),  s.counts.data(),      s.black_to_move.data(),
                                 s.score.data(), s.result.data(), s.piece_count.data(), s.material.data()};
            expand_positions(records.data() + begin, nullptr, end - begin, set, rows, expanding);
            body(IndexRows{rows.white, rows.black, rows.black_to_move, rows.piece_count, rows.material, end - begin,
                           max_active},
                 begin, end, s);
        });
}

}  // namespace

Evaluator::Evaluator(Forward forward) : impl_(std::make_unique<const Impl>(std::move(forward))) {}
Evaluator::~Evaluator() = default;
Evaluator::Evaluator(Evaluator&&) noexcept = default;

const FeatureSet& Evaluator::features() const {
    return impl_->features();
}

int Evaluator::num_stacks() const {
    return impl_->num_stacks();
}

std::size_t Evaluator::columns() const {
    return impl_->columns();
}

void Evaluator::evaluate(std::span<const Record> records, const Evaluations& out,
                         const EvaluateOptions& options) const {
    const EvaluateKernels& kernels = evaluate_kernels(kernels_of(options).isa);
    of_records(records, *impl_, options, [&](const IndexRows& rows, std::size_t begin, std::size_t end, Scratch& s) {
        impl_->evaluate(rows, begin, end, out, kernels, begin, s);
    });
}

void Evaluator::first_active(std::span<const Record> records, std::uint8_t* out, const EvaluateOptions& options) const {
    const EvaluateKernels& kernels = evaluate_kernels(kernels_of(options).isa);
    of_records(records, *impl_, options, [&](const IndexRows& rows, std::size_t begin, std::size_t end, Scratch& s) {
        for (std::size_t i = begin; i < end; ++i) {
            impl_->first_active(rows, i - begin, i, out + i * columns(), kernels, s);
        }
    });
}

void Evaluator::evaluate(const IndexRows& rows, const Evaluations& out, const EvaluateOptions& options) const {
    const EvaluateKernels& kernels = evaluate_kernels(kernels_of(options).isa);
    in_chunks(
        rows.n, options, [&] { return impl_->scratch(); },
        [&](std::size_t begin, std::size_t end, Scratch& s) { impl_->evaluate(rows, begin, end, out, kernels, 0, s); });
}

}  // namespace nnue::data
