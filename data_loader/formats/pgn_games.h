// The games of a PGN file, one after the other: the only reader of PGN, for data, opening books and matches.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chess/types.h"
#include "formats/lines.h"
#include "formats/pgn_comments.h"

namespace nnue::data {

std::string lower_case(std::string_view text);

// Whether a value of the tag Variant names another game than chess or Chess960.
bool is_other_variant(std::string_view variant);

// A move of the main line. `comment`: the text of the comments after it, up to the first evaluation.
struct PgnPly {
    Position before;
    Move move;
    std::string comment;
    std::optional<PgnEval> eval;
    bool is_book = false, is_unclear = false;
    std::uint64_t line = 0;
};

struct PgnGame {
    std::map<std::string, std::string> tags;  // names in lower case
    Position start;
    std::vector<PgnPly> plies;
    std::optional<PgnEval> start_eval;               // in a comment before the first move
    std::optional<int> header_result, final_result;  // white's: 1, 0, −1; absent: unknown
    std::string where;                               // "file: line 6: game 1"
    // Reason why the game is read no further, "" for none; `evals_after`: whether evaluations follow.
    std::string problem;
    bool is_broken = false;  // a comment or a variation has no end
    bool has_end = false;    // a result or "*" after the moves
    bool has_null_move = false;
    bool evals_after = false;
    std::uint64_t line = 0;  // of the problem, or of the end

    std::string tag(const std::string& name) const {
        const auto found = tags.find(name);
        return found == tags.end() ? "" : found->second;
    }
};

class PgnReaderBase : public LineReader {
  public:
    static constexpr std::size_t kMaxLine = 1 << 20, kMaxGame = 1 << 22;  // characters

    PgnReaderBase(const DataFormat& format, ByteStream stream, OnBad on_bad, LineRange range = {})
        : LineReader(format, std::move(stream), on_bad, std::move(range), kMaxLine) {}

  protected:
    // The next game; false at the end. Throws FormatError for text that is not PGN: then reading cannot go on.
    bool next_game(PgnGame& game);

  private:
    bool collect(PgnGame& game);
    void check_early_tags(PgnGame& game);
    void name_game(PgnGame& game);
    void take_tags(std::string_view line, PgnGame& game);
    void add_text(std::string_view line, PgnGame& game);
    void parse_text(PgnGame& game);
    void take_comment(std::string_view text, std::size_t at, PgnGame& game);
    bool take_word(std::string_view word, std::size_t at, Position& position, PgnGame& game);
    std::uint64_t line_at(std::size_t offset) const;

    std::string text_, held_;
    std::vector<std::pair<std::size_t, std::uint64_t>> lines_;  // where lines of the file begin in text_
    std::uint64_t held_line_ = 0;
    bool has_held_ = false, ended_ = false, started_ = false, in_comment_ = false;
    std::uint64_t game_ = 0;
};

// The games themselves, for books and matches.
class PgnGameReader final : public PgnReaderBase {
  public:
    PgnGameReader(ByteStream stream, const DataFormat& format)
        : PgnReaderBase(format, std::move(stream), OnBad::kError) {}
    std::size_t read(std::span<Record>) override { return 0; }
    bool next(PgnGame& game) { return next_game(game); }
};

// A line [Name "value"].
bool is_pgn_tag(std::string_view line);

// A line that begins a game in every case.
bool begins_pgn_game(std::string_view line);

}  // namespace nnue::data
