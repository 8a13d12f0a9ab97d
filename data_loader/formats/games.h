// Formats whose files are games back to back: a start position, an entry of four bytes for each ply (move and score),
// and four zero bytes. There is no header of a file, no index and no mark.
//
// A format is a codec:
//     struct Codec {
//         static constexpr std::size_t kHead;    // bytes of the start position
//         static constexpr std::size_t kAlign;   // games begin at multiples of it
//         static Entry decode_head(std::span<const std::uint8_t, kHead> bytes);  // its score is 0
//         static ReplayResult replay(Entry&, const std::uint8_t* text, std::size_t most, Record*, std::uint8_t* flags);
//     };
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "filters/filters.h"
#include "formats/chunk_digest.h"
#include "formats/codec.h"
#include "formats/position_file.h"
#include "formats/reader.h"
#include "pipeline/kernels.h"

namespace nnue::data {

inline constexpr std::size_t kGameEntry = 4;
inline constexpr std::size_t kMaxGamePlies = kMaxPly + 2;  // one more than there may be shows that a game is too long

// Where a game ends that begins at the beginning of `bytes`, after its four zero bytes; 0 if it does not end in them.
inline std::size_t game_end(std::span<const std::uint8_t> bytes, std::size_t head) {
    for (std::size_t at = head; at + kGameEntry <= bytes.size(); at += kGameEntry) {
        if (bytes[at] == 0 && bytes[at + 1] == 0) return at + kGameEntry;
    }
    return 0;
}

// Decodes the game that begins at the beginning of these bytes, at least kHead of them, after records[n …]: up to its
// end or theirs. Throws FormatError, with `at` the offset of what is wrong in the game.
template <class Codec>
ReplayResult decode_game(std::span<const std::uint8_t> bytes, RecordBuffer& records, std::vector<std::uint8_t>* flags,
                         std::size_t& unscored, std::size_t& at) {
    at = 0;
    Entry e = Codec::decode_head(bytes.template first<Codec::kHead>());
    const std::size_t n = records.size(), most = (bytes.size() - Codec::kHead) / kGameEntry;
    records.reserve(n + most);
    if (flags) flags->resize(std::max(flags->size(), n + most));
    const ReplayResult result =
        Codec::replay(e, bytes.data() + Codec::kHead, most, records.data() + n, flags ? flags->data() + n : nullptr);
    if (result.error) {
        at = Codec::kHead + result.positions * kGameEntry;
        throw FormatError("ply " + std::to_string(result.positions + 1) + ": " + result.error + ": move word " +
                          std::to_string(load_le16(&bytes[at])) + " in " + format_fen(e.position));
    }
    unscored += result.unscored;
    records.resize(n + result.positions);
    return result;
}

template <class Codec>
class GameReader final : public StreamReader {
  public:
    using StreamReader::StreamReader;

    std::size_t read(std::span<Record> out) override { return read_originals(out, nullptr); }

    // The original of a position is the head of its game and its entry.
    std::size_t read_originals(std::span<Record> out, std::uint8_t* originals) override {
        constexpr std::size_t kOriginal = Codec::kHead + kGameEntry;
        std::size_t n = 0;
        while (n < out.size()) {
            if (taken_ == decoded_.size()) {
                if (!next_game()) break;
                continue;
            }
            const std::size_t count = std::min(out.size() - n, decoded_.size() - taken_);
            std::copy_n(decoded_.data() + taken_, count, &out[n]);
            for (std::size_t i = 0; originals && i < count; ++i) {
                std::uint8_t* original = originals + (n + i) * kOriginal;
                std::memcpy(original, bytes_.data(), Codec::kHead);
                std::memcpy(original + Codec::kHead, &bytes_[Codec::kHead + (taken_ + i) * kGameEntry], kGameEntry);
            }
            taken_ += count;
            n += count;
        }
        return n;
    }

    std::vector<std::string> notes() const override {
        std::vector<std::string> found;
        if (clamped_) found.push_back("scores of -32768, read as -32767: " + std::to_string(clamped_));
        if (empty_) found.push_back("games without a position: " + std::to_string(empty_));
        return found;
    }

