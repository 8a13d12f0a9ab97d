#include "formats/shuffle.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "chess/fen.h"
#include "pipeline/random.h"

namespace nnue::data {

namespace {

constexpr int kFanOut = 256;
constexpr std::uint64_t kShuffleUse = 0x73687566666c65;  // keeps its randomness apart from other uses of the seed

constexpr std::uint64_t kMostInGame = std::uint64_t{1} << 16, kGameBits = 48;

// A bijection of 48-bit words that looks random.
std::uint64_t mix_game(std::uint64_t base, std::uint64_t game) {
    constexpr std::uint64_t kMask = (std::uint64_t{1} << kGameBits) - 1;
    std::uint64_t x = (game ^ base) & kMask;
    for (const std::uint64_t factor : {0xbf58476d1ce4e5b9ULL, 0x94d049bb133111ebULL, 0x9e3779b97f4a7c15ULL}) {
        x = (x ^ x >> 25) * factor & kMask;
    }
    return x ^ x >> 24;
}

// Of equal ranges of the keys; a game is in one of them.
std::uint64_t part_of(std::uint64_t key, std::uint64_t parts) {
    return (key >> 16) * parts >> kGameBits;
}

}  // namespace

// --- SpillFile -------------------------------------------------------------------------------------------------------

SpillFile::SpillFile(std::string folder) : folder_(std::move(folder)), file_(system::create_nameless(folder_)) {
    if (!file_) fail("create a temporary file", errno);
}

void SpillFile::fail(const char* what, int code) const {
    throw FormatError(folder_ + ": cannot " + what + ": " + std::strerror(code) +
                      (size_ ? ", with " + std::to_string(size_ >> 20) + " MiB of temporary data there" : ""));
}

std::uint64_t SpillFile::append(std::span<const std::uint8_t> bytes) {
    const std::uint64_t offset = size_;
    const auto [written, code] = system::write_at(file_, offset, bytes);
    size_ += written;
    if (code != 0) fail("write temporary data", code);
    return offset;
}

void SpillFile::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
    const auto [bytes, code] = system::read_at(file_, offset, out);
    if (bytes < out.size()) fail("read temporary data", code != 0 ? code : EIO);
}

// --- Spreader: positions to buckets by one byte of the key -----------------------------------------------------------

class ExternalShuffle::Spreader {
  public:
    Spreader(SpillFile& spill, std::size_t memory, int level, std::size_t original_size)
        : spill_(spill), level_(level), buffer_(original_size), buckets_(kFanOut) {
        block_ = std::clamp<std::size_t>(memory / kFanOut / buffer_.size(), 8, (std::size_t{1} << 18) / buffer_.size());
        buffer_.allocate(kFanOut * block_);
        for (Bucket& bucket : buckets_) bucket.level = level + 1;
    }

    void add(const std::uint8_t* keyed) {
        const std::size_t i = Keyed::key(keyed) >> (56 - 8 * level_) & (kFanOut - 1);
        std::memcpy(buffer_.at(i * block_ + fill_[i]++), keyed, buffer_.size());
        if (fill_[i] == block_) flush(i);
    }

    // In the order of the key.
    std::vector<Bucket> finish() {
        for (std::size_t i = 0; i < kFanOut; ++i) flush(i);
        buffer_.free();
        return std::move(buckets_);
    }

  private:
    void flush(std::size_t i) {
        if (fill_[i] == 0) return;
        const std::uint64_t offset = spill_.append({buffer_.at(i * block_), fill_[i] * buffer_.size()});
        buckets_[i].blocks.push_back({offset, fill_[i]});
        buckets_[i].count += fill_[i];
        fill_[i] = 0;
    }

    SpillFile& spill_;
    int level_;
    std::size_t block_ = 0;  // positions
    Keyed buffer_;
    std::uint32_t fill_[kFanOut] = {};
    std::vector<Bucket> buckets_;
};

// --- ExternalShuffle -------------------------------------------------------------------------------------------------

ExternalShuffle::ExternalShuffle(std::uint64_t seed, std::size_t memory, std::string folder, std::size_t original_size,
                                 bool by_game, std::uint64_t part, std::uint64_t parts)
    : base_(make_key({kShuffleUse, seed})),
      keyed_(original_size),
      memory_(std::max(memory, kMinMemory)),
      // The spreader gets an eighth. sort() needs four bytes per position for the order, and four for its cells.
      capacity_(std::min<std::size_t>((memory_ - memory_ / 8) / (keyed_.size() + 8), UINT32_MAX)),
      folder_(std::move(folder)),
      by_game_(by_game),
      part_(part),
      parts_(parts) {
    if (part >= parts || parts > UINT32_MAX) {
        throw FormatError("shuffle: part " + std::to_string(part) + " of " + std::to_string(parts));
    }
}

std::uint64_t ExternalShuffle::next_key(const Record& record) {
    if (!by_game_) return mix(base_ ^ numbered_++);
    const bool begins = starts_.next(record);
    if (begins || in_game_ == kMostInGame) {
        ++numbered_;
        in_game_ = 0;
    }
    return mix_game(base_, numbered_) << 16 | in_game_++;
}

ExternalShuffle::~ExternalShuffle() = default;

