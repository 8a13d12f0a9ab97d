// One step of training: the contract of its operators, the rules by which weights move, and the checks that hold on
// every device. The rules are the same lines of code on CPU and CUDA.
//
// What all of them take:
//
//   state        three tensors of one element, one element and kNumbers elements:
//                  step     int64: updates made so far
//                  failed   float32: 1 after a loss or gradient that was not finite, and then for good. The caller may
//                           set it, too. Where it is 1, nothing changes: no weight, no moment, no count.
//                  numbers  float64, zeros before the first step: results of _optimizer_begin for the other operators,
//                           see Number; `norm` is for logs. Those from kFirstKept to kLastKept are state: the next
//                           step depends on them
//   rule         the number of a Rule
//   constants    of the rule, eleven numbers: beta1, beta2, eps, positive, lookahead_every, lookahead_share (0 steps:
//   no
//                lookahead), corrects_bias (0 or 1), warmup, weight_power, stable_over, max_value; see Hyperparameters
//   settings     five numbers for each part: the factor of the learning rate, the decoupled weight decay, the lowest
//   and
//                the highest value that the weight is clipped to, and 0, or the steps of a copy
//   moments      for each part, one after the other: its averages and its squares (as many as the rule has), the
//                averages and squares of its virtual rows, and with lookahead its slow weights. Those of the weight
//                have its shape and dtype, those of virtual rows are [V, ...], V a divisor of F, or have no elements.
//                The average of a schedule-free rule is z, which starts as the weight; that of its virtual rows is not
//                used.
//
// A part is a weight, or consecutive rows of one: rows that are trained alike.
//
// _optimizer_begin decides, before anything is written, whether the step is made, and with which numbers. It counts the
// step if it is made.
//
//   gradients    P tensors, any size; float32, float64, float16 or bfloat16. The guard checks them, and the norm is
//                computed from them.
//   shared_rows  P numbers V: rows r and r + V of the gradient [F, N] share a virtual row, whose gradient is their sum
//                and counts in the norm, too. 0: the gradient has no virtual rows.
//   loss         float32 or float64, one element
//   lr           float32 or float64, one element: the learning rate
//   max_norm     gradients are scaled down to this norm; infinity: they are not
//   rows         for each gradient, uint8 [F]: where it is 0 the row of the gradient is zeros, and may be left out;
//                no elements: any row may be other than zeros; an empty list: any row of all
//
// _optimizer_update moves the weights of all parts.
//
//   weights        for each part [F, ...] contiguous, float32 or float64, the same for all parts
//   gradients      of the same shape; the weight's dtype or, for float32, float16 or bfloat16
//   copies         float16 or bfloat16 of the weight's shape, written along with the weight; no elements where the part
//                  has none; an empty list where no part has one. With steps they hold the nearest integers to
//                  weight · steps, in float32 for weights of it
//   follows_begin  the caller's word that _optimizer_begin was the last thing that the stream was given: on CUDA the
//                  update may then begin to load while that runs
//
// Virtual rows. Row r is trained as w[r] + v[r mod V], but only the sum is stored. The gradient of a virtual row is the
// sum of its rows' gradients, and since every rule adds its change to a parameter, the sum moves by the change of w
// plus that of v. Decay, clip, lookahead and the averages of a schedule-free rule act on the sum, which is the same as
// on both parts. After a step of lookahead the weight is clipped once more: slow weights may have begun outside of the
// range.
//
// In _optimizer_update an element whose gradient is not finite stays as it is, and `failed` becomes 1: this is the
// second line of defence, for gradients that _optimizer_begin was not given because others stand for them (a feature
// transformer's weight: every row gradient is a term of its bias gradient).
//
// Sums have a fixed order: equal inputs give equal bits, for any number of threads. CPU and CUDA differ in rounding.
//
// Rows updated late. A row that no position of a batch has gets a gradient of zeros, and its step depends on
// its own state, on the numbers of the step, and on the change of its virtual row. So it may wait until it is needed:
// the steps are then made one after the other by the same lines of code, and give the same bits. What a row of a part
// has missed is kept for a window of K steps; step t lies at place (t - 1) mod K.
//
//   rows     uint8 [F]: 1 for the rows that the step, or the call, is for; none: all
//   late     what is kept of a part, three tensors:
//              made     int64 [F]: the steps that each row has made
//              changes  the weight's dtype [K, V, ...]: how far each virtual row moved; no elements without any
//              history  float64 [K, kNumbers]: the numbers of the steps in the window (zeros at first; on CUDA the
//                       last two numbers of its first row are the kernels' own, 0 between calls)
//            and on CUDA, if the part has one, its copy, which is written along with the rows
//
// _optimizer_mark_rows sets `rows` to 1 where one of the index rows int32 [B, I] has the feature, and leaves the
// others. Indices outside of the range are left to the operators that use them.
//
// _optimizer_update_rows makes the step that _optimizer_begin has counted, for the virtual rows and for the marked
// rows, which must have made the step before. What the others will need it keeps in `history` and `changes`; their
// gradients are not read, and need not exist: on a CPU, `rows` may also be int64 [R], ascending numbers of
// rows, and the gradient that of these rows [R, ...].
//
// _optimizer_catch_up makes all counted steps that the marked rows have missed, none of which the window may have
// forgotten. So it does for rows that have missed as many as the window has: the next step would be one too many.
//
// On CUDA the window has at most kMostWindow steps, and `made` is not checked: a row is left as it is if it does not
// fit the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "dtypes.h"
#include "host_device.h"

