// The pipeline's contract: every position once an epoch, an order that threads and processes do not change, exact
// resume.
#include "pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "formats/chunk_digest.h"
#include "games.h"
#include "pipeline/random.h"
#include "temporary_directory.h"

namespace nnue::data {
namespace {

using namespace testing;
using namespace std::chrono_literals;

constexpr std::size_t kSlots = 3;
const std::vector<StreamPosition> kBeginning(1);

class PipelineTest : public TemporaryDirectory {
  protected:
    // Two files of several chunks each (concatenated files are files); the rule-50 counter identifies a record.
    void SetUp() override {
        TemporaryDirectory::SetUp();
        const std::vector<Record> games = random_games(1, 12, 60);
        int id = 0;
        for (const char* name : {"a", "b"}) {
            std::vector<char> bytes;
            for (int chunk = 0; chunk < 5; ++chunk) {
                std::vector<Record> records(games.begin() + chunk * 17, games.begin() + chunk * 17 + 150);
                for (Record& record : records) set_record_rule50(record, id++);
                write_binpack(path("chunk"), records, false);
                const std::vector<char> part = bytes_of(path("chunk"));
                bytes.insert(bytes.end(), part.begin(), part.end());
            }
            write_bytes(path(name), bytes);
        }
        total_ = static_cast<std::size_t>(id);
        open_files();
        options_.batch_size = 32;
        options_.window = 200;
        options_.threads = 2;
        options_.drop_last = false;
        options_.seed = 7;
    }

    void open_files(OnBad on_bad = OnBad::kError) {
        options_.files.clear();
        OpenOptions how;
        how.on_bad = on_bad;
        for (const char* name : {"a", "b"}) options_.files.push_back(open_position_file(InputFile(path(name)), how));
    }

    // The ids of `batches` batches or marks (−1) from a place on, and the places behind each.
    struct Run {
        std::vector<std::vector<int>> batches;
        std::vector<std::vector<StreamPosition>> places;
    };
    Run run(const PipelineOptions& options, std::size_t batches, const std::vector<StreamPosition>& start = kBeginning,
            std::size_t num_slots = kSlots) {
        std::vector<std::vector<Record>> memory(num_slots, std::vector<Record>(options.batch_size));
        std::vector<Slot> slots(num_slots);
        for (std::size_t i = 0; i < num_slots; ++i) slots[i].records = memory[i].data();
        Pipeline pipeline(options, slots, start);
        Run result;
        while (result.batches.size() < batches) {
            const std::optional<Output> output = pipeline.next(10s);
            if (!output) {
                ADD_FAILURE() << "no batch in ten seconds";
                break;
            }
            std::vector<int> ids;
            if (output->end_of_epoch) {
                ids.push_back(-1);
            } else {
                for (std::size_t i = 0; i < output->size; ++i)
                    ids.push_back(record_rule50(memory[output->slot][i].bytes.data()));
                pipeline.release(output->slot);
            }
            result.batches.push_back(ids);
            result.places.push_back(output->after);
        }
        return result;
    }

    static std::vector<int> epoch_of(const Run& run, std::size_t& at) {
        std::vector<int> ids;
        while (run.batches[at] != std::vector<int>{-1}) {
            ids.insert(ids.end(), run.batches[at].begin(), run.batches[at].end());
            ++at;
        }
        ++at;
        return ids;
    }

