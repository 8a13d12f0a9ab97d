// A feature set as four small functions, compiled for CPU and GPU from the same lines.
//
// A set is a struct of constants and static functions. This is all of Chess768:
//
//     struct Chess768 {
//         static constexpr int kNumFeatures = 768, kMaxActive = 32, kBucketSize = 768, kNumVirtual = 0;
//         NNUE_HOST_DEVICE static int orientation(int perspective, int king) { return perspective ? 56 : 0; }
//         NNUE_HOST_DEVICE static int offset(int perspective, int king) { return 0; }
//         NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes& board, int code, int square) {
//             return bit(square);
//         }
//         NNUE_HOST_DEVICE static int index(int piece, int from, int partner, int to) {
//             return 64 * (piece / 2 + 6 * (piece % 2)) + from;
//         }
//     };
//
// - orientation(perspective, king): how a perspective (0 white, 1 black) turns the board. Every square is xored with
// it:
//   56 swaps the ranks, 7 swaps the files. `king` is the square of its own king.
// - offset(perspective, king): the first feature of its bucket, 0 for sets without buckets. Where the bucket depends on
//   more than the king, write offset(perspective, king, board) instead, with `const CodePlanes& board` in white's view.
// - partners(board, code, square): the features of one piece, as a bitboard. Each square in it makes one feature: a
//   piece-square set gives the square of the piece itself, a set of pairs gives the squares of the other pieces. The
//   code is 2·type + colour with types P N B R Q K = 0 … 5. White and black see the same features, so this function
//   does not depend on the perspective.
// - index(piece, from, partner, to): the number of such a feature from the view of one perspective, less the offset.
//   Pieces are 2·type + (1 for the enemy); squares are xored with the orientation. `partner` is the piece on `to`,
//   or 12 where `to` is empty. A negative number means no feature for this perspective.
//
// kMaxActive is the largest number of features per row that a position can have. kBucketSize is the number of features
// per king bucket, 0 for a set without; all features of a row must lie in one bucket. kNumVirtual is the number of
// virtual rows of a factoriser: feature r shares virtual row r mod kNumVirtual; 0 means none.
//
// In device code a table must be a `constexpr` array inside of the function that reads it.
#pragma once

#include <concepts>

#include "features/appended.h"
#include "features/feature_sets.h"

