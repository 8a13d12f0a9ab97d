// Data files by their paths: readers, and writers whose files are complete or absent.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "formats/reader.h"
#include "formats/writer.h"

namespace nnue::data {

// A reader of the file; the format is detected from the content. Throws a FormatError that names the file if it cannot
// be opened or has no known format. Compressed files must be decompressed by the caller (ByteSource).
std::unique_ptr<PositionReader> open_reader(const std::string& path, const ReadOptions& options = {});

// The format of a new file, by the suffix of its name. Throws a FormatError that lists the suffixes.
const DataFormat& format_of_suffix(std::string_view path);

// Writes a temporary file, which finish() renames. Without finish(), or if it throws, there is no new file, and an
// existing file of that name is kept. One thread at a time.
class FileWriter {
  public:
    // `format`: its name; empty: by the suffix of the path. Throws FormatError if it is unknown or read-only, or if the
    // file cannot be created.
    explicit FileWriter(const std::string& path, std::string_view format = {}, const WriterOptions& options = {});
    ~FileWriter();
    FileWriter(const FileWriter&) = delete;
    FileWriter& operator=(const FileWriter&) = delete;

    // Throws FormatError for a record that is not sound, and for a file that cannot be written.
    void write(std::span<const Record> records);
    void finish();

    const DataFormat& format() const;
    std::uint64_t positions() const;
    const Losses& losses() const;

  private:
    class Temporary;
    std::unique_ptr<Temporary> file_;
    std::unique_ptr<PositionWriter> writer_;
};

}  // namespace nnue::data