namespace nnue::optimizer {

constexpr const char* kBegin = "_optimizer_begin";
constexpr const char* kUpdate = "_optimizer_update";
constexpr const char* kMarkRows = "_optimizer_mark_rows";
constexpr const char* kUpdateRows = "_optimizer_update_rows";
constexpr const char* kCatchUp = "_optimizer_catch_up";

// Adam: torch.optim.AdamW. Rectified: torch.optim.RAdam with decoupled decay. PositiveNegative: AdaPNM (Xie and others,
// 2021), Adam with two averages that take turns; its step is along (1 + p) · this step's - p · the other one's. Lion
// (Chen and others, 2023): the sign of one average, no squares. ScheduleFree: AdamW of Defazio and others (2024); the
// weight is y, where gradients are taken, its average z; the trained net is at x = (y - (1 - beta1) z) / beta1.
enum class Rule { kAdam, kRectified, kPositiveNegative, kLion, kScheduleFree };
constexpr int64_t kRules = 5;
constexpr size_t kSettings = 5;  // of a part

struct Hyperparameters {
    Rule rule;
    double beta1, beta2, eps;
    double positive;          // p
    int64_t lookahead_every;  // steps; 0: no lookahead
    double lookahead_share;   // by which slow weights move towards the fast ones
    bool corrects_bias;       // of averages and squares that start at 0; for Adam
    double warmup;            // steps over which the rate of a schedule-free rule rises
    double weight_power;      // step t counts t^weight_power in its average
    double stable_over;       // decay is divided by the root of the mean square over this many elements; 0: it is not
    double max_value;         // gradients are clipped to this size, after their norm; infinity: they are not
};

// An element moves by scale · direction / (sqrt(square) · root + eps).
enum Number : int {
    kGo,           // 1: make the step; 0: change nothing
    kDecay,        // what the weight decay of a part is multiplied by
    kScale,        // positive and with the learning rate in it
    kRoot,         // 0 where the rule does not trust its squares yet
    kEps,          //
    kGradient,     // what gradients are multiplied by: below 1 where their norm is clipped
    kLookahead,    // share by which the slow weights move in this step
    kTurn,         // which of two averages is this step's
    kNorm,         // of all gradients that were read, virtual rows included
    kMix,          // share of z that a schedule-free rule takes into y
    kPull,         // how far its y moves with z
    kWeightSum,    // of its steps so far
    kLargestRate,  // its largest learning rate so far
    kSquareSum,    // of all squares, where decay is stable
    kTicket = 15   // the CUDA kernel's own, 0 between steps
};
constexpr int64_t kNumbers = 16;
constexpr int kFirstKept = kWeightSum, kLastKept = kSquareSum;
constexpr int64_t kMostWindow = 32;  // on CUDA: steps that a row may be behind

// The nearest integer, ties to even.
template <class T>
NNUE_HOST_DEVICE T nearest(T x) {
    return std::rint(x);
}

// The numbers of step t, counted from 1. `numbers` holds those of the step before.
NNUE_HOST_DEVICE void make_numbers(const Hyperparameters& h, int64_t t, double lr, double norm, double max_norm,
                                   double* numbers) {
    const double steps = static_cast<double>(t);
    const double power2 = pow(h.beta2, steps), correction2 = h.corrects_bias ? 1 - power2 : 1;
    double scale = lr, root = 1 / sqrt(correction2), eps = h.eps, rate = lr;
    if (h.rule == Rule::kScheduleFree) {
        if (steps < h.warmup) rate = scale = lr * (steps / h.warmup);
        const double largest = rate > numbers[kLargestRate] ? rate : numbers[kLargestRate];
        const double weight = pow(steps, h.weight_power) * largest * largest;
        numbers[kLargestRate] = largest;
        numbers[kWeightSum] += weight;
        numbers[kMix] = weight > 0 ? weight / numbers[kWeightSum] : 0;
        numbers[kPull] = 1 - h.beta1 * (1 - numbers[kMix]);
    } else if (h.rule != Rule::kLion && h.corrects_bias) {
        // Each of two averages has been brought up to date in every other step, by the square of beta1.
        const double updates = h.rule == Rule::kPositiveNegative ? steps + t % 2 : steps;
        scale /= 1 - pow(h.beta1, updates);
    }
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
    // As torch.nn.utils.clip_grad_norm_.
    const double share = max_norm / (norm + 1e-6), gradient = share < 1 ? share : 1;
    if (h.stable_over > 0) {
        // The sum of all squares needs no pass over them: it is the running mean of squared norms.
        const double square = gradient * norm * gradient * norm;
        numbers[kSquareSum] = h.beta2 * numbers[kSquareSum] + (1 - h.beta2) * square;
        const double mean = sqrt(numbers[kSquareSum] / (h.stable_over * correction2));
        rate /= mean > h.eps ? mean : h.eps;
    }
    numbers[kGo] = 1;
    numbers[kDecay] = rate;
    numbers[kScale] = scale;
    numbers[kRoot] = root;
    numbers[kEps] = eps;
    numbers[kGradient] = gradient;
    numbers[kLookahead] = h.lookahead_every > 0 && t % h.lookahead_every == 0 ? h.lookahead_share : 0;
    numbers[kTurn] = static_cast<double>(t % 2);
    numbers[kNorm] = norm;
}

// Which of two averages is this step's; one of them, whatever a caller has written there.
NNUE_HOST_DEVICE int turn_of(const double* numbers) {
    return numbers[kTurn] == 1 ? 1 : 0;
}

// What all elements of a part have in common. T: of the weights.
template <class T>
struct Common {
    T gradient, most, decay, scale, root, eps;  // most: gradients are clipped to it
    T keep1, take1, keep2, take2;               // average = keep1 · average + take1 · gradient, and so on
    T ahead, behind;                            // 1 + p and p
    T lookahead;
    T mix, pull;  // of a schedule-free rule
    T low, high;
};

// The factors of one rule, the same in every step.
struct Factors {
    double keep1, take1, keep2, take2, ahead, behind, most;
};

inline Factors factors(const Hyperparameters& h) {
    const double keep1 = h.rule == Rule::kPositiveNegative ? h.beta1 * h.beta1 : h.beta1;
    return {keep1, 1 - keep1, h.beta2, 1 - h.beta2, 1 + h.positive, h.positive, h.max_value};
}

// What differs from step to step.
template <class T>
NNUE_HOST_DEVICE void set_numbers(Common<T>& c, const double* numbers, double rate, double decay) {
    c.gradient = static_cast<T>(numbers[kGradient]);
    c.decay = static_cast<T>(numbers[kDecay] * rate * decay);
    c.scale = static_cast<T>(numbers[kScale] * rate);
    c.root = static_cast<T>(numbers[kRoot]);
    c.eps = static_cast<T>(numbers[kEps]);
    c.lookahead = static_cast<T>(numbers[kLookahead]);
    c.mix = static_cast<T>(numbers[kMix]);
    c.pull = static_cast<T>(numbers[kPull]);
}

// What is the same in every step of a part.
template <class T>
NNUE_HOST_DEVICE void set_factors(Common<T>& c, const Factors& f, double low, double high) {
    c.most = static_cast<T>(f.most);
    c.keep1 = static_cast<T>(f.keep1), c.take1 = static_cast<T>(f.take1);
    c.keep2 = static_cast<T>(f.keep2), c.take2 = static_cast<T>(f.take2);
    c.ahead = static_cast<T>(f.ahead), c.behind = static_cast<T>(f.behind);
    c.low = static_cast<T>(low), c.high = static_cast<T>(high);
}

template <class T>
NNUE_HOST_DEVICE Common<T> common(const Factors& f, const double* numbers, double rate, double decay, double low,
                                  double high) {
    Common<T> c;
    set_numbers(c, numbers, rate, decay);
    set_factors(c, f, low, high);
    return c;
}

// On CUDA sqrtf and the division of floats branch where a number is zero or tiny, as all moments of a feature are that
// no position has had for long: with them the update of HalfKAv2_hm-1024 took 240 us on an H200, and 190 without. These
// never branch, so that several elements are computed side by side, and have the same bits, except for roots below
// 2^-50 (to a bit; roots below 2^-63 only stay below it) and quotients of numbers below 2^-100 or by numbers below
// 2^-126 or above 2^126.
NNUE_HOST_DEVICE float root_of(float x) {
#ifdef __CUDA_ARCH__
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    const float near = x * inverse, root = fmaf(fmaf(-near, near, x), 0.5f * inverse, near);
    return x >= std::numeric_limits<float>::min() && x <= std::numeric_limits<float>::max() ? root : x;
#else
    return sqrtf(x);
#endif
}
NNUE_HOST_DEVICE double root_of(double x) {
    return sqrt(x);
}
NNUE_HOST_DEVICE float quotient_of(float a, float b) {
#ifdef __CUDA_ARCH__
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(b));
    const float inverse = fmaf(fmaf(-b, guess, 1.0f), guess, guess), near = a * inverse,
                found = fmaf(fmaf(-near, b, a), inverse, near);
    // Not a number if there is an infinite one, or b is tiny; then 1 / b may be infinite, too.
    constexpr float kMost = std::numeric_limits<float>::max();
    return found == found ? found : a * (guess > kMost ? kMost : guess);
#else
    return a / b;
#endif
}
NNUE_HOST_DEVICE double quotient_of(double a, double b) {
    return a / b;
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

template <class T>
NNUE_HOST_DEVICE T clipped(T x, T low, T high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

// A rule: how far one element moves, given its gradient. `change` brings `average` and `square` up to date; `other` is
// what the average of the step before holds, where the rule has two. `moved` is the weight after a change, with that of
// its virtual row in it.
struct Subtracts {
    template <class T>
    NNUE_HOST_DEVICE static T moved(const Common<T>& c, T change, T shared, T weight, T& /*average*/) {
        return clipped(multiply_add(-c.decay, weight, weight) - change - shared, c.low, c.high);
    }
};

struct Adam : Subtracts {
    static constexpr int kAverages = 1;
    static constexpr bool kSquares = true;
    static constexpr bool kRests = true;  // with averages of 0 and gradients of 0 only decay moves a weight
    template <class T>
    NNUE_HOST_DEVICE static T change(const Common<T>& c, T gradient, T& average, T /*other*/, T& square) {
        average = multiply_add(c.keep1, average, c.take1 * gradient);
        square = multiply_add(c.keep2, square, c.take2 * (gradient * gradient));
        return quotient_of(c.scale * average, multiply_add(root_of(square), c.root, c.eps));
    }
};

struct PositiveNegative : Subtracts {
    static constexpr int kAverages = 2;
    static constexpr bool kSquares = true;
    static constexpr bool kRests = true;
    template <class T>
    NNUE_HOST_DEVICE static T change(const Common<T>& c, T gradient, T& average, T other, T& square) {
        average = multiply_add(c.keep1, average, c.take1 * gradient);
        square = multiply_add(c.keep2, square, c.take2 * (gradient * gradient));
        const T direction = multiply_add(c.ahead, average, -c.behind * other);
        return quotient_of(c.scale * direction, multiply_add(root_of(square), c.root, c.eps));
    }
};

struct Lion : Subtracts {
    static constexpr int kAverages = 1;
    static constexpr bool kSquares = false;
    static constexpr bool kRests = true;
    template <class T>
    NNUE_HOST_DEVICE static T change(const Common<T>& c, T gradient, T& average, T /*other*/, T& /*square*/) {
        const T direction = multiply_add(c.keep1, average, c.take1 * gradient);
        average = multiply_add(c.keep2, average, c.take2 * gradient);
        return direction > 0 ? c.scale : direction < 0 ? -c.scale : T(0);
    }
};

struct ScheduleFree {
    static constexpr int kAverages = 1;
    static constexpr bool kSquares = true;
    static constexpr bool kRests = false;
    template <class T>
    NNUE_HOST_DEVICE static T change(const Common<T>& c, T gradient, T& /*average*/, T /*other*/, T& square) {
        square = multiply_add(c.keep2, square, c.take2 * (gradient * gradient));
        return quotient_of(c.scale * gradient, multiply_add(root_of(square), c.root, c.eps));
    }
    // x is a mean of all z, and y lies between the two: with z in bounds all are, up to rounding.
    template <class T>
    NNUE_HOST_DEVICE static T moved(const Common<T>& c, T change, T shared, T weight, T& average) {
        const T step = multiply_add(c.decay, weight, change + shared), wanted = average - step;
        const T z = clipped(wanted, c.low, c.high);
        const T made = z == wanted ? step : average - z;
        const T mixed = multiply_add(c.mix, average - weight, weight);
        average = z;
        return clipped(multiply_add(-c.pull, made, mixed), c.low, c.high);
    }
};

inline int64_t averages_of(Rule rule) {
    return rule == Rule::kPositiveNegative ? 2 : 1;
}
inline int64_t squares_of(Rule rule) {
    return rule == Rule::kLion ? 0 : 1;
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
    const T change = R::change(c, clipped(scaled, -c.most, c.most), new_average, other, new_square);
    const T moved = R::moved(c, change, shared, weight, new_average);
    weight = good ? moved : weight;
    average = good ? new_average : average;
    square = good ? new_square : square;
    return good;
}

// The slow weight of lookahead, which is the new fast one, too. Rounding must not bring it out of its range.
template <class T>
NNUE_HOST_DEVICE T look_ahead(const Common<T>& c, T slow, T weight) {
    return clipped(multiply_add(c.lookahead, weight - slow, slow), c.low, c.high);
}

// How far one virtual element moves: 0, with nothing changed, where the sum of gradients is not finite.
template <class R, class T>
NNUE_HOST_DEVICE T move_shared(const Common<T>& c, T gradient, T& average, T other, T& square, bool& good) {
    const T scaled = c.gradient * gradient;
    good = is_number(scaled);
    T new_average = average, new_square = square;
    const T change = R::change(c, clipped(scaled, -c.most, c.most), new_average, other, new_square);
    average = good ? new_average : average;
    square = good ? new_square : square;
    return good ? change : T(0);
}

inline Float type_of(const char* op, const char* argument, const Tensor& tensor) {
    check_dtype(op, argument, tensor, {ScalarType::Float, ScalarType::Half, ScalarType::BFloat16, ScalarType::Double});
    return float_type(tensor.scalar_type());
}

// A part as kernels see it: `rows` times `columns` elements, where element c of every row shares virtual element c.
// Without virtual rows there is one row.
struct Part {
    void* weight;
    const void* gradient;
    void* averages[2];
    void* square;  // null: the rule has none
    void* shared_averages[2];
    void* shared_square;
    void* slow;    // null: no lookahead
    void* copy;    // null: no copy
    double steps;  // of the copy; 0: it has the weight itself
    bool shares;   // whether there are virtual rows
    int64_t rows, columns;
    double rate, decay, low, high;
    Float gradient_type, copy_type;
};

// The same for what the norm is taken of.
struct Summand {
    const void* gradient;
    int64_t rows, columns;
    bool shares;
    Float type;
    int64_t row;            // columns of a row of the gradient
    bool by_rows;           // on CUDA: whether rows are added up one by one. It does not depend on marks, so that
                            // sums have the same order with and without them
    const uint8_t* marked;  // which rows of the gradient are not zeros; null: any
};

// ---- checks ---------------------------------------------------------------------------------------------------------

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

// The three tensors of `state`.
struct State {
    Tensor step, failed, numbers;
};

inline State check_state(const char* op, const Tensors& state, Device device) {
    if (state.size() != 3) fail(op, "state", text(state.size()) + " tensors", "three: step, failed and numbers");
    const Tensor& numbers = state[2];
    check_device(op, "numbers", numbers, device, numbers, "numbers");
    check_dtype(op, "numbers", numbers, {ScalarType::Double});
    check_shape(op, "numbers", numbers, {kNumbers}, "[K]");
    check_contiguous(op, "numbers", numbers);
    check_scalar(op, "step", state[0], device, numbers, {ScalarType::Long});
    check_scalar(op, "failed", state[1], device, numbers, {ScalarType::Float});
    return {state[0], state[1], numbers};
}

inline Hyperparameters check_rule(const char* op, int64_t rule, const std::vector<double>& constants) {
    if (rule < 0 || rule >= kRules) {
        fail(op, "rule", rule, "0 (adam), 1 (rectified), 2 (positive_negative), 3 (lion) or 4 (schedule_free)");
    }
    if (constants.size() != 11) {
        fail(op, "constants", text(constants.size()) + " numbers",
             "eleven: beta1, beta2, eps, positive, lookahead_every, lookahead_share, corrects_bias, warmup, "
             "weight_power, stable_over, max_value");
    }
    const double beta1 = constants[0], beta2 = constants[1], eps = constants[2], every = constants[4];
    if (!(beta1 >= 0 && beta1 < 1)) fail(op, "beta1", std::to_string(beta1), "0 <= beta1 < 1");
    if (!(beta2 >= 0 && beta2 < 1)) fail(op, "beta2", std::to_string(beta2), "0 <= beta2 < 1");
    if (!(eps > 0)) fail(op, "eps", std::to_string(eps), "a number above 0");
    if (!(every >= 0 && every < 1e15 && every == std::floor(every))) {
        fail(op, "lookahead_every", std::to_string(every), "a whole number of steps, 0 or more");
    }
    const double warmup = constants[7], stable_over = constants[9], max_value = constants[10];
    if (!(warmup >= 0)) fail(op, "warmup", std::to_string(warmup), "0 or more steps");
    if (!(stable_over >= 0)) fail(op, "stable_over", std::to_string(stable_over), "0 or more elements");
    if (!(max_value > 0)) fail(op, "max_value", std::to_string(max_value), "a number above 0, or infinity");
    return {static_cast<Rule>(rule),
            beta1,
            beta2,
            eps,
            constants[3],
            static_cast<int64_t>(every),
            constants[5],
            constants[6] != 0,
            warmup,
            constants[8],
            stable_over,
            max_value};
}

// Calls body.operator()<R, T>() with the struct of the rule and the type of the weights.
template <class Body>
void with_rule(Rule rule, const Tensor& weight, const Body& body) {
    const auto call = [&]<class R>() {
        if (weight.scalar_type() == ScalarType::Double) {
            body.template operator()<R, double>();
        } else {
            body.template operator()<R, float>();
        }
    };
    switch (rule) {
        case Rule::kPositiveNegative:
            return call.template operator()<PositiveNegative>();
        case Rule::kLion:
            return call.template operator()<Lion>();
        case Rule::kScheduleFree:
            return call.template operator()<ScheduleFree>();
        default:
            return call.template operator()<Adam>();
    }
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

constexpr int64_t kLeastRow = 32;  // the fewest columns for Summand::by_rows without virtual rows

// What the norm is taken of. Makes gradients contiguous where they lie, `kept` keeps the copies alive.
inline std::vector<Summand> summands(const Tensors& gradients, const std::vector<int64_t>& shared_rows,
                                     const Tensors& marked, const Tensor& numbers, Device device, Tensors& kept) {
    check_length(kBegin, "shared_rows", shared_rows.size(), gradients.size());
    if (!marked.empty()) check_length(kBegin, "rows", marked.size(), gradients.size());
    std::vector<Summand> found;
    for (size_t i = 0; i < gradients.size(); ++i) {
        const std::string name = at("gradients", i);
        check_device(kBegin, name.c_str(), gradients[i], device, numbers, "numbers");
        const Float type = type_of(kBegin, name.c_str(), gradients[i]);
        const bool shares = shared_rows[i] != 0;
        const int64_t rows = shares ? rows_of(kBegin, at("shared_rows", i), gradients[i], shared_rows[i]) : 1;
        kept.push_back(torch::stable::contiguous(gradients[i]));
        const int64_t elements = kept.back().numel();
        if (elements == 0) continue;
        const int64_t row = elements / (gradients[i].dim() == 0 ? 1 : gradients[i].size(0));
        Summand summand{kept.back().const_data_ptr(), rows,   elements / rows, shares, type, row,
                        shares || row >= kLeastRow,   nullptr};
        if (!marked.empty() && marked[i].numel() != 0) {
            const std::string marks = at("rows", i);
            check_device(kBegin, marks.c_str(), marked[i], device, numbers, "numbers");
            check_dtype(kBegin, marks.c_str(), marked[i], {ScalarType::Byte});
            check_contiguous(kBegin, marks, marked[i]);
            check_shape(kBegin, marks.c_str(), marked[i], {gradients[i].dim() == 0 ? 1 : gradients[i].size(0)}, "[F]");
            summand.marked = const_data<uint8_t>(marked[i]);
        }
        found.push_back(summand);
    }
    return found;
}

// A moment that belongs to `like`: same shape, dtype and device, and no gaps.
inline void* moment(const char* op, const std::string& name, const Tensor& tensor, const Tensor& like,
                    const std::string& like_name) {
    if (tensor.scalar_type() != like.scalar_type()) {
        fail(op, name.c_str(), dtype_name(tensor.scalar_type()), dtype_name(like.scalar_type()) + " as " + like_name);
    }
    const auto found = tensor.sizes(), wanted = like.sizes();
    if (!std::equal(found.begin(), found.end(), wanted.begin(), wanted.end())) {
        fail(op, name.c_str(), "shape " + shape_text(found), "shape " + shape_text(wanted) + " of " + like_name);
    }
    check_contiguous(op, name, tensor);
    return tensor.mutable_data_ptr();
}

// The parts of an update, checked. Parts without elements are left out. `kept` keeps contiguous copies of gradients
// alive.
inline std::vector<Part> parts(const char* op, const Tensors& weights, const Tensors& gradients, const Tensors& moments,
                               const Tensors& copies, const std::vector<double>& settings, const Hyperparameters& h,
                               const Tensor& like, Device device, Tensors& kept) {
    const size_t count = weights.size(), averages = averages_of(h.rule), states = averages + squares_of(h.rule);
    const size_t each = 2 * states + (h.lookahead_every > 0 ? 1 : 0);
    const auto check_count = [&](const char* argument, size_t found, size_t for_each) {
        if (found != count * for_each) {
            fail(op, argument, text(found) + " items",
                 text(count * for_each) + ", " + text(for_each) + " for each part");
        }
    };
    check_count("gradients", gradients.size(), 1);
    check_count("moments", moments.size(), each);
    if (!copies.empty()) check_count("copies", copies.size(), 1);
    check_count("settings", settings.size(), kSettings);
    std::vector<Part> found;
    for (size_t i = 0; i < count; ++i) {
        const std::string name = at("weights", i);
        const Tensor& weight = weights[i];
        const auto on_device = [&](const std::string& argument, const Tensor& tensor) {
            check_device(op, argument.c_str(), tensor, device, like, "the rest");
        };
        on_device(name, weight);
        check_dtype(op, name.c_str(), weight, {ScalarType::Float, ScalarType::Double});
        if (weight.scalar_type() != weights[0].scalar_type()) {
            fail(op, name.c_str(), dtype_name(weight.scalar_type()),
                 dtype_name(weights[0].scalar_type()) + " as weights[0]");
        }
        check_contiguous(op, name, weight);
        Part part{};
        part.weight = weight.mutable_data_ptr();
        const std::string gradient_name = at("gradients", i);
        on_device(gradient_name, gradients[i]);
        part.gradient_type = type_of(op, gradient_name.c_str(), gradients[i]);
        const bool is_double = weight.scalar_type() == ScalarType::Double;
        if (is_double != (part.gradient_type == Float::kFloat64)) {
            check_dtype(op, gradient_name.c_str(), gradients[i], {weight.scalar_type()});
        }
        const auto sizes = gradients[i].sizes(), wanted = weight.sizes();
        if (!std::equal(sizes.begin(), sizes.end(), wanted.begin(), wanted.end())) {
            fail(op, gradient_name.c_str(), "shape " + shape_text(sizes),
                 "shape " + shape_text(wanted) + " of " + name);
        }
        kept.push_back(torch::stable::contiguous(gradients[i]));
        part.gradient = kept.back().const_data_ptr();
        const size_t first = i * each, first_shared = first + states;
        const auto moment_of = [&](size_t place, const Tensor& owner, const std::string& owner_name) {
            on_device(at("moments", place), moments[place]);
            return moment(op, at("moments", place), moments[place], owner, owner_name);
        };
        const auto place = [&](Part& of, size_t a) -> void*& { return a < averages ? of.averages[a] : of.square; };
        const auto shared_place = [&](Part& of, size_t a) -> void*& {
            return a < averages ? of.shared_averages[a] : of.shared_square;
        };
        for (size_t a = 0; a < states; ++a) place(part, a) = moment_of(first + a, weight, name);
        part.rows = 1;
        const Tensor& shared = moments[first_shared + states - 1];
        part.shares = shared.numel() != 0;
        if (part.shares) {
            const std::string shared_name = at("moments", first_shared + states - 1);
            on_device(shared_name, shared);
            part.rows = rows_of(op, shared_name, weight, shared.dim() == 0 ? 1 : shared.size(0));
            if (shared.numel() * part.rows != weight.numel()) {
                fail(op, shared_name.c_str(), "shape " + shape_text(shared.sizes()),
                     "[V, ...] with the columns of " + name);
            }
            check_dtype(op, shared_name.c_str(), shared, {weight.scalar_type()});
            for (size_t a = 0; a < states; ++a) {
                shared_place(part, a) = moment_of(first_shared + a, shared, shared_name);
            }
        }
        if (h.lookahead_every > 0) part.slow = moment_of(first + each - 1, weight, name);
        if (!copies.empty() && copies[i].numel() != 0) {
            const std::string copy_name = at("copies", i);
            on_device(copy_name, copies[i]);
            check_dtype(op, copy_name.c_str(), copies[i], {ScalarType::Half, ScalarType::BFloat16});
            part.copy_type = type_of(op, copy_name.c_str(), copies[i]);
            if (copies[i].numel() != weight.numel()) {
                fail(op, copy_name.c_str(), "shape " + shape_text(copies[i].sizes()),
                     "shape " + shape_text(wanted) + " of " + name);
            }
            check_contiguous(op, copy_name, copies[i]);
            part.copy = copies[i].mutable_data_ptr();
        }
        const double* const numbers = settings.data() + kSettings * i;
        part.rate = numbers[0], part.decay = numbers[1], part.low = numbers[2], part.high = numbers[3];
        part.steps = numbers[4];
        if (!(part.low <= part.high)) {
            fail(op, at("settings", kSettings * i + 2).c_str(), "lowest weight " + std::to_string(part.low),
                 "at most the highest, " + std::to_string(part.high));
        }
        const int64_t elements = weight.numel();
        if (elements == 0) continue;
        part.columns = elements / part.rows;
        found.push_back(part);
    }
    return found;
}

// Everything that _optimizer_begin takes but gradients and rule, on any device.
inline State check_begin(const Tensor& loss, const Tensor& lr, const Tensors& state, double max_norm, Device device) {
    const State checked = check_state(kBegin, state, device);
    check_scalar(kBegin, "loss", loss, device, checked.numbers, {ScalarType::Float, ScalarType::Double});
    check_scalar(kBegin, "lr", lr, device, checked.numbers, {ScalarType::Float, ScalarType::Double});
    if (!(max_norm > 0)) fail(kBegin, "max_norm", std::to_string(max_norm), "a number above 0, or infinity");
    return checked;
}

// ---- rows updated late ----------------------------------------------------------------------------------------------

// What the two operators on rows of a part have in common.
struct Late {
    Part part;
    int64_t rows, columns;  // of the weight
    int64_t window;
    int64_t virtual_rows;   // rows r and r + virtual_rows share one, part.rows of them each; without any: all rows
    const uint8_t* marked;  // null: all
    int64_t* made;
    void* changes;  // null: no virtual rows
    double* history;
};

inline Late late(const char* op, const Part& part, const Tensor& weight, const std::optional<Tensor>& marked,
                 const Tensors& kept_late, Device device) {
    if (kept_late.size() != 3) {
        fail(op, "late", text(kept_late.size()) + " tensors", "three: made, changes and history");
    }
    const Tensor &made = kept_late[0], &changes = kept_late[1], &history = kept_late[2];
    if (weight.dim() < 1) fail(op, "weight", "no dimensions", "shape [F, ...]");
    const int64_t num_rows = weight.size(0);
    check_device(op, "made", made, device, weight, "weight");
    check_dtype(op, "made", made, {ScalarType::Long});
    check_shape(op, "made", made, {num_rows}, "[F]");
    check_contiguous(op, "made", made);
    check_device(op, "history", history, device, weight, "weight");
    check_dtype(op, "history", history, {ScalarType::Double});
    check_shape(op, "history", history, {-1, kNumbers}, "[K, numbers]");
    if (history.size(0) == 0) fail(op, "history", std::string("a window of 0 steps"), "1 or more");
    check_contiguous(op, "history", history);
    if (marked) {
        check_device(op, "rows", *marked, device, weight, "weight");
        check_dtype(op, "rows", *marked, {ScalarType::Byte});
        check_shape(op, "rows", *marked, {num_rows}, "[F]");
        check_contiguous(op, "rows", *marked);
    }
    Late found{part,
               num_rows,
               num_rows == 0 ? 0 : weight.numel() / num_rows,
               history.size(0),
               num_rows,
               marked ? const_data<uint8_t>(*marked) : nullptr,
               mutable_data<int64_t>(made),
               nullptr,
               mutable_data<double>(history)};
    if (changes.numel() != 0) {
        check_device(op, "changes", changes, device, weight, "weight");
        check_dtype(op, "changes", changes, {weight.scalar_type()});
        check_contiguous(op, "changes", changes);
        found.virtual_rows = changes.dim() < 2 ? 0 : changes.size(1);
        if (found.virtual_rows < 1 || num_rows % found.virtual_rows != 0 ||
            changes.numel() != found.window * found.virtual_rows * found.columns) {
            fail(op, "changes", "shape " + shape_text(changes.sizes()), "[K, V, ...] with the columns of weight");
        }
        found.changes = changes.mutable_data_ptr();
    }
    const int64_t elements = part.shares ? part.columns : 0;
    if ((found.changes == nullptr ? 0 : found.virtual_rows * found.columns) != elements) {
        fail(op, "changes", "shape " + shape_text(changes.sizes()),
             elements == 0 ? "no elements, as there are no virtual rows" : "[K, V, ...] as the moments of V rows");
    }
    found.part.rows = num_rows == 0 ? 0 : num_rows / std::max<int64_t>(found.virtual_rows, 1);
    return found;
}

// Checks of _optimizer_mark_rows.
inline void check_marks(const Tensor& white, const Tensor& black, const Tensor& rows, Device device) {
    check_device(kMarkRows, "rows", rows, device, rows, "rows");
    check_dtype(kMarkRows, "rows", rows, {ScalarType::Byte});
    check_shape(kMarkRows, "rows", rows, {-1}, "[F]");
    check_contiguous(kMarkRows, "rows", rows);
    for (const Tensor* indices : {&white, &black}) {
        check_device(kMarkRows, "indices", *indices, device, rows, "rows");
        check_dtype(kMarkRows, "indices", *indices, {ScalarType::Int});
        check_shape(kMarkRows, "indices", *indices, {-1, -1}, "[B, I]");
    }
}

}  // namespace nnue::optimizer
