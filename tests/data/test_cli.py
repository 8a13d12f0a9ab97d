"""`nnue data …` as a user sees it."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from data_commands import run

from nnue_trainer.data import records_from_fens
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.data.files import Pipe
from nnue_trainer.errors import UserError

FENS = [
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "4k3/8/8/8/8/8/8/4KR2 b - - 3 20",
    "4k3/8/8/8/8/8/4R3/4K3 w - - 3 20",  # black, who has just moved, is in check
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_binpack(tmp_path / "x.binpack", records_from_fens(FENS))
    return tmp_path / "x.binpack"


def test_info(file: Path) -> None:
    text = run("info", file)
    assert "3 positions" in text
    assert re.search(r"in check +0 \(0.00%\)", text)
    values = json.loads(run("info", file, "--json"))
    assert values["statistics"]["positions"] == values["chains"] == 3
    assert values["statistics"]["null_moves"] == 3
    with pytest.raises(UserError, match="No such file"):
        run("info", "nothing.binpack")


@pytest.mark.parametrize(("move", "first", "last"), [(20, "0 … 7", "32 … 39"), (200, "0 … 15", "384 … 399")])
def test_bars_of_plies_are_ranges(tmp_path: Path, move: int, first: str, last: str) -> None:
    """A bin holds eight plies, whether it has a separate bar or shares one."""
    write_binpack(tmp_path / "x.binpack", records_from_fens([FENS[0], f"4k3/8/8/8/8/8/8/4KR2 b - - 3 {move}"]))
    bars = run("info", tmp_path / "x.binpack").partition("\nply\n")[2].partition("\n\n")[0].splitlines()
    assert bars[0].strip().startswith(f"{first}  ")
    assert bars[-1].strip().startswith(f"{last}  ")


def test_info_of_an_empty_file(tmp_path: Path) -> None:
    write_binpack(tmp_path / "e.binpack", np.empty((0, 32), np.uint8))
    assert "0 positions" in run("info", tmp_path / "e.binpack")


def test_head(file: Path) -> None:
    assert run("head", file, "-n", 2).splitlines() == [
        f"{FENS[0]} | 0000 | score 0 | ply 0 | result 0",
        f"{FENS[1]} | 0000 | score 0 | ply 39 | result 0",
    ]
    lines = [json.loads(line) for line in run("head", file, "--json").splitlines()]
    assert [line["fen"] for line in lines] == FENS


def test_validate(file: Path, tmp_path: Path) -> None:
    text = run("validate", file, code=1)
    assert "NOT sound" in text
    assert "the side that has just moved is in check: 1, the first at position 2" in text
    write_binpack(tmp_path / "good.binpack", records_from_fens(FENS[:2]))
    assert "2 positions, all sound" in run("validate", tmp_path / "good.binpack")
    assert json.loads(run("validate", tmp_path / "good.binpack", "--json"))["problems"] == []
    (tmp_path / "none.csv").write_text("fen,score,result\n")
    assert run("validate", tmp_path / "none.csv").endswith("none.csv: 0 positions\n  verdict: no positions\n")


def test_generate_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such program"):
        run("generate", tmp_path / "o", "--engine", "no-such-engine", "--positions", 5, "--nodes", 5)
    with pytest.raises(UserError, match="expected NAME=VALUE"):
        run("generate", tmp_path / "o", "--engine", "sh", "--positions", 5, "--nodes", 5, "--option", "Hash")


@contextmanager
def piped(data: bytes) -> Iterator[None]:
    """Standard input is a pipe with these bytes, at most 64 KiB."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    os.close(reader)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@pytest.mark.parametrize(
    "line",
    [
        "convert IN out.txt",
        "filter IN out.bin --min-pieces 2",
        "shuffle IN out.binpack",
        "head IN",
        "count IN",
        "info IN",
    ],
)
def test_tools_read_a_pipe_as_they_read_a_file(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """`zstdcat FILE | nnue data convert - OUT`. `info` prints no number of bytes for a pipe."""
    monkeypatch.setattr(Pipe, "_used", False)  # each process reads it once
    found: list[tuple[str, dict[str, bytes]]] = []
    for name in (str(file), "-"):
        folder = tmp_path / f"folder {len(found)}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        with piped(file.read_bytes()):
            text = run(*line.replace("IN", name).split())
        text = re.sub(r"\d+ bytes, |  bytes per position .*\n", "", text.replace(name, "-", 1))
        found.append((re.sub(" +", " ", text), {path.name: path.read_bytes() for path in folder.iterdir()}))
    assert found[0] == found[1]
    assert "3 positions" in found[1][0] or line.startswith(("head", "filter"))


def test_a_tool_that_reads_twice_refuses_a_pipe(tmp_path: Path, file: Path) -> None:
    with piped(file.read_bytes()), pytest.raises(UserError, match=r"^-: dedup reads its input more than once"):
        run("dedup", "-", tmp_path / "out.binpack")
