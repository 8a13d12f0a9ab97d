// Proves how many features a row of Full_Threats and of PP_3Wide can have, and searches for positions that have many.
//
//   g++ -std=c++20 -O3 -march=native -Idata_loader tools/threat_bound.cpp -o /tmp/threat_bound
//   /tmp/threat_bound [SECONDS OF SEARCH PER VERSION]
//
// Exit code 1 if a row (kMaxActive of the set) is shorter than the bound. It takes about ten seconds and a search.
//
// The proof for Full_Threats holds for every record that has a king of each side and up to 30 other pieces, whatever
// these are. A feature is an ordered pair of pieces, the attacker and its victim. It belongs to one of two kinds:
//   - a contact: two pieces on one rank, file or diagonal with nothing in between;
//   - a knight pair: two pieces a knight's move apart, of which the attacker is a knight.
// 1. `most_per_pair` shows from the tables of victims that two pieces never make two features, except for a king in
//    contact with a rook or a bishop in v10 (each attacks the other).
// 2. n pieces that occupy r ranks, c files, d diagonals and a antidiagonals have 4 n − (r + c + d + a) contacts: each
//    occupied line has one contact fewer than pieces. `fewest_lines` finds by enumeration the smallest r + c + d + a.
// 3. `most_knight_pairs` finds by dynamic programming over the ranks how many knight pairs n squares can have.
// 4. Only pieces that the version has as an attacker or victim count. From v12 on kings are neither: taking a king
//    off the board loses no contact of the others, since those that it stood between get one. So n = 30. In v11
//    kings have contacts and no knight pairs; in v10 they have both, and each king makes at most 8 pairs that count
//    twice, one for each square around it.
// 5. Fewer pieces do not have more: one more square adds at most four lines, and takes no knight pair away.
//
// The bound ignores that two knights in contact, and two queens a knight's move apart, make no feature, so positions
// stay below it. PP_3Wide is enumerated: the pairs depend only on how many pawns each file has.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "features/feature_sets.h"

using namespace nnue::data;

