#include "formats/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace nnue::data {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not wait for its other end
    look_at();
}

InputFile::InputFile(std::string path, int fd, std::optional<std::uint64_t> size) : path_(std::move(path)) {
    fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    look_at();
    if (!size) return;
    if (*size > size_) {
        ::close(std::exchange(fd_, -1));
        throw FormatError(path_ + ": " + std::to_string(size_) + " bytes, but " + std::to_string(*size) +
                          " when it was opened: it has shrunk");
    }
    size_ = *size;
}

void InputFile::look_at() {
    if (fd_ < 0) throw FormatError(path_ + ": " + std::strerror(errno));
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(fd_);
        throw FormatError(path_ + ": not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() {
    if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
    while (!out.empty()) {
        const ssize_t n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw error(offset, std::strerror(errno));
        if (n == 0) throw error(offset, "the file ends here, " + std::to_string(out.size()) + " bytes early");
        offset += static_cast<std::uint64_t>(n);
        out = out.subspan(static_cast<std::size_t>(n));
    }
}

FormatError InputFile::error(std::uint64_t offset, const std::string& what) const {
    return FormatError(path_ + ": offset " + std::to_string(offset) + ": " + what);
}

OutputFile::OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
    if (fd_ < 0) throw FormatError(path_ + ": cannot write: " + std::strerror(errno));
}

OutputFile::~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw FormatError(path_ + ": cannot write: " + std::strerror(errno));
        bytes = bytes.subspan(static_cast<std::size_t>(n));
        unsynced_ += static_cast<std::uint64_t>(n);
    }
#if defined(SYNC_FILE_RANGE_WRITE)
    // Starts writing to the disk now: otherwise the fsync() at the end of a large file is a long wait that nothing can
    // interrupt.
    constexpr std::uint64_t kBetweenSyncs = 64 << 20;
    if (unsynced_ >= kBetweenSyncs) {
        ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
        unsynced_ = 0;
    }
#endif
}

}  // namespace nnue::data
