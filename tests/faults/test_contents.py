"""Files whose bytes change: what was read once is compared with every later pass, and after a resume."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from loader_states import same_states, stored
from torch import Tensor

from nnue_trainer import _data
from nnue_trainer.data import LoaderOptions, RecordLoader, records_from_fens
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.data.loader import merge_over, merge_states
from nnue_trainer.data.transform import convert
from nnue_trainer.errors import UserError

FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -"


def binpack_chunks(path: Path) -> list[tuple[int, int]]:
    return _data.BinpackFile(str(path)).chunks


def negate_a_score(path: Path, chunk: int) -> None:
    """Changes the score of a chunk's first position in place; the file stays a sound one of the same size."""
    offset, _ = binpack_chunks(path)[chunk]
    with path.open("r+b") as file:
        file.seek(offset + 26)
        score = file.read(2)
        file.seek(offset + 26)
        file.write(bytes([score[0], score[1] ^ 2]))


def many_chunks(path: Path, chunks: int = 12, size: int = 600) -> Path:
    """A file in which most bytes lie between the samples that a file is recognised by. Positions are distinguished by
    their rule-50 counter."""
    parts = b""
    for chunk in range(chunks):
        part = path.with_suffix(".part")
        write_binpack(part, records_from_fens([f"{FEN} {size * chunk + i} 9" for i in range(size)]))
        parts += part.read_bytes()
    part.unlink()
    path.write_bytes(parts)
    return path


def ids(records: torch.Tensor) -> list[int]:
    return (records[:, 30].int() * 256 + records[:, 31].int()).tolist()


def between_samples(path: Path) -> int:
    """A chunk whose first score no sample covers."""
    size = path.stat().st_size
    samples = [max(size - 4096, 0) * i // 15 for i in range(16)]
    for number, (offset, _) in enumerate(binpack_chunks(path)):
        if all(not at - 34 <= offset <= at + 4096 for at in samples):
            return number
    raise AssertionError("the samples cover the whole file")


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_changes_between_the_samples_is_found_in_the_next_pass(
    tmp_path: Path, skip_bad: bool, shuffle: bool
) -> None:
    path = many_chunks(tmp_path / "x.binpack")
    chunk = between_samples(path)
    loader = RecordLoader(path, 100, shuffle=shuffle, shuffle_buffer=1000, skip_bad_chunks=skip_bad)
    positions = sum(len(batch) for batch in loader)
    loader.restart(1)
    assert sum(len(batch) for batch in loader) == positions
    negate_a_score(path, chunk)
    loader.restart(2)
    with pytest.raises(UserError, match=rf"x\.binpack: chunk {chunk} of \d+ has changed since it was first read"):
        list(loader)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_resumed_loader_finds_what_changed_in_the_meantime(tmp_path: Path, threads: int) -> None:
    path = many_chunks(tmp_path / "x.binpack")
    chunk = between_samples(path)
    loader = RecordLoader(path, 100, seed=3, repeat=True, shuffle_buffer=1000, threads=threads)
    stream = iter(loader)
    while loader.epoch == 0:  # one pass, in which every chunk was read
        next(stream)
    state = stored(loader.state_dict())
    resumed = RecordLoader(path, 100, seed=3, repeat=True, shuffle_buffer=1000)
    resumed.load_state_dict(state)
    assert ids(next(iter(resumed))) == ids(next(stream))
    assert torch.equal(resumed.contents(), loader.contents())
    assert (loader.contents() != 0).all()
    resumed.close()
    negate_a_score(path, chunk)
    resumed = RecordLoader(path, 100, seed=3, repeat=True, shuffle_buffer=1000)
    resumed.load_state_dict(state)
    resumed.repeat = False  # to the end of this pass
    with pytest.raises(UserError, match=rf"x\.binpack: chunk {chunk} of \d+ has changed since it was first read"):
        list(resumed)


def test_saved_contents_depend_on_the_place_alone(tmp_path: Path) -> None:
    """Not on threads, on what they read ahead, or on where the stream was interrupted."""
    path = many_chunks(tmp_path / "x.binpack")
    found = []
    for threads, stop in ((1, None), (4, None), (2, 7), (3, 19)):
        loader = RecordLoader(path, 100, seed=3, repeat=True, shuffle_buffer=1000, threads=threads)
        states = []
        for step in range(60):
            if step == stop:
                state = loader.state_dict()
                loader.close()
                loader = RecordLoader(path, 100, seed=3, repeat=True, shuffle_buffer=1000, threads=threads)
                loader.load_state_dict(state)
            next(iter(loader))
            states.append(loader.state_dict())
        loader.close()
        found.append(states)
    assert not torch.equal(found[0][0]["contents"], found[0][-1]["contents"])
    for states in found[1:]:
        assert all(same_states(one, other) for one, other in zip(states, found[0], strict=True))


def test_processes_join_the_contents_that_they_read(tmp_path: Path) -> None:
    path = many_chunks(tmp_path / "x.binpack")
    options: LoaderOptions = {"seed": 3, "repeat": True, "shuffle_buffer": 1000, "shards": 2}
    whole = RecordLoader(path, 100, **options)
    parts = [RecordLoader(path, 100, **(options | {"rank": rank, "world_size": 2})) for rank in range(2)]
    for _ in range(40):
        for loader in (whole, *parts):
            next(iter(loader))
    states = [stored(part.state_dict()) for part in parts]
    assert same_states(merge_states(states), whole.state_dict())
    states[0]["contents"][states[1]["contents"].nonzero()[0]] = 123456
    with pytest.raises(UserError, match="the processes have read different contents of one file"):
        merge_states(states)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.8, 1.0])
