// Descriptions that operators take by a number, their handle. An operator `_..._describe` reads one and gives it its
// handle. It stays for as long as the process does, and equal descriptions have one handle.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "checks.h"

namespace nnue {

template <class Description>
class Handles {
  public:
    // `numbers`: all that the description was read from.
    int64_t add(Description description, std::vector<double> numbers) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto [known, is_new] = handles_.try_emplace(std::move(numbers), all_.size());
        if (is_new) all_.push_back(std::move(description));
        return static_cast<int64_t>(known->second);
    }

    const Description& at(const char* op, const char* argument, int64_t handle, const char* describe) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (handle < 0 || handle >= static_cast<int64_t>(all_.size()))
            fail(op, argument, handle, "a number that " + std::string(describe) + " returned");
        return all_[static_cast<size_t>(handle)];
    }

  private:
    std::mutex mutex_;
    std::deque<Description> all_;  // which stay where they are
    std::map<std::vector<double>, size_t> handles_;
};

}  // namespace nnue
