// A game of a match: it plays the answers of two UCI engines and ends by the rules of chess or by adjudication.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chess/game.h"

namespace nnue::data {

// When a game is over before the rules of chess end it. Scores are centipawns, moves are those of one side; 0 moves
// switch a rule off.
struct Adjudication {
    int resign_score, resign_moves;
    bool resign_two_sided;
    int draw_score, draw_moves, draw_from_move, max_moves;
};

// The score of the side that moved; `kind` is "cp", "mate", or "" for none.
struct SearchScore {
    std::string_view kind;
    int value = 0, depth = 0;
};

// How a game ended. `result` is white's: 1, 0, −1.
struct Verdict {
    int result;
    std::string reason;
};

// Watches the scores of one game.
class Adjudicator {
  public:
    explicit Adjudicator(const Adjudication& rules) : rules_(rules) {}

    // `side` moved: 0 is white. `rule50` and `move_number` are those of the position after the move.
    std::optional<Verdict> after(int side, const SearchScore& score, int rule50, int move_number);

  private:
    Adjudication rules_;
    std::array<int, 2> resigning_{};
    int decided_ = 0, drawish_ = 0, plies_ = 0;
};

class MatchGame {
  public:
    MatchGame(std::string_view fen, bool chess960, const std::vector<std::string>& opening, const Adjudication& rules);

    bool white_to_move() const { return game_.position().side_to_move == kWhite; }

    // Plays a move. Throws FormatError if it is not legal.
    void play(std::string_view uci, const SearchScore& score);

    // Plays the move of an answer to "go". False, and nothing is played, unless it ends as most do: with a line that
    // has the exact score of the only variation, lines with bounds, and a move. Throws as `play` does.
    bool play_answer(std::string_view answer);

    // Once the game is over.
    const std::optional<Verdict>& verdict() const { return verdict_; }

    // The UCI command for this position: FEN of the start and all moves.
    const std::string& position_command() const { return command_; }

    // The moves after the opening, and for each of them "cp23/12", "mate-3/9" (score, depth) or "-".
    const std::vector<std::string>& moves() const { return moves_; }
    const std::vector<std::string>& scores() const { return scores_; }

  private:
    void advance(std::string_view uci);
    void end_by_rules();

    Game game_;
    Adjudicator judge_;
    std::string command_;
    bool has_moves_ = false;
    std::vector<std::string> moves_, scores_;
    std::optional<Verdict> verdict_;
};

}  // namespace nnue::data
