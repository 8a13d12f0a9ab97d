// The writer of formats whose positions do not depend on each other.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "chess/record.h"
#include "formats/file.h"
#include "formats/writer.h"
#include "pipeline/parallel.h"

namespace nnue::data {

// kEncode appends one position to a string.
template <void (*kEncode)(const Entry&, std::string&, Losses&)>
class IndependentWriter final : public PositionWriter {
  public:
    IndependentWriter(const std::string& path, int fd) : file_(path, fd) {}

    void write(std::span<const Record> records) override {
        constexpr std::size_t kAtOnce = 1 << 16;
        for (; !records.empty(); records = records.subspan(std::min(records.size(), kAtOnce))) {
            encode(records.first(std::min(records.size(), kAtOnce)));
        }
    }
    void finish() override { flush(); }

  private:
    // Encodes parts on several threads and writes them in order.
    void encode(std::span<const Record> records) {
        std::map<std::size_t, std::string> parts;
        std::mutex mutex;
        parallel_for(records.size(), 0, [&](std::size_t begin, std::size_t end) {
            std::string bytes;
            Losses losses;
            for (std::size_t i = begin; i < end; ++i) {
                Entry e;
                if (const char* error = unpack(records[i], e)) {
                    throw FormatError(file_.path() + ": position " + std::to_string(positions_ + i) + ": " + error);
                }
                kEncode(e, bytes, losses);
            }
            const std::lock_guard lock(mutex);
            parts[begin] = std::move(bytes);
            losses_ += losses;
        });
        positions_ += records.size();
        for (const auto& [begin, bytes] : parts) {
            buffer_ += bytes;
            if (buffer_.size() >= (std::size_t{1} << 20)) flush();
        }
    }
    void flush() {
        file_.write({reinterpret_cast<const std::uint8_t*>(buffer_.data()), buffer_.size()});
        buffer_.clear();
    }

    OutputFile file_;
    std::string buffer_;
};

}  // namespace nnue::data
