"""The output of `perspective_plan` on CUDA for rows whose features come in buckets: every list, entry by entry."""

import ctypes
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnue_trainer.base._library import as_text
from nnue_trainer.ops.perspectives import PerspectivePlan, number_of, perspective_plan

DENSE = 640  # unbucketed features in a product at the most
MOST_OF_GROUP = {"nnue": 3072, "nnue_emulated": 512}  # features, as tests/cuda_emulator/translate.py has the limit
# Bit p of a word stands for number INDEX_OF_BIT[p] of 32.
INDEX_OF_BIT = np.array([(p >> 4 & 1) | (p >> 2 & 3) << 1 | (p >> 1 & 1) << 4 | (p & 1) << 3 for p in range(32)])

DTYPES = {
    **dict.fromkeys(["feature_bits", "chunk_rows", "dense_bits", "group_bits"], np.uint32),
    **dict.fromkeys(["left_out"], np.uint64),
    **dict.fromkeys(["listed"], np.uint16),
    **dict.fromkeys(["sampled"], np.uint8),
}


def open_pieces(memory: NDArray[np.uint8], library: str, sizes: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """The pieces of a plan, at the offsets that the library gives."""
    layout = json.loads(as_text(getattr(torch.ops, library)._perspective_transformer_layout(*sizes)))["plan"]
    assert len(memory) == layout["bytes"]
    return {
        name: memory[begin : begin + size].copy().view(DTYPES.get(name, np.int32))
        for name, (begin, size) in layout["pieces"].items()
    }


def unpack(words: NDArray[Any]) -> NDArray[np.bool_]:
    """[..., n] words to [..., 32 n] flags."""
    flags = np.zeros((*words.shape, 32), dtype=bool)
    for p, index in enumerate(INDEX_OF_BIT):
        flags[..., index] = words >> np.uint32(p) & np.uint32(1)
    return flags.reshape(*words.shape[:-1], 32 * words.shape[-1])


def check_order(
    found: dict[str, NDArray[Any]], rows_at: NDArray[Any], target: NDArray[Any], length_of_row: NDArray[Any]
) -> None:
    """How the forward reads the rows of a tile. `rows_at`: the row of a slot, −1 if there is none."""
    slots = len(rows_at)
    length = np.where(rows_at >= 0, length_of_row[rows_at], -1)
    by_length = np.argsort(-length.reshape(-1, 64), axis=1, kind="stable") + 64 * np.arange(slots // 64)[:, None]
    ordered = found["order"].reshape(-1, 4)[:slots]
    there = ordered[:, 1] >= 0
    np.testing.assert_array_equal(there, length[by_length.ravel()] >= 0)
    rows_at, by_slot = rows_at[by_length.ravel()][there], by_length.ravel()[there]
    expected = np.stack([by_slot, target[by_slot], rows_at, length[by_slot]], axis=1)
    np.testing.assert_array_equal(ordered[there], expected)


def check_group_features(
    library: str, found: dict[str, NDArray[Any]], lists: list[NDArray[Any]], rows_at: NDArray[Any], max_active: int,
    tiles: int,
) -> None:  # fmt: skip
    """Each feature of a group of `tiles` tiles once, and which of them each row has. `lists`: the features of each row;
    `rows_at` as in `check_order`."""
    rows = 64 * tiles
    most = min(rows * max_active, MOST_OF_GROUP[library], *([2 * 768] if tiles == 2 else []))
    groups = len(found["group_chunks"])
    every = found["group_features"].reshape(groups, most)
    bits = found["group_bits"].reshape(groups, most // 64, rows, 2)
    order = found["order"].reshape(-1, 64, 4)
    left_out = found["left_out"].reshape(-1, tiles)
    for group in range(-(-len(rows_at) // rows)):
        here = rows_at[rows * group : rows * (group + 1)]
        features = np.unique(np.concatenate([np.empty(0, np.int32), *(lists[row] for row in here[here >= 0])]))
        if len(features) > most:  # all rows are left out
            assert found["group_chunks"][group] == 0
            assert (left_out[group] == 2**64 - 1).all()
            continue
        chunks = -(-len(features) // 64)
        assert found["group_chunks"][group] == chunks
        np.testing.assert_array_equal(every[group, : len(features)], features)
        np.testing.assert_array_equal(every[group, len(features) : 64 * chunks], features[0] if chunks else 0)
        has = unpack(bits[group, :chunks]).transpose(1, 0, 2).reshape(rows, 64 * chunks)
        for tile in range(len(here) // 64):
            expected_left_out = 0
            for number, (slot, _, _, _) in enumerate(order[tiles * group + tile]):
                row = here[slot % rows]
                of_row = lists[row] if row >= 0 else np.empty(0, np.int32)
                twice = len(set(of_row)) < len(of_row)
                expected_left_out |= int(twice) << number
                expected = np.zeros(64 * chunks, dtype=bool)
                if not twice:
                    expected[np.searchsorted(features, of_row)] = True
                np.testing.assert_array_equal(has[slot % rows], expected)
            assert left_out[group, tile] == expected_left_out


def check_lists(
    library: str, memory: NDArray[np.uint8], white: Tensor, black: Tensor, black_to_move: Tensor, num_features: int,
    num_bucketed: int, bucket_size: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    positions, max_active = white.shape
    rows = torch.cat([white, black]).numpy()
    buckets = max(1, -(-num_bucketed // bucket_size))
    sizes = (num_features, bucket_size, num_bucketed)
    found = open_pieces(memory, library, (positions, max_active, *sizes, dtype.itemsize))
    assert ("group_features" in found) == (dtype.itemsize == 2)
    alive = np.cumsum(rows < 0, axis=1) == 0
    inside = alive & (rows < num_bucketed)
    features = [row[has] for row, has in zip(rows, inside, strict=True)]
    bucket_of = np.array([f[0] // bucket_size if len(f) else 0 for f in features])
    regular = np.array(
        [
            len(set(f)) == len(f) and bool((f // bucket_size == b).all())
            for f, b in zip(features, bucket_of, strict=True)
        ]
    )

    tiles_of = -(-np.bincount(bucket_of, minlength=buckets) // 64)
    tile_begin = np.concatenate([[0], np.cumsum(tiles_of)])
    np.testing.assert_array_equal(found["tile_begin"], tile_begin)
    slot = np.zeros(2 * positions, dtype=np.int64)
    for bucket in range(buckets):
        of_bucket = np.flatnonzero(bucket_of == bucket)
        slot[of_bucket] = tile_begin[bucket] * 64 + np.arange(len(of_bucket))
    np.testing.assert_array_equal(found["row_slot"], np.where(regular, slot, ~slot))
    slots = tile_begin[-1] * 64
    target = np.full(slots, -1)
    is_black = np.arange(2 * positions) >= positions
    target[slot] = 2 * (np.arange(2 * positions) % positions) + (is_black != np.tile(black_to_move.numpy() != 0, 2))
    np.testing.assert_array_equal(found["slot_target"][:slots], target)
    assert found["counts"][769 * buckets] == (~regular).sum()
    plan = PerspectivePlan(torch.from_numpy(memory), white, black, black_to_move, *sizes, dtype, "hopper")
    assert plan.irregular_rows(library) == (~regular).sum()
    assert plan._replace(kernels="portable").irregular_rows(library) == 0

    ranked = found["ranked"].reshape(buckets, 768)
    features_at = np.where(ranked < 0, ~ranked, ranked)
    np.testing.assert_array_equal(np.sort(features_at, axis=1), np.tile(np.arange(768), (buckets, 1)))
    counts = np.zeros((buckets, 768), dtype=np.int64)
    for f, bucket in zip(features, bucket_of, strict=True):
        f = f[f // bucket_size == bucket]
        np.add.at(counts[bucket], f - bucket * bucket_size, 1)
    by_rank = np.take_along_axis(counts, features_at, 1)
    np.testing.assert_array_equal(ranked >= 0, by_rank > 0)
    np.testing.assert_array_equal(found["used"], (counts > 0).sum(1))
    # Half octaves: nothing has one and a half times as many entries as something before it.
    assert (by_rank[:, 1:] <= 1.5 * np.minimum.accumulate(by_rank, 1)[:, :-1]).all()
    assert (found["dense"] % 64 == 0).all()

    rank_of = np.argsort(features_at, axis=1)
    has = np.zeros((slots, 768), dtype=bool)
    for f, bucket, of_row, is_regular in zip(features, bucket_of, slot, regular, strict=True):
        if is_regular:
            has[of_row, rank_of[bucket, f - bucket * bucket_size]] = True
    bits = found["feature_bits"].reshape(-1, 768, 2)[: slots // 64]
    np.testing.assert_array_equal(unpack(bits).transpose(0, 2, 1).reshape(slots, 768), has)

    rows_at = np.full(slots, -1)
    rows_at[slot] = np.arange(2 * positions)
    check_order(found, rows_at, target, alive.sum(1))
    if dtype.itemsize == 2:
        lists = [row[has & (row < num_features)] for row, has in zip(rows, alive, strict=True)]
        tiles = 1 if num_features > num_bucketed else 2
        check_group_features(library, found, lists, rows_at, max_active, tiles)


def make_batch(
    positions: int,
    max_active: int,
    buckets: int,
    bucket_size: int,
    missing: int = 0,
    unbucketed: int = 0,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Rows of every length, a few features much more frequent than others, one in nine irregular."""
    g = np.random.default_rng(seed)
    num_bucketed = buckets * bucket_size - missing
    rows = np.full((2 * positions, max_active), -1, dtype=np.int32)
    for row in rows:
        bucket = int(g.random() ** 2 * buckets)
        size = min(bucket_size, num_bucketed - bucket * bucket_size)
        picks = np.unique((g.random(g.integers(0, max_active + 1)) ** 3 * size).astype(np.int32)) + bucket * bucket_size
        g.shuffle(picks)
        if len(picks) > 1 and g.random() < 1 / 9:
            picks[-1] = g.choice([picks[0], g.integers(0, num_bucketed)])
        if unbucketed:
            picks = np.where(g.random(len(picks)) < 0.4, num_bucketed + g.permutation(unbucketed)[: len(picks)], picks)
        row[: len(picks)] = picks
        if len(picks) < max_active:
            row[len(picks) + 1 :] = g.integers(0, 10**6, max_active - len(picks) - 1)
    both = torch.from_numpy(rows).chunk(2)
    return both[0].clone(), both[1].clone(), torch.from_numpy(g.integers(0, 2, positions, dtype=np.uint8)), num_bucketed


CASES = {
    "one position": (1, 1, 4, 100),
    "not a multiple of 64": (333, 32, 32, 768),
    "one bucket": (700, 20, 1, 768),
    "255 buckets": (900, 12, 255, 768, 3),
    "buckets of one feature": (200, 8, 60, 1),
    "more features than a group has room for": (150, 700, 3, 768),
    "as many entries as features": (40, 1000, 2, 768),
    "entries that are not aligned": (300, 27, 3, 96, 7),
    "several chunks": (1500, 12, 5, 300),
    "several tiles per thread block": (17500, 5, 5, 96),
    "no entries": (64, 0, 2, 96),
    "unbucketed features": (400, 90, 5, 96, 0, 3000),
    "unbucketed features behind a bucket that is not full": (400, 40, 3, 96, 40, 300),
}


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_lists(cuda: torch.device, case: tuple[int, ...], dtype: torch.dtype) -> None:
    white, black, black_to_move, num_bucketed = make_batch(*case)
    unbucketed = case[5] if len(case) > 5 else 0
    plan = perspective_plan(
        white.to(cuda), black.to(cuda), black_to_move.to(cuda), num_bucketed + unbucketed, case[3], num_bucketed, dtype
    )
    if plan.kernels != "hopper":
        pytest.skip(f"{torch.cuda.get_device_name()} has other kernels, which need no buckets")
    memory = plan.data
    check_lists(
        "nnue", memory.cpu().numpy(), white, black, black_to_move, num_bucketed + unbucketed, num_bucketed, case[3],
        dtype,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_lists_of_emulated_kernels(emulator: ctypes.CDLL, case: tuple[int, ...], dtype: torch.dtype) -> None:
    white, black, black_to_move, num_bucketed = make_batch(*case)
    unbucketed = case[5] if len(case) > 5 else 0
    emulator.emulator_configure(4, 1)
    memory = torch.ops.nnue_emulated._perspective_plan(
        white, black, black_to_move, num_bucketed + unbucketed, case[3], num_bucketed, dtype.itemsize
    )
    check_lists(
        "nnue_emulated", memory.numpy(), white, black, black_to_move, num_bucketed + unbucketed, num_bucketed, case[3],
        dtype,
    )  # fmt: skip


def bin_of_count(counts: NDArray[Any]) -> NDArray[Any]:
    """Five significant bits."""
    e = np.frexp(np.maximum(counts, 16))[1] - 1
    return np.where(counts < 16, counts, 16 * (e - 3) + (counts >> np.maximum(e - 4, 0) & 15))


def check_unbucketed_lists(
    plan: NDArray[np.uint8], white: Tensor, black: Tensor, num_features: int,
    num_bucketed: int, bucket_size: int,
) -> None:  # fmt: skip
    positions, max_active = white.shape
    sizes = (positions, max_active, num_features, bucket_size, num_bucketed, 4)
    found = open_pieces(plan, "nnue_emulated", sizes)
    row_slot, tiles = found["row_slot"], found["tile_begin"][-1]
    rows, unbucketed = torch.cat([white, black]).numpy(), num_features - num_bucketed
    alive = (np.cumsum(rows < 0, axis=1) == 0) & (rows >= num_bucketed) & (rows < num_features)
    of_row, features = np.nonzero(alive)[0], rows[alive] - num_bucketed
    slot = np.where(row_slot < 0, ~row_slot, row_slot)
    counts = np.bincount(features, minlength=unbucketed)
    dense, first_empty = found["summary"]
    lists = found["by_rank"].reshape(-1, 3)
    np.testing.assert_array_equal(np.sort(lists[:, 0]), np.arange(unbucketed))
    np.testing.assert_array_equal(found["rank"][lists[:, 0]], np.arange(unbucketed))

    # Dense features are features at regular intervals, which are the most frequent.
    step = max(1, len(rows) // 2048)
    sampled = np.bincount(rows[::step][alive[::step]] - num_bucketed, minlength=unbucketed)
    bins = bin_of_count(sampled)
    least = bin_of_count(np.array([max(1, -(-len(rows) // step) // 256)]))[0]
    while (bins >= least).sum() > DENSE:
        least += 1
    assert dense == (bins >= least).sum()
    np.testing.assert_array_equal(bins[lists[:dense, 0]], np.sort(bins)[::-1][:dense])

    by_rank = counts[lists[dense:, 0]]
    np.testing.assert_array_equal(lists[dense:, 2], by_rank)
    assert first_empty == dense + (by_rank > 0).sum()
    assert (by_rank[1:] <= 17 / 16 * np.minimum.accumulate(by_rank)[:-1]).all()
    slots_of = np.split(np.sort(features.astype(np.int64) << 32 | slot[of_row]), np.cumsum(counts)[:-1])
    taken = np.zeros(len(found["slots"]), dtype=int)
    for feature, begin, count in lists[dense:first_empty]:
        np.testing.assert_array_equal(found["slots"][begin : begin + count], slots_of[feature] & 0xFFFFFFFF)
        taken[begin : begin + count] += 1
    assert taken.max(initial=0) <= 1

    has = np.zeros((tiles * 64, DENSE), dtype=int)
    rank = found["rank"][features]
    np.add.at(has, (slot[of_row[rank < dense]], rank[rank < dense]), 1)
    left_out = (has[slot] > 1).any(axis=1) & (row_slot >= 0)
    begin = 4 * (unbucketed + 512 * 19 + 1)
    assert found["sampled"][begin : begin + 4].view(np.int32)[0] == left_out.sum()
    np.testing.assert_array_equal(found["sampled"][begin + 4 :] != 0, left_out)
    has[slot[left_out | (row_slot < 0)]] = 0
    bits = found["dense_bits"].reshape(-1, 768, 2)[:tiles, :DENSE]
    np.testing.assert_array_equal(unpack(bits).transpose(0, 2, 1).reshape(-1, DENSE), has != 0)


UNBUCKETED_CASES = {
    "a few features": (1, 8, 2, 96, 0, 20),
    "many features": (400, 90, 5, 96, 0, 3000),
    "a sample of the rows": (5000, 40, 3, 96, 40, 2000),
    "rows of more than 128": (150, 300, 2, 96, 0, 1000),
    "more features than a thread block takes": (60, 30, 2, 96, 0, 70000),
    "all of them as frequent": (200, 700, 1, 8, 0, 680),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNBUCKETED_CASES.values(), ids=UNBUCKETED_CASES.keys())
def test_unbucketed_lists_of_emulated_kernels(emulator: ctypes.CDLL, case: tuple[int, ...]) -> None:
    white, black, black_to_move, num_bucketed = make_batch(*case)
    features = num_bucketed + case[5]
    g = np.random.default_rng(1)
    for rows in white.numpy(), black.numpy():  # a few features are much more frequent than others, some twice in a row
        is_unbucketed = (rows >= num_bucketed) & (rows < features)
        rows[is_unbucketed] = num_bucketed + (g.random(is_unbucketed.sum()) ** 4 * case[5]).astype(np.int32)
        if case[5] == 680:
            rows[:, :680] = num_bucketed + np.arange(680)
    constants = case[3], num_bucketed, 4
    emulator.emulator_configure(4, 1)
    plan = torch.ops.nnue_emulated._perspective_plan(white, black, black_to_move, features, *constants)
    check_unbucketed_lists(plan.numpy(), white, black, features, num_bucketed, case[3])


def test_a_plan_is_for_weights_of_one_size(emulator: ctypes.CDLL) -> None:
    white, black, black_to_move, features = make_batch(100, 20, 3, 96)
    op, layout = torch.ops.nnue_emulated, [96, features, 2]
    emulator.emulator_configure(4, 1)
    plan = op._perspective_plan(white, black, black_to_move, features, *layout)
    weight, bias, batch = torch.zeros(features, 32), torch.zeros(32), [white, black, plan]

    def forward(weight: Tensor, layout: list[int]) -> None:
        transformer = [features, 32, 0, *layout, number_of("crelu"), 0]
        op._perspective_transformer_forward(batch, weight, bias, None, transformer, [1.0, 1.0], torch.float32, False)

    forward(weight.bfloat16(), layout)
    with pytest.raises(RuntimeError, match="layout: found weight_bytes 2, expected 4, as weight has"):
        forward(weight, layout)
    with pytest.raises(RuntimeError, match="plan: found shape"):
        forward(weight, [96, features, 4])
    with pytest.raises(RuntimeError, match="weight_bytes: found 3, expected 2 or 4"):
        op._perspective_plan(white, black, black_to_move, features, 96, features, 3)
