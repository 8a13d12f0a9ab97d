// The AVX-512 intrinsics of examples/engine/nnue.h in plain C++, for tests on machines without these instructions: a
// program that is compiled with -I of this folder and -D__AVX512F__ -D__AVX512BW__ takes the AVX-512 code and runs
// anywhere. Each function does what Intel's guide defines for the intrinsic of its name, lane by lane.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

struct __m256i {
    std::int8_t bytes[32];
};
struct __m512i {
    std::uint8_t bytes[64];
};

namespace emulated {

template <class Lane, class Operation>
__m512i each(const __m512i& a, const __m512i& b, Operation operation) {
    constexpr int kLanes = 64 / sizeof(Lane);
    Lane x[kLanes], y[kLanes];
    std::memcpy(x, &a, 64);
    std::memcpy(y, &b, 64);
    for (int i = 0; i < kLanes; ++i) x[i] = static_cast<Lane>(operation(x[i], y[i]));
    __m512i result;
    std::memcpy(&result, x, 64);
    return result;
}

template <class Lane>
__m512i all(Lane value) {
    __m512i result;
    for (std::size_t i = 0; i < 64; i += sizeof(Lane)) std::memcpy(result.bytes + i, &value, sizeof(Lane));
    return result;
}

inline int saturated(int value) {
    return std::min(std::max(value, -32768), 32767);
}

}  // namespace emulated

inline __m512i _mm512_loadu_si512(const void* from) {
    __m512i result;
    std::memcpy(&result, from, 64);
    return result;
}
inline void _mm512_storeu_si512(void* to, __m512i a) {
    std::memcpy(to, &a, 64);
}
inline __m256i _mm256_loadu_si256(const __m256i* from) {
    __m256i result;
    std::memcpy(&result, from, 32);
    return result;
}
inline __m512i _mm512_cvtepi8_epi16(__m256i a) {
    std::int16_t lanes[32];
    for (int i = 0; i < 32; ++i) lanes[i] = a.bytes[i];
    return _mm512_loadu_si512(lanes);
}
inline __m512i _mm512_setzero_si512() {
    return {};
}
inline __m512i _mm512_set1_epi16(short value) {
    return emulated::all<std::int16_t>(value);
}
inline __m512i _mm512_set1_epi32(int value) {
    return emulated::all<std::int32_t>(value);
}
inline __m512i _mm512_add_epi16(__m512i a, __m512i b) {
    return emulated::each<std::uint16_t>(a, b, [](unsigned x, unsigned y) { return x + y; });
}
inline __m512i _mm512_sub_epi16(__m512i a, __m512i b) {
    return emulated::each<std::uint16_t>(a, b, [](unsigned x, unsigned y) { return x - y; });
}
inline __m512i _mm512_mullo_epi16(__m512i a, __m512i b) {
    return emulated::each<std::uint16_t>(a, b, [](unsigned x, unsigned y) { return x * y; });
}
inline __m512i _mm512_slli_epi16(__m512i a, unsigned count) {
    return emulated::each<std::uint16_t>(a, a, [count](unsigned x, unsigned) { return x << count; });
}
inline __m512i _mm512_srai_epi16(__m512i a, unsigned count) {
    return emulated::each<std::int16_t>(a, a, [count](int x, int) { return x >> count; });
}
inline __m512i _mm512_max_epi16(__m512i a, __m512i b) {
    return emulated::each<std::int16_t>(a, b, [](int x, int y) { return std::max(x, y); });
}
inline __m512i _mm512_min_epi16(__m512i a, __m512i b) {
    return emulated::each<std::int16_t>(a, b, [](int x, int y) { return std::min(x, y); });
}
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
    return emulated::each<std::uint32_t>(a, b, [](std::uint32_t x, std::uint32_t y) { return x + y; });
}
inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    std::int16_t x[32], y[32];
    std::int32_t sums[16];
    std::memcpy(x, &a, 64);
    std::memcpy(y, &b, 64);
    for (int i = 0; i < 16; ++i) {
        sums[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(x[2 * i] * y[2 * i]) +
                                            static_cast<std::uint32_t>(x[2 * i + 1] * y[2 * i + 1]));
    }
    return _mm512_loadu_si512(sums);
}
inline __m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {
    std::int8_t y[64];
    std::int16_t sums[32];
    std::memcpy(y, &b, 64);
    for (int i = 0; i < 32; ++i) {
        const int sum = a.bytes[2 * i] * y[2 * i] + a.bytes[2 * i + 1] * y[2 * i + 1];
        sums[i] = static_cast<std::int16_t>(emulated::saturated(sum));
    }
    return _mm512_loadu_si512(sums);
}
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
    std::int8_t y[64];
    std::uint32_t totals[16];
    std::memcpy(y, &b, 64);
    std::memcpy(totals, &sums, 64);
    for (int i = 0; i < 64; ++i) totals[i / 4] += static_cast<std::uint32_t>(a.bytes[i] * y[i]);
    return _mm512_loadu_si512(totals);
}
inline __m512i _mm512_set1_epi8(char value) {
    return emulated::all<char>(value);
}
inline std::uint64_t _mm512_test_epi8_mask(__m512i a, __m512i b) {
    std::uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= std::uint64_t{(a.bytes[i] & b.bytes[i]) != 0} << i;
    return mask;
}
inline std::uint16_t _mm512_test_epi32_mask(__m512i a, __m512i b) {
    std::uint32_t x[16], y[16];
    std::memcpy(x, &a, 64);
    std::memcpy(y, &b, 64);
    unsigned mask = 0;
    for (int i = 0; i < 16; ++i) mask |= static_cast<unsigned>((x[i] & y[i]) != 0) << i;
    return static_cast<std::uint16_t>(mask);
}
inline std::uint64_t _mm512_cmpneq_epi8_mask(__m512i a, __m512i b) {
    std::uint64_t mask = 0;
    for (int i = 0; i < 64; ++i) mask |= std::uint64_t{a.bytes[i] != b.bytes[i]} << i;
    return mask;
}
