// NNUE inference in one header, C++17, no dependency: for nets that `nnue export --format raw --header` writes.
//
// The header that lies beside a net (net.h) says what the net is: a struct `Net` of sizes, which everything here is a
// template over. An engine does four things:
//
//     nnue::Network<Net> network;                        // once: network.load("net.bin") or network.load(data, size)
//     nnue::Accumulator<Net> accumulator;                // one per ply of the search
//     network.refresh(board, accumulator);               // at the root
//     network.update(before, old, after, accumulator);   // after a move
//     network.evaluate(accumulator, board);              // engine units, for the side to move
//
// The arithmetic is that of `nnue eval`, integer by integer (docs/layered-nets.md). AVX2 and NEON are used
// where the compiler may; define NNUE_PLAIN to do without. How to put this into an engine: docs/engine.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#if !defined(NNUE_PLAIN) && defined(__AVX2__)
#define NNUE_AVX2
#include <immintrin.h>
#elif !defined(NNUE_PLAIN) && defined(__ARM_NEON) && defined(__aarch64__)
#define NNUE_NEON
#include <arm_neon.h>
#endif

namespace nnue {

// ---- the board ------------------------------------------------------------------------------------------------------

enum Type { kPawn, kKnight, kBishop, kRook, kQueen, kKing };
enum Colour { kWhite, kBlack };

// Squares count from a1 = 0 over b1 = 1 to h8 = 63. An engine fills this from its own board, or keeps it beside it.
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
};

// ---- input features -------------------------------------------------------------------------------------------------
//
// A set has kFeatures features, of which at most kMaxActive are active. While key() of the board stays the same, a move
// only adds and removes features; when it changes, the perspective is computed afresh.

constexpr int bit_count(std::uint64_t bits) {
#if defined(__GNUC__)
    return __builtin_popcountll(bits);
#else
    int count = 0;
    for (; bits; bits &= bits - 1) ++count;
    return count;
#endif
}

// Counts pieces, up to `most`; bit c of `codes` is set where pieces of code c count, own pieces having even codes.
struct Counter {
    int codes, most;
};

// Kings has the whole definition: kPlanes, kInterleaved, kMirror (0 none, 1 to files a–d, 2 to files e–h), kBuckets,
// kOfSquare[64], kStates, and with more than one state kCounters[].
template <class Kings>
struct PieceSquares {
    static constexpr bool kPerPiece = true;
    static constexpr int kFeatures = 64 * Kings::kPlanes * Kings::kStates * Kings::kBuckets, kMaxActive = 32;

    static int orientation(int perspective, int king) {
        const bool on_e_to_h = (king & 7) > 3;
        const bool mirrored = Kings::kMirror == 1 ? on_e_to_h : Kings::kMirror == 2 ? !on_e_to_h : false;
        return (perspective ? 56 : 0) ^ (mirrored ? 7 : 0);
    }
    static int offset(int perspective, int king) {
        return 64 * Kings::kPlanes * Kings::kStates * Kings::kOfSquare[king ^ orientation(perspective, king)];
    }
    static int key(int perspective, const Board& board) {
        return 64 * bucket_offset(board, perspective) + orientation(perspective, board.king[perspective]);
    }
    // The first feature of the bucket that the row of a perspective lies in: by king and by state.
    static int bucket_offset(const Board& board, int perspective) {
        int state = 0;
        if constexpr (Kings::kStates > 1) {
            for (const Counter& counter : Kings::kCounters) {
                int count = 0;
                for (const std::uint8_t code : board.piece) {
                    count += code != Board::kEmpty && (counter.codes >> (code ^ perspective) & 1);
                }
                state = state * (counter.most + 1) + std::min(count, counter.most);
            }
        }
        return offset(perspective, board.king[perspective]) + 64 * Kings::kPlanes * state;
    }
    // −1 where the piece is no feature. `first` is bucket_offset of the board.
    static int index(int code, int square, int perspective, int king, int first) {
        const int type = code >> 1, enemy = (code & 1) ^ perspective;
        if (Kings::kPlanes == 10 && type == kKing) return -1;
        int plane = Kings::kInterleaved ? 2 * type + enemy : type + Kings::kPlanes / 2 * enemy;
        if (Kings::kPlanes == 11 && type == kKing) plane = 10;
        return first + 64 * plane + (square ^ orientation(perspective, king));
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

// How threats and pawn pairs see the board: the own king on files a–d.
inline int pair_orientation(int perspective, int king) {
    return (perspective ? 56 : 0) ^ ((king & 7) < 4 ? 0 : 7);
}

// Calls found(to) for each square that the piece attacks; on a board for sliders up to the first piece, on none all.
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

// The versions of Full_Threats: numbers of the victims P N B R Q K by attacker, −1 for a pair that is no feature; how
// many numbers own and enemy victims have together; whether a pawn also "attacks" a pawn on the square ahead.
struct ThreatsV10 {
    static constexpr int kFeatures = 79856;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {6, 12, 10, 10, 12, 8};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, -1, 4},
                                           {0, 1, 2, 3, -1, 4},   {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, -1, -1}};
};
struct ThreatsV11 {
    static constexpr int kFeatures = 66864;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {6, 10, 8, 8, 10, 8};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},  {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1}};
};
struct ThreatsV12 {
    static constexpr int kFeatures = 60144;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {6, 10, 8, 8, 10, 0};
    static constexpr int kVictims[6][6] = {{0, 1, -1, 2, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},  {0, 1, 2, 3, 4, -1}, {-1, -1, -1, -1, -1, -1}};
};
struct ThreatsV14 : ThreatsV12 {
    static constexpr int kFeatures = 60720;
    static constexpr bool kPushes = true;
};
struct ThreatsV16 {
    static constexpr int kFeatures = 59808;
    static constexpr bool kPushes = false;
    static constexpr int kSlots[6] = {4, 10, 8, 8, 10, 0};
    static constexpr int kVictims[6][6] = {{-1, 0, -1, 1, -1, -1}, {0, 1, 2, 3, 4, -1}, {0, 1, 2, 3, -1, -1},
                                           {0, 1, 2, 3, -1, -1},   {0, 1, 2, 3, 4, -1}, {-1, -1, -1, -1, -1, -1}};
};

