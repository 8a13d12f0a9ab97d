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

void Statistics::join(const Statistics& other) {
    if (!other.positions) return;
    if (!positions) {
        *this = other;
        return;
    }
    using Count = std::uint64_t Statistics::*;
    for (const Count count :
         {&Statistics::positions, &Statistics::castlings, &Statistics::en_passants, &Statistics::promotions,
          &Statistics::null_moves, &Statistics::captures, &Statistics::in_check, &Statistics::quiet,
          &Statistics::score_none, &Statistics::score_zero, &Statistics::wins, &Statistics::draws, &Statistics::losses,
          &Statistics::black_to_move, &Statistics::ep_squares, &Statistics::sum_ply, &Statistics::sum_pieces,
          &Statistics::sum_rule50, &Statistics::sum_move}) {
        this->*count += other.*count;
    }
    sum_score += other.sum_score;
    sum_result += other.sum_result;
    min_score = std::min(min_score, other.min_score);
    max_score = std::max(max_score, other.max_score);
    max_ply = std::max(max_ply, other.max_ply);
    max_rule50 = std::max(max_rule50, other.max_rule50);
    const auto join_all = [](auto& to, const auto& from) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    join_all(castling_rights, other.castling_rights);
    join_all(score_histogram, other.score_histogram);
    join_all(ply_histogram, other.ply_histogram);
    join_all(piece_histogram, other.piece_histogram);
    for (const int color : {kWhite, kBlack}) {
        join_all(king_squares[static_cast<std::size_t>(color)], other.king_squares[static_cast<std::size_t>(color)]);
    }
}

}  // namespace nnue::data
