// The plies of a game that is stored as a start position and moves: viriformat and montyformat.
#pragma once

#include <cstring>

#include "chess/record.h"
#include "pipeline/kernels.h"

namespace nnue::data {
inline namespace NNUE_ISA {

namespace detail {

inline unsigned load_le16_of(const std::uint8_t* p) {
    return p[0] | static_cast<unsigned>(p[1]) << 8;
}

// Bits 0–5 from, 6–11 to, 12–13 promotion piece, 14–15 kind: normal, en passant, castling, promotion.
inline Move viriformat_move(const Position&, unsigned bits) {
    constexpr MoveKind kKinds[4] = {kNormal, kEnPassant, kCastling, kPromotion};
    return Move::make(kKinds[bits >> 14], static_cast<int>(bits & 63), static_cast<int>(bits >> 6 & 63),
                      static_cast<int>(bits >> 12 & 3));
}

// Bits 10–15 from, 4–9 to, 0–3 flag: 0 quiet, 1 double push, 2 short and 3 long castling (to the king's square), 4
// capture, 5 en passant, 8–11 promotion, 12–15 promotion with capture. A null move for a flag that does not fit.
inline Move montyformat_move(const Position& p, unsigned bits) {
    const int from = static_cast<int>(bits >> 10), to = static_cast<int>(bits >> 4 & 63);
    const unsigned flag = bits & 15;
    const int us = p.side_to_move;
    const bool takes = p.colors[us ^ 1] & bit(to);
    if (flag == 2 || flag == 3) {
        const Bitboard wing = flag == 2 ? ~below(from) : below(from);
        const Bitboard rook = p.castling & p.colors[us] & wing;
        if (!rook) return {};
        const Move move = Move::make(kCastling, from, lowest(rook));
        return castled_king(move) == to ? move : Move{};
    }
    if (flag == 5) return Move::make(kEnPassant, from, to);
    if (flag >= 8) return takes == (flag >= 12) ? Move::make(kPromotion, from, to, static_cast<int>(flag & 3)) : Move{};
    if (flag > 4 || takes != (flag == 4)) return {};
    const bool is_double = (p.types[kPawn] & bit(from)) && (to - from == 16 || from - to == 16);
    return is_double == (flag == 1) ? Move::make(kNormal, from, to) : Move{};
}

// A Marlinformat record without its move: the start of a viriformat game. False if something in it may be wrong; the
// decoder that names it is decode_marlinformat.
inline bool marlinformat_head(const std::uint8_t* bytes, Entry& e) {
    Bitboard all;
    std::uint64_t nibbles[2];
    std::memcpy(&all, bytes, 8), std::memcpy(nibbles, bytes + 8, 16);
    const int count = popcount(all);
    if (count > kMaxPieces || (count < 16 && nibbles[0] >> (4 * count)) || (count <= 16 && nibbles[1]) ||
        (count > 16 && count < 32 && nibbles[1] >> (4 * (count - 16)))) {
        return false;
    }
    const auto [b0, b1, b2, black] = planes_of_nibbles(nibbles, all).bits;
    const Bitboard none = all & ~b2 & ~b1 & ~b0, unmoved = b2 & b1 & ~b0;
    if (b2 & b1 & b0) return false;
    Position& p = e.position;
    p.types = {none, ~b2 & ~b1 & b0, ~b2 & b1 & ~b0, (b1 & b0) | unmoved, b2 & ~b1 & ~b0, b2 & ~b1 & b0};
    p.colors = {all & ~black, black};
    p.castling = unmoved;
    p.side_to_move = bytes[24] >> 7;
    p.ep_square = kNoSquare;
    p.rule50 = bytes[25];
    const Bitboard white_king = pieces(p, kWhite, kKing), black_king = pieces(p, kBlack, kKing);
    const unsigned full_move = load_le16_of(bytes + 26);
    if (!white_king || white_king & (white_king - 1) || !black_king || black_king & (black_king - 1) ||
        p.types[kPawn] & 0xff000000000000ffULL || popcount(p.types[kPawn]) > kMaxPawns || castling_fault(p) ||
        (bytes[24] & 127) != kNoSquare || full_move > 1u << (kPlyBits - 1) || bytes[30] > 2) {
        return false;
    }
    p.ply = static_cast<std::uint16_t>(2 * (full_move - (full_move > 0)) + p.side_to_move);
    e.move = {};
    e.score = 0;
    e.result = static_cast<std::int8_t>(p.side_to_move == kBlack ? 1 - bytes[30] : bytes[30] - 1);
    return true;
}

// is_attacked(), faster where no slider of `by` is in line with the square: attacks on an empty board are two loads.
inline bool is_attacked_fast(const Position& p, int square, int by) {
    const Bitboard leapers = (pawn_attacks(by ^ 1, square) & p.types[kPawn]) |
                             (knight_attacks(square) & p.types[kKnight]) | (king_attacks(square) & p.types[kKing]);
    if (leapers & p.colors[by]) return true;
    const Bitboard diagonal = (p.types[kBishop] | p.types[kQueen]) & p.colors[by];
    if (bishop_attacks(square, 0) & diagonal && bishop_attacks(square, occupied(p)) & diagonal) return true;
    const Bitboard straight = (p.types[kRook] | p.types[kQueen]) & p.colors[by];
    return rook_attacks(square, 0) & straight && rook_attacks(square, occupied(p)) & straight;
}

}  // namespace detail

// Entries of four bytes, a move and a score of the position before it in white's view, up to one whose move is 0.
template <Move (*kMove)(const Position&, unsigned)>
inline ReplayResult replay(Entry& e, const std::uint8_t* text, std::size_t most, Record* out, std::uint8_t* flags) {
    constexpr int kMostPlies = (1 << kPlyBits) - 1;
    ReplayResult result;
    for (const std::uint8_t* entry = text; result.positions < most; ++result.positions, entry += 4) {
        const unsigned bits = detail::load_le16_of(entry);
        const int score = static_cast<std::int16_t>(detail::load_le16_of(entry + 2));
        Position& p = e.position;
        const int us = p.side_to_move;
        if (bits == 0) {
            if (score) result.error = "a move of 0 with a score";
            result.ended = true;
            return result;
        }
        const auto fail = [&](const char* error) {
            result.error = error;
            return result;
        };
        if (p.ply > kMostPlies) return fail("a game beyond ply 16383");
        e.move = kMove(p, bits);
        if (!is_pseudo_legal(p, e.move)) return fail("a move that its position does not have");
        if (e.move.kind() == kCastling && !is_castling_legal(p, e.move)) {
            return fail("castling through a piece, or out of check or through it");
        }
        const int own = us == kWhite ? score : -score;
        e.score = static_cast<std::int16_t>(own < -INT16_MAX ? -INT16_MAX : own > INT16_MAX ? INT16_MAX : own);
        result.unscored += e.score == kScoreNone;
        out[result.positions] = pack(e);
        if (flags) flags[result.positions] = position_flags(e);
        if (!play(p, e.move)) return fail("a move that takes a king");
        if (detail::is_attacked_fast(p, king_square(p, us), us ^ 1))
            return fail("a move that leaves its king in check");
        e.result = static_cast<std::int8_t>(-e.result);
    }
    return result;
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
