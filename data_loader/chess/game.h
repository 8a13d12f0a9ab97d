// One game in play: legal moves, how it ends, its moves as text, and its positions as records once the result is known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chess/types.h"

namespace nnue::data {

// Legal moves, ordered by origin, destination, promotion.
std::vector<Move> legal_moves(const Position& position);

// Whether a pseudo-legal move leaves the own king out of check. Castling must not lead out of check or through it.
bool is_legal(const Position& position, Move move);

// In Chess960, castling is written "king takes own rook" (e1h1) and its rights as files of rooks; both are always read.
class Game {
  public:
    explicit Game(std::string_view fen, bool chess960 = false);

    const Position& position() const { return history_.back(); }
    std::string fen() const;
    std::vector<Move> legal_moves() const { return nnue::data::legal_moves(position()); }
    std::string uci(Move move) const;

    // Plays a move without recording it (an opening). Throws FormatError if it is not legal.
    void play(std::string_view uci);

    // Records the position with this move and score (side to move's view), and plays it.
    void record(std::string_view uci, int score);

    // "" while the game goes on, else "checkmate", "stalemate", "fifty moves", "repetition" (threefold) or "material".
    std::string outcome() const;

    // The recorded positions; `result` is white's: 1 win, 0 draw, −1 loss.
    std::vector<Record> records(int result) const;

    // The moves that were played, in standard algebraic notation.
    std::vector<std::string> san_moves() const;

  private:
    Move checked_move(std::string_view uci) const;
    void advance(Move move);

    bool chess960_;
    std::vector<Position> history_;
    std::vector<Move> moves_;
    std::vector<Entry> entries_;
};

}  // namespace nnue::data
