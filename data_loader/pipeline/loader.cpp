#include "pipeline/loader.h"

#include <algorithm>
#include <utility>

#include "pipeline/parallel.h"

namespace nnue::data {
namespace {

const FeatureSet* set_of(std::string_view name) {
    return name.empty() ? nullptr : &feature_set(name);
}

}  // namespace

std::size_t Loader::bytes_per_batch(std::string_view feature_set, std::size_t batch_size) {
    return slot_bytes(set_of(feature_set), batch_size);
}

Loader::Loader(LoaderOptions options) : features_(set_of(options.feature_set)), batch_size_(options.batch_size) {
    PipelineOptions p;
    OpenOptions how;
    how.on_bad = options.skip_bad_chunks ? OnBad::kSkip : OnBad::kError;
    std::size_t chunks = 0;
    for (const std::string& path : options.files) {
        p.files.push_back(open_position_file(InputFile(path), how));
        p.contents.push_back(std::make_shared<Contents>(p.files.back()->num_chunks()));
        chunks += p.files.back()->num_chunks();
    }
    p.features = features_;
    p.batch_size = options.batch_size;
    p.seed = options.seed;
    p.shuffle = options.shuffle;
    p.window = options.window;
    p.drop_last = options.drop_last;
    // One more than there are chunks: it makes batches while the others decode.
    const std::size_t threads = static_cast<std::size_t>(options.threads > 0 ? options.threads : default_threads());
    p.threads = static_cast<int>(std::min(threads, chunks + 1));
    p.weights = std::move(options.weights);
    p.skip_bad_chunks = options.skip_bad_chunks;
    p.filters = std::move(options.filters);
    p.user_filter = std::move(options.user_filter);

    if (options.memory.empty()) {
        const std::size_t bytes = slot_bytes(features_, batch_size_);
        const std::size_t batches = slots_for(p.threads, options.held);
        for (std::size_t i = 0; i < batches; ++i) {
            allocated_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
            options.memory.emplace_back(allocated_.back().get(), bytes);
        }
    }
    for (const std::span<std::byte> memory : options.memory) {
        slots_.push_back(slot_in(memory, features_, batch_size_));
    }
    pipeline_ = std::make_unique<Pipeline>(std::move(p), slots_, std::vector<StreamPosition>{options.start});
}

std::optional<Loader::Batch> Loader::next() {
    if (held_ == slots_.size()) {
        throw FormatError("all " + std::to_string(slots_.size()) + " batches of the loader are held: release one");
    }
    std::optional<Output> output;
    while (!output) output = pipeline_->next(std::chrono::seconds(1));
    if (output->end_of_epoch) return std::nullopt;
    return Batch(*this, std::move(*output));
}

Loader::Batch Loader::next_endless() {
    if (auto batch = next()) return std::move(*batch);
    if (auto batch = next()) return std::move(*batch);
    throw FormatError("an epoch of the data has no batch: fewer positions than a batch, or filters leave none");
}

Loader::Batch::Batch(Loader& loader, Output output)
    : loader_(&loader),
      slot_(&loader.slots_[output.slot]),
      index_(output.slot),
      size_(output.size),
      after_(std::move(output.after.front())) {
    ++loader.held_;
}

Loader::Batch::Batch(Batch&& other) noexcept
    : loader_(std::exchange(other.loader_, nullptr)),
      slot_(other.slot_),
      index_(other.index_),
      size_(other.size_),
      after_(std::move(other.after_)) {}

Loader::Batch::~Batch() {
    if (!loader_) return;
    loader_->pipeline_->release(index_);
    --loader_->held_;
}

}  // namespace nnue::data