// Where the indices of a piece and its squares begin, as a perspective sees them: own pieces have even codes.
template <class Version>
struct ThreatTables {
    std::uint64_t reach[12][64] = {};  // attacks on an empty board
    int offset[12][64] = {};           // squares that can be attacked from all lower squares together
    int total[12] = {};
    int base[12] = {};

    constexpr ThreatTables() {
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
            for (int type = 0; type < 6; ++type) {
                base[2 * type + enemy] = next;
                next += Version::kSlots[type] * total[2 * type + enemy];
            }
        }
    }
};

template <class Version>
struct Threats {
    static constexpr bool kPerPiece = false;
    static constexpr int kFeatures = Version::kFeatures, kMaxActive = 192;
    static constexpr ThreatTables<Version> kTables{};

    static int key(int perspective, const Board& board) {
        return pair_orientation(perspective, board.king[perspective]);
    }

    template <class Add>
    static void list(const Board& board, int perspective, Add add) {
        const int turned = pair_orientation(perspective, board.king[perspective]);
        for (int from = 0; from < 64; ++from) {
            const int code = board.piece[from];
            if (code == Board::kEmpty) continue;
            const int type = code >> 1, attacker = code ^ perspective;
            const auto threat = [&](int to, bool is_push) {
                const int victim_code = board.piece[to];
                if (victim_code == Board::kEmpty) return;
                const int victim = victim_code >> 1;
                // A pawn in front of a pawn has the number 0, and is all that a push is about.
                const int number = is_push ? (victim == kPawn ? 0 : -1) : Version::kVictims[type][victim];
                if (number < 0) return;
                const int f = from ^ turned, t = to ^ turned;
                const bool is_mutual = type == victim && !(type == kPawn && (code & 1) == (victim_code & 1));
                if (is_mutual && f < t) return;  // counted from the other piece
                const int enemy = (victim_code & 1) ^ perspective;
                const int slot = enemy * (Version::kSlots[type] / 2) + number;
                const std::uint64_t below = kTables.reach[attacker][f] & ((std::uint64_t{1} << t) - 1);
                add(kTables.base[attacker] + slot * kTables.total[attacker] + kTables.offset[attacker][f] +
                    bit_count(below));
            };
            for_each_attack(type, code & 1, from, board.piece, [&](int to) { threat(to, false); });
            if (Version::kPushes && type == kPawn) threat(code & 1 ? from - 8 : from + 8, true);
        }
    }
};

struct PawnPairs {
    static constexpr bool kPerPiece = false;
    static constexpr int kFeatures = 4560, kMaxActive = 120;

    static int key(int perspective, const Board& board) {
        return pair_orientation(perspective, board.king[perspective]);
    }

