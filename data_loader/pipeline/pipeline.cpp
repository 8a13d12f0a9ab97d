#include "pipeline/pipeline.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "pipeline/expand.h"
#include "pipeline/parallel.h"
#include "pipeline/random.h"

namespace nnue::data {

namespace {

// Every purpose has a constant in its keys, so that equal numbers elsewhere do not give equal randomness.
enum KeyUse : std::uint64_t { kChunkOrder = 1, kWindowOrder = 2, kFilters = 3, kWeights = 4 };

thread_local const Pipeline* worker_of = nullptr;

// The filter that drops most, for a message.
std::string most_dropped(const FilterCounts& counts) {
    const auto most = std::ranges::max_element(counts.dropped);
    if (most == counts.dropped.end() || *most == 0) return "";
    const std::string_view name = filters()[static_cast<std::size_t>(most - counts.dropped.begin())].name;
    const std::string share = std::to_string(*most * 100 / std::max<std::uint64_t>(counts.read, 1)) + " %";
    if (name == "no_score") {
        return " (" + share +
               " have no score (32002), which no_score drops: score them with `nnue data rescore`, or train on results "
               "with data.filters.no_score=false and lambda 0)";
    }
    return " (" + std::string(name) + " drops " + share + ")";
}

}  // namespace

std::size_t slot_bytes(const FeatureSet* features, std::size_t n) {
    if (n > std::size_t{1} << 32) throw FormatError("batch size " + std::to_string(n) + ", expected at most 2^32");
    return features ? batch_layout(n, static_cast<std::size_t>(features->max_active)).size : n * sizeof(Record);
}

std::size_t slots_for(int threads, std::size_t held) {
    constexpr int kMostMaking = 32;
    return static_cast<std::size_t>(std::clamp(threads, 1, kMostMaking)) + std::max<std::size_t>(held, 1) + 1;
}

Slot slot_in(std::span<std::byte> memory, const FeatureSet* features, std::size_t n) {
    constexpr std::uintptr_t kAlignment = 16;
    const std::size_t bytes = slot_bytes(features, n);
    if (memory.size() < bytes || reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment) {
        throw FormatError("memory for a batch: " + std::to_string(memory.size()) + " bytes, expected at least " +
                          std::to_string(bytes) + ", aligned to " + std::to_string(kAlignment));
    }
    if (!features) return {.records = reinterpret_cast<Record*>(memory.data())};
    return {.rows = batch_rows(memory.data(), n, static_cast<std::size_t>(features->max_active))};
}

// Releases the lock while a worker does what it has taken on, and wakes another worker, which finds more work or waits
// again. So one worker more is awake than there is work for, and one wake-up is enough for any amount of new work.
class Pipeline::Unlocked {
  public:
    Unlocked(Pipeline& pipeline, std::unique_lock<std::mutex>& lock) : lock_(lock) {
        lock_.unlock();
        pipeline.work_.notify_one();
    }
    ~Unlocked() { lock_.lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

  private:
    std::unique_lock<std::mutex>& lock_;
};

Pipeline::Pipeline(PipelineOptions options, std::vector<Slot> slots, const std::vector<StreamPosition>& start)
    : options_(std::move(options)), slots_(std::move(slots)) {
    if (options_.files.empty()) throw FormatError("no data files");
    if (options_.batch_size == 0) throw FormatError("batch size 0, expected at least 1");
    if (options_.world_size == 0 || options_.rank >= options_.world_size || options_.batch_size % options_.world_size) {
        throw FormatError("batch size " + std::to_string(options_.batch_size) + " cannot be split for process " +
                          std::to_string(options_.rank) + " of " + std::to_string(options_.world_size));
    }
    if (options_.shards == 0 || options_.batch_size % options_.shards ||
        (!has_marks() && (options_.shards % options_.world_size || !options_.shuffle || !options_.drop_last))) {
        throw FormatError(std::to_string(options_.shards) + " shards: expected a divisor of the batch size " +
                          std::to_string(options_.batch_size) + " and a multiple of the " +
                          std::to_string(options_.world_size) + " processes, shuffling and whole batches");
    }
    if (slots_.empty()) throw FormatError("no memory for batches");
    if (options_.threads <= 0) options_.threads = default_threads();
    max_decoding_ = std::max(options_.threads - std::max(options_.threads / 4, 1), 1);
    shard_batch_ = options_.batch_size / options_.shards;
    constexpr std::uint64_t kMaxWindow = (std::uint64_t{1} << 32) - 1;
    if (options_.window > kMaxWindow || shard_batch_ > kMaxWindow) {
        throw FormatError("a shuffle buffer, or a batch, of 2^32 positions or more");
    }
    window_ =
        std::max(shard_batch_, (options_.window / options_.shards + shard_batch_ - 1) / shard_batch_ * shard_batch_);
    files_ = options_.files;
    if (!options_.contents.empty() && options_.contents.size() != files_.size()) {
        throw FormatError("contents: expected those of each file");
    }
    for (std::size_t file = 0; file < files_.size(); ++file) {
        const std::size_t n = files_[file]->num_chunks();
        // 64 TiB, more than a disk holds: a file that claims to be larger is sparse.
        constexpr std::size_t kMaxChunks = std::size_t{1} << 26;
        if (n > kMaxChunks - chunks_.size()) {
            throw FormatError(files_[file]->path() + ": " + std::to_string(files_[file]->file().size()) +
                              " bytes: the files have more than " + std::to_string(kMaxChunks) +
                              " chunks of about 1 MiB, the most that are supported");
        }
        for (std::size_t i = 0; i < n; ++i) {
            chunks_.push_back({static_cast<std::uint32_t>(file), static_cast<std::uint32_t>(i)});
        }
        // Every process reaches this. If each has its own chunks, and so its own count, one of them counts it.
        const std::string& torn = files_[file]->torn_end();
        const bool counts = options_.shards == 1 || options_.rank == 0;
        if (!torn.empty() && counts && bad_chunks_.count++ == 0) bad_chunks_.first = torn;
    }
    if (chunks_.empty()) throw FormatError(files_.front()->path() + ": no positions");
    if (!options_.weights.empty() && (options_.weights.size() != files_.size() || !options_.shuffle)) {
        throw FormatError("weights: expected one for each file, and shuffling");
    }
    for (const double weight : options_.weights) {
        if (!(weight >= 0 && weight <= 1000)) {
            throw FormatError("weight " + std::to_string(weight) + ", expected 0 to 1000");
        }
    }

    const std::size_t local = has_marks() ? 1 : options_.shards / options_.world_size;
    if (start.size() != local) {
        throw FormatError("start: found " + std::to_string(start.size()) + " places, expected " +
                          std::to_string(local) + ", one per shard of this process");
    }
    max_pending_ = static_cast<std::size_t>(options_.threads) / local + 1;
    for (std::size_t i = 0; i < local; ++i) {
        Shard& shard = *shards_.emplace_back(std::make_unique<Shard>());
        shard.number = has_marks() ? 0 : options_.rank * local + i;
        shard.decode_at = start[i];
        shard.epoch_is_whole = start[i].chunk == 0 && start[i].skip == 0;
        shard.first_batch = std::exchange(shard.decode_at.batch, 0);
        shard.piece_counts = start[i].piece_counts;
        if (options_.filters.keeps_piece_counts() && !shard.piece_counts) {
            shard.piece_counts = std::make_shared<const PieceCountState>();
        }
        start_epoch(shard);
        if (start[i].chunk > shard.order.size) throw FormatError("a place in the data beyond its last chunk");
        for (Window& window : shard.windows) shard.idle_windows.push_back(&window);
    }
    outputs_.resize(2 * slots_.size() + 2);
    for (std::size_t i = slots_.size(); i-- > 0;) free_slots_.push_back(i);
    held_slots_.resize(slots_.size());
    if (options_.counts_unique) sketches_.resize(slots_.size());
    try {
        workers_.reserve(static_cast<std::size_t>(options_.threads));
        for (int i = 0; i < options_.threads; ++i) {
            workers_.emplace_back([this] { work(); });
            const std::lock_guard lock(mutex_);
            ++working_;
        }
    } catch (const std::system_error& error) {
        const std::size_t started = workers_.size();
        join();
        throw FormatError("cannot start thread " + std::to_string(started + 1) + " of " +
                          std::to_string(options_.threads) + " that read the data: " + error.code().message() +
                          "; use fewer threads, or raise the limit of processes (ulimit -u, a container's pids limit)");
    } catch (...) {  // no memory for another thread
        join();
        throw;
    }
}

Pipeline::~Pipeline() {
    join();
}

void Pipeline::stop() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    work_.notify_all();
    arrived_.notify_all();
}

bool Pipeline::ends_within(std::chrono::milliseconds timeout) {
    stop();
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, timeout, [this] { return working_ == 0; });
}

