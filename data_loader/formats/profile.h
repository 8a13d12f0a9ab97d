// How a data file changes along its length, in one pass and bounded memory: `nnue data profile`.
//
// Positions are counted in blocks of equal size, the last one shorter. When there are too many blocks, neighbours are
// joined, so there are between kMaxBlocks / 2 and kMaxBlocks blocks however long the file is. A block holds exact sums
// and histograms; quantiles come from the histograms.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "chess/types.h"
#include "formats/duplicates.h"

namespace nnue::data {

class Profile {
  public:
    static constexpr std::size_t kMaxBlocks = 1024;
    static constexpr std::uint64_t kFirstBlockSize = 256;

    // Magnitudes below 128 have a bin each; above, every power of two has 64 bins: within 1/64 of the value.
    static constexpr int kExact = 128, kPerOctave = 64;
    static constexpr int magnitude_bin(int magnitude) {
        if (magnitude < kExact) return magnitude;
        const int octave = std::bit_width(static_cast<unsigned>(magnitude)) - 8;  // 0 for 128 … 255
        return kExact + octave * kPerOctave + (magnitude >> (octave + 1)) - kPerOctave;
    }
    static constexpr int kMagnitudes = kExact + 8 * kPerOctave;  // up to 32,767
    static constexpr int kScoreBins = 2 * kMagnitudes - 1;       // bin kMagnitudes − 1 holds the score 0
    static constexpr int kPlyBins = kExact + 7 * kPerOctave;     // up to 16,383
    static constexpr int kPhases = 3;                            // at least 25 pieces, 13 to 24, at most 12

    // Larger magnitudes are wins and losses that the engine has proved (mates, tablebases), counted apart: a few of
    // them would outweigh all other scores in a mean.
    static constexpr int kProven = 30'000;

    static constexpr int score_bin(int score) {
        const int bin = std::min(magnitude_bin(score < 0 ? -score : score), kMagnitudes - 1);
        return kMagnitudes - 1 + (score < 0 ? -bin : bin);
    }

    struct Block {
        std::uint64_t positions = 0;
        std::uint64_t scored = 0;  // positions with a score that is not proven: sums and histogram are over these
        std::uint64_t proven = 0;
        std::int64_t sum_score = 0;
        std::uint64_t sum_magnitude = 0, sum_score_squared = 0;
        std::uint64_t sum_ply = 0, sum_ply_squared = 0;
        std::uint64_t sum_pieces = 0, sum_pieces_squared = 0;
        std::uint64_t looked_at = 0, repeated = 0;  // of DuplicateEstimator
        std::array<std::uint64_t, 3> results{};     // loss, draw, win of the side to move
        std::array<std::uint32_t, kScoreBins> scores{};
        std::array<std::uint32_t, kPlyBins> plies{};
        std::array<std::uint32_t, kMaxPieces + 1> pieces{};
    };

    // By phase, score bin and result: over positions as in `Block::scored`.
    using Calibration = std::array<std::array<std::array<std::uint64_t, 3>, kScoreBins>, kPhases>;

    Profile() : calibration_() {}

    // Throws FormatError for a record with an impossible result or number of pieces. Boards are not checked.
    void add(std::span<const Record> records);

    // Counts positions for join(), without duplicates, which depend on all positions before. `block_size`: the one of
    // the profile that it will be joined to, or an earlier one.
    void add_part(std::span<const Record> records, std::uint64_t block_size);
    // Adds the counts of the positions that follow. FormatError if a block of the part would be in two blocks.
    void join(const Profile& part, std::span<const Record> records);

    std::uint64_t block_size() const { return block_size_; }
    const std::vector<Block>& blocks() const { return blocks_; }
    const Calibration& calibration() const { return calibration_; }
    // Null: there are no positions.
    const DuplicateEstimator* duplicates() const { return duplicates_.get(); }

  private:
    Block& open_block();
    void count(Block& block, std::span<const Record> records);
    void count_duplicates(Block& block, std::span<const Record> records);
    void join_neighbours();

    std::uint64_t block_size_ = kFirstBlockSize, positions_ = 0;
    std::vector<Block> blocks_;
    Calibration calibration_;
    std::unique_ptr<DuplicateEstimator> duplicates_;
};

}  // namespace nnue::data
