#include "formats/reader.h"

#include <algorithm>
#include <cstring>

#include "chess/record.h"
#include "formats/movetext.h"
#include "pipeline/kernels.h"
#include "pipeline/parallel.h"

namespace nnue::data {

namespace {

static_assert(ByteStream::kPadding >= kPayloadPadding);

class StreamReader : public PositionReader {
  public:
    StreamReader(ByteStream stream, OnBad on_bad) : stream_(std::move(stream)), on_bad_(on_bad) {}
    std::uint64_t offset() const override { return stream_.offset(); }

  protected:
    // Throws, or counts what is left out.
    void bad(const FormatError& error) {
        if (on_bad_ == OnBad::kError) throw error;
        skip(error.what());
    }

    ByteStream stream_;
    OnBad on_bad_;
};

class BinpackReader final : public StreamReader {
  public:
    using StreamReader::StreamReader;
    Format format() const override { return Format::kBinpack; }
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
        // Without a sound header there is no telling where the next chunk begins: an error always.
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
    std::size_t taken_ = 0;  // of decoded_
    std::size_t size_ = 0;   // of the payload that the stream stands at
    std::size_t at_ = 0;     // in it
    std::uint64_t chunk_ = 0;
    ChainCounts chains_;
};

template <Format kFormat, std::size_t kSize, Entry (*kDecode)(std::span<const std::uint8_t, kSize>)>
class FixedReader final : public StreamReader {
  public:
    using StreamReader::StreamReader;
    Format format() const override { return kFormat; }

    std::size_t read(std::span<Record> out) override {
        std::size_t n = 0;
        while (n < out.size()) {
            const auto bytes = stream_.peek(kSize);
            if (bytes.empty()) break;
            if (bytes.size() < kSize) {
                bad(error("a record of " + std::to_string(bytes.size()) + " bytes, expected " + std::to_string(kSize) +
                          ": the file is truncated, or in another format"));
                stream_.advance(bytes.size());
                break;
            }
            const std::size_t count = std::min(bytes.size() / kSize, out.size() - n);
            n += decode(bytes.first(count * kSize), out.subspan(n, count));
        }
        return n;
    }

  private:
    static Record decode_one(std::span<const std::uint8_t> bytes, std::size_t i) {
        return pack(kDecode(std::span<const std::uint8_t, kSize>(&bytes[i * kSize], kSize)));
    }

    // On several threads; if something is wrong, once more in order, to find the first thing that is.
    std::size_t decode(std::span<const std::uint8_t> bytes, std::span<Record> out) {
        try {
            parallel_for(out.size(), 0, [&](std::size_t begin, std::size_t end) {
                for (std::size_t i = begin; i < end; ++i) out[i] = decode_one(bytes, i);
            });
            stream_.advance(bytes.size());
            return out.size();
        } catch (const FormatError&) {
        }
        std::size_t n = 0;
        for (std::size_t i = 0; i < out.size(); ++i) {
            try {
                out[n] = decode_one(bytes, i);
                ++n;
            } catch (const FormatError& e) {
                bad(error(e.what()));
            }
            stream_.advance(kSize);
        }
        return n;
    }

    FormatError error(const std::string& what) const {
        return stream_.error(stream_.offset(), "position " + std::to_string(stream_.offset() / kSize) + ": " + what);
    }
};

// Lines without their ends, counted from 1.
class LineReader : public StreamReader {
  public:
    // The stream of a range that does not start the file begins one byte before it: is that the end of a line?
    LineReader(ByteStream stream, OnBad on_bad, LineRange range = {})
        : StreamReader(std::move(stream), on_bad), range_(std::move(range)) {
        if (range_.begin > 0) skip_line();
    }

  protected:
    static constexpr std::size_t kMaxLine = 4096;

