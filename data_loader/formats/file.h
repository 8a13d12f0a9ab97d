// Files: reads at an offset that never return less than was requested, and output to a file that the caller has opened.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/system.h"
#include "chess/fen.h"

namespace nnue::data {

// A file, or a chunk of it, is not what it was when it was opened or listed. Not an error of a chunk: skip_bad_chunks
// does not leave it out.
struct ContentChanged : FormatError {
    using FormatError::FormatError;
};

// A file as it was when it was opened: bytes that are appended later are not read. Copies share one descriptor.
//
// Where more files are open than the process may have, the descriptor of the one that was read least recently is
// closed, and opened again when it is read. If another file has its name by then, that is a ContentChanged.
class InputFile {
  public:
    // Throws FormatError naming the file if it cannot be opened or is not a regular file.
    explicit InputFile(std::string path);
    // A file that is open already, under a name for messages; `fd` stays the caller's. It is never closed in between.
    InputFile(std::string path, int fd);

    const std::string& path() const;
    std::uint64_t size() const;  // when it was opened
    // Now. Throws FormatError if that is not a regular file.
    system::FileStatus status() const;
    // Another descriptor of the file.
    system::File duplicate() const;

    // Fills `out` from `offset`; throws FormatError if the file ends before (it may shrink while it is read). From
    // several threads.
    void read(std::uint64_t offset, std::span<std::uint8_t> out) const;

    // "path: offset N: what"
    FormatError error(std::uint64_t offset, const std::string& what) const;

    struct Open;  // file.cpp

  private:
    std::shared_ptr<Open> open_;
};

// Digests of samples of 4 KiB: of the first and the last one, and of sixteen that are spread evenly over the file.
// They detect accidents, as those of chunks do (chunk_digest.h).
struct SampleDigests {
    std::uint64_t ends = 0, all = 0;
};
SampleDigests digest_samples(const InputFile& file);
std::uint64_t digest_ends(const InputFile& file);

// The most files that InputFile keeps open at a time; by default what the process may have, less 256 or half of it.
void set_most_open_files(std::size_t files);
// How many it has open now.
std::size_t open_input_files();

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
