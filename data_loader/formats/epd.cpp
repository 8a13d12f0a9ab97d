// EPD: four fields of a FEN and operations. A position needs a result, as in c9 "1-0"; ce has its score in centipawns.
#include <string>

#include "chess/position.h"
#include "chess/san.h"
#include "formats/lines.h"

namespace nnue::data {

extern const DataFormat kEpd;

namespace {

bool begins_epd(std::string_view line) {
    int fields = 0, slashes = 0;
    for (std::size_t at = 0; at < line.size() && fields < 4; ++fields) {
        const std::size_t begin = line.find_first_not_of(" \t", at);
        if (begin == std::string_view::npos) break;
        at = std::min(line.find_first_of(" \t\r", begin), line.size());
        const std::string_view field = line.substr(begin, at - begin);
        if (fields == 0) slashes = static_cast<int>(std::ranges::count(field, '/'));
        if (fields == 1 && field != "w" && field != "b") return false;
    }
    return fields == 4 && slashes == 7 && line.find('|') == std::string_view::npos;
}

Entry decode_epd(std::string_view line) {
    // The fields of the position; a counter may follow where a FEN was taken for it.
    std::size_t at = 0, end = 0;
    for (int field = 0; field < 6; ++field) {
        at = std::min(line.find_first_not_of(" \t", end), line.size());
        const std::size_t next = std::min(line.find_first_of(" \t\r;", at), line.size());
        if (field >= 4 &&
            (at == next || line.substr(at, next - at).find_first_not_of("0123456789") != std::string_view::npos)) {
            break;
        }
        end = next;
    }
    Entry e;
    e.position = parse_fen(line.substr(0, end));
    e.score = kScoreNone;
    int white = 2;
    std::string_view rest = trimmed(line.substr(end));
    while (!rest.empty()) {
        // An operation ends in a semicolon that is not within quotes.
        std::size_t stop = 0;
        for (bool quoted_text = false; stop < rest.size() && (quoted_text || rest[stop] != ';'); ++stop) {
            quoted_text ^= rest[stop] == '"';
        }
        const std::string_view operation = trimmed(rest.substr(0, stop));
        rest = trimmed(rest.substr(std::min(stop + 1, rest.size())));
        const std::size_t space = std::min(operation.find_first_of(" \t"), operation.size());
        const std::string_view name = operation.substr(0, space);
        std::string_view value = trimmed(operation.substr(space));
        if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
            value = value.substr(1, value.size() - 2);
        }
        if (value == "1-0" || value == "0-1" || value == "1/2-1/2") {
            white = value == "1-0" ? 1 : value == "0-1" ? -1 : 0;
        } else if (name == "ce") {
            e.score = static_cast<std::int16_t>(parse_integer(value, "ce", -INT16_MAX, INT16_MAX));
        } else if (name == "bm" || name == "sm" || name == "pv") {
            if (e.move.is_null() || name != "pv") {
                e.move = parse_san(e.position, value.substr(0, std::min(value.find(' '), value.size())));
            }
        }
    }
    if (white == 2) {
        throw FormatError("an EPD position without a result, expected an operation such as c9 \"1-0\"; " +
                          std::string("positions without results are a book, for `nnue data generate --book`"));
    }
    e.result = static_cast<std::int8_t>(e.position.side_to_move == kWhite ? white : -white);
    return e;
}

class EpdReader final : public PositionLineReader {
  public:
    using PositionLineReader::PositionLineReader;

  private:
    Entry decode_line(std::string_view line) override { return decode_epd(line); }
};

bool begins_line(std::string_view) {
    return true;
}

}  // namespace

constinit const DataFormat kEpd{
    "epd",
    ".epd",
    "EPD with results, one position per line; read only",
    "'<position> … c9 \"1-0\";'",
    [](const Head& head) -> Match {
        return {head.is_text() && begins_epd(head.first_line()) ? Match::kMarked : Match::kNo, {}};
    },
    [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
        return std::make_unique<EpdReader>(kEpd, std::move(stream), options.on_bad);
    },
    [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
        return std::make_unique<LineChunks<EpdReader, begins_line>>(kEpd, std::move(file), options);
    },
    nullptr};
static const RegisteredFormat registered_epd(kEpd);

}  // namespace nnue::data
