// The input feature sets: one definition each, compiled for the CPU here and for the GPU by csrc/.
//
// A piece-square set, king-bucketed or plain, is three small functions of (perspective, own king): an index is
//     offset + 64 · plane(piece) + (square ^ orientation).
// A set with states adds what its counters give for the pieces on the board (StateCounter) to the offset.
// Sets of pairs of pieces are made in pairs.h. Sums of sets, and piece-square sets that a recipe declares, are put
// together at run time (feature_set.h). Index layouts: docs/feature-sets.md. Perspective 0 is white, 1 is
// black.
//
// To add a piece-square set, add a struct and its name to BasicSets. To add another set: general_sets.h.
#pragma once

#include <cstring>
#include <type_traits>

#include "chess/record.h"
#include "features/feature_set.h"
#include "features/pairs.h"

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

// For the occupancy byte of a rank: the files of its pieces, one byte per piece, the lowest file first.
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
    // One rank at a time and without a branch, because no branch predictor can guess how many pieces a rank has.
    for (int rank = 0; rank < 8; ++rank) {
        const auto byte = static_cast<std::uint8_t>(bits >> (8 * rank));
        const std::uint64_t list = detail::kFileLists.lists[byte] + 0x0808080808080808ULL * static_cast<unsigned>(rank);
        std::memcpy(squares, &list, sizeof list);
        squares += popcount(byte);
    }
#endif
}

// Index of the only nibble that is 15 among the 16 of `low` and then the 16 of `high`; 0 if there is none.
NNUE_HOST_DEVICE inline int find_fifteen(std::uint64_t low, std::uint64_t high) {
    const std::uint64_t in_low = fifteens(low), in_high = fifteens(high);
    if (in_low) return lowest(in_low) / 4;
    return in_high ? 16 + lowest(in_high) / 4 : 0;
}

// The piece code that a record's nibble stands for on `square`. Masks and no conditions: GCC
// turns a chain of conditions into a switch, and then it does not vectorise the loop around it.
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

// Which queens there are: 4 · min(3, those of the side to move) + min(3, those of the other side). `first` and `second`
// are the nibbles of a record, the first piece in the lowest bits.
NNUE_HOST_DEVICE inline int material_of(std::uint64_t first, std::uint64_t second, bool black_to_move) {
    constexpr std::uint64_t kOnes = 0x1111111111111111ULL;
    constexpr std::uint64_t kWhiteQueen = 2 * kQueen + kWhite, kBlackQueen = 2 * kQueen + kBlack;
    const auto count = [&](std::uint64_t code) {
        const std::uint64_t differs = kOnes * (15 ^ code);
        const int found = popcount(fifteens(first ^ differs)) + popcount(fifteens(second ^ differs));
        return found < 3 ? found : 3;
    };
    const int white = count(kWhiteQueen), black = count(kBlackQueen);
    return black_to_move ? 4 * black + white : 4 * white + black;
}

inline int record_material(const std::uint8_t* record, bool black_to_move) {
    std::uint64_t nibbles[2];
    std::memcpy(nibbles, record + 8, sizeof nibbles);
    return material_of(nibbles[0], nibbles[1], black_to_move);
}

enum class SetKind { kPieceSquare, kThreats, kPawnPairs };

struct PieceSquareSet {
    static constexpr SetKind kKind = SetKind::kPieceSquare;
    using Version = void;  // of Full_Threats
    static constexpr bool kHasStates = false;
};

struct Chess768 : PieceSquareSet {
    static constexpr const char* kName = "Chess768";
    static constexpr int kNumFeatures = 768, kMaxActive = 32, kBucketSize = 768, kNumVirtual = 0;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int, int) { return 0; }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) {
        return (code >> 1) + 6 * ((code & 1) ^ perspective);
    }
};

struct HalfKP : PieceSquareSet {
    static constexpr const char* kName = "HalfKP";
    static constexpr int kNumFeatures = 41024, kMaxActive = 30, kBucketSize = 641, kNumVirtual = 641;
    static constexpr bool kHasKings = false;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 63 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        return 641 * (king ^ orientation(perspective, king)) + 1;
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) { return code ^ perspective; }
};

