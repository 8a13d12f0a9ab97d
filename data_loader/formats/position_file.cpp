#include "formats/position_file.h"

#include <algorithm>

#include "chess/record.h"
#include "filters/filters.h"
#include "formats/reader.h"

namespace nnue::data {

namespace {

class BinpackChunks final : public PositionFile {
  public:
    BinpackChunks(InputFile file, const OpenOptions& options) : file_(std::move(file), options.on_bad, options.poll) {}
    const InputFile& file() const override { return file_.file(); }
    Format format() const override { return Format::kBinpack; }
    std::size_t num_chunks() const override { return file_.chunks().size(); }
    const std::string& torn_end() const override { return file_.torn_end(); }
    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                       std::vector<std::uint8_t>* flags) const override {
        return file_.decode(chunk, bytes, records, nullptr, flags);
    }

  private:
    BinpackFile file_;
};

// A format of records of one size.
template <Format kFormat, std::size_t kSize, Entry (*kDecode)(std::span<const std::uint8_t, kSize>)>
class FixedChunks final : public PositionFile {
  public:
    FixedChunks(InputFile file, const OpenOptions& options)
        : file_(std::move(file)), chunk_(options.records_per_chunk) {
        if (const std::uint64_t rest = file_.size() % kSize) {
            const FormatError error =
                file_.error(file_.size() - rest, "a record of " + std::to_string(rest) + " bytes, expected " +
                                                     std::to_string(kSize) + ": the file is truncated");
            if (options.on_bad == OnBad::kError) throw error;
            torn_end_ = error.what();
        }
    }
    const InputFile& file() const override { return file_; }
    const std::string& torn_end() const override { return torn_end_; }
    Format format() const override { return kFormat; }
    std::size_t num_chunks() const override { return (file_.size() / kSize + chunk_ - 1) / chunk_; }

    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                       std::vector<std::uint8_t>* flags) const override {
        const std::uint64_t first = std::uint64_t{chunk} * chunk_;
        const std::size_t n = std::min<std::uint64_t>(chunk_, file_.size() / kSize - first);
        bytes.resize(n * kSize);
        file_.read(first * kSize, bytes);
        records.resize(n);
        if (flags) flags->resize(n);
        std::size_t unscored = 0;
        for (std::size_t i = 0; i < n; ++i) {
            try {
                const Entry entry = kDecode(std::span<const std::uint8_t, kSize>(&bytes[i * kSize], kSize));
                records.data()[i] = pack(entry);
                unscored += entry.score == kScoreNone;
                if (flags) (*flags)[i] = position_flags(entry);
            } catch (const FormatError& e) {
                throw file_.error((first + i) * kSize, "chunk " + std::to_string(chunk) + ", position " +
                                                           std::to_string(first + i) + ": " + e.what());
            }
        }
        return unscored;
    }

  private:
    InputFile file_;
    std::size_t chunk_;  // records
    std::string torn_end_;
};

// Lines of text. A position belongs to the chunk that it begins in.
class LineChunks final : public PositionFile {
  public:
    LineChunks(Format format, InputFile file, const OpenOptions& options)
        : format_(format), file_(std::move(file)), chunk_(options.bytes_per_chunk) {}
    const InputFile& file() const override { return file_; }
    Format format() const override { return format_; }
    std::size_t num_chunks() const override { return (file_.size() + chunk_ - 1) / chunk_; }

    // A position that the file ends inside of is found when its chunk is decoded, and left out with it.
    const std::string& torn_end() const override {
        static const std::string none;
        return none;
    }
    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>&, RecordBuffer& records,
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
        if (flags) {
            flags->resize(n);
            compute_flags(records.records(), flags->data());
        }
        return static_cast<std::size_t>(std::ranges::count_if(
            records.records(), [](const Record& record) { return record_score(record.bytes.data()) == kScoreNone; }));
    }

  private:
    Format format_;
    InputFile file_;
    std::size_t chunk_;  // bytes
};

}  // namespace

std::unique_ptr<PositionFile> open_position_file(InputFile file, const OpenOptions& options) {
    std::vector<std::uint8_t> head(std::min<std::uint64_t>(file.size(), kFormatHead));
    file.read(0, head);
    const Format format = detect_format(head, head.size() == file.size(), file.path());
    switch (format) {
        case Format::kBinpack:
            return std::make_unique<BinpackChunks>(std::move(file), options);
        case Format::kBin:
            return std::make_unique<FixedChunks<Format::kBin, kBinSize, decode_bin>>(std::move(file), options);
        case Format::kBulletformat:
            return std::make_unique<FixedChunks<Format::kBulletformat, kBulletformatSize, decode_bulletformat>>(
                std::move(file), options);
        case Format::kMarlinformat:
            return std::make_unique<FixedChunks<Format::kMarlinformat, kMarlinformatSize, decode_marlinformat>>(
                std::move(file), options);
        case Format::kText:
        case Format::kPlain:
            return std::make_unique<LineChunks>(format, std::move(file), options);
    }
    throw FormatError(file.path() + ": unknown format");
}

}  // namespace nnue::data
