// One step of training: the contract of its operators, the rules by which weights move, and the checks that hold on
// every device. The rules are the same lines of code on CPU and CUDA.
//
// _optimizer_describe reads what an optimiser is, and gives it a number, which the others take as `optimizer`:
//
//   device     a tensor on the optimiser's device
//   rule       the number of a Rule
//   constants  of the rule, ten numbers: eps, positive, lookahead_every, lookahead_share (0 steps: no lookahead),
//              corrects_bias (0 or 1), warmup, weight_power, stable_decay (0 or 1), max_value, max_norm; see
//              Hyperparameters. max_norm: gradients are scaled down to this norm; infinity: they are not
//   betas      beta1 and beta2 of each group of parts
//   parts      eight numbers for each part: its group; 1 if the guard reads its gradient, 0 if others stand for it; 1
//              if its rows are updated late; the factor of the learning rate, the decoupled weight decay, the lowest
//              and the highest value that the weight is clipped to; and 0, or the steps of its copy
//
// A part is a weight, or consecutive rows of one: rows that are trained alike.
//
// Arguments of several of them:
//
//   weights      for each part [F, ...] contiguous, float32 or float64, the same for all parts
//   moments      for each part, one after the other: its averages and its squares (as many as the rule has), the
//                averages and squares of its virtual rows, and with lookahead its slow weights. Those of the weight
//                have its shape and dtype, those of virtual rows are [V, ...], V a divisor of F, or have no elements.
//                The average of a schedule-free rule is z, which starts as the weight; that of its virtual rows is not
//                used. The average of a float32 weight may be bfloat16 with Adam and Rectified: the weight moves by the
//                new average, which is then rounded to the nearest.
//   copies       for each part float16 or bfloat16 of the weight's shape, written along with the weight; no elements
//                where it has none. With steps they hold the nearest integers to weight · steps, in float32 for weights
//                of it
//   late         for each part that is updated late three tensors, see below
//   rows         for each part that is updated late: the rows that the call is for
//   state        three tensors; G: how many groups there are
//                  step     int64 [G]: updates made so far, the same for all
//                  failed   float32, one element: 1 after a loss or gradient that was not finite, and then for good.
//                           The caller may set it, too. Where it is 1, nothing changes: no weight, no moment, no count.
//                  numbers  float64 [G, kNumbers], zeros before the first step: those of the last step, see Number;
//                           `norm` is for logs. Those from kFirstKept to kLastKept are state: the next step depends on
//                           them
//
// _optimizer_step decides, before anything is written, whether the step is made, and with which numbers. It counts the
// step if it is made, and moves the weights.
//
//   gradients    for each part, of the weight's shape; the weight's dtype or, for float32, float16 or bfloat16. No
//                elements: the step leaves the part out. The guard checks them, and the norm is taken of them
//   loss         float32 or float64, one element
//   lr           float32 or float64, one element: the learning rate
//   also         other gradients for guard and norm, any size; float32, float64, float16 or bfloat16
//   also_shared  for each of them V: rows r and r + V of the gradient [F, N] share a virtual row, whose gradient is
//                their sum and counts in the norm, too. 0: the gradient has no virtual rows
//   norm         numbers whose norm is to be taken for that of the parts' gradients, which several processes have
//
// With a norm to clip to, or stable decay, all gradients are read, also those that the guard need not check.
//
// _optimizer_norm gives numbers float64 [kNumbers], of which kGo is 0 if any of its gradients is not finite, and kNorm
// is their norm otherwise. `shared_rows` is as also_shared. `rows`: for each gradient uint8 [F], where it is 0 the row
// of the gradient is zeros, and may be left out; no elements: any row may be other than zeros. `numbers`: a tensor of
// float64 on their device.
//
// Virtual rows. Row r is trained as w[r] + v[r mod V], but only the sum is stored. The gradient of a virtual row is the
// sum of its rows' gradients, and since every rule adds its change to a parameter, the sum moves by the change of w
// plus that of v. Decay, clip, lookahead and the averages of a schedule-free rule act on the sum, which is the same as
// on both parts. After a step of lookahead the weight is clipped once more: slow weights may have begun outside of the
// range.
//
// An element whose gradient is not finite stays as it is, and `failed` becomes 1: this is the second line of defence,
// for gradients that the guard does not read because others stand for them (a feature transformer's weight: every row
// gradient is a term of its bias gradient).
//
// Sums have a fixed order: equal inputs give equal bits, for any number of threads. CPU and CUDA differ in rounding.
//
// Rows updated late. A row that no position of a batch has gets a gradient of zeros, and its step depends on
// its own state, on the numbers of the step, and on the change of its virtual row. So it may wait until it is needed:
// the steps are then made one after the other by the same lines of code, and give the same bits. What a row of a part
// has missed is kept for a window of K steps; step t lies at place (t - 1) mod K.
//
//   rows     uint8 [F]: 1 for the rows that the call is for; no elements: all
//   late     what is kept of a part, three tensors:
//              made     int64 [F]: the steps that each row has made
//              changes  the weight's dtype [K, V, ...]: how far each virtual row moved; no elements without any
//              history  float64 [K, kNumbers]: the numbers of the steps in the window (zeros at first; on CUDA the
//                       last two numbers of its first row are the kernels' own, 0 between calls)
//
// _optimizer_mark_rows sets `rows` to 1 where one of the index rows int32 [B, I] has the feature, and leaves the
// others. Indices outside of the range are left to the operators that use them.
//
// _optimizer_step moves the virtual rows and the marked rows, which must have made the step before. What the others
// will need it keeps in `history` and `changes`; their gradients are not read, and need not exist: on a CPU, `rows` may
// also be int64 [R], ascending numbers of rows, and the gradient that of these rows [R, ...].
//
// _optimizer_catch_up makes all counted steps that the marked rows have missed, none of which the window may have
// forgotten. So it does for rows that have missed as many as the window has: the next step would be one too many. It
// takes some of the parts that are updated late, whose numbers are `parts`.
//
// On CUDA the window has at most kMostWindow steps, and `made` is not checked: a row is left as it is if it does not
// fit the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "dtypes.h"
#include "handles.h"
#include "host_device.h"

