// One way to read positions from any format, as a stream of 32-byte records.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "chess/types.h"
#include "formats/format.h"
#include "formats/stream.h"

namespace nnue::data {

struct ChainCounts {
    std::uint64_t chains = 0, single = 0;  // single: chains of one position
};

class PositionReader {
  public:
    explicit PositionReader(const DataFormat& format) : format_(format) {}
    virtual ~PositionReader() = default;

    // Reads up to out.size() positions; returns 0 only at the end. Throws a FormatError that names file, offset or
    // line, what was found and what was expected; then the reader cannot be used any further.
    virtual std::size_t read(std::span<Record> out) = 0;

    // `read` with the bytes of each position, format().original_size of them.
    virtual std::size_t read_originals(std::span<Record> out, std::uint8_t* originals) {
        static_cast<void>(originals);
        return read(out);
    }

    const DataFormat& format() const { return format_; }
    // Bytes of the (decompressed) input read so far.
    virtual std::uint64_t offset() const = 0;
    // For a binpack: chunks and chains read so far.
    virtual std::uint64_t chunks() const { return 0; }
    virtual ChainCounts chains() const { return {}; }
    // Decisions and omissions of the reader so far that are not errors, as text.
    virtual std::vector<std::string> notes() const { return {}; }
    // Number of skipped positions; for a binpack, of chunk remainders (OnBad::kSkip).
    std::uint64_t skipped() const { return skipped_; }
    // The first error; empty if there was none.
    const std::string& first_skipped() const { return first_skipped_; }

  protected:
    void skip(const std::string& error) {
        if (skipped_++ == 0) first_skipped_ = error;
    }

  private:
    const DataFormat& format_;
    std::uint64_t skipped_ = 0;
    std::string first_skipped_;
};

// A reader of a stream, with the handling of errors that all formats share.
class StreamReader : public PositionReader {
  public:
    StreamReader(const DataFormat& format, ByteStream stream, OnBad on_bad)
        : PositionReader(format), stream_(std::move(stream)), on_bad_(on_bad) {}
    std::uint64_t offset() const override { return stream_.offset(); }

  protected:
    // Throws, or counts what is skipped.
    void bad(const FormatError& error) {
        if (on_bad_ == OnBad::kError) throw error;
        skip(error.what());
    }

    ByteStream stream_;
    OnBad on_bad_;
};

// A reader of a stream; the format is detected from the content.
std::unique_ptr<PositionReader> open_reader(ByteStream stream, const ReadOptions& options = {});

}  // namespace nnue::data
