// Random legal games, as material for tests: enough castling, promotion and en passant to meet every branch.
#pragma once

#include <random>
#include <vector>

#include "chess/fen.h"
#include "chess/game.h"
#include "chess/position.h"
#include "chess/record.h"

namespace nnue::data::testing {

inline constexpr const char* kStartFen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

// One game of at most `plies` plies, its entries in order with random scores; moves lean to pawns and kings.
inline std::vector<Record> random_game(std::mt19937& random, int plies) {
    std::vector<Record> game;
    Entry e;
    e.position = parse_fen(kStartFen);
    e.result = static_cast<std::int8_t>(static_cast<int>(random() % 3) - 1);
    for (int i = 0; i < plies; ++i) {
        const std::vector<Move> moves = legal_moves(e.position);
        if (moves.empty()) break;
        e.move = moves[random() % moves.size()];
        for (const Move move : moves) {
            if (move.kind() != kNormal && random() % 2) e.move = move;
        }
        e.score = static_cast<std::int16_t>(random() % 4 ? static_cast<int>(random() % 200) - 100
                                                         : static_cast<int>(random()));
        game.push_back(pack(e));
        play(e.position, e.move);
        e.result = static_cast<std::int8_t>(-e.result);
    }
    return game;
}

inline std::vector<Record> random_games(unsigned seed, int games, int plies) {
    std::mt19937 random(seed);
    std::vector<Record> all;
    for (int i = 0; i < games; ++i) {
        const std::vector<Record> game = random_game(random, plies);
        all.insert(all.end(), game.begin(), game.end());
    }
    return all;
}

}  // namespace nnue::data::testing
