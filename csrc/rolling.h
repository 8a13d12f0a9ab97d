// Statistics of sliding windows along the last dimension: the contract of the operators, the statistics as monoids, and
// the checks that hold on every device.
//
//   x           [..., n] float32 or float64. NaN and infinity do not count as observations, as in pandas.
//   y           like x, for cov and corr; otherwise absent. A pair counts if both are observations.
//   first, length  the window of output i is the part of [i + first, i + first + length) that lies in [0, n).
//   min_periods    an output whose window has fewer observations is NaN.
//   ddof        for var, std and cov: the divisor is count - ddof.
//   output      the shape and dtype of x. Everything is computed in double. Where sums or powers of the deviations of
//               a window leave the range of double, the output is computed from the window's elements, scaled by powers
//               of two, in time proportional to its length: see of_scaled_window.
//
// A statistic is a monoid: a state of a few doubles, an identity, a way to add an observation, and a way to merge the
// states of two neighbouring ranges. NaN does not change a state. Nothing is ever subtracted from a state, so nothing
// cancels and nothing drifts, however long the row is. Windows are cut at the ends of tiles of a fixed length:
//
//   | tile       | tile       | tile       | tile       |
//          [ suffix  | whole tiles ...      | prefix ]
//
// For all windows that begin in one tile, suffixes and prefixes are running states, and the whole tiles in between are
// the same. The states of whole tiles are merged by doubling, so the time hardly depends on the length of the window.
//
// Means are relative to a pivot, which is one of the observations, so an offset that all observations of a window have
// in common costs no precision.
//
// Where all elements are observations, states need no count: each monoid has the same operations on a state without its
// first number. kWeighted: such a merge needs the counts of both ranges (Weights). kSpreads: an element that is not
// finite makes the state, and all that it is merged into, not finite.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "checks.h"
#include "dtypes.h"
#include "enumerations.h"
#include "host_device.h"
#include "quick_division.h"

namespace nnue::rolling {

constexpr const char* kName = "rolling";
constexpr const char* kQuantileName = "rolling_quantile";

NNUE_ENUMERATION(Statistic, sum, mean, var, std, min, max, skew, kurt, cov, corr)
NNUE_ENUMERATION(Interpolation, linear, lower, higher, midpoint, nearest)

// F is double, or a vector type of the compiler, with which the same statements work on several states at once.
template <class F, int N>
struct State {
    F at[N];
};

// The weights for merging two ranges, from their counts a and b.
struct alignas(16) Weights {
    double share, product;  // b / (a + b) and a · b / (a + b); 0 without observations

    Weights() = default;
    NNUE_HOST_DEVICE constexpr Weights(double a, double b) : share(a + b > 0 ? b / (a + b) : 0), product(a * share) {}
};

// n, or 1 where n is 0.
template <class F>
NNUE_HOST_DEVICE F at_least_one(F n) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    // 1 has no low bits, and 0 has none either.
    return __hiloint2double(max(__double2hiint(n), 0x3ff00000), __double2loint(n));
#endif
    const F one = F{} + 1.0;
    return n > one ? n : one;
}

template <class F>
NNUE_HOST_DEVICE F of_finite(F x, F value) {
    return is_finite(x) ? value : F{};
}

// count, sum
struct Sum {
    static constexpr int kNumbers = 2;
    static constexpr bool kPair = false;

    template <class F>
    static NNUE_HOST_DEVICE State<F, 2> identity() {
        return {};
    }
    template <class F>
    static NNUE_HOST_DEVICE void append(State<F, 2>& s, F x, F /*y*/) {
        s.at[0] += of_finite(x, F{} + 1.0);
        s.at[1] += of_finite(x, x);
    }
    template <class F>
    static NNUE_HOST_DEVICE State<F, 2> merge(const State<F, 2>& a, const State<F, 2>& b) {
        return {{a.at[0] + b.at[0], a.at[1] + b.at[1]}};
    }