namespace nnue::optimizer {

constexpr const char* kDescribe = "_optimizer_describe";
constexpr const char* kStep = "_optimizer_step";
constexpr const char* kNormOf = "_optimizer_norm";
constexpr const char* kMarkRows = "_optimizer_mark_rows";
constexpr const char* kCatchUp = "_optimizer_catch_up";

// Adam: torch.optim.AdamW. Rectified: torch.optim.RAdam with decoupled decay. PositiveNegative: AdaPNM (Xie and others,
// 2021), Adam with two averages that take turns; its step is along (1 + p) · this step's - p · the other one's. Lion
// (Chen and others, 2023): the sign of one average, no squares. ScheduleFree: AdamW of Defazio and others (2024); the
// weight is y, where gradients are taken, its average z; the trained net is at x = (y - (1 - beta1) z) / beta1.
enum class Rule { kAdam, kRectified, kPositiveNegative, kLion, kScheduleFree };
constexpr int64_t kRules = 5;
constexpr size_t kConstants = 10, kPartNumbers = 8;  // of a rule, of a part

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
    kCorrection,   // of the bias of squares
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

// The numbers of step t, counted from 1, that do not depend on its gradients. `before` holds those of the step before,
// and may be `next`.
NNUE_HOST_DEVICE void prepare_numbers(const Hyperparameters& h, int64_t t, double lr, const double* before,
                                      double* next) {
    const double steps = static_cast<double>(t);
    const double power2 = pow(h.beta2, steps), correction2 = h.corrects_bias ? 1 - power2 : 1;
    double scale = lr, root = 1 / sqrt(correction2), eps = h.eps, rate = lr;
    for (int i = kMix; i <= kSquareSum; ++i) next[i] = before[i];
    if (h.rule == Rule::kScheduleFree) {
        if (steps < h.warmup) rate = scale = lr * (steps / h.warmup);
        const double largest = rate > next[kLargestRate] ? rate : next[kLargestRate];
        const double weight = pow(steps, h.weight_power) * largest * largest;
        next[kLargestRate] = largest;
        next[kWeightSum] += weight;
        next[kMix] = weight > 0 ? weight / next[kWeightSum] : 0;
        next[kPull] = 1 - h.beta1 * (1 - next[kMix]);
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
    next[kDecay] = rate;
    next[kScale] = scale;
    next[kRoot] = root;
    next[kEps] = eps;
    next[kLookahead] = h.lookahead_every > 0 && t % h.lookahead_every == 0 ? h.lookahead_share : 0;
    next[kTurn] = static_cast<double>(t % 2);
    next[kCorrection] = correction2;
}

// Completes the numbers that `prepare_numbers` has made, so that the step is made.
NNUE_HOST_DEVICE void complete_numbers(const Hyperparameters& h, double norm, double max_norm, double* numbers) {
    // As torch.nn.utils.clip_grad_norm_.
    const double share = max_norm / (norm + 1e-6), gradient = share < 1 ? share : 1;
    if (h.stable_over > 0) {
        // The sum of all squares needs no pass over them: it is the running mean of squared norms.
        const double square = gradient * norm * gradient * norm;
        numbers[kSquareSum] = h.beta2 * numbers[kSquareSum] + (1 - h.beta2) * square;
        const double mean = sqrt(numbers[kSquareSum] / (h.stable_over * numbers[kCorrection]));
        numbers[kDecay] /= mean > h.eps ? mean : h.eps;
    }
    numbers[kGo] = 1;
    numbers[kGradient] = gradient;
    numbers[kNorm] = norm;
}

// Which of two averages is this step's; one of them, whatever a caller has written there.
NNUE_HOST_DEVICE int turn_of(const double* numbers) {
    return numbers[kTurn] == 1 ? 1 : 0;
}

// The values that all elements of a part share. T: type of the weights.
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

// Sets the values that differ from step to step.
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

// Sets the values that are the same in every step of a part.
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

// Adam whose averages are kept in bfloat16, except for those of virtual rows.
struct ShortAdam : Adam {};

// How an average of type T is kept, and conversions from and to it.
template <class R, class T>
using average_t = std::conditional_t<std::is_same_v<R, ShortAdam>, uint16_t, T>;
template <class T>
NNUE_HOST_DEVICE T average_of(T kept) {
    return kept;
}
NNUE_HOST_DEVICE float average_of(uint16_t kept) {
    const uint32_t bits = uint32_t(kept) << 16;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}
template <class T>
NNUE_HOST_DEVICE void keep_average(T average, T& to) {
    to = average;
}
// To the nearest, ties to even. An average is never NaN.
NNUE_HOST_DEVICE void keep_average(float average, uint16_t& to) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to) : "f"(average));
#else
    uint32_t bits;
    memcpy(&bits, &average, sizeof bits);
    to = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

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
    void* slow;     // null: no lookahead
    void* copy;     // null: no copy
    double steps;   // of the copy; 0: it has the weight itself
    bool shares;    // whether there are virtual rows
    bool is_short;  // whether `averages` are bfloat16
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

