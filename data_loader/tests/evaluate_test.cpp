// The integer evaluator on a description that fits on a page, against the same arithmetic written out; in every build
// that this CPU can run. Random descriptions: tests/nets/test_integer_forward.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "chess/fen.h"
#include "chess/record.h"
#include "evaluate/evaluator.h"

namespace nnue::data {
namespace {

std::vector<Record> some_records() {
    std::vector<Record> records;
    for (const char* fen : {"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
                            "rnbk3r/2pp1p1p/p5pn/8/2P1p1P1/P7/P2K3R/RNB2BN1 b - - 2 16",
                            "8/8/4k3/8/8/4K3/8/8 w - - 0 1", "8/8/8/4p2k/8/8/2bK4/8 b - - 3 50"}) {
        Entry entry;
        entry.position = parse_fen(fen);
        records.push_back(pack(entry));
    }
    // More than one thread's share, so that several work.
    while (records.size() < 300) records.push_back(records[records.size() % 4]);
    return records;
}

template <class T>
std::vector<T> random_numbers(std::size_t n, std::mt19937& random, std::int64_t low, std::int64_t high) {
    std::uniform_int_distribution<std::int64_t> numbers(low, high);
    std::vector<T> out(n);
    for (T& value : out) value = static_cast<T>(numbers(random));
    return out;
}

template <class T>
IntegerTensor tensor(const char* name, const std::vector<T>& values, std::size_t rows) {
    return {name, values.data(), sizeof(T), rows, values.size() / rows};
}

// Squares of clipped accumulators → 3 outputs, the last of them skipped → 1, in two stacks, with PSQT columns.
struct Net {
    static constexpr std::size_t kWidth = 37, kFeatures = 768, kOutputs = 3;
    std::vector<std::int16_t> bias, output_bias;
    std::vector<std::int16_t> weight, layer_weight;
    std::vector<std::int32_t> psqt, layer_bias;
    std::vector<std::int8_t> output_weight;

    explicit Net(std::mt19937& random, std::int64_t most) {
        bias = random_numbers<std::int16_t>(kWidth, random, -most, most);
        weight = random_numbers<std::int16_t>(kFeatures * kWidth, random, -most - 1, most);
        psqt = random_numbers<std::int32_t>(kFeatures * 2, random, INT32_MIN, INT32_MAX);
        layer_weight = random_numbers<std::int16_t>(2 * kOutputs * 2 * kWidth, random, -most - 1, most);
        layer_bias = random_numbers<std::int32_t>(2 * kOutputs, random, INT32_MIN, INT32_MAX);
        output_weight = random_numbers<std::int8_t>(2 * 4, random, -128, 127);
        output_bias = random_numbers<std::int16_t>(2, random, -32768, 32767);
    }

