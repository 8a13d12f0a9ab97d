"""The loader: contents, order, resume, reuse of memory, errors."""

import bz2
import gzip
import inspect
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Unpack

import numpy as np
import pytest
import torch
import zstandard
from loader_states import stored
from processes import run_on_a_full_disk
from waiting import SECONDS

from nnue_trainer.base.arrays import Records
from nnue_trainer.data import (
    Batch,
    Filters,
    Loader,
    LoaderOptions,
    PositionReader,
    PositionWriter,
    RecordLoader,
    compression,
    expand,
    merge_states,
    records_from_fens,
)
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.files import FORMATS
from nnue_trainer.data.opened import OpenedFile
from nnue_trainer.errors import UserError

B = 512


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of 2,500 positions, distinguished by rule 50, in five chunks each."""
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
    def order(**options: Unpack[LoaderOptions]) -> list[list[int]]:
        usual: LoaderOptions = {"seed": 1, "shuffle_buffer": 1000, "threads": 2}
        return epoch(RecordLoader(files, B, **(usual | options)))

    assert order(threads=threads) == order()
    assert order(seed=2) != order()
    assert order(epoch=1) != order()
    ranks = [order(rank=rank, world_size=4, threads=threads) for rank in range(4)]
    assert [flat(parts) for parts in zip(*ranks, strict=True)] == order()


def test_rows_are_those_of_expand(files: list[Path]) -> None:
    options: LoaderOptions = {"seed": 5, "shuffle_buffer": 1000}
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
        states.append(stored(loader.state_dict()))
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
    with pytest.raises(UserError, match="loader state: files changed: there were 2"):
        RecordLoader(files[:1], B, seed=1).load_state_dict(state)
    with pytest.raises(UserError, match="version 99"):
        RecordLoader(files, B, seed=1).load_state_dict(state | {"version": 99})


def test_memory_is_used_again_and_batches_hold(files: list[Path]) -> None:
    loader = RecordLoader(files, B, seed=1, repeat=True, threads=2, reuse=True, hold=3)
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
    with pytest.raises(UserError, match="weights need shuffling"):
        RecordLoader(files, 500, weights=[1.0, 1.0], shuffle=False)


def test_real_positions_once_each(project_root: Path) -> None:
    path = project_root / "samples" / "train.binpack"
    loader = RecordLoader(path, 16_384, drop_last=False, shuffle=False)
    np.testing.assert_array_equal(np.concatenate([b.numpy().copy() for b in loader]), read_binpack(path))
    shuffled = np.concatenate([b.numpy().copy() for b in RecordLoader(path, 16_384, drop_last=False)])
    np.testing.assert_array_equal(
        np.sort(shuffled.view("V32"), axis=0), np.sort(read_binpack(path).view("V32"), axis=0)
    )


# --- any format, plain or compressed ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def positions(project_root: Path) -> Records:
    return read_binpack(project_root / "samples" / "train.binpack")[:50_000]


def compressed(data: bytes, kind: str) -> bytes:
    return gzip.compress(data, 1) if kind == "gzip" else zstandard.compress(data)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_plain_or_compressed(tmp_path: Path, positions: Records, format: str) -> None:
    source = tmp_path / "x"
    with PositionWriter(source, format, join_chains=False) as writer:
        writer.write(positions)
    expected = np.concatenate(list(PositionReader(source)))

    usual: LoaderOptions = {"seed": 3, "drop_last": False}

    def load(path: Path, **options: Unpack[LoaderOptions]) -> Records:
        loader = RecordLoader(path, 1000, **(usual | options))
        return np.concatenate([batch.numpy().copy() for batch in loader])

    np.testing.assert_array_equal(load(source, shuffle=False), expected)
    filters = Filters(quiet=True, max_score=600)
    shuffled = load(source, threads=3, shuffle_buffer=5000, filters=filters)
    assert 0 < len(shuffled) <= len(expected)
    for kind in ("gzip", "zstd"):
        packed = tmp_path / kind / "x"
        packed.parent.mkdir()
        packed.write_bytes(compressed(source.read_bytes(), kind))
        np.testing.assert_array_equal(load(packed, threads=1, shuffle_buffer=5000, filters=filters), shuffled)
    # Resumed in the middle of a chunk, on another number of threads.
    loader = RecordLoader(packed, 1000, seed=3, shuffle_buffer=5000, filters=filters, threads=2)
    stream = iter(loader)
    for _ in range(7):
        next(stream)
    state = stored(loader.state_dict())
    resumed = RecordLoader(packed, 1000, seed=3, shuffle_buffer=5000, filters=filters, threads=1)
    resumed.load_state_dict(state)
    assert torch.equal(next(iter(resumed)), next(stream))


def test_files_of_several_formats_are_mixed(tmp_path: Path, files: list[Path]) -> None:
    with PositionWriter(tmp_path / "1.plain") as writer:
        writer.write(read_binpack(files[1]))
    assert sorted(flat(epoch(RecordLoader([files[0], tmp_path / "1.plain"], 500)))) == list(range(5000))


def test_bad_chunks_of_every_format_are_named_and_skipped(tmp_path: Path, positions: Records) -> None:
    for name, spoilt, message in (
        (
            "x.bin",
            lambda data: data[: 40 * 40_000] + b"\xff" * 40 + data[40 * 40_001 :],
            "offset 1600000: chunk 1, position 40000: ",
        ),
        ("x.txt", lambda data: data[:1_500_000] + b"#" + data[1_500_001:], r"offset 1\d+: chunk 1: "),
        ("x.plain", lambda data: data[:1_500_000] + b"#" + data[1_500_001:], r"offset 1\d+: chunk 1: "),
    ):
        path = tmp_path / name
        with PositionWriter(path) as writer:
            writer.write(positions)
        path.write_bytes(spoilt(path.read_bytes()))
        with pytest.raises(UserError, match=message):
            list(RecordLoader(path, 1000, threads=2))
        loader = RecordLoader(path, 1000, threads=2, drop_last=False, skip_bad_chunks=True)
        left = sum(len(batch) for batch in loader)
        assert 10_000 < left < 50_000
        count, first = loader.bad_chunks()
        assert (count >= 1, name in first) == (True, True)


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_a_compressed_file_that_is_cut_is_read_up_to_there(
    kind: str, tmp_path: Path, positions: Records, caplog: pytest.LogCaptureFixture
) -> None:
    functions: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "bzip2": bz2.compress,
        "xz": lzma.compress,
        "zstd": zstandard.compress,
    }
    compress = functions[kind]
    with PositionWriter(tmp_path / "x.bin") as writer:
        writer.write(positions)
    whole = compress((tmp_path / "x.bin").read_bytes())
    path = tmp_path / "x.bin.z"
    path.write_bytes(whole[: 2 * len(whole) // 3])
    place = r"x\.bin\.z: .*; offset of the decompressed bytes: [1-9][\d,]* or later"
    with pytest.raises(UserError, match=place):
        RecordLoader(path, 1000).open()
    with RecordLoader(path, 1000, shuffle=False, drop_last=False, skip_bad_chunks=True) as loader:
        read = np.concatenate([batch.numpy().copy() for batch in loader])
    assert len(positions) / 3 < len(read) < len(positions)
    np.testing.assert_array_equal(read, positions[: len(read)])
    assert re.search(place + r"; the [\d,]+ bytes before it are read", caplog.text)
    path.write_bytes(whole[:40])
    with pytest.raises(UserError, match=r"x\.bin\.z: "):
        RecordLoader(path, 1000, skip_bad_chunks=True).open()


def test_a_file_that_is_no_data(tmp_path: Path, files: list[Path]) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Notes\n")
    with pytest.raises(UserError, match=r"notes\.md: lines of text, but neither '.* nor 'fen …' .plain."):
        RecordLoader([files[0], path], B).open()
    path.write_bytes(gzip.compress(files[0].read_bytes())[:-9])
    with pytest.raises(UserError, match=r"notes\.md: not a valid gzip file: "):
        RecordLoader([files[0], path], B).open()


@pytest.mark.slow
def test_no_room_to_unpack_is_one_line(tmp_path: Path, positions: Records) -> None:
    write_binpack(tmp_path / "x", positions, join_chains=False)
    (tmp_path / "x.gz").write_bytes(gzip.compress((tmp_path / "x").read_bytes(), 1))
    code = (
        "from nnue_trainer.data import RecordLoader\n"
        f"RecordLoader({str(tmp_path / 'x.gz')!r}, 10, temporary={str(tmp_path)!r}).open()"
    )
    command = [sys.executable, "-c", code]
    result = run_on_a_full_disk(command, 100_000)
    assert "File too large; set TMPDIR to a folder with room, or unpack it once: `nnue data convert" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "x.gz"]


def test_a_file_that_cannot_be_read_is_no_lack_of_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad block of its disk is an error of the file, not of the folder that it is unpacked into."""

    def bad_block(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(compression, "decompress", lambda *_: SimpleNamespace(readinto=bad_block))
    with Path(os.devnull).open("rb") as file, pytest.raises(OSError, match=r"^.Errno 5. Input/output error$"):
        compression.unpack(tmp_path / "x.gz", "gzip", file, tmp_path)
    assert not list(tmp_path.iterdir())


# --- canonical shards ------------------------------------------------------------------------------------------------


def sharded(files: list[Path], processes: int, **options: Unpack[LoaderOptions]) -> list[RecordLoader]:
    usual: LoaderOptions = {"seed": 1, "shuffle_buffer": 1600, "shards": 8, "repeat": True, "threads": 2}
    all_options: LoaderOptions = usual | options
    return [
        RecordLoader(files, B, **(all_options | {"rank": rank, "world_size": processes})) for rank in range(processes)
    ]


def joined(loaders: list[RecordLoader], batches: int) -> list[list[int]]:
    streams = [iter(loader) for loader in loaders]
    return [flat([ids(next(stream)) for stream in streams]) for _ in range(batches)]


def test_shards_give_one_order_for_any_number_of_processes(files: list[Path]) -> None:
    whole = joined(sharded(files, 1), 40)
    for world_size, threads in ((1, 5), (2, 1), (4, 3), (8, 1), (8, 2)):
        assert joined(sharded(files, world_size, threads=threads), 40) == whole
    assert joined(sharded(files, 2, seed=2), 40) != whole
    assert joined(sharded(files, 2, shards=4), 40) != whole
    # Each shard brings its own part of a pass, and all of them everything.
    seen = flat(whole[:7])
    assert len(set(seen)) == len(seen)
    assert len(set(flat(whole))) > 4900  # all except those that drop_last leaves out


def test_shards_decode_their_own_chunks_only(files: list[Path]) -> None:
    loaders = sharded(files, 8, shuffle_buffer=800)
    joined(loaders, 8)
    read = [loader.filter_counts().read for loader in loaders]
    one = sharded(files, 1, shuffle_buffer=800)[0]
    joined([one], 8)
    assert max(read) < one.filter_counts().read / 2
    rows = Loader(files, "HalfKAv2_hm", B, rank=1, world_size=2, shards=4, repeat=True)
    assert next(iter(rows)).white.shape == (B // 2, 32)


def test_shards_resume_on_another_number_of_processes(files: list[Path]) -> None:
    whole = joined(sharded(files, 1), 60)
    for before, after in ((1, 4), (4, 1), (2, 8), (8, 2)):
        loaders = sharded(files, before)
        assert joined(loaders, 23) == whole[:23]
        states = [stored(loader.state_dict()) for loader in loaders]
        assert all(state["places"].shape == (8, 4) for state in states)
        if before > 1:
            with pytest.raises(UserError, match=r"the place of shard \d is missing: join the states"):
                sharded(files, 1)[0].load_state_dict(states[0])
        resumed = sharded(files, after, threads=1)
        for loader in resumed:
            loader.load_state_dict(merge_states(states))
        assert joined(resumed, 30) == whole[23:53]
    with pytest.raises(UserError, match="of different runs"):
        merge_states([sharded(files, 1)[0].state_dict(), sharded(files, 1, seed=9)[0].state_dict()])
    behind, ahead = sharded(files, 1)[0], sharded(files, 1)[0]
    joined([ahead], 1)
    with pytest.raises(UserError, match="of different runs"):
        merge_states([behind.state_dict(), ahead.state_dict()])


def test_shards_that_make_no_sense(files: list[Path]) -> None:
    with pytest.raises(UserError, match="3 shards, 1 processes and a batch of 512"):
        RecordLoader(files, B, shards=3, repeat=True)
    with pytest.raises(UserError, match="2 shards, 4 processes"):
        RecordLoader(files, B, shards=2, world_size=4, repeat=True)
    with pytest.raises(UserError, match="they need repeat, shuffle and drop_last"):
        RecordLoader(files, B, shards=2)
    with pytest.raises(UserError, match="10 chunks in all files, fewer than the 16 shards"):
        RecordLoader(files, B, shards=16, repeat=True).open()


# --- trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["binpack", "bin", "text"])
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, positions: Records, format: str) -> None:
    path = tmp_path / "x"
    with PositionWriter(path, format, join_chains=False) as writer:
        writer.write(np.tile(positions, (6, 1)))
    loader = RecordLoader(path, 1000, shuffle=False, threads=2, repeat=True)
    stream = iter(loader)
    next(stream)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"x: offset \d+: the file ends here"):
        list(islice(stream, 1000))


