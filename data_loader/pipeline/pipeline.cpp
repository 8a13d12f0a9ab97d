#include "pipeline/pipeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "pipeline/parallel.h"
#include "pipeline/random.h"

namespace nnue::data {

namespace {

// What a key is for, so that equal numbers elsewhere do not give equal randomness.
enum KeyUse : std::uint64_t { kChunkOrder = 1, kWindowOrder = 2, kFilters = 3, kWeights = 4 };

}  // namespace

Pipeline::Pipeline(PipelineOptions options, std::vector<Slot> slots, StreamPosition start)
    : options_(std::move(options)), slots_(std::move(slots)) {
    if (options_.files.empty()) throw FormatError("no data files");
    if (options_.batch_size == 0) throw FormatError("batch size 0, expected at least 1");
    if (options_.world_size == 0 || options_.rank >= options_.world_size || options_.batch_size % options_.world_size) {
        throw FormatError("batch size " + std::to_string(options_.batch_size) + " cannot be split for process " +
                          std::to_string(options_.rank) + " of " + std::to_string(options_.world_size));
    }
    if (slots_.empty()) throw FormatError("no memory for batches");
    if (options_.threads <= 0) options_.threads = default_threads();
    const std::size_t batch = options_.batch_size;
    options_.window = std::max(batch, (options_.window + batch - 1) / batch * batch);
    if (options_.window >= std::uint64_t{1} << 32) throw FormatError("a shuffle buffer of 2^32 positions or more");
    for (const std::string& path : options_.files) {
        files_.emplace_back(path);
        for (std::size_t i = 0; i < files_.back().chunks().size(); ++i) {
            chunks_.push_back({static_cast<std::uint32_t>(files_.size() - 1), static_cast<std::uint32_t>(i)});
        }
    }
    if (chunks_.empty()) throw FormatError(options_.files.front() + ": no positions");
    if (!options_.weights.empty() && (options_.weights.size() != files_.size() || !options_.shuffle)) {
        throw FormatError("weights: expected one for each file, and shuffling");
    }
    for (const double weight : options_.weights) {
        if (!(weight >= 0 && weight <= 1000)) {
            throw FormatError("weight " + std::to_string(weight) + ", expected 0 to 1000");
        }
    }

    decode_at_ = start;
    epoch_is_whole_ = start.chunk == 0 && start.skip == 0;
    first_batch_ = std::exchange(decode_at_.batch, 0);
    start_epoch(start.epoch);
    if (start.chunk > order_.size()) throw FormatError("a place in the data beyond its last chunk");
    for (Window& window : windows_) idle_windows_.push_back(&window);
    outputs_.resize(2 * slots_.size() + 2);
    for (std::size_t i = slots_.size(); i-- > 0;) free_slots_.push_back(i);
    for (int i = 0; i < options_.threads; ++i) workers_.emplace_back([this] { work(); });
}

Pipeline::~Pipeline() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
}

void Pipeline::start_epoch(std::uint64_t epoch) {
    order_.clear();
    std::size_t at = 0;
    for (std::size_t file = 0; file < files_.size(); ++file) {
        const auto n = static_cast<std::uint32_t>(files_[file].chunks().size());
        const double weight = options_.weights.empty() ? 1 : options_.weights[file];
        const auto whole = static_cast<std::uint32_t>(weight);
        const auto extra = static_cast<std::uint32_t>(std::lround((weight - whole) * n));
        const Permutation drawn(std::max(n, 1u), make_key({options_.seed, kWeights, epoch, file}));
        for (std::uint32_t i = 0; i < n; ++i, ++at) {
            const std::uint32_t copies = whole + (extra > 0 && drawn(i) < extra);
            for (std::uint32_t copy = 0; copy < copies; ++copy)
                order_.push_back({static_cast<std::uint32_t>(at), copy});
        }
    }
    if (order_.empty()) throw FormatError("weights leave no chunk of any file");
    if (!options_.shuffle) return;
    const Permutation permutation(static_cast<std::uint32_t>(order_.size()),
                                  make_key({options_.seed, kChunkOrder, epoch}));
    std::vector<OrderEntry> shuffled(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) shuffled[i] = order_[permutation(static_cast<std::uint32_t>(i))];
    order_ = std::move(shuffled);
}

std::optional<Output> Pipeline::next(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto arrived = [&] { return error_ || (num_outputs_ > 0 && outputs_[first_output_].ready); };
    if (!changed_.wait_for(lock, timeout, arrived)) return std::nullopt;
    if (error_) std::rethrow_exception(error_);
    const Output output = outputs_[first_output_];
    first_output_ = (first_output_ + 1) % outputs_.size();
    --num_outputs_;
    return output;
}

Output& Pipeline::push_output(StreamPosition after) {
    if (num_outputs_ == outputs_.size()) throw std::logic_error("pipeline: more batches on their way than slots");
    Output& output = outputs_[(first_output_ + num_outputs_++) % outputs_.size()];
    output = {};
    output.after = after;
    return output;
}

