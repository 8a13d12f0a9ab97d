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

// kEncode appends one position to a string. kRestore, in formats of records of kSize bytes, puts the original bytes of
// a record in place of those just appended, and returns whether nothing is lost.
template <void (*kEncode)(const Entry&, std::string&, Losses&), std::size_t kSize = 0,
          bool (*kRestore)(const Record&, const std::uint8_t* original, std::uint8_t* encoded) = nullptr>
class IndependentWriter final : public PositionWriter {
  public:
    IndependentWriter(const DataFormat& format, const std::string& path, int fd)
        : PositionWriter(format), file_(path, fd) {}

    void write(std::span<const Record> records) override { write_originals(records, nullptr); }
    void write_originals(std::span<const Record> records, const std::uint8_t* originals) override {
        constexpr std::size_t kAtOnce = 1 << 16;
        for (std::size_t done = 0; done < records.size(); done += kAtOnce) {
            encode(records.subspan(done, std::min(records.size() - done, kAtOnce)),
                   originals ? originals + done * kSize : nullptr);
        }
    }
    void finish() override { flush(); }

  private:
    // Encodes parts on several threads and writes them in order.
    void encode(std::span<const Record> records, const std::uint8_t* originals) {
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
                Losses lost;
                try {
                    kEncode(e, bytes, lost);
                } catch (const FormatError& error) {
                    throw FormatError(file_.path() + ": position " + std::to_string(positions_ + i) + ": " +
                                      error.what());
                }
                if constexpr (kRestore != nullptr) {
                    auto* written = reinterpret_cast<std::uint8_t*>(bytes.data() + bytes.size());
                    if (originals && kRestore(records[i], originals + i * kSize, written - kSize)) continue;
                }
                losses += lost;
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
