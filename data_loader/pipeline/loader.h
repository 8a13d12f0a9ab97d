// Batches of training positions from files: a Pipeline with its files and its memory, for programs in C++.
//
//     nnue::data::Loader loader({.files = {"a.binpack"}, .feature_set = "HalfKAv2_hm", .batch_size = 16384});
//     while (const auto batch = loader.next()) use(batch->rows(), batch->size());  // one epoch
//
// The order of positions is that of nnue_trainer.data.Loader for the same files, seed, window, batch size and filters.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/pipeline.h"

namespace nnue::data {

struct LoaderOptions {
    std::vector<std::string> files;  // in any format, not compressed
    std::string feature_set;         // its name; empty: batches are packed records
    std::size_t batch_size = 16384;
    std::uint64_t seed = 0;
    bool shuffle = true;                        // false: file order
    std::size_t window = std::size_t{1} << 22;  // positions that are shuffled together, 32 bytes each, twice
    bool drop_last = true;                      // drop an epoch's last batch if it is not full
    int threads = 0;                            // 0: one per CPU
    std::vector<double> weights = {};           // for each file, how often it is read in an epoch; empty: once
    bool skip_bad_chunks = false;               // skip and count damaged chunks, instead of an error
    FilterOptions filters{};
    std::function<std::size_t(std::span<Record>)> user_filter{};  // PipelineOptions::user_filter
    // Memory of the caller, such as page-locked memory: at least Loader::bytes_per_batch() each, aligned to 16 bytes,
    // which must outlive the loader. At least one more than the batches that are held at a time. Empty: the loader
    // allocates memory.
    std::vector<std::span<std::byte>> memory{};
    std::size_t held = 2;    // without `memory`: batches that can be held at a time, at least
    StreamPosition start{};  // where to begin: Batch::after() of the last batch that was used
};

class Loader {
  public:
    // A batch in memory of the loader. It belongs to the holder until it is destroyed, and must not outlive the loader.
    class Batch {
      public:
        ~Batch();
        Batch(Batch&& other) noexcept;
        Batch& operator=(Batch&&) = delete;

        std::size_t size() const { return size_; }  // positions; less than batch_size only at the end of an epoch
        // Index rows [size, max_active] and one entry per position for the other fields (features/batch_layout.h).
        // Only with a feature set.
        const BatchRows& rows() const { return slot_->rows; }
        // Only without a feature set.
        std::span<const Record> records() const { return {slot_->records, size_}; }
        const StreamPosition& after() const { return after_; }  // the place after it

      private:
        friend class Loader;
        Batch(Loader& loader, Output output);

        Loader* loader_;
        const Slot* slot_;
        std::size_t index_, size_;
        StreamPosition after_;
    };

    // Opens the files and starts the threads. Throws FormatError that names the file, or the option.
    explicit Loader(LoaderOptions options);
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    // The next batch, or nothing at the end of an epoch: the call after that gives the first batch of the next one.
    // Throws FormatError at damaged data, after all batches before it, and if the caller holds all batches.
    // One thread at a time.
    std::optional<Batch> next();

    // The next batch of an endless stream of epochs. Throws FormatError if an epoch has no batch.
    Batch next_endless();

    // Null without a feature set.
    const FeatureSet* features() const { return features_; }
    std::size_t batch_size() const { return batch_size_; }
    FilterCounts filter_counts() { return pipeline_->filter_counts(); }
    BadChunks bad_chunks() { return pipeline_->bad_chunks(); }

    // Bytes of a batch; `feature_set` as in LoaderOptions.
    static std::size_t bytes_per_batch(std::string_view feature_set, std::size_t batch_size);

  private:
    const FeatureSet* features_ = nullptr;
    std::size_t batch_size_;
    std::vector<std::unique_ptr<std::byte[]>> allocated_;
    std::vector<Slot> slots_;
    std::atomic<std::size_t> held_ = 0;   // batches
    std::unique_ptr<Pipeline> pipeline_;  // last: its threads write into the memory
};

}  // namespace nnue::data
