#include "formats/position_lines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "chess/position.h"
#include "chess/san.h"
#include "formats/codecs.h"

namespace nnue::data {

namespace {

constexpr int kMateScore = 32000;

bool is_comment(std::string_view line) {
    return line.starts_with('#') || line.starts_with("//");
}

// The text of a position at the beginning of a line: four fields and up to two counters.
std::string_view position_of(std::string_view line) {
    std::size_t end = 0;
    for (int field = 0; field < 6; ++field) {
        const std::size_t begin = std::min(line.find_first_not_of(" \t", end), line.size());
        const std::size_t next = std::min(line.find_first_of(" \t;,|[\"", begin), line.size());
        const std::string_view text = line.substr(begin, next - begin);
        if (text.empty()) break;
        if (field >= 4 && text != "-" && text.find_first_not_of("0123456789") != std::string_view::npos) break;
        end = next;
    }
    return line.substr(0, end);
}

bool begins_position(std::string_view line) {
    const std::string_view position = position_of(line);
    const std::string_view board = position.substr(0, position.find_first_of(" \t"));
    if (board.find('/') == std::string_view::npos ||
        board.find_first_not_of("12345678/PNBRQKpnbrqk") != std::string_view::npos) {
        return false;
    }
    const std::string_view rest = trimmed(position.substr(board.size()));
    return rest.starts_with("w ") || rest.starts_with("b ") || rest.starts_with("w\t") || rest.starts_with("b\t");
}

int fields_of(std::string_view position) {
    int fields = 0;
    for (std::size_t i = 0; i < position.size(); ++i) {
        const bool blank = position[i] == ' ' || position[i] == '\t';
        fields += !blank && (i == 0 || position[i - 1] == ' ' || position[i - 1] == '\t');
    }
    return fields;
}

bool looks_like_value(std::string_view text) {
    return !text.empty() && std::string_view("0123456789+-.").find(text[0]) != std::string_view::npos;
}

std::string_view unquoted(std::string_view text) {
    text = trimmed(text);
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = trimmed(text.substr(1, text.size() - 2));
    return text;
}

std::vector<std::string_view> split_at(std::string_view line, char separator) {
    std::vector<std::string_view> fields;
    for (std::size_t begin = 0; begin <= line.size();) {
        std::size_t end = begin;
        for (bool in_quotes = false; end < line.size() && (in_quotes || line[end] != separator); ++end) {
            in_quotes ^= line[end] == '"';
        }
        fields.push_back(unquoted(line.substr(begin, end - begin)));
        begin = end + 1;
    }
    return fields;
}

// A score in white's view, a whole number or a mate in moves ("#-3"), as the side to move's.
std::int16_t own_score(std::string_view text, int side) {
    if (text.empty()) return kScoreNone;
    const std::size_t mark = text.find_first_of("#M");
    if (mark == std::string_view::npos) {
        const auto white = static_cast<std::int16_t>(parse_integer(text, "score", INT16_MIN, INT16_MAX));
        return side == kWhite ? white : negated(white);
    }
    if (text.substr(0, mark).find_first_not_of("+-") != std::string_view::npos) {
        throw FormatError("score " + quoted(text) + ", expected a whole number, or a mate such as #-3");
    }
    std::string digits(text);
    digits.erase(mark, 1);
    int moves = parse_integer(digits, "score", -kMateScore / 2, kMateScore / 2);
    if (side == kBlack) moves = -moves;
    const bool mates = moves > 0 || (moves == 0 && (text.find('-') == std::string_view::npos) == (side == kWhite));
    return static_cast<std::int16_t>(mates ? kMateScore - std::max(2 * moves - 1, 0) : -kMateScore - 2 * moves);
}

bool is_clear_result(std::string_view text) {
    return text == "1.0" || text == "0.5" || text == "0.0" || text == "1-0" || text == "0-1" || text == "1/2-1/2" ||
           text == "1/2" || (text.size() > 2 && text.front() == '[' && text.back() == ']');
}

void set_result(Entry& e, int white) {
    e.result = static_cast<std::int8_t>(e.position.side_to_move == kWhite ? white : -white);
}

// A result in a column, where programs also write 0, 1, 2 or −1, 0, 1: then a 1 or a 0 in another line means something
// else, too, so that this is an error of the file.
void set_column_result(Entry& e, std::string_view text) {
    if (text == "2" || text == "-1" || text == "2.0" || text == "-1.0") {
        throw UnskippableError("result " + quoted(text) +
                               ", expected 1.0, 0.5 or 0.0 for White's win, draw or loss, or 1-0, 1/2-1/2 or 0-1");
    }
    set_result(e, parse_white_result(text));
}

// "<name> <operand>;" of EPD. An operation ends in a semicolon that is not within quotes.
struct Operation {
    std::string_view name, value;
};

std::vector<Operation> operations_of(std::string_view rest) {
    std::vector<Operation> operations;
    for (rest = trimmed(rest); !rest.empty();) {
        std::size_t stop = 0;
        for (bool in_quotes = false; stop < rest.size() && (in_quotes || rest[stop] != ';'); ++stop) {
            in_quotes ^= rest[stop] == '"';
        }
        const std::string_view operation = trimmed(rest.substr(0, stop));
        rest = trimmed(rest.substr(std::min(stop + 1, rest.size())));
        if (operation.empty()) continue;
        const std::size_t space = std::min(operation.find_first_of(" \t"), operation.size());
        operations.push_back({operation.substr(0, space), unquoted(operation.substr(space))});
    }
    return operations;
}

// The counters of a position, which EPD has as operations.
void set_counters(Position& p, const std::vector<Operation>& operations) {
    for (const auto& [name, value] : operations) {
        if (name == "hmvc" && value != "-") {
            p.rule50 = static_cast<std::uint16_t>(parse_integer(value, "hmvc", 0, UINT16_MAX));
        } else if (name == "fmvn" && value != "-") {
            p.ply = ply_of(static_cast<unsigned>(parse_integer(value, "fmvn", 0, (kMaxPly + 1) / 2)), p.side_to_move);
        }
    }
}

// Refuses a number behind the position that is not a counter, such as "-4".
void check_counters(std::string_view position, std::string_view rest) {
    rest = trimmed(rest);
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t;"));
    if (word.empty() || fields_of(position) == 6 || is_clear_result(word)) return;
    if (looks_like_value(word) || static_cast<unsigned char>(word[0]) >= 0x80) {
        throw FormatError("counter " + quoted(word) + ", expected a whole number from 0, or an operation with a name");
    }
}

// "eval 35;", or a number without a name.
bool may_be_score(const Operation& operation) {
    std::string name(operation.name);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (operation.value.empty()) return looks_like_value(name) && !is_clear_result(name);
    constexpr std::string_view kNames[] = {"score", "eval", "evaluation", "cp", "centipawns", "sc", "mate"};
    return std::ranges::find(kNames, name) != std::end(kNames);
}

Entry decode_epd(std::string_view line, const PawnUnit& pawn, std::uint64_t& clamped) {
    const std::string_view position = position_of(line);
    check_counters(position, line.substr(position.size()));
    const std::vector<Operation> operations = operations_of(line.substr(position.size()));
    Entry e;
    e.position = parse_fen(position);
    set_counters(e.position, operations);
    e.score = kScoreNone;
    std::optional<int> white, centipawns, mate;
    const auto set_once = [](std::optional<int>& to, int value, std::string_view name) {
        if (to.value_or(value) != value) {
            throw FormatError("two different values of " + std::string(name) + ", " + std::to_string(*to) + " and " +
                              std::to_string(value));
        }
        to = value;
    };
    for (const auto& [name, value] : operations) {
        const std::string_view bare = value.empty() ? unquoted(name) : value;  // a result without a name
        if (bare == "1-0" || bare == "0-1" || bare == "1/2-1/2" ||
            ((name == "c9" || value.empty()) && is_clear_result(bare))) {
            const int result = parse_white_result(bare);
            if (white.value_or(result) != result)
                throw FormatError("two different results, the second " + quoted(bare));
            white = result;
        } else if (name == "ce") {
            set_once(centipawns, parse_integer(value, "ce", -INT16_MAX, INT16_MAX), name);
        } else if (name == "dm") {
            set_once(mate, parse_integer(value, "dm", -kMateScore / 2, kMateScore / 2), name);
        } else if (name == "bm" || name == "sm" || name == "pv") {
            if (e.move.is_null() || name != "pv") {
                e.move = parse_san(e.position, value.substr(0, std::min(value.find(' '), value.size())));
            }
        }
    }
    if (mate) {
        e.score = static_cast<std::int16_t>(*mate > 0 ? kMateScore - 2 * *mate + 1 : -kMateScore - 2 * *mate);
    } else if (centipawns) {
        e.score = pawn.internal(static_cast<double>(*centipawns) / 100);
        clamped += std::abs(e.score) == kLargestEvaluation;
    }
    if (!white) {
        throw FormatError("a position without a result, expected <FEN> | <score> | <result>, or an EPD operation " +
                          std::string("such as c9 \"1-0\"; positions without results are a book, for ") +
                          "`nnue data generate --book`");
    }
    set_result(e, *white);
    return e;
}

// Refuses one number between a position and a result in brackets.
void check_brackets(std::string_view line) {
    if (fields_of(position_of(line)) == 5) {
        throw FormatError("one number before the result in " + quoted(line) +
                          ", which may be a counter or a score: expected none or both counters");
    }
}

// <FEN> [<result>] <score>: the score is the side to move's, the result white's.
Entry decode_brackets(std::string_view line) {
    check_brackets(line);
    const std::string_view position = position_of(line), rest = line.substr(position.size());
    const std::size_t open = rest.find('['), close = std::min(rest.find(']', open), rest.size());
    Entry e;
    e.position = parse_fen(position);
    set_result(e, parse_white_result(trimmed(rest.substr(open + 1, close - open - 1))));
    const std::string_view before = trimmed(rest.substr(0, open));
    const std::string_view after = trimmed(rest.substr(std::min(close + 1, rest.size())));
    if (!before.empty() && !after.empty()) {
        throw FormatError("two values beside the result in " + quoted(rest) + ", expected <FEN> [<result>] <score>");
    }
    const std::string_view score = before.empty() ? after : before;
    e.score =
        static_cast<std::int16_t>(score.empty() ? kScoreNone : parse_integer(score, "score", INT16_MIN, INT16_MAX));
    return e;
}

// Two values after a position, in white's view, where one of them must be a result.
Entry decode_values(std::string_view line) {
    const std::string_view position = position_of(line), rest = trimmed(line.substr(position.size()));
    const char separator = rest[0];
    std::string_view values = rest.substr(1);
    while (values.ends_with(separator)) values.remove_suffix(1);
    const std::vector<std::string_view> fields = split_at(values, separator);
    const std::size_t results = static_cast<std::size_t>(std::ranges::count_if(fields, is_clear_result));
    if (fields.size() > 2 || results != 1) {
        throw FormatError(std::string("values separated by '") + separator + "' in " + quoted(rest) +
                          ", which do not show which one is the result: put a line of names first, such as fen" +
                          separator + "score" + separator +
                          "result, with results 1.0, 0.5 or 0.0, or 1-0, 1/2-1/2 or 0-1");
    }
    const std::size_t at = is_clear_result(fields[0]) ? 0 : 1;
    Entry e;
    e.position = parse_fen(position);
    set_result(e, parse_white_result(fields[at]));
    e.score = own_score(fields.size() == 2 ? fields[1 - at] : std::string_view(), e.position.side_to_move);
    return e;
}

// Only the position of a line.
Entry decode_listed(std::string_view line) {
    const std::string_view text = position_of(line), rest = trimmed(line.substr(text.size()));
    if (rest == "moves" || rest.starts_with("moves ")) {
        throw FormatError("moves after a position in " + quoted(rest) +
                          ", expected one position in a line; games are read as PGN");
    }
    const LineForm form = line_form(line);
    if (form == LineForm::kBrackets) check_brackets(line);
    Entry e;
    e.score = kScoreNone;
    try {
        e.position = parse_fen(text);
        if (form == LineForm::kEpd) {
            check_counters(text, rest);
            set_counters(e.position, operations_of(rest));
        }
    } catch (const FormatError& error) {
        throw FormatError("FEN " + quoted(line) + ": " + error.what());
    }
    return e;
}

Entry decode_columns(std::string_view line, const PositionColumns& columns, bool is_list) {
    const std::vector<std::string_view> fields = split_at(line, columns.separator);
    const auto field = [&](std::size_t at) { return at < fields.size() ? fields[at] : std::string_view(); };
    Entry e;
    e.position = parse_fen(field(columns.position));
    if (is_list) return e;
    if (!columns.result) throw UnskippableError("no column with results, expected one named result or wdl");
    set_column_result(e, field(*columns.result));
    if (std::ranges::any_of(fields.begin() + std::min(fields.size(), columns.count), fields.end(),
                            [](std::string_view text) { return !text.empty(); })) {
        throw FormatError(std::to_string(fields.size()) + " values in " + quoted(line) + ", expected " +
                          std::to_string(columns.count) + ", the number of names in the first line");
    }
    e.score = columns.score ? own_score(field(*columns.score), e.position.side_to_move) : std::int16_t{kScoreNone};
    if (e.score == kScoreNone && columns.mate && !field(*columns.mate).empty()) {
        e.score = own_score("#" + std::string(field(*columns.mate)), e.position.side_to_move);
    }
    return e;
}

}  // namespace

LineForm line_form(std::string_view line) {
    line = trimmed(line);
    if (PositionColumns(line).separator) return LineForm::kHeader;
    if (line.find('|') != std::string_view::npos) return LineForm::kBars;
    if (!begins_position(line)) return LineForm::kNone;
    const std::string_view rest = trimmed(line.substr(position_of(line).size()));
    if (rest.starts_with(',') || (rest.starts_with(';') && looks_like_value(trimmed(rest.substr(1))))) {
        return LineForm::kValues;
    }
    return rest.starts_with('[') || (looks_like_value(rest) && rest.find('[') != std::string_view::npos)
               ? LineForm::kBrackets
               : LineForm::kEpd;
}

PositionColumns::PositionColumns(std::string_view header) {
    const auto is_one_of = [](std::string_view name, std::initializer_list<std::string_view> names) {
        return std::ranges::find(names, name) != names.end();
    };
    if (header.find('/') != std::string_view::npos) return;  // a position
    std::string lower(trimmed(header));
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const char mark : {',', ';', '|', '\t', '\n'}) {  // a line feed: one column
        const std::vector<std::string_view> names = split_at(lower, mark);
        if (names.size() < 2 && (mark != '\n' || (names[0] != "fen" && names[0] != "epd"))) continue;
        const auto found = std::ranges::find_if(names, [&](std::string_view name) {
            return is_one_of(name, {"fen", "epd", "position", "board"});
        });
        if (found == names.end()) continue;
        separator = mark;
        position = static_cast<std::size_t>(found - names.begin());
        count = names.size();
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto is_second = [&](const std::optional<std::size_t>& first) {
                if (first) problem = "two columns of one kind, " + quoted(names[*first]) + " and " + quoted(names[i]);
                return i;
            };
            if (is_one_of(names[i], {"score", "cp", "eval", "evaluation", "centipawns"})) {
                score = is_second(score);
            } else if (is_one_of(names[i], {"result", "wdl", "outcome", "game_result"})) {
                result = is_second(result);
            } else if (names[i] == "mate") {
                mate = is_second(mate);
            } else if (i != position && !names[i].empty()) {
                unread += (unread.empty() ? "" : ", ") + quoted(names[i]);
            }
        }
        return;
    }
}

