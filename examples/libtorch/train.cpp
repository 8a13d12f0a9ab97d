// Trains a net in C++, without Python: reads binpacks, prints losses, writes checkpoints that `nnue export` and `nnue
// eval` read.
//
//     train data=train.binpack validation=val.binpack net=simple out=net.safetensors
//
// net=simple: Chess768 → 256 × 2 → 1. net=buckets: HalfKAv2_hm → 256 × 2 → 1 with 8 output buckets. `train --help`
// lists the other options. The losses equal those of `nnue train` for the same recipe and seed, up to rounding
// (tests/cpp/test_libtorch_example.py has the recipe). On a busy CPU set OMP_WAIT_POLICY=passive, as `nnue train` does.
#include <nnue/batches.h>
#include <nnue/step.h>
#include <torch/nn.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>

#include "safetensors.h"

namespace data = nnue::data;
using torch::Tensor;

// name=value arguments: the value of each, or its default, and what it means.
struct Options {
    std::map<std::string, std::pair<std::string, std::string>> values = {
        {"data", {"", "training file"}},
        {"validation", {"", "validation file"}},
        {"net", {"simple", "simple (768 features) or buckets (HalfKAv2_hm, 8 outputs)"}},
        {"hidden", {"256", "neurons of each perspective"}},
        {"batch", {"16384", "positions in a batch"}},
        {"steps", {"1000", "batches to train"}},
        {"epoch", {"100", "steps between validations"}},
        {"lr", {"0.001", "learning rate"}},
        {"weight_decay", {"0.01", "weight decay of AdamW"}},
        {"lambda", {"0.7", "share of the score in the target, the rest is the result"}},
        {"scale", {"400", "score of a win probability of 73 %"}},
        {"seed", {"42", "seed of weights and of the order of positions"}},
        {"window", {"1048576", "positions that are shuffled together"}},
        {"threads", {"0", "threads that decode, 0: all"}},
        {"device", {"cpu", "cpu or cuda"}},
        {"out", {"net.safetensors", "file of the weights"}}};

    const std::string& text(const std::string& name) const { return values.at(name).first; }
    double number(const std::string& name) const {
        std::istringstream stream(text(name));
        double value = 0;
        if (!(stream >> value) || !stream.eof())
            throw std::runtime_error(name + "=" + text(name) + ": expected a number");
        return value;
    }
    int64_t whole(const std::string& name) const { return static_cast<int64_t>(number(name)); }
    data::LoaderOptions loader(const std::string& file) const {
        return {.files = {text(file)},
                .batch_size = static_cast<size_t>(whole("batch")),
                .threads = static_cast<int>(whole("threads"))};
    }
};

// The feature transformer of both perspectives, SCReLU, and one linear output, with a set of weights for each bucket.
struct Net {
    explicit Net(const Options& of)
        : options(of),
          buckets(of.text("net") == "simple" ? 1 : 8),
          hidden(of.whole("hidden")),
          device(of.text("device")),
          features(data::feature_set(buckets == 1 ? "Chess768" : "HalfKAv2_hm")),
          scale(of.number("scale")) {
        if (buckets == 8 && of.text("net") != "buckets") throw std::runtime_error("net: expected simple or buckets");
        torch::manual_seed(static_cast<uint64_t>(of.whole("seed")));
        const double bound = std::sqrt(1.0 / features.num_features);
        weight = torch::empty({features.num_features, hidden}).uniform_(-bound, bound).to(device);
        bias = torch::empty({hidden}).uniform_(-bound, bound).to(device);
        const torch::nn::Linear first(2 * hidden, 1);  // all buckets start equal
        output_weight = first->weight.detach().repeat({buckets, 1, 1}).to(device).requires_grad_();
        output_bias = torch::zeros({buckets, 1}, device).requires_grad_();
    }

    // Σ weight · loss and Σ weight of x, the transformer's output: |σ(net) − target|², where the target mixes score and
    // result by λ.
    std::pair<Tensor, Tensor> loss(const Tensor& x, const nnue::Expanded& batch) const {
        const Tensor known = batch.score != data::kScoreNone;
        const double lambda = options.number("lambda");
        const Tensor share = known.to(torch::kFloat) * lambda;
        const Tensor score = torch::where(known, batch.score, torch::zeros_like(batch.score)).to(torch::kFloat);
        const Tensor target =
            share * torch::sigmoid(score / scale) + (1 - share) * (batch.result.to(torch::kFloat) * 0.5 + 0.5);
        const Tensor weights = 1 - (~known).to(torch::kFloat) * lambda;
        const Tensor error = torch::sigmoid(output(x, batch)) - target;
        return {(weights * error.square()).sum(), weights.sum()};
    }

    Tensor output(const Tensor& x, const nnue::Expanded& batch) const {
        if (buckets == 1) return torch::linear(x, output_weight[0], output_bias[0]).squeeze(1);
        const Tensor bucket = (batch.piece_count.to(torch::kLong) - 1).div(32 / buckets, "floor");
        if (x.is_cpu()) return nnue::OwnStacks::apply(x, output_weight, output_bias, bucket).squeeze(1);
        return torch::linear(x, output_weight.squeeze(1), output_bias.squeeze(1))
            .gather(1, bucket.unsqueeze(1))
            .squeeze(1);
    }

