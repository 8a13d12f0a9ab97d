// Which positions of a stream belong to one game, and a split into training and validation data that keeps games whole.
#pragma once

#include <optional>
#include <span>

#include "chess/types.h"

namespace nnue::data {

// A game, as far as a stream of positions shows it: a run of them in which the ply rises and the result, seen by
// white, stays the same. Every chain of a binpack lies within one game. In
// formats without a ply and in shuffled data a game has one position, or a few.
class GameStarts {
  public:
    // Whether the next position of the stream begins a game.
    bool next(const Record& record);
    // A new stream: its first position begins a game.
    void start_stream() { previous_ply_.reset(); }

  private:
    std::optional<int> previous_ply_;
    int previous_result_ = 0;
};

class GameSplitter {
  public:
    // The share of games that goes to validation; each is drawn by (seed, its number). With a `block`, that many
    // positions in a row count as a game.
    GameSplitter(std::uint64_t seed, double validation_share, std::uint64_t block = 0);

    // Sets validation[i] to 1 or 0 for the next positions of the stream.
    void split(std::span<const Record> records, std::span<std::uint8_t> validation);

    std::uint64_t games() const { return games_; }
    std::uint64_t validation_games() const { return validation_games_; }
    // Positions in games of one position, and in games of at most kShort: with many of them, the stream does not show
    // games.
    std::uint64_t alone() const { return alone_ + (length_ == 1); }
    std::uint64_t in_short_games() const { return in_short_games_ + (length_ <= kShort ? length_ : 0); }
    static constexpr std::uint64_t kShort = 3;
    void start_stream() {
        starts_.start_stream();
        begins_ = true;
    }

  private:
    std::uint64_t base_, threshold_, block_;
    std::uint64_t length_ = 0, alone_ = 0, in_short_games_ = 0;  // length_: of the last game so far
    bool all_;
    bool begins_ = true;  // the next position is the first of a stream
    GameStarts starts_;
    std::uint64_t games_ = 0, validation_games_ = 0;
    bool validation_ = false;
};

}  // namespace nnue::data
