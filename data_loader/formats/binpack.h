// The .binpack format: chunks of chains of positions. docs/binpack.md, "binpack".
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "chess/types.h"
#include "formats/file.h"
#include "formats/format.h"
#include "formats/reader.h"
#include "formats/record_buffer.h"

namespace nnue::data {

inline constexpr std::size_t kBinpackHeader = 8, kBinpackStem = 34;  // bytes; the stem with its number of plies

// The payload size that the header of a chunk claims. Throws FormatError, to be put after "chunk N", if fewer than
// kBinpackHeader bytes are left or they are not a header.
std::uint32_t binpack_payload_size(std::span<const std::uint8_t> header);

struct BinpackChunk {
    std::uint64_t offset;  // of the payload in the file; the 8-byte header lies before it
    std::uint32_t size;
};

// One file, its chunks indexed when it is opened. Safe to use from several threads.
class BinpackFile {
  public:
    // Throws FormatError naming file and offset for anything but a run of whole chunks. OnBad::kSkip leaves out a last
    // chunk that the file ends inside of; a wrong header is an error always, as the place of the next chunk is unknown.
    // `poll`, if given, is called now and then while a large file is indexed; what it throws ends that.
    // `layout`: what layout() was for the same bytes; then nothing is read, and decode() finds out if it does not fit.
    explicit BinpackFile(InputFile file, OnBad on_bad = OnBad::kError, const std::function<void()>& poll = {},
                         const std::vector<std::uint8_t>* layout = nullptr);
    explicit BinpackFile(std::string path) : BinpackFile(InputFile(std::move(path))) {}

    const std::string& path() const { return file_.path(); }
    std::uint64_t size() const { return file_.size(); }
    const std::vector<BinpackChunk>& chunks() const { return chunks_; }

    // Decodes a whole chunk into `records`, and the flags of its positions on request; `payload` is scratch. `counts`,
    // if given, grows by its chains; `digest`, if given, gets the digest of its bytes. Returns how many of the
    // positions have no score (kScoreNone). Throws FormatError naming file, offset and chunk if a byte of it is wrong.
    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& payload, RecordBuffer& records,
                       ChainCounts* counts = nullptr, std::vector<std::uint8_t>* flags = nullptr,
                       std::uint64_t* digest = nullptr) const;

    // The sizes of the payloads as LEB128.
    std::vector<std::uint8_t> layout() const;
    // Reads the payload of a chunk to bytes[kBinpackHeader …], and the header before it. Throws ContentChanged if it
    // does not begin where it did when the file was listed.
    void read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes, std::size_t padding = 0) const;

    // The error of the file's end, if it was left out; else empty.
    const std::string& torn_end() const { return torn_end_; }
    const InputFile& file() const { return file_; }

  private:
    void list(OnBad on_bad, const std::function<void()>& poll);
    bool take(const std::vector<std::uint8_t>& layout);

    InputFile file_;
    std::vector<BinpackChunk> chunks_;
    std::string torn_end_;
};

// Writes entries as chains: an entry extends the current chain where it is the next ply of the same game.
class BinpackWriter {
  public:
    // `path` is for messages; `fd` an open file, which stays the caller's.
    BinpackWriter(std::string path, int fd);

    // Throws FormatError for a record that is not sound or whose move is not pseudo-legal (a null move is allowed).
    void add(const Record& record);

    // Writes what is still held back. The file is whole after it, and only then.
    void finish();

    std::uint64_t positions() const { return positions_; }
    std::uint64_t chains() const { return chains_; }

    // Off: every position becomes a separate chain, as in shuffled files (stride 34 bytes).
    bool join_chains = true;

  private:
    bool extends_chain(const Entry& entry) const;
    void append(const Entry& entry);
    void close_chain();
    void write_chain();
    void flush();

    OutputFile file_;
    std::vector<std::uint8_t> payload_, movetext_;
    std::size_t movetext_bits_ = 0;
    std::uint64_t positions_ = 0, chains_ = 0;
    unsigned chain_plies_ = 0;
    Record stem_;
    std::optional<Entry> last_;  // the last entry of the open chain
    Position expected_;          // the position after its move
};

}  // namespace nnue::data
