// From files to batches on several threads, in an order that does not depend on them.
//
// The chunks of all files are put in a random order for each epoch. Workers decode them; decoded chunks are appended,
// in that order, to a window of a fixed number of positions; a full window is permuted at random and cut into batches,
// which workers write into memory of the caller, while the next window fills. So the order is a function of (seed,
// epoch, files, filters, window, batch size), and a place in it is four numbers and the state of the filter
// piece_counts there: that filter works on the chunks as they are appended. Resuming decodes one window again.
//
// With canonical shards every batch has an equal part from each shard. A shard is a separate stream over every n-th
// chunk of the epoch's order, where n is the number of shards, with its own part of the window. A process then decodes
// only its own shards, and the order is the same for every number of processes that divides n.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "filters/filters.h"
#include "filters/piece_counts.h"
#include "formats/position_file.h"
#include "pipeline/contents.h"
#include "pipeline/kernels.h"
#include "pipeline/random.h"
#include "pipeline/sketch.h"

namespace nnue::data {

struct PipelineOptions {
    std::vector<std::shared_ptr<const PositionFile>> files;  // in any format
    // The content of each file's chunks so far; empty: nothing is compared.
    std::vector<std::shared_ptr<Contents>> contents;
    const FeatureSet* features = nullptr;  // none: batches are packed records
    std::size_t batch_size = 16384;        // of all processes together
    std::uint64_t seed = 0;
    bool shuffle = true;                        // false: file order
    std::size_t window = std::size_t{1} << 22;  // positions; rounded up to whole batches
    bool drop_last = true;                      // leave out an epoch's last batch if it is not full
    int threads = 0;                            // 0: one per CPU
    // For each file the number of times that its chunks come in an epoch; empty: once. 2.5: twice, and a random half of
    // them once more.
    std::vector<double> weights;
    bool skip_bad_chunks = false;  // leave out and count a chunk with anything wrong in it, instead of an error
    FilterOptions filters;
    // A user's filter, which runs after the others but piece_counts: it moves the records to keep to the front and
    // returns their number. Called from workers, for one chunk at a time; it must be a function of the records alone.
    std::function<std::size_t(std::span<Record>)> user_filter;
    std::size_t rank = 0, world_size = 1;  // this process gets an equal part of every batch
    bool counts_unique = false;            // keep a sketch of the positions that were handed out
    // Canonical shards, a multiple of world_size. Each shard is drawn and repeated separately, so there are no marks
    // between epochs, and each process decodes only its own shards. 1: no shards, every process decodes everything.
    std::size_t shards = 1;
};

// A place in the stream of a shard, between two batches.
struct StreamPosition {
    std::uint64_t epoch = 0;
    std::uint64_t chunk = 0;  // of the epoch's order, where the window starts
    std::uint64_t skip = 0;   // positions of that chunk that belong to the window before
    std::uint64_t batch = 0;  // of the window
    // The state of the filter piece_counts before that chunk; none: the filter is off, or it is the beginning.
    std::shared_ptr<const PieceCountState> piece_counts = nullptr;
};

// Memory of the caller for one batch: rows if the pipeline expands features, records if not.
struct Slot {
    BatchRows rows{};
    Record* records = nullptr;
};

// The bytes of a batch of n positions: rows of the features, in the layout of batch_layout.h, or records if there are
// none. Throws FormatError if no memory could hold the batch.
std::size_t slot_bytes(const FeatureSet* features, std::size_t n);

// How many slots keep a pipeline at full speed whose caller holds this many batches: one for each worker that makes a
// batch, and the next batch. 32 workers make more batches than a GPU trains on, so there are no more slots than for
// these.
std::size_t slots_for(int threads, std::size_t held);

// The slot of such a batch in the caller's memory. Throws FormatError if it is too small or not aligned to 16 bytes.
Slot slot_in(std::span<std::byte> memory, const FeatureSet* features, std::size_t n);

// Chunks left out because of skip_bad_chunks. Each counts once, even if it comes several times.
struct BadChunks {
    std::uint64_t count = 0;
    std::string first;  // what was wrong with the one that was found first
};

// Thrown by next() once the pipeline has been stopped.
struct Stopped : std::exception {
    const char* what() const noexcept override { return "the pipeline was stopped"; }
};

struct Output {
    bool end_of_epoch = false;  // a mark after an epoch's last batch: no slot
    std::size_t slot = 0, size = 0;
    std::vector<StreamPosition> after;  // the places after it, of each shard of this process
    // The chunk after the last one that each shard has positions of, or may have, as they were shuffled together;
    // empty for a mark.
    std::vector<Contents::Place> read;
    std::uint64_t bad_chunks = 0;  // known when it was handed out
    bool ready = false;
};

class Pipeline {
  public:
    // `start`: a place for each shard of this process. Throws FormatError for files that cannot be used, and where a
    // thread cannot be started. Starts working at once.
    Pipeline(PipelineOptions options, std::vector<Slot> slots, const std::vector<StreamPosition>& start);
    ~Pipeline();  // stops and joins
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    // The next batch or mark, or nothing if it takes longer than `timeout`. The slot belongs to the caller until it is
    // released. Throws the error of a damaged chunk after the last batch before it; any other error of a worker at
    // once; Stopped after stop().
    std::optional<Output> next(std::chrono::milliseconds timeout);

