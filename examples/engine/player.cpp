// player [NET]: a small UCI engine that plays with a net, to compare nets in games; `nnue match` uses it where no
// engine is named. Compile it for a net with: make -C examples/engine player NET=net.bin
//
// One thread; with a fixed number of nodes or a fixed depth, and `ucinewgame` before each game, moves depend only on
// the net and the game. Beside UCI: `go perft N`, and `bench [NODES]`, which prints nodes per second of CPU time.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <mutex>
#include <queue>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "transposition_table.h"
#include NNUE_NET_HEADER

namespace {

constexpr int kMaxPly = 128;
// Scores are engine units. A mate in n plies is kMate − n; evaluations are between ±kMostEvaluation.
constexpr int kMate = 1'000'000, kInfinite = kMate + 1, kMostEvaluation = kMate - 2 * kMaxPly, kNoScore = kMate + 2;
constexpr std::int64_t kUnlimited = std::int64_t{1} << 62;

// Commands `stop` and `quit` that were read, but not yet executed; and whether no more can come.
std::atomic<int> stops{0};
std::atomic<bool> input_ended{false};

// ---- the search -----------------------------------------------------------------------------------------------------

struct Limits {
    std::int64_t nodes = kUnlimited, soft_ms = kUnlimited, hard_ms = kUnlimited;
    int depth = kMaxPly - 1;
    bool infinite = false;
};

class Search {
  public:
    nnue::Network<Net> network;
    Table table;
    bool chess960 = false;
    int pawn = 100;  // engine units of a pawn
    // The game: the position to search, and the keys of all positions up to it.
    Position root;
    std::vector<std::uint64_t> keys;

    void new_game() {
        table.clear();
        history_ = {};
        continuation_.assign(kPieces * kPieces, {});
        boards_.clear();
    }

    std::uint64_t nodes() const { return static_cast<std::uint64_t>(nodes_); }

