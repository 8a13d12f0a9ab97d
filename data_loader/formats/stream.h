// Bytes in order, from a file or from whatever decompresses one, with a look ahead.
#pragma once

#include <memory>

#include "formats/file.h"

namespace nnue::data {

// Where the bytes come from.
class ByteSource {
  public:
    virtual ~ByteSource() = default;
    // Up to out.size() next bytes; 0 only at the end. Throws FormatError.
    virtual std::size_t read(std::span<std::uint8_t> out) = 0;
};

// The bytes of a regular file as it was when it was opened: one that shrinks is an error.
std::unique_ptr<ByteSource> open_file_source(const std::string& path);

// The bytes of an open file from `offset` on; the file must live longer.
std::unique_ptr<ByteSource> open_file_source(const InputFile& file, std::uint64_t offset);

// A buffer over a source. Memory: `block` bytes, or the longest look ahead that was requested.
class ByteStream {
  public:
    // Bytes that may be read past the end of what peek() returns, for decoders that load words; their value is unknown.
    static constexpr std::size_t kPadding = 16;

    // `offset`: what stands before the source's first byte, for messages.
    ByteStream(std::string path, std::unique_ptr<ByteSource> source, std::size_t block = std::size_t{1} << 20,
               std::uint64_t offset = 0)
        : path_(std::move(path)), source_(std::move(source)), block_(block), offset_(offset) {}

    const std::string& path() const { return path_; }

    // The next `want` bytes at least, fewer only where the input ends before. Valid until the next call.
    std::span<const std::uint8_t> peek(std::size_t want);
    // Goes on after `count` of the bytes peeked at.
    void advance(std::size_t count) { begin_ += count, offset_ += count; }
    // Bytes of the (decompressed) input before the next one.
    std::uint64_t offset() const { return offset_; }

    // "path: offset N: what"
    FormatError error(std::uint64_t offset, const std::string& what) const;

  private:
    std::string path_;
    std::unique_ptr<ByteSource> source_;
    std::size_t block_;  // bytes requested of the source at a time
    std::unique_ptr<std::uint8_t[]> buffer_;
    std::size_t capacity_ = 0, begin_ = 0, end_ = 0;
    std::uint64_t offset_;
    bool ended_ = false;
};

}  // namespace nnue::data
