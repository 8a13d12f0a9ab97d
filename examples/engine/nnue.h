// SPDX-FileCopyrightText: 2026 The torch-nnue developers
// SPDX-License-Identifier: MIT
//
// NNUE inference in one header, C++17, without dependencies, for nets that `nnue export --format raw --header` writes.
//
// The header beside a net (net.h) describes it in a struct `Net`, the parameter of all templates here. An engine does
// four things:
//
//     nnue::Network<Net> network;                        // once: network.load("net.bin") or network.load(data, size)
//     nnue::Accumulator<Net> accumulator;                // one per ply of the search
//     network.refresh(board, accumulator);               // at the root
//     network.update(before, old, after, accumulator);   // after a move
//     network.evaluate(accumulator, board);              // engine units, for the side to move
//
// `Stack` keeps boards and accumulators of all plies, and computes only those that an evaluation needs. An engine with
// its own board passes `Material` and `Delta` instead of boards.
//
// All integers equal those of `nnue eval` (nnue_trainer/nets/integer_forward.py). The compiler's target options enable
// AVX2, AVX-512, VNNI, NEON and its dot products; define NNUE_PLAIN to use plain loops. If the name `nnue` is taken,
// define NNUE_NAMESPACE. How to use this in an engine: docs/engine.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if !defined(NNUE_PLAIN) && defined(__AVX512F__) && defined(__AVX512BW__)
#define NNUE_AVX512
#include <immintrin.h>
#elif !defined(NNUE_PLAIN) && defined(__AVX2__)
#define NNUE_AVX2
#include <immintrin.h>
#elif !defined(NNUE_PLAIN) && defined(__ARM_NEON) && defined(__aarch64__)
#define NNUE_NEON
#include <arm_neon.h>
#endif
#if defined(NNUE_AVX512) || defined(NNUE_AVX2) || defined(NNUE_NEON)
#define NNUE_VECTORS
#endif

// The name of an inner namespace, of what the compiler's options allow: an engine that chooses at run time among units
// compiled for several instruction sets would otherwise link one unit's functions into another.
#if defined(NNUE_AVX512)
#define NNUE_CODE avx512
#elif defined(NNUE_AVX2)
#define NNUE_CODE avx2
#elif defined(NNUE_NEON)
#define NNUE_CODE neon
#else
#define NNUE_CODE plain
#endif
#if defined(__AVX512F__) || defined(__AVX10_1__)
#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__) && defined(__AVX512VL__)
#define NNUE_LEVEL 6
#elif defined(__AVX512VBMI__)
#define NNUE_LEVEL 5
#else
#define NNUE_LEVEL 4
#endif
#elif defined(__AVX2__)
#define NNUE_LEVEL 3
#elif defined(__AVX__)
#define NNUE_LEVEL 2
#elif defined(__SSE4_2__) || defined(__POPCNT__) || defined(__ARM_FEATURE_DOTPROD)
#define NNUE_LEVEL 1
#else
#define NNUE_LEVEL 0
#endif
#if defined(NNUE_AVX512) && NNUE_LEVEL == 6
#define NNUE_COMPRESS
#endif
#if defined(__AVX512VNNI__) && defined(__AVXVNNI__)
#define NNUE_DOTS vnni2
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define NNUE_DOTS vnni
#elif defined(__BMI2__) || defined(__FMA__)
#define NNUE_DOTS bmi
#else
#define NNUE_DOTS base
#endif
#define NNUE_JOIN_NAMES(a, b, c) a##_##b##_##c
#define NNUE_JOIN(a, b, c) NNUE_JOIN_NAMES(a, b, c)
#define NNUE_TARGET NNUE_JOIN(NNUE_CODE, NNUE_LEVEL, NNUE_DOTS)

#ifndef NNUE_NAMESPACE
#define NNUE_NAMESPACE nnue
#define NNUE_NAMESPACE_IS_OURS
#endif

namespace NNUE_NAMESPACE {
inline namespace NNUE_TARGET {

// ---- the board ------------------------------------------------------------------------------------------------------

enum Type { kPawn, kKnight, kBishop, kRook, kQueen, kKing };
enum Colour { kWhite, kBlack };

constexpr int bit_count(std::uint64_t bits) {
#if defined(__GNUC__)
    return __builtin_popcountll(bits);
#else
    int count = 0;
    for (; bits; bits &= bits - 1) ++count;
    return count;
#endif
}

// The squares of the lowest and the highest bit; `bits` are not 0.
constexpr int lowest_bit(std::uint64_t bits) {
#if defined(__GNUC__)
    return __builtin_ctzll(bits);
#else
    return bit_count((bits & (~bits + 1)) - 1);
#endif
}
constexpr int highest_bit(std::uint64_t bits) {
#if defined(__GNUC__)
    return 63 - __builtin_clzll(bits);
#else
    for (const int shift : {1, 2, 4, 8, 16, 32}) bits |= bits >> shift;
    return bit_count(bits) - 1;
#endif
}

// Squares: a1 = 0, b1 = 1 … h8 = 63. An engine fills a Board from its own board, or keeps one beside it.
struct Board {
    static constexpr std::uint8_t kEmpty = 15;

    std::uint8_t piece[64];  // 2 · type + colour, or kEmpty
    std::uint8_t king[2] = {0, 0};
    bool black_to_move = false;

    Board() { std::memset(piece, kEmpty, sizeof piece); }
    void put(int square, Type type, Colour colour) {
        piece[square] = static_cast<std::uint8_t>(2 * type + colour);
        if (type == kKing) king[colour] = static_cast<std::uint8_t>(square);
    }
    void clear(int square) { piece[square] = kEmpty; }
    int pieces() const {
        int count = 0;
        for (const std::uint8_t code : piece) count += code != kEmpty;
        return count;
    }
    // The number of pieces whose code has a bit in `codes`; the perspective's own pieces have even codes.
    int count_of(unsigned codes, int perspective) const {
        int count = 0;
        for (const std::uint8_t code : piece) count += code != kEmpty && (codes >> (code ^ perspective) & 1);
        return count;
    }
};

// For engines with their own board, what selects the bucket of a perspective: the squares of the kings and the number
// of pieces of each code, 2 · type + colour.
struct Material {
    std::uint8_t king[2] = {0, 0};
    std::uint8_t count[12] = {};

    int pieces() const {
        int total = 0;
        for (const std::uint8_t one : count) total += one;
        return total;
    }
    int count_of(unsigned codes, int perspective) const {
        int total = 0;
        for (int code = 0; code < 12; ++code) {
            if (codes >> (code ^ perspective) & 1) total += count[code];
        }
        return total;
    }
};

// The changes of a move: at most two pieces appear (castling) and two disappear. With more changes than these it is not
// `complete`, and `update` refreshes both perspectives instead.
struct Delta {
    static constexpr int kMost = 2;

    struct Piece {
        std::uint8_t code, square;
    };
    Piece added[kMost] = {}, removed[kMost] = {};
    int num_added = 0, num_removed = 0;
    bool complete = true;

    void add(int code, int square) { put(added, num_added, code, square); }
    void remove(int code, int square) { put(removed, num_removed, code, square); }
    // The changes of unmaking this move.
    Delta reversed() const {
        Delta back;
        for (int i = 0; i < num_added; ++i) back.remove(added[i].code, added[i].square);
        for (int i = 0; i < num_removed; ++i) back.add(removed[i].code, removed[i].square);
        back.complete = complete;
        return back;
    }

  private:
    void put(Piece (&pieces)[kMost], int& count, int code, int square) {
        complete &= count < kMost;
        if (count == kMost) return;
        pieces[count++] = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(square)};
    }
};

// ---- input features -------------------------------------------------------------------------------------------------
//
// A set has kFeatures features, of which at most kMaxActive are active. As long as key() of the board does not change,
// a move only adds and removes features; if it changes, the perspective is refreshed.

// Counts pieces, up to `most`. Bit c of `codes` is set if pieces of code c count; own pieces have even codes.
struct Counter {
    int codes, most;
};

// The state of a perspective: the counts of the set's kCounters[] as a number in mixed radix, below kStates.
template <class Set, class Position>
int state_of(const Position& board, int perspective) {
    int state = 0;
    if constexpr (Set::kStates > 1) {
        for (const Counter& counter : Set::kCounters) {
            const int count = board.count_of(static_cast<unsigned>(counter.codes), perspective);
            state = state * (counter.most + 1) + std::min(count, counter.most);
        }
    }
    return state;
}

// Kings defines the set: kPlanes, kInterleaved, kEnemyFirst, kMirror (0 none, 1 to files a–d, 2 to files e–h), kTurn
// (Black's squares are xored with it: 56 flips the ranks, 63 rotates the board), kUnused (features before the planes of
// a bucket), kBuckets, kOfSquare[64], kStates, and kCounters[] if there is more than one state.
template <class Kings>
struct PieceSquares {
    static constexpr bool kPerPiece = true, kPerPair = false;
    static constexpr int kPerBucket = 64 * Kings::kPlanes + Kings::kUnused;
    static constexpr int kFeatures = kPerBucket * Kings::kStates * Kings::kBuckets, kMaxActive = 32;

    static int orientation(int perspective, int king) {
        const bool on_e_to_h = (king & 7) > 3;
        const bool mirrored = Kings::kMirror == 1 ? on_e_to_h : Kings::kMirror == 2 ? !on_e_to_h : false;
        return (perspective ? Kings::kTurn : 0) ^ (mirrored ? 7 : 0);
    }
    static int offset(int perspective, int king) {
        return kPerBucket * Kings::kStates * Kings::kOfSquare[king ^ orientation(perspective, king)];
    }
    // The key, 0 … kKeys − 1: the bucket, and whether the board is mirrored.
    static constexpr int kKeys = 2 * Kings::kStates * Kings::kBuckets;
    template <class Position>
    static int key(int perspective, const Position& board) {
        const bool is_mirrored = orientation(perspective, board.king[perspective]) & 7;
        return 2 * (bucket_offset(board, perspective) / kPerBucket) + is_mirrored;
    }
    // The first feature of the perspective's bucket, which the king and the state select.
    template <class Position>
    static int bucket_offset(const Position& board, int perspective) {
        return offset(perspective, board.king[perspective]) + kPerBucket * state_of<Kings>(board, perspective);
    }
    // −1 if the piece has no feature. `first` is the board's bucket_offset.
    static int index(int code, int square, int perspective, int king, int first) {
        const int type = code >> 1, second = (code & 1) ^ perspective ^ Kings::kEnemyFirst;
        if (Kings::kPlanes == 10 && type == kKing) return -1;
        int plane = Kings::kInterleaved ? 2 * type + second : type + Kings::kPlanes / 2 * second;
        if (Kings::kPlanes == 11 && type == kKing) plane = 10;
        return first + Kings::kUnused + 64 * plane + (square ^ orientation(perspective, king));
    }
    template <class Add>
    static void list(const Board& board, int perspective, Add add) {
        const int first = bucket_offset(board, perspective);
        for (int square = 0; square < 64; ++square) {
            if (board.piece[square] == Board::kEmpty) continue;
            const int feature = index(board.piece[square], square, perspective, board.king[perspective], first);
            if (feature >= 0) add(feature);
        }
    }
};

// For threats and pawn pairs, the board is mirrored so that the own king is on files a–d.
inline int pair_orientation(int perspective, int king) {
    return (perspective ? 56 : 0) ^ ((king & 7) < 4 ? 0 : 7);
}

// Calls found(to) for each square that the piece attacks. Sliders stop at the first piece, if a board is given.
template <class Found>
constexpr void for_each_attack(int type, int colour, int from, const std::uint8_t* board, Found found) {
    constexpr int kSteps[8][2] = {{1, 0}, {-1, 0}, {0, 1}, {0, -1}, {1, 1}, {1, -1}, {-1, 1}, {-1, -1}};
    constexpr int kJumps[8][2] = {{1, 2}, {2, 1}, {2, -1}, {1, -2}, {-1, -2}, {-2, -1}, {-2, 1}, {-1, 2}};
    const int file = from & 7, rank = from >> 3;
    const auto inside = [](int f, int r) { return f >= 0 && f < 8 && r >= 0 && r < 8; };
    if (type == kPawn) {
        const int ahead = colour == kWhite ? rank + 1 : rank - 1;
        if (rank == 0 || rank == 7) return;
        for (int side = -1; side <= 1; side += 2) {
            if (inside(file + side, ahead)) found(8 * ahead + file + side);
        }
        return;
    }
    const int first = type == kBishop ? 4 : 0, last = type == kRook ? 4 : 8;
    for (int direction = first; direction < last; ++direction) {
        const int df = type == kKnight ? kJumps[direction][0] : kSteps[direction][0];
        const int dr = type == kKnight ? kJumps[direction][1] : kSteps[direction][1];
        for (int f = file + df, r = rank + dr; inside(f, r); f += df, r += dr) {
            found(8 * r + f);
            if (type == kKnight || type == kKing || (board && board[8 * r + f] != Board::kEmpty)) break;
        }
    }
}

namespace detail {

// Attacks of each piece on an empty board, and the squares of the four lines through a square: below and above it.
struct AttackTables {
    struct Line {
        std::uint64_t below = 0, above = 0;
    };
    std::uint64_t pawn[2][64] = {}, knight[64] = {}, king[64] = {};  // pawns also from the first and the last rank
    std::uint64_t steps[12][64] = {};                                // by code; none for sliders
    Line lines[64][4] = {};                                          // file, rank, the two diagonals