struct HalfKA : PieceSquareSet {
    static constexpr const char* kName = "HalfKA";
    static constexpr int kNumFeatures = 49216, kMaxActive = 32, kBucketSize = 769, kNumVirtual = 769;
    static constexpr bool kHasKings = true;
    NNUE_HOST_DEVICE static constexpr int orientation(int perspective, int) { return perspective ? 56 : 0; }
    NNUE_HOST_DEVICE static constexpr int offset(int perspective, int king) {
        return 769 * (king ^ orientation(perspective, king)) + 1;
    }
    NNUE_HOST_DEVICE static constexpr int plane(int code, int perspective) { return code ^ perspective; }
};

struct HalfKAv2 : PieceSquareSet {
    static constexpr const char* kName = "HalfKAv2";
    static constexpr int kNumFeatures = 45056, kMaxActive = 32, kBucketSize = 704, kNumVirtual = 704;
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
    static constexpr int kNumFeatures = 32 * 64 * Planes, kMaxActive = 32, kBucketSize = 64 * Planes;
    static constexpr int kNumVirtual = 64 * Planes;
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

// HalfKAv2_hm where the bucket of a row is that of its king and of whether the enemy has a queen. `BucketOf` has the
// king's, on files e–h, rank by rank.
template <int Planes, int NumKings, const std::uint8_t (&BucketOf)[32]>
struct QueenBuckets : HalfKAv2HmBase<Planes> {
    using Base = HalfKAv2HmBase<Planes>;
    static constexpr int kNumFeatures = 2 * NumKings * 64 * Planes;
    static constexpr bool kHasStates = true;
    static constexpr int offset(int perspective, int king) {
        const int k = king ^ Base::orientation(perspective, king);
        return 2 * 64 * Planes * BucketOf[4 * (k >> 3) + (k & 7) - 4];
    }
    static constexpr StateCounter kCounters[kMaxCounters] = {
        {64 * Planes, {1 << (2 * kQueen + kBlack), 1 << (2 * kQueen + kWhite)}, 1}, {}};
    static constexpr const StateCounter* counters() { return kCounters; }
};

// The buckets of HalfKAv2_hm: h8 0, g8 1, … e1 31.
inline constexpr std::uint8_t kK32Buckets[32] = {31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16,
                                                 15, 14, 13, 12, 11, 10, 9,  8,  7,  6,  5,  4,  3,  2,  1,  0};
inline constexpr std::uint8_t kK16Buckets[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 8,  9,  10, 11,
                                                 12, 12, 13, 13, 12, 12, 13, 13, 14, 14, 15, 15, 14, 14, 15, 15};

struct K32Q2 : QueenBuckets<12, 32, kK32Buckets> {
    static constexpr const char* kName = "K32Q2";
};
struct K32Q2Planes11 : QueenBuckets<11, 32, kK32Buckets> {
    static constexpr const char* kName = "K32Q2_11";
};
struct K16Q2 : QueenBuckets<12, 16, kK16Buckets> {
    static constexpr const char* kName = "K16Q2";
};
struct K16Q2Planes11 : QueenBuckets<11, 16, kK16Buckets> {
    static constexpr const char* kName = "K16Q2_11";
};

template <class V>
struct FullThreats {
    using Version = V;
    static constexpr SetKind kKind = SetKind::kThreats;
    static constexpr int kNumFeatures = Version::kNumFeatures, kMaxActive = Version::kMaxThreats, kNumVirtual = 0;
};

// Stockfish's proposal "Full_Threatsv2": the pairs of v12 without rows that no position uses.
struct FullThreatsV2 : FullThreats<ThreatsV2> {
    static constexpr const char* kName = "Full_Threats_v2";
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

// 16 pawns form at most 96 pairs (tools/threat_bound.cpp), and a record with more pawns is refused (record_scan.h).
struct PP3Wide {
    static constexpr SetKind kKind = SetKind::kPawnPairs;
    using Version = void;
    static constexpr const char* kName = "PP_3Wide";
    static constexpr int kNumFeatures = 4560, kMaxActive = 96, kNumVirtual = 0;
};

// The number of a part, FeaturePart::basic, is its place in this list. Files and graphs store the name instead.
template <class... Sets>
struct BasicSetList {
    // visit.template operator()<Set>(number) for every set in order.
    template <class Visit>
    static void for_each(Visit&& visit) {
        int number = 0;
        (visit.template operator()<Sets>(number++), ...);
    }

