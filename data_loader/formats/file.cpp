#include "formats/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "formats/chunk_digest.h"

namespace nnue::data {

struct InputFile::Open {
    std::string path;
    std::string again;  // the name to open it again by; empty: it stays open
    system::FileStatus status;
    system::File file;
    int users = 0;
    std::list<Open*>::iterator place;  // while `file` is open and has a name
    ~Open();
};

namespace {

system::File opened(const std::string& path, const std::string& by) {
    system::File file = system::open_to_read(by);
    if (!file) throw FormatError(path + ": " + std::strerror(errno));
    return file;
}

system::FileStatus status_of(const std::string& path, const system::File& file) {
    const auto status = system::status_of_regular(file);
    if (!status) throw FormatError(path + ": not a regular file");
    return *status;
}

// The open files that have a name, the one that was read last first.
class Descriptors {
  public:
    void add(InputFile::Open& open) {
        const std::lock_guard lock(mutex_);
        insert(open);
        close_oldest();
    }

    // The descriptor of a file, which stays open until `release`.
    const system::File& hold(InputFile::Open& open) {
        if (open.again.empty()) return open.file;
        std::unique_lock lock(mutex_);
        if (!open.file) {
            lock.unlock();
            system::File fresh = reopened(open);
            lock.lock();
            if (!open.file) {
                open.file = std::move(fresh);
                insert(open);
            }
        } else {
            files_.splice(files_.begin(), files_, open.place);
        }
        ++open.users;
        close_oldest();
        return open.file;
    }

    void release(InputFile::Open& open) {
        if (open.again.empty()) return;
        const std::lock_guard lock(mutex_);
        --open.users;
    }

    void remove(InputFile::Open& open) {
        const std::lock_guard lock(mutex_);
        if (open.file && !open.again.empty()) files_.erase(open.place);
    }

    void set_limit(std::size_t files) {
        const std::lock_guard lock(mutex_);
        limit_ = files;
        close_oldest();
    }

    std::size_t size() {
        const std::lock_guard lock(mutex_);
        return files_.size();
    }

  private:
    static std::size_t default_limit() {
        const std::size_t most = system::most_open_files();
        return most - std::min<std::size_t>(256, most / 2);
    }

    void insert(InputFile::Open& open) {
        files_.push_front(&open);
        open.place = files_.begin();
    }

    void close_oldest() {
        for (auto at = files_.end(); files_.size() > limit_ && at != files_.begin();) {
            --at;
            if ((*at)->users) continue;
            (*at)->file.close();
            at = files_.erase(at);
        }
    }

    static system::File reopened(const InputFile::Open& open) {
        try {
            system::File file = opened(open.path, open.again);
            const system::FileStatus now = status_of(open.path, file);
            const system::FileStatus& then = open.status;
            if (now.device == then.device && now.number == then.number && now.size >= then.size) return file;
        } catch (const FormatError& error) {
            throw ContentChanged(std::string(error.what()) + ", when it was opened again");
        }
        throw ContentChanged(open.path + ": was replaced since it was opened: restore the file, or start a new run");
    }

    std::mutex mutex_;
    std::list<InputFile::Open*> files_;
    std::size_t limit_ = default_limit();
};

// Never destroyed: threads may read until the process ends.
Descriptors& descriptors() {
    static auto* const all = new Descriptors;
    return *all;
}

class Held {
  public:
    explicit Held(InputFile::Open& open) : open_(open), file_(descriptors().hold(open)) {}
    ~Held() { descriptors().release(open_); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    const system::File& file() const { return file_; }

  private:
    InputFile::Open& open_;
    const system::File& file_;
};

constexpr std::size_t kSamples = 16, kSample = 4096;

std::uint64_t digest_of(std::span<const std::uint8_t> bytes) {
    std::uint64_t digest = 0;
    ChunkDigest(&digest).finish(bytes.data(), bytes.size());
    return digest;
}

// The first and the last sample are those of the ends.
std::vector<std::uint8_t> samples_of(const InputFile& file, std::size_t count) {
    const std::size_t size = std::min<std::uint64_t>(file.size(), kSample);
    std::vector<std::uint8_t> bytes(size * count);
    for (std::size_t i = 0; i < count; ++i) {
        file.read((file.size() - size) / (count - 1) * i + (file.size() - size) % (count - 1) * i / (count - 1),
                  std::span(bytes).subspan(size * i, size));
    }
    return bytes;
}

}  // namespace

InputFile::Open::~Open() {
    descriptors().remove(*this);
}

InputFile::InputFile(std::string path) : open_(std::make_shared<Open>()) {
    open_->file = opened(path, path);
    open_->status = status_of(path, open_->file);
    open_->again = system::absolute(path);
    open_->path = std::move(path);
    if (!open_->again.empty()) descriptors().add(*open_);
}

InputFile::InputFile(std::string path, int fd) : open_(std::make_shared<Open>()) {
    open_->file = system::duplicate(fd);
    if (!open_->file) throw FormatError(path + ": " + std::strerror(errno));
    open_->status = status_of(path, open_->file);
    open_->path = std::move(path);
}

const std::string& InputFile::path() const {
    return open_->path;
}

std::uint64_t InputFile::size() const {
    return open_->status.size;
}

system::FileStatus InputFile::status() const {
    const Held held(*open_);
    return status_of(path(), held.file());
}

system::File InputFile::duplicate() const {
    const Held held(*open_);
    system::File file = system::duplicate(held.file().descriptor());
    if (!file) throw FormatError(path() + ": " + std::strerror(errno));
    return file;
}

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
    const Held held(*open_);
    const auto [bytes, code] = system::read_at(held.file(), offset, out);
    if (bytes == out.size()) return;
    if (code != 0) throw error(offset + bytes, std::strerror(code));
    throw error(offset + bytes, "the file ends here, " + std::to_string(out.size() - bytes) + " bytes early");
}

FormatError InputFile::error(std::uint64_t offset, const std::string& what) const {
    return FormatError(path() + ": offset " + std::to_string(offset) + ": " + what);
}

SampleDigests digest_samples(const InputFile& file) {
    const std::vector<std::uint8_t> bytes = samples_of(file, kSamples);
    std::vector<std::uint8_t> ends(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / kSamples));
    ends.insert(ends.end(), bytes.end() - static_cast<std::ptrdiff_t>(ends.size()), bytes.end());
    return {digest_of(ends), digest_of(bytes)};
}

std::uint64_t digest_ends(const InputFile& file) {
    return digest_of(samples_of(file, 2));
}

void set_most_open_files(std::size_t files) {
    descriptors().set_limit(files);
}

std::size_t open_input_files() {
    return descriptors().size();
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
