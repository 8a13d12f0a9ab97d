// A file of positions in any format as chunks that can be decoded in any order, from several threads: what the pipeline
// shuffles and shares out. docs/data.md, "Chunks of the formats".
#pragma once

#include <memory>
#include <vector>

#include "formats/binpack.h"
#include "formats/codecs.h"
#include "formats/file.h"

namespace nnue::data {

class PositionFile {
  public:
    // What makes a chunk where the format has none; the order of every training run depends on them.
    static constexpr std::size_t kRecordsAChunk = std::size_t{1} << 15;  // formats of fixed records
    static constexpr std::size_t kBytesAChunk = std::size_t{1} << 20;    // text, plain: what begins in so many bytes

    virtual ~PositionFile() = default;

    virtual const std::string& path() const = 0;
    virtual Format format() const = 0;
    virtual std::size_t num_chunks() const = 0;

    // Decodes a whole chunk into `records`, and the flags of its positions if wanted; `bytes` is scratch. Throws
    // FormatError naming file, offset and chunk if a byte of it is wrong.
    virtual void decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                        std::vector<std::uint8_t>* flags = nullptr) const = 0;
};

// Tells the format by content. Throws FormatError naming the file if it is in none.
std::unique_ptr<PositionFile> open_position_file(InputFile file,
                                                 std::size_t records_a_chunk = PositionFile::kRecordsAChunk,
                                                 std::size_t bytes_a_chunk = PositionFile::kBytesAChunk);

}  // namespace nnue::data
