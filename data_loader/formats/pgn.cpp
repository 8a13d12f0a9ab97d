// PGN with evaluations in comments. The conventions in use, and their differences: docs/data-formats.md, "PGN".
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "chess/position.h"
#include "chess/san.h"
#include "formats/lines.h"

namespace nnue::data {

extern const DataFormat kPgn;

namespace {

constexpr std::size_t kMaxLine = 1 << 20, kMaxGame = 1 << 22;  // characters
constexpr int kMate = 32000, kMaxScore = 31999;

enum class View { kAuto, kWhite, kMover };
enum class Place { kAuto, kBefore, kAfter };
enum class Unit { kAuto, kPawns, kCentipawns };

struct Settings {
    View view = View::kAuto;
    Place place = Place::kAuto;
    Unit unit = Unit::kAuto;
    double pawn = 208;  // internal units

    explicit Settings(const std::map<std::string, std::string>& values) {
        for (const auto& [name, value] : values) {
            if (name == "score_view") {
                view = choose<View>(name, value,
                                    {{"auto", View::kAuto}, {"white", View::kWhite}, {"mover", View::kMover}});
            } else if (name == "score_place") {
                place = choose<Place>(name, value,
                                      {{"auto", Place::kAuto}, {"before", Place::kBefore}, {"after", Place::kAfter}});
            } else if (name == "score_unit") {
                unit = choose<Unit>(name, value,
                                    {{"auto", Unit::kAuto}, {"pawns", Unit::kPawns}, {"cp", Unit::kCentipawns}});
            } else if (name == "pawn") {
                char* end = nullptr;
                pawn = std::strtod(value.c_str(), &end);
                if (*end || !(pawn > 0 && pawn <= 10000)) {
                    throw FormatError("pawn " + quoted(value) + ", expected the internal units of a pawn");
                }
            }
        }
    }

  private:
    template <class T>
    static T choose(const std::string& name, const std::string& value, const std::map<std::string, T>& words) {
        const auto found = words.find(value);
        if (found != words.end()) return found->second;
        std::string all;
        for (const auto& [word, meaning] : words) all += (all.empty() ? "" : ", ") + word;
        throw FormatError(name + " " + quoted(value) + ", expected one of " + all);
    }
};

// Who wrote the evaluations.
enum class Dialect { kMatch, kLichess, kChessBase, kPlain };
constexpr const char* kDialectNames[] = {"engine matches ({+0.35/12 0.05s})", "lichess ([%eval 0.35])",
                                         "ChessBase ([%eval 35,12])", "plain numbers ({0.35})"};

struct Eval {
    Dialect dialect;
    bool is_mate = false;
    double value = 0;  // as printed; of a mate, its number
    bool has_point = false;
};

std::optional<double> take_number(std::string_view& text) {
    std::string_view digits = text;
    if (digits.starts_with('+')) digits.remove_prefix(1);
    double value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed);
    if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
    text = {end, static_cast<std::size_t>(text.data() + text.size() - end)};
    return value;
}

// The evaluation in a comment, if there is one.
std::optional<Eval> parse_eval(std::string_view comment) {
    constexpr std::string_view kCommand = "[%eval ";
    if (const std::size_t at = comment.find(kCommand); at != std::string_view::npos) {
        std::string_view text = comment.substr(at + kCommand.size());
        text = trimmed(text.substr(0, text.find(']')));
        Eval eval{Dialect::kLichess};
        if (text.starts_with('#')) {
            eval.is_mate = true;
            text.remove_prefix(1);
        }
        const std::string_view number = text;
        const std::optional<double> value = take_number(text);
        if (!value) return std::nullopt;
        eval.value = *value;
        eval.has_point = number.substr(0, number.size() - text.size()).find('.') != std::string_view::npos;
        if (!eval.is_mate && !eval.has_point && text.starts_with(',')) eval.dialect = Dialect::kChessBase;
        return eval;
    }
    std::string_view text = trimmed(comment);
    Eval eval{Dialect::kMatch};
    const bool minus = text.starts_with('-');
    if (const std::size_t sign = minus || text.starts_with('+') ? 1 : 0; text.substr(sign).starts_with('M')) {
        text.remove_prefix(sign + 1);
        const std::optional<double> plies = take_number(text);
        if (!plies) return std::nullopt;
        eval.is_mate = true;
        eval.value = minus ? -*plies : *plies;
    } else {
        const std::string_view number = text;
        const std::optional<double> value = take_number(text);
        if (!value) return std::nullopt;
        eval.value = *value;
        eval.has_point = number.substr(0, number.size() - text.size()).find('.') != std::string_view::npos;
    }
    if (text.starts_with('/')) return eval;
    eval.dialect = Dialect::kPlain;
    if (text.empty() && (eval.has_point || eval.is_mate)) return eval;
    return std::nullopt;  // words that begin with a number
}

struct Ply {
    Position before;
    Move move;
    std::optional<Eval> eval;
    bool is_book = false;
};

bool is_tag(std::string_view line) {
    return line.size() > 2 && line[0] == '[' && std::isalpha(static_cast<unsigned char>(line[1]));
}

bool begins_game(std::string_view line) {
    return line.starts_with("[Event \"");
}

class PgnReader final : public LineReader {
  public:
    PgnReader(const DataFormat& format, ByteStream stream, OnBad on_bad, LineRange range = {},
              const std::map<std::string, std::string>& settings = {})
        : LineReader(format, std::move(stream), on_bad, std::move(range), kMaxLine), settings_(settings) {}