void Pipeline::join() {
    stop();
    const std::lock_guard lock(join_mutex_);
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
}

bool Pipeline::runs_in_worker() const {
    return worker_of == this;
}

void Pipeline::start_epoch(Shard& shard) const {
    const std::uint64_t epoch = shard.decode_at.epoch;
    ChunkOrder& order = shard.order;
    order.drawn.clear();
    if (!options_.weights.empty()) order.drawn = draw_by_weights(epoch);
    const std::size_t all = options_.weights.empty() ? chunks_.size() : order.drawn.size();
    if (all < options_.shards) {
        throw FormatError(files_.front()->path() + ": " + std::to_string(all) + " chunks" +
                          (options_.files.size() > 1 ? " in all files" : "") + ", fewer than the " +
                          std::to_string(options_.shards) + " shards");
    }
    order.first = shard.number;
    order.step = options_.shards;
    order.size = (all - shard.number + options_.shards - 1) / options_.shards;
    order.permutation.reset();
    if (options_.shuffle) {
        order.permutation.emplace(static_cast<std::uint32_t>(all), make_key({options_.seed, kChunkOrder, epoch}));
    }
}

// The chunks of all files in file order, each as often as the weight of its file requires in this epoch.
std::vector<Pipeline::OrderEntry> Pipeline::draw_by_weights(std::uint64_t epoch) const {
    std::vector<OrderEntry> drawn;
    std::size_t at = 0;
    for (std::size_t file = 0; file < files_.size(); ++file) {
        const auto n = static_cast<std::uint32_t>(files_[file]->num_chunks());
        const double weight = options_.weights[file];
        const auto whole = static_cast<std::uint32_t>(weight);
        const auto extra = static_cast<std::uint32_t>(std::lround((weight - whole) * n));
        const Permutation chosen(std::max(n, 1u), make_key({options_.seed, kWeights, epoch, file}));
        for (std::uint32_t i = 0; i < n; ++i, ++at) {
            const std::uint32_t copies = whole + (extra > 0 && chosen(i) < extra);
            for (std::uint32_t copy = 0; copy < copies; ++copy) drawn.push_back({static_cast<std::uint32_t>(at), copy});
        }
    }
    if (drawn.empty()) {
        throw FormatError("data.weights: found weights that leave none of the " + std::to_string(at) +
                          " chunks of all files, expected larger ones");
    }
    return drawn;
}

