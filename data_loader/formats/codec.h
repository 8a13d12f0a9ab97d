// The common part of the codecs of several formats: little-endian numbers, what makes a position sound, messages.
//
// Every decoder throws FormatError with the reason, what was found and what was expected; it accepts exactly what makes
// a sound record, with a move that is pseudo-legal or none. En-passant squares that the en-passant rule of binpack does
// not keep are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "chess/fen.h"
#include "chess/record.h"
#include "formats/format.h"

namespace nnue::data {

inline constexpr int kMaxPly = 16383;  // 14 bits of a record

inline std::uint16_t load_le16(const std::uint8_t* p) {
    return static_cast<std::uint16_t>(p[0] | p[1] << 8);
}
inline void store_le16(std::uint8_t* p, unsigned value) {
    p[0] = static_cast<std::uint8_t>(value);
    p[1] = static_cast<std::uint8_t>(value >> 8);
}
inline std::uint64_t load_le64(const std::uint8_t* p) {
    std::uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | p[i];
    return value;
}
inline void store_le64(std::uint8_t* p, std::uint64_t value) {
    for (int i = 0; i < 8; ++i) p[i] = static_cast<std::uint8_t>(value >> 8 * i);
}

constexpr int flipped(int square) {
    return square ^ 56;
}

// Throws FormatError "<what> <found>, expected <expected>".
[[noreturn]] void wrong(const char* what, long long found, const std::string& expected);
void check_range(const char* what, int found, int low, int high);

// One king of each side, pawns where pawns can be: what every other function relies on.
void check_board(const Position& p);
void check_castling(const Position& p);
// For formats that hold only the rights of standard chess.
void check_standard_castling(const Position& p, const char* format);
void check_move(const Position& p, Move move);

// Keeps the en-passant square of a file if binpack's rule keeps it.
void set_ep_square(Position& p, int square);

// The ply of a full-move number. Some programs count from 0, so 0 means 1.
std::uint16_t ply_of(unsigned full_move, int side_to_move);

// The score from the other side's view.
std::int16_t negated(std::int16_t score);
std::int16_t white_view(const Entry& e, Losses& losses);

// For formats without moves, and for those that hold the full-move number instead of the ply.
void count_moveless(const Entry& e, Losses& losses);
void count_ply_parity(const Entry& e, Losses& losses);

// The 16 piece bytes of bulletformat and Marlinformat: one nibble per occupied square, the low one first.
template <class Put>
void decode_nibbles(Bitboard occupied, const std::uint8_t* nibbles, Put&& put_piece) {
    const int count = popcount(occupied);
    if (count > kMaxPieces) wrong("pieces:", count, "at most 32");
    for (int i = 0; occupied; occupied &= occupied - 1, ++i) {
        put_piece(lowest(occupied), nibbles[i / 2] >> (4 * (i & 1)) & 15u);
    }
    for (int i = count; i < kMaxPieces; ++i) {
        if (nibbles[i / 2] >> (4 * (i & 1)) & 15) {
            throw FormatError("piece nibble " + std::to_string(i) + " is set, but only " + std::to_string(count) +
                              " squares are occupied");
        }
    }
}

std::string_view trimmed(std::string_view text);

// Text of a file for a message: printable, and not too long.
std::string quoted(std::string_view text);

// A whole number in decimal from `low` to `high`; FormatError names `what`.
int parse_integer(std::string_view text, const char* what, int low, int high);

}  // namespace nnue::data
