"""Matches of engines that play by a hash: order, journal, parts, faults, results."""

import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import Done
from command import nnue as run
from waiting import wait_for

from nnue_trainer import _data
from nnue_trainer.data import fens_from_records, records_from_fens
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.engines.uci import Engine
from nnue_trainer.errors import UserError
from nnue_trainer.match import play
from nnue_trainer.match.adjudication import Adjudication
from nnue_trainer.match.openings import OpeningOptions, Openings
from nnue_trainer.match.play import PlayedGame
from nnue_trainer.match.run import Count
from nnue_trainer.match.statistics import Sprt

FakeEngine = Callable[..., str]
FILES = ("match.json", "games.pgn", "match.html")
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
# From the usual table of counts; kings and rooks stand on other squares in each.
PERFT_960 = {
    "bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9": (21, 528, 12189),
    "2nnrbkr/p1qppppp/8/1ppb4/6PP/3PP3/PPP2P2/BQNNRBKR w HEhe - 1 9": (21, 807, 18002),
    "b1q1rrkb/pppppppp/3nn3/8/P7/1PPP4/4PPPP/BQNNRKRB w GE - 1 9": (20, 479, 10471),
}


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


def match(*arguments: object, pairs: int = 3) -> str:
    return run("match", *arguments, "--nodes", 1, "--pairs", pairs, "--max-moves", 12, "--hash", 1)