    static constexpr bool kWeighted = false, kSpreads = true;
    static NNUE_HOST_DEVICE void append(State<double, 1>& s, double x, double /*y*/, const Weights& /*w*/) {
        s.at[0] += x;
    }
    static NNUE_HOST_DEVICE State<double, 1> merge(const State<double, 1>& a, const State<double, 1>& b,
                                                   const Weights& /*w*/) {
        return {{a.at[0] + b.at[0]}};
    }
};

// count, and the largest of sign · x
template <int sign>
struct Extreme {
    static constexpr int kNumbers = 2;
    static constexpr bool kPair = false;

    template <class F>
    static NNUE_HOST_DEVICE State<F, 2> identity() {
        return {{F{}, F{} - std::numeric_limits<double>::infinity()}};
    }
    template <class F>
    static NNUE_HOST_DEVICE void append(State<F, 2>& s, F x, F /*y*/) {
        const F value = is_finite(x) ? x * static_cast<double>(sign) : F{} - std::numeric_limits<double>::infinity();
        s.at[0] += of_finite(x, F{} + 1.0);
        s.at[1] = value > s.at[1] ? value : s.at[1];
    }
    template <class F>
    static NNUE_HOST_DEVICE State<F, 2> merge(const State<F, 2>& a, const State<F, 2>& b) {
        return {{a.at[0] + b.at[0], a.at[1] > b.at[1] ? a.at[1] : b.at[1]}};
    }

    static constexpr bool kWeighted = false, kSpreads = false;
    static NNUE_HOST_DEVICE void append(State<double, 1>& s, double x, double /*y*/, const Weights& /*w*/) {
        const double value = x * sign;
        s.at[0] = value > s.at[0] ? value : s.at[0];
    }
    static NNUE_HOST_DEVICE State<double, 1> merge(const State<double, 1>& a, const State<double, 1>& b,
                                                   const Weights& /*w*/) {
        return {{a.at[0] > b.at[0] ? a.at[0] : b.at[0]}};
    }
};

// x - mean, where the mean is given by a pivot and its distance from that. The difference to the pivot, which is an
// observation of the same window, is exact or nearly so, whatever all observations have in common.
template <class F>
NNUE_HOST_DEVICE F from_mean(F x, F pivot, F mean) {
    return (x - pivot) - mean;
}

// How far the mean of b is from that of a.
template <class F>
NNUE_HOST_DEVICE F between_means(F pivot_a, F mean_a, F pivot_b, F mean_b) {
    return (mean_b - mean_a) + (pivot_b - pivot_a);
}

// A square of d, plus the smallest number if d is not 0. This only changes squares without digits: a sum of squares
// that vanish is not 0, as that of equal observations is. On CUDA it would cost 5 % of the time.
template <class F>
NNUE_HOST_DEVICE F traced(F square, F d) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    return square;
#endif
    return square + (d != F{} ? F{} + std::numeric_limits<double>::denorm_min() : F{});
}

// count, mean, the sums of the 2nd to kOrder-th power of x - mean, and the pivot; the formulas of Chan and Pébay. The
// mean is relative to the pivot, which is one of the observations, so an offset that they have in common costs no
// precision.
template <int kOrder>
struct Moments {
    static constexpr int kNumbers = kOrder + 2, kPivot = kOrder + 1;
    static constexpr bool kPair = false;

