// A step of training for LibTorch: the operators that nnue_trainer/training/step.py calls, in the same order.
// docs/step.md follows a batch through it; examples/libtorch trains with it.
//
//     nnue::Step step({.weight = {weight}, .bias = {bias}, .others = {{output_weight}, {output_bias}}});
//     const auto ready = step.prepare(batch);
//     const at::Tensor loss = step.gradients(ready, layers);  // layers(x): the loss, from the transformer's output
//     step.update(loss);
//
// The layers after the transformer are yours, with torch's operators and autograd; or those of `StepOptions::layers`,
// with their loss, which a GPU computes in few kernels: step.gradients(ready, batch). Nothing waits for the device,
// except that a CPU counts rows.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "nnue/operators.h"

namespace nnue {

constexpr int64_t kNoScore = 32002;  // of a position: kScoreNone of data_loader/chess/types.h
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows of a parameter that share virtual rows: row `first` + r, r < `rows`, has virtual row r mod `count`, a divisor of
// `rows`. Virtual rows are trained with these, and are no part of the forward pass.
struct VirtualRows {
    int64_t first = 0, rows = 0, count = 0;
};

// A parameter, float32 and contiguous, the range that it is clipped to after every step, and its virtual rows: ranges
// that do not overlap, in ascending order.
struct Trained {
    at::Tensor tensor;
    double low = -kInfinity, high = kInfinity;
    std::vector<VirtualRows> virtual_rows = {};
};

// How weights move: csrc/optimizer.h. kAdam is AdamW; a schedule-free rule has its net in `Step::net`.
enum class RuleKind : int64_t { kAdam, kRectified, kPositiveNegative, kLion, kScheduleFree };

// The kind of a rule by the name that a recipe has for it.
inline RuleKind rule_kind(const std::string& name) {
    if (name == "adamw") return RuleKind::kAdam;
    if (name == "radam") return RuleKind::kRectified;
    if (name == "lion") return RuleKind::kLion;
    if (name == "schedule_free") return RuleKind::kScheduleFree;
    TORCH_CHECK_VALUE(false, "rule: found ", name, ", expected adamw, radam, lion or schedule_free");
}

struct Rule {
    RuleKind kind = RuleKind::kAdam;
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, positive = 1;
    int64_t lookahead_every = 0;  // steps, 0: without slow weights
    double lookahead_share = 0.5;
    bool corrects_bias = true;
    int64_t warmup = 0;
    double weight_power = 0;
    bool stable_decay = false;
    double max_value = kInfinity, max_norm = kInfinity;  // of gradients
};

// The layers after the transformer, and as the loss `sigmoid_loss`. By default there is one layer. `hidden` and
// `constants` describe the layers before it, which need CUDA, as for `_layer_stacks_describe` (csrc/layer_stacks.h).
struct Layers {
    int64_t stacks = 1;
    std::vector<int64_t> hidden = {};
    std::vector<double> constants = {};
    double scale = 400, lambda = 1;
};

struct StepOptions {
    Trained weight, bias;                 // of the feature transformer: [F, N], [N]; N even, on CUDA a multiple of 16
    Trained psqt = {};                    // [F, P], or an undefined tensor
    std::vector<Trained> others;          // the leaves that the layers after it read, which require gradients
    std::optional<Layers> layers = {};    // then `others` are weight [S, O, I] and bias [S, O] of each of these
    PerspectiveOptions transformer = {};  // without PSQT, which is `psqt`
    int64_t bucket_size = 0, num_bucketed = -1;  // see perspective_plan
    int64_t positions = 0;                       // of a batch, 0 if unknown
    double lr = 1e-3, weight_decay = 0.01;       // decoupled
    Rule rule = {};
    at::ScalarType read_dtype = at::kFloat;     // of the copy of the weight that a GPU reads: kBFloat16 or kHalf
    at::ScalarType exp_avg_dtype = at::kFloat;  // of the weight's running mean: kBFloat16 with kAdam and kRectified
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

// The same product on any device.
inline at::Tensor own_stacks(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& bucket) {
    if (x.is_cpu()) return OwnStacks::apply(x, weight, bias, bucket);
    const at::Tensor all = at::einsum("bi,soi->bso", {x, weight}) + bias;
    return all.gather(1, bucket.view({-1, 1, 1}).expand({-1, 1, all.size(2)})).squeeze(1);
}

// The output bucket of each position by its number of pieces, int64 [B]: one of `buckets`, as in Stockfish.
inline at::Tensor piece_bucket(const Expanded& batch, int64_t buckets = 8) {
    return (batch.piece_count.to(at::kLong) - 1).div(32 / buckets, "floor");
}

// Σ weight · (σ(output) − target)² and Σ weight, of a net's output float32 [B]. The target is λ · σ(score / scale) +
// (1 − λ) · result; of a position without a score it is the result, and its weight 1 − λ.
inline std::pair<at::Tensor, at::Tensor> sigmoid_loss(const at::Tensor& output, const Expanded& batch, double scale,
                                                      double lambda) {
    const at::Tensor known = batch.score != kNoScore, share = known.to(at::kFloat) * lambda;
    const at::Tensor score = at::where(known, batch.score, at::zeros_like(batch.score)).to(at::kFloat);
    const at::Tensor target =
        share * at::sigmoid(score / scale) + (1 - share) * (batch.result.to(at::kFloat) * 0.5 + 0.5);
    const at::Tensor weights = 1 - (~known).to(at::kFloat) * lambda;
    return {(weights * (at::sigmoid(output) - target).square()).sum(), weights.sum()};
}

class Step {
  public:
    struct Prepared {
        PerspectivePlan plan;
        at::Tensor marks;   // uint8 [F]: 1 for the rows that the batch has
        at::Tensor bucket;  // int64 [B], with PSQT or StepOptions::layers
        at::Tensor order;   // of the positions by bucket, on CUDA with StepOptions::layers
    };

