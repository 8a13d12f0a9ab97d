// The checks of `nnue data validate`: positions that readers accept but that no game of chess can contain.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "chess/types.h"

namespace nnue::data {

struct Problem {
    const char* name;
    std::uint64_t count = 0;
    std::uint64_t first = 0;  // number of the first position that has it
};

class Validator {
  public:
    // Throws FormatError for a record that is not sound.
    void add(std::span<const Record> records);
    // Adds the findings in the positions that follow.
    void join(const Validator& next);

    std::uint64_t positions() const { return positions_; }
    std::span<const Problem> problems() const { return problems_; }
    // No fault of a position: data rescored with tablebases has it. `first` is the later of the two positions.
    const Problem& result_changes() const { return result_changes_; }

  private:
    bool changes_result(const Entry& e) const;

    std::uint64_t positions_ = 0;
    std::array<Problem, 6> problems_{{{"the side that has just moved is in check"},
                                      {"the move is not legal"},
                                      {"more pieces of a kind than promotions allow"},
                                      {"score beyond mate (32,002 means none)"},
                                      {"an en-passant square that the rule does not keep"},
                                      {"the move mates, but the game is not won"}}};
    Problem result_changes_{"a result that differs from the one a ply earlier in the same game"};
    std::optional<Entry> first_;
    std::optional<Entry> next_;  // what the last position's move leads to, with the result it then has
};

}  // namespace nnue::data