  private:
    bool next_game() {
        constexpr std::size_t kMost = Codec::kHead + (kMaxGamePlies + 1) * kGameEntry;
        decoded_.resize(0);
        taken_ = 0;
        auto bytes = stream_.peek(1);
        if (bytes.empty()) return false;
        std::size_t size = game_end(bytes.first(std::min(bytes.size(), kMost)), Codec::kHead);
        if (!size) {
            bytes = stream_.peek(kMost);
            size = game_end(bytes.first(std::min(bytes.size(), kMost)), Codec::kHead);
        }
        const std::uint64_t start = stream_.offset();
        const auto name = [number = game_++] { return "game " + std::to_string(number); };
        if (!size) {
            if (bytes.size() >= kMost) {
                throw stream_.error(start, name() + ": more than " + std::to_string(kMaxPly + 1) +
                                               " plies without an end, so this is not " + format().name);
            }
            bad(stream_.error(start, name() + ": the file ends inside it, " + std::to_string(bytes.size()) +
                                         " bytes after its beginning: it is truncated"));
            stream_.advance(bytes.size());
            return true;
        }
        bytes_.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        std::size_t at = 0, unscored = 0;
        try {
            const std::size_t plies = decode_game<Codec>(bytes_, decoded_, nullptr, unscored, at).positions;
            empty_ += plies == 0;
            for (std::size_t i = 0; i < plies; ++i) {
                clamped_ += load_le16(&bytes_[Codec::kHead + i * kGameEntry + 2]) == 0x8000;
            }
        } catch (const FormatError& e) {
            decoded_.resize(0);
            bad(stream_.error(start + at, name() + ": " + e.what()));
        }
        stream_.advance(size);
        return true;
    }

    std::vector<std::uint8_t> bytes_;  // of the game
    RecordBuffer decoded_;
    std::size_t taken_ = 0;
    std::uint64_t game_ = 0, clamped_ = 0, empty_ = 0;
};

// A chunk is the games that begin in a MiB of the file. Where they begin shows in the bytes: after four zeros, and all
// of the game can be replayed. A chunk whose games do not end where the next one's begin is an error.
template <class Codec>
class GameChunks final : public PositionFile {
  public:
    GameChunks(const DataFormat& format, InputFile file, const OpenOptions& options)
        : PositionFile(format),
          file_(std::move(file)),
          chunk_(std::max<std::size_t>(options.bytes_per_chunk / Codec::kAlign * Codec::kAlign, Codec::kAlign)),
          end_(file_.size()) {
        if (options.layout) return;
        // The end of the file: is its last game whole?
        std::vector<std::uint8_t> bytes;
        std::uint64_t at = find_game(end_ > 2 * kMost ? (end_ - 2 * kMost) / Codec::kAlign * Codec::kAlign : 0);
        if (at > end_) at = end_;
        bytes.resize(end_ - at);
        file_.read(at, bytes);
        std::size_t done = 0;
        while (const std::size_t size = game_end(std::span(bytes).subspan(done), Codec::kHead)) done += size;
        if (done == bytes.size()) return;
        const FormatError error =
            file_.error(at + done, "the file ends inside the game that begins here, after " +
                                       std::to_string(bytes.size() - done) + " bytes of it: it is truncated");
        if (options.on_bad == OnBad::kError) throw error;
        torn_end_ = error.what();
        end_ = at + done;
    }
    const InputFile& file() const override { return file_; }
    const std::string& torn_end() const override { return torn_end_; }
    std::size_t num_chunks() const override { return (end_ + chunk_ - 1) / chunk_; }

    std::size_t decode(std::size_t chunk, std::vector<std::uint8_t>& bytes, RecordBuffer& records,
                       std::vector<std::uint8_t>* flags, std::uint64_t* digest) const override {
        const std::uint64_t begin = begin_of(chunk), end = begin_of(chunk + 1);
        bytes.resize(end - begin);
        file_.read(begin, bytes);
        ChunkDigest digested(digest);
        records.resize(0);
        // Room for all at once: a position takes an entry at least.
        records.reserve(bytes.size() / kGameEntry);
        if (flags) flags->resize(bytes.size() / kGameEntry);
        std::size_t unscored = 0, done = 0;
        while (done < bytes.size()) {
            const auto rest = std::span<const std::uint8_t>(bytes).subspan(done);
            // Only for errors: games may be short, and making text for each takes as long as replaying some plies.
            const auto name = [&] {
                return "chunk " + std::to_string(chunk) + ", game at " + std::to_string(begin + done);
            };
            ReplayResult game;
            std::size_t at = 0;
            try {
                if (rest.size() >= Codec::kHead) game = decode_game<Codec>(rest, records, flags, unscored, at);
            } catch (const FormatError& e) {
                throw file_.error(begin + done + at, name() + ": " + e.what());
            }
            if (!game.ended) {
                throw file_.error(begin + done, name() + ": it does not end before offset " + std::to_string(end) +
                                                    ", where the next game begins");
            }
            done += Codec::kHead + (game.positions + 1) * kGameEntry;
            digested.reached(bytes.data(), done);
        }
        digested.finish(bytes.data(), bytes.size());
        if (flags) flags->resize(records.size());
        return unscored;
    }
    void read_chunk(std::size_t chunk, std::vector<std::uint8_t>& bytes) const override {
        const std::uint64_t begin = begin_of(chunk);
        bytes.resize(begin_of(chunk + 1) - begin);
        file_.read(begin, bytes);
    }