    Forward forward() const {
        Forward f;
        f.feature_set = "Chess768";
        f.first.bias = tensor("bias", bias, 1);
        f.first.weights = {tensor("weight", weight, kFeatures)};
        f.first.psqt = {tensor("psqt", psqt, kFeatures)};
        f.first.activation = FirstActivation::kScrelu;
        f.first.clip = 255;
        ForwardLayer layer;
        layer.weight = tensor("layer weight", layer_weight, 2 * kOutputs);
        layer.bias = tensor("layer bias", layer_bias, 2);
        layer.outputs = kOutputs;
        layer.inputs = {0};
        layer.divide = 255;
        layer.activated = 2;
        layer.activation = LayerActivation::kDual;
        layer.shift = 6;
        layer.square_shift = 7;
        layer.clip = 127;
        ForwardLayer output;
        output.weight = tensor("output weight", output_weight, 2);
        output.bias = tensor("output bias", output_bias, 2);
        output.outputs = 1;
        output.inputs = {1};
        f.layers = {layer, output};
        f.num_stacks = 2;
        for (int pieces = 0; pieces <= kMaxPieces; ++pieces) f.stacks.insert(f.stacks.end(), 16, pieces > 10);
        f.skips = {{0, 2, std::nullopt, 9600, 8128, true}};
        f.score_multiply = 400;
        f.score_divide = 255 * 64;
        return f;
    }
};

std::int32_t low32(std::int64_t value) {
    return static_cast<std::int32_t>(static_cast<std::uint64_t>(value));
}

struct Expected {
    std::int64_t stack, psqt[2], positional[2], score;
};

Expected by_hand(const Net& net, const Record& record) {
    const FeatureSet& set = feature_set("Chess768");
    std::vector<std::int32_t> rows[2] = {std::vector<std::int32_t>(static_cast<std::size_t>(set.max_active)),
                                         std::vector<std::int32_t>(static_cast<std::size_t>(set.max_active))};
    std::int16_t count = 0, score = 0;
    std::int8_t result = 0;
    std::uint8_t black_to_move = 0, pieces = 0, material = 0;
    all_kernels()[0]->expand(
        &record, nullptr, 1, set,
        {rows[0].data(), rows[1].data(), &count, &black_to_move, &score, &result, &pieces, &material});
    if (black_to_move) std::swap(rows[0], rows[1]);
    std::vector<std::int64_t> x;
    std::int32_t sums[2][2] = {};
    for (int side = 0; side < 2; ++side) {
        for (std::size_t j = 0; j < Net::kWidth; ++j) {
            auto acc = static_cast<std::uint16_t>(net.bias[j]);
            for (int i = 0; i < count; ++i) {
                const auto feature = static_cast<std::size_t>(rows[side][static_cast<std::size_t>(i)]);
                acc =
                    static_cast<std::uint16_t>(acc + static_cast<std::uint16_t>(net.weight[feature * Net::kWidth + j]));
            }
            const std::int64_t clipped = std::clamp<std::int64_t>(static_cast<std::int16_t>(acc), 0, 255);
            x.push_back(clipped * clipped);
        }
        for (int i = 0; i < count; ++i) {
            const auto feature = static_cast<std::size_t>(rows[side][static_cast<std::size_t>(i)]);
            for (std::size_t s = 0; s < 2; ++s) {
                sums[side][s] = low32(std::int64_t{sums[side][s]} + net.psqt[2 * feature + s]);
            }
        }
    }
    Expected expected{pieces > 10, {}, {}, 0};
    for (std::size_t s = 0; s < 2; ++s) {
        expected.psqt[s] = low32(std::int64_t{sums[0][s]} - sums[1][s]) / 2;
        std::int64_t y[3], h[4];
        for (std::size_t o = 0; o < 3; ++o) {
            std::int64_t sum = 0;
            for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * net.layer_weight[(3 * s + o) * x.size() + i];
            y[o] = low32(sum / 255 + net.layer_bias[3 * s + o]);
        }
        for (std::size_t o = 0; o < 2; ++o) {
            h[o] = std::min<std::int64_t>(y[o] * y[o] >> 19, 127);
            h[2 + o] = std::clamp<std::int64_t>(y[o] >> 6, 0, 127);
        }
        std::int64_t out = net.output_bias[s];
        for (std::size_t i = 0; i < 4; ++i) out += h[i] * net.output_weight[4 * s + i];
        expected.positional[s] = out + low32(y[2] * 9600) / 8128;
    }
    const auto used = static_cast<std::size_t>(expected.stack);
    expected.score = (expected.psqt[used] + expected.positional[used]) * 400 / (255 * 64);
    return expected;
}

TEST(Evaluate, EveryBuildGivesTheWrittenOutArithmetic) {
    const std::vector<Record> records = some_records();
    std::mt19937 random(1);
    for (const std::int64_t most : {20, 127, 32767}) {  // the last one leaves no exact columns
        const Net net(random, most);
        const Evaluator evaluator(net.forward());
        std::vector<Expected> expected;
        for (std::size_t i = 0; i < 4; ++i) expected.push_back(by_hand(net, records[i]));
        for (const Kernels* kernels : all_kernels()) {
            for (const int threads : {1, 3}) {
                for (const bool every_stack : {true, false}) {
                    const std::size_t n = records.size(), columns = every_stack ? 2 : 1;
                    std::vector<std::int64_t> stack(n), psqt(n * columns), positional(n * columns), score(n);
                    evaluator.evaluate(records,
                                       {stack.data(), psqt.data(), positional.data(), score.data(), every_stack},
                                       {threads, {}, kernels});
                    for (std::size_t i = 0; i < n; ++i) {
                        const Expected& e = expected[i % 4];
                        ASSERT_EQ(stack[i], e.stack);
                        ASSERT_EQ(score[i], e.score) << kernels->isa << ", position " << i;
                        for (std::size_t c = 0; c < columns; ++c) {
                            const std::size_t s = every_stack ? c : static_cast<std::size_t>(e.stack);
                            ASSERT_EQ(psqt[i * columns + c], e.psqt[s]) << kernels->isa << ", position " << i;
                            ASSERT_EQ(positional[i * columns + c], e.positional[s]) << kernels->isa;
                        }
                    }
                }
            }
        }
    }
}

// Loops read and write only their own memory at any width; the sanitizers check it.
TEST(Evaluate, KernelsOfAllBuildsAgreeForAnyLength) {
    std::mt19937 random(2);
    const EvaluateKernels& plain = evaluate_kernels("baseline");
    for (const Kernels* build : all_kernels()) {
        const EvaluateKernels& kernels = evaluate_kernels(build->isa);
        for (std::size_t n = 1; n < 70; ++n) {
            const auto bytes = random_numbers<std::int8_t>(9 * n, random, -128, 127);
            const auto words = random_numbers<std::int16_t>(9 * n, random, -32768, 32767);
            std::vector<const std::int8_t*> rows8;
            std::vector<const std::int16_t*> rows16;
            for (std::size_t i = 0; i < 9; ++i) {
                rows8.push_back(bytes.data() + i * n);
                rows16.push_back(words.data() + i * n);
            }
            std::vector<std::uint16_t> sums[2], out[2];
            const EvaluateKernels* both[2] = {&plain, &kernels};
            for (int k = 0; k < 2; ++k) {
                sums[k].assign(n, 65000);
                out[k].resize(n);
                for (std::size_t count = 0; count <= 9; ++count) {
                    both[k]->add_rows_i8(rows8.data(), count, sums[k].data(), n);
                    both[k]->add_rows_i16(rows16.data(), count, sums[k].data(), n);
                }
            }
            EXPECT_EQ(sums[0], sums[1]);
            for (const int shift : {0, 1, 15}) {
                for (const int clip : {0, 255, 32767}) {
                    std::vector<std::uint16_t> clipped[2] = {sums[0], sums[0]};
                    for (int k = 0; k < 2; ++k) {
                        both[k]->clip(clipped[k].data(), n, shift, clip);
                        const auto multiply = clip < 256 ? both[k]->narrow_products : both[k]->products;
                        multiply(clipped[k].data(), clipped[k].data(), out[k].data(), n, clip < 256 ? 7 : 16);
                    }
                    EXPECT_EQ(clipped[0], clipped[1]);
                    EXPECT_EQ(out[0], out[1]);
                }
            }
            const std::size_t columns = kEvaluateLanes * (1 + n % 5);
            const auto x = random_numbers<std::int16_t>(columns, random, -32768, -32760);
            const auto w = random_numbers<std::int16_t>(columns * 3, random, -32768, 32767);
            std::vector<std::uint32_t> y[2] = {std::vector<std::uint32_t>(3), std::vector<std::uint32_t>(3)};
            for (int k = 0; k < 2; ++k) both[k]->multiply(x.data(), w.data(), columns, 3, y[k].data());
            EXPECT_EQ(y[0], y[1]);
        }
    }
}

TEST(Evaluate, WhatPollThrowsEndsTheWorkOfAllThreads) {
    const std::vector<Record> four = some_records();
    std::vector<Record> records;
    for (int i = 0; i < 20000; ++i) records.push_back(four[static_cast<std::size_t>(i % 4)]);
    std::mt19937 random(3);
    const Net net(random, 127);
    const Evaluator evaluator(net.forward());
    std::vector<std::int64_t> out[4];
    for (auto& values : out) values.assign(2 * records.size(), -1);
    struct Stopped {};
    EXPECT_THROW(evaluator.evaluate(records, {out[0].data(), out[1].data(), out[2].data(), out[3].data(), true},
                                    {2, [] { throw Stopped(); }, all_kernels()[0], std::chrono::seconds(0)}),
                 Stopped);
    EXPECT_EQ(out[0].back(), -1);
    EXPECT_EQ(std::count(out[0].begin(), out[0].begin() + 20000, -1) > 10000, true);
}

TEST(Evaluate, BadInputIsNamed) {
    std::mt19937 random(4);
    const Net net(random, 127);
    const Evaluator evaluator(net.forward());
    std::vector<Record> records = some_records();
    records[201].bytes.fill(255);
    std::vector<std::int64_t> out(4 * records.size());
    const auto n = static_cast<std::ptrdiff_t>(records.size());
    std::int64_t* const p = out.data();
    try {
        evaluator.evaluate(records, {p, p + n, p + 2 * n, p + 3 * n, false}, {2, {}, nullptr});
        FAIL();
    } catch (const FormatError& error) {
        EXPECT_STREQ(error.what(), "record 201: more than 32 pieces");
    }
    Forward wrong = net.forward();
    wrong.layers[1].inputs = {2};
    EXPECT_THROW(Evaluator{wrong}, FormatError);
}

}  // namespace
}  // namespace nnue::data