@pytest.mark.slow
def test_ctrl_c_while_threads_and_a_filter_of_ones_own_work(project_root: Path) -> None:
    code = (
        "import sys; import numpy as np; from nnue_trainer.data import Loader\n"
        "def every(records): return np.ones(len(records), bool)\n"
        "loader = Loader(sys.argv[1], 'HalfKAv2_hm', 4096, repeat=True, threads=4, user_filter=every)\n"
        "for i, batch in enumerate(loader):\n"
        "    if i == 20: print('taken', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(project_root / "samples" / "train.binpack")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in errors


def test_opening_ends_when_its_poll_raises(files: list[Path], tmp_path: Path) -> None:
    """Ctrl-C reaches the main thread only, and the trainer opens its files in another one."""
    many = tmp_path / "many.binpack"
    many.write_bytes(files[0].read_bytes() * 4)  # 20 chunks
    calls = []

    def poll() -> None:
        calls.append(1)
        raise UserError("closed")

    with pytest.raises(UserError, match="closed"):
        OpenedFile(many, poll=poll)
    assert calls == [1]


@pytest.mark.slow
def test_ctrl_c_ends_a_wait_for_a_batch_that_never_comes(files: list[Path]) -> None:
    # The batch is held for ever, so the next one never comes: the wait itself must notice.
    code = (
        "import sys; from nnue_trainer import _data; import numpy as np\n"
        "from nnue_trainer.data import RecordLoader\n"
        f"loader = RecordLoader({[str(f) for f in files]!r}, {B}, repeat=True, reuse=True, hold=1, threads=1)\n"
        "pipeline = loader._open().pipeline\n"
        "while True:\n"
        "    pipeline.next(); print('taken', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in errors


def test_one_batch_at_a_time_for_ever(files: list[Path]) -> None:
    """An iteration that is given up after a batch keeps no memory from the next one."""
    for hold in (1, 3):
        with_hold = RecordLoader(files, 100, threads=1, reuse=True, hold=hold, repeat=True)
        one_by_one = [ids(next(iter(with_hold))) for _ in range(30)]
        whole = [ids(batch) for batch in islice(RecordLoader(files, 100, threads=1, repeat=True), 30)]
        assert one_by_one == whole


def keep_even(records: Records) -> np.ndarray:
    return records[:, 31] % 2 == 0


def keep_odd(records: Records) -> np.ndarray:
    return records[:, 31] % 2 == 1


def test_state_of_another_filter_of_ones_own_is_refused(files: list[Path]) -> None:
    loader = RecordLoader(files, B, user_filter=keep_even)
    next(iter(loader))
    state = stored(loader.state_dict())
    RecordLoader(files, B, user_filter=keep_even).load_state_dict(state)
    for other in (None, keep_odd):
        with pytest.raises(UserError, match=r"user_filter was '.*keep_even', now it is"):
            RecordLoader(files, B, user_filter=other).load_state_dict(state)


def test_state_of_another_file_of_the_same_name_and_size_is_refused(files: list[Path], tmp_path: Path) -> None:
    loader = RecordLoader(files[0], B)
    next(iter(loader))
    content = bytearray(files[0].read_bytes())
    content[8 + 31] ^= 1  # the first rule 50
    (tmp_path / files[0].name).write_bytes(content)
    with pytest.raises(UserError, match="files changed: there was"):
        RecordLoader(tmp_path / files[0].name, B).load_state_dict(loader.state_dict())


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (PositionReader, lambda path: next(iter(RecordLoader(path, B)))):
        with pytest.raises(UserError, match="not a regular file"):
            read(tmp_path / "pipe")


def test_batches_before_a_bad_chunk_come_first(positions_file, tmp_path):
    """However far the threads have read ahead: in file order whole batches, then the error; again after resuming."""
    records = read_binpack(positions_file("val"))[:3000]
    chunk = tmp_path / "chunk.binpack"
    path = tmp_path / "bad.binpack"
    write_binpack(chunk, records, join_chains=False)
    damaged = bytearray(chunk.read_bytes())
    damaged[8 + 34 * 5] = 0xFF  # the board of its sixth position
    path.write_bytes(chunk.read_bytes() * 2 + bytes(damaged) + chunk.read_bytes())
    options: LoaderOptions = {"shuffle": False, "filters": Filters.none()}
    for threads in (1, 4):
        loader = RecordLoader(path, 1000, **(options | {"threads": threads}))
        iterator = iter(loader)
        for i in range(6):
            np.testing.assert_array_equal(next(iterator).numpy(), records[1000 * (i % 3) :][:1000])
        with pytest.raises(UserError, match=r"bad\.binpack: offset .*: chunk 2, chain at its byte 170"):
            next(iterator)
        resumed = RecordLoader(path, 1000, **(options | {"threads": threads}))
        resumed.load_state_dict(loader.state_dict())
        with pytest.raises(UserError, match="chunk 2"):
            next(iter(resumed))


def test_batches_of_windows_before_a_bad_chunk_come_first_shuffled(positions_file, tmp_path):
    records = read_binpack(positions_file("val"))[:500]
    chunk = tmp_path / "chunk.binpack"
    write_binpack(chunk, records, join_chains=False)
    damaged = bytearray(chunk.read_bytes())
    damaged[8 + 34 * 5] = 0xFF
    good, bad = tmp_path / "good.binpack", tmp_path / "bad.binpack"
    good.write_bytes(chunk.read_bytes() * 12)
    counts = set()
    for place in range(12):
        chunks = [chunk.read_bytes()] * 12
        chunks[place] = bytes(damaged)
        bad.write_bytes(b"".join(chunks))
        options: LoaderOptions = {"seed": 5, "shuffle_buffer": 1000, "filters": Filters.none(), "threads": 3}
        expected = iter(RecordLoader(good, 500, **options))
        taken: list[torch.Tensor] = []
        with pytest.raises(UserError, match=f"chunk {place}, chain"):
            taken.extend(RecordLoader(bad, 500, **options))
        for batch in taken:
            np.testing.assert_array_equal(batch.numpy(), next(expected).numpy())
        counts.add(len(taken))
    assert counts == {0, 2, 4, 6, 8, 10}, "two batches for each window of two chunks that come before it"


def test_what_the_order_depends_on_is_put_together_once(positions_file, monkeypatch):
    loader = RecordLoader(positions_file("val"), 512)
    before = loader.state_dict()
    monkeypatch.setattr("nnue_trainer.data.loader.identity", None)
    next(iter(loader))
    after = loader.state_dict()
    assert after["order"] == before["order"]
    assert not torch.equal(after["places"], before["places"])


def test_the_options_are_the_keyword_arguments() -> None:
    parameters = inspect.signature(RecordLoader).parameters.values()
    assert list(LoaderOptions.__annotations__) == [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
