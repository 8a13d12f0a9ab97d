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

    void add(const Record& record) {
        std::uint64_t words[3];  // the board; move, score, ply, result and rule 50 come after it
        std::memcpy(words, record.bytes.data(), sizeof words);
        const std::uint64_t hash = make_key({words[0], words[1], words[2]});
        const auto rank =
            static_cast<std::uint8_t>(std::countl_zero(hash << kBits | std::uint64_t{1} << (kBits - 1)) + 1);
        std::uint8_t& place = registers_[hash >> (64 - kBits)];
        place = std::max(place, rank);
    }
    void join(const Sketch& other) {
        for (std::size_t i = 0; i < kRegisters; ++i) registers_[i] = std::max(registers_[i], other.registers_[i]);
    }
    void clear() { registers_.fill(0); }

    std::array<std::uint8_t, kRegisters>& registers() { return registers_; }
    const std::array<std::uint8_t, kRegisters>& registers() const { return registers_; }

  private:
    std::array<std::uint8_t, kRegisters> registers_{};
};

}  // namespace nnue::data