    template <class Add>
    static void list(const Board& board, int perspective, Add add) {
        const int turned = pair_orientation(perspective, board.king[perspective]);
        int number[64], file[64], count = 0;
        for (int square = 8; square < 56; ++square) {
            if (board.piece[square] >> 1 != kPawn) continue;
            number[count] = 48 * ((board.piece[square] & 1) ^ perspective) + (square ^ turned) - 8;
            file[count++] = square & 7;
        }
        for (int i = 0; i < count; ++i) {
            for (int j = 0; j < i; ++j) {
                const int apart = file[i] - file[j];
                if (apart < -1 || apart > 1) continue;
                const int high = std::max(number[i], number[j]), low = std::min(number[i], number[j]);
                add(high * (high - 1) / 2 + low);
            }
        }
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

    // visit(part, number) for each part in order.
    template <class Visit>
    static void for_each(Visit visit) {
        int number = 0;
        (visit(Parts{}, number++), ...);
    }
};

// ---- what a net is --------------------------------------------------------------------------------------------------

enum class Activation { kNone, kCrelu, kScrelu, kDual, kPairwise };
enum class Skip { kNone, kLast, kDifference };

// A layer behind the first: y = Σ weight · x / divide + bias; docs/layered-nets.md explains the other numbers.
struct Layer {
    int inputs, outputs, activated;
    Activation activation;
    Skip skip;
    bool to_output;
    int weight_bits, bias_bits;
    int divide, one, shift, square_shift, clip;
    bool inputs_are_bytes;  // 0 … 127
};

template <class Net>
struct alignas(64) Accumulator {
    std::int16_t values[2][Net::kHidden];
    std::int32_t psqt[2][Net::kPsqt ? Net::kBuckets : 1];
};

// Accumulators of earlier boards, one for each king square and perspective, from which a perspective is computed when
// its own king changes the bucket. One for each thread; `clear` after another net was loaded.
template <class Net>
class Cache {
  public:
    void clear() {
        for (int i = 0; i < kEntries; ++i) entries_[i].is_filled = false;
    }

  private:
    template <class>
    friend class Network;

    struct alignas(64) Entry {
        std::int16_t values[Net::kHidden];
        std::int32_t psqt[Net::kPsqt ? Net::kBuckets : 1];
        Board board;
        bool is_filled = false;
    };
    Entry& entry(int perspective, int king) { return entries_[64 * perspective + king]; }

    static constexpr int kEntries = 128;
    std::unique_ptr<Entry[]> entries_{new Entry[kEntries]};
};

// ---- vectors --------------------------------------------------------------------------------------------------------

namespace detail {

// Σ weight · x for x of 0 … 127. Two products always fit 16 bits.
inline std::int32_t dot(const std::uint8_t* x, const std::int8_t* weight, int size) {
    std::int32_t sum = 0;
    int i = 0;
#if defined(NNUE_AVX2)
    __m256i sums = _mm256_setzero_si256();
    for (; i + 32 <= size; i += 32) {
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + i));
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
    }
    alignas(32) std::int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
    for (const std::int32_t lane : lanes) sum += lane;
#elif defined(NNUE_NEON)
    int32x4_t sums = vdupq_n_s32(0);
    for (; i + 16 <= size; i += 16) {
        const int8x16_t a = vreinterpretq_s8_u8(vld1q_u8(x + i)), b = vld1q_s8(weight + i);
        const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        sums = vpadalq_s16(sums, vmlal_s8(low, vget_high_s8(a), vget_high_s8(b)));
    }
    sum = vaddvq_s32(sums);
#endif
    for (; i < size; ++i) sum += x[i] * weight[i];
    return sum;
}

// Vectors of 16-bit integers, which wrap around.
#if defined(NNUE_AVX2)
using Words = __m256i;
constexpr int kWords = 16, kRegisters = 8;
inline Words load_words(const std::int16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
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
inline Words clamp(Words a, int most) {
    return _mm256_min_epi16(_mm256_max_epi16(a, _mm256_setzero_si256()),
                            _mm256_set1_epi16(static_cast<std::int16_t>(most)));
}
#elif defined(NNUE_NEON)
using Words = int16x8_t;
constexpr int kWords = 8, kRegisters = 16;
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
inline Words clamp(Words a, int most) {
    return vminq_s16(vmaxq_s16(a, vdupq_n_s16(0)), vdupq_n_s16(static_cast<std::int16_t>(most)));
}
#endif

// Rows of a tensor that are added to an accumulator, and those that are subtracted.
template <class Weight, int Most>
struct Changes {
    const Weight* added[Most];
    const Weight* removed[Most];
    int num_added = 0, num_removed = 0;
};

// to = from + Σ added − Σ removed, in one pass: each number is loaded and stored once. `to` may be `from`.
template <class Value, class Weight, int Most>
inline void apply(const Changes<Weight, Most>& changes, const Value* from, Value* to, int size) {
    int j = 0;
#if defined(NNUE_AVX2) || defined(NNUE_NEON)
    if constexpr (sizeof(Value) == 2) {
        for (; j + kRegisters * kWords <= size; j += kRegisters * kWords) {
            Words sums[kRegisters];
            for (int k = 0; k < kRegisters; ++k) sums[k] = load_words(from + j + k * kWords);
            for (int i = 0; i < changes.num_added; ++i) {
                const Weight* row = changes.added[i] + j;
                for (int k = 0; k < kRegisters; ++k) sums[k] = add(sums[k], load_words(row + k * kWords));
            }
            for (int i = 0; i < changes.num_removed; ++i) {
                const Weight* row = changes.removed[i] + j;
                for (int k = 0; k < kRegisters; ++k) sums[k] = subtract(sums[k], load_words(row + k * kWords));
            }
            for (int k = 0; k < kRegisters; ++k) store_words(to + j + k * kWords, sums[k]);
        }
    }
#endif
    // Compilers make vectors of these loops.
    using Unsigned = std::make_unsigned_t<Value>;
    if (to != from) std::memcpy(to + j, from + j, static_cast<std::size_t>(size - j) * sizeof(Value));
    const auto change = [&](const Weight* row, auto operation) {
        for (int i = j; i < size; ++i) {
            const auto value = static_cast<Unsigned>(to[i]), weight = static_cast<Unsigned>(Value{row[i]});
            to[i] = static_cast<Value>(static_cast<Unsigned>(operation(value, weight)));
        }
    };
    if (j == size) return;
    for (int i = 0; i < changes.num_added; ++i) change(changes.added[i], [](auto a, auto b) { return a + b; });
    for (int i = 0; i < changes.num_removed; ++i) change(changes.removed[i], [](auto a, auto b) { return a - b; });
}

// Σ weight · x in 32 bits, which wraps around.
template <class Weight>
inline std::int32_t dot(const std::int16_t* x, const Weight* weight, int size) {
    std::uint32_t sum = 0;
    int i = 0;
#if defined(NNUE_AVX2)
    __m256i sums = _mm256_setzero_si256();
    for (; i + 16 <= size; i += 16) {
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(load_words(x + i), load_words(weight + i)));
    }
    alignas(32) std::uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
    for (const std::uint32_t lane : lanes) sum += lane;
#elif defined(NNUE_NEON)
    int32x4_t sums = vdupq_n_s32(0);
    for (; i + 8 <= size; i += 8) {
        const int16x8_t a = load_words(x + i), b = load_words(weight + i);
        sums = vmlal_s16(sums, vget_low_s16(a), vget_low_s16(b));
        sums = vmlal_s16(sums, vget_high_s16(a), vget_high_s16(b));
    }
    sum = static_cast<std::uint32_t>(vaddvq_s32(sums));
#endif
    for (; i < size; ++i) sum += static_cast<std::uint32_t>(std::int32_t{x[i]} * weight[i]);
    return static_cast<std::int32_t>(sum);
}

