// One step of training: the contract of its two operators, the rules by which weights move, and the checks that hold
// on every device. The rules are the same lines of code on CPU and CUDA.
//
// optimizer_begin decides, before anything is written, whether the step is made, and with which numbers:
//
//   gradients    P tensors, contiguous, any size; float32, float64, float16 or bfloat16. What the guard looks at and
//                what the norm is taken of.
//   shared_rows  P numbers V: rows r and r + V of the gradient [F, N] share a virtual row, whose gradient is their sum
//                and counts in the norm, too. 0: the gradient has no virtual rows.
//   loss         float32 or float64, one element
//   lr           float32 or float64, one element: the learning rate
//   step         int64, one element: updates made so far; one more afterwards, if this one is made
//   failed       float32, one element: 1 after a loss or gradient that was not finite, and then for good. The caller
//                may set it, too. Where it is 1, nothing changes: no weight, no moment, no count.
//   numbers      float64 [kNumbers], zeros before the first step: see Number. For optimizer_update; `norm` is for logs.
//
// optimizer_update moves the weights of P parts. A part is a weight, or consecutive rows of one: rows that are trained
// alike.
//
//   weights          [F, ...] contiguous, float32 or float64, the same for all parts
//   gradients        of the same shape; the weight's dtype or, for float32, float16 or bfloat16
//   averages         as many for each part as the rule has (part after part); squares: one for each; shape and dtype of
//                    the weight
//   shared_averages, shared_squares   the same for the part's virtual rows [V, ...], V a divisor of F; no elements
//   where
//                    the part has none
//   slow             the slow weights of lookahead, one for each part; an empty list without lookahead
//   copies           float16 or bfloat16 of the weight's shape, written along with the weight; no elements where the
//                    part has none; an empty list where no part has one
//   rates, decays, lows, highs   one number for each part: the factor of the learning rate, the decoupled weight decay,
//                    and the range that the weight is clipped to
//   follows_begin    the caller's word that optimizer_begin was the last thing that the stream was given: on CUDA the
//                    update may then begin to load while that runs
//
// Virtual rows. Row r is trained as w[r] + v[r mod V], but only the sum is stored. The gradient of a virtual row is the
// sum of its rows' gradients, and since every rule adds its change to a parameter, the sum moves by the change of w
// plus that of v. Decay, clip and lookahead act on the sum, which is the same as on both parts. After a step of
// lookahead the weight is clipped once more: slow weights may have begun outside of the range.
//
// In optimizer_update an element whose gradient is not finite stays as it is, and `failed` becomes 1: this is the
// second line of defence, for gradients that optimizer_begin was not given because others stand for them (a feature
// transformer's weight: every row gradient is a term of its bias gradient).
//
// Sums have a fixed order: equal inputs give equal bits, for any number of threads. CPU and CUDA differ in rounding.
//
// Rows updated late (CPU only). A row that no position of a batch has gets a gradient of zeros, and its step depends on
// its own state, on the numbers of the step, and on the change of its virtual row. So it may wait until it is needed:
// the steps are then made one after the other by the same lines of code, and give the same bits. What a row of a part
// has missed is kept for a window of K steps; step t lies at place (t - 1) mod K.
//
//   rows      uint8 [F]: the rows that the step, or the call, is for; none: all
//   made      int64 [F]: the steps that each row has made
//   history   float64 [K, kNumbers]: the numbers of the steps in the window
//   changes   the weight's dtype [K, V, ...]: how far each virtual row moved; no elements without virtual rows
//   step      the number of the last step
//
// optimizer_mark_rows sets `rows` to 1 where one of the index rows int32 [B, I] has the feature, and leaves the others.
// Indices outside of the range are left to the operators that use them.
// optimizer_update_rows makes step `step` for the virtual rows and for the marked rows, which must have made the step
// before, and keeps in `history` and `changes` what the others will need. The gradients of these are not looked at.
// optimizer_catch_up makes all steps up to `step` that the marked rows have missed, none of which the window may have
// forgotten.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "checks.h"
#include "host_device.h"

