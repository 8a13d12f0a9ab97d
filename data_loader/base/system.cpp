#include "base/system.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

namespace nnue::system {
namespace {

// Repeats `call`, which handles some of the bytes, until all are done. Where it handles none, the error is `at_zero`.
template <class Bytes, class Call>
Done repeat(Bytes bytes, int at_zero, Call call) {
    Done done;
    while (done.bytes < bytes.size()) {
        const ssize_t n = call(bytes.data() + done.bytes, bytes.size() - done.bytes, done.bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            done.error = n < 0 ? errno : at_zero;
            break;
        }
        done.bytes += static_cast<std::size_t>(n);
    }
    return done;
}

double quota_of(const std::filesystem::path& group, bool is_version_1) {
    double quota = 0, period = 0;  // "max" leaves 0
    if (is_version_1) {
        std::ifstream(group / "cpu.cfs_quota_us") >> quota;
        std::ifstream(group / "cpu.cfs_period_us") >> period;
    } else {
        std::ifstream(group / "cpu.max") >> quota >> period;
    }
    return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

}  // namespace

void File::close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

File open_to_read(const std::string& path) {
    return File(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

File create(const std::string& path) {
    return File(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
}

File create_beside(const std::string& path, std::string& made) {
    // Not mkostemp, whose files only their owner can read. Correcting their mode takes the umask, and reading that
    // changes it for a moment, also for files that other threads create. open applies it by itself.
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
    constexpr int kAttempts = 100, kLength = 8;
    std::random_device random;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        made = path + ".";
        for (int i = 0; i < kLength; ++i) made += kLetters[random() % kLetters.size()];
        File file(::open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
        if (file || errno != EEXIST) return file;
    }
    return File();
}

File create_nameless(const std::string& folder) {
#if defined(O_TMPFILE)
    if (File file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)); file) return file;
#endif
    std::string name = folder + "/nnue-XXXXXX";  // not every file system has O_TMPFILE
    File file(::mkostemp(name.data(), O_CLOEXEC));
    if (file) ::unlink(name.c_str());
    return file;
}

File duplicate(int descriptor) {
    return File(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
}

std::string absolute(const std::string& path) {
    if (path.starts_with('/')) return path;
    char* folder = ::getcwd(nullptr, 0);
    if (!folder) return "";
    std::string found = std::string(folder) + "/" + path;
    std::free(folder);
    return found;
}

std::optional<FileStatus> status_of_regular(const File& file) {
    struct stat status {};
    if (::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
#if defined(__APPLE__)
    const timespec& modified = status.st_mtimespec;
#else
    const timespec& modified = status.st_mtim;
#endif
    return FileStatus{static_cast<std::uint64_t>(status.st_size),
                      std::int64_t{modified.tv_sec} * 1'000'000'000 + modified.tv_nsec,
                      static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino)};
}

std::size_t most_open_files() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
    return static_cast<std::size_t>(limit.rlim_cur);
}

double cpu_quota(const std::string& root) {
    const std::filesystem::path from = root;
    double found = std::numeric_limits<double>::infinity();
    std::ifstream groups(from / "proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // number:controllers:path, without controllers in version 2
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool is_version_1 = !controllers.empty();
        if (is_version_1 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
        std::vector<std::string> mounts = {controllers};  // none in version 2, whose groups lie at the root
        if (is_version_1) mounts.push_back("cpu");
        for (const std::string& mount : mounts) {
            // In a container the path may be the host's, and its own group is mounted as the root.
            std::filesystem::path group = from / "sys/fs/cgroup" / mount;
            found = std::min(found, quota_of(group, is_version_1));
            for (const auto& part : std::filesystem::path(line.substr(second + 1)).relative_path()) {
                if (part == "..") continue;
                group /= part;
                found = std::min(found, quota_of(group, is_version_1));
            }
        }
    }
    return found;
}

bool resize(const File& file, std::uint64_t bytes) {
    return ::ftruncate(file.descriptor(), static_cast<off_t>(bytes)) == 0;
}

Done read_at(const File& file, std::uint64_t offset, std::span<std::uint8_t> out) {
    return repeat(out, 0, [&](std::uint8_t* data, std::size_t size, std::size_t done) {
        return ::pread(file.descriptor(), data, size, static_cast<off_t>(offset + done));
    });
}

Done write_at(const File& file, std::uint64_t offset, std::span<const std::uint8_t> bytes) {
    return repeat(bytes, EIO, [&](const std::uint8_t* data, std::size_t size, std::size_t done) {
        return ::pwrite(file.descriptor(), data, size, static_cast<off_t>(offset + done));
    });
}

Done write(const File& file, std::span<const std::uint8_t> bytes) {
    return repeat(bytes, EIO, [&](const std::uint8_t* data, std::size_t size, std::size_t) {
        return ::write(file.descriptor(), data, size);
    });
}

void start_sync([[maybe_unused]] const File& file) {
#if defined(SYNC_FILE_RANGE_WRITE)
    ::sync_file_range(file.descriptor(), 0, 0, SYNC_FILE_RANGE_WRITE);
#endif
}

bool sync(const File& file) {
    return ::fsync(file.descriptor()) == 0;
}

void* symbol_of_library(const std::string& library, const char* symbol, std::string& why) {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* found = handle ? ::dlsym(handle, symbol) : nullptr;
    if (!found) {
        const char* reason = ::dlerror();
        why = reason ? reason : library;
    }
    return found;
}

void request_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr std::uintptr_t kHugePage = std::uintptr_t(1) << 21;
    const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
    const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / kHugePage * kHugePage;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

std::int64_t process_id() {
    return ::getpid();
}

}  // namespace nnue::system
