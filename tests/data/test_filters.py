"""Filters against the golden counts of the specification, and each rule by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from loader_states import stored
from typer.testing import CliRunner

from nnue_trainer import _data
from nnue_trainer.cli.main import app
from nnue_trainer.data import Filters, Loader, PositionWriter, RecordLoader, fens_from_records, records_from_fens
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.fields import black_to_move, boards, piece_counts, plies, results, rule50s, scores
from nnue_trainer.data.filters import COMPILED, CURVES
from nnue_trainer.errors import UserError
from nnue_trainer.schema import describe, validate

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def record(fen: str = START, score: int = 0, ply: int = 0, result: int = 0, move: int = 0) -> npt.NDArray[np.uint8]:
    r = records_from_fens([fen])[0]
    for at, value in ((24, move), (26, zigzag(score) & 0xFFFF), (28, ply | zigzag(result) << 14)):
        r[at : at + 2] = divmod(value, 256)
    return r


def dropped(records: list[npt.NDArray[np.uint8]], **options: Any) -> list[int]:
    """Numbers of the records that do not pass."""
    array = np.array(records)
    array[:, 30:32] = np.array([divmod(i, 256) for i in range(len(records))])
    kept, counts = Filters(**{"no_score": False} | options).apply(array)
    ids = kept[:, 30].astype(int) * 256 + kept[:, 31]
    assert counts.read == len(records)
    assert counts.kept == len(kept) == len(records) - sum(counts.dropped.values())
    assert set(counts.dropped) <= set(options)
    return sorted(set(range(len(records))) - set(ids.tolist()))


@pytest.mark.parametrize(
    ("name", "quiet", "wdl"),
    [
        ("val", 22_350, 14_067.532),
        pytest.param("small", 324_094, 196_572.362, marks=pytest.mark.shared),
        pytest.param("selfplay-d5-val", 213_674, 173_168.844, marks=pytest.mark.shared),
    ],
)
def test_golden_counts(positions_file: Callable[[str], Path], name: str, quiet: int, wdl: float) -> None:
    path = positions_file(name)
    filters = Filters(no_score=True, quiet=True)
    kept, counts = filters.apply(read_binpack(path))
    assert len(kept) == counts.kept == quiet
    # The same while streaming, where the flags come from the decoder.
    assert sum(len(batch) for batch in RecordLoader(path, 5000, filters=filters, drop_last=False)) == quiet
    scores = np.array([s for _, _, s, _, _ in _data.describe(kept)])
    plies = ((kept[:, 28].astype(int) & 0x3F) << 8) | kept[:, 29]
    results = kept[:, 28] >> 6  # zig-zag: 0 draw, 1 loss, 2 win
    column = np.array([1, 0, 2])[results]
    total = sum(_data.wdl_model(int(s), int(p))[c] for s, p, c in zip(scores, plies, column, strict=True))
    assert total == pytest.approx(wdl, abs=5e-4)
    _, counts = Filters(no_score=True, quiet=True, wdl=True).apply(read_binpack(path))
    assert counts.kept == pytest.approx(wdl, abs=5 * (quiet / 4) ** 0.5)


def test_scores_and_plies() -> None:
    scores = [record(score=s) for s in (32_002, 0, -700, 700, 701, -701)]
    assert dropped(scores, no_score=True) == [0]
    assert dropped(scores, max_score=700) == [0, 4, 5]
    assert dropped([record(ply=p) for p in (0, 5, 6, 7)], min_ply=6) == [0, 1, 2]
    assert dropped([record(ply=0)], min_ply=0) == [0]


def test_positions_without_a_score_are_left_out_by_default(tmp_path: Path) -> None:
    """Nowhere does a score of 32002 reach a batch, unless it is requested."""
    rng = np.random.default_rng(3)
    all_scores = np.where(rng.random(5000) < 0.1, 32_002, rng.integers(-500, 500, 5000))
    records = np.array([record(score=int(s), ply=int(i % 100)) for i, s in enumerate(all_scores)])
    scored = all_scores != 32_002
    for suffix in ("binpack", "bin", "txt"):
        path = tmp_path / f"x.{suffix}"
        with PositionWriter(path, join_chains=False) as writer:
            writer.write(records)
        for filters, kept in (
            (None, all_scores[scored]),
            (Filters(), all_scores[scored]),
            (Filters(max_score=30_000), all_scores[scored]),
            (Filters(no_score=False), all_scores),
            (Filters.none(), all_scores),
        ):
            loader = RecordLoader(path, 100, shuffle=False, drop_last=False, filters=filters)
            found = np.concatenate([scores(batch.numpy()) for batch in loader])
            assert found.tolist() == kept.tolist()
            assert set(loader.filter_counts().dropped) == ({"no_score"} if len(kept) < 5000 else set())
        rows = Loader(path, "Chess768", 64)
        assert not any((batch.score == 32_002).any() for batch in rows)


def test_placeholder_zero() -> None:
    entries = [
        record(score=0, ply=0, result=1),  # nothing seen before
        record(score=300, ply=1, result=-1),
        record(score=0, ply=2, result=1),  # dropped
        record(score=0, ply=3, result=-1),  # the score before is 0
        record(score=-300, ply=4, result=1),
        record(score=32_002, ply=5, result=-1),  # does not count as seen
        record(score=0, ply=6, result=1),  # dropped
        record(score=101, ply=7, result=-1),
        record(score=0, ply=8, result=0),  # a draw
        record(score=101, ply=9, result=-1),
        record(score=0, ply=9, result=1),  # another game
        record(score=100, ply=10, result=-1),
        record(score=0, ply=11, result=1),  # not large
    ]
    assert dropped(entries, placeholder_zero=True) == [2, 6]


def test_quiet() -> None:
    def move(start: str, end: str, kind: int = 0) -> int:
        def square(name: str) -> int:
            return 8 * (int(name[1]) - 1) + "abcdefgh".index(name[0])

        return kind << 14 | square(start) << 8 | square(end) << 2

    entries = [
        record(move=move("e2", "e4")),
        record("4k3/8/8/3p4/4P3/8/8/4K3 w - - 0 1", move=move("e4", "d5")),  # takes
        record("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", move=move("e5", "d6", 3)),  # en passant stays
        record("4k3/8/8/8/8/8/8/4K2R w K - 0 1", move=move("e1", "h1", 2)),  # castling stays
        record("4k3/8/8/8/8/8/4R3/4K3 b - - 0 1", move=move("e8", "d8")),  # in check
        record("3rk3/4P3/8/8/8/8/8/4K3 w - - 0 1", move=move("e7", "d8", 1)),  # takes and promotes
        record("4k3/8/8/8/8/8/4R3/4K3 w - - 0 1"),  # no move
    ]
    assert dropped(entries, quiet=True) == [1, 4, 5]


def test_material() -> None:
    fens = [
        START,
        START.replace("RNBQKBNR w", "RNB1KBNR w"),
        START.replace("PPPPPPPP", "1PPPPPPP"),
        "4k3/8/8/8/8/8/8/4KR2 b - - 0 1",
    ]
    assert dropped([record(fen) for fen in fens], min_material=209) == [0, 2]
    assert dropped([record(fen) for fen in fens], min_material=208) == [0]
    assert dropped([record(fen) for fen in fens], min_material=1277) == [0, 2, 3]


def share(n: int = 40_000, *, ply: int = 0, score: int = 0, result: int = 0, seed: int = 0, **options: Any) -> float:
    records = np.repeat(record(ply=ply, score=score, result=result)[None], n, axis=0)
    return len(Filters(**options).apply(records, seed)[0]) / n


def test_random_filters_keep_the_right_share() -> None:
    assert share(random_skip=3) == pytest.approx(0.25, abs=0.01)
    for ply, expected in ((0, 0.1), (3, 0.125), (6, 0.15), (8, 0.2), (10, 0.25), (14, 0.5), (18, 0.75), (19, 0.875)):
        assert share(ply=ply, soft_ply=20) == pytest.approx(expected, abs=0.01)
    assert share(ply=20, soft_ply=20) == 1
    loss, draw, win = _data.wdl_model(150, 40)
    assert loss + draw + win == pytest.approx(1)
    assert loss < 0.1 < draw
    for result, expected in ((-1, loss), (0, draw), (1, win)):
        assert share(ply=40, score=150, result=result, wdl=True) == pytest.approx(expected, abs=0.01)
    assert share(random_skip=1, seed=1) != share(random_skip=1, seed=2)


def test_piece_counts_are_evened_out() -> None:
    rng = np.random.default_rng(0)
    fens = {
        n: f"4k3/{'/'.join(_rank(min(8, max(0, n - 2 - 8 * i))) for i in range(4))}/8/8/4K3 w - - 0 1"
        for n in (8, 16, 24, 32)
    }
    counts = rng.choice([8, 16, 24, 32], p=[0.1, 0.1, 0.2, 0.6], size=60_000)
    by_count = {n: records_from_fens([fen])[0] for n, fen in fens.items()}
    kept, _ = Filters(piece_counts=True).apply(np.array([by_count[n] for n in counts]))
    pieces = np.unpackbits(kept[:, :8], axis=1).sum(1)
    tail = pieces[len(pieces) // 2 :]
    density = {n: float((tail == n).mean()) for n in (8, 16, 24, 32)}
    assert density[16] == pytest.approx(density[24], rel=0.25)
    assert density[32] < 2 * density[16]  # from six times as many


def _acceptance(pieces: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
    """piece_counts by its definition (docs/data.md), a position after the other."""
    y, slope = np.array([0, 0.4, 1, 1, 0.75]), np.array([0.4, 0.5, 0.3, -0.125, -0.25])
    desired = np.empty(33)
    for n in range(33):
        i = min(n // 8, 3)
        t = n / 8 - i
        # The cubic with these values and slopes at both ends.
        c, d = 3 * (y[i + 1] - y[i]) - 2 * slope[i] - slope[i + 1], 2 * (y[i] - y[i + 1]) + slope[i] + slope[i + 1]
        desired[n] = y[i] + slope[i] * t + c * t**2 + d * t**3
    observed, alpha = np.zeros(33), 1.0
    accepted = np.empty(len(pieces))
    for i, n in enumerate(pieces, 1):
        observed[n] += 1
        ratio = observed.sum() * desired / (desired.sum() * np.where(observed > 0, observed, np.inf))
        if i in (100, 500, 1000, 2500, 5000) or i % 10_000 == 0:
            alpha = 0.025 / ratio[ratio > 0].min()  # the count that is most over-represented is kept at 2.5 %
        accepted[i - 1] = min(1.0, alpha * ratio[n])
        if i % 10_000 == 0:
            observed /= 2
    return accepted


@pytest.mark.parametrize("law", ["real", "drifting"])
def test_piece_counts_by_definition(project_root: Path, law: str) -> None:
    """Each decision is a coin with the definition's probability: of each piece count as many are kept as expected."""
    n = 45_000
    if law == "real":
        records = read_binpack(project_root / "samples" / "train.binpack")[:n].copy()
    else:  # 24 pieces first, then few, so that the histogram's memory and every refit count
        rng = np.random.default_rng(2)
        few = rng.random(n) < np.linspace(0.05, 0.9, n)
        fens = ["4k3/8/8/8/8/8/PPPPPPPP/4K3 w - - 0 1", "4k3/pppppppp/nnnnnn2/8/8/8/PPPPPPPP/4K3 w - - 0 1"]
        records = records_from_fens(fens)[np.where(few, 0, 1)]
    records[:, 30], records[:, 31] = np.arange(n) >> 8, np.arange(n) & 255  # each is known by its rule-50 counter
    pieces = piece_counts(records)
    expected = _acceptance(pieces)
    kept = np.zeros((20, n), bool)
    for seed in range(20):
        passed, counts = Filters(no_score=False, piece_counts=True).apply(records, seed)
        kept[seed, rule50s(passed)] = True
        assert counts.dropped.get("piece_counts", 0) == n - len(passed)
    assert kept[:, expected == 1].all()
    for count in np.unique(pieces):
        for part in np.array_split(np.flatnonzero(pieces == count), 5):
            p = expected[part]
            deviation = np.sqrt(20 * (p * (1 - p)).sum())
            assert abs(kept[:, part].sum() - 20 * p.sum()) < 5 * deviation + 1, (count, len(part))