std::optional<Output> Pipeline::next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, timeout, [this] { return has_arrived(); })) return std::nullopt;
    if (error_) std::rethrow_exception(error_);
    if (stop_) throw Stopped();
    if (const std::exception_ptr error = error_that_is_due()) std::rethrow_exception(error);
    Output output = outputs_[first_output_];
    first_output_ = (first_output_ + 1) % outputs_.size();
    --num_outputs_;
    if (!output.end_of_epoch) held_slots_[output.slot] = true;
    if (!output.end_of_epoch && options_.counts_unique) {
        seen_.join(sketches_[output.slot]);
        seen_floor_ = seen_.floor();
    }
    output.bad_chunks = bad_chunks_.count;
    return output;
}

Output& Pipeline::push_output() {
    if (num_outputs_ == outputs_.size()) throw std::logic_error("pipeline: more batches on their way than slots");
    Output& output = outputs_[(first_output_ + num_outputs_++) % outputs_.size()];
    output.end_of_epoch = output.ready = false;
    output.slot = output.size = 0;
    output.after.clear();
    output.read.clear();
    return output;
}

// The mark after an epoch, whose last window is given.
void Pipeline::push_mark(const Window& last) {
    Output& mark = push_output();
    mark.after.push_back({last.start.epoch + 1, 0, 0, 0, last.end.piece_counts});
    mark.end_of_epoch = mark.ready = true;
}

void Pipeline::release(std::size_t slot, const Slot* memory) {
    {
        const std::lock_guard lock(mutex_);
        if (slot >= held_slots_.size() || !held_slots_[slot]) {
            throw FormatError("slot " + std::to_string(slot) + ": found no batch that the caller holds, expected one");
        }
        if (memory) slots_[slot] = *memory;
        held_slots_[slot] = false;
        free_slots_.push_back(slot);
    }
    work_.notify_one();
}

