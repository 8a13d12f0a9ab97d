"""The output of `perspective_plan` for the portable kernels: every slot, list and task, in the emulator and on CUDA."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnue_trainer.base._library import as_text

RECORDS = {"slots": 4, "tasks": 4, "long_lists": 4, "counts": 2}
DTYPES = {"slot_cost": np.int64, "task_cost": np.int64, "black_first": np.uint8}

# positions, entries of a row, features, the largest share of rows with one feature
CASES = {
    "a few": (5, 3, 7),
    "one position": (1, 4, 20),
    "no entries": (12, 0, 5),
    "one feature": (40, 1, 1),
    "more rows than a warp has lanes": (300, 12, 90),
    "long rows": (20, 70, 400),
    "many features": (64, 9, 5000),
}


def make_rows(positions: int, max_active: int, features: int, seed: int) -> Tensor:
    """Rows of every length, in which few features are frequent; some twice, and rubbish after the end of a row."""
    r = np.random.default_rng(seed)
    rows = (r.random((positions, max_active)) ** 3 * features).astype(np.int32)
    lengths = r.integers(0, max_active + 1, positions)
    rows[np.arange(max_active)[None] == lengths[:, None]] = -1
    rows[np.arange(max_active)[None] > lengths[:, None]] = features + 3
    return torch.from_numpy(rows)


def check_plan(library: str, plan: Tensor, white: Tensor, black: Tensor, black_to_move: Tensor, features: int) -> None:
    (positions, max_active), rows = white.shape, 2 * len(white)
    layout_of = getattr(torch.ops, library)._perspective_transformer_layout
    layout = json.loads(as_text(layout_of(positions, max_active, features, 0, features, 4)))
    memory = plan.cpu().numpy()
    assert layout["slots"] == rows
    assert len(memory) == layout["plan"]["bytes"]
    pieces: dict[str, NDArray[Any]] = {}
    for name, (begin, size) in layout["plan"]["pieces"].items():
        numbers = memory[begin : begin + size].copy().view(DTYPES.get(name, np.int32))
        pieces[name] = numbers.reshape(-1, RECORDS[name]) if name in RECORDS else numbers

    both = torch.cat([white, black]).tolist()
    lists = [row[: row.index(-1)] if -1 in row else row for row in both]
    order = sorted(range(rows), key=lambda row: lists[row][0] if lists[row] else features)
    black_first = black_to_move.numpy() != 0
    assert np.array_equal(pieces["black_first"] != 0, black_first)
    of_feature: list[list[int]] = [[] for _ in range(features)]
    for slot, row in enumerate(order):
        second = (row >= positions) != black_first[row % positions]
        assert list(pieces["slots"][slot][:3]) == [row, 2 * (row % positions) + second, len(lists[row])]
        for feature in lists[row]:
            of_feature[feature].append(slot)
    assert list(pieces["list"][: sum(map(len, of_feature))]) == [slot for found in of_feature for slot in found]
    assert np.all(np.diff(pieces["slot_cost"]) >= entries_of(lists, order))

    count, long_count = pieces["counts"][0]
    tasks, starts = pieces["tasks"][:count], np.cumsum([0, *map(len, of_feature)])
    first_slots = [pieces["list"][begin] if entries else rows for _, begin, entries, _ in tasks]
    assert first_slots == sorted(first_slots)
    costs = np.diff(pieces["task_cost"])
    assert np.all(costs[:count] > tasks[:, 2])
    assert not costs[count:].any()
    for feature, found in enumerate(of_feature):
        own = tasks[tasks[:, 0] == feature]
        own = own[own[:, 1].argsort(kind="stable")]
        assert own[0][1] == starts[feature]
        assert list(own[1:, 1]) == list((own[:, 1] + own[:, 2])[:-1])
        assert own[:, 2].sum() == len(found)
        long_list = [entry for entry in pieces["long_lists"][:long_count] if entry[0] == feature]
        if len(own) == 1:
            assert own[0][3] == -1
            assert not long_list
        else:
            assert (own[:, 2] > 0).all()
            assert list(long_list[0][1:3]) == [own[0][3], len(own)]
            assert list(own[:, 3]) == list(range(own[0][3], own[0][3] + len(own)))
    partials = tasks[:, 3][tasks[:, 3] >= 0]
    assert sorted(partials) == list(range(len(partials)))


def entries_of(lists: list[list[int]], order: list[int]) -> NDArray[np.int64]:
    return np.array([len(lists[row]) for row in order], dtype=np.int64)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_emulated(emulator: ctypes.CDLL, case: tuple[int, int, int]) -> None:
    white, black = make_rows(*case, 1), make_rows(*case, 2)
    black_to_move = torch.from_numpy(np.random.default_rng(3).integers(0, 2, case[0]).astype(np.uint8))
    emulator.emulator_configure(4, 1)
    plan = torch.ops.nnue_emulated._perspective_plan(white, black, black_to_move, case[2], 0, case[2], 4)
    check_plan("nnue_emulated", plan, white, black, black_to_move, case[2])


@pytest.mark.cuda
@pytest.mark.parametrize("case", [*CASES.values(), (3000, 32, 768)], ids=[*CASES.keys(), "long lists"])
def test_on_cuda(cuda: torch.device, case: tuple[int, int, int]) -> None:
    white, black = make_rows(*case, 1), make_rows(*case, 2)
    black_to_move = torch.from_numpy(np.random.default_rng(3).integers(0, 2, case[0]).astype(np.uint8))
    plan = torch.ops.nnue._perspective_plan(
        white.to(cuda), black.to(cuda), black_to_move.to(cuda), case[2], 0, case[2], 4
    )
    check_plan("nnue", plan, white, black, black_to_move, case[2])
