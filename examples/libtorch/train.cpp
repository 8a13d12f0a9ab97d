// Trains a net in C++, without Python: reads binpacks, prints losses, writes checkpoints that `nnue export` and `nnue
// eval` read.
//
//     train data=train.binpack validation=val.binpack net=simple out=net.safetensors
//
// net=simple: Chess768 → 256 × 2 → 1. net=buckets: HalfKAv2_hm → 256 × 2 → 1 with 8 output buckets. `train --help`
// lists the other options. The losses equal those of `nnue train` for the same recipe and seed, up to rounding
// (tests/cpp/test_libtorch_example.py has the recipe).
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nnue/data.h>
#include <nnue/operators.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <span>
#include <sstream>
#include <variant>

#include "safetensors.h"

namespace data = nnue::data;
using torch::Tensor;

struct Options {
    std::string train, validation, net = "simple", out = "net.safetensors", device = "cpu";
    int64_t hidden = 256, batch = 16384, steps = 1000, epoch = 100, seed = 42, window = 1 << 20, threads = 0;
    double lr = 1e-3, weight_decay = 0.01, lambda = 0.7, scale = 400;
    bool help = false;

    Options(int argc, char** argv) {
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i], key = word.substr(0, word.find('='));
            if (word == "--help" || word == "-h") {
                help = true;
                return;
            }
            if (key.size() + 1 >= word.size()) throw std::runtime_error(word + ": expected name=value");
            set(key, word.substr(key.size() + 1));
        }
        if (train.empty() || validation.empty()) throw std::runtime_error("expected data=FILE validation=FILE");
        if (net != "simple" && net != "buckets") throw std::runtime_error("net: expected simple or buckets");
    }

    // A line for each option, with its value.
    std::string text() const {
        std::ostringstream lines;
        lines << "usage: train data=FILE validation=FILE [name=value ...]\n";
        for (const Option& option : table()) {
            std::ostringstream value;
            std::visit([&](auto member) { value << this->*member; }, option.value);
            lines << "  " << std::left << std::setw(14) << option.name << option.help
                  << (value.view().empty() ? "; required" : "; default " + value.str()) << "\n";
        }
        return lines.str();
    }

  private:
    struct Option {
        const char* name;
        std::variant<std::string Options::*, int64_t Options::*, double Options::*> value;
        const char* help;
    };

    static std::span<const Option> table() {
        static const Option options[] = {
            {"data", &Options::train, "training file"},
            {"validation", &Options::validation, "validation file"},
            {"net", &Options::net, "simple (768 features) or buckets (HalfKAv2_hm, 8 outputs)"},
            {"hidden", &Options::hidden, "neurons of each perspective"},
            {"batch", &Options::batch, "positions in a batch"},
            {"steps", &Options::steps, "batches to train"},
            {"epoch", &Options::epoch, "steps between validations"},
            {"lr", &Options::lr, "learning rate"},
            {"weight_decay", &Options::weight_decay, "weight decay of AdamW"},
            {"lambda", &Options::lambda, "share of the score in the target, the rest is the result"},
            {"scale", &Options::scale, "score of a win probability of 73 %"},
            {"seed", &Options::seed, "seed of weights and of the order of positions"},
            {"window", &Options::window, "positions that are shuffled together"},
            {"threads", &Options::threads, "threads that decode, 0: all"},
            {"device", &Options::device, "cpu or cuda"},
            {"out", &Options::out, "file of the weights"},
        };
        return options;
    }

    void set(const std::string& key, const std::string& text) {
        const auto found = std::ranges::find(table(), key, &Option::name);
        if (found == table().end()) throw std::runtime_error(key + ": no such option, see --help");
        std::visit(
            [&](auto value) {
                using Value = std::remove_reference_t<decltype(this->*value)>;
                if constexpr (std::is_same_v<Value, std::string>) {
                    this->*value = text;
                } else {
                    std::istringstream stream(text);
                    if (!(stream >> this->*value) || !stream.eof()) {
                        throw std::runtime_error(key + "=" + text + ": expected a number");
                    }
                }
            },
            found->value);
    }
};