    explicit Step(StepOptions options) : of_(std::move(options)) {
        TORCH_CHECK(!of_.transformer.psqt.defined(), "nnue::Step: transformer.psqt: found a tensor, expected none; ",
                    "StepOptions::psqt takes it");
        const at::Tensor& weight = of_.weight.tensor;
        const auto here = at::dtype(at::kFloat).device(weight.device());
        range_ = {of_.transformer.bound, of_.transformer.scale};
        nothing_ = at::empty({0}, here), lr_ = at::full({}, of_.lr, here);
        state_ = {at::zeros({1}, here.dtype(at::kLong)), at::zeros({}, here),
                  at::zeros({1, kNumbers}, here.dtype(at::kDouble))};
        marked_ = at::zeros({weight.size(0)}, here.dtype(at::kByte));
        made_ = at::zeros({weight.size(0)}, here.dtype(at::kLong));
        has_psqt_ = of_.psqt.tensor.defined();
        const bool on_gpu_only = (of_.layers && !of_.layers->hidden.empty()) || of_.read_dtype != at::kFloat;
        TORCH_CHECK(weight.is_cuda() || !on_gpu_only, "nnue::Step: weight: found a tensor on ", weight.device(),
                    ", expected one on CUDA for hidden layers and read_dtype");
        read_ = of_.read_dtype == at::kFloat ? weight.detach() : weight.detach().to(of_.read_dtype);
        trained_ = {of_.weight, of_.bias};
        if (has_psqt_) trained_.push_back(of_.psqt);
        trained_.insert(trained_.end(), of_.others.begin(), of_.others.end());
        for (size_t number = 0; number < trained_.size(); ++number) add_parts(number);
        const Rule& rule = of_.rule;
        const double constants[] = {rule.eps,
                                    rule.positive,
                                    static_cast<double>(rule.lookahead_every),
                                    rule.lookahead_share,
                                    static_cast<double>(rule.corrects_bias),
                                    static_cast<double>(rule.warmup),
                                    rule.weight_power,
                                    static_cast<double>(rule.stable_decay),
                                    rule.max_value,
                                    rule.max_norm};
        const double betas[] = {rule.beta1, rule.beta2};
        optimizer_ = calls::_optimizer_describe(lr_, static_cast<int64_t>(rule.kind), constants, betas, described_);
        if (!of_.layers) return;
        for (const Trained& each : of_.others) layer_parameters_.push_back(each.tensor.detach());
        TORCH_CHECK(layer_parameters_.size() >= 2 && layer_parameters_[0].dim() == 3, "nnue::Step: others: found ",
                    layer_parameters_.size(), " tensors, expected weight [S, O, I] and bias [S, O] of each layer");
        if (!has_layer_kernels()) return;
        one_ = at::ones({}, here), lambda_ = at::full({}, of_.layers->lambda, here);
        layers_ = calls::_layer_stacks_describe(layer_parameters_[0].size(2), of_.layers->stacks, of_.layers->hidden,
                                                of_.layers->constants, {});
    }

