// games NET [GAMES [SEED]]: plays random games and holds the accumulators that are updated move by move against those
// that are computed from nothing. Moves are pseudo-legal, castling and promotions among them; a king is never taken.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "fen.h"
#include NNUE_NET_HEADER

namespace {

struct Move {
    int from, to;
    nnue::Type promoted;
    int also_cleared;  // the pawn that is taken en passant, the rook that castles, or −1
    int rook_to;       // or −1
};

std::vector<Move> moves_of(const nnue::Board& board, int en_passant) {
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

void play(nnue::Board& board, const Move& move) {
    const auto us = static_cast<nnue::Colour>(board.black_to_move);
    board.clear(move.from);
    if (move.also_cleared >= 0) board.clear(move.also_cleared);
    if (move.rook_to >= 0) board.put(move.rook_to, nnue::kRook, us);
    board.put(move.to, move.promoted, us);
    board.black_to_move = !board.black_to_move;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 4) {
        std::fprintf(stderr, "usage: games NET [GAMES [SEED]]\n");
        return 2;
    }
    nnue::Network<Net> network;
    std::string error;
    if (!network.load(argv[1], error)) {
        std::fprintf(stderr, "games: error: %s\n", error.c_str());
        return 1;
    }
    const int games = argc > 2 ? std::atoi(argv[2]) : 1000;
    std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
    // Two accumulators of a search take turns; the third is computed from nothing.
    std::vector<nnue::Accumulator<Net>> accumulators(3);
    long long positions = 0;
    for (int game = 0; game < games; ++game) {
        nnue::Board board;
        read_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w", board, error);
        network.refresh(board, accumulators[0]);
        int en_passant = -1;
        for (int ply = 0; ply < 200; ++ply) {
            const std::vector<Move> moves = moves_of(board, en_passant);
            if (moves.empty() || board.pieces() == 2) break;
            const Move& move = moves[random() % moves.size()];
            const bool is_double = move.promoted == nnue::kPawn && std::abs(move.to - move.from) == 16;
            en_passant = is_double ? (move.from + move.to) / 2 : -1;
            nnue::Board after = board;
            play(after, move);
            auto &old = accumulators[ply % 2], &updated = accumulators[1 - ply % 2], &fresh = accumulators[2];
            network.update(board, old, after, updated);
            network.refresh(after, fresh);
            ++positions;
            if (std::memcmp(updated.values, fresh.values, sizeof fresh.values) != 0 ||
                std::memcmp(updated.psqt, fresh.psqt, sizeof fresh.psqt) != 0 ||
                network.evaluate(updated, after) != network.evaluate(fresh, after)) {
                std::fprintf(stderr, "games: error: game %d, ply %d: the update differs from the refresh\n", game, ply);
                return 1;
            }
            board = after;
        }
    }
    std::printf("%d games, %lld positions: every update equals the refresh\n", games, positions);
    return 0;
}