// The feature transformer of both perspectives, SCReLU, and one linear output, with a set of weights for each bucket.
struct Net : torch::nn::Module {
    explicit Net(const Options& options)
        : buckets(options.net == "simple" ? 1 : 8),
          features(&data::feature_set(options.net == "simple" ? "Chess768" : "HalfKAv2_hm")) {
        const double bound = std::sqrt(1.0 / features->num_features);
        weight = torch::empty({features->num_features, options.hidden}).uniform_(-bound, bound);
        bias = torch::empty({options.hidden}).uniform_(-bound, bound);
        const torch::nn::Linear first(2 * options.hidden, 1);  // all buckets start equal
        output_weight = first->weight.detach().repeat({buckets, 1});
        output_bias = torch::zeros({buckets});
        weight = register_parameter("weight", weight);
        bias = register_parameter("bias", bias);
        output_weight = register_parameter("output_weight", output_weight);
        output_bias = register_parameter("output_bias", output_bias);
    }

    // Output [B]; `batch` as expand_features makes it.
    Tensor forward(const nnue::Expanded& batch) {
        const data::FeaturePart& part = features->parts.front();
        const auto plan = nnue::perspective_plan(batch.white, batch.black, batch.black_to_move, weight.size(0),
                                                 part.bucket_size, part.num_features);
        const auto [hidden, none] =
            nnue::perspective_transformer(plan, weight, bias, {.activation = nnue::Activation::kSCReLU});
        const Tensor every = torch::linear(hidden, output_weight, output_bias);  // [B, buckets]
        if (buckets == 1) return every.squeeze(1);
        const Tensor bucket = (batch.piece_count.to(torch::kLong) - 1).div(32 / buckets, "floor");
        return every.gather(1, bucket.unsqueeze(1)).squeeze(1);
    }

    // The limits of the exported net's integers.
    void clip() {
        const torch::NoGradGuard no_grad;
        for (Tensor& tensor : {std::ref(weight), std::ref(bias)}) tensor.clamp_(-506.0 / 255, 506.0 / 255);
        output_weight.clamp_(-127.0 / 64, 127.0 / 64);
        output_bias.clamp_(-32767.0 / (255 * 64), 32767.0 / (255 * 64));
    }

    void save(const Options& options) const {
        std::ostringstream architecture;
        architecture << R"({"format_version": 1, "recipe": null, "state": {}, "architecture": {"hidden": )"
                     << options.hidden << R"(, "activation": "screlu", "score_scale": )" << options.scale << ", ";
        architecture << (buckets == 1 ? R"("kind": "simple"}})"
                                      : R"("kind": "layered", "inputs": ["HalfKAv2_hm"], "factorised": false, )"
                                        R"("output_buckets": {"count": 8, "rule": "stockfish"}}})");
        const bool simple = buckets == 1;
        const auto shape = simple ? std::vector<int64_t>{1, -1} : std::vector<int64_t>{buckets, 1, -1};
        safetensors::save(options.out, {{"nnue", architecture.str()}},
                          {{"model/feature_transformer.weight", weight},
                           {"model/feature_transformer.bias", bias},
                           {"model/output.weight", output_weight.view(shape)},
                           {"model/output.bias", simple ? output_bias : output_bias.view({buckets, 1})}});
    }

    int64_t buckets;
    const data::FeatureSet* features;
    Tensor weight, bias, output_weight, output_bias;
};

// Batches on the device. The loader writes records into memory of torch, page-locked for CUDA; a copy of them is queued
// and then expanded there, so the memory of a batch is released when its copy is done.
class Batches {
  public:
    Batches(const Options& options, data::LoaderOptions from, const Net& net, torch::Device device)
        : device_(device), feature_set_(nnue::feature_set_handle(net.features->name)) {
        from.batch_size = static_cast<size_t>(options.batch);
        from.threads = static_cast<int>(options.threads);
        for (int i = 0; i < kBuffers; ++i) {
            memory_.push_back(
                torch::empty({options.batch, 32}, torch::dtype(torch::kUInt8).pinned_memory(device.is_cuda())));
            from.memory.emplace_back(reinterpret_cast<std::byte*>(memory_.back().data_ptr()), memory_.back().nbytes());
        }
        loader_.emplace(std::move(from));
    }

