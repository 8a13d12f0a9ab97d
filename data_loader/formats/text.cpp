// Lines of text, <FEN> | <score> | <result>, score and result white's view.
#include "chess/position.h"
#include "formats/codecs.h"
#include "formats/position_lines.h"

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
    e.result = static_cast<std::int8_t>(parse_white_result(fields[2]));
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

bool begins_text(std::string_view line) {
    const LineForm form = line_form(line);
    return form != LineForm::kNone && form != LineForm::kEpd;
}

}  // namespace

extern const DataFormat kText;
constinit const DataFormat kText =
    line_format<PositionListReader, kText, begins_text, encode_text_as<CastlingStyle::kXFen>,
                encode_text_as<CastlingStyle::kShredder>>("text", ".txt", "lines of FEN, score and result",
                                                          "'<FEN> | <score> | <result>'");
static const RegisteredFormat registered_text(kText);

}  // namespace nnue::data
