#include "formats/pgn_games.h"

#include <algorithm>
#include <cctype>

#include "chess/position.h"
#include "chess/san.h"

namespace nnue::data {

std::string lower_case(std::string_view text) {
    std::string lower(text);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return lower;
}

bool is_other_variant(std::string_view variant) {
    const std::string lower = lower_case(variant);
    for (const std::string_view chess : {"", "standard", "chess", "normal", "from position"}) {
        if (lower == chess) return false;
    }
    return lower.find("fischer") == std::string::npos && lower.find("960") == std::string::npos;
}

namespace {

constexpr std::string_view kStartFen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";

// White's result, 1, 0 or −1.
std::optional<int> pgn_result(std::string_view text) {
    std::string compact;
    for (const char c : text) {
        if (c != ' ') compact += c == ':' ? '-' : c;
    }
    if (compact == "1-0") return 1;
    if (compact == "0-1") return -1;
    if (compact == "1/2-1/2" || compact == "1/2" || compact == "0.5-0.5") return 0;
    return std::nullopt;
}

bool is_null_move(std::string_view word) {
    const std::string lower = lower_case(word);
    for (const std::string_view name : {"<>", "z0", "0000", "@@@@", "null", "pass"}) {
        if (lower == name) return true;
    }
    const bool stays = lower.size() == 4 && lower[0] >= 'a' && lower[0] <= 'h' && lower[1] >= '1' && lower[1] <= '8' &&
                       lower.substr(0, 2) == lower.substr(2);  // "e1e1"
    return stays || (!lower.empty() && lower.find_first_not_of('-') == std::string::npos);
}

std::size_t end_of_comment(std::string_view text, std::size_t i) {
    const std::size_t end = text.find('}', i);
    return end == std::string_view::npos ? end : end + 1;
}

// After the variation that begins at i; npos: it has no end.
std::size_t end_of_variation(std::string_view text, std::size_t i) {
    for (int depth = 0; i < text.size();) {
        if (text[i] == '{') {
            i = end_of_comment(text, i);
            if (i == std::string_view::npos) break;
            continue;
        }
        if (text[i] == ';') {
            i = std::min(text.find('\n', i), text.size());
            continue;
        }
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        ++i;
        if (depth == 0) return i;
    }
    return std::string_view::npos;
}

}  // namespace

bool is_pgn_tag(std::string_view line) {
    return line.size() > 2 && line[0] == '[' && std::isalpha(static_cast<unsigned char>(line[1]));
}

bool begins_pgn_game(std::string_view line) {
    return line.starts_with("[Event \"");
}

bool PgnReaderBase::next_game(PgnGame& game) {
    for (;; --game_) {
        game = {};
        if (!collect(game)) return false;
        game.header_result = pgn_result(ascii_of(game.tag("result")));
        parse_text(game);
        // Skips comments between games, and control characters at the end of a file.
        if (!game.tags.empty() || !game.plies.empty() || game.has_end || !game.problem.empty()) return true;
    }
}

// The tags and the text of the next game; false at the end.
bool PgnReaderBase::collect(PgnGame& game) {
    if (!text_.empty()) {  // a game without tags after the last one
        name_game(game);
        return true;
    }
    lines_.clear();
    in_comment_ = false;
    while (!ended_) {
        std::string_view line;
        if (has_held_) {
            line = held_;
        } else if (!next_line(line)) {
            ended_ = true;
            break;
        }
        const bool from_held = std::exchange(has_held_, false);
        const std::string_view content = trimmed(line);
        if (!started_) {  // what stands before belongs to another range
            if (!starts_file() && !begins_pgn_game(content)) continue;
            started_ = true;
        }
        const bool begins = begins_pgn_game(content);
        const bool tag = is_pgn_tag(content) && (!in_comment_ || begins);
        if (!from_held && begins && is_past_range()) {
            ended_ = true;
            if (text_.empty() && !game.tags.empty() && !game.tags.contains("event")) check_early_tags(game);
            break;
        }
        if (tag && (!text_.empty() || (begins && game.tags.contains("event")))) {
            held_ = std::string(content);
            has_held_ = true;
            break;
        }
        if (content.empty() || (line[0] == '%' && !in_comment_)) continue;
        if (game.where.empty()) name_game(game);
        if (tag) {
            take_tags(content, game);
        } else {
            add_text(content, game);
        }
    }
    return !text_.empty() || !game.tags.empty();
}

// Tags before [Event …] at the end of a range: the reader of the next range does not see them.
void PgnReaderBase::check_early_tags(PgnGame& game) {
    for (const char* name : {"fen", "result", "variant", "termination"}) {
        if (!game.tag(name).empty())
            throw FormatError(game.where + ": tag " + name + " before the tag Event, expected it after");
    }
    game = {};
}

// Names the game that begins with the last line.
void PgnReaderBase::name_game(PgnGame& game) {
    game.where = error("game " + std::to_string(game_++)).what();
}

// One or more tags; moves may follow them on their line.
void PgnReaderBase::take_tags(std::string_view line, PgnGame& game) {
    while (is_pgn_tag(line)) {
        const std::size_t name_end = std::min(line.find_first_of(" \t\"]"), line.size());
        const std::string name = lower_case(line.substr(1, name_end - 1));
        std::string value;
        std::size_t at = line.find_first_not_of(" \t", name_end);
        if (at != std::string_view::npos && line[at] == '"') {
            for (++at; at < line.size() && line[at] != '"'; ++at) {
                if (line[at] == '\\' && at + 1 < line.size()) ++at;
                value += line[at];
            }
        } else {
            value = trimmed(line.substr(name_end, line.find(']') - name_end));
        }
        game.tags[name] = value;
        const std::size_t close = line.find(']', std::min(at, line.size()));
        line = close == std::string_view::npos ? std::string_view() : trimmed(line.substr(close + 1));
    }
    if (!line.empty()) add_text(line, game);
}

void PgnReaderBase::add_text(std::string_view line, PgnGame& game) {
    for (const char c : line) {
        if (c == ';' && !in_comment_) break;
        in_comment_ = c == '{' || (in_comment_ && c != '}');
    }
    if (text_.size() + line.size() > kMaxGame) {
        throw FormatError(game.where + ": a game of more than " + std::to_string(kMaxGame) + " characters");
    }
    lines_.emplace_back(text_.size(), line_number());
    text_ += ascii_of(line);
    text_ += '\n';
}

std::uint64_t PgnReaderBase::line_at(std::size_t offset) const {
    const auto after = std::ranges::upper_bound(lines_, offset, {}, &std::pair<std::size_t, std::uint64_t>::first);
    return after == lines_.begin() ? line_number() : std::prev(after)->second;
}

void PgnReaderBase::take_comment(std::string_view text, std::size_t at, PgnGame& game) {
    const PgnComment found = parse_pgn_comment(text);
    if (!game.problem.empty()) {
        game.evals_after |= found.eval.has_value();
        return;
    }
    if (game.plies.empty()) {
        if (!game.start_eval) game.start_eval = found.eval;
        return;
    }
    PgnPly& ply = game.plies.back();
    if (ply.eval) return;
    if (!ply.comment.empty()) ply.comment += ' ';
    ply.comment += text;
    ply.eval = found.eval;
    ply.is_book |= found.is_book;
    ply.is_unclear = !found.eval && (ply.is_unclear || found.is_unclear);
    ply.line = line_at(at);
}

// A word outside of comments; false at the end of the game.
bool PgnReaderBase::take_word(std::string_view word, std::size_t at, Position& position, PgnGame& game) {
    if (word == "*" || pgn_result(word)) {
        game.final_result = pgn_result(word);
        game.has_end = true;
        return false;
    }
    // A number of a move, perhaps with the move after it.
    const std::size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
    if (digits > 0 && (digits == word.size() || word[digits] == '.') && word != "0000") {
        word.remove_prefix(std::min(word.find_first_not_of('.', digits), word.size()));
    }
    const std::string_view mark = word.substr(0, word.find_last_not_of("+#!?") + 1);
    if (mark == "e.p." || mark == "ep") return true;
    const bool is_null = is_null_move(word);
    // Signs such as "!?", "+-" or "=", "N" for a new move, and the numbers of notes.
    const bool is_sign =
        word == "N" || std::ranges::none_of(word, [](char c) { return std::isalnum(static_cast<unsigned char>(c)); });
    if (word.starts_with('$') || (is_sign && !is_null)) return true;
    if (!game.problem.empty()) return true;
    game.line = line_at(at);
    game.has_null_move = is_null;
    try {
        if (is_null) throw FormatError("the null move " + quoted(word));
        PgnPly ply{position, parse_san(position, word), {}, {}, false, false, game.line};
        if (position.ply >= kMaxPly) throw FormatError("a game beyond ply 16383");
        play(position, ply.move);
        game.plies.push_back(std::move(ply));
    } catch (const FormatError& error) {
        game.problem = error.what();
    }
    return true;
}

// The main line, up to the result. What follows it stays in text_ if there are more moves.
void PgnReaderBase::parse_text(PgnGame& game) {
    Position position;
    try {
        const std::string fen = ascii_of(game.tag("fen"));
        position = parse_fen(trimmed(fen).empty() ? kStartFen : fen);
    } catch (const FormatError& error) {
        game.problem = error.what();
        position = parse_fen(kStartFen);
    }
    game.start = position;
    const std::string_view text = text_;
    std::size_t i = 0;
    const auto broken = [&](const char* what) {
        if (game.problem.empty()) game.problem = what;
        game.is_broken = true;
        i = text.size();
    };
    while (i < text.size()) {
        const char c = text[i];
        const bool null = text.substr(i).starts_with("<>");
        if (c == '{') {
            const std::size_t end = end_of_comment(text, i);
            if (end == std::string_view::npos) {
                broken("a comment without an end");
                break;
            }
            take_comment(text.substr(i + 1, end - i - 2), i, game);
            i = end;
        } else if (c == ';') {
            const std::size_t end = std::min(text.find('\n', i), text.size());
            take_comment(text.substr(i + 1, end - i - 1), i, game);
            i = end;
        } else if (c == '(') {
            i = end_of_variation(text, i);
            if (i == std::string_view::npos) broken("a variation without an end");
        } else if (!null &&
                   (std::isspace(static_cast<unsigned char>(c)) || std::string_view(".<>)}").find(c) != text.npos)) {
            if ((c == ')' || c == '}') && game.problem.empty()) {
                game.problem = std::string("a '") + c + "' where a move is expected";
            }
            ++i;
        } else {
            const std::size_t end = null ? i + 2 : std::min(text.find_first_of(" \t\r\n{}();$<>", i + 1), text.size());
            const std::string_view word = text.substr(i, end - i);
            const std::size_t at = std::exchange(i, end);
            if (!take_word(word, at, position, game)) break;
        }
    }
    if (game.line == 0) game.line = line_number();
    // Comments and line ends after the result belong to the game.
    std::size_t rest = i;
    while (rest < text.size()) {
        if (std::isspace(static_cast<unsigned char>(text[rest]))) {
            ++rest;
        } else if (text[rest] == '{' || text[rest] == ';') {
            const std::size_t end = text[rest] == '{' ? text.find('}', rest) : text.find('\n', rest);
            rest = end == std::string_view::npos ? text.size() : end + 1;
        } else {
            break;
        }
    }
    text_.erase(0, rest);
    for (auto& [offset, line] : lines_) offset -= std::min(offset, rest);
}

}  // namespace nnue::data