    constexpr AttackTables() {
        for (int square = 0; square < 64; ++square) {
            const auto collect = [&](int type) {
                std::uint64_t bits = 0;
                for_each_attack(type, kWhite, square, nullptr, [&](int to) { bits |= std::uint64_t{1} << to; });
                return bits;
            };
            for (const int colour : {0, 1}) {
                const int ahead = (square >> 3) + (colour == kWhite ? 1 : -1);
                if (ahead < 0 || ahead > 7) continue;
                const std::uint64_t front = std::uint64_t{1} << (8 * ahead + (square & 7));
                pawn[colour][square] = (front & 0x7f7f7f7f7f7f7f7f) << 1 | (front & 0xfefefefefefefefe) >> 1;
            }
            knight[square] = collect(kKnight);
            king[square] = collect(kKing);
            for (const int colour : {0, 1}) {
                if (square > 7 && square < 56) steps[2 * kPawn + colour][square] = pawn[colour][square];
                steps[2 * kKnight + colour][square] = knight[square];
                steps[2 * kKing + colour][square] = king[square];
            }
            const std::uint64_t before = (std::uint64_t{1} << square) - 1;
            for (int line = 0; line < 4; ++line) {
                constexpr int kSteps[4][2] = {{0, 1}, {1, 0}, {1, 1}, {-1, 1}};
                std::uint64_t bits = 0;
                for (int sign = -1; sign <= 1; sign += 2) {
                    int file = (square & 7) + sign * kSteps[line][0], rank = (square >> 3) + sign * kSteps[line][1];
                    for (; file >= 0 && file < 8 && rank >= 0 && rank < 8;
                         file += sign * kSteps[line][0], rank += sign * kSteps[line][1]) {
                        bits |= std::uint64_t{1} << (8 * rank + file);
                    }
                }
                lines[square][line] = {bits & before, bits & ~before};
            }
        }
    }
};
inline constexpr AttackTables kAttacks{};

// The squares of a line up to the first piece on each side, that piece included: the subtraction borrows from the
// nearest piece below through to the nearest piece above.
inline std::uint64_t line_attacks(const AttackTables::Line& line, std::uint64_t occupied) {
    const std::uint64_t below = line.below & occupied, above = line.above & occupied;
    const std::uint64_t nearest = std::uint64_t{1} << highest_bit(below | 1);
    return (line.below | line.above) & (above ^ (above - nearest));
}

}  // namespace detail

inline std::uint64_t bishop_attacks(int square, std::uint64_t occupied) {
    const auto& lines = detail::kAttacks.lines[square];
    return detail::line_attacks(lines[2], occupied) | detail::line_attacks(lines[3], occupied);
}
inline std::uint64_t rook_attacks(int square, std::uint64_t occupied) {
    const auto& lines = detail::kAttacks.lines[square];
    return detail::line_attacks(lines[0], occupied) | detail::line_attacks(lines[1], occupied);
}

// The squares that a piece attacks; bit 0 is a1.
inline std::uint64_t attacks_of(int type, int colour, int square, std::uint64_t occupied) {
    switch (type) {
        case kBishop:
            return bishop_attacks(square, occupied);
        case kRook:
            return rook_attacks(square, occupied);
        case kQueen:
            return bishop_attacks(square, occupied) | rook_attacks(square, occupied);
        default:
            return detail::kAttacks.steps[2 * type + colour][square];
    }
}

namespace detail {

// Sets bit s of planes[k] to bit k of the code on square s.
inline void split_codes(const std::uint8_t (&piece)[64], std::uint64_t (&planes)[4]) {
#if defined(NNUE_AVX512)
    const __m512i codes = _mm512_loadu_si512(piece);
    for (int k = 0; k < 4; ++k) {
        planes[k] = _mm512_test_epi8_mask(codes, _mm512_set1_epi8(static_cast<char>(1 << k)));
    }
#elif defined(NNUE_AVX2)
    for (int k = 0; k < 4; ++k) {
        planes[k] = 0;
        for (int half = 0; half < 64; half += 32) {
            const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(piece + half));
            const int bits = _mm256_movemask_epi8(_mm256_slli_epi16(codes, 7 - k));
            planes[k] |= std::uint64_t{static_cast<std::uint32_t>(bits)} << half;
        }
    }
#else
    for (std::uint64_t& plane : planes) plane = 0;
    for (int row = 0; row < 8; ++row) {
        std::uint64_t bytes = 0;
        for (int i = 0; i < 8; ++i) bytes |= std::uint64_t{piece[8 * row + i]} << 8 * i;
        for (int k = 0; k < 4; ++k) {
            // The product moves the lowest bit of each byte into the highest byte.
            const std::uint64_t bits = bytes >> k & 0x0101010101010101;
            planes[k] |= bits * 0x0102040810204080 >> 56 << 8 * row;
        }
    }
#endif
}

// A board as bitboards, for sets whose features depend on several pieces.
struct BoardPlanes {
    std::uint64_t code[4];  // bit k of each square's code; all bits are set on an empty square
    std::uint64_t of[8];    // by type; the last but one is empty, and the last one has the empty squares
    std::uint64_t occupied, diagonal, straight;

    explicit BoardPlanes(const Board& board) {
        split_codes(board.piece, code);
        for (int type = 0; type < 8; ++type) {
            of[type] = ~std::uint64_t{0};
            for (int k = 0; k < 3; ++k) of[type] &= type >> k & 1 ? code[k + 1] : ~code[k + 1];
        }
        occupied = ~of[7];
        diagonal = of[kBishop] | of[kQueen];
        straight = of[kRook] | of[kQueen];
    }
    // The pieces whose type has a bit in `types`.
    std::uint64_t of_types(unsigned types) const {
        std::uint64_t bits = 0;
        for (int type = 0; type < 6; ++type) bits |= of[type] & (std::uint64_t{0} - (types >> type & 1));
        return bits;
    }
    // The pieces other than sliders that attack a square.
    std::uint64_t leapers(int square) const {
        constexpr std::uint64_t kInside = 0x00ffffffffffff00;
        const std::uint64_t pawns = of[kPawn] & kInside;
        return (kAttacks.pawn[kBlack][square] & pawns & ~code[0]) | (kAttacks.pawn[kWhite][square] & pawns & code[0]) |
               (kAttacks.knight[square] & of[kKnight]) | (kAttacks.king[square] & of[kKing]);
    }
};

// The nearest pieces on the four lines through a square, below and above it; no bit if there is none.
struct Nearest {
    std::uint64_t below[4], above[4];

    Nearest(int square, std::uint64_t occupied) {
        for (int line = 0; line < 4; ++line) {
            const AttackTables::Line& squares = kAttacks.lines[square][line];
            const std::uint64_t lower = squares.below & occupied, upper = squares.above & occupied;
            below[line] = lower & std::uint64_t{1} << highest_bit(lower | 1);
            above[line] = upper & (~upper + 1);
        }
    }
    std::uint64_t straight() const { return below[0] | above[0] | below[1] | above[1]; }
    std::uint64_t diagonal() const { return below[2] | above[2] | below[3] | above[3]; }
};

// The squares on which two boards differ.
inline std::uint64_t changed_squares(const Board& a, const Board& b) {
    std::uint64_t bits = 0;
#if defined(NNUE_AVX512)
    bits = _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(a.piece), _mm512_loadu_si512(b.piece));
#elif defined(NNUE_AVX2)
    for (int half = 0; half < 64; half += 32) {
        const __m256i same = _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.piece + half)),
                                               _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b.piece + half)));
        bits |= std::uint64_t{~static_cast<std::uint32_t>(_mm256_movemask_epi8(same))} << half;
    }
#else
    for (int row = 0; row < 8; ++row) {
        if (std::memcmp(a.piece + 8 * row, b.piece + 8 * row, 8) == 0) continue;
        for (int file = 0; file < 8; ++file) {
            const int square = 8 * row + file;
            bits |= std::uint64_t{a.piece[square] != b.piece[square]} << square;
        }
    }
#endif
    return bits;
}

#if defined(NNUE_COMPRESS)
struct Squares {
    std::uint8_t number[64] = {};

    constexpr Squares() {
        for (int square = 0; square < 64; ++square) number[square] = static_cast<std::uint8_t>(square);
    }
};
inline constexpr Squares kSquares{};
#endif

// Calls visit(square) for each bit, from the lowest on.
template <class Visit>
void for_each_bit(std::uint64_t bits, Visit visit) {
    for (; bits; bits &= bits - 1) visit(lowest_bit(bits));
}

// Writes the squares of the bits; returns their number. `to` has 64 places. Most lists are short but of any length, so
// a loop over the bits would often be mispredicted.
inline int list_squares(std::uint64_t bits, std::uint8_t* to) {
    const int count = bit_count(bits);
#if defined(NNUE_COMPRESS)
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi8(bits, _mm512_loadu_si512(kSquares.number)));
#else
    int i = 0;
    do {
        for (int k = 0; k < 4; ++k, bits &= bits - 1) {
            to[i++] = static_cast<std::uint8_t>(lowest_bit(bits | std::uint64_t{1} << 63));
        }
    } while (i < count);
#endif
    return count;
}

}  // namespace detail

// Two boards, and the squares on which they differ.
struct TwoBoards {
    const Board &before, &after;
    const detail::BoardPlanes was, is;
    const std::uint64_t changed;

    TwoBoards(const Board& a, const Board& b, std::uint64_t squares)
        : before(a), after(b), was(a), is(b), changed(squares) {}
};

// Pairs of pieces on a board, which may have features: the squares of both. Each of 64 pieces attacks at most eight
// others, and may push one.
struct Pairs {
    static constexpr int kMost = 64 * 9;
    std::uint8_t from[kMost + 64], to[kMost + 64];  // `put` may write 64 places after the last pair
    int count = 0;

    Pairs() {}  // leaves the lists as they are
    void put(int first, std::uint64_t seconds) {
        std::memset(from + count, first, 64);
        count += detail::list_squares(seconds, to + count);
    }
    void put(std::uint64_t firsts, int second) {
        std::memset(to + count, second, 64);
        count += detail::list_squares(firsts, from + count);
    }
    // Adds the pair if `counts`. Without a branch, since it depends on the position alone.
    void put_if(bool counts, int first, int second) {
        from[count] = static_cast<std::uint8_t>(first);
        to[count] = static_cast<std::uint8_t>(second);
        count += counts;
    }
};

// The pairs in which two boards differ: those only after the move, and those only before it.
struct PairChanges {
    Pairs added, removed;
};

// The versions of Full_Threats. The features of an attacker form slots(attacker) blocks, and slot(attacker, victim) is
// the number of a block, or −1 for a pair without features. Own pieces of the perspective have even codes. With
// kPushes, a pawn also "attacks" a pawn on the square ahead. In most versions, kVictims numbers the victims P N B R Q K
// of an attacker, and kSlots counts own and enemy victims.
template <class Version>
struct PlainSlots {
    static constexpr bool kPushes = false, kMerged = false;
    static constexpr int slots(int attacker) { return Version::kSlots[attacker / 2]; }
    static constexpr int slot(int attacker, int victim) {
        const int own = Version::kVictims[attacker / 2][victim / 2];
        return own < 0 ? -1 : victim % 2 * (slots(attacker) / 2) + own;
    }
};
struct ThreatsV10 : PlainSlots<ThreatsV10> {
    static constexpr int kFeatures = 79856;
    static constexpr int kSlots[6] = {6, 12, 10, 10, 12, 8};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, -1, 4},
                                           {0, 1, 2, 3, -1, 4},   {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, -1, -1}};
};
struct ThreatsV11 : PlainSlots<ThreatsV11> {
    static constexpr int kFeatures = 66864;
    static constexpr int kSlots[6] = {6, 10, 8, 8, 10, 8};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},  {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1}};
};
struct ThreatsV12 : PlainSlots<ThreatsV12> {
    static constexpr int kFeatures = 60144;
    static constexpr int kSlots[6] = {6, 10, 8, 8, 10, 0};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},  {0, 1, 2, 3, 4, -1}, {-1, -1, -1, -1, -1, -1}};
};
// If two pieces of one type, except pawns, have different colours, their squares are exchanged (kMerged), which places
// the pair in entries that pairs of one colour do not use.
struct ThreatsV2 {
    static constexpr int kFeatures = 53564;
    static constexpr bool kPushes = false, kMerged = true;
    static constexpr int kSlots[12] = {5, 6, 9, 9, 7, 7, 7, 7, 9, 9, 0, 0};
    // Columns: own P, enemy P, own N, enemy N, … enemy Q as the victim.
    static constexpr int kOfVictim[6][10] = {{0, -1, 1, 3, -1, -1, 2, 4, -1, -1}, {0, 5, 1, 1, 2, 6, 3, 7, 4, 8},
                                             {0, 4, 1, 5, 2, 2, 3, 6, -1, -1},    {0, 4, 1, 5, 2, 6, 3, 3, -1, -1},
                                             {0, 5, 1, 6, 2, 7, 3, 8, 4, 4},      {0, 3, 1, 4, -1, -1, 2, 5, -1, -1}};
    static constexpr int slots(int attacker) { return kSlots[attacker]; }
    static constexpr int slot(int attacker, int victim) {
        if (attacker >= 10 || victim >= 10) return -1;
        return kOfVictim[attacker == 1 ? 5 : attacker / 2][victim];  // the last row is the enemy's pawn
    }
};
struct ThreatsV14 : ThreatsV12 {
    static constexpr int kFeatures = 60720;
    static constexpr bool kPushes = true;
};
struct ThreatsV16 : PlainSlots<ThreatsV16> {
    static constexpr int kFeatures = 59808;
    static constexpr int kSlots[6] = {4, 10, 8, 8, 10, 0};
    static constexpr int kVictims[6][6] = {{-1, 0, -1, 1, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},   {0, 1, 2, 3, 4, -1}, {-1, -1, -1, -1, -1, -1}};
};

// The first index of each pair of pieces, and of each square of an attacker; own pieces have even codes.
template <class Version>
struct ThreatTables {
    std::uint64_t reach[12][64] = {};  // attacks on an empty board
    int offset[12][64] = {};           // squares that can be attacked from all lower squares together
    // By codes of attacker and victim, and whether the attacker is on the lower square. Below 0: no feature, or, of
    // two pieces of one type that attack each other, counted from the other piece.
    int block[2][12][12] = {};

    static constexpr bool is_mutual(int attacker, int victim) {
        return attacker / 2 == victim / 2 && !(attacker / 2 == kPawn && attacker == victim);
    }

    constexpr ThreatTables() {
        int total[12] = {};
        for (int code = 0; code < 12; ++code) {
            for (int square = 0; square < 64; ++square) {
                std::uint64_t& bits = reach[code][square];
                for_each_attack(code >> 1, code & 1, square, nullptr, [&](int to) { bits |= std::uint64_t{1} << to; });
                if (Version::kPushes && code < 2 && square > 7 && square < 56) {
                    bits |= std::uint64_t{1} << (code == kWhite ? square + 8 : square - 8);
                }
                offset[code][square] = total[code];
                for (std::uint64_t left = bits; left; left &= left - 1) ++total[code];
            }
        }
        int next = 0;
        for (int enemy = 0; enemy < 2; ++enemy) {
            for (int attacker = enemy; attacker < 12; attacker += 2) {
                for (int victim = 0; victim < 12; ++victim) {
                    constexpr int kNone = -(1 << 30);
                    const int slot = Version::slot(attacker, victim);
                    const int found = slot < 0 ? kNone : next + slot * total[attacker];
                    block[0][attacker][victim] = found;
                    block[1][attacker][victim] = is_mutual(attacker, victim) ? kNone : found;
                }
                next += Version::slots(attacker) * total[attacker];
            }
        }
    }
};

// The types of the victims of each type that have features, and those of the attackers of each type: bit t for type t.
template <class Version>
struct ThreatTypes {
    unsigned victims[6] = {}, attackers[6] = {};

    constexpr ThreatTypes() {
        for (int attacker = 0; attacker < 12; ++attacker) {
            for (int victim = 0; victim < 12; ++victim) {
                if (Version::slot(attacker, victim) < 0) continue;
                victims[attacker / 2] |= 1u << victim / 2;
                attackers[victim / 2] |= 1u << attacker / 2;
            }
        }
    }
};

// Keys of sets whose features depend on several pieces. A new key makes `update` refresh the accumulator.
struct OneKey {
    static constexpr bool kPerPiece = false, kPerPair = false;
    static constexpr int kKeys = 1;
    template <class Position>
    static int key(int, const Position&) {
        return 0;
    }
};

// One key for each half of the board on which the own king can be.
struct MirroredKeys {
    static constexpr bool kPerPiece = false, kPerPair = true;
    static constexpr int kKeys = 2;
    template <class Position>
    static int key(int perspective, const Position& board) {
        return (board.king[perspective] & 7) > 3;
    }
};

template <class Version>
struct Threats : MirroredKeys {
    static constexpr int kFeatures = Version::kFeatures, kMaxActive = 192;
    static constexpr ThreatTables<Version> kTables{};
    static constexpr ThreatTypes<Version> kWith{};

