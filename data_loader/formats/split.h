// Which positions of a stream belong to one game, and a split into training and validation data that keeps games whole.
#pragma once

#include <optional>
#include <span>

#include "chess/types.h"

namespace nnue::data {

// A game, as far as a stream of positions shows it: a run of them in which the ply rises and the result, seen by
// white, stays the same. Every chain of a binpack lies within one game. In
// formats without a ply and in shuffled data a game has one position, or a few.
class GameSplitter {
  public:
    // The share of games that goes to validation; each is drawn by (seed, its number).
    GameSplitter(std::uint64_t seed, double validation_share);

    // Sets validation[i] to 1 or 0 for the next positions of the stream.
    void split(std::span<const Record> records, std::span<std::uint8_t> validation);

    std::uint64_t games() const { return games_; }
    std::uint64_t validation_games() const { return validation_games_; }
    // A new stream: its first position begins a game.
    void start_stream() { previous_ply_.reset(); }

  private:
    std::uint64_t base_, threshold_;
    bool all_;
    std::optional<int> previous_ply_;
    int previous_result_ = 0;
    std::uint64_t games_ = 0, validation_games_ = 0;
    bool validation_ = false;
};

}  // namespace nnue::data