    template <class F>
    static NNUE_HOST_DEVICE State<F, kNumbers> identity() {
        return {};
    }
    template <class F>
    static NNUE_HOST_DEVICE void append(State<F, kNumbers>& s, F x, F /*y*/) {
        const F before = s.at[0], n = before + of_finite(x, F{} + 1.0);
        const F pivot = before > F{} ? s.at[kPivot] : of_finite(x, x);
        const F d = of_finite(x, from_mean(x, pivot, s.at[1])), share = divide(d, at_least_one(n)),
                t = d * share * before;
        if constexpr (kOrder >= 4) {
            s.at[4] +=
                t * share * share * (n * n - 3.0 * n + 3.0) + 6.0 * share * share * s.at[2] - 4.0 * share * s.at[3];
        }
        if constexpr (kOrder >= 3) s.at[3] += t * share * (n - 2.0) - 3.0 * share * s.at[2];
        s.at[2] += traced(t, d);
        s.at[1] += share;
        s.at[0] = n;
        s.at[kPivot] = pivot;
    }
    template <class F>
    static NNUE_HOST_DEVICE State<F, kNumbers> merge(const State<F, kNumbers>& a, const State<F, kNumbers>& b) {
        const F na = a.at[0], nb = b.at[0], n = na + nb;
        State<F, kNumbers> s;
        s.at[kPivot] = na > F{} ? a.at[kPivot] : b.at[kPivot];
        // Without observations the pivot is 0, and the difference from it must not be squared.
        const F pivot_b = nb > F{} ? b.at[kPivot] : s.at[kPivot];
        const F d = between_means(s.at[kPivot], a.at[1], pivot_b, b.at[1]);
        const F inverse = divide(F{} + 1.0, at_least_one(n)), step = d * (nb * inverse), t = step * na * d;
        s.at[0] = n;
        s.at[1] = a.at[1] + step;
        s.at[2] = a.at[2] + b.at[2] + traced(t, d);
        if constexpr (kOrder >= 3) {
            const F e = d * inverse;
            s.at[3] = a.at[3] + b.at[3] + t * e * (na - nb) + 3.0 * e * (na * b.at[2] - nb * a.at[2]);
            if constexpr (kOrder >= 4) {
                s.at[4] = a.at[4] + b.at[4] + t * e * e * (na * na - na * nb + nb * nb) +
                          6.0 * e * e * (na * na * b.at[2] + nb * nb * a.at[2]) +
                          4.0 * e * (na * b.at[3] - nb * a.at[3]);
            }
        }
        return s;
    }

    // The states without a count: the mean is the first number, and the pivot the last one.
    static constexpr bool kWeighted = true, kSpreads = true;
    static NNUE_HOST_DEVICE void append(State<double, kOrder + 1>& s, double x, double /*y*/, const Weights& w) {
        const double pivot = w.share == 1 ? x : s.at[kOrder];
        const double d = from_mean(x, pivot, s.at[0]), t = d * w.product * d, nearer = w.share * d,
                     further = w.product * d;
        if constexpr (kOrder >= 4) {
            s.at[3] += t * (further * further - further * nearer + nearer * nearer) +
                       nearer * (6.0 * nearer * s.at[1] - 4.0 * s.at[2]);
        }
        if constexpr (kOrder >= 3) s.at[2] += t * (further - nearer) - 3.0 * nearer * s.at[1];
        s.at[1] += t;
        s.at[0] += d * w.share;
        s.at[kOrder] = pivot;
    }
    static NNUE_HOST_DEVICE State<double, kOrder + 1> merge(const State<double, kOrder + 1>& a,
                                                            const State<double, kOrder + 1>& b, const Weights& w) {
        State<double, kOrder + 1> s;
        const double pivot = w.share == 1 ? b.at[kOrder] : a.at[kOrder];
        const double d = between_means(pivot, a.at[0], w.share == 0 ? pivot : b.at[kOrder], b.at[0]);
        s.at[kOrder] = pivot;
        s.at[0] = a.at[0] + d * w.share;
        s.at[1] = a.at[1] + b.at[1] + d * w.product * d;
        if constexpr (kOrder >= 3) {
            // The distances of the means of a and b from the mean of both.
            const double of_a = d * w.share, of_b = d - of_a, t = d * w.product * d;
            s.at[2] = a.at[2] + b.at[2] + t * (of_b - of_a) + 3.0 * (of_b * b.at[1] - of_a * a.at[1]);
            if constexpr (kOrder >= 4) {
                s.at[3] = a.at[3] + b.at[3] + t * (of_b * of_b - of_b * of_a + of_a * of_a) +
                          of_b * (6.0 * of_b * b.at[1] + 4.0 * b.at[2]) + of_a * (6.0 * of_a * a.at[1] - 4.0 * a.at[2]);
            }
        }
        return s;
    }
};

