#include "chess/match_game.h"

#include <charconv>
#include <cstdlib>

namespace nnue::data {

namespace {

constexpr int kMate = 1 << 20;  // beyond every score in centipawns

// Takes a prefix off a text.
bool take(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

// Takes an integer of at most `digits` digits and the blank after it off a text.
std::optional<int> take_number(std::string_view& text, std::size_t digits) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto size = static_cast<std::size_t>(end - text.data());
    if (error != std::errc{} || size - (value < 0) > digits || size == text.size() || text[size] != ' ') return {};
    text.remove_prefix(size + 1);
    return value;
}

bool is_square(std::string_view text) {
    return text[0] >= 'a' && text[0] <= 'h' && text[1] >= '1' && text[1] <= '8';
}

bool is_move(std::string_view text) {
    if (text.size() != 4 && text.size() != 5) return false;
    return is_square(text) && is_square(text.substr(2)) &&
           (text.size() == 4 || std::string_view("nbrq").find(text[4]) != text.npos);
}

// Takes the last line off a text.
std::string_view take_last_line(std::string_view& text) {
    const std::size_t at = text.rfind('\n');
    const std::string_view line = text.substr(at == text.npos ? 0 : at + 1);
    text = text.substr(0, at == text.npos ? 0 : at);
    return line;
}

// The score of a line such as "info depth 9 seldepth 12 multipv 1 score cp 31 nodes 1003 ...".
std::optional<SearchScore> exact_score(std::string_view line) {
    if (!take(line, "info depth ")) return {};
    const auto depth = take_number(line, 5);
    if (!depth) return {};
    if (take(line, "seldepth ") && !take_number(line, 9)) return {};
    take(line, "multipv 1 ");
    if (!take(line, "score ")) return {};
    const std::string_view kind = take(line, "cp ") ? "cp" : take(line, "mate ") ? "mate" : "";
    const auto value = take_number(line, 4);
    if (kind.empty() || !value || !line.starts_with("nodes ")) return {};
    return SearchScore{kind, *value, *depth};
}

}  // namespace

std::optional<Verdict> Adjudicator::after(int side, const SearchScore& score, int rule50, int move_number) {
    ++plies_;
    const bool scored = !score.kind.empty();
    const int value = score.kind != "mate" ? score.value : score.value > 0 ? kMate : -kMate;
    const bool losing = scored && value <= -rules_.resign_score;
    resigning_[side] = losing ? resigning_[side] + 1 : 0;
    decided_ = scored && std::abs(value) >= rules_.resign_score ? decided_ + 1 : 0;
    if (rule50 == 0) drawish_ = 0;
    drawish_ = scored && std::abs(value) <= rules_.draw_score ? drawish_ + 1 : 0;
    if (rules_.resign_moves && losing) {
        const bool agreed =
            rules_.resign_two_sided ? decided_ >= 2 * rules_.resign_moves : resigning_[side] >= rules_.resign_moves;
        if (agreed) return Verdict{side == kWhite ? -1 : 1, "resignation"};
    }
    if (rules_.draw_moves && drawish_ >= 2 * rules_.draw_moves && move_number - 1 >= rules_.draw_from_move) {
        return Verdict{0, "agreed draw"};
    }
    if (rules_.max_moves && plies_ >= 2 * rules_.max_moves) return Verdict{0, "maximum length"};
    return {};
}

MatchGame::MatchGame(std::string_view fen, bool chess960, const std::vector<std::string>& opening,
                     const Adjudication& rules)
    : game_(fen, chess960), judge_(rules), command_("position fen " + std::string(fen)) {
    for (const std::string& move : opening) advance(move);
    end_by_rules();
}

void MatchGame::advance(std::string_view uci) {
    game_.play(uci);
    command_ += has_moves_ ? " " : " moves ";
    command_ += uci;
    has_moves_ = true;
}

void MatchGame::end_by_rules() {
    std::string outcome = game_.outcome();
    if (outcome.empty()) return;
    const int result = outcome != "checkmate" ? 0 : white_to_move() ? -1 : 1;
    verdict_ = Verdict{result, std::move(outcome)};
}

void MatchGame::play(std::string_view uci, const SearchScore& score) {
    const int side = game_.position().side_to_move;
    advance(uci);
    moves_.emplace_back(uci);
    std::string text = "-";
    if (!score.kind.empty()) {
        text = std::string(score.kind) + std::to_string(score.value) + "/" + std::to_string(score.depth);
    }
    scores_.push_back(std::move(text));
    end_by_rules();
    const Position& p = game_.position();
    if (!verdict_) verdict_ = judge_.after(side, score, p.rule50, p.ply / 2 + 1);
}

bool MatchGame::play_answer(std::string_view answer) {
    std::string_view last = take_last_line(answer);
    if (!take(last, "bestmove ")) return false;
    const std::string_view move = last.substr(0, last.find_first_of(" \r"));
    if (!is_move(move)) return false;
    std::string_view line = take_last_line(answer);
    while (line.starts_with("info depth ") && line.substr(0, 90).find("bound nodes ") != line.npos) {
        line = take_last_line(answer);
    }
    const auto score = exact_score(line);
    if (!score) return false;
    play(move, *score);
    return true;
}

}  // namespace nnue::data
