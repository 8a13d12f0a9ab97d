// Pieces, squares, moves, and the two forms of a position: the 32-byte record that files and batches hold, and the
// board that moves are played on. Plain data only; attacks.h, position.h and record.h act on it.
//
// NNUE_HOST_DEVICE marks what csrc/ may compile for the GPU as well. NNUE_ISA names the inline namespace that all code
// of the hot path lives in: pipeline/kernels_x86.h compiles the same headers again for newer CPUs, and the
// linker must not mix the two. Plain data stays outside of it, so that both can work on the same objects.
#pragma once

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define NNUE_HOST_DEVICE __host__ __device__
#else
#define NNUE_HOST_DEVICE
#endif

#if !defined(NNUE_ISA)
#define NNUE_ISA baseline
#endif

namespace nnue::data {

using Bitboard = std::uint64_t;

// Squares are ints, a1 = 0, b1 = 1 … h8 = 63. A piece code is 2·type + colour, so code ^ 1 is the other side's piece.
enum PieceType : std::uint8_t { kPawn, kKnight, kBishop, kRook, kQueen, kKing };
enum Color : std::uint8_t { kWhite, kBlack };
inline constexpr std::uint8_t kNoPiece = 12;
inline constexpr int kNoSquare = 64;
inline constexpr int kMaxPieces = 32;
inline constexpr int kMaxPawns = 16;      // of both sides together
inline constexpr int kScoreNone = 32002;  // by convention: no score

// A right is short where its rook stands to the right of the king, in Chess960 too.
enum CastlingRight : std::uint8_t { kWhiteShort = 1, kWhiteLong = 2, kBlackShort = 4, kBlackLong = 8 };
inline constexpr int kA1 = 0, kE1 = 4, kH1 = 7, kA8 = 56, kE8 = 60, kH8 = 63;

// A move as binpack holds it: bits 15–14 kind, 13–8 from, 7–2 to, 1–0 promotion piece − knight. 0 is the null move.
// Castling goes from the king's square to the rook's.
enum MoveKind : std::uint8_t { kNormal, kPromotion, kCastling, kEnPassant };

struct Move {
    std::uint16_t bits = 0;

    static constexpr Move make(MoveKind kind, int from, int to, int promotion = 0) {
        return {static_cast<std::uint16_t>(kind << 14 | from << 8 | to << 2 | promotion)};
    }
    constexpr MoveKind kind() const { return static_cast<MoveKind>(bits >> 14); }
    constexpr int from() const { return bits >> 8 & 63; }
    constexpr int to() const { return bits >> 2 & 63; }
    constexpr PieceType promotion() const { return static_cast<PieceType>(kKnight + (bits & 3)); }
    constexpr bool is_null() const { return bits == 0; }
    bool operator==(const Move&) const = default;
};

// One position with its move, score and result, byte for byte the stem of a binpack chain (docs/binpack.md).
struct Record {
    std::array<std::uint8_t, 32> bytes;
    bool operator==(const Record&) const = default;
};
static_assert(sizeof(Record) == 32);

struct Position {
    std::array<Bitboard, 2> colors;  // by colour
    std::array<Bitboard, 6> types;   // by piece type, both colours
    std::uint8_t side_to_move = kWhite;
    Bitboard castling = 0;               // the rooks that may still castle, at most one on each side of a king
    std::uint8_t ep_square = kNoSquare;  // only if the en-passant rule keeps it
    std::uint16_t rule50 = 0;
    std::uint16_t ply = 0;
};

// The move, the engine's score and the end of the game, all from the side to move's view.
struct Entry {
    Position position;
    Move move;
    std::int16_t score = 0;  // engine-internal units
    std::int8_t result = 0;  // −1 loss, 0 draw, 1 win
};

// Facts about a position and its move that filters use; cheap to compute while the board exists.
enum RecordFlag : std::uint8_t { kFlagCapture = 1, kFlagInCheck = 2 };

}  // namespace nnue::data