namespace nnue::optimizer {

constexpr const char* kBegin = "optimizer_begin";
constexpr const char* kUpdate = "optimizer_update";
constexpr const char* kMarkRows = "optimizer_mark_rows";
constexpr const char* kUpdateRows = "optimizer_update_rows";
constexpr const char* kCatchUp = "optimizer_catch_up";

// Adam: torch.optim.AdamW. Rectified: torch.optim.RAdam with decoupled decay. PositiveNegative: AdaPNM (Xie and others,
// 2021), Adam with two averages that take turns; its step is along (1 + p) · this step's - p · the other one's.
enum class Rule : int { kAdam = 0, kRectified = 1, kPositiveNegative = 2 };
constexpr int64_t kRules = 3;

struct Hyperparameters {
    Rule rule;
    double beta1, beta2, eps;
    double positive;          // p
    int64_t lookahead_every;  // steps; 0: no lookahead
    double lookahead_share;   // by which slow weights move towards the fast ones
    double max_norm;          // of the gradient; infinity: no clip
};

// An element moves by scale · direction / (sqrt(square) · root + eps).
enum Number : int {
    kGo,          // 1: make the step; 0: change nothing
    kRate,        // the learning rate
    kScale,       // positive and with the learning rate in it
    kRoot,        // 0 where the rule does not trust its squares yet
    kEps,         //
    kGradient,    // what gradients are multiplied by: below 1 where their norm is clipped
    kLookahead,   // share by which the slow weights move in this step
    kTurn,        // which of two averages is this step's
    kNorm,        // of all gradients that were looked at, virtual rows included
    kTicket = 15  // the CUDA kernel's own, 0 between steps
};
constexpr int64_t kNumbers = 16;

// The numbers of step t, counted from 1.
NNUE_HOST_DEVICE void make_numbers(const Hyperparameters& h, int64_t t, double lr, double norm, double* numbers) {
    const double steps = static_cast<double>(t);
    const double correction1 = 1 - pow(h.beta1, steps), power2 = pow(h.beta2, steps), correction2 = 1 - power2;
    double scale = lr / correction1, root = 1 / sqrt(correction2), eps = h.eps;
    if (h.rule == Rule::kRectified) {
        const double most = 2 / (1 - h.beta2) - 1, length = most - 2 * steps * power2 / correction2;
        if (length > 5) {
            scale *= sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
            eps = h.eps * root;  // torch adds it before the correction
        } else {
            root = 0;
            eps = 1;
        }
    }
    if (h.rule == Rule::kPositiveNegative) {
        scale /= sqrt((1 + h.positive) * (1 + h.positive) + h.positive * h.positive);
    }
    numbers[kGo] = 1;
    numbers[kRate] = lr;
    numbers[kScale] = scale;
    numbers[kRoot] = root;
    numbers[kEps] = eps;
    // As torch.nn.utils.clip_grad_norm_.
    const double share = h.max_norm / (norm + 1e-6);
    numbers[kGradient] = share < 1 ? share : 1;
    numbers[kLookahead] = h.lookahead_every > 0 && t % h.lookahead_every == 0 ? h.lookahead_share : 0;
    numbers[kTurn] = static_cast<double>(t % 2);
    numbers[kNorm] = norm;
}

// What all elements of a part have in common. T: of the weights.
template <class T>
struct Common {
    T gradient, decay, scale, root, eps;
    T keep1, take1, keep2, take2;  // average = keep1 · average + take1 · gradient, and so on
    T ahead, behind;               // 1 + p and p
    T lookahead;
    T low, high;
};

// The factors of one rule, the same in every step.
struct Factors {
    double keep1, take1, keep2, take2, ahead, behind;
};

inline Factors factors(Rule rule, double beta1, double beta2, double positive) {
    const double keep1 = rule == Rule::kPositiveNegative ? beta1 * beta1 : beta1;
    return {keep1, 1 - keep1, beta2, 1 - beta2, 1 + positive, positive};
}

template <class T>
NNUE_HOST_DEVICE Common<T> common(const Factors& f, const double* numbers, double rate, double decay, double low,
                                  double high) {
    return {static_cast<T>(numbers[kGradient]),
            static_cast<T>(numbers[kRate] * rate * decay),
            static_cast<T>(numbers[kScale] * rate),
            static_cast<T>(numbers[kRoot]),
            static_cast<T>(numbers[kEps]),
            static_cast<T>(f.keep1),
            static_cast<T>(f.take1),
            static_cast<T>(f.keep2),
            static_cast<T>(f.take2),
            static_cast<T>(f.ahead),
            static_cast<T>(f.behind),
            static_cast<T>(numbers[kLookahead]),
            static_cast<T>(low),
            static_cast<T>(high)};
}

NNUE_HOST_DEVICE float root_of(float x) {
    return sqrtf(x);
}
NNUE_HOST_DEVICE double root_of(double x) {
    return sqrt(x);
}

// a · b + c: rounded once on CUDA, where the compiler is not to choose (it would do so differently for wide and narrow
// parts), and twice on the CPU, where not every instruction set level can do it at once.
template <class T>
NNUE_HOST_DEVICE T multiply_add(T a, T b, T c) {
#ifdef __CUDACC__
    return fma(a, b, c);
#else
    return a * b + c;
#endif
}

// A rule: how far one element moves, given its gradient. Brings `average` and `square` up to date; `other` is what the
// average of the step before holds, where the rule has two.
struct Adam {
    static constexpr int kAverages = 1;
    template <class T>
    NNUE_HOST_DEVICE static T change(const Common<T>& c, T gradient, T& average, T /*other*/, T& square) {
        average = multiply_add(c.keep1, average, c.take1 * gradient);
        square = multiply_add(c.keep2, square, c.take2 * (gradient * gradient));
        return c.scale * average / multiply_add(root_of(square), c.root, c.eps);
    }
};

struct PositiveNegative {
    static constexpr int kAverages = 2;
    template <class T>
    NNUE_HOST_DEVICE static T change(const Common<T>& c, T gradient, T& average, T other, T& square) {
        average = multiply_add(c.keep1, average, c.take1 * gradient);
        square = multiply_add(c.keep2, square, c.take2 * (gradient * gradient));
        const T direction = multiply_add(c.ahead, average, -c.behind * other);
        return c.scale * direction / multiply_add(root_of(square), c.root, c.eps);
    }
};

inline int64_t averages_of(Rule rule) {
    return rule == Rule::kPositiveNegative ? PositiveNegative::kAverages : Adam::kAverages;
}

template <class T>
NNUE_HOST_DEVICE bool is_number(T x) {
    return x - x == 0;
}

// One element. `shared` is the change of its virtual row. Returns false, with nothing changed, where its gradient is
// not finite.
template <class R, class T>
NNUE_HOST_DEVICE bool move(const Common<T>& c, T gradient, T shared, T& weight, T& average, T other, T& square) {
    const T scaled = c.gradient * gradient;
    const bool good = is_number(scaled);
    T new_average = average, new_square = square;
    const T change = R::change(c, scaled, new_average, other, new_square);
    T moved = multiply_add(-c.decay, weight, weight) - change - shared;
    moved = moved < c.low ? c.low : moved;
    moved = moved > c.high ? c.high : moved;
    weight = good ? moved : weight;
    average = good ? new_average : average;
    square = good ? new_square : square;
    return good;
}

// The slow weight of lookahead, which is the new fast one, too. Rounding must not bring it out of its range.
template <class T>
NNUE_HOST_DEVICE T look_ahead(const Common<T>& c, T slow, T weight) {
    const T moved = multiply_add(c.lookahead, weight - slow, slow);
    return moved < c.low ? c.low : moved > c.high ? c.high : moved;
}

// How far one virtual element moves: 0, with nothing changed, where the sum of gradients is not finite.
template <class R, class T>
NNUE_HOST_DEVICE T move_shared(const Common<T>& c, T gradient, T& average, T other, T& square, bool& good) {
    const T scaled = c.gradient * gradient;
    good = is_number(scaled);
    T new_average = average, new_square = square;
    const T change = R::change(c, scaled, new_average, other, new_square);
    average = good ? new_average : average;
    square = good ? new_square : square;
    return good ? change : T(0);
}

enum class Kind : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat64 = 3 };