// count, means of x and y, the sums of products of their deviations: xy, xx, yy; and the pivots of x and y, as above
struct Pairs {
    static constexpr int kNumbers = 8;
    static constexpr bool kPair = true;

    template <class F>
    static NNUE_HOST_DEVICE State<F, 8> identity() {
        return {};
    }
    template <class F>
    static NNUE_HOST_DEVICE void append(State<F, 8>& s, F x, F y) {
        const F both = (x - x) + (y - y), before = s.at[0], n = before + of_finite(both, F{} + 1.0);
        s.at[6] = before > F{} ? s.at[6] : of_finite(both, x);
        s.at[7] = before > F{} ? s.at[7] : of_finite(both, y);
        const F dx = of_finite(both, from_mean(x, s.at[6], s.at[1])),
                dy = of_finite(both, from_mean(y, s.at[7], s.at[2]));
        const F inverse = divide(F{} + 1.0, at_least_one(n)), tx = dx * inverse * before, ty = dy * inverse * before;
        s.at[3] += tx * dy;
        s.at[4] += traced(tx * dx, dx);
        s.at[5] += traced(ty * dy, dy);
        s.at[1] += dx * inverse;
        s.at[2] += dy * inverse;
        s.at[0] = n;
    }
    template <class F>
    static NNUE_HOST_DEVICE State<F, 8> merge(const State<F, 8>& a, const State<F, 8>& b) {
        const F na = a.at[0], nb = b.at[0], n = na + nb;
        const F px = na > F{} ? a.at[6] : b.at[6], py = na > F{} ? a.at[7] : b.at[7];
        const F dx = between_means(px, a.at[1], nb > F{} ? b.at[6] : px, b.at[1]);
        const F dy = between_means(py, a.at[2], nb > F{} ? b.at[7] : py, b.at[2]);
        const F share = divide(nb, at_least_one(n)), sx = dx * share, sy = dy * share, tx = sx * na, ty = sy * na;
        return {{n, a.at[1] + sx, a.at[2] + sy, a.at[3] + b.at[3] + tx * dy, a.at[4] + b.at[4] + traced(tx * dx, dx),
                 a.at[5] + b.at[5] + traced(ty * dy, dy), px, py}};
    }

    static constexpr bool kWeighted = true, kSpreads = true;
    static NNUE_HOST_DEVICE void append(State<double, 7>& s, double x, double y, const Weights& w) {
        s = merge(s, {{0, 0, 0, 0, 0, x, y}}, w);
    }
    static NNUE_HOST_DEVICE State<double, 7> merge(const State<double, 7>& a, const State<double, 7>& b,
                                                   const Weights& w) {
        const double px = w.share == 1 ? b.at[5] : a.at[5], py = w.share == 1 ? b.at[6] : a.at[6];
        const double dx = between_means(px, a.at[0], w.share == 0 ? px : b.at[5], b.at[0]);
        const double dy = between_means(py, a.at[1], w.share == 0 ? py : b.at[6], b.at[1]);
        const double tx = dx * w.product, ty = dy * w.product;
        return {{a.at[0] + dx * w.share, a.at[1] + dy * w.share, a.at[2] + b.at[2] + tx * dy,
                 a.at[3] + b.at[3] + tx * dx, a.at[4] + b.at[4] + ty * dy, px, py}};
    }
};

// Whether a product of second moments, or of their roots, has all of its digits, and so have sums that are about as
// large. Where all observations are equal it is 0; where they are tiny or huge it leaves the range of double.
NNUE_HOST_DEVICE bool has_digits(double product) {
    return product > 1e-305 && product < 1e305;
}

