// The part of nnue_trainer._data for games: their moves, adjudication, matches.
#include <pybind11/stl.h>

#include <optional>
#include <string_view>

#include "bindings/bindings.h"
#include "chess/game.h"
#include "chess/match_game.h"
#include "chess/san.h"
#include "formats/pgn_games.h"

namespace {

// The games of a PGN file, from a Python object with readinto().
class GameReader {
  public:
    GameReader(const std::string& path, py::object readinto)
        : reader_(ByteStream(path, std::make_unique<PythonSource>(std::move(readinto))), find_format("pgn")) {}

    py::object next(bool chess960) {
        PgnGame game;
        if (!reader_.next(game)) return py::none();
        py::dict tags;
        for (const auto& [name, value] : game.tags) tags[text_of(name)] = text_of(value);
        py::list moves, comments;
        for (const PgnPly& ply : game.plies) {
            moves.append(format_uci(ply.move, chess960));
            comments.append(text_of(ply.comment));
        }
        const std::string problem =
            game.problem.empty() ? "" : "line " + std::to_string(game.line) + ": " + game.problem;
        const std::string fen = format_fen(game.start, chess960 ? CastlingStyle::kShredder : CastlingStyle::kXFen);
        return py::make_tuple(text_of(game.where), tags, fen, moves, comments, text_of(problem));
    }

  private:
    PgnGameReader reader_;
};

}  // namespace

void bind_games(py::module_& m) {
    py::class_<GameReader>(m, "GameReader")
        .def(py::init<const std::string&, py::object>(), py::arg("path"), py::arg("readinto"))
        .def("next", &GameReader::next, py::arg("chess960") = false,
             "(where, tags, FEN, moves, comments, problem) of the next game; None at the end.");
    m.def("is_other_variant", &is_other_variant, py::arg("variant"));

    py::class_<Game>(m, "Game",
                     "A game of chess from the position `fen` on. Moves are in UCI notation. UserError for a FEN or a "
                     "move that is not legal.")
        .def(py::init<std::string_view, bool>(), py::arg("fen"), py::arg("chess960") = false)
        .def_property_readonly("fen", &Game::fen, "The position on the board.")
        .def_property_readonly(
            "white_to_move", [](const Game& game) { return game.position().side_to_move == kWhite; },
            "Whether White is to move.")
        .def_property_readonly(
            "ply", [](const Game& game) { return game.position().ply; },
            "Half-moves before the position, as counted by the FEN.")
        .def_property_readonly(
            "rule50", [](const Game& game) { return game.position().rule50; },
            "Half-moves since the last capture or pawn move.")
        .def(
            "legal_moves",
            [](const Game& game) {
                std::vector<std::string> moves;
                for (const Move move : game.legal_moves()) moves.push_back(game.uci(move));
                return moves;
            },
            "The legal moves of the position on the board.")
        .def("play", &Game::play, py::arg("uci"), "Plays a move.")
        .def("record", &Game::record, py::arg("uci"), py::arg("score"),
             "Keeps the position with this move and its score, from the side to move's view, and plays the move.")
        .def(
            "outcome", &Game::outcome,
            "\"checkmate\", \"stalemate\", \"fifty moves\", \"repetition\" (threefold) or \"material\"; \"\" while the "
            "game continues.")
        .def("san_moves", &Game::san_moves, "The moves that were played, in standard algebraic notation.")
        .def(
            "parse_san",
            [](const Game& game, std::string_view san) { return game.uci(parse_san(game.position(), san)); },
            py::arg("san"), "The move in UCI notation.")
        .def(
            "records", [](const Game& game, int result) { return copy_records(game.records(result)); },
            py::arg("result"),
            "The positions that `record` has kept, uint8 [n, 32]. `result` is White's: 1 win, 0 draw, -1 loss.");

    // Verdicts are (result, reason) or None.
    const auto verdict = [](const std::optional<Verdict>& found) -> std::optional<std::pair<int, std::string>> {
        if (!found) return {};
        return std::pair(found->result, found->reason);
    };
    py::class_<Adjudication>(m, "Adjudication")
        .def(py::init([](int resign_score, int resign_moves, bool resign_two_sided, int draw_score, int draw_moves,
                         int draw_from_move, int max_moves) {
                 return Adjudication{resign_score, resign_moves,   resign_two_sided, draw_score,
                                     draw_moves,   draw_from_move, max_moves};
             }),
             py::kw_only(), py::arg("resign_score"), py::arg("resign_moves"), py::arg("resign_two_sided"),
             py::arg("draw_score"), py::arg("draw_moves"), py::arg("draw_from_move"), py::arg("max_moves"));
    py::class_<Adjudicator>(m, "Adjudicator")
        .def(py::init<const Adjudication&>())
        .def("after",
             [verdict](Adjudicator& judge, int side, std::string_view kind, int value, int rule50, int move_number) {
                 if (side != kWhite && side != kBlack) throw py::value_error("side: expected 0 or 1");
                 return verdict(judge.after(side, {kind, value}, rule50, move_number));
             });
    py::class_<MatchGame>(m, "MatchGame")
        .def(py::init<std::string_view, bool, const std::vector<std::string>&, const Adjudication&>())
        .def_property_readonly("white_to_move", &MatchGame::white_to_move)
        .def("play",
             [](MatchGame& game, std::string_view uci, std::string_view kind, int value, int depth) {
                 game.play(uci, {kind, value, depth});
             })
        .def("play_answer",
             [](MatchGame& game, const py::bytes& answer) { return game.play_answer(std::string_view(answer)); })
        .def_property_readonly("verdict", [verdict](const MatchGame& game) { return verdict(game.verdict()); })
        .def("request",
             [](const MatchGame& game, const std::string& command) {
                 return py::bytes(game.position_command() + "\n" + command + "\n");
             })
        .def_property_readonly("moves", &MatchGame::moves)
        .def_property_readonly("scores", &MatchGame::scores);
}