    // The feature of a pair from a perspective, `turned` by pair_orientation; below 0: none. Without branches.
    static int index(const Board& board, int from, int to, int perspective, int turned) {
        const int attacker = board.piece[from] ^ perspective, victim = board.piece[to] ^ perspective;
        int f = from ^ turned, t = to ^ turned;
        const int block = kTables.block[f < t][attacker][victim];
        if constexpr (Version::kMerged) {
            if (kTables.is_mutual(attacker, victim) && attacker != victim && attacker >> 1 != kPawn) std::swap(f, t);
        }
        const std::uint64_t below = kTables.reach[attacker][f] & ((std::uint64_t{1} << t) - 1);
        return block + kTables.offset[attacker][f] + bit_count(below);
    }

    template <class Add>
    static void list(const Board& board, int perspective, Add add) {
        const int turned = pair_orientation(perspective, board.king[perspective]);
        const detail::BoardPlanes planes(board);
        const auto put = [&](int from, int to) {
            const int feature = index(board, from, to, perspective, turned);
            if (feature >= 0) add(feature);
        };
        detail::for_each_bit(planes.occupied, [&](int from) {
            const int code = board.piece[from];
            const std::uint64_t attacked = attacks_of(code >> 1, code & 1, from, planes.occupied) & planes.occupied;
            detail::for_each_bit(attacked, [&](int to) { put(from, to); });
        });
        for_each_push(planes, ~std::uint64_t{0}, put);
    }

    // The pairs that appear and disappear between two boards.
    static void find_changes(const TwoBoards& boards, PairChanges& changes) {
        find_pairs(boards.before, boards.was, boards.changed, changes.removed);
        find_pairs(boards.after, boards.is, boards.changed, changes.added);
    }

  private:
    // The pairs of a board that another one, which differs on the squares `changed`, does not have.
    static void find_pairs(const Board& board, const detail::BoardPlanes& planes, std::uint64_t changed, Pairs& pairs) {
        // Those with a piece that changes. A pair of two of them is found from its attacker.
        detail::for_each_bit(changed & planes.occupied, [&](int square) {
            const detail::Nearest nearest(square, planes.occupied);
            const int code = board.piece[square], type = code >> 1;
            const std::uint64_t straight = nearest.straight(), diagonal = nearest.diagonal();
            std::uint64_t attacked = detail::kAttacks.steps[code][square] & planes.occupied;
            attacked |= straight & (std::uint64_t{0} - (planes.straight >> square & 1));
            attacked |= diagonal & (std::uint64_t{0} - (planes.diagonal >> square & 1));
            const std::uint64_t attackers =
                planes.leapers(square) | (straight & planes.straight) | (diagonal & planes.diagonal);
            pairs.put(square, attacked & planes.of_types(kWith.victims[type]));
            pairs.put(attackers & ~changed & planes.of_types(kWith.attackers[type]), square);
        });
        // Those of sliders through an empty square on which a piece comes or was.
        detail::for_each_bit(changed & ~planes.occupied, [&](int square) {
            const detail::Nearest nearest(square, planes.occupied);
            constexpr std::uint64_t kTop = std::uint64_t{1} << 63;
            for (int line = 0; line < 4; ++line) {
                const std::uint64_t below = nearest.below[line], above = nearest.above[line];
                const std::uint64_t sliders = line < 2 ? planes.straight : planes.diagonal;
                // With two such squares between both pieces, the pair is found from the lower one.
                const std::uint64_t between = detail::kAttacks.lines[square][line].below & ~(2 * below - 1);
                const bool is_open = (below != 0) & (above != 0) & (((below | above | between) & changed) == 0);
                const int low = lowest_bit(below | kTop), high = lowest_bit(above | kTop);
                pairs.put_if(is_open & ((below & sliders) != 0), low, high);
                pairs.put_if(is_open & ((above & sliders) != 0), high, low);
            }
        });
        for_each_push(planes, changed, [&](int from, int to) { pairs.put_if(true, from, to); });
    }

    // Pawns with a pawn ahead, one of both on `squares`.
    template <class Visit>
    static void for_each_push(const detail::BoardPlanes& planes, std::uint64_t squares, Visit visit) {
        if constexpr (Version::kPushes) {
            const std::uint64_t white = planes.of[kPawn] & ~planes.code[0], black = planes.of[kPawn] & planes.code[0];
            detail::for_each_bit(white & planes.of[kPawn] >> 8 & (squares | squares >> 8),
                                 [&](int from) { visit(from, from + 8); });
            detail::for_each_bit(black & planes.of[kPawn] << 8 & (squares | squares << 8),
                                 [&](int from) { visit(from, from - 8); });
        }
    }
};

// A set as a table: a feature is kIndex[own king][code][square] + kOffset[own king][state], from the perspective's
// view; an index of −1 means no feature. Table also has kFeatures, kStates, and kCounters[] if there is more than one
// state.
template <class Table>
struct Tabled : OneKey {
    static constexpr int kFeatures = Table::kFeatures, kMaxActive = 64;

    template <class Add>
    static void list(const Board& board, int perspective, Add add) {
        const int turned = perspective ? 56 : 0, king = board.king[perspective] ^ turned;
        const int offset = Table::kOffset[king][state_of<Table>(board, perspective)];
        for (int square = 0; square < 64; ++square) {
            if (board.piece[square] == Board::kEmpty) continue;
            const int index = Table::kIndex[king][board.piece[square] ^ perspective][square ^ turned];
            if (index >= 0) add(offset + index);
        }
    }
};

// A set in a C++ header, with the four functions that docs/own-features.md describes. Planes is their board, CodePlanes
// of features/general_set.h.
template <class Set, class Planes>
struct General : OneKey {
    static constexpr int kFeatures = Set::kNumFeatures, kMaxActive = Set::kMaxActive;

    template <class Add>
    static void list(const Board& board, int perspective, Add add) {
        Planes planes{};
        for (int square = 0; square < 64; ++square) {
            const std::uint64_t code = board.piece[square];
            if (code == Board::kEmpty) continue;
            planes.occupied |= std::uint64_t{1} << square;
            for (int bit = 0; bit < 4; ++bit) planes.bits[bit] |= (code >> bit & 1) << square;
        }
        const int king = board.king[perspective], turned = Set::orientation(perspective, king);
        const int offset = offset_of<Set>(perspective, king, planes, 0);
        int count = 0;
        for (int square = 0; square < 64; ++square) {
            const int code = board.piece[square];
            if (code == Board::kEmpty) continue;
            for (std::uint64_t left = Set::partners(planes, code, square); left; left &= left - 1) {
                const int to = bit_count((left & (~left + 1)) - 1), found = board.piece[to];
                const int partner = found == Board::kEmpty ? 12 : found ^ perspective;
                const int index = Set::index(code ^ perspective, square ^ turned, partner, to ^ turned);
                // The trainer refuses positions with features out of range, or with more than kMaxActive.
                if (index < 0 || offset + index >= kFeatures || count == kMaxActive) continue;
                add(offset + index);
                ++count;
            }
        }
    }

  private:
    template <class S>
    static auto offset_of(int perspective, int king, const Planes& board, int)
        -> decltype(S::offset(perspective, king, board)) {
        return S::offset(perspective, king, board);
    }
    template <class S>
    static int offset_of(int perspective, int king, const Planes&, long) {
        return S::offset(perspective, king);
    }
};

struct PawnPairs : MirroredKeys {
    static constexpr int kFeatures = 4560, kMaxActive = 120;

    static int index(const Board& board, int from, int to, int perspective, int turned) {
        const auto number = [&](int square) {
            return 48 * ((board.piece[square] & 1) ^ perspective) + (square ^ turned) - 8;
        };
        const int a = number(from), b = number(to);
        const int high = std::max(a, b), low = std::min(a, b);
        return high * (high - 1) / 2 + low;
    }

    template <class Add>
    static void list(const Board& board, int perspective, Add add) {
        const int turned = pair_orientation(perspective, board.king[perspective]);
        for_each_pair(detail::BoardPlanes(board).of[kPawn] & kInside, kInside,
                      [&](int from, int to) { add(index(board, from, to, perspective, turned)); });
    }

    static void find_changes(const TwoBoards& boards, PairChanges& changes) {
        const std::uint64_t was = boards.was.of[kPawn] & kInside, is = boards.is.of[kPawn] & kInside;
        const std::uint64_t changed = boards.changed & (was | is);
        for_each_pair(was, changed, [&](int from, int to) { changes.removed.put_if(true, from, to); });
        for_each_pair(is, changed, [&](int from, int to) { changes.added.put_if(true, from, to); });
    }

  private:
    static constexpr std::uint64_t kInside = 0x00ffffffffffff00;

    // Pairs of pawns on the same file or on neighbouring files, one of both on `squares`. Each pair once.
    template <class Visit>
    static void for_each_pair(std::uint64_t pawns, std::uint64_t squares, Visit visit) {
        detail::for_each_bit(pawns & squares, [&](int from) {
            const std::uint64_t file = std::uint64_t{0x0101010101010101} << (from & 7);
            const std::uint64_t left = (file & ~std::uint64_t{0x0101010101010101}) >> 1;
            const std::uint64_t right = (file & ~std::uint64_t{0x8080808080808080}) << 1;
            const std::uint64_t before = (std::uint64_t{1} << from) - 1;
            detail::for_each_bit(pawns & (file | left | right) & (before | ~squares) & ~(std::uint64_t{1} << from),
                                 [&](int to) { visit(from, to); });
        });
    }
};

// A set and the type of its weights in the file.
template <class Set, class Weight>
struct Part {
    using Features = Set;
    using Type = Weight;
};

template <class... Parts>
struct Inputs {
    static constexpr int kCount = sizeof...(Parts);

    // An accumulator has a sum of the sets whose bucket depends on the king's square, and one of the others if there
    // are both: a move of the king to another bucket then refreshes only the former.
    static constexpr bool kSplit =
        ((Parts::Features::kPerPiece && Parts::Features::kKeys > 2) || ...) && !(Parts::Features::kPerPiece && ...);
    static constexpr int kSums = kSplit ? 2 : 1;
    // The number of the sum with these features.
    template <class Features>
    static constexpr int kSumOf = kSplit && !Features::kPerPiece;

    // The number of the part of a sum with the most keys, or −1 if the sum has none; and the number of its keys.
    static constexpr int part_with_most_keys(int sum) {
        constexpr int kSumsOf[] = {kSumOf<typename Parts::Features>...};
        int best = -1;
        for (int i = 0; i < kCount; ++i) {
            if (kSumsOf[i] == sum && keys_of(i) > keys_of(best)) best = i;
        }
        return best;
    }
    static constexpr int keys_of(int part) {
        constexpr int kKeys[] = {Parts::Features::kKeys...};
        return part < 0 ? 0 : kKeys[part];
    }
    static constexpr bool kPerPiece = (Parts::Features::kPerPiece && ...);
    template <std::size_t Number>
    using TypeOf = typename std::tuple_element_t<Number, std::tuple<Parts...>>::Type;

    // visit(part, number) for each part in order; the number is a constant.
    template <class Visit>
    static void for_each(Visit visit) {
        for_each(visit, std::make_index_sequence<kCount>());
    }

  private:
    template <class Visit, std::size_t... Numbers>
    static void for_each(Visit visit, std::index_sequence<Numbers...>) {
        (visit(Parts{}, std::integral_constant<std::size_t, Numbers>()), ...);
    }
};

// ---- what a net is --------------------------------------------------------------------------------------------------

enum class Activation { kNone, kCrelu, kScrelu, kDual, kPairwise };
enum class Sides { kBoth, kMover, kWhite };                           // the inputs of the layers
enum class Buckets { kByPieces, kByQueens, kByWeights, kBySquares };  // what selects the layers
enum class Scalar { kI8, kI16, kI32, kF32 };

constexpr int size_of(Scalar type) {
    return type == Scalar::kI8 ? 1 : type == Scalar::kI16 ? 2 : 4;
}

// A layer after the first: y = Σ weight · x / divide + bias, or with is_float: y = Σ weight · x · factor + bias in
// fp32. Bit k of `vectors` is set if vector k is an input; vector 0 has the first activations, vector k + 1 those of
// layer k.
struct Layer {
    unsigned vectors;
    int inputs,
        columns;  // columns: of a row in the file, at least as many as inputs
    int outputs, activated;
    Activation activation;
    Scalar weights, biases;
    std::int64_t divide;
    int shift, square_shift, clip;
    bool is_float;
    double factor;
};

// Adds (output `plus` − output `minus`) · multiply / divide of a layer directly to the net's output; minus −1: only
// plus.
struct Skip {
    int layer, plus, minus;
    std::int64_t multiply, divide;
    bool wraps;
};

// Probabilities of the results, for the side to move.
struct Wdl {
    double loss, draw, win;
};

namespace detail {

// ln(E / (1 − E)), where E = win + draw / 2 by the softmax of the logits of loss, draw and win.
inline double log_odds(const double (&logits)[3]) {
    const auto log_sum = [](double a, double b) { return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))); };
    const double half = logits[1] - 0.69314718055994531;  // ln 2
    return log_sum(logits[2], half) - log_sum(logits[0], half);
}

template <int Columns, int Sums>
struct Psqt {
    std::int32_t psqt[Sums][2][Columns];
    std::int32_t* psqt_of(int perspective, int sum = 0) { return psqt[sum][perspective]; }
    const std::int32_t* psqt_of(int perspective, int sum = 0) const { return psqt[sum][perspective]; }
};
template <int Sums>
struct Psqt<0, Sums> {
    std::int32_t* psqt_of(int, int = 0) { return nullptr; }
    const std::int32_t* psqt_of(int, int = 0) const { return nullptr; }
};

}  // namespace detail

// The number of accumulators: one for a net from White's view, otherwise one for each side.
template <class Net>
constexpr int kPerspectives = Net::kSides == Sides::kWhite ? 1 : 2;

// Row kPerspectives · k + perspective belongs to sum k: `Inputs::kSumOf`.
template <class Net>
struct alignas(64) Accumulator : detail::Psqt<Net::kPsqt ? Net::kBuckets : 0, Net::Inputs::kSums> {
    static constexpr int kRows = Net::Inputs::kSums * kPerspectives<Net>;
    alignas(64) std::int16_t values[kRows][Net::kHidden];
};

// Makes refreshes cheaper: for each bucket and perspective it keeps the accumulator of an earlier board. Use one cache
// per thread, and call `clear` after loading another net.
template <class Net>
class Cache {
  public:
    void clear() {
        for (int i = 0; i < kEntries; ++i) entries_[i].is_filled = false;
    }

  private:
    template <class>
    friend class Network;

    struct alignas(64) Entry : detail::Psqt<Net::kPsqt ? Net::kBuckets : 0, 1> {
        alignas(64) std::int16_t values[Net::kHidden];
        Board board;
        bool is_filled = false;
    };
    // The part of a sum with the most keys selects the entry.
    static constexpr int kPart[2] = {Net::Inputs::part_with_most_keys(0), Net::Inputs::part_with_most_keys(1)};
    static constexpr int kKeys[2] = {Net::Inputs::keys_of(kPart[0]), Net::Inputs::keys_of(kPart[1])};
    static constexpr int kEntries = kPerspectives<Net> * (kKeys[0] + kKeys[1]);

