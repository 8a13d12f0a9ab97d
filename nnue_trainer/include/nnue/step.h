// A step of training for LibTorch: the operators that nnue_trainer/training/step.py calls, in the same order.
// docs/step.md follows a batch through it; examples/libtorch trains with it.
//
//     nnue::Step step({.weight = weight, .bias = bias, .others = {output_weight, output_bias}});
//     const auto ready = step.prepare(batch);
//     const at::Tensor loss = step.gradients(ready, layers);  // layers(x): the loss, from the transformer's output
//     step.update(loss);
//
// The layers after the transformer are yours, with torch's operators and autograd. Nothing waits for the device, except
// that a CPU counts rows.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "nnue/operators.h"

namespace nnue {

// A parameter, float32 and contiguous, and the range that it is clipped to after every step.
struct Trained {
    at::Tensor tensor;
    double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
};

struct StepOptions {
    Trained weight, bias;                 // of the feature transformer: [F, N], [N]; N even, on CUDA a multiple of 16
    std::vector<Trained> others;          // the leaves that the layers after it read, which require gradients
    PerspectiveOptions transformer = {};  // without PSQT
    int64_t bucket_size = 0, num_bucketed = -1;                                     // see perspective_plan
    int64_t positions = 0;                                                          // of a batch, 0 if unknown
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;  // of AdamW
};

// The product of each position's own stack: x float32 [B, I], bucket int64 [B], weight [S, O, I], bias [S, O] -> [B,
// O]. On a CPU.
struct OwnStacks : torch::autograd::Function<OwnStacks> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& bias, const at::Tensor& bucket) {
        context->save_for_backward({x, bucket, weight});
        return calls::_stacked_linear_forward(x, bucket, weight, bias);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& grads) {
        const auto saved = context->get_saved_variables();
        const bool needs_x = context->needs_input_grad(0);
        auto [of_x, of_weight, of_bias] =
            calls::_stacked_linear_backward(grads[0], saved[0], saved[1], saved[2], needs_x);
        return {needs_x ? of_x : at::Tensor(), of_weight, of_bias, {}};
    }
};

class Step {
  public:
    struct Prepared {
        PerspectivePlan plan;
        at::Tensor marks;  // uint8 [F]: 1 for the rows that the batch has
    };

    explicit Step(StepOptions options) : of_(std::move(options)) {
        TORCH_CHECK(!of_.transformer.psqt.defined(), "nnue::Step: transformer.psqt: found a tensor, expected none");
        const at::Tensor& weight = of_.weight.tensor;
        const bool on_cpu = weight.is_cpu();
        is_late_ = late_pays();
        constexpr int64_t numbers = 16;  // of a step: kNumbers of csrc/optimizer.h
        const auto here = at::dtype(at::kFloat).device(weight.device());
        range_ = {of_.transformer.bound, of_.transformer.scale};
        nothing_ = at::empty({0}, here), lr_ = at::full({}, of_.lr, here);
        state_ = {at::zeros({1}, here.dtype(at::kLong)), at::zeros({}, here),
                  at::zeros({1, numbers}, here.dtype(at::kDouble))};
        marked_ = at::zeros({weight.size(0)}, here.dtype(at::kByte));
        if (is_late_) {
            late_ = {at::zeros({weight.size(0)}, here.dtype(at::kLong)), nothing_,
                     at::zeros({on_cpu ? 16 : 32, numbers}, here.dtype(at::kDouble))};
        }
        std::vector<Trained> all = {of_.weight, of_.bias};
        all.insert(all.end(), of_.others.begin(), of_.others.end());
        std::vector<double> parts;
        for (const Trained& each : all) {
            const bool is_weight = parts.empty();  // every term of its gradient is one of the bias's, which is checked
            parts.insert(parts.end(), {0.0, is_weight ? 0.0 : 1.0, is_weight && is_late_ ? 1.0 : 0.0, 1.0,
                                       of_.weight_decay, each.low, each.high, 0.0});
            weights_.push_back(each.tensor.detach());
            copies_.push_back(nothing_);
            moments_.insert(moments_.end(),
                            {at::zeros_like(weights_.back()), at::zeros_like(weights_.back()), nothing_, nothing_});
        }
        constexpr double infinity = std::numeric_limits<double>::infinity();
        const double constants[] = {of_.eps, 1, 0, 0.5, 1, 0, 0, 0, infinity, infinity},
                     betas[] = {of_.beta1, of_.beta2};
        optimizer_ = calls::_optimizer_describe(lr_, /*rule=*/0, constants, betas, parts);
    }

    // Everything that depends only on the batch.
    Prepared prepare(const Expanded& batch) const {
        const at::Tensor& weight = weights_[0];
        Prepared made{perspective_plan(batch.white, batch.black, batch.black_to_move, weight.size(0), of_.bucket_size,
                                       of_.num_bucketed),
                      at::zeros_like(marked_)};
        if (is_late_) calls::_optimizer_mark_rows(batch.white, batch.black, made.marks);
        return made;
    }