void Pipeline::push_mark(std::uint64_t epoch) {
    Output& mark = push_output({epoch + 1, 0, 0, 0});
    mark.end_of_epoch = mark.ready = true;
}

void Pipeline::release(std::size_t slot) {
    {
        const std::lock_guard lock(mutex_);
        free_slots_.push_back(slot);
    }
    changed_.notify_all();
}

FilterCounts Pipeline::filter_counts() {
    const std::lock_guard lock(mutex_);
    return filter_counts_;
}

BadChunks Pipeline::bad_chunks() {
    const std::lock_guard lock(mutex_);
    return bad_chunks_;
}

void Pipeline::work() {
    Scratch scratch;
    std::unique_lock lock(mutex_);
    while (!stop_ && !error_) {
        try {
            // Batches first: somebody may be waiting for one.
            if (try_batch(lock, scratch) || try_commit(lock) || try_decode(lock, scratch)) continue;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            if (!error_) error_ = std::current_exception();
            changed_.notify_all();
            return;
        }
        changed_.wait(lock);
    }
}

bool Pipeline::try_batch(std::unique_lock<std::mutex>& lock, Scratch& scratch) {
    if (ready_windows_.empty() || free_slots_.empty()) return false;
    Window& window = *ready_windows_.front();
    const std::size_t batch = window.dispatched++;
    const std::size_t slot = free_slots_.back();
    free_slots_.pop_back();
    const std::size_t begin = batch * options_.batch_size;
    const std::size_t whole = std::min(options_.batch_size, window.size - begin);
    const std::size_t size =
        whole * (options_.rank + 1) / options_.world_size - whole * options_.rank / options_.world_size;

    StreamPosition after = window.start;
    after.batch = batch + 1;
    const bool is_last = window.dispatched == window.batches;
    if (is_last) {
        after = window.end;
        ready_windows_.pop_front();
    }
    Output& output = push_output(after);  // stays where it is until it has been taken, which is after it is ready
    output.slot = slot;
    output.size = size;
    if (is_last && window.last_of_epoch) push_mark(window.start.epoch);

    lock.unlock();
    fill_batch(window, batch, slots_[slot], size, scratch);
    lock.lock();
    output.ready = true;
    if (++window.finished == window.batches) idle_windows_.push_back(&window);
    changed_.notify_all();
    return true;
}

void Pipeline::fill_batch(const Window& window, std::size_t batch, Slot& slot, std::size_t size,
                          Scratch& scratch) const {
    const std::size_t begin = batch * options_.batch_size;
    const std::size_t whole = std::min(options_.batch_size, window.size - begin);
    const std::size_t first = begin + whole * options_.rank / options_.world_size;
    scratch.order.resize(size);
    if (options_.shuffle) {
        const std::uint64_t key =
            make_key({options_.seed, kWindowOrder, window.start.epoch, window.start.chunk, window.start.skip});
        kernels().permute(static_cast<std::uint32_t>(window.size), key, first, size, scratch.order.data());
    } else {
        std::iota(scratch.order.begin(), scratch.order.end(), static_cast<std::uint32_t>(first));
    }
    if (options_.features) {
        kernels().expand(window.records.get(), scratch.order.data(), size, *options_.features, slot.rows);
    } else {
        kernels().gather(window.records.get(), scratch.order.data(), size, slot.records);
    }
}

// Appends the oldest decoded chunk to the window that is filling.
bool Pipeline::try_commit(std::unique_lock<std::mutex>& lock) {
    if (committing_ || pending_.empty() || !pending_.front()->done) return false;
    Pending& chunk = *pending_.front();
    if (!filling_) {
        if (idle_windows_.empty()) return false;
        filling_ = idle_windows_.front();
        idle_windows_.pop_front();
        filling_->size = filling_->dispatched = filling_->finished = 0;
        filling_->start = chunk.at;
        filling_->start.skip = chunk.used;
        filling_->start.batch = 0;
    }
    Window& window = *filling_;
    const std::size_t n = std::min(options_.window - window.size, chunk.records.size() - chunk.used);
    committing_ = true;
    lock.unlock();
    if (!window.records) window.records = std::make_unique_for_overwrite<Record[]>(options_.window);
    std::copy_n(chunk.records.data() + chunk.used, n, window.records.get() + window.size);
    lock.lock();
    committing_ = false;
    window.size += n;
    chunk.used += n;
    StreamPosition end = chunk.at;
    end.skip = chunk.used;
    const bool exhausted = chunk.used == chunk.records.size(), last_of_epoch = chunk.last_of_epoch;
    if (exhausted) {
        ++end.chunk;
        end.skip = 0;
        idle_pending_.push_back(std::move(pending_.front()));
        pending_.pop_front();
    }
    if ((exhausted && last_of_epoch) || window.size == options_.window) close_window(exhausted && last_of_epoch, end);
    changed_.notify_all();
    return true;
}

