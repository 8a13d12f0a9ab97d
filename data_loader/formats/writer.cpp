#include "formats/writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "chess/record.h"
#include "formats/binpack.h"
#include "formats/file.h"
#include "pipeline/parallel.h"

namespace nnue::data {

namespace {

constexpr std::size_t kBlock = 1 << 20;

class BinpackPositionWriter final : public PositionWriter {
  public:
    BinpackPositionWriter(const std::string& path, int fd, bool join_chains) : writer_(path, fd) {
        writer_.join_chains = join_chains;
    }
    Format format() const override { return Format::kBinpack; }
    void write(std::span<const Record> records) override {
        for (const Record& record : records) writer_.add(record);
        positions_ = writer_.positions();
    }
    void finish() override { writer_.finish(); }

  private:
    BinpackWriter writer_;
};

// Formats whose positions do not depend on each other. Encode appends one to a string.
template <Format kFormat, void (*kEncode)(const Entry&, std::string&, Losses&)>
class IndependentWriter final : public PositionWriter {
  public:
    IndependentWriter(const std::string& path, int fd) : file_(path, fd) {}
    Format format() const override { return kFormat; }

    void write(std::span<const Record> records) override {
        constexpr std::size_t kAtOnce = 1 << 16;
        for (; !records.empty(); records = records.subspan(std::min(records.size(), kAtOnce))) {
            encode(records.first(std::min(records.size(), kAtOnce)));
        }
    }
    void finish() override { flush(); }

  private:
    // Parts on several threads, put together in order.
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
            if (buffer_.size() >= kBlock) flush();
        }
    }
    void flush() {
        file_.write({reinterpret_cast<const std::uint8_t*>(buffer_.data()), buffer_.size()});
        buffer_.clear();
    }

    OutputFile file_;
    std::string buffer_;
};

template <std::size_t kSize, void (*kEncode)(const Entry&, std::span<std::uint8_t, kSize>, Losses&)>
void encode_fixed(const Entry& e, std::string& out, Losses& losses) {
    std::array<std::uint8_t, kSize> bytes;
    kEncode(e, bytes, losses);
    out.append(reinterpret_cast<const char*>(bytes.data()), kSize);
}

void encode_plain_lossless(const Entry& e, std::string& out, Losses&) {
    encode_plain(e, out);
}

using BinWriter = IndependentWriter<Format::kBin, encode_fixed<kBinSize, encode_bin>>;
using BulletformatWriter =
    IndependentWriter<Format::kBulletformat, encode_fixed<kBulletformatSize, encode_bulletformat>>;
using MarlinformatWriter =
    IndependentWriter<Format::kMarlinformat, encode_fixed<kMarlinformatSize, encode_marlinformat>>;
using TextWriter = IndependentWriter<Format::kText, encode_text>;
using PlainWriter = IndependentWriter<Format::kPlain, encode_plain_lossless>;

}  // namespace

std::unique_ptr<PositionWriter> open_writer(Format format, const std::string& path, int fd, bool join_chains) {
    switch (format) {
        case Format::kBinpack:
            return std::make_unique<BinpackPositionWriter>(path, fd, join_chains);
        case Format::kBin:
            return std::make_unique<BinWriter>(path, fd);
        case Format::kBulletformat:
            return std::make_unique<BulletformatWriter>(path, fd);
        case Format::kMarlinformat:
            return std::make_unique<MarlinformatWriter>(path, fd);
        case Format::kText:
            return std::make_unique<TextWriter>(path, fd);
        case Format::kPlain:
            return std::make_unique<PlainWriter>(path, fd);
    }
    throw FormatError(path + ": unknown format");
}

std::uint64_t scale_scores(std::span<Record> records, double factor) {
    std::uint64_t cut = 0;
    for (Record& record : records) {
        const int score = record_score(record.bytes.data());
        if (score == kScoreNone) continue;
        const double scaled = std::round(score * factor);
        const double kept = std::clamp(scaled, -32767.0, 32767.0);
        cut += kept != scaled;
        set_record_score(record, static_cast<int>(kept));
    }
    return cut;
}

}  // namespace nnue::data
