// How many different positions there are in a stream, in 16 KiB: HyperLogLog.
//
// Each position's board (pieces, side to move, castling, en passant) is hashed to 64 bits. The first 14 choose a
// register, which keeps the largest number of leading zeros, and one, of the others. So a sketch is a function of the
// set of positions, not of their order; sketches of parts are joined to that of the whole by the maximum. The standard
// error of an estimate is 1.04 / √16384 = 0.8 %. nnue_trainer/data/loader.py estimates.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "chess/types.h"
#include "pipeline/random.h"

namespace nnue::data {

class Sketch {
  public:
    static constexpr int kBits = 14;
    static constexpr std::size_t kRegisters = std::size_t{1} << kBits;

    // `floor`: what every register of a sketch that this one will be joined to has at least; ranks up to it change
    // nothing there, and are left out.
    void add(const Record& record, unsigned floor = 0) {
        const std::uint64_t hash = hash_of(record), rest = hash << kBits;
        if (floor > 0 && rest >> (64 - floor)) return;
        const auto rank = static_cast<std::uint8_t>(std::countl_zero(rest | std::uint64_t{1} << (kBits - 1)) + 1);
        std::uint8_t& place = registers_[hash >> (64 - kBits)];
        place = std::max(place, rank);
    }
    void join(const Sketch& other) {
        for (std::size_t i = 0; i < kRegisters; ++i) registers_[i] = std::max(registers_[i], other.registers_[i]);
    }
    void clear() { registers_.fill(0); }
    // The smallest register.
    unsigned floor() const {
        std::uint8_t lowest = 64 - kBits;  // more is in none that was made by add()
        for (const std::uint8_t rank : registers_) lowest = std::min(lowest, rank);
        return lowest;
    }

    std::array<std::uint8_t, kRegisters>& registers() { return registers_; }
    const std::array<std::uint8_t, kRegisters>& registers() const { return registers_; }

  private:
    // Two multiplications to 128 bits: a position costs about as much as its way into the first cache.
    static std::uint64_t hash_of(const Record& record) {
        std::uint64_t words[3];  // the board; move, score, ply, result and rule 50 come after it
        std::memcpy(words, record.bytes.data(), sizeof words);
        return fold(fold(words[0] ^ 0x9e3779b97f4a7c15, words[1] ^ 0xbf58476d1ce4e5b9) ^ words[2], 0x94d049bb133111eb);
    }
    static std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
        __extension__ using Product = unsigned __int128;
        const Product product = static_cast<Product>(a) * b;
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    }

    std::array<std::uint8_t, kRegisters> registers_{};
};

}  // namespace nnue::data