    // The next line; false at the end. A line that is too long is an error in every case: this is no text.
    bool next_line(std::string_view& line) {
        stream_.advance(pending_);
        pending_ = 0;
        auto bytes = stream_.peek(1);
        if (bytes.empty()) return false;
        ++line_;
        const void* end = std::memchr(bytes.data(), '\n', std::min(bytes.size(), kMaxLine));
        if (!end && bytes.size() < kMaxLine) {
            bytes = stream_.peek(kMaxLine);
            end = std::memchr(bytes.data(), '\n', std::min(bytes.size(), kMaxLine));
        }
        if (!end && bytes.size() >= kMaxLine) {
            throw error("a line of more than " + std::to_string(kMaxLine) + " characters");
        }
        const std::size_t size =
            end ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(end) - bytes.data()) : bytes.size();
        line = {reinterpret_cast<const char*>(bytes.data()), size};
        pending_ = size + (end ? 1 : 0);
        return true;
    }

    // Does the line handed out begin behind the range?
    bool is_past_range() const { return stream_.offset() >= range_.end; }
    bool is_whole_file() const { return range_.name.empty(); }
    bool starts_file() const { return range_.begin == 0; }

    FormatError error(const std::string& what) const {
        if (!is_whole_file()) return stream_.error(stream_.offset(), range_.name + ": " + what);
        return FormatError(stream_.path() + ": line " + std::to_string(line_) + ": " + what);
    }

  private:
    // The rest of a line that the range before has.
    void skip_line() {
        while (!is_past_range()) {
            const auto bytes = stream_.peek(1);
            if (bytes.empty()) return;
            const void* end = std::memchr(bytes.data(), '\n', bytes.size());
            stream_.advance(end ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(end) - bytes.data()) + 1
                                : bytes.size());
            if (end) return;
        }
    }

    LineRange range_;
    std::uint64_t line_ = 0;
    std::size_t pending_ = 0;  // bytes of the line handed out
};

class TextReader final : public LineReader {
  public:
    using LineReader::LineReader;
    Format format() const override { return Format::kText; }

    std::size_t read(std::span<Record> out) override {
        std::size_t n = 0;
        std::string_view line;
        while (n < out.size() && !ended_ && next_line(line)) {
            if ((ended_ = is_past_range())) break;
            if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
            try {
                out[n] = pack(decode_text(line));
                ++n;
            } catch (const FormatError& e) {
                bad(error(e.what()));
            }
        }
        return n;
    }

  private:
    bool ended_ = false;
};

class PlainReader final : public LineReader {
  public:
    PlainReader(ByteStream stream, OnBad on_bad, LineRange range = {})
        : LineReader(std::move(stream), on_bad, std::move(range)), resynchronise_(!starts_file()) {}
    Format format() const override { return Format::kPlain; }

    std::size_t read(std::span<Record> out) override {
        std::size_t n = 0;
        std::string_view line;
        while (n < out.size() && !ended_) {
            if (!next_line(line)) {
                if (parser_.inside()) {
                    parser_.reset();
                    bad(error("the file ends inside a position, expected 'e': it is truncated"));
                }
                break;
            }
            const bool begins = begins_position(line);
            // What is left of the last position is still this range's.
            if ((ended_ = begins && is_past_range())) {
                if (parser_.inside()) bad(error("a second 'fen' in one position"));
                break;
            }
            // After a line that is wrong, or inside a position of the range before, the next one begins with "fen".
            if (resynchronise_ && !begins) continue;
            resynchronise_ = false;
            try {
                if (parser_.add(line)) out[n++] = pack(parser_.entry());
            } catch (const FormatError& e) {
                bad(error(e.what()));
                parser_.reset();
                resynchronise_ = true;
            }
        }
        return n;
    }

  private:
    static bool begins_position(std::string_view line) {
        line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
        return line.starts_with("fen ") || line.starts_with("fen\t");
    }

    PlainParser parser_;
    bool resynchronise_, ended_ = false;
};

using BinReader = FixedReader<Format::kBin, kBinSize, decode_bin>;
using BulletformatReader = FixedReader<Format::kBulletformat, kBulletformatSize, decode_bulletformat>;
using MarlinformatReader = FixedReader<Format::kMarlinformat, kMarlinformatSize, decode_marlinformat>;

// --- which format? ---------------------------------------------------------------------------------------------------

constexpr std::size_t kLineBlock = 1 << 16;  // bytes read at a time where only a part of a file is wanted

