#include "formats/writer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "chess/record.h"
#include "formats/binpack.h"
#include "formats/file.h"

namespace nnue::data {

namespace {

constexpr std::size_t kBlock = 1 << 20;

class BinpackPositionWriter final : public PositionWriter {
  public:
    BinpackPositionWriter(const std::string& path, bool join_chains) : writer_(path) {
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

// Formats whose positions do not depend on each other. Derived::encode appends one to buffer_.
template <class Derived>
class BufferedWriter : public PositionWriter {
  public:
    explicit BufferedWriter(const std::string& path) : file_(path) {}

    void write(std::span<const Record> records) override {
        for (const Record& record : records) {
            Entry e;
            if (const char* error = unpack(record, e)) {
                throw FormatError(file_.path() + ": position " + std::to_string(positions_) + ": " + error);
            }
            static_cast<Derived*>(this)->encode(e);
            ++positions_;
            if (buffer_.size() >= kBlock) flush();
        }
    }
    void finish() override {
        flush();
        file_.commit();
    }

  protected:
    std::string buffer_;

  private:
    void flush() {
        file_.write({reinterpret_cast<const std::uint8_t*>(buffer_.data()), buffer_.size()});
        buffer_.clear();
    }
    OutputFile file_;
};

template <Format kFormat, std::size_t kSize, void (*kEncode)(const Entry&, std::span<std::uint8_t, kSize>, Losses&)>
class FixedWriter final : public BufferedWriter<FixedWriter<kFormat, kSize, kEncode>> {
  public:
    using BufferedWriter<FixedWriter>::BufferedWriter;
    Format format() const override { return kFormat; }
    void encode(const Entry& e) {
        std::array<std::uint8_t, kSize> bytes;
        kEncode(e, bytes, this->losses_);
        this->buffer_.append(reinterpret_cast<const char*>(bytes.data()), kSize);
    }
};

class TextWriter final : public BufferedWriter<TextWriter> {
  public:
    using BufferedWriter::BufferedWriter;
    Format format() const override { return Format::kText; }
    void encode(const Entry& e) { encode_text(e, buffer_, losses_); }
};

class PlainWriter final : public BufferedWriter<PlainWriter> {
  public:
    using BufferedWriter::BufferedWriter;
    Format format() const override { return Format::kPlain; }
    void encode(const Entry& e) { encode_plain(e, buffer_); }
};

using BinWriter = FixedWriter<Format::kBin, kBinSize, encode_bin>;
using BulletformatWriter = FixedWriter<Format::kBulletformat, kBulletformatSize, encode_bulletformat>;
using MarlinformatWriter = FixedWriter<Format::kMarlinformat, kMarlinformatSize, encode_marlinformat>;

}  // namespace

std::unique_ptr<PositionWriter> open_writer(Format format, const std::string& path, bool join_chains) {
    switch (format) {
        case Format::kBinpack:
            return std::make_unique<BinpackPositionWriter>(path, join_chains);
        case Format::kBin:
            return std::make_unique<BinWriter>(path);
        case Format::kBulletformat:
            return std::make_unique<BulletformatWriter>(path);
        case Format::kMarlinformat:
            return std::make_unique<MarlinformatWriter>(path);
        case Format::kText:
            return std::make_unique<TextWriter>(path);
        case Format::kPlain:
            return std::make_unique<PlainWriter>(path);
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
