#include "pipeline/contents.h"

#include <algorithm>
#include <tuple>

namespace nnue::data {

namespace {

bool is_before(const Contents::Place& a, const Contents::Place& b) {
    return std::tie(a.epoch, a.chunk) < std::tie(b.epoch, b.chunk);
}

}  // namespace

void Contents::allocate() {
    if (!digests_.empty()) return;
    digests_.resize(num_chunks_, kUnknown);
    places_.resize(num_chunks_);
    kept_.resize(num_chunks_, false);
}

void Contents::check(const std::string& path, std::size_t chunk, std::uint64_t digest, Place place) {
    const std::lock_guard lock(mutex_);
    allocate();
    std::uint64_t& known = digests_[chunk];
    if (known == kUnknown) {
        known = digest;
        places_[chunk] = place;
        return;
    }
    if (known != digest) {
        throw ContentChanged(path + ": chunk " + std::to_string(chunk) + " of " + std::to_string(digests_.size()) +
                             " has changed since it was first read" + (digest == kBad ? ", and is damaged now" : "") +
                             ": continuing would train on different positions; restore the file, or start a new run");
    }
    if (is_before(place, places_[chunk])) places_[chunk] = place;
}

void Contents::keep(std::span<const Place> until, std::span<std::uint64_t> kept) {
    const std::lock_guard lock(mutex_);
    if (digests_.empty()) std::ranges::fill(kept, kUnknown);
    for (std::size_t i = 0; i < digests_.size(); ++i) {
        const auto reaches = [&](const Place& end) {
            return end.shard == places_[i].shard && is_before(places_[i], end);
        };
        kept[i] = kUnknown;
        if (digests_[i] == kUnknown) continue;
        if (!kept_[i]) kept_[i] = std::ranges::any_of(until, reaches);
        if (kept_[i]) kept[i] = digests_[i];
    }
}

void Contents::restore(std::span<const std::uint64_t> digests) {
    const std::lock_guard lock(mutex_);
    digests_.assign(digests.begin(), digests.end());
    places_.assign(digests.size(), Place{});
    kept_.resize(digests.size());
    for (std::size_t i = 0; i < digests.size(); ++i) kept_[i] = digests[i] != kUnknown;
}

}  // namespace nnue::data
