// Formats that consist of records of one size, and have no mark at the beginning of a file.
//
// A format is a codec:
//     struct Codec {
//         static constexpr std::size_t kSize;
//         static constexpr std::size_t kSpareBegin, kSpareEnd;  // the free bytes of a record
//         static constexpr bool kOnlyStandardCastling;
//         static Entry decode(std::span<const std::uint8_t, kSize> bytes);
//         static void encode(const Entry& entry, std::span<std::uint8_t, kSize> bytes, Losses& losses);
//     };
// and the format is fixed_record_format<Codec, kFormat>("name", ".suffix", "what it is").
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "formats/chunk_digest.h"
#include "formats/codec.h"
#include "formats/independent_writer.h"
#include "formats/position_file.h"
#include "formats/reader.h"
#include "pipeline/parallel.h"

namespace nnue::data {

template <std::size_t kSize, Entry (*kDecode)(std::span<const std::uint8_t, kSize>)>
class FixedReader final : public StreamReader {
  public:
    using StreamReader::StreamReader;

    std::size_t read(std::span<Record> out) override { return read_originals(out, nullptr); }

    std::size_t read_originals(std::span<Record> out, std::uint8_t* originals) override {
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
            n += decode(bytes.first(count * kSize), out.subspan(n, count), originals ? originals + n * kSize : nullptr);
        }
        return n;
    }

  private:
    static Record decode_one(std::span<const std::uint8_t> bytes, std::size_t i) {
        return pack(kDecode(std::span<const std::uint8_t, kSize>(&bytes[i * kSize], kSize)));
    }

    // On several threads; after an error once more in order, to find the first one.
    std::size_t decode(std::span<const std::uint8_t> bytes, std::span<Record> out, std::uint8_t* originals) {
        try {
            parallel_for(out.size(), 0, [&](std::size_t begin, std::size_t end) {
                for (std::size_t i = begin; i < end; ++i) out[i] = decode_one(bytes, i);
            });
            if (originals) std::ranges::copy(bytes, originals);
            stream_.advance(bytes.size());
            return out.size();
        } catch (const FormatError&) {
        }
        std::size_t n = 0;
        for (std::size_t i = 0; i < out.size(); ++i) {
            try {
                out[n] = decode_one(bytes, i);
                if (originals) std::copy_n(&bytes[i * kSize], kSize, originals + n * kSize);
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

// A format of records of one size.
template <std::size_t kSize, Entry (*kDecode)(std::span<const std::uint8_t, kSize>)>
class FixedChunks final : public PositionFile {
  public:
    FixedChunks(const DataFormat& format, InputFile file, const OpenOptions& options)
        : PositionFile(format), file_(std::move(file)), chunk_(options.records_per_chunk) {
        if (const std::uint64_t rest = file_.size() % kSize) {
            const FormatError error =
                file_.error(file_.size() - rest, "a record of " + std::to_string(rest) + " bytes, expected " +
                                                     std::to_string(kSize) + ": the file is truncated");
            if (options.on_bad == OnBad::kError) throw error;
            torn_end_ = error.what();
        }
    }
    const InputFile& file() const override { return file_; }
    const std::string& torn_end() const override { return torn_end_; }
    std::size_t num_chunks() const override { return (file_.size() / kSize + chunk_ - 1) / chunk_; }

    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                       std::vector<std::uint8_t>* flags, std::uint64_t* digest) const override {
        read_chunk(chunk, bytes);
        ChunkDigest digested(digest);
        const std::uint64_t first = std::uint64_t{chunk} * chunk_;
        const std::size_t n = bytes.size() / kSize;
        records.resize(n);
        if (flags) flags->resize(n);
        std::size_t unscored = 0;
        for (std::size_t i = 0; i < n; ++i) {
            try {
                const Entry entry = kDecode(std::span<const std::uint8_t, kSize>(&bytes[i * kSize], kSize));
                records.data()[i] = pack(entry);
                unscored += entry.score == kScoreNone;
                if (flags) (*flags)[i] = position_flags(entry);
                if (i % 64 == 63) digested.reached(bytes.data(), (i + 1) * kSize);
            } catch (const FormatError& e) {
                throw file_.error((first + i) * kSize, "chunk " + std::to_string(chunk) + ", position " +
                                                           std::to_string(first + i) + ": " + e.what());
            }
        }
        digested.finish(bytes.data(), bytes.size());
        return unscored;
    }
    void read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes) const override {
        const std::uint64_t first = std::uint64_t{chunk} * chunk_;
        bytes.resize(std::min<std::uint64_t>(chunk_, file_.size() / kSize - first) * kSize);
        file_.read(first * kSize, bytes);
    }

  private:
    InputFile file_;
    std::size_t chunk_;  // records
    std::string torn_end_;
};

template <class Codec>
void append_fixed(const Entry& e, std::string& out, Losses& losses) {
    std::array<std::uint8_t, Codec::kSize> bytes;
    Codec::encode(e, bytes, losses);
    out.append(reinterpret_cast<const char*>(bytes.data()), Codec::kSize);
}

// Puts the bytes that a record had in a file of the same format in place of `encoded`, or the spare ones if the record
// has changed since. Returns whether it has not.
template <class Codec>
bool restore_fixed(const Record& record, const std::uint8_t* original, std::uint8_t* encoded) {
    constexpr std::size_t kSize = Codec::kSize;
    try {
        if (pack(Codec::decode(std::span<const std::uint8_t, kSize>(original, kSize))) == record) {
            std::copy_n(original, kSize, encoded);
            return true;
        }
    } catch (const FormatError&) {  // zeros: the record has no original
        return false;
    }
    std::copy(original + Codec::kSpareBegin, original + Codec::kSpareEnd, encoded + Codec::kSpareBegin);
    return false;
}

// A file is in a format without a mark if every record of its head is sound in it.
template <class Codec>
Match match_fixed(const Head& head) {
    constexpr std::size_t kSize = Codec::kSize;
    if (head.is_text()) return {Match::kNo, "text"};
    const std::size_t n = head.bytes.size() / kSize;
    if (n == 0) return {Match::kNo, std::to_string(head.bytes.size()) + " bytes are less than one record"};
    for (std::size_t i = 0; i < n; ++i) {
        try {
            static_cast<void>(Codec::decode(head.bytes.subspan(i * kSize).template first<kSize>()));
        } catch (const FormatError& e) {
            return {Match::kNo,
                    "offset " + std::to_string(i * kSize) + ": position " + std::to_string(i) + ": " + e.what()};
        }
    }
    return {head.whole && head.bytes.size() % kSize ? Match::kCut : Match::kMaybe, {}};
}

template <class Codec, const DataFormat& kFormat>
constexpr DataFormat fixed_record_format(const char* name, const char* suffix, const char* about) {
    return {name,
            suffix,
            about,
            nullptr,
            match_fixed<Codec>,
            [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
                return std::make_unique<FixedReader<Codec::kSize, Codec::decode>>(kFormat, std::move(stream),
                                                                                  options.on_bad);
            },
            [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
                return std::make_unique<FixedChunks<Codec::kSize, Codec::decode>>(kFormat, std::move(file), options);
            },
            [](const std::string& path, int fd, const WriterOptions&) -> std::unique_ptr<PositionWriter> {
                return std::make_unique<IndependentWriter<append_fixed<Codec>, Codec::kSize, restore_fixed<Codec>>>(
                    kFormat, path, fd);
            },
            Codec::kSize,
            Codec::kSpareBegin,
            Codec::kSpareEnd,
            Codec::kOnlyStandardCastling};
}

}  // namespace nnue::data
