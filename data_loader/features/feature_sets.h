// The input feature sets: one definition each, compiled for the CPU here and for the GPU by csrc/.
//
// A king-bucketed or plain piece-square set is four small functions of (perspective, own king): an index is
//     offset + 64 · plane(piece) + (square ^ orientation).
// Index layouts: docs/data.md, "Feature sets". Perspective 0 is white, 1 is black.
#pragma once

#include "chess/record.h"
#include "features/registry.h"

namespace nnue::data {

// The pieces of one position in ascending square order; entries from `count` on mean nothing.
struct Pieces {
    alignas(32) std::uint8_t square[kMaxPieces + 8];
    alignas(32) std::uint8_t code[kMaxPieces];  // 2·type + colour
    int count;
    int king[2];  // squares, by colour
    bool black_to_move;
};

inline namespace NNUE_ISA {

#if !defined(__CUDA_ARCH__)
namespace detail {

// For each rank's occupancy byte the files that are set, packed to the low end, a byte each.
struct FileLists {
    std::uint64_t lists[256]{};
    constexpr FileLists() {
        for (unsigned byte = 0; byte < 256; ++byte) {
            int n = 0;
            for (unsigned file = 0; file < 8; ++file) {
                if (byte >> file & 1) lists[byte] |= std::uint64_t{file} << (8 * n++);
            }
        }
    }
};
inline constexpr FileLists kFileLists{};

}  // namespace detail
#endif

// Writes the squares of `bits` in ascending order; at least 32 + 8 bytes must be writable, and what follows the last
// square is unspecified.
NNUE_HOST_DEVICE inline void list_squares(Bitboard bits, std::uint8_t* squares) {
#if defined(__CUDA_ARCH__)
    for (; bits; bits &= bits - 1) *squares++ = static_cast<std::uint8_t>(lowest(bits));
#else
    // A rank at a time, without a branch: how many pieces there are is noise to the branch predictor.
    for (int rank = 0; rank < 8; ++rank) {
        const auto byte = static_cast<std::uint8_t>(bits >> (8 * rank));
        const std::uint64_t list = detail::kFileLists.lists[byte] + 0x0808080808080808ULL * static_cast<unsigned>(rank);
        std::memcpy(squares, &list, sizeof list);
        squares += popcount(byte);
    }
#endif
}

// Index of the one nibble of `low`, `high` (16 each, low first) that is 15; 0 if there is none.
NNUE_HOST_DEVICE inline int find_fifteen(std::uint64_t low, std::uint64_t high) {
    const std::uint64_t in_low = fifteens(low), in_high = fifteens(high);
    if (in_low) return lowest(in_low) / 4;
    return in_high ? 16 + lowest(in_high) / 4 : 0;
}

// The piece code that a record's nibble stands for on `square`.
NNUE_HOST_DEVICE constexpr std::uint8_t plain_code(std::uint8_t nibble, std::uint8_t square) {
    const std::uint8_t colour = square >> 5 & 1;
    std::uint8_t plain = nibble;
    plain = nibble == kPushedPawn ? colour : plain;  // on rank 4 white, on rank 5 black
    plain = nibble == kWhiteCastlingRook ? std::uint8_t{kRook << 1 | kWhite} : plain;
    plain = nibble == kBlackCastlingRook ? std::uint8_t{kRook << 1 | kBlack} : plain;
    plain = nibble == kBlackKingToMove ? std::uint8_t{kKing << 1 | kBlack} : plain;
    return plain;
}

// Reads the board of a record that is known to be sound: unpack() accepted it.
NNUE_HOST_DEVICE inline Pieces pieces_of_record(const std::uint8_t* record) {
    Pieces p;
    const Bitboard all = record_occupancy(record);
    p.count = popcount(all);
    list_squares(all, p.square);
    for (int i = 0; i < kMaxPieces / 2; ++i) {
        p.code[2 * i] = record[8 + i] & 15;
        p.code[2 * i + 1] = record[8 + i] >> 4;
    }
    std::uint64_t nibbles[2];
    std::memcpy(nibbles, record + 8, sizeof nibbles);
    // The white king is 10, the black one 11, or 15 to move: turn each into 15, and nothing else.
    constexpr std::uint64_t kFives = 0x5555555555555555ULL, kFours = 0x4444444444444444ULL;
    const int white = find_fifteen(nibbles[0] ^ kFives, nibbles[1] ^ kFives);
    const int black = find_fifteen(nibbles[0] | kFours, nibbles[1] | kFours);
    p.king[0] = p.square[white];
    p.king[1] = p.square[black];
    p.black_to_move = p.code[black] == kBlackKingToMove;
    for (int i = 0; i < kMaxPieces; ++i) {
        p.code[i] = plain_code(p.code[i], p.square[i]);
    }
    return p;
}

struct Chess768 {
    static constexpr FeatureSetId kId = FeatureSetId::kChess768;
    static constexpr const char* kName = "Chess768";
    static constexpr int kNumFeatures = 768, kMaxActive = 32, kNumVirtual = 0;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int, int) { return 0; }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) {
        return (code >> 1) + 6 * ((code & 1) ^ perspective);
    }
};

