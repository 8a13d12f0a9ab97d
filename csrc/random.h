// Random numbers: the contract of the operator, and how an output is made from the words of the generator (philox.h).
// CUDA computes the elements of a quadruple by these lines. The CPU computes many of them at a time
// (cpu/stats/random_kernels.h), with the same results.
//
// The key is the seed. The lower half of the counter numbers the quadruples of words, and the upper half is the stream.
// Element i of an output is number offset + i of the stream, for any shape and any number of elements:
//
//   distribution  dtype              numbers in a quadruple   value
//   bits          int32, int64       4, 2                     the bits themselves
//   uniform       float32, float64   4, 2                     a + (b - a) u, u a multiple of 2^-24, 2^-53 in [0, 1), at
//                                                             most the largest number below b: see Interval
//   normal        float32, float64   4, 2                     a + b z, z by Box and Muller: neighbours are the cosine
//                                                             and the sine of the same two words, or four
//   integers      int64, int32       4 or 2                   low <= value < high, without bias: see bounded; 4 for at
//                                                             most 2^24 values
//   bernoulli     bool, uint8, float32, float64   2           1 with probability a (to 2^-53), else 0
//
// An output begins in quadruple block + offset / (numbers in a quadruple), a number of 64 bits that may wrap. CPU and
// CUDA give equal bits, except for normal numbers of float64, whose logarithm may differ in the last place.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "checks.h"
#include "dtypes.h"
#include "enumerations.h"
#include "philox.h"

namespace nnue::random {

constexpr const char* kName = "random_fill";

NNUE_ENUMERATION(Distribution, bits, uniform, normal, integers, bernoulli)

// The half-open interval [low, high) of uniform numbers, both rounded to their dtype. Where high - low exceeds the
// dtype, numbers of half the size are made and doubled. `most` is the number before high: low + width * u may be
// rounded up to high. If low is high, all numbers are low. `is_unit`: u itself, which is below 1.
struct Interval {
    double low, width, scale, most;
    bool is_unit;

    template <class T>
    static Interval of(double a, double b) {
        const T low = static_cast<T>(a), high = static_cast<T>(b);
        const char* const dtype = sizeof(T) == 4 ? "a finite float32" : "a finite float64";
        if (!std::isfinite(low)) fail(kName, "a", a, dtype);
        if (!std::isfinite(high)) fail(kName, "b", b, dtype);
        if (low > high) fail(kName, "b", b, "at least a, " + text(a));
        const bool fits = std::isfinite(static_cast<T>(b - a));
        const double scale = fits ? 1 : 2;
        return {static_cast<T>(low / scale), static_cast<T>(fits ? b - a : b / 2 - a / 2), scale,
                std::nextafter(high, low), low == 0 && high == 1};
    }

    template <class T>
    NNUE_HOST_DEVICE T at(T u) const {
        if (is_unit) return u;
        const T by = static_cast<T>(width), from = static_cast<T>(low), last = static_cast<T>(most);
        T x;
        if constexpr (sizeof(T) == 4) {
            x = fmaf(by, u, from) * static_cast<T>(scale);
        } else {
            x = fma(by, u, from) * scale;
        }
        return x < last ? x : last;
    }
};

// How many elements of this dtype a quadruple holds; of integers, if there are few values or many.
template <class T>
constexpr int numbers_in_quadruple(Distribution distribution, bool few) {
    if (distribution == Distribution::integers) return few ? 4 : 2;
    return sizeof(T) == 4 && distribution != Distribution::bernoulli ? 4 : 2;
}
constexpr uint64_t kFewValues = uint64_t{1} << 24;

struct Rule {
    Distribution distribution;
    uint64_t seed, stream, offset, block;
    double a, b;
    uint64_t low;
    uint64_t range;  // high - low
    // Of integers: 2^32 mod range if there are few values, otherwise 2^64 mod range. Of Bernoulli numbers: how many of
    // the 2^53 values of the bits give 1.
    uint64_t least;
    Interval interval;  // of uniform numbers

    NNUE_HOST_DEVICE bool has_few_values() const { return range - 1 < kFewValues; }

    // Lemire's multiplication: the upper half of bits * range, unless the lower half is one of the `least` values that
    // would be too likely. Then the element takes further bits from other quadruples, with a changed key, so that the
    // following elements keep their bits. Bits are those of element `i` of the quadruple, 32 if there are few values.
    NNUE_HOST_DEVICE uint64_t bounded(uint64_t quadruple, int i, uint32_t bits) const {
        uint64_t product = bits * range;
        for (uint64_t turn = 1; static_cast<uint32_t>(product) < static_cast<uint32_t>(least); ++turn) {
            product = philox(seed ^ (turn << 48), quadruple, ~stream).at[i] * range;
        }
        return product >> 32;
    }
    NNUE_HOST_DEVICE uint64_t bounded(uint64_t quadruple, int i, uint64_t bits) const {
        unsigned __int128 product = static_cast<unsigned __int128>(bits) * range;
        for (uint64_t turn = 1; static_cast<uint64_t>(product) < least; ++turn) {
            const Words more = philox(seed ^ (turn << 48), quadruple, ~stream);
            product = static_cast<unsigned __int128>(joined(more.at[2 * i], more.at[2 * i + 1])) * range;
        }
        return static_cast<uint64_t>(product >> 64);
    }