    // Searches the root and prints the result, if `verbose`.
    void go(const Limits& limits, bool verbose = true) {
        begin_ = Clock::now();
        limits_ = limits;
        nodes_ = 0;
        stopped_ = false;
        verbose_ = verbose;
        for (Ply& ply : stack_) {
            ply.killers[0] = ply.killers[1] = Move();
            ply.evaluation = ply.moved = 0;
        }
        stack_[0].position = root;
        boards_.set(0, root.board);
        best_ = Move();
        const std::vector<Move> legal = legal_moves(root);
        if (legal.empty()) {
            if (verbose) std::printf("info depth 0 score %s 0\nbestmove 0000\n", root.in_check() ? "mate" : "cp");
            return;
        }
        int score = evaluate(0), reported = 0;
        best_ = legal[0];
        table.next_search();
        for (int depth = 1; depth <= limits_.depth && !stopped_; ++depth) {
            const Move before = best_;
            best_score_ = kNoScore;
            const int found = search_around(score, depth);
            if (!stopped_) score = found;
            if (stopped_ && best_ != before && best_score_ != kNoScore) score = best_score_;
            if (!stopped_ || best_ != before) report(reported = depth, score);
            if (elapsed() >= limits_.soft_ms) break;
            if (!limits_.infinite && (legal.size() == 1 ? depth >= 4 : kMate - std::abs(score) < depth / 2)) break;
        }
        if (!reported) report(0, score);
        while (limits_.infinite && !is_told_to_stop()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (verbose) std::printf("bestmove %s\n", text_of(best_, chess960).c_str());
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr int kPieces = 12 * 64, kMostHistory = 16384;

    struct Ply {
        Position position;
        int evaluation = 0, moved = 0;  // moved: code and target square of the move from here
        Move killers[2], line[kMaxPly];
        int length = 0;
    };

    std::int64_t elapsed() const {
        return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin_).count();
    }

    bool is_told_to_stop() const { return stops > 0 || (limits_.infinite && input_ended); }

    // The score of the root, searched in a window around the last score, which grows until the score is inside.
    int search_around(int last, int depth) {
        int margin = depth < 5 ? kInfinite : std::max(pawn / 4, 1);
        int alpha = std::max(last - margin, -kInfinite), beta = std::min(last + margin, kInfinite);
        for (;;) {
            const int score = search(alpha, beta, depth, 0, false);
            if (stopped_ || (score > alpha && score < beta)) return score;
            margin = margin > 10 * pawn ? kInfinite : 3 * margin;
            if (score <= alpha) alpha = std::max(score - margin, -kInfinite);
            if (score >= beta) beta = std::min(score + margin, kInfinite);
        }
    }

    void report(int depth, int score) {
        if (!verbose_) return;
        const std::int64_t spent = elapsed();
        if (std::abs(score) > kMostEvaluation) {
            const int moves = (kMate - std::abs(score) + 1) / 2;
            std::printf("info depth %d score mate %d", depth, score > 0 ? moves : -moves);
        } else {
            std::printf("info depth %d score cp %d", depth, static_cast<int>(std::int64_t{score} * 100 / pawn));
        }
        std::printf(" nodes %lld time %lld nps %lld pv", static_cast<long long>(nodes_), static_cast<long long>(spent),
                    static_cast<long long>(nodes_ * 1000 / std::max<std::int64_t>(spent, 1)));
        const Ply& ply = stack_[0];
        if (depth == 0 || ply.length == 0 || ply.line[0] != best_) {
            std::printf(" %s", text_of(best_, chess960).c_str());
        } else {
            for (int i = 0; i < ply.length; ++i) std::printf(" %s", text_of(ply.line[i], chess960).c_str());
        }
        std::printf("\n");
        // A pipe is flushed at the end of a short search, which costs less.
        if (spent > 100) std::fflush(stdout);
    }

    bool must_stop() {
        if (stopped_) return true;
        if (nodes_ >= limits_.nodes) return stopped_ = true;
        if ((nodes_ & 1023) == 0) stopped_ = is_told_to_stop() || elapsed() >= limits_.hard_ms;
        return stopped_;
    }

    // From the side to move's view.
    int evaluate(int ply) {
        const int score = network.evaluate(boards_, ply);
        return std::min(std::max(score, -kMostEvaluation), kMostEvaluation);
    }
    // Less if the game nears a draw by the rule of 50 moves.
    int damped(int evaluation, int rule50) const {
        return static_cast<int>(std::int64_t{evaluation} * (220 - std::min(rule50, 100)) / 220);
    }

    // The position has been there before, or 50 moves have passed, or there is too little material.
    bool is_draw(int ply) const {
        const Position& position = stack_[ply].position;
        if (position.is_dead()) return true;
        if (position.rule50 >= 100 && (!position.in_check() || !legal_moves(position).empty())) return true;
        int times = 0;
        for (int back = 4; back <= position.rule50; back += 2) {
            const int at = ply - back;
            const int in_game = static_cast<int>(keys.size()) - 1 + at;
            if (at < 0 && in_game < 0) break;
            const std::uint64_t key = at >= 0 ? stack_[at].position.key : keys[static_cast<std::size_t>(in_game)];
            if (key == position.key && (at > 0 || ++times == 2)) return true;
        }
        return false;
    }

    static int to_table(int score, int ply) {
        return score > kMostEvaluation ? score + ply : score < -kMostEvaluation ? score - ply : score;
    }
    static int from_table(int score, int ply) {
        return score > kMostEvaluation ? score - ply : score < -kMostEvaluation ? score + ply : score;
    }
    static bool cuts(const Entry& entry, int score, int alpha, int beta) {
        return entry.bound == kExact || (entry.bound == kLower ? score >= beta : score <= alpha);
    }

    void made(int ply, int moved) {
        ++nodes_;
        boards_.set(ply + 1, stack_[ply + 1].position.board);
        stack_[ply].moved = moved;
        table.prefetch(stack_[ply + 1].position.key);
    }
    void extend_line(int ply, Move move) {
        Ply &here = stack_[ply], &next = stack_[ply + 1];
        here.line[0] = move;
        here.length = std::min(next.length + 1, kMaxPly);
        std::copy(next.line, next.line + here.length - 1, here.line + 1);
    }

    int quiesce(int alpha, int beta, int ply) {
        Ply& here = stack_[ply];
        here.length = 0;
        if (must_stop()) return 0;
        if (is_draw(ply)) return 0;
        const Position& position = here.position;
        const bool in_check = position.in_check();
        if (ply >= kMaxPly - 1) return in_check ? 0 : damped(evaluate(ply), position.rule50);
        Entry stored;
        if (const Entry* found = table.find(position.key)) {
            stored = *found;
            const int score = from_table(stored.score, ply);
            if (beta - alpha == 1 && cuts(stored, score, alpha, beta)) return score;
        }
        int best = -kMate + ply, raw = kNoScore;
        const int first_alpha = alpha;
        if (!in_check) {
            raw = stored.bound != kNoBound && stored.evaluation != kNoScore ? stored.evaluation : evaluate(ply);
            best = damped(raw, position.rule50);
            if (best >= beta) {
                if (stored.bound == kNoBound) {
                    table.store(position.key, {Move(), 0, kLower, to_table(best, ply), raw});
                }
                return best;
            }
            alpha = std::max(alpha, best);
        }
        const int standing = best;
        MoveList moves;
        position.list(moves, !in_check);
        for (int i = 0; i < moves.count; ++i) moves.scores[i] = order(ply, moves.moves[i], stored.move);
        Move best_move;
        for (int i = 0; i < moves.count; ++i) {
            const Move move = moves.pick(i);
            if (!in_check) {
                const int captured = position.is_empty(move.to) ? 0 : Position::kValues[position.type_at(move.to)];
                if (!move.promoted && standing + (captured + 200) * pawn / 100 <= alpha) continue;
                if (!position.exchange_gains(move, 0)) continue;
            }
            Ply& next = stack_[ply + 1];
            if (!position.after(move, next.position)) continue;
            made(ply, 0);
            const int score = -quiesce(-beta, -alpha, ply + 1);
            if (stopped_) return 0;
            if (score <= best) continue;
            best = score;
            if (score <= alpha) continue;
            alpha = score;
            best_move = move;
            extend_line(ply, move);
            if (score >= beta) break;
        }
        const Bound bound = best >= beta ? kLower : best > first_alpha ? kExact : kUpper;
        table.store(position.key, {best_move, 0, bound, to_table(best, ply), raw});
        return best;
    }

    // Which moves come first.
    int order(int ply, Move move, std::uint16_t stored) const {
        const Ply& here = stack_[ply];
        const Position& position = here.position;
        if (move.packed() == stored) return 1 << 30;
        const int piece = position.board.piece[move.from];
        if (!position.is_quiet(move)) {
            const int captured = position.is_empty(move.to) ? nnue::kPawn : position.type_at(move.to);
            const int value = 8 * Position::kValues[captured] + Position::kValues[move.promoted] - (piece >> 1);
            return (position.exchange_gains(move, 0) ? 1 << 24 : -(1 << 24)) + value;
        }
        if (move == here.killers[0]) return (1 << 20) + 1;
        if (move == here.killers[1]) return 1 << 20;
        return history(ply, move, piece);
    }
    static int index_of(int piece, int square) { return 64 * piece + square; }
    int history(int ply, Move move, int piece) const {
        const int moved = index_of(piece, move.to);
        int sum = history_[static_cast<std::size_t>(piece & 1)][move.from][move.to];
        for (const int back : {1, 2}) {
            if (ply >= back && stack_[ply - back].moved) sum += continued(stack_[ply - back].moved, moved);
        }
        return sum;
    }
    std::int16_t& continued(int before, int moved) {
        return continuation_[static_cast<std::size_t>(kPieces * (before - 1) + moved)];
    }
    int continued(int before, int moved) const {
        return continuation_[static_cast<std::size_t>(kPieces * (before - 1) + moved)];
    }
    // Moves a number towards ±kMostHistory; the nearer it is, the slower.
    static void learn(std::int16_t& value, int bonus) {
        value = static_cast<std::int16_t>(value + bonus - value * std::abs(bonus) / kMostHistory);
    }
    void learn(int ply, Move move, int bonus) {
        const int piece = stack_[ply].position.board.piece[move.from];
        learn(history_[static_cast<std::size_t>(piece & 1)][move.from][move.to], bonus);
        for (const int back : {1, 2}) {
            if (ply >= back && stack_[ply - back].moved) {
                learn(continued(stack_[ply - back].moved, index_of(piece, move.to)), bonus);
            }
        }
    }

    // Plies by which later moves are searched less deep: about ln(depth) · ln(number) / 2.
    static int reduction(int depth, int number) {
        static constexpr int kLogs[] = {0,   0,   69,  110, 139, 161, 179, 195, 208, 220, 230, 240, 248, 256, 264, 271,
                                        277, 283, 289, 294, 300, 304, 309, 314, 318, 322, 326, 330, 333, 337, 340, 343};
        return (5'000 + kLogs[std::min(depth, 31)] * kLogs[std::min(number, 31)]) / 22'000;
    }

    int search(int alpha, int beta, int depth, int ply, bool after_null) {
        if (depth <= 0) return quiesce(alpha, beta, ply);
        Ply& here = stack_[ply];
        const Position& position = here.position;
        const bool in_check = position.in_check(), is_pv = beta - alpha > 1, is_root = ply == 0;
        here.length = 0;
        if (must_stop()) return 0;
        if (!is_root) {
            if (is_draw(ply)) return 0;
            alpha = std::max(alpha, -kMate + ply);
            beta = std::min(beta, kMate - ply - 1);
            if (alpha >= beta) return alpha;
        }
        if (ply >= kMaxPly - 1) return in_check ? 0 : damped(evaluate(ply), position.rule50);
        depth += in_check;
        Entry stored;
        if (const Entry* found = table.find(position.key)) {
            stored = *found;
            const int score = from_table(stored.score, ply);
            if (!is_pv && stored.depth >= depth && cuts(stored, score, alpha, beta) && position.rule50 < 90)
                return score;
        }
        int raw = kNoScore;
        if (!in_check) raw = stored.bound && stored.evaluation != kNoScore ? stored.evaluation : evaluate(ply);
        const int evaluation = in_check ? -kInfinite : damped(raw, position.rule50);
        here.evaluation = evaluation;
        const bool improving = !in_check && ply >= 2 && evaluation > stack_[ply - 2].evaluation;
        if (!is_pv && !in_check) {
            const int score = prune(alpha, beta, depth, ply, after_null, improving);
            if (stopped_) return 0;
            if (score != kNoScore) return score;
        }
        if (depth >= 4 && !stored.move) --depth;
        stack_[ply + 1].killers[0] = stack_[ply + 1].killers[1] = Move();
        return search_moves(alpha, beta, depth, ply, improving, stored.move, raw);
    }

    // A score from which the moves need not be searched, or kNoScore.
    int prune(int alpha, int beta, int depth, int ply, bool after_null, bool improving) {
        Ply& here = stack_[ply];
        const int evaluation = here.evaluation;
        if (std::abs(beta) > kMostEvaluation) return kNoScore;
        if (depth <= 7 && evaluation - (depth - improving) * pawn * 3 / 4 >= beta) return evaluation;
        if (depth <= 2 && evaluation + depth * pawn * 5 / 2 <= alpha) {
            const int score = quiesce(alpha, beta, ply);
            if (score <= alpha) return score;
        }
        if (after_null || depth < 3 || evaluation < beta || !here.position.has_pieces(here.position.us()))
            return kNoScore;
        Ply& next = stack_[ply + 1];
        next.position = here.position;
        next.position.pass();
        ++next.position.rule50;
        made(ply, 0);
        const int less = 3 + depth / 4 + std::min((evaluation - beta) / (2 * pawn), 3);
        const int score = -search(-beta, -beta + 1, depth - less, ply + 1, true);
        if (stopped_ || score < beta) return kNoScore;
        return score > kMostEvaluation ? beta : score;
    }

    int search_moves(int alpha, int beta, int depth, int ply, bool improving, std::uint16_t stored, int raw) {
        Ply &here = stack_[ply], &next = stack_[ply + 1];
        const Position& position = here.position;
        const bool in_check = raw == kNoScore, is_pv = beta - alpha > 1;
        const int first_alpha = alpha;
        MoveList moves;
        position.list(moves, false);
        for (int i = 0; i < moves.count; ++i) moves.scores[i] = order(ply, moves.moves[i], stored);
        int best = -kInfinite, number = 0, num_quiets = 0;
        Move best_move, quiets[64];
        const bool may_prune = ply > 0 && position.has_pieces(position.us());
        for (int i = 0; i < moves.count; ++i) {
            const Move move = moves.pick(i);
            const int piece = position.board.piece[move.from];
            const bool is_quiet = position.is_quiet(move);
            const int value = is_quiet ? history(ply, move, piece) : 0;
            if (may_prune && best > -kMostEvaluation && !is_pv) {
                const int left = std::max(depth - reduction(depth, number), 1);
                if (is_quiet && !in_check) {
                    if (num_quiets >= (4 + depth * depth) / (2 - improving)) continue;
                    if (left <= 6 && here.evaluation + (left + 1) * pawn <= alpha) continue;
                    if (left <= 3 && value < -4000 * left) continue;
                }
                if (depth <= 7 && !position.exchange_gains(move, is_quiet ? -30 * left * left : -100 * depth)) continue;
            }
            if (!position.after(move, next.position)) continue;
            made(ply, index_of(piece, move.to) + 1);
            ++number;
            if (is_quiet && num_quiets < 64) quiets[num_quiets++] = move;
            int score = 0;
            bool is_full = number == 1;
            if (!is_full) {
                int less = 0;
                if (depth >= 3 && number > 1 + 2 * is_pv && (is_quiet || moves.scores[i] < 0)) {
                    less = reduction(depth, number) - is_pv + !improving - value / 8192 - next.position.in_check();
                    less = std::min(std::max(less, 0), depth - 2);
                }
                score = -search(-alpha - 1, -alpha, depth - 1 - less, ply + 1, false);
                if (!stopped_ && score > alpha && less > 0)
                    score = -search(-alpha - 1, -alpha, depth - 1, ply + 1, false);
                is_full = is_pv && score > alpha && score < beta;
            }
            if (is_full && !stopped_) score = -search(-beta, -alpha, depth - 1, ply + 1, false);
            if (stopped_) return 0;
            best = std::max(best, score);
            if (score <= alpha) continue;
            alpha = score;
            best_move = move;
            extend_line(ply, move);
            if (ply == 0) best_ = move, best_score_ = score;
            if (score < beta) continue;
            const int bonus = std::min(16 * depth * depth, 1600);
            if (is_quiet) {
                if (here.killers[0] != move) here.killers[1] = here.killers[0];
                here.killers[0] = move;
                for (int k = 0; k < num_quiets; ++k) learn(ply, quiets[k], quiets[k] == move ? bonus : -bonus);
            }
            break;
        }
        if (number == 0) return in_check ? -kMate + ply : 0;
        const Bound bound = best >= beta ? kLower : best > first_alpha ? kExact : kUpper;
        table.store(position.key, {best_move, std::min(depth, 127), bound, to_table(best, ply), raw});
        return best;
    }

    std::vector<Ply> stack_ = std::vector<Ply>(kMaxPly + 1);
    std::array<std::array<std::array<std::int16_t, 64>, 64>, 2> history_{};
    std::vector<std::int16_t> continuation_ = std::vector<std::int16_t>(kPieces * kPieces);
    nnue::Stack<Net> boards_{kMaxPly + 1};
    Limits limits_;
    Clock::time_point begin_;
    std::int64_t nodes_ = 0;
    bool stopped_ = false, verbose_ = true;
    Move best_;
    int best_score_ = 0;
};

// ---- UCI ------------------------------------------------------------------------------------------------------------

// Prints why, as Stockfish does, and ends the program.
[[noreturn]] void refuse(const std::string& why) {
    std::printf("info string ERROR: %s\n", why.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

// Reads lines in a separate thread, so that `stop` reaches a search.
class Input {
  public:
    Input() : thread_([this] { read(); }) { thread_.detach(); }

    std::string next() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !lines_.empty(); });
        std::string line = std::move(lines_.front());
        lines_.pop();
        return line;
    }

  private:
    void read() {
        std::string line;
        while (std::getline(std::cin, line)) {
            if (!line.empty() && line.back() == '\r') line.pop_back();
            push(line);
        }
        input_ended = true;
        push("end of input");
    }
    void push(const std::string& line) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (line == "stop" || line == "quit") ++stops;
        lines_.push(line);
        changed_.notify_one();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::queue<std::string> lines_;
    std::thread thread_;
};

constexpr const char* kStart = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

// A number from `least` to `most`; anything else ends the program.
std::int64_t number_of(const std::string& name, const std::string& text, std::int64_t least, std::int64_t most) {
    char* end = nullptr;
    const std::int64_t number = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end || number < least || number > most) {
        refuse(name + ": found '" + text + "', expected a number from " + std::to_string(least) + " to " +
               std::to_string(most));
    }
    return number;
}

class Uci {
  public:
    explicit Uci(const char* net) {
        search_.table.resize(16);
        set_position("startpos");
        if (net) load(net);
    }