int parse_white_result(std::string_view text) {
    std::string_view result = text;
    if (result.size() >= 2 && result.front() == '[' && result.back() == ']') {
        result = trimmed(result.substr(1, result.size() - 2));
    }
    if (result == "1.0" || result == "1" || result == "1-0") return 1;
    if (result == "0.5" || result == "1/2" || result == "1/2-1/2") return 0;
    if (result == "0.0" || result == "0" || result == "0-1") return -1;
    throw FormatError("result " + quoted(text) + ", expected 1.0, 0.5 or 0.0, or 1-0, 1/2-1/2 or 0-1");
}

PositionListReader::PositionListReader(const DataFormat& format, ByteStream stream, OnBad on_bad, LineRange range,
                                       const ReadSettings& settings)
    : PositionLineReader(format, std::move(stream), on_bad, range),
      columns_(range.header),
      pawn_(settings),
      is_list_(settings.contains("results") && settings.at("results") == "optional") {}

std::vector<std::string> PositionListReader::notes() const {
    std::vector<std::string> found = marks();
    if (has_game_results_) found.emplace_back("results 1-0, 1/2-1/2, 0-1");
    if (brackets_) {
        found.push_back("lines of FEN [result] score, the score in the side to move's view, the result in White's: " +
                        std::to_string(brackets_));
    }
    if (values_) {
        found.push_back("lines of separated values, scores and results in White's view: " + std::to_string(values_));
    }
    if (values_ && columns_.separator && !is_list_) {
        if (!columns_.score && !columns_.mate)
            found.emplace_back("no column with scores, expected one named score, cp or eval");
        if (!columns_.unread.empty()) found.push_back("columns that are not read: " + columns_.unread);
    }
    if (clamped_) found.push_back(std::string(kClampedEvaluations) + ": " + std::to_string(clamped_));
    if (unclear_) {
        found.push_back("positions without ce, with an operation that is not understood as a score: " +
                        std::to_string(unclear_) + ", such as " + unclear_example_);
    }
    if (unscored_) {
        found.push_back("positions without a score: " + std::to_string(unscored_) + ", such as " + unscored_example_);
    }
    return found;
}