REFERENCE = json.loads(
    (Path(__file__).resolve().parents[1] / "vectors" / "training" / "filters.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", REFERENCE["soft_ply"].values(), ids=REFERENCE["soft_ply"])
def test_soft_ply_of_the_reference(case: dict[str, Any]) -> None:
    flat = [number for point in case["knots"] for number in point]
    found = [_data.soft_ply_chance(flat, ply, case["full"]) for ply in range(len(case["keep"]))]
    assert found == pytest.approx(case["keep"], rel=1e-14)


def test_plies_are_kept_by_the_points_of_the_recipe() -> None:
    case = REFERENCE["soft_ply"]["recipe, first stage"]
    for ply in (0, 14, 27, 31, 32):
        found = share(ply=ply, soft_ply=case["full"], soft_ply_knots=case["knots"])
        assert found == pytest.approx(case["keep"][ply], abs=0.01)
    with pytest.raises(ValueError, match="expected ascending ones"):
        Filters(soft_ply_knots=[(8, 0.1), (6, 0.2)])
    with pytest.raises(UserError, match=r"piece_counts_curve: found \[0, 1\], expected .*at least 5"):
        validate(Filters, {"piece_counts_curve": [0, 1]}, lambda path: "recipe.yaml")


@pytest.mark.parametrize("name", REFERENCE["piece_curve"])
def test_piece_count_curve_of_the_reference(name: str) -> None:
    case = REFERENCE["piece_curve"][name]
    assert _data.piece_count_weights(case["y"]) == pytest.approx(case["weight"], rel=1e-13, abs=1e-15)


def test_a_curve_without_weight_is_uniform() -> None:
    assert _data.piece_count_weights([0, -1, -1, -1, -1]) == [1] * 33


@pytest.mark.parametrize("case", REFERENCE["piece_counts"], ids=lambda case: case["curve"])
def test_piece_counts_of_the_reference(case: dict[str, Any]) -> None:
    """Keep probabilities and α over 30,000 positions; the counts are drawn by the generator of Numerical Recipes."""
    pieces, state = [], 7
    for _ in range(30_000):
        state = (1_664_525 * state + 1_013_904_223) % 2**32
        pieces.append(2 + int(31 * (1 - (1 - state / 2**32) ** 2)))
    chances, alphas = _data.piece_count_chances(case["y"], pieces)
    for number, count, keep, alpha in case["rows"]:
        assert pieces[number - 1] == count
        assert chances[number - 1] == pytest.approx(keep, rel=1e-12), number
        assert alphas[number - 1] == pytest.approx(alpha, rel=1e-12), number
    assert np.mean(chances) == pytest.approx(case["mean_keep"], rel=1e-12)


@pytest.mark.parametrize("row", REFERENCE["wdl"]["rows"], ids=lambda row: f"{row[0]}-{row[1]}")
def test_wdl_model_of_the_reference(row: list[float]) -> None:
    score, ply, win, draw, loss = row
    assert _data.wdl_model(int(score), int(ply)) == pytest.approx((loss, draw, win), rel=1e-9)


def test_random_skip_of_the_reference() -> None:
    for skip, keep in REFERENCE["random_skip"]:
        assert share(random_skip=skip) == pytest.approx(keep, abs=0.01)


def test_piece_counts_keep_their_state_between_chunks(project_root: Path) -> None:
    """The kept positions do not depend on where a stream is cut, as the histogram continues; random draws do."""
    records = read_binpack(project_root / "samples" / "train.binpack")[:30_000]
    pieces = piece_counts(records).tolist()
    filters = Filters(no_score=False, piece_counts=True)
    chances, _ = _data.piece_count_chances([0, 0.4, 1, 1, 0.75], pieces)
    kept, carried = 0, list[float]()
    for first in range(0, 30_000, 3_000):
        passed, counts = filters.apply(records[first : first + 3_000], first, carried)
        assert counts.kept == len(passed)
        kept += len(passed)
    p = np.array(chances)
    assert abs(kept - p.sum()) < 5 * np.sqrt((p * (1 - p)).sum())
    afresh = sum(len(filters.apply(records[first : first + 3_000], first)[0]) for first in range(0, 30_000, 3_000))
    assert afresh != kept


@pytest.mark.parametrize("shards", [1, 2])
def test_piece_counts_resume_and_do_not_depend_on_threads(project_root: Path, shards: int) -> None:
    """Batches are equal for every number of threads, over several passes, and from every saved place on."""
    paths = [project_root / "samples" / "val.binpack"] * 5
    filters = Filters(piece_counts=True, piece_counts_curve=[-0.2, 0.45, 1, 0.95, 0.75])
    options: dict[str, Any] = {"shuffle_buffer": 4096, "filters": filters, "repeat": True, "shards": shards}

    def stream(threads: int, count: int, state: Any = None) -> tuple[list[bytes], list[Any]]:
        loader = RecordLoader(paths, 512, threads=threads, seed=3, **options)
        if state is not None:
            loader.load_state_dict(state)
        batches, states = [], []
        for batch in loader:
            batches.append(batch.numpy().tobytes())
            states.append(stored(loader.state_dict()))
            if len(batches) == count:
                break
        loader.close()
        return batches, states

    total = 140
    whole, states = stream(1, total)
    assert stream(4, total)[0] == whole
    assert states[-1]["places"][:, 0].max() >= 1
    for at in (0, 7, 8, 30, 63, 88, 119):
        assert stream(3, min(20, total - at - 1), states[at])[0] == whole[at + 1 : at + 21]


def test_a_place_of_an_old_piece_count_filter_is_refused(project_root: Path) -> None:
    path = project_root / "samples" / "train.binpack"
    loader = RecordLoader(path, 512, filters=Filters(piece_counts=True), shuffle_buffer=4096)
    next(iter(loader))
    state = stored(loader.state_dict())
    wrong: list[tuple[object, str]] = [
        (None, "damaged: found .*, expected an entry 'piece_counts'"),
        (torch.full((1, 36), -torch.inf).double(), "shard 0 has no counts of the filter piece_counts"),
        (torch.ones(1, 35).double(), "state of piece_counts: damaged: expected 36 numbers"),
        (-torch.ones(1, 36).double(), "damaged"),
        (torch.tensor([[1.0] * 35 + [1e300]]).double(), "damaged"),
        ("x", "damaged: piece_counts is 'x', expected a tensor"),
    ]
    for value, match in wrong:
        damaged = state | {"piece_counts": value}
        if value is None:
            del damaged["piece_counts"]
        with pytest.raises(UserError, match=match):
            loader.load_state_dict(damaged)
    # A state of a version without curves, with the filter off, can be restored.
    off = RecordLoader(path, 512, shuffle_buffer=4096)
    next(iter(off))
    old = stored(off.state_dict())
    for name in ("soft_ply_knots", "piece_counts_curve"):
        del old["order"]["filters"][name]
    off.load_state_dict(old)


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("val", (9_710_945, 1_822_733, 133, 83_415, 647_854)),
        pytest.param("small", (413_711_924, 30_516_164, -26, 1_978_014, 8_421_849), marks=pytest.mark.shared),
    ],
)
def test_fields(positions_file: Callable[[str], Path], name: str, sums: tuple[int, ...]) -> None:
    records = read_binpack(positions_file(name))
    assert tuple(field(records).sum() for field in (scores, plies, results, rule50s, piece_counts)) == sums
    some = records[::500]
    for fen, board, black in zip(fens_from_records(some), boards(some), black_to_move(some), strict=True):
        placement, side = fen.split()[:2]
        assert (side == "b") == black
        ranks = board.reshape(8, 8)[::-1]
        text = "/".join("".join(" PpNnBbRrQqKk"[code] for code in rank) for rank in ranks)
        for empty in range(8, 0, -1):
            text = text.replace(" " * empty, str(empty))
        assert text == placement
    pushed = boards(records_from_fens(["4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1", "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1"]))
    assert (pushed[0, 28], pushed[0, 27], pushed[1, 35], pushed[1, 36]) == (1, 2, 2, 1)


