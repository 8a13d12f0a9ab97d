// The parts of the data library for C++ programs beside the pipeline: files by their paths, batches, texts.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "chess/record.h"
#include "chess/texts.h"
#include "features/feature_set.h"
#include "formats/open.h"
#include "games.h"
#include "pipeline/expand.h"
#include "pipeline/loader.h"
#include "temporary_directory.h"

namespace nnue::data {
namespace {

using namespace testing;

class LibraryTest : public TemporaryDirectory {
  protected:
    std::vector<Record> read_all(const std::string& file) {
        std::vector<Record> records(100'000);
        records.resize(open_reader(file)->read(records));
        return records;
    }
    std::size_t files() {
        const auto all = std::filesystem::directory_iterator(path(""));
        return static_cast<std::size_t>(std::distance(begin(all), end(all)));
    }
    std::string what(const std::function<void()>& body) {
        try {
            body();
        } catch (const FormatError& error) {
            return error.what();
        }
        return "no error";
    }
};

TEST_F(LibraryTest, AFileAppearsWholeOrNotAtAll) {
    const std::vector<Record> games = random_games(3, 4, 40);
    for (const DataFormat* format : formats()) {
        if (!format->open_writer) continue;
        const std::string file = path("games") + format->suffix;
        {
            FileWriter writer(file);
            EXPECT_EQ(&writer.format(), &find_format(format->name));
            writer.write(games);
            EXPECT_EQ(files(), 1u) << "the temporary file";
            EXPECT_FALSE(std::filesystem::exists(file));
        }
        EXPECT_EQ(files(), 0u) << "left without finish()";
        FileWriter writer(file);
        writer.write(games);
        writer.finish();
        EXPECT_EQ(files(), 1u);
        EXPECT_EQ(read_all(file).size(), writer.positions());
        std::filesystem::remove(file);
    }
    EXPECT_NE(what([&] { FileWriter writer(path("games.pgn")); }).find("expected one of .bin"), std::string::npos);
    EXPECT_NE(what([&] { FileWriter writer(path("none/games.bin")); }).find("cannot be created"), std::string::npos);
    EXPECT_NE(what([&] { FileWriter writer(path("x"), "pgn"); }), "no error");
}

TEST_F(LibraryTest, TextsGoThereAndBack) {
    const std::string fen = "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2";
    const Record record = record_from_fen(fen, 31, 1);
    EXPECT_EQ(fen_from_record(record), fen);
    EXPECT_EQ(entry_from_record(record).score, 31);
    EXPECT_EQ(entry_from_record(record).result, 1);
    EXPECT_NE(what([] { record_from_fen("no board"); }).find("FEN 'no board': "), std::string::npos);
    EXPECT_EQ(what([] { fen_from_record(Record{}, 7); }), "record 7: not one king of each side");
}

class LoaderTest : public LibraryTest {
  protected:
    void SetUp() override {
        LibraryTest::SetUp();
        FileWriter writer(path("games.bin"));
        games_ = random_games(5, 8, 60);
        for (std::size_t i = 0; i < games_.size(); ++i) set_record_rule50(games_[i], static_cast<int>(i));
        writer.write(games_);
        writer.finish();
        games_ = read_all(path("games.bin"));
        options_.files = {path("games.bin")};
        options_.batch_size = 32;
        options_.window = 100;
        options_.seed = 9;
    }
    std::vector<Record> games_;
    LoaderOptions options_;
};

TEST_F(LoaderTest, AnEpochHasEveryPositionOnce) {
    options_.drop_last = false;
    Loader loader(options_);
    std::vector<std::string> seen, all;
    for (const Record& record : games_) all.push_back(fen_from_record(record));
    while (const auto batch = loader.next()) {
        for (const Record& record : batch->records()) seen.push_back(fen_from_record(record));
    }
    EXPECT_NE(seen, all) << "not shuffled";
    std::ranges::sort(seen);
    std::ranges::sort(all);
    EXPECT_EQ(seen, all);
    EXPECT_TRUE(loader.next()) << "the next epoch";
}

TEST_F(LoaderTest, RowsAreThoseOfTheRecordsAndAPlaceIsPickedUp) {
    Loader records(options_);
    options_.feature_set = "HalfKAv2_hm";
    const std::size_t bytes = Loader::bytes_per_batch(options_.feature_set, options_.batch_size);
    std::vector<std::vector<std::max_align_t>> memory(3);
    for (auto& buffer : memory) {
        buffer.resize(bytes / sizeof(std::max_align_t) + 1);
        options_.memory.push_back(std::as_writable_bytes(std::span(buffer)));
    }
    Loader rows(options_);
    StreamPosition place;
    const auto width = static_cast<std::size_t>(rows.features()->max_active);
    std::vector<std::int32_t> white(32 * width), black(white);
    std::vector<std::int16_t> counts(32), score(32);
    std::vector<std::uint8_t> black_to_move(32), pieces(32), material(32);
    std::vector<std::int8_t> result(32);
    const BatchRows own{white.data(), black.data(),  counts.data(), black_to_move.data(),
                        score.data(), result.data(), pieces.data(), material.data()};
    for (int i = 0; i < 5; ++i) {
        const Loader::Batch a = records.next_endless(), b = rows.next_endless();
        expand_records(a.records(), *rows.features(), own, 2);
        EXPECT_EQ(std::memcmp(b.rows().white, white.data(), 4 * white.size()), 0);
        EXPECT_EQ(std::memcmp(b.rows().black, black.data(), 4 * black.size()), 0);
        EXPECT_EQ(std::memcmp(b.rows().score, score.data(), 2 * score.size()), 0);
        EXPECT_EQ(std::memcmp(b.rows().piece_count, pieces.data(), pieces.size()), 0);
        place = a.after();
    }
    LoaderOptions again = options_;
    again.feature_set = "";
    again.memory.clear();
    again.start = place;
    Loader resumed(again);
    EXPECT_EQ(fen_from_record(resumed.next_endless().records()[0]),
              fen_from_record(records.next_endless().records()[0]));
}

TEST_F(LoaderTest, ErrorsNameWhatIsWrong) {
    std::vector<std::max_align_t> memory(32 * 32 / sizeof(std::max_align_t));
    options_.memory = {std::as_writable_bytes(std::span(memory))};
    Loader loader(options_);
    const Loader::Batch held = loader.next_endless();
    EXPECT_EQ(what([&] { loader.next(); }), "all 1 batches of the loader are held: release one");
    options_.memory[0] = options_.memory[0].first(100);
    EXPECT_NE(what([&] { Loader small(options_); }).find("100 bytes, expected at least 1024"), std::string::npos);
    options_.files = {path("none.bin")};
    EXPECT_NE(what([&] { Loader none(options_); }).find("none.bin"), std::string::npos);
    options_.feature_set = "Chess1";
    EXPECT_NE(what([&] { Loader unknown(options_); }).find("Chess1"), std::string::npos);
}

}  // namespace
}  // namespace nnue::data
