// Counter-based random numbers: the contract of the operator, the generator, and how numbers are made from its bits.
// CUDA computes each element by these lines. The CPU computes many elements at a time (cpu/random_kernels.h), with the
// same results.
//
// The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11). It is
// a function of a key of 64 bits and a counter of 128 bits to four words of 32 bits. The key is the seed. The lower
// half of the counter numbers the quadruples of words, and the upper half is the stream.
//
// Element i of an output is number offset + i of the stream, for any shape and any number of elements:
//
//   distribution  dtype             numbers of 32 bits for each   value
//   bits          int32, int64      1, 2                          the bits themselves
//   uniform       float32, float64  1, 2                          a + (b - a) u, u a multiple of 2^-24, 2^-53 in [0,
//   1),
//                                                                 at most the largest number below b: see Interval
//   normal        float32, float64  2, 4                          a + b z by Box and Muller, computed in double
//   integers      int64, int32      4                             low <= value < high, without bias: see bounded
//   bernoulli     bool, uint8, float32, float64   2               1 with probability a (to 2^-53), else 0
//
// An element uses as many words of a quadruple as the table shows, and no element spans two quadruples, so its
// number determines where its words are. CPU and CUDA give equal bits, except for normal numbers, whose logarithm and
// cosine may differ in the last place.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "checks.h"
#include "dtypes.h"
#include "enumerations.h"
#include "host_device.h"

namespace nnue::random {

constexpr const char* kName = "random_fill";

NNUE_ENUMERATION(Distribution, bits, uniform, normal, integers, bernoulli)

struct Words {
    uint32_t at[4];
};

NNUE_HOST_DEVICE Words philox(uint64_t key, uint64_t low, uint64_t high) {
    uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
    uint32_t c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(b);
        c3 = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// The half-open interval [low, high) of uniform numbers, both rounded to their dtype. Where high - low exceeds the
// dtype, numbers of half the size are made and doubled. `most` is the number before high: low + width * u may be
// rounded up to high. If low is high, all numbers are low.
struct Interval {
    double low, width, scale, most;

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
                std::nextafter(high, low)};
    }

