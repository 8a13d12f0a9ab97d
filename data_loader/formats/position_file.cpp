#include "formats/position_file.h"

#include <algorithm>
#include <utility>

namespace nnue::data {

namespace {

// A file whose numbers are changed after they are decoded. Digests are those of the file itself.
class ChangedFile final : public PositionFile {
  public:
    ChangedFile(std::unique_ptr<PositionFile> origin, const ScoreChanges& changes)
        : PositionFile(origin->format()), origin_(std::move(origin)), changes_(changes) {}
    const InputFile& file() const override { return origin_->file(); }
    std::size_t num_chunks() const override { return origin_->num_chunks(); }
    const std::string& torn_end() const override { return origin_->torn_end(); }
    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                       std::vector<std::uint8_t>* flags, std::uint64_t* digest) const override {
        const std::size_t unscored = origin_->decode(chunk, bytes, records, flags, digest);
        changes_.apply(records.records());
        return unscored;
    }
    std::vector<std::uint8_t> layout() const override { return origin_->layout(); }
    std::string header() const override { return origin_->header(); }
    void read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes) const override {
        origin_->read_chunk(chunk, bytes);
    }

  private:
    std::unique_ptr<PositionFile> origin_;
    ScoreChanges changes_;
};

const DataFormat& format_of(const InputFile& file) {
    std::vector<std::uint8_t> head(std::min<std::uint64_t>(file.size(), kFormatHead));
    file.read(0, head);
    return detect_format({head, head.size() == file.size()}, file.path());
}

}  // namespace

std::unique_ptr<PositionFile> open_position_file(InputFile file, const OpenOptions& options) {
    const DataFormat& format = options.layout ? find_format(options.layout->format) : format_of(file);
    std::unique_ptr<PositionFile> opened = format.open_file(std::move(file), options);
    if (options.changes == ScoreChanges{}) return opened;
    return std::make_unique<ChangedFile>(std::move(opened), options.changes);
}

}  // namespace nnue::data
