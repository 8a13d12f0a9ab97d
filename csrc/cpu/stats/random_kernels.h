// Random numbers, many at a time. Compiled once for every instruction set level by for_each_isa.h; see random.cpp.
//
// The numbers are those of random::Rule::elements. Several quadruples are made side by side in the lanes of vectors.
// Numbers are the same to the last bit, except for normal numbers of float64, whose logarithm is of this file and may
// differ from that of the C++ library in the last place.

namespace {

constexpr int kBytes = NNUE_VECTOR_BYTES;
constexpr int kLanes = kBytes / 8;
// Vectors that are worked on side by side, while each waits for its products.
constexpr int kTogether = kBytes == 64 ? 4 : 2;
constexpr int kQuadruples = kLanes * kTogether;

using U64 = typename VectorOf<uint64_t, kBytes>::type;
using F64 = typename VectorOf<double, kBytes>::type;

// Products of the lower halves of the lanes.
[[gnu::always_inline]] inline U64 product(U64 a, uint32_t b) {
    const U64 factor = U64{} + b;
#if defined(__x86_64__) && NNUE_VECTOR_BYTES == 64
    return (U64)_mm512_mul_epu32((__m512i)a, (__m512i)factor);
#elif defined(__x86_64__) && NNUE_VECTOR_BYTES == 32
    return (U64)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#elif defined(__x86_64__)
    return (U64)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#else
    return (a & 0xffffffffu) * factor;
#endif
}

[[gnu::always_inline]] inline F64 root(F64 x) {
#if defined(__x86_64__) && NNUE_VECTOR_BYTES == 64
    return (F64)_mm512_sqrt_pd((__m512d)x);
#elif defined(__x86_64__) && NNUE_VECTOR_BYTES == 32
    return (F64)_mm256_sqrt_pd((__m256d)x);
#elif defined(__x86_64__)
    return (F64)_mm_sqrt_pd((__m128d)x);
#else
    for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrt(x[i]);
    return x;
#endif
}

template <int... i>
[[gnu::always_inline]] inline U64 interleave(U64 a, U64 b, int half, std::integer_sequence<int, i...>) {
    return half == 0 ? __builtin_shufflevector(a, b, (i / 2 + i % 2 * kLanes)...)
                     : __builtin_shufflevector(a, b, (kLanes / 2 + i / 2 + i % 2 * kLanes)...);
}

// The words of kQuadruples quadruples from number `first` on, in their order. The upper halves of the lanes hold
// remains of products until the end; the next product ignores them.
[[gnu::always_inline]] inline void philox(uint64_t key, uint64_t first, uint64_t stream, uint32_t* to) {
    U64 c0[kTogether], c1[kTogether], c2[kTogether], c3[kTogether];
    for (int t = 0; t < kTogether; ++t) {
        for (int i = 0; i < kLanes; ++i) c0[t][i] = first + static_cast<uint64_t>(t * kLanes + i);
        c1[t] = c0[t] >> 32;
        c2[t] = U64{} + stream;
        c3[t] = c2[t] >> 32;
    }
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
        for (int t = 0; t < kTogether; ++t) {
            const U64 a = product(c0[t], 0xD2511F53u), b = product(c2[t], 0xCD9E8D57u);
            c0[t] = b >> 32 ^ c1[t] ^ (U64{} + k0);
            c2[t] = a >> 32 ^ c3[t] ^ (U64{} + k1);
            c1[t] = b;
            c3[t] = a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    constexpr auto every = std::make_integer_sequence<int, kLanes>();
    for (int t = 0; t < kTogether; ++t) {
        const U64 low = (c0[t] & 0xffffffffu) | c1[t] << 32, high = (c2[t] & 0xffffffffu) | c3[t] << 32;
        const U64 parts[2] = {interleave(low, high, 0, every), interleave(low, high, 1, every)};
        __builtin_memcpy(to + t * 4 * kLanes, parts, sizeof parts);
    }
}

// ln x for 0 < x <= 1 that is not subnormal. With x = 2^k (1 + f) and s = f / (2 + f), ln(1 + f) is 2 artanh s, or
// f - s (f - r) with r = 2 (s^2 / 3 + s^4 / 5 + ...), where the rounding of s hardly matters.
[[gnu::always_inline]] inline F64 logarithm(F64 x) {
    // 1 + f lies between the roots of 1/2 and 2.
    constexpr uint64_t kRoot = 0x3FE6A09E667F3BCDu, kOne = 0x3FF0000000000000u, kMantissa = 0x000FFFFFFFFFFFFFu;
    constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;  // the first has 32 bits
    const U64 bits = reinterpret_cast<const U64&>(x) + (kOne - kRoot);
    const U64 exponent = bits >> 52;  // k + 1023
    const U64 rest = (bits & kMantissa) + kRoot;
    // Numbers below 2^52 as doubles: their bits under the exponent of 2^52, minus 2^52.
    const U64 shifted = exponent | 0x4330000000000000u;
    const F64 k = reinterpret_cast<const F64&>(shifted) - (0x1p52 + 1023);
    const F64 f = reinterpret_cast<const F64&>(rest) - 1.0;
    const F64 s = f / (f + 2.0), z = s * s;
    F64 r = z * (2.0 / 23) + 2.0 / 21;
    r = r * z + 2.0 / 19;
    r = r * z + 2.0 / 17;
    r = r * z + 2.0 / 15;
    r = r * z + 2.0 / 13;
    r = r * z + 2.0 / 11;
    r = r * z + 2.0 / 9;
    r = r * z + 2.0 / 7;
    r = r * z + 2.0 / 5;
    r = r * z + 2.0 / 3;
    return k * kLn2High + (f - (s * (f - r * z) - k * kLn2Low));
}

// Integers below 2^53 as doubles: the upper 21 bits and the lower 32 each under an exponent whose last bit has their
// weight.
[[gnu::always_inline]] inline F64 doubles(U64 x) {
    const U64 high = x >> 32 | 0x4530000000000000u, low = (x & 0xffffffffu) | 0x4330000000000000u;
    return (reinterpret_cast<const F64&>(high) - (0x1p84 + 0x1p52)) + reinterpret_cast<const F64&>(low);
}

// The normal numbers of whole quadruples. Whole vectors of them are written.
inline void normal_numbers(const random::Rule& rule, const uint32_t* words, int64_t count, float* to) {
    const float mean = static_cast<float>(rule.a), deviation = static_cast<float>(rule.b);
    for (int64_t i = 0; i < count; i += 2) {
        const random::Point<float> z = random::normal_pair(words[i], words[i + 1]);
        to[i] = fmaf(z.x, deviation, mean);
        to[i + 1] = fmaf(z.y, deviation, mean);
    }
}

inline void normal_numbers(const random::Rule& rule, const uint32_t* words, int64_t count, double* to) {
    constexpr auto every = std::make_integer_sequence<int, kLanes>();
    constexpr uint64_t kSign = uint64_t{1} << 63, kQuarter = uint64_t{1} << 51;
    for (int64_t i = 0; i < count; i += 2 * kLanes) {
        U64 first, second;
        for (int lane = 0; lane < kLanes; ++lane) {
            __builtin_memcpy(reinterpret_cast<char*>(&first) + 8 * lane, words + 2 * i + 4 * lane, 8);
            __builtin_memcpy(reinterpret_cast<char*>(&second) + 8 * lane, words + 2 * i + 4 * lane + 2, 8);
        }
        const F64 r = root(logarithm(1.0 - doubles(first >> 11) * 0x1p-53) * -2.0);
        const U64 angle = (second >> 11) + kQuarter / 2, quadrant = angle >> 51;
        const F64 t = (doubles(angle & (kQuarter - 1)) - static_cast<double>(kQuarter / 2)) * random::kTurn;
        const F64 sine = random::sine_to_quarter_pi(t), cosine = random::cosine_to_quarter_pi(t);
        const auto swapped = (quadrant & 1) != 0;
        const F64 x = swapped ? sine : cosine, y = swapped ? cosine : sine;
        const U64 signed_x = reinterpret_cast<const U64&>(x) ^ ((quadrant + 1) << 62 & kSign);
        const U64 signed_y = reinterpret_cast<const U64&>(y) ^ (quadrant << 62 & kSign);
        const F64 pair[2] = {r * reinterpret_cast<const F64&>(signed_x) * rule.b + rule.a,
                             r * reinterpret_cast<const F64&>(signed_y) * rule.b + rule.a};
        const U64 low = reinterpret_cast<const U64&>(pair[0]), high = reinterpret_cast<const U64&>(pair[1]);
        const U64 parts[2] = {interleave(low, high, 0, every), interleave(low, high, 1, every)};
        __builtin_memcpy(to + i, parts, sizeof parts);
    }
}

// The elements of whole quadruples from number `quadruple` on, from their words.
template <random::Distribution kind, int kEach, class T>
void from_words(const random::Rule& rule, uint64_t quadruple, const uint32_t* words, int64_t count, T* to) {
    using random::Distribution;
    const auto pair = [&](int64_t i) { return random::joined(words[i], words[i + 1]); };
    const auto bits = [&](int64_t i) {
        if constexpr (sizeof(T) == 4) return words[i];
        if constexpr (sizeof(T) == 8) return pair(2 * i);
    };
    const random::Interval in = rule.interval;
    if constexpr (kind == Distribution::bits) {
        for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(bits(i));
    } else if constexpr (kind == Distribution::uniform) {
        if (in.is_unit) {
            for (int64_t i = 0; i < count; ++i) to[i] = random::unit(bits(i));
        } else {
            for (int64_t i = 0; i < count; ++i) to[i] = in.at(random::unit(bits(i)));
        }
    } else if constexpr (kind == Distribution::normal) {
        normal_numbers(rule, words, count, to);
    } else if constexpr (kind == Distribution::integers) {
        // `bounded` without the values that would be too likely, which are found and made anew.
        using Bits = std::conditional_t<kEach == 4, uint32_t, uint64_t>;
        using Product = std::conditional_t<kEach == 4, uint64_t, unsigned __int128>;
        const auto bits_of = [&](int64_t i) -> Bits {
            if constexpr (kEach == 4) return words[i];
            if constexpr (kEach == 2) return pair(2 * i);
        };
        const Bits least = static_cast<Bits>(rule.least);
        Bits refused = 0;
        for (int64_t i = 0; i < count; ++i) {
            const Product product = static_cast<Product>(bits_of(i)) * rule.range;
            refused |= static_cast<Bits>(static_cast<Bits>(product) < least);
            to[i] = static_cast<T>(rule.low + static_cast<uint64_t>(product >> 8 * sizeof(Bits)));
        }
        for (int64_t i = 0; i < count && refused != 0; ++i) {
            const Bits bits = bits_of(i);
            if (static_cast<Bits>(bits * rule.range) >= least) continue;
            const int of_quadruple = static_cast<int>(i % kEach);
            to[i] = static_cast<T>(rule.low +
                                   rule.bounded(quadruple + static_cast<uint64_t>(i / kEach), of_quadruple, bits));
        }
    } else {
        const double least = rule.a * 0x1p53;  // both sides of the comparison times 2^53, exactly
        for (int64_t i = 0; i < count; ++i) {
            to[i] = static_cast<T>(static_cast<double>(static_cast<int64_t>(pair(2 * i) >> 11)) < least);
        }
    }
}

}  // namespace

// Elements [begin, end) of the output.
template <random::Distribution kind, int each, class T>
void fill(const random::Rule& rule, int64_t begin, int64_t end, T* to, std::integral_constant<int, each>) {
    constexpr int64_t kEach = each, kMost = random::kWords / 4 * kEach;
    // Vectors of normal numbers may read and write past the last quadruple.
    alignas(64) uint32_t words[random::kWords + 4 * kLanes] = {};
    alignas(64) T made[kMost + 2 * kLanes];
    const uint64_t number = rule.offset + static_cast<uint64_t>(begin);
    uint64_t quadruple = rule.block + number / kEach;
    int64_t skipped = static_cast<int64_t>(number % kEach);
    while (begin < end) {
        const int64_t count = std::min(end - begin, kMost - skipped);
        const int64_t used = divide_up(skipped + count, kEach);
        for (int64_t q = 0; q < used; q += kQuadruples) {
            philox(rule.seed, quadruple + static_cast<uint64_t>(q), rule.stream, words + 4 * q);
        }
        // Whole blocks go straight to the output.
        T* const here = count == kMost ? to + begin : made;
        from_words<kind, each>(rule, quadruple, words, used * kEach, here);
        if (here == made) std::copy(made + skipped, made + skipped + count, to + begin);
        begin += count;
        quadruple += random::kWords / 4;
        skipped = 0;
    }
}
