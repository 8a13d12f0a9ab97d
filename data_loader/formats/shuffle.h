// A random order for more positions than memory holds.
//
// Position number i of the input has the key mix(seed, i), a bijection of 64-bit words; the output is sorted by key. So
// the order is a function of (seed, input) alone, uniform, and the same for any memory bound. What does not fit is
// spread over 256 buckets by the top byte of the key, in blocks of one temporary file that has no name: it goes with
// the process, however that ends. Buckets are then sorted one by one; one that is too large is spread again by the next
// byte.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chess/types.h"

namespace nnue::data {

// A file without a name in some folder, for blocks of bytes.
class SpillFile {
  public:
    explicit SpillFile(std::string folder);
    ~SpillFile();
    SpillFile(const SpillFile&) = delete;
    SpillFile& operator=(const SpillFile&) = delete;

    // Throws FormatError naming the folder if it is full. Returns where the block lies.
    std::uint64_t append(std::span<const std::uint8_t> bytes);
    void read(std::uint64_t offset, std::span<std::uint8_t> out) const;
    std::uint64_t size() const { return size_; }

  private:
    [[noreturn]] void fail(const char* what) const;

    std::string folder_;
    int fd_ = -1;
    std::uint64_t size_ = 0;
};

class ExternalShuffle {
  public:
    // `memory` bounds, in bytes, what it allocates (a few KiB aside); at least kMinMemory. The folder is for what
    // does not fit and may need 40 bytes per position.
    static constexpr std::size_t kMinMemory = 1 << 16;
    ExternalShuffle(std::uint64_t seed, std::size_t memory, std::string folder);
    ~ExternalShuffle();

    void add(std::span<const Record> records);
    // After the last add(): the next positions in shuffled order; returns 0 at the end. The first call and some later
    // ones sort what fits into the memory, which takes seconds.
    std::size_t read(std::span<Record> out);

    // Called several times per second meanwhile; what it throws (an interruption) passes through.
    std::function<void()> poll = [] {};

    std::uint64_t positions() const { return positions_; }
    std::uint64_t spilled_bytes() const { return spill_ ? spill_->size() : 0; }

  private:
    struct Keyed {
        std::uint64_t key;
        Record record;
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

    void start_reading();
    bool next_bucket();
    void load(const Bucket& bucket);
    void sort(int level);
    template <class Body>
    void for_each(std::size_t n, Body&& body) const;

    std::uint64_t base_;
    std::size_t memory_, capacity_;  // of keyed_
    std::string folder_;
    std::uint64_t positions_ = 0;
    std::unique_ptr<Keyed[]> keyed_;
    std::size_t size_ = 0;  // of keyed_
    std::unique_ptr<SpillFile> spill_;
    std::unique_ptr<Spreader> spreader_;
    std::vector<Bucket> buckets_;       // to be read, the next one last
    std::vector<std::uint32_t> order_;  // of keyed_
    std::size_t taken_ = 0;             // of order_
    bool reading_ = false;
};

}  // namespace nnue::data
