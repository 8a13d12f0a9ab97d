// games NET [GAMES [SEED]]: plays random games and compares updated accumulators with refreshed ones, for each way of
// updating: boards, with and without a cache, also several moves apart; a stack in a random search; and for nets whose
// features are pieces on squares, also the ways for engines with their own board: the pieces that a move adds and
// removes, with and without a cache, one accumulator for make and unmake, and single pieces.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "fen.h"
#include "moves.h"
#include NNUE_NET_HEADER

namespace {

using Accumulator = nnue::Accumulator<Net>;

bool is_same(const Accumulator& a, const Accumulator& b) {
    bool same = std::memcmp(a.values, b.values, sizeof a.values) == 0;
    for (int i = 0; Net::kPsqt && i < 2 * Net::Inputs::kSums; ++i) {
        same &= std::memcmp(a.psqt_of(i % 2, i / 2), b.psqt_of(i % 2, i / 2), 4 * Net::kBuckets) == 0;
    }
    return same;
}

// A board of bitboards, as engines have them, which makes and unmakes moves.
struct Bitboards {
    std::uint64_t of[12] = {};  // by 2 · type + colour

    explicit Bitboards(const nnue::Board& board) {
        for (int square = 0; square < 64; ++square) {
            if (board.piece[square] != nnue::Board::kEmpty) of[board.piece[square]] |= std::uint64_t{1} << square;
        }
    }
    void change(const nnue::Delta& delta) {
        for (int i = 0; i < delta.num_added; ++i) of[delta.added[i].code] ^= std::uint64_t{1} << delta.added[i].square;
        for (int i = 0; i < delta.num_removed; ++i) {
            of[delta.removed[i].code] ^= std::uint64_t{1} << delta.removed[i].square;
        }
    }
    nnue::Material material() const {
        nnue::Material found;
        for (int code = 0; code < 12; ++code) found.count[code] = static_cast<std::uint8_t>(nnue::bit_count(of[code]));
        for (const int colour : {0, 1}) {
            const std::uint64_t king = of[2 * nnue::kKing + colour];
            found.king[colour] = static_cast<std::uint8_t>(nnue::bit_count((king & (~king + 1)) - 1));
        }
        return found;
    }
    template <class Visit>
    void for_each(Visit visit) const {
        for (int code = 0; code < 12; ++code) {
            for (std::uint64_t left = of[code]; left; left &= left - 1) {
                visit(code, nnue::bit_count((left & (~left + 1)) - 1));
            }
        }
    }
};

// The changes of a move, as an engine's make_move finds them.
nnue::Delta delta_of(const nnue::Board& board, const Move& move) {
    const int us = board.black_to_move;
    nnue::Delta delta;
    delta.remove(board.piece[move.from], move.from);
    delta.add(2 * move.promoted + us, move.to);
    if (board.piece[move.to] != nnue::Board::kEmpty) delta.remove(board.piece[move.to], move.to);
    if (move.also_cleared >= 0) delta.remove(board.piece[move.also_cleared], move.also_cleared);
    if (move.rook_to >= 0) delta.add(2 * nnue::kRook + us, move.rook_to);
    return delta;
}

// The accumulators of an engine with its own board.
template <class N>
class OwnBoard {
  public:
    OwnBoard(const nnue::Network<N>& network, const nnue::Board& board) : network_(network), pieces_(board) {
        const auto pieces = [&](auto visit) { pieces_.for_each(visit); };
        network_.refresh(pieces_.material(), pieces, stack_[0]);
        network_.refresh(pieces_.material(), pieces, cached_[0], cache_);
        only_ = single_ = stack_[0];
    }