@pytest.fixture
def late_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that hangs is late as soon as it has printed so; any other has all the time of its limit."""
    on_event = play.Arena._on_event

    def look(self: play.Arena, seat: play._Seat, descriptor: int, events: int) -> None:
        on_event(self, seat, descriptor, events)
        if b"info string hangs\n" in seat.engine._incoming:
            seat.deadline = 0.0

    monkeypatch.setattr(play.Arena, "_on_event", look)


@pytest.mark.slow
def test_results_depend_on_the_games_only(fake_engine: FakeEngine, tmp_path: Path) -> None:
    a, b = fake_engine(), fake_engine("silent")
    whole, again, parts = tmp_path / "whole", tmp_path / "again", tmp_path / "parts"
    printed = match(a, b, "-o", whole, "-j", 2)
    assert "6 games" in printed
    data = json.loads((whole / "match.json").read_text())
    assert [game["game"] for game in data["games"]] == list(range(1, 7))
    assert [game["white"] for game in data["games"][:2]] == ["fake", "fakesilent"]
    assert sum(data["pairings"][0]["pairs"]) == 3

    match(a, b, "-o", again, "-j", 1, pairs=1)
    journal = again / "games.journal"
    journal.write_bytes(journal.read_bytes()[:-40])  # as a crash leaves it
    assert "these games are played again" in match(a, b, "-o", again, "-j", 1)
    for number in (2, 1):
        match(a, b, "-o", parts, "--part", f"{number}/2", "-j", 1)
        assert not (parts / "match.json").exists()
    match(a, b, "-o", parts)
    assert contents(again) == contents(whole)
    assert contents(parts) == contents(whole)


def test_a_finished_match_plays_nothing_and_another_one_is_refused(fake_engine: FakeEngine, tmp_path: Path) -> None:
    a, b, folder = fake_engine(), fake_engine("silent"), tmp_path / "out"
    match(a, b, "-o", folder, pairs=1)
    before = contents(folder)
    fake_engine("silent")
    Path(b).write_text("#!/bin/sh\nexit 1\n")
    match(a, b, "-o", folder, pairs=1)
    assert contents(folder) == before
    with pytest.raises(UserError, match="belongs to a run with other options"):
        match(a, b, "-o", folder, "--seed", 5, pairs=1)
    (folder / "games.journal").unlink()
    with pytest.raises(UserError, match=r"games.pgn|match.json.*exists already; --overwrite replaces it"):
        match(a, b, "-o", folder, pairs=1)
    fake_engine("silent")
    match(a, b, "-o", folder, "--seed", 5, "--overwrite", pairs=1)
    assert contents(folder) != before


@pytest.mark.slow
@pytest.mark.usefixtures("late_at_once")
@pytest.mark.parametrize(
    ("mode", "reason", "message"),
    [
        ("dies", "engine ended", "ended at 'go nodes 1' (exit status 3): \\x1b[31mout of cheese"),
        ("hangs", "no answer", "no answer to 'go nodes 1' within"),
        ("illegal", "illegal move", "move 'e2e5' is not legal"),
        ("no-move", "no move", "answered 'go nodes 1' with 'bestmove"),
        ("control-move", "no move", "answered 'go nodes 1' with 'bestmove \\x1b[2Je2e4'"),
        ("endless-line", "no answer", "but a line of more than 65,536 bytes"),
        ("deaf", "no answer", "no answer to 'go nodes 1' within"),
    ],
)
def test_an_engine_that_fails_loses_the_game_and_is_named(
    fake_engine: FakeEngine, tmp_path: Path, mode: str, reason: str, message: str
) -> None:
    bad = fake_engine(mode, 4)
    printed = match(fake_engine(), bad, "-o", tmp_path / "out", "--timeout", 300, "-j", 2, pairs=3)
    data = json.loads((tmp_path / "out/match.json").read_text())
    faults = [game for game in data["games"] if "fault" in game]
    assert faults
    assert data["complete"]
    for game in faults:
        assert game["loser"] == f"fake{mode}"
        assert game["reason"] == reason
        assert message in game["fault"].replace("\x1b", "\\x1b")
        assert game["result"] == ("1-0" if game["black"] == f"fake{mode}" else "0-1")
    assert f"fake{mode} loses: engine {bad}" in printed
    assert "Faults of engines" in (tmp_path / "out/match.html").read_text()


@pytest.mark.usefixtures("late_at_once")
def test_parts_with_failures_of_engines_merge_to_the_bytes_of_one_run(fake_engine: FakeEngine, tmp_path: Path) -> None:
    a, b = fake_engine(), fake_engine("whims")
    match(a, b, "-o", tmp_path / "whole", "--timeout", 300, "-j", 4)
    for number in (3, 1, 2):
        match(a, b, "-o", tmp_path / "parts", "--timeout", 300, "--part", f"{number}/3", "-j", number)
    match(a, b, "-o", tmp_path / "parts", "--timeout", 300)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    games = json.loads((tmp_path / "whole/match.json").read_text())["games"]
    assert {game["loser"] for game in games if "fault" in game} == {"fakewhims"}
    assert "no answer" in {game["reason"] for game in games}


def test_answers_that_came_while_this_process_was_stopped_count(
    fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z does not stop the engines. An answer that no one listens to yet is read after its limit."""
    exchange, stopped = play.Arena._exchange, []

    def exchange_and_stop(self: play.Arena) -> None:
        exchange(self)
        for _, _, seat, sent in self._deferred:
            if seat.busy and seat.sent == sent:
                wait_for(seat.engine.has_printed)
                stopped.append(1000.0)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(stopped), sleep=time.sleep)
    monkeypatch.setattr(play, "time", clock)
    monkeypatch.setattr(play.Arena, "_exchange", exchange_and_stop)
    match(fake_engine(), fake_engine("silent"), "-o", tmp_path / "out", "-j", 1, pairs=1)
    assert stopped
    games = json.loads((tmp_path / "out/match.json").read_text())["games"]
    assert not [game for game in games if "fault" in game]