// A NaN that no computation gives. It marks the output of a window whose sums leave the range of double.
constexpr uint64_t kMark = 0x7ff800006e6e7565;
NNUE_HOST_DEVICE double mark() {
    return std::bit_cast<double>(kMark);
}
NNUE_HOST_DEVICE bool is_marked(double x) {
    return std::bit_cast<uint64_t>(x) == kMark;
}

// Whether all observations are equal, from their mean, relative to the pivot, and the sum of squares of deviations.
// Without traces, that of other observations may vanish. Near a pivot above 1e-130 no two numbers are so close that it
// does.
NNUE_HOST_DEVICE bool all_equal(double mean, double second, double pivot) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    return mean == 0 && second == 0 && (pivot == 0 || fabs(pivot) > 1e-130);
#endif
    return second == 0;
}

// `value`, if the power of deviations that it was made of has digits. Otherwise NaN if all observations are equal, and
// the mark if not.
NNUE_HOST_DEVICE double checked(double value, double power, bool equal) {
    if (has_digits(power)) return value;
    return equal ? std::numeric_limits<double>::quiet_NaN() : mark();
}

// A variance, made of a sum of squares. It is 0 if all observations are equal.
NNUE_HOST_DEVICE double checked_variance(double var, double second, bool equal) {
    return has_digits(second) ? var : equal ? 0 : mark();
}

NNUE_HOST_DEVICE double checked_sum(double sum) {
    return is_finite(sum) ? sum : mark();
}

// `equal`: whether all x are equal, or all y.
NNUE_HOST_DEVICE double correlation(double xy, double xx, double yy, bool equal) {
    const double r = xy / (sqrt(xx) * sqrt(yy));
    return checked(checked(r > 1 ? 1 : r < -1 ? -1 : r, xx, equal), yy, equal);
}

// Moment 3 / (moment 2)^1.5, and moment 4 / (moment 2)^2.
NNUE_HOST_DEVICE double skewness(double third, double second, bool equal) {
    const double power = second * sqrt(second);
    return checked(third / power, power, equal);
}
NNUE_HOST_DEVICE double kurtosis(double fourth, double second, bool equal) {
    return checked(fourth / second / second, second * second, equal);
}

// The value of a statistic, given its state. n is the number of observations. Without any, the sum is 0 and everything
// else is NaN.
struct Finish {
    Statistic statistic;
    double least, ddof;  // observations that it takes

    Finish() = default;
    Finish(Statistic statistic, int64_t min_periods, double ddof)
        : statistic(statistic),
          least(static_cast<double>(std::max<int64_t>(min_periods, statistic == Statistic::sum ? 0 : 1))),
          ddof(ddof) {}

    template <int N>
    NNUE_HOST_DEVICE double operator()(const State<double, N>& s) const {
        const double n = s.at[0], nan = std::numeric_limits<double>::quiet_NaN();
        if (n < least) return nan;
        if constexpr (N == 2) {
            if (statistic == Statistic::mean) return checked_sum(quotient(s.at[1], n));
            return statistic == Statistic::min   ? -s.at[1]
                   : statistic == Statistic::max ? s.at[1]
                                                 : checked_sum(s.at[1]);
        }
        if constexpr (N == 4) {
            if (n <= ddof) return nan;
            const double var =
                checked_variance(quotient(s.at[2], n - ddof), s.at[2], all_equal(s.at[1], s.at[2], s.at[3]));
            return statistic == Statistic::var || is_marked(var) ? var : sqrt(var);
        }
        if constexpr (N == 5) {
            if (n < 3) return nan;
            const double ratio = skewness(s.at[3], s.at[2], all_equal(s.at[1], s.at[2], s.at[4]));
            return is_marked(ratio) ? ratio : n * sqrt(n - 1) / (n - 2) * ratio;
        }
        if constexpr (N == 6) {
            if (n < 4) return nan;
            const double ratio = kurtosis(s.at[4], s.at[2], all_equal(s.at[1], s.at[2], s.at[5]));
            return is_marked(ratio) ? ratio : (n - 1) / ((n - 2) * (n - 3)) * (n * (n + 1) * ratio - 3 * (n - 1));
        }
        if constexpr (N == 8) {
            if (statistic == Statistic::cov) return n <= ddof ? nan : checked_sum(s.at[3] / (n - ddof));
            const bool equal = all_equal(s.at[1], s.at[4], s.at[6]) || all_equal(s.at[2], s.at[5], s.at[7]);
            return correlation(s.at[3], s.at[4], s.at[5], equal);
        }
        return nan;
    }
};

