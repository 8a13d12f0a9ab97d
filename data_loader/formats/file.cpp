#include "formats/file.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace nnue::data {

InputFile::InputFile(std::string path) : path_(std::move(path)), file_(system::open_to_read(path_)) {
    look_at();
}

InputFile::InputFile(std::string path, int fd, std::optional<std::uint64_t> size)
    : path_(std::move(path)), file_(system::duplicate(fd)) {
    look_at();
    if (!size) return;
    if (*size > size_) {
        throw FormatError(path_ + ": " + std::to_string(size_) + " bytes, but " + std::to_string(*size) +
                          " when it was opened: it has shrunk");
    }
    size_ = *size;
}

void InputFile::look_at() {
    if (!file_) throw FormatError(path_ + ": " + std::strerror(errno));
    const auto size = system::size_of_regular(file_);
    if (!size) throw FormatError(path_ + ": not a regular file");
    size_ = *size;
}

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
    const auto [bytes, code] = system::read_at(file_, offset, out);
    if (bytes == out.size()) return;
    if (code != 0) throw error(offset + bytes, std::strerror(code));
    throw error(offset + bytes, "the file ends here, " + std::to_string(out.size() - bytes) + " bytes early");
}

FormatError InputFile::error(std::uint64_t offset, const std::string& what) const {
    return FormatError(path_ + ": offset " + std::to_string(offset) + ": " + what);
}

OutputFile::OutputFile(std::string path, int fd) : path_(std::move(path)), file_(system::duplicate(fd)) {
    if (!file_) throw FormatError(path_ + ": cannot write: " + std::strerror(errno));
}

void OutputFile::write(std::span<const std::uint8_t> bytes) {
    const auto [written, code] = system::write(file_, bytes);
    if (code != 0) throw FormatError(path_ + ": cannot write: " + std::strerror(code));
    unsynced_ += written;
    // Starts writing to the disk now: otherwise the fsync() at the end of a large file is a long wait that nothing can
    // interrupt.
    constexpr std::uint64_t kBetweenSyncs = 64 << 20;
    if (unsynced_ >= kBetweenSyncs) {
        system::start_sync(file_);
        unsynced_ = 0;
    }
}

}  // namespace nnue::data
