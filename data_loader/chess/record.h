// Between the 32-byte record and the board. Layout of a record: docs/data.md, "The record".
#pragma once

#include "chess/position.h"

namespace nnue::data {
inline namespace NNUE_ISA {

// Nibbles beyond the twelve piece codes.
inline constexpr unsigned kPushedPawn = 12, kWhiteCastlingRook = 13, kBlackCastlingRook = 14, kBlackKingToMove = 15;

NNUE_HOST_DEVICE inline Bitboard record_occupancy(const std::uint8_t* record) {
    return load_be64(record);
}
NNUE_HOST_DEVICE inline std::uint16_t record_move(const std::uint8_t* record) {
    return load_be16(record + 24);
}
NNUE_HOST_DEVICE inline int record_score(const std::uint8_t* record) {
    return unzigzag(load_be16(record + 26));
}
NNUE_HOST_DEVICE inline int record_ply(const std::uint8_t* record) {
    return load_be16(record + 28) & 0x3fff;
}
NNUE_HOST_DEVICE inline int record_result(const std::uint8_t* record) {
    return unzigzag(load_be16(record + 28) >> 14);
}
NNUE_HOST_DEVICE inline int record_rule50(const std::uint8_t* record) {
    return load_be16(record + 30);
}

inline void set_record_move(Record& r, Move move) {
    store_be16(&r.bytes[24], move.bits);
}
inline void set_record_score(Record& r, int score) {
    store_be16(&r.bytes[26], zigzag(score));
}
inline void set_record_ply_result(Record& r, int ply, int result) {
    store_be16(&r.bytes[28], (ply & 0x3fff) | zigzag(result) << 14);
}
inline void set_record_rule50(Record& r, int rule50) {
    store_be16(&r.bytes[30], rule50);
}

inline void pack_board(const Position& p, Record& r) {
    store_be64(&r.bytes[0], occupied(p));
    std::uint64_t nibbles[2] = {0, 0};
    int i = 0;
    for (Bitboard rest = occupied(p); rest; rest &= rest - 1, ++i) {
        nibbles[i >> 4] |= std::uint64_t{p.board[lowest(rest)]} << (4 * (i & 15));
    }
    const auto mark = [&](int square, unsigned code) {
        const int index = popcount(occupied(p) & below(square));
        std::uint64_t& word = nibbles[index >> 4];
        const int shift = 4 * (index & 15);
        word = (word & ~(std::uint64_t{15} << shift)) | std::uint64_t{code} << shift;
    };
    if (p.castling & kWhiteShort) mark(kH1, kWhiteCastlingRook);
    if (p.castling & kWhiteLong) mark(kA1, kWhiteCastlingRook);
    if (p.castling & kBlackShort) mark(kH8, kBlackCastlingRook);
    if (p.castling & kBlackLong) mark(kA8, kBlackCastlingRook);
    if (p.ep_square != kNoSquare) mark(p.ep_square ^ 8, kPushedPawn);
    if (p.side_to_move == kBlack) mark(king_square(p, kBlack), kBlackKingToMove);
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

// What is wrong with a record, or nullptr. After this every other function may trust it: kings are there, castling
// rooks and pushed pawns are where they must be, no nibble is left over.
inline const char* unpack(const Record& r, Entry& e) {
    const Bitboard all = record_occupancy(r.bytes.data());
    const int count = popcount(all);
    if (count > kMaxPieces) return "more than 32 pieces";
    Position& p = e.position;
    clear(p);
    std::uint64_t nibbles[2];
    std::memcpy(nibbles, &r.bytes[8], 16);
    int i = 0;
    for (Bitboard rest = all; rest; rest &= rest - 1, ++i) {
        const int square = lowest(rest);
        unsigned code = nibbles[i >> 4] >> (4 * (i & 15)) & 15;
        if (code >= 12) {
            switch (code) {
                case kPushedPawn:
                    if (p.ep_square != kNoSquare) return "two pawns that have just double-pushed";
                    if (square >> 3 == 3) {
                        code = kPawn << 1 | kWhite;
                    } else if (square >> 3 == 4) {
                        code = kPawn << 1 | kBlack;
                    } else {
                        return "a double-pushed pawn that stands on neither rank 4 nor 5";
                    }
                    p.ep_square = static_cast<std::uint8_t>(square ^ 8);
                    break;
                case kWhiteCastlingRook:
                    if (square != kA1 && square != kH1) return "a white castling rook that stands on neither a1 nor h1";
                    p.castling |= square == kA1 ? kWhiteLong : kWhiteShort;
                    code = kRook << 1 | kWhite;
                    break;
                case kBlackCastlingRook:
                    if (square != kA8 && square != kH8) return "a black castling rook that stands on neither a8 nor h8";
                    p.castling |= square == kA8 ? kBlackLong : kBlackShort;
                    code = kRook << 1 | kBlack;
                    break;
                default:
                    p.side_to_move = kBlack;
                    code = kKing << 1 | kBlack;
            }
        }
        put(p, square, code);
    }
    if (popcount(pieces(p, kWhite, kKing)) != 1 || popcount(pieces(p, kBlack, kKing)) != 1) {
        return "not one king of each side";
    }
    if ((count < 16 && nibbles[0] >> (4 * count)) || (count <= 16 && nibbles[1]) ||
        (count > 16 && count < 32 && nibbles[1] >> (4 * (count - 16)))) {
        return "piece nibbles beyond the last occupied square";
    }
    if (p.types[kPawn] & 0xff000000000000ffULL) return "a pawn on the first or last rank";
    if ((p.castling & (kWhiteShort | kWhiteLong)) && king_square(p, kWhite) != kE1) {
        return "a white castling rook, but the king is not on e1";
    }
    if ((p.castling & (kBlackShort | kBlackLong)) && king_square(p, kBlack) != kE8) {
        return "a black castling rook, but the king is not on e8";
    }
    if (p.ep_square != kNoSquare &&
        ((p.ep_square >> 3 == 2) != (p.side_to_move == kBlack) || p.board[p.ep_square] != kNoPiece)) {
        return "a double-pushed pawn of the side to move, or one with a piece behind it";
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
