// A file of positions in any format as chunks that can be decoded in any order, from several threads: what the pipeline
// shuffles and shares out. docs/data.md, "Chunks of the formats".
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "formats/binpack.h"
#include "formats/codecs.h"
#include "formats/file.h"

namespace nnue::data {

class PositionFile {
  public:
    // What makes a chunk where the format has none; the order of every training run depends on them.
    static constexpr std::size_t kRecordsPerChunk = std::size_t{1} << 15;  // formats of fixed records
    static constexpr std::size_t kBytesPerChunk = std::size_t{1} << 20;    // text, plain: what begins in so many bytes

    virtual ~PositionFile() = default;

    virtual const InputFile& file() const = 0;
    virtual Format format() const = 0;
    virtual std::size_t num_chunks() const = 0;
    const std::string& path() const { return file().path(); }

    // What is wrong with the end of the file, if it was left out (OnBad::kSkip); else empty.
    virtual const std::string& torn_end() const = 0;

    // Decodes a whole chunk into `records`, and the flags of its positions if wanted; `bytes` is scratch. Returns how
    // many of the positions have no score (kScoreNone). Throws FormatError naming file, offset and chunk if a byte of
    // it is wrong.
    virtual std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                               std::vector<std::uint8_t>* flags = nullptr) const = 0;
};

struct OpenOptions {
    // kSkip: a record, or a binpack's chunk, that the file ends inside of is left out, and torn_end() says so.
    OnBad on_bad = OnBad::kError;
    std::size_t records_per_chunk = PositionFile::kRecordsPerChunk;
    std::size_t bytes_per_chunk = PositionFile::kBytesPerChunk;
    // Called now and then while a large file is indexed; what it throws ends that.
    std::function<void()> poll;
};

// Tells the format by content. Throws FormatError naming the file if it is in none.
std::unique_ptr<PositionFile> open_position_file(InputFile file, const OpenOptions& options = {});

}  // namespace nnue::data
