// Included by the header of your own feature set, for engines: only the board that its functions get.
// The trainer compiles the same header with data_loader/features/general_set.h, which has the contract.
#pragma once

#include <cstdint>

#ifndef NNUE_HOST_DEVICE
#define NNUE_HOST_DEVICE
#endif

namespace nnue::data {

using Bitboard = std::uint64_t;

enum PieceType { kPawn, kKnight, kBishop, kRook, kQueen, kKing };
inline constexpr int kNoPiece = 12;

inline int popcount(Bitboard bits) {
    int count = 0;
    for (; bits; bits &= bits - 1) ++count;
    return count;
}

// Index of the lowest set bit; `bits` must not be 0.
inline int lowest(Bitboard bits) {
    return popcount((bits & (~bits + 1)) - 1);
}

constexpr Bitboard bit(int square) {
    return Bitboard{1} << square;
}

// Bits below `square`.
constexpr Bitboard below(int square) {
    return bit(square) - 1;
}

// The board as bitboards: bit k of the piece code, 2 · type + colour, on each square, 0 where it is empty.
struct CodePlanes {
    Bitboard occupied;
    Bitboard bits[4];  // colour, then the three bits of the piece type

    Bitboard black() const { return bits[0]; }
    Bitboard of_type(int type) const {
        const auto differs = [this](int k, int bit) { return bits[k + 1] ^ (Bitboard{0} - Bitboard(bit & 1)); };
        return occupied & ~(differs(0, type) | differs(1, type >> 1) | differs(2, type >> 2));
    }
    Bitboard of(int code) const { return of_type(code >> 1) & (black() ^ (Bitboard{0} - Bitboard(~code & 1))); }
    int code_at(int square) const {
        int code = 0;
        for (int k = 0; k < 4; ++k) code |= static_cast<int>(bits[k] >> square & 1) << k;
        return occupied >> square & 1 ? code : kNoPiece;
    }
    int king(int color) const { return lowest(of(2 * kKing + color)); }
    Bitboard pawns() const { return of_type(kPawn) & 0x00ffffffffffff00ULL; }
};

}  // namespace nnue::data
