// Attack sets. Leapers come from tables, sliders from the obstruction difference: per line, subtracting the nearest
// blocker below from the nearest above leaves the squares in between. It needs 4 KiB of masks, which stay in the first
// cache beside a batch being written, where the usual megabyte of magic or PEXT tables would not, and no special CPU.
#pragma once

#include <array>

#include "chess/bits.h"

namespace nnue::data {
inline namespace NNUE_ISA {

namespace detail {

constexpr Bitboard step(int square, int file_step, int rank_step) {
    const int file = (square & 7) + file_step, rank = (square >> 3) + rank_step;
    return file < 0 || file > 7 || rank < 0 || rank > 7 ? 0 : bit(8 * rank + file);
}

constexpr Bitboard ray(int square, int file_step, int rank_step) {
    Bitboard squares = 0;
    for (int i = 1; i < 8; ++i) squares |= step(square, i * file_step, i * rank_step);
    return squares;
}

struct Line {
    Bitboard lower, upper;  // the squares of one line below and above a square
};

// How a piece other than a pawn may go from one square to another: bit t is set if pieces of type t can on an empty
// board, and bits 6 and 7 name the line (AttackTables::lines) that both squares lie on.
using Way = std::uint8_t;

struct AttackTables {
    std::array<std::array<Line, 4>, 64> lines{};  // rank, file, diagonal, anti-diagonal
    std::array<std::array<Way, 64>, 64> ways{};
    std::array<std::array<Bitboard, 64>, 2> pawns{};
    std::array<Bitboard, 64> knights{}, kings{};

    constexpr AttackTables() {
        for (int s = 0; s < 64; ++s) {
            lines[s] = {{{ray(s, -1, 0), ray(s, 1, 0)},
                         {ray(s, 0, -1), ray(s, 0, 1)},
                         {ray(s, -1, -1), ray(s, 1, 1)},
                         {ray(s, 1, -1), ray(s, -1, 1)}}};
            pawns[kWhite][s] = step(s, -1, 1) | step(s, 1, 1);
            pawns[kBlack][s] = step(s, -1, -1) | step(s, 1, -1);
            for (int a : {-1, 1}) {
                for (int b : {-2, 2}) knights[s] |= step(s, a, b) | step(s, b, a);
            }
            for (int a : {-1, 0, 1}) {
                for (int b : {-1, 0, 1}) kings[s] |= step(s, a, b);
            }
            kings[s] &= ~bit(s);
            for (int to = 0; to < 64; ++to) {
                unsigned way = (knights[s] >> to & 1) << kKnight | (kings[s] >> to & 1) << kKing;
                for (unsigned line = 0; line < 4; ++line) {
                    if (!((lines[s][line].lower | lines[s][line].upper) >> to & 1)) continue;
                    way |= line << 6 | 1u << kQueen | 1u << (line < 2 ? kRook : kBishop);
                }
                ways[s][to] = static_cast<Way>(way);
            }
        }
    }
};

inline constexpr AttackTables kAttacks{};

NNUE_HOST_DEVICE inline Bitboard line_attacks(const Line& line, Bitboard occupied) {
    const Bitboard lower = line.lower & occupied, upper = line.upper & occupied;
    const Bitboard from_lower = ~Bitboard{0} << highest(lower | 1);
    return (line.lower | line.upper) & (2 * (upper & (0 - upper)) + from_lower);
}

}  // namespace detail

inline Bitboard pawn_attacks(int color, int square) {
    return detail::kAttacks.pawns[color][square];
}
inline Bitboard knight_attacks(int square) {
    return detail::kAttacks.knights[square];
}
inline Bitboard king_attacks(int square) {
    return detail::kAttacks.kings[square];
}

inline Bitboard rook_attacks(int square, Bitboard occupied) {
    const auto& lines = detail::kAttacks.lines[square];
    return detail::line_attacks(lines[0], occupied) | detail::line_attacks(lines[1], occupied);
}

inline Bitboard bishop_attacks(int square, Bitboard occupied) {
    const auto& lines = detail::kAttacks.lines[square];
    return detail::line_attacks(lines[2], occupied) | detail::line_attacks(lines[3], occupied);
}

// Does a piece of this type, not a pawn, reach `to` from `from`? The same as a bit of piece_attacks(), without a branch
// for each type, which a CPU cannot foresee.
inline bool piece_reaches(PieceType type, int from, int to, Bitboard occupied) {
    const detail::Way way = detail::kAttacks.ways[from][to];
    const detail::Line& line = detail::kAttacks.lines[from][way >> 6];
    const Bitboard inside = from < to ? below(to) : ~below(to) << 1;  // what of the line lies before `to`
    const Bitboard between = (from < to ? line.upper : line.lower) & inside;
    const bool slides = way >> kQueen & 1;
    return (way >> type & 1) && !(slides && (between & occupied));
}

// Attacks of any piece but a pawn.
inline Bitboard piece_attacks(PieceType type, int square, Bitboard occupied) {
    switch (type) {
        case kKnight:
            return knight_attacks(square);
        case kBishop:
            return bishop_attacks(square, occupied);
        case kRook:
            return rook_attacks(square, occupied);
        case kQueen:
            return rook_attacks(square, occupied) | bishop_attacks(square, occupied);
        case kKing:
            return king_attacks(square);
        default:
            return 0;
    }
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
