// Random numbers that are a pure function of their key, the same on every machine and for every number of threads.
#pragma once

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
// network over the next even power of two, walked along its cycle until it comes back below n.
class Permutation {
  public:
    Permutation(std::uint32_t n, std::uint64_t key) : n_(n) {
        while (half_bits_ < 16 && (std::uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
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

  private:
    std::uint32_t encrypt(std::uint32_t i) const {
        const std::uint32_t mask = (1u << half_bits_) - 1;
        std::uint32_t left = i >> half_bits_, right = i & mask;
        for (const std::uint32_t round : rounds_) {
            std::uint32_t f = (right + round) * 0x9e3779b1u;
            f = (f ^ (f >> 15)) * 0x85ebca77u;
            const std::uint32_t next = left ^ ((f ^ (f >> 16)) & mask);
            left = right;
            right = next;
        }
        return left << half_bits_ | right;
    }

    std::uint32_t n_;
    int half_bits_ = 1;
    std::uint32_t rounds_[6];
};

}  // namespace NNUE_ISA
}  // namespace nnue::data