struct HalfKP {
    static constexpr FeatureSetId kId = FeatureSetId::kHalfKP;
    static constexpr const char* kName = "HalfKP";
    static constexpr int kNumFeatures = 41024, kMaxActive = 30, kNumVirtual = 641;
    static constexpr bool kHasKings = false;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 63 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        return 641 * (king ^ orientation(perspective, king)) + 1;
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) { return code ^ perspective; }
};

struct HalfKA {
    static constexpr FeatureSetId kId = FeatureSetId::kHalfKA;
    static constexpr const char* kName = "HalfKA";
    static constexpr int kNumFeatures = 49216, kMaxActive = 32, kNumVirtual = 769;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        return 769 * (king ^ orientation(perspective, king)) + 1;
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) { return code ^ perspective; }
};

struct HalfKAv2 {
    static constexpr FeatureSetId kId = FeatureSetId::kHalfKAv2;
    static constexpr const char* kName = "HalfKAv2";
    static constexpr int kNumFeatures = 45056, kMaxActive = 32, kNumVirtual = 704;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        return 704 * (king ^ orientation(perspective, king));
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) {
        return code >= 2 * kKing ? 10 : code ^ perspective;
    }
};

// Mirrored so that the own king is on files e–h. Planes = 12 is what is trained (kings of both sides apart), 11 what an
// engine reads (both kings share a plane).
template <int Planes>
struct HalfKAv2HmBase {
    static constexpr int kNumFeatures = 32 * 64 * Planes, kMaxActive = 32, kNumVirtual = 64 * Planes;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int king) {
        return (perspective ? 56 : 0) ^ ((king & 7) < 4 ? 7 : 0);
    }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        const int k = king ^ orientation(perspective, king);
        return 64 * Planes * (4 * (7 - (k >> 3)) + (7 - (k & 7)));
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) {
        return Planes == 11 && code >= 2 * kKing ? 10 : code ^ perspective;
    }
};

struct HalfKAv2Hm : HalfKAv2HmBase<12> {
    static constexpr FeatureSetId kId = FeatureSetId::kHalfKAv2Hm;
    static constexpr const char* kName = "HalfKAv2_hm";
};

struct HalfKAv2Hm11 : HalfKAv2HmBase<11> {
    static constexpr FeatureSetId kId = FeatureSetId::kHalfKAv2Hm11;
    static constexpr const char* kName = "HalfKAv2_hm_11";
};

// In the order of FeatureSetId.
template <class... Sets>
struct FeatureSetList {
    static constexpr FeatureSetInfo kInfos[] = {
        {Sets::kId, Sets::kName, Sets::kNumFeatures, Sets::kMaxActive, Sets::kNumVirtual}...};
};
using FeatureSets = FeatureSetList<Chess768, HalfKP, HalfKA, HalfKAv2, HalfKAv2Hm, HalfKAv2Hm11>;

// The index of one piece in a perspective's row; orientation and offset are those of its king.
template <class Set>
NNUE_HOST_DEVICE constexpr int feature_index(int code, int square, int perspective, int orientation, int offset) {
    return offset + 64 * Set::plane(code, perspective) + (square ^ orientation);
}

// Writes the Set::kMaxActive entries of one perspective's row: active indices by ascending square, then −1.
template <class Set>
NNUE_HOST_DEVICE inline void expand_row(const Pieces& p, int perspective, std::int32_t* __restrict row) {
    const int orientation = Set::orientation(perspective, p.king[perspective]);
    const int offset = Set::offset(perspective, p.king[perspective]);
    if constexpr (Set::kHasKings) {
        for (int i = 0; i < Set::kMaxActive; ++i) {
            const int index = feature_index<Set>(p.code[i], p.square[i], perspective, orientation, offset);
            row[i] = i < p.count ? index : -1;
        }
    } else {
        int n = 0;
        for (int i = 0; i < p.count; ++i) {
            if (p.code[i] < 2 * kKing) {
                row[n++] = feature_index<Set>(p.code[i], p.square[i], perspective, orientation, offset);
            }
        }
        for (; n < Set::kMaxActive; ++n) row[n] = -1;
    }
}

// Calls `visitor.template operator()<Set>()` for the set of that id.
template <class Visitor>
decltype(auto) visit_feature_set(FeatureSetId id, Visitor&& visitor) {
    switch (id) {
        case FeatureSetId::kChess768:
            return visitor.template operator()<Chess768>();
        case FeatureSetId::kHalfKP:
            return visitor.template operator()<HalfKP>();
        case FeatureSetId::kHalfKA:
            return visitor.template operator()<HalfKA>();
        case FeatureSetId::kHalfKAv2:
            return visitor.template operator()<HalfKAv2>();
        case FeatureSetId::kHalfKAv2Hm11:
            return visitor.template operator()<HalfKAv2Hm11>();
        case FeatureSetId::kHalfKAv2Hm:
            break;
    }
    return visitor.template operator()<HalfKAv2Hm>();
}

}  // namespace NNUE_ISA

}  // namespace nnue::data
