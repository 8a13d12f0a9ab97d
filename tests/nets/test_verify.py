"""`nnue verify` with what the releases of Stockfish print, from an engine that prints a given text."""

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden import golden_net
from net_support import START, batch_of

from nnue_trainer.errors import UserError
from nnue_trainer.export import QuantizedNet, evaluate
from nnue_trainer.export.check_positions import CHECK_POSITIONS, random_positions
from nnue_trainer.export.engine_check import verify

FENS = [*CHECK_POSITIONS[:24], START]
IN_CHECK = "rnb1kbnr/pppp1ppp/8/4p3/5PPq/8/PPPPP2P/RNBQKBNR w KQkq - 1 3"
# Release → net, internal units in a pawn for a position, whether centipawns are cut, columns, exact value.
RELEASES: dict[str, tuple[str, Callable[[str], float], bool, int, bool]] = {
    "Stockfish 12": ("sfnnv1", lambda fen: 208, False, 0, False),
    "Stockfish 13": ("sfnnv1", lambda fen: 208, False, 0, False),
    "Stockfish 14": ("sfnnv2", lambda fen: 208, True, 3, False),
    "Stockfish 14.1": ("sfnnv3", lambda fen: 208, False, 3, False),
    "Stockfish 15": ("sfnnv4", lambda fen: 208, False, 3, False),
    "Stockfish 15.1": ("sfnnv5", lambda fen: 361, False, 3, False),
    "Stockfish 16": ("sfnnv6", lambda fen: 328, True, 3, False),
    "Stockfish 16.1": ("sfnnv8", lambda fen: 356, True, 3, False),
    "Stockfish 17": (
        "sfnnv9",
        lambda fen: cubic(fen, -37.45051876, 121.19101539, -132.78783573, 420.70576692),
        False,
        3,
        False,
    ),
    "Stockfish 17.1": (
        "sfnnv9",
        lambda fen: cubic(fen, -13.50030198, 40.92780883, -36.82753545, 386.83004070),
        False,
        3,
        False,
    ),
    "Stockfish 18": (
        "sfnnv10",
        lambda fen: cubic(fen, -72.32565836, 185.93832038, -144.58862193, 416.44950446),
        False,
        3,
        False,
    ),
    "Stockfish 19": (
        "sfnnv16",
        lambda fen: cubic(fen, -142.72052667, 372.35176398, -340.71073572, 415.23490212),
        False,
        3,
        True,
    ),
    "Stockfish dev-20260420-de7b0cd7": ("sfnnv14", lambda fen: 300, False, 3, True),
    "Stockfish dev-20260601-5eeca739": ("sfnnv14", lambda fen: 300, False, 3, True),
    "Stockfish dev-20261001-a17c0ce2": ("sfnnv17", lambda fen: 300, False, 1, True),
    "Stockfish dev-20261020-effdc3fd": ("sfnnv18", lambda fen: 300, False, 1, True),
}


def cubic(fen: str, a: float, b: float, c: float, d: float) -> float:
    board = fen.split()[0].lower()
    material = sum(value * board.count(piece) for piece, value in zip("pnbrq", (1, 3, 3, 5, 9), strict=True))
    m = min(max(material, 17), 78) / 58
    return a * m**3 + b * m**2 + c * m + d


def printed(net: QuantizedNet, release: str, fens: list[str]) -> dict[str, Any]:
    """The output of an engine of this release, computed independently of the code that reads it."""
    _, pawn_of, is_cut, columns, is_exact = RELEASES[release]
    evaluation = evaluate(net, batch_of(net, fens))
    answers: dict[str, Any] = {IN_CHECK: {"check": True}}
    for i, fen in enumerate(fens):
        pawn = pawn_of(fen)

        def pawns(value: int, zero: str, pawn: float = pawn) -> str:
            size = math.floor(100 * abs(value) / pawn) / 100 if is_cut else abs(value) / pawn
            return f"{'-' if value < 0 else '+' if value > 0 else zero}{size:.2f}"

        rows = []
        for psqt, positional in zip(
            evaluation.psqt_raw[i].tolist(), evaluation.positional_raw[i].tolist(), strict=True
        ):
            parts = [math.trunc(psqt / 16), math.trunc(positional / 16)]
            values = [*parts, sum(parts)] if columns == 3 else [sum(parts)]
            if columns:
                rows.append([pawns(value, "") for value in values])
        score = int(evaluation.score[i])
        white = -score if fen.split()[1] == "b" else score
        answers[fen] = {"cells": rows, "used": int(evaluation.bucket[i]), "check": False}
        answers[fen] |= {"white": pawns(white, "+"), "exact": score if is_exact else None}
    return answers


