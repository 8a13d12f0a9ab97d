// Files: positioned reads that never return less than asked for, and output that appears whole or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "chess/fen.h"

namespace nnue::data {

class InputFile {
  public:
    // Throws FormatError naming the file if it cannot be opened or is no regular file.
    explicit InputFile(std::string path);
    // A file that is open already, under a name for messages; `fd` stays the caller's.
    InputFile(std::string path, int fd);
    ~InputFile();
    InputFile(InputFile&& other) noexcept;
    InputFile& operator=(InputFile&&) = delete;

    const std::string& path() const { return path_; }
    std::uint64_t size() const { return size_; }

    // Fills `out` from `offset`; throws FormatError if the file ends before (it may shrink while it is read).
    void read(std::uint64_t offset, std::span<std::uint8_t> out) const;

    // "path: offset N: what"
    FormatError error(std::uint64_t offset, const std::string& what) const;

  private:
    void look_at();

    std::string path_;
    int fd_ = -1;
    std::uint64_t size_ = 0;
};

// Writes beside its place; commit() renames. Destroyed without it (an error, Ctrl-C), nothing is left behind.
class OutputFile {
  public:
    explicit OutputFile(std::string path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    const std::string& path() const { return path_; }
    void write(std::span<const std::uint8_t> bytes);
    void commit();

  private:
    [[noreturn]] void fail(const char* what) const;

    std::string path_, temporary_;
    int fd_ = -1;
    std::uint64_t unsynced_ = 0;  // bytes written since the disk was last told
};

}  // namespace nnue::data