inline Kind kind_of(const char* op, const char* argument, const Tensor& tensor) {
    check_dtype(op, argument, tensor, {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16, ScalarType::Double});
    switch (tensor.scalar_type()) {
        case ScalarType::Float:
            return Kind::kFloat32;
        case ScalarType::Half:
            return Kind::kFloat16;
        case ScalarType::BFloat16:
            return Kind::kBFloat16;
        default:
            return Kind::kFloat64;
    }
}

// A part as kernels see it: `rows` times `columns` elements, where element c of every row shares virtual element c.
// Without virtual rows there is one row.
struct Part {
    void* weight;
    const void* gradient;
    void* averages[2];
    void* square;
    void* shared_averages[2];
    void* shared_square;  // null: no virtual rows
    void* slow;           // null: no lookahead
    void* copy;           // null: no copy
    int64_t rows, columns;
    double rate, decay, low, high;
    Kind gradient_kind, copy_kind;
};

// The same for what the norm is taken of.
struct Summand {
    const void* gradient;
    int64_t rows, columns;
    bool shares;
    Kind kind;
};

// ---- checks
// -----------------------------------------------------------------------------------------------------------

using Tensors = std::vector<Tensor>;

inline std::string at(const char* list, size_t i) {
    return std::string(list) + "[" + std::to_string(i) + "]";
}