def test_the_first_process_joins_the_contents(share: float) -> None:
    """Few known digests are sent with their indices, many as they are."""
    draw = np.random.default_rng(1)
    every = draw.integers(1, 1 << 62, 1000)
    states = [{"contents": torch.from_numpy(np.where(draw.random(1000) < share, every, 0))} for _ in range(4)]
    sent: list[Tensor] = []

    def keep(message: Tensor) -> Iterator[Tensor]:
        sent.append(message)
        return iter(())

    def join() -> Tensor:
        sent.clear()
        for state in states[1:]:
            assert torch.equal(merge_over(state, not_called, keep, bool)["contents"], state["contents"])
        return merge_over(states[0], not_called, lambda _: iter(sent), bool)["contents"]

    def not_called(_: Tensor) -> Tensor:
        raise AssertionError

    assert torch.equal(join(), merge_states(states)["contents"])
    assert all(len(message) <= min(1000, 2 * 1000 * share * 1.3) for message in sent)
    both = (states[0]["contents"] * states[3]["contents"]).nonzero()
    if len(both):
        states[3]["contents"][both[0]] = 7
        with pytest.raises(UserError, match="the processes have read different contents of one file"):
            join()


def test_a_chunk_that_was_good_is_not_left_out(tmp_path: Path) -> None:
    path = many_chunks(tmp_path / "x.binpack")
    chunk = between_samples(path)
    loader = RecordLoader(path, 100, shuffle=False, skip_bad_chunks=True)
    list(loader)
    with path.open("r+b") as file:
        file.seek(binpack_chunks(path)[chunk][0])
        file.write(bytes(24))
    loader.restart()
    with pytest.raises(UserError, match=r"x\.binpack: chunk \d+ of \d+ has changed .*, and is damaged now"):
        list(loader)


def test_a_file_that_is_written_to_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = many_chunks(tmp_path / "x.binpack")
    loader = RecordLoader(path, 100, shuffle=False)
    loader.open()
    negate_a_score(path, between_samples(path))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    list(loader)  # nothing of it was read before the change
    assert [record.message for record in caplog.records] == [
        f"{path}: was written to since it was opened; chunks that were read before are compared, and the "
        "others are read as they are now"
    ]


@pytest.mark.parametrize("suffix", [".plain", ".bin", ".binpack"])
def test_every_format_is_compared(tmp_path: Path, suffix: str) -> None:
    source, path = many_chunks(tmp_path / "x.binpack"), tmp_path / f"y{suffix}"
    convert([source], path)
    content = bytearray(path.read_bytes())
    places: Iterable[int]
    if suffix == ".plain":  # a digit of a score, at the first place from the middle on that no sample covers
        places = (match.start() + 6 for match in re.finditer(rb"score 0\n", content))
    else:  # the lowest bit of a score in a record of 40 bytes, or of a chain's first position
        places = range(33, len(content), 40) if suffix == ".bin" else range(8 + 27, len(content), 34)
    samples = [(len(content) - 4096) * i // 15 for i in range(16)]
    place = next(at for at in places if all(not begin <= at < begin + 4096 for begin in samples))
    loader = RecordLoader(path, 100, shuffle=False)
    list(loader)
    content[place] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    loader.restart()
    with pytest.raises(UserError, match=r"has changed since it was first read: continuing would train on different"):
        list(loader)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx2_bmi2"])
def test_digests_do_not_depend_on_the_instruction_set(tmp_path: Path, isa: str) -> None:
    path = many_chunks(tmp_path / "x.binpack", chunks=2, size=77)
    code = (
        "import sys; from nnue_trainer.data import RecordLoader;"
        "loader = RecordLoader(sys.argv[1], 100, shuffle=False); list(loader); print(loader.contents().tolist())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, path],
        env=os.environ | {"NNUE_DATA_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
    )
    loader = RecordLoader(path, 100, shuffle=False)
    list(loader)
    assert found.stdout.strip() == str(loader.contents().tolist())
