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

// Whether a position follows the last one in a game, with another result.
bool Validator::changes_result(const Entry& e) const {
    return next_ && e.position.ply == next_->position.ply && same_position(e.position, next_->position) &&
           e.result != next_->result;
}

void Validator::add(std::span<const Record> records) {
    for (const Record& record : records) {
        Entry e;
        if (const char* error = unpack(record, e)) {
            throw FormatError("position " + std::to_string(positions_) + ": " + error);
        }
        const Position& p = e.position;
        if (!first_) first_ = e;
        if (changes_result(e) && result_changes_.count++ == 0) result_changes_.first = positions_;
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

void Validator::join(const Validator& next) {
    if (!next.first_) return;
    if (!first_) first_ = next.first_;
    const auto join_one = [this](Problem& problem, const Problem& other) {
        if (problem.count == 0 && other.count > 0) problem.first = positions_ + other.first;
        problem.count += other.count;
    };
    if (changes_result(*next.first_) && result_changes_.count++ == 0) result_changes_.first = positions_;
    join_one(result_changes_, next.result_changes_);
    for (std::size_t i = 0; i < problems_.size(); ++i) join_one(problems_[i], next.problems_[i]);
    next_ = next.next_;
    positions_ += next.positions_;
}

}  // namespace nnue::data