inline void check_length(const char* op, const char* argument, size_t found, size_t expected) {
    if (found != expected) {
        fail(op, argument, std::to_string(found) + " items", std::to_string(expected) + ", one for each part");
    }
}

inline void check_contiguous(const char* op, const std::string& argument, const Tensor& tensor) {
    if (!tensor.is_contiguous()) fail(op, argument.c_str(), "a tensor with gaps", "a contiguous one");
}

inline void check_scalar(const char* op, const char* argument, const Tensor& tensor, Device device, const Tensor& like,
                         std::initializer_list<ScalarType> dtypes) {
    check_device(op, argument, tensor, device, like, "numbers");
    check_dtype(op, argument, tensor, dtypes);
    if (tensor.numel() != 1) fail(op, argument, text(tensor.numel()) + " elements", "one");
}

inline void check_numbers(const char* op, const Tensor& numbers, Device device) {
    check_device(op, "numbers", numbers, device, numbers, "numbers");
    check_dtype(op, "numbers", numbers, {ScalarType::Double});
    check_shape(op, "numbers", numbers, {kNumbers}, "[K]");
    check_contiguous(op, "numbers", numbers);
}

inline Rule check_rule(const char* op, int64_t rule, double beta1, double beta2) {
    if (rule < 0 || rule >= kRules) fail(op, "rule", rule, "0 <= rule < " + text(kRules));
    if (!(beta1 >= 0 && beta1 < 1)) fail(op, "beta1", std::to_string(beta1), "0 <= beta1 < 1");
    if (!(beta2 >= 0 && beta2 < 1)) fail(op, "beta2", std::to_string(beta2), "0 <= beta2 < 1");
    return static_cast<Rule>(rule);
}

// The divisor of the rows that belong to `shared` virtual rows, or an error.
inline int64_t rows_of(const char* op, const std::string& argument, const Tensor& tensor, int64_t shared) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (shared < 1 || rows % shared != 0) {
        fail(op, argument.c_str(), text(shared) + " virtual rows",
             "a divisor of " + text(rows) + ", the part's number of rows");
    }
    return rows / shared;
}

// What the norm is taken of. Makes gradients contiguous where they lie, `kept` keeps the copies alive.
inline std::vector<Summand> summands(const Tensors& gradients, const std::vector<int64_t>& shared_rows,
                                     const Tensor& numbers, Device device, Tensors& kept) {
    check_length(kBegin, "shared_rows", shared_rows.size(), gradients.size());
    std::vector<Summand> found;
    for (size_t i = 0; i < gradients.size(); ++i) {
        const std::string name = at("gradients", i);
        check_device(kBegin, name.c_str(), gradients[i], device, numbers, "numbers");
        const Kind kind = kind_of(kBegin, name.c_str(), gradients[i]);
        const bool shares = shared_rows[i] != 0;
        const int64_t rows = shares ? rows_of(kBegin, at("shared_rows", i), gradients[i], shared_rows[i]) : 1;
        kept.push_back(torch::stable::contiguous(gradients[i]));
        const int64_t elements = kept.back().numel();
        if (elements == 0) continue;
        found.push_back({kept.back().const_data_ptr(), rows, elements / rows, shares, kind});
    }
    return found;
}

