// Exponentially weighted moments along the last dimension: the contract of the operator, its state, and the checks that
// hold on every device.
//
//   x           [..., n] float32 or float64. NaN and infinity do not count as observations, as in pandas.
//   statistic   mean, var or std
// alpha       0 <= alpha <= 1: every element multiplies the weights of all earlier ones by 1 - alpha (with ignore_na:
// every observation does). 0: all weigh the same
//   adjust      true: an observation weighs 1. false: y = (1 - alpha) y + alpha x; the first observation weighs 1, and
//               after each the weights are scaled to the sum 1. So after a gap of g elements the old ones weigh
//               (1 - alpha)^g, and the new one alpha.
//   bias        false: var times (sum of weights)^2 / ((sum of weights)^2 - sum of squares of weights)
//   min_periods with fewer observations so far an output is NaN; at least 1
//   output      the shape and dtype of x. Everything is computed in double.
//
// The state of a range of elements is an affine map of the state before it: the factor by which all earlier weights
// fall, and the weight, mean and moments of the range's observations. States of neighbouring ranges merge, so rows are
// scanned in tiles. How an element changes the weights depends on the rest of the row only if adjust is false. Then it
// depends on the place of the previous observation, which is found first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "checks.h"
#include "dtypes.h"
#include "enumerations.h"
#include "host_device.h"
#include "quick_division.h"

namespace nnue::ewm {

constexpr const char* kName = "ewm";

NNUE_ENUMERATION(Statistic, mean, var, std)

// Squares of deviations may leave the range of double, though their roots do not. A variance is v * 2^(kLevel * level)
// with a level of -1, 0 or 1; the level is 0 wherever v has all of its digits then.
constexpr int kLevel = 1100;

// `decay` is the factor of all weights before the range, `weight` the sum of the range's own weights; `mean` and the
// variance, `var` at `level`, are weighted with these, and `spread` is 1 minus the sum of the squares of the weights
// divided by the square of their sum.
template <bool kVariance>
struct State {
    double decay = 1, count = 0, weight = 0, mean = 0, spread = 0, var = 0, level = 0;
};
template <>
struct State<false> {
    double decay = 1, count = 0, weight = 0, mean = 0;
};

// a · of_a + b · of_b, where the shares add up to 1. It starts at the number with the larger share: then a large number
// with a small share takes no digits from the other one, and equal numbers give themselves.
NNUE_HOST_DEVICE double weighted_mean(double a, double of_a, double b, double of_b) {
    const double d = b - a;
    if (!is_finite(d)) return a * of_a + b * of_b;
    return of_a < of_b ? b - of_a * d : a + of_b * d;
}

// The variance of a and b at the highest level where it has all of its digits. `rest` and `mine` are their shares.
NNUE_HOST_DEVICE void merge_variances(State<true>& s, const State<true>& a, double rest, const State<true>& b,
                                      double mine) {
    for (int level = 1; level >= -1; --level) {
        double var = 0;
        // A share of 0 leaves nothing of a number, however large it is.
        if (mine > 0) var += mine * ldexp(b.var, kLevel * (static_cast<int>(b.level) - level));
        if (rest > 0) var += rest * ldexp(a.var, kLevel * (static_cast<int>(a.level) - level));
        if (mine > 0 && rest > 0) {
            const int half = -kLevel / 2 * level;
            const double d = ldexp(b.mean, half) - ldexp(a.mean, half);
            var += rest * mine * d * d;
        }
        if (level == 1 && !(var > 0x1p-200)) continue;
        if (level == 0 && !(var >= 0x1p-900)) continue;
        s.var = var, s.level = var == 0 ? 0 : level;
        return;
    }
}

template <bool kVariance>
NNUE_HOST_DEVICE State<kVariance> merge(const State<kVariance>& a, const State<kVariance>& b) {
    State<kVariance> s;
    s.decay = a.decay * b.decay;
    s.count = a.count + b.count;
    const double before = a.weight * b.decay;
    s.weight = before + b.weight;
    // The shares of a and b in the sum. If all weights have fallen to zero, mean and var do not change.
    double mine = b.count > 0 ? 1 : 0, rest = 1 - mine;
    if (s.weight > 1e-300) {
        const double inverse = divide(1.0, s.weight);
        mine = b.weight * inverse;
        rest = before * inverse;
    }
    const double d = a.count > 0 ? b.mean - a.mean : 0;
    s.mean = a.count > 0 ? weighted_mean(a.mean, rest, b.mean, mine) : b.mean;
    if constexpr (kVariance) {
        s.spread = 2 * rest * mine + rest * rest * a.spread + mine * mine * b.spread;
        const double both = rest * mine, size = fabs(d);
        s.var = mine * b.var + rest * a.var + both * d * d;
        const bool far_from_ends = size == 0 || (size > 0x1p-400 && size < 0x1p400);
        const bool has_digits = s.var >= 0x1p-900 || (s.var == 0 && (size == 0 || both == 0));
        if (a.level != 0 || b.level != 0 || !far_from_ends || !has_digits) merge_variances(s, a, rest, b, mine);
    }
    return s;
}

struct Rule {
    double alpha;
    bool adjust, ignore_na, bias;
    Statistic statistic;
    double min_periods;