inline void check_length(const char* op, const char* argument, size_t found, size_t expected,
                         const std::string& why = "one for each part") {
    if (found != expected) fail(op, argument, text(found) + " items", text(expected) + ", " + why);
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

// The three tensors of `state`, for as many groups; -1: for any number of them.
struct StepState {
    int64_t* step;
    float* failed;
    double* numbers;
    Tensor on_device;
};

inline StepState check_state(const char* op, const Tensors& state, Device device, int64_t groups = -1) {
    if (state.size() != 3) fail(op, "state", text(state.size()) + " tensors", "three: step, failed and numbers");
    const Tensor &step = state[0], &failed = state[1], &numbers = state[2];
    check_device(op, "numbers", numbers, device, numbers, "numbers");
    check_dtype(op, "numbers", numbers, {ScalarType::Double});
    check_shape(op, "numbers", numbers, {groups, kNumbers}, "[G, K]");
    check_contiguous(op, "numbers", numbers);
    check_device(op, "step", step, device, numbers, "numbers");
    check_dtype(op, "step", step, {ScalarType::Long});
    check_shape(op, "step", step, {groups}, "[G]");
    check_contiguous(op, "step", step);
    check_scalar(op, "failed", failed, device, numbers, {ScalarType::Float});
    return {mutable_data<int64_t>(step), mutable_data<float>(failed), mutable_data<double>(numbers), numbers};
}

// How a part is trained.
struct Training {
    size_t group;
    bool is_guarded, is_late;
    double rate, decay, low, high, steps;
};

// The parsed arguments of _optimizer_describe.
struct Optimizer {
    std::vector<Hyperparameters> groups;  // the rule with the betas of each; stable_over: 1 or 0
    double max_norm;
    std::vector<Training> parts;

    const Hyperparameters& rule() const { return groups[0]; }
    bool reads_all() const { return std::isfinite(max_norm) || rule().stable_over > 0; }
};

inline Optimizer read_optimizer(int64_t rule, const std::vector<double>& constants, const std::vector<double>& betas,
                                const std::vector<double>& parts) {
    constexpr const char* op = kDescribe;
    if (rule < 0 || rule >= kRules) {
        fail(op, "rule", rule, "0 (adam), 1 (rectified), 2 (positive_negative), 3 (lion) or 4 (schedule_free)");
    }
    if (constants.size() != kConstants) {
        fail(op, "constants", text(constants.size()) + " numbers",
             "ten: eps, positive, lookahead_every, lookahead_share, corrects_bias, warmup, weight_power, stable_decay, "
             "max_value, max_norm");
    }
    const double eps = constants[0], every = constants[2], warmup = constants[5], max_value = constants[8];
    if (!(eps > 0)) fail(op, "eps", std::to_string(eps), "a number above 0");
    if (!(every >= 0 && every < 1e15 && every == std::floor(every))) {
        fail(op, "lookahead_every", std::to_string(every), "a whole number of steps, 0 or more");
    }
    if (!(warmup >= 0)) fail(op, "warmup", std::to_string(warmup), "0 or more steps");
    if (!(max_value > 0)) fail(op, "max_value", std::to_string(max_value), "a number above 0, or infinity");
    Optimizer found{{}, constants[9], {}};
    if (!(found.max_norm > 0)) fail(op, "max_norm", std::to_string(found.max_norm), "a number above 0, or infinity");
    if (betas.empty() || betas.size() % 2 != 0)
        fail(op, "betas", text(betas.size()) + " numbers", "two for each group");
    for (size_t i = 0; i < betas.size(); i += 2) {
        const double beta1 = betas[i], beta2 = betas[i + 1];
        if (!(beta1 >= 0 && beta1 < 1)) fail(op, "beta1", std::to_string(beta1), "0 <= beta1 < 1");
        if (!(beta2 >= 0 && beta2 < 1)) fail(op, "beta2", std::to_string(beta2), "0 <= beta2 < 1");
        found.groups.push_back({static_cast<Rule>(rule), beta1, beta2, eps, constants[1], static_cast<int64_t>(every),
                                constants[3], constants[4] != 0, warmup, constants[6], double(constants[7] != 0),
                                max_value});
    }
    if (parts.size() % kPartNumbers != 0) fail(op, "parts", text(parts.size()) + " numbers", "eight for each part");
    for (size_t i = 0; i < parts.size(); i += kPartNumbers) {
        const double* const of = parts.data() + i;
        if (!(of[0] >= 0 && of[0] < static_cast<double>(found.groups.size()) && of[0] == std::floor(of[0]))) {
            fail(op, at("parts", i).c_str(), std::to_string(of[0]), "a group below " + text(found.groups.size()));
        }
        if (!(of[5] <= of[6])) {
            fail(op, at("parts", i + 5).c_str(), "lowest weight " + std::to_string(of[5]),
                 "at most the highest, " + std::to_string(of[6]));
        }
        found.parts.push_back({static_cast<size_t>(of[0]), of[1] != 0, of[2] != 0, of[3], of[4], of[5], of[6], of[7]});
    }
    // The handle is found by these numbers, and a NaN would equal every other number.
    for (const auto& [name, list] : {std::pair{"constants", &constants}, {"parts", &parts}}) {
        for (size_t i = 0; i < list->size(); ++i)
            if (std::isnan((*list)[i])) fail(op, at(name, i).c_str(), std::string("nan"), "a number");
    }
    return found;
}

inline Handles<Optimizer>& optimizers() {
    static Handles<Optimizer> all;
    return all;
}

inline const Optimizer& optimizer_at(const char* op, int64_t handle) {
    return optimizers().at(op, "optimizer", handle, kDescribe);
}

inline int64_t describe_op(const Tensor& /*device*/, int64_t rule, std::vector<double> constants,
                           std::vector<double> betas, std::vector<double> parts) {
    std::vector<double> numbers{static_cast<double>(rule), static_cast<double>(betas.size())};
    for (const auto* list : {&constants, &betas, &parts}) numbers.insert(numbers.end(), list->begin(), list->end());
    return optimizers().add(read_optimizer(rule, constants, betas, parts), std::move(numbers));
}

// Calls body.operator()<R, T>() with the struct of the rule and the type of the weights.
template <class Body>
void with_rule(Rule rule, const Tensor& weight, bool is_short, const Body& body) {
    if (is_short) return body.template operator()<ShortAdam, float>();
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

// Adds what the norm is taken of, if it has elements. Makes the gradient contiguous where it lies, `kept` keeps the
// copy alive. `name`: of the gradient; `shared`: 0, or its number of virtual rows; `marked`: of its rows.
inline void add_summand(const char* op, const std::string& name, const Tensor& gradient, int64_t shared,
                        const std::optional<Tensor>& marked, const Tensor& numbers, Device device, Tensors& kept,
                        std::vector<Summand>& found) {
    check_device(op, name.c_str(), gradient, device, numbers, "numbers");
    const Float type = type_of(op, name.c_str(), gradient);
    const int64_t rows = shared != 0 ? rows_of(op, name, gradient, shared) : 1;
    kept.push_back(torch::stable::contiguous(gradient));
    const int64_t elements = gradient.numel(), first = gradient.dim() == 0 ? 1 : gradient.size(0);
    if (elements == 0) return;
    const int64_t row = elements / first;
    Summand summand{kept.back().const_data_ptr(),    rows,   elements / rows, shared != 0, type, row,
                    shared != 0 || row >= kLeastRow, nullptr};
    if (marked && marked->numel() != 0) {
        const std::string marks = "rows of " + name;
        check_device(op, marks.c_str(), *marked, device, numbers, "numbers");
        check_dtype(op, marks.c_str(), *marked, {ScalarType::Byte});
        check_contiguous(op, marks, *marked);
        check_shape(op, marks.c_str(), *marked, {first}, "[F]");
        summand.marked = const_data<uint8_t>(*marked);
    }
    found.push_back(summand);
}

// The tensors whose norm _optimizer_norm takes.
inline std::vector<Summand> check_norm(const Tensors& gradients, const std::vector<int64_t>& shared_rows,
                                       const Tensors& rows, const Tensor& numbers, Device device, Tensors& kept) {
    check_device(kNormOf, "numbers", numbers, device, numbers, "numbers");
    check_dtype(kNormOf, "numbers", numbers, {ScalarType::Double});
    check_length(kNormOf, "shared_rows", shared_rows.size(), gradients.size());
    check_length(kNormOf, "rows", rows.size(), gradients.size());
    std::vector<Summand> found;
    for (size_t i = 0; i < gradients.size(); ++i) {
        add_summand(kNormOf, at("gradients", i), gradients[i], shared_rows[i], rows[i], numbers, device, kept, found);
    }
    return found;
}

// A moment that belongs to `like`: same shape, dtype (unless `is_short`) and device, and no gaps.
inline void* moment(const char* op, const std::string& name, const Tensor& tensor, const Tensor& like,
                    const std::string& like_name, bool is_short = false) {
    if (tensor.scalar_type() != like.scalar_type() && !is_short) {
        fail(op, name.c_str(), dtype_name(tensor.scalar_type()), dtype_name(like.scalar_type()) + " as " + like_name);
    }
    const auto found = tensor.sizes(), wanted = like.sizes();
    if (!std::equal(found.begin(), found.end(), wanted.begin(), wanted.end())) {
        fail(op, name.c_str(), "shape " + shape_text(found), "shape " + shape_text(wanted) + " of " + like_name);
    }
    check_contiguous(op, name, tensor);
    return tensor.mutable_data_ptr();
}

// The tensors of parts, as the operators take them.
struct PartTensors {
    const Tensors &weights, &moments, &copies;
};

// Part i, checked, except for its gradient.
inline Part part_of(const char* op, const PartTensors& tensors, size_t i, const Training& training,
                    const Hyperparameters& h, const Tensor& like, Device device) {
    const size_t averages = averages_of(h.rule), states = averages + squares_of(h.rule);
    const size_t each = 2 * states + (h.lookahead_every > 0 ? 1 : 0);
    const std::string name = at("weights", i);
    const Tensor &weight = tensors.weights[i], &copy = tensors.copies[i];
    const auto on_device = [&](const std::string& argument, const Tensor& tensor) {
        check_device(op, argument.c_str(), tensor, device, like, "the rest");
    };
    on_device(name, weight);
    check_dtype(op, name.c_str(), weight, {ScalarType::Float, ScalarType::Double});
    if (weight.scalar_type() != tensors.weights[0].scalar_type()) {
        fail(op, name.c_str(), dtype_name(weight.scalar_type()),
             dtype_name(tensors.weights[0].scalar_type()) + " as weights[0]");
    }
    check_contiguous(op, name, weight);
    Part part{};
    part.weight = weight.mutable_data_ptr();
    const size_t first = i * each, first_shared = first + states;
    const auto moment_of = [&](size_t place, const Tensor& owner, const std::string& owner_name,
                               bool is_short = false) {
        const Tensor& found = tensors.moments[place];
        on_device(at("moments", place), found);
        return moment(op, at("moments", place), found, owner, owner_name, is_short);
    };
    part.is_short = (h.rule == Rule::kAdam || h.rule == Rule::kRectified) &&
                    weight.scalar_type() == ScalarType::Float &&
                    tensors.moments[first].scalar_type() == ScalarType::BFloat16;
    for (size_t a = 0; a < states; ++a) {
        (a < averages ? part.averages[a] : part.square) =
            moment_of(first + a, weight, name, part.is_short && a < averages);
    }
    part.rows = 1;
    const Tensor& shared = tensors.moments[first_shared + states - 1];
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
            (a < averages ? part.shared_averages[a] : part.shared_square) =
                moment_of(first_shared + a, shared, shared_name);
        }
    }
    if (h.lookahead_every > 0) part.slow = moment_of(first + each - 1, weight, name);
    if (copy.numel() != 0) {
        const std::string copy_name = at("copies", i);
        on_device(copy_name, copy);
        check_dtype(op, copy_name.c_str(), copy, {ScalarType::Half, ScalarType::BFloat16});
        part.copy_type = type_of(op, copy_name.c_str(), copy);
        if (copy.numel() != weight.numel()) {
            fail(op, copy_name.c_str(), "shape " + shape_text(copy.sizes()),
                 "shape " + shape_text(weight.sizes()) + " of " + name);
        }
        check_contiguous(op, copy_name, copy);
        part.copy = copy.mutable_data_ptr();
    }
    part.rate = training.rate, part.decay = training.decay, part.low = training.low, part.high = training.high;
    part.steps = training.steps;
    part.columns = weight.numel() / part.rows;
    return part;
}

