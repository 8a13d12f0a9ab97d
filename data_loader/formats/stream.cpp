#include "formats/stream.h"

#include <algorithm>
#include <cstring>

namespace nnue::data {

namespace {

class RangeSource : public ByteSource {
  public:
    RangeSource(const InputFile& file, std::uint64_t offset) : file_(file), at_(offset) {}

    std::size_t read(std::span<std::uint8_t> out) override {
        const std::size_t n = std::min<std::uint64_t>(out.size(), file_.size() - at_);
        file_.read(at_, out.first(n));
        at_ += n;
        return n;
    }

  private:
    const InputFile& file_;
    std::uint64_t at_;
};

class FileSource final : public ByteSource {
  public:
    explicit FileSource(const std::string& path) : file_(path), range_(file_, 0) {}
    std::size_t read(std::span<std::uint8_t> out) override { return range_.read(out); }

  private:
    InputFile file_;
    RangeSource range_;
};

}  // namespace

std::unique_ptr<ByteSource> open_file_source(const std::string& path) {
    return std::make_unique<FileSource>(path);
}

std::unique_ptr<ByteSource> open_file_source(const InputFile& file, std::uint64_t offset) {
    return std::make_unique<RangeSource>(file, offset);
}

std::span<const std::uint8_t> ByteStream::peek(std::size_t want) {
    while (end_ - begin_ < want && !ended_) {
        if (want > capacity_ - begin_ || begin_ == end_ || capacity_ == 0) {
            const std::size_t left = end_ - begin_, capacity = std::max({want, block_, capacity_});
            if (capacity > capacity_) {
                auto buffer = std::make_unique_for_overwrite<std::uint8_t[]>(capacity + kPadding);
                if (left) std::memcpy(buffer.get(), &buffer_[begin_], left);
                buffer_ = std::move(buffer);
                capacity_ = capacity;
            } else if (left) {
                std::memmove(buffer_.get(), &buffer_[begin_], left);
            }
            begin_ = 0;
            end_ = left;
        }
        const std::size_t n = source_->read({&buffer_[end_], capacity_ - end_});
        end_ += n;
        ended_ = n == 0;
    }
    if (end_ == begin_) return {};
    return {&buffer_[begin_], end_ - begin_};
}

FormatError ByteStream::error(std::uint64_t offset, const std::string& what) const {
    return FormatError(path_ + ": offset " + std::to_string(offset) + ": " + what);
}

}  // namespace nnue::data
