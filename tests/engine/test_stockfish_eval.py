"""The answers of Stockfish to `eval`, of every form that is known, and what is not one."""

import re

import pytest
from stockfish_texts import evaluation, nets_of

from nnue_trainer.engines.stockfish_eval import Counts, parse_eval, unit_of
from nnue_trainer.engines.uci import Engine, find_engine
from nnue_trainer.errors import UserError

FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
IN_CHECK = "rnb1kbnr/pppp1ppp/8/4p3/5PPq/8/PPPPP2P/RNBQKBNR w KQkq - 1 3"
START = Counts(pawns=16, knights=4, bishops=4, rooks=4, queens=2)

WITHOUT_PSQT = """ NNUE network contributions (Normalized, White to move)
+------------+------------+
|   Bucket   | Evaluation |
+------------+------------+
|  0         |  -  0.17   |
|  1         |  + 12.30   | <-- this bucket is used
+------------+------------+

NNUE evaluation        4321 (side to move, internal units)
Final evaluation       +0.33 (white side)
""".splitlines()


def test_one_column_and_the_exact_integer() -> None:
    found = parse_eval(WITHOUT_PSQT)
    assert found.cells == [["-0.17"], ["+12.30"]]
    assert (found.used, found.value, found.is_exact, found.in_check) == (1, "4321", True, False)


# 32 stacks, as SFNNv18 has them: a row for each, or for the one in use only by a build that prints no table.
MANY_BUCKETS = "\n".join(
    [
        "+------------+------------+",
        "|   Bucket   | Evaluation |",
        "+------------+------------+",
        *(f"|  {n:<2}        |  -  0.{n:02}   |{' <-- this bucket is used' if n == 31 else ''}" for n in range(32)),
        "+------------+------------+",
    ]
)
THREE = [["+0.10", "-0.19", "-0.09"], ["0.00", "+12.30", "+12.30"]]
ONE = [["-0.09"], ["+12.30"]]
# Release or build → cells of the table, exact value.
TEXTS: dict[str, tuple[list[list[str]], int | None]] = {
    **{release: ([], None) for release in ("12", "13")},
    **dict.fromkeys(("14", "14.1", "15", "15.1", "16", "16.1", "17", "17.1", "18"), (THREE, None)),
    **dict.fromkeys(("19", "dev-20260420-de7b0cd7", "dev-20260601-5eeca739"), (THREE, -34)),
    **dict.fromkeys(("dev-20261001-a17c0ce2", "dev-20261020-effdc3fd"), (ONE, 34)),
}


@pytest.mark.parametrize("black_to_move", [False, True])
@pytest.mark.parametrize("release", TEXTS)
def test_what_releases_print(release: str, *, black_to_move: bool) -> None:
    cells, exact = TEXTS[release]
    known = {"cells": cells, "used": 1, "white": "-0.09", "exact": exact, "check": False}
    lines = [*nets_of(release, "/nets/a b.nnue"), *evaluation(release, known, black_to_move=black_to_move)]
    found = parse_eval(lines)
    assert (found.cells, found.used) == (cells, 1 if cells else None)
    assert (found.value, found.is_exact) == ("-0.09" if exact is None else f"{exact:+}", exact is not None)
    assert not found.in_check
    assert parse_eval([*nets_of(release, "n"), *evaluation(release, {"check": True})]).in_check


EXACT = "NNUE evaluation        -34 (side to move, internal units)"
WHITE = "NNUE evaluation        -0.09 (white side)"
PAWNS = "NNUE evaluation        -0.09 (white side, pawns)"


@pytest.mark.parametrize("lines", [[EXACT], [EXACT, WHITE], [WHITE, EXACT], [EXACT, PAWNS]])
def test_the_exact_value_counts_in_any_order(lines: list[str]) -> None:
    found = parse_eval([*MANY_BUCKETS.splitlines(), *lines])
    assert (found.value, found.is_exact, len(found.cells[0])) == ("-34", True, 1)


@pytest.mark.engine
def test_the_text_of_the_release_that_is_here() -> None:
    """The lines of 15.1, its numbers aside, are those of the text; the text leaves out some terms and ranks."""
    fen = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
    with Engine(find_engine(), timeout=60.0) as engine:
        if not engine.name.startswith("Stockfish 15.1"):
            pytest.skip(f"{engine.name} is not 15.1")
        engine.send(f"position fen {fen}")
        engine.send("eval")
        printed = engine.ask("isready", "readyok")
    found = parse_eval(printed)
    assert found.value is not None
    known = {"cells": found.cells, "used": found.used, "white": found.value, "exact": None, "check": False}
    text = evaluation("15.1", known, black_to_move=True)
    shapes, below = [], []
    for lines in (text, printed[:-1]):  # the last line is readyok
        stripped = [line.strip() for line in lines if line.strip()]
        shapes.append([re.sub(r"[+-]?[0-9]+\.[0-9]+", "N", line) for line in stripped])
        begin = stripped.index("NNUE network contributions (Black to move)")
        other = re.compile("(Classical|Final)( evaluation +)[+-][0-9.]+")
        below.append([other.sub(r"\1\2", line) for line in stripped[begin:]])
    assert below[0] == below[1]
    assert [line for line in shapes[0] if line not in shapes[1]] == []


