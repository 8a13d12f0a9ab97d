"""The loader: contents, order, resume, reuse of memory, errors."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from nnue_trainer.data import Batch, Loader, RecordLoader, expand, records_from_fens
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.errors import UserError

B = 512


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of 2,500 positions, told apart by rule 50, in five chunks each."""
    folder = tmp_path_factory.mktemp("loader")
    fens = [
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -",
        "4k3/8/8/8/8/8/P7/4K3 b - -",
        "8/8/8/8/8/8/1k6/3K4 w - -",
    ]
    paths = []
    for name in range(2):
        parts = b""
        for chunk in range(5):
            first = 2500 * name + 500 * chunk
            write_binpack(
                folder / "part", records_from_fens([f"{fens[i % 3]} {i} 9" for i in range(first, first + 500)])
            )
            parts += (folder / "part").read_bytes()
        paths.append(folder / f"{name}.binpack")
        paths[-1].write_bytes(parts)
    return paths


def ids(records: torch.Tensor) -> list[int]:
    return (records[:, 30].int() * 256 + records[:, 31].int()).tolist()


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def epoch(loader: RecordLoader) -> list[list[int]]:
    return [ids(batch) for batch in loader]


def test_every_position_once_an_epoch(files: list[Path]) -> None:
    loader = RecordLoader(files, B, seed=1, shuffle_buffer=1000, drop_last=False)
    first, second = epoch(loader), epoch(loader)
    assert loader.epoch == 2
    assert first != second
    for batches in (first, second):
        assert [len(batch) for batch in batches] == [B] * 9 + [5000 - 9 * B]
        assert sorted(flat(batches)) == list(range(5000))
    assert flat(epoch(RecordLoader(files, B, shuffle=False, drop_last=False))) == list(range(5000))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_order_is_a_function_of_seed_epoch_files(files: list[Path], threads: int) -> None:
    def order(**options: int) -> list[list[int]]:
        return epoch(RecordLoader(files, B, **({"seed": 1, "shuffle_buffer": 1000, "threads": 2} | options)))

    assert order(threads=threads) == order()
    assert order(seed=2) != order()
    assert order(epoch=1) != order()
    ranks = [order(rank=rank, world_size=4, threads=threads) for rank in range(4)]
    assert [flat(parts) for parts in zip(*ranks, strict=True)] == order()


def test_rows_are_those_of_expand(files: list[Path]) -> None:
    options = {"seed": 5, "shuffle_buffer": 1000}
    for rows, records in zip(
        Loader(files, "HalfKAv2_hm", B, **options), RecordLoader(files, B, **options), strict=True
    ):
        expected = expand(records.numpy(), "HalfKAv2_hm")
        for name, array in rows.arrays().items():
            np.testing.assert_array_equal(array, expected.arrays()[name])


def test_resume_is_exact_on_another_number_of_threads(files: list[Path]) -> None:
    def make(threads: int) -> RecordLoader:
        return RecordLoader(files, B, seed=1, shuffle_buffer=1000, repeat=True, threads=threads)

    loader = make(2)
    stream = iter(loader)
    batches, states = [], []
    for _ in range(30):
        batches.append(ids(next(stream)))
        states.append(json.loads(json.dumps(loader.state_dict())))
    for at in (0, 1, 3, 8, 9, 17, 20):
        resumed = make(1 + at % 3)
        resumed.load_state_dict(states[at])
        assert [ids(batch) for batch, _ in zip(resumed, range(9), strict=False)] == batches[at + 1 : at + 10]
    loader.close()
    assert ids(next(iter(loader))) not in batches[:10]


def test_state_of_other_data_is_refused(files: list[Path]) -> None:
    state = RecordLoader(files, B, seed=1).state_dict()
    with pytest.raises(UserError, match="loader state: seed was 1, now it is 2"):
        RecordLoader(files, B, seed=2).load_state_dict(state)
    with pytest.raises(UserError, match="loader state: files was"):
        RecordLoader(files[:1], B, seed=1).load_state_dict(state)
    with pytest.raises(UserError, match="version 99"):
        RecordLoader(files, B, seed=1).load_state_dict(state | {"version": 99})


