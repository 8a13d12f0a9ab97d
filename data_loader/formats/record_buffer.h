#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "chess/types.h"

namespace nnue::data {

// Memory for records that is used again and again: it only grows, and is not zeroed.
class RecordBuffer {
  public:
    Record* data() { return data_.get(); }
    const Record* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    std::size_t capacity() const { return capacity_; }
    std::span<Record> records() { return {data_.get(), size_}; }
    void resize(std::size_t size) { reserve(size), size_ = size; }
    void reserve(std::size_t capacity);

  private:
    std::unique_ptr<Record[]> data_;
    std::size_t size_ = 0, capacity_ = 0;
};

inline void RecordBuffer::reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    capacity = std::max(capacity, capacity_ + capacity_ / 2);
    auto data = std::make_unique_for_overwrite<Record[]>(capacity);
    std::copy_n(data_.get(), size_, data.get());
    data_ = std::move(data);
    capacity_ = capacity;
}

}  // namespace nnue::data
