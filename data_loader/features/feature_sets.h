// The input feature sets: one definition each, compiled for the CPU here and for the GPU by csrc/.
//
// A king-bucketed or plain piece-square set is four small functions of (perspective, own king): an index is
//     offset + 64 · plane(piece) + (square ^ orientation).
// Sets of pairs of pieces are made in pairs.h, and a combined set is several sets side by side: their indices follow
// one another, and so do their entries in a row. Index layouts: docs/data.md, "Feature sets". Perspective 0 is white, 1
// is black.
#pragma once

#include "chess/record.h"
#include "features/pairs.h"
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

// The piece code that a record's nibble stands for on `square`. Masks, not choices: of a chain of choices GCC makes a
// switch, and then no vector code of the loop around it.
NNUE_HOST_DEVICE constexpr std::uint8_t plain_code(std::uint8_t nibble, std::uint8_t square) {
    constexpr unsigned kRooks = kWhiteCastlingRook - (kRook << 1 | kWhite);
    static_assert(kBlackCastlingRook - (kRook << 1 | kBlack) == kRooks);
    constexpr unsigned kKings = kRooks - (kBlackKingToMove - (kKing << 1 | kBlack));
    const auto mask = [](bool condition) { return static_cast<std::uint8_t>(0 - condition); };
    const std::uint8_t colour = square >> 5 & 1;  // of a pushed pawn: on rank 4 white, on rank 5 black
    return static_cast<std::uint8_t>(nibble - (mask(nibble == kPushedPawn) & (kPushedPawn - colour)) -
                                     (mask(nibble > kPushedPawn) & kRooks) +
                                     (mask(nibble == kBlackKingToMove) & kKings));
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

enum class SetKind { kPieceSquare, kThreats, kPawnPairs, kCombined };

struct PieceSquareSet {
    static constexpr SetKind kKind = SetKind::kPieceSquare;
    using Version = void;  // of Full_Threats
};

struct Chess768 : PieceSquareSet {
    static constexpr const char* kName = "Chess768";
    static constexpr int kNumFeatures = 768, kMaxActive = 32, kNumVirtual = 0;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int, int) { return 0; }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) {
        return (code >> 1) + 6 * ((code & 1) ^ perspective);
    }
};

struct HalfKP : PieceSquareSet {
    static constexpr const char* kName = "HalfKP";
    static constexpr int kNumFeatures = 41024, kMaxActive = 30, kNumVirtual = 641;
    static constexpr bool kHasKings = false;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 63 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        return 641 * (king ^ orientation(perspective, king)) + 1;
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) { return code ^ perspective; }
};

struct HalfKA : PieceSquareSet {
    static constexpr const char* kName = "HalfKA";
    static constexpr int kNumFeatures = 49216, kMaxActive = 32, kNumVirtual = 769;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        return 769 * (king ^ orientation(perspective, king)) + 1;
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) { return code ^ perspective; }
};

struct HalfKAv2 : PieceSquareSet {
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
struct HalfKAv2HmBase : PieceSquareSet {
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
    static constexpr const char* kName = "HalfKAv2_hm";
};

struct HalfKAv2Hm11 : HalfKAv2HmBase<11> {
    static constexpr const char* kName = "HalfKAv2_hm_11";
};

// Entries of a row for the threats: no position with legal piece counts has been seen to need more than 150. What would
// not fit is left out, the last pairs first.
template <class V>
struct FullThreats {
    using Version = V;
    static constexpr SetKind kKind = SetKind::kThreats;
    static constexpr int kNumFeatures = Version::kNumFeatures, kMaxActive = 160, kNumVirtual = 0;
};

struct FullThreatsV10 : FullThreats<ThreatsV10> {
    static constexpr const char* kName = "Full_Threats_v10";
};
struct FullThreatsV11 : FullThreats<ThreatsV11> {
    static constexpr const char* kName = "Full_Threats_v11";
};
struct FullThreatsV12 : FullThreats<ThreatsV12> {
    static constexpr const char* kName = "Full_Threats_v12";
};
struct FullThreatsV14 : FullThreats<ThreatsV14> {
    static constexpr const char* kName = "Full_Threats_v14";
};
struct FullThreatsV16 : FullThreats<ThreatsV16> {
    static constexpr const char* kName = "Full_Threats_v16";
};

struct PP3Wide {
    static constexpr SetKind kKind = SetKind::kPawnPairs;
    using Version = void;
    static constexpr const char* kName = "PP_3Wide";
    static constexpr int kNumFeatures = 4560, kMaxActive = 96, kNumVirtual = 0;
};

namespace detail {

template <class... Versions>
struct FirstVersion {
    using type = void;
};
template <class Version, class... Versions>
struct FirstVersion<Version, Versions...> {
    using type = Version;
};
template <class... Versions>
struct FirstVersion<void, Versions...> : FirstVersion<Versions...> {};

}  // namespace detail

template <class... Sets>
struct Combined {
    static constexpr SetKind kKind = SetKind::kCombined;
    using Version = typename detail::FirstVersion<typename Sets::Version...>::type;
    static constexpr int kNumFeatures = (Sets::kNumFeatures + ...), kMaxActive = (Sets::kMaxActive + ...);
    static constexpr int kNumVirtual = 0;  // its parts may have some

