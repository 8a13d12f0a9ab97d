// games NET [GAMES [SEED]]: plays random games and holds the accumulators that are updated move by move, with a cache
// and without, against those that are computed from nothing.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "fen.h"
#include "moves.h"
#include NNUE_NET_HEADER

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
    // Two accumulators of a search take turns; the third is computed from nothing. The cache has two more.
    std::vector<nnue::Accumulator<Net>> accumulators(3), cached(2);
    nnue::Cache<Net> cache;
    long long positions = 0;
    for (int game = 0; game < games; ++game) {
        nnue::Board board;
        read_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w", board, error);
        network.refresh(board, accumulators[0]);
        network.refresh(board, cached[0], cache);
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
            network.update(board, cached[ply % 2], after, cached[1 - ply % 2], cache);
            network.refresh(after, fresh);
            ++positions;
            const auto differs = [&](const nnue::Accumulator<Net>& other) {
                return std::memcmp(other.values, fresh.values, sizeof fresh.values) != 0 ||
                       std::memcmp(other.psqt, fresh.psqt, sizeof fresh.psqt) != 0;
            };
            if (differs(updated) || differs(cached[1 - ply % 2]) ||
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
