#include "formats/split.h"

#include <cmath>
#include <cstring>

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

void GameSplitter::split(std::span<const Record> records, std::span<std::uint8_t> validation) {
    for (std::size_t i = 0; i < records.size(); ++i) {
        const std::uint8_t* bytes = records[i].bytes.data();
        const int ply = record_ply(bytes);
        const int result = black_to_move(records[i]) ? -record_result(bytes) : record_result(bytes);
        if (begins_game(ply, result)) {
            alone_ += length_ == 1;
            if (length_ <= kShort) in_short_games_ += length_;
            length_ = 0;
            validation_ = all_ || mix(base_ ^ games_) < threshold_;
            ++games_;
            validation_games_ += validation_;
        }
        ++length_;
        previous_ply_ = ply;
        previous_result_ = result;
        validation[i] = validation_;
    }
}

}  // namespace nnue::data
