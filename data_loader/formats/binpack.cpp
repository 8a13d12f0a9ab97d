#include "formats/binpack.h"

#include <algorithm>
#include <cstring>
#include <ranges>

#include "formats/chunk_digest.h"
#include "formats/codec.h"
#include "formats/movetext.h"
#include "formats/position_file.h"
#include "formats/reader.h"
#include "formats/writer.h"
#include "pipeline/kernels.h"

namespace nnue::data {

extern const DataFormat kBinpack;

namespace {

constexpr std::uint32_t kMaxPayload = 100u << 20;
constexpr std::size_t kStep = 256;  // positions; they and their bytes stay in the first cache, for the digest
constexpr std::size_t kFlushPayload = 1u << 20;
constexpr std::size_t kHeader = kBinpackHeader, kStem = kBinpackStem;
constexpr unsigned kMaxChainPlies = 65535;
constexpr std::size_t kMaxPlyBytes = 8;  // of movetext: at most 4 + 5 + 20 bits, and BitWriter's slack

void put_header(std::uint8_t (&header)[kHeader], std::uint32_t size) {
    std::memcpy(header, "BINP", 4);
    for (int i = 0; i < 4; ++i) header[4 + i] = static_cast<std::uint8_t>(size >> 8 * i);
}

}  // namespace

std::uint32_t binpack_payload_size(std::span<const std::uint8_t> header) {
    if (header.size() < kHeader) {
        throw FormatError("has a header of " + std::to_string(header.size()) +
                          " bytes, expected 8: the file is truncated");
    }
    if (std::memcmp(header.data(), "BINP", 4) != 0) throw FormatError("does not start with 'BINP'");
    const std::uint32_t size = header[4] | header[5] << 8 | header[6] << 16 | std::uint32_t{header[7]} << 24;
    if (size > kMaxPayload) {
        throw FormatError("claims a payload of " + std::to_string(size) + " bytes, more than 100 MiB");
    }
    return size;
}

BinpackFile::BinpackFile(InputFile file, OnBad on_bad, const std::function<void()>& poll,
                         const std::vector<std::uint8_t>* layout)
    : file_(std::move(file)) {
    if (!layout || !take(*layout)) list(on_bad, poll);
    chunks_.shrink_to_fit();  // thousands of files may be open
}

// Whether the layout can be that of the file.
bool BinpackFile::take(const std::vector<std::uint8_t>& layout) {
    std::uint64_t at = 0;
    const auto ends_number = [](std::uint8_t byte) { return byte < 0x80; };
    chunks_.reserve(static_cast<std::size_t>(std::ranges::count_if(layout, ends_number)));
    for (std::size_t i = 0; i < layout.size();) {
        std::uint64_t size = 0;
        for (int shift = 0; i < layout.size() && shift < 35; shift += 7) {
            size |= std::uint64_t{layout[i] & 0x7fu} << shift;
            if (!(layout[i++] & 0x80)) break;
        }
        if (size > kMaxPayload) break;
        chunks_.push_back({at + kHeader, static_cast<std::uint32_t>(size)});
        at += kHeader + size;
    }
    if (at == file_.size()) return true;
    chunks_.clear();
    return false;
}

std::vector<std::uint8_t> BinpackFile::layout() const {
    std::vector<std::uint8_t> bytes;
    for (std::uint32_t size : chunks_ | std::views::transform(&BinpackChunk::size)) {
        for (; size >= 0x80; size >>= 7) bytes.push_back(static_cast<std::uint8_t>(size | 0x80));
        bytes.push_back(static_cast<std::uint8_t>(size));
    }
    return bytes;
}

void BinpackFile::list(OnBad on_bad, const std::function<void()>& poll) {
    constexpr std::size_t kBetweenPolls = 16;  // chunks; on a slow disk each is a seek of ten milliseconds
    for (std::uint64_t at = 0; at < file_.size();) {
        if (poll && chunks_.size() % kBetweenPolls == kBetweenPolls - 1) poll();
        const std::string name = "chunk " + std::to_string(chunks_.size());
        const std::uint64_t left = file_.size() - at;
        std::uint8_t header[kHeader];
        const std::span<std::uint8_t> present(header, std::min<std::uint64_t>(left, kHeader));
        file_.read(at, present);
        std::string torn;
        std::uint32_t size = 0;
        try {
            size = binpack_payload_size(present);
        } catch (const FormatError& e) {
            const FormatError error = file_.error(at, name + " " + e.what());
            if (left >= kHeader || on_bad == OnBad::kError) throw error;
            torn = error.what();
        }
        if (torn.empty() && size > left - kHeader) {
            const FormatError error = file_.error(at, name + " claims a payload of " + std::to_string(size) +
                                                          " bytes, but the file ends after " +
                                                          std::to_string(left - kHeader) + " of them: it is truncated");
            if (on_bad == OnBad::kError) throw error;
            torn = error.what();
        }
        if (!torn.empty()) {
            torn_end_ = std::move(torn);
            return;
        }
        chunks_.push_back({at + kHeader, size});
        at += kHeader + size;
    }
}

void BinpackFile::read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes, std::size_t padding) const {
    const auto [offset, size] = chunks_.at(chunk);
    bytes.resize(kHeader + size + padding);
    file_.read(offset - kHeader, {bytes.data(), kHeader + size});
    std::uint8_t header[kHeader];
    put_header(header, size);
    if (std::memcmp(header, bytes.data(), kHeader) != 0) {
        throw ContentChanged(file_
                                 .error(offset - kHeader, "chunk " + std::to_string(chunk) + " of " +
                                                              std::to_string(size) +
                                                              " bytes no longer begins here: the file has changed "
                                                              "since its chunks were listed; restore it, or "
                                                              "start a new run after `nnue data index --again`")
                                 .what());
    }
}

