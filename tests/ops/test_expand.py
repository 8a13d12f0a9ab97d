"""Packed positions to index rows: the operator against the data pipeline's expander, bit for bit, and as a citizen."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from nnue_trainer import _data, ops
from nnue_trainer.base import _library
from nnue_trainer.data import Batch, RecordLoader, expand, feature_set, records_from_fens
from nnue_trainer.data.features import BASIC_FEATURE_SETS
from nnue_trainer.errors import UserError
from nnue_trainer.ops.expand import Expander

SETS = [
    *BASIC_FEATURE_SETS,
    "HalfKAv2_hm+Full_Threats_v10",
    "HalfKAv2_hm+Full_Threats_v16+PP_3Wide",
    "PP_3Wide+HalfKP+Full_Threats_v14",
    "PP_3Wide+Chess768",
    "PieceSquare(planes=10,order=interleaved)",
    "PieceSquare(mirror=e-h,kings=0.0.1.1.0.0.1.1.2.2.2.2.2.2.2.2.3.3.3.3.3.3.3.3.3.3.3.3.3.3.3.3)",
    "Full_Threats_v16+PieceSquare(planes=11,mirror=a-d)+PieceSquare(planes=10)",
    "PieceSquare(planes=10,states=oQ:1.eQ:1)",
    "K32Q2+Full_Threats_v2+PieceSquare(states=oReR:3)",
]
FULL = "HalfKAv2_hm+Full_Threats_v16+PP_3Wide"  # the input of SFNNv16
SPECIAL = [
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "4k3/8/8/8/8/8/8/4K3 w - - 0 1",  # two pieces
    "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9",  # castling rooks and a king to move: nibbles 13, 14, 15
    "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 3",  # a white pawn just double-pushed: nibble 12
    "rnbqkbnr/pppp1ppp/8/3Pp3/8/8/PPP1PPPP/RNBQKBNR w KQkq e6 0 3",  # a black one
    "k7/8/8/8/8/8/8/7K w - - 0 1",
    "7K/8/8/8/8/8/8/k7 b - - 0 1",
    "K7/qqqqqqqq/qqqqqqqq/8/8/QQQQQQQQ/QQQQQQ2/7k w - - 0 1",
    "8/3R1B2/2QNk1q1/1qNqnqN1/1NRNqnQN/1qnQnQ1r/2rKrNq1/3qN3 w - - 0 1",  # 151 threats in v10
    "k7/PPP5/ppp5/PPP5/ppp5/PP6/pp6/K7 b - - 0 1",  # 96 pairs of pawns
]


def random_fens(count: int, seed: int) -> list[str]:
    """Kings anywhere, up to 30 other pieces, either side to move."""
    rng = random.Random(seed)
    fens = []
    for _ in range(count):
        squares = rng.sample(range(64), rng.randint(2, 32))
        board = dict.fromkeys(squares, "")
        for square, piece in zip(squares, "Kk", strict=False):
            board[square] = piece
        for square in squares[2:]:
            crowded = sum(piece in "Pp" for piece in board.values() if piece) == 16
            board[square] = rng.choice("NBRQnbrq" if square // 8 in (0, 7) or crowded else "PPPPNBRQppppnbrq")
        ranks = []
        for rank in range(7, -1, -1):
            row = "".join(board.get(8 * rank + file, "") or "." for file in range(8))
            for empty in range(8, 0, -1):
                row = row.replace("." * empty, str(empty))
            ranks.append(row)
        fens.append(f"{'/'.join(ranks)} {rng.choice('wb')} - - {rng.randint(0, 90)} {rng.randint(1, 200)}")
    return fens


@pytest.fixture(scope="module")
def records() -> torch.Tensor:
    """1,003 positions, with scores and results that use all their bits."""
    records = torch.from_numpy(records_from_fens(SPECIAL + random_fens(1003 - len(SPECIAL), 1)))
    g = torch.Generator().manual_seed(1)
    records[:, 26:28] = torch.randint(0, 256, (len(records), 2), dtype=torch.uint8, generator=g)
    result = torch.randint(0, 3, (len(records),), dtype=torch.uint8, generator=g)
    records[:, 28] = (records[:, 28] & 0x3F) | result << 6
    return records


def assert_equals_pipeline(expanded: ops.Expanded | Batch, records: torch.Tensor, name: str) -> None:
    expected = expand(records.cpu().numpy(), name)
    for field in ops.Expanded._fields:
        got, want = getattr(expanded, field), getattr(expected, field)
        assert got.dtype == want.dtype, field
        assert got.device == (records.device if isinstance(expanded, ops.Expanded) else got.device)
        assert torch.equal(got.cpu(), want), field
    for rows in (expanded.white, expanded.black):
        assert torch.equal((rows >= 0).sum(1), expanded.counts.long())


@pytest.mark.parametrize("name", SETS)
def test_equals_the_pipeline(device: torch.device, records: torch.Tensor, name: str) -> None:
    assert_equals_pipeline(ops.expand_features(records.to(device), name), records.to(device), name)


@pytest.mark.parametrize("name", SETS)
def test_equals_the_pipeline_on_real_positions(device: torch.device, project_root: Path, name: str) -> None:
    first = next(iter(RecordLoader(project_root / "samples" / "val.binpack", 20_000, shuffle=False))).clone()
    assert_equals_pipeline(ops.expand_features(first.to(device), name), first.to(device), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HalfKAv2_hm", "HalfKP", FULL, "HalfKAv2_hm+Full_Threats_v14"])
def test_equals_the_pipeline_on_shuffled_positions(device: torch.device, project_root: Path, name: str) -> None:
    stream = iter(RecordLoader(project_root / "samples" / "train.binpack", 50_000, seed=3))
    for _ in range(2):
        batch = next(stream)
        assert_equals_pipeline(ops.expand_features(batch.to(device), name), batch.to(device), name)


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_any_number_of_rows(device: torch.device, records: torch.Tensor, rows: int) -> None:
    some = records[:rows].to(device)
    for name in ("HalfKAv2_hm", "HalfKP", FULL):
        expanded = ops.expand_features(some, name)
        assert expanded.white.shape == (rows, feature_set(name).max_active)
        assert_equals_pipeline(expanded, some, name)


def test_more_rows_than_one_grid_stride(device: torch.device, records: torch.Tensor) -> None:
    many = records.to(device).repeat(100, 1)[: 100 * 1003 - 17]
    expanded = ops.expand_features(many, "HalfKAv2_hm")
    once = ops.expand_features(records.to(device), "HalfKAv2_hm")
    for field in ops.Expanded._fields:
        all_of_it, one = getattr(expanded, field), getattr(once, field)
        for start in range(0, len(many), 1003):
            part = all_of_it[start : start + 1003]
            assert torch.equal(part, one[: len(part)])


def test_strides_and_offsets(device: torch.device, records: torch.Tensor) -> None:
    here = records.to(device)
    assert_equals_pipeline(ops.expand_features(here[::3], "HalfKAv2_hm"), here[::3], "HalfKAv2_hm")
    by_columns = here.t().contiguous().t()
    assert not by_columns.is_contiguous()
    assert_equals_pipeline(ops.expand_features(by_columns, "HalfKAv2_hm"), here, "HalfKAv2_hm")
    for start in (1, 2, 4, 8, 16):  # any address
        memory = torch.empty(here.numel() + start, dtype=torch.uint8, device=device)
        shifted = memory[start:].view(-1, 32)
        shifted.copy_(here)
        assert_equals_pipeline(ops.expand_features(shifted, "HalfKAv2_hm"), here, "HalfKAv2_hm")


def test_into_given_memory(device: torch.device, records: torch.Tensor) -> None:
    here = records.to(device)
    for name in SETS:
        batch = Batch.allocate(len(here), feature_set(name).max_active, device=device)
        assert batch.storage is not None
        batch.storage.fill_(0x5A)
        out = ops.Expanded(*(getattr(batch, field) for field in ops.Expanded._fields))
        ops.expand_features_into(here, name, out)
        assert_equals_pipeline(batch, here, name)


def test_the_table_of_fields_is_the_one_order() -> None:
    table = [name for name, *_ in _data.batch_layout(1, 32)[0]]
    returned = [r.name for r in torch.ops.nnue.expand_features.default._schema.returns]
    assert table == returned == list(ops.Expanded._fields) == list(Batch.allocate(1, 32).fields())


@pytest.mark.slow
def test_a_handle_is_the_same_in_every_process() -> None:
    """Exported graphs keep handles; those of built-in sets are known to any process with the library."""
    assert ops.feature_set_handle("HalfKAv2_hm") == 1756244098170984101
    program = """
