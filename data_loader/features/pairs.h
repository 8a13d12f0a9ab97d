// The feature sets whose features are pairs of pieces: Full_Threats (what attacks what) and PP_3Wide (pawns side by
// side). One definition for CPU and GPU, like feature_sets.h. Index layouts: docs/feature-sets.md.
//
// A set first lists the pairs of a position, which is the same work for both perspectives, and then gives each pair its
// index for each perspective. So both rows of a position have the same number of features, in the same order.
#pragma once

#include "chess/attacks.h"
#include "chess/bits.h"
#include "chess/record.h"

namespace nnue::data {

// The common part of all versions. slot(attacker, victim), of codes as the perspective sees them, numbers the blocks
// of an attacker's features, of which it has slots(attacker); −1: no feature.
template <class Version>
struct PlainSlots {
    static constexpr bool kMerged = false;
    static constexpr int slots(int attacker) { return Version::kSlots[attacker / 2]; }
    static constexpr int slot(int attacker, int victim) {
        const int own = Version::kVictims[attacker / 2][victim / 2];
        return own < 0 ? -1 : victim % 2 * (slots(attacker) / 2) + own;
    }
};

// One version of Full_Threats: kVictims[attacker][victim] numbers the victims of each attacking piece type, −1 for a
// pair that is not a feature. kSlots[attacker] counts own and enemy victims together; with kPushes a pawn also
// "attacks" a pawn on the square ahead. kMaxThreats: no record has more, whatever its pieces are.
// tools/threat_bound.cpp proves it.
struct ThreatsV10 : PlainSlots<ThreatsV10> {
    static constexpr int kNumFeatures = 79856, kMaxThreats = 192;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {6, 12, 10, 10, 12, 8};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, -1, 4},
                                           {0, 1, 2, 3, -1, 4},   {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, -1, -1}};
};

struct ThreatsV11 : PlainSlots<ThreatsV11> {
    static constexpr int kNumFeatures = 66864, kMaxThreats = 168;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {6, 10, 8, 8, 10, 8};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},  {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1}};
};

struct ThreatsV12 : PlainSlots<ThreatsV12> {
    static constexpr int kNumFeatures = 60144, kMaxThreats = 160;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {6, 10, 8, 8, 10, 0};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},  {0, 1, 2, 3, 4, -1}, {-1, -1, -1, -1, -1, -1}};
};

// v12 in fewer rows. Pairs of one type other than pawns are listed from the higher square, so that those of different
// colours find room in the cells "from below to above" of the block of pairs of the same colour (kMerged). Of two
// opposing pawns the enemy's attacks.
struct ThreatsV2 : ThreatsV12 {
    static constexpr int kNumFeatures = 53564;
    static constexpr bool kMerged = true;
    static constexpr int slots(int attacker) {
        constexpr int kSlotsOf[12] = {5, 6, 9, 9, 7, 7, 7, 7, 9, 9, 0, 0};
        return kSlotsOf[attacker];
    }
    // Victims are own P, enemy P, own N, enemy N, …
    static constexpr int slot(int attacker, int victim) {
        constexpr int kOwnPawn[12] = {0, -1, 1, 3, -1, -1, 2, 4, -1, -1, -1, -1};
        constexpr int kEnemyPawn[12] = {0, 3, 1, 4, -1, -1, 2, 5, -1, -1, -1, -1};
        constexpr int kPiece[6][12] = {{},
                                       {0, 5, 1, 1, 2, 6, 3, 7, 4, 8, -1, -1},
                                       {0, 4, 1, 5, 2, 2, 3, 6, -1, -1, -1, -1},
                                       {0, 4, 1, 5, 2, 6, 3, 3, -1, -1, -1, -1},
                                       {0, 5, 1, 6, 2, 7, 3, 8, 4, 4, -1, -1},
                                       {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}};
        return attacker == 0 ? kOwnPawn[victim] : attacker == 1 ? kEnemyPawn[victim] : kPiece[attacker / 2][victim];
    }
};

struct ThreatsV14 : ThreatsV12 {
    static constexpr int kNumFeatures = 60720;
    static constexpr bool kPushes = true;
};

struct ThreatsV16 : PlainSlots<ThreatsV16> {
    static constexpr int kNumFeatures = 59808, kMaxThreats = 160;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {4, 10, 8, 8, 10, 0};
    static constexpr int kVictims[6][6] = {{-1, 0, -1, 1, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},   {0, 1, 2, 3, 4, -1}, {-1, -1, -1, -1, -1, -1}};
};

