"""Binpack files against golden values, and the errors a user sees.

The values of `small` and `selfplay-d5-val` are those of the specification, counted by another program; those of the
bundled sample were counted by this one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnue_trainer.data import expand, fens_from_records, records_from_fens
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.info import file_info
from nnue_trainer.errors import UserError

SMALL = {
    "positions": 434_921,
    "castlings": 6_230,
    "en_passants": 238,
    "promotions": 1_030,
    "null_moves": 0,
    "in_check": 28_578,
    "captures": 76_706,
    "score_none": 10_200,
    "score_zero": 109_138,
    "wins": 133_616,
    "draws": 167_663,
    "losses": 133_642,
    "max_ply": 415,
    "min_score": -26_624,
    "max_score": 32_002,
    "sum_score": 413_711_924,
    "sum_ply": 30_516_164,
    "sum_result": -26,
    "sum_pieces": 8_421_849,
    "sum_rule50": 1_978_014,
    "quiet": 324_094,
    "ep_squares": 523,
    "castling_rights": [88_599, 84_009, 97_873, 92_585],
    "sum_move": 3_807_619_113,
}
VAL = {
    "positions": 300_000,
    "castlings": 2_483,
    "en_passants": 210,
    "promotions": 1_705,
    "in_check": 28_749,
    "captures": 62_415,
    "score_zero": 1_063,
    "score_none": 0,
    "wins": 126_233,
    "draws": 46_971,
    "losses": 126_796,
    "max_ply": 399,
    "min_score": -9_909,
    "max_score": 9_956,
    "sum_score": 6_869_982,
    "sum_ply": 22_284_566,
    "sum_result": -563,
    "sum_pieces": 5_236_024,
    "sum_rule50": 1_418_433,
    "quiet": 213_674,
}
SAMPLE = {
    "positions": 30_109,
    "castlings": 354,
    "en_passants": 28,
    "promotions": 128,
    "null_moves": 0,
    "in_check": 2_023,
    "captures": 6_238,
    "score_none": 0,
    "score_zero": 253,
    "wins": 14_144,
    "draws": 1_954,
    "losses": 14_011,
    "max_ply": 304,
    "min_score": -31_998,
    "max_score": 31_999,
    "sum_score": 9_710_945,
    "sum_ply": 1_822_733,
    "sum_result": 133,
    "sum_pieces": 647_854,
    "sum_rule50": 83_415,
    "quiet": 22_350,
    "ep_squares": 92,
    "castling_rights": [7_402, 7_418, 7_082, 7_072],
    "sum_move": 260_139_356,
}


@pytest.mark.parametrize(
    ("name", "golden", "chunks", "chains", "single"),
    [
        ("val", SAMPLE, 1, 350, 0),
        pytest.param("small", SMALL, 1, 4_304, 39, marks=pytest.mark.shared),
        pytest.param("selfplay-d5-val", VAL, 2, 20_629, 6_198, marks=pytest.mark.shared),
    ],
)
def test_golden_values(
    positions_file: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    golden: dict[str, object],
    chunks: int,
    chains: int,
    single: int,
) -> None:
    path = positions_file(name)
    info = file_info(path)
    assert (info.chunks, info.chains, info.single_position_chains) == (chunks, chains, single)
    assert {key: getattr(info.statistics, key) for key in golden} == golden
    positions = info.statistics.positions
    for histogram in (
        "score_histogram",
        "ply_histogram",
        "piece_histogram",
        "white_king_squares",
        "black_king_squares",
    ):
        assert sum(getattr(info.statistics, histogram)) == positions
    assert sum(n * i for i, n in enumerate(info.statistics.piece_histogram)) == info.statistics.sum_pieces
    write_binpack(tmp_path / "again.binpack", read_binpack(path))
    assert (tmp_path / "again.binpack").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        (
            "val",
            "rnbqk1nr/pp1pppbp/2p5/6p1/Q1P5/8/PP1PPPPP/R1BNKBNR w KQkq - 4 5",
            "2n5/5k2/8/6P1/P2K4/1br5/8/8 b - - 2 65",
        ),
        pytest.param(
            "small",
            "2kr3q/1ppn4/p2p1b1n/P2P1pNB/7P/4RP2/1PP3P1/1KB4Q b - - 0 17",
            "8/8/8/8/p4Q2/8/1kp4K/8 w - - 24 55",  # its writer counted moves from ply 1
            marks=pytest.mark.shared,
        ),
    ],
)
def test_first_and_last_position(positions_file: Callable[[str], Path], name: str, first: str, last: str) -> None:
    assert fens_from_records(read_binpack(positions_file(name))[[0, -1]]) == [first, last]


SUMS = {
    "HalfKAv2_hm": (
        (8_421_849, 183_968_492_124, 4_104_292_148_683_330),
        (8_421_849, 184_577_328_755, 4_130_236_057_964_507),
    ),
    "HalfKP": ((7_552_007, 39_589_738_482, 371_223_651_598_310), (7_552_007, 26_701_111_552, 268_931_407_320_090)),
    "HalfKAv2": ((8_421_849, 51_020_854_747, 568_258_375_755_179), (8_421_849, 50_557_899_443, 558_368_509_706_363)),
    "HalfKAv2_hm_11": (
        (8_421_849, 168_786_558_428, 3_454_741_425_227_586),
        (8_421_849, 169_344_343_987, 3_476_545_223_379_291),
    ),
}
SAMPLE_SUMS = {
    "HalfKAv2_hm": ((647_854, 14_503_117_756, 329_043_898_456_686), (647_854, 14_496_551_079, 328_831_857_175_675)),
    "HalfKP": ((587_636, 2_691_032_423, 20_478_911_063_955), (587_636, 1_996_512_527, 15_653_375_017_655)),
    "HalfKAv2": ((647_854, 3_363_335_137, 29_725_933_809_681), (647_854, 3_319_714_001, 29_446_318_849_985)),
    "HalfKAv2_hm_11": ((647_854, 13_305_970_812, 276_961_803_086_190), (647_854, 13_299_962_535, 276_783_876_458_363)),
}


@pytest.mark.parametrize("name", list(SUMS))
@pytest.mark.parametrize(
    ("file", "sums"),
    [("val", SAMPLE_SUMS), pytest.param("small", SUMS, marks=pytest.mark.shared)],
    ids=["val", "small"],
)
def test_feature_sums(
    positions_file: Callable[[str], Path], file: str, sums: dict[str, tuple[tuple[int, ...], ...]], name: str
) -> None:
    batch = expand(read_binpack(positions_file(file)), name)
    for rows, expected in zip((batch.white, batch.black), sums[name], strict=True):
        active = rows[rows >= 0].long()
        assert (len(active), int(active.sum()), int((active * active).sum())) == expected


def test_shuffled_file_has_a_fixed_stride(positions_file: Callable[[str], Path], tmp_path: Path) -> None:
    records = read_binpack(positions_file("val"))[:1000]
    shuffled = np.random.default_rng(0).permutation(records)
    write_binpack(tmp_path / "s.binpack", shuffled, join_chains=False)
    assert (tmp_path / "s.binpack").stat().st_size == 8 + 34 * 1000
    np.testing.assert_array_equal(read_binpack(tmp_path / "s.binpack"), shuffled)


def test_errors_name_file_and_offset(tmp_path: Path) -> None:
    path = tmp_path / "x.binpack"
    with pytest.raises(UserError, match=r"x\.binpack: No such file"):
        read_binpack(path)
    path.write_bytes(b"not a binpack at all")
    with pytest.raises(UserError, match=r"x\.binpack: offset 0: chunk 0 does not start with 'BINP'"):
        read_binpack(path)
    start = records_from_fens(["rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"])
    write_binpack(path, start)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    with pytest.raises(UserError, match=r"offset 42: chunk 1 claims a payload of 34 bytes.*truncated"):
        read_binpack(path)
    path.write_bytes(whole[:16] + bytes(16) + whole[32:])
    with pytest.raises(UserError, match=r"x\.binpack: offset 8: chunk 0, chain at its byte 0: "):
        read_binpack(path)
    with pytest.raises(UserError, match=r"y\.binpack: cannot be written: (File exists|Not a directory)"):
        write_binpack(path / "y.binpack", start)


def test_an_empty_file_has_no_positions(tmp_path: Path) -> None:
    path = tmp_path / "empty.binpack"
    write_binpack(path, np.empty((0, 32), np.uint8))
    assert path.stat().st_size == 0
    assert read_binpack(path).shape == (0, 32)
    assert file_info(path).statistics.positions == 0
