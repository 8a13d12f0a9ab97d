#include "formats/profile.h"

#include <string>

#include "chess/bits.h"
#include "chess/fen.h"
#include "chess/record.h"

namespace nnue::data {

namespace {

void join_blocks(Profile::Block& into, const Profile::Block& other) {
    into.positions += other.positions;
    into.scored += other.scored;
    into.proven += other.proven;
    into.sum_score += other.sum_score;
    into.sum_magnitude += other.sum_magnitude;
    into.sum_score_squared += other.sum_score_squared;
    into.sum_ply += other.sum_ply;
    into.sum_ply_squared += other.sum_ply_squared;
    into.sum_pieces += other.sum_pieces;
    into.sum_pieces_squared += other.sum_pieces_squared;
    into.looked_at += other.looked_at;
    into.repeated += other.repeated;
    const auto join_all = [](auto& to, const auto& from) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    join_all(into.results, other.results);
    join_all(into.scores, other.scores);
    join_all(into.plies, other.plies);
    join_all(into.pieces, other.pieces);
}

}  // namespace

// The block of the next position.
Profile::Block& Profile::open_block() {
    if (blocks_.empty() || blocks_.back().positions == block_size_) {
        if (blocks_.size() == kMaxBlocks) join_neighbours();
        blocks_.emplace_back();
    }
    return blocks_.back();
}

void Profile::add(std::span<const Record> records) {
    while (!records.empty()) {
        Block& block = open_block();
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(records.size(), block_size_ - block.positions));
        count_duplicates(block, records.first(n));
        count(block, records.first(n));
        records = records.subspan(n);
    }
}

void Profile::add_part(std::span<const Record> records, std::uint64_t block_size) {
    if (block_size == 0 || positions_) throw FormatError("a part of a profile without a block size, or used twice");
    block_size_ = block_size;
    while (!records.empty()) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(records.size(), block_size));
        count(blocks_.emplace_back(), records.first(n));
        records = records.subspan(n);
    }
}

void Profile::join(const Profile& part, std::span<const Record> records) {
    if (part.positions_ != records.size()) throw FormatError("a part of a profile with other positions");
    for (const Block& counted : part.blocks_) {
        Block& block = open_block();
        const auto n = static_cast<std::size_t>(counted.positions);
        if (n > block_size_ - block.positions)
            throw FormatError("a part of a profile that does not begin with a block");
        count_duplicates(block, records.first(n));
        join_blocks(block, counted);
        records = records.subspan(n);
    }
    positions_ += part.positions_;
    for (std::size_t phase = 0; phase < calibration_.size(); ++phase) {
        for (std::size_t bin = 0; bin < calibration_[phase].size(); ++bin) {
            for (std::size_t points = 0; points < 3; ++points) {
                calibration_[phase][bin][points] += part.calibration_[phase][bin][points];
            }
        }
    }
}

void Profile::count_duplicates(Block& block, std::span<const Record> records) {
    if (!duplicates_) duplicates_ = std::make_unique<DuplicateEstimator>();
    const std::uint64_t looked_at = duplicates_->looked_at(), repeated = duplicates_->repeated();
    duplicates_->add(records);
    block.looked_at += duplicates_->looked_at() - looked_at;
    block.repeated += duplicates_->repeated() - repeated;
}

void Profile::count(Block& block, std::span<const Record> records) {
    for (const Record& record : records) {
        const std::uint8_t* bytes = record.bytes.data();
        const int pieces = popcount(record_occupancy(bytes)), result = record_result(bytes);
        if (pieces > kMaxPieces || result < -1 || result > 1) {
            throw FormatError(
                "position " + std::to_string(positions_) + ": " +
                (pieces > kMaxPieces ? "more than 32 pieces" : "a result that is none of loss, draw, win"));
        }
        ++positions_;
        ++block.positions;
        const auto points = static_cast<std::size_t>(result + 1), number = static_cast<std::size_t>(pieces);
        const auto ply = static_cast<unsigned>(record_ply(bytes));
        ++block.results[points];
        ++block.pieces[number];
        ++block.plies[static_cast<std::size_t>(magnitude_bin(static_cast<int>(ply)))];
        block.sum_ply += ply;
        block.sum_ply_squared += std::uint64_t{ply} * ply;
        block.sum_pieces += number;
        block.sum_pieces_squared += number * number;
        const int score = record_score(bytes);
        if (score == kScoreNone) continue;
        if (score > kProven || score < -kProven) {
            ++block.proven;
            continue;
        }
        const auto bin = static_cast<std::size_t>(score_bin(score));
        const std::int64_t squared = std::int64_t{score} * score;
        ++block.scored;
        ++block.scores[bin];
        block.sum_score += score;
        block.sum_magnitude += static_cast<std::uint64_t>(score < 0 ? -score : score);
        block.sum_score_squared += static_cast<std::uint64_t>(squared);
        ++calibration_[pieces >= 25 ? 0 : pieces >= 13 ? 1 : 2][bin][points];
    }
}

void Profile::join_neighbours() {
    for (std::size_t i = 0; i < kMaxBlocks / 2; ++i) {
        if (i) blocks_[i] = blocks_[2 * i];
        join_blocks(blocks_[i], blocks_[2 * i + 1]);
    }
    blocks_.resize(kMaxBlocks / 2);
    block_size_ *= 2;
}

}  // namespace nnue::data