import sys, torch
torch.ops.load_library(sys.argv[1])
print(torch.ops.nnue.expand_features(torch.zeros(0, 32, dtype=torch.uint8), 1756244098170984101)[0].shape)
"""
    command = [sys.executable, "-c", program, str(_library.CPU_LIBRARY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch.Size([0, 32])"


def test_an_expander_takes_turns_in_its_memory(device: torch.device, records: torch.Tensor) -> None:
    expander = Expander("HalfKAv2_hm", device)
    parts = [records[:400], records[400:800], records[800:], records[100:500]]
    batches = []
    for part in parts:
        batches.append(expander(part))
        assert_equals_pipeline(batches[-1], part, "HalfKAv2_hm")
    assert_equals_pipeline(batches[2], parts[2], "HalfKAv2_hm")  # two are valid at a time
    assert len(batches[2]) == 203
    assert batches[1].is_legal  # of a set of this project
    assert not batches[2].is_legal  # a part of a buffer
    assert not batches[1].clone().is_legal
    assert batches[0].white.data_ptr() == batches[2].white.data_ptr()
    assert batches[1].white.data_ptr() == batches[3].white.data_ptr()
    assert batches[0].white.data_ptr() != batches[1].white.data_ptr()
    larger = expander(records)
    assert_equals_pipeline(larger, records, "HalfKAv2_hm")
    assert_equals_pipeline(batches[3], parts[3], "HalfKAv2_hm")


# ---- records that are not positions ---------------------------------------------------------------------------------


def broken(records: torch.Tensor, kind: str) -> torch.Tensor:
    """A copy whose row 77 is not a position."""
    records = records.clone()
    row = records[77]
    if kind == "not one king of each side":
        row.zero_()
    elif kind == "more than 32 pieces":
        row[:8] = 255
    elif kind == "piece nibbles beyond the last occupied square":
        row.copy_(torch.from_numpy(records_from_fens(["4k3/8/8/8/8/8/8/4K3 w - - 0 1"]))[0])
        row[23] = 0x10
    elif kind == "more than 16 pawns":
        row.copy_(torch.from_numpy(records_from_fens(["k7/PPP5/ppp5/PPP5/ppp5/PPn5/pp6/K7 w - - 0 1"]))[0])
        knight = 5  # on c3, behind a1, a2, b2, a3 and b3; it becomes a white pawn
        row[8 + knight // 2] &= 0x0F if knight % 2 else 0xF0
    else:
        row[28] |= 0xC0
    return records


KINDS = [
    "not one king of each side",
    "more than 32 pieces",
    "piece nibbles beyond the last occupied square",
    "a result that is none of loss, draw, win",
    "more than 16 pawns",
]


@pytest.mark.parametrize("name", ["HalfKAv2_hm", "HalfKP", FULL])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_position_is_an_error(device: torch.device, records: torch.Tensor, kind: str, name: str) -> None:
    bad = broken(records, kind).to(device)
    with pytest.raises(RuntimeError, match=f"nnue::expand_features: records: found {kind} in row 77, expected a pos"):
        ops.expand_features(bad, name)
    assert_equals_pipeline(ops.expand_features(records.to(device), name), records.to(device), name)


def test_the_first_bad_row_is_named_on_cpu(records: torch.Tensor) -> None:
    bad = records.repeat(20, 1)
    for row in (19_000, 6_000, 6_001):
        bad[row] = 0
    with pytest.raises(RuntimeError, match="in row 6000,"):
        ops.expand_features(bad, "Chess768")


def test_noise_is_an_error(device: torch.device) -> None:
    """Random bytes are never expanded, and never lead out of memory (run under compute-sanitizer as well)."""
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (20_000, 32), dtype=np.uint8))
    sparse = noise.clone()
    sparse[:, :8] &= noise[:, 8:16] & noise[:, 16:24]  # about 8 pieces
    for name in SETS:
        for rows in (noise, sparse):
            with pytest.raises(RuntimeError, match=r"records: found .* in row"):
                ops.expand_features(rows.to(device), name)


def no_positions(count: int) -> torch.Tensor:
    """Random bytes, without the few records among them that happen to have their kings and no piece too many."""
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2 * count, 32), dtype=np.uint8))
    refused = []
    for record in noise:
        try:
            ops.expand_features(record[None], "Chess768")
        except RuntimeError:
            refused.append(record)
    return torch.stack(refused[:count])


@pytest.mark.cuda
@pytest.mark.parametrize("name", SETS)
def test_cuda_unchecked_rows_are_empty(cuda: torch.device, records: torch.Tensor, name: str) -> None:
    """A kernel writes nothing beyond its rows, for any input."""
    noise = no_positions(500)
    mixed = records.clone()
    mixed[3:1003:2] = noise
    got = ops.expand_features(mixed.to(cuda), name, check_records=False)
    good = torch.cat([torch.arange(3), torch.arange(4, 1003, 2)])
    expected = expand(mixed[good].numpy(), name)
    assert torch.equal(got.white.cpu()[good], expected.white)
    assert torch.equal(got.black.cpu()[good], expected.black)
    assert (got.white[3:1003:2] == -1).all()
    assert (got.black[3:1003:2] == -1).all()
    assert (got.counts[3:1003:2] == 0).all()
    assert (got.piece_count >= 1).all()
    assert (got.piece_count <= 32).all()
    ops.raise_index_errors()


@pytest.mark.cuda
def test_cuda_async_check(cuda: torch.device, records: torch.Tensor) -> None:
    bad = broken(records, KINDS[0]).to(cuda)
    before = ops.set_index_check("async")
    try:
        ops.expand_features(bad, "HalfKAv2_hm")
        with pytest.raises(RuntimeError, match=r"not one king of each side in row 77, .*earlier"):
            ops.raise_index_errors()
        ops.set_index_check("off")
        ops.expand_features(bad, "HalfKAv2_hm")
        ops.raise_index_errors()
    finally:
        ops.set_index_check(before)


def test_wrong_arguments(device: torch.device, records: torch.Tensor) -> None:
    here = records.to(device)
    for wrong, message in (
        (here.int(), "records: found int32, expected uint8"),
        (here[:, :31], r"records: found shape \[1003, 31\], expected shape \[B, 32\]"),
        (here[0], r"records: found shape \[32\], expected shape \[B, 32\]"),
        (here[None], r"records: found shape \[1, 1003, 32\]"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.expand_features(wrong, "HalfKAv2_hm")
    with pytest.raises(RuntimeError, match="feature_set: unknown feature set 'HalfKX', expected one of Chess768, Half"):
        ops.expand_features(here, "HalfKX")
    with pytest.raises(RuntimeError, match=r"PieceSquare\(planes=9\)': planes is '9', expected one of 12, 11, 10"):
        ops.expand_features(here, "PieceSquare(planes=9)")
    out = ops.expand_features(here, "HalfKAv2_hm")
    cases = [
        (
            out._replace(white=out.white[:, :30]),
            r"white: found shape \[1003, 30\], expected shape \[B, K\] = \[1003, 32",
        ),
        (out._replace(black=out.black.long()), "black: found int64, expected int32"),
        (out._replace(score=out.score[:-1]), r"score: found shape \[1002\]"),
        (out._replace(result=out.result.repeat(2)[::2]), "result: found strides with gaps, expected a contiguous"),
    ]
    if device.type == "cuda":
        cases.append((out._replace(score=out.score.cpu()), "score: found a tensor on cpu, expected one on cuda:0"))
    for wrong_out, message in cases:
        with pytest.raises(RuntimeError, match=message):
            ops.expand_features_into(here, "HalfKAv2_hm", wrong_out)
    with pytest.raises(RuntimeError, match="fields: found 6 tensors, expected white, black, counts, black_to_move, sc"):
        torch.ops.nnue.expand_features_into(here, ops.feature_set_handle("HalfKAv2_hm"), list(out)[:6])
    with pytest.raises(RuntimeError, match="feature_set: found the unknown handle 12, expected one that nnue"):
        torch.ops.nnue.expand_features(here, 12)
    shared = out._replace(black=out.white)
    with pytest.raises(RuntimeError, match="black: found a tensor that shares memory with white, expected one with"):
        ops.expand_features_into(here, "HalfKAv2_hm", shared)


# ---- torch ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_opcheck(device: torch.device, records: torch.Tensor) -> None:
    here = records.to(device)
    for name in SETS:
        torch.library.opcheck(torch.ops.nnue.expand_features.default, (here, ops.feature_set_handle(name)))
    out = ops.expand_features(here, "HalfKAv2_hm")
    torch.library.opcheck(
        torch.ops.nnue.expand_features_into.default, (here, ops.feature_set_handle("HalfKAv2_hm"), list(out))
    )


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compile(device: torch.device, records: torch.Tensor, dynamic: bool) -> None:
    here = records.to(device)
    weight = torch.randn(feature_set("HalfKAv2_hm").num_features, 8, device=device)
    bias = torch.zeros(8, device=device)

    def both(records: torch.Tensor) -> torch.Tensor:
        e = ops.expand_features(records, "HalfKAv2_hm")
        white, black = (ops.feature_transformer_forward(rows, weight, bias) for rows in (e.white, e.black))
        return torch.where(e.black_to_move[:, None].bool(), black, white) * e.score[:, None]

    compiled = torch.compile(both, fullgraph=True, dynamic=dynamic)
    for rows in (here, here[:500]):
        torch.testing.assert_close(compiled(rows), both(rows))


def test_fake_tensors_check_arguments() -> None:
    with torch._subclasses.FakeTensorMode():
        records = torch.empty(7, 32, dtype=torch.uint8)
        assert ops.expand_features(records, "HalfKP").black.shape == (7, 30)
        with pytest.raises(RuntimeError, match=r"records: found torch\.int32, expected uint8"):
            ops.expand_features(records.int(), "HalfKP")
        with pytest.raises(UserError, match="unknown feature set 'HalfKX'"):
            ops.expand_features(records, "HalfKX")


@pytest.mark.cuda
def test_cuda_graph(cuda: torch.device, records: torch.Tensor) -> None:
    static = records.to(cuda)
    ops.expand_features(static, "HalfKAv2_hm")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        expanded = ops.expand_features(static, "HalfKAv2_hm")
    other = records.flip(0)
    static.copy_(other)
    graph.replay()
    assert_equals_pipeline(expanded, other.to(cuda), "HalfKAv2_hm")
    static[5].zero_()  # a replay with a bad record is reported afterwards
    graph.replay()
    with pytest.raises(RuntimeError, match="not one king of each side in row 5"):
        ops.raise_index_errors()