FilterCounts Pipeline::filter_counts() {
    const std::lock_guard lock(mutex_);
    return filter_counts_;
}

Sketch Pipeline::seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
}

void Pipeline::restore_seen(const Sketch& sketch) {
    const std::lock_guard lock(mutex_);
    seen_ = sketch;
    seen_floor_ = seen_.floor();
}

BadChunks Pipeline::bad_chunks() {
    const std::lock_guard lock(mutex_);
    return bad_chunks_;
}

// The error of a damaged chunk, once every batch before it has been taken; until then null.
std::exception_ptr Pipeline::error_that_is_due() const {
    if (num_outputs_ > 0) return nullptr;
    for (const auto& shard : shards_) {
        if (shard->error && shard->ready_windows.empty()) return shard->error;
    }
    return nullptr;
}

// Whether next() has something to return or to throw.
bool Pipeline::has_arrived() const {
    return stop_ || error_ || (num_outputs_ > 0 && outputs_[first_output_].ready) || error_that_is_due();
}

// The exception that is being handled. Lack of memory becomes a message with what to change.
std::exception_ptr Pipeline::current_error() const {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        try {
            return std::make_exception_ptr(FormatError("not enough memory to read the data: a shuffle buffer of " +
                                                       std::to_string(options_.window) +
                                                       " positions takes 64 bytes each, each of " +
                                                       std::to_string(options_.threads) + " threads about 16 MiB"));
        } catch (...) {  // not even for the message
            return std::current_exception();
        }
    } catch (...) {
        return std::current_exception();
    }
}

void Pipeline::work() {
    worker_of = this;
    Scratch scratch;
    std::unique_lock lock(mutex_);
    while (!stop_ && !error_) {
        try {
            // Batches first: the caller may be waiting for one.
            if (try_batch(lock, scratch) || try_commit(lock) || try_decode(lock, scratch)) {
                if (has_arrived()) arrived_.notify_all();
                continue;
            }
        } catch (...) {
            if (!error_) error_ = current_error();
            work_.notify_all();
            arrived_.notify_all();
            break;
        }
        work_.wait(lock);
    }
    --working_;
    ended_.notify_all();
}

bool Pipeline::try_batch(std::unique_lock<std::mutex>& lock, Scratch& scratch) {
    if (free_slots_.empty()) return false;
    for (const auto& shard : shards_) {
        if (shard->ready_windows.empty()) return false;
    }
    const std::size_t slot = free_slots_.back();
    free_slots_.pop_back();
    Output& output = push_output();  // stays where it is until it has been taken, which is after it is ready
    output.slot = slot;
    const Window* ended = nullptr;
    scratch.parts.clear();
    for (const auto& shard : shards_) {
        Window& window = *shard->ready_windows.front();
        const std::size_t batch = window.dispatched++;
        const std::size_t begin = batch * shard_batch_, whole = std::min(shard_batch_, window.size - begin);
        // Without shards the processes share out the batch itself.
        const std::size_t ranks = has_marks() ? options_.world_size : 1, rank = has_marks() ? options_.rank : 0;
        const std::size_t first = whole * rank / ranks, size = whole * (rank + 1) / ranks - first;
        scratch.parts.push_back({&window, begin + first, size, begin, whole});
        output.size += size;
        StreamPosition after = window.start;
        after.batch = batch + 1;
        if (window.dispatched == window.batches) {
            after = window.end;
            shard->ready_windows.pop_front();
            if (window.last_of_epoch) ended = &window;
        }
        output.after.push_back(after);
        output.read.push_back({shard->number, window.end.epoch, window.end.chunk + (window.end.skip > 0)});
    }
    if (ended && has_marks()) push_mark(*ended);
    const unsigned floor = seen_floor_;

    {
        const Unlocked unlocked(*this, lock);
        if (options_.counts_unique) {
            scratch.sketch = &sketches_[slot];
            scratch.sketch->clear();
        }
        std::size_t row = 0;
        for (std::size_t i = 0; i < shards_.size(); row += scratch.parts[i++].size) {
            fill_part(scratch.parts[i], shards_[i]->number, row, slots_[slot], scratch, floor);
        }
    }
    output.ready = true;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
        Window& window = *scratch.parts[i].window;
        if (++window.finished == window.batches) shards_[i]->idle_windows.push_back(&window);
    }
    return true;
}

