// Evaluations in the comments of PGN: every notation that is in use, docs/text-formats.md, "PGN".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nnue::data {

// Who wrote an evaluation.
enum class PgnDialect { kMatch, kLichess, kChessBase, kTcec, kPlain };

struct PgnEval {
    PgnDialect dialect = PgnDialect::kPlain;
    bool is_mate = false;
    bool counts_moves = false;  // a mate in moves, "#3", and not in plies
    bool has_point = false;
    bool has_sign = false;
    double value = 0;  // as printed; of a mate, its number
};

struct PgnComment {
    std::optional<PgnEval> eval;
    bool is_book = false;
    bool is_unclear = false;  // something in it looks like an evaluation, but is none that is understood
};

// The text of a comment without its braces, from ascii_of().
PgnComment parse_pgn_comment(std::string_view comment);

// Characters that stand for ASCII ones in chess texts: dashes and minus signs, ½, an ellipsis, spaces, figurines.
std::string ascii_of(std::string_view text);

}  // namespace nnue::data
