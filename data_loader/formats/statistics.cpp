#include "formats/statistics.h"

#include <algorithm>
#include <string>

#include "chess/fen.h"
#include "chess/record.h"

namespace nnue::data {

void Statistics::add(std::span<const Record> records) {
    for (const Record& record : records) {
        Entry e;
        if (const char* error = unpack(record, e)) {
            throw FormatError("position " + std::to_string(positions) + ": " + error);
        }
        const Position& p = e.position;
        if (positions++ == 0) min_score = max_score = e.score;
        const std::uint8_t flags = position_flags(e);
        const bool capture = flags & kFlagCapture, check = flags & kFlagInCheck;
        castlings += e.move.kind() == kCastling;
        en_passants += e.move.kind() == kEnPassant;
        promotions += e.move.kind() == kPromotion;
        null_moves += e.move.is_null();
        captures += capture;
        in_check += check;
        quiet += !capture && !check && e.score != kScoreNone;
        score_none += e.score == kScoreNone;
        score_zero += e.score == 0;
        wins += e.result > 0;
        draws += e.result == 0;
        losses += e.result < 0;
        black_to_move += p.side_to_move == kBlack;
        ep_squares += p.ep_square != kNoSquare;
        const unsigned rights = data::castling_rights(p);
        for (int i = 0; i < 4; ++i) castling_rights[static_cast<std::size_t>(i)] += rights >> i & 1;
        const int pieces = popcount(occupied(p));
        sum_score += e.score;
        sum_result += e.result;
        sum_ply += p.ply;
        sum_pieces += static_cast<unsigned>(pieces);
        sum_rule50 += p.rule50;
        sum_move += e.move.bits;
        min_score = std::min<int>(min_score, e.score);
        max_score = std::max<int>(max_score, e.score);
        max_ply = std::max<int>(max_ply, p.ply);
        max_rule50 = std::max<int>(max_rule50, p.rule50);
        const int shifted = e.score + kScoreBinWidth * (kScoreBins / 2) + kScoreBinWidth / 2;
        ++score_histogram[static_cast<std::size_t>(std::clamp(shifted / kScoreBinWidth, 0, kScoreBins - 1))];
        ++ply_histogram[static_cast<std::size_t>(std::min(p.ply / kPlyBinWidth, kPlyBins - 1))];
        ++piece_histogram[static_cast<std::size_t>(pieces)];
        for (const int color : {kWhite, kBlack}) ++king_squares[color][static_cast<std::size_t>(king_square(p, color))];
    }
}

}  // namespace nnue::data