    std::size_t total_ = 0;
    PipelineOptions options_;
};

TEST_F(PipelineTest, EveryPositionOnceAnEpochInAnOrderOfItsOwn) {
    const Run r = run(options_, 120);
    std::size_t at = 0;
    std::vector<int> first = epoch_of(r, at), second = epoch_of(r, at);
    EXPECT_NE(first, second);
    for (std::vector<int>* ids : {&first, &second}) {
        ASSERT_EQ(ids->size(), total_);
        std::sort(ids->begin(), ids->end());
        for (std::size_t i = 0; i < total_; ++i) ASSERT_EQ((*ids)[i], static_cast<int>(i));
    }
}

TEST_F(PipelineTest, UnshuffledIsFileOrder) {
    options_.shuffle = false;
    const Run r = run(options_, 60);
    std::size_t at = 0;
    const std::vector<int> ids = epoch_of(r, at);
    ASSERT_EQ(ids.size(), total_);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
}

TEST_F(PipelineTest, ThreadsDoNotChangeTheOrder) {
    const Run one = run(options_, 130);
    for (const int threads : {1, 3, 8}) {
        options_.threads = threads;
        EXPECT_EQ(run(options_, 130).batches, one.batches) << threads;
    }
    options_.seed = 8;
    EXPECT_NE(run(options_, 130).batches, one.batches);
}

TEST_F(PipelineTest, ProcessesShareEveryBatch) {
    const Run whole = run(options_, 100);
    options_.world_size = 4;
    std::vector<std::vector<int>> joined(100);
    for (options_.rank = 0; options_.rank < 4; ++options_.rank) {
        const Run part = run(options_, 100);
        for (std::size_t i = 0; i < 100; ++i) {
            if (part.batches[i] == std::vector<int>{-1}) {
                joined[i] = {-1};
            } else {
                joined[i].insert(joined[i].end(), part.batches[i].begin(), part.batches[i].end());
            }
        }
    }
    EXPECT_EQ(joined, whole.batches);
}

TEST_F(PipelineTest, ShardsGiveOneOrderForAnyNumberOfProcesses) {
    options_.shards = 8;
    options_.drop_last = true;
    const Run whole = run(options_, 60, std::vector<StreamPosition>(8));
    ASSERT_EQ(whole.places[0].size(), 8u);
    for (const std::size_t world_size : {2, 4, 8}) {
        options_.world_size = world_size;
        std::vector<std::vector<int>> joined(60);
        for (options_.rank = 0; options_.rank < world_size; ++options_.rank) {
            options_.threads = 1 + static_cast<int>(options_.rank % 3);
            const std::vector<StreamPosition> start(8 / world_size);
            const Run part = run(options_, 60, start);
            for (std::size_t i = 0; i < 60; ++i) {
                joined[i].insert(joined[i].end(), part.batches[i].begin(), part.batches[i].end());
            }
            // And behind any batch again.
            const Run rest = run(options_, 5, part.places[17 * options_.rank % 50]);
            for (std::size_t i = 0; i < 5; ++i) {
                ASSERT_EQ(rest.batches[i], part.batches[17 * options_.rank % 50 + 1 + i]);
            }
        }
        EXPECT_EQ(joined, whole.batches);
    }
    options_.world_size = 3;
    options_.rank = 0;
    EXPECT_THROW(Pipeline(options_, {Slot{}}, kBeginning), FormatError);
}

TEST_F(PipelineTest, ResumesBehindAnyBatch) {
    for (const bool drop_last : {false, true}) {
        options_.drop_last = drop_last;
        const Run whole = run(options_, 110);
        for (std::size_t at = 0; at < 100; at += 3) {
            options_.threads = 1 + static_cast<int>(at % 4);
            const Run rest = run(options_, 10, whole.places[at]);
            for (std::size_t i = 0; i < 10; ++i)
                ASSERT_EQ(rest.batches[i], whole.batches[at + 1 + i]) << at << " + " << i;
        }
    }
}

TEST_F(PipelineTest, DropLastLeavesOnlyFullBatches) {
    options_.drop_last = true;
    const Run r = run(options_, 100);
    std::size_t at = 0;
    const std::vector<int> ids = epoch_of(r, at);
    EXPECT_EQ(ids.size(), total_ / 32 * 32);
}

TEST_F(PipelineTest, TooFewPositionsIsAnError) {
    options_.drop_last = true;
    options_.batch_size = 2 * total_;
    std::vector<Record> memory(options_.batch_size);
    Slot slot;
    slot.records = memory.data();
    Pipeline pipeline(options_, {slot}, kBeginning);
    EXPECT_THROW(while (!pipeline.next(10s)){}, FormatError);
}

TEST_F(PipelineTest, CorruptDataIsAnErrorNotAHang) {
    std::vector<char> bytes = bytes_of(path("b"));
    std::fill_n(bytes.begin() + 8 + 34 * 20, 8, '\x7f');
    write_bytes(path("b"), bytes);
    open_files();
    std::vector<Record> memory(options_.batch_size);
    Slot slot;
    slot.records = memory.data();
    Pipeline pipeline(options_, {slot}, kBeginning);
    try {
        while (true) {
            const std::optional<Output> output = pipeline.next(10s);
            ASSERT_TRUE(output);
            if (!output->end_of_epoch) pipeline.release(output->slot);
        }
    } catch (const FormatError& error) {
        const std::string expected =
            path("b") + ": offset " + std::to_string(8 + 34 * 20) + ": chunk 0, chain at its byte 680";
        EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
}

TEST_F(PipelineTest, BadChunksAreSkippedAndCounted) {
    std::vector<char> bytes = bytes_of(path("b"));
    std::fill_n(bytes.begin() + 8 + 34 * 20, 8, '\x7f');
    write_bytes(path("b"), bytes);
    open_files();
    options_.skip_bad_chunks = true;
    const Run whole = run(options_, 60);
    std::size_t at = 0;
    EXPECT_EQ(epoch_of(whole, at).size(), total_ - 150);
    for (const std::size_t from : {5u, 20u, 40u}) {
        const Run rest = run(options_, 10, whole.places[from]);
        for (std::size_t i = 0; i < 10; ++i) ASSERT_EQ(rest.batches[i], whole.batches[from + 1 + i]);
    }
    std::vector<Record> memory(options_.batch_size);
    Slot slot;
    slot.records = memory.data();
    Pipeline pipeline(options_, {slot}, kBeginning);
    for (bool ended = false; !ended;) {
        const std::optional<Output> output = pipeline.next(10s);
        ASSERT_TRUE(output);
        ended = output->end_of_epoch;
        if (!ended) pipeline.release(output->slot);
    }
    EXPECT_EQ(pipeline.bad_chunks().count, 1u);  // although the next epoch may have been read ahead
    EXPECT_NE(pipeline.bad_chunks().first.find("b: offset 688: chunk 0"), std::string::npos);
}

TEST_F(PipelineTest, ATornEndIsSkippedAndCounted) {
    std::vector<char> bytes = bytes_of(path("b"));
    bytes.resize(bytes.size() - 30);
    write_bytes(path("b"), bytes);
    EXPECT_THROW(open_files(), FormatError);
    open_files(OnBad::kSkip);
    options_.skip_bad_chunks = true;
    const Run whole = run(options_, 60);
    std::size_t at = 0;
    EXPECT_EQ(epoch_of(whole, at).size(), total_ - 150);
    std::vector<Record> memory(options_.batch_size);
    Slot slot;
    slot.records = memory.data();
    Pipeline pipeline(options_, {slot}, kBeginning);
    EXPECT_EQ(pipeline.bad_chunks().count, 1u);
    EXPECT_NE(pipeline.bad_chunks().first.find("it is truncated"), std::string::npos) << pipeline.bad_chunks().first;
}

TEST_F(PipelineTest, PositionsWithoutAScoreAreFilteredInTheirChunksAlone) {
    const Run before = run(options_, 60);
    options_.filters.set("no_score", 1);
    EXPECT_EQ(run(options_, 60).batches, before.batches);  // there are none
    std::vector<char> bytes = bytes_of(path("b"));
    Record record;
    std::memcpy(record.bytes.data(), &bytes[8 + 34 * 20], 32);
    set_record_score(record, kScoreNone);
    std::memcpy(&bytes[8 + 34 * 20], record.bytes.data(), 32);
    write_bytes(path("b"), bytes);
    open_files();
    const Run after = run(options_, 60);
    std::size_t at = 0;
    std::vector<int> ids = epoch_of(after, at);
    EXPECT_EQ(ids.size(), total_ - 1);
    EXPECT_EQ(std::ranges::count(ids, 5 * 150 + 20), 0);
}

TEST_F(PipelineTest, OnlySlotsOfTheCallerAreReleased) {
    std::vector<Record> memory(2 * options_.batch_size);
    Slot slot, other;
    slot.records = memory.data();
    other.records = memory.data() + options_.batch_size;
    Pipeline pipeline(options_, {slot}, kBeginning);
    EXPECT_THROW(pipeline.release(0), FormatError);
    EXPECT_THROW(pipeline.release(99999999), FormatError);
    const auto first = pipeline.next(10s);
    ASSERT_TRUE(first);
    const std::vector<Record> batch(memory.begin(), memory.begin() + 32);
    pipeline.release(first->slot, &other);  // its memory stays as it is
    EXPECT_THROW(pipeline.release(first->slot), FormatError);
    ASSERT_TRUE(pipeline.next(10s));
    EXPECT_TRUE(std::equal(batch.begin(), batch.end(), memory.begin()));
}

// Workers wake each other, so with many of them a batch that no one was woken for would never come. The order is the
// same for each number of threads and slots.
TEST_F(PipelineTest, ManyWorkersAndFewSlotsMissNoWork) {
    options_.drop_last = true;
    for (const std::size_t shards : {1u, 4u}) {
        options_.shards = shards;
        options_.threads = 1;
        const std::vector<StreamPosition> start(shards);
        const Run expected = run(options_, 300, start);
        for (const int threads : {2, 48}) {
            options_.threads = threads;
            for (const std::size_t slots : {1u, 2u, 40u}) {
                EXPECT_EQ(run(options_, 300, start, slots).batches, expected.batches) << threads << ", " << slots;
            }
        }
    }
}

TEST(Slots, AreNoMoreThanWorkersThatAGpuKeepsBusy) {
    EXPECT_EQ(slots_for(1, 0), 3u);
    EXPECT_EQ(slots_for(16, 2), 19u);
    EXPECT_EQ(slots_for(128, 2), 35u);
}

TEST_F(PipelineTest, AWaitEndsWhenThePipelineIsStopped) {
    std::vector<Record> memory(options_.batch_size);
    Slot slot;
    slot.records = memory.data();
    Pipeline pipeline(options_, {slot}, kBeginning);
    ASSERT_TRUE(pipeline.next(10s));  // is never released, so that the next batch never comes
    std::thread stopper([&] { pipeline.stop(); });
    EXPECT_THROW(while (!pipeline.next(100s)){}, Stopped);
    stopper.join();
    pipeline.join();
    EXPECT_THROW(pipeline.next(0s), Stopped);
}

TEST_F(PipelineTest, WeightsRepeatChunks) {
    options_.weights = {2.6, 0.2};
    const Run whole = run(options_, 200);
    std::size_t at = 0;
    const std::vector<int> first = epoch_of(whole, at), second = epoch_of(whole, at);
    for (const std::vector<int>& ids : {first, second}) {
        std::map<int, int> chunks;  // how often each of the ten chunks came
        for (const int id : ids) ++chunks[id / 150];
        int of_a = 0, of_b = 0, thrice = 0;
        for (const auto& [chunk, count] : chunks) {
            EXPECT_EQ(count % 150, 0);
            (chunk < 5 ? of_a : of_b) += count / 150;
            thrice += count == 450;
        }
        EXPECT_EQ(of_a, 13);
        EXPECT_EQ(of_b, 1);
        EXPECT_EQ(thrice, 3);
    }
    EXPECT_NE(first, second);
    options_.threads = 5;
    EXPECT_EQ(run(options_, 200).batches, whole.batches);
    const Run rest = run(options_, 10, whole.places[30]);
    for (std::size_t i = 0; i < 10; ++i) ASSERT_EQ(rest.batches[i], whole.batches[31 + i]);
}

TEST_F(PipelineTest, BadWeights) {
    for (const std::vector<double>& weights : {std::vector<double>{1.0}, {1.0, -1.0}, {0.0, 0.0}, {1.0, 1e9}}) {
        options_.weights = weights;
        EXPECT_THROW(Pipeline(options_, {Slot{}}, kBeginning), FormatError);
    }
}

TEST_F(PipelineTest, StopsWhileWorkIsUnderWay) {
    for (int i = 0; i < 20; ++i) {
        std::vector<Record> memory(options_.batch_size);
        Slot slot;
        slot.records = memory.data();
        Pipeline pipeline(options_, {slot}, kBeginning);
        if (i % 2) pipeline.next(1s);
    }
}

TEST(Digest, IsTheSameForEveryBuild) {
    std::vector<std::uint8_t> bytes(10 * sizeof(DigestLanes));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(mix(i));
    DigestLanes expected{};
    kernels().digest(expected, bytes.data(), 10);
    for (const Kernels* k : all_kernels()) {
        DigestLanes lanes{};
        k->digest(lanes, bytes.data(), 3);
        k->digest(lanes, bytes.data() + 3 * sizeof lanes, 7);
        EXPECT_EQ(lanes, expected) << k->isa;
    }
}

TEST(Digest, IsOfTheBytesAndNotOfThePieces) {
    std::vector<std::uint8_t> bytes(20'000);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(mix(i));
    const auto digest = [&](std::size_t n, std::size_t step) {
        std::uint64_t result = 0;
        ChunkDigest digested(&result);
        for (std::size_t at = 0; at < n; at += step) digested.reached(bytes.data(), at);
        digested.finish(bytes.data(), n);
        return result;
    };
    std::set<std::uint64_t> seen;
    for (const std::size_t n : {0, 1, 255, 256, 257, 4096, 5000, 20'000}) {
        const std::uint64_t whole = digest(n, n + 1);
        EXPECT_TRUE(seen.insert(whole).second) << n;
        for (const std::size_t step : {34, 1000, 4096, 9000}) EXPECT_EQ(digest(n, step), whole) << n << " by " << step;
    }
    // Each bit counts, and so do the places of records.
    for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += 37) {
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
        EXPECT_TRUE(seen.insert(digest(bytes.size(), 4096)).second) << bit;
        bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    }
    for (const std::size_t apart : {34, 256, 32 * 34}) {
        std::swap_ranges(bytes.begin(), bytes.begin() + 34, bytes.begin() + static_cast<std::ptrdiff_t>(apart));
        EXPECT_TRUE(seen.insert(digest(bytes.size(), 4096)).second) << apart;
    }
}

// Dropping a pipeline must not wait for workers that are inside a user's filter.
TEST_F(PipelineTest, EndsWithinATimeOnlyWithoutAFilterThatDoesNotReturn) {
    std::promise<void> entered, returning;
    std::atomic<bool> first = true;
    options_.user_filter = [&, may_return = returning.get_future().share()](std::span<Record> records) {
        if (first.exchange(false)) entered.set_value();
        may_return.wait();
        return records.size();
    };
    std::vector<std::vector<Record>> memory(kSlots, std::vector<Record>(options_.batch_size));
    std::vector<Slot> slots(kSlots);
    for (std::size_t i = 0; i < kSlots; ++i) slots[i].records = memory[i].data();
    Pipeline pipeline(options_, slots, kBeginning);
    entered.get_future().wait();
    EXPECT_FALSE(pipeline.ends_within(0ms));
    EXPECT_FALSE(pipeline.ends_within(20ms));
    returning.set_value();
    EXPECT_TRUE(pipeline.ends_within(60s));
}

TEST(Permutation, IsOneForAnySize) {
    for (std::uint32_t n = 1; n < 300; n += 7) {
        const Permutation permutation(n, n);
        std::vector<bool> seen(n);
        for (std::uint32_t i = 0; i < n; ++i) {
            ASSERT_LT(permutation(i), n);
            ASSERT_FALSE(seen[permutation(i)]);
            seen[permutation(i)] = true;
        }
    }
}

// Where entries land should be even: chi-squared over 16 × 16 cells, far beyond its 255 degrees of freedom otherwise.
TEST(Permutation, LooksRandom) {
    constexpr std::uint32_t kSize = 100000;
    for (std::uint64_t key = 0; key < 5; ++key) {
        const Permutation permutation(kSize, key);
        std::map<std::pair<std::uint32_t, std::uint32_t>, int> cells;
        int fixed_steps = 0;
        for (std::uint32_t i = 0; i < kSize; ++i) {
            ++cells[{i * 16ull / kSize, permutation(i) * 16ull / kSize}];
            fixed_steps += i > 0 && permutation(i) == permutation(i - 1) + 1;
        }
        double chi = 0;
        const double expected = kSize / 256.0;
        for (const auto& [cell, count] : cells) chi += (count - expected) * (count - expected) / expected;
        EXPECT_LT(chi, 340) << key;
        EXPECT_LT(fixed_steps, 12) << key;
    }
}

}  // namespace
}  // namespace nnue::data