std::size_t BinpackFile::decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                                ChainCounts* counts, std::vector<std::uint8_t>* flags, std::uint64_t* digest) const {
    const auto [offset, size] = chunks_.at(chunk);
    read_chunk(chunk, bytes, kPayloadPadding);
    std::uint8_t* const payload = bytes.data() + kHeader;
    ChunkDigest digested(digest);
    std::fill_n(payload + size, kPayloadPadding, std::uint8_t{0});
    records.resize(0);
    std::size_t at = 0, unscored = 0;
    while (size - at >= kStem) {
        // Room for the next chain at least; usually for many, at the density seen so far.
        const std::size_t n = records.size(), next = 1 + load_be16(&payload[at + 32]);
        if (records.capacity() - n < next) {
            const std::size_t guess = at == 0 ? size / 4 : (size - at) * (n + 1) / at;
            records.reserve(n + std::max(next, std::min(guess, std::size_t{1} << 22)));
        }
        if (flags) flags->resize(records.capacity());
        const std::size_t room = std::min(records.capacity() - n, std::max(next, kStep));
        const DecodeResult result =
            kernels().decode_chains(payload, size, at, records.data() + n, flags ? flags->data() + n : nullptr, room);
        records.resize(n + result.positions);
        unscored += result.unscored;
        if (counts) counts->chains += result.chains, counts->single += result.single_chains;
        if (result.error) {
            throw file_.error(offset + result.offset, "chunk " + std::to_string(chunk) + ", chain at its byte " +
                                                          std::to_string(result.offset) + ": " + result.error);
        }
        at = result.offset;
        digested.reached(payload, at);
    }
    digested.finish(payload, size);
    return unscored;
}

BinpackWriter::BinpackWriter(std::string path, int fd) : file_(std::move(path), fd) {}

bool BinpackWriter::extends_chain(const Entry& e) const {
    return last_ && !last_->move.is_null() && !e.move.is_null() && chain_plies_ < kMaxChainPlies &&
           e.result == -last_->result && e.position.ply == last_->position.ply + 1 &&
           same_position(expected_, e.position);
}

void BinpackWriter::append(const Entry& e) {
    movetext_.resize(movetext_bits_ / 8 + 1 + kMaxPlyBytes);
    BitWriter writer(movetext_.data(), movetext_bits_);
    put_move(writer, e.position, e.move);
    put_score(writer, zigzag(static_cast<std::int16_t>(e.score + last_->score)));
    movetext_bits_ = writer.bits();
    ++chain_plies_;
}

