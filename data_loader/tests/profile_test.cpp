// The counts of a file's profile, and how blocks are joined when there are too many.
#include "formats/profile.h"

#include <gtest/gtest.h>

#include <numeric>

#include "chess/record.h"
#include "games.h"

namespace nnue::data {
namespace {

TEST(Profile, BinsCoverEveryScoreInOrder) {
    int last = -1;
    for (int score = -32768; score <= 32767; ++score) {
        const int bin = Profile::score_bin(score);
        ASSERT_TRUE(bin == last || bin == last + 1 || score == -32768) << score;
        ASSERT_GE(bin, 0);
        ASSERT_LT(bin, Profile::kScoreBins);
        last = bin;
    }
    EXPECT_EQ(Profile::score_bin(0), Profile::kMagnitudes - 1);
    EXPECT_EQ(Profile::score_bin(-127) + 1, Profile::score_bin(-126));
    EXPECT_LT(Profile::magnitude_bin(0x3fff), Profile::kPlyBins);
}

TEST(Profile, DoesNotDependOnHowRecordsAreDivided) {
    const std::vector<Record> records = testing::random_games(3, 400, 60);
    Profile whole, parts;
    whole.add(records);
    for (std::size_t begin = 0; begin < records.size(); begin += 77) {
        parts.add(std::span(records).subspan(begin, std::min<std::size_t>(77, records.size() - begin)));
    }
    ASSERT_EQ(whole.blocks().size(), parts.blocks().size());
    for (std::size_t i = 0; i < whole.blocks().size(); ++i) {
        EXPECT_EQ(whole.blocks()[i].sum_score, parts.blocks()[i].sum_score);
        EXPECT_EQ(whole.blocks()[i].scores, parts.blocks()[i].scores);
        EXPECT_EQ(whole.blocks()[i].repeated, parts.blocks()[i].repeated);
    }
    EXPECT_EQ(whole.calibration(), parts.calibration());
}

TEST(Profile, JoinsNeighbouringBlocksIfThereAreTooMany) {
    const std::vector<Record> some = testing::random_games(4, 40, 60);
    std::vector<Record> records;
    while (records.size() < Profile::kMaxBlocks * Profile::kFirstBlockSize + 1) {
        records.insert(records.end(), some.begin(), some.end());
    }
    records.resize(Profile::kMaxBlocks * Profile::kFirstBlockSize + 1);
    Profile profile;
    profile.add(records);
    ASSERT_EQ(profile.block_size(), 2 * Profile::kFirstBlockSize);
    ASSERT_EQ(profile.blocks().size(), Profile::kMaxBlocks / 2 + 1);
    EXPECT_EQ(profile.blocks().back().positions, 1u);
    std::uint64_t positions = 0, plies = 0, expected = 0;
    for (const Profile::Block& block : profile.blocks()) {
        positions += block.positions;
        plies += block.sum_ply;
        EXPECT_EQ(std::accumulate(block.results.begin(), block.results.end(), std::uint64_t{0}), block.positions);
        EXPECT_EQ(std::accumulate(block.plies.begin(), block.plies.end(), std::uint64_t{0}), block.positions);
        EXPECT_EQ(std::accumulate(block.scores.begin(), block.scores.end(), std::uint64_t{0}), block.scored);
    }
    for (const Record& record : records) expected += static_cast<std::uint64_t>(record_ply(record.bytes.data()));
    EXPECT_EQ(positions, records.size());
    EXPECT_EQ(plies, expected);
}

TEST(Profile, RefusesInvalidRecords) {
    std::vector<Record> records = testing::random_games(5, 1, 10);
    records[4].bytes[28] |= 0xc0;
    Profile profile;
    EXPECT_THROW(profile.add(records), FormatError);
}

}  // namespace
}  // namespace nnue::data