// Σ weight · a · b, exactly, where every weight · a fits 16 bits and a, b are 0 … 256.
template <class Weight>
inline std::int64_t dot_products(const std::int16_t* a, const std::int16_t* b, const Weight* weight, int size) {
    std::int64_t sum = 0;
    int i = 0;
    // A lane grows by no more than 2^24 per step, so 64 of them fit 32 bits.
#if defined(NNUE_AVX2)
    while (i + 16 <= size) {
        __m256i sums = _mm256_setzero_si256();
        for (int end = std::min(size - 15, i + 64 * 16); i < end; i += 16) {
            const __m256i left = load_words(a + i), right = load_words(b + i);
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_mullo_epi16(left, load_words(weight + i)), right));
        }
        alignas(32) std::int32_t lanes[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
        for (const std::int32_t lane : lanes) sum += lane;
    }
#elif defined(NNUE_NEON)
    while (i + 8 <= size) {
        int32x4_t sums = vdupq_n_s32(0);
        for (int end = std::min(size - 7, i + 64 * 8); i < end; i += 8) {
            const int16x8_t product = vmulq_s16(vld1q_s16(a + i), load_words(weight + i)), right = vld1q_s16(b + i);
            sums = vmlal_s16(sums, vget_low_s16(product), vget_low_s16(right));
            sums = vmlal_s16(sums, vget_high_s16(product), vget_high_s16(right));
        }
        sum += vaddlvq_s32(sums);
    }
#endif
    for (; i < size; ++i) sum += std::int64_t{weight[i]} * a[i] * b[i];
    return sum;
}

// Σ weight · clamp(x, 0, clip)², as `dot_products` has it: what is clamped never leaves the registers.
template <class Weight>
inline std::int64_t dot_squares(const std::int16_t* x, const Weight* weight, int size, int clip) {
    std::int64_t sum = 0;
    int i = 0;
#if defined(NNUE_AVX2)
    while (i + 16 <= size) {
        __m256i sums = _mm256_setzero_si256();
        for (int end = std::min(size - 15, i + 64 * 16); i < end; i += 16) {
            const __m256i one = clamp(load_words(x + i), clip);
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_mullo_epi16(one, load_words(weight + i)), one));
        }
        alignas(32) std::int32_t lanes[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
        for (const std::int32_t lane : lanes) sum += lane;
    }
#elif defined(NNUE_NEON)
    while (i + 8 <= size) {
        int32x4_t sums = vdupq_n_s32(0);
        for (int end = std::min(size - 7, i + 64 * 8); i < end; i += 8) {
            const int16x8_t one = clamp(load_words(x + i), clip), product = vmulq_s16(one, load_words(weight + i));
            sums = vmlal_s16(sums, vget_low_s16(product), vget_low_s16(one));
            sums = vmlal_s16(sums, vget_high_s16(product), vget_high_s16(one));
        }
        sum += vaddlvq_s32(sums);
    }