void BinpackWriter::add(const Record& record) {
    Entry e;
    if (const char* error = unpack(record, e)) {
        throw FormatError(file_.path() + ": position " + std::to_string(positions_) + ": " + error);
    }
    if (!e.move.is_null() && !is_pseudo_legal(e.position, e.move)) {
        throw FormatError(file_.path() + ": position " + std::to_string(positions_) + ": no such move in " +
                          format_fen(e.position) + ": " + format_uci(e.move));
    }
    try {
        check_standard_castling(e.position, "a binpack");
    } catch (const FormatError& error) {
        throw FormatError(file_.path() + ": position " + std::to_string(positions_) + ": " + error.what());
    }
    if (!e.move.is_null() && (pieces(e.position, e.position.side_to_move ^ 1, kKing) & bit(e.move.to()))) {
        throw FormatError(file_.path() + ": position " + std::to_string(positions_) +
                          ": a move that takes a king: " + format_uci(e.move) + " in " + format_fen(e.position));
    }
    if (!join_chains) {  // the position after the move is not needed
        close_chain();
        stem_ = record;
        write_chain();
        ++positions_;
        return;
    }
    if (extends_chain(e)) {
        append(e);
    } else {
        close_chain();
        stem_ = record;
    }
    ++positions_;
    last_ = e;
    expected_ = e.position;
    if (!e.move.is_null()) play(expected_, e.move);
}

void BinpackWriter::close_chain() {
    if (!last_) return;
    write_chain();
    last_.reset();
}

void BinpackWriter::write_chain() {
    payload_.insert(payload_.end(), stem_.bytes.begin(), stem_.bytes.end());
    std::uint8_t plies[2];
    store_be16(plies, chain_plies_);
    payload_.insert(payload_.end(), plies, plies + 2);
    payload_.insert(payload_.end(), movetext_.begin(),
                    movetext_.begin() + static_cast<std::ptrdiff_t>((movetext_bits_ + 7) / 8));
    movetext_bits_ = 0;
    chain_plies_ = 0;
    ++chains_;
    if (payload_.size() >= kFlushPayload) flush();
}

void BinpackWriter::flush() {
    if (payload_.empty()) return;
    std::uint8_t header[kHeader];
    put_header(header, static_cast<std::uint32_t>(payload_.size()));
    file_.write(header);
    file_.write(payload_);
    payload_.clear();
}

void BinpackWriter::finish() {
    close_chain();
    flush();
}

// ---- the row of the table -------------------------------------------------------------------------------------------

namespace {

static_assert(ByteStream::kPadding >= kPayloadPadding);

class BinpackReader final : public StreamReader {
  public:
    using StreamReader::StreamReader;
    std::uint64_t chunks() const override { return chunk_; }
    ChainCounts chains() const override { return chains_; }

    std::size_t read(std::span<Record> out) override {
        std::size_t n = 0;
        while (n < out.size()) {
            if (taken_ < decoded_.size()) {
                const std::size_t count = std::min(out.size() - n, decoded_.size() - taken_);
                std::copy_n(decoded_.data() + taken_, count, &out[n]);
                taken_ += count;
                n += count;
            } else if (at_ < size_) {
                decode_some(out.subspan(n), n);
            } else if (!next_chunk()) {
                break;
            }
        }
        return n;
    }

  private:
    bool next_chunk() {
        stream_.advance(size_);
        size_ = at_ = 0;
        const auto header = stream_.peek(kBinpackHeader);
        if (header.empty()) return false;
        const std::uint64_t start = stream_.offset();
        const std::string name = "chunk " + std::to_string(chunk_++);
        // Without a sound header the place of the next chunk is unknown, so this is an error even where bad data is
        // left out.
        std::uint32_t size = 0;
        try {
            size = binpack_payload_size(header.first(std::min(header.size(), kBinpackHeader)));
        } catch (const FormatError& e) {
            throw stream_.error(start, name + " " + e.what());
        }
        stream_.advance(kBinpackHeader);
        const std::size_t found = stream_.peek(size).size();
        if (found < size) {
            bad(stream_.error(start, name + " claims a payload of " + std::to_string(size) +
                                         " bytes, but the file ends after " + std::to_string(found) +
                                         " of them: it is truncated"));
        }
        size_ = std::min<std::size_t>(size, found);
        return true;
    }