    template <class T>
    NNUE_HOST_DEVICE T at(T u) const {
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

struct Rule {
    Distribution distribution;
    uint64_t seed, stream, offset;
    double a, b;
    int64_t low;
    uint64_t range;     // high - low; 0 is 2^64
    int words;          // for an element
    Interval interval;  // of uniform numbers

    NNUE_HOST_DEVICE static uint64_t joined(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }

    // Multiples of 2^-53 in [0, 1).
    NNUE_HOST_DEVICE static double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

    // Box and Muller; 1 - u is never 0.
    NNUE_HOST_DEVICE static double normal(double u, double v) {
        return sqrt(-2 * log(1 - u)) * cos(6.283185307179586476925 * v);
    }

    NNUE_HOST_DEVICE static uint64_t upper_half(uint64_t x, uint64_t y) {
        const uint64_t x0 = x & 0xffffffffu, x1 = x >> 32, y0 = y & 0xffffffffu, y1 = y >> 32;
        const uint64_t middle = (x0 * y0 >> 32) + (x1 * y0 & 0xffffffffu) + x0 * y1;
        return x1 * y1 + (x1 * y0 >> 32) + (middle >> 32);
    }

    // Lemire's multiplication: the upper half of bits * range, unless the lower half is one of the 2^64 mod range
    // values that would be too likely. Then the element takes further bits from other quadruples, with a changed key,
    // so that the following elements keep their bits.
    NNUE_HOST_DEVICE uint64_t bounded(uint64_t number, uint64_t bits) const {
        if (range == 0) return bits;
        uint64_t lower = bits * range;
        if (lower < range) {
            const uint64_t least = (0 - range) % range;
            for (uint64_t turn = 1; lower < least; ++turn) {
                const Words more = philox(seed ^ (turn << 48), number, ~stream);
                bits = joined(more.at[0], more.at[1]);
                lower = bits * range;
            }
        }
        return upper_half(bits, range);
    }

    // Element i of the output.
    template <class T>
    NNUE_HOST_DEVICE T element(uint64_t i) const {
        const uint64_t number = offset + i, per_block = 4 / words;
        const Words w = philox(seed, number / per_block, stream);
        const int at = static_cast<int>(number % per_block) * words;
        switch (distribution) {
            case Distribution::bits:
                if constexpr (sizeof(T) == 8) return static_cast<T>(joined(w.at[at & 2], w.at[at | 1]));
                return static_cast<T>(w.at[at]);
            case Distribution::uniform:
                if constexpr (sizeof(T) == 4) {
                    return static_cast<T>(interval.at(static_cast<float>(w.at[at] >> 8) * 0x1p-24f));
                }
                return static_cast<T>(interval.at(unit(joined(w.at[at & 2], w.at[at | 1]))));
            case Distribution::normal:
                if constexpr (sizeof(T) == 4) {
                    return static_cast<T>(
                        a + b * normal(static_cast<double>(w.at[at & 2]) * 0x1p-32, w.at[at | 1] * 0x1p-32));
                }
                return static_cast<T>(a + b * normal(unit(joined(w.at[0], w.at[1])), unit(joined(w.at[2], w.at[3]))));
            case Distribution::integers:
                return static_cast<T>(static_cast<uint64_t>(low) + bounded(number, joined(w.at[0], w.at[1])));
            default:
                return static_cast<T>(unit(joined(w.at[at & 2], w.at[at | 1])) < a);
        }
    }
};

inline Rule check_rule(const Tensor& out, Device device, int64_t distribution, int64_t seed, int64_t stream,
                       int64_t offset, double a, double b, int64_t low, int64_t high) {
    check_device(kName, "out", out, device, out, "out");
    if (!out.is_contiguous()) fail(kName, "out", "a tensor that is not contiguous", "a contiguous one");
    if (offset < 0) fail(kName, "offset", offset, "0 or more");
    Rule rule{check_enumeration<Distribution>(kName, "distribution", distribution),
              static_cast<uint64_t>(seed),
              static_cast<uint64_t>(stream),
              static_cast<uint64_t>(offset),
              a,
              b,
              low,
              static_cast<uint64_t>(high) - static_cast<uint64_t>(low),
              2,
              {}};
    const bool single = out.scalar_type() == ScalarType::Float || out.scalar_type() == ScalarType::Int;
    switch (rule.distribution) {
        case Distribution::bits:
            check_dtype(kName, "out", out, {ScalarType::Int, ScalarType::Long});
            rule.words = single ? 1 : 2;
            break;
        case Distribution::uniform:
        case Distribution::normal:
            check_dtype(kName, "out", out, {ScalarType::Float, ScalarType::Double});
            rule.words = (single ? 1 : 2) * (rule.distribution == Distribution::normal ? 2 : 1);
            if (rule.distribution == Distribution::uniform) {
                rule.interval = single ? Interval::of<float>(a, b) : Interval::of<double>(a, b);
            } else {
                if (!std::isfinite(a)) fail(kName, "a", a, "a finite number");
                if (!(b >= 0 && std::isfinite(b))) fail(kName, "b", b, "0 or more, finite");
            }
            break;
        case Distribution::integers:
            check_dtype(kName, "out", out, {ScalarType::Int, ScalarType::Long});
            rule.words = 4;
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

// Calls body with a null pointer of the element's type. bool is written as uint8.
template <class Body>
void dispatch(ScalarType dtype, const Body& body) {
    switch (dtype) {
        case ScalarType::Float:
            return body(static_cast<float*>(nullptr));
        case ScalarType::Double:
            return body(static_cast<double*>(nullptr));
        case ScalarType::Int:
            return body(static_cast<int32_t*>(nullptr));
        case ScalarType::Long:
            return body(static_cast<int64_t*>(nullptr));
        default:
            return body(static_cast<uint8_t*>(nullptr));
    }
}

}  // namespace nnue::random
