// Standard algebraic notation, as in PGN.
#pragma once

#include <string>
#include <string_view>

#include "chess/fen.h"

namespace nnue::data {

// A legal move of `position` in this notation, with + and #.
std::string format_san(const Position& position, Move move);

// The legal move of `position` that `san` names: "e4", "Nbd7", "exd8=Q+", "O-O", or in UCI notation. Signs after it
// ("!?",
// "#") are ignored. Throws FormatError if no move has the name, or several have.
Move parse_san(const Position& position, std::string_view san);

}  // namespace nnue::data
