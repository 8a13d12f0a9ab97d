"""Outputs of the data tools: what belongs together appears together (tests/nets/test_outputs_of_commands.py has the
rule for what exists)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import Done
from golden import golden_net

from nnue_trainer import _data
from nnue_trainer.data import PositionReader, records_from_fens
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.generate import GenerateOptions, generate
from nnue_trainer.data.transform import split
from nnue_trainer.errors import UserError
from nnue_trainer.export import write_net
from nnue_trainer.files import atomic, finished

FakeEngine = Callable[..., str]
Nnue = Callable[..., Done]


def kill_at_rename(call: int, when: str, code: str, *arguments: object) -> None:
    """Runs `code`, its `arguments` from sys.argv[3] on; kills it `when` ("before", "after") its `call`-th rename."""
    prelude = """
import os, signal, sys
from nnue_trainer.files import atomic
real, count, call, when = os.rename, 0, int(sys.argv[1]), sys.argv[2]
def rename(*arguments, **more):
    global count
    count += 1
    if count == call and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments, **more)
    if count == call:
        os.kill(os.getpid(), signal.SIGKILL)
atomic.os.rename = rename
"""
    command = [sys.executable, "-c", prelude + code, str(call), when, *map(str, arguments)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """300 positions, each a separate game."""
    write_binpack(
        tmp_path / "in.binpack", records_from_fens([f"8/8/8/8/8/8/8/K1k5 w - - {i % 90} 1" for i in range(300)])
    )
    return tmp_path / "in.binpack"


def options(engine: str, **changes: object) -> GenerateOptions:
    base = {"engine": engine, "positions": 60, "nodes": 1, "score_scale": 1.0, "max_ply": 30, "opening_score": 2000}
    return GenerateOptions(**(base | changes))  # type: ignore[arg-type]


# --- nothing is replaced unasked -------------------------------------------------------------------------------------


def test_an_output_that_appears_during_the_work_stays(source: Path, tmp_path: Path, fake_engine: FakeEngine) -> None:
    out = tmp_path / "out.binpack"

    def appear(done: int, total: int) -> None:
        out.write_bytes(b"somebody else's")

    with pytest.raises(UserError, match="exists already"):
        split([source], out, tmp_path / "v.binpack", share=0.3, progress=appear)
    assert out.read_bytes() == b"somebody else's"
    out.unlink()
    with pytest.raises(UserError, match="exists already"):
        generate(out, options(fake_engine()), progress=appear)
    assert out.read_bytes() == b"somebody else's"
    out.unlink()
    generate(out, options(fake_engine()))  # the games were kept
    assert len(read_binpack(out)) >= 60


# --- split -----------------------------------------------------------------------------------------------------------


def test_split_replaces_both_or_none(nnue: Nnue, source: Path, tmp_path: Path) -> None:
    train, validation = tmp_path / "t.binpack", tmp_path / "v.binpack"
    words = ["data", "split", source, "--train", train, "--validation", validation, "--share", 0.3]
    validation.write_bytes(b"old")
    status, _, error = nnue(*words)
    assert status == 1
    assert f"{validation}: exists already, but {train} does not: a different file, or left by a command killed" in error
    assert validation.read_bytes() == b"old"
    assert not train.exists()
    assert nnue(*words, "--overwrite")[0] == 0
    assert len(read_binpack(train)) + len(read_binpack(validation)) == 300
    status, _, error = nnue(*words)
    assert (status, error) == (1, f"nnue: error: {train}: exists already; --overwrite replaces it\n")


def test_a_split_that_fails_while_it_ends_leaves_neither_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, validation = tmp_path / "t.binpack", tmp_path / "v.binpack"
    real = os.rename

    def rename(*arguments: object, **more: object) -> None:
        if "v.binpack" in arguments:
            raise OSError(5, "Input/output error")
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(UserError, match=r"v\.binpack: cannot be written: Input/output error"):
        split([source], train, validation, share=0.3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.binpack"]


def test_a_split_for_whose_second_half_there_is_no_room_leaves_neither_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(_data.PositionWriter):
        made = 0

        def finish(self) -> None:
            Full.made += 1
            if Full.made == 2:
                raise UserError("cannot write: No space left on device")
            super().finish()

    monkeypatch.setattr(_data, "PositionWriter", Full)
    with pytest.raises(UserError, match="No space left"):
        split([source], tmp_path / "t.binpack", tmp_path / "v.binpack", share=0.3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.binpack"]


@pytest.mark.slow
def test_a_split_killed_at_any_rename_is_reported(source: Path, tmp_path: Path) -> None:
    """kill −9 before and after each of the two renames, over new names and over old files."""
    code = """