namespace {

// The smallest number of ranks, files, diagonals and antidiagonals together whose common squares are n or more.
int fewest_lines(int n) {
    int fewest = 46;
    const auto reversed = [](unsigned mask) {
        unsigned out = 0;
        for (int i = 0; i < 8; ++i) out |= (mask >> i & 1) << (7 - i);
        return out;
    };
    for (unsigned ranks = 1; ranks < 256; ++ranks) {
        for (unsigned files = 1; files < 256; ++files) {
            const int r = std::popcount(ranks), c = std::popcount(files);
            if (r * c < n || r > c || reversed(ranks) < ranks || reversed(files) < files) continue;  // symmetry
            std::array<unsigned, 15> on_antidiagonal{};  // a bit per diagonal
            for (int y = 0; y < 8; ++y) {
                for (int x = 0; x < 8; ++x) {
                    if ((ranks >> y & 1) && (files >> x & 1)) {
                        on_antidiagonal[static_cast<std::size_t>(x - y + 7)] |= 1u << (x + y);
                    }
                }
            }
            for (unsigned diagonals = 0; diagonals < 1u << 15; ++diagonals) {
                const int d = std::popcount(diagonals);
                if (r + c + d + 1 >= fewest) continue;
                std::array<int, 9> with_squares{};  // antidiagonals by their number of squares
                for (const unsigned on : on_antidiagonal) {
                    ++with_squares[static_cast<std::size_t>(std::popcount(on & diagonals))];
                }
                int left = n, a = 0;
                for (int squares = 8; squares > 0 && left > 0; --squares) {
                    const int taken =
                        std::min(with_squares[static_cast<std::size_t>(squares)], (left + squares - 1) / squares);
                    a += taken;
                    left -= taken * squares;
                }
                if (left <= 0) fewest = std::min(fewest, r + c + d + a);
            }
        }
    }
    return fewest;
}

// The largest number of pairs of squares a knight's move apart, among n squares, for each n up to 32.
std::array<int, 33> most_knight_pairs() {
    constexpr int kMost = 32, kCounts = kMost + 1;
    // pairs[(rank before, rank) · kCounts + squares]: the most pairs so far, −1 if there is no such set.
    std::vector<signed char> pairs(65536 * kCounts, -1), next(pairs.size());
    pairs[0] = 0;
    for (int rank = 0; rank < 8; ++rank) {
        std::fill(next.begin(), next.end(), static_cast<signed char>(-1));
        for (unsigned state = 0; state < 65536; ++state) {
            const signed char* here = &pairs[std::size_t{state} * kCounts];
            if (std::all_of(here, here + kCounts, [](signed char p) { return p < 0; })) continue;
            const unsigned two_back = state >> 8, one_back = state & 255;
            for (unsigned now = 0; now < 256; ++now) {
                const int gain = std::popcount(now & one_back << 2) + std::popcount(now & one_back >> 2) +
                                 std::popcount(now & two_back << 1) + std::popcount(now & two_back >> 1);
                const int squares = std::popcount(now);
                signed char* there = &next[std::size_t{one_back << 8 | now} * kCounts];
                for (int n = 0; n + squares < kCounts; ++n) {
                    const auto with = static_cast<signed char>(here[n] + gain);
                    there[n + squares] = here[n] >= 0 ? std::max(there[n + squares], with) : there[n + squares];
                }
            }
        }
        pairs.swap(next);
    }
    std::array<int, 33> most{};
    for (std::size_t state = 0; state < 65536; ++state) {
        for (std::size_t n = 0; n < kCounts; ++n) most[n] = std::max<int>(most[n], pairs[state * kCounts + n]);
    }
    return most;
}

// Whether a piece type attacks along ranks and files, and along diagonals; kings and pawns only one step.
bool is_straight(int type) {
    return type == kRook || type == kQueen || type == kKing;
}
bool is_diagonal(int type) {
    return type == kBishop || type == kQueen || type == kKing || type == kPawn;
}

// How many features two pieces of these types can make at most, in the version of `Version`.
template <class Version>
int most_per_pair(int one, int other) {
    const bool there = Version::kVictims[one][other] >= 0, back = Version::kVictims[other][one] >= 0;
    // Two of one type: counted once where they attack each other, and two pawns of one side do not.
    if (one == other) return there || (Version::kPushes && one == kPawn);
    const bool same_line = (is_straight(one) && is_straight(other)) || (is_diagonal(one) && is_diagonal(other));
    return there && back && same_line ? 2 : there || back;  // a knight and another piece never attack each other
}

template <class Set>
bool prove(const std::array<int, 33>& knight_pairs) {
    using Version = typename Set::Version;
    bool king_contacts = false, king_knights = false, king_twice = false;
    for (int one = 0; one < 6; ++one) {
        for (int other = 0; other < 6; ++other) {
            const int most = most_per_pair<Version>(one, other);
            const bool king = one == kKing || other == kKing;
            if (most == 2 && !king) {
                std::printf("%s: pieces of types %d and %d make two features: the proof does not hold\n", Set::kName,
                            one, other);
                return false;
            }
            if (king && most > 0) king_contacts = true;
            if (king && most == 2) king_twice = true;
        }
    }
    king_knights = Version::kVictims[kKnight][kKing] >= 0;
    const int pieces = king_contacts ? 32 : 30, with_knights = king_knights ? 32 : 30;
    const int contacts = 4 * pieces - fewest_lines(pieces);
    const int knights = knight_pairs[static_cast<std::size_t>(with_knights)];
    const int twice = king_twice ? 16 : 0;
    const int bound = contacts + knights + twice;
    std::printf("%s: at most %d contacts + %d knight pairs + %d pairs that count twice = %d; a row has %d\n",
                Set::kName, contacts, knights, twice, bound, Set::kMaxActive);
    return bound <= Set::kMaxActive;
}

// The most pairs of pawns on one file or on neighbouring ones, with kMaxPawns pawns and 6 squares of a file for them.
int most_pawn_pairs() {
    // pairs[pawns so far][pawns of the last file]
    std::array<std::array<int, 7>, kMaxPawns + 1> pairs;
    for (auto& row : pairs) row.fill(-1);
    pairs[0][0] = 0;
    for (int file = 0; file < 8; ++file) {
        auto next = pairs;
        for (auto& row : next) row.fill(-1);
        for (std::size_t used = 0; used <= kMaxPawns; ++used) {
            for (std::size_t last = 0; last <= 6; ++last) {
                for (std::size_t now = 0; pairs[used][last] >= 0 && now <= 6 && used + now <= kMaxPawns; ++now) {
                    const int with = pairs[used][last] + static_cast<int>(now * (now - 1) / 2 + now * last);
                    next[used + now][now] = std::max(next[used + now][now], with);
                }
            }
        }
        pairs = next;
    }
    return std::ranges::max(pairs[kMaxPawns]);
}

// ---- the search -----------------------------------------------------------------------------------------------------

using Board = std::array<int, 64>;  // piece codes, −1 for an empty square

// As many of each side as promotions allow. Whether a game leads there is not checked.
bool legal_material(const Board& board) {
    int count[12] = {};
    for (const int code : board) {
        if (code >= 0) ++count[code];
    }
    for (const int side : {0, 1}) {
        const int promoted = std::max(count[2 * kKnight + side] - 2, 0) + std::max(count[2 * kBishop + side] - 2, 0) +
                             std::max(count[2 * kRook + side] - 2, 0) + std::max(count[2 * kQueen + side] - 1, 0);
        if (promoted + count[2 * kPawn + side] > 8) return false;
    }
    return true;
}

template <class Version>
int threats(const Board& board) {
    CodePlanes planes{};
    for (int s = 0; s < 64; ++s) {
        const int code = board[static_cast<std::size_t>(s)];
        if (code < 0) continue;
        planes.occupied |= bit(s);
        for (int k = 0; k < 4; ++k) planes.bits[k] |= code >> k & 1 ? bit(s) : 0;
    }
    int count = 0;
    for (int s = 0; s < 64; ++s) {
        const int code = board[static_cast<std::size_t>(s)];
        if (code < 0) continue;
        count += popcount(threats_of(kThreatTables<Version>, planes, victims_of<Version>(planes, code >> 1), code, s));
    }
    return count;
}

std::string board_text(const Board& board) {
    std::string out;
    for (int rank = 7; rank >= 0; --rank) {
        int empty = 0;
        for (int file = 0; file < 8; ++file) {
            const int code = board[static_cast<std::size_t>(8 * rank + file)];
            if (code < 0) {
                ++empty;
                continue;
            }
            if (empty) out += std::to_string(empty);
            empty = 0;
            out += "PpNnBbRrQqKk"[code];
        }
        if (empty) out += std::to_string(empty);
        if (rank) out += '/';
    }
    return out;
}

// Simulated annealing over moves, exchanges and changes of pieces, with legal numbers of pieces or any.
template <class Set>
void search(double seconds, bool legal) {
    std::mt19937 random(1);
    const auto below = [&](int n) { return static_cast<std::size_t>(random() % static_cast<unsigned>(n)); };
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    int most = 0;
    Board best{};
    while (std::chrono::steady_clock::now() < end) {
        Board board;
        board.fill(-1);
        board[0] = 2 * kKing, board[63] = 2 * kKing + 1;
        for (int i = 0; i < 30; ++i) {
            std::size_t s = 0;
            while (board[s] >= 0) s = below(64);
            const int side = i % 2;
            board[s] = i < 16 ? 2 * kQueen + side : 2 * (kKnight + static_cast<int>(i / 2) % 3) + side;
            if (legal && !legal_material(board)) board[s] = 2 * (kKnight + i / 2 % 3) + side;
            if (legal && !legal_material(board)) board[s] = -1;
        }
        int count = threats<typename Set::Version>(board);
        constexpr int kSteps = 60000;
        for (int step = 0; step < kSteps; ++step) {
            const double temperature = 2.5 * (1 - step / double{kSteps}) + 0.05;
            Board changed = board;
            const std::size_t one = below(64), other = below(64);
            if (step % 3) {
                std::swap(changed[one], changed[other]);
            } else {
                if (changed[one] >= 2 * kKing) continue;
                const int code = static_cast<int>(below(10));
                const bool pawn = code < 2;
                if (pawn && (one < 8 || one >= 56)) continue;
                const long side =
                    std::count_if(changed.begin(), changed.end(), [&](int c) { return c >= 0 && c % 2 == code % 2; });
                if (changed[one] % 2 != code % 2 && side >= 16) continue;
                if (changed[one] < 0 && side >= 16) continue;
                changed[one] = code;
            }
            bool sound = true;
            for (std::size_t s = 0; s < 8; ++s) {
                for (const int code : {changed[s], changed[56 + s]}) sound = sound && (code < 0 || code / 2 != kPawn);
            }
            if (!sound || (legal && !legal_material(changed))) continue;
            const int now = threats<typename Set::Version>(changed);
            if (now >= count || std::exp((now - count) / temperature) * 4294967296.0 > random()) {
                board = changed, count = now;
                if (count > most) most = count, best = board;
            }
        }
    }
    std::printf("%s: found %d with %s: %s\n", Set::kName, most, legal ? "legal numbers of pieces" : "any pieces",
                board_text(best).c_str());
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 0;
    const std::array<int, 33> knight_pairs = most_knight_pairs();
    const int pawn_pairs = most_pawn_pairs();
    std::printf("%s: at most %d pairs of %d pawns; a row has %d\n", PP3Wide::kName, pawn_pairs, kMaxPawns,
                PP3Wide::kMaxActive);
    bool enough = pawn_pairs <= PP3Wide::kMaxActive;
    const auto each = [&]<class... Sets>(std::type_identity<Sets>...) {
        ((enough = prove<Sets>(knight_pairs) && enough), ...);
        if (seconds > 0) ((search<Sets>(seconds / 2, true), search<Sets>(seconds / 2, false)), ...);
    };
    each(std::type_identity<FullThreatsV10>{}, std::type_identity<FullThreatsV11>{},
         std::type_identity<FullThreatsV12>{}, std::type_identity<FullThreatsV14>{},
         std::type_identity<FullThreatsV16>{});
    return enough ? 0 : 1;
}