    std::size_t read(std::span<Record> out) override {
        std::size_t n = 0;
        while (n < out.size()) {
            if (taken_ < records_.size()) {
                const std::size_t count = std::min(out.size() - n, records_.size() - taken_);
                std::copy_n(&records_[taken_], count, &out[n]);
                taken_ += count;
                n += count;
            } else if (!next_game()) {
                break;
            }
        }
        return n;
    }

    std::vector<std::string> notes() const override {
        std::vector<std::string> found;
        for (const auto& [what, count] : counts_) found.push_back(what + ": " + std::to_string(count));
        for (const std::string& mark : marks()) found.push_back(mark);
        return found;
    }

  private:
    bool next_game() {
        records_.clear();
        taken_ = 0;
        if (!collect()) return false;
        try {
            decode();
        } catch (const FormatError& e) {
            records_.clear();
            bad(FormatError(where_ + ": " + e.what()));
        }
        return true;
    }

    // The tags and the text of the next game; false at the end.
    bool collect() {
        tags_.clear();
        text_.clear();
        bool in_text = false, in_comment = false;
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
                if (!starts_file() && !begins_game(content)) continue;
                started_ = true;
            }
            const bool tag = is_tag(content) && (!in_comment || begins_game(content));
            if (!from_held && begins_game(content) && is_past_range()) {
                ended_ = true;
                break;
            }
            if (tag && (in_text || (begins_game(content) && !tags_.empty()))) {
                held_ = std::string(content);
                has_held_ = true;
                break;
            }
            if (content.empty() || (content[0] == '%' && !in_comment)) continue;
            if (!tag) {
                if (!in_text && tags_.empty() && text_.empty()) name_game();
                in_text = true;
                for (const char c : content) in_comment = c == '{' || (in_comment && c != '}');
                if (text_.size() + content.size() > kMaxGame) {
                    throw FormatError(where_ + ": a game of more than " + std::to_string(kMaxGame) + " characters");
                }
                text_ += content;
                text_ += '\n';
                continue;
            }
            if (tags_.empty()) name_game();
            const std::size_t space = content.find(' '), open = content.find('"'), close = content.rfind('"');
            if (space != std::string_view::npos && open < close) {
                tags_[std::string(content.substr(1, space - 1))] =
                    std::string(content.substr(open + 1, close - open - 1));
            }
        }
        return in_text || !tags_.empty();
    }
    // Names the game that begins with the last line.
    void name_game() { where_ = error("game " + std::to_string(game_++)).what(); }

    std::string tag(const std::string& name) const {
        const auto found = tags_.find(name);
        return found == tags_.end() ? "" : found->second;
    }
    static std::string lower(std::string text) {
        for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        return text;
    }

    // Games whose headers give the reason why they are left out.
    bool is_left_out() {
        const std::string variant = lower(tag("Variant"));
        if (!variant.empty() && variant != "standard" && variant != "chess" && variant != "normal" &&
            variant != "from position" && variant != "fischerandom" && variant != "fischerrandom" &&
            variant.find("960") == std::string::npos) {
            ++counts_["games left out, of the variant " + quoted(tag("Variant"))];
            return true;
        }
        const std::string end = lower(tag("Termination"));
        for (const char* kind : {"unterminated", "abandoned", "stalled connection", "illegal move", "time forfeit"}) {
            if (end == kind) {
                ++counts_["games left out, ended by " + end];
                return true;
            }
        }
        return false;
    }

    void decode() {
        if (is_left_out()) return;
        constexpr const char* kStart = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";
        Position p = parse_fen(tags_.contains("FEN") ? tag("FEN") : kStart);
        plies_.clear();
        std::string final_result;
        parse_text(p, final_result);
        const std::string result = tags_.contains("Result") ? tag("Result") : final_result;
        if (result == "*" || result.empty()) {
            ++counts_["games left out, without a result"];
            return;
        }
        if (!final_result.empty() && final_result != result) {
            throw FormatError("the result is " + quoted(result) + " in its header and " + quoted(final_result) +
                              " at its end");
        }
        const int white = result == "1-0" ? 1 : result == "0-1" ? -1 : result == "1/2-1/2" ? 0 : 2;
        if (white == 2) throw FormatError("result " + quoted(result) + ", expected 1-0, 0-1 or 1/2-1/2");
        emit(white);
    }

    void parse_text(Position p, std::string& result) {
        const std::string_view text = text_;
        for (std::size_t i = 0; i < text.size();) {
            const char c = text[i];
            if (c == '{') {
                const std::size_t end = text.find('}', i);
                if (end == std::string_view::npos) throw FormatError("a comment without an end");
                comment(text.substr(i + 1, end - i - 1));
                i = end + 1;
            } else if (c == ';') {
                const std::size_t end = std::min(text.find('\n', i), text.size());
                comment(text.substr(i + 1, end - i - 1));
                i = end;
            } else if (c == '(') {
                i = behind_variation(text, i);
            } else if (std::isspace(static_cast<unsigned char>(c)) || c == '.') {
                ++i;
            } else {
                std::size_t end = std::min(text.find_first_of(" \t\r\n{}();", i), text.size());
                if (end == i) throw FormatError(std::string("a '") + c + "' where a move is expected");
                std::string_view token = text.substr(i, end - i);
                i = end;
                if (token[0] == '$' || token == "e.p.") continue;
                if (token == "1-0" || token == "0-1" || token == "1/2-1/2" || token == "*") {
                    result = token;
                    return;
                }
                // A number of a move, perhaps with the move after it.
                const std::size_t digits = token.find_first_not_of("0123456789");
                if (digits == std::string_view::npos) continue;
                if (digits > 0 && token[digits] == '.') {
                    token.remove_prefix(std::min(token.find_first_not_of('.', digits), token.size()));
                    if (token.empty()) continue;
                }
                if (token.find_first_not_of("!?") == std::string_view::npos) continue;
                Ply ply{p, parse_san(p, token), std::nullopt, false};
                if (p.ply >= kMaxPly) throw FormatError("a game beyond ply 16383");
                play(p, ply.move);
                plies_.push_back(ply);
            }
        }
    }

    static std::size_t behind_variation(std::string_view text, std::size_t i) {
        for (int depth = 0; i < text.size(); ++i) {
            if (text[i] == '{') {
                i = text.find('}', i);
                if (i == std::string_view::npos) break;
            } else if (text[i] == '(') {
                ++depth;
            } else if (text[i] == ')' && --depth == 0) {
                return i + 1;
            }
        }
        throw FormatError("a variation without an end");
    }

    void comment(std::string_view text) {
        if (plies_.empty()) return;
        Ply& ply = plies_.back();
        if (trimmed(text) == "book") ply.is_book = true;
        if (!ply.eval) ply.eval = parse_eval(text);
    }

    void emit(int white) {
        const auto first = std::ranges::find_if(plies_, [](const Ply& ply) { return ply.eval.has_value(); });
        if (first == plies_.end()) {
            ++counts_["games left out, without evaluations"];
            return;
        }
        const Dialect dialect = first->eval->dialect;
        View view = settings_.view;
        Place place = settings_.place;
        if (view == View::kAuto) {
            if (dialect == Dialect::kChessBase || dialect == Dialect::kPlain) {
                throw FormatError(std::string("evaluations as in ") + kDialectNames[static_cast<int>(dialect)] +
                                  " do not show whose view they are: pass --score-view white or mover");
            }
            view = dialect == Dialect::kLichess ? View::kWhite : View::kMover;
        }
        if (place == Place::kAuto) place = dialect == Dialect::kMatch ? Place::kBefore : Place::kAfter;
        std::uint64_t book = 0, unscored = 0;
        for (std::size_t i = 0; i < plies_.size(); ++i) {
            const Ply& ply = plies_[i];
            const Ply* source = place == Place::kBefore ? &ply : i > 0 ? &plies_[i - 1] : nullptr;
            if (!source || !source->eval) {
                ++(ply.is_book ? book : unscored);
                continue;
            }
            const bool mover_is_own = place == Place::kBefore;
            const int side = ply.before.side_to_move;
            const bool same = view == View::kWhite ? side == kWhite : mover_is_own;
            const double own = internal_units(*source->eval, dialect, same ? 1 : -1);
            Entry e;
            e.position = ply.before;
            e.move = ply.move;
            e.score = static_cast<std::int16_t>(own);
            e.result = static_cast<std::int8_t>(side == kWhite ? white : -white);
            records_.push_back(pack(e));
        }
        ++counts_[std::string("games with evaluations as in ") + kDialectNames[static_cast<int>(dialect)] + ", " +
                  (view == View::kWhite ? "white's view" : "the mover's view") + ", of the position " +
                  (place == Place::kBefore ? "before" : "after") + " the move"];
        if (book) counts_["positions left out, of the book"] += book;
        if (unscored) counts_["positions left out, without an evaluation"] += unscored;
    }

    // For the side to move; `sign` is −1 where the value is the other side's.
    double internal_units(const Eval& eval, Dialect dialect, int sign) const {
        if (eval.is_mate) {
            // Match tools count plies. lichess counts moves, and the sign is white's view.
            const double number = sign * eval.value;
            double plies = std::abs(number);
            if (eval.dialect == Dialect::kLichess) plies = number > 0 ? 2 * plies - 1 : 2 * plies;
            const double left = std::max(kMate - std::max(plies, 1.0), 1.0);
            return number > 0 || (number == 0 && sign > 0) ? left : -left;
        }
        Unit unit = settings_.unit;
        if (unit == Unit::kAuto) {
            if (!eval.has_point && eval.value != 0 && dialect != Dialect::kChessBase) {
                throw FormatError("an evaluation of " + std::to_string(static_cast<long long>(eval.value)) +
                                  " without a decimal point: pass --score-unit pawns or cp");
            }
            unit = dialect == Dialect::kChessBase && !eval.has_point ? Unit::kCentipawns : Unit::kPawns;
        }
        const double pawns = unit == Unit::kCentipawns ? eval.value / 100 : eval.value;
        return std::clamp(std::round(sign * pawns * settings_.pawn), -double{kMaxScore}, double{kMaxScore});
    }

    Settings settings_;
    std::map<std::string, std::string> tags_;
    std::map<std::string, std::uint64_t> counts_;
    std::string text_, held_, where_;
    bool has_held_ = false, ended_ = false, started_ = false;
    std::uint64_t game_ = 0;
    std::vector<Ply> plies_;
    std::vector<Record> records_;
    std::size_t taken_ = 0;
};

}  // namespace

constinit const DataFormat kPgn{
    "pgn",
    ".pgn",
    "games in PGN with evaluations in comments; read only",
    "'[Event \"…\"]'",
    [](const Head& head) -> Match {
        const std::string_view line = head.first_line();
        const bool is_header = is_tag(line) && line.find(" \"") != std::string_view::npos;
        return {is_header ? Match::kMarked : Match::kNo, {}};
    },
    [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
        return std::make_unique<PgnReader>(kPgn, std::move(stream), options.on_bad, LineRange{}, options.settings);
    },
    [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
        return std::make_unique<LineChunks<PgnReader, begins_game, kMaxLine>>(kPgn, std::move(file), options);
    },
    nullptr};
static const RegisteredFormat registered_pgn(kPgn);

}  // namespace nnue::data
