// Counter-based random numbers for kernels, on CPU and CUDA: the generator, and numbers from its bits. Needs no torch.
//
// The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11). It is
// a function of a key of 64 bits and a counter of 128 bits to four words of 32 bits, and has no state to store:
//
//   const nnue::random::Words w = nnue::random::philox(seed, number, stream);  // key; lower, upper half of the counter
//   const float u = nnue::random::unit(w.at[0]), v = nnue::random::unit(w.at[1]);
//
// examples/cuda/pi.cu is a kernel of this kind. Give each thread its own numbers, and each purpose its own stream.
#pragma once

#include <cmath>
#include <cstdint>

#include "host_device.h"

namespace nnue::random {

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

NNUE_HOST_DEVICE uint64_t joined(uint32_t low, uint32_t high) {
    return uint64_t{high} << 32 | low;
}

// Multiples of 2^-24 and of 2^-53 in [0, 1).
NNUE_HOST_DEVICE float unit(uint32_t word) {
    return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f;
}
NNUE_HOST_DEVICE double unit(uint64_t bits) {
    return static_cast<double>(static_cast<int64_t>(bits >> 11)) * 0x1p-53;
}

// Two independent normal numbers by Box and Muller: radius * cosine and radius * sine.
template <class T>
struct Point {
    T x, y;
};

// sqrt(-2 ln u) for u = (word + 1/2) / 2^32. Its steps are sums, fused products and a root, which round alike
// everywhere, so that all instruction sets and GPUs compute the same bits. A few units in the last place off at most.
NNUE_HOST_DEVICE float radius(uint32_t word) {
    // u = 2^k (1 + f), where 1 + f lies between the roots of 1/2 and 2. Near 1, u has lost the last bits of f.
    constexpr uint32_t kRoot = 0x3F3504F3u, kOne = 0x3F800000u, kMantissa = 0x007FFFFFu;
    const float u = fmaf(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
    const uint32_t bits = __builtin_bit_cast(uint32_t, u) + (kOne - kRoot);
    const int32_t k = static_cast<int32_t>(bits >> 23) - 127;
    const float near_one = fmaf(static_cast<float>(~word), -0x1p-32f, -0x1p-33f);
    const float any = __builtin_bit_cast(float, (bits & kMantissa) + kRoot) - 1.0f;
    const float f = k == 0 ? near_one : any;
    // ln(1 + f) = f + f^2 (-1/2 + f p(f)): a minimax fit, relative error 6e-9.
    float p = fmaf(-0x1.38c108p-4f, f, 0x1.056484p-3f);
    p = fmaf(p, f, -0x1.0d877p-3f);
    p = fmaf(p, f, 0x1.22d90ep-3f);
    p = fmaf(p, f, -0x1.5471f4p-3f);
    p = fmaf(p, f, 0x1.99a01p-3f);
    p = fmaf(p, f, -0x1.000228p-2f);
    p = fmaf(p, f, 0x1.555554p-2f);
    const float of_rest = fmaf(f * f, fmaf(p, f, -0.5f), f);
    return sqrtf(-2.0f * fmaf(static_cast<float>(k), 0x1.62e43p-1f, of_rest));
}

// Cosine and sine of 2 pi word / 2^32, in the same manner. The upper bits of the angle choose the quadrant, and the
// others are an angle from -pi/4 to pi/4.
NNUE_HOST_DEVICE Point<float> turn(uint32_t word) {
    const uint32_t quadrant = (word + 0x20000000u) >> 30;
    const float t = static_cast<float>(static_cast<int32_t>(word << 2)) * 0x1.921fb6p-32f, z = t * t;
    const float sine = fmaf(t * z, fmaf(fmaf(-0x1.994ea6p-13f, z, 0x1.11076p-7f), z, -0x1.555546p-3f), t);
    const float c = fmaf(fmaf(0x1.9a024cp-16f, z, -0x1.6c0c8cp-10f), z, 0x1.55554ap-5f);
    const float cosine = fmaf(z, fmaf(c, z, -0.5f), 1.0f);
    const bool swapped = (quadrant & 1) != 0;
    const float x = swapped ? sine : cosine, y = swapped ? cosine : sine;
    return {__builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) ^ ((quadrant + 1) & 2) << 30),
            __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, y) ^ (quadrant & 2) << 30)};
}

NNUE_HOST_DEVICE Point<float> normal_pair(uint32_t first, uint32_t second) {
    const float r = radius(first);
    const Point<float> at = turn(second);
    return {r * at.x, r * at.y};
}

// The same in double. u and the angle have 53 bits; the series are those of sine and cosine. A vector of doubles can
// take the place of a double.
template <class F>
NNUE_HOST_DEVICE F sine_to_quarter_pi(F t) {
    const F z = t * t;
    F p = z * (1.0 / 355687428096000.0) - 1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return t + t * (z * p);
}
template <class F>
NNUE_HOST_DEVICE F cosine_to_quarter_pi(F t) {
    const F z = t * t;
    F p = z * (-1.0 / 6402373705728000.0) + 1.0 / 20922789888000.0;
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    return z * (z * p - 0.5) + 1.0;
}

constexpr double kTurn = 6.283185307179586476925 * 0x1p-53;  // of 1 in 2^53

NNUE_HOST_DEVICE Point<double> normal_pair(uint64_t first, uint64_t second) {
    const double r = sqrt(-2 * log(1 - unit(first)));
    const uint64_t angle = (second >> 11) + (uint64_t{1} << 50), quadrant = angle >> 51;
    const int64_t rest = static_cast<int64_t>(angle & ((uint64_t{1} << 51) - 1)) - (int64_t{1} << 50);
    const double t = static_cast<double>(rest) * kTurn;
    const double sine = sine_to_quarter_pi(t), cosine = cosine_to_quarter_pi(t);
    const double x = (quadrant & 1) != 0 ? sine : cosine, y = (quadrant & 1) != 0 ? cosine : sine;
    return {r * (((quadrant + 1) & 2) != 0 ? -x : x), r * ((quadrant & 2) != 0 ? -y : y)};
}

}  // namespace nnue::random