#endif
    for (; i < size; ++i) {
        const int one = std::min(std::max<int>(x[i], 0), clip);
        sum += std::int64_t{weight[i]} * one * one;
    }
    return sum;
}

// Memory for weights, each tensor at the start of a cache line.
class Memory {
  public:
    Memory() = default;
    explicit Memory(std::size_t size) : data_(static_cast<std::byte*>(::operator new (size, std::align_val_t{64}))) {}
    std::byte* data() const { return data_.get(); }

  private:
    struct Free {
        void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{64}); }
    };
    std::unique_ptr<std::byte, Free> data_;
};

}  // namespace detail

// ---- the net --------------------------------------------------------------------------------------------------------

template <class Net>
class Network {
  public:
    // The raw file. False, with the reason in `error`, if it is not there or not of this net's size.
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

    // The same from memory, where an engine has the file built in. False for another size.
    bool load(const void* data, std::size_t size) {
        if (size != file_size()) return false;
        memory_ = detail::Memory(layout([](std::size_t, std::size_t, std::size_t) {}));
        layout([&](std::size_t in_file, std::size_t in_memory, std::size_t bytes) {
            std::memcpy(memory_.data() + in_memory, static_cast<const std::byte*>(data) + in_file, bytes);
        });
        products_fit_ = products_fit();
        return true;
    }

    static std::size_t file_size() {
        std::size_t end = 0;
        Network().layout([&](std::size_t in_file, std::size_t, std::size_t bytes) { end = in_file + bytes; });
        return (end + 63) / 64 * 64;
    }

    // Both perspectives from nothing.
    void refresh(const Board& board, Accumulator<Net>& accumulator) const {
        for (int perspective = 0; perspective < 2; ++perspective) refresh(board, perspective, accumulator);
    }

    // The same from the cache, as far as it has been there.
    void refresh(const Board& board, Accumulator<Net>& accumulator, Cache<Net>& cache) const {
        for (int perspective = 0; perspective < 2; ++perspective) refresh(board, perspective, accumulator, cache);
    }

    // The accumulator of `after` from that of `before`, one move or several earlier. `old` may not be `accumulator`.
    void update(const Board& before, const Accumulator<Net>& old, const Board& after,
                Accumulator<Net>& accumulator) const {
        for (int perspective = 0; perspective < 2; ++perspective) {
            if (has_same_key(before, after, perspective)) {
                change(before, old.values[perspective], old.psqt[perspective], after, perspective,
                       accumulator.values[perspective], accumulator.psqt[perspective]);
            } else {
                refresh(after, perspective, accumulator);
            }
        }
    }

    // The same with a cache for kings that change the bucket.
    void update(const Board& before, const Accumulator<Net>& old, const Board& after, Accumulator<Net>& accumulator,
                Cache<Net>& cache) const {
        for (int perspective = 0; perspective < 2; ++perspective) {
            if (has_same_key(before, after, perspective)) {
                change(before, old.values[perspective], old.psqt[perspective], after, perspective,
                       accumulator.values[perspective], accumulator.psqt[perspective]);
            } else {
                refresh(after, perspective, accumulator, cache);
            }
        }
    }

    // Engine units from the side to move's view: `score` of `nnue eval --json`.
    int evaluate(const Accumulator<Net>& accumulator, const Board& board) const {
        int queens = 0;
        if constexpr (Net::kByQueens)
            queens = 4 * queens_of(board, board.black_to_move) + queens_of(board, !board.black_to_move);
        return evaluate(accumulator, board.black_to_move, board.pieces(), queens);
    }

