#include "formats/split.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "chess/fen.h"
#include "chess/record.h"
#include "pipeline/random.h"

namespace nnue::data {

namespace {

constexpr std::uint64_t kSplitUse = 0x73706c6974;  // keeps its randomness apart from other uses of the seed

bool black_to_move(const Record& record) {
    std::uint64_t nibbles[2];
    std::memcpy(nibbles, &record.bytes[8], 16);
    const auto has_15 = [](std::uint64_t x) { return (x & x >> 1 & x >> 2 & x >> 3 & 0x1111111111111111ULL) != 0; };
    return has_15(nibbles[0]) || has_15(nibbles[1]);
}

}  // namespace

GameSplitter::GameSplitter(std::uint64_t seed, double validation_share, std::uint64_t block)
    : base_(make_key({kSplitUse, seed})),
      threshold_(validation_share < 1 ? static_cast<std::uint64_t>(std::ldexp(validation_share, 64)) : 0),
      block_(block),
      all_(validation_share >= 1) {
    if (!(validation_share >= 0 && validation_share <= 1)) {
        throw FormatError("validation share " + std::to_string(validation_share) + ", expected 0 to 1");
    }
}

bool GameStarts::next(const Record& record) {
    const int ply = record_ply(record.bytes.data());
    const int own = record_result(record.bytes.data()), result = black_to_move(record) ? -own : own;
    const bool begins = !previous_ply_ || ply <= *previous_ply_ || result != previous_result_;
    previous_ply_ = ply;
    previous_result_ = result;
    return begins;
}

void GameSplitter::split(std::span<const Record> records, std::span<std::uint8_t> validation) {
    for (std::size_t i = 0; i < records.size(); ++i) {
        const bool shown = starts_.next(records[i]);
        if (std::exchange(begins_, false) || (block_ ? length_ == block_ : shown)) {
            alone_ += length_ == 1;
            if (length_ <= kShort) in_short_games_ += length_;
            length_ = 0;
            validation_ = all_ || mix(base_ ^ games_) < threshold_;
            ++games_;
            validation_games_ += validation_;
        }
        ++length_;
        validation[i] = validation_;
    }
}

}  // namespace nnue::data