@pytest.mark.slow
def test_an_engine_gets_its_time_and_loses_beyond_it(
    fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the time of the engine that is meant to be slow counts: a loaded machine slows down the others, too."""
    moved = play._Table._moved

    def moved_in_time(self: play._Table, seat: play._Seat, answer: bytes) -> None:
        if "slow" not in seat.engine.path:
            seat.sent = time.monotonic()
        moved(self, seat, answer)

    monkeypatch.setattr(play._Table, "_moved", moved_in_time)
    monkeypatch.chdir(tmp_path)
    a, b, log = fake_engine(), fake_engine("logs"), tmp_path / "searches.log"
    common = ("--pairs", 1, "--max-moves", 3, "--hash", 1, "-j", 1)
    run("match", a, b, "-o", tmp_path / "movetime", "--movetime", 4000, *common)
    searches = [line for line in log.read_text().splitlines() if line != "go depth 1"]  # a trial before the match
    assert searches == ["go movetime 4000"] * 6
    log.unlink()
    run("match", a, b, "-o", tmp_path / "clock", "--tc", "60+0.5", *common)
    searches = [line for line in log.read_text().splitlines() if line != "go depth 1"]
    assert all(line.startswith("go wtime ") for line in searches)
    clocks = [list(map(int, line.split()[2::2])) for line in searches]
    assert [60_000, 60_000, 500, 500] in (clocks[0], clocks[3])
    for first in (0, 3):  # a game each
        for own in clocks[first + 1 : first + 3]:
            assert all(0 < clock <= 62_000 and clock != 60_000 for clock in own[:2])
            assert own[2:] == [500, 500]
    slow = fake_engine("slow=0.9")
    for limit in (("--tc", "0.4+0"), ("--movetime", 400)):
        printed = run("match", a, slow, "-o", tmp_path / limit[0], *limit, *common[:-2], "-j", 2)
        games = json.loads((tmp_path / limit[0] / "match.json").read_text())["games"]
        assert [(game["loser"], game["reason"]) for game in games] == [("fakeslow=0.9", "time")] * 2
        assert "s over its time" in printed


def test_fastchess_plays_where_it_is_asked_to(
    fake_engine: FakeEngine,
    tmp_path: Path,
    project_root: Path,
    nnue: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    a, b, program = fake_engine(), fake_engine("silent"), tmp_path / "fastchess"
    script = project_root / "tests" / "data" / "fake_fastchess.py"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{project_root}" exec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o755)
    printed = match(a, b, "-o", tmp_path / "out", "--fastchess", program, "-j", 200, pairs=2)
    assert not list(Path().iterdir())
    assert "fake vs fakesilent: 4 games, +2 =1 -1, pairs [0, 1, 0, 0, 1]" in printed
    data = json.loads((tmp_path / "out/match.json").read_text())
    assert data["complete"]
    assert [game["white"] for game in data["games"]] == ["fake", "fakesilent"] * 2
    assert [game.get("loser") for game in data["games"]] == [None, "fakesilent", None, "fake"]
    pgn = (tmp_path / "out/games.pgn").read_text()
    assert all(pgn.count(comment) == 4 for comment in ("{+0.25/7}", "{+0.00/7}", "{-M2/7}"))
    run("match", a, b, "-o", tmp_path / "time", "--fastchess", program, "--movetime", 10, "--pairs", 1, "--hash", 1)
    program.write_text("#!/bin/sh\nexit 1\n")
    assert (
        match(a, b, "-o", tmp_path / "out", "--fastchess", program, "-j", 200, pairs=2)
        == printed.partition("nnue: note")[0]
    )
    for arguments, message in (
        (("--fastchess", program), "fastchess: exit status 1, "),
        (("--fastchess", tmp_path / "missing"), "no such program on PATH"),
        (("--fastchess", program, "--part", "1/2"), "fastchess plays whole matches"),
    ):
        done = nnue("match", a, b, "--nodes", 1, "--pairs", 1, "-o", tmp_path / "other", *arguments)
        assert done.returncode == 1
        assert message in done.stderr


def test_wrong_command_lines(fake_engine: FakeEngine, tmp_path: Path, nnue: Callable[..., Done]) -> None:
    engine, net = fake_engine(), tmp_path / "a.nnue"
    net.write_bytes(b"net")
    for words, message in (
        ((engine,), "expected two or more"),
        ((net, engine), "a.nnue: "),
        ((engine, net, "--engine", engine), "has no option 'EvalFile'"),
        ((engine, tmp_path / "none"), "no such file, expected a net, a checkpoint, a run folder or an engine"),
        ((net, tmp_path / "none"), "none: no such file, expected a net"),  # before the net is read
        ((engine, engine, "--sprt", "2,0"), "expected elo0 < elo1"),
        ((engine, engine, "--sprt", "0"), "expected two numbers, such as 0,2"),
        ((engine, engine, engine, "--sprt", "0,2"), "expected 2 for a sequential test"),
        ((engine, engine, "--part", "3/2"), "expected I/N with I from 1 to N"),
        ((engine, engine, "--tc", "fast"), "such as 10+0.1"),
        ((engine, engine, "--nodes", 1, "--depth", 1), "expected one of nodes, depth, time"),
        ((engine, engine, "--option", "Ponder"), "expected NAME=VALUE"),
        ((engine, engine, "--openings", tmp_path / "none.epd"), "No such file"),
        ((engine, fake_engine("dies"), "--nodes", 1), "out of cheese"),
        ((engine, engine, "--chess960"), "has no option 'UCI_Chess960'"),
    ):
        done = nnue("match", *map(str, words), "-o", str(tmp_path / "out"))
        assert done.returncode == 1
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not list((tmp_path / "out").glob("*.journal"))


def game(number: int, result: int) -> PlayedGame:
    return PlayedGame(number, number % 2, 1 - number % 2, START, (), (), (), result, "checkmate")


def test_a_test_ends_with_the_first_pair_that_decides_it_in_any_order() -> None:
    test = Sprt(0, 50, model="logistic")
    games = [game(number, 1 if number % 2 == 0 else -1) for number in range(200)]  # the first player wins all
    ends = []
    for order in (games, games[::-1], games[50:] + games[:50]):
        count = Count(["a", "b"], test, 100)
        for one in order:
            count.add(one)
        result = count.result()
        assert result.verdict == "accepted"
        ends.append(len(result.games))
    assert ends[0] == ends[1] == ends[2] < 200
    counts = [0, 0, 0, 0, ends[0] // 2]
    assert test.verdict(counts) == "accepted"
    assert test.verdict([0, 0, 0, 0, counts[4] - 1]) is None


def test_several_players_play_all_pairs_of_them(fake_engine: FakeEngine, tmp_path: Path) -> None:
    players = [fake_engine(), fake_engine("silent"), fake_engine("multipv")]
    match(*players, "-o", tmp_path / "out", pairs=1)
    data = json.loads((tmp_path / "out/match.json").read_text())
    assert [(one["first"], one["second"]) for one in data["pairings"]] == [
        ("fake", "fakesilent"), ("fake", "fakemultipv"), ("fakesilent", "fakemultipv"),
    ]  # fmt: skip
    assert len(data["games"]) == 6


def test_what_an_answer_says(fake_engine: FakeEngine) -> None:
    line = b"info depth 6 seldepth 8 multipv 1 score cp -23 nodes 999 nps 1 pv e2e4 e7e5\n"
    fen, usual = "4k3/P7/8/8/8/8/4P3/4K3 w - - 0 1", 0
    with Engine(fake_engine()) as engine:
        for text, expected in (
            (line + b"bestmove e2e4 ponder e7e5", ("e2e4", "cp", -23, 6)),
            (line + b"bestmove a7a8q\r", ("a7a8q", "cp", -23, 6)),
            (line + line.replace(b"-23", b"50 lowerbound") + b"bestmove e2e4", ("e2e4", "cp", -23, 6)),
            (line + line.replace(b"multipv 1", b"multipv 2") + b"bestmove e2e4", ("e2e4", "cp", -23, 6)),
            (line + b"info string score cp 9\nbestmove e2e4", ("e2e4", "cp", -23, 6)),
            (line.replace(b"cp -23", b"mate 3") + b"bestmove e2e4", ("e2e4", "mate", 3, 6)),
            (b"bestmove e2e4", ("e2e4", "", 0, 0)),
        ):
            assert engine.found(text) == expected
            game = _data.MatchGame(fen, False, [], Adjudication().native())
            if game.play_answer(text):  # the usual ones
                score = "{1}{2}/{3}".format(*expected)
                assert (game.moves, game.scores) == ([expected[0]], [score])
                usual += 1
            else:
                assert not game.moves
        assert usual == 4
        for wrong in (b"bestmove (none)", line + b"bestmove e2e9", line.replace(b"-23", b"x") + b"bestmove e2e4"):
            with pytest.raises(UserError, match="answered"):
                engine.found(wrong)
            assert not _data.MatchGame(fen, False, [], Adjudication().native()).play_answer(wrong)
    with pytest.raises(UserError, match="not legal"):
        _data.MatchGame(fen, False, [], Adjudication().native()).play_answer(line + b"bestmove e2e5")


# ---- adjudication ----------------------------------------------------------------------------------------------------


def outcome(rules: Adjudication, moves: list[tuple[int, str, int]], *, rule50: int = 5, number: int = 60) -> object:
    judge = _data.Adjudicator(rules.native())
    for ply, (side, kind, value) in enumerate(moves):
        verdict = judge.after(side, kind, value, rule50, number)
        if verdict is not None:
            return ply, *verdict
    return None


def test_adjudication() -> None:
    losing = [(0, "cp", 50), (1, "cp", -700)] * 3
    assert outcome(Adjudication(), losing) == (5, 1, "resignation")
    assert outcome(Adjudication(), [*losing[:4], (0, "cp", 50), (1, "", 0), *losing[:4]]) is None  # no score: anew
    assert outcome(Adjudication(), [(0, "mate", -3), (1, "mate", 3)] * 3) == (4, -1, "resignation")
    assert outcome(Adjudication(resign_moves=0), losing * 9) is None
    both = Adjudication(resign_two_sided=True)
    assert outcome(both, losing * 9) is None
    assert outcome(both, [(0, "cp", 700), (1, "cp", -700)] * 3) == (5, 1, "resignation")
    drawish = [(0, "cp", 20), (1, "cp", -20)] * 8
    assert outcome(Adjudication(), drawish) == (15, 0, "agreed draw")
    assert outcome(Adjudication(), drawish, number=34) is None
    assert outcome(Adjudication(), drawish * 2, rule50=0) is None
    assert outcome(Adjudication(draw_moves=0), drawish * 9) is None
    assert outcome(Adjudication(draw_moves=0, max_moves=10), drawish * 9) == (19, 0, "maximum length")


# ---- openings --------------------------------------------------------------------------------------------------------


def test_books(tmp_path: Path) -> None:
    epd = tmp_path / "book.epd"
    epd.write_text(
        'rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - hmvc 3; fmvn 7; id "a";\r\n\r\n'
        "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq e6 0 2\r\n"
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -\r\n"
    )
    book = Openings(OpeningOptions(str(epd), "sequential", start=2), 9)
    assert [book[n].fen.split(" ", 1)[1] for n in range(4)] == [
        "w KQkq - 0 2", "w KQkq - 0 1", "w KQkq - 3 7", "w KQkq - 0 2",
    ]  # fmt: skip
    shuffled = [Openings(OpeningOptions(str(epd), seed=seed), 9) for seed in range(8)]
    assert len({tuple(book[n].fen for n in range(3)) for book in shuffled}) > 1

    pgn = tmp_path / "book.pgn.gz"
    text = (
        '[Event "a"]\n[Result "*"]\n\n1. e4 {best; by test} e5 (1... c5 2. Nf3 (2. c3)) 2. Nf3! $1 Nc6 *\n\n'
        f'[Event "b"]\n[FEN "{START.replace("w", "b", 1)}"]\n\n1... Nf6 2. Nf3 Nc6 3. Bxb8 {{no such move}} *\n'
    )
    pgn.write_bytes(gzip.compress(text.encode()))
    found = Openings(OpeningOptions(str(pgn), "sequential", plies=3), 9)
    assert found[0].moves == ("e2e4", "e7e5", "g1f3")
    assert found[1].moves == ("g8f6", "g1f3", "b8c6")
    with pytest.raises(UserError, match=r"book.pgn.gz: game 2: line 9: move 'Bxb8' is not legal in "):
        Openings(OpeningOptions(str(pgn), plies=4), 9)

    bad = tmp_path / "bad.epd"
    bad.write_text("8/8/8/8 w - - 0 1\n")
    with pytest.raises(UserError, match=r"bad.epd: line 1: FEN '8/8/8/8 w - - 0 1': "):
        Openings(OpeningOptions(str(bad)), 1)
    bad.write_text(f"{START}\nrnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3\n")
    assert Openings(OpeningOptions(str(bad), "sequential"), 1)[0].fen == START
    with pytest.raises(UserError, match=r"bad.epd: opening 2: no game can begin with 'rnb1.*': checkmate"):
        Openings(OpeningOptions(str(bad)), 9)


def test_openings_of_a_data_file(tmp_path: Path) -> None:
    fens = []
    for number in range(200):
        opening = Openings(OpeningOptions(seed=number, plies=12), 1)[0]
        game = _data.Game(opening.fen)
        for move in opening.moves:
            game.play(move)
        fens.append(game.fen)
    path = tmp_path / "data.binpack"
    write_binpack(path, records_from_fens(fens))
    drawn = [
        [Openings(OpeningOptions(str(path), seed=seed), n)[i].fen for i in range(5)]
        for seed, n in ((1, 5), (1, 9), (2, 5))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert set(drawn[0]) <= set(fens_from_records(records_from_fens(fens)))


# ---- rules -----------------------------------------------------------------------------------------------------------


def leaves(fen: str, moves: list[str], depth: int) -> int:
    game = _data.Game(fen, True)
    for move in moves:
        game.play(move)
    legal = game.legal_moves()
    return len(legal) if depth == 1 else sum(leaves(fen, [*moves, move], depth - 1) for move in legal)


@pytest.mark.parametrize("fen", PERFT_960)
def test_chess960(fen: str) -> None:
    assert tuple(leaves(fen, [], depth) for depth in (1, 2, 3)) == PERFT_960[fen]


def test_algebraic_notation_there_and_back() -> None:
    for seed in range(30):
        chess960 = seed % 2 == 1
        fen = next(iter(PERFT_960)) if chess960 else START
        game, copy = _data.Game(fen, chess960), _data.Game(fen, chess960)
        for ply in range(80):
            if game.outcome():
                break
            moves = game.legal_moves()
            castling = [move for move in moves if move[:2] in ("e1", "g1", "e8", "g8") and len(moves) > 30]
            game.play(
                moves[(seed * 7919 + ply * 104729) % len(moves)] if not castling else castling[ply % len(castling)]
            )
        for san in game.san_moves():
            copy.play(copy.parse_san(san))
        assert copy.fen == game.fen
    game = _data.Game("7k/8/8/8/8/8/5P2/4K2R w K - 0 1", False)
    game.play(game.parse_san("0-0"))
    assert game.san_moves() == ["O-O"]
    two = _data.Game("k7/8/8/8/R6R/8/8/K6R w - - 0 1")
    for san, uci in (("Rhd4", "h4d4"), ("R1h3", "h1h3"), ("Rh4h3", "h4h3"), ("Ra4-e4".replace("-", ""), "a4e4")):
        assert two.parse_san(san) == uci
    with pytest.raises(UserError, match="names 2 legal moves"):
        two.parse_san("Rd4")


def test_chess960_without_a_book() -> None:
    openings = Openings(OpeningOptions(chess960=True, seed=4, plies=2), 9)
    assert len({openings[number].fen for number in range(9)}) > 5
    assert openings[3] == Openings(OpeningOptions(chess960=True, seed=4, plies=2), 4)[3]
    for number in range(9):
        game = _data.Game(openings[number].fen, True)
        for move in openings[number].moves:
            game.play(move)
    assert Openings(OpeningOptions(), 1)[0].fen == START


@pytest.mark.engine
def test_an_engine_plays_chess960(tmp_path: Path) -> None:
    book = tmp_path / "book.epd"
    book.write_text("\n".join(PERFT_960) + "\n")
    run(
        *("match", "stockfish", "stockfish", "--depth", 1, "--pairs", 3, "--chess960", "--openings", book),
        *("-o", tmp_path / "out", "--max-moves", 40, "-j", 2),
    )
    data = json.loads((tmp_path / "out/match.json").read_text())
    assert not [game for game in data["games"] if "fault" in game]
    assert '[Variant "Chess960"]' in (tmp_path / "out/games.pgn").read_text()