    // `queens`, of nets with kByQueens: 4 · min(3, queens of the side to move) + min(3, queens of the other side).
    int evaluate(const Accumulator<Net>& accumulator, bool black_to_move, int pieces, int queens = 0) const {
        const int us = black_to_move, bucket = Net::kBucketOf[Net::kByQueens ? 16 * pieces + queens : pieces];
        State state{bucket, 0, 0, {}};
        std::int64_t raw = 0;
        if constexpr (kWholeProducts && kNumLayers == 0 && Net::kActivation == Activation::kScrelu) {
            const auto* weight =
                at<WeightOf<0>>(layer_weight_[0]) + static_cast<std::size_t>(bucket) * Net::kOutput.inputs;
            std::int64_t total = 0;
            for (int side = 0; side < 2; ++side, weight += Net::kHidden) {
                const std::int16_t* values = accumulator.values[us ^ side];
                if (products_fit_) {
                    total += detail::dot_squares(values, weight, Net::kHidden, Net::kClip);
                } else {
                    for (int j = 0; j < Net::kHidden; ++j) {
                        total += std::int64_t{weight[j]} * clipped(values[j]) * clipped(values[j]);
                    }
                }
            }
            raw = with_bias<0>(total, bucket, 0);
        } else if constexpr (kWholeProducts) {
            alignas(64) std::int16_t left[kFirstInputs], right[kFirstInputs];
            for (int side = 0; side < 2; ++side) {
                const std::int16_t* values = accumulator.values[us ^ side];
                constexpr int kSide = kFirstInputs / 2;
                constexpr int kOther = Net::kActivation == Activation::kPairwise ? kSide : 0;
                for (int j = 0; j < kSide; ++j) {
                    left[side * kSide + j] = clipped(values[j]);
                    right[side * kSide + j] = clipped(values[j + kOther]);
                }
            }
            raw = run<0>(left, right, state);
        } else {
            alignas(64) InputOf<0> x[kFirstInputs];
            for (int side = 0; side < 2; ++side) {
                const std::int16_t* values = accumulator.values[us ^ side];
                constexpr int kSide = kFirstInputs / 2;
                InputOf<0>* out = x + side * kSide;
                for (int j = 0; j < kSide; ++j) {
                    int value = clipped(values[j]);
                    if constexpr (Net::kActivation == Activation::kScrelu) {
                        value = value * value >> Net::kProductShift;
                    } else if constexpr (Net::kActivation == Activation::kPairwise) {
                        value = value * clipped(values[j + kSide]) >> Net::kProductShift;
                    }
                    out[j] = static_cast<InputOf<0>>(value);
                }
            }
            raw = run<0>(x, x, state);
        }
        raw += state.skip;
        if constexpr (Net::kPsqt) {
            const auto psqt = [&](int side) { return static_cast<std::uint32_t>(accumulator.psqt[side][bucket]); };
            raw += static_cast<std::int32_t>(psqt(us) - psqt(us ^ 1)) / 2;
        }
        return static_cast<int>(raw * Net::kScoreScale / Net::kOutput.one);
    }

  private:
    static constexpr int kNumLayers = Net::kNumLayers;
    static constexpr const Layer& layer(int number) {
        return number < kNumLayers ? Net::kLayers[number] : Net::kOutput;
    }
    static constexpr int kFirstInputs = Net::kActivation == Activation::kPairwise ? Net::kHidden : 2 * Net::kHidden;
    static constexpr bool kWholeProducts = Net::kActivation != Activation::kCrelu && Net::kProductShift == 0;

    template <int Number>
    using InputOf = std::conditional_t<layer(Number).inputs_are_bytes, std::uint8_t, std::int16_t>;
    template <int Number>
    using WeightOf = std::conditional_t<layer(Number).weight_bits == 8, std::int8_t, std::int16_t>;
    template <int Number>
    using BiasOf = std::conditional_t<layer(Number).bias_bits == 16, std::int16_t, std::int32_t>;
    using Last = InputOf<kNumLayers>;

    struct State {
        int bucket;
        std::int64_t skip;  // what went straight to the output
        int kept;           // inputs of the output layer that are there already
        alignas(64) Last last[Net::kOutput.inputs];
    };

    static int queens_of(const Board& board, int colour) {
        int count = 0;
        for (const std::uint8_t code : board.piece) count += code == 2 * kQueen + colour;
        return std::min(count, 3);
    }

    static std::int16_t clipped(std::int16_t value) {
        return std::min<std::int16_t>(std::max<std::int16_t>(value, 0), Net::kClip);
    }

    // ---- tensors: place(offset in the file, offset in memory, bytes) for each in order; returns the bytes of memory

    template <class Place>
    std::size_t layout(Place place) {
        std::size_t in_file = 0, in_memory = 0;
        const auto tensor = [&](std::size_t& where, std::size_t count, std::size_t size) {
            where = in_memory;
            place(in_file, in_memory, count * size);
            in_file += count * size;
            in_memory += (count * size + 63) / 64 * 64;
        };
        Net::Inputs::for_each([&](auto part, int number) {
            using P = decltype(part);
            tensor(weight_[number], std::size_t{P::Features::kFeatures} * Net::kHidden, sizeof(typename P::Type));
        });
        tensor(bias_, Net::kHidden, 2);
        if (Net::kPsqt) {
            Net::Inputs::for_each([&](auto part, int number) {
                using P = decltype(part);
                tensor(psqt_[number], std::size_t{P::Features::kFeatures} * Net::kBuckets, 4);
            });
        }
        for (int number = 0; number <= kNumLayers; ++number) {
            const Layer& one = layer(number);
            const std::size_t outputs = std::size_t{Net::kBuckets} * static_cast<std::size_t>(one.outputs);
            tensor(layer_weight_[number], outputs * static_cast<std::size_t>(one.inputs),
                   static_cast<std::size_t>(one.weight_bits / 8));
            tensor(layer_bias_[number], outputs, static_cast<std::size_t>(one.bias_bits / 8));
        }
        return in_memory;
    }

    template <class T>
    const T* at(std::size_t where) const {
        return reinterpret_cast<const T*>(memory_.data() + where);
    }

    // ---- accumulators. Integers wrap around as the engine's vectors do, so sums are of unsigned numbers.