from nnue_trainer.data.transform import split
split([sys.argv[3]], sys.argv[4], sys.argv[5], share=0.3, seed=int(sys.argv[6]), overwrite=True)
"""
    for old in (False, True):
        for call, when in ((1, "before"), (1, "after"), (2, "before"), (2, "after")):
            folder = tmp_path / f"{old}{call}{when}"
            folder.mkdir()
            train, validation = folder / "t.binpack", folder / "v.binpack"
            if old:
                split([source], train, validation, share=0.3, seed=1)
            kill_at_rename(call, when, code, source, train, validation, 2)
            there = [path.name for path in (train, validation) if path.exists()]
            if call == 1:
                assert there == (["t.binpack"] if when == "after" or old else [])
            if len(there) == 2:  # never a half of each
                assert len(read_binpack(train)) + len(read_binpack(validation)) == 300
            elif there:
                with pytest.raises(UserError, match="does not: a different file, or left by a command killed"):
                    split([source], train, validation, share=0.3, seed=2)
            split([source], train, validation, share=0.3, seed=2, overwrite=True)
            assert len(read_binpack(train)) + len(read_binpack(validation)) == 300
            assert sorted(path.name for path in folder.iterdir()) == ["t.binpack", "v.binpack"]  # no leftovers


# --- generate --------------------------------------------------------------------------------------------------------


def test_a_finished_command_plays_nothing(fake_engine: FakeEngine, tmp_path: Path, nnue: Nnue) -> None:
    out, engine = tmp_path / "out.binpack", fake_engine()
    words = ["data", "generate", out, "--engine", engine, "--positions", 60, "--nodes", 1, "--score-scale", 1]
    words += ["--max-ply", 30, "--opening-score", 2000, "-j", 1]
    assert nnue(*words)[0] == 0
    before, status = out.read_bytes(), out.stat()
    dead = fake_engine("dies")  # would end at the first search
    code, output, _ = nnue(*words[:4], dead, *words[5:])
    assert code == 0
    assert f"{out}: made already by this command, " in output
    assert out.stat().st_mtime_ns == status.st_mtime_ns
    for change in (["--seed", 1], ["--positions", 100], ["--nodes", 2], ["--score-scale", 2], ["--option", "Hash=2"]):
        code, _, error = nnue(*words, *change)
        assert code == 1
        assert error.startswith(f"nnue: error: {out}: was made with ")
        assert error.endswith("; --overwrite replaces it\n")
    assert out.read_bytes() == before
    assert nnue(*words, "--seed", 1, "--overwrite")[0] == 0
    assert out.read_bytes() != before


def test_a_file_that_was_changed_or_is_not_ours_stays(fake_engine: FakeEngine, tmp_path: Path) -> None:
    out, made = tmp_path / "out.binpack", tmp_path / "out.binpack.generated.json"
    generate(out, options(fake_engine()))
    whole, description = out.read_bytes(), made.read_text()
    out.write_bytes(whole + whole)
    with pytest.raises(UserError, match=r"out\.binpack: exists already; --overwrite replaces it"):
        generate(out, options(fake_engine()))
    for text in ("", "{}", "[]", "nonsense", '{"file": 1, "options": {}}', "[" * 100_000, description.replace("5", "")):
        out.write_bytes(whole)
        made.write_text(text)
        with pytest.raises(UserError, match="--overwrite replaces it"):
            generate(out, options(fake_engine()))
    made.unlink()
    with pytest.raises(UserError, match=r"out\.binpack: exists already; --overwrite replaces it"):
        generate(out, options(fake_engine()))
    assert out.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fake", "out.binpack"]


@pytest.mark.slow
def test_killed_at_any_rename_at_the_end(fake_engine: FakeEngine, tmp_path: Path) -> None:
    """The description and the data get their names one after the other; the command, repeated, ends well."""
    code = """
