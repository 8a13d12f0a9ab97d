// Bit tricks and big-endian access, shared by host and device code.
#pragma once

#include <cstdint>
#include <cstring>

#include "chess/types.h"

namespace nnue::data {

inline namespace NNUE_ISA {

NNUE_HOST_DEVICE inline int popcount(Bitboard bits) {
#if defined(__CUDA_ARCH__)
    return __popcll(bits);
#else
    return __builtin_popcountll(bits);
#endif
}

// Index of the lowest set bit; `bits` must not be 0.
NNUE_HOST_DEVICE inline int lowest(Bitboard bits) {
#if defined(__CUDA_ARCH__)
    return __ffsll(static_cast<long long>(bits)) - 1;
#else
    return __builtin_ctzll(bits);
#endif
}

// Index of the highest set bit; `bits` must not be 0.
NNUE_HOST_DEVICE inline int highest(Bitboard bits) {
#if defined(__CUDA_ARCH__)
    return 63 - __clzll(static_cast<long long>(bits));
#else
    return 63 - __builtin_clzll(bits);
#endif
}

NNUE_HOST_DEVICE constexpr Bitboard bit(int square) {
    return Bitboard{1} << square;
}

// Bits below `square`.
NNUE_HOST_DEVICE constexpr Bitboard below(int square) {
    return bit(square) - 1;
}

NNUE_HOST_DEVICE constexpr Bitboard rotate_left(Bitboard bits, int n) {
    return bits << n | bits >> (64 - n);
}

// The bits of `value` that `mask` selects, moved to the low end; and the way back.
inline std::uint64_t extract_bits(std::uint64_t value, std::uint64_t mask) {
#if defined(NNUE_BMI2)
    return __builtin_ia32_pext_di(value, mask);
#else
    std::uint64_t result = 0;
    for (int i = 0; mask; mask &= mask - 1, ++i) result |= (value >> lowest(mask) & 1) << i;
    return result;
#endif
}

inline std::uint64_t deposit_bits(std::uint64_t value, std::uint64_t mask) {
#if defined(NNUE_BMI2)
    return __builtin_ia32_pdep_di(value, mask);
#else
    std::uint64_t result = 0;
    for (; mask; mask &= mask - 1, value >>= 1) result |= (0 - (value & 1)) & mask & (0 - mask);
    return result;
#endif
}

// The low bit of every nibble of `x` that is 15.
NNUE_HOST_DEVICE constexpr std::uint64_t fifteens(std::uint64_t x) {
    return x & x >> 1 & x >> 2 & x >> 3 & 0x1111111111111111ULL;
}

// Square of the k-th set bit, k counted from 0; there must be more than k of them.
inline int select_bit(Bitboard bits, int k) {
#if defined(NNUE_BMI2)
    return lowest(deposit_bits(Bitboard{1} << k, bits));
#else
    for (; k > 0; --k) bits &= bits - 1;
    return lowest(bits);
#endif
}

NNUE_HOST_DEVICE inline std::uint16_t load_be16(const std::uint8_t* p) {
    return static_cast<std::uint16_t>(p[0] << 8 | p[1]);
}

NNUE_HOST_DEVICE inline void store_be16(std::uint8_t* p, unsigned value) {
    p[0] = static_cast<std::uint8_t>(value >> 8);
    p[1] = static_cast<std::uint8_t>(value);
}

NNUE_HOST_DEVICE inline std::uint64_t load_be64(const std::uint8_t* p) {
#if defined(__CUDA_ARCH__)
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | p[i];
    return value;
#else
    std::uint64_t value;
    std::memcpy(&value, p, sizeof value);
    return __builtin_bswap64(value);
#endif
}

inline void store_be64(std::uint8_t* p, std::uint64_t value) {
    value = __builtin_bswap64(value);
    std::memcpy(p, &value, sizeof value);
}

NNUE_HOST_DEVICE constexpr unsigned zigzag(int value) {
    return static_cast<std::uint16_t>(value < 0 ? -2 * value - 1 : 2 * value);
}

NNUE_HOST_DEVICE constexpr int unzigzag(unsigned value) {
    return static_cast<std::int16_t>(static_cast<std::uint16_t>((value >> 1) ^ (0u - (value & 1u))));
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
