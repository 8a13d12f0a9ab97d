// The player's transposition table: what searches found about positions, by the positions' keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "position.h"

enum Bound : std::uint8_t { kNoBound, kUpper, kLower, kExact };

struct Entry {
    std::uint32_t key = 0;
    std::uint16_t move = 0;
    std::int8_t depth = 0;
    std::uint8_t bound : 2, age : 6;
    std::int32_t score = 0, evaluation = 0;

    Entry() : bound(kNoBound), age(0) {}
    Entry(Move a_move, int a_depth, Bound a_bound, int a_score, int an_evaluation)
        : move(a_move.packed()),
          depth(static_cast<std::int8_t>(a_depth)),
          bound(a_bound),
          age(0),
          score(a_score),
          evaluation(an_evaluation) {}
};

class Table {
  public:
    void resize(std::size_t megabytes) {
        buckets_.assign(megabytes * 1024 * 1024 / sizeof(Bucket), Bucket());
        buckets_.shrink_to_fit();
    }
    void clear() {
        std::fill(buckets_.begin(), buckets_.end(), Bucket());
        age_ = 0;
    }
    void next_search() { age_ = (age_ + 1) & 63; }

    const Entry* find(std::uint64_t key) {
        for (const Entry& entry : bucket(key).entries) {
            if (entry.bound != kNoBound && entry.key == static_cast<std::uint32_t>(key)) return &entry;
        }
        return nullptr;
    }
    // Replaces an entry of the same position unless that is much deeper, or else the one of least depth, where old
    // entries count as less deep.
    void store(std::uint64_t key, Entry entry) {
        entry.key = static_cast<std::uint32_t>(key);
        entry.age = age_ & 63;
        Entry* to = nullptr;
        int least = 0;
        for (Entry& old : bucket(key).entries) {
            const bool is_same = old.bound != kNoBound && old.key == entry.key;
            if (is_same && entry.bound != kExact && old.depth > entry.depth + 3 && old.age == entry.age) return;
            if (is_same && !entry.move) entry.move = old.move;
            const int value = is_same || old.bound == kNoBound ? -1000 : old.depth - 8 * ((age_ - old.age) & 63);
            if (!to || value < least) to = &old, least = value;
            if (is_same) break;
        }
        *to = entry;
    }
    void prefetch(std::uint64_t key) {
#if defined(__GNUC__)
        __builtin_prefetch(&bucket(key));
#else
        static_cast<void>(key);
#endif
    }

  private:
    static constexpr int kEntries = 4;
    struct alignas(64) Bucket {
        Entry entries[kEntries];
    };
    // The upper half of the key selects the bucket; the lower one is in the entry.
    Bucket& bucket(std::uint64_t key) {
        return buckets_[(key >> 32) * buckets_.size() >> 32];
    }

    std::vector<Bucket> buckets_;
    unsigned age_ = 0;
};