    // Whether both boards have the own king in the same bucket of every set.
    static bool has_same_key(const Board& before, const Board& after, int perspective) {
        bool same = true;
        Net::Inputs::for_each([&](auto part, int) {
            using Set = typename decltype(part)::Features;
            same &= Set::key(perspective, before) == Set::key(perspective, after);
        });
        return same;
    }

    void refresh(const Board& board, int perspective, Accumulator<Net>& accumulator) const {
        std::int16_t* values = accumulator.values[perspective];
        std::int32_t* psqt = accumulator.psqt[perspective];
        std::memset(psqt, 0, sizeof accumulator.psqt[perspective]);
        const std::int16_t* from = at<std::int16_t>(bias_);
        Net::Inputs::for_each([&](auto part, int number) {
            using P = decltype(part);
            Rows<P> rows;
            P::Features::list(board, perspective, [&](int feature) { add_row<P>(number, feature, true, rows); });
            apply(rows, from, psqt, values, psqt);
            from = values;
        });
    }

    void refresh(const Board& board, int perspective, Accumulator<Net>& accumulator, Cache<Net>& cache) const {
        auto& entry = cache.entry(perspective, board.king[perspective]);
        std::int16_t* values = accumulator.values[perspective];
        std::int32_t* psqt = accumulator.psqt[perspective];
        if (entry.is_filled && has_same_key(entry.board, board, perspective)) {
            change(entry.board, entry.values, entry.psqt, board, perspective, values, psqt);
        } else {
            refresh(board, perspective, accumulator);
        }
        std::memcpy(entry.values, values, sizeof entry.values);
        std::memcpy(entry.psqt, psqt, sizeof entry.psqt);
        entry.board = board;
        entry.is_filled = true;
    }

    // The rows of a part in which an accumulator changes.
    template <class P>
    struct Rows {
        detail::Changes<typename P::Type, P::Features::kMaxActive> values;
        detail::Changes<std::int32_t, Net::kPsqt ? P::Features::kMaxActive : 1> psqt;
    };

    template <class P>
    void add_row(int number, int feature, bool is_added, Rows<P>& rows) const {
        const auto put = [&](auto& changes, const auto* row) {
            if (is_added) {
                changes.added[changes.num_added++] = row;
            } else {
                changes.removed[changes.num_removed++] = row;
            }
        };
        const std::size_t row = static_cast<std::size_t>(feature);
        put(rows.values, at<typename P::Type>(weight_[number]) + row * Net::kHidden);
        if constexpr (Net::kPsqt) put(rows.psqt, at<std::int32_t>(psqt_[number]) + row * Net::kBuckets);
    }

    template <class R>
    static void apply(const R& rows, const std::int16_t* values, const std::int32_t* psqt, std::int16_t* to,
                      std::int32_t* psqt_to) {
        detail::apply(rows.values, values, to, Net::kHidden);
        if constexpr (Net::kPsqt) detail::apply(rows.psqt, psqt, psqt_to, Net::kBuckets);
    }

    // `to` and `psqt_to` for the board `after` from `values` and `psqt` of `before`, which has the same keys.
    void change(const Board& before, const std::int16_t* values, const std::int32_t* psqt, const Board& after,
                int perspective, std::int16_t* to, std::int32_t* psqt_to) const {
        Net::Inputs::for_each([&](auto part, int number) {
            using P = decltype(part);
            Rows<P> rows;
            differences<typename P::Features>(before, after, perspective, [&](int feature, bool is_added) {
                add_row<P>(number, feature, is_added, rows);
            });
            apply(rows, values, psqt, to, psqt_to);
            values = to;
            psqt = psqt_to;
        });
    }

