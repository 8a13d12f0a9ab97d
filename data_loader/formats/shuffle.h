// A random order for more positions than memory holds.
//
// Position number i of the input has the key mix(seed, i), a bijection of 64-bit words; the output is sorted by key. So
// the order is a function of (seed, input) alone, uniform, and the same for any memory bound. If games stay together,
// the key has 48 bits for the number of the game, again by a bijection, and 16 for the place in it. What does not fit
// is spread over 256 buckets by the top byte of the key, in blocks of one temporary file that has no name: it goes with
// the process, however that ends. Buckets are then sorted one by one; one that is too large is spread again by the next
// byte.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/system.h"
#include "chess/types.h"
#include "formats/split.h"

namespace nnue::data {

// A file without a name in some folder, for blocks of bytes.
class SpillFile {
  public:
    explicit SpillFile(std::string folder);

    // Throws FormatError naming the folder if it is full. Returns where the block lies.
    std::uint64_t append(std::span<const std::uint8_t> bytes);
    void read(std::uint64_t offset, std::span<std::uint8_t> out) const;
    std::uint64_t size() const { return size_; }

  private:
    [[noreturn]] void fail(const char* what, int code) const;

    std::string folder_;
    system::File file_;
    std::uint64_t size_ = 0;
};

class ExternalShuffle {
  public:
    // `memory` bounds, in bytes, what it allocates (a few KiB aside); at least kMinMemory. The folder is for what
    // does not fit and may need 40 bytes per position.
    static constexpr std::size_t kMinMemory = 1 << 16;
    // Each position may have `original_size` bytes beside its record (DataFormat::original_size).
    // `by_game`: games (split.h) are shuffled, and the order in a game stays. `part` of `parts`, from 0: only that
    // range of the keys; all parts, one after the other, are the whole.
    ExternalShuffle(std::uint64_t seed, std::size_t memory, std::string folder, std::size_t original_size = 0,
                    bool by_game = false, std::uint64_t part = 0, std::uint64_t parts = 1);
    ~ExternalShuffle();

    // Without `originals` their bytes are zeros.
    void add(std::span<const Record> records, const std::uint8_t* originals = nullptr);
    // With `by_game`: the next position begins a game.
    void start_stream() { starts_.start_stream(); }
    // After the last add(): the next positions in shuffled order; returns 0 at the end. The first call and some later
    // ones sort what fits into the memory, which takes seconds.
    std::size_t read(std::span<Record> out, std::uint8_t* originals = nullptr);

    // Called several times per second meanwhile; what it throws (an interruption) passes through.
    std::function<void()> poll = [] {};

    std::uint64_t positions() const { return positions_; }  // of the part
    std::uint64_t spilled_bytes() const { return spill_ ? spill_->size() : 0; }

  private:
    // Positions with their keys, as bytes: key, record, original.
    class Keyed {
      public:
        static constexpr std::size_t kKey = sizeof(std::uint64_t);
        explicit Keyed(std::size_t original_size) : size_(kKey + sizeof(Record) + original_size) {}
        void allocate(std::size_t count) { bytes_ = std::make_unique_for_overwrite<std::uint8_t[]>(count * size_); }
        void free() { bytes_.reset(); }
        bool is_allocated() const { return bytes_ != nullptr; }
        std::size_t size() const { return size_; }  // of one
        std::uint8_t* at(std::size_t i) { return &bytes_[i * size_]; }
        const std::uint8_t* at(std::size_t i) const { return &bytes_[i * size_]; }
        static std::uint64_t key(const std::uint8_t* one) {
            std::uint64_t key;
            std::memcpy(&key, one, kKey);
            return key;
        }

      private:
        std::size_t size_;
        std::unique_ptr<std::uint8_t[]> bytes_;
    };
    struct Block {
        std::uint64_t offset;
        std::uint32_t count;
    };
    struct Bucket {
        std::uint64_t count = 0;
        int level = 0;  // bytes of the key that its positions have in common
        std::vector<Block> blocks;
    };
    class Spreader;

    std::uint64_t next_key(const Record& record);
    void start_reading();
    bool next_bucket();
    void load(const Bucket& bucket);
    void sort(int level);
    template <class Body>
    void for_each(std::size_t n, Body&& body) const;

    std::uint64_t base_;
    Keyed keyed_;
    std::size_t size_ = 0;           // positions in keyed_
    std::size_t memory_, capacity_;  // of keyed_
    std::string folder_;
    bool by_game_;
    std::uint64_t part_, parts_;
    GameStarts starts_;
    std::uint64_t numbered_ = 0, in_game_ = 0;  // positions, or games, of the input; positions of the last game
    std::uint64_t positions_ = 0;
    std::unique_ptr<SpillFile> spill_;
    std::unique_ptr<Spreader> spreader_;
    std::vector<Bucket> buckets_;       // to be read, the next one last
    std::vector<std::uint32_t> order_;  // of keyed_
    std::size_t taken_ = 0;             // of order_
    bool reading_ = false;
};

}  // namespace nnue::data
