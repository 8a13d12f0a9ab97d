#include "formats/pgn_comments.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

namespace nnue::data {

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

bool is_decimal(char c) {
    return c >= '0' && c <= '9';
}

std::string_view stripped(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool begins_with(std::string_view text, std::string_view lower) {
    return text.size() >= lower.size() && std::ranges::equal(text.substr(0, lower.size()), lower, [](char a, char b) {
               return std::tolower(static_cast<unsigned char>(a)) == b;
           });
}

bool is_number(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, is_decimal);
}

// Takes an evaluation off a text: "+0.35", "17", "#-3", "-M4", "+m4".
std::optional<PgnEval> take_eval(std::string_view& text) {
    std::string_view rest = text;
    PgnEval eval;
    const auto take_sign = [&] {
        if (eval.has_sign || rest.empty() || (rest[0] != '+' && rest[0] != '-')) return 1;
        eval.has_sign = true;
        const int sign = rest[0] == '-' ? -1 : 1;
        rest.remove_prefix(1);
        return sign;
    };
    int sign = take_sign();
    const bool is_plies = rest.starts_with('M') || (eval.has_sign && rest.starts_with('m'));
    const std::size_t mark = rest.starts_with('#') ? 1 : begins_with(rest, "mate") ? 4 : is_plies ? 1 : 0;
    if (mark) {
        eval.is_mate = true;
        eval.counts_moves = mark == 4 || rest[0] == '#';
        rest.remove_prefix(mark);
        sign *= take_sign();
    }
    const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    std::size_t size = digits;
    if (!eval.is_mate && size < rest.size() && rest[size] == '.' && size + 1 < rest.size() &&
        is_decimal(rest[size + 1])) {
        eval.has_point = true;
        size = std::min(rest.find_first_not_of("0123456789", size + 1), rest.size());
    }
    if (size == 0) return std::nullopt;
    const std::string number = (digits ? "" : "0") + std::string(rest.substr(0, size));
    double value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value, std::chars_format::fixed).ec !=
            std::errc{} ||
        !std::isfinite(value)) {
        return std::nullopt;
    }
    eval.value = sign * value;
    text = rest.substr(size);
    return eval;
}

// A whole word as an evaluation.
std::optional<PgnEval> eval_of(std::string_view word) {
    const std::optional<PgnEval> eval = take_eval(word);
    return word.empty() ? eval : std::nullopt;
}

bool is_exact(const PgnEval& eval) {
    return eval.has_point || eval.is_mate;
}

// "12", "12/20", "12-20".
bool is_depth(std::string_view word) {
    const std::size_t cut = word.find_first_of("/-");
    return is_number(word.substr(0, cut)) && (cut == std::string_view::npos || is_number(word.substr(cut + 1)));
}

// "0.5s", "500ms", "1:30", "0:00:01.5".
bool is_time(std::string_view word) {
    const std::size_t end = std::min(word.find_first_not_of("0123456789.:"), word.size());
    if (end == 0) return false;
    const std::string_view unit = word.substr(end);
    return unit == "s" || unit == "ms" || unit == "m" || (unit.empty() && word.find(':') != std::string_view::npos);
}

// "d12", "d=12", "depth12".
bool is_marked_depth(std::string_view word) {
    if (begins_with(word, "depth")) {
        word.remove_prefix(5);
    } else if (begins_with(word, "d")) {
        word.remove_prefix(1);
    } else {
        return false;
    }
    if (word.starts_with('=') || word.starts_with(':')) word.remove_prefix(1);
    return is_depth(word);
}

bool is_any_of(std::string_view word, std::initializer_list<std::string_view> lower) {
    return std::ranges::any_of(
        lower, [&](std::string_view each) { return word.size() == each.size() && begins_with(word, each); });
}

// A word of a sentence that a reader would take for an evaluation.
bool looks_like_eval(std::string_view word) {
    constexpr std::string_view kMarks = "([{<>|=@'~$";
    while (!word.empty() && (static_cast<unsigned char>(word[0]) >= 0x80 || kMarks.find(word[0]) != word.npos)) {
        word.remove_prefix(1);
    }
    const std::size_t end = word.find_last_not_of("()]}>.,:!?'+-=");
    word = word.substr(0, end == std::string_view::npos ? 0 : end + 1);
    const std::size_t key = word.find_first_of("=:");
    const bool is_named =
        key != std::string_view::npos && key + 1 < word.size() &&
        is_any_of(word.substr(0, key), {"s", "v", "cp", "mate", "value", "wdl", "sc", "ev", "eval", "score"});
    if (is_named || (key != std::string_view::npos && word[key] == '=')) return is_named;
    if (is_time(word)) return false;
    const std::size_t mark = word.rfind(':');  // of "S:+0.35", "+0.35:12" or "t:0:00:01.5"
    if (mark != std::string_view::npos) {
        const std::optional<PgnEval> before = eval_of(word.substr(0, mark));
        if (before && before->has_sign && is_exact(*before)) return true;
        word.remove_prefix(mark + 1);
    }
    const std::size_t sign = std::min(word.find_first_of("+-"), word.size());
    if (is_any_of(word.substr(0, sign), {"w", "b", "white", "black"})) word.remove_prefix(sign);  // "W+M5"
    if (sign < word.size() && begins_with(word.substr(sign + 1), "inf")) return true;
    std::optional<PgnEval> eval = take_eval(word);
    if (!eval || (mark != std::string_view::npos && !eval->has_sign)) return false;
    if (begins_with(word, "cp")) return true;
    if (!(eval->has_sign || is_exact(*eval))) return false;
    return word.empty() || std::string_view("/%@|;pPMeE").find(word[0]) != std::string_view::npos;
}

