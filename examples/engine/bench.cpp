// bench NET < FENS: evaluations per second of CPU time, moves of games: each FEN that is one move behind the last is an
// update, any other a refresh. For nets of 768 inputs with SCReLU, king buckets or not, and without layers behind the
// first, the same is also computed by the inference that engines write by hand for such nets: features are known from
// the move, rows of a move are added and removed in one loop, kings that change the bucket start from a cache.
#include <array>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "fen.h"
#include NNUE_NET_HEADER

namespace {

constexpr int kMostChanged = 4;  // squares, of castling

struct Step {
    nnue::Board board;
    bool is_move;  // from the board before
};

int changed_squares(const nnue::Board& a, const nnue::Board& b) {
    int count = 0;
    for (int square = 0; square < 64; ++square) count += a.piece[square] != b.piece[square];
    return count;
}

template <class Work>
double per_second(std::size_t n, Work work) {
    long long done = 0;
    const std::clock_t begin = std::clock();  // of CPU time
    double seconds = 0;
    do {
        work();
        done += static_cast<long long>(n);
        seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    } while (seconds < 2);
    return static_cast<double>(done) / seconds;
}

// ---- by hand --------------------------------------------------------------------------------------------------------

template <class N, class = void>
struct ByHand {
    static constexpr bool kFits = false;
};

template <class Kings, class N>
struct ByHandNet {
    static constexpr bool kFits = true;
    static constexpr int kHidden = N::kHidden;
    using Set = nnue::PieceSquares<Kings>;

    const std::int16_t *weight, *bias, *output, *output_bias;
    struct alignas(64) Values {
        std::int16_t of[2][kHidden];
    };
    struct alignas(64) Entry {
        std::int16_t values[kHidden];
        nnue::Board board;
        bool is_filled = false;
    };
    std::vector<Entry> cache = std::vector<Entry>(128);

    explicit ByHandNet(const std::int16_t* file) : weight(file) {
        bias = weight + std::size_t{Set::kFeatures} * kHidden;
        output = bias + kHidden;
        output_bias = output + std::size_t{N::kBuckets} * 2 * kHidden;
    }

    // What a move changes, as an engine's make_move has it.
    struct Delta {
        int added[kMostChanged], removed[kMostChanged], num_added = 0, num_removed = 0;
        bool refreshes = false;
    };

    static Delta delta_of(const nnue::Board& before, const nnue::Board& after, int side) {
        Delta delta;
        delta.refreshes = Set::key(side, before) != Set::key(side, after);
        const int first = Set::bucket_offset(after, side);
        for (int square = 0; square < 64; ++square) {
            if (before.piece[square] == after.piece[square]) continue;
            const auto index = [&](int code) { return Set::index(code, square, side, after.king[side], first); };
            if (before.piece[square] != nnue::Board::kEmpty) {
                delta.removed[delta.num_removed++] = index(before.piece[square]);
            }
            if (after.piece[square] != nnue::Board::kEmpty) delta.added[delta.num_added++] = index(after.piece[square]);
        }
        return delta;
    }

    const std::int16_t* row(int feature) const { return weight + static_cast<std::size_t>(feature) * kHidden; }

    void refresh(const nnue::Board& board, int side, Values& to) {
        Entry& entry = cache[static_cast<std::size_t>(64 * side + board.king[side])];
        std::int16_t* out = to.of[side];
        std::memcpy(out, entry.is_filled ? entry.values : bias, sizeof to.of[side]);
        const int first = Set::bucket_offset(board, side);
        for (int square = 0; square < 64; ++square) {
            const int was = entry.is_filled ? entry.board.piece[square] : nnue::Board::kEmpty, is = board.piece[square];
            if (was == is) continue;
            const auto index = [&](int code) { return Set::index(code, square, side, board.king[side], first); };
            if (was != nnue::Board::kEmpty) {
                const std::int16_t* removed = row(index(was));
                for (int j = 0; j < kHidden; ++j) out[j] = static_cast<std::int16_t>(out[j] - removed[j]);
            }
            if (is != nnue::Board::kEmpty) {
                const std::int16_t* added = row(index(is));
                for (int j = 0; j < kHidden; ++j) out[j] = static_cast<std::int16_t>(out[j] + added[j]);
            }
        }
        std::memcpy(entry.values, out, sizeof entry.values);
        entry.board = board;
        entry.is_filled = true;
    }

    void update(const Delta& d, int side, const Values& from, Values& to) const {
        const std::int16_t* old = from.of[side];
        std::int16_t* out = to.of[side];
        const std::int16_t *a0 = row(d.added[0]), *r0 = row(d.removed[0]);
        if (d.num_added == 1 && d.num_removed == 1) {
            for (int j = 0; j < kHidden; ++j) out[j] = static_cast<std::int16_t>(old[j] + a0[j] - r0[j]);
        } else if (d.num_added == 1) {
            const std::int16_t* r1 = row(d.removed[1]);
            for (int j = 0; j < kHidden; ++j) out[j] = static_cast<std::int16_t>(old[j] + a0[j] - r0[j] - r1[j]);
        } else {
            const std::int16_t *a1 = row(d.added[1]), *r1 = row(d.removed[1]);
            for (int j = 0; j < kHidden; ++j) {
                out[j] = static_cast<std::int16_t>(old[j] + a0[j] + a1[j] - r0[j] - r1[j]);
            }
        }
    }

