// The plain format of the Stockfish tools: six lines per position, from "fen …" to "e".
#include <algorithm>
#include <utility>

#include "chess/position.h"
#include "formats/codecs.h"
#include "formats/lines.h"

namespace nnue::data {

namespace {

template <CastlingStyle kStyle>
void encode_plain_as(const Entry& e, std::string& out, Losses&) {
    out += "fen " + format_fen(e.position, kStyle);
    out += "\nmove " + format_uci(e.move);
    out += "\nscore " + std::to_string(e.score);
    out += "\nply " + std::to_string(e.position.ply);
    out += "\nresult " + std::to_string(e.result);
    out += "\ne\n";
}

}  // namespace

void encode_plain(const Entry& e, std::string& out) {
    Losses none;
    encode_plain_as<CastlingStyle::kXFen>(e, out, none);
}

bool PlainParser::add(std::string_view line) {
    enum Key : unsigned { kFen = 1, kMove = 2, kScore = 4, kPly = 8, kResult = 16 };
    line = trimmed(line);
    if (line.empty()) return false;
    const std::size_t space = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view key = line.substr(0, space), value = trimmed(line.substr(space));
    const auto once = [&](Key bit) {
        if (seen_ & bit) throw FormatError("a second '" + std::string(key) + "' in one position");
        seen_ |= bit;
    };
    if (key == "fen") {
        once(kFen);
        entry_ = {};
        entry_.position = parse_fen(value);
    } else if (!(seen_ & kFen)) {
        throw FormatError(quoted(line) + ", expected 'fen …', with which a position begins");
    } else if (key == "move") {
        once(kMove);
        entry_.move = parse_uci(entry_.position, value);
    } else if (key == "score") {
        once(kScore);
        entry_.score = static_cast<std::int16_t>(parse_integer(value, "score", INT16_MIN, INT16_MAX));
    } else if (key == "ply") {
        once(kPly);
        entry_.position.ply = static_cast<std::uint16_t>(parse_integer(value, "ply", 0, kMaxPly));
    } else if (key == "result") {
        once(kResult);
        entry_.result = static_cast<std::int8_t>(parse_integer(value, "result", -1, 1));
    } else if (line == "e") {
        for (const auto& [bit, name] : {std::pair{kScore, "score"}, std::pair{kResult, "result"}}) {
            if (!(seen_ & bit)) throw FormatError(std::string("a position without '") + name + "'");
        }
        seen_ = 0;
        return true;
    } else {
        throw FormatError(quoted(line) + ", expected fen, move, score, ply, result or e");
    }
    return false;
}

namespace {

class PlainReader final : public LineReader {
  public:
    PlainReader(const DataFormat& format, ByteStream stream, OnBad on_bad, LineRange range = {})
        : LineReader(format, std::move(stream), on_bad, std::move(range)), resynchronise_(!starts_file()) {}

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
            // The rest of the last position still belongs to this range.
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

    std::vector<std::string> notes() const override { return marks(); }

  private:
    static bool begins_position(std::string_view line) {
        line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
        return line.starts_with("fen ") || line.starts_with("fen\t");
    }

    PlainParser parser_;
    bool resynchronise_, ended_ = false;
};

bool begins_plain(std::string_view line) {
    return line.starts_with("fen ");
}

}  // namespace

extern const DataFormat kPlain;
constinit const DataFormat kPlain =
    line_format<PlainReader, kPlain, begins_plain, encode_plain_as<CastlingStyle::kXFen>,
                encode_plain_as<CastlingStyle::kShredder>>(
        "plain", ".plain", "the plain text of the Stockfish tools, six lines per position", "'fen …'");
static const RegisteredFormat registered_plain(kPlain);

}  // namespace nnue::data
