#include "formats/position_file.h"

#include <algorithm>

#include "chess/record.h"
#include "filters/filters.h"
#include "formats/reader.h"

namespace nnue::data {

namespace {

class BinpackChunks final : public PositionFile {
  public:
    explicit BinpackChunks(InputFile file) : file_(std::move(file)) {}
    const std::string& path() const override { return file_.path(); }
    Format format() const override { return Format::kBinpack; }
    std::size_t num_chunks() const override { return file_.chunks().size(); }
    void decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                std::vector<std::uint8_t>* flags) const override {
        file_.decode(chunk, bytes, records, nullptr, flags);
    }

  private:
    BinpackFile file_;
};

// A format of records of one size.
template <Format kFormat, std::size_t kSize, Entry (*kDecode)(std::span<const std::uint8_t, kSize>)>
class FixedChunks final : public PositionFile {
  public:
    FixedChunks(InputFile file, std::size_t records_a_chunk) : file_(std::move(file)), chunk_(records_a_chunk) {
        if (const std::uint64_t rest = file_.size() % kSize) {
            throw file_.error(file_.size() - rest, "a record of " + std::to_string(rest) + " bytes, expected " +
                                                       std::to_string(kSize) + ": the file is truncated");
        }
    }
    const std::string& path() const override { return file_.path(); }
    Format format() const override { return kFormat; }
    std::size_t num_chunks() const override { return (file_.size() / kSize + chunk_ - 1) / chunk_; }

    void decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                std::vector<std::uint8_t>* flags) const override {
        const std::uint64_t first = std::uint64_t{chunk} * chunk_;
        const std::size_t n = std::min<std::uint64_t>(chunk_, file_.size() / kSize - first);
        bytes.resize(n * kSize);
        file_.read(first * kSize, bytes);
        records.resize(n);
        if (flags) flags->resize(n);
        for (std::size_t i = 0; i < n; ++i) {
            try {
                const Entry entry = kDecode(std::span<const std::uint8_t, kSize>(&bytes[i * kSize], kSize));
                records.data()[i] = pack(entry);
                if (flags) (*flags)[i] = position_flags(entry);
            } catch (const FormatError& e) {
                throw file_.error((first + i) * kSize, "chunk " + std::to_string(chunk) + ", position " +
                                                           std::to_string(first + i) + ": " + e.what());
            }
        }
    }

  private:
    InputFile file_;
    std::size_t chunk_;  // records
};

// Lines of text. A position belongs to the chunk that it begins in.
class LineChunks final : public PositionFile {
  public:
    LineChunks(Format format, InputFile file, std::size_t bytes_a_chunk)
        : format_(format), file_(std::move(file)), chunk_(bytes_a_chunk) {}
    const std::string& path() const override { return file_.path(); }
    Format format() const override { return format_; }
    std::size_t num_chunks() const override { return (file_.size() + chunk_ - 1) / chunk_; }

    void decode(std::size_t chunk, std::vector<std::uint8_t>&, RecordBuffer& records,
                std::vector<std::uint8_t>* flags) const override {
        const std::uint64_t begin = std::uint64_t{chunk} * chunk_;
        const auto reader = open_lines(format_, file_, {begin, begin + chunk_, "chunk " + std::to_string(chunk)});
        constexpr std::size_t kBlock = 1 << 12;
        std::size_t n = 0;
        do {
            records.resize(n + kBlock);
            n += reader->read(records.records().subspan(n));
        } while (n == records.size());
        records.resize(n);
        if (!flags) return;
        flags->resize(n);
        compute_flags(records.records(), flags->data());
    }

  private:
    Format format_;
    InputFile file_;
    std::size_t chunk_;  // bytes
};

}  // namespace

std::unique_ptr<PositionFile> open_position_file(InputFile file, std::size_t records_a_chunk,
                                                 std::size_t bytes_a_chunk) {
    std::vector<std::uint8_t> head(std::min<std::uint64_t>(file.size(), kFormatHead));
    file.read(0, head);
    const Format format = detect_format(head, head.size() == file.size(), file.path());
    switch (format) {
        case Format::kBinpack:
            return std::make_unique<BinpackChunks>(std::move(file));
        case Format::kBin:
            return std::make_unique<FixedChunks<Format::kBin, kBinSize, decode_bin>>(std::move(file), records_a_chunk);
        case Format::kBulletformat:
            return std::make_unique<FixedChunks<Format::kBulletformat, kBulletformatSize, decode_bulletformat>>(
                std::move(file), records_a_chunk);
        case Format::kMarlinformat:
            return std::make_unique<FixedChunks<Format::kMarlinformat, kMarlinformatSize, decode_marlinformat>>(
                std::move(file), records_a_chunk);
        case Format::kText:
        case Format::kPlain:
            return std::make_unique<LineChunks>(format, std::move(file), bytes_a_chunk);
    }
    throw FormatError(file.path() + ": unknown format");
}

}  // namespace nnue::data