bool PositionListReader::is_skipped(std::string_view line) {
    line = trimmed(line);
    if (line.empty() || is_comment(line)) return true;
    const PositionColumns named(line);
    if (!named.separator) return false;
    columns_ = named;
    return true;
}

void PositionListReader::count_score(const Entry& e, std::string_view text) {
    if (!is_list_ && e.score == kScoreNone && unscored_++ == 0) unscored_example_ = quoted(trimmed(text));
}

Entry PositionListReader::decode_line(std::string_view line) {
    line = trimmed(line);
    if (columns_.separator) {
        if (!columns_.problem.empty() && !is_list_) throw UnskippableError(columns_.problem);
        const Entry e = decode_columns(line, columns_, is_list_);
        ++values_;
        if (columns_.score || columns_.mate) count_score(e, line);
        return e;
    }
    const LineForm form = line_form(line);
    if (is_list_) return decode_listed(form == LineForm::kBars ? trimmed(line.substr(0, line.find('|'))) : line);
    switch (form) {
        case LineForm::kBars:
            has_game_results_ |= line.substr(line.rfind('|')).find('-') != std::string_view::npos;
            return decode_text(line);
        case LineForm::kBrackets: {
            const Entry e = decode_brackets(line);
            ++brackets_;
            count_score(e, line.substr(position_of(line).size()));
            return e;
        }
        case LineForm::kValues: {
            const Entry e = decode_values(line);
            ++values_;
            count_score(e, line.substr(position_of(line).size()));
            return e;
        }
        default: {
            const Entry e = decode_epd(line, pawn_, clamped_);
            const std::string_view rest = line.substr(position_of(line).size());
            if (e.score == kScoreNone && std::ranges::any_of(operations_of(rest), may_be_score)) {
                if (unclear_++ == 0) unclear_example_ = quoted(trimmed(rest));
            } else {
                count_score(e, rest);
            }
            return e;
        }
    }
}

std::string PositionListReader::header_of(const Head& head) {
    const std::string_view line = head.first_content_line();
    return PositionColumns(line).separator ? std::string(line) : std::string();
}

bool begins_listed_line(std::string_view) {
    return true;
}

}  // namespace nnue::data