@pytest.fixture
def stockfish(tmp_path: Path) -> Callable[..., str]:
    def make(name: str, answers: dict[str, Any], mode: str = "") -> str:
        (tmp_path / "values.json").write_text(json.dumps(answers))
        script = Path(__file__).with_name("fake_stockfish.py")
        words = [sys.executable, str(script), name, str(tmp_path / "values.json"), mode]
        path = tmp_path / "stockfish"
        path.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
        path.chmod(0o755)
        return str(path)

    return make


def small(kind: str) -> QuantizedNet:
    return golden_net(kind, l1=32)


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_that_prints_its_evaluation(release: str, stockfish: Callable[..., str], tmp_path: Path) -> None:
    kind, _, _, columns, is_exact = RELEASES[release]
    net = small(kind)
    answers = printed(net, release, FENS)
    result = verify(stockfish(release, answers), tmp_path / "n.nnue", net, [*FENS, IN_CHECK])
    assert (result.engine, result.positions, result.in_check) == (release, len(FENS) + 1, 1)
    assert result.exact == is_exact
    # The unit of a build between releases is unknown; there the exact value decides.
    assert (result.buckets, result.columns) == ((0, 0) if "dev" in release or not columns else (8, columns))

    wrong = FENS[7]
    if is_exact:
        number = answers[wrong]["exact"]
        answers[wrong]["exact"] += 1
        expected = rf"{wrong}: bucket \d+: engine evaluates {number + 1}, expected {number} \(position 8\)"
    elif columns == 0:
        answers[wrong]["white"] = "+77.77"
        expected = rf"{wrong}: bucket \d: engine evaluates \+77\.77, expected .*white side\) \(position 8\)"
    else:
        answers[wrong]["cells"][2][1] = "+77.77"
        expected = rf"{wrong}: bucket 2 positional: engine prints \+77\.77, expected .*\(position 8\)"
    with pytest.raises(UserError, match=expected) as caught:
        verify(stockfish(release, answers), tmp_path / "n.nnue", net, FENS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("refuses", r"does not load .*n\.nnue: The network file x was not loaded successfully"),
        ("other net", r"does not evaluate with .*n\.nnue"),
        ("silent", "printed neither a table of buckets nor a line 'NNUE evaluation', for "),
        ("fewer buckets", "engine prints 7 buckets, expected 8"),
    ],
)
def test_engines_that_cannot_be_compared(
    mode: str, message: str, stockfish: Callable[..., str], tmp_path: Path
) -> None:
    net = small("sfnnv5")
    engine = stockfish("Stockfish 15.1", printed(net, "Stockfish 15.1", FENS), mode)
    with pytest.raises(UserError, match=message) as caught:
        verify(engine, tmp_path / "n.nnue", net, FENS)
    assert "\n" not in str(caught.value)


def test_a_wrong_bucket_and_nothing_but_checks(stockfish: Callable[..., str], tmp_path: Path) -> None:
    net = small("sfnnv5")
    answers = printed(net, "Stockfish 15.1", FENS)
    answers[FENS[3]]["used"] = (answers[FENS[3]]["used"] + 1) % 8
    with pytest.raises(UserError, match=rf"{FENS[3]}: engine uses bucket \d, expected \d"):
        verify(stockfish("Stockfish 15.1", answers), tmp_path / "n.nnue", net, FENS)
    with pytest.raises(UserError, match="no position could be compared: 2 are in check"):
        verify(stockfish("Stockfish 15.1", answers), tmp_path / "n.nnue", net, [IN_CHECK, IN_CHECK])


def test_a_build_whose_unit_is_not_known(stockfish: Callable[..., str], tmp_path: Path) -> None:
    net = small("sfnnv5")
    engine = stockfish("Stockfish dev-20250101", printed(net, "Stockfish 15.1", FENS))
    with pytest.raises(UserError, match="'Stockfish dev-20250101': the unit of its table is not known"):
        verify(engine, tmp_path / "n.nnue", net, FENS)


def test_random_positions_are_many_and_the_same_each_time() -> None:
    first, again = ([fen for fen, _ in zip(random_positions(3), range(2000), strict=False)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 1900
    pieces = {sum(c.isalpha() for c in fen.split()[0]) for fen in first}
    assert len({(count - 1) // 4 for count in pieces}) >= 7
