// Moves for the programs here. They are pseudo-legal, including castling and promotions; they never capture a king.
#pragma once

#include <cstdlib>
#include <vector>

#include "nnue.h"

struct Move {
    int from, to;
    nnue::Type promoted;
    int also_cleared;  // the pawn that is taken en passant, the rook that castles, or −1
    int rook_to;       // or −1
};

inline std::vector<Move> moves_of(const nnue::Board& board, int en_passant) {
    using namespace nnue;
    std::vector<Move> moves;
    const int us = board.black_to_move;
    const auto empty = [&](int square) { return board.piece[square] == Board::kEmpty; };
    for (int from = 0; from < 64; ++from) {
        if (empty(from) || (board.piece[from] & 1) != us) continue;
        const auto type = static_cast<Type>(board.piece[from] >> 1);
        const auto add = [&](int to) {
            if (type == kPawn && (to < 8 || to > 55)) {
                for (const Type promoted : {kKnight, kBishop, kRook, kQueen}) {
                    moves.push_back({from, to, promoted, -1, -1});
                }
            } else {
                moves.push_back({from, to, type, -1, -1});
            }
        };
        for_each_attack(type, us, from, board.piece, [&](int to) {
            if (type == kPawn && to == en_passant) moves.push_back({from, to, kPawn, to + (us ? 8 : -8), -1});
            if (empty(to) ? type == kPawn : (board.piece[to] & 1) == us || board.piece[to] >> 1 == kKing) return;
            add(to);
        });
        if (type == kPawn) {
            const int step = us ? -8 : 8;
            if (empty(from + step)) {
                add(from + step);
                if (from >> 3 == (us ? 6 : 1) && empty(from + 2 * step)) add(from + 2 * step);
            }
        }
        const int home = us ? 56 : 0, rook = 2 * kRook + us;
        if (type == kKing && from == home + 4) {
            if (board.piece[home + 7] == rook && empty(home + 5) && empty(home + 6)) {
                moves.push_back({from, home + 6, kKing, home + 7, home + 5});
            }
            if (board.piece[home] == rook && empty(home + 1) && empty(home + 2) && empty(home + 3)) {
                moves.push_back({from, home + 2, kKing, home, home + 3});
            }
        }
    }
    return moves;
}

inline void play(nnue::Board& board, const Move& move) {
    const auto us = static_cast<nnue::Colour>(board.black_to_move);
    board.clear(move.from);
    if (move.also_cleared >= 0) board.clear(move.also_cleared);
    if (move.rook_to >= 0) board.put(move.rook_to, nnue::kRook, us);
    board.put(move.to, move.promoted, us);
    board.black_to_move = !board.black_to_move;
}