    // visit(Set{}) for the set of that number.
    template <class Visit>
    static void with(int number, Visit&& visit) {
        int at = 0;
        (void)((at++ == number && (visit(Sets{}), true)) || ...);
    }
};
using BasicSets = BasicSetList<Chess768, HalfKP, HalfKA, HalfKAv2, HalfKAv2Hm, HalfKAv2Hm11, K32Q2, K32Q2Planes11,
                               K16Q2, K16Q2Planes11, FullThreatsV2, FullThreatsV10, FullThreatsV11, FullThreatsV12,
                               FullThreatsV14, FullThreatsV16, PP3Wide>;

// A piece-square set that is known at run time only, with the functions of the others.
struct DeclaredSet {
    static constexpr SetKind kKind = SetKind::kPieceSquare;
    static constexpr bool kHasKings = false;  // it may leave pieces out
    static constexpr bool kHasStates = true;  // it may have some
    const PieceSquareTables* tables;

    const StateCounter* counters() const { return tables->counters; }
    NNUE_HOST_DEVICE int orientation(int perspective, int king) const { return tables->orientation[perspective][king]; }
    NNUE_HOST_DEVICE int offset(int perspective, int king) const { return tables->offset[perspective][king]; }
};

// visit(set) with the set that the part is, of its own type.
template <class Visit>
inline void with_set(const FeaturePart& part, Visit&& visit) {
    if (part.basic == FeaturePart::kDeclared) {
        visit(DeclaredSet{&part.tables});
    } else {
        BasicSets::with(part.basic, visit);
    }
}

// The index of one piece in a perspective's row; orientation and offset are those of its king.
template <class Set>
NNUE_HOST_DEVICE constexpr int feature_index(int code, int square, int perspective, int orientation, int offset) {
    return offset + 64 * Set::plane(code, perspective) + (square ^ orientation);
}

// The first feature of the bucket that a perspective's row lies in: by its king, and by the state of the board.
template <class Set>
inline int bucket_offset(Set set, const Pieces& p, int perspective) {
    int offset = set.offset(perspective, p.king[perspective]);
    if constexpr (Set::kHasStates) {
        for (int k = 0; k < kMaxCounters && set.counters()[k].most > 0; ++k) {
            const StateCounter& counter = set.counters()[k];
            const unsigned codes = counter.codes[perspective];
            int count = 0;
            for (int i = 0; i < kMaxPieces; ++i) count += static_cast<int>(codes >> p.code[i] & 1) & (i < p.count);
            offset += counter.stride * (count < counter.most ? count : counter.most);
        }
    }
    return offset;
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
inline int write_threats(const CodePlanes& board, const Pieces& p, RowEnds rows) {
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
    } threats[Version::kMaxThreats];
    int count = 0;
    for (int i = 0; i < p.count; ++i) {
        const std::uint8_t from = p.square[i];
        code_at[from] = p.code[i];
        for (Bitboard left = targets[from]; left; left &= left - 1) {
            threats[count++] = {from, static_cast<std::uint8_t>(lowest(left))};
        }
    }
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

inline int write_pawn_pairs(const CodePlanes& board, const Pieces& p, RowEnds rows) {
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
            const int partner = lowest(partners);
            rows.white[count] = rows.first_feature + pawn_pair_index(white[square], white[partner]);
            rows.black[count] = rows.first_feature + pawn_pair_index(black[square], black[partner]);
            ++count;
        }
    }
    return count;
}

// Writes the features of a piece-square set by ascending square; returns how many. kMaxPieces entries of either row are
// written over, whatever the number of features; DeclaredSet may write over one more.
template <class Set>
inline int write_piece_squares(Set set, const Pieces& p, RowEnds rows) {
    std::int32_t* const row[2] = {rows.white, rows.black};
    int count = p.count;
    for (const int perspective : {0, 1}) {
        const int orientation = set.orientation(perspective, p.king[perspective]);
        const int offset = rows.first_feature + bucket_offset(set, p, perspective);
        if constexpr (std::is_same_v<Set, DeclaredSet>) {
            const std::int32_t* plane = set.tables->plane[perspective];
            count = 0;
            for (int i = 0; i < p.count; ++i) {
                row[perspective][count] = offset + plane[p.code[i]] + (p.square[i] ^ orientation);
                count += plane[p.code[i]] >= 0;
            }
        } else if constexpr (Set::kHasKings) {
            for (int i = 0; i < kMaxPieces; ++i) {  // those beyond the last piece mean nothing
                row[perspective][i] = feature_index<Set>(p.code[i], p.square[i], perspective, orientation, offset);
            }
        } else {
            count = 0;
            for (int i = 0; i < p.count; ++i) {
                if (p.code[i] >= 2 * kKing) continue;
                row[perspective][count++] =
                    feature_index<Set>(p.code[i], p.square[i], perspective, orientation, offset);
            }
        }
    }
    return count;
}

// Writes the entries that `set` adds to the rows of a sound record, and returns their number. `board` is used only by
// sets of pairs.
template <class Set>
inline int write_part(Set set, const CodePlanes& board, const Pieces& p, RowEnds rows) {
    if constexpr (Set::kKind == SetKind::kThreats) {
        return write_threats<typename Set::Version>(board, p, rows);
    } else if constexpr (Set::kKind == SetKind::kPawnPairs) {
        return write_pawn_pairs(board, p, rows);
    } else {
        return write_piece_squares(set, p, rows);
    }
}

// Writes both rows of a sound record, set.max_active entries each, and returns how many of them are features.
inline int expand_rows(const FeatureSet& set, const std::uint8_t* record, const Pieces& p, std::int32_t* white,
                       std::int32_t* black) {
    // A part may write over kMaxPieces entries, and the last part's may have less room.
    std::int32_t* const row[2] = {white, black};
    const CodePlanes board = code_planes(record);
    int count = 0;
    for (const FeaturePart& part : set.parts) {
        with_set(part, [&]<class Set>(Set one) {
            if (Set::kKind == SetKind::kPieceSquare && set.max_active - count <= kMaxPieces) {
                std::int32_t ends[2][kMaxPieces + 1];
                const int more = write_part(one, board, p, {ends[0], ends[1], part.first_feature});
                for (const int perspective : {0, 1}) {
                    std::memcpy(row[perspective] + count, ends[perspective],
                                sizeof(std::int32_t) * static_cast<std::size_t>(more));
                }
                count += more;
            } else {
                count += write_part(one, board, p, {white + count, black + count, part.first_feature});
            }
        });
    }
    for (int i = count; i < set.max_active; ++i) white[i] = black[i] = -1;
    return count;
}

// One perspective's row of a piece-square set in which every piece has a feature: no branch, and vectors. The two rows
// do not overlap, and a separate function for each makes this visible to the compiler.
template <class Set>
inline void write_whole_row(Set set, const Pieces& p, int perspective, std::int32_t* __restrict row) {
    const int orientation = set.orientation(perspective, p.king[perspective]);
    const int offset = bucket_offset(set, p, perspective);
    for (int i = 0; i < Set::kMaxActive; ++i) {
        const int index = feature_index<Set>(p.code[i], p.square[i], perspective, orientation, offset);
        row[i] = i < p.count ? index : -1;
    }
}

// Expands a set of one part, whose type the caller has looked up once for a whole batch.
template <class Set>
inline int expand_rows(Set set, int max_active, const std::uint8_t* record, const Pieces& p, std::int32_t* white,
                       std::int32_t* black) {
    int count;
    if constexpr (Set::kKind != SetKind::kPieceSquare) {
        count = write_part(set, code_planes(record), p, {white, black, 0});
    } else if constexpr (Set::kHasKings) {
        write_whole_row(set, p, 0, white);
        write_whole_row(set, p, 1, black);
        return p.count;
    } else {
        std::int32_t ends[2][kMaxPieces + 1];  // a row may have room for less
        count = write_piece_squares(set, p, {ends[0], ends[1], 0});
        std::memcpy(white, ends[0], sizeof(std::int32_t) * static_cast<std::size_t>(count));
        std::memcpy(black, ends[1], sizeof(std::int32_t) * static_cast<std::size_t>(count));
    }
    for (int i = count; i < max_active; ++i) white[i] = black[i] = -1;
    return count;
}

}  // namespace NNUE_ISA

}  // namespace nnue::data