  private:
    static constexpr std::size_t kMost = Codec::kHead + (kMaxGamePlies + 1) * kGameEntry;

    std::uint64_t begin_of(std::size_t chunk) const {
        if (chunk >= num_chunks()) return end_;
        return std::min(find_game(std::uint64_t{chunk} * chunk_), end_);
    }

    // The first game at `from` or after it; the end of the file if there is none. `from` is a multiple of kAlign.
    std::uint64_t find_game(std::uint64_t from) const {
        if (from == 0) return 0;
        constexpr std::size_t kAhead = 1 << 15;
        std::vector<std::uint8_t> bytes;
        std::uint64_t first = 0;  // offset of `bytes`
        const auto load = [&](std::uint64_t at, std::size_t want) {
            if (at >= first && at + want <= first + bytes.size()) return;
            first = at;
            bytes.resize(std::min<std::uint64_t>(std::max(want, kAhead), file_.size() - at));
            file_.read(at, bytes);
        };
        for (std::uint64_t at = from; at < file_.size(); at += Codec::kAlign) {
            if (at < kGameEntry) continue;
            load(at - kGameEntry, kGameEntry);
            static constexpr std::uint8_t kZeros[kGameEntry] = {};
            if (std::memcmp(&bytes[at - kGameEntry - first], kZeros, kGameEntry) != 0) continue;
            load(at - kGameEntry, kGameEntry + std::min<std::uint64_t>(4096, file_.size() - at));
            if (is_game(std::span<const std::uint8_t>(bytes).subspan(at - first))) return at;
            if (bytes.size() < kMost && at + (bytes.size() - (at - first)) < file_.size()) {  // perhaps a long one
                std::vector<std::uint8_t> more(std::min<std::uint64_t>(kMost, file_.size() - at));
                file_.read(at, more);
                if (is_game(more)) return at;
            }
        }
        return file_.size();
    }

    static bool is_game(std::span<const std::uint8_t> bytes) {
        const std::size_t size = game_end(bytes.first(std::min(bytes.size(), kMost)), Codec::kHead);
        if (!size) return false;
        thread_local RecordBuffer scratch;
        scratch.resize(0);
        std::size_t unscored = 0, at = 0;
        try {
            decode_game<Codec>(bytes.first(size), scratch, nullptr, unscored, at);
            return true;
        } catch (const FormatError&) {
            return false;
        }
    }

    InputFile file_;
    std::size_t chunk_;  // bytes
    std::uint64_t end_;  // of the last whole game
    std::string torn_end_;
};

// A file is in the format if its first game can be replayed. Where it has fewer than kEnough plies, the others in the
// head must be sound as well.
template <class Codec>
Match match_games(const Head& head) {
    constexpr std::size_t kEnough = 4;
    if (head.is_text()) return {Match::kNo, "text"};
    RecordBuffer records;
    for (std::size_t done = 0, game = 0; done < head.bytes.size(); ++game) {
        const auto rest = head.bytes.subspan(done);
        std::size_t size = game_end(rest, Codec::kHead), at = 0, unscored = 0;
        const bool cut = !size;
        if (cut) {  // as far as it goes
            if (rest.size() < Codec::kHead)
                return {head.whole ? game ? Match::kCut : Match::kNo : Match::kMaybe,
                        std::to_string(rest.size()) + " bytes are less than one game"};
            size = Codec::kHead + (rest.size() - Codec::kHead) / kGameEntry * kGameEntry;
        }
        try {
            decode_game<Codec>(rest.first(size), records, nullptr, unscored, at);
        } catch (const FormatError& e) {
            if (records.size() >= kEnough && game) return {Match::kMaybe, {}};
            return {Match::kNo,
                    "offset " + std::to_string(done + at) + ": game " + std::to_string(game) + ": " + e.what()};
        }
        if (cut) return {head.whole && records.size() < kEnough ? Match::kCut : Match::kMaybe, {}};
        done += size;
    }
    return {Match::kMaybe, {}};
}

}  // namespace nnue::data