    double validate(nnue::Step& step) const {
        const torch::NoGradGuard no_grad;
        auto from = options.loader("validation");
        from.shuffle = from.drop_last = false;
        nnue::Batches batches(from, features.name, device);
        Tensor sums = torch::zeros({2}, torch::dtype(torch::kDouble).device(device));
        while (const auto batch = batches.next(false)) {
            const auto [weighted, weights] = loss(step.output(step.prepare(*batch)), *batch);
            sums += torch::stack({weighted, weights}).to(torch::kDouble);
        }
        return (sums[0] / sums[1]).item<double>();
    }

    void save() const {
        std::ostringstream text;
        text << R"({"format_version": 1, "recipe": null, "state": {}, "architecture": {"hidden": )" << hidden
             << R"(, "activation": "screlu", "score_scale": )" << scale << ", "
             << (buckets == 1 ? R"("kind": "simple"}})"
                              : R"("kind": "layered", "inputs": ["HalfKAv2_hm"], "factorised": false, )"
                                R"("output_buckets": {"count": 8, "rule": "stockfish"}}})");
        const bool simple = buckets == 1;  // whose output has no dimension of stacks
        safetensors::save(options.text("out"), {{"nnue", text.str()}},
                          {{"model/feature_transformer.weight", weight},
                           {"model/feature_transformer.bias", bias},
                           {"model/output.weight", simple ? output_weight[0] : output_weight},
                           {"model/output.bias", simple ? output_bias[0] : output_bias}});
    }

    const Options& options;
    int64_t buckets, hidden;
    torch::Device device;
    const data::FeatureSet& features;
    double scale;
    Tensor weight, bias, output_weight, output_bias;
};

void train(const Options& options) {
    if (options.text("data").empty() || options.text("validation").empty())
        throw std::runtime_error("expected data=FILE validation=FILE");
    nnue::load_operators();
    Net net(options);
    if (net.device.is_cuda()) nnue::set_index_check("async");  // the loader makes valid rows: never wait for the check
    const double first = 506.0 / 255, last = 127.0 / 64;       // the limits of the exported net's integers
    const data::FeaturePart& part = net.features.parts.front();
    nnue::Step step(
        {.weight = {net.weight, -first, first},
         .bias = {net.bias, -first, first},
         .others = {{net.output_weight, -last, last}, {net.output_bias, -32767.0 / (255 * 64), 32767.0 / (255 * 64)}},
         .transformer = {.activation = nnue::Activation::kSCReLU},
         .bucket_size = part.bucket_size,
         .num_bucketed = part.num_features,
         .positions = options.whole("batch"),
         .lr = options.number("lr"),
         .weight_decay = options.number("weight_decay")});
    auto from = options.loader("data");
    from.seed = static_cast<uint64_t>(options.whole("seed")),
    from.window = static_cast<size_t>(std::max<int64_t>(options.whole("window"), 1));
    from.shuffle = options.whole("window") > 0;
    nnue::Batches batches(from, net.features.name, net.device);
    Tensor total = torch::zeros({}, net.device);
    const int64_t steps = options.whole("steps"), epoch = options.whole("epoch");
    auto begin = std::chrono::steady_clock::now();
    for (int64_t number = 1; number <= steps; ++number) {
        const nnue::Expanded batch = *batches.next(true);
        const Tensor loss = step.gradients(step.prepare(batch), [&](const Tensor& x) {
            const auto [weighted, weights] = net.loss(x, batch);
            return weighted / torch::where(weights == 0, 1, weights);
        });
        step.update(loss);
        total += loss;
        if (number % epoch && number != steps) continue;
        const int64_t done = (number - 1) % epoch + 1;
        const double average = (total / done).item<double>();  // waits for the device
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        std::printf("step %lld  loss %.6f  validation %.6f  %.3f ms per step\n", static_cast<long long>(number),
                    average, net.validate(step), 1000 * seconds / static_cast<double>(done));
        std::fflush(stdout);
        net.save();
        total.zero_();
        begin = std::chrono::steady_clock::now();
    }
}

int main(int argc, char** argv) {
    try {
        Options options;
        for (const std::string word : std::vector<std::string>(argv + 1, argv + argc)) {
            if (word == "--help" || word == "-h") {
                std::printf("usage: train data=FILE validation=FILE [name=value ...]\n");
                for (const auto& [name, of] : options.values)
                    std::printf("  %-14s%s; %s\n", name.c_str(), of.second.c_str(),
                                of.first.empty() ? "required" : ("default " + of.first).c_str());
                return 0;
            }
            const std::string name = word.substr(0, word.find('='));
            if (name.size() + 1 >= word.size()) throw std::runtime_error(word + ": expected name=value");
            if (!options.values.contains(name)) throw std::runtime_error(name + ": no such option, see --help");
            const bool is_number = std::isdigit(options.text(name).c_str()[0]) != 0;
            options.values.at(name).first = word.substr(name.size() + 1);
            if (is_number) options.number(name);
        }
        train(options);
    } catch (const c10::Error& error) {
        std::cerr << error.what_without_backtrace() << "\n";
        return 1;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