struct UpdateTensors {
    const Tensors &weights, &gradients, &averages, &squares, &shared_averages, &shared_squares, &slow, &copies;
};
struct UpdateNumbers {
    const std::vector<double>&rates, &decays, &lows, &highs;
};

// The state that belongs to `like`: same shape, dtype and device, and no gaps.
inline void* state(const std::string& name, const Tensor& tensor, const Tensor& like, const std::string& like_name) {
    if (tensor.scalar_type() != like.scalar_type()) {
        fail(kUpdate, name.c_str(), dtype_name(tensor.scalar_type()),
             dtype_name(like.scalar_type()) + " as " + like_name);
    }
    const auto found = tensor.sizes(), wanted = like.sizes();
    if (!std::equal(found.begin(), found.end(), wanted.begin(), wanted.end())) {
        fail(kUpdate, name.c_str(), "shape " + shape_text(found), "shape " + shape_text(wanted) + " of " + like_name);
    }
    check_contiguous(kUpdate, name, tensor);
    return tensor.mutable_data_ptr();
}

inline std::vector<Part> parts(const UpdateTensors& t, const UpdateNumbers& n, int64_t num_averages,
                               const Tensor& numbers, Device device, Tensors& kept) {
    const size_t count = t.weights.size();
    check_length(kUpdate, "gradients", t.gradients.size(), count);
    check_length(kUpdate, "averages", t.averages.size(), count * num_averages);
    check_length(kUpdate, "squares", t.squares.size(), count);
    check_length(kUpdate, "shared_averages", t.shared_averages.size(), count * num_averages);
    check_length(kUpdate, "shared_squares", t.shared_squares.size(), count);
    if (!t.slow.empty()) check_length(kUpdate, "slow", t.slow.size(), count);
    if (!t.copies.empty()) check_length(kUpdate, "copies", t.copies.size(), count);
    check_length(kUpdate, "rates", n.rates.size(), count);
    check_length(kUpdate, "decays", n.decays.size(), count);
    check_length(kUpdate, "lows", n.lows.size(), count);
    check_length(kUpdate, "highs", n.highs.size(), count);
    std::vector<Part> found;
    for (size_t i = 0; i < count; ++i) {
        const std::string name = at("weights", i);
        const Tensor& weight = t.weights[i];
        const auto on_device = [&](const std::string& argument, const Tensor& tensor) {
            check_device(kUpdate, argument.c_str(), tensor, device, numbers, "numbers");
        };
        on_device(name, weight);
        check_dtype(kUpdate, name.c_str(), weight, {ScalarType::Float, ScalarType::Double});
        if (weight.scalar_type() != t.weights[0].scalar_type()) {
            fail(kUpdate, name.c_str(), dtype_name(weight.scalar_type()),
                 dtype_name(t.weights[0].scalar_type()) + " as weights[0]");
        }
        check_contiguous(kUpdate, name, weight);
        Part part{};
        part.weight = weight.mutable_data_ptr();
        const std::string gradient_name = at("gradients", i);
        on_device(gradient_name, t.gradients[i]);
        part.gradient_kind = kind_of(kUpdate, gradient_name.c_str(), t.gradients[i]);
        const bool is_double = weight.scalar_type() == ScalarType::Double;
        if (is_double != (part.gradient_kind == Kind::kFloat64)) {
            check_dtype(kUpdate, gradient_name.c_str(), t.gradients[i], {weight.scalar_type()});
        }
        const auto sizes = t.gradients[i].sizes(), wanted = weight.sizes();
        if (!std::equal(sizes.begin(), sizes.end(), wanted.begin(), wanted.end())) {
            fail(kUpdate, gradient_name.c_str(), "shape " + shape_text(sizes),
                 "shape " + shape_text(wanted) + " of " + name);
        }
        kept.push_back(torch::stable::contiguous(t.gradients[i]));
        part.gradient = kept.back().const_data_ptr();
        for (int64_t a = 0; a < num_averages; ++a) {
            const size_t place = i * num_averages + a;
            on_device(at("averages", place), t.averages[place]);
            part.averages[a] = state(at("averages", place), t.averages[place], weight, name);
        }
        on_device(at("squares", i), t.squares[i]);
        part.square = state(at("squares", i), t.squares[i], weight, name);
        part.rows = 1;
        const Tensor& shared = t.shared_squares[i];
        if (shared.numel() != 0) {
            const std::string shared_name = at("shared_squares", i);
            on_device(shared_name, shared);
            part.rows = rows_of(kUpdate, shared_name, weight, shared.dim() == 0 ? 1 : shared.size(0));
            if (shared.numel() * part.rows != weight.numel()) {
                fail(kUpdate, shared_name.c_str(), "shape " + shape_text(shared.sizes()),
                     "[V, ...] with the columns of " + name);
            }
            part.shared_square = state(shared_name, shared, shared, shared_name);
            check_dtype(kUpdate, shared_name.c_str(), shared, {weight.scalar_type()});
            for (int64_t a = 0; a < num_averages; ++a) {
                const size_t place = i * num_averages + a;
                on_device(at("shared_averages", place), t.shared_averages[place]);
                part.shared_averages[a] =
                    state(at("shared_averages", place), t.shared_averages[place], shared, shared_name);
            }
        }
        if (!t.slow.empty()) {
            on_device(at("slow", i), t.slow[i]);
            part.slow = state(at("slow", i), t.slow[i], weight, name);
        }
        if (!t.copies.empty() && t.copies[i].numel() != 0) {
            const std::string copy_name = at("copies", i);
            on_device(copy_name, t.copies[i]);
            check_dtype(kUpdate, copy_name.c_str(), t.copies[i], {ScalarType::Half, ScalarType::BFloat16});
            part.copy_kind = kind_of(kUpdate, copy_name.c_str(), t.copies[i]);
            if (t.copies[i].numel() != weight.numel()) {
                fail(kUpdate, copy_name.c_str(), "shape " + shape_text(t.copies[i].sizes()),
                     "shape " + shape_text(wanted) + " of " + name);
            }
            check_contiguous(kUpdate, copy_name, t.copies[i]);
            part.copy = t.copies[i].mutable_data_ptr();
        }
        part.rate = n.rates[i], part.decay = n.decays[i], part.low = n.lows[i], part.high = n.highs[i];
        if (!(part.low <= part.high)) {
            fail(kUpdate, at("lows", i).c_str(), std::to_string(part.low),
                 "at most " + at("highs", i) + " = " + std::to_string(part.high));
        }
        const int64_t elements = weight.numel();
        if (elements == 0) continue;
        part.columns = elements / part.rows;
        found.push_back(part);
    }
    return found;
}

