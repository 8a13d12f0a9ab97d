"""Self-play data: the same file for any number of engines, restart, adjudication, scores, engines that misbehave."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import run_on_a_full_disk
from typer.testing import CliRunner
from waiting import SECONDS, wait_for

from nnue_trainer import _data
from nnue_trainer.cli.main import app
from nnue_trainer.data import PositionReader
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.files import Part
from nnue_trainer.data.generate import GenerateOptions, generate, internal_score, score_scale
from nnue_trainer.data.info import file_info
from nnue_trainer.data.transform import convert
from nnue_trainer.engines.uci import Engine, find_engine
from nnue_trainer.errors import UserError

EngineMaker = Callable[..., str]


@pytest.fixture
def engine(fake_engine: EngineMaker) -> EngineMaker:
    return fake_engine


def options(engine: str, **changes: object) -> GenerateOptions:
    base = {"engine": engine, "positions": 700, "nodes": 1, "score_scale": 1.0, "max_ply": 60, "opening_score": 2000}
    return GenerateOptions(**(base | changes))  # type: ignore[arg-type]


def test_file_does_not_depend_on_the_number_of_engines(engine: EngineMaker, tmp_path: Path) -> None:
    made = [generate(tmp_path / f"{n}.binpack", options(engine(), seed=5), concurrency=n) for n in (1, 3)]
    assert made[0] == made[1]
    assert made[0].positions >= 700
    assert (tmp_path / "1.binpack").read_bytes() == (tmp_path / "3.binpack").read_bytes()
    generate(tmp_path / "other.binpack", options(engine(), seed=6))
    assert (tmp_path / "other.binpack").read_bytes() != (tmp_path / "1.binpack").read_bytes()
    validator = _data.Validator()
    validator.add(read_binpack(tmp_path / "1.binpack"))
    assert validator.positions == made[0].positions
    assert not any(count for _, count, _ in validator.problems)
    assert file_info(tmp_path / "1.binpack").chains == made[0].games


@pytest.mark.parametrize("suffix", ["binpack", "vf", "txt"])
def test_parts_are_the_whole(engine: EngineMaker, tmp_path: Path, suffix: str) -> None:
    """Also after an interruption; and a part of a number of positions, which would begin anywhere, is refused."""
    chosen = options(engine(), positions=None, games=11, seed=5)
    made = generate(tmp_path / f"whole.{suffix}", chosen)
    assert made.games == 11
    parts = [tmp_path / f"{i}.{suffix}" for i in range(3)]

    def interrupt(positions: int, games: int) -> None:
        if games == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(parts[1], chosen, part=Part(2, 3), progress=interrupt)
    with pytest.raises(UserError, match=r"belongs to a run with other options \(part '2/3', here '1/3'\)"):
        generate(parts[1], chosen, part=Part(1, 3))
    counts = [generate(path, chosen, part=Part(i + 1, 3)) for i, path in enumerate(parts)]
    assert [count.games for count in counts] == [3, 4, 4]
    convert(parts, tmp_path / f"joined.{suffix}")
    assert (tmp_path / f"joined.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    assert generate(parts[1], chosen, part=Part(2, 3)).already
    with pytest.raises(UserError, match="part 1/2 of a number of positions: expected a number of games"):
        generate(tmp_path / f"x.{suffix}", options(engine()), part=Part(1, 2))
    with pytest.raises(UserError, match="part 1/12 of 11 games has none: use fewer parts"):
        generate(tmp_path / f"x.{suffix}", chosen, part=Part(1, 12))


@pytest.mark.parametrize("variant", ["same", "dfrc"])
def test_chess960(engine: EngineMaker, tmp_path: Path, variant: str) -> None:
    out = tmp_path / "x.vf"
    made = generate(out, options(engine("chess960"), seed=5, chess960=variant))
    with PositionReader(out) as reader:
        records = np.concatenate(list(reader))
    assert len(records) == made.positions
    assert not made.losses
    assert any(_data.drop_chess960(records.copy())[0])
    validator = _data.Validator()
    validator.add(records)
    assert not any(count for _, count, _ in validator.problems)
    with pytest.raises(
        UserError, match=r"y\.binpack: binpack cannot store castling rights of Chess960; write viriformat"
    ):
        generate(tmp_path / "y.binpack", options(engine("chess960"), chess960=variant))


def test_an_interrupted_run_goes_on(engine: EngineMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, whole = tmp_path / "out.binpack", tmp_path / "whole.binpack"
    games = []

    def interrupt(positions: int, game: int) -> None:
        games.append(game)
        if game == 4:
            raise KeyboardInterrupt

    waits_of_killed: Counter[Engine] = Counter()
    exchange = Engine._exchange

    def watched(self: Engine, seconds: float) -> None:
        waits_of_killed[self] += self._killed and seconds > 0
        exchange(self, seconds)

    monkeypatch.setattr(Engine, "_exchange", watched)
    with pytest.raises(KeyboardInterrupt):
        generate(out, options(engine()), progress=interrupt, concurrency=2)
    # It once waited for the answer of a killed engine. One short wait may have begun just before the kill.
    assert max(waits_of_killed.values(), default=0) <= 1
    assert not out.exists()
    journal = tmp_path / "out.binpack.journal"
    journal.write_bytes(journal.read_bytes()[:-5])  # torn by a crash: that game is played again
    with pytest.raises(UserError, match=r"out\.binpack\.journal: belongs to a run with other options"):
        generate(out, options(engine(), seed=1))
    generate(out, options(engine()), progress=lambda _, game: games.append(game))
    assert games[:5] == [1, 2, 3, 4, 4]
    assert not journal.exists()
    generate(whole, options(engine()))
    assert out.read_bytes() == whole.read_bytes()


def test_another_book_is_another_run(engine: EngineMaker, tmp_path: Path) -> None:
    book, out = tmp_path / "book.epd", tmp_path / "out.binpack"
    book.write_text("4k3/8/8/8/8/8/4P3/4K3 w - -\n")

    def interrupt(positions: int, game: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(out, options(engine(), book=str(book)), progress=interrupt)
    book.write_text("4k3/8/8/8/8/8/3P4/4K3 w - -\n")
    with pytest.raises(UserError, match="belongs to a run with other options"):
        generate(out, options(engine(), book=str(book)))


def test_two_runs_do_not_write_one_file(engine: EngineMaker, tmp_path: Path) -> None:
    def again(positions: int, game: int) -> None:
        with pytest.raises(UserError, match=r"out\.binpack\.journal: another run is writing it"):
            generate(tmp_path / "out.binpack", options(engine(), positions=100))

    generate(tmp_path / "out.binpack", options(engine(), positions=100), progress=again)


def test_a_journal_torn_anywhere_is_continued(engine: EngineMaker, tmp_path: Path) -> None:
    """No game is lost, none is there twice, wherever a crash cut the journal."""
    whole, out, journal = tmp_path / "whole.binpack", tmp_path / "out.binpack", tmp_path / "out.binpack.journal"
    kept = b""

    def keep(positions: int, game: int) -> None:
        nonlocal kept
        kept = (tmp_path / "whole.binpack.journal").read_bytes()

    generate(whole, options(engine(), positions=300), progress=keep)
    header = kept.index(b"\n") + 1
    for size in (0, 5, header - 1, header, header + 3, header + 40, len(kept) - 1, len(kept)):
        journal.write_bytes(kept[:size])
        generate(out, options(engine(), positions=300))
        assert out.read_bytes() == whole.read_bytes(), size
        assert not journal.exists()


def test_a_full_disk_is_one_line_and_the_run_goes_on(engine: EngineMaker, tmp_path: Path) -> None:
    out = tmp_path / "out.binpack"
    command = [sys.executable, "-m", "nnue_trainer", "data", "generate", str(out), "--engine", engine()]
    limits = "--nodes 1 --positions 700 --max-ply 60 --score-scale 1 --opening-score 2000 -j 2"
    command += limits.split()

    full = run_on_a_full_disk(command, 8_000)
    assert full.returncode == 1
    assert full.stderr == f"nnue: error: {out}.journal: cannot be written: File too large\n"
    assert not out.exists()
    subprocess.run(command, check=True, capture_output=True)
    generate(tmp_path / "whole.binpack", options(engine()), concurrency=1)
    assert out.read_bytes() == (tmp_path / "whole.binpack").read_bytes()


def test_adjudication(engine: EngineMaker, tmp_path: Path) -> None:
    # The fake scores are noise in ±1,000: always "drawish" below 1,000, never decided.
    generate(tmp_path / "d.binpack", options(engine(), draw_score=1000, draw_plies=10, draw_from_ply=20, positions=300))
    info = file_info(tmp_path / "d.binpack")
    assert info.statistics.draws == info.statistics.positions
    assert info.statistics.positions / info.chains <= 20
    generate(tmp_path / "w.binpack", options(engine(), win_score=1, win_plies=2, draw_plies=0, positions=300))
    info = file_info(tmp_path / "w.binpack")
    assert info.statistics.draws == 0
    assert info.statistics.positions / info.chains < 10


def test_book(engine: EngineMaker, tmp_path: Path) -> None:
    book = tmp_path / "book.epd"
    book.write_text("4k3/8/8/8/8/8/4P3/4K3 w - - bm e2e4;\n\n4k3/4p3/8/8/8/8/8/4K3 b - - 0 1\n")
    generate(tmp_path / "o.binpack", options(engine(), book=str(book), random_plies=2, positions=100))
    assert file_info(tmp_path / "o.binpack").statistics.max_ply < 70
    assert max(i for i, n in enumerate(file_info(tmp_path / "o.binpack").statistics.piece_histogram) if n) == 3
    book.write_text("4k3/8/8/8/8/8/4P3/4K3 w - - bm e2e4;\nnonsense\n")
    with pytest.raises(UserError, match=r"book\.epd: line 2: FEN 'nonsense'"):
        generate(tmp_path / "o.binpack", options(engine(), book=str(book)))


def test_a_book_of_games(engine: EngineMaker, tmp_path: Path) -> None:
    """The moves of the book go to the engine; their positions are not in the file."""
    book = tmp_path / "book.PGN"
    book.write_text('[Event "x"]\n\n1. e4 {best} e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 *\n')
    generate(tmp_path / "o.plain", options(engine(), book=str(book), random_plies=0, positions=50))
    text = (tmp_path / "o.plain").read_text()
    assert text.startswith("fen r1bqkb1r/1ppp1ppp/p1n2n2/4p3/B3P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 2 5\n")
    book.write_text('[Event "x"]\n\n1. e4 e5 2. Xf3 *\n')
    with pytest.raises(UserError, match=r"book\.PGN: game 1: line 3: move 'Xf3' is not a move in "):
        generate(tmp_path / "p.plain", options(engine(), book=str(book)))


def test_a_book_of_chess960(engine: EngineMaker, tmp_path: Path) -> None:
    book = tmp_path / "book.epd"
    book.write_text("rnkbqrbn/pppppppp/8/8/8/8/PPPPPPPP/RNKBQRBN w FAfa - 0 1\n")
    with pytest.raises(UserError, match=r"book\.epd: opening 1: castling rights of Chess960 .* with --chess960"):
        generate(tmp_path / "o.plain", options(engine(), book=str(book)))
    generate(tmp_path / "o.plain", options(engine("chess960"), book=str(book), chess960="same", positions=50))


def test_scores_beyond_the_largest_are_counted(engine: EngineMaker, tmp_path: Path) -> None:
    notes: list[str] = []
    given = options(engine("score=cp_20000"), score_scale=3.0, positions=60, opening_score=31_000)
    generate(tmp_path / "o.plain", given, note=notes.append)
    count = (tmp_path / "o.plain").read_text().count("\nscore 31000\n")
    what = "scores of 31,000 internal units or more, such as wins in a table base, are written as 31,000"
    assert count > 3
    assert notes == [f"{count} {what}"]


def test_answers_without_a_score(engine: EngineMaker, tmp_path: Path) -> None:
    """A move only, or a bound, makes a position without a score; an engine without any score is an error."""
    notes: list[str] = []
    made = generate(tmp_path / "o.plain", options(engine("some-silent"), positions=100), note=notes.append)
    count = (tmp_path / "o.plain").read_text().count("\nscore 32002\n")
    assert 30 < count < made.positions
    assert notes == [f"{count} positions have no score (32002): the engine gave a move only, or a bound"]
    with pytest.raises(UserError, match=r"with a move but no exact score 8 times in a row, expected lines such as"):
        generate(tmp_path / "p.plain", options(engine("silent")))


def test_bad_options(engine: EngineMaker, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="either nodes or depth"):
        GenerateOptions(engine="x", positions=1)
    with pytest.raises(UserError, match="either positions or games"):
        GenerateOptions(engine="x", nodes=1)
    with pytest.raises(UserError, match="positions is 0, expected a whole number from 1"):
        options("x", positions=0)
    with pytest.raises(UserError, match="No such file"):
        generate(tmp_path / "o.binpack", options(str(tmp_path / "nothing")))
    with pytest.raises(UserError, match="has no option 'Colour'"):
        generate(tmp_path / "o.binpack", options(engine(), engine_options={"Colour": "red"}))
    with pytest.raises(UserError, match="give --score-scale"):
        generate(tmp_path / "o.binpack", options(engine(), score_scale=None))


def test_scores() -> None:
    assert score_scale("Stockfish 15.1") == 3.61
    assert score_scale("Stockfish 16") == 3.28
    assert score_scale("Stockfish 12 64 BMI2") == 2.08
    with pytest.raises(UserError, match="does not report its internal units"):
        score_scale("Stockfish 17.1")
    assert internal_score("cp", 100, 3.61) == 361
    assert internal_score("cp", -100, 3.61) == -361
    assert internal_score("mate", 1, 3.61) == 31_999
    assert internal_score("mate", -1, 3.61) == -31_998
    assert internal_score("mate", 3, 3.61) == 31_995
    assert internal_score("cp", 20_000, 3.61) == 31_000


@pytest.fixture
def stockfish() -> str:
    return find_engine()


@pytest.mark.engine
def test_stockfish(stockfish: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        generate(tmp_path / f"{name}.binpack", GenerateOptions(stockfish, 300, seed=3, nodes=100))
    assert (tmp_path / "a.binpack").read_bytes() == (tmp_path / "b.binpack").read_bytes()
    info = file_info(tmp_path / "a.binpack").statistics
    assert info.positions >= 300
    assert info.score_none == 0


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(("sent", "limit"), [(signal.SIGINT, "--nodes"), (signal.SIGTERM, "--depth")])
def test_stockfish_interrupted_and_continued(stockfish: str, tmp_path: Path, sent: signal.Signals, limit: str) -> None:
    book = tmp_path / "book.epd"
    book.write_text(
        "rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq c6\n"
        "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq -\n"
    )
    options = f"--engine {stockfish} --positions 700 {limit} {200 if limit == '--nodes' else 3} --random-plies 2"
    command = [sys.executable, "-m", "nnue_trainer", "data", "generate"]

    def arguments(out: Path) -> list[str]:
        return [*command, str(out), *options.split(), "--book", str(book)]

    out, journal = tmp_path / "out.binpack", tmp_path / "out.binpack.journal"
    process = subprocess.Popen([*arguments(out), "-j", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: journal.exists() and journal.stat().st_size >= 3_000, process)
    process.send_signal(sent)
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["book.epd", journal.name]
    begun = journal.stat().st_size
    subprocess.run([*arguments(out), "-j", "1"], check=True, capture_output=True)
    whole = tmp_path / "whole.binpack"
    subprocess.run([*arguments(whole), "-j", "2"], check=True, capture_output=True)
    assert out.read_bytes() == whole.read_bytes()
    assert begun > 3_000
    validator = _data.Validator()
    validator.add(read_binpack(out))
    assert not any(count for _, count, _ in validator.problems)


@pytest.mark.engine
def test_the_bundled_sample_is_made_by_the_command_in_its_readme(
    stockfish: str, project_root: Path, tmp_path: Path
) -> None:
    readme = (project_root / "samples" / "README.md").read_text()
    command = next(line for line in readme.splitlines() if line.startswith("nnue data generate samples/val"))
    arguments = command.split()[1:]
    arguments[2] = str(tmp_path / "val.binpack")
    arguments[arguments.index("--engine") + 1] = stockfish
    arguments[arguments.index("--positions") + 1] = "500"  # the first games of it
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    made = read_binpack(tmp_path / "val.binpack")
    assert len(made) >= 500
    assert made.tobytes() == read_binpack(project_root / "samples" / "val.binpack")[: len(made)].tobytes()


def test_a_directory_is_refused_before_the_first_game(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder, expected the name of a file"):
        generate(tmp_path, GenerateOptions(engine="no such engine", positions=10, depth=1))
    assert not list(tmp_path.parent.glob("*.journal"))