    // Executes a command; false for the last one.
    bool execute(const std::string& line) {
        std::istringstream words(line);
        std::string command;
        words >> command;
        if (command == "stop" || command == "quit") --stops;
        if (command == "quit" || line == "end of input") return false;
        if (command == "uci") {
            std::printf(
                "id name nnue player\nid author the torch-nnue developers\n"
                "option name Hash type spin default 16 min 1 max 65536\n"
                "option name Threads type spin default 1 min 1 max 1\n"
                "option name EvalFile type string default <empty>\n"
                "option name UnitsPerPawn type spin default 100 min 1 max 100000\n"
                "option name UCI_Chess960 type check default false\nuciok\n");
        } else if (command == "isready") {
            std::printf("readyok\n");
        } else if (command == "ucinewgame") {
            search_.new_game();
        } else if (command == "setoption") {
            set_option(words);
        } else if (command == "position") {
            set_position(line.substr(std::min(line.find("position") + 9, line.size())));
        } else if (command == "go") {
            go(words);
        } else if (command == "bench") {
            std::string nodes;
            bench(words >> nodes ? number_of(command, nodes, 1, kUnlimited) : 200'000);
        } else if (!command.empty() && command != "stop" && command != "ponderhit" && command != "debug") {
            std::printf("info string unknown command: %s\n", command.c_str());
        }
        std::fflush(stdout);
        return true;
    }

  private:
    void load(const std::string& path) {
        std::string error;
        if (!search_.network.load(path.c_str(), error)) refuse(error);
        is_loaded_ = true;
        search_.new_game();
    }

    void set_option(std::istringstream& words) {
        std::string word, name, value;
        words >> word >> name >> word;
        std::getline(words >> std::ws, value);
        std::string lower = name;
        for (char& letter : lower) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        if (lower == "hash") {
            search_.table.resize(static_cast<std::size_t>(number_of(name, value, 1, 65536)));
        } else if (lower == "evalfile") {
            load(value);
        } else if (lower == "unitsperpawn") {
            search_.pawn = static_cast<int>(number_of(name, value, 1, 100'000));
        } else if (lower == "uci_chess960") {
            search_.chess960 = value == "true";
        } else if (lower == "threads") {
            number_of(name, value, 1, 1);
        } else {
            std::printf("info string unknown option: %s\n", name.c_str());
        }
    }

    // `text`: startpos or fen FEN, then perhaps moves.
    void set_position(const std::string& text) {
        const std::size_t at = text.find("moves");
        std::string fen = text.substr(0, at), word, error;
        if (fen.compare(0, 8, "startpos") == 0) {
            fen = kStart;
        } else if (fen.compare(0, 4, "fen ") == 0) {
            fen = fen.substr(4);
        }
        Position position;
        if (!position.read(fen, error)) refuse("position " + fen + ": " + error);
        search_.keys.assign(1, position.key);
        std::istringstream moves(at == std::string::npos ? "" : text.substr(at + 5));
        while (moves >> word) {
            MoveList list;
            position.list(list, false);
            Position next;
            int i = 0;
            while (i < list.count && text_of(list.moves[i], search_.chess960) != word) ++i;
            if (i == list.count || !position.after(list.moves[i], next))
                refuse("position: " + word + " is not a legal move");
            position = next;
            search_.keys.push_back(position.key);
        }
        search_.root = position;
    }

    void go(std::istringstream& words) {
        constexpr std::int64_t kReserve = 10;  // ms for the way of the answer
        Limits limits;
        std::int64_t time[2] = {-1, -1}, increment[2] = {0, 0}, moves_to_go = 30;
        bool is_limited = false;
        for (std::string word, value; words >> word;) {
            if (word == "infinite" || word == "ponder") continue;
            words >> value;
            const std::int64_t number = number_of("go " + word, value, -kUnlimited, kUnlimited);
            is_limited = true;
            if (word == "perft") {
                std::printf("Nodes searched: %llu\n",
                            static_cast<unsigned long long>(perft(search_.root, static_cast<int>(number))));
                return;
            }
            if (word == "nodes") limits.nodes = std::max<std::int64_t>(number, 1);
            if (word == "depth") limits.depth = static_cast<int>(std::min<std::int64_t>(number, kMaxPly - 1));
            if (word == "movetime") limits.hard_ms = std::max<std::int64_t>(number - kReserve, 1);
            if (word == "wtime" || word == "btime") time[word[0] == 'b'] = number;
            if (word == "winc" || word == "binc") increment[word[0] == 'b'] = number;
            if (word == "movestogo") moves_to_go = std::min<std::int64_t>(std::max<std::int64_t>(number, 1), 30);
        }
        limits.infinite = !is_limited;
        const int us = search_.root.us();
        if (time[us] >= 0) {
            const std::int64_t left = std::max<std::int64_t>(time[us] - kReserve, 1);
            limits.soft_ms = std::min(left, (left / moves_to_go + increment[us] * 3 / 4) * 3 / 5);
            limits.hard_ms = std::min(limits.hard_ms, std::min(left * 4 / 5 + 1, 5 * limits.soft_ms + 1));
        }
        if (!is_loaded_) refuse("no net: setoption name EvalFile value NET");
        search_.go(limits);
    }

    void bench(std::int64_t nodes) {
        if (!is_loaded_) refuse("no net: setoption name EvalFile value NET");
        static const char* const kPositions[] = {
            kStart,
            "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
            "r1bq1rk1/pp2bppp/2n1pn2/3p4/3P4/2NBPN2/PP3PPP/R1BQ1RK1 w - - 0 9",
            "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
            "2r2rk1/1bqnbppp/p2ppn2/1p6/3NPP2/P1N1B3/1PP1B1PP/R2Q1RK1 w - - 2 12",
            "6k1/5ppp/p3p3/1p1bP3/3B1P2/P5P1/1P5P/6K1 b - - 0 30",
        };
        std::uint64_t total = 0;
        const std::clock_t begin = std::clock();
        for (const char* fen : kPositions) {
            search_.new_game();
            set_position(std::string("fen ") + fen);
            Limits limits;
            limits.nodes = nodes;
            search_.go(limits, false);
            total += search_.nodes();
        }
        const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
        std::printf("%llu nodes, %.0f nodes per second of CPU time\n", static_cast<unsigned long long>(total),
                    static_cast<double>(total) / std::max(seconds, 1e-3));
        set_position("startpos");
    }

    Search search_;
    bool is_loaded_ = false;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc > 2) {
        std::fprintf(stderr, "usage: player [NET]\n");
        return 2;
    }
    const auto uci = std::make_unique<Uci>(argc > 1 ? argv[1] : nullptr);
    static Input input;
    while (uci->execute(input.next())) {
    }
    std::fflush(stdout);
    std::_Exit(0);  // the reader may still wait for input
}
