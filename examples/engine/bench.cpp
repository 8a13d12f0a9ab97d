// bench NET < FENS: measures evaluations per second of CPU time. A FEN one move after the previous one is an update;
// any other is a refresh. For nets of 768 inputs with SCReLU, king buckets or not, and without layers after the first,
// the same is also computed by the inference that engines write by hand for such nets: features are known from the
// move, rows of a move are added and removed in one loop, kings that change the bucket start from a cache. nnue.h
// (given the boards, and given the pieces that a move changes) and this inference take turns, and medians are printed,
// so that other work on the machine slows down all of them.
#include <algorithm>
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

struct Step {
    nnue::Board board;
    bool is_move;  // from the board before
};

// Whether there is one move from one board to the other: it adds and removes at most two pieces.
bool is_one_move(const nnue::Board& a, const nnue::Board& b) {
    int added = 0, removed = 0;
    for (int square = 0; square < 64; ++square) {
        if (a.piece[square] == b.piece[square]) continue;
        removed += a.piece[square] != nnue::Board::kEmpty;
        added += b.piece[square] != nnue::Board::kEmpty;
    }
    return a.black_to_move != b.black_to_move && added && removed && added <= 2 && removed <= 2;
}

constexpr int kTurns = 9;  // of each measurement; odd, for the median

template <class Work>
double per_second(std::size_t n, Work work) {
    long long done = 0;
    const std::clock_t begin = std::clock();  // of CPU time
    double seconds = 0;
    do {
        work();
        done += static_cast<long long>(n);
        seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    } while (seconds < 0.3);
    return static_cast<double>(done) / seconds;
}

double median(std::array<double, kTurns> values) {
    std::sort(values.begin(), values.end());
    return values[kTurns / 2];
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

    // The changes of a move, as in an engine's make_move.
    struct Delta {
        int added[2], removed[2], num_added = 0, num_removed = 0;
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

struct alignas(64) CacheLine {
    std::int16_t of[32];
};

// The inference by hand, with the features that each step adds and removes.
template <class Hand>
struct ByHandBench {
    Hand hand;
    const std::vector<Step>& steps;
    std::vector<std::array<typename Hand::Delta, 2>> deltas;
    std::vector<int> pieces;
    std::vector<typename Hand::Values> values = std::vector<typename Hand::Values>(2);

    ByHandBench(const std::vector<Step>& all, const std::int16_t* file)
        : hand(file), steps(all), deltas(all.size()), pieces(all.size()) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            pieces[i] = steps[i].board.pieces();
            for (int side = 0; steps[i].is_move && side < 2; ++side) {
                deltas[i][static_cast<std::size_t>(side)] = hand.delta_of(steps[i - 1].board, steps[i].board, side);
            }
        }
    }

    void run(std::vector<int>& scores) {
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
    }
};

// `nnue.h` in an engine that passes what a move changes.
template <class N>
struct MovesBench {
    const nnue::Network<N>& network;
    const std::vector<Step>& steps;
    std::vector<nnue::Material> materials;
    std::vector<nnue::Delta> deltas;
    std::vector<nnue::Accumulator<N>> accumulators = std::vector<nnue::Accumulator<N>>(2);
    nnue::Cache<N> cache;