    // The elements of a quadruple.
    template <Distribution kind, int kEach, class T>
    NNUE_HOST_DEVICE void elements(uint64_t quadruple, T* to) const {
        const Words w = philox(seed, quadruple, stream);
        const uint64_t pairs[2] = {joined(w.at[0], w.at[1]), joined(w.at[2], w.at[3])};
        if constexpr (kind == Distribution::integers) {
            for (int i = 0; i < kEach; ++i) {
                if constexpr (kEach == 4) to[i] = static_cast<T>(low + bounded(quadruple, i, w.at[i]));
                if constexpr (kEach == 2) to[i] = static_cast<T>(low + bounded(quadruple, i, pairs[i]));
            }
        } else if constexpr (kind == Distribution::normal && sizeof(T) == 4) {
            const float mean = static_cast<float>(a), deviation = static_cast<float>(b);
            for (int i = 0; i < 4; i += 2) {
                const Point<float> z = normal_pair(w.at[i], w.at[i + 1]);
                to[i] = fmaf(z.x, deviation, mean), to[i + 1] = fmaf(z.y, deviation, mean);
            }
        } else if constexpr (kind == Distribution::normal) {
            const Point<double> z = normal_pair(pairs[0], pairs[1]);
            to[0] = a + b * z.x, to[1] = a + b * z.y;
        } else {
            for (int i = 0; i < kEach; ++i) {
                if constexpr (kind == Distribution::bernoulli) to[i] = static_cast<T>(pairs[i] >> 11 < least);
                if constexpr (kind == Distribution::bits)
                    to[i] = static_cast<T>(sizeof(T) == 4 ? w.at[i] : pairs[i % 2]);
                if constexpr (kind == Distribution::uniform && sizeof(T) == 4) to[i] = interval.at(unit(w.at[i]));
                if constexpr (kind == Distribution::uniform && sizeof(T) == 8) to[i] = interval.at(unit(pairs[i]));
            }
        }
    }
};

inline Rule check_rule(const Tensor& out, Device device, int64_t distribution, int64_t seed, int64_t stream,
                       int64_t offset, double a, double b, int64_t low, int64_t high, int64_t block) {
    check_device(kName, "out", out, device, out, "out");
    if (!out.is_contiguous()) fail(kName, "out", "a tensor that is not contiguous", "a contiguous one");
    if (offset < 0) fail(kName, "offset", offset, "0 or more");
    Rule rule{check_enumeration<Distribution>(kName, "distribution", distribution),
              static_cast<uint64_t>(seed),
              static_cast<uint64_t>(stream),
              static_cast<uint64_t>(offset),
              static_cast<uint64_t>(block),
              a,
              b,
              static_cast<uint64_t>(low),
              static_cast<uint64_t>(high) - static_cast<uint64_t>(low),
              0,
              {}};
    const bool single = out.scalar_type() == ScalarType::Float || out.scalar_type() == ScalarType::Int;
    switch (rule.distribution) {
        case Distribution::bits:
            check_dtype(kName, "out", out, {ScalarType::Int, ScalarType::Long});
            break;
        case Distribution::uniform:
        case Distribution::normal:
            check_dtype(kName, "out", out, {ScalarType::Float, ScalarType::Double});
            if (rule.distribution == Distribution::uniform) {
                rule.interval = single ? Interval::of<float>(a, b) : Interval::of<double>(a, b);
            } else {
                const auto fits = [&](double x) { return std::isfinite(single ? static_cast<float>(x) : x); };
                if (!fits(a)) fail(kName, "a", a, single ? "a finite float32" : "a finite number");
                if (!(b >= 0 && fits(b))) fail(kName, "b", b, "0 or more, finite");
            }
            break;
        case Distribution::integers:
            check_dtype(kName, "out", out, {ScalarType::Int, ScalarType::Long});
            if (low >= high) fail(kName, "high", high, "more than low, " + text(low));
            if (out.scalar_type() == ScalarType::Int && (low < INT32_MIN || high - 1 > INT32_MAX)) {
                fail(kName, "low, high", text(low) + ", " + text(high), "numbers of int32");
            }
            rule.least = (rule.has_few_values() ? uint64_t{1} << 32 : 0 - rule.range) % rule.range;
            break;
        default:
            check_dtype(kName, "out", out, {ScalarType::Bool, ScalarType::Byte, ScalarType::Float, ScalarType::Double});
            if (!(a >= 0 && a <= 1)) fail(kName, "a", a, "a probability, 0 ... 1");
            rule.least = static_cast<uint64_t>(std::ceil(a * 0x1p53));  // unit(bits) < a, without a conversion
    }
    return rule;
}

// Calls body.operator()<distribution, each, T>() with the numbers in a quadruple and the type of the elements. bool is
// written as uint8.
template <class Body>
void dispatch(const Rule& rule, ScalarType dtype, const Body& body) {
    using D = Distribution;
    const bool wide = dtype == ScalarType::Double || dtype == ScalarType::Long;
    const auto of = [&]<D kind, class T, bool few = false> {
        return body.template operator()<kind, numbers_in_quadruple<T>(kind, few), T>();
    };
    const auto real = [&]<D kind> {
        return wide ? of.template operator()<kind, double>() : of.template operator()<kind, float>();
    };
    const auto integer = [&]<D kind, bool few = false> {
        return wide ? of.template operator()<kind, int64_t, few>() : of.template operator()<kind, int32_t, few>();
    };
    switch (rule.distribution) {
        case D::bits:
            return integer.template operator()<D::bits>();
        case D::uniform:
            return real.template operator()<D::uniform>();
        case D::normal:
            return real.template operator()<D::normal>();
        case D::integers:
            return rule.has_few_values() ? integer.template operator()<D::integers, true>()
                                         : integer.template operator()<D::integers>();
        default:
            if (dtype == ScalarType::Float || wide) return real.template operator()<D::bernoulli>();
            return of.template operator()<D::bernoulli, uint8_t>();
    }
}

}  // namespace nnue::random