// The same for windows that all have n observations; for states without counts.
struct FinishOf {
    Statistic statistic;
    bool none;                                // too few observations for this statistic
    double divisor, inverse, factor, offset;  // 1 / divisor; of the ratio of moments

    FinishOf() = default;
    FinishOf(const Finish& finish, double n) : statistic(finish.statistic), none(n < finish.least) {
        const bool deviates = statistic == Statistic::var || statistic == Statistic::std || statistic == Statistic::cov;
        divisor = deviates ? n - finish.ddof : n;
        inverse = 1 / divisor;
        factor = n * std::sqrt(n - 1) / (n - 2);
        offset = 0;
        if (statistic == Statistic::kurt) {
            factor = (n - 1) / ((n - 2) * (n - 3)) * n * (n + 1);
            offset = (n - 1) / ((n - 2) * (n - 3)) * 3 * (n - 1);
        }
        if (deviates && n <= finish.ddof) none = true;
        if (n < (statistic == Statistic::skew ? 3 : statistic == Statistic::kurt ? 4 : 0)) none = true;
    }

    template <int N>
    NNUE_HOST_DEVICE double operator()(const State<double, N>& s) const {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        if constexpr (N == 1) {
            if (statistic == Statistic::mean) return checked_sum(quotient(s.at[0], divisor, inverse));
            return statistic == Statistic::min   ? -s.at[0]
                   : statistic == Statistic::max ? s.at[0]
                                                 : checked_sum(s.at[0]);
        }
        if constexpr (N == 3) {
            const double var =
                checked_variance(quotient(s.at[1], divisor, inverse), s.at[1], all_equal(s.at[0], s.at[1], s.at[2]));
            return statistic == Statistic::var || is_marked(var) ? var : sqrt(var);
        }
        if constexpr (N == 4) {
            const double ratio = skewness(s.at[2], s.at[1], all_equal(s.at[0], s.at[1], s.at[3]));
            return is_marked(ratio) ? ratio : factor * ratio;
        }
        if constexpr (N == 5) {
            const double ratio = kurtosis(s.at[3], s.at[1], all_equal(s.at[0], s.at[1], s.at[4]));
            return is_marked(ratio) ? ratio : factor * ratio - offset;
        }
        if constexpr (N == 7) {
            if (statistic == Statistic::cov) return checked_sum(quotient(s.at[2], divisor, inverse));
            const bool equal = all_equal(s.at[0], s.at[3], s.at[5]) || all_equal(s.at[1], s.at[4], s.at[6]);
            return correlation(s.at[2], s.at[3], s.at[4], equal);
        }
        return nan;
    }
};

// Numbers of a window, relative to one of them and scaled by powers of two, so that none is above 1 and one is 1/2 or
// more. Sums are not relative.
struct Scaling {
    double pivot = 0;
    int before = 0, after = 0;  // exponents, before and after the pivot is subtracted

    NNUE_HOST_DEVICE double operator()(double x) const { return ldexp(ldexp(x, -before) - pivot, -after); }