    // Everything that depends only on the batch.
    // `bucket`: the PSQT column and the stack of each position, int64 [B]; with PSQT or `StepOptions::layers`.
    Prepared prepare(const Expanded& batch, const at::Tensor& bucket = {}) const {
        const bool reads_bucket = has_psqt_ || of_.layers;
        TORCH_CHECK(bucket.defined() == reads_bucket, "nnue::Step: bucket: found ",
                    reads_bucket ? "none, expected that of each position" : "a tensor, expected none without PSQT");
        const at::Tensor& weight = of_.weight.tensor;
        Prepared made{perspective_plan(batch.white, batch.black, batch.black_to_move, weight.size(0), of_.bucket_size,
                                       of_.num_bucketed, of_.read_dtype),
                      at::zeros_like(marked_),
                      bucket,
                      {}};
        if (has_layer_kernels()) made.order = calls::_stack_order(bucket, of_.layers->stacks);
        if (!late_.empty()) calls::_optimizer_mark_rows(batch.white, batch.black, made.marks);
        return made;
    }

    // Computes the gradients of all parameters. `layers` is called with the transformer's output, `read_dtype` [B,
    // width], and with PSQT also its PSQT output, float32 [B], and returns the loss, a scalar.
    template <class Function>
    at::Tensor gradients(const Prepared& batch, const Function& layers) {
        if (!late_.empty()) catch_up(batch.marks);
        auto [x, of_psqt, saved] = transform(batch, /*save=*/true);
        std::vector<at::Tensor> sources = {x.requires_grad_()};
        if (has_psqt_) sources.push_back(of_psqt.requires_grad_());
        for (const Trained& each : of_.others) sources.push_back(each.tensor);
        at::Tensor loss;
        {
            const at::AutoGradMode with_gradients(true);
            if constexpr (std::is_invocable_v<Function, at::Tensor, at::Tensor>) {
                loss = layers(x, of_psqt);
            } else {
                TORCH_CHECK(!has_psqt_, "nnue::Step: layers: found one argument, expected two with PSQT");
                loss = layers(x);
            }
        }
        auto found = torch::autograd::grad({loss}, sources);
        const auto others = found.begin() + (has_psqt_ ? 2 : 1);
        set_gradients(batch, saved, found[0], has_psqt_ ? found[1] : at::Tensor(), {others, found.end()});
        return loss.detach();
    }

    // The same with `StepOptions::layers`. `batch` is what was prepared.
    at::Tensor gradients(const Prepared& prepared, const Expanded& batch) {
        check_layers();
        if (!has_layer_kernels()) {
            return gradients(prepared, [&](const at::Tensor& x, const at::Tensor& of_psqt) {
                const auto [weighted, weights] = terms(x, of_psqt, prepared, batch);
                return weighted / at::where(weights == 0, 1, weights);
            });
        }
        if (!late_.empty()) catch_up(prepared.marks);
        const auto [x, of_psqt, saved] = transform(prepared, /*save=*/true);
        const auto [totals, by_sums, by_output, partials] = layers_loss(x, of_psqt, prepared, batch);
        const auto [by_x, none, by_psqt, by_first, flat] = calls::_layer_stacks_gradients(
            x, prepared.order, layer_parameters_, by_sums, partials,
            has_psqt_ ? std::optional(by_output) : std::nullopt, {one_, totals}, layers_, x.scalar_type(), {});
        std::vector<at::Tensor> others = {by_first};
        for (int64_t begin = 0; others.size() < layer_parameters_.size();) {
            const at::Tensor& of = layer_parameters_[others.size()];
            others.push_back(flat.narrow(0, begin, of.numel()).view(of.sizes()));
            begin += (of.numel() + 3) / 4 * 4;
        }
        set_gradients(prepared, saved, by_x, by_psqt, others);
        return totals[2];
    }

    // Σ weight · loss and Σ weight with `StepOptions::layers`, without a gradient.
    std::pair<at::Tensor, at::Tensor> loss(const Prepared& prepared, const Expanded& batch) {
        check_layers();
        const at::NoGradGuard no_grad;
        const auto [x, of_psqt] = output(prepared);
        if (!has_layer_kernels()) return terms(x, of_psqt, prepared, batch);
        const at::Tensor totals = std::get<0>(layers_loss(x, of_psqt, prepared, batch));
        return {totals[0], totals[1]};
    }

