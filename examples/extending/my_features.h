// A feature set of your own in C++: pairs of pieces that stand next to each other.
#pragma once

#include "features/general_set.h"

struct Neighbours {
    // Two pieces, and where the second stands, seen from the first: to the right, or on the rank above.
    static constexpr int kNumFeatures = 12 * 12 * 4;
    // Each of 32 pieces has at most 8 neighbours, and a pair counts once.
    static constexpr int kMaxActive = 32 * 8 / 2;
    static constexpr int kBucketSize = 0, kNumVirtual = 0;

    NNUE_HOST_DEVICE static int orientation(int perspective, int) { return perspective ? 56 : 0; }

    NNUE_HOST_DEVICE static int offset(int, int) { return 0; }

    // The neighbours on higher squares.
    NNUE_HOST_DEVICE static nnue::data::Bitboard partners(const nnue::data::CodePlanes& board, int, int square) {
        const nnue::data::Bitboard own = nnue::data::bit(square);
        const nnue::data::Bitboard east = own << 1 & ~0x0101010101010101ULL, west = own >> 1 & ~0x8080808080808080ULL;
        return (east | (west | own | east) << 8) & board.occupied;
    }

    NNUE_HOST_DEVICE static int index(int piece, int from, int partner, int to) {
        if (from > to) return index(partner, to, piece, from);  // black sees the ranks the other way round
        const int step = to - from;                             // 1, 7, 8 or 9
        return 4 * (12 * piece + partner) + (step == 1 ? 0 : step - 6);
    }
};