// "0,35" is two words, and no evaluation of 0: `word` is a number that a comma and the digits of `next` follow.
bool has_decimal_comma(std::string_view word, std::string_view next) {
    if (next.empty() || next.data() != word.data() + word.size() + 1 || word.data()[word.size()] != ',') return false;
    word.remove_prefix(std::min(word.find_first_not_of("+-"), word.size()));
    return is_number(word) && is_decimal(next[0]);
}

// "1/2-1/2", and "1/2" without a time: no evaluation of 1 at depth 2.
bool is_draw(std::string_view word, std::string_view next) {
    return word.starts_with("1/2-") || (word == "1/2" && !is_time(next) && !is_number(next));
}

// "score 35", "Eval: +0.35", "mate 5/20".
bool names_eval(std::string_view word, std::string_view next) {
    while (word.ends_with(':')) word.remove_suffix(1);
    return is_any_of(word, {"score", "eval", "evaluation", "mate", "cp"}) && take_eval(next).has_value();
}

// The rest of `[%eval 0,17/20]` or `[%eval -0,35]`, in which the comma is a decimal comma: ChessBase writes a depth
// after it, and no signed zero.
bool has_decimal_comma(const PgnEval& eval, std::string_view rest) {
    if (!rest.starts_with(',') || is_exact(eval)) return false;
    rest = stripped(rest.substr(1));
    return (eval.value == 0 && eval.has_sign) || (rest.size() > 1 && rest[0] == '0') || !is_number(rest);
}

// `[%eval …]`, with anything that may stand between the name and the number.
PgnComment parse_command(std::string_view text) {
    PgnComment comment;
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n:="), text.size()));
    text = stripped(text);
    std::optional<PgnEval> eval = take_eval(text);
    text = stripped(text);
    if (!eval || has_decimal_comma(*eval, text) ||
        (!text.empty() && std::string_view(",/;d").find(text[0]) == std::string_view::npos)) {
        comment.is_unclear = true;
        return comment;
    }
    eval->dialect = !is_exact(*eval) && text.starts_with(',') ? PgnDialect::kChessBase : PgnDialect::kLichess;
    eval->counts_moves = eval->is_mate;
    comment.eval = eval;
    return comment;
}

// Of "d=20, sd=40, wv=0.35, …" the value of one key.
std::optional<std::string_view> value_of(const std::vector<std::string_view>& words, std::string_view key) {
    for (const std::string_view word : words) {
        if (word.size() > key.size() && word[key.size()] == '=' && begins_with(word, key)) {
            return word.substr(key.size() + 1);
        }
    }
    return std::nullopt;
}

PgnComment parse_words(const std::vector<std::string_view>& words) {
    PgnComment comment;
    const auto found = [&](PgnEval eval, PgnDialect dialect) {
        eval.dialect = dialect;
        comment.eval = eval;
        return comment;
    };
    constexpr std::pair<std::string_view, PgnDialect> kKeys[] = {{"wv", PgnDialect::kTcec},
                                                                 {"ev", PgnDialect::kMatch},
                                                                 {"eval", PgnDialect::kPlain},
                                                                 {"score", PgnDialect::kPlain}};
    for (const auto& [key, dialect] : kKeys) {
        const auto value = value_of(words, key);
        if (!value || value->empty()) continue;
        const auto eval = eval_of(*value);
        const auto next = std::ranges::find_if(words, [&](auto word) { return word.data() > value->data(); });
        if (eval && (next == words.end() || !has_decimal_comma(*value, *next))) return found(*eval, dialect);
        comment.is_unclear = true;
        return comment;
    }
    const std::string_view first = words[0], second = words.size() > 1 ? words[1] : std::string_view();
    std::string_view rest = first;
    if (const std::optional<PgnEval> eval = take_eval(rest)) {
        const std::optional<PgnEval> next = eval_of(second);
        const bool depth_is_first = next && (is_exact(*next) || next->has_sign) && is_depth(first);
        if (depth_is_first) return found(*next, PgnDialect::kPlain);
        if (rest.starts_with('/')) {
            comment.is_unclear = is_draw(first, second) || rest.starts_with("/+") || rest.starts_with("/-");
            return comment.is_unclear ? comment : found(*eval, PgnDialect::kMatch);
        }
        if (rest.empty() && is_exact(*eval)) {
            if (second.empty() || is_marked_depth(second)) return found(*eval, PgnDialect::kPlain);
            const bool has_depths = is_depth(second) && !is_number(second);
            if (has_depths || is_time(second)) return found(*eval, PgnDialect::kMatch);
        }
    }
    if (is_marked_depth(first) && !second.empty()) {
        const std::optional<PgnEval> eval = eval_of(second);
        if (eval && (is_exact(*eval) || eval->has_sign)) return found(*eval, PgnDialect::kPlain);
    }
    comment.is_unclear |= std::ranges::any_of(words, looks_like_eval);
    for (std::size_t i = 1; i < words.size(); ++i) {
        comment.is_unclear |= names_eval(words[i - 1], words[i]) || has_decimal_comma(words[i - 1], words[i]);
    }
    return comment;
}

}  // namespace