    // Moves the weights. Nothing moves if a gradient or the loss, float32, is not finite, nor in any later step.
    void update(const at::Tensor& loss) {
        calls::_optimizer_step(weights_, gradients_, moments_, copies_, late_, rows_, state_, loss, lr_, {}, {},
                               std::nullopt, optimizer_);
        gradients_.clear();
    }

    // The transformer's output without a gradient, float32 [B, width]; with PSQT also that output, float32 [B].
    std::pair<at::Tensor, at::Tensor> output(const Prepared& batch) {
        settle();
        auto [x, of_psqt, none] = transform(batch, /*save=*/false);
        return {x, of_psqt};
    }

    // The net that is trained: weight, bias, PSQT where there is one, and the others. These are the parameters
    // themselves, except for a schedule-free rule, whose parameters are where gradients are taken.
    std::vector<at::Tensor> net() {
        settle();
        std::vector<at::Tensor> found;
        for (const Trained& each : trained_) {
            const at::Tensor own = each.tensor.detach();
            found.push_back(of_.rule.kind == RuleKind::kScheduleFree ? own.clone() : own);
        }
        if (of_.rule.kind != RuleKind::kScheduleFree) return found;
        for (size_t number = 0; number < parts_.size(); ++number) {
            const Part& part = parts_[number];
            const at::Tensor z = moments_[number * moments_.size() / parts_.size()].to(at::kDouble);
            const Trained& of = trained_[part.trained];
            of_rows(part, found[part.trained])
                .copy_(at::lerp(z, weights_[number].to(at::kDouble), 1 / of_.rule.beta1))
                .clamp_(of.low, of.high);
        }
        return found;
    }

    // The transformer's weight may be behind in rows that batches lack. Call this before anything else reads it.
    void settle() {
        if (!late_.empty()) replay(/*all=*/true);
    }

    void set_lr(double lr) { lr_.fill_(lr); }

    // Whether a step met a number that is not finite. Waits for the device.
    bool failed() const { return state_[1].item<float>() != 0; }

  private:
    static constexpr int64_t kSigmoidLoss = 1;  // LossKind of csrc/layer_stacks.h
    static constexpr int64_t kNumbers = 16;     // of a step: kNumbers of csrc/optimizer.h

    // Rows of a parameter that are trained alike.
    struct Part {
        size_t trained;
        int64_t first, rows;
        bool is_late;
    };

    static at::Tensor of_rows(const Part& part, const at::Tensor& of) {
        return of.dim() == 0 ? of : of.narrow(0, part.first, part.rows);
    }

    // The parts of a parameter: its ranges with virtual rows, and the rows between them.
    void add_parts(size_t number) {
        const Trained& of = trained_[number];
        const int64_t all = of.tensor.dim() == 0 ? 1 : of.tensor.size(0);
        std::vector<VirtualRows> ranges;
        int64_t next = 0;
        for (const VirtualRows& range : of.virtual_rows) {
            TORCH_CHECK(range.first >= next && range.rows > 0 && range.first + range.rows <= all && range.count > 0 &&
                            range.rows % range.count == 0,
                        "nnue::Step: virtual_rows: found ", range.count, " for ", range.rows, " rows from ",
                        range.first, ", expected ascending ranges of the ", all,
                        " rows, each of a multiple of its virtual rows");
            if (range.first > next) ranges.push_back({next, range.first - next, 0});
            ranges.push_back(range);
            next = range.first + range.rows;
        }
        if (next < all) ranges.push_back({next, all - next, 0});
        // A CPU updates all rows of a weight in one way.
        const bool is_late = number == 0 && std::all_of(ranges.begin(), ranges.end(), [&](const VirtualRows& range) {
                                 return of.tensor.is_cuda() || late_pays(range.rows);
                             });
        for (const VirtualRows& range : ranges) add_part(number, range, is_late && late_pays(range.rows));
    }

