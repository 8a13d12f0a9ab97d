"""Unique positions of a stream: close to the truth, the same for any threads, processes and interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pytest
import torch

from nnue_trainer.data import Loader, LoaderOptions, PositionWriter, RecordLoader
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.loader import joined_sketch, merge_states, unique_positions
from nnue_trainer.errors import UserError


@pytest.fixture(scope="module")
def files(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """60,000 positions in fixed records, so that there are several chunks, and 20,000 of them once more."""
    positions = read_binpack(project_root / "samples" / "train.binpack")[:60_000]
    folder = tmp_path_factory.mktemp("unique")
    for name, part in (("a.bin", positions), ("b.bin", positions[:20_000])):
        with PositionWriter(folder / name) as writer:
            writer.write(part)
    return [folder / "a.bin", folder / "b.bin"]


def loader(files: list[Path], **options: Unpack[LoaderOptions]) -> RecordLoader:
    usual: LoaderOptions = {"shuffle_buffer": 8000, "count_unique": True, "seed": 3}
    return RecordLoader(files, 1000, **(usual | options))


def test_close_to_the_truth(files: list[Path]) -> None:
    with loader(files) as stream:
        boards = np.concatenate([batch.numpy()[:, :24].copy() for batch in stream])
        found = unique_positions(stream.seen())
    true = len(np.unique(boards, axis=0))
    assert true < len(boards) - 15_000
    assert found == pytest.approx(true, rel=0.03)
    with loader(files) as stream:
        first = next(iter(stream)).numpy()
        few = unique_positions(stream.seen())
    assert few == pytest.approx(len(np.unique(first[:, :24], axis=0)), rel=0.03)


def test_a_function_of_the_batches_alone(files: list[Path]) -> None:
    seen = []
    for threads, kind in ((1, "records"), (4, "records"), (3, "rows")):
        options: LoaderOptions = {"shuffle_buffer": 8000, "count_unique": True, "seed": 3, "threads": threads}
        stream = (
            RecordLoader(files, 1000, **options) if kind == "records" else Loader(files, "Chess768", 1000, **options)
        )
        with stream:
            for _, _ in zip(range(30), stream, strict=False):
                pass
            seen.append(stream.seen())
    assert seen[0] == seen[1] == seen[2]
    assert any(seen[0])
    # Two processes have a half of each batch, and see all of it.
    for rank in (0, 1):
        with loader(files, rank=rank, world_size=2) as stream:
            for _, _ in zip(range(30), stream, strict=False):
                pass
            assert stream.seen() == seen[0]


def test_shards_are_joined(files: list[Path]) -> None:
    options: dict[str, Any] = {"shards": 2, "repeat": True, "shuffle_buffer": 8000}

    def take(count: int, **more: Any) -> RecordLoader:
        stream = loader(files, **options, **more)
        for _, _ in zip(range(count), stream, strict=False):
            pass
        return stream

    with take(12) as whole, take(12, rank=0, world_size=2) as first, take(12, rank=1, world_size=2) as second:
        assert first.seen() != whole.seen()
        assert joined_sketch([first.seen(), second.seen()]) == whole.seen()
        merged = merge_states([first.state_dict(), second.state_dict()])
        assert merged["seen"].tolist() == whole.state_dict()["seen"].tolist()


def test_exact_after_a_resume(files: list[Path]) -> None:
    with loader(files, repeat=True) as whole, loader(files, repeat=True) as first:
        batches = iter(whole)
        for _ in range(25):
            next(batches)
        for _, _ in zip(range(11), first, strict=False):
            pass
        state = first.state_dict()
        with loader(files, repeat=True, threads=2) as resumed:
            resumed.load_state_dict(state)
            assert resumed.seen() == first.seen()
            for _, _ in zip(range(14), resumed, strict=False):
                pass
            assert resumed.seen() == whole.seen()
            resumed.close()
            assert resumed.seen() == whole.seen()
            resumed.restart()
            assert not any(resumed.seen())
        for damaged in ("!", torch.zeros(3, dtype=torch.uint8)):
            with loader(files, repeat=True) as other, pytest.raises(UserError, match="damaged"):
                other.load_state_dict(state | {"seen": damaged})


def test_off_by_default(files: list[Path]) -> None:
    with loader(files, count_unique=False) as stream:
        next(iter(stream))
        assert "seen" not in stream.state_dict()
        assert not any(stream.seen())


def test_the_estimate_has_no_bias() -> None:
    """Sketches of random hashes, in place of those of positions."""
    random = np.random.default_rng(2)
    for count in (0, 5, 1000, 20_000, 45_000, 65_000, 120_000, 1_000_000):
        errors = []
        for _ in range(6):
            hashes = random.integers(0, 2**64, count, np.uint64)
            ranks = 1 + np.minimum(50, 49 - np.floor(np.log2(np.maximum(hashes & np.uint64(2**50 - 1), 1))).astype(int))
            registers = np.zeros(1 << 14, np.uint8)
            np.maximum.at(registers, (hashes >> np.uint64(50)).astype(int), ranks.astype(np.uint8))
            errors.append(unique_positions(registers.tobytes()) / max(count, 1) - 1 if count else 0)
        assert abs(np.mean(errors)) < 0.012, (count, errors)