from nnue_trainer.data.generate import GenerateOptions, generate
options = GenerateOptions(sys.argv[3], 60, nodes=1, score_scale=1.0, max_ply=30, opening_score=2000)
generate(sys.argv[4], options)
"""
    engine = fake_engine()
    generate(tmp_path / "whole.binpack", options(engine))
    for call, when in ((1, "before"), (1, "after"), (2, "before"), (2, "after")):
        folder = tmp_path / f"{call}{when}"
        folder.mkdir()
        out = folder / "out.binpack"
        kill_at_rename(call, when, code, engine, out)
        made = generate(out, options(engine), progress=lambda *_: pytest.fail("a game was played again"))
        assert made.already == ((call, when) == (2, "after"))
        assert out.read_bytes() == (tmp_path / "whole.binpack").read_bytes()
        assert sorted(path.name for path in folder.iterdir()) == ["out.binpack", "out.binpack.generated.json"]


@pytest.mark.slow
@pytest.mark.parametrize("renames", [1, 2])
@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("convert {source} o.bin", 1),
        ("shuffle {source} o.binpack", 1),
        ("split {source} --train o.binpack --validation v.binpack --share 0.3", 2),
        ("rescore {source} o.binpack --engine {engine} --nodes 1 --score-scale 1", 1),
    ],
)
def test_a_command_that_was_killed_after_its_output_was_complete_ends_well(
    fake_engine: FakeEngine,
    tmp_path: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    files: int,
    renames: int,
) -> None:
    """A job that is queued again must not end as if a person had to correct something."""
    if renames > files:
        pytest.skip("the command writes fewer files")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    words = ["data", *command.format(source=source, engine=fake_engine()).split()]

    def again(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "nnue_trainer", *words, *more], stderr=subprocess.PIPE, text=True, check=False
        )

    code = "sys.argv[1:] = sys.argv[3:]; from nnue_trainer.cli.main import main; main()"
    kill_at_rename(renames, "after", code, *words)
    first = next(path for path in Path().iterdir() if path.name.startswith("o."))
    before = first.read_bytes()
    other = again("--skip-bad")
    assert (other.returncode, "exists already" in other.stderr) == (1, True)
    whole = again()
    assert whole.returncode == 0, whole.stderr
    assert ("was finished by the same command" in whole.stderr) == (renames == files)
    assert first.read_bytes() == before
    assert len(list(Path().iterdir())) == files  # neither notes nor journals


@pytest.fixture
def killed_at_its_end(nnue: Nnue, monkeypatch: pytest.MonkeyPatch) -> Nnue:
    """The command as `nnue` runs it, without its last step: it is killed when its outputs have their names."""
    end = finished.end

    def run(*words: object) -> Done:
        with monkeypatch.context() as changed:
            changed.setattr(finished, "end", lambda *, again: end(again=True))
            return nnue(*words)

    return run


def drawn(path: Path) -> None:
    """A picture, without the time that matplotlib takes."""
    with atomic.replacing(path) as output:
        output.write_bytes(b"PNG")


@pytest.mark.parametrize(
    ("command", "prints_again"),
    [
        ("data convert {source} o.bin", False),
        ("data dedup {source} o.binpack", False),
        ("data interleave {source} o.binpack", False),
        ("data rescore {source} o.binpack --net {net}", False),
        ("data profile {source} --png o.png --json", True),
        ("data generate o.binpack --engine {engine} --games 1 --nodes 1 --score-scale 1 -j 1 --max-ply 20", False),
        ("export {checkpoint} o.nnue", True),
        ("import {net} o.safetensors", False),
        ("match {engine} {engine} --pairs 1 --nodes 1 -j 1 --plies 2 -o m", True),
    ],
)
def test_a_command_killed_at_its_end_ends_well_and_leaves_no_note(
    nnue: Nnue,
    killed_at_its_end: Nnue,
    fake_engine: FakeEngine,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    prints_again: bool,
) -> None:
    """The second start loses nothing that the first one would have written to standard output, either."""
    checkpoint, net = tmp_path / "c.safetensors", tmp_path / "net.nnue"
    write_net(golden_net("small128"), net)
    assert nnue("import", net, checkpoint).returncode == 0
    monkeypatch.setattr("nnue_trainer.files.pages.plots.save_png", lambda plots, path, *_: drawn(path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    words = command.format(source=source, net=net, checkpoint=checkpoint, engine=fake_engine()).split()
    first = killed_at_its_end(*words)
    assert first.returncode == 0, first.stderr
    files = {path for path in Path().rglob("*") if not path.name.endswith(".finished")}
    before = {path: path.read_bytes() for path in files if path.name.startswith("o.")}
    second = nnue(*words)
    assert second.returncode == 0, second.stderr
    assert set(Path().rglob("*")) == files
    assert {path: path.read_bytes() for path in before} == before
    if prints_again:
        assert second.stdout == first.stdout
    assert finished._notes == set()


@pytest.mark.parametrize("format", ["bin", "bulletformat", "text"])
def test_the_name_says_the_format(fake_engine: FakeEngine, tmp_path: Path, nnue: Nnue, format: str) -> None:
    generate(tmp_path / "o.binpack", options(fake_engine()))
    expected = read_binpack(tmp_path / "o.binpack")
    out = tmp_path / {"bin": "o.bin", "bulletformat": "o.bullet", "text": "o.txt"}[format]
    made = generate(out, options(fake_engine()))
    with PositionReader(out) as reader:
        assert reader.format == format
        assert sum(len(block) for block in reader) == len(expected) == made.positions
    assert ("moves" in made.losses) == (format != "bin")
    words = ["data", "generate", tmp_path / "o.pgn", "--engine", fake_engine(), "--positions", 5, "--nodes", 1]
    code, _, error = nnue(*words)
    assert code == 1
    assert "o.pgn: no format has this suffix" in error


# --- opening books ---------------------------------------------------------------------------------------------------

MATE = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
STALEMATE = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
ENDGAME = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"


def test_a_book_of_finished_games(fake_engine: FakeEngine, tmp_path: Path) -> None:
    book = tmp_path / "book.epd"
    book.write_text(f"{MATE}\n{STALEMATE}\n")
    for plies in (0, 8):
        with pytest.raises(UserError, match="no game starts from 2 of its 2 positions: 2 are finished games"):
            generate(tmp_path / "o.binpack", options(fake_engine(), book=str(book), random_plies=plies))
    book.write_text(f"{MATE}\n{ENDGAME}\n{STALEMATE}\n")
    notes: list[str] = []
    generate(tmp_path / "o.binpack", options(fake_engine(), book=str(book), random_plies=0), note=notes.append)
    assert "no game starts from 2 of its 3 positions: 2 are finished games, 0 have a first score beyond" in notes[0]
    records = read_binpack(tmp_path / "o.binpack")
    assert _data.fens_from_records(records[:1]) == [ENDGAME]


def test_a_book_beyond_the_opening_score(
    fake_engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "book.epd"
    others = [ENDGAME.replace("4P3", f"{file or ''}P{7 - file or ''}") for file in range(8)]
    book.write_text("\n".join([MATE, *others]))
    engine = fake_engine("score=cp_900")
    with pytest.raises(
        UserError, match="no game starts from 9 of its 9 positions: 1 are finished games, 8 have a first"
    ):
        generate(tmp_path / "o.binpack", options(engine, book=str(book), random_plies=0, opening_score=800))
    monkeypatch.setattr("nnue_trainer.data.generate._MAX_OPENINGS", 20)
    with pytest.raises(UserError, match=r"none of 20 openings drawn for game 0 can be played: .* 20 had a first score"):
        generate(tmp_path / "o.binpack", options(engine, book=str(book), random_plies=2, opening_score=800))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.epd", "fakescore=cp_900"]


def test_openings_that_always_end_at_once(fake_engine: FakeEngine, tmp_path: Path) -> None:
    """A king that can only take the last piece: the game is over before the engine has moved."""
    book = tmp_path / "book.epd"
    book.write_text("7k/6Q1/8/8/8/8/8/K7 b - - 0 1\n")
    with pytest.raises(UserError, match=r"none of 1,000 openings drawn for game 0 .*: 1,000 were over before"):
        generate(tmp_path / "o.binpack", options(fake_engine(), book=str(book), random_plies=1))


def test_what_is_no_book(fake_engine: FakeEngine, tmp_path: Path) -> None:
    book = tmp_path / "book.epd"
    for content in (b"", b"\n\n", b"\xff\xfe\0", b"not a position\n", b"\0" * 100):
        book.write_bytes(content)
        with pytest.raises(UserError, match=r"book\.epd: ") as caught:
            generate(tmp_path / "o.binpack", options(fake_engine(), book=str(book)))
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="/dev/zero: not a regular file"):
        generate(tmp_path / "o.binpack", options(fake_engine(), book="/dev/zero"))


def test_plies_do_not_wrap_around(fake_engine: FakeEngine, tmp_path: Path) -> None:
    """A record has 14 bits for the ply: a game that gets there is a draw."""
    book = tmp_path / "book.epd"
    book.write_text(ENDGAME.replace("0 1", "0 8185"))
    engine = fake_engine()
    generate(tmp_path / "o.binpack", options(engine, book=str(book), random_plies=0, positions=40, max_ply=400))
    plies = [ply for _, _, _, ply, _ in _data.describe(read_binpack(tmp_path / "o.binpack"))]
    assert min(plies) >= 16_000
    assert max(np.diff(plies)) == 1


def test_the_description_is_readable_json(fake_engine: FakeEngine, tmp_path: Path) -> None:
    made = generate(tmp_path / "o.binpack", options(fake_engine()))
    description = json.loads((tmp_path / "o.binpack.generated.json").read_text())
    assert description["positions"] == made.positions
    assert description["options"]["engine"] == "Fake 1"
    assert description["file"]["size"] == (tmp_path / "o.binpack").stat().st_size


# --- names that are not text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "convert {source} {out}.bin",
        "filter {source} {out}.binpack --min-ply -1 --max-score 1",
        "shuffle {source} {out}.binpack",
        "interleave {source} {out}.binpack",
        "split {source} --train {out}.bin --validation {out}.txt",
        "info {source} --png {out}.png",
        "head {source}",
        "validate {source}",
        "validate {out}",
        "convert {source} {source}",
    ],
)
def test_file_names_that_are_not_utf_8(nnue: Nnue, source: Path, tmp_path: Path, command: str) -> None:
    """A byte that is not UTF-8, a control character, and what matplotlib takes for mathematics."""
    odd = tmp_path / "in\udcff\x1b[2J$_^$.binpack"
    source.rename(odd)
    status, output, error = nnue("data", *command.format(source=odd, out=tmp_path / "out\udcfe\n").split(" "))
    assert status == (1 if command in ("validate {out}", "convert {source} {source}") else 0), error
    assert "\x1b" not in output + error
    assert "\\udcff" in output + error or "\\xff" in output + error or "{out}" in command or command == "head {source}"
    (output + error).encode()
    assert error.count("\n") == (1 if status else error.count("\n"))


# --- numbers that make no sense --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "filter {source} {out} --random-skip nan",
        "filter {source} {out} --random-skip inf",
        "filter {source} {out} --random-skip -1",
        "filter {source} {out} --max-score 99999999999999999999",
        "filter {source} {out} --soft-ply 3000000000",
        "filter {source} {out} --min-ply -2 --quiet",
        "filter {source} {out} --quiet --seed 4294967296",
        "convert {source} {out} --score-scale nan",
        "convert {source} {out} --score-scale -inf",
        "shuffle {source} {out} --seed -1",
        "shuffle {source} {out} --memory nan",
        "shuffle {source} {out} --memory 1e9G",
        "interleave {source} {out} --seed 18446744073709551616",
        "split {source} --train {out} --validation {out}.bin --share nan",
        "split {source} --train {out} --validation {out}.bin --share -0.0",
        "split {source} --train {out} --validation {out}.bin --share inf",
        "head {source} --count 0",
    ],
)
def test_numbers_that_make_no_sense_are_one_line(nnue: Nnue, source: Path, tmp_path: Path, command: str) -> None:
    status, _, error = nnue("data", *command.format(source=source, out=tmp_path / "out.binpack").split())
    assert status in (1, 2)
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.binpack"]