    Entry& entry(int perspective, int sum, const Board& board) {
        int key = 0;
        Net::Inputs::for_each([&](auto part, int number) {
            if (number == kPart[sum]) key = decltype(part)::Features::key(perspective, board);
        });
        return entries_[kPerspectives<Net> * (sum ? kKeys[0] : 0) + kKeys[sum] * perspective + key];
    }

    std::unique_ptr<Entry[]> entries_{new Entry[kEntries]};
};

// The boards and accumulators of a search, by ply. An accumulator is computed when its ply or a later one is evaluated,
// from the last ply that has one; the plies between get theirs, since the next position often has the same ones before
// it. It has a cache. Use one stack per thread, and call `clear` after loading another net.
template <class Net>
class Stack {
  public:
    explicit Stack(int plies) : plies_(static_cast<std::size_t>(plies)), path_(plies_.size()) {}

    // Sets the board of a ply: of the root, 0, and of each ply after a move. Those of all earlier plies must be set,
    // and later plies must be set again.
    void set(int ply, const Board& board) {
        Ply& here = at(ply);
        here.board = board;
        here.computed = 0;
        // After a null move, the accumulator of the ply before serves.
        const bool is_same = ply > 0 && std::memcmp(at(ply - 1).board.piece, board.piece, sizeof board.piece) == 0 &&
                             std::memcmp(at(ply - 1).board.king, board.king, sizeof board.king) == 0;
        here.holder = is_same ? at(ply - 1).holder : ply;
    }
    const Board& board(int ply) const { return plies_[static_cast<std::size_t>(ply)].board; }
    int plies() const { return static_cast<int>(plies_.size()); }
    void clear() {
        cache_.clear();
        for (Ply& ply : plies_) ply.computed = 0;
    }

  private:
    template <class>
    friend class Network;

    struct Ply {
        Board board;
        int holder = 0;                                // the ply whose accumulator this ply uses
        unsigned computed = 0, missing = 0, kept = 0;  // bit r is for row r of the accumulator
        Accumulator<Net> accumulator;
    };
    Ply& at(int ply) { return plies_[static_cast<std::size_t>(ply)]; }

    std::vector<Ply> plies_;
    std::vector<int> path_;
    Cache<Net> cache_;
};

// ---- vectors --------------------------------------------------------------------------------------------------------
//
// For each instruction set: `Words`, 16-bit integers that wrap around, and `Ints`, 32-bit sums.

namespace detail {

#if defined(NNUE_AVX512)
using Words = __m512i;
using Ints = __m512i;
constexpr int kWords = 32, kRegisters = 8, kBytes = 64;
inline Words load_words(const std::int16_t* from) {
    return _mm512_loadu_si512(from);
}
inline Words load_words(const std::int8_t* from) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_words(std::int16_t* to, Words words) {
    _mm512_storeu_si512(to, words);
}
inline Words add(Words a, Words b) {
    return _mm512_add_epi16(a, b);
}
inline Words subtract(Words a, Words b) {
    return _mm512_sub_epi16(a, b);
}
inline Words multiply(Words a, Words b) {
    return _mm512_mullo_epi16(a, b);
}
inline Words all_words(int value) {
    return _mm512_set1_epi16(static_cast<std::int16_t>(value));
}
inline Words clamp(Words a, int most) {
    return _mm512_min_epi16(_mm512_max_epi16(a, _mm512_setzero_si512()), all_words(most));
}
// The odd bytes, as words.
inline Words odd_bytes(Words a) {
    return _mm512_srai_epi16(a, 8);
}
inline Words times_256(Words a) {
    return _mm512_slli_epi16(a, 8);
}
inline Ints no_ints() {
    return _mm512_setzero_si512();
}
// sums + a · b; products of two neighbours are added.
inline Ints add_products(Ints sums, Words a, Words b) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
}
// The same for bytes, in fours. a are 0 … 127, so the sum of two products always fits 16 bits.
inline Ints add_products_of_bytes(Ints sums, __m512i a, __m512i b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sums, a, b);
#else
    return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
#endif
}
inline Ints add_products_of_bytes(Ints sums, const std::uint8_t* a, const std::int8_t* b) {
    return add_products_of_bytes(sums, _mm512_loadu_si512(a), _mm512_loadu_si512(b));
}
// sums + the products of four inputs with their weights, for kWords / 2 outputs.
inline Ints add_four(Ints sums, std::uint32_t four, const std::int8_t* weight) {
    return add_products_of_bytes(sums, _mm512_set1_epi32(static_cast<int>(four)), _mm512_loadu_si512(weight));
}
inline void store_ints(std::int32_t* to, Ints ints) {
    _mm512_storeu_si512(to, ints);
}
inline Ints add_ints(Ints a, Ints b) {
    return _mm512_add_epi32(a, b);
}
// Bit i is set if not all bytes of x[4 i … 4 i + 3] are 0, for kBytes bytes.
inline unsigned fours_with_bits(const std::uint8_t* x) {
    const __m512i fours = _mm512_loadu_si512(x);
    return _mm512_test_epi32_mask(fours, fours);
}
#elif defined(NNUE_AVX2)
using Words = __m256i;
using Ints = __m256i;
constexpr int kWords = 16, kRegisters = 8, kBytes = 32;
inline __m256i load_whole(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline Words load_words(const std::int16_t* from) {
    return load_whole(from);
}
inline Words load_words(const std::int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store_words(std::int16_t* to, Words words) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
}
inline Words add(Words a, Words b) {
    return _mm256_add_epi16(a, b);
}
inline Words subtract(Words a, Words b) {
    return _mm256_sub_epi16(a, b);
}
inline Words multiply(Words a, Words b) {
    return _mm256_mullo_epi16(a, b);
}
inline Words all_words(int value) {
    return _mm256_set1_epi16(static_cast<std::int16_t>(value));
}
inline Words clamp(Words a, int most) {
    return _mm256_min_epi16(_mm256_max_epi16(a, _mm256_setzero_si256()), all_words(most));
}
inline Words odd_bytes(Words a) {
    return _mm256_srai_epi16(a, 8);
}
inline Words times_256(Words a) {
    return _mm256_slli_epi16(a, 8);
}
inline Ints no_ints() {
    return _mm256_setzero_si256();
}
inline Ints add_products(Ints sums, Words a, Words b) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
}
inline Ints add_products_of_bytes(Ints sums, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sums, a, b);
#elif defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sums, a, b);
#else
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
}
inline Ints add_products_of_bytes(Ints sums, const std::uint8_t* a, const std::int8_t* b) {
    return add_products_of_bytes(sums, load_whole(a), load_whole(b));
}
inline Ints add_four(Ints sums, std::uint32_t four, const std::int8_t* weight) {
    return add_products_of_bytes(sums, _mm256_set1_epi32(static_cast<int>(four)), load_whole(weight));
}
inline void store_ints(std::int32_t* to, Ints ints) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ints);
}
inline Ints add_ints(Ints a, Ints b) {
    return _mm256_add_epi32(a, b);
}
inline unsigned fours_with_bits(const std::uint8_t* x) {
    const __m256i zeros = _mm256_cmpeq_epi32(load_whole(x), _mm256_setzero_si256());
    return ~static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(zeros))) & 255;
}
#elif defined(NNUE_NEON)
using Words = int16x8_t;
using Ints = int32x4_t;
constexpr int kWords = 8, kRegisters = 16, kBytes = 16;
inline Words load_words(const std::int16_t* from) {
    return vld1q_s16(from);
}
inline Words load_words(const std::int8_t* from) {
    return vmovl_s8(vld1_s8(from));
}
inline void store_words(std::int16_t* to, Words words) {
    vst1q_s16(to, words);
}
inline Words add(Words a, Words b) {
    return vaddq_s16(a, b);
}
inline Words subtract(Words a, Words b) {
    return vsubq_s16(a, b);
}
inline Words multiply(Words a, Words b) {
    return vmulq_s16(a, b);
}
inline Words clamp(Words a, int most) {
    return vminq_s16(vmaxq_s16(a, vdupq_n_s16(0)), vdupq_n_s16(static_cast<std::int16_t>(most)));
}
inline Ints no_ints() {
    return vdupq_n_s32(0);
}
inline Ints add_products(Ints sums, Words a, Words b) {
    return vmlal_high_s16(vmlal_s16(sums, vget_low_s16(a), vget_low_s16(b)), a, b);
}
inline Ints add_products_of_bytes(Ints sums, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sums, a, b);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    return vaddq_s32(sums, vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(a, b))));
#endif
}
inline Ints add_products_of_bytes(Ints sums, const std::uint8_t* a, const std::int8_t* b) {
    return add_products_of_bytes(sums, vreinterpretq_s8_u8(vld1q_u8(a)), vld1q_s8(b));
}
inline Ints add_four(Ints sums, std::uint32_t four, const std::int8_t* weight) {
    return add_products_of_bytes(sums, vreinterpretq_s8_u32(vdupq_n_u32(four)), vld1q_s8(weight));
}
inline void store_ints(std::int32_t* to, Ints ints) {
    vst1q_s32(to, ints);
}
inline Ints add_ints(Ints a, Ints b) {
    return vaddq_s32(a, b);
}
inline unsigned fours_with_bits(const std::uint8_t* x) {
    constexpr std::uint32_t kBits[4] = {1, 2, 4, 8};
    const uint32x4_t fours = vreinterpretq_u32_u8(vld1q_u8(x));
    return vaddvq_u32(vandq_u32(vtstq_u32(fours, fours), vld1q_u32(kBits)));
}
#endif

#if defined(NNUE_VECTORS)
constexpr int kInts = kWords / 2;

// The sum of all lanes in 32 bits, wrapping around.
inline std::uint32_t wrapped_total_of(Ints ints) {
    alignas(64) std::int32_t lanes[kInts];
    store_ints(lanes, ints);
    std::uint32_t sum = 0;
    for (const std::int32_t lane : lanes) sum += static_cast<std::uint32_t>(lane);
    return sum;
}

// The exact sum of all lanes.
inline std::int64_t total_of(Ints ints) {
    alignas(64) std::int32_t lanes[kInts];
    store_ints(lanes, ints);
    std::int64_t sum = 0;
    for (const std::int32_t lane : lanes) sum += lane;
    return sum;
}
#endif

// Σ weight · x for x of 0 … 127, in 32 bits, wrapping around.
inline std::int32_t dot(const std::uint8_t* x, const std::int8_t* weight, int size) {
    std::uint32_t sum = 0;
    int i = 0;
#if defined(NNUE_VECTORS)
    Ints sums = no_ints();
    for (; i + kBytes <= size; i += kBytes) sums = add_products_of_bytes(sums, x + i, weight + i);
    sum = wrapped_total_of(sums);
#endif
    for (; i < size; ++i) sum += static_cast<std::uint32_t>(x[i] * weight[i]);
    return static_cast<std::int32_t>(sum);
}

// Fetches lines of the cache from an address on. Four are enough for a row: then the CPU's own prefetcher loads those
// that follow. More would take the places of other rows' requests, of which a core has about a dozen.
template <int Lines>
inline void prefetch(const void* address) {
#if defined(__GNUC__)
    for (int i = 0; i < Lines; ++i) __builtin_prefetch(static_cast<const char*>(address) + 64 * i);
#else
    static_cast<void>(address);
#endif
}

// Rows of tensors that are added to an accumulator, and those that are subtracted.
template <class Weight, int Most>
struct Changes {
    static constexpr int kMost = Most;
    const Weight* added[Most];
    const Weight* removed[Most];
    int num_added = 0, num_removed = 0;

    Changes() {}  // leaves the lists as they are; a default constructor would fill them with zeros
    bool empty() const { return num_added + num_removed == 0; }
    void clear() { num_added = num_removed = 0; }
    // Calls use(row, is_added) for each row; is_added is a constant.
    template <class Use>
    void for_each(Use use) const {
        for (int i = 0; i < num_added; ++i) use(added[i], std::true_type());
        for (int i = 0; i < num_removed; ++i) use(removed[i], std::false_type());
    }
};

// Rows of bytes are woven in memory, so that they are added as words without an extension of each number: of
// 2 · kWords numbers, the even bytes hold the first half, plus 128, and the odd bytes the second half. The sum of the
// rows as words is then the sum of the even bytes + 256 · that of the odd bytes, which are words after a shift.
#if defined(NNUE_AVX512) || defined(NNUE_AVX2)
template <int Size>
constexpr bool kIsWoven = Size % (2 * kWords) == 0;

inline void weave(std::int8_t* row, int size) {
    for (; size > 0; size -= 2 * kWords, row += 2 * kWords) {
        std::int8_t woven[2 * kWords];
        for (int k = 0; k < kWords; ++k) {
            woven[2 * k] = static_cast<std::int8_t>(row[k] ^ -128);
            woven[2 * k + 1] = row[k + kWords];
        }
        std::memcpy(row, woven, sizeof woven);
    }
}
#else
template <int>
constexpr bool kIsWoven = false;  // NEON adds bytes to words in one instruction

inline void weave(std::int8_t*, int) {}
#endif

// Calls use(row, is_added) for each row at a tile of Count numbers, and fetches the first line of what follows: the
// next tile or, after the last one, the PSQT values.
template <int Count, class Weight, int Most, class Use>
inline void for_each_row(const Changes<Weight, Most>& changes, int at, Use use) {
    changes.for_each([&](const Weight* row, auto is_added) {
        prefetch<1>(row + at + Count);
        use(row + at, is_added);
    });
}

// to[at … at + Count) = from + the rows that are added − the rows that are removed. The sums stay in registers.
template <int Count, bool IsWoven, class Weight, int Most>
inline void apply_to_tile(const std::int16_t* from, std::int16_t* to, int at, const Changes<Weight, Most>& changes) {
#if defined(NNUE_AVX512) || defined(NNUE_AVX2)
    if constexpr (IsWoven && sizeof(Weight) == 1 && Count % (2 * kWords) == 0) {
        constexpr int kPairs = Count / (2 * kWords);
        Words words[kPairs], odd[kPairs];
        for (int k = 0; k < kPairs; ++k) words[k] = odd[k] = all_words(0);
        for_each_row<Count>(changes, at, [&](const std::int8_t* row, auto is_added) {
            for (int k = 0; k < kPairs; ++k) {
                const Words here = load_words(reinterpret_cast<const std::int16_t*>(row) + k * kWords);
                words[k] = is_added ? add(words[k], here) : subtract(words[k], here);
                odd[k] = is_added ? add(odd[k], odd_bytes(here)) : subtract(odd[k], odd_bytes(here));
            }
        });
        const Words offset = all_words(128 * (changes.num_added - changes.num_removed));
        for (int k = 0; k < kPairs; ++k) {
            const int first = at + 2 * k * kWords, second = first + kWords;
            const Words even = subtract(subtract(words[k], times_256(odd[k])), offset);
            store_words(to + first, add(load_words(from + first), even));
            store_words(to + second, add(load_words(from + second), odd[k]));
        }
        return;
    }
#endif
#if defined(NNUE_VECTORS)
    if constexpr (Count % kWords == 0) {
        constexpr int kVectors = Count / kWords;
        Words sums[kVectors];
        for (int k = 0; k < kVectors; ++k) sums[k] = load_words(from + at + k * kWords);
        for_each_row<Count>(changes, at, [&](const Weight* row, auto is_added) {
            for (int k = 0; k < kVectors; ++k) {
                const Words here = load_words(row + k * kWords);
                sums[k] = is_added ? add(sums[k], here) : subtract(sums[k], here);
            }
        });
        for (int k = 0; k < kVectors; ++k) store_words(to + at + k * kWords, sums[k]);
        return;
    }
#endif
    // The compiler's vectors.
    std::uint16_t sums[Count];
    for (int k = 0; k < Count; ++k) sums[k] = static_cast<std::uint16_t>(from[at + k]);
    for_each_row<Count>(changes, at, [&](const Weight* row, auto is_added) {
        for (int k = 0; k < Count; ++k)
            sums[k] = static_cast<std::uint16_t>(is_added ? sums[k] + row[k] : sums[k] - row[k]);
    });
    for (int k = 0; k < Count; ++k) to[at + k] = static_cast<std::int16_t>(sums[k]);
}