void Pipeline::fill_part(const Part& part, std::size_t shard, std::size_t row, Slot& slot, Scratch& scratch,
                         unsigned floor) const {
    const Window& window = *part.window;
    const Record* records = window.records.get();
    const auto fill = [&](std::size_t first, std::size_t n) {
        const std::uint32_t* order = scratch.order.data() + first;
        if (options_.features) {
            const BatchRows rows = slot.rows.from(row + first, options_.features->max_active);
            expand_positions(records, order, n, *options_.features, rows);
        } else {
            kernels().gather(records, order, n, slot.records + row + first);
        }
    };
    if (!options_.counts_unique) {
        order_of(window, shard, part.first, part.size, scratch);
        fill(0, part.size);
        return;
    }
    // All of the batch is counted, also what other processes get of it. In pieces that stay in the first cache between
    // counting and copying.
    constexpr std::size_t kPiece = 256, kAhead = 16;
    const std::size_t begin = part.first - part.batch, end = begin + part.size;
    order_of(window, shard, part.batch, part.batch_size, scratch);
    row -= begin;
    for (std::size_t at = 0; at < part.batch_size; at += kPiece) {
        const std::size_t next = std::min(at + kPiece, part.batch_size);
        for (std::size_t i = at; i < next; ++i) {
            if (i + kAhead < part.batch_size) __builtin_prefetch(records + scratch.order[i + kAhead]);
            scratch.sketch->add(records[scratch.order[i]], floor);
        }
        const std::size_t from = std::max(at, begin), to = std::min(next, end);
        if (from < to) fill(from, to - from);
    }
}

// Which records of a window come at places `first` and after it.
void Pipeline::order_of(const Window& window, std::size_t shard, std::size_t first, std::size_t size,
                        Scratch& scratch) const {
    scratch.order.resize(size);
    if (options_.shuffle) {
        const StreamPosition& start = window.start;
        std::uint64_t key = make_key({options_.seed, kWindowOrder, start.epoch, start.chunk, start.skip});
        if (shard > 0) key = mix(key ^ shard);
        kernels().permute(static_cast<std::uint32_t>(window.size), key, first, size, scratch.order.data());
    } else {
        std::iota(scratch.order.begin(), scratch.order.end(), static_cast<std::uint32_t>(first));
    }
}

bool Pipeline::try_commit(std::unique_lock<std::mutex>& lock) {
    return std::ranges::any_of(shards_, [&](const auto& shard) { return commit(lock, *shard); });
}

// Appends the oldest decoded chunk of a shard to the window that is filling.
bool Pipeline::commit(std::unique_lock<std::mutex>& lock, Shard& shard) {
    if (shard.committing || shard.error || shard.pending.empty() || !shard.pending.front()->done) return false;
    Pending& chunk = *shard.pending.front();
    if (chunk.error) {
        shard.error = chunk.error;
        // In file order, what came before the damaged chunk can be handed out as it is. A shuffled window has no order
        // before it is full.
        if (shard.filling && !options_.shuffle) close_window(shard, false, chunk.at);
        return true;
    }
    if (!chunk.committed) {
        start_committing(lock, shard, chunk);
        return true;
    }
    if (!shard.filling) {
        if (shard.idle_windows.empty()) return false;
        shard.filling = shard.idle_windows.front();
        shard.idle_windows.pop_front();
        shard.filling->size = shard.filling->dispatched = shard.filling->finished = 0;
        shard.filling->start = chunk.at;
        shard.filling->start.skip = chunk.used;
        shard.filling->start.batch = 0;
    }
    Window& window = *shard.filling;
    const std::size_t n = std::min(window_ - window.size, chunk.records.size() - chunk.used);
    shard.committing = true;
    {
        const Unlocked unlocked(*this, lock);
        if (!window.records) window.records = std::make_unique_for_overwrite<Record[]>(window_);
        std::copy_n(chunk.records.data() + chunk.used, n, window.records.get() + window.size);
    }
    shard.committing = false;
    window.size += n;
    chunk.used += n;
    StreamPosition end = chunk.at;
    end.skip = chunk.used;
    const bool exhausted = chunk.used == chunk.records.size(), last_of_epoch = chunk.last_of_epoch;
    if (exhausted) {
        ++end.chunk;
        end.skip = 0;
        idle_pending_.push_back(std::move(shard.pending.front()));
        shard.pending.pop_front();
    }
    if ((exhausted && last_of_epoch) || window.size == window_) close_window(shard, exhausted && last_of_epoch, end);
    return true;
}