    MovesBench(const nnue::Network<N>& net, const std::vector<Step>& all)
        : network(net), steps(all), materials(all.size()), deltas(all.size()) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            const nnue::Board& board = steps[i].board;
            for (const int colour : {0, 1}) materials[i].king[colour] = board.king[colour];
            for (int square = 0; square < 64; ++square) {
                const int is = board.piece[square], was = steps[i ? i - 1 : 0].board.piece[square];
                if (is != nnue::Board::kEmpty) ++materials[i].count[is];
                if (!steps[i].is_move || was == is) continue;
                if (was != nnue::Board::kEmpty) deltas[i].remove(was, square);
                if (is != nnue::Board::kEmpty) deltas[i].add(is, square);
            }
        }
    }

    void run(std::vector<int>& scores) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            const nnue::Board& board = steps[i].board;
            auto &from = accumulators[i % 2], &to = accumulators[1 - i % 2];
            const auto pieces = [&](auto visit) {
                for (int square = 0; square < 64; ++square) {
                    if (board.piece[square] != nnue::Board::kEmpty) visit(board.piece[square], square);
                }
            };
            if (steps[i].is_move) {
                network.update(materials[i - 1], from, materials[i], deltas[i], pieces, to, cache);
            } else {
                network.refresh(materials[i], pieces, to, cache);
            }
            scores[i] = network.evaluate(to, board.black_to_move, materials[i]);
        }
    }
};

// Measures `run`, which fills `scores`, and the others that the net has, in turns.
template <class N, class Run>
int measure(const char* path, const nnue::Network<N>& network, const std::vector<Step>& steps, Run run,
            const std::vector<int>& scores) {
    using Turns = std::array<double, kTurns>;
    Turns ours{}, of_moves{}, hands{};
    const auto report = [&](const char* name, const Turns& turns) {
        std::printf("%s: %.0f evaluations per second", name, median(turns));
        if constexpr (ByHand<N>::kFits) {
            Turns times;
            for (std::size_t turn = 0; turn < kTurns; ++turn) times[turn] = turns[turn] / hands[turn];
            const auto [least, most] = std::minmax_element(times.begin(), times.end());
            std::printf(", %.2f times as many as by hand (%.2f to %.2f)", median(times), *least, *most);
        }
        std::printf("\n");
    };
    if constexpr (ByHand<N>::kFits) {
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), &std::fclose);
        constexpr std::size_t kSize = nnue::Network<N>::file_size();
        std::vector<CacheLine> content(kSize / sizeof(CacheLine) + 1);
        if (!file || std::fread(content.data(), 1, kSize, file.get()) != kSize) return 1;
        ByHandBench<ByHand<N>> hand(steps, content[0].of);
        MovesBench<N> with_moves(network, steps);
        std::vector<int> by_hand(steps.size()), by_moves(steps.size());
        for (std::size_t turn = 0; turn < kTurns; ++turn) {
            ours[turn] = per_second(steps.size(), run);
            of_moves[turn] = per_second(steps.size(), [&] { with_moves.run(by_moves); });
            hands[turn] = per_second(steps.size(), [&] { hand.run(by_hand); });
        }
        if (by_hand != scores || by_moves != scores) {
            std::fprintf(stderr, "bench: error: the scores differ\n");
            return 1;
        }
        std::printf("by hand: %.0f evaluations per second\n", median(hands));
        report("nnue.h, with the pieces that a move changes", of_moves);
    } else {
        for (double& turn : ours) turn = per_second(steps.size(), run);
    }
    report("nnue.h, with the boards before and after a move", ours);
    return 0;
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
        steps.push_back({board, !steps.empty() && is_one_move(steps.back().board, board)});
    }
    if (steps.size() < 2) {
        std::fprintf(stderr, "bench: error: expected positions of games, one FEN per line\n");
        return 1;
    }
    long long moves = 0;
    std::vector<int> scores(steps.size());
    for (const Step& step : steps) moves += step.is_move;
    std::vector<nnue::Accumulator<Net>> accumulators(2);
    nnue::Cache<Net> cache;
    const auto run = [&] {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            auto &from = accumulators[i % 2], &to = accumulators[1 - i % 2];
            if (steps[i].is_move) {
                network.update(steps[i - 1].board, from, steps[i].board, to, cache);
            } else {
                network.refresh(steps[i].board, to, cache);
            }
            scores[i] = network.evaluate(to, steps[i].board);
        }
    };
    std::printf("%zu positions, %lld of them one move after the last\n", steps.size(), moves);
    return measure<Net>(argv[1], network, steps, run, scores);
}