    // at(i, x) gets number i, or returns false.
    template <class At>
    NNUE_HOST_DEVICE static Scaling of(int64_t count, bool relative, const At& at) {
        Scaling s;
        double x = 0, largest = 0;
        for (int64_t i = 0; i < count; ++i) {
            if (at(i, x) && fabs(x) > largest) largest = fabs(x);
        }
        frexp(largest, &s.before);
        if (!relative) return s;
        bool first = true;
        largest = 0;
        for (int64_t i = 0; i < count; ++i) {
            if (!at(i, x)) continue;
            x = ldexp(x, -s.before);
            if (first) s.pivot = x, first = false;
            if (fabs(x - s.pivot) > largest) largest = fabs(x - s.pivot);
        }
        frexp(largest, &s.after);
        return s;
    }
};

// The output for one window of `count` elements, whose sums leave the range of double: from its scaled observations.
template <class M>
NNUE_HOST_DEVICE double of_scaled_window(const Finish& finish, const double* x, const double* y, int64_t count) {
    const auto is_observation = [&](int64_t i) { return is_finite(x[i]) && (!M::kPair || is_finite(y[i])); };
    const auto scaling_of = [&](const double* from) {
        return Scaling::of(count, M::kNumbers > 2,
                           [&](int64_t i, double& to) { return is_observation(i) && ((to = from[i]), true); });
    };
    const Scaling of_x = scaling_of(x), of_y = M::kPair ? scaling_of(y) : of_x;
    State<double, M::kNumbers> state = M::template identity<double>();
    for (int64_t i = 0; i < count; ++i) {
        if (is_observation(i)) M::append(state, of_x(x[i]), M::kPair ? of_y(y[i]) : 0);
    }
    const double found = finish(state);
    const int exponent = of_x.before + of_x.after;
    switch (finish.statistic) {
        case Statistic::sum:
        case Statistic::mean:
        case Statistic::std:
            return ldexp(found, exponent);
        case Statistic::var:
            return ldexp(found, 2 * exponent);
        case Statistic::cov:
            return ldexp(found, exponent + of_y.before + of_y.after);
        default:
            return found;
    }
}

// The output of the window of element i of a row, if `out` is marked.
template <class M>
NNUE_HOST_DEVICE double mended(double out, const Finish& finish, const double* x, const double* y, int64_t n,
                               int64_t first, int64_t length, int64_t i) {
    if (!is_marked(out)) return out;
    const int64_t last = i + first + length, end = last < n ? last : n, begin = i + first > 0 ? i + first : 0;
    return of_scaled_window<M>(finish, x + begin, M::kPair ? y + begin : nullptr, end - begin);
}

// Calls body.operator()<Monoid>() with the monoid of a statistic.
template <class Body>
void with_monoid(Statistic statistic, const Body& body) {
    switch (statistic) {
        case Statistic::sum:
        case Statistic::mean:
            return body.template operator()<Sum>();
        case Statistic::max:
            return body.template operator()<Extreme<1>>();
        case Statistic::min:
            return body.template operator()<Extreme<-1>>();
        case Statistic::var:
        case Statistic::std:
            return body.template operator()<Moments<2>>();
        case Statistic::skew:
            return body.template operator()<Moments<3>>();
        case Statistic::kurt:
            return body.template operator()<Moments<4>>();
        default:
            return body.template operator()<Pairs>();
    }
}

// Windows of rows [rows, n], and how they are cut. Offsets are such that the window of output i is a part of
// [i + first, i + first + length).
struct Windows {
    int64_t rows, n, first, length;

    // Tiles begin at `first` and are `tile` long: output tile t has the windows that begin in tile t. A window has
    // `whole` tiles, including the one that it begins in, and `rest` more elements. The states of `summed` tiles are
    // needed: all up to the last whole tile of any window that is still in the row.
    int64_t tile, tiles, whole, rest, summed;

