#include "formats/duplicates.h"

#include <cstring>

#include "pipeline/random.h"

namespace nnue::data {

DuplicateEstimator::DuplicateEstimator() : slots_(2 * kCapacity) {}

void DuplicateEstimator::add(std::span<const Record> records) {
    for (const Record& record : records) {
        std::uint64_t words[3];  // the board; move, score, ply, result and rule 50 come after it
        std::memcpy(words, record.bytes.data(), sizeof words);
        const std::uint64_t hash = make_key({words[0], words[1], words[2]});
        // The sample is chosen by the high bits and placed by the low ones.
        if (level_ && hash >> (64 - level_)) continue;
        ++sampled_;
        ++looked_at_;
        repeated_ += insert(hash, 1);
        while (used_ > kCapacity) halve();
    }
}

bool DuplicateEstimator::insert(std::uint64_t hash, std::uint64_t count) {
    std::size_t i = hash & (slots_.size() - 1);
    while (slots_[i].count && slots_[i].hash != hash) i = (i + 1) & (slots_.size() - 1);
    const bool known = slots_[i].count != 0;
    used_ += !known;
    slots_[i] = {hash, slots_[i].count + count};
    return known;
}

void DuplicateEstimator::halve() {
    ++level_;
    std::vector<Slot> old(slots_.size());
    old.swap(slots_);
    used_ = 0;
    sampled_ = 0;
    for (const Slot& slot : old) {
        if (!slot.count || slot.hash >> (64 - level_)) continue;
        sampled_ += slot.count;
        insert(slot.hash, slot.count);
    }
}

}  // namespace nnue::data