PgnComment parse_pgn_comment(std::string_view text) {
    PgnComment comment;
    std::string rest;  // without commands and quotes
    bool in_quotes = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text.substr(i).starts_with("[%")) {
            const std::size_t end = std::min(text.find(']', i), text.size());
            const std::string_view command = text.substr(i + 2, end - i - 2);
            const std::size_t name = std::min(command.find_first_of(" \t\r\n:=,"), command.size());
            if (!comment.eval && begins_with(command, "eval") && name == 4) {
                comment = parse_command(command.substr(name));
            } else if (begins_with(command, "ev") || begins_with(command, "wdl") || begins_with(command, "score")) {
                comment.is_unclear = true;
            }
            rest += ' ';
            i = end;
        } else if (text[i] == '"') {
            in_quotes = !in_quotes;
        } else if (!in_quotes) {
            rest += text[i];
        }
    }
    std::string_view plain = stripped(rest);
    // Arena writes the variation before the score. A comment may also stand in parentheses as a whole.
    if (plain.starts_with('(') && plain.find(')') != std::string_view::npos) {
        const std::string_view after = stripped(plain.substr(plain.find(')') + 1));
        plain = after.empty() ? stripped(plain.substr(1, plain.find(')') - 1)) : after;
    }
    std::vector<std::string_view> words;
    for (std::size_t begin = plain.find_first_not_of(" \t\r\n,;"); begin != std::string_view::npos;) {
        const std::size_t end = std::min(plain.find_first_of(" \t\r\n,;", begin), plain.size());
        words.push_back(plain.substr(begin, end - begin));
        begin = plain.find_first_not_of(" \t\r\n,;", end);
    }
    if (words.empty()) return comment;
    comment.is_book = words[0].size() == 4 && begins_with(words[0], "book");
    if (!comment.eval) {
        const PgnComment found = parse_words(words);
        comment.eval = found.eval;
        comment.is_unclear |= found.is_unclear;
    }
    if (comment.eval) comment.is_unclear = false;
    return comment;
}

std::string ascii_of(std::string_view text) {
    constexpr std::pair<std::string_view, std::string_view> kCharacters[] = {
        {"\u2010", "-"}, {"\u2011", "-"}, {"\u2012", "-"},   {"\u2013", "-"},   {"\u2014", "-"}, {"\u2212", "-"},
        {"\uff0b", "+"}, {"\uff0d", "-"}, {"\u2026", "..."}, {"\u00bd", "1/2"}, {"\u00a0", " "}, {"\u202f", " "},
        {"\u2009", " "}, {"\ufeff", ""},  {"\u2654", "K"},   {"\u2655", "Q"},   {"\u2656", "R"}, {"\u2657", "B"},
        {"\u2658", "N"}, {"\u2659", ""},  {"\u265a", "K"},   {"\u265b", "Q"},   {"\u265c", "R"}, {"\u265d", "B"},
        {"\u265e", "N"}, {"\u265f", ""}};
    std::string ascii;
    ascii.reserve(text.size());
    for (std::size_t i = 0; i < text.size();) {
        const auto* known = std::end(kCharacters);
        if (static_cast<unsigned char>(text[i]) >= 0x80) {
            known = std::ranges::find_if(kCharacters,
                                         [&](const auto& pair) { return text.substr(i).starts_with(pair.first); });
        }
        const bool is_sum = !ascii.empty() && is_decimal(ascii.back());
        if (known == std::end(kCharacters)) {
            ascii += text[i++];
        } else if (known->second == "1/2" && is_sum) {  // "1½"
            ascii += ".5";
            i += known->first.size();
        } else {
            ascii += known->second;
            i += known->first.size();
        }
    }
    return ascii;
}

}  // namespace nnue::data