    // Gives a slot back, with other memory for the next batch if `memory` is given. Throws FormatError for a slot that
    // the caller does not hold.
    void release(std::size_t slot, const Slot* memory = nullptr);

    // Ends the workers, and wakes those that wait in next(). May be called from anywhere, any number of times.
    void stop();

    // Ends and joins the workers. A worker must not call it: see runs_in_worker().
    void join();
    // Ends the workers, and returns whether all have ended within `timeout`, so that join() returns at once; it does
    // not wait where that is negative. A worker inside a user's filter ends when that returns.
    bool ends_within(std::chrono::milliseconds timeout);

    // Whether this thread is one of the workers, as it is in a user's filter.
    bool runs_in_worker() const;

    // Counts of all chunks decoded so far, including those ahead of the last batch.
    FilterCounts filter_counts();
    BadChunks bad_chunks();
    // The positions of all batches that next() has returned: of whole batches of all processes, or, with shards, of
    // those of this process.
    Sketch seen();
    void restore_seen(const Sketch& sketch);

    std::size_t num_chunks() const { return chunks_.size(); }
    int num_threads() const { return options_.threads; }

  private:
    struct ChunkRef {
        std::uint32_t file, chunk;
    };
    struct OrderEntry {
        std::uint32_t chunk, copy;
    };
    // The chunks of an epoch in the order in which a shard reads them. No list: a data set may have millions.
    struct ChunkOrder {
        std::size_t first = 0, step = 1, size = 0;  // the entries first, first + step, … of all that shards share
        std::optional<Permutation> permutation;     // of those; none without shuffling
        std::vector<OrderEntry> drawn;              // what the permutation is of; empty: each chunk once

        OrderEntry operator[](std::size_t i) const {
            auto at = static_cast<std::uint32_t>(first + i * step);
            if (permutation) at = (*permutation)(at);
            return drawn.empty() ? OrderEntry{at, 0} : drawn[at];
        }
    };
    struct Pending {  // a chunk between decoder and window
        StreamPosition at;
        std::uint32_t chunk = 0;  // index into chunks_
        std::uint64_t key = 0;    // of its filters
        bool last_of_epoch = false, done = false, committed = false;
        std::size_t used = 0;
        RecordBuffer records;
        std::exception_ptr error;  // what is wrong with it
    };
    struct Window {
        std::unique_ptr<Record[]> records;
        std::size_t size = 0, batches = 0, dispatched = 0, finished = 0;
        bool last_of_epoch = false;
        StreamPosition start, end;
    };
    // A worker's share of a batch: that many positions of a window, from its entry `first` of the permutation on.
    struct Part {
        Window* window;
        std::size_t first, size;
        std::size_t batch, batch_size;  // all of the batch, of which this process may have a part only
    };
    struct Scratch {  // of one worker
        std::vector<std::uint8_t> payload;
        std::vector<std::uint8_t> flags;
        std::vector<std::uint32_t> order;
        std::vector<Part> parts;
        Sketch* sketch = nullptr;  // of the batch, if unique positions are counted
    };