class SpanSource final : public ByteSource {
  public:
    explicit SpanSource(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
    std::size_t read(std::span<std::uint8_t> out) override {
        const std::size_t n = std::min(out.size(), bytes_.size());
        std::copy_n(bytes_.begin(), n, out.begin());
        bytes_ = bytes_.subspan(n);
        return n;
    }

  private:
    std::span<const std::uint8_t> bytes_;
};

bool looks_like_text(std::span<const std::uint8_t> head) {
    return std::ranges::all_of(head.first(std::min<std::size_t>(head.size(), 4096)), [](std::uint8_t c) {
        return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
    });
}

}  // namespace

Format detect_format(std::span<const std::uint8_t> head, bool whole, const std::string& path) {
    if (head.empty()) return Format::kBinpack;  // of no chunks
    if (head.size() >= 4 && std::memcmp(head.data(), "BINP", 4) == 0) return Format::kBinpack;
    if (looks_like_text(head)) {
        std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
        text = text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
        text = text.substr(0, text.find('\n'));
        if (text.starts_with("fen ")) return Format::kPlain;
        if (text.find('|') != std::string_view::npos) return Format::kText;
        throw FormatError(path +
                          ": lines of text, but neither 'fen …' (plain) nor '<FEN> | <score> | <result>' (text)");
    }
    // The others have no mark. A format it is if every record looked at is sound in it, and if all of a short file is
    // records.
    std::vector<const FormatInfo*> sound;
    std::string failures;
    for (const FormatInfo& info : formats()) {
        if (!info.record_size) continue;
        const std::size_t bytes = head.size() / info.record_size * info.record_size;
        std::string failure;
        if (bytes == 0) failure = std::to_string(head.size()) + " bytes are less than one record";
        try {
            auto source = std::make_unique<SpanSource>(head.first(bytes));
            const auto reader =
                open_reader(info.id, ByteStream("", std::move(source), std::max<std::size_t>(bytes, 1)));
            Record records[64];
            while (reader->read(records) != 0) {
            }
        } catch (const FormatError& e) {
            failure = std::string_view(e.what()).substr(2);  // after the empty path
        }
        if (failure.empty()) {
            sound.push_back(&info);
        } else {
            failures += (failures.empty() ? "" : "; ") + std::string(info.name) + ": " + failure;
        }
    }
    if (sound.size() > 1 && whole) {
        std::erase_if(sound, [&](const FormatInfo* info) { return head.size() % info->record_size != 0; });
    }
    if (sound.size() == 1) return sound[0]->id;
    if (sound.empty()) throw FormatError(path + ": in no known format (" + failures + ")");
    throw FormatError(path + ": could be " + sound[0]->name + " or " + sound[1]->name +
                      ", so the format must be named");
}

std::unique_ptr<PositionReader> open_reader(Format format, ByteStream stream, OnBad on_bad) {
    switch (format) {
        case Format::kBinpack:
            return std::make_unique<BinpackReader>(std::move(stream), on_bad);
        case Format::kBin:
            return std::make_unique<BinReader>(std::move(stream), on_bad);
        case Format::kBulletformat:
            return std::make_unique<BulletformatReader>(std::move(stream), on_bad);
        case Format::kMarlinformat:
            return std::make_unique<MarlinformatReader>(std::move(stream), on_bad);
        case Format::kText:
            return std::make_unique<TextReader>(std::move(stream), on_bad);
        case Format::kPlain:
            return std::make_unique<PlainReader>(std::move(stream), on_bad);
    }
    throw FormatError(stream.path() + ": unknown format");
}

std::unique_ptr<PositionReader> open_reader(ByteStream stream, OnBad on_bad) {
    const auto head = stream.peek(kFormatHead);
    const bool whole = head.size() < kFormatHead;
    const Format format = detect_format(head.first(std::min(head.size(), kFormatHead)), whole, stream.path());
    return open_reader(format, std::move(stream), on_bad);
}

std::unique_ptr<PositionReader> open_lines(Format format, const InputFile& file, LineRange range) {
    const std::uint64_t from = range.begin > 0 ? range.begin - 1 : 0;
    ByteStream stream(file.path(), open_file_source(file, from), kLineBlock, from);
    if (format == Format::kText)
        return std::make_unique<TextReader>(std::move(stream), OnBad::kError, std::move(range));
    return std::make_unique<PlainReader>(std::move(stream), OnBad::kError, std::move(range));
}

}  // namespace nnue::data