void ExternalShuffle::add(std::span<const Record> records, const std::uint8_t* originals) {
    if (reading_) throw FormatError("shuffle: positions added after the first was read");
    // Memory that is never written to costs nothing, so all of it is allocated at once.
    if (!keyed_.is_allocated() && !spreader_) keyed_.allocate(capacity_);
    const std::size_t original_size = keyed_.size() - Keyed::kKey - sizeof(Record);
    std::vector<std::uint8_t> one(keyed_.size());
    for (const Record& record : records) {
        std::uint8_t* keyed = !spreader_ && size_ < capacity_ ? keyed_.at(size_) : one.data();
        const std::uint64_t key = next_key(record);
        if (part_of(key, parts_) != part_) {
            if (originals) originals += original_size;
            continue;
        }
        ++positions_;
        std::memcpy(keyed, &key, Keyed::kKey);
        std::memcpy(keyed + Keyed::kKey, &record, sizeof record);
        if (original_size) {
            std::uint8_t* original = keyed + Keyed::kKey + sizeof record;
            if (originals) {
                std::memcpy(original, originals, original_size);
                originals += original_size;
            } else {
                std::memset(original, 0, original_size);
            }
        }
        if (spreader_) {
            spreader_->add(keyed);
        } else if (size_ < capacity_) {
            ++size_;
        } else {
            spill_ = std::make_unique<SpillFile>(folder_);
            spreader_ = std::make_unique<Spreader>(*spill_, memory_ / 8, 0, original_size);
            for_each(size_, [&](std::size_t i) { spreader_->add(keyed_.at(i)); });
            spreader_->add(keyed);
            keyed_.free();
            size_ = 0;
        }
    }
}

// body(0) … body(n − 1), polling.
template <class Body>
void ExternalShuffle::for_each(std::size_t n, Body&& body) const {
    constexpr std::size_t kBetweenPolls = 1 << 20;
    for (std::size_t begin = 0; begin < n; begin += kBetweenPolls) {
        poll();
        const std::size_t end = std::min(n, begin + kBetweenPolls);
        for (std::size_t i = begin; i < end; ++i) body(i);
    }
}

void ExternalShuffle::start_reading() {
    reading_ = true;
    if (!spreader_) {
        sort(0);
        return;
    }
    buckets_ = spreader_->finish();
    spreader_.reset();
    std::ranges::reverse(buckets_);
    keyed_.allocate(capacity_);
}

void ExternalShuffle::load(const Bucket& bucket) {
    size_ = 0;
    for (const Block& block : bucket.blocks) {
        poll();
        spill_->read(block.offset, {keyed_.at(size_), block.count * keyed_.size()});
        size_ += block.count;
    }
}

bool ExternalShuffle::next_bucket() {
    while (!buckets_.empty()) {
        const Bucket bucket = std::move(buckets_.back());
        buckets_.pop_back();
        if (bucket.count <= capacity_) {
            load(bucket);
            sort(bucket.level);
            if (size_) return true;
            continue;
        }
        keyed_.free();
        Spreader spreader(*spill_, memory_ / 8, bucket.level, keyed_.size() - Keyed::kKey - sizeof(Record));
        std::vector<std::uint8_t> some;
        for (const Block& block : bucket.blocks) {
            poll();
            some.resize(block.count * keyed_.size());
            spill_->read(block.offset, some);
            for (std::size_t at = 0; at < some.size(); at += keyed_.size()) spreader.add(&some[at]);
        }
        std::vector<Bucket> parts = spreader.finish();
        buckets_.insert(buckets_.end(), std::make_move_iterator(parts.rbegin()), std::make_move_iterator(parts.rend()));
        keyed_.allocate(capacity_);
    }
    return false;
}

// Sorts keyed_: by the leading bits that vary, into about as many cells as there are positions; then within each cell,
// which holds one or two.
void ExternalShuffle::sort(int level) {
    taken_ = 0;
    order_.resize(size_);
    if (size_ == 0) return;
    const int bits = std::max(1, static_cast<int>(std::bit_width(size_)) - 1);
    const auto cell = [&](std::size_t i) { return Keyed::key(keyed_.at(i)) << (8 * level) >> (64 - bits); };
    std::vector<std::uint32_t> begin(std::size_t{1} << bits);
    for_each(size_, [&](std::size_t i) { ++begin[cell(i)]; });
    std::uint32_t sum = 0;
    for (std::uint32_t& b : begin) sum += std::exchange(b, sum);
    for_each(size_, [&](std::size_t i) { order_[begin[cell(i)]++] = static_cast<std::uint32_t>(i); });
    // begin[c] is now where cell c ends.
    for_each(begin.size(), [&](std::size_t c) {
        const std::uint32_t first = c ? begin[c - 1] : 0, end = begin[c];
        if (end - first > 1) {
            std::sort(order_.begin() + first, order_.begin() + end, [&](std::uint32_t a, std::uint32_t b) {
                return Keyed::key(keyed_.at(a)) < Keyed::key(keyed_.at(b));
            });
        }
    });
}

std::size_t ExternalShuffle::read(std::span<Record> out, std::uint8_t* originals) {
    constexpr std::size_t kAhead = 16;
    const std::size_t original_size = keyed_.size() - Keyed::kKey - sizeof(Record);
    if (!reading_) start_reading();
    std::size_t n = 0;
    while (n < out.size()) {
        if (taken_ == order_.size() && !next_bucket()) break;
        const std::size_t count = std::min(out.size() - n, order_.size() - taken_);
        for (std::size_t i = 0; i < count; ++i, ++taken_) {
            if (taken_ + kAhead < order_.size()) __builtin_prefetch(keyed_.at(order_[taken_ + kAhead]));
            const std::uint8_t* record = keyed_.at(order_[taken_]) + Keyed::kKey;
            std::memcpy(&out[n + i], record, sizeof(Record));
            if (originals) {
                std::memcpy(originals, record + sizeof(Record), original_size);
                originals += original_size;
            }
        }
        n += count;
    }
    return n;
}

}  // namespace nnue::data
