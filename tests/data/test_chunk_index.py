"""The chunk index: what it saves, and that a wrong one never yields other data."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import nnue
from waiting import SECONDS
from zstandard import compress

from nnue_trainer import _data, config, schema
from nnue_trainer.data import RecordLoader, chunk_index, records_from_fens
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.data.transform import convert
from nnue_trainer.errors import UserError

FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -"
OLD = 10**18  # a modification time, in ns


def chunk(path: Path, first: int, size: int) -> bytes:
    write_binpack(path, records_from_fens([f"{FEN} {first + i} 9" for i in range(size)]))
    return path.read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torch-nnue" / "chunk-index"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of 40 chunks, most bytes of which no sample covers."""
    part = tmp_path_factory.mktemp("content") / "part"
    return b"".join(chunk(part, 150 * i, 150) for i in range(40))


@pytest.fixture
def data(tmp_path: Path, content: bytes) -> Path:
    """A folder with that file."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "x.binpack", content)
    return folder


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(OLD, OLD))
    return path


def numbers(*paths: Path, skip_bad_chunks: bool = False) -> list[int]:
    with RecordLoader(paths, 100, shuffle=False, drop_last=False, skip_bad_chunks=skip_bad_chunks) as loader:
        return [n for batch in loader for n in (batch[:, 30].int() * 256 + batch[:, 31].int()).tolist()]


def reads() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split("syscr: ")[1].split()[0])


def test_the_second_opening_reads_at_most_three_places_of_a_file(data: Path, cache: Path) -> None:
    for i in range(30):
        os.link(data / "x.binpack", data / f"{i:02}.binpack")
    files = sorted(data.iterdir())
    found = []
    for _ in range(2):
        before = reads()
        loader = RecordLoader(files, 100)
        identities = loader.identities
        found.append((reads() - before) / len(files))
        assert len({identity.digest for identity in identities}) == 1
    assert found[0] > 50  # sixteen samples and forty chunks
    assert found[1] < 3.5
    assert len(list(cache.iterdir())) == 1
    assert not (data / chunk_index.BESIDE).exists()


@pytest.mark.parametrize("format", [name for name, *_ in _data.formats()])
def test_every_format_is_the_same_with_an_index(tmp_path: Path, format: str) -> None:
    source = Path("samples/val.binpack")
    path = tmp_path / f"x.{format}"
    convert([source], path, to=format, chess960="drop-rights")
    os.utime(path, ns=(OLD, OLD))

    def records() -> np.ndarray:
        with RecordLoader(path, 1000, shuffle=False, drop_last=False) as loader:
            return np.concatenate([batch.numpy() for batch in loader])

    without = records()
    assert chunk_index.write([str(path)]).files == 1
    before = reads()
    (file,) = chunk_index.open_sources([str(path)])
    assert isinstance(file, chunk_index.Source)
    assert file.layout is not None
    _data.DataFile(file.file, False, layout=file.layout)
    assert reads() - before < 10
    assert (records() == without).all()


def test_an_entry_that_does_not_fit_is_made_again(data: Path, tmp_path: Path) -> None:
    path = data / "x.binpack"
    first = numbers(path)
    # Another size; the same size and another time; the same size and time and other bytes at an end.
    parts = [chunk(tmp_path / "part", 7000 + 150 * i, 150) for i in range(40)]
    write(path, b"".join(parts[:39]))
    assert numbers(path) == list(range(7000, 7000 + 39 * 150))
    write(path, b"".join(parts))
    assert numbers(path) == list(range(7000, 13000))
    content = bytearray(path.read_bytes())
    content[8 + 31] ^= 1  # a rule-50 counter of the first position
    write(path, bytes(content))
    assert numbers(path)[:2] == [7001, 7001]
    assert numbers(path)[0] != first[0]


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_chunk_that_is_not_where_the_index_has_it_is_an_error(data: Path, tmp_path: Path, skip_bad: bool) -> None:
    path = data / "x.binpack"
    size = path.stat().st_size
    numbers(path)
    # The same first and last chunk, size and time, and other chunks between.
    content = path.read_bytes()
    chunks = _data.BinpackFile(str(path)).chunks
    (second, one), (_, two) = chunks[1], chunks[2]
    merged = b"BINP" + (one + two + 8).to_bytes(4, "little")
    write(path, content[: second - 8] + merged + content[second : second + one] + content[second + one :])
    assert path.stat().st_size == size
    with pytest.raises(UserError, match=r"x\.binpack: offset \d+: chunk 1 of \d+ bytes no longer begins here"):
        numbers(path, skip_bad_chunks=skip_bad)


def test_a_damaged_index_is_made_again(data: Path) -> None:
    path = data / "x.binpack"
    chunk_index.write([str(path)])
    index, expected = data / chunk_index.BESIDE, numbers(path)
    good = index.read_bytes()
    rng = random.Random(1)
    for _ in range(60):
        bad = bytearray(good)
        if rng.random() < 0.5:
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        else:
            del bad[rng.randrange(len(bad)) :]
        index.write_bytes(bad)
        assert chunk_index.read_index(index) == {}
    index.write_bytes(bad)
    assert numbers(path) == expected
    assert chunk_index.read_index(index).keys() == {"x.binpack"}


def test_the_chunks_of_an_entry_are_checked(data: Path) -> None:
    """An index that is whole, and wrong."""
    path = data / "x.binpack"
    chunk_index.write([str(path)])
    index, expected = data / chunk_index.BESIDE, numbers(path)
    (name, entry), *_ = chunk_index.read_index(index).items()
    for layout in (entry.layout[:-2], entry.layout + b"\x05", b"\xff" * 9, b""):
        chunk_index.write_index(index, {name: entry._replace(layout=layout)})
        assert numbers(path) == expected  # they do not cover the file
    longer = entry.layout[:-4] + bytes([entry.layout[-4] + 1, entry.layout[-3], entry.layout[-2] - 1, entry.layout[-1]])
    chunk_index.write_index(index, {name: entry._replace(layout=longer)})
    with pytest.raises(UserError, match="no longer begins here"):
        numbers(path)


def test_where_an_index_is_kept(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, index = data / "x.binpack", data / chunk_index.BESIDE
    assert chunk_index.write([str(path)], beside=False).written == list(cache.iterdir())
    made = chunk_index.write([str(path)])  # of what is in the cache
    assert (made.listed, made.written) == (0, [index])
    other = data / "y.binpack"
    os.link(path, other)
    numbers(path, other)  # a training adds to the one beside the data
    assert chunk_index.read_index(index).keys() == {"x.binpack", "y.binpack"}
    other.unlink()
    os.utime(path, ns=(OLD + 1, OLD + 1))
    assert chunk_index.write([str(path)]).listed == 1
    assert chunk_index.read_index(index).keys() == {"x.binpack"}
    index.unlink()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(chunk_index, "write_index", refuse)
    assert chunk_index.write([str(path)], again=True).written == []
    assert len(numbers(path)) == 6000


def test_the_command(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = write(data / "y.binpack.zst", compress((data / "x.binpack").read_bytes()))
    index = data / chunk_index.BESIDE
    first = nnue("data", "index", data)
    assert first.startswith("1 file, 40 chunks, ")
    assert "; 1 of them listed now\n" in first
    assert f"  {index}\n  {packed}: without an index: compressed with zstd" in first
    assert "all of them were listed already" in nnue("data", "index", data)
    assert "; 1 of them listed now\n" in nnue("data", "index", "--again", data / "x.binpack")
    index.unlink()
    nnue("data", "index", "--cache", data)
    assert not index.exists()
    for path in cache.iterdir():
        path.unlink()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(chunk_index, "write_index", refuse)
    with pytest.raises(UserError, match="the index cannot be written, neither beside the data nor in the cache folder"):
        nnue("data", "index", "--again", data)


def test_a_young_file_gets_no_entry_until_it_has_settled(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_index, "_SETTLED", 3600.0)
    path = data / "x.binpack"
    os.utime(path)
    numbers(path)
    assert not cache.exists()


def test_one_process_lists_the_chunks_while_others_wait(data: Path) -> None:
    paths = [str(data / "x.binpack")]
    begun = threading.Event()
    events: list[object] = []

    def wait() -> None:
        begun.set()
        with chunk_index._turn(paths, None) as waited:
            events.append(waited)

    with chunk_index._turn(paths, None) as waited:
        assert not waited
        other = threading.Thread(target=wait)
        other.start()
        assert begun.wait(SECONDS)
        events.append("first")
    other.join(SECONDS)
    assert events in (["first", True], ["first", False])  # False: it came when the first had just ended


def test_two_that_write_at_once_leave_a_whole_index(data: Path) -> None:
    path = data / "x.binpack"
    chunk_index.write([str(path)])
    index = data / chunk_index.BESIDE
    (entry,) = chunk_index.read_index(index).values()

    def save(first: int) -> None:
        for i in range(first, first + 20):
            (data / f"{i}.binpack").touch()
            chunk_index._save(str(data), {f"{i}.binpack": entry}, True)

    threads = [threading.Thread(target=save, args=(first,)) for first in (100, 200, 300)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert "x.binpack" in chunk_index.read_index(index)
    for thread in threads:
        thread.join()
    assert len(chunk_index.read_index(index)) >= 20


@pytest.fixture
def one_descriptor() -> Iterator[None]:
    _data.set_most_open_files(1)
    yield
    _data.set_most_open_files(1 << 16)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_files_take_turns_with_few_descriptors(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_descriptor: None, skip_bad: bool
) -> None:
    monkeypatch.setattr("nnue_trainer.data.opened.make_room_for", lambda files: None)
    monkeypatch.chdir(data)
    for i in range(3):
        write(data / f"{i}.binpack", (data / "x.binpack").read_bytes())
    files = ["0.binpack", "1.binpack", "2.binpack"]
    loader = RecordLoader(files, 100, shuffle=False, threads=1, skip_bad_chunks=skip_bad)
    assert sum(len(batch) for batch in loader) == 3 * 6000
    assert _data.open_input_files() <= 1
    monkeypatch.chdir(tmp_path)  # the names were those of another folder
    loader.restart(1)
    assert sum(len(batch) for batch in loader) == 3 * 6000
    write(data / "new", (data / "x.binpack").read_bytes()).rename(data / "0.binpack")
    loader.restart(2)
    with pytest.raises(UserError, match=r"0\.binpack: was replaced since it was opened"):
        list(loader)
    loader.close()


def test_a_folder_that_has_grown_resumes_with_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    base = {"data": {"train": "d"}, "model": {"kind": "simple"}, "loss": {"kind": "sigmoid", "scale": 400.0}}
    for name in "bd":
        (tmp_path / "d" / f"{name}.binpack").touch()
    before, _ = config.with_files(config.parse(base, ["data.weights=[2]"]))
    saved = schema.to_data(before)
    assert config.with_known_files(before, saved) == (before, [])
    for name in "ae":
        (tmp_path / "d" / f"{name}.binpack").touch()
    grown, _ = config.with_files(config.parse(base, ["data.weights=[2]"]))
    assert len(grown.data.train) == 4
    kept, notes = config.with_known_files(grown, saved)
    assert kept == before
    assert notes == [
        "data.train: d/a.binpack and 1 more came after the run began, which continues with its 2 files; a new run, or "
        "training.initial_weights, uses all of them"
    ]
    # Another order, another folder and a missing file are for the loader to refuse.
    for files in (
        "[d/d.binpack, d/b.binpack, d/a.binpack]",
        "[d/b.binpack, d/d.binpack, e/a.binpack]",
        "[d/b.binpack]",
    ):
        other = config.parse(base, [f"data.train={files}"])
        assert config.with_known_files(other, saved) == (other, [])
