// How many positions occur more than once, in bounded memory.
//
// Positions are sampled by the hash of the board (pieces, side to move, castling, en passant): all occurrences of a
// position are in the sample, or none. While there are at most kCapacity different positions, all of them are, and the
// answer is exact. Each time that there are more, half of the hashes are dropped; the error of the share of duplicates
// stays below 0.3 %.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "chess/types.h"

namespace nnue::data {

class DuplicateEstimator {
  public:
    static constexpr std::size_t kCapacity = std::size_t{1} << 19;  // 16 MiB

    DuplicateEstimator();
    void add(std::span<const Record> records);

    bool exact() const { return level_ == 0; }
    // The number of different positions.
    double distinct() const { return std::ldexp(static_cast<double>(used_), level_); }
    // The share of positions that had occurred before.
    double duplicate_share() const {
        return sampled_ ? 1 - static_cast<double>(used_) / static_cast<double>(sampled_) : 0;
    }
    // Positions that were in the sample when they were added, and those of them whose board was in it already. Both
    // only grow, so differences show where in a file the repetitions are.
    std::uint64_t looked_at() const { return looked_at_; }
    std::uint64_t repeated() const { return repeated_; }

  private:
    struct Slot {
        std::uint64_t hash;
        std::uint64_t count;  // 0: free
    };
    // Whether the hash was there already.
    bool insert(std::uint64_t hash, std::uint64_t count);
    void halve();

    std::vector<Slot> slots_;
    std::size_t used_ = 0;
    std::uint64_t sampled_ = 0;
    std::uint64_t looked_at_ = 0, repeated_ = 0;
    int level_ = 0;
};

}  // namespace nnue::data
