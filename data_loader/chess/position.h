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

// The type of the piece on an occupied square.
inline PieceType type_at(const Position& p, int square) {
    const Bitboard low = p.types[kKnight] | p.types[kRook] | p.types[kKing];
    const Bitboard middle = p.types[kBishop] | p.types[kRook], high = p.types[kQueen] | p.types[kKing];
    return static_cast<PieceType>((low >> square & 1) | (middle >> square & 1) << 1 | (high >> square & 1) << 2);
}

// The code of the piece on a square; kNoPiece if it is empty.
inline unsigned code_at(const Position& p, int square) {
    if (!(occupied(p) & bit(square))) return kNoPiece;
    return type_at(p, square) << 1 | (p.colors[kBlack] >> square & 1);
}

// Whether sliders of `by` attack `square` if the squares `occupied` are occupied.
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

// Destinations of the pawn on `square`, as a set: a promotion counts once.
inline Bitboard pawn_destinations(const Position& p, int square) {
    const int us = p.side_to_move, forward = us == kWhite ? 8 : 56;  // as a rotation: pawns never leave the board
    const Bitboard empty = ~occupied(p), fourth_rank = us == kWhite ? 0xffULL << 24 : 0xffULL << 32;
    const Bitboard ep = p.ep_square == kNoSquare ? 0 : bit(p.ep_square);
    const Bitboard single = rotate_left(bit(square), forward) & empty;
    const Bitboard twice = rotate_left(single, forward) & empty & fourth_rank;
    return (pawn_attacks(us, square) & (p.colors[us ^ 1] | ep)) | single | twice;
}

// Castling rights of a side: bit 0 short, bit 1 long.
inline unsigned castling_of(const Position& p, int color) {
    const Bitboard rooks = p.castling & p.colors[color];
    if (!rooks) return 0;
    const Bitboard left = below(king_square(p, color));
    return (rooks & ~left ? 1u : 0u) | (rooks & left ? 2u : 0u);
}
inline unsigned own_castling(const Position& p) {
    return castling_of(p, p.side_to_move);
}

// A sum of CastlingRight.
inline unsigned castling_rights(const Position& p) {
    return castling_of(p, kWhite) | castling_of(p, kBlack) << 2;
}

// Whether the rights are those of standard chess: king on e1 or e8, rooks in the corners.
inline bool has_standard_castling(const Position& p) {
    constexpr Bitboard kWhiteCorners = bit(kA1) | bit(kH1), kBlackCorners = bit(kA8) | bit(kH8);
    const Bitboard white = p.castling & p.colors[kWhite], black = p.castling & p.colors[kBlack];
    return !(white & ~kWhiteCorners) && !(black & ~kBlackCorners) && (!white || pieces(p, kWhite, kKing) == bit(kE1)) &&
           (!black || pieces(p, kBlack, kKing) == bit(kE8));
}

// The squares of king and rook after a castling move, in Chess960 too.
inline int castled_king(Move move) {
    return (move.from() & 56) | (move.to() > move.from() ? 6 : 2);
}
inline int castled_rook(Move move) {
    return (move.from() & 56) | (move.to() > move.from() ? 5 : 3);
}

// Whether the target squares of king and rook are free. The squares between and attacks are not checked.
inline bool castling_path_free(const Position& p, Move move) {
    const Bitboard rest = occupied(p) & ~bit(move.from()) & ~bit(move.to());
    return !(rest & (bit(castled_king(move)) | bit(castled_rook(move))));
}

// Whether the squares of a pseudo-legal castling move are free, and the king leaves no check and passes none. Whether
// it ends in check is seen after playing it.
inline bool is_castling_legal(const Position& p, Move move) {
    const auto between = [](int a, int b) {  // both ends included
        return (below(a < b ? b : a) << 1 | 1) & ~below(a < b ? a : b);
    };
    const int king = move.from(), rook = move.to();
    const Bitboard path = between(king, castled_king(move));
    const Bitboard rest = occupied(p) & ~bit(king) & ~bit(rook);
    if (rest & (path | between(rook, castled_rook(move)))) return false;
    for (Bitboard squares = path; squares; squares &= squares - 1) {
        if (lowest(squares) != castled_king(move) && is_attacked(p, lowest(squares), p.side_to_move ^ 1)) return false;
    }
    return castled_king(move) != king || !is_attacked(p, king, p.side_to_move ^ 1);
}

// Whether the piece on `from` can make this move, regardless of its king's safety: the moves that binpack can index.
inline bool is_pseudo_legal(const Position& p, Move move) {
    const int us = p.side_to_move, from = move.from(), to = move.to();
    if (move.is_null() || !(p.colors[us] & bit(from))) return false;
    const PieceType type = type_at(p, from);
    if (move.kind() != kPromotion && (move.bits & 3)) return false;
    if (move.kind() == kCastling) {
        return type == kKing && (p.castling & p.colors[us] & bit(to)) && castling_path_free(p, move);
    }
    if (type == kPawn) {
        const bool promotes = from >> 3 == (us == kWhite ? 6 : 1);
        const MoveKind kind = promotes ? kPromotion : to == p.ep_square ? kEnPassant : kNormal;
        return move.kind() == kind && (pawn_destinations(p, from) & bit(to));
    }
    return move.kind() == kNormal && !(p.colors[us] & bit(to)) && piece_reaches(type, from, to, occupied(p));
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
        const Bitboard king = bit(castled_king(move)), rook = bit(castled_rook(move));
        p.types[kKing] = (p.types[kKing] & ~bit(from)) | king;
        p.types[kRook] = (p.types[kRook] & ~bit(to)) | rook;
        p.colors[us] = (p.colors[us] & ~bit(from) & ~bit(to)) | king | rook;
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
        p.castling &= ~bit(from) & ~bit(to);
        if (type == kKing) p.castling &= us == kWhite ? ~Bitboard{0xff} : ~(Bitboard{0xff} << 56);
    }
    return true;
}

// Whether both have the same legal moves; the counters are not compared.
inline bool same_position(const Position& a, const Position& b) {
    return a.colors == b.colors && a.types == b.types && a.side_to_move == b.side_to_move && a.castling == b.castling &&
           a.ep_square == b.ep_square;
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
