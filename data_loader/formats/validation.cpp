#include "formats/validation.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>

#include "chess/fen.h"
#include "chess/game.h"
#include "chess/record.h"

namespace nnue::data {

namespace {

bool possible_material(const Position& p, int color) {
    constexpr int kAtStart[] = {8, 2, 2, 2, 1};
    int promoted = 0;
    for (const PieceType type : {kKnight, kBishop, kRook, kQueen}) {
        promoted += std::max(0, popcount(pieces(p, color, type)) - kAtStart[type]);
    }
    return popcount(pieces(p, color, kPawn)) + promoted <= kAtStart[kPawn];
}

}  // namespace

void Validator::add(std::span<const Record> records) {
    for (const Record& record : records) {
        Entry e;
        if (const char* error = unpack(record, e)) {
            throw FormatError("position " + std::to_string(positions_) + ": " + error);
        }
        const Position& p = e.position;
        const bool same_game = next_ && p.ply == next_->position.ply && same_position(p, next_->position);
        if (same_game && e.result != next_->result && result_changes_.count++ == 0) result_changes_.first = positions_;
        const bool legal = !e.move.is_null() && is_legal(p, e.move);
        next_.reset();
        bool mates = false;
        if (legal) {
            next_ = e;
            next_->result = static_cast<std::int8_t>(-e.result);
            play(next_->position, e.move);
            mates = in_check(next_->position) && legal_moves(next_->position).empty();
        }
        const bool found[] = {is_attacked(p, king_square(p, p.side_to_move ^ 1), p.side_to_move),
                              !e.move.is_null() && !legal,
                              !possible_material(p, kWhite) || !possible_material(p, kBlack),
                              std::abs(e.score) > kScoreNone,
                              p.ep_square != kNoSquare && !ep_square_counts(p, p.ep_square, p.side_to_move),
                              mates && e.result != 1};
        static_assert(std::size(found) == std::tuple_size_v<decltype(problems_)>);
        for (std::size_t i = 0; i < problems_.size(); ++i) {
            if (found[i] && problems_[i].count++ == 0) problems_[i].first = positions_;
        }
        ++positions_;
    }
}

}  // namespace nnue::data
