// A file of positions in any format as chunks that can be decoded in any order, from several threads: what the pipeline
// shuffles and shares out. docs/data.md, "The loader".
#pragma once

#include <memory>
#include <vector>

#include "formats/file.h"
#include "formats/format.h"
#include "formats/record_buffer.h"

namespace nnue::data {

class PositionFile {
  public:
    explicit PositionFile(const DataFormat& format) : format_(format) {}
    virtual ~PositionFile() = default;

    const DataFormat& format() const { return format_; }
    virtual const InputFile& file() const = 0;
    virtual std::size_t num_chunks() const = 0;
    const std::string& path() const { return file().path(); }

    // The error of the file's end, if it was left out (OnBad::kSkip); else empty.
    virtual const std::string& torn_end() const = 0;

    // Decodes a whole chunk into `records`, and the flags of its positions if requested. `bytes` is scratch. `digest`,
    // unless null, gets a digest of the chunk's bytes, or of its records where the bytes are not read at once. Returns
    // how many of the positions have no score (kScoreNone). Throws FormatError naming file, offset and chunk if a byte
    // of it is wrong.
    virtual std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                               std::vector<std::uint8_t>* flags = nullptr, std::uint64_t* digest = nullptr) const = 0;

    // Where the chunks are, for OpenOptions::layout; empty in formats in which the size of the file shows it.
    virtual std::vector<std::uint8_t> layout() const { return {}; }

    // The bytes of a chunk. Whole chunks, of one file or several, one after the other are a file of the format.
    virtual void read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes) const = 0;
    // A line that must stand before the bytes of a chunk but the first one; empty if there is none.
    virtual std::string header() const { return {}; }

  private:
    const DataFormat& format_;
};

// Detects the format from the content. Throws FormatError naming the file if it is in none.
std::unique_ptr<PositionFile> open_position_file(InputFile file, const OpenOptions& options = {});

}  // namespace nnue::data