    // Chains that fit go straight to `out`, a longer one by way of the buffer.
    void decode_some(std::span<Record> out, std::size_t& n) {
        const std::uint8_t* payload = stream_.peek(size_).data();
        if (size_ - at_ < kBinpackStem) {
            at_ = size_;
            return;
        }
        const std::size_t next = 1 + std::size_t{load_be16(payload + at_ + 32)};
        const bool direct = next <= out.size();
        if (!direct) decoded_.reserve(next);
        const DecodeResult result = kernels().decode_chains(payload, size_, at_, direct ? out.data() : decoded_.data(),
                                                            nullptr, direct ? out.size() : next);
        chains_.chains += result.chains;
        chains_.single += result.single_chains;
        if (direct) {
            n += result.positions;
        } else {
            decoded_.resize(result.positions);
            taken_ = 0;
        }
        at_ = result.offset;
        if (result.error) {
            bad(stream_.error(stream_.offset() + at_, "chunk " + std::to_string(chunk_ - 1) + ", chain at its byte " +
                                                          std::to_string(at_) + ": " + result.error));
            at_ = size_;  // chains have no marks: the rest of the chunk is lost
        }
    }

    RecordBuffer decoded_;
    std::size_t taken_ = 0;  // positions of decoded_ that were handed out
    std::size_t size_ = 0;   // bytes of the payload that the stream stands at
    std::size_t at_ = 0;     // how many of them are decoded
    std::uint64_t chunk_ = 0;
    ChainCounts chains_;
};

class BinpackChunks final : public PositionFile {
  public:
    BinpackChunks(InputFile file, const OpenOptions& options)
        : PositionFile(kBinpack),
          file_(std::move(file), options.on_bad, options.poll, options.layout ? &options.layout->chunks : nullptr) {}
    const InputFile& file() const override { return file_.file(); }
    std::size_t num_chunks() const override { return file_.chunks().size(); }
    const std::string& torn_end() const override { return file_.torn_end(); }
    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                       std::vector<std::uint8_t>* flags, std::uint64_t* digest) const override {
        return file_.decode(chunk, bytes, records, nullptr, flags, digest);
    }
    void read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes) const override {
        file_.read_chunk(chunk, bytes);
    }
    std::vector<std::uint8_t> layout() const override { return file_.layout(); }

  private:
    BinpackFile file_;
};

class BinpackPositionWriter final : public PositionWriter {
  public:
    BinpackPositionWriter(const std::string& path, int fd, bool join_chains)
        : PositionWriter(kBinpack), writer_(path, fd) {
        writer_.join_chains = join_chains;
    }
    void write(std::span<const Record> records) override {
        for (const Record& record : records) writer_.add(record);
        positions_ = writer_.positions();
    }
    void finish() override { writer_.finish(); }

  private:
    BinpackWriter writer_;
};

Match match_binpack(const Head& head) {
    const bool marked = head.bytes.size() >= 4 && std::memcmp(head.bytes.data(), "BINP", 4) == 0;
    return {marked ? Match::kMarked : Match::kNo, {}};
}

}  // namespace

constinit const DataFormat kBinpack{
    "binpack",
    ".binpack",
    "chains of plies, 2.4 to 4.2 bytes per position",
    nullptr,
    match_binpack,
    [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
        return std::make_unique<BinpackReader>(kBinpack, std::move(stream), options.on_bad);
    },
    [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
        return std::make_unique<BinpackChunks>(std::move(file), options);
    },
    [](const std::string& path, int fd, const WriterOptions& options) -> std::unique_ptr<PositionWriter> {
        return std::make_unique<BinpackPositionWriter>(path, fd, options.join_chains);
    },
    0,
    0,
    0,
    true};
static const RegisteredFormat registered_binpack(kBinpack);

}  // namespace nnue::data