inline Hyperparameters check_hyperparameters(int64_t rule, double beta1, double beta2, double eps, double positive,
                                             int64_t lookahead_every, double lookahead_share, double max_norm) {
    const Rule checked = check_rule(kBegin, rule, beta1, beta2);
    if (!(eps > 0)) fail(kBegin, "eps", std::to_string(eps), "a number above 0");
    if (lookahead_every < 0) fail(kBegin, "lookahead_every", lookahead_every, "0 or more steps");
    if (!(max_norm > 0)) fail(kBegin, "max_norm", std::to_string(max_norm), "a number above 0, or infinity");
    return {checked, beta1, beta2, eps, positive, lookahead_every, lookahead_share, max_norm};
}

// Everything that optimizer_begin takes, on any device.
inline void check_begin(const Tensor& loss, const Tensor& lr, const Tensor& step, const Tensor& failed,
                        const Tensor& numbers, Device device) {
    check_numbers(kBegin, numbers, device);
    check_scalar(kBegin, "loss", loss, device, numbers, {ScalarType::Float, ScalarType::Double});
    check_scalar(kBegin, "lr", lr, device, numbers, {ScalarType::Float, ScalarType::Double});
    check_scalar(kBegin, "step", step, device, numbers, {ScalarType::Long});
    check_scalar(kBegin, "failed", failed, device, numbers, {ScalarType::Float});
}

}  // namespace nnue::optimizer