// How many moments and copies there are for this many parts.
inline void check_lengths(const char* op, const PartTensors& tensors, size_t count, const Hyperparameters& h) {
    const size_t each = 2 * (averages_of(h.rule) + squares_of(h.rule)) + (h.lookahead_every > 0 ? 1 : 0);
    check_length(op, "weights", tensors.weights.size(), count);
    check_length(op, "moments", tensors.moments.size(), count * each, text(each) + " for each part");
    check_length(op, "copies", tensors.copies.size(), count);
}

// The gradient of a part whose weight has this shape. `kept` keeps a contiguous copy alive.
inline void set_gradient(const char* op, const std::string& name, const Tensor& gradient, const Tensor& weight,
                         bool is_listed, Device device, Tensors& kept, Part& part) {
    check_device(op, name.c_str(), gradient, device, weight, "its weight");
    part.gradient_type = type_of(op, name.c_str(), gradient);
    const bool is_double = weight.scalar_type() == ScalarType::Double;
    if (is_double != (part.gradient_type == Float::kFloat64)) {
        check_dtype(op, name.c_str(), gradient, {weight.scalar_type()});
    }
    const auto sizes = gradient.sizes(), wanted = weight.sizes();
    const size_t first = is_listed ? 1 : 0;  // a list has some of the rows
    if (sizes.size() != wanted.size() || !std::equal(sizes.begin() + first, sizes.end(), wanted.begin() + first)) {
        fail(op, name.c_str(), "shape " + shape_text(sizes), "shape " + shape_text(wanted) + " of its weight");
    }
    kept.push_back(torch::stable::contiguous(gradient));
    part.gradient = kept.back().const_data_ptr();
}