    // A stream of chunks, from the place where decoding continues to the windows that are filled.
    struct Shard {
        std::size_t number = 0;  // among the shards of all processes
        StreamPosition decode_at;
        ChunkOrder order;  // of that epoch
        std::deque<std::unique_ptr<Pending>> pending;
        bool committing = false;
        std::shared_ptr<const PieceCountState> piece_counts;  // before the next chunk that is committed
        std::size_t first_batch = 0;                          // where a resumed window starts
        std::uint64_t batches_of_epoch = 0;                   // so far, of the epoch that is being committed
        bool epoch_is_whole = false;                          // it was started from its beginning

        Window windows[2];
        std::exception_ptr error;  // the chunk that comes next is bad

        std::deque<Window*> idle_windows, ready_windows;
        Window* filling = nullptr;
    };

    class Unlocked;

    void work();
    bool has_arrived() const;
    std::exception_ptr current_error() const;
    std::exception_ptr error_that_is_due() const;
    bool try_batch(std::unique_lock<std::mutex>& lock, Scratch& scratch);
    bool try_commit(std::unique_lock<std::mutex>& lock);
    bool commit(std::unique_lock<std::mutex>& lock, Shard& shard);
    void start_committing(std::unique_lock<std::mutex>& lock, Shard& shard, Pending& chunk);
    void check_content(ChunkRef ref, std::uint64_t digest, const Shard& shard, StreamPosition at) const;
    void filter_chunk(std::size_t unscored, Pending& chunk, Scratch& scratch, FilterCounts& counts) const;
    bool is_ahead(const Shard& shard) const;
    bool try_decode(std::unique_lock<std::mutex>& lock, Scratch& scratch);
    void decode(std::unique_lock<std::mutex>& lock, Shard& shard, Scratch& scratch);
    std::string read_chunk(ChunkRef ref, const Shard& shard, Pending& chunk, Scratch& scratch,
                           FilterCounts& counts) const;
    void fill_part(const Part& part, std::size_t shard, std::size_t row, Slot& slot, Scratch& scratch,
                   unsigned floor) const;
    void order_of(const Window& window, std::size_t shard, std::size_t first, std::size_t size, Scratch& scratch) const;
    Output& push_output();
    void push_mark(const Window& last);
    void close_window(Shard& shard, bool last_of_epoch, StreamPosition end);
    void start_epoch(Shard& shard) const;
    std::vector<OrderEntry> draw_by_weights(std::uint64_t epoch) const;
    bool has_marks() const { return options_.shards == 1; }

    PipelineOptions options_;
    std::vector<std::shared_ptr<const PositionFile>> files_;
    std::vector<ChunkRef> chunks_;
    std::vector<Slot> slots_;
    std::size_t shard_batch_ = 0, window_ = 0;  // positions of a shard: in a batch, in a window
    std::size_t max_pending_ = 0;               // of a shard
    int max_decoding_ = 0;                      // the most workers that decode while all shards are ahead

    std::mutex mutex_;
    std::condition_variable work_;     // there may be something to do for a worker
    std::condition_variable arrived_;  // has_arrived()
    std::condition_variable ended_;    // a worker has ended
    bool stop_ = false;
    int working_ = 0;   // workers that have not ended
    int decoding_ = 0;  // workers that are decoding now
    std::exception_ptr error_;
    FilterCounts filter_counts_;
    BadChunks bad_chunks_;
    std::vector<Sketch> sketches_;  // of the batch in each slot, if unique positions are counted
    Sketch seen_;
    unsigned seen_floor_ = 0;                      // of seen_
    std::unordered_set<std::uint32_t> known_bad_;  // indices into chunks_

    std::vector<std::unique_ptr<Shard>> shards_;  // of this process
    std::vector<std::unique_ptr<Pending>> idle_pending_;

    std::vector<std::size_t> free_slots_;
    std::vector<bool> held_slots_;  // by the caller
    // A ring of what is on its way, in order: at most one batch per slot, and the marks between them.
    std::vector<Output> outputs_;
    std::size_t first_output_ = 0, num_outputs_ = 0;
    std::vector<std::thread> workers_;  // last: they use all of the above
    std::mutex join_mutex_;
};

}  // namespace nnue::data