def test_a_table_of_32_buckets() -> None:
    found = parse_eval([*MANY_BUCKETS.splitlines(), EXACT])
    assert [len(found.cells), found.used, found.cells[31]] == [32, 31, ["-0.31"]]
    wrong = MANY_BUCKETS.replace("|  17 ", "|  18 ").splitlines()
    with pytest.raises(UserError, match="expected bucket 17 and its values"):
        parse_eval(wrong)


def test_an_unsigned_value_is_white_ahead() -> None:
    assert parse_eval(["NNUE evaluation:      0.36 (white side)"]).value == "+0.36"


def test_in_check() -> None:
    assert parse_eval(["", "Final evaluation: none (in check)"]).in_check


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "neither a table of buckets nor"),
        (["bestmove e2e4"], "neither a table of buckets nor"),
        (["| 1 | + 0.03 |"], "expected bucket 0 and its values"),
        (["| 0 | + 0.03 |", "| 0 | + 0.03 |"], "expected bucket 1 and its values"),
        (["| 0 | nan |"], "expected bucket 0 and its values"),
        (["| 0 |"], "expected bucket 0 and its values"),
        (["| 0 | \x1b[2J |"], r"the row '\| 0 \| \\x1b\[2J \|' of the table"),
        (["NNUE evaluation -34 (white side)"], r"expected '\(white side\)' or internal units"),
        (["NNUE evaluation -0.34 (side to move, internal units)"], r"expected '\(white side\)' or internal units"),
        (["NNUE evaluation +1.00 (black side)"], r"expected '\(white side\)' or internal units"),
    ],
)
def test_what_is_no_evaluation(lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_eval(lines)


@pytest.mark.parametrize(
    ("release", "value", "expected"),
    [
        ("15.1", 361, ("+1.00",)),
        ("15.1", -2, ("-0.01",)),
        ("15.1", 0, ("0.00",)),
        ("16", 164, ("+0.50",)),
        ("16", 2, ("+0.00", "+0.01")),  # 0.6 centipawns: not known whether cut
        ("15", 208, ("+1.00",)),
        ("14", 207, ("+0.99",)),  # 99.52 centipawns, cut
        ("14", -207, ("-0.99",)),
        ("13", 207, ("+1.00",)),  # the same, rounded
        ("16.1", 355, ("+0.99",)),
        ("16.1", -356, ("-1.00",)),
    ],
)
def test_units_that_do_not_depend_on_the_position(release: str, value: int, expected: tuple[str, ...]) -> None:
    for counts in (START, Counts(0, 0, 0, 1, 0)):
        assert unit_of(f"Stockfish {release}").cells(value, counts) == expected


@pytest.mark.parametrize("release", ["17", "17.1", "18", "19"])
def test_units_that_depend_on_the_material(release: str) -> None:
    """One pawn is the value of the polynomial at 58 points of material, the sum of its coefficients."""
    pawn = {"17": 371.66, "17.1": 377.43, "18": 385.47, "19": 304.15}[release]
    at_58 = Counts(pawns=9, knights=2, bishops=3, rooks=5, queens=1)
    assert at_58.material == 58
    unit = unit_of(f"Stockfish {release} 64 AVX2")
    assert unit.cells(round(pawn), at_58) == ("+1.00",)
    assert unit.cells(-round(pawn / 2), at_58) == ("-0.50",)
    # Beyond both ends the unit stays the same.
    assert unit.cells(1000, Counts(0, 0, 0, 0, 0)) == unit.cells(1000, Counts(17, 0, 0, 0, 0))
    assert unit.cells(1000, START) == unit.cells(1000, Counts(16, 4, 4, 4, 9))


def test_the_line_below_the_table() -> None:
    unit = unit_of("Stockfish 15.1")
    assert unit.values(361, START) == ("+1.00",)
    assert set(unit.values(-1, START)) == {"+0.00", "-0.00"}
    assert set(unit_of("Stockfish 16.1").values(-355, START)) == {"-1.00", "-0.99"}


def test_pieces_are_counted_on_the_board_alone() -> None:
    assert Counts.of_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR b KQkq - 0 1") == START


@pytest.mark.engine
def test_a_real_answer() -> None:
    with Engine(find_engine(), timeout=60.0) as engine:
        for fen, in_check in ((FEN, False), (IN_CHECK, True)):
            engine.send(f"position fen {fen}")
            engine.send("eval")
            found = parse_eval(engine.ask("isready", "readyok"))
            assert found.in_check == in_check
            if not in_check:
                assert [len(row) for row in found.cells] == [3] * 8
                assert found.used == 7
                assert found.value is not None
                assert abs(float(found.value) - float(found.cells[7][2])) < 0.02
                assert not found.is_exact


def test_a_release_that_is_not_known() -> None:
    for name in ("Stockfish dev-20261114", "Stockfish 99", "Stockfish", "Other 1"):
        with pytest.raises(UserError, match="the unit of its table is not known"):
            unit_of(name)