    // Leaves out what no window reaches, so that first and length are at most about n. Then it cuts the windows.
    void clip() {
        const int64_t end = std::min(first + length, n);
        first = std::max(first, -n);
        length = std::max<int64_t>(end - first, 0);
    }
    void cut(int64_t tile_size) {
        tile = tile_size;
        tiles = divide_up(n, tile);
        whole = length / tile;
        rest = length % tile;
        summed = std::min(tiles + whole, divide_up(std::max<int64_t>(n - first, 0), tile));
    }
};

// The largest tile, at most `most` long, that divides a window into about equal parts, so that the rest stays short.
inline int64_t even_tile(int64_t length, int64_t most) {
    return std::max<int64_t>(length / divide_up(length, most), 1);
}

inline Windows check_windows(const char* op, const Tensor& x, Device device, int64_t first, int64_t length,
                             int64_t min_periods) {
    check_device(op, "x", x, device, x, "x");
    check_dtype(op, "x", x, {ScalarType::Float, ScalarType::Double});
    if (x.dim() == 0) fail(op, "x", "no dimension", "shape [..., n]");
    constexpr int64_t kMost = INT64_MAX / 4;
    if (first < -kMost || first > kMost) fail(op, "first", first, "an offset within 2^61 of 0");
    if (length < 0 || length > kMost) fail(op, "length", length, "0 or more, within 2^61");
    if (min_periods < 0) fail(op, "min_periods", min_periods, "0 or more");
    const int64_t n = x.size(x.dim() - 1);
    Windows w{n == 0 ? 0 : x.numel() / n, n, first, length, 1, n, 0, 0, 0};
    w.clip();
    return w;
}

inline void check_second(const Tensor& x, const std::optional<Tensor>& y, Statistic statistic, Device device) {
    const bool wanted = statistic == Statistic::cov || statistic == Statistic::corr;
    if (wanted != y.has_value()) {
        fail(kName, "y", y ? "a tensor" : "none", wanted ? "a tensor for cov and corr" : "none for this statistic");
    }
    if (!y) return;
    check_device(kName, "y", *y, device, x, "x");
    check_dtype(kName, "y", *y, {x.scalar_type()});
    const auto a = x.sizes(), b = y->sizes();
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end())) {
        fail(kName, "y", "shape " + shape_text(b), "that of x, " + shape_text(a));
    }
}

// The order statistics from which a quantile of n observations is made: those next to `quantile` · (n - 1).
struct Quantile {
    int64_t min_periods;
    double quantile;
    Interpolation kind;

    // at(k) is the k-th smallest observation.
    template <class At>
    NNUE_HOST_DEVICE double operator()(int64_t n, const At& at) const {
        if (n < min_periods || n == 0) return std::numeric_limits<double>::quiet_NaN();
        const double position = rounded_product(quantile, static_cast<double>(n - 1));
        int64_t below = static_cast<int64_t>(position);
        if (below > n - 1) below = n - 1;
        const double share = position - static_cast<double>(below);
        const int64_t above = below + 1 < n ? below + 1 : below;
        if (share == 0) return at(below);
        switch (kind) {
            case Interpolation::lower:
                return at(below);
            case Interpolation::higher:
                return at(above);
            case Interpolation::nearest:  // the even one of two that are as near
                return at(share == 0.5 ? (below % 2 == 0 ? below : above) : share < 0.5 ? below : above);
            default: {
                const double low = at(below), high = at(above), part = kind == Interpolation::midpoint ? 0.5 : share;
                if (!is_finite(high - low)) return rounded_product(low, 1 - part) + rounded_product(high, part);
                return low + rounded_product(high - low, part);
            }
        }
    }
};

inline Quantile check_quantile(int64_t min_periods, double quantile, int64_t interpolation) {
    if (!(quantile >= 0 && quantile <= 1)) fail(kQuantileName, "quantile", quantile, "0 ... 1");
    return {min_periods, quantile, check_enumeration<Interpolation>(kQuantileName, "interpolation", interpolation)};
}

}  // namespace nnue::rolling