namespace nnue::data {
inline namespace NNUE_ISA {

// One compile error for what is missing, instead of pages about templates.
template <class Set>
struct GeneralSetCheck {
    static_assert(
        requires {
            { Set::kNumFeatures + 0 } -> std::same_as<int>;
            { Set::kMaxActive + 0 } -> std::same_as<int>;
            { Set::kBucketSize + 0 } -> std::same_as<int>;
            { Set::kNumVirtual + 0 } -> std::same_as<int>;
        },
        "a feature set needs: static constexpr int kNumFeatures, kMaxActive, kBucketSize, kNumVirtual");
    static_assert(
        requires(int perspective, int king) {
            { Set::orientation(perspective, king) } -> std::convertible_to<int>;
        },
        "a feature set needs: NNUE_HOST_DEVICE static int orientation(int perspective, int king)");
    static_assert(
        requires(int perspective, int king, const CodePlanes& board) {
            requires requires {
                { Set::offset(perspective, king) } -> std::convertible_to<int>;
            } || requires {
                { Set::offset(perspective, king, board) } -> std::convertible_to<int>;
            };
        },
        "a feature set needs: NNUE_HOST_DEVICE static int offset(int perspective, int king), or with a third parameter "
        "const CodePlanes& board");
    static_assert(
        requires(const CodePlanes& board, int code, int square) {
            { Set::partners(board, code, square) } -> std::convertible_to<Bitboard>;
        },
        "a feature set needs: NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes& board, int code, int "
        "square)");
    static_assert(
        requires(int piece, int from, int partner, int to) {
            { Set::index(piece, from, partner, to) } -> std::convertible_to<int>;
        },
        "a feature set needs: NNUE_HOST_DEVICE static int index(int piece, int from, int partner, int to)");
    static constexpr SetDescription kIs{Set::kNumFeatures, Set::kMaxActive, Set::kBucketSize, Set::kNumVirtual};
};

// The first feature of the bucket of a perspective's row.
template <class Set>
NNUE_HOST_DEVICE inline int general_offset(int perspective, int king, const CodePlanes& board) {
    if constexpr (requires { Set::offset(perspective, king, board); }) {
        return Set::offset(perspective, king, board);
    } else {
        return Set::offset(perspective, king);
    }
}

// The feature that the piece `code` on `square` and one of its partners make for a perspective, offset included; −1
// where they make none. `kings` are squares by colour.
template <class Set>
NNUE_HOST_DEVICE inline int general_index(const CodePlanes& board, int perspective, int orientation, int offset,
                                          int code, int square, int to) {
    const int found = to == square ? code : board.code_at(to);
    const int partner = found == kNoPiece ? found : found ^ perspective;
    const int index = Set::index(code ^ perspective, square ^ orientation, partner, to ^ orientation);
    return index < 0 ? -1 : offset + index;
}

// The error of an index; `bucket` is that of the other features of the row, −1 before the first.
template <class Set>
NNUE_HOST_DEVICE inline SetFault fault_of_index(int index, int& bucket) {
    if (index >= Set::kNumFeatures) return SetFault::kRange;
    if constexpr (Set::kBucketSize > 0) {
        if (bucket >= 0 && index / Set::kBucketSize != bucket) return SetFault::kBuckets;
        bucket = index / Set::kBucketSize;
    }
    return SetFault::kNone;
}

// The number of entries of a left-packed row.
inline std::int32_t row_end(const std::int32_t* row, std::int32_t length) {
    std::int32_t low = 0, high = length;
    while (low < high) {
        const std::int32_t middle = (low + high) / 2;
        if (row[middle] >= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// CompiledSet::append on the CPU. Stops at the first position with a fault.
template <class Set>
inline BadRow append_general(const std::uint8_t* records, std::size_t n, AppendRows rows) {
    static_cast<void>(GeneralSetCheck<Set>::kIs);
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint8_t* record = records + i * sizeof(Record);
        const Pieces pieces = pieces_of_record(record);
        const CodePlanes board = code_planes(record);
        Bitboard partners[kMaxPieces];
        for (int k = 0; k < pieces.count; ++k) {
            partners[k] = Set::partners(board, pieces.code[k], pieces.square[k]);
        }
        std::int32_t longest = 0;
        for (const int perspective : {0, 1}) {
            std::int32_t* row = (perspective ? rows.black : rows.white) + i * static_cast<std::size_t>(rows.length);
            std::int32_t end = row_end(row, rows.length);
            const int king = pieces.king[perspective];
            const int orientation = Set::orientation(perspective, king);
            const int offset = general_offset<Set>(perspective, king, board);
            const auto bad = [&](SetFault fault, int value) {
                return BadRow{static_cast<std::int64_t>(i), perspective, fault, value};
            };
            int active = 0, bucket = -1;
            for (int k = 0; k < pieces.count; ++k) {
                for (Bitboard left = partners[k]; left; left &= left - 1) {
                    const int index = general_index<Set>(board, perspective, orientation, offset, pieces.code[k],
                                                         pieces.square[k], lowest(left));
                    if (index < 0) continue;
                    if (const SetFault fault = fault_of_index<Set>(index, bucket); fault != SetFault::kNone) {
                        return bad(fault, index);
                    }
                    if (active == Set::kMaxActive) return bad(SetFault::kTooMany, active + 1);
                    row[end++] = rows.first_feature + index;
                    ++active;
                }
            }
            longest = end > longest ? end : longest;
        }
        rows.counts[i] = static_cast<std::int16_t>(longest);
    }
    return {};
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
