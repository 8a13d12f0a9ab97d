// Lines of text, <FEN> | <score> | <result>, score and result white's view.
#include "chess/position.h"
#include "formats/codecs.h"
#include "formats/lines.h"

namespace nnue::data {

Entry decode_text(std::string_view line) {
    std::string_view fields[3];
    int count = 0;
    for (std::size_t begin = 0; begin != std::string_view::npos;) {
        const std::size_t bar = line.find('|', begin);
        if (count < 3) {
            fields[count] =
                trimmed(line.substr(begin, bar == std::string_view::npos ? std::string_view::npos : bar - begin));
        }
        ++count;
        begin = bar == std::string_view::npos ? bar : bar + 1;
    }
    if (count != 3) {
        throw FormatError(std::to_string(count) + " fields in " + quoted(line) +
                          ", expected <FEN> | <score> | <result>");
    }
    Entry e;
    e.position = parse_fen(fields[0]);
    e.score = static_cast<std::int16_t>(parse_integer(fields[1], "score", INT16_MIN, INT16_MAX));
    std::string_view result = fields[2];
    if (result.size() >= 2 && result.front() == '[' && result.back() == ']') {
        result = trimmed(result.substr(1, result.size() - 2));
    }
    if (result == "1.0" || result == "1" || result == "1-0") {
        e.result = 1;
    } else if (result == "0.5" || result == "1/2" || result == "1/2-1/2") {
        e.result = 0;
    } else if (result == "0.0" || result == "0" || result == "0-1") {
        e.result = -1;
    } else {
        throw FormatError("result " + quoted(fields[2]) + ", expected 1.0, 0.5 or 0.0, or 1-0, 1/2-1/2 or 0-1");
    }
    if (e.position.side_to_move == kBlack) {
        e.score = negated(e.score);
        e.result = static_cast<std::int8_t>(-e.result);
    }
    return e;
}

namespace {

template <CastlingStyle kStyle>
void encode_text_as(const Entry& e, std::string& out, Losses& losses) {
    constexpr const char* kResults[] = {"0.0", "0.5", "1.0"};
    out += format_fen(e.position, kStyle);
    out += " | ";
    out += std::to_string(white_view(e, losses));
    out += " | ";
    out += kResults[1 + (e.position.side_to_move == kBlack ? -e.result : e.result)];
    out += '\n';
    count_moveless(e, losses);
    count_ply_parity(e, losses);
}

}  // namespace

void encode_text(const Entry& e, std::string& out, Losses& losses) {
    encode_text_as<CastlingStyle::kXFen>(e, out, losses);
}

namespace {

class TextReader final : public PositionLineReader {
  public:
    using PositionLineReader::PositionLineReader;

    std::vector<std::string> notes() const override {
        std::vector<std::string> found = marks();
        if (has_game_results_) found.emplace_back("results 1-0, 1/2-1/2, 0-1");
        return found;
    }

  private:
    Entry decode_line(std::string_view line) override {
        const Entry e = decode_text(line);
        has_game_results_ |= line.substr(line.rfind('|')).find('-') != std::string_view::npos;
        return e;
    }

    bool has_game_results_ = false;
};

bool begins_text(std::string_view line) {
    return line.find('|') != std::string_view::npos;
}

}  // namespace

extern const DataFormat kText;
constinit const DataFormat kText = line_format<TextReader, kText, begins_text, encode_text_as<CastlingStyle::kXFen>,
                                               encode_text_as<CastlingStyle::kShredder>>(
    "text", ".txt", "lines of FEN, score and result", "'<FEN> | <score> | <result>'");
static const RegisteredFormat registered_text(kText);

}  // namespace nnue::data
