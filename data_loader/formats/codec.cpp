#include "formats/codec.h"

#include <algorithm>
#include <charconv>

#include "chess/position.h"
#include "chess/record.h"

namespace nnue::data {

void wrong(const char* what, long long found, const std::string& expected) {
    throw FormatError(std::string(what) + " " + std::to_string(found) + ", expected " + expected);
}

void check_range(const char* what, int found, int low, int high) {
    if (found < low || found > high) wrong(what, found, std::to_string(low) + " to " + std::to_string(high));
}

void check_board(const Position& p) {
    for (const int color : {kWhite, kBlack}) {
        const int kings = popcount(pieces(p, color, kKing));
        if (kings != 1) wrong(color == kWhite ? "white kings:" : "black kings:", kings, "1");
    }
    if (const Bitboard bad = p.types[kPawn] & 0xff000000000000ffULL) {
        throw FormatError("a pawn on " + format_square(lowest(bad)));
    }
    if (const int pawns = popcount(p.types[kPawn]); pawns > kMaxPawns) wrong("pawns:", pawns, "at most 16");
}

void check_castling(const Position& p) {
    if (const char* fault = castling_fault(p)) throw FormatError(fault);
}

void check_standard_castling(const Position& p, const char* format) {
    if (has_standard_castling(p)) return;
    throw FormatError(std::string("castling rights of Chess960 in ") + format_fen(p, CastlingStyle::kShredder) +
                      ", which " + format + " cannot store: drop the rights or skip such positions (--chess960)");
}

void set_ep_square(Position& p, int square) {
    const int rank = p.side_to_move == kWhite ? 5 : 2;
    if (square < kNoSquare && square >> 3 == rank && ep_square_counts(p, square, p.side_to_move)) {
        p.ep_square = static_cast<std::uint8_t>(square);
    }
}

void check_move(const Position& p, Move move) {
    if (!move.is_null() && !is_pseudo_legal(p, move)) {
        throw FormatError("move " + format_uci(move) + " is not possible in " + format_fen(p));
    }
}

std::uint16_t ply_of(unsigned full_move, int side_to_move) {
    check_range("full-move number", static_cast<int>(full_move), 0, (kMaxPly + 1) / 2);
    return static_cast<std::uint16_t>(2 * (std::max(full_move, 1u) - 1) + (side_to_move == kBlack));
}

std::int16_t negated(std::int16_t score) {
    return static_cast<std::int16_t>(score == INT16_MIN ? INT16_MAX : -score);
}

std::int16_t white_view(const Entry& e, Losses& losses) {
    if (e.position.side_to_move == kWhite) return e.score;
    losses.scores += e.score == INT16_MIN;
    return negated(e.score);
}

void count_moveless(const Entry& e, Losses& losses) {
    losses.moves += !e.move.is_null();
}

void count_ply_parity(const Entry& e, Losses& losses) {
    losses.ply += (e.position.ply & 1) != e.position.side_to_move;
}

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kSpace = " \t\r";
    const std::size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string quoted(std::string_view text) {
    constexpr std::size_t kMost = 80;
    std::string result = "'";
    for (const char c : text.substr(0, kMost)) result += c >= ' ' && c <= '~' ? c : '?';
    return result + (text.size() > kMost ? "…'" : "'");
}

int parse_integer(std::string_view text, const char* what, int low, int high) {
    int value = 0;
    const std::string_view digits = text.starts_with('+') && !text.starts_with("+-") ? text.substr(1) : text;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool is_whole = end == digits.data() + digits.size() && error != std::errc::invalid_argument;
    if (!is_whole || error != std::errc{} || value < low || value > high) {
        throw FormatError(std::string(what) + " " + quoted(text) + ", expected " +
                          (is_whole ? "" : "a whole number from ") + std::to_string(low) + " to " +
                          std::to_string(high));
    }
    return value;
}

}  // namespace nnue::data
