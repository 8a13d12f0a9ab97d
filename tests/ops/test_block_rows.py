"""What `perspective_rows` makes on CUDA of rows whose features come in blocks: every list, entry by entry."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnue_trainer.perspectives import _block_rows_pieces, _carved, is_fused, perspective_rows

NEAR = 384
# Bit p of a word stands for number INDEX_OF_BIT[p] of 32.
INDEX_OF_BIT = np.array([(p >> 4 & 1) | (p >> 2 & 3) << 1 | (p >> 1 & 1) << 4 | (p & 1) << 3 for p in range(32)])

DTYPES = {
    **dict.fromkeys(["feature_bits", "near_bits", "chunk_rows"], np.uint32),
    **dict.fromkeys(["far", "near", "listed"], np.uint16),
}


def open_pieces(memory: NDArray[np.uint8], pieces: dict[str, int]) -> dict[str, NDArray[Any]]:
    found, begin = {}, 0
    for name, size in pieces.items():
        begin = (begin + 255) // 256 * 256
        found[name] = memory[begin : begin + size].copy().view(DTYPES.get(name, np.int32))
        begin += size
    return found


def unpack(words: NDArray[Any]) -> NDArray[np.bool_]:
    """[..., n] words to [..., 32 n] flags."""
    flags = np.zeros((*words.shape, 32), dtype=bool)
    for p, index in enumerate(INDEX_OF_BIT):
        flags[..., index] = words >> np.uint32(p) & np.uint32(1)
    return flags.reshape(*words.shape[:-1], -1)


def check_lists(
    memory: NDArray[np.uint8], white: Tensor, black: Tensor, black_to_move: Tensor, num_blocked: int, block_size: int,
    has_loose: bool, near_lists: bool,
) -> None:  # fmt: skip
    positions, max_active = white.shape
    rows = torch.cat([white, black]).numpy()
    blocks = max(1, -(-num_blocked // block_size))
    pieces = _block_rows_pieces(positions, max_active, block_size, num_blocked, has_loose, near_lists)
    found = open_pieces(memory, pieces)
    alive = np.cumsum(rows < 0, axis=1) == 0
    inside = alive & (rows < num_blocked)
    features = [row[has] for row, has in zip(rows, inside, strict=True)]
    block_of = np.array([f[0] // block_size if len(f) else 0 for f in features])
    regular = np.array(
        [len(set(f)) == len(f) and bool((f // block_size == b).all()) for f, b in zip(features, block_of, strict=True)]
    )

    tiles_of = -(-np.bincount(block_of, minlength=blocks) // 64)
    tile_begin = np.concatenate([[0], np.cumsum(tiles_of)])
    np.testing.assert_array_equal(found["tile_begin"], tile_begin)
    slot = np.zeros(2 * positions, dtype=np.int64)
    for block in range(blocks):
        of_block = np.flatnonzero(block_of == block)
        slot[of_block] = tile_begin[block] * 64 + np.arange(len(of_block))
    np.testing.assert_array_equal(found["row_slot"], np.where(regular, slot, ~slot))
    slots = tile_begin[-1] * 64
    target = np.full(slots, -1)
    is_black = np.arange(2 * positions) >= positions
    target[slot] = 2 * (np.arange(2 * positions) % positions) + (is_black != np.tile(black_to_move.numpy() != 0, 2))
    np.testing.assert_array_equal(found["slot_target"][:slots], target)
    assert found["counts"][771 * blocks] == (~regular).sum()

    ranked = found["ranked"].reshape(blocks, 768)
    features_at = np.where(ranked < 0, ~ranked, ranked)
    np.testing.assert_array_equal(np.sort(features_at, axis=1), np.tile(np.arange(768), (blocks, 1)))
    counts = np.zeros((blocks, 768), dtype=np.int64)
    for f, block in zip(features, block_of, strict=True):
        f = f[f // block_size == block]
        np.add.at(counts[block], f - block * block_size, 1)
    by_rank = np.take_along_axis(counts, features_at, 1)
    np.testing.assert_array_equal(ranked >= 0, by_rank > 0)
    np.testing.assert_array_equal(found["used"], (counts > 0).sum(1))
    # Half octaves: nothing has one and a half times as many entries as something before it.
    assert (by_rank[:, 1:] <= 1.5 * np.minimum.accumulate(by_rank, 1)[:, :-1]).all()
    assert (found["dense"] % 64 == 0).all()

    rank_of = np.argsort(features_at, axis=1)
    has = np.zeros((slots, 768), dtype=bool)
    for f, block, of_row, is_regular in zip(features, block_of, slot, regular, strict=True):
        if is_regular:
            has[of_row, rank_of[block, f - block * block_size]] = True
    bits = found["feature_bits"].reshape(-1, 768, 2)[: slots // 64]
    np.testing.assert_array_equal(unpack(bits).transpose(0, 2, 1).reshape(slots, 768), has)
    np.testing.assert_array_equal(unpack(found["near_bits"].reshape(-1, 12)[:slots]), has[:, :NEAR])

    far_begin = found["far_begin"].reshape(-1, 65)[: slots // 64]
    far_counts = has[:, NEAR:].sum(1).reshape(-1, 64)
    np.testing.assert_array_equal(far_begin[:, 0], 0)
    np.testing.assert_array_equal(np.diff(far_begin, axis=1), far_counts)
    pitch = len(found["far"]) // len(found["slot_target"])
    far = found["far"].reshape(-1, 64 * pitch)
    for tile, of_tile in enumerate(np.repeat(np.arange(blocks), tiles_of)):
        for in_tile in np.flatnonzero(far_counts[tile]):
            listed = far[tile, far_begin[tile, in_tile] : far_begin[tile, in_tile + 1]]
            expected = features_at[of_tile, NEAR:][has[64 * tile + in_tile, NEAR:]]
            np.testing.assert_array_equal(np.sort(listed), np.sort(expected))
    if has_loose:
        rows_at = np.full(slots, -1)
        rows_at[slot] = np.arange(2 * positions)
        length = np.where(rows_at >= 0, alive.sum(1)[rows_at], -1)
        by_length = np.argsort(-length.reshape(-1, 64), axis=1, kind="stable") + 64 * np.arange(slots // 64)[:, None]
        begin = (_carved(list(pieces.values())) + 255) // 256 * 256
        ordered = memory[begin:].view(np.int32).reshape(-1, 4)[:slots]
        there = ordered[:, 1] >= 0
        np.testing.assert_array_equal(there, length[by_length.ravel()] >= 0)
        rows_at, by_slot = rows_at[by_length.ravel()][there], by_length.ravel()[there]
        expected = np.stack([by_slot, target[by_slot], rows_at, length[by_slot]], axis=1)
        np.testing.assert_array_equal(ordered[there], expected)
    if has_loose or not near_lists:
        return

    entries = found["entries"].reshape(-1, 4)[:slots]
    lists = found["near"].reshape(-1, pitch)[:slots]
    usable = np.zeros(slots, dtype=bool)
    usable[slot[regular]] = True
    length = np.where(usable, has[:, :NEAR].sum(1), -1)
    order = np.argsort(-length.reshape(-1, 64), axis=1, kind="stable") + 64 * np.arange(slots // 64)[:, None]
    order = order.ravel()
    np.testing.assert_array_equal(entries[:, 1], order)
    np.testing.assert_array_equal(entries[:, 0], np.where(usable, target, -1)[order])
    np.testing.assert_array_equal((entries[:, 2] >= 0), usable[order])
    some = entries[usable[order]]
    np.testing.assert_array_equal(some[:, 2] & 511, length[some[:, 1]])
    np.testing.assert_array_equal(some[:, 2] >> 9 & 511, far_counts.ravel()[some[:, 1]])
    np.testing.assert_array_equal(some[:, 3], far_begin[some[:, 1] // 64, some[:, 1] % 64])
    for entry in some[(some[:, 2] >> 9 & 511) > 0]:
        assert entry[2] >> 18 == far[entry[1] // 64, entry[3]]
    for of_slot, listed in zip(order, lists, strict=True):
        end = max(length[of_slot], 0)
        np.testing.assert_array_equal(np.sort(listed[:end]), 2 * np.flatnonzero(has[of_slot, :NEAR]))
        assert (listed[end:] == 2 * NEAR).all()


def make_batch(
    positions: int, max_active: int, blocks: int, block_size: int, missing: int = 0, loose: int = 0, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Rows of every length, a few features much more frequent than others, one in nine irregular."""
    g = np.random.default_rng(seed)
    num_blocked = blocks * block_size - missing
    rows = np.full((2 * positions, max_active), -1, dtype=np.int32)
    for row in rows:
        block = int(g.random() ** 2 * blocks)
        size = min(block_size, num_blocked - block * block_size)
        picks = np.unique((g.random(g.integers(0, max_active + 1)) ** 3 * size).astype(np.int32)) + block * block_size
        g.shuffle(picks)
        if len(picks) > 1 and g.random() < 1 / 9:
            picks[-1] = g.choice([picks[0], g.integers(0, num_blocked)])
        if loose:
            picks = np.where(g.random(len(picks)) < 0.4, num_blocked + g.permutation(loose)[: len(picks)], picks)
        row[: len(picks)] = picks
        if len(picks) < max_active:
            row[len(picks) + 1 :] = g.integers(0, 10**6, max_active - len(picks) - 1)
    both = torch.from_numpy(rows).chunk(2)
    return both[0].clone(), both[1].clone(), torch.from_numpy(g.integers(0, 2, positions, dtype=np.uint8)), num_blocked