    void add_part(size_t number, const VirtualRows& range, bool is_late) {
        const Trained& of = trained_[number];
        parts_.push_back({number, range.first, range.rows, is_late});
        weights_.push_back(of_rows(parts_.back(), of.tensor.detach()));
        const at::Tensor& weight = weights_.back();
        const bool is_read = number == 0 && of_.read_dtype != at::kFloat;
        copies_.push_back(is_read ? of_rows(parts_.back(), read_) : nothing_);
        // Every term of the first weight's gradient is one of the bias's, which is checked.
        described_.insert(described_.end(), {0.0, number == 0 ? 0.0 : 1.0, is_late ? 1.0 : 0.0, 1.0, of_.weight_decay,
                                             of.low, of.high, 0.0});
        const bool is_free = of_.rule.kind == RuleKind::kScheduleFree;
        const auto sizes = shape_of(weight, range.count);
        const auto as_average = weight.options().dtype(number == 0 ? of_.exp_avg_dtype : at::kFloat);
        for (int64_t i = 0; i < averages(); ++i)
            moments_.push_back(is_free && i == 0 ? weight.clone()
                                                 : at::zeros_like(weight, i == 0 ? as_average : weight.options()));
        for (int64_t i = 0; i < averages(); ++i)
            moments_.push_back(range.count ? at::zeros(sizes, weight.options()) : nothing_);
        if (of_.rule.lookahead_every) moments_.push_back(weight.clone());
        if (!is_late) return;
        late_parts_.push_back(static_cast<int64_t>(parts_.size()) - 1);
        const int64_t window = range.count || weight.is_cpu() ? 16 : 32;
        std::vector<int64_t> changes = {window};
        changes.insert(changes.end(), sizes.begin(), sizes.end());
        late_.insert(late_.end(),
                     {of_rows(parts_.back(), made_), range.count ? at::zeros(changes, weight.options()) : nothing_,
                      at::zeros({window, kNumbers}, weight.options().dtype(at::kDouble))});
    }

    static std::vector<int64_t> shape_of(const at::Tensor& weight, int64_t rows) {
        std::vector<int64_t> sizes = weight.sizes().vec();
        if (!sizes.empty()) sizes[0] = rows;
        return sizes;
    }

    // Averages and squares of the rule.
    int64_t averages() const {
        return (of_.rule.kind == RuleKind::kPositiveNegative ? 2 : 1) + (of_.rule.kind == RuleKind::kLion ? 0 : 1);
    }

    bool has_layer_kernels() const { return of_.layers && of_.weight.tensor.is_cuda(); }
    void check_layers() const {
        TORCH_CHECK(of_.layers, "nnue::Step: layers: found none, expected StepOptions::layers or a function");
    }

    // Layers and loss in torch's operators.
    std::pair<at::Tensor, at::Tensor> terms(const at::Tensor& x, const at::Tensor& of_psqt, const Prepared& prepared,
                                            const Expanded& batch) const {
        const at::Tensor output = own_stacks(x, of_.others[0].tensor, of_.others[1].tensor, prepared.bucket).squeeze(1);
        return sigmoid_loss(has_psqt_ ? output + of_psqt : output, batch, of_.layers->scale, of_.layers->lambda);
    }

    // The same by the operator: totals, and what _layer_stacks_gradients takes.
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> layers_loss(const at::Tensor& x,
                                                                           const at::Tensor& of_psqt,
                                                                           const Prepared& prepared,
                                                                           const Expanded& batch) const {
        const double constants[] = {of_.layers->scale, of_.layers->scale, 2};  // units of the output and of the loss
        const auto psqt = has_psqt_ ? std::optional(of_psqt) : std::nullopt;
        return calls::_layer_stacks_loss(x, prepared.order, layer_parameters_, psqt,
                                         {batch.score, batch.result, lambda_}, layers_, kSigmoidLoss, constants);
    }

    // The gradients of all parts, from those of the transformer's outputs and of the parameters after it.
    void set_gradients(const Prepared& batch, const at::Tensor& saved, const at::Tensor& by_x,
                       const at::Tensor& by_psqt, const std::vector<at::Tensor>& others) {
        const std::optional<at::Tensor> psqt = has_psqt_ ? std::optional(by_psqt) : std::nullopt;
        at::Tensor of_weight, of_bias, of_psqt, numbers;
        if (is_sparse_) {  // of the batch's rows
            std::tie(numbers, of_weight, of_bias, of_psqt) = calls::_perspective_transformer_backward_rows(
                by_x, psqt, rows_of(batch), saved, numbers_of(batch), range_, of_.read_dtype);
        } else {
            std::tie(of_weight, of_bias, of_psqt) = calls::_perspective_transformer_backward(
                by_x, psqt, rows_of(batch), saved, numbers_of(batch), range_, of_.read_dtype);
        }
        std::vector<at::Tensor> of_trained = {of_weight, of_bias};
        if (has_psqt_) of_trained.push_back(of_psqt);
        of_trained.insert(of_trained.end(), others.begin(), others.end());
        gradients_.clear(), rows_.clear();
        for (const Part& part : parts_) {
            const bool is_rows = is_sparse_ && part.trained == 0;
            gradients_.push_back(is_rows ? of_weight : of_rows(part, of_trained[part.trained]));
            if (is_rows) {
                const at::Tensor ends = at::tensor({part.first, part.first + part.rows}, numbers.options());
                const at::Tensor places = at::searchsorted(numbers, ends);
                const int64_t begin = places[0].item<int64_t>(), size = places[1].item<int64_t>() - begin;
                gradients_.back() = of_weight.narrow(0, begin, size);
                rows_.push_back(numbers.narrow(0, begin, size) - part.first);
            } else if (part.is_late) {
                rows_.push_back(is_settled_ ? marked_.narrow(0, 0, 0) : of_rows(part, marked_));
            }
        }
    }

