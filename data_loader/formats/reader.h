// One way to read positions from any format, as a stream of 32-byte records.
#pragma once

#include "formats/binpack.h"
#include "formats/codecs.h"
#include "formats/stream.h"

namespace nnue::data {

class PositionReader {
  public:
    virtual ~PositionReader() = default;

    // Up to out.size() next positions, 0 only at the end. Throws FormatError naming file and offset or line, what was
    // found and what was expected; the reader cannot be used after that.
    virtual std::size_t read(std::span<Record> out) = 0;

    virtual Format format() const = 0;
    // Bytes of the (decompressed) input taken so far.
    virtual std::uint64_t offset() const = 0;
    // Of a binpack so far.
    virtual std::uint64_t chunks() const { return 0; }
    virtual ChainCounts chains() const { return {}; }
    // With OnBad::kSkip, how much was left out: positions, or with binpack the rests of chunks.
    std::uint64_t skipped() const { return skipped_; }
    // What was wrong with the first of it; empty if nothing was.
    const std::string& first_skipped() const { return first_skipped_; }

  protected:
    void skip(const std::string& error) {
        if (skipped_++ == 0) first_skipped_ = error;
    }

  private:
    std::uint64_t skipped_ = 0;
    std::string first_skipped_;
};

// How much of a file detect_format() is meant to see.
inline constexpr std::size_t kFormatHead = 64 << 10;

// The format that these bytes, the first of a file (all of it if `whole`), are in. Throws FormatError naming `path` if
// they are in none, or could be in more than one. An empty file holds no positions in any: it counts as binpack.
Format detect_format(std::span<const std::uint8_t> head, bool whole, const std::string& path);

// Reads a stream whose format is known.
std::unique_ptr<PositionReader> open_reader(Format format, ByteStream stream, OnBad on_bad = OnBad::kError);

// Reads a stream and finds out.
std::unique_ptr<PositionReader> open_reader(ByteStream stream, OnBad on_bad = OnBad::kError);

// A part of a file of lines: the positions that begin in it. `name` stands in messages, with the offset for the line.
struct LineRange {
    std::uint64_t begin = 0, end = UINT64_MAX;
    std::string name;
};

// Reads a part of a file in format kText or kPlain, which must live longer.
std::unique_ptr<PositionReader> open_lines(Format format, const InputFile& file, LineRange range);

}  // namespace nnue::data
