// Trains a net in C++, without Python: HalfKAv2_hm, factorised → 256 × 2 and PSQT → 1 with 8 output buckets. It writes
// checkpoints that `nnue export` and `nnue eval` read. On a busy CPU set OMP_WAIT_POLICY=passive, as `nnue train` does.
//
//     train data=train.binpack validation=val.binpack out=net.safetensors
//
// Losses equal those of `nnue train` for the same recipe and seed, up to rounding: tests/cpp/test_libtorch_example.py.
#include <nnue/batches.h>
#include <nnue/step.h>
#include <torch/nn.h>

#include <chrono>
#include <iostream>

#include "options.h"
#include "safetensors.h"

namespace data = nnue::data;
using torch::Tensor;

static Options options = {{{"data", {"", "training file"}},
                           {"validation", {"", "validation file"}},
                           {"hidden", {"256", "neurons of each perspective"}},
                           {"batch", {"16384", "positions in a batch"}},
                           {"steps", {"1000", "batches to train"}},
                           {"epoch", {"100", "steps between validations"}},
                           {"rule", {"adamw", "adamw, radam or lion"}},
                           {"lr", {"0.001", "learning rate"}},
                           {"weight_decay", {"0.01", "weight decay"}},
                           {"lambda", {"0.7", "share of the score in the target, the rest is the result"}},
                           {"scale", {"400", "score of a win probability of 73 %"}},
                           {"seed", {"42", "seed of weights and of the order of positions"}},
                           {"window", {"1048576", "positions that are shuffled together"}},
                           {"threads", {"0", "threads that decode, 0: all"}},
                           {"device", {"cpu", "cpu or cuda"}},
                           {"precision", {"fp32", "fp32 or, on cuda, mixed"}},
                           {"out", {"net.safetensors", "file of the weights"}}}};

// The feature transformer of both perspectives, SCReLU, and one linear output, with a set of weights for each bucket.
struct Net {
    static constexpr int64_t kBuckets = 8;
    torch::Device device{options.text("device")};
    const data::FeatureSet& features = data::feature_set("HalfKAv2_hm");
    double scale = options.number("scale"), lambda = options.number("lambda");
    Tensor weight, bias, psqt, output_weight, output_bias;

    Net() {
        torch::manual_seed(static_cast<uint64_t>(options.whole("seed")));
        const int64_t rows = features.num_features, hidden = options.whole("hidden");
        const double bound = std::sqrt(1.0 / static_cast<double>(rows));
        weight = torch::empty({rows, hidden}).uniform_(-bound, bound).to(device);
        bias = torch::empty({hidden}).uniform_(-bound, bound).to(device);
        psqt = torch::zeros({rows, kBuckets}, device);
        const torch::nn::Linear first(2 * hidden, 1);  // all buckets start equal
        output_weight = first->weight.detach().repeat({kBuckets, 1, 1}).to(device).requires_grad_();
        output_bias = torch::zeros({kBuckets, 1}, device).requires_grad_();
    }

    // The positions of a file, `window` of them shuffled together; 0: once, in their order.
    nnue::Batches batches(const std::string& file, int64_t window) const {
        data::LoaderOptions from{.files = {options.text(file)}};
        from.batch_size = static_cast<size_t>(options.whole("batch"));
        from.seed = static_cast<uint64_t>(options.whole("seed"));
        from.threads = static_cast<int>(options.whole("threads"));
        from.window = static_cast<size_t>(std::max<int64_t>(window, 1));
        from.shuffle = from.drop_last = window > 0;
        return {from, features.name, device};
    }

    nnue::Step step() const {
        const double first = 506.0 / 255, last = 127.0 / 64;  // the limits of the exported net's integers
        const data::FeaturePart& part = features.parts.front();
        // One virtual row for each piece on its square, wherever the king is.
        const std::vector<nnue::VirtualRows> shared = {{0, part.num_features, part.num_virtual}};
        return nnue::Step({.weight = {weight, -first, first, shared},
                           .bias = {bias, -first, first},
                           .psqt = {.tensor = psqt, .virtual_rows = shared},
                           .others = {{output_weight, -last, last}, {output_bias, -32767.0 / 16320, 32767.0 / 16320}},
                           .layers = nnue::Layers{.stacks = kBuckets, .scale = scale, .lambda = lambda},
                           .transformer = {.activation = nnue::Activation::kSCReLU},
                           .bucket_size = part.bucket_size,
                           .num_bucketed = part.num_features,
                           .positions = options.whole("batch"),
                           .lr = options.number("lr"),
                           .weight_decay = options.number("weight_decay"),
                           .rule = {.kind = nnue::rule_kind(options.text("rule"))},
                           .read_dtype = options.text("precision") == "mixed" ? at::kBFloat16 : at::kFloat});
    }

    double validate(nnue::Step& step) const {
        const torch::NoGradGuard no_grad;
        auto all = batches("validation", 0);
        Tensor sums = torch::zeros({2}, torch::dtype(torch::kDouble).device(device));
        while (const auto batch = all.next(false)) {
            const auto [weighted, weights] = step.loss(step.prepare(*batch, nnue::piece_bucket(*batch)), *batch);
            sums += torch::stack({weighted, weights}).to(torch::kDouble);
        }
        return (sums[0] / sums[1]).item<double>();
    }

    void save() const {
        std::ostringstream text;
        text << R"({"format_version": 1, "recipe": null, "state": {}, "architecture": {"kind": "layered", "inputs": )"
             << R"(["HalfKAv2_hm"], "factorised": true, "activation": "screlu", "psqt": true, "output_buckets": )"
             << R"({"count": 8, "rule": "stockfish"}, "hidden": )" << weight.size(1) << R"(, "score_scale": )" << scale;
        safetensors::save(options.text("out"), {{"nnue", text.str() + "}}"}},
                          {{"model/feature_transformer.weight", weight},
                           {"model/feature_transformer.bias", bias},
                           {"model/feature_transformer.psqt", psqt},
                           {"model/output.weight", output_weight},
                           {"model/output.bias", output_bias}});
    }
};

static void train() {
    nnue::load_operators();
    const Net net;
    if (net.device.is_cuda()) nnue::set_index_check("async");  // the loader makes valid rows: never wait for the check
    nnue::Step step = net.step();
    nnue::Batches batches = net.batches("data", options.whole("window"));
    Tensor total = torch::zeros({}, net.device);
    const int64_t steps = options.whole("steps"), epoch = options.whole("epoch");
    nnue::Beside beside(net.device);  // the next batch is made beside this step
    const auto next_batch = [&] {
        const nnue::Expanded batch = *batches.next(true);
        return std::pair(batch, step.prepare(batch, nnue::piece_bucket(batch)));
    };
    auto next = beside.start(next_batch);
    auto begin = std::chrono::steady_clock::now();
    for (int64_t number = 1; number <= steps; ++number) {
        beside.join();
        const auto [batch, ready] = std::move(next);
        next = beside.start(next_batch);
        const Tensor loss = step.gradients(ready, batch);
        step.update(loss);
        total += loss;
        if (number % epoch && number != steps) continue;
        const auto done = static_cast<double>((number - 1) % epoch + 1);
        const double average = total.item<double>() / done;  // waits for the device
        const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;
        std::cout << "step " << number << "  loss " << average << "  validation " << net.validate(step) << "  "
                  << passed.count() / done << " ms per step" << std::endl;
        net.save();
        total.zero_();
        begin = std::chrono::steady_clock::now();
    }
}

int main(int argc, char** argv) {
    return options.run(argc, argv, train);
}