    int evaluate(const Values& values, bool black_to_move, int pieces) const {
        const int bucket = N::kBucketOf[pieces];
        const std::int16_t* w = output + std::size_t{2} * kHidden * static_cast<std::size_t>(bucket);
        std::int64_t total = 0;
        for (int side = 0; side < 2; ++side, w += kHidden) {
            const std::int16_t* x = values.of[black_to_move ^ side];
            std::int32_t sum = 0;
            for (int j = 0; j < kHidden; ++j) {
                const std::int16_t one = std::min<std::int16_t>(std::max<std::int16_t>(x[j], 0), N::kClip);
                sum += static_cast<std::int16_t>(one * w[j]) * one;
            }
            total += sum;
        }
        const std::int64_t raw = total / N::kLayers[0].divide + output_bias[bucket];
        return static_cast<int>(raw * N::kScoreMultiply / N::kScoreDivide);
    }
};

template <class N>
constexpr bool is_plain() {
    return N::kNumLayers == 1 && N::kActivation == nnue::Activation::kScrelu && !N::kPsqt && N::kProductShift == 0 &&
           N::kBucketsBy == nnue::Buckets::kByPieces && N::kSides == nnue::Sides::kBoth &&
           N::kLayers[0].weights == nnue::Scalar::kI16 && N::kLayers[0].biases == nnue::Scalar::kI16;
}

template <class>
struct OnlyPart;
template <class Kings>
struct OnlyPart<nnue::Inputs<nnue::Part<nnue::PieceSquares<Kings>, std::int16_t>>> {
    using Of = Kings;
};

template <class N>
struct ByHand<N, std::void_t<typename OnlyPart<typename N::Inputs>::Of>>
    : std::conditional_t<is_plain<N>(), ByHandNet<typename OnlyPart<typename N::Inputs>::Of, N>, ByHand<void>> {
    using Base =
        std::conditional_t<is_plain<N>(), ByHandNet<typename OnlyPart<typename N::Inputs>::Of, N>, ByHand<void>>;
    using Base::Base;
};

// Evaluations per second, and in `scores` those of all steps.
template <class Hand>
double by_hand(const std::vector<Step>& steps, const std::vector<std::int16_t>& file, std::vector<int>& scores) {
    Hand hand(file.data());
    std::vector<std::array<typename Hand::Delta, 2>> deltas(steps.size());
    std::vector<int> pieces(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
        pieces[i] = steps[i].board.pieces();
        for (int side = 0; steps[i].is_move && side < 2; ++side) {
            deltas[i][static_cast<std::size_t>(side)] = hand.delta_of(steps[i - 1].board, steps[i].board, side);
        }
    }
    std::vector<typename Hand::Values> values(2);
    return per_second(steps.size(), [&] {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            auto &from = values[i % 2], &to = values[1 - i % 2];
            for (int side = 0; side < 2; ++side) {
                const auto& delta = deltas[i][static_cast<std::size_t>(side)];
                if (!steps[i].is_move || delta.refreshes) {
                    hand.refresh(steps[i].board, side, to);
                } else {
                    hand.update(delta, side, from, to);
                }
            }
            scores[i] = hand.evaluate(to, steps[i].board.black_to_move, pieces[i]);
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: bench NET < FENS\n");
        return 2;
    }
    nnue::Network<Net> network;
    std::string line, error;
    if (!network.load(argv[1], error)) {
        std::fprintf(stderr, "bench: error: %s\n", error.c_str());
        return 1;
    }
    std::vector<Step> steps;
    nnue::Board board;
    for (int number = 1; std::getline(std::cin, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#') continue;
        if (!read_fen(line, board, error)) {
            std::fprintf(stderr, "bench: error: line %d: %s\n", number, error.c_str());
            return 1;
        }
        const int changed = steps.empty() ? 0 : changed_squares(steps.back().board, board);
        const bool is_turn = !steps.empty() && steps.back().board.black_to_move != board.black_to_move;
        steps.push_back({board, is_turn && changed >= 2 && changed <= kMostChanged});
    }
    if (steps.size() < 2) {
        std::fprintf(stderr, "bench: error: expected positions of games, one FEN per line\n");
        return 1;
    }
    long long moves = 0;
    std::vector<int> scores(steps.size()), others(steps.size());
    for (const Step& step : steps) moves += step.is_move;
    std::vector<nnue::Accumulator<Net>> accumulators(2);
    nnue::Cache<Net> cache;
    const double ours = per_second(steps.size(), [&] {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            auto &from = accumulators[i % 2], &to = accumulators[1 - i % 2];
            if (steps[i].is_move) {
                network.update(steps[i - 1].board, from, steps[i].board, to, cache);
            } else {
                network.refresh(steps[i].board, to, cache);
            }
            scores[i] = network.evaluate(to, steps[i].board);
        }
    });
    std::printf("%zu positions, %lld of them one move behind the last\n", steps.size(), moves);
    std::printf("nnue.h: %.0f evaluations per second\n", ours);
    if constexpr (ByHand<Net>::kFits) {
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(argv[1], "rb"), &std::fclose);
        std::vector<std::int16_t> content(nnue::Network<Net>::file_size() / 2);
        if (!file || std::fread(content.data(), 2, content.size(), file.get()) != content.size()) return 1;
        const double hand = by_hand<ByHand<Net>>(steps, content, others);
        if (others != scores) {
            std::fprintf(stderr, "bench: error: the scores differ\n");
            return 1;
        }
        std::printf("by hand: %.0f evaluations per second; nnue.h: %.2f times as many\n", hand, ours / hand);
    }
    return 0;
}