    // The arguments of the transformer's operators: csrc/perspective_transformer.h.
    std::vector<at::Tensor> rows_of(const Prepared& batch) const {
        std::vector<at::Tensor> rows = {batch.plan.white, batch.plan.black, batch.plan.data};
        if (has_psqt_) rows.push_back(batch.bucket);
        return rows;
    }
    std::vector<int64_t> numbers_of(const Prepared& batch) const {
        const auto& layout = batch.plan.layout;
        const at::Tensor& weight = of_.weight.tensor;
        const int64_t columns = has_psqt_ ? of_.psqt.tensor.size(1) : 0;
        const auto activation = static_cast<int64_t>(of_.transformer.activation);
        return {weight.size(0), weight.size(1), columns, layout[0], layout[1], layout[2], activation, 0};
    }
    std::tuple<at::Tensor, at::Tensor, at::Tensor> transform(const Prepared& batch, bool save) const {
        const std::optional<at::Tensor> psqt = has_psqt_ ? std::optional(of_.psqt.tensor.detach()) : std::nullopt;
        return calls::_perspective_transformer_forward(rows_of(batch), read_, of_.bias.tensor.detach(), psqt,
                                                       numbers_of(batch), range_, of_.read_dtype, save);
    }

    // Brings the rows of a batch up to date, or all of them where most are in it, which is faster then.
    void catch_up(const at::Tensor& marks) {
        constexpr double most = 0.45;  // LATE_SHARE of nnue_trainer/optim/fused_optimizer.py
        marked_ = marks;
        const bool on_cpu = marked_.is_cpu();
        is_settled_ = on_cpu && marked_.sum().item<int64_t>() > most * static_cast<double>(marked_.numel());
        is_sparse_ = on_cpu && !is_settled_ && of_.rule.max_norm == kInfinity && !of_.rule.stable_decay;
        replay(is_settled_);
    }

    void replay(bool all) {
        std::vector<at::Tensor> weights, moments, copies, rows;
        const size_t each = moments_.size() / parts_.size();
        for (const int64_t number : late_parts_) {
            const Part& part = parts_[number];
            weights.push_back(weights_[number]), copies.push_back(copies_[number]);
            moments.insert(moments.end(), moments_.begin() + number * each, moments_.begin() + (number + 1) * each);
            rows.push_back(all ? marked_.narrow(0, 0, 0) : of_rows(part, marked_));
        }
        calls::_optimizer_catch_up(weights, moments, copies, late_, rows, state_, late_parts_, optimizer_);
    }

    // What csrc/capabilities.h has for rows of the weight and their moments.
    bool late_pays(int64_t rows) const {
        std::vector<int64_t> machine = {0, 0, 0};
        if (const at::Tensor& weight = of_.weight.tensor; weight.is_cuda()) {
            const auto [capability, multiprocessors, code] = detail::gpu_of(weight.get_device());
            machine = {capability, multiprocessors, code};
        }
        machine.push_back(3);  // all kernels
        const int64_t tensors = 1 + averages() + (of_.rule.lookahead_every ? 1 : 0);
        return std::get<0>(calls::_row_update(machine, rows, tensors, of_.positions)) != 0;
    }

    StepOptions of_;
    at::Tensor nothing_, lr_, read_, marked_, made_, one_, lambda_;
    std::vector<Trained> trained_;  // weight, bias, PSQT where there is one, the others
    std::vector<Part> parts_;
    std::vector<int64_t> late_parts_;  // their numbers
    std::vector<at::Tensor> weights_, gradients_, moments_, copies_, late_, rows_, state_;
    std::vector<double> range_, described_;
    std::vector<at::Tensor> layer_parameters_;
    int64_t optimizer_ = 0, layers_ = 0;
    bool has_psqt_ = false, is_settled_ = true, is_sparse_ = false;
};

}  // namespace nnue