inline namespace NNUE_ISA {

// The board as bitboards: bit k of the piece code on each square, 0 where it is empty.
struct CodePlanes {
    Bitboard occupied;
    Bitboard bits[4];  // colour, then the three bits of the piece type

    NNUE_HOST_DEVICE Bitboard black() const { return bits[0]; }
    NNUE_HOST_DEVICE Bitboard of_type(int type) const {
        const auto differs = [this](int k, int bit) { return bits[k + 1] ^ (Bitboard{0} - (bit & 1)); };
        return occupied & ~(differs(0, type) | differs(1, type >> 1) | differs(2, type >> 2));
    }
    // Pieces of a code, 2·type + colour.
    NNUE_HOST_DEVICE Bitboard of(int code) const {
        return of_type(code >> 1) & (black() ^ (Bitboard{0} - (~code & 1)));
    }
    // The code of the piece on a square; kNoPiece if there is none.
    NNUE_HOST_DEVICE int code_at(int square) const {
        int code = 0;
        for (int k = 0; k < 4; ++k) code |= static_cast<int>(bits[k] >> square & 1) << k;
        return occupied >> square & 1 ? code : static_cast<int>(kNoPiece);
    }
    NNUE_HOST_DEVICE int king(int color) const { return lowest(of(kKing << 1 | color)); }
    // Pawns on ranks 2 to 7, where features are. Only broken records have pawns elsewhere.
    NNUE_HOST_DEVICE Bitboard pawns() const { return of_type(kPawn) & 0x00ffffffffffff00ULL; }
};

// The board of a record that is known to be sound. It agrees with plain_code().
inline CodePlanes code_planes(const std::uint8_t* record) {
    std::uint64_t nibbles[2];
    std::memcpy(nibbles, record + 8, sizeof nibbles);
    const Bitboard all = record_occupancy(record);
    const auto [b0, b1, b2, b3] = detail::planes_of_nibbles(nibbles, all).bits;
    const Bitboard special = b3 & b2, plain = ~special;  // codes 12 to 15
    const Bitboard pushed = special & ~b1 & ~b0, king = special & b1 & b0, rooks = special ^ pushed ^ king;
    constexpr Bitboard kBlackHalf = 0xffffffff00000000ULL;
    return {all,
            {(plain & b0) | (pushed & kBlackHalf) | (rooks & b1) | king, (plain & b1) | rooks | king,
             (plain & b2) | rooks, (plain & b3) | king}};
}

// Everything that the threats of one version look up, 12 KiB. Both real pieces, white ones even, and those that a
// perspective sees, own ones even, move up the board if their code is even.
template <class Version>
struct alignas(16) ThreatTables {
    detail::Line lines[64][4]{};     // AttackTables::lines
    Bitboard reach[12][64]{};        // by code and square: attacks on an empty board
    std::int32_t block[12][12]{};    // by codes of attacker and victim: where the indices of such pairs start
    std::uint16_t offset[12][64]{};  // by code and square: how many squares can be attacked from all lower ones

    constexpr ThreatTables() {
        int total[12]{};
        for (int s = 0; s < 64; ++s) {
            for (int line = 0; line < 4; ++line) lines[s][line] = detail::kAttacks.lines[s][line];
            for (const int color : {kWhite, kBlack}) {
                const int ahead = color == kWhite ? s + 8 : s - 8;
                const Bitboard push = Version::kPushes ? bit(ahead & 63) : 0;
                Bitboard straight = 0, diagonal = 0;
                for (const detail::Line& line : {lines[s][0], lines[s][1]}) straight |= line.lower | line.upper;
                for (const detail::Line& line : {lines[s][2], lines[s][3]}) diagonal |= line.lower | line.upper;
                const bool has_pawns = s >= 8 && s < 56;
                reach[2 * kPawn + color][s] = has_pawns ? detail::kAttacks.pawns[color][s] | push : 0;
                reach[2 * kKnight + color][s] = detail::kAttacks.knights[s];
                reach[2 * kBishop + color][s] = diagonal;
                reach[2 * kRook + color][s] = straight;
                reach[2 * kQueen + color][s] = straight | diagonal;
                reach[2 * kKing + color][s] = detail::kAttacks.kings[s];
            }
            for (int code = 0; code < 12; ++code) {
                offset[code][s] = static_cast<std::uint16_t>(total[code]);
                for (Bitboard left = reach[code][s]; left; left &= left - 1) ++total[code];
            }
        }
        int next = 0;
        for (const int enemy : {0, 1}) {
            for (int type = kPawn; type <= kKing; ++type) {
                const int attacker = 2 * type + enemy;
                for (int victim = 0; victim < 12; ++victim) {
                    const int slot = Version::slot(attacker, victim);
                    if (slot >= 0) block[attacker][victim] = next + slot * total[attacker];
                }
                next += Version::slots(attacker) * total[attacker];
            }
        }
        // Throwing here means that a wrong table does not compile.
        if (next != Version::kNumFeatures) throw next;
    }
};

namespace detail {

// Bit 6·victim + attacker (piece types) is set if there are such features.
template <class Version>
constexpr std::uint64_t victim_bits() {
    std::uint64_t bits = 0;
    for (int attacker = 0; attacker < 6; ++attacker) {
        for (int victim = 0; victim < 6; ++victim) {
            if (Version::kVictims[attacker][victim] >= 0) bits |= std::uint64_t{1} << (6 * victim + attacker);
        }
    }
    return bits;
}

}  // namespace detail

// The pieces that can be victims of pieces of a type.
template <class Version>
NNUE_HOST_DEVICE inline Bitboard victims_of(const CodePlanes& board, int type) {
    constexpr std::uint64_t kBits = detail::victim_bits<Version>();
    Bitboard victims = 0;
    for (int victim = kPawn; victim <= kKing; ++victim) {
        const Bitboard pieces = victim == kPawn ? board.pawns() : board.of_type(victim);
        victims |= pieces & (Bitboard{0} - (kBits >> (6 * victim + type) & 1));
    }
    return victims;
}

// Where the piece `code` on `square` threatens pieces, each threat once: of two pieces of one type that attack each
// other the one on the lower square is listed. `victims` are victims_of() its type.
template <class Version>
NNUE_HOST_DEVICE inline Bitboard threats_of(const ThreatTables<Version>& tables, const CodePlanes& board,
                                            Bitboard victims, int code, int square) {
    const int type = code >> 1;
    Bitboard attacks, like = board.of_type(type);
    if (type >= kBishop && type <= kQueen) {
        const detail::Line(&lines)[4] = tables.lines[square];
        attacks = 0;
        if (type != kBishop) {
            attacks |= detail::line_attacks(lines[0], board.occupied) | detail::line_attacks(lines[1], board.occupied);
        }
        if (type != kRook) {
            attacks |= detail::line_attacks(lines[2], board.occupied) | detail::line_attacks(lines[3], board.occupied);
        }
    } else {
        attacks = tables.reach[code][square];
        if (type == kPawn) {
            if constexpr (Version::kPushes) {
                const Bitboard ahead = code & 1 ? bit(square) >> 8 : bit(square) << 8;
                victims = (victims & ~ahead) | (board.pawns() & ahead);
            }
            like &= board.black() ^ (Bitboard{0} - (code & 1));  // a pawn does not attack back at one of its own side
        }
    }
    return attacks & victims & ~(like & below(square));
}

NNUE_HOST_DEVICE constexpr int threat_orientation(int perspective, int king) {
    return (perspective ? 56 : 0) ^ ((king & 7) < 4 ? 0 : 7);
}

// The index of a threat that threats_of() has listed; codes and squares are real ones.
template <class Version>
NNUE_HOST_DEVICE inline int threat_index(const ThreatTables<Version>& tables, int orientation, int perspective,
                                         int attacker, int from, int victim, int to) {
    int a = attacker ^ perspective, v = victim ^ perspective, f = from ^ orientation, t = to ^ orientation;
    // If two pieces attack each other, the one on the higher square of the perspective counts as the attacker.
    const bool mutual = (a ^ v) < 2 && (a >= 2 || a != v);
    if (mutual && f < t) {
        const int a0 = a, f0 = f;
        a = v, v = a0, f = t, t = f0;
    }
    if constexpr (Version::kMerged) {
        if (a != v && mutual && a >= 2) {
            const int f0 = f;
            f = t, t = f0;
        }
    }
    return tables.block[a][v] + tables.offset[a][f] + popcount(tables.reach[a][f] & below(t));
}

// The pawns with which the pawn on `square` forms pairs, of those on higher squares: no more than a file away.
NNUE_HOST_DEVICE inline Bitboard pawn_partners(Bitboard pawns, int square) {
    const Bitboard own = 0x0101010101010101ULL << (square & 7);
    const Bitboard files = own | (own & ~0x8080808080808080ULL) << 1 | (own & ~0x0101010101010101ULL) >> 1;
    return pawns & files & ~below(square) & ~bit(square);
}

// A pawn as a perspective sees it, 0 to 95.
NNUE_HOST_DEVICE constexpr int pawn_number(int orientation, bool enemy, int square) {
    return 48 * enemy + (square ^ orientation) - 8;
}

NNUE_HOST_DEVICE constexpr int pawn_pair_index(int one, int other) {
    const int high = one > other ? one : other, low = one > other ? other : one;
    return high * (high - 1) / 2 + low;
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