// Applies piece_counts, and checks that the place to continue from is inside of the chunk.
void Pipeline::start_committing(std::unique_lock<std::mutex>& lock, Shard& shard, Pending& chunk) {
    chunk.at.piece_counts = shard.piece_counts;
    if (options_.filters.keeps_piece_counts()) {
        const std::size_t before = chunk.records.size();
        shard.committing = true;
        std::shared_ptr<const PieceCountState> after;
        {
            const Unlocked unlocked(*this, lock);
            PieceCountState state = *shard.piece_counts;
            chunk.records.resize(filter_piece_counts(options_.filters.curve(kPieceCountsCurve), chunk.key,
                                                     chunk.records.records(), state));
            after = std::make_shared<const PieceCountState>(state);
        }
        shard.committing = false;
        shard.piece_counts = std::move(after);
        filter_counts_.drop_by_piece_counts(before - chunk.records.size());
    }
    if (chunk.used > chunk.records.size()) {
        const ChunkRef ref = chunks_[chunk.chunk];
        throw FormatError(files_[ref.file]->path() + ": chunk " + std::to_string(ref.chunk) + " has " +
                          std::to_string(chunk.records.size()) + " positions, but the saved place is after position " +
                          std::to_string(chunk.used));
    }
    chunk.committed = true;
}

void Pipeline::close_window(Shard& shard, bool last_of_epoch, StreamPosition end) {
    Window& window = *shard.filling;
    shard.filling = nullptr;
    window.end = end;
    window.last_of_epoch = last_of_epoch;
    window.batches = options_.drop_last ? window.size / shard_batch_ : (window.size + shard_batch_ - 1) / shard_batch_;
    shard.batches_of_epoch += window.batches;
    window.dispatched = window.finished = std::min(std::exchange(shard.first_batch, 0), window.batches);
    if (last_of_epoch) {
        if (shard.epoch_is_whole && shard.batches_of_epoch == 0) {
            throw FormatError(
                files_.front()->path() + ": only " + std::to_string(window.size) + " positions" +
                (filter_counts_.kept < filter_counts_.read ? " pass the filters" + most_dropped(filter_counts_) : "") +
                (bad_chunks_.count ? " (the first of the chunks left out: " + bad_chunks_.first + ")" : "") +
                (options_.files.size() > 1 ? " in all files" : "") + (has_marks() ? "" : " in a shard") +
                ", less than a batch of " + std::to_string(shard_batch_));
        }
        shard.batches_of_epoch = 0;
        shard.epoch_is_whole = true;
    }
    if (window.dispatched < window.batches) {
        shard.ready_windows.push_back(&window);
        return;
    }
    // All of the window was handed out before the run was resumed. It may still be the end of an epoch.
    shard.idle_windows.push_back(&window);
    if (last_of_epoch) {
        if (!shard.ready_windows.empty()) {
            shard.ready_windows.back()->last_of_epoch = true;
        } else if (has_marks()) {
            push_mark(window);
        }
    }
}

void Pipeline::check_content(ChunkRef ref, std::uint64_t digest, const Shard& shard, StreamPosition at) const {
    if (options_.contents.empty()) return;
    digest = digest == Contents::kUnknown ? ~digest : digest;
    options_.contents[ref.file]->check(files_[ref.file]->path(), ref.chunk, digest, {shard.number, at.epoch, at.chunk});
}

// Applies all filters but piece_counts.
void Pipeline::filter_chunk(std::size_t unscored, Pending& chunk, Scratch& scratch, FilterCounts& counts) const {
    if (options_.filters.drops_any(unscored)) {
        chunk.records.resize(
            filter_records(options_.filters, chunk.key, chunk.records.records(), scratch.flags.data(), counts));
    } else {
        counts.read = counts.kept = chunk.records.size();
    }
    if (options_.user_filter) {
        const std::size_t before = chunk.records.size();
        chunk.records.resize(std::min(before, options_.user_filter(chunk.records.records())));
        counts.kept = chunk.records.size();
        counts.dropped_by_user += before - counts.kept;
    }
}