// visit(at, count) for the tiles of a sum of Size numbers; the count is a constant.
template <int Size, class Visit>
inline void for_each_tile(Visit visit) {
#if defined(NNUE_VECTORS)
    constexpr int kVector = kWords, kTile = kRegisters * kWords;
#else
    constexpr int kVector = 1, kTile = 64;
#endif
    constexpr int kInTiles = Size / kTile * kTile, kInVectors = Size / kVector * kVector;
    for (int at = 0; at < kInTiles; at += kTile) visit(at, std::integral_constant<int, kTile>());
    if constexpr (kInVectors > kInTiles) visit(kInTiles, std::integral_constant<int, kInVectors - kInTiles>());
    if constexpr (Size > kInVectors) visit(kInVectors, std::integral_constant<int, Size - kInVectors>());
}

// Σ weight · x in 32 bits, wrapping around.
template <class Weight>
inline std::int32_t dot(const std::int16_t* x, const Weight* weight, int size) {
    std::uint32_t sum = 0;
    int i = 0;
#if defined(NNUE_VECTORS)
    Ints sums = no_ints();
    for (; i + kWords <= size; i += kWords) sums = add_products(sums, load_words(x + i), load_words(weight + i));
    sum = wrapped_total_of(sums);
#endif
    for (; i < size; ++i) sum += static_cast<std::uint32_t>(std::int32_t{x[i]} * weight[i]);
    return static_cast<std::int32_t>(sum);
}

// The exact Σ weight · a · b, if every weight · a fits 16 bits and a, b are 0 … 256. `pair(i)` returns kWords of a and
// of b from i on, `one(i)` a single a · b.
template <class Weight, class Pair, class One>
inline std::int64_t dot_pairs(const Weight* weight, int size, Pair pair, One one) {
    std::int64_t sum = 0;
    int i = 0;
#if defined(NNUE_VECTORS)
    while (i + kWords <= size) {
        // A lane grows by at most 2^24 per step, so the sum of 64 steps fits 32 bits.
        Ints sums = no_ints();
        for (int end = std::min(size - kWords + 1, i + 64 * kWords); i < end; i += kWords) {
            const auto factors = pair(i);
            sums = add_products(sums, multiply(factors.first, load_words(weight + i)), factors.second);
        }
        sum += total_of(sums);
    }
#else
    static_cast<void>(pair);
#endif
    for (; i < size; ++i) sum += std::int64_t{weight[i]} * one(i);
    return sum;
}

#if defined(NNUE_VECTORS)
struct WordPair {
    Words first, second;
};
#endif

template <class Weight>
inline std::int64_t dot_products(const std::int16_t* a, const std::int16_t* b, const Weight* weight, int size) {
    const auto pair = [&](int i) {
#if defined(NNUE_VECTORS)
        return WordPair{load_words(a + i), load_words(b + i)};
#else
        return i;
#endif
    };
    return dot_pairs(weight, size, pair, [&](int i) { return a[i] * b[i]; });
}

// Σ weight · clamp(x, 0, clip)²; the clamped values stay in registers.
template <class Weight>
inline std::int64_t dot_squares(const std::int16_t* x, const Weight* weight, int size, int clip) {
    const auto pair = [&](int i) {
#if defined(NNUE_VECTORS)
        const Words one = clamp(load_words(x + i), clip);
        return WordPair{one, one};
#else
        return i;
#endif
    };
    return dot_pairs(weight, size, pair, [&](int i) {
        const int one = std::min(std::max<int>(x[i], 0), clip);
        return one * one;
    });
}

// Σ weight · x(i) in float64, in four independent sums, so that compilers can vectorise it.
template <class Weight, class Input>
inline double dot_real(const Weight* weight, int size, Input x) {
    double parts[4] = {0, 0, 0, 0};
    int i = 0;
    for (; i + 4 <= size; i += 4) {
        for (int j = 0; j < 4; ++j) {
            parts[j] += static_cast<double>(x(i + j)) * static_cast<double>(weight[i + j]);
        }
    }
    for (; i < size; ++i) parts[0] += static_cast<double>(x(i)) * static_cast<double>(weight[i]);
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

// The places of the bits of each byte.
struct PlacesOfBits {
    std::uint16_t of[256][8] = {};

    constexpr PlacesOfBits() {
        for (unsigned byte = 0; byte < 256; ++byte) {
            int count = 0;
            for (unsigned bit = 0; bit < 8; ++bit) {
                if (byte >> bit & 1) of[byte][count++] = static_cast<std::uint16_t>(bit);
            }
        }
    }
};
inline constexpr PlacesOfBits kPlacesOfBits{};

#if defined(NNUE_COMPRESS)
// Writes first + the place of each of 16 bits; returns their number. `to` has 16 places.
inline int list_bits(unsigned bits, int first, std::uint16_t* to) {
    const __m256i places = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i numbers = _mm256_add_epi16(places, _mm256_set1_epi16(static_cast<std::int16_t>(first)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_maskz_compress_epi16(static_cast<__mmask16>(bits), numbers));
    return bit_count(bits);
}
#endif

// Lists the blocks of four inputs that are not all 0; returns their number. `blocks` has 16 places more than blocks.
template <int Size>
inline int list_blocks(const std::uint8_t* x, std::uint16_t* blocks) {
    int count = 0, i = 0;
#if defined(NNUE_VECTORS)
    for (; i + kBytes <= Size; i += kBytes) {
        unsigned bits = fours_with_bits(x + i);
#if defined(NNUE_COMPRESS)
        count += list_bits(bits, i / 4, blocks + count);
#else
        for (int first = i / 4; first < (i + kBytes) / 4; first += 8, bits >>= 8) {
            const auto& places = kPlacesOfBits.of[bits & 255];
            for (int k = 0; k < 8; ++k) blocks[count + k] = static_cast<std::uint16_t>(first + places[k]);
            count += bit_count(bits & 255);
        }
#endif
    }
#endif
    for (; i < Size; i += 4) {
        std::uint32_t four;
        std::memcpy(&four, x + i, 4);
        blocks[count] = static_cast<std::uint16_t>(i / 4);
        count += four != 0;
    }
    return count;
}

// Σ weight · x for each of `Outputs` outputs, for x of 0 … 127; blocks of four inputs that are 0 are skipped. The
// weights are in blocks, too: [size / 4][Outputs][4].
template <int Outputs, int Size>
inline void dot_blocks(const std::uint8_t* x, const std::int8_t* weight, std::int32_t* y) {
    std::uint16_t blocks[Size / 4 + 16];
    const int count = list_blocks<Size>(x, blocks);
#if defined(NNUE_VECTORS)
    if constexpr (Outputs % kInts == 0) {
        // Several sums for each output, since a product waits for the previous product of its sum.
        constexpr int kVectors = Outputs / kInts, kChains = kVectors < 8 ? 8 / kVectors : 1;
        Ints sums[kChains][kVectors];
        for (auto& chain : sums) {
            for (Ints& sum : chain) sum = no_ints();
        }
        const auto add_block = [&](Ints(&chain)[kVectors], int block) {
            std::uint32_t four;
            std::memcpy(&four, x + 4 * block, 4);
            const std::int8_t* row = weight + static_cast<std::size_t>(block) * Outputs * 4;
            for (int k = 0; k < kVectors; ++k) chain[k] = add_four(chain[k], four, row + 4 * kInts * k);
        };
        int i = 0;
        for (; i + kChains <= count; i += kChains) {
            for (int c = 0; c < kChains; ++c) add_block(sums[c], blocks[i + c]);
        }
        for (; i < count; ++i) add_block(sums[0], blocks[i]);
        for (int k = 0; k < kVectors; ++k) {
            for (int c = 1; c < kChains; ++c) sums[0][k] = add_ints(sums[0][k], sums[c][k]);
            store_ints(y + kInts * k, sums[0][k]);
        }
        return;
    }
#endif
    for (int o = 0; o < Outputs; ++o) y[o] = 0;
    for (int i = 0; i < count; ++i) {
        const std::int8_t* row = weight + std::size_t{blocks[i]} * Outputs * 4;
        const std::uint8_t* four = x + 4 * blocks[i];
        for (int o = 0; o < Outputs; ++o) {
            for (int j = 0; j < 4; ++j) y[o] += four[j] * row[4 * o + j];
        }
    }
}

// Memory for weights; each tensor begins at a cache line. On Linux in large pages where the system has them: the rows
// of a move are far apart, and would miss the TLB one by one.
class Memory {
  public:
    Memory() = default;
    explicit Memory(std::size_t size) {
        if (size >= kLargePage) size = (size + kLargePage - 1) / kLargePage * kLargePage;
        data_.reset(static_cast<std::byte*>(::operator new (size, std::align_val_t{kLargePage})));
#if defined(__linux__)
        if (size >= kLargePage) ::madvise(data_.get(), size, MADV_HUGEPAGE);
#endif
    }
    std::byte* data() const {
        return data_.get();
    }

  private:
    static constexpr std::size_t kLargePage = std::size_t{1} << 21;
    struct Free {
        void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{kLargePage}); }
    };
    std::unique_ptr<std::byte, Free> data_;
};

}  // namespace detail

// ---- the net --------------------------------------------------------------------------------------------------------

