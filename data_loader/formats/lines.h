// Formats that consist of lines of text. Such a format is a reader derived from LineReader, made by line_format<Reader,
// …>.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "chess/record.h"
#include "filters/filters.h"
#include "formats/chunk_digest.h"
#include "formats/codec.h"
#include "formats/independent_writer.h"
#include "formats/position_file.h"
#include "formats/reader.h"

namespace nnue::data {

// A part of a file of lines: the positions that begin in it. Messages use `name`, and the offset in place of the line.
struct LineRange {
    std::uint64_t begin = 0, end = UINT64_MAX;
    std::string name;
    std::string header = {};  // the line at the beginning of the file that names columns
};

// Lines without their ends, counted from 1.
class LineReader : public StreamReader {
  public:
    // The stream of a range that does not start the file begins one byte before it: is that the end of a line?
    LineReader(const DataFormat& format, ByteStream stream, OnBad on_bad, LineRange range = {},
               std::size_t max_line = 4096)
        : StreamReader(format, std::move(stream), on_bad), range_(std::move(range)), max_line_(max_line) {
        if (range_.begin > 0) skip_line();
    }

  protected:
    // The next line; false at the end. A line that is too long is an error in every case: this is not text.
    bool next_line(std::string_view& line) {
        stream_.advance(pending_);
        pending_ = 0;
        auto bytes = stream_.peek(1);
        if (bytes.empty()) return false;
        if (++line_ == 1 && starts_file() && is_marked(stream_.peek(3))) {
            has_mark_ = true;
            stream_.advance(3);
            bytes = stream_.peek(1);
            if (bytes.empty()) return false;
        }
        const void* end = std::memchr(bytes.data(), '\n', std::min(bytes.size(), max_line_));
        if (!end && bytes.size() < max_line_) {
            bytes = stream_.peek(max_line_);
            end = std::memchr(bytes.data(), '\n', std::min(bytes.size(), max_line_));
        }
        if (!end && bytes.size() >= max_line_) {
            throw error("a line of more than " + std::to_string(max_line_) + " characters");
        }
        const std::size_t size =
            end ? static_cast<std::size_t>(static_cast<const std::uint8_t*>(end) - bytes.data()) : bytes.size();
        line = {reinterpret_cast<const char*>(bytes.data()), size};
        pending_ = size + (end ? 1 : 0);
        has_crlf_ |= line.ends_with('\r');
        return true;
    }

    // The marks of other systems that were found, for notes().
    std::vector<std::string> marks() const {
        std::vector<std::string> found;
        if (has_mark_) found.emplace_back("a byte-order mark");
        if (has_crlf_) found.emplace_back("lines that end in CR LF");
        return found;
    }

    // Whether the last line begins after the range.
    bool is_past_range() const { return stream_.offset() >= range_.end; }
    bool is_whole_file() const { return range_.name.empty(); }
    bool starts_file() const { return range_.begin == 0; }
    // The number of the last line, in the file or in its range.
    std::uint64_t line_number() const { return line_; }

    FormatError error(const std::string& what) const {
        if (!is_whole_file()) return stream_.error(stream_.offset(), range_.name + ": " + what);
        return FormatError(stream_.path() + ": line " + std::to_string(line_) + ": " + what);
    }

  private:
    // The rest of a line that belongs to the range before.
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

    static bool is_marked(std::span<const std::uint8_t> bytes) {
        return bytes.size() >= 3 && bytes[0] == 0xef && bytes[1] == 0xbb && bytes[2] == 0xbf;
    }

    LineRange range_;
    std::size_t max_line_;
    std::uint64_t line_ = 0;
    std::size_t pending_ = 0;  // bytes of the last line
    bool has_mark_ = false, has_crlf_ = false;
};

// An error of one line that shows that others were read wrongly, so that it cannot be left out.
class UnskippableError : public FormatError {
  public:
    using FormatError::FormatError;
};

// A format with a position on each line: empty lines are skipped, and of a wrong one only this line is left out.
class PositionLineReader : public LineReader {
  public:
    using LineReader::LineReader;

    std::size_t read(std::span<Record> out) final {
        std::size_t n = 0;
        std::string_view line;
        while (n < out.size() && !ended_ && next_line(line)) {
            if ((ended_ = is_past_range())) break;
            if (is_skipped(line)) continue;
            try {
                out[n] = pack(decode_line(line));
                ++n;
            } catch (const UnskippableError& e) {
                throw error(e.what());
            } catch (const FormatError& e) {
                bad(error(e.what()));
            }
        }
        return n;
    }
    std::vector<std::string> notes() const override { return marks(); }

  protected:
    virtual Entry decode_line(std::string_view line) = 0;
    // Whether a line has no position and no error.
    virtual bool is_skipped(std::string_view line) { return trimmed(line).empty(); }