    // visit(part, its first feature) for each part in order.
    template <class Visit>
    NNUE_HOST_DEVICE static constexpr void for_each_part(Visit&& visit) {
        int first_feature = 0;
        ((visit(Sets{}, first_feature), first_feature += Sets::kNumFeatures), ...);
    }
};

struct InputV10 : Combined<HalfKAv2Hm, FullThreatsV10> {
    static constexpr const char* kName = "HalfKAv2_hm+Full_Threats_v10";
};
struct InputV11 : Combined<HalfKAv2Hm, FullThreatsV11> {
    static constexpr const char* kName = "HalfKAv2_hm+Full_Threats_v11";
};
struct InputV12 : Combined<HalfKAv2Hm, FullThreatsV12> {
    static constexpr const char* kName = "HalfKAv2_hm+Full_Threats_v12";
};
struct InputV14 : Combined<HalfKAv2Hm, FullThreatsV14> {
    static constexpr const char* kName = "HalfKAv2_hm+Full_Threats_v14";
};
struct InputV16 : Combined<HalfKAv2Hm, FullThreatsV16, PP3Wide> {
    static constexpr const char* kName = "HalfKAv2_hm+Full_Threats_v16+PP_3Wide";
};

// A set's number, FeatureSetId, is its place in this list.
template <class... Sets>
struct FeatureSetList {
    static constexpr auto kInfos = [] {
        int number = 0;
        return std::array{FeatureSetInfo{static_cast<FeatureSetId>(number++), Sets::kName, Sets::kNumFeatures,
                                         Sets::kMaxActive, Sets::kNumVirtual}...};
    }();

