// Random numbers that are a pure function of their key, the same on every machine and for every number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "chess/types.h"

namespace nnue::data {
inline namespace NNUE_ISA {

// A bijection of 64-bit words that looks random (the finaliser of splitmix64).
constexpr std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

constexpr std::uint64_t make_key(std::initializer_list<std::uint64_t> parts) {
    std::uint64_t key = 0;
    for (const std::uint64_t part : parts) key = mix(key ^ part);
    return key;
}

// A random permutation of [0, n) that is evaluated entry by entry, so any thread can produce any part of it: a Feistel
// network over the next power of two, walked along its cycle until it comes back below n.
class Permutation {
  public:
    Permutation(std::uint32_t n, std::uint64_t key) : n_(n) {
        int bits = 2;
        while (bits < 32 && (std::uint64_t{1} << bits) < n) ++bits;
        low_bits_ = bits / 2;
        low_mask_ = (1u << low_bits_) - 1;
        high_mask_ = (1u << (bits - low_bits_)) - 1;
        for (std::uint32_t& round : rounds_) {
            key = mix(key);
            round = static_cast<std::uint32_t>(key);
        }
    }

    std::uint32_t operator()(std::uint32_t i) const {
        do {
            i = encrypt(i);
        } while (i >= n_);
        return i;
    }

    // out[i] = entry first + i: first for all without branches, then the walk of those that left the range.
    void fill(std::uint32_t first, std::size_t count, std::uint32_t* out) const {
        for (std::size_t i = 0; i < count; ++i) out[i] = encrypt(first + static_cast<std::uint32_t>(i));
        for (std::size_t i = 0; i < count; ++i) {
            while (out[i] >= n_) out[i] = encrypt(out[i]);
        }
    }

  private:
    static constexpr std::uint32_t scramble(std::uint32_t x, std::uint32_t key) {
        x = (x + key) * 0x9e3779b1u;
        x = (x ^ (x >> 15)) * 0x85ebca77u;
        return x ^ (x >> 16);
    }

    std::uint32_t encrypt(std::uint32_t i) const {
        std::uint32_t high = i >> low_bits_, low = i & low_mask_;
        for (int round = 0; round < 6; round += 2) {
            high ^= scramble(low, rounds_[round]) & high_mask_;
            low ^= scramble(high, rounds_[round + 1]) & low_mask_;
        }
        return high << low_bits_ | low;
    }

    std::uint32_t n_, low_mask_, high_mask_;
    int low_bits_;
    std::uint32_t rounds_[6];
};

}  // namespace NNUE_ISA
}  // namespace nnue::data