template <class Net>
class Network {
  public:
    // Loads a raw file. False, with the reason in `error`, if it cannot be read or does not have this net's size.
    bool load(const char* path, std::string& error) {
        const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "rb"), &std::fclose);
        if (!file) {
            error = std::string(path) + ": cannot be opened";
            return false;
        }
        const std::size_t expected = file_size();
        const std::unique_ptr<std::byte[]> data(new std::byte[expected + 1]);
        const std::size_t size = std::fread(data.get(), 1, expected + 1, file.get());
        if (load(data.get(), size)) return true;
        error = std::string(path) + ": found " + (size > expected ? "more than " : "") +
                std::to_string(std::min(size, expected)) + " bytes, expected " + std::to_string(expected);
        return false;
    }

    // The same from memory, for a file inside the executable. False if the size differs.
    bool load(const void* data, std::size_t size) {
        if (size != file_size()) return false;
        memory_ = detail::Memory(layout([](std::size_t, std::size_t, std::size_t) {}));
        layout([&](std::size_t in_file, std::size_t in_memory, std::size_t bytes) {
            std::memcpy(memory_.data() + in_memory, static_cast<const std::byte*>(data) + in_file, bytes);
        });
        prepare(std::make_integer_sequence<int, kNumLayers>());
        if constexpr (kIsWoven) {
            Net::Inputs::for_each([&](auto part, auto number) {
                constexpr std::size_t kNumber = decltype(number)::value;
                if constexpr (sizeof(WeightOfPart<kNumber>) > 1) return;
                for (int i = 0; i < decltype(part)::Features::kFeatures; ++i) {
                    const std::size_t where = weight_[kNumber] + static_cast<std::size_t>(i) * kRowBytes<std::int8_t>;
                    detail::weave(reinterpret_cast<std::int8_t*>(memory_.data() + where), Net::kHidden);
                }
            });
        }
        return true;
    }

    static constexpr std::size_t file_size() { return Net::kFileSize; }

    // Computes both perspectives from all pieces.
    void refresh(const Board& board, Accumulator<Net>& accumulator) const {
        for_each_sum([&](int perspective, auto sum) { refresh(board, perspective, sum, accumulator); });
    }

    // The same, from the accumulators in the cache if they are filled.
    void refresh(const Board& board, Accumulator<Net>& accumulator, Cache<Net>& cache) const {
        for_each_sum([&](int perspective, auto sum) { refresh(board, perspective, sum, accumulator, cache); });
    }

    // Computes the accumulator of `after` from `old`, that of `before`, one or more moves earlier. `old` must be a
    // different object.
    void update(const Board& before, const Accumulator<Net>& old, const Board& after,
                Accumulator<Net>& accumulator) const {
        update_with(before, old, after, accumulator,
                    [&](int perspective, auto sum) { refresh(after, perspective, sum, accumulator); });
    }

    // The same; perspectives whose bucket changes are refreshed from the cache.
    void update(const Board& before, const Accumulator<Net>& old, const Board& after, Accumulator<Net>& accumulator,
                Cache<Net>& cache) const {
        update_with(before, old, after, accumulator,
                    [&](int perspective, auto sum) { refresh(after, perspective, sum, accumulator, cache); });
    }

    // The accumulator of a ply, up to date.
    const Accumulator<Net>& accumulator(Stack<Net>& stack, int ply) const {
        // Back to the last ply that has what is needed. A sum whose bucket changes on the way is refreshed there.
        int count = 0, at = stack.at(ply).holder;
        for (unsigned wanted = (1u << Accumulator<Net>::kRows) - 1;; at = stack.at(at - 1).holder) {
            auto& here = stack.at(at);
            here.missing = wanted & ~here.computed;
            if (!here.missing) break;
            stack.path_[static_cast<std::size_t>(count++)] = at;
            here.kept = at == 0 ? 0 : here.missing & rows_with_same_key(stack.at(at - 1).board, here.board);
            if (!here.kept) break;
            wanted = here.kept;
        }
        while (count > 0) compute(stack, stack.path_[static_cast<std::size_t>(--count)]);
        return stack.at(stack.at(ply).holder).accumulator;
    }

    int evaluate(Stack<Net>& stack, int ply) const { return evaluate(accumulator(stack, ply), stack.board(ply)); }

    // Engine units from the side to move's view: `score` of `nnue eval --json`.
    int evaluate(const Accumulator<Net>& accumulator, const Board& board) const {
        return evaluate_in(accumulator, board.black_to_move, bucket_of(board, board.black_to_move));
    }

    // The same without a board. Only nets with buckets by queens use `queens`: 4 · min(3, queens of the side to move) +
    // min(3, queens of the other side). Nets with buckets by weights of pieces need a Board or Material.
    int evaluate(const Accumulator<Net>& accumulator, bool black_to_move, int pieces, int queens = 0) const {
        static_assert(Net::kBucketsBy != Buckets::kByWeights, "pass a Board, or Material");
        static_assert(Net::kBucketsBy != Buckets::kBySquares, "pass a Board, or Material and the pieces");
        return evaluate_in(
            accumulator, black_to_move,
            entry_of(Net::kBucketOf, Net::kBucketsBy == Buckets::kByQueens ? 16 * pieces + queens : pieces));
    }

    // ---- for engines with their own board, and nets whose features are pieces on squares
    //
    // pieces(visit) calls visit(code, square) for each piece on the board, including kings.

    template <class Pieces>
    void refresh(const Material& material, Pieces pieces, Accumulator<Net>& accumulator) const {
        for (int perspective = 0; perspective < kPerspectives<Net>; ++perspective)
            refresh(material, pieces, perspective, accumulator);
    }

    // The same from the cache.
    template <class Pieces>
    void refresh(const Material& material, Pieces pieces, Accumulator<Net>& accumulator, Cache<Net>& cache) const {
        refresh(board_of(material, pieces), accumulator, cache);
    }

    // Computes the accumulator after the move `delta`. `pieces` are those of the board after the move; they are visited
    // only if a perspective changes its bucket. `old` may be `accumulator`: engines that make and unmake moves on one
    // board need only one accumulator, and unmake a move with `delta.reversed()` and `before` and `after` exchanged.
    template <class Pieces>
    void update(const Material& before, const Accumulator<Net>& old, const Material& after, const Delta& delta,
                Pieces pieces, Accumulator<Net>& accumulator) const {
        for (int perspective = 0; perspective < kPerspectives<Net>; ++perspective) {
            if (delta.complete && has_same_key(before, after, perspective)) {
                apply_delta(after, delta, perspective, old, accumulator);
            } else {
                refresh(after, pieces, perspective, accumulator);
            }
        }
    }

    // The same with a cache.
    template <class Pieces>
    void update(const Material& before, const Accumulator<Net>& old, const Material& after, const Delta& delta,
                Pieces pieces, Accumulator<Net>& accumulator, Cache<Net>& cache) const {
        for (int perspective = 0; perspective < kPerspectives<Net>; ++perspective) {
            if (delta.complete && has_same_key(before, after, perspective)) {
                apply_delta(after, delta, perspective, old, accumulator);
            } else {
                refresh(board_of(after, pieces), perspective, kFirstSum, accumulator, cache);
            }
        }
    }

    // Adds or removes one piece in one perspective; does nothing for a perspective without an accumulator. The bucket
    // of the perspective must be that of `material` (see `needs_refresh`).
    void add(const Material& material, int perspective, int code, int square, Accumulator<Net>& accumulator) const {
        if (perspective >= kPerspectives<Net>) return;
        Delta delta;
        delta.add(code, square);
        apply_delta(material, delta, perspective, accumulator, accumulator);
    }
    void remove(const Material& material, int perspective, int code, int square, Accumulator<Net>& accumulator) const {
        if (perspective >= kPerspectives<Net>) return;
        Delta delta;
        delta.remove(code, square);
        apply_delta(material, delta, perspective, accumulator, accumulator);
    }

    // Whether the perspective must be refreshed between two boards.
    static bool needs_refresh(const Material& before, const Material& after, int perspective) {
        return perspective < kPerspectives<Net> &&
               !(has_same_key<0>(before, after, perspective) && has_same_key<kSums - 1>(before, after, perspective));
    }

    int evaluate(const Accumulator<Net>& accumulator, bool black_to_move, const Material& material) const {
        return evaluate_in(accumulator, black_to_move, bucket_of(material, black_to_move));
    }

    // The same for any net; `pieces` are visited if output buckets depend on squares.
    template <class Pieces>
    int evaluate(const Accumulator<Net>& accumulator, bool black_to_move, const Material& material,
                 Pieces pieces) const {
        return evaluate_in(accumulator, black_to_move, bucket_of(material, pieces, black_to_move));
    }

    // ---- probabilities from the side to move's view, for a net with `head: wdl`

    Wdl wdl(const Accumulator<Net>& accumulator, const Board& board) const {
        return wdl_in(accumulator, board.black_to_move, bucket_of(board, board.black_to_move));
    }

    template <class Pieces>
    Wdl wdl(const Accumulator<Net>& accumulator, bool black_to_move, const Material& material, Pieces pieces) const {
        return wdl_in(accumulator, black_to_move, bucket_of(material, pieces, black_to_move));
    }

  private:
    static constexpr int kNumLayers = Net::kNumLayers, kSums = Net::Inputs::kSums;
    static constexpr std::integral_constant<int, 0> kFirstSum{};
    static constexpr const Layer& layer(int number) { return Net::kLayers[number]; }
    static constexpr int kSides = Net::kSides == Sides::kBoth ? 2 : 1;
    static constexpr int kPerSide = Net::kActivation == Activation::kPairwise ? Net::kHidden / 2 : Net::kHidden;
    static constexpr int kFirstInputs = kSides * kPerSide;
    static constexpr bool kIsWoven = detail::kIsWoven<Net::kHidden>;
    static constexpr bool kIsFloat = Net::kLayers[kNumLayers - 1].is_float;

    static constexpr std::int64_t first_largest() {
        const std::int64_t clip = Net::kClip;
        return Net::kActivation == Activation::kCrelu ? clip : clip * clip >> Net::kProductShift;
    }
    // The first activations are products that may exceed 15 bits, so their two factors are stored instead.
    static constexpr bool kWholeProducts =
        Net::kActivation != Activation::kCrelu && (Net::kProductShift == 0 || first_largest() > 32767);
    // Whether vector `number` is stored in bytes: its values are 0 … 127, and all layers that read it have byte
    // weights.
    static constexpr bool is_bytes(int number) {
        for (int k = 0; k < kNumLayers; ++k) {
            if ((layer(k).vectors >> number & 1) && layer(k).weights != Scalar::kI8) return false;
        }
        if (number == 0) return !kWholeProducts && first_largest() <= 127;
        const Layer& from = layer(number - 1);
        const std::int64_t clip = from.clip;
        return from.activation == Activation::kScrelu ? clip * clip >> from.square_shift <= 127
                                                      : from.activation != Activation::kNone && clip <= 127;
    }
    static constexpr int vector_size(int number) {
        if (number == 0) return kFirstInputs;
        const Layer& from = layer(number - 1);
        return from.activated * (from.activation == Activation::kDual ? 2 : 1);
    }
    static constexpr bool has_floats(int number) { return number > 0 && layer(number - 1).is_float; }
    template <int Number>
    using VectorOf =
        std::conditional_t<has_floats(Number), float, std::conditional_t<is_bytes(Number), std::uint8_t, std::int16_t>>;
    // The type of the inputs of a layer that does not only read vector 0.
    static constexpr bool reads_bytes(int number) {
        for (int k = 0; k <= number; ++k) {
            if ((layer(number).vectors >> k & 1) && (has_floats(k) || !is_bytes(k))) return false;
        }
        return true;
    }
    static constexpr bool reads_floats(int number) {
        for (int k = 0; k <= number; ++k) {
            if ((layer(number).vectors >> k & 1) && has_floats(k)) return true;
        }
        return false;
    }
    template <int Number>
    using InputOf = std::conditional_t<reads_floats(Number), float,
                                       std::conditional_t<reads_bytes(Number), std::uint8_t, std::int16_t>>;
    template <Scalar Kind>
    using In = std::conditional_t<Kind == Scalar::kI8, std::int8_t,
                                  std::conditional_t<Kind == Scalar::kI16, std::int16_t,
                                                     std::conditional_t<Kind == Scalar::kI32, std::int32_t, float>>>;
    template <int Number>
    using WeightOf = In<layer(Number).weights>;
    template <int Number>
    using BiasOf = In<layer(Number).biases>;
    // Whether a layer multiplies bytes in blocks of four inputs, and skips those that are 0.
    static constexpr bool is_in_blocks(int number) {
        const Layer& one = layer(number);
        return reads_bytes(number) && one.divide == 1 && one.inputs % 4 == 0 && one.outputs % 4 == 0;
    }
    static constexpr std::size_t weights_of(int number) {
        return std::size_t{Net::kBuckets} * static_cast<std::size_t>(layer(number).outputs) *
               static_cast<std::size_t>(layer(number).inputs);
    }

    // The number at a place of a table, or its last one: boards may have more than 32 pieces.
    template <std::size_t Size>
    static int entry_of(const int (&table)[Size], int place) {
        return table[std::min(std::max(place, 0), static_cast<int>(Size) - 1)];
    }

    template <class Position>
    static int bucket_of(const Position& board, int us) {
        if constexpr (Net::kBucketsBy == Buckets::kByQueens) {
            const int own = std::min(board.count_of(1u << (2 * kQueen), us), 3);
            const int other = std::min(board.count_of(2u << (2 * kQueen), us), 3);
            return entry_of(Net::kBucketOf, 16 * board.pieces() + 4 * own + other);
        } else if constexpr (Net::kBucketsBy == Buckets::kByWeights) {
            int sum = 0;
            for (int i = 0; i < 10; ++i) {
                const unsigned code = 1u << (2 * (i % 5) + i / 5);
                if (Net::kPieceWeights[i] != 0) sum += Net::kPieceWeights[i] * board.count_of(code, us);
            }
            return entry_of(Net::kBucketOf, sum);
        } else if constexpr (Net::kBucketsBy == Buckets::kBySquares) {
            static_assert(std::is_same_v<Position, Board>, "pass a Board, or the pieces");
            const bool east = (board.king[us] & 7) > 3;
            const bool mirrored = Net::kBucketMirror == 1 ? east : Net::kBucketMirror == 2 && !east;
            const int turned = (us ? 56 : 0) ^ (mirrored ? 7 : 0);
            int sum = 0;
            for (int square = 0; square < 64; ++square) {
                const int code = board.piece[square];
                if (code == Board::kEmpty) continue;
                sum += Net::kSquareWeights[64 * (6 * ((code & 1) ^ us) + (code >> 1)) + (square ^ turned)];
            }
            return entry_of(Net::kBucketOf, sum);
        } else {
            return entry_of(Net::kBucketOf, board.pieces());
        }
    }

    template <class Pieces>
    static int bucket_of(const Material& material, Pieces pieces, int us) {
        if constexpr (Net::kBucketsBy == Buckets::kBySquares) {
            return bucket_of(board_of(material, pieces), us);
        } else {
            return bucket_of(material, us);
        }
    }

    static std::int16_t clipped(std::int16_t value) {
        const auto shifted = static_cast<std::int16_t>(static_cast<std::uint16_t>(value) << Net::kAccumulatorShift);
        return std::min<std::int16_t>(std::max<std::int16_t>(shifted, 0), Net::kClip);
    }

    // ---- tensors: calls place(offset in the file, offset in memory, bytes) for each; returns the size of the memory

    template <class Place>
    std::size_t layout(Place place) {
        std::size_t in_memory = 0;
        const auto tensor = [&](std::size_t& where, std::size_t in_file, std::size_t bytes) {
            where = in_memory;
            place(in_file, in_memory, bytes);
            in_memory += (bytes + 63) / 64 * 64;
        };
        Net::Inputs::for_each([&](auto part, int number) {
            using P = decltype(part);
            constexpr std::size_t kRows = P::Features::kFeatures, kRow = kRowBytes<typename P::Type>;
            constexpr std::size_t kWeights = Net::kHidden * sizeof(typename P::Type), kValues = Net::kBuckets * 4;
            weight_[number] = in_memory;
            if constexpr (Net::kPsqt) {
                for (std::size_t row = 0; row < kRows; ++row, in_memory += kRow) {
                    place(Net::kWeightsAt[number] + row * kWeights, in_memory, kWeights);
                    place(Net::kPsqtAt[number] + row * kValues, in_memory + kPsqtIn<typename P::Type>, kValues);
                }
            } else {
                tensor(weight_[number], Net::kWeightsAt[number], kRows * kWeights);
            }
        });
        tensor(bias_, Net::kBiasAt, std::size_t{2} * Net::kHidden);
        for (int number = 0; number < kNumLayers; ++number) {
            const Layer& one = layer(number);
            const std::size_t outputs = std::size_t{Net::kBuckets} * static_cast<std::size_t>(one.outputs);
            tensor(layer_weight_[number], Net::kLayersAt[number][0],
                   outputs * static_cast<std::size_t>(one.columns) * static_cast<std::size_t>(size_of(one.weights)));
            tensor(layer_bias_[number], Net::kLayersAt[number][1],
                   outputs * static_cast<std::size_t>(size_of(one.biases)));
        }
        for (int number = 0; number < kNumLayers; ++number) {
            blocks_[number] = in_memory;
            if (is_in_blocks(number)) in_memory += (weights_of(number) + 63) / 64 * 64;
        }
        return in_memory;
    }

    template <class T>
    const T* at(std::size_t where) const {
        return reinterpret_cast<const T*>(memory_.data() + where);
    }

    // In memory, the PSQT values of a row follow its weights: a move reads few rows of a large tensor, and would wait
    // for each place of its own.
    template <class Weight>
    static constexpr std::size_t kPsqtIn = (Net::kHidden * sizeof(Weight) + 3) / 4 * 4;
    template <class Weight>
    static constexpr std::size_t kRowBytes = Net::kPsqt ? (kPsqtIn<Weight> + Net::kBuckets * 4 + 63) / 64 * 64
                                                        : Net::kHidden * sizeof(Weight);
    template <std::size_t Number>
    using WeightOfPart = typename Net::Inputs::template TypeOf<Number>;
    template <std::size_t Number>
    const WeightOfPart<Number>* row(int feature) const {
        using Weight = WeightOfPart<Number>;
        return at<Weight>(weight_[Number] + static_cast<std::size_t>(feature) * kRowBytes<Weight>);
    }
    template <class Weight>
    static const std::int32_t* psqt_of(const Weight* row) {
        return reinterpret_cast<const std::int32_t*>(reinterpret_cast<const std::byte*>(row) + kPsqtIn<Weight>);
    }

    // Called once, by `load`: prepares facts about the weights of each layer, and the blocks of its weights.
    template <int... Numbers>
    void prepare(std::integer_sequence<int, Numbers...>) {
        ((products_fit_[Numbers] = products_fit<Numbers>()), ...);
        (order_blocks<Numbers>(), ...);
    }

    template <int Number>
    void order_blocks() {
        if constexpr (is_in_blocks(Number)) {
            constexpr Layer kLayer = layer(Number);
            constexpr std::size_t kInputs = kLayer.inputs, kOutputs = kLayer.outputs, kColumns = kLayer.columns;
            const auto* weight = at<std::int8_t>(layer_weight_[Number]);
            auto* to = reinterpret_cast<std::int8_t*>(memory_.data() + blocks_[Number]);
            for (std::size_t bucket = 0; bucket < Net::kBuckets; ++bucket) {
                for (std::size_t o = 0; o < kOutputs; ++o) {
                    for (std::size_t i = 0; i < kInputs; ++i) {
                        to[(bucket * (kInputs / 4) + i / 4) * kOutputs * 4 + 4 * o + i % 4] =
                            weight[(bucket * kOutputs + o) * kColumns + i];
                    }
                }
            }
        }
    }

    // Whether all products of a clipped accumulator with a weight of the layer fit 16 bits.
    template <int Number>
    bool products_fit() const {
        if constexpr (!kWholeProducts || Net::kProductShift > 0 || layer(Number).vectors != 1 ||
                      layer(Number).weights == Scalar::kF32) {
            return false;
        } else {
            const auto* weight = at<WeightOf<Number>>(layer_weight_[Number]);
            const std::size_t count = std::size_t{Net::kBuckets} * static_cast<std::size_t>(layer(Number).outputs) *
                                      static_cast<std::size_t>(layer(Number).columns);
            bool fits = Net::kClip <= 256;
            for (std::size_t i = 0; i < count; ++i) {
                const int product = weight[i] * Net::kClip;
                fits &= product >= std::numeric_limits<std::int16_t>::min() &&
                        product <= std::numeric_limits<std::int16_t>::max();
            }
            return fits;
        }
    }

    // ---- accumulators. Integers wrap around as in vector registers, so sums are computed in unsigned types.

    // visit(perspective, number) for the sums of each perspective; the number is a constant.
    template <class Visit>
    static void for_each_sum(Visit visit) {
        for (int perspective = 0; perspective < kPerspectives<Net>; ++perspective) {
            visit(perspective, kFirstSum);
            if constexpr (kSums == 2) visit(perspective, std::integral_constant<int, 1>());
        }
    }

    // A sum of a perspective's accumulator, and the one that it is computed from.
    struct Target {
        int perspective, sum;
        const std::int16_t* from;
        const std::int32_t* psqt_from;
        std::int16_t* to;
        std::int32_t* psqt_to;
    };
    static Target target_of(int perspective, int sum, const Accumulator<Net>& old, Accumulator<Net>& accumulator) {
        const int row = kPerspectives<Net> * sum + perspective;
        return {perspective,
                sum,
                old.values[row],
                old.psqt_of(perspective, sum),
                accumulator.values[row],
                accumulator.psqt_of(perspective, sum)};
    }
    // From a board without pieces: the first sum has the biases.
    Target empty_target(int perspective, int sum, Accumulator<Net>& accumulator) const {
        Target found = target_of(perspective, sum, accumulator, accumulator);
        if constexpr (Net::kPsqt) std::memset(found.psqt_to, 0, sizeof(std::int32_t) * Net::kBuckets);
        if (sum == 0) {
            found.from = at<std::int16_t>(bias_);
        } else {
            std::memset(found.to, 0, sizeof(std::int16_t) * Net::kHidden);
        }
        return found;
    }

    template <class Refresh>
    void update_with(const Board& before, const Accumulator<Net>& old, const Board& after,
                     Accumulator<Net>& accumulator, Refresh refresh_one) const {
        Target targets[2 * kSums];
        int count = 0;
        for_each_sum([&](int perspective, auto sum) {
            if (has_same_key<sum>(before, after, perspective)) {
                targets[count++] = target_of(perspective, sum, old, accumulator);
            } else {
                refresh_one(perspective, sum);
            }
        });
        if (count) change(before, after, targets, count);
    }

    static unsigned rows_with_same_key(const Board& before, const Board& after) {
        unsigned rows = 0;
        for_each_sum([&](int perspective, auto sum) {
            if (has_same_key<sum>(before, after, perspective)) rows |= 1u << (kPerspectives<Net> * sum + perspective);
        });
        return rows;
    }

    // Computes the missing rows of a ply: those that are kept from the ply before, the others from the cache.
    void compute(Stack<Net>& stack, int ply) const {
        auto& here = stack.at(ply);
        auto& last = stack.at(ply > 0 ? stack.at(ply - 1).holder : 0);
        Target targets[2 * kSums];
        int count = 0;
        for_each_sum([&](int perspective, auto sum) {
            const unsigned row = 1u << (kPerspectives<Net> * sum + perspective);
            if (here.kept & row) {
                targets[count++] = target_of(perspective, sum, last.accumulator, here.accumulator);
            } else if (here.missing & row) {
                refresh(here.board, perspective, sum, here.accumulator, stack.cache_);
            }
        });
        if (count) change(last.board, here.board, targets, count);
        here.computed |= here.missing;
    }

    template <class Pieces>
    static Board board_of(const Material& material, Pieces pieces) {
        Board board;
        pieces([&](int code, int square) { board.piece[square] = static_cast<std::uint8_t>(code); });
        for (const int colour : {0, 1}) board.king[colour] = material.king[colour];
        return board;
    }

    // list(change) calls change(code, square, is_added) for each piece that appears or disappears.
    template <class Position, class List>
    void apply_pieces(const Position& board, const Target& target, List list) const {
        static_assert(Net::Inputs::kPerPiece,
                      "features that depend on several pieces need a Board: use "
                      "update(Board…)");
        AllRows rows;
        rows.begin(*this, target);
        Net::Inputs::for_each([&](auto part, auto number) {
            using Set = typename decltype(part)::Features;
            constexpr std::size_t kNumber = decltype(number)::value;
            const int first = Set::bucket_offset(board, target.perspective), king = board.king[target.perspective];
            list([&](int code, int square, bool is_added) {
                const int feature = Set::index(code, square, target.perspective, king, first);
                if (feature >= 0) rows.template add<kNumber>(feature, is_added);
            });
        });
        rows.apply();
    }

    template <class Pieces>
    void refresh(const Material& material, Pieces pieces, int perspective, Accumulator<Net>& accumulator) const {
        apply_pieces(material, empty_target(perspective, kFirstSum, accumulator),
                     [&](auto add) { pieces([&](int code, int square) { add(code, square, true); }); });
    }

    void apply_delta(const Material& after, const Delta& delta, int perspective, const Accumulator<Net>& old,
                     Accumulator<Net>& accumulator) const {
        apply_pieces(after, target_of(perspective, kFirstSum, old, accumulator), [&](auto add) {
            for (int i = 0; i < delta.num_added; ++i) add(delta.added[i].code, delta.added[i].square, true);
            for (int i = 0; i < delta.num_removed; ++i) add(delta.removed[i].code, delta.removed[i].square, false);
        });
    }

    // Whether both boards are in the same bucket of every set of a sum.
    template <int Sum = 0, class Position>
    static bool has_same_key(const Position& before, const Position& after, int perspective) {
        bool same = true;
        Net::Inputs::for_each([&](auto part, int) {
            using Set = typename decltype(part)::Features;
            if constexpr (Net::Inputs::template kSumOf<Set> == Sum) {
                same &= Set::key(perspective, before) == Set::key(perspective, after);
            }
        });
        return same;
    }

    template <class Sum>
    void refresh(const Board& board, int perspective, Sum sum, Accumulator<Net>& accumulator) const {
        AllRows rows;
        rows.begin(*this, empty_target(perspective, sum, accumulator));
        Net::Inputs::for_each([&](auto part, auto number) {
            using Set = typename decltype(part)::Features;
            constexpr std::size_t kNumber = decltype(number)::value;
            if constexpr (Net::Inputs::template kSumOf<Set> == Sum::value) {
                Set::list(board, perspective, [&](int feature) { rows.template add<kNumber>(feature, true); });
            }
        });
        rows.apply();
    }

    // Whether fewer pieces appear and disappear between the boards than `after` has: in an endgame, the board in the
    // cache may be of another game.
    static bool is_near(const Board& before, const Board& after) {
        const std::uint64_t changed = detail::changed_squares(before, after);
        const std::uint64_t was = detail::BoardPlanes(before).occupied, is = detail::BoardPlanes(after).occupied;
        return bit_count(was & changed) + bit_count(is & changed) <= bit_count(is);
    }

    template <class Sum>
    void refresh(const Board& board, int perspective, Sum sum, Accumulator<Net>& accumulator, Cache<Net>& cache) const {
        auto& entry = cache.entry(perspective, sum, board);
        Target target = empty_target(perspective, sum, accumulator);
        if (entry.is_filled && has_same_key<Sum::value>(entry.board, board, perspective) &&
            is_near(entry.board, board)) {
            target.from = entry.values;
            target.psqt_from = entry.psqt_of(0);
            change(entry.board, board, &target, 1);
        } else {
            refresh(board, perspective, sum, accumulator);
        }
        std::memcpy(entry.values, target.to, sizeof entry.values);
        if constexpr (Net::kPsqt) std::memcpy(entry.psqt_of(0), target.psqt_to, sizeof(std::int32_t) * Net::kBuckets);
        entry.board = board;
        entry.is_filled = true;
    }

    // The rows that lead from one sum to another. Their first bytes are prefetched when they are added; they are
    // applied in one pass over the sum, or in two if some have words and some bytes.
    class AllRows {
      public:
        AllRows() {}
        void begin(const Network& network, const Target& target) {
            network_ = &network;
            target_ = target;
        }
        const Target& target() const { return target_; }
        template <std::size_t Number>
        void add(int feature, bool is_added) {
            auto& changes = changes_of<Number>();
            if (changes.num_added == kMost || changes.num_removed == kMost) apply();
            const auto* row = network_->template row<Number>(feature);
            detail::prefetch<4>(row);
            (is_added ? changes.added[changes.num_added++] : changes.removed[changes.num_removed++]) = row;
        }
        // Adds the features that feature(i) returns for i below count; −1 is none. Without a branch for each of them.
        template <std::size_t Number, class Feature>
        void add_all(int count, bool is_added, Feature feature) {
            auto& changes = changes_of<Number>();
            auto& rows = is_added ? changes.added : changes.removed;
            int& num_rows = is_added ? changes.num_added : changes.num_removed;
            for (int i = 0; i < count;) {
                if (num_rows == kMost) apply();
                const int before = num_rows, end = std::min(count, i + kMost - before);
                int place = before;
                for (; i < end; ++i) {
                    const int found = feature(i);
                    rows[place] = network_->template row<Number>(std::max(found, 0));
                    place += found >= 0;
                }
                for (int k = before; k < place; ++k) detail::prefetch<4>(rows[k]);
                num_rows = place;
            }
        }
        void apply() {
            if (!words_.empty() || bytes_.empty()) {
                apply_to_tiles(words_);
                target_.from = target_.to;
            }
            if (!bytes_.empty()) apply_to_tiles(bytes_);
            finish();
        }

      private:
        static constexpr int kMost = 64;

        // A tile of all rows of a sum at a time, and the sums one after another: the loops over the rows of the next
        // tile are as long as those before, so that the CPU predicts their ends.
        template <class Changes>
        void apply_to_tiles(const Changes& changes) {
            detail::for_each_tile<Net::kHidden>([&](int at, auto size) {
                detail::apply_to_tile<size, kIsWoven>(target_.from, target_.to, at, changes);
            });
        }
        void finish() {
            if constexpr (Net::kPsqt) apply_psqt();
            target_.from = target_.to;
            target_.psqt_from = target_.psqt_to;
            words_.clear(), bytes_.clear();
        }
        template <std::size_t Number>
        auto& changes_of() {
            if constexpr (sizeof(WeightOfPart<Number>) == 1) {
                return bytes_;
            } else {
                return words_;
            }
        }
        void apply_psqt() {
            std::uint32_t sums[Net::kBuckets];
            std::memcpy(sums, target_.psqt_from, sizeof sums);
            const auto apply = [&](const auto* row, auto is_added) {
                const std::int32_t* values = psqt_of(row);
                for (int k = 0; k < Net::kBuckets; ++k) {
                    const auto value = static_cast<std::uint32_t>(values[k]);
                    sums[k] = is_added ? sums[k] + value : sums[k] - value;
                }
            };
            words_.for_each(apply);
            bytes_.for_each(apply);
            std::memcpy(target_.psqt_to, sums, sizeof sums);
        }

        const Network* network_;
        Target target_;
        detail::Changes<std::int16_t, kMost> words_;
        detail::Changes<std::int8_t, kMost> bytes_;
    };

    // Computes sums of `after` from those of `before`, which has the same keys in their perspectives.
    void change(const Board& before, const Board& after, const Target* targets, int count) const {
        AllRows rows[2 * kSums];
        bool wanted[2] = {};
        for (int i = 0; i < count; ++i) {
            rows[i].begin(*this, targets[i]);
            wanted[targets[i].sum] = true;
        }
        const std::uint64_t changed = detail::changed_squares(before, after);
        std::optional<TwoBoards> boards;  // of sets of pairs
        Net::Inputs::for_each([&](auto part, auto number) {
            using Set = typename decltype(part)::Features;
            constexpr std::size_t kNumber = decltype(number)::value;
            constexpr int kSum = Net::Inputs::template kSumOf<Set>;
            if (!wanted[kSum]) return;
            const auto for_each_target = [&](auto visit) {
                for (int i = 0; i < count; ++i) {
                    if (targets[i].sum == kSum) visit(rows[i]);
                }
            };
            if constexpr (Set::kPerPair) {
                if (!boards) boards.emplace(before, after, changed);
                PairChanges pairs;
                Set::find_changes(*boards, pairs);
                for_each_target([&](AllRows& to) { add_pairs<Set, kNumber>(pairs, before, after, to); });
            } else {
                for_each_target([&](AllRows& to) {
                    differences<Set>(before, after, changed, to.target().perspective,
                                     [&](int feature, bool is_added) { to.template add<kNumber>(feature, is_added); });
                });
            }
        });
        for (int i = 0; i < count; ++i) rows[i].apply();
    }

    template <class Set, std::size_t Number>
    static void add_pairs(const PairChanges& changes, const Board& before, const Board& after, AllRows& rows) {
        const int perspective = rows.target().perspective;
        const int turned = pair_orientation(perspective, after.king[perspective]);
        const auto add = [&](const Pairs& pairs, const Board& board, bool is_added) {
            rows.template add_all<Number>(pairs.count, is_added, [&](int i) {
                return Set::index(board, pairs.from[i], pairs.to[i], perspective, turned);
            });
        };
        add(changes.removed, before, false);
        add(changes.added, after, true);
    }

    // Calls change(feature, is_added) for each feature that differs between two boards with the same key, which differ
    // on the squares `changed`.
    template <class Set, class Change>
    static void differences(const Board& before, const Board& after, std::uint64_t changed, int perspective,
                            Change change) {
        if constexpr (Set::kPerPiece) {
            const int offset = Set::bucket_offset(after, perspective);
            detail::for_each_bit(changed, [&](int square) {
                const auto tell = [&](int code, bool is_added) {
                    if (code == Board::kEmpty) return;
                    const int feature = Set::index(code, square, perspective, after.king[perspective], offset);
                    if (feature >= 0) change(feature, is_added);
                };
                tell(before.piece[square], false);
                tell(after.piece[square], true);
            });
        } else {
            // A move can change features of distant pieces, such as a slider's, so both lists are made and compared.
            int list[2][Set::kMaxActive], count[2] = {0, 0};
            for (const int which : {0, 1}) {
                Set::list(which ? after : before, perspective,
                          [&](int feature) { list[which][count[which]++] = feature; });
                std::sort(list[which], list[which] + count[which]);
            }
            int i = 0, j = 0;
            while (i < count[0] || j < count[1]) {
                if (j == count[1] || (i < count[0] && list[0][i] < list[1][j])) {
                    change(list[0][i++], false);
                } else if (i == count[0] || list[1][j] < list[0][i]) {
                    change(list[1][j++], true);
                } else {
                    ++i;
                    ++j;
                }
            }
        }
    }

    // ---- layers: only those of the position's bucket

    // The size in bytes of all vectors before this one.
    static constexpr std::size_t vectors_end(int before) {
        std::size_t end = 0;
        for (int k = 0; k < before; ++k) {
            end += (static_cast<std::size_t>(vector_size(k)) * (has_floats(k) ? 4 : 2) + 63) / 64 * 64;
        }
        return end;
    }

    struct State {
        int bucket = 0;
        std::int64_t skip = 0;                           // the sum of the skip connections
        double real_skip = 0;                            // the same if the output is a float
        double logits[3] = {};                           // of loss, draw and win
        const std::int16_t* values[kPerspectives<Net>];  // the accumulators
        int us = 0;
        alignas(64) std::byte vectors[vectors_end(kNumLayers)];
        // With kWholeProducts, the two factors of the first activations.
        alignas(64) std::int16_t left[kWholeProducts ? kFirstInputs : 1], right[kWholeProducts ? kFirstInputs : 1];

        template <int Number>
        VectorOf<Number>* vector() {
            return reinterpret_cast<VectorOf<Number>*>(vectors + vectors_end(Number));
        }
    };

    // The accumulator that comes first (side 0) or second.
    static int side_of(int us, int side) { return Net::kSides == Sides::kWhite ? 0 : us ^ side; }

    // Whether the net is one sum of squares, which needs no stored activations.
    static constexpr bool kOnlySquares = kWholeProducts && Net::kActivation == Activation::kScrelu && kNumLayers == 1 &&
                                         Net::kProductShift == 0 && Net::kAccumulatorShift == 0 &&
                                         Net::kLayers[0].weights != Scalar::kF32;

    int evaluate_in(const Accumulator<Net>& accumulator, bool black_to_move, int bucket) const {
        State state;
        state.us = black_to_move;
        std::int64_t positional = compute(state, accumulator, bucket);
        if (Net::kSides == Sides::kWhite && black_to_move) positional = -positional;
        const auto scaled = [](std::int64_t raw) { return raw * Net::kScoreMultiply / Net::kScoreDivide; };
        if constexpr (Net::kPsqt) {
            const auto sum = [&](int side) {
                std::uint32_t total = 0;
                for (int k = 0; k < kSums; ++k)
                    total += static_cast<std::uint32_t>(accumulator.psqt_of(side, k)[bucket]);
                return total;
            };
            const std::int64_t psqt = static_cast<std::int32_t>(sum(state.us) - sum(state.us ^ 1)) / 2;
            return static_cast<int>(Net::kScoreApart ? scaled(psqt) + scaled(positional) : scaled(psqt + positional));
        } else {
            return static_cast<int>(scaled(positional));
        }
    }

    Wdl wdl_in(const Accumulator<Net>& accumulator, bool black_to_move, int bucket) const {
        static_assert(Net::kWdl, "the net has one output");
        State state;
        state.us = black_to_move;
        compute(state, accumulator, bucket);
        const double* logits = state.logits;
        const double most = std::max({logits[0], logits[1], logits[2]});
        Wdl found{std::exp(logits[0] - most), std::exp(logits[1] - most), std::exp(logits[2] - most)};
        const double sum = found.loss + found.draw + found.win;
        found = {found.loss / sum, found.draw / sum, found.win / sum};
        if (Net::kSides == Sides::kWhite && black_to_move) std::swap(found.loss, found.win);
        return found;
    }

    // Raw value of the layers.
    std::int64_t compute(State& state, const Accumulator<Net>& accumulator, int bucket) const {
        state.bucket = bucket;
        constexpr bool kNeedsTotals = kOnlySquares && kSums == 2;
        alignas(64) std::int16_t totals[kNeedsTotals ? kPerspectives<Net> : 1][kNeedsTotals ? Net::kHidden : 1];
        for (int perspective = 0; kOnlySquares && perspective < kPerspectives<Net>; ++perspective) {
            state.values[perspective] = accumulator.values[perspective];
            if constexpr (kNeedsTotals) {
                for (int j = 0; j < Net::kHidden; ++j) totals[perspective][j] = value_of(accumulator, perspective, j);
                state.values[perspective] = totals[perspective];
            }
        }
        if constexpr (!kOnlySquares) first_activations(state, accumulator);
        return run<0>(state);
    }

    static std::int16_t value_of(const Accumulator<Net>& accumulator, int perspective, int j) {
        const std::int16_t first = accumulator.values[perspective][j];
        if constexpr (kSums == 1) {
            return first;
        } else {
            return static_cast<std::int16_t>(first + accumulator.values[kPerspectives<Net> + perspective][j]);
        }
    }

    static void first_activations(State& state, const Accumulator<Net>& accumulator) {
        for (int side = 0; side < kSides; ++side) {
            const int perspective = side_of(state.us, side);
            const auto factor = [&](int j) { return clipped(value_of(accumulator, perspective, j)); };
            constexpr int kOther = Net::kActivation == Activation::kPairwise ? kPerSide : 0;
            if constexpr (kWholeProducts) {
                for (int j = 0; j < kPerSide; ++j) {
                    state.left[side * kPerSide + j] = factor(j);
                    state.right[side * kPerSide + j] = factor(j + kOther);
                }
            } else {
                auto* out = state.template vector<0>() + side * kPerSide;
                for (int j = 0; j < kPerSide; ++j) {
                    // The compiler's vectors hold twice as many products of 16 bits as of 32.
                    using Product = std::conditional_t<Net::kClip <= 255, std::uint16_t, int>;
                    auto value = static_cast<Product>(factor(j));
                    if constexpr (Net::kActivation != Activation::kCrelu) {
                        const auto product = static_cast<Product>(value * factor(j + kOther));
                        value = static_cast<Product>(product >> Net::kProductShift);
                    }
                    out[j] = static_cast<VectorOf<0>>(value);
                }
            }
        }
    }

    // Σ weight · x of one output: an integer, or float64.
    template <int Number, class Input>
    auto sum(const State& state, const Input* x, int output) const {
        constexpr Layer kLayer = layer(Number);
        const std::size_t row = static_cast<std::size_t>(state.bucket * kLayer.outputs + output);
        const auto* weight = at<WeightOf<Number>>(layer_weight_[Number]) + row * kLayer.columns;
        constexpr bool kReal = kLayer.weights == Scalar::kF32 || reads_floats(Number);
        if constexpr (kLayer.vectors == 1 && kWholeProducts) {
            const auto product = [&](int i) {
                return std::int64_t{state.left[i]} * state.right[i] >> Net::kProductShift;
            };
            if constexpr (kReal) {
                return detail::dot_real(weight, kLayer.inputs, product);
            } else if constexpr (kOnlySquares) {
                std::int64_t total = 0;
                for (int side = 0; side < kSides; ++side, weight += kPerSide) {
                    const std::int16_t* values = state.values[side_of(state.us, side)];
                    if (products_fit_[Number]) {
                        total += detail::dot_squares(values, weight, kPerSide, Net::kClip);
                    } else {
                        for (int j = 0; j < kPerSide; ++j) {
                            total += std::int64_t{weight[j]} * clipped(values[j]) * clipped(values[j]);
                        }
                    }
                }
                return total;
            } else {
                if (products_fit_[Number]) return detail::dot_products(state.left, state.right, weight, kLayer.inputs);
                std::int64_t total = 0;
                for (int i = 0; i < kLayer.inputs; ++i) total += weight[i] * product(i);
                return total;
            }
        } else if constexpr (kReal) {
            return detail::dot_real(weight, kLayer.inputs, [&](int i) { return x[i]; });
        } else if constexpr (kLayer.divide != 1) {
            std::int64_t total = 0;
            for (int i = 0; i < kLayer.inputs; ++i) total += std::int64_t{weight[i]} * x[i];
            return total;
        } else {
            return std::int64_t{detail::dot(x, weight, kLayer.inputs)};
        }
    }

    // The y of an output from its sum: total / divide + bias, in 32 bits with wrap-around, or in fp32.
    template <int Number, class Total>
    auto finished(Total total, int bucket, int output) const {
        constexpr Layer kLayer = layer(Number);
        const std::size_t row = static_cast<std::size_t>(bucket * kLayer.outputs + output);
        const auto bias = at<BiasOf<Number>>(layer_bias_[Number])[row];
        if constexpr (kLayer.is_float) {
            constexpr double kMost = std::numeric_limits<float>::max();
            double sum = static_cast<double>(total);
            if constexpr (!std::is_same_v<Total, double>) sum = static_cast<std::int32_t>(total);
            const double y = sum * kLayer.factor + static_cast<double>(bias);
            return static_cast<float>(std::min(std::max(y, -kMost), kMost));
        } else {
            return static_cast<std::int32_t>(static_cast<std::uint32_t>(total / kLayer.divide) +
                                             static_cast<std::uint32_t>(std::int32_t{bias}));
        }
    }

    template <int Number, int Vector = 0, class Input>
    static void gather(State& state, Input* to) {
        if constexpr (Vector <= Number) {
            if constexpr (layer(Number).vectors >> Vector & 1) {
                const auto* from = state.template vector<Vector>();
                for (int i = 0; i < vector_size(Vector); ++i) to[i] = static_cast<Input>(from[i]);
                to += vector_size(Vector);
            }
            gather<Number, Vector + 1>(state, to);
        }
    }

    // Computes layer `Number` and the following ones; returns the raw value.
    template <int Number>
    std::int64_t run(State& state) const {
        constexpr Layer kLayer = layer(Number);
        using Y = std::conditional_t<kLayer.is_float, float, std::int32_t>;
        Y y[kLayer.outputs];
        // The inputs: one vector, or several in a row. Whole products are in `left` and `right`.
        constexpr bool kIsOneVector = (kLayer.vectors & (kLayer.vectors - 1)) == 0;
        alignas(64) InputOf<Number> gathered[kIsOneVector ? 1 : kLayer.inputs];
        const auto inputs = [&] {
            if constexpr (kLayer.vectors == 1 && kWholeProducts) {
                return static_cast<const VectorOf<0>*>(nullptr);
            } else if constexpr (kIsOneVector) {
                return state.template vector<lowest_bit(kLayer.vectors)>();
            } else {
                gather<Number>(state, gathered);
                return static_cast<const InputOf<Number>*>(gathered);
            }
        }();
        if constexpr (is_in_blocks(Number)) {
            const std::int8_t* weight = at<std::int8_t>(blocks_[Number]) +
                                        static_cast<std::size_t>(state.bucket) * (weights_of(Number) / Net::kBuckets);
            std::int32_t sums[kLayer.outputs];
            detail::dot_blocks<kLayer.outputs, kLayer.inputs>(inputs, weight, sums);
            for (int o = 0; o < kLayer.outputs; ++o) {
                y[o] = finished<Number>(std::int64_t{sums[o]}, state.bucket, o);
            }
        } else {
            for (int o = 0; o < kLayer.outputs; ++o) {
                y[o] = finished<Number>(sum<Number>(state, inputs, o), state.bucket, o);
            }
        }
        for (int i = 0; i < Net::kNumSkips; ++i) {
            const Skip& skip = Net::kSkips[i];
            if (skip.layer != Number) continue;
            if constexpr (kIsFloat) {
                const double skipped = static_cast<double>(y[skip.plus]) -
                                       (skip.minus < 0 ? 0.0 : static_cast<double>(y[std::max(skip.minus, 0)]));
                state.real_skip += skipped * static_cast<double>(skip.multiply) / static_cast<double>(skip.divide);
            } else {
                std::int64_t skipped = std::int64_t{y[skip.plus]} - (skip.minus < 0 ? 0 : y[std::max(skip.minus, 0)]);
                skipped *= skip.multiply;
                if (skip.wraps) skipped = static_cast<std::int32_t>(skipped);
                state.skip += skipped / skip.divide;
            }
        }
        if constexpr (Number == kNumLayers - 1) {
            constexpr double kMost = 1 << 30;
            if constexpr (Net::kWdl) {
                for (int o = 0; o < 3; ++o) state.logits[o] = static_cast<double>(y[o]) / Net::kDivide;
                const double output = detail::log_odds(state.logits) * Net::kMultiply;
                return static_cast<std::int64_t>(std::min(std::max(output, -kMost), kMost));
            } else if constexpr (kIsFloat) {
                const double output = (static_cast<double>(y[0]) + state.real_skip) *
                                      static_cast<double>(Net::kMultiply) / static_cast<double>(Net::kDivide);
                return static_cast<std::int64_t>(std::min(std::max(output, -kMost), kMost));
            } else {
                return (y[0] + state.skip) * Net::kMultiply / Net::kDivide;
            }
        } else {
            if constexpr (kLayer.activated > 0) activate<Number>(y, state.template vector<Number + 1>());
            return run<Number + 1>(state);
        }
    }

    template <int Number, class Y, class X>
    static void activate(const Y* y, X* x) {
        constexpr Layer kLayer = layer(Number);
        constexpr bool kIsDual = kLayer.activation == Activation::kDual;
        for (int i = 0; i < kLayer.activated; ++i) {
            if constexpr (kLayer.is_float) {
                constexpr float kMost = kLayer.clip;
                const float clamped = std::min(std::max(y[i], 0.0f), kMost);
                if constexpr (kLayer.activation == Activation::kNone) {
                    x[i] = y[i];
                } else if constexpr (kLayer.activation == Activation::kScrelu) {
                    x[i] = clamped * clamped;
                } else {
                    if constexpr (kIsDual) x[i] = std::min(y[i] * y[i], kMost);
                    x[i + (kIsDual ? kLayer.activated : 0)] = clamped;
                }
            } else {
                constexpr int kSquareShift = 2 * kLayer.shift + kLayer.square_shift;
                const std::int64_t value = y[i];
                const auto clamped = [&](std::int64_t low, std::int64_t high) {
                    return static_cast<X>(std::min(std::max(value >> kLayer.shift, low), high));
                };
                if constexpr (kLayer.activation == Activation::kNone) {
                    x[i] = clamped(-32768, 32767);
                } else if constexpr (kLayer.activation == Activation::kScrelu) {
                    const std::int64_t most = std::int64_t{kLayer.clip} << kLayer.shift;
                    const std::int64_t inside = std::min(std::max<std::int64_t>(value, 0), most);
                    x[i] = static_cast<X>(inside * inside >> kSquareShift);
                } else {
                    x[i + (kIsDual ? kLayer.activated : 0)] = clamped(0, kLayer.clip);
                    if constexpr (kIsDual) {
                        const std::int64_t square = value * value >> kSquareShift;
                        x[i] = static_cast<X>(std::min<std::int64_t>(square, kLayer.clip));
                    }
                }
            }
        }
    }

    detail::Memory memory_;
    std::size_t weight_[Net::Inputs::kCount] = {}, bias_ = 0;
    std::size_t layer_weight_[kNumLayers] = {}, layer_bias_[kNumLayers] = {}, blocks_[kNumLayers] = {};
    bool products_fit_[kNumLayers] = {};
};

}  // namespace NNUE_TARGET
}  // namespace NNUE_NAMESPACE

// The headers of nets use this name: of what is here, even if another header of this project has more in `nnue`.
#ifdef NNUE_NAMESPACE_IS_OURS
#undef NNUE_NAMESPACE_IS_OURS
#undef NNUE_NAMESPACE
#define NNUE_NAMESPACE nnue::NNUE_TARGET
#endif