void Pipeline::close_window(bool last_of_epoch, StreamPosition end) {
    Window& window = *filling_;
    filling_ = nullptr;
    window.end = end;
    window.last_of_epoch = last_of_epoch;
    window.batches = options_.drop_last ? window.size / options_.batch_size
                                        : (window.size + options_.batch_size - 1) / options_.batch_size;
    batches_of_epoch_ += window.batches;
    window.dispatched = window.finished = std::min(std::exchange(first_batch_, 0), window.batches);
    if (last_of_epoch) {
        if (epoch_is_whole_ && batches_of_epoch_ == 0) {
            throw FormatError(
                options_.files.front() + ": only " + std::to_string(window.size) + " positions" +
                (filter_counts_.kept < filter_counts_.read ? " pass the filters" : "") +
                (bad_chunks_.count ? " (the first of the chunks left out: " + bad_chunks_.first + ")" : "") +
                (options_.files.size() > 1 ? " in all files" : "") + ", less than a batch of " +
                std::to_string(options_.batch_size));
        }
        batches_of_epoch_ = 0;
        epoch_is_whole_ = true;
    }
    if (window.dispatched < window.batches) {
        ready_windows_.push_back(&window);
        return;
    }
    // Nothing left to hand out: only its end counts, in its turn behind the windows before it.
    idle_windows_.push_back(&window);
    if (last_of_epoch) {
        if (ready_windows_.empty()) {
            push_mark(window.start.epoch);
        } else {
            ready_windows_.back()->last_of_epoch = true;
        }
    }
}

void Pipeline::decode_chunk(ChunkRef ref, std::uint32_t copy, Pending& chunk, Scratch& scratch, FilterCounts& counts) {
    const bool flags = options_.filters.needs_flags();
    files_[ref.file].decode(ref.chunk, scratch.payload, chunk.records, nullptr, flags ? &scratch.flags : nullptr);
    if (options_.filters.any()) {
        const std::uint64_t key = make_key({options_.seed, kFilters, chunk.at.epoch, ref.file, ref.chunk, copy});
        chunk.records.resize(
            filter_records(options_.filters, key, chunk.records.records(), scratch.flags.data(), counts));
    } else {
        counts.read = counts.kept = chunk.records.size();
    }
    if (options_.user_filter) {
        const std::size_t before = chunk.records.size();
        chunk.records.resize(std::min(before, options_.user_filter(chunk.records.records())));
        counts.kept = chunk.records.size();
        counts.dropped[kUserFilter] += before - counts.kept;
    }
}

bool Pipeline::try_decode(std::unique_lock<std::mutex>& lock, Scratch& scratch) {
    if (pending_.size() > static_cast<std::size_t>(options_.threads)) return false;
    std::unique_ptr<Pending> fresh;
    if (idle_pending_.empty()) {
        fresh = std::make_unique<Pending>();
    } else {
        fresh = std::move(idle_pending_.back());
        idle_pending_.pop_back();
    }
    Pending& chunk = *fresh;
    chunk.at = decode_at_;
    chunk.done = false;
    chunk.used = decode_at_.skip;
    chunk.records.resize(0);
    const bool past_end = decode_at_.chunk == order_.size();  // resumed behind an epoch's last batch
    chunk.last_of_epoch = past_end || decode_at_.chunk + 1 == order_.size();
    const OrderEntry entry = past_end ? OrderEntry{} : order_[decode_at_.chunk];
    const ChunkRef ref = chunks_[entry.chunk];
    pending_.push_back(std::move(fresh));
    if (chunk.last_of_epoch) {
        decode_at_ = {decode_at_.epoch + 1, 0, 0, 0};
        start_epoch(decode_at_.epoch);
    } else {
        ++decode_at_.chunk;
        decode_at_.skip = 0;
    }

    FilterCounts counts;
    lock.unlock();
    std::string bad;
    if (!past_end) {
        try {
            decode_chunk(ref, entry.copy, chunk, scratch, counts);
        } catch (const FormatError& error) {
            if (!options_.skip_bad_chunks) throw;
            bad = error.what();
            counts = {};
            chunk.records.resize(0);
        }
    }
    if (chunk.used > chunk.records.size()) {
        throw FormatError(files_[ref.file].path() + ": chunk " + std::to_string(ref.chunk) + " has " +
                          std::to_string(chunk.records.size()) + " positions, but the saved place is behind position " +
                          std::to_string(chunk.used));
    }
    lock.lock();
    filter_counts_ += counts;
    if (!bad.empty() && bad_chunks_.count++ == 0) bad_chunks_.first = bad;
    chunk.done = true;
    changed_.notify_all();
    return true;
}

}  // namespace nnue::data