  private:
    bool ended_ = false;
};

// The offset of the first position that begins at a place in a file or after it; the file's end if there is none.
// kBegins: a position begins with a line.
template <bool (*kBegins)(std::string_view)>
class PositionFinder final : public LineReader {
  public:
    PositionFinder(const DataFormat& format, ByteStream stream, LineRange range, std::size_t max_line)
        : LineReader(format, std::move(stream), OnBad::kError, std::move(range), max_line) {}
    std::size_t read(std::span<Record>) override { return 0; }
    std::uint64_t find() {
        std::string_view line;
        while (next_line(line)) {
            line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
            if (kBegins(line)) break;
        }
        return stream_.offset();
    }
};

// Lines of text. A position belongs to the chunk that it begins in.
template <class Reader, bool (*kBegins)(std::string_view), std::size_t kMaxLine = 4096>
class LineChunks final : public PositionFile {
  public:
    LineChunks(const DataFormat& format, InputFile file, const OpenOptions& options)
        : PositionFile(format), file_(std::move(file)), chunk_(options.bytes_per_chunk), settings_(options.settings) {
        if constexpr (requires(Head head) { Reader::header_of(head); }) {
            std::vector<std::uint8_t> bytes(std::min<std::uint64_t>(file_.size(), kMaxLine));
            file_.read(0, bytes);
            header_ = Reader::header_of({bytes, bytes.size() == file_.size()});
        }
    }
    const InputFile& file() const override { return file_; }
    std::size_t num_chunks() const override { return (file_.size() + chunk_ - 1) / chunk_; }

    // A position that is cut off by the end of the file is found when its chunk is decoded.
    const std::string& torn_end() const override {
        static const std::string none;
        return none;
    }
    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                       std::vector<std::uint8_t>* flags, std::uint64_t* digest) const override {
        bytes.clear();
        const LineRange range = range_of(chunk);
        Reader reader = reader_of(open(range), range);
        constexpr std::size_t kBlock = 1 << 12;
        ChunkDigest digested(digest);
        std::size_t n = 0;
        do {
            records.resize(n + kBlock);
            n += reader.read(records.records().subspan(n));
            digested.reached(records.data()->bytes.data(), n * sizeof(Record));
        } while (n == records.size());
        records.resize(n);
        digested.finish(records.data()->bytes.data(), n * sizeof(Record));
        if (flags) {
            flags->resize(n);
            compute_flags(records.records(), flags->data());
        }
        return static_cast<std::size_t>(std::ranges::count_if(
            records.records(), [](const Record& record) { return record_score(record.bytes.data()) == kScoreNone; }));
    }
    void read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes) const override {
        const std::uint64_t begin = begin_of(chunk), end = begin_of(chunk + 1);
        bytes.resize(end - begin);
        file_.read(begin, bytes);
        // The last line of a file may have no end. Another chunk may follow it.
        if (!bytes.empty() && bytes.back() != '\n') bytes.push_back('\n');
    }
    std::string header() const override { return header_; }

  private:
    Reader reader_of(ByteStream stream, LineRange range = {}) const {
        if constexpr (std::is_constructible_v<Reader, const DataFormat&, ByteStream, OnBad, LineRange, ReadSettings>) {
            return Reader(format(), std::move(stream), OnBad::kError, std::move(range), settings_);
        } else {
            return Reader(format(), std::move(stream), OnBad::kError, std::move(range));
        }
    }
    LineRange range_of(std::size_t chunk) const {
        const std::uint64_t begin = std::uint64_t{chunk} * chunk_;
        return {begin, begin + chunk_, "chunk " + std::to_string(chunk), header_};
    }
    ByteStream open(const LineRange& range) const {
        constexpr std::size_t kAtOnce = 1 << 16;  // bytes
        const std::uint64_t from = range.begin > 0 ? range.begin - 1 : 0;
        return ByteStream(file_.path(), open_file_source(file_, from), kAtOnce, from);
    }
    std::uint64_t begin_of(std::size_t chunk) const {
        if (chunk == 0) return 0;
        if (chunk >= num_chunks()) return file_.size();
        LineRange range = range_of(chunk);
        range.end = UINT64_MAX;
        return PositionFinder<kBegins>(format(), open(range), range, kMaxLine).find();
    }

    InputFile file_;
    std::size_t chunk_;   // bytes
    std::string header_;  // of a list of positions
    ReadSettings settings_;
};

// kBegins: does a position of the format begin with this line? kEncode appends one position to a string,
// kEncodeShredder with its castling rights in Shredder-FEN.
template <class Reader, const DataFormat& kFormat, bool (*kBegins)(std::string_view),
          void (*kEncode)(const Entry&, std::string&, Losses&),
          void (*kEncodeShredder)(const Entry&, std::string&, Losses&)>
constexpr DataFormat line_format(const char* name, const char* suffix, const char* about, const char* line) {
    return {name,
            suffix,
            about,
            line,
            [](const Head& head) -> Match {
                const bool begins = head.is_text() && kBegins(head.first_content_line());
                return {begins ? Match::kMarked : Match::kNo, {}};
            },
            [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
                if constexpr (std::is_constructible_v<Reader, const DataFormat&, ByteStream, OnBad, LineRange,
                                                      const std::map<std::string, std::string>&>) {
                    return std::make_unique<Reader>(kFormat, std::move(stream), options.on_bad, LineRange{},
                                                    options.settings);
                } else {
                    return std::make_unique<Reader>(kFormat, std::move(stream), options.on_bad);
                }
            },
            [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
                return std::make_unique<LineChunks<Reader, kBegins>>(kFormat, std::move(file), options);
            },
            [](const std::string& path, int fd, const WriterOptions& options) -> std::unique_ptr<PositionWriter> {
                if (options.shredder_fens)
                    return std::make_unique<IndependentWriter<kEncodeShredder>>(kFormat, path, fd);
                return std::make_unique<IndependentWriter<kEncode>>(kFormat, path, fd);
            }};
}

}  // namespace nnue::data