CASES = {
    "one position": (1, 1, 4, 100),
    "not a multiple of 64": (333, 32, 32, 768),
    "one block": (700, 20, 1, 768),
    "255 blocks": (900, 12, 255, 768, 3),
    "blocks of one feature": (200, 8, 60, 1),
    "many far features": (150, 500, 2, 768),
    "as many entries as features": (40, 1000, 2, 768),
    "entries that are not aligned": (300, 27, 3, 96, 7),
    "several chunks": (1500, 12, 5, 300),
    "several tiles a thread block": (17500, 5, 5, 96),
    "no entries": (64, 0, 2, 96),
    "loose features": (400, 90, 5, 96, 0, 3000),
    "loose features behind a block that is not full": (400, 40, 3, 96, 40, 300),
}


@pytest.mark.cuda
@pytest.mark.parametrize("near_lists", [True, False], ids=["near lists", "without"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_lists(cuda: torch.device, case: tuple[int, ...], near_lists: bool) -> None:
    if not is_fused(torch.empty(768, 64, device=cuda), 768):
        pytest.skip(f"no fused kernels for {torch.cuda.get_device_name()}")
    white, black, black_to_move, num_blocked = make_batch(*case)
    loose = case[5] if len(case) > 5 else 0
    memory = perspective_rows(
        white.to(cuda), black.to(cuda), black_to_move.to(cuda), num_blocked + loose, case[3], num_blocked, near_lists
    )
    check_lists(memory.cpu().numpy(), white, black, black_to_move, num_blocked, case[3], loose > 0, near_lists)
