// The differences between operating systems: every call that is neither in C++'s library nor in torch. system.cpp has
// the calls of Linux and other POSIX systems; a port to another system replaces that file.
//
// Functions that fail leave the reason in errno, and their callers word the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace nnue::system {

// An open file, which is closed with this object. Programs that this one starts do not inherit it.
class File {
  public:
    File() = default;
    explicit File(int descriptor) : descriptor_(descriptor) {}
    ~File() { close(); }
    File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    File& operator=(File&& other) noexcept {
        close();
        descriptor_ = std::exchange(other.descriptor_, -1);
        return *this;
    }

    explicit operator bool() const { return descriptor_ >= 0; }
    int descriptor() const { return descriptor_; }
    int release() { return std::exchange(descriptor_, -1); }  // it is the caller's to close
    void close();

  private:
    int descriptor_ = -1;
};

// Empty, with errno, if the file cannot be opened. A pipe does not wait for its other end.
File open_to_read(const std::string& path);
// A new empty file, or an existing one that is emptied.
File create(const std::string& path);
// A new file beside `path`, with the permissions of new files; `made` becomes its name.
File create_beside(const std::string& path, std::string& made);
// A file without a name in this folder, to read and write; its space is free again when it is closed.
File create_nameless(const std::string& folder);
// A second descriptor of the open file; `descriptor` stays the caller's.
File duplicate(int descriptor);

// The path from the root on; empty if the current folder has no name.
std::string absolute(const std::string& path);

struct FileStatus {
    std::uint64_t size = 0;                // bytes
    std::int64_t modified = 0;             // nanoseconds since 1970
    std::uint64_t device = 0, number = 0;  // the same for two descriptors of one file
};
// None if this is not a regular file.
std::optional<FileStatus> status_of_regular(const File& file);

// The CPUs that the control groups of this process may use at most, as those of a container; infinite without a quota.
// The Python package has the same function in nnue_trainer/base/system.py. `root` is for tests.
double cpu_quota(const std::string& root = "/");

// How many files this process may have open.
std::size_t most_open_files();

// Cuts the file off or appends zeros; false, with errno, if that fails.
bool resize(const File& file, std::uint64_t bytes);

// How many bytes a call read or wrote, and errno if fewer than requested for another reason than the file's end. A call
// that writes nothing, without a reason, is EIO.
struct Done {
    std::size_t bytes = 0;
    int error = 0;
};
// All of `out`, unless the file ends or an error occurs. The position of the file stays.
Done read_at(const File& file, std::uint64_t offset, std::span<std::uint8_t> out);
Done write_at(const File& file, std::uint64_t offset, std::span<const std::uint8_t> bytes);
// At the position of the file, which moves on.
Done write(const File& file, std::span<const std::uint8_t> bytes);

// Starts writing to the disk and returns at once; does nothing if the system has no call for that.
void start_sync(const File& file);
// Returns when all is on the disk; false, with errno, if it cannot be written.
bool sync(const File& file);

// A symbol of a shared library, which stays loaded for as long as the process runs: its code may be called at any time.
// Null, with the reason in `why`, if the library or the symbol is missing.
void* symbol_of_library(const std::string& library, const char* symbol, std::string& why);

// Requests huge pages for memory that nothing has been written to yet. The system may ignore this, and memory that is
// already in use stays as it is.
void request_huge_pages(void* memory, std::size_t bytes);

// Identifies this process; a child of fork() has another number.
std::int64_t process_id();

}  // namespace nnue::system