    // Whether an element needs the place of the observation before it.
    bool needs_last() const { return !adjust; }

    // Element i of a row; `last` is the place of the observation before it, -1 if there is none.
    template <bool kVariance>
    NNUE_HOST_DEVICE State<kVariance> element(double x, int64_t i, int64_t last) const {
        State<kVariance> s;
        if (!is_finite(x)) {
            if (adjust && !ignore_na) s.decay = 1 - alpha;
            return s;
        }
        s.count = 1;
        s.mean = x;
        if (adjust) {
            s.decay = 1 - alpha, s.weight = 1;
        } else if (last < 0) {
            s.decay = 0, s.weight = 1;
        } else {
            const int64_t gap = ignore_na ? 1 : i - last;
            if (gap == 1) {
                s.weight = alpha;
                s.decay = 1 - alpha;
            } else {
                const double old = pow(1 - alpha, static_cast<double>(gap));
                s.weight = alpha / (old + alpha);
                s.decay = old / (old + alpha);
            }
        }
        return s;
    }

    // The state after element i, where `adjust` is true. This takes fewer steps than merging the element's state.
    NNUE_HOST_DEVICE void follow(State<false>& s, double x) const {
        const bool seen = is_finite(x);
        const double decay = seen || !ignore_na ? 1 - alpha : 1;
        const double before = s.weight * decay;
        s.decay *= decay;
        s.weight = before + (seen ? 1 : 0);
        s.count += seen ? 1 : 0;
        if (!seen) return;
        const double share = divide(1.0, s.weight);
        s.mean = s.count > 1 ? weighted_mean(s.mean, before * share, x, share) : x;
    }

    NNUE_HOST_DEVICE double finish(const State<false>& s) const {
        return s.count < min_periods ? std::numeric_limits<double>::quiet_NaN() : s.mean;
    }
    NNUE_HOST_DEVICE double finish(const State<true>& s) const {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        if (s.count < min_periods) return nan;
        double var = s.var;
        if (!bias) {
            if (s.spread == 0) return nan;
            var /= s.spread;
        }
        const int level = static_cast<int>(s.level);
        if (level == 0) return statistic == Statistic::var ? var : sqrt(var);
        return statistic == Statistic::var ? ldexp(var, kLevel * level) : ldexp(sqrt(var), kLevel / 2 * level);
    }
};

inline Rule check_rule(const Tensor& x, Device device, int64_t statistic, double alpha, bool adjust, bool ignore_na,
                       bool bias, int64_t min_periods) {
    check_device(kName, "x", x, device, x, "x");
    check_dtype(kName, "x", x, {ScalarType::Float, ScalarType::Double});
    if (x.dim() == 0) fail(kName, "x", "no dimension", "shape [..., n]");
    if (!(alpha >= 0 && alpha <= 1)) fail(kName, "alpha", alpha, "0 <= alpha <= 1");
    if (min_periods < 0) fail(kName, "min_periods", min_periods, "0 or more");
    return {alpha,
            adjust,
            ignore_na,
            bias,
            check_enumeration<Statistic>(kName, "statistic", statistic),
            static_cast<double>(std::max<int64_t>(min_periods, 1))};
}

}  // namespace nnue::ewm
