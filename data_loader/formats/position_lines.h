// Lines of FEN or EPD, with or without a score and a result: the only reader of lists of positions, for data, opening
// books and evaluation. Every form in use: docs/text-formats.md, "Lists of positions".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/lines.h"
#include "formats/pawns.h"

namespace nnue::data {

enum class LineForm {
    kNone,      // not a position
    kHeader,    // names of columns
    kBars,      // <FEN> | <score> | <result>
    kEpd,       // operations, or nothing after the position
    kBrackets,  // <FEN> [<result>] <score>
    kValues,    // <FEN>,<score>,<result> or with semicolons
};
LineForm line_form(std::string_view line);

// The columns of a list that a first line names.
struct PositionColumns {
    char separator = 0;  // 0: none are named
    std::size_t position = 0, count = 0;
    std::optional<std::size_t> score, result, mate;
    std::string unread;   // the other names
    std::string problem;  // "": none

    explicit PositionColumns(std::string_view header = {});
};

// "1.0", "0.5", "0.0", "1", "0", "1/2", or as in PGN, also in brackets: white's result, 1, 0 or −1.
int parse_white_result(std::string_view text);

class PositionListReader final : public PositionLineReader {
  public:
    // Setting "results": "optional" takes positions without a result too, as for opening books; scores, moves and
    // results are then not read.
    PositionListReader(const DataFormat& format, ByteStream stream, OnBad on_bad, LineRange range = {},
                       const ReadSettings& settings = {});

    std::vector<std::string> notes() const override;

    // The first line of a file if it names columns, for the ranges after it.
    static std::string header_of(const Head& head);

  private:
    bool is_skipped(std::string_view line) override;
    Entry decode_line(std::string_view line) override;
    void count_score(const Entry& e, std::string_view text);

    PositionColumns columns_;
    PawnUnit pawn_;  // of the operation ce
    bool is_list_;
    bool has_game_results_ = false;
    std::uint64_t brackets_ = 0, values_ = 0, unscored_ = 0, unclear_ = 0, clamped_ = 0;
    std::string unscored_example_, unclear_example_;
};

bool begins_listed_line(std::string_view);

}  // namespace nnue::data
