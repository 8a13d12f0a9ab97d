// FEN to position and back.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "chess/types.h"

namespace nnue::data {

// The error of a text or file; one line, for the user.
class FormatError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Parses "<board> <side> <castling> <en passant> [<rule 50> [<move number>]]", castling in X-FEN or Shredder-FEN; a
// counter may be "-", and a semicolon may end the text. The en-passant square is dropped unless the en-passant rule
// keeps it; ply = 2 · (move number − 1) + (black to move). Throws FormatError with the reason.
Position parse_fen(std::string_view fen);

// The letters of castling rights: of X-FEN, KQkq wherever they are clear, or of Shredder-FEN, files of rooks.
enum class CastlingStyle { kXFen, kShredder };

// The six fields; move number ⌊ply/2⌋ + 1.
std::string format_fen(const Position& position, CastlingStyle style = CastlingStyle::kXFen);

std::string format_square(int square);

// UCI notation of a move ("e2e4", "e7e8q", castling as "e1g1", the null move as "0000"). Castling goes to the rook's
// square, "e1h1", where king or rook do not stand where they do in standard chess, and always with `chess960`.
std::string format_uci(Move move, bool chess960 = false);

// The move of `position` that `uci` names, castling in either notation. Throws FormatError unless it is pseudo-legal.
Move parse_uci(const Position& position, std::string_view uci);

}  // namespace nnue::data