    // Whether all accumulators after the move equal `fresh`, which has the score; `before` is the accumulator before
    // the move.
    bool play(const nnue::Delta& delta, const Accumulator& before, const Accumulator& fresh, bool black_to_move,
              int score) {
        const auto pieces = [&](auto visit) { pieces_.for_each(visit); };
        const nnue::Material was = pieces_.material();
        const bool same_root = is_same(before, only_);
        pieces_.change(delta);
        const nnue::Material is = pieces_.material();
        network_.update(was, stack_[0], is, delta, pieces, stack_[1]);
        network_.update(was, cached_[0], is, delta, pieces, cached_[1], cache_);
        // Make, unmake and make again, with one accumulator.
        network_.update(was, only_, is, delta, pieces, only_);
        const bool made = is_same(only_, fresh);
        pieces_.change(delta);
        network_.update(is, only_, was, delta.reversed(), pieces, only_);
        const bool unmade = is_same(only_, before);
        pieces_.change(delta);
        network_.update(was, only_, is, delta, pieces, only_);
        // Piece by piece, if the bucket does not change.
        bool refreshed = false;
        for (const int perspective : {0, 1}) refreshed |= network_.needs_refresh(was, is, perspective);
        if (refreshed) {
            network_.refresh(is, pieces, single_);
        } else {
            for (const int perspective : {0, 1}) {
                for (int i = 0; i < delta.num_removed; ++i) {
                    network_.remove(is, perspective, delta.removed[i].code, delta.removed[i].square, single_);
                }
                for (int i = 0; i < delta.num_added; ++i) {
                    network_.add(is, perspective, delta.added[i].code, delta.added[i].square, single_);
                }
            }
        }
        stack_[0] = stack_[1];
        cached_[0] = cached_[1];
        return same_root && made && unmade && is_same(stack_[0], fresh) && is_same(cached_[0], fresh) &&
               is_same(only_, fresh) && is_same(single_, fresh) &&
               network_.evaluate(stack_[0], black_to_move, is, pieces) == score;
    }

  private:
    const nnue::Network<N>& network_;
    Bitboards pieces_;
    nnue::Accumulator<N> stack_[2], cached_[2], only_, single_;
    nnue::Cache<N> cache_;
};

// For nets whose features depend on several pieces.
struct NoBoard {
    NoBoard(const nnue::Network<Net>&, const nnue::Board&) {}
    bool play(const nnue::Delta&, const Accumulator&, const Accumulator&, bool, int) { return true; }
};

// A search of random moves and null moves, and evaluates some of its positions before or after later ones.
class Wander {
  public:
    Wander(const nnue::Network<Net>& network, std::mt19937_64& random) : network_(network), random_(random) {}

    // Whether each accumulator in the stack equals the refreshed one.
    bool agrees(const nnue::Board& board, int en_passant, int ply = 0) {
        stack_.set(ply, board);
        if (random_() % 4 == 0 && !equals_refresh(ply)) return false;
        const std::vector<Move> moves = moves_of(board, en_passant);
        for (int i = 0; i < 2 && ply + 1 < stack_.plies() && !moves.empty(); ++i) {
            nnue::Board after = board;
            if (random_() % 8 == 0) {
                after.black_to_move = !board.black_to_move;
            } else {
                play(after, moves[random_() % moves.size()]);
            }
            if (!agrees(after, -1, ply + 1)) return false;
        }
        return random_() % 4 != 0 || equals_refresh(ply);
    }

  private:
    bool equals_refresh(int ply) {
        network_.refresh(stack_.board(ply), fresh_);
        return is_same(network_.accumulator(stack_, ply), fresh_) &&
               network_.evaluate(stack_, ply) == network_.evaluate(fresh_, stack_.board(ply));
    }

    const nnue::Network<Net>& network_;
    std::mt19937_64& random_;
    nnue::Stack<Net> stack_{6};
    Accumulator fresh_;
};

using Own = std::conditional_t<Net::Inputs::kPerPiece, OwnBoard<Net>, NoBoard>;

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
    // Two accumulators take turns, as in a search; the third is refreshed. The cache has two more.
    std::vector<Accumulator> accumulators(3), cached(2), apart(2);
    nnue::Cache<Net> cache;
    long long positions = 0;
    const auto wander = std::make_unique<Wander>(network, random);
    for (int game = 0; game < games; ++game) {
        nnue::Board board;
        read_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w", board, error);
        network.refresh(board, accumulators[0]);
        network.refresh(board, cached[0], cache);
        nnue::Board earlier = board;
        apart[0] = accumulators[0];
        const auto own = std::make_unique<Own>(network, board);
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
            const int score = network.evaluate(fresh, after);
            bool same = is_same(updated, fresh) && is_same(cached[1 - ply % 2], fresh) &&
                        network.evaluate(updated, after) == score;
            same &= ply % 10 != 0 || wander->agrees(after, en_passant);
            if (random() % 6 == 0) {
                network.update(earlier, apart[0], after, apart[1]);
                same &= is_same(apart[1], fresh);
                earlier = after;
                apart[0] = fresh;
            }
            same &= own->play(delta_of(board, move), old, fresh, after.black_to_move, score);
            if (!same) {
                std::fprintf(stderr, "games: error: game %d, ply %d: the update differs from the refresh\n", game, ply);
                return 1;
            }
            board = after;
        }
    }
    std::printf("%d games, %lld positions: every update equals the refresh\n", games, positions);
    return 0;
}
