// Buckets of a set in a header by counts of pieces, for tests of engines.
#include "features/general_set.h"

// Piece squares in buckets by enemy queens (0, 1, more) and by the own king's half of the board, which is mirrored.
struct ByQueens {
    static constexpr int kNumFeatures = 6 * 768, kMaxActive = 32, kBucketSize = 768, kNumVirtual = 768;

    NNUE_HOST_DEVICE static int orientation(int perspective, int king) {
        return (perspective ? 56 : 0) ^ ((king & 7) < 4 ? 7 : 0);
    }
    NNUE_HOST_DEVICE static int offset(int perspective, int king, const nnue::data::CodePlanes& board) {
        const nnue::data::Bitboard queens = board.of(9 ^ perspective);
        const int count = queens == 0 ? 0 : (queens & (queens - 1)) == 0 ? 1 : 2;
        return 768 * (2 * count + ((king ^ (perspective ? 56 : 0)) > 31));
    }
    NNUE_HOST_DEVICE static nnue::data::Bitboard partners(const nnue::data::CodePlanes&, int, int square) {
        return nnue::data::bit(square);
    }
    NNUE_HOST_DEVICE static int index(int piece, int from, int, int) { return 64 * piece + from; }
};