// ---- rows updated late ----------------------------------------------------------------------------------------------

// A part that is updated late, as kernels see it.
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

// `late` and `rows` are the operator's, `number` counts the parts that are updated late. Rows may be marks alone,
// except where `may_list`.
inline Late late_of(const char* op, const Part& part, const Tensor& weight, const Tensors& late, const Tensors& rows,
                    size_t number, bool may_list, Device device) {
    const Tensor &made = late[3 * number], &changes = late[3 * number + 1], &history = late[3 * number + 2];
    const Tensor& marked = rows[number];
    const std::string made_name = at("made", number), changes_name = at("changes", number),
                      history_name = at("history", number), rows_name = at("rows", number);
    if (weight.dim() < 1) fail(op, rows_name.c_str(), "a weight without dimensions", "shape [F, ...]");
    const int64_t num_rows = weight.size(0);
    const auto check = [&](const std::string& name, const Tensor& tensor, ScalarType dtype) {
        check_device(op, name.c_str(), tensor, device, weight, "its weight");
        check_dtype(op, name.c_str(), tensor, {dtype});
        check_contiguous(op, name, tensor);
    };
    check(made_name, made, ScalarType::Long);
    check_shape(op, made_name.c_str(), made, {num_rows}, "[F]");
    check(history_name, history, ScalarType::Double);
    check_shape(op, history_name.c_str(), history, {-1, kNumbers}, "[K, numbers]");
    if (history.size(0) == 0) fail(op, history_name.c_str(), std::string("a window of 0 steps"), "1 or more");
    const bool has_marks = !(may_list && marked.scalar_type() == ScalarType::Long) && marked.numel() != 0;
    if (has_marks) {
        check(rows_name, marked, ScalarType::Byte);
        check_shape(op, rows_name.c_str(), marked, {num_rows}, "[F]");
    }
    Late found{part,
               num_rows,
               num_rows == 0 ? 0 : weight.numel() / num_rows,
               history.size(0),
               num_rows,
               has_marks ? const_data<uint8_t>(marked) : nullptr,
               mutable_data<int64_t>(made),
               nullptr,
               mutable_data<double>(history)};
    const auto wrong_changes = [&](const char* expected) {
        fail(op, changes_name.c_str(), "shape " + shape_text(changes.sizes()), expected);
    };
    if (changes.numel() != 0) {
        check(changes_name, changes, weight.scalar_type());
        found.virtual_rows = changes.dim() < 2 ? 0 : changes.size(1);
        if (found.virtual_rows < 1 || num_rows % found.virtual_rows != 0 ||
            changes.numel() != found.window * found.virtual_rows * found.columns)
            wrong_changes("[K, V, ...] with the columns of weight");
        found.changes = changes.mutable_data_ptr();
    }
    const int64_t elements = part.shares ? part.columns : 0;
    if ((found.changes == nullptr ? 0 : found.virtual_rows * found.columns) != elements)
        wrong_changes(elements == 0 ? "no elements, as there are no virtual rows"
                                    : "[K, V, ...] as the moments of V rows");
    found.part.rows = num_rows == 0 ? 0 : num_rows / std::max<int64_t>(found.virtual_rows, 1);
    return found;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

// A part that is updated late, in one call.
struct LatePart {
    Late late;
    Tensor weight, gradient, rows;  // gradient: of a step
    size_t number;                  // among `late` and `rows` of the operator
    Hyperparameters h;
    int64_t* step;  // of its group, as numbers
    double* numbers;
};

inline void check_late(const char* op, const Tensors& late, const Tensors& rows, size_t count) {
    check_length(op, "late", late.size(), 3 * count, "made, changes and history of each part");
    check_length(op, "rows", rows.size(), count);
}

// The arguments of _optimizer_step, checked.
struct StepCall {
    struct Group {
        Hyperparameters h;
        int64_t* step;
        double* numbers;
        std::vector<Part> parts;  // updated now
    };
    StepState state;
    const Optimizer& optimizer;
    std::vector<Summand> read;  // by the first group; the others take its norm
    std::vector<Group> groups;
    std::vector<LatePart> late;
    Tensors kept;

    StepCall(const PartTensors& tensors, const Tensors& gradients, const Tensors& late_tensors, const Tensors& rows,
             const Tensors& state_tensors, const Tensor& loss, const Tensor& lr, const Tensors& also,
             const std::vector<int64_t>& also_shared, const std::optional<Tensor>& norm, int64_t handle, Device device)
        : optimizer(optimizer_at(kStep, handle)) {
        const size_t count = optimizer.parts.size();
        state = check_state(kStep, state_tensors, device, static_cast<int64_t>(optimizer.groups.size()));
        const Tensor& numbers = state.on_device;
        check_scalar(kStep, "loss", loss, device, numbers, {ScalarType::Float, ScalarType::Double});
        check_scalar(kStep, "lr", lr, device, numbers, {ScalarType::Float, ScalarType::Double});
        check_lengths(kStep, tensors, count, optimizer.rule());
        check_length(kStep, "gradients", gradients.size(), count);
        check_length(kStep, "also_shared", also_shared.size(), also.size(), "as in also");
        const auto is_late = [](const Training& part) { return part.is_late; };
        check_late(kStep, late_tensors, rows, std::count_if(optimizer.parts.begin(), optimizer.parts.end(), is_late));
        for (size_t g = 0; g < optimizer.groups.size(); ++g)
            groups.push_back({optimizer.groups[g], state.step + g, state.numbers + g * kNumbers, {}});
        int64_t elements = 0;
        for (size_t i = 0, number = 0; i < count; ++i) {
            const Training& training = optimizer.parts[i];
            const size_t late_number = training.is_late ? number++ : 0;
            const Tensor &weight = tensors.weights[i], &gradient = gradients[i];
            Part part = part_of(kStep, tensors, i, training, optimizer.rule(), numbers, device);
            if (weight.numel() == 0) continue;
            const bool is_listed =
                training.is_late && device == Device::cpu && rows[late_number].scalar_type() == ScalarType::Long;
            if (gradient.numel() == 0 && !is_listed) continue;
            const std::string name = at("gradients", i);
            set_gradient(kStep, name, gradient, weight, is_listed, device, kept, part);
            elements += weight.numel() + (part.shares ? part.columns : 0);
            if (!norm && (training.is_guarded || optimizer.reads_all())) {
                const int64_t shared = part.shares && optimizer.reads_all() ? weight.size(0) / part.rows : 0;
                const bool has_marks = training.is_late && !is_listed;
                const Tensor contiguous = kept.back();
                add_summand(kStep, name, contiguous, shared,
                            has_marks ? std::optional(rows[late_number]) : std::nullopt, numbers, device, kept, read);
            }
            Group& group = groups[training.group];
            if (!training.is_late) {
                group.parts.push_back(part);
                continue;
            }
            const Late found = late_of(kStep, part, weight, late_tensors, rows, late_number, is_listed, device);
            late.push_back(
                {found, weight, gradient, rows[late_number], late_number, group.h, group.step, group.numbers});
        }
        if (norm) add_summand(kStep, "norm", *norm, 0, std::nullopt, numbers, device, kept, read);
        for (size_t i = 0; i < also.size(); ++i) {
            add_summand(kStep, at("also", i), also[i], also_shared[i], std::nullopt, numbers, device, kept, read);
            elements += also[i].numel();
            if (also_shared[i] != 0 && also[i].numel() != 0)
                elements += also[i].numel() / rows_of(kStep, at("also", i), also[i], also_shared[i]);
        }
        for (Group& group : groups) group.h.stable_over *= static_cast<double>(elements);
    }

    // The tensors of a group's norm. Groups after the first take the norm that the first has found.
    std::vector<Summand> summands_of(size_t group) const {
        if (group == 0) return read;
        return {{state.numbers + kNorm, 1, 1, false, Float::kFloat64, 1, false, nullptr}};
    }
};

// The arguments of _optimizer_catch_up, checked.
struct CatchUpCall {
    StepState state;
    std::vector<LatePart> late;

    CatchUpCall(const PartTensors& tensors, const Tensors& late_tensors, const Tensors& rows,
                const Tensors& state_tensors, const std::vector<int64_t>& numbers, int64_t handle, Device device) {
        const Optimizer& optimizer = optimizer_at(kCatchUp, handle);
        state = check_state(kCatchUp, state_tensors, device, static_cast<int64_t>(optimizer.groups.size()));
        check_lengths(kCatchUp, tensors, numbers.size(), optimizer.rule());
        check_late(kCatchUp, late_tensors, rows, numbers.size());
        for (size_t i = 0; i < numbers.size(); ++i) {
            const bool exists = numbers[i] >= 0 && numbers[i] < static_cast<int64_t>(optimizer.parts.size());
            if (!exists || !optimizer.parts[numbers[i]].is_late)
                fail(kCatchUp, at("parts", i).c_str(), numbers[i], "the number of a part that is updated late");
            const Training& training = optimizer.parts[numbers[i]];
            const Tensor& weight = tensors.weights[i];
            const Part part = part_of(kCatchUp, tensors, i, training, optimizer.rule(), state.on_device, device);
            if (weight.numel() == 0) continue;
            const size_t g = training.group;
            late.push_back({late_of(kCatchUp, part, weight, late_tensors, rows, i, false, device), weight, weight,
                            rows[i], i, optimizer.groups[g], state.step + g, state.numbers + g * kNumbers});
        }
    }
};

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
