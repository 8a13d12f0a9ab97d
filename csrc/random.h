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
//   integers      int64, int32       1                        low <= value < high, without bias: see bounded
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

// How many elements of this dtype a quadruple holds.
template <class T>
constexpr int numbers_in_quadruple(Distribution distribution) {
    if (distribution == Distribution::integers) return 1;
    return sizeof(T) == 4 && distribution != Distribution::bernoulli ? 4 : 2;
}

struct Rule {
    Distribution distribution;
    uint64_t seed, stream, offset, block;
    double a, b;
    int64_t low;
    uint64_t range;     // high - low; 0 is 2^64
    Interval interval;  // of uniform numbers

    NNUE_HOST_DEVICE static uint64_t upper_half(uint64_t x, uint64_t y) {
        const uint64_t x0 = x & 0xffffffffu, x1 = x >> 32, y0 = y & 0xffffffffu, y1 = y >> 32;
        const uint64_t middle = (x0 * y0 >> 32) + (x1 * y0 & 0xffffffffu) + x0 * y1;
        return x1 * y1 + (x1 * y0 >> 32) + (middle >> 32);
    }

    // Lemire's multiplication: the upper half of bits * range, unless the lower half is one of the 2^64 mod range
    // values that would be too likely. Then the element takes further bits from other quadruples, with a changed key,
    // so that the following elements keep their bits.
    NNUE_HOST_DEVICE uint64_t bounded(uint64_t quadruple, uint64_t bits) const {
        if (range == 0) return bits;
        uint64_t lower = bits * range;
        if (lower < range) {
            const uint64_t least = (0 - range) % range;
            for (uint64_t turn = 1; lower < least; ++turn) {
                const Words more = philox(seed ^ (turn << 48), quadruple, ~stream);
                bits = joined(more.at[0], more.at[1]);
                lower = bits * range;
            }
        }
        return upper_half(bits, range);
    }

    // The elements of a quadruple.
    template <Distribution kind, class T>
    NNUE_HOST_DEVICE void elements(uint64_t quadruple, T* to) const {
        const Words w = philox(seed, quadruple, stream);
        const uint64_t pairs[2] = {joined(w.at[0], w.at[1]), joined(w.at[2], w.at[3])};
        if constexpr (kind == Distribution::integers) {
            to[0] = static_cast<T>(static_cast<uint64_t>(low) + bounded(quadruple, pairs[0]));
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
            for (int i = 0; i < numbers_in_quadruple<T>(kind); ++i) {
                if constexpr (kind == Distribution::bernoulli) to[i] = static_cast<T>(unit(pairs[i]) < a);
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
              low,
              static_cast<uint64_t>(high) - static_cast<uint64_t>(low),
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
            break;
        default:
            check_dtype(kName, "out", out, {ScalarType::Bool, ScalarType::Byte, ScalarType::Float, ScalarType::Double});
            if (!(a >= 0 && a <= 1)) fail(kName, "a", a, "a probability, 0 ... 1");
    }
    return rule;
}

// Calls body.operator()<distribution, T>() with the type of the elements. bool is written as uint8.
template <class Body>
void dispatch(Distribution distribution, ScalarType dtype, const Body& body) {
    using D = Distribution;
    const bool wide = dtype == ScalarType::Double || dtype == ScalarType::Long;
    const auto real = [&]<D kind> {
        return wide ? body.template operator()<kind, double>() : body.template operator()<kind, float>();
    };
    const auto integer = [&]<D kind> {
        return wide ? body.template operator()<kind, int64_t>() : body.template operator()<kind, int32_t>();
    };
    switch (distribution) {
        case D::bits:
            return integer.template operator()<D::bits>();
        case D::uniform:
            return real.template operator()<D::uniform>();
        case D::normal:
            return real.template operator()<D::normal>();
        case D::integers:
            return integer.template operator()<D::integers>();
        default:
            if (dtype == ScalarType::Float || wide) return real.template operator()<D::bernoulli>();
            return body.template operator()<D::bernoulli, uint8_t>();
    }
}

}  // namespace nnue::random
