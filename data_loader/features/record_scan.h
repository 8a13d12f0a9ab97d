// Facts about a record that do not depend on single pieces: counts, kings, and whether it can be expanded. It is
// arithmetic on words without loops, so that one GPU thread can do it for a whole record.
#pragma once

#include "chess/record.h"

namespace nnue::data {

// Why a record has no index rows. unpack() checks more of a position; this is only what the rows depend on.
enum class RecordFault : std::uint8_t { kNone, kTooManyPieces, kKings, kLeftOver, kResult, kTooManyPawns };

constexpr const char* fault_name(RecordFault fault) {
    switch (fault) {
        case RecordFault::kTooManyPieces:
            return "more than 32 pieces";
        case RecordFault::kKings:
            return "not one king of each side";
        case RecordFault::kLeftOver:
            return "piece nibbles beyond the last occupied square";
        case RecordFault::kResult:
            return "a result that is none of loss, draw, win";
        case RecordFault::kTooManyPawns:
            return "more than 16 pawns";
        default:
            return "nothing wrong";
    }
}

inline namespace NNUE_ISA {

struct RecordScan {
    int count;         // occupied squares, at most 64
    int king_rank[2];  // by colour: how many pieces stand on lower squares; only if there is no fault
    bool black_to_move;
    RecordFault fault;
};

// `occupied` and the 32 nibbles, the first piece's lowest in `first`, as the record holds them; `result` is
// record_result().
NNUE_HOST_DEVICE inline RecordScan scan_record(Bitboard occupied, std::uint64_t first, std::uint64_t second,
                                               int result) {
    constexpr std::uint64_t kEach = 0x1111111111111111;
    RecordScan scan{popcount(occupied), {0, 0}, false, RecordFault::kNone};
    if (scan.count > kMaxPieces) {
        scan.fault = RecordFault::kTooManyPieces;
        return scan;
    }
    constexpr std::uint64_t kAll = ~std::uint64_t{0};
    const std::uint64_t used_first = scan.count >= 16 ? kAll : (std::uint64_t{1} << (4 * scan.count)) - 1;
    const std::uint64_t used_second = scan.count >= 32  ? kAll
                                      : scan.count < 16 ? 0
                                                        : (std::uint64_t{1} << (4 * (scan.count - 16))) - 1;
    if ((first & ~used_first) | (second & ~used_second)) {
        scan.fault = RecordFault::kLeftOver;
        return scan;
    }
    // The white king is 10, the black one 11, or 15 to move: turned into 15, and nothing else is.
    constexpr std::uint64_t kFives = 5 * kEach, kFours = 4 * kEach;
    const std::uint64_t kings[2][2] = {{fifteens(first ^ kFives), fifteens(second ^ kFives)},
                                       {fifteens(first | kFours), fifteens(second | kFours)}};
    for (int color = 0; color < 2; ++color) {
        const std::uint64_t low = kings[color][0], high = kings[color][1];
        if (popcount(low) + popcount(high) != 1) {
            scan.fault = RecordFault::kKings;
            return scan;
        }
        scan.king_rank[color] = low ? lowest(low) >> 2 : 16 + (lowest(high) >> 2);
    }
    scan.black_to_move = (kings[1][0] & first >> 2) | (kings[1][1] & second >> 2);
    if (result < -1 || result > 1) scan.fault = RecordFault::kResult;
    // Pawns are 0, 1 and 12. The nibbles after the last piece are 0 as well, so they are subtracted again.
    constexpr std::uint64_t kThrees = 3 * kEach;
    const int zeros_and_ones = popcount(fifteens(~first | kEach)) + popcount(fifteens(~second | kEach));
    const int twelves = popcount(fifteens(first ^ kThrees)) + popcount(fifteens(second ^ kThrees));
    if (zeros_and_ones - (kMaxPieces - scan.count) + twelves > kMaxPawns) scan.fault = RecordFault::kTooManyPawns;
    return scan;
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