    // change(feature, is_added) for every feature in which the boards differ; the own king's key is the same.
    template <class Set, class Change>
    static void differences(const Board& before, const Board& after, int perspective, Change change) {
        if constexpr (Set::kPerPiece) {
            const int offset = Set::bucket_offset(after, perspective);
            for (int first = 0; first < 64; first += 8) {
                if (std::memcmp(before.piece + first, after.piece + first, 8) == 0) continue;
                for (int square = first; square < first + 8; ++square) {
                    const int was = before.piece[square], is = after.piece[square];
                    if (was == is) continue;
                    const auto tell = [&](int code, bool is_added) {
                        if (code == Board::kEmpty) return;
                        const int feature = Set::index(code, square, perspective, after.king[perspective], offset);
                        if (feature >= 0) change(feature, is_added);
                    };
                    tell(was, false);
                    tell(is, true);
                }
            }
        } else {
            // Far-away pieces take part (a slider's line opens), so both lists are made and compared.
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

    // ---- layers, those of the position's own bucket

    // y of one output. Products of the first layer that were not shifted come as two factors, `left` and `right`.
    template <int Number, class Input>
    std::int32_t sum(const Input* left, const Input* right, int bucket, int output) const {
        constexpr const Layer& kLayer = layer(Number);
        const std::size_t row = static_cast<std::size_t>(bucket * kLayer.outputs + output);
        const auto* weight = at<WeightOf<Number>>(layer_weight_[Number]) + row * kLayer.inputs;
        std::int64_t total = 0;
        if constexpr (Number == 0 && kWholeProducts) {
            if (products_fit_) {
                total = detail::dot_products(left, right, weight, kLayer.inputs);
            } else {
                for (int i = 0; i < kLayer.inputs; ++i) total += std::int64_t{weight[i]} * left[i] * right[i];
            }
        } else {
            total = detail::dot(left, weight, kLayer.inputs);
        }
        return with_bias<Number>(total, bucket, output);
    }

    // total / divide + bias, in 32 bits, which wrap around.
    template <int Number>
    std::int32_t with_bias(std::int64_t total, int bucket, int output) const {
        constexpr const Layer& kLayer = layer(Number);
        const std::size_t row = static_cast<std::size_t>(bucket * kLayer.outputs + output);
        const std::int32_t bias = at<BiasOf<Number>>(layer_bias_[Number])[row];
        return static_cast<std::int32_t>(static_cast<std::uint32_t>(total / kLayer.divide) +
                                         static_cast<std::uint32_t>(bias));
    }

    // Raw output of layer `Number` and those behind it.
    template <int Number, class Input>
    std::int64_t run(const Input* left, const Input* right, State& state) const {
        constexpr const Layer& kLayer = layer(Number);
        if constexpr (Number == kNumLayers) {
            return sum<Number>(left, right, state.bucket, 0);
        } else {
            std::int32_t y[kLayer.outputs];
            for (int output = 0; output < kLayer.outputs; ++output) {
                y[output] = sum<Number>(left, right, state.bucket, output);
            }
            if constexpr (kLayer.skip != Skip::kNone) {
                std::int64_t straight = y[kLayer.outputs - 1];
                if constexpr (kLayer.skip == Skip::kDifference) straight = y[kLayer.outputs - 2] - straight;
                state.skip += straight * Net::kOutput.one / kLayer.one;
            }
            constexpr bool kIsDual = kLayer.activation == Activation::kDual;
            constexpr int kActivated = kLayer.activated * (kIsDual ? 2 : 1);
            std::int32_t x[kActivated];
            for (int i = 0; i < kLayer.activated; ++i) {
                constexpr int kSquareShift = 2 * kLayer.shift + kLayer.square_shift;
                const std::int64_t value = y[i];
                const auto clamped = [&](std::int64_t low, std::int64_t high) {
                    return static_cast<std::int32_t>(std::min(std::max(value >> kLayer.shift, low), high));
                };
                if constexpr (kLayer.activation == Activation::kNone) {
                    x[i] = clamped(-32768, 32767);
                } else if constexpr (kLayer.activation == Activation::kScrelu) {
                    const std::int64_t most = std::int64_t{kLayer.clip} << kLayer.shift;
                    const std::int64_t inside = std::min(std::max<std::int64_t>(value, 0), most);
                    x[i] = static_cast<std::int32_t>(inside * inside >> kSquareShift);
                } else {
                    x[i + (kIsDual ? kLayer.activated : 0)] = clamped(0, kLayer.clip);
                    if constexpr (kIsDual) {
                        const std::int64_t square = value * value >> kSquareShift;
                        x[i] = static_cast<std::int32_t>(std::min<std::int64_t>(square, kLayer.clip));
                    }
                }
            }
            if constexpr (kLayer.to_output || Number == kNumLayers - 1) {
                for (int i = 0; i < kActivated; ++i) state.last[state.kept + i] = static_cast<Last>(x[i]);
                state.kept += kActivated;
            }
            if constexpr (Number == kNumLayers - 1) {
                return run<kNumLayers>(state.last, state.last, state);
            } else {
                alignas(64) InputOf<Number + 1> next[kActivated];
                for (int i = 0; i < kActivated; ++i) next[i] = static_cast<InputOf<Number + 1>>(x[i]);
                return run<Number + 1>(next, next, state);
            }
        }
    }

    // Whether every product of a clipped accumulator and a weight of the layer behind fits 16 bits.
    bool products_fit() const {
        if constexpr (!kWholeProducts) return true;
        const auto* weight = at<WeightOf<0>>(layer_weight_[0]);
        const std::size_t count = std::size_t{Net::kBuckets} * static_cast<std::size_t>(layer(0).outputs) *
                                  static_cast<std::size_t>(layer(0).inputs);
        bool fits = Net::kClip <= 256;
        for (std::size_t i = 0; i < count; ++i) {
            const int product = weight[i] * Net::kClip;
            fits &= product >= std::numeric_limits<std::int16_t>::min() &&
                    product <= std::numeric_limits<std::int16_t>::max();
        }
        return fits;
    }

    detail::Memory memory_;
    std::size_t weight_[Net::Inputs::kCount] = {}, psqt_[Net::Inputs::kCount] = {}, bias_ = 0;
    std::size_t layer_weight_[kNumLayers + 1] = {}, layer_bias_[kNumLayers + 1] = {};
    bool products_fit_ = false;
};

}  // namespace nnue