    // Computes the gradients of all parameters. `layers` is called with the transformer's output, float32 [B, width],
    // and returns the loss, a scalar.
    template <class Layers>
    at::Tensor gradients(const Prepared& batch, const Layers& layers) {
        if (is_late_) catch_up(batch.marks);
        auto [x, none, saved] = transform(batch, /*save=*/true);
        std::vector<at::Tensor> sources = {x.requires_grad_()};
        for (const Trained& each : of_.others) sources.push_back(each.tensor);
        at::Tensor loss;
        {
            const at::AutoGradMode with_gradients(true);
            loss = layers(x);
        }
        const auto found = torch::autograd::grad({loss}, sources);
        gradients_.assign(2, {});
        gradients_.insert(gradients_.end(), found.begin() + 1, found.end());
        if (is_sparse_) {  // of the batch's rows
            std::tie(rows_, gradients_[0], gradients_[1], none) = calls::_perspective_transformer_backward_rows(
                found[0], std::nullopt, rows_of(batch), saved, numbers_of(batch), range_, at::kFloat);
        } else {
            rows_ = is_settled_ ? marked_.narrow(0, 0, 0) : marked_;
            std::tie(gradients_[0], gradients_[1], none) = calls::_perspective_transformer_backward(
                found[0], std::nullopt, rows_of(batch), saved, numbers_of(batch), range_, at::kFloat);
        }
        return loss.detach();
    }

    // Moves the weights. Nothing moves if a gradient or the loss, float32, is not finite, nor in any later step.
    void update(const at::Tensor& loss) {
        std::vector<at::Tensor> rows;
        if (is_late_) rows.push_back(rows_);
        calls::_optimizer_step(weights_, gradients_, moments_, copies_, late_, rows, state_, loss, lr_, {}, {},
                               std::nullopt, optimizer_);
        gradients_.clear();
        marked_.zero_();
    }

    // The transformer's output without a gradient, float32 [B, width].
    at::Tensor output(const Prepared& batch) {
        settle();
        return std::get<0>(transform(batch, /*save=*/false));
    }

    // The transformer's weight may be behind in rows that batches lack. Call this before anything else reads it.
    void settle() {
        if (is_late_) replay(marked_.narrow(0, 0, 0));
    }

    void set_lr(double lr) { lr_.fill_(lr); }

    // Whether a step met a number that is not finite. Waits for the device.
    bool failed() const { return state_[1].item<float>() != 0; }

  private:
    // The arguments of the transformer's operators: csrc/perspective_transformer.h.
    std::vector<at::Tensor> rows_of(const Prepared& batch) const {
        return {batch.plan.white, batch.plan.black, batch.plan.data};
    }
    std::vector<int64_t> numbers_of(const Prepared& batch) const {
        const auto& layout = batch.plan.layout;
        return {weights_[0].size(0),
                weights_[0].size(1),
                0,
                layout[0],
                layout[1],
                layout[2],
                static_cast<int64_t>(of_.transformer.activation),
                0};
    }
    std::tuple<at::Tensor, at::Tensor, at::Tensor> transform(const Prepared& batch, bool save) const {
        return calls::_perspective_transformer_forward(rows_of(batch), weights_[0], weights_[1], std::nullopt,
                                                       numbers_of(batch), range_, at::kFloat, save);
    }

    // Brings the rows of a batch up to date, or all of them where most are in it, which is faster then.
    void catch_up(const at::Tensor& marks) {
        constexpr double most = 0.45;  // LATE_SHARE of nnue_trainer/optim/fused_optimizer.py
        marked_.copy_(marks);
        const bool on_cpu = marked_.is_cpu();
        is_settled_ = on_cpu && marked_.sum().item<int64_t>() > most * static_cast<double>(marked_.numel());
        is_sparse_ = on_cpu && !is_settled_;
        replay(is_settled_ ? marked_.narrow(0, 0, 0) : marked_);
    }

    void replay(const at::Tensor& rows) {
        const int64_t parts[] = {0};
        calls::_optimizer_catch_up({weights_[0]}, at::TensorList(moments_).slice(0, 4), {copies_[0]}, late_, {rows},
                                   state_, parts, optimizer_);
    }

    // What csrc/capabilities.h has for the weight and its two moments.
    bool late_pays() const {
        std::vector<int64_t> machine = {0, 0, 0};
        if (const at::Tensor& weight = of_.weight.tensor; weight.is_cuda()) {
            const auto [capability, multiprocessors, code] = detail::gpu_of(weight.get_device());
            machine = {capability, multiprocessors, code};
        }
        machine.push_back(3);  // all kernels
        return std::get<0>(calls::_row_update(machine, of_.weight.tensor.size(0), 3, of_.positions)) != 0;
    }

    StepOptions of_;
    at::Tensor nothing_, lr_, marked_, rows_;
    std::vector<at::Tensor> weights_, gradients_, moments_, copies_, late_, state_;
    std::vector<double> range_;
    int64_t optimizer_ = 0;
    bool is_late_ = false, is_settled_ = true, is_sparse_ = false;
};

}  // namespace nnue