    // visitor.template operator()<Set>() for the set of that number.
    template <class Visitor>
    static void visit(FeatureSetId id, Visitor&& visitor) {
        int number = 0;
        (void)((number++ == static_cast<int>(id) && (visitor.template operator()<Sets>(), true)) || ...);
    }
};
using FeatureSets = FeatureSetList<Chess768, HalfKP, HalfKA, HalfKAv2, HalfKAv2Hm, HalfKAv2Hm11, FullThreatsV10,
                                   FullThreatsV11, FullThreatsV12, FullThreatsV14, FullThreatsV16, PP3Wide, InputV10,
                                   InputV11, InputV12, InputV14, InputV16>;

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

// Both rows of a position from its next free entries on, while its features are written on the CPU.
struct RowEnds {
    std::int32_t* __restrict white;
    std::int32_t* __restrict black;
    int first_feature;  // of the part that is written
};

template <class Version>
inline constexpr ThreatTables<Version> kThreatTables{};

// targets[square] for every piece of a type: where it threatens pieces. Type by type, so that nothing branches on it.
template <class Version, int Type>
inline void find_threats(const CodePlanes& board, Bitboard* targets) {
    const Bitboard victims = victims_of<Version>(board, Type);
    for (Bitboard left = board.of_type(Type); left; left &= left - 1) {
        const int square = lowest(left), code = 2 * Type + static_cast<int>(board.black() >> square & 1);
        targets[square] = threats_of(kThreatTables<Version>, board, victims, code, square);
    }
}

template <class Version>
inline int write_threats(const CodePlanes& board, const Pieces& p, int max_active, RowEnds rows) {
    Bitboard targets[64];
    find_threats<Version, kPawn>(board, targets);
    find_threats<Version, kKnight>(board, targets);
    find_threats<Version, kBishop>(board, targets);
    find_threats<Version, kRook>(board, targets);
    find_threats<Version, kQueen>(board, targets);
    find_threats<Version, kKing>(board, targets);
    std::uint8_t code_at[64];
    struct {
        std::uint8_t from, to;
    } threats[kMaxPieces * 8];
    int count = 0;
    for (int i = 0; i < p.count; ++i) {
        const std::uint8_t from = p.square[i];
        code_at[from] = p.code[i];
        for (Bitboard left = targets[from]; left; left &= left - 1) {
            threats[count++] = {from, static_cast<std::uint8_t>(lowest(left))};
        }
    }
    if (count > max_active) count = max_active;
    const auto& tables = kThreatTables<Version>;
    const int white = threat_orientation(0, p.king[0]), black = threat_orientation(1, p.king[1]);
    for (int i = 0; i < count; ++i) {
        const auto [from, to] = threats[i];
        const int attacker = code_at[from], victim = code_at[to];
        rows.white[i] = rows.first_feature + threat_index(tables, white, 0, attacker, from, victim, to);
        rows.black[i] = rows.first_feature + threat_index(tables, black, 1, attacker, from, victim, to);
    }
    return count;
}

inline int write_pawn_pairs(const CodePlanes& board, const Pieces& p, int max_active, RowEnds rows) {
    const Bitboard pawns = board.pawns();
    const int orientation[2] = {threat_orientation(0, p.king[0]), threat_orientation(1, p.king[1])};
    std::uint8_t white[64], black[64];  // by square: the pawns as the two perspectives see them
    for (Bitboard left = pawns; left; left &= left - 1) {
        const int square = lowest(left);
        const bool is_black = board.black() >> square & 1;
        white[square] = static_cast<std::uint8_t>(pawn_number(orientation[0], is_black, square));
        black[square] = static_cast<std::uint8_t>(pawn_number(orientation[1], !is_black, square));
    }
    int count = 0;
    for (Bitboard left = pawns; left; left &= left - 1) {
        const int square = lowest(left);
        for (Bitboard partners = pawn_partners(pawns, square); partners; partners &= partners - 1) {
            if (count == max_active) return count;
            const int partner = lowest(partners);
            rows.white[count] = rows.first_feature + pawn_pair_index(white[square], white[partner]);
            rows.black[count] = rows.first_feature + pawn_pair_index(black[square], black[partner]);
            ++count;
        }
    }
    return count;
}

// Writes what `part`, a feature set that is none of several, adds to the rows of a sound record; returns how much.
template <class Part>
inline int write_part(Part /*part*/, const CodePlanes& board, const Pieces& p, RowEnds rows) {
    if constexpr (Part::kKind == SetKind::kThreats) {
        return write_threats<typename Part::Version>(board, p, Part::kMaxActive, rows);
    } else if constexpr (Part::kKind == SetKind::kPawnPairs) {
        return write_pawn_pairs(board, p, Part::kMaxActive, rows);
    } else {
        static_assert(Part::kHasKings);
        std::int32_t* const row[2] = {rows.white, rows.black};
        for (const int perspective : {0, 1}) {
            const int orientation = Part::orientation(perspective, p.king[perspective]);
            const int offset = rows.first_feature + Part::offset(perspective, p.king[perspective]);
            for (int i = 0; i < kMaxPieces; ++i) {  // those beyond the last piece are written over
                row[perspective][i] = feature_index<Part>(p.code[i], p.square[i], perspective, orientation, offset);
            }
        }
        return p.count;
    }
}

// Writes both rows of a sound record, Set::kMaxActive entries each, and returns how many of them are features.
template <class Set>
inline int expand_rows(const std::uint8_t* record, const Pieces& p, std::int32_t* white, std::int32_t* black) {
    if constexpr (Set::kKind == SetKind::kPieceSquare) {
        expand_row<Set>(p, 0, white);
        expand_row<Set>(p, 1, black);
        return Set::kHasKings ? p.count : p.count - 2;
    } else {
        const CodePlanes board = code_planes(record);
        int count = 0;
        const auto write = [&](auto part, int first_feature) {
            count += write_part(part, board, p, {white + count, black + count, first_feature});
        };
        if constexpr (Set::kKind == SetKind::kCombined) {
            Set::for_each_part(write);
        } else {
            write(Set{}, 0);
        }
        for (int i = count; i < Set::kMaxActive; ++i) white[i] = black[i] = -1;
        return count;
    }
}

}  // namespace NNUE_ISA

}  // namespace nnue::data
