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

struct AttackTables {
    std::array<std::array<Line, 4>, 64> lines{};  // rank, file, diagonal, anti-diagonal
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
