// viriformat: games, each a Marlinformat record and four bytes for each ply.
#include <array>
#include <optional>

#include "chess/game.h"
#include "chess/position.h"
#include "formats/codecs.h"
#include "formats/games.h"
#include "formats/writer.h"

namespace nnue::data {

extern const DataFormat kViriformat;

namespace {

struct ViriCodec {
    static constexpr std::size_t kHead = kMarlinformatSize, kAlign = 4;
    static Entry decode_head(std::span<const std::uint8_t, kHead> bytes) {
        Entry e;
        if (kernels().decode_viriformat_head(bytes.data(), e)) return e;
        e = decode_marlinformat(bytes);
        e.score = 0;  // that of the start position, which no program uses
        return e;
    }
    static ReplayResult replay(Entry& e, const std::uint8_t* text, std::size_t most, Record* out, std::uint8_t* flags) {
        return kernels().replay_viriformat(e, text, most, out, flags);
    }
};

constexpr std::size_t kOriginal = ViriCodec::kHead + kGameEntry, kExtra = 31;

unsigned encode_move(Move move) {
    constexpr unsigned kKinds[4] = {0, 3, 2, 1};  // of MoveKind
    return static_cast<unsigned>(move.from()) | static_cast<unsigned>(move.to()) << 6 | (move.bits & 3u) << 12 |
           kKinds[move.kind()] << 14;
}

// A position extends the game if it is what the last move leads to, one ply later, with the same result.
class ViriformatWriter final : public PositionWriter {
  public:
    ViriformatWriter(const std::string& path, int fd, bool join)
        : PositionWriter(kViriformat), file_(path, fd), join_(join) {}

    void write(std::span<const Record> records) override { write_originals(records, nullptr); }
    void write_originals(std::span<const Record> records, const std::uint8_t* originals) override {
        for (std::size_t i = 0; i < records.size(); ++i) {
            // Zeros are not an original position. Byte 24, which has an en-passant square or 64, is never 0.
            const std::uint8_t* original = originals ? originals + i * kOriginal : nullptr;
            add(records[i], original && original[24] ? original : nullptr);
        }
        if (buffer_.size() >= (std::size_t{1} << 20)) flush();
    }
    void finish() override {
        end_game();
        flush();
    }

  private:
    void add(const Record& record, const std::uint8_t* original) {
        Entry e;
        if (const char* error = unpack(record, e)) {
            throw FormatError(file_.path() + ": position " + std::to_string(positions_) + ": " + error);
        }
        if (e.move.is_null() || !is_legal(e.position, e.move)) {
            ++losses_.left_out;
            return;
        }
        const bool same_head = !original || !has_head_ || std::equal(head_.begin(), head_.end(), original);
        const bool extends = join_ && expected_ && e.result == expected_->result &&
                             e.position.ply == expected_->position.ply &&
                             same_position(e.position, expected_->position) && same_head;
        if (!extends) begin_game(e, original);
        std::array<std::uint8_t, kGameEntry> entry;
        Losses lost;
        lost.scores += e.score == INT16_MIN;
        if (e.score == INT16_MIN) e.score = -INT16_MAX;
        store_le16(&entry[0], encode_move(e.move));
        store_le16(&entry[2], static_cast<std::uint16_t>(white_view(e, lost)));
        // A score of −32768, which is read as −32767, is kept as it was.
        if (original && std::equal(entry.begin(), entry.begin() + 2, original + ViriCodec::kHead)) {
            const auto old = static_cast<std::int16_t>(load_le16(original + ViriCodec::kHead + 2));
            const auto now = static_cast<std::int16_t>(load_le16(&entry[2]));
            if (old == INT16_MIN && now == -INT16_MAX)
                store_le16(&entry[2], static_cast<std::uint16_t>(old)), lost = {};
        }
        losses_ += lost;
        buffer_.insert(buffer_.end(), entry.begin(), entry.end());
        ++positions_;
        expected_ = e;
        play(expected_->position, e.move);
        expected_->result = static_cast<std::int8_t>(-e.result);
    }

    void begin_game(Entry e, const std::uint8_t* original) {
        end_game();
        e.score = 0;
        std::array<std::uint8_t, ViriCodec::kHead> head;
        Losses lost;
        encode_marlinformat(e, head, lost);
        lost.moves = 0;
        if (original) {
            // The head of the game that the position was in: all of it, if that began here.
            Entry old;
            try {
                old =
                    ViriCodec::decode_head(std::span<const std::uint8_t, ViriCodec::kHead>(original, ViriCodec::kHead));
            } catch (const FormatError&) {
                old.result = 2;
            }
            old.move = e.move;
            if (pack(old) == pack(e)) {
                std::copy_n(original, ViriCodec::kHead, head.begin());
                lost = {};
            } else {
                head[kExtra] = original[kExtra];
            }
            std::copy_n(original, ViriCodec::kHead, head_.begin());
        }
        has_head_ = original != nullptr;
        losses_ += lost;
        buffer_.insert(buffer_.end(), head.begin(), head.end());
        in_game_ = true;
    }
    void end_game() {
        if (in_game_) buffer_.insert(buffer_.end(), kGameEntry, 0);
        in_game_ = false;
        expected_.reset();
    }
    void flush() {
        file_.write(buffer_);
        buffer_.clear();
    }

    OutputFile file_;
    bool join_, in_game_ = false, has_head_ = false;
    std::array<std::uint8_t, ViriCodec::kHead> head_{};  // of the game in the file that the positions come from
    std::optional<Entry> expected_;                      // where the last move leads to
    std::vector<std::uint8_t> buffer_;
};

}  // namespace

constinit const DataFormat kViriformat{
    "viriformat",
    ".vf",
    "games of a start position and moves, 4 bytes per position",
    nullptr,
    match_games<ViriCodec>,
    [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
        return std::make_unique<GameReader<ViriCodec>>(kViriformat, std::move(stream), options.on_bad);
    },
    [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
        return std::make_unique<GameChunks<ViriCodec>>(kViriformat, std::move(file), options);
    },
    [](const std::string& path, int fd, const WriterOptions& options) -> std::unique_ptr<PositionWriter> {
        return std::make_unique<ViriformatWriter>(path, fd, options.join_chains);
    },
    kOriginal,
    kExtra,
    kExtra + 1};
static const RegisteredFormat registered_viriformat(kViriformat);

}  // namespace nnue::data