def _rank(pawns: int) -> str:
    return "N" * pawns + (str(8 - pawns) if pawns < 8 else "")


def test_filtered_streams_are_reproducible_and_counted(project_root: Path) -> None:
    path = project_root / "samples" / "train.binpack"
    filters = Filters(no_score=True, quiet=True, wdl=True, soft_ply=20, piece_counts=True)

    def batches(threads: int, seed: int = 0) -> list[bytes]:
        loader = RecordLoader(path, 4096, filters=filters, threads=threads, seed=seed)
        made = [batch.numpy().tobytes() for batch in loader]
        counts = loader.filter_counts()
        assert counts.read >= 300_093  # of the next epoch some may have been read ahead
        assert counts.kept + sum(counts.dropped.values()) == counts.read
        return made

    assert batches(1) == batches(4)
    assert batches(1) != batches(1, seed=1)


def test_user_filter(project_root: Path) -> None:
    path = project_root / "samples" / "train.binpack"

    def white_to_move(records: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        nibbles = np.concatenate([records[:, 8:24] & 15, records[:, 8:24] >> 4], axis=1)
        return ~(nibbles == 15).any(1)

    loader = RecordLoader(path, 1000, user_filter=white_to_move, drop_last=False, threads=3)
    assert sum(len(batch) for batch in loader) == 300_093 - 149_187
    assert set(loader.filter_counts().dropped) == {"user_filter"}

    def broken(records: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        raise ValueError("oh no")

    with pytest.raises(UserError, match=r"user filter: .*test_filters\.py:\d+: .*broken: ValueError: oh no"):
        list(RecordLoader(path, 1000, user_filter=broken))
    with pytest.raises(
        UserError,
        match=r"user filter: .*test_filters\.py: .*<lambda> returned ndarray of bool \[3\], expected bool \[\d+\]",
    ):
        list(RecordLoader(path, 1000, user_filter=lambda records: np.ones(3, bool)))


def test_nothing_passes(project_root: Path) -> None:
    with pytest.raises(UserError, match="only 0 positions pass the filters"):
        next(iter(RecordLoader(project_root / "samples" / "val.binpack", 16, filters=Filters(min_ply=500))))


def test_filter_files(project_root: Path, tmp_path: Path) -> None:
    sample = project_root / "samples" / "val.binpack"
    out = tmp_path / "o.binpack"
    result = CliRunner().invoke(app, ["data", "filter", str(sample), str(sample), str(out), "--quiet", "--no-score"])
    assert result.exit_code == 0, result.output
    assert "quiet: 15,518 dropped" in result.output
    kept, _ = Filters(quiet=True).apply(read_binpack(sample))
    assert read_binpack(out).tobytes() == 2 * kept.tobytes()
    for seed in ("1", "1", "2"):
        CliRunner().invoke(
            app, ["data", "filter", str(sample), f"{out}{seed}.bin", "--random-skip", "1", "--seed", seed]
        )
    one, two = (Path(f"{out}{seed}.bin").read_bytes() for seed in "12")
    assert one != two
    assert 0.45 < len(one) / 40 / 30_109 < 0.55
    result = CliRunner().invoke(app, ["data", "filter", str(sample), str(out)])
    assert "found no filter, expected at least one" in str(result.exception)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="max_score\n  Input should be greater than or equal to 0"):
        Filters(max_score=-1)


def test_everything_about_a_compiled_filter_comes_from_its_row(project_root: Path) -> None:
    """Fields of a recipe, options of the command line, saved states and the page of docs name what the table names."""
    names = [row.name for row in COMPILED]
    assert list(Filters().as_dict()) == [*names, *(row.name for row in CURVES)]
    assert {name: Filters().as_dict()[name] for name in names} == {row.name: row.default for row in COMPILED}
    assert {name: Filters.none().as_dict()[name] for name in names} == {row.name: row.off for row in COMPILED}
    rows = {key: (kind, default, doc) for key, kind, default, doc in describe(Filters) if not key.startswith("extra")}
    help_text = CliRunner().invoke(app, ["data", "filter", "--help"], env={"COLUMNS": "400"}).output
    page = (project_root / "docs" / "data.md").read_text(encoding="utf-8")
    for curve in CURVES:
        assert rows[curve.name][2] == curve.doc
        assert f"| `{curve.name}` |" in page
    for row in COMPILED:
        kind, default, doc = rows[row.name]
        assert doc == row.doc
        assert kind.split()[0] == row.type.__name__
        assert json.loads(default) == row.default
        assert f"--{row.name.replace('_', '-')}" in help_text
        assert f"| `{row.name}` |" in page
        for wrong in (row.least - 1, row.most + 1) if row.type is not bool else ():
            with pytest.raises(UserError, match=row.name):
                validate(Filters, {row.name: row.type(wrong)}, lambda path: "recipe.yaml")
            with pytest.raises(UserError, match=f"filter {row.name} is "):
                _data.FilterOptions(**{row.name: wrong})
        with pytest.raises(TypeError, match=f"FilterOptions.{row.name} is 'x', expected float"):
            _data.FilterOptions(**{row.name: "x"})
    with pytest.raises(TypeError, match=r"FilterOptions.nope: there is no such field"):
        _data.FilterOptions(nope=1)
    off = _data.FilterOptions()
    assert {row.name: getattr(off, row.name) for row in COMPILED} == {row.name: row.off for row in COMPILED}
