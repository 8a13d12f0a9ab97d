// Between the 32-byte record and the board. Layout of a record: docs/binpack.md, "The record".
#pragma once

#include "chess/position.h"

namespace nnue::data {

// A field after the board of a record: `bits` bits from `shift` on of the big-endian u16 at `byte`.
inline constexpr int kMoveByte = 24, kScoreByte = 26, kPlyByte = 28, kResultByte = 28, kRule50Byte = 30;
inline constexpr int kPlyBits = 14;

struct RecordField {
    const char* name;
    int byte, shift, bits;
    bool is_zigzag;
};
inline constexpr RecordField kRecordFields[] = {{"move", kMoveByte, 0, 16, false},
                                                {"score", kScoreByte, 0, 16, true},
                                                {"ply", kPlyByte, 0, kPlyBits, false},
                                                {"result", kResultByte, kPlyBits, 16 - kPlyBits, true},
                                                {"rule50", kRule50Byte, 0, 16, false}};

inline namespace NNUE_ISA {

// Nibbles beyond the twelve piece codes.
inline constexpr unsigned kPushedPawn = 12, kWhiteCastlingRook = 13, kBlackCastlingRook = 14, kBlackKingToMove = 15;

NNUE_HOST_DEVICE inline Bitboard record_occupancy(const std::uint8_t* record) {
    return load_be64(record);
}
NNUE_HOST_DEVICE inline std::uint16_t record_move(const std::uint8_t* record) {
    return load_be16(record + kMoveByte);
}
NNUE_HOST_DEVICE inline int record_score(const std::uint8_t* record) {
    return unzigzag(load_be16(record + kScoreByte));
}
NNUE_HOST_DEVICE inline int record_ply(const std::uint8_t* record) {
    return load_be16(record + kPlyByte) & ((1 << kPlyBits) - 1);
}
NNUE_HOST_DEVICE inline int record_result(const std::uint8_t* record) {
    return unzigzag(load_be16(record + kResultByte) >> kPlyBits);
}
NNUE_HOST_DEVICE inline int record_rule50(const std::uint8_t* record) {
    return load_be16(record + kRule50Byte);
}

inline void set_record_move(Record& r, Move move) {
    store_be16(&r.bytes[kMoveByte], move.bits);
}
inline void set_record_score(Record& r, int score) {
    store_be16(&r.bytes[kScoreByte], zigzag(score));
}
inline void set_record_ply_result(Record& r, int ply, int result) {
    store_be16(&r.bytes[kPlyByte], (ply & ((1 << kPlyBits) - 1)) | zigzag(result) << kPlyBits);
}
inline void set_record_rule50(Record& r, int rule50) {
    store_be16(&r.bytes[kRule50Byte], rule50);
}

namespace detail {

// A board as four bitboards, one for each bit of the nibbles that a record holds.
struct Planes {
    Bitboard bits[4];
};

inline Planes planes_of(const Position& p) {
    const Bitboard pushed = p.ep_square == kNoSquare ? 0 : bit(p.ep_square ^ 8);
    const Bitboard white_rooks = p.castling & p.colors[kWhite], black_rooks = p.castling & p.colors[kBlack];
    const Bitboard king_to_move = p.side_to_move == kBlack ? pieces(p, kBlack, kKing) : 0;
    const Bitboard special = pushed | white_rooks | black_rooks | king_to_move;  // codes 12, 13, 14, 15
    return {{(p.colors[kBlack] & ~special) | white_rooks | king_to_move,
             ((p.types[kKnight] | p.types[kRook] | p.types[kKing]) & ~special) | black_rooks | king_to_move,
             p.types[kBishop] | p.types[kRook] | special, p.types[kQueen] | p.types[kKing] | special}};
}

// The nibbles of the occupied squares, 16 per word, low first.
inline void nibbles_of(const Planes& planes, Bitboard occupied, std::uint64_t nibbles[2]) {
#if defined(NNUE_BMI2)
    nibbles[0] = nibbles[1] = 0;
    for (int k = 0; k < 4; ++k) {
        const std::uint64_t column = extract_bits(planes.bits[k], occupied), every = 0x1111111111111111ULL << k;
        nibbles[0] |= deposit_bits(column, every);
        nibbles[1] |= deposit_bits(column >> 16, every);
    }
#else
    const auto [b0, b1, b2, b3] = planes.bits;
    nibbles[0] = nibbles[1] = 0;
    int i = 0;
    for (; occupied; occupied &= occupied - 1, ++i) {
        const int s = lowest(occupied);
        const std::uint64_t code = (b0 >> s & 1) | (b1 >> s & 1) << 1 | (b2 >> s & 1) << 2 | (b3 >> s & 1) << 3;
        nibbles[i >> 4] |= code << (4 * (i & 15));
    }
#endif
}

inline Planes planes_of_nibbles(const std::uint64_t nibbles[2], Bitboard occupied) {
    Planes planes{};
#if defined(NNUE_BMI2)
    for (int k = 0; k < 4; ++k) {
        const std::uint64_t every = 0x1111111111111111ULL << k;
        planes.bits[k] =
            deposit_bits(extract_bits(nibbles[0], every) | extract_bits(nibbles[1], every) << 16, occupied);
    }
#else
    int i = 0;
    for (; occupied; occupied &= occupied - 1, ++i) {
        const std::uint64_t code = nibbles[i >> 4] >> (4 * (i & 15));
        const int s = lowest(occupied);
        for (int k = 0; k < 4; ++k) planes.bits[k] |= (code >> k & 1) << s;
    }
#endif
    return planes;
}

}  // namespace detail

inline void pack_board(const Position& p, Record& r) {
    std::uint64_t nibbles[2];
    detail::nibbles_of(detail::planes_of(p), occupied(p), nibbles);
    store_be64(&r.bytes[0], occupied(p));
    std::memcpy(&r.bytes[8], nibbles, 16);  // the first piece is the low nibble of the first byte
}

inline Record pack(const Entry& e) {
    Record r;
    pack_board(e.position, r);
    set_record_move(r, e.move);
    set_record_score(r, e.score);
    set_record_ply_result(r, e.position.ply, e.result);
    set_record_rule50(r, e.position.rule50);
    return r;
}

// The error of the rooks that may castle, or nullptr.
inline const char* castling_fault(const Position& p) {
    for (const int color : {kWhite, kBlack}) {
        const Bitboard rooks = p.castling & p.colors[color];
        if (!rooks) continue;
        const Bitboard rank = color == kWhite ? Bitboard{0xff} : Bitboard{0xff} << 56;
        const int king = king_square(p, color);
        if (rooks & ~rank) return "a castling rook that is not on the first rank of its side";
        if (!(bit(king) & rank)) return "a castling rook, but the king is not on the first rank of its side";
        if (popcount(rooks & below(king)) > 1 || popcount(rooks & ~below(king)) > 1) {
            return "two castling rooks on one side of their king";
        }
    }
    return nullptr;
}

// The error of a record, or nullptr. After this every other function may trust it: kings are there, castling
// rooks and pushed pawns are where they must be, no nibble is left over.
inline const char* unpack(const Record& r, Entry& e) {
    const Bitboard all = record_occupancy(r.bytes.data());
    const int count = popcount(all);
    if (count > kMaxPieces) return "more than 32 pieces";
    std::uint64_t nibbles[2];
    std::memcpy(nibbles, &r.bytes[8], 16);
    if ((count < 16 && nibbles[0] >> (4 * count)) || (count <= 16 && nibbles[1]) ||
        (count > 16 && count < 32 && nibbles[1] >> (4 * (count - 16)))) {
        return "piece nibbles beyond the last occupied square";
    }
    const auto [b0, b1, b2, b3] = detail::planes_of_nibbles(nibbles, all).bits;
    const Bitboard special = b3 & b2, plain = all & ~special;
    const Bitboard pushed = special & ~b1 & ~b0, white_rooks = special & ~b1 & b0;
    const Bitboard black_rooks = special & b1 & ~b0, king_to_move = special & b1 & b0;
    constexpr Bitboard kRank4 = 0xffULL << 24, kRank5 = 0xffULL << 32;
    Position& p = e.position;
    p.types = {(plain & ~b3 & ~b2 & ~b1) | pushed,
               plain & ~b3 & ~b2 & b1,
               plain & b2 & ~b1,
               (plain & b2 & b1) | white_rooks | black_rooks,
               plain & b3 & ~b1,
               (plain & b3 & b1) | king_to_move};
    p.colors[kBlack] = (plain & b0) | black_rooks | king_to_move | (pushed & kRank5);
    p.colors[kWhite] = all & ~p.colors[kBlack];
    p.side_to_move = king_to_move ? kBlack : kWhite;
    p.castling = white_rooks | black_rooks;
    p.ep_square = pushed ? static_cast<std::uint8_t>(lowest(pushed) ^ 8) : kNoSquare;
    if (popcount(pieces(p, kWhite, kKing)) != 1 || popcount(pieces(p, kBlack, kKing)) != 1) {
        return "not one king of each side";
    }
    if (p.types[kPawn] & 0xff000000000000ffULL) return "a pawn on the first or last rank";
    if (popcount(p.types[kPawn]) > kMaxPawns) return "more than 16 pawns";
    if (p.castling) {
        if (const char* fault = castling_fault(p)) return fault;
    }
    if (pushed) {
        if (pushed & (pushed - 1)) return "two pawns that have just double-pushed";
        if (!(pushed & (kRank4 | kRank5))) return "a double-pushed pawn that is not on rank 4 or 5";
        if (!(pushed & p.colors[p.side_to_move ^ 1]) || (all & bit(p.ep_square))) {
            return "a double-pushed pawn of the side to move, or one with a piece behind it";
        }
    }
    const int result = record_result(r.bytes.data());
    if (result < -1 || result > 1) return "a result that is none of loss, draw, win";
    p.ply = static_cast<std::uint16_t>(record_ply(r.bytes.data()));
    p.rule50 = static_cast<std::uint16_t>(record_rule50(r.bytes.data()));
    e.move = {record_move(r.bytes.data())};
    e.score = static_cast<std::int16_t>(record_score(r.bytes.data()));
    e.result = static_cast<std::int8_t>(result);
    return nullptr;
}

// A sum of RecordFlag. A capture is a move whose destination holds an enemy piece: not en passant.
inline std::uint8_t position_flags(const Entry& e) {
    const Position& p = e.position;
    const bool capture = !e.move.is_null() && (p.colors[p.side_to_move ^ 1] & bit(e.move.to()));
    return static_cast<std::uint8_t>((capture ? kFlagCapture : 0) | (in_check(p) ? kFlagInCheck : 0));
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
