// Files: reads at an offset that never return less than was requested, and output to a file that the caller has opened.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/system.h"
#include "chess/fen.h"

namespace nnue::data {

class InputFile {
  public:
    // Throws FormatError naming the file if it cannot be opened or is not a regular file.
    explicit InputFile(std::string path);
    // A file that is open already, under a name for messages; `fd` stays the caller's. Of a file that has grown since
    // the caller looked, `size` keeps what it was then; a file that has shrunk is an error.
    InputFile(std::string path, int fd, std::optional<std::uint64_t> size = std::nullopt);
    InputFile(InputFile&&) noexcept = default;

    const std::string& path() const { return path_; }
    std::uint64_t size() const { return size_; }
    int fd() const { return file_.descriptor(); }  // for as long as this object lives

    // Fills `out` from `offset`; throws FormatError if the file ends before (it may shrink while it is read).
    void read(std::uint64_t offset, std::span<std::uint8_t> out) const;

    // "path: offset N: what"
    FormatError error(std::uint64_t offset, const std::string& what) const;

  private:
    void look_at();

    std::string path_;
    system::File file_;
    std::uint64_t size_ = 0;
};

// An open file to write to. That it is complete or absent is up to who opened it (nnue_trainer/files/atomic.py).
class OutputFile {
  public:
    // `path` is for messages; `fd` stays the caller's. Throws FormatError if the descriptor cannot be duplicated.
    OutputFile(std::string path, int fd);

    const std::string& path() const { return path_; }
    // Throws FormatError naming the file and the system's error (a full disk).
    void write(std::span<const std::uint8_t> bytes);

  private:
    std::string path_;
    system::File file_;
    std::uint64_t unsynced_ = 0;  // bytes written since the disk was last synced
};

}  // namespace nnue::data