def test_memory_is_used_again_and_batches_hold(files: list[Path]) -> None:
    loader = RecordLoader(files, B, seed=1, repeat=True, threads=2, hold=3)
    taken, contents, addresses = [], [], set()
    for i, batch in enumerate(loader):
        taken.append(batch)
        contents.append(ids(batch))
        addresses.add(batch.data_ptr())
        if i >= 2:
            assert [ids(b) for b in taken[-3:]] == contents[-3:]
        if i == 200:
            break
    assert len(addresses) <= 2 + 3 + 1
    loader.close()


def test_batches_are_one_allocation(files: list[Path]) -> None:
    batch = next(iter(Loader(files, "Chess768", B)))
    assert isinstance(batch, Batch)
    assert batch.storage is not None
    assert batch.white.shape == (B, 32)


def test_bad_arguments(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data files"):
        RecordLoader([], B)
    with pytest.raises(UserError, match="batch_size is 0"):
        RecordLoader(files, 0)
    with pytest.raises(UserError, match="rank 4 of 4"):
        RecordLoader(files, B, rank=4, world_size=4)
    with pytest.raises(UserError, match="unknown feature set"):
        Loader(files, "HalfKX", B)
    with pytest.raises(UserError, match=r"only 5000 positions in all files, less than a batch of 8192"):
        next(iter(RecordLoader(files, 8192)))
    with pytest.raises(UserError, match=r"gone\.binpack: No such file"):
        next(iter(RecordLoader(tmp_path / "gone.binpack", B)))
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="empty: no positions"):
        next(iter(RecordLoader(tmp_path / "empty", B)))


def test_corrupt_data_is_one_error(files: list[Path], tmp_path: Path) -> None:
    data = bytearray(files[0].read_bytes())
    data[-30:-20] = b"\xff" * 10
    bad = tmp_path / "bad.binpack"
    bad.write_bytes(data)
    with pytest.raises(UserError, match=r"bad\.binpack: offset \d+: chunk 4, chain at its byte 16966"):
        list(RecordLoader([bad, files[1]], B))


def test_skip_bad_chunks_and_weights(files: list[Path], tmp_path: Path) -> None:
    data = bytearray(files[0].read_bytes())
    data[-30:-20] = b"\xff" * 10
    bad = tmp_path / "bad.binpack"
    bad.write_bytes(data)
    loader = RecordLoader([bad, files[1]], 500, skip_bad_chunks=True, shuffle_buffer=1000)
    assert len(flat(epoch(loader))) == 4500
    count, first = loader.bad_chunks()
    assert count >= 1
    assert "bad.binpack: offset" in first
    weighted = flat(epoch(RecordLoader(files, 500, weights=[0.4, 2], shuffle_buffer=1000)))
    assert sum(i < 2500 for i in weighted) == 1000
    assert sorted(i for i in weighted if i >= 2500) == sorted([*range(2500, 5000)] * 2)
    state = RecordLoader(files, 500, weights=[0.4, 2]).state_dict()
    with pytest.raises(UserError, match="loader state: weights was"):
        RecordLoader(files, 500).load_state_dict(state)
    with pytest.raises(UserError, match="1 weights for 2 files"):
        RecordLoader(files, 500, weights=[1.0])
    with pytest.raises(UserError, match=r"weight -1\.0+, expected 0 to 1000"):
        next(iter(RecordLoader(files, 500, weights=[1.0, -1.0])))


def test_real_positions_once_each(shared: Path) -> None:
    path = shared / "data" / "selfplay-d5-val.binpack"
    loader = RecordLoader(path, 16_384, drop_last=False, shuffle=False)
    np.testing.assert_array_equal(np.concatenate([b.numpy().copy() for b in loader]), read_binpack(path))
    shuffled = np.concatenate([b.numpy().copy() for b in RecordLoader(path, 16_384, drop_last=False)])
    np.testing.assert_array_equal(
        np.sort(shuffled.view("V32"), axis=0), np.sort(read_binpack(path).view("V32"), axis=0)
    )


def test_ctrl_c_ends_in_under_a_second(files: list[Path]) -> None:
    # The batch is held for ever, so the next one never comes: the wait itself must notice.
    code = (
        "import sys; from nnue_trainer import _data; import numpy as np\n"
        "from nnue_trainer.data import RecordLoader\n"
        f"loader = RecordLoader({[str(f) for f in files]!r}, {B}, repeat=True, hold=1, threads=1)\n"
        "pipeline = loader._open()\n"
        "while True:\n"
        "    pipeline.next(); print('taken', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    time.sleep(0.5)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - start < 3  # one second, on a machine that is not busy
    assert "KeyboardInterrupt" in errors
