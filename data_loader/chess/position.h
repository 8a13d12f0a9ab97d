// The rules of chess that training data needs: pseudo-legal destinations, playing a move, checks, the en-passant rule.
#pragma once

#include "chess/attacks.h"

namespace nnue::data {
inline namespace NNUE_ISA {

inline Bitboard occupied(const Position& p) {
    return p.colors[0] | p.colors[1];
}
inline Bitboard pieces(const Position& p, int color, PieceType type) {
    return p.colors[color] & p.types[type];
}
inline int king_square(const Position& p, int color) {
    return lowest(pieces(p, color, kKing));
}

inline void clear(Position& p) {
    p.colors.fill(0);
    p.types.fill(0);
    p.side_to_move = kWhite;
    p.castling = 0;
    p.ep_square = kNoSquare;
    p.rule50 = p.ply = 0;
}

inline void put(Position& p, int square, unsigned code) {
    p.colors[code & 1] |= bit(square);
    p.types[code >> 1] |= bit(square);
}

// Type of the piece on an occupied square.
inline PieceType type_at(const Position& p, int square) {
    const Bitboard low = p.types[kKnight] | p.types[kRook] | p.types[kKing];
    const Bitboard middle = p.types[kBishop] | p.types[kRook], high = p.types[kQueen] | p.types[kKing];
    return static_cast<PieceType>((low >> square & 1) | (middle >> square & 1) << 1 | (high >> square & 1) << 2);
}

// Code of the piece on a square; kNoPiece where it is empty.
inline unsigned code_at(const Position& p, int square) {
    if (!(occupied(p) & bit(square))) return kNoPiece;
    return type_at(p, square) << 1 | (p.colors[kBlack] >> square & 1);
}

// Do sliders of `by` reach `square` when `occupied` is what stands on the board?
inline bool slider_attacks(const Position& p, int square, int by, Bitboard occupied) {
    const Bitboard queens = p.types[kQueen];
    return ((bishop_attacks(square, occupied) & (p.types[kBishop] | queens)) |
            (rook_attacks(square, occupied) & (p.types[kRook] | queens))) &
           p.colors[by];
}

inline bool is_attacked(const Position& p, int square, int by) {
    const Bitboard leapers = (pawn_attacks(by ^ 1, square) & p.types[kPawn]) |
                             (knight_attacks(square) & p.types[kKnight]) | (king_attacks(square) & p.types[kKing]);
    return (leapers & p.colors[by]) != 0 || slider_attacks(p, square, by, occupied(p));
}

inline bool in_check(const Position& p) {
    return is_attacked(p, king_square(p, p.side_to_move), p.side_to_move ^ 1);
}

// The en-passant rule of binpack. `capturing` is the side to move after the double push over `square`: the square
// counts only if that side has a pawn that can take there without uncovering its own king to a slider.
inline bool ep_square_counts(const Position& p, int square, int capturing) {
    const int forward = capturing == kWhite ? 8 : -8;
    const int pushed = square - forward, origin = square + forward;
    if (!(pieces(p, capturing ^ 1, kPawn) & bit(pushed)) || occupied(p) & (bit(square) | bit(origin))) return false;
    Bitboard capturers = pawn_attacks(capturing ^ 1, square) & pieces(p, capturing, kPawn);
    for (; capturers; capturers &= capturers - 1) {
        const Bitboard after = (occupied(p) ^ (capturers & (0 - capturers)) ^ bit(pushed)) | bit(square);
        if (!slider_attacks(p, king_square(p, capturing), capturing ^ 1, after)) return true;
    }
    return false;
}

// Destinations of the pawn on `square`, in the order-free sense of binpack's set D: promotions count once here.
inline Bitboard pawn_destinations(const Position& p, int square) {
    const int us = p.side_to_move, forward = us == kWhite ? 8 : 56;  // as a rotation: pawns never leave the board
    const Bitboard empty = ~occupied(p), fourth_rank = us == kWhite ? 0xffULL << 24 : 0xffULL << 32;
    const Bitboard ep = p.ep_square == kNoSquare ? 0 : bit(p.ep_square);
    const Bitboard single = rotate_left(bit(square), forward) & empty;
    const Bitboard twice = rotate_left(single, forward) & empty & fourth_rank;
    return (pawn_attacks(us, square) & (p.colors[us ^ 1] | ep)) | single | twice;
}

// Castling rights of the side to move: bit 0 short, bit 1 long.
inline unsigned own_castling(const Position& p) {
    return p.castling >> (2 * p.side_to_move) & 3;
}

// Is the way of a castling move free? Attacked squares are not looked at.
inline bool castling_path_free(const Position& p, Move move) {
    const int king_to = move.to() > move.from() ? move.from() + 2 : move.from() - 2;
    const int rook_to = move.to() > move.from() ? move.from() + 1 : move.from() - 1;
    const Bitboard rest = occupied(p) & ~bit(move.from()) & ~bit(move.to());
    return !(rest & (bit(king_to) | bit(rook_to)));
}

// Whether the piece on `from` can make this move, its king's safety aside: the moves that binpack can index.
inline bool is_pseudo_legal(const Position& p, Move move) {
    const int us = p.side_to_move, from = move.from(), to = move.to();
    if (move.is_null() || !(p.colors[us] & bit(from))) return false;
    const PieceType type = type_at(p, from);
    if (move.kind() != kPromotion && (move.bits & 3)) return false;
    if (move.kind() == kCastling) {
        const int base = us == kWhite ? 0 : 56;
        const bool has_right = (to == base + 7 && (own_castling(p) & 1)) || (to == base && (own_castling(p) & 2));
        return type == kKing && from == base + 4 && has_right && castling_path_free(p, move);
    }
    if (type == kPawn) {
        const bool promotes = from >> 3 == (us == kWhite ? 6 : 1);
        const MoveKind kind = promotes ? kPromotion : to == p.ep_square ? kEnPassant : kNormal;
        return move.kind() == kind && (pawn_destinations(p, from) & bit(to));
    }
    return move.kind() == kNormal && (piece_attacks(type, from, occupied(p)) & ~p.colors[us] & bit(to));
}

// Plays a pseudo-legal move: board, side, castling rights, en-passant square by the rule, rule 50, ply. Returns false,
// with the position unusable, if it takes a king.
inline bool play(Position& p, Move move) {
    const int us = p.side_to_move, from = move.from(), to = move.to();
    const int forward = us == kWhite ? 8 : -8;
    const PieceType type = type_at(p, from);
    p.ep_square = kNoSquare;
    p.side_to_move ^= 1;
    ++p.ply;
    ++p.rule50;
    if (move.kind() == kCastling) {
        const Bitboard king = bit(from) | bit(to > from ? from + 2 : from - 2);
        const Bitboard rook = bit(to) | bit(to > from ? from + 1 : from - 1);
        p.types[kKing] ^= king;
        p.types[kRook] ^= rook;
        p.colors[us] ^= king ^ rook;
    } else {
        if (p.colors[us ^ 1] & bit(to)) {
            const PieceType captured = type_at(p, to);
            if (captured == kKing) return false;
            p.types[captured] ^= bit(to);
            p.colors[us ^ 1] ^= bit(to);
            p.rule50 = 0;
        }
        p.types[type] ^= bit(from) | bit(to);
        p.colors[us] ^= bit(from) | bit(to);
        if (type == kPawn) {
            p.rule50 = 0;
            if (move.kind() == kPromotion) {
                p.types[kPawn] ^= bit(to);
                p.types[move.promotion()] ^= bit(to);
            } else if (move.kind() == kEnPassant) {
                p.types[kPawn] ^= bit(to - forward);
                p.colors[us ^ 1] ^= bit(to - forward);
            } else if (to - from == 2 * forward && ep_square_counts(p, from + forward, us ^ 1)) {
                p.ep_square = static_cast<std::uint8_t>(from + forward);
            }
        }
    }
    if (p.castling) {
        const Bitboard touched = bit(from) | bit(to);
        if (touched & (bit(kE1) | bit(kH1))) p.castling &= ~kWhiteShort;
        if (touched & (bit(kE1) | bit(kA1))) p.castling &= ~kWhiteLong;
        if (touched & (bit(kE8) | bit(kH8))) p.castling &= ~kBlackShort;
        if (touched & (bit(kE8) | bit(kA8))) p.castling &= ~kBlackLong;
    }
    return true;
}

// Equal in all that decides which moves there are; the counters do not matter.
inline bool same_position(const Position& a, const Position& b) {
    return a.colors == b.colors && a.types == b.types && a.side_to_move == b.side_to_move && a.castling == b.castling &&
           a.ep_square == b.ep_square;
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
