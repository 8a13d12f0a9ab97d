// PGN with evaluations in comments. The conventions in use, and their differences: docs/text-formats.md, "PGN".
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "chess/position.h"
#include "formats/pawns.h"
#include "formats/pgn_games.h"

namespace nnue::data {

extern const DataFormat kPgn;

namespace {

constexpr int kMate = 32000;

enum class View { kAuto, kWhite, kMover };
enum class Place { kAuto, kBefore, kAfter };
enum class Unit { kAuto, kPawns, kCentipawns };

struct Settings {
    View view = View::kAuto;
    Place place = Place::kAuto;
    Unit unit = Unit::kAuto;
    PawnUnit pawn;

    explicit Settings(const ReadSettings& values) : pawn(values) {
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

constexpr const char* kDialectNames[] = {"engine matches ({+0.35/12 0.05s})", "lichess ([%eval 0.35])",
                                         "ChessBase ([%eval 35,12])", "TCEC ({…, wv=0.35, …})",
                                         "plain numbers ({0.35})"};

// A decision or an omission of a reader: how often, and the first example where there is one.
struct Counted {
    std::uint64_t count = 0;
    std::string example;
};

class PgnReader final : public PgnReaderBase {
  public:
    PgnReader(const DataFormat& format, ByteStream stream, OnBad on_bad, LineRange range = {},
              const ReadSettings& settings = {})
        : PgnReaderBase(format, std::move(stream), on_bad, std::move(range)), settings_(settings) {}

    std::size_t read(std::span<Record> out) override {
        std::size_t n = 0;
        while (n < out.size()) {
            if (taken_ < records_.size()) {
                const std::size_t count = std::min(out.size() - n, records_.size() - taken_);
                std::copy_n(&records_[taken_], count, &out[n]);
                taken_ += count;
                n += count;
            } else if (!take_game()) {
                break;
            }
        }
        return n;
    }

    std::vector<std::string> notes() const override {
        std::vector<std::string> found;
        for (const auto& [what, counted] : counts_) {
            found.push_back(what + ": " + std::to_string(counted.count) +
                            (counted.example.empty() ? "" : ", such as " + counted.example));
        }
        for (const std::string& mark : marks()) found.push_back(mark);
        return found;
    }

  private:
    bool take_game() {
        records_.clear();
        taken_ = 0;
        if (!next_game(game_)) return false;
        try {
            decode();
        } catch (const FormatError& e) {
            records_.clear();
            bad(FormatError(game_.where + ": " + e.what()));
        }
        return true;
    }

    void count(const std::string& what, std::uint64_t number = 1, const std::string& example = "") {
        Counted& counted = counts_[what];
        counted.count += number;
        if (counted.example.empty()) counted.example = example;
    }

    // Games whose headers give the reason why they are left out.
    bool is_left_out() {
        if (is_other_variant(game_.tag("variant"))) {
            count("games left out, of the variant " + quoted(game_.tag("variant")));
            return true;
        }
        // Sites write sentences, such as "Anna won on time".
        constexpr std::pair<const char*, const char*> kEnds[] = {
            {"unterminated", "unterminated"},     {"abandon", "abandoned"},    {"stall", "stalled connection"},
            {"disconnect", "stalled connection"}, {"illegal", "illegal move"}, {"infraction", "rules infraction"},
            {"forfeit", "time forfeit"},          {"on time", "time forfeit"}, {"timeout", "time forfeit"},
            {"emergency", "emergency"},           {"death", "death"},
        };
        const std::string end = lower_case(game_.tag("termination"));
        for (const auto& [part, kind] : kEnds) {
            if (end.find(part) != std::string::npos) {
                count(std::string("games left out, ended by ") + kind);
                return true;
            }
        }
        return false;
    }

    void decode() {
        if (is_left_out()) return;
        if (game_.is_broken) throw FormatError(game_.problem);
        std::optional<int> white = game_.header_result;
        if (!white) white = game_.final_result;
        const std::string result = game_.tag("result");
        const bool is_unclear = !game_.header_result && !result.empty() && result != "*" && result != "?";
        if (!white) {
            count("games left out, without a result", 1, is_unclear ? where(game_.line, quoted(result)) : "");
            return;
        }
        if (game_.final_result && *game_.final_result != *white) {
            count("games left out, with one result in the header and another at the end", 1,
                  where(game_.line, quoted(game_.tag("result"))));
            return;
        }
        choose_evaluations();
        const auto first = std::ranges::find_if(game_.plies, [](const PgnPly& ply) { return ply.eval.has_value(); });
        if (first == game_.plies.end() && !game_.evals_after) {
            const auto unclear = std::ranges::find_if(game_.plies, &PgnPly::is_unclear);
            if (unclear == game_.plies.end()) {
                const auto remark = std::ranges::find_if(game_.plies, &is_remark);
                count("games left out, without evaluations", 1, remark == game_.plies.end() ? "" : comment_of(*remark));
            } else {
                count("games left out, with comments that are not understood as evaluations", 1, comment_of(*unclear));
            }
            return;
        }
        if (game_.has_null_move) {
            count("games cut off at a null move", 1, where(game_.line, game_.problem));
        } else if (!game_.problem.empty()) {
            throw FormatError(game_.problem);
        }
        if (first == game_.plies.end()) return;
        const auto marked = std::ranges::find_if(first, game_.plies.end(), [](const PgnPly& ply) {
            return ply.eval && ply.eval->dialect != PgnDialect::kPlain;
        });
        emit(*white, (marked == game_.plies.end() ? first : marked)->eval->dialect);
        if (is_unclear) {
            count("games with a result in the header that is not understood, so that the one at the end counts", 1,
                  where(game_.line, quoted(result)));
        }
        if (!game_.has_end && !game_.has_null_move) {
            count("games without a result after the moves, perhaps cut off", 1, where(game_.line, quoted(result)));
        }
    }

    static bool is_remark(const PgnPly& ply) { return !ply.is_book && !ply.comment.empty(); }

    static std::string where(std::uint64_t line, const std::string& what) {
        return "line " + std::to_string(line) + ": " + what;
    }
    static std::string comment_of(const PgnPly& ply) { return where(ply.line, quoted("{" + ply.comment + "}")); }

    // In "0/1 …" nothing shows that 0 is an evaluation, unless the user names its unit.
    void choose_evaluations() {
        if (settings_.unit != Unit::kAuto) return;
        for (PgnPly& ply : game_.plies) {
            if (ply.eval && ply.eval->dialect == PgnDialect::kMatch && !ply.eval->has_point && !ply.eval->has_sign &&
                !ply.eval->is_mate) {
                ply.eval.reset();
                ply.is_unclear = true;
            }
        }
    }

    // Whether an evaluation belongs to the same position, and has the same view, as others of a game. Plain numbers
    // follow the others.
    static bool is_alike(PgnDialect one, PgnDialect other) {
        const auto family = [](PgnDialect dialect) {
            return dialect == PgnDialect::kChessBase ? PgnDialect::kLichess : dialect;
        };
        return one == PgnDialect::kPlain || family(one) == family(other);
    }

    void emit(int white, PgnDialect dialect) {
        const bool may_mix = settings_.view != View::kAuto && settings_.place != Place::kAuto;
        View view = settings_.view;
        Place place = settings_.place;
        if (view == View::kAuto) {
            if (dialect == PgnDialect::kChessBase || dialect == PgnDialect::kPlain) {
                throw FormatError(std::string("evaluations as in ") + kDialectNames[static_cast<int>(dialect)] +
                                  " do not show whose view they are: pass --score-view white or mover");
            }
            view = dialect == PgnDialect::kMatch ? View::kMover : View::kWhite;
        }
        if (place == Place::kAuto) {
            const bool before = dialect == PgnDialect::kMatch || dialect == PgnDialect::kTcec;
            place = before ? Place::kBefore : Place::kAfter;
        }
        const bool is_before = place == Place::kBefore;
        for (std::size_t i = 0; i < game_.plies.size(); ++i) {
            const PgnPly& ply = game_.plies[i];
            const PgnPly* source = is_before ? &ply : i > 0 ? &game_.plies[i - 1] : nullptr;
            const std::optional<PgnEval>& eval = source ? source->eval : game_.start_eval;
            if (!eval) {
                if (source && source->is_unclear) {
                    count("positions left out, with a comment that is not understood as an evaluation", 1,
                          comment_of(*source));
                } else if (ply.is_book) {
                    count("positions left out, of the book");
                } else {
                    count("positions left out, without an evaluation", 1,
                          source && is_remark(*source) ? comment_of(*source) : "");
                }
                continue;
            }
            if (!may_mix && !is_alike(eval->dialect, dialect)) {
                count("positions left out, with an evaluation in another notation than the first one of the game", 1,
                      source ? comment_of(*source) : "");
                continue;
            }
            const int side = ply.before.side_to_move;
            const bool same = view == View::kWhite ? side == kWhite : is_before;
            const double own = internal_units(*eval, dialect, same ? 1 : -1);
            if (std::abs(own) == kLargestEvaluation && !eval->is_mate) {
                count(kClampedEvaluations, 1, source ? comment_of(*source) : "");
            }
            Entry e;
            e.position = ply.before;
            e.move = ply.move;
            e.score = static_cast<std::int16_t>(own);
            e.result = static_cast<std::int8_t>(side == kWhite ? white : -white);
            records_.push_back(pack(e));
        }
        count(std::string("games with evaluations as in ") + kDialectNames[static_cast<int>(dialect)] + ", " +
              (view == View::kWhite ? "white's view" : "the mover's view") + ", of the position " +
              (is_before ? "before" : "after") + " the move");
    }

    // For the side to move; `sign` is −1 where the value is the other side's.
    double internal_units(const PgnEval& eval, PgnDialect dialect, int sign) const {
        if (eval.is_mate) {
            const double number = sign * eval.value;
            double plies = std::abs(number);
            if (eval.counts_moves) plies = number > 0 ? 2 * plies - 1 : 2 * plies;
            const double left = std::max(kMate - std::max(plies, 1.0), 1.0);
            return std::signbit(number) ? -left : left;  // also of "-M0"
        }
        Unit unit = settings_.unit;
        if (unit == Unit::kAuto) {
            const bool is_chessbase = dialect == PgnDialect::kChessBase;
            if (!eval.has_point && eval.value != 0 && !is_chessbase) {
                throw FormatError("an evaluation of " + std::to_string(static_cast<long long>(eval.value)) +
                                  " without a decimal point: pass --score-unit pawns or cp");
            }
            unit = is_chessbase && !eval.has_point ? Unit::kCentipawns : Unit::kPawns;
        }
        const double pawns = unit == Unit::kCentipawns ? eval.value / 100 : eval.value;
        return settings_.pawn.internal(sign * pawns);
    }

    Settings settings_;
    PgnGame game_;
    std::map<std::string, Counted> counts_;
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
        std::string_view line = head.first_line();
        while (line.starts_with('%') || line.starts_with(';') || line.starts_with('{')) {  // comments
            const std::string_view all = head.text();
            const std::size_t begin = std::min<std::size_t>(line.data() - all.data(), all.size());
            const std::size_t end = std::min(all.find(line[0] == '{' ? '}' : '\n', begin), all.size() - 1) + 1;
            const std::size_t next = std::min(all.find_first_not_of(" \t\r\n", end), all.size());
            line = all.substr(next, all.find('\n', next) - next);
        }
        const bool is_header = is_pgn_tag(line) && line.find('"') != std::string_view::npos;
        return {is_header || line.starts_with("1.") ? Match::kMarked : Match::kNo, {}};
    },
    [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
        return std::make_unique<PgnReader>(kPgn, std::move(stream), options.on_bad, LineRange{}, options.settings);
    },
    [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
        return std::make_unique<LineChunks<PgnReader, begins_pgn_game, PgnReader::kMaxLine>>(kPgn, std::move(file),
                                                                                             options);
    },
    nullptr,
    0,
    0,
    0,
    false,
    true};
static const RegisteredFormat registered_pgn(kPgn);

}  // namespace nnue::data