// Whether there are batches to make, and the next window has as many positions as have been handed out of this one.
// Then some workers stay free for batches: decoding a chunk takes as long as making many of them, and if all workers
// were at it, the caller would soon have to wait.
bool Pipeline::is_ahead(const Shard& shard) const {
    if (shard.ready_windows.size() != 1) return !shard.ready_windows.empty();
    const std::size_t next = shard.filling ? shard.filling->size : 0;
    return next >= shard.ready_windows.front()->dispatched * shard_batch_;
}

// Decodes a chunk for the shard that has the fewest decoded or in work.
bool Pipeline::try_decode(std::unique_lock<std::mutex>& lock, Scratch& scratch) {
    if (decoding_ >= max_decoding_ && std::ranges::all_of(shards_, [&](const auto& s) { return is_ahead(*s); })) {
        return false;
    }
    Shard& shard = **std::ranges::min_element(shards_, {}, [](const auto& s) { return s->pending.size(); });
    if (shard.pending.size() >= max_pending_) return false;
    decode(lock, shard, scratch);
    return true;
}

void Pipeline::decode(std::unique_lock<std::mutex>& lock, Shard& shard, Scratch& scratch) {
    std::unique_ptr<Pending> fresh;
    if (idle_pending_.empty()) {
        fresh = std::make_unique<Pending>();
    } else {
        fresh = std::move(idle_pending_.back());
        idle_pending_.pop_back();
    }
    Pending& chunk = *fresh;
    chunk.at = shard.decode_at;
    chunk.done = chunk.committed = false;
    chunk.used = chunk.at.skip;
    chunk.records.resize(0);
    chunk.error = nullptr;
    const bool past_end = chunk.at.chunk == shard.order.size;  // resumed after an epoch's last batch
    chunk.last_of_epoch = past_end || chunk.at.chunk + 1 == shard.order.size;
    const OrderEntry entry = past_end ? OrderEntry{} : shard.order[chunk.at.chunk];
    const ChunkRef ref = chunks_[entry.chunk];
    chunk.chunk = entry.chunk;
    chunk.key = make_key({options_.seed, kFilters, chunk.at.epoch, ref.file, ref.chunk, entry.copy});
    shard.pending.push_back(std::move(fresh));
    if (chunk.last_of_epoch) {
        shard.decode_at = {chunk.at.epoch + 1, 0, 0, 0};
        start_epoch(shard);
    } else {
        ++shard.decode_at.chunk;
        shard.decode_at.skip = 0;
    }

    FilterCounts counts;
    std::string bad;
    ++decoding_;
    if (!past_end) {
        const Unlocked unlocked(*this, lock);
        bad = read_chunk(ref, shard, chunk, scratch, counts);
    }
    --decoding_;
    filter_counts_ += counts;
    if (!bad.empty() && known_bad_.insert(entry.chunk).second && bad_chunks_.count++ == 0) bad_chunks_.first = bad;
    chunk.done = true;
}

// Reads, checks and filters a chunk, outside of the lock. Returns what is wrong with one that is skipped; the error of
// any other becomes that of the chunk.
std::string Pipeline::read_chunk(ChunkRef ref, const Shard& shard, Pending& chunk, Scratch& scratch,
                                 FilterCounts& counts) const {
    std::string bad;
    bool decoded = false;
    try {
        std::uint64_t digest = 0;
        const std::size_t unscored = files_[ref.file]->decode(ref.chunk, scratch.payload, chunk.records,
                                                              options_.filters.needs_flags() ? &scratch.flags : nullptr,
                                                              options_.contents.empty() ? nullptr : &digest);
        decoded = true;
        check_content(ref, digest, shard, chunk.at);
        filter_chunk(unscored, chunk, scratch, counts);
    } catch (const FormatError& error) {
        chunk.error = std::current_exception();
        if (!decoded &&
            !dynamic_cast<const ContentChanged*>(&error)) {  // an error of a user's filter is not the chunk's
            try {
                check_content(ref, Contents::kBad, shard, chunk.at);
                if (options_.skip_bad_chunks) {
                    bad = error.what();
                    chunk.error = nullptr;
                }
            } catch (const ContentChanged&) {
                chunk.error = std::current_exception();
            }
        }
        counts = {};
        chunk.records.resize(0);
    }
    return bad;
}

}  // namespace nnue::data