    // Nothing at the end of an epoch, unless the stream is `endless`.
    std::optional<nnue::Expanded> next(bool endless) {
        while (held_.size() >= kHeld) {
            if (held_.front().copied) held_.front().copied->synchronize();
            held_.pop_front();
        }
        auto batch = endless ? std::optional(loader_->next_endless()) : loader_->next();
        if (!batch) return std::nullopt;
        const auto records = batch->records();
        const Tensor host = torch::from_blob(const_cast<data::Record*>(records.data()),
                                             {static_cast<int64_t>(records.size()), 32}, torch::kUInt8);
        Held held{std::move(*batch), {}};
        Tensor here = host;
        if (device_.is_cuda()) {
            here = host.to(device_, /*non_blocking=*/true);
            held.copied.emplace(device_.type());
            held.copied->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
        }
        held_.push_back(std::move(held));
        return nnue::expand_features(here, feature_set_, /*check_records=*/false);
    }

  private:
    static constexpr int kBuffers = 12, kHeld = 3;
    struct Held {
        data::Loader::Batch batch;
        std::optional<c10::Event> copied;
    };
    torch::Device device_;
    int64_t feature_set_;
    std::vector<Tensor> memory_;
    std::optional<data::Loader> loader_;
    std::deque<Held> held_;
};

// Σ weight · loss and Σ weight: |σ(net / scale) − target|², where the target mixes score and result by λ.
std::pair<Tensor, Tensor> loss_terms(const Tensor& net, const nnue::Expanded& batch, const Options& options) {
    const Tensor known = batch.score != data::kScoreNone;
    const Tensor lambda = known.to(torch::kFloat) * options.lambda;
    const Tensor score = torch::where(known, batch.score, torch::zeros_like(batch.score)).to(torch::kFloat);
    const Tensor result = batch.result.to(torch::kFloat) * 0.5 + 0.5;
    const Tensor target = lambda * torch::sigmoid(score / options.scale) + (1 - lambda) * result;
    const Tensor weight = 1 - (~known).to(torch::kFloat) * options.lambda;
    const Tensor error = torch::sigmoid(net) - target;  // net · score_scale / scale, which are the same number
    return {(weight * error.square()).sum(), weight.sum()};
}

double validate(const Options& options, Net& net, torch::Device device) {
    const torch::NoGradGuard no_grad;
    Batches batches(options, {.files = {options.validation}, .shuffle = false, .drop_last = false}, net, device);
    Tensor sums = torch::zeros({2}, torch::dtype(torch::kDouble).device(device));
    while (const auto batch = batches.next(false)) {
        const auto [loss, weight] = loss_terms(net.forward(*batch), *batch, options);
        sums += torch::stack({loss, weight}).to(torch::kDouble);
    }
    return (sums[0] / sums[1]).item<double>();
}

void train(const Options& options) {
    const torch::Device device(options.device);
    nnue::load_operators();
    if (device.is_cuda()) nnue::set_index_check("async");  // the loader makes valid rows: never wait for the check
    torch::manual_seed(static_cast<uint64_t>(options.seed));
    Net net(options);
    net.to(device);
    torch::optim::AdamW optimizer(net.parameters(),
                                  torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay));
    Batches batches(options,
                    {.files = {options.train},
                     .seed = static_cast<uint64_t>(options.seed),
                     .shuffle = options.window > 0,
                     .window = static_cast<size_t>(std::max<int64_t>(options.window, 1))},
                    net, device);
    Tensor total = torch::zeros({}, device);
    auto begin = std::chrono::steady_clock::now();
    for (int64_t step = 1; step <= options.steps; ++step) {
        const auto batch = batches.next(true);
        const auto [loss, weight] = loss_terms(net.forward(*batch), *batch, options);
        const Tensor mean = loss / torch::where(weight == 0, torch::ones_like(weight), weight);
        optimizer.zero_grad();
        mean.backward();
        optimizer.step();
        net.clip();
        total += mean.detach();
        if (step % options.epoch && step != options.steps) continue;
        const int64_t steps = (step - 1) % options.epoch + 1;
        const double average = (total / steps).item<double>();  // waits for the device
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        std::printf("step %lld  loss %.6f  validation %.6f  %.3f ms per step\n", static_cast<long long>(step), average,
                    validate(options, net, device), 1000 * seconds / static_cast<double>(steps));
        std::fflush(stdout);
        net.save(options);
        total.zero_();
        begin = std::chrono::steady_clock::now();
    }
}

int main(int argc, char** argv) {
    try {
        const Options options(argc, argv);
        if (options.help) {
            std::cout << options.text();
        } else {
            train(options);
        }
    } catch (const c10::Error& error) {
        std::cerr << error.what_without_backtrace() << "\n";
        return 1;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
