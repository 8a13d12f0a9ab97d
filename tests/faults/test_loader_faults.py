"""The loader under attack: threads that close, fork and exit in the middle, a system that gives no threads, files that
change, grow and never end. Everything must end in one exception, never in a crash or a hang."""

import gzip
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zstandard
from loader_states import same_states
from torch.utils.data import DataLoader
from waiting import SECONDS, wait_for

from nnue_trainer import _data
from nnue_trainer.data import (
    Batch,
    Filters,
    Loader,
    PositionReader,
    PositionWriter,
    RecordLoader,
    identities,
    identity,
    records_from_fens,
    require_same,
)
from nnue_trainer.data.batch import memory_of
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.compression import decompress
from nnue_trainer.data.files import StrPath
from nnue_trainer.data.filters import FILTERS
from nnue_trainer.data.loader import usable_threads
from nnue_trainer.data.transform import convert
from nnue_trainer.errors import UserError
from nnue_trainer.files.inputs import data_files

B = 256
FENS = [
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -",
    "4k3/8/8/8/8/8/P7/4K3 b - -",
    "8/8/8/8/8/8/1k6/3K4 w - -",
]


def write_chunks(path: Path, first: int = 0, chunks: int = 6, size: int = 500) -> Path:
    """Positions that are distinguished by their rule-50 counter."""
    parts = b""
    for chunk in range(chunks):
        numbers = range(first + size * chunk, first + size * (chunk + 1))
        write_binpack(path.with_suffix(".part"), records_from_fens([f"{FENS[i % 3]} {i} 9" for i in numbers]))
        parts += path.with_suffix(".part").read_bytes()
    path.with_suffix(".part").unlink()
    path.write_bytes(parts)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_chunks(tmp_path / "x.binpack")


def ids(records: torch.Tensor) -> list[int]:
    return (records[:, 30].int() * 256 + records[:, 31].int()).tolist()


def run(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | environment,
    )


# --- batches ---------------------------------------------------------------------------------------------------------


def test_batches_that_are_kept_stay_as_they_were(file: Path) -> None:
    records = list(islice(RecordLoader(file, 100, seed=1, threads=2, repeat=True), 40))
    expected = [ids(b) for b in islice(RecordLoader(file, 100, seed=1, threads=2, repeat=True, reuse=True), 40)]
    assert [ids(batch) for batch in records] == expected
    rows = list(islice(Loader(file, "Chess768", 100, seed=1, threads=2, repeat=True), 40))
    copies = [b.clone() for b in islice(Loader(file, "Chess768", 100, seed=1, repeat=True, reuse=True), 40)]
    for batch, copy in zip(rows, copies, strict=True):
        assert copy.storage is not None
        for name, array in batch.arrays().items():
            np.testing.assert_array_equal(array, copy.arrays()[name])


def test_clone_and_to(file: Path) -> None:
    for batch in (next(iter(Loader(file, "Chess768", 100))), next(iter(Loader(file, "Chess768", 100))).head(10)):
        assert batch.to("cpu").white.data_ptr() == batch.white.data_ptr()
        copy, before = batch.clone(), batch.white.clone()
        batch.white.zero_()
        assert torch.equal(copy.white, before)
        assert isinstance(copy, Batch)
        assert len(copy) == len(batch)


def test_iterating_again_goes_on_and_restart_starts_over(file: Path) -> None:
    loader = RecordLoader(file, 100, seed=3, epoch=2)
    whole = [ids(batch) for batch in loader]
    loader.restart()
    assert loader.epoch == 2
    first = [ids(batch) for batch in islice(loader, 5)]
    assert first == whole[:5]
    assert [ids(batch) for batch in islice(loader, 5)] == whole[5:10]
    loader.restart()
    assert [ids(batch) for batch in loader] == whole
    loader.restart(epoch=7)
    assert [ids(batch) for batch in loader] == [ids(batch) for batch in RecordLoader(file, 100, seed=3, epoch=7)]
    stale = iter(loader)
    next(stale)
    loader.restart()
    with pytest.raises(UserError, match="closed or restarted"):
        next(stale)


# --- threads ---------------------------------------------------------------------------------------------------------

# Ten programs, forked from one so that each need not import everything again.
LEFT_OPEN = """
import os, sys, threading
from contextlib import suppress
import numpy as np
from nnue_trainer.data import Loader, RecordLoader
from nnue_trainer.errors import UserError

def every(records):
    return np.ones(len(records), bool)

for i in range(10):
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
if child != 0:
    sys.exit()

kept = [Loader(sys.argv[1], "HalfKAv2_hm", 64, repeat=True, threads=3, user_filter=every) for _ in range(2)]
for loader in kept:
    for batch in loader:
        break
stuck = RecordLoader(sys.argv[1], 64, repeat=True, threads=2, reuse=True, hold=1, user_filter=every)
pipeline = stuck._open().pipeline

def wait_for_ever():
    with suppress(UserError):  # a daemon thread that prints at the end of Python makes Python abort
        while True:
            pipeline.next()  # nothing is given back, so after some batches this waits for ever

for _ in range(2):
    threading.Thread(target=wait_for_ever, daemon=True).start()
"""


@pytest.mark.slow
def test_a_program_may_end_with_everything_open(file: Path) -> None:
    result = run(LEFT_OPEN, file)
    assert (result.returncode, result.stdout.split()) == (0, ["0"] * 10), result.stderr
    assert "FATAL" not in result.stderr


def take_all(loader: RecordLoader, begun: threading.Semaphore, ended: list[BaseException | str]) -> None:
    try:
        for _ in loader:
            begun.release()
        ended.append("end")
    except UserError as error:
        ended.append(error)


def test_a_loader_may_be_closed_from_another_thread(file: Path) -> None:
    for i in range(30):
        loader = RecordLoader(file, B, repeat=True, threads=2, reuse=True, hold=3, seed=i)
        loader.open()
        ended: list[BaseException | str] = []
        several = [threading.Semaphore(0) for _ in range(1 + i % 2)]
        readers = [threading.Thread(target=take_all, args=(loader, begun, ended)) for begun in several]
        for reader in readers:
            reader.start()
        for begun in several:  # an iteration that begins after the end opens the loader again
            assert begun.acquire(timeout=SECONDS)
        time.sleep(0.001 * (i % 7))
        loader.close()
        for reader in readers:
            reader.join(SECONDS)
            assert not reader.is_alive()
        assert all("closed" in str(error) for error in ended), ended


@pytest.mark.slow
def test_a_filter_that_lets_go_of_its_own_loader(file: Path) -> None:
    code = """
import sys
import numpy as np
from nnue_trainer.data import RecordLoader
loaders = []
def last_word(records):
    loaders.clear()
    return np.ones(len(records), bool)
loaders.append(RecordLoader(sys.argv[1], 16, threads=3, user_filter=last_word))
loaders[0].open()
import time
while loaders:
    time.sleep(0.001)
print("end")
"""
    result = run(code, file)
    assert (result.returncode, result.stdout) == (0, "end\n"), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "drop"),
    [
        ("threading.Event().wait()", "del loader"),
        ("while True: pass", ""),
        ("threading.Event().wait()", "loader.close()"),
    ],
)
def test_a_filter_that_never_returns_does_not_hold_up_the_end(file: Path, body: str, drop: str) -> None:
    """Wherever its pipeline is lost: the program goes on, and ends with its own status."""
    code = f"""
import sys, threading
from nnue_trainer.data import RecordLoader
inside = threading.Event()
def hang(records):
    inside.set()
    {body}
loader = RecordLoader(sys.argv[1], 16, threads=2, user_filter=hang)
loader.open()
inside.wait()
{drop}
print("went on", flush=True)
sys.exit(3)
"""
    result = run(code, file)
    assert (result.returncode, result.stdout) == (3, "went on\n"), result.stderr
    assert "a filter of a loader does not return; ending without it" in result.stderr
    assert "FATAL" not in result.stderr


def test_a_dropped_pipeline_is_freed_when_its_filter_has_returned(file: Path) -> None:
    class Slow:
        def __init__(self) -> None:
            self.inside, self.may_return = threading.Event(), threading.Event()

        def __call__(self, records: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
            self.inside.set()
            self.may_return.wait()
            return np.ones(len(records), bool)

    slow = Slow()
    may_return, filters = slow.may_return, weakref.ref(slow)
    loader = RecordLoader(file, 16, threads=2, user_filter=slow)
    loader.open()
    slow.inside.wait()
    del slow, loader
    assert filters() is not None
    may_return.set()
    others = []

    def is_freed() -> bool:
        """A pipeline that is made frees those that have ended."""
        others.append(RecordLoader(file, 16, threads=1))
        others[-1].open()
        return filters() is None

    wait_for(is_freed)


@pytest.mark.slow
def test_a_fork_leaves_the_loader_to_its_parent(file: Path) -> None:
    code = """
import os, sys
from nnue_trainer.data import RecordLoader
loader = RecordLoader(sys.argv[1], 16, repeat=True, threads=3)
stream = iter(loader)
next(stream)
child = os.fork()
if child == 0:
    try:
        next(stream)
    except Exception as error:
        print(type(error).__name__, str(error)[:45], flush=True)
    loader.close()
    sys.exit(7)
_, status = os.waitpid(child, 0)
next(stream)
print(os.waitstatus_to_exitcode(status))
"""
    result = run(code, file)
    assert result.stdout == "UserError the loader was opened in another process, bef\n7\n", result.stderr


THREADS = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
int threads_left = 1 << 30;
int pthread_create(pthread_t* t, const pthread_attr_t* a, void* (*f)(void*), void* x) {
    static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (__atomic_sub_fetch(&threads_left, 1, __ATOMIC_SEQ_CST) < 0) return EAGAIN;
    return real(t, a, f, x);
}
"""
"""Lets the process start a given number of further threads, and no more."""

WRITES = """#include <sys/syscall.h>
#include <unistd.h>
int nothing = 0;
ssize_t write(int file, const void* data, size_t size) {
    return nothing && file > 2 ? 0 : syscall(SYS_write, file, data, size);
}
ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
    return nothing ? 0 : syscall(SYS_pwrite64, file, data, size, offset);
}
"""
"""Calls that write, and from some moment on write nothing and return no error."""


def build_shim(folder: Path, text: str) -> Path:
    """A library for LD_PRELOAD."""
    source = folder / "shim.c"
    source.write_text(text)
    library = folder / "shim.so"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.slow
@pytest.mark.compiler
def test_a_system_that_gives_no_threads(tmp_path: Path, file: Path) -> None:
    code = """
import ctypes, sys
import numpy as np
from nnue_trainer.data import Batch, PositionReader, RecordLoader, expand
from nnue_trainer.errors import UserError
records = np.concatenate(list(PositionReader(sys.argv[1])))
many = np.tile(records, (20, 1))
expected = expand(many, "Chess768", threads=4).white.clone()
left = ctypes.c_int.in_dll(ctypes.CDLL(None), "threads_left")
for some in (0, 1, 3, 4, 5):
    loader = RecordLoader(sys.argv[1], 16, threads=5)
    left.value = some
    try:
        loader.open()
        print(some, "opened")
    except UserError as error:
        print(some, error)
    loader.close()
left.value = 0
assert (expand(many, "Chess768", threads=4).white == expected).all()
assert (np.concatenate(list(PositionReader(sys.argv[1]))) == records).all()
"""
    result = run(code, file, LD_PRELOAD=str(build_shim(tmp_path, THREADS)))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for some, line in zip((0, 1, 3, 4), lines, strict=False):
        assert line.startswith(f"{some} cannot start thread {some + 1} of 5 that read the data: ")
    assert lines[4:] == ["5 opened"]


@pytest.mark.compiler
def test_a_system_that_writes_nothing_and_reports_no_error(tmp_path: Path, file: Path) -> None:
    code = """
import ctypes, sys
from pathlib import Path
from nnue_trainer.data import PositionReader
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.transform import shuffle
from nnue_trainer.errors import UserError
source = Path(sys.argv[1])
records = read_binpack(source)
nothing = ctypes.c_int.in_dll(ctypes.CDLL(None), "nothing")
def spilled():
    shuffle([source] * 100, source.parent / "shuffled.binpack", memory=1 << 20)
for work in (lambda: write_binpack(source.parent / "out.binpack", records), spilled):
    nothing.value = 1
    try:
        work()
        print("written")
    except UserError as error:
        print(error)
    nothing.value = 0
"""
    result = run(code, file, LD_PRELOAD=str(build_shim(tmp_path, WRITES)))
    assert result.returncode == 0, result.stderr
    one, other = result.stdout.splitlines()
    assert one.endswith("out.binpack: cannot write: Input/output error")
    assert other.startswith(f"{tmp_path}: cannot write temporary data: Input/output error"), other


# --- objects of _data, used by several threads and with wild numbers -------------------------------------------------


EXPECTED = (UserError, ValueError, TypeError, IndexError, OverflowError, MemoryError, RuntimeError, KeyError)


def attack(calls: list[Callable[[random.Random], object]], seconds: float, seed: int, threads: int = 4) -> None:
    """Calls any of them in any order from several threads; exceptions are what is expected."""
    deadline = time.monotonic() + seconds

    def work(number: int) -> None:
        rng = random.Random(1000 * seed + number)
        while time.monotonic() < deadline:
            with suppress(*EXPECTED):
                rng.choice(calls)(rng)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SECONDS)
        assert not worker.is_alive()


def wild(rng: random.Random) -> int:
    return rng.choice([0, 1, 2, 3, 99_999_999, -1, 2**31, 2**32, 2**63, 2**64, 2**64 - 1, rng.randrange(100)])


ATTACK = f"""
import random, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1] / "support")!r}]
from pathlib import Path
import test_loader_faults as faults
getattr(faults, sys.argv[1])(Path(sys.argv[2]), int(sys.argv[3]))
print("end")
"""


def attack_pipeline(path: Path, seed: int) -> None:
    def make(rng: random.Random) -> _data.Pipeline:
        with path.open("rb") as handle:
            data = _data.DataFile(_data.InputFile(str(path), handle.fileno()), bool(rng.getrandbits(1)))
        batch = rng.choice([1, 16, 64])
        fields: dict[str, Any] = {
            "features": rng.choice([None, "Chess768"]),
            "batch_size": batch,
            "seed": 1,
            "shuffle": bool(rng.getrandbits(1)),
            "window": rng.choice([1, 100, 10_000]),
            "drop_last": True,
            "threads": rng.choice([0, 1, 2, 3]),
            "rank": 0,
            "world_size": 1,
            "shards": rng.choice([1, 1, 2]),
            "weights": [],
            "skip_bad_chunks": False,
            "filters": Filters().compiled(),
        }
        if rng.random() < 0.2:
            fields[rng.choice(list(fields))] = wild(rng)
        files: Any = [data] * rng.choice([0, 1, 2])
        user_filter: Any = rng.choice([None, lambda records: np.ones(len(records), bool), lambda records: 1 / 0])
        if rng.random() < 0.05:
            files = rng.choice([wild(rng), [wild(rng)], [None]])
        if rng.random() < 0.05:
            user_filter = wild(rng)
        arrays = [memory(fields["features"], batch) for _ in range(rng.randrange(4))]
        start: Any = [(0, 0, 0, 0, [])] if rng.random() < 0.8 else [(*tuple(wild(rng) for _ in range(4)), [])]
        return _data.Pipeline(_data.PipelineOptions(**fields), files, arrays, start, user_filter)

    def memory(features: object, batch: int) -> npt.NDArray[np.uint8]:
        return memory_of(Batch.allocate(batch, 32)) if features else np.zeros((batch, 32), np.uint8)

    def stop() -> None:
        raise ValueError

    current: list[_data.Pipeline] = []

    def replace(rng: random.Random) -> None:
        fresh = make(rng)
        current[:] = [fresh]

    def use(act: Callable[[_data.Pipeline, random.Random], object]) -> Callable[[random.Random], object]:
        return lambda rng: act(current[0], rng)

    attack(
        [
            replace,
            *[use(lambda p, rng: p.release(p.next(stop)[0]))] * 12,
            use(lambda p, rng: p.next(stop)),
            use(lambda p, rng: p.release(wild(rng))),
            use(lambda p, rng: p.release(p.next(stop)[0], memory(rng.getrandbits(1), rng.choice([16, 64])))),
            use(lambda p, rng: (p.filter_counts(), p.bad_chunks(), p.num_chunks)),
            use(lambda p, rng: p.close() if rng.random() < 0.3 else None),
        ],
        2,
        seed,
    )


def attack_tools(path: Path, seed: int) -> None:
    records = read_binpack(path)
    broken = records.copy()
    broken[::7, 3] = 255
    folder = path.parent

    def some(rng: random.Random) -> np.ndarray:
        source = records if rng.random() < 0.9 else broken
        begin = rng.randrange(len(source))
        return rng.choice([source[begin : begin + rng.randrange(2000)], source, source[:0], source[:, :31]])

    def open_in(name: str, make: Callable[[int], object]) -> object:
        with (folder / name).open("wb") as file:  # the object has a separate descriptor
            return make(file.fileno())

    makers: dict[str, Callable[[], object]] = {
        "reader": lambda: _data.PositionReader(str(path), None, "", False),
        "writer": lambda: open_in(
            "out", lambda fd: _data.PositionWriter("out", fd, random.choice(_data.formats())[0], True)
        ),
        "binpack": lambda: open_in("out.binpack", lambda fd: _data.BinpackWriter("out.binpack", fd)),
        "shuffle": lambda: _data.ExternalShuffle(1, random.choice([1, 1 << 16, 1 << 20]), str(folder)),
        "splitter": lambda: _data.GameSplitter(1, 0.5),
        "mixer": lambda: open_in("mixed", lambda fd: _data.Interleaver([str(path)] * 2, "mixed", fd, 1)),
        "duplicates": _data.DuplicateEstimator,
        "statistics": _data.Statistics,
        "validator": _data.Validator,
        "file": lambda: _data.BinpackFile(str(path)),
    }
    objects = {name: make() for name, make in makers.items()}

    def act(rng: random.Random) -> None:
        name = rng.choice(list(makers))
        if rng.random() < 0.02:
            objects[name] = makers[name]()
        thing = objects[name]
        method = rng.choice([m for m in dir(thing) if not m.startswith("__")])
        value = getattr(thing, method)
        if callable(value):
            arguments = rng.choice([(), (some(rng),), (some(rng),), (wild(rng),), (100,)])
            if (
                arguments
                and method in ("read", "read_originals", "decode")
                and isinstance(arguments[0], int)
                and arguments[0] > 10**6
            ):
                arguments = (2**62,)  # rather than gigabytes
            value(*arguments)

    attack([act], 2, seed)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["attack_pipeline", "attack_tools"])
def test_objects_that_several_threads_use_with_wild_numbers(file: Path, target: str) -> None:
    for seed in range(2):
        result = run(ATTACK, target, file, seed)
        assert (result.returncode, result.stdout[-4:]) == (0, "end\n"), (seed, result.stderr[-2000:])


def test_slots_that_are_not_held_are_refused(file: Path) -> None:
    loader = RecordLoader(file, B, threads=1, repeat=True, reuse=True)
    pipeline = loader._open().pipeline
    for slot in (0, 3, 99_999_999):
        with pytest.raises(UserError, match=f"slot {slot}: found no batch that the caller holds"):
            pipeline.release(slot)
    slot, *_ = pipeline.next()
    pipeline.release(slot)
    with pytest.raises(UserError, match="found no batch that the caller holds"):
        pipeline.release(slot)
    slot, *_ = pipeline.next()
    with pytest.raises(UserError, match="must be a writable contiguous uint8 array"):
        pipeline.release(slot, np.zeros((B, 31), np.uint8))
    with pytest.raises(UserError, match="must be a writable"):
        pipeline.release(slot, [[0] * 32] * B)  # type: ignore[arg-type]
    loader.close()


# --- workers of a DataLoader ----------------------------------------------------------------------------------------


class Rows(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, loader: RecordLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.loader)


def pickled(loader: Any) -> Any:
    """The loader as another process gets it."""
    return ForkingPickler.loads(ForkingPickler.dumps(loader))


def first_of(loader: Any) -> torch.Tensor:
    batch = next(iter(loader))
    return batch.white if isinstance(batch, Batch) else batch


@pytest.mark.slow
def test_several_workers_would_each_yield_all_of_the_data(file: Path) -> None:
    for opened in (False, True):
        loader = RecordLoader(file, 100, shuffle=False)
        if opened:
            loader.open()
        with pytest.raises(UserError, match="loader: used in 2 workers of a DataLoader, each of which would yield all"):
            list(DataLoader(Rows(loader), batch_size=None, num_workers=2))
        loader.close()
    loader = RecordLoader(file, 100, shuffle=False)
    found = [number for batch in DataLoader(Rows(loader), batch_size=None, num_workers=1) for number in ids(batch)]
    assert found == list(range(3000))


OWN = """
import numpy as np
from nnue_trainer.data.filters import Filter
from nnue_trainer.schema import section
@section
class Thirds(Filter):
    \"\"\"Every third.\"\"\"
    def keep(self, records):
        return records.sum(1) % 3 == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_worker_that_is_not_forked_continues_where_the_loader_was(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str
) -> None:
    (tmp_path / "thirds_of_mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    own = FILTERS.find("thirds_of_mine.py:Thirds")()
    options: dict[str, Any] = {"filters": Filters(extra=[own]), "seed": 4, "count_unique": True}
    expected = [batch.tolist() for batch in RecordLoader(file, 100, **options)]
    with RecordLoader(file, 100, **options) as loader:
        first = next(iter(loader)).tolist()
        rest = DataLoader(Rows(loader), batch_size=None, num_workers=1, multiprocessing_context=context)
        assert [first, *(batch.tolist() for batch in rest)] == expected
    assert len(expected) > 3


def test_a_pickled_loader_is_the_same_loader(file: Path) -> None:
    for loader in (Loader(file, "HalfKP", 100, seed=3), RecordLoader([file, str(file)], 100, hold=3, epoch=2)):
        with loader, pickled(loader) as fresh, fresh:
            assert type(fresh) is type(loader)
            assert fresh.epoch == loader.epoch
            assert same_states(fresh.state_dict(), loader.state_dict())
            assert torch.equal(first_of(fresh), first_of(loader))
            with pickled(loader) as later:
                assert same_states(later.state_dict(), loader.state_dict())
                assert not same_states(later.state_dict(), RecordLoader(file, 100).state_dict())


@pytest.mark.parametrize("option", ["user_filter", "poll"])
def test_what_cannot_be_pickled_is_one_line(file: Path, option: str) -> None:
    loader = RecordLoader(file, 100, **{option: lambda *_: None})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"^loader: {option} cannot be pickled .*: define it at the top level of a mod"):
        ForkingPickler.dumps(loader)


# --- many files ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_files_than_the_soft_limit(file: Path, tmp_path: Path) -> None:
    code = """
import resource, sys
from nnue_trainer.data import RecordLoader
hard = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
loader = RecordLoader([sys.argv[1]] * 300, 100)
print(sum(len(batch) for batch in loader))
"""
    assert run(code, file, 2048).stdout == f"{300 * 3000}\n"
    # Files are closed and opened again if the hard limit is too low.
    assert run(code, file, 400).stdout == f"{300 * 3000}\n"


@pytest.mark.slow
def test_a_folder_of_bullets_files(tmp_path: Path) -> None:
    source = write_chunks(tmp_path / "x.binpack")
    (tmp_path / "folder").mkdir()
    convert([source], tmp_path / "folder" / "a.data", to="bulletformat")
    files = data_files([str(tmp_path / "folder")], "data.train")
    assert [Path(name).name for name in files] == ["a.data"]
    assert sum(len(batch) for batch in RecordLoader(files, 100, drop_last=False)) == 3000


@pytest.mark.parametrize("suffix", [".plain", ".txt"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, suffix: str) -> None:
    source, path = write_chunks(tmp_path / "x.binpack"), tmp_path / f"y{suffix}"
    convert([source], path)
    expected = list(PositionReader(path))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [ours.tolist() for ours in PositionReader(path)] == [theirs.tolist() for theirs in expected]
    assert sum(len(batch) for batch in RecordLoader(path, 100, shuffle=False, drop_last=False)) == 3000


# --- text that is not UTF-8 -----------------------------------------------------------------------------------------


def test_bytes_that_are_no_utf8_are_left_out_like_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = f"fen {FENS[0]} 0 1\nmove e2e4\nscore 1\nply 0\nresult 0\ne\n".encode()
    path = tmp_path / "x.plain"
    path.write_bytes(good * 30_000 + good.replace(b"KQkq", b"\xff\x9b") + good * 30_000)
    loader = RecordLoader(path, 100, shuffle=False, skip_bad_chunks=True)
    positions = sum(len(batch) for batch in loader)
    assert 20_000 < positions < 60_000
    assert loader.bad_chunks().chunks == 1
    assert r"'\xff\x9b'" in loader.bad_chunks().first
    assert [r"\xff\x9b" in record.message for record in caplog.records] == [True]
    report = convert([path], tmp_path / "y.bin", skip_bad=True)
    assert (report.positions, report.skipped) == (60_000, 1)
    assert r"\xff\x9b" in report.first_skipped[0]


# --- files that change -----------------------------------------------------------------------------------------------


def test_a_file_that_grows_is_what_it_was_when_it_was_opened(tmp_path: Path) -> None:
    path = write_chunks(tmp_path / "x.binpack")
    loader = RecordLoader(path, 100, shuffle=False)
    before = loader.identities
    with path.open("ab") as file:
        file.write(write_chunks(tmp_path / "more.binpack", 3000).read_bytes())
    assert [number for batch in loader for number in ids(batch)] == list(range(3000))
    loader.restart()
    assert [number for batch in loader for number in ids(batch)] == list(range(3000))
    assert loader.identities == before
    state = loader.state_dict()
    assert state["order"]["files"] == [list(identity) for identity in before]
    with pytest.raises(UserError, match=r"loader state: files changed: there was x\.binpack \([\d,]+ bytes, digest"):
        RecordLoader(path, 100, shuffle=False).load_state_dict(state)


def test_a_file_that_is_replaced_or_rewritten(tmp_path: Path) -> None:
    path = write_chunks(tmp_path / "x.binpack")
    other = write_chunks(tmp_path / "y.binpack", 3000)
    loader = RecordLoader(path, 100, shuffle=False)
    first = ids(next(iter(loader)))
    other.rename(path)  # another file by that name: this loader keeps the one it has opened
    assert [*first, *(number for batch in loader for number in ids(batch))] == list(range(3000))
    loader.restart()
    assert ids(next(iter(loader))) == first
    loader = RecordLoader(path, 100, shuffle=False)
    loader.open()
    content = bytearray(path.read_bytes())
    content[8 + 31] ^= 1  # the first rule-50 counter
    with path.open("r+b") as file:
        file.write(content)
    with pytest.raises(UserError, match=r"x\.binpack: changed since it was opened"):
        list(loader)
    loader.restart()
    with pytest.raises(UserError, match=r"x\.binpack: changed since it was opened"):
        list(loader)


def test_the_same_file_under_another_name_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_chunks(tmp_path / "x.binpack")
    loader = RecordLoader(path, 100, seed=1)
    stream = iter(loader)
    next(stream)
    state, expected = loader.state_dict(), ids(next(stream))
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "other name")
    monkeypatch.chdir(tmp_path / "folder")
    resumed = RecordLoader("other name", 100, seed=1)
    resumed.load_state_dict(state)
    assert ids(next(iter(resumed))) == expected
    require_same(loader.identities, identities(["other name"]), "data.validation")
    write_chunks(tmp_path / "z.binpack", 1)
    with pytest.raises(UserError, match=r"data\.validation changed: there was x\.binpack .* now there is z\.binpack"):
        require_same(loader.identities, [identity(tmp_path / "z.binpack")], "data.validation")
    with pytest.raises(UserError, match=r"data\.validation changed: there were 1 \(x\.binpack\), now there are 0"):
        require_same(loader.identities, [], "data.validation")


def test_a_damaged_state_is_one_line(file: Path) -> None:
    loader = RecordLoader(file, 100)
    good = loader.state_dict()
    rng = random.Random(5)

    def spoil(data: object) -> object:
        if isinstance(data, dict) and data and rng.random() < 0.8:
            key = rng.choice(list(data))
            rest = {k: v for k, v in data.items() if k != key}
            return rest if rng.random() < 0.2 else {**data, key: spoil(data[key])}
        if isinstance(data, list) and data and rng.random() < 0.8:
            return [spoil(data[0]), *data[1:]]
        if isinstance(data, torch.Tensor) and rng.random() < 0.8:
            return rng.choice([data[:-1], data.double(), data - 2, data[None]])
        return rng.choice([None, -1, 2**64, 1.5, "x", [], {}, [1], True])

    refused, lines = 0, []
    for _ in range(500):
        state = spoil(good)
        try:
            loader.load_state_dict(state)  # type: ignore[arg-type]
            next(iter(loader), None)
        except UserError as error:
            refused += 1
            lines.append(str(error))
    assert refused > 400
    assert not any("\n" in line for line in lines)
    loader.close()


# --- files that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [PositionReader, lambda path: RecordLoader(path, B).open(), identity])
def test_what_goes_on_for_ever_is_no_data(tmp_path: Path, read: Callable[[StrPath], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        with pytest.raises(UserError, match=f"{path}: not a regular file"):
            read(path)


def test_sparse_giants_are_no_data(tmp_path: Path, file: Path) -> None:
    giant = tmp_path / "giant"
    for head in (b"", file.read_bytes(), b"8/8/8/8/8/8/1k6/3K4 w - - 0 1 | 0 | 0.5\n" * 3000):
        giant.write_bytes(head)
        os.truncate(giant, 1 << 43)
        for read in (lambda: list(RecordLoader(giant, B, threads=2)), lambda: list(PositionReader(giant))):
            with pytest.raises(UserError, match="giant"):
                read()
    # Larger than a disk can be.
    with PositionWriter(file.with_suffix(".bin")) as writer:
        writer.write(np.tile(read_binpack(file), (2, 1)))
    memory = os.memfd_create("giant")
    os.write(memory, file.with_suffix(".bin").read_bytes())
    os.truncate(memory, 40 << 55)
    with pytest.raises(UserError, match=r": 1441151880758558720 bytes: the files have more than 67108864 chunks"):
        RecordLoader(f"/proc/self/fd/{memory}", B, threads=2).open()
    os.close(memory)


def test_threads_are_as_many_as_the_data_can_use(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = RecordLoader(file, B, threads=1000, repeat=True)
    next(iter(loader))
    assert loader.threads == min(7, usable_threads())
    assert "1000 threads requested" in caplog.text
    assert len(caplog.records) == 1
    loader.close()


def test_a_chunk_counts_once_and_a_torn_end_is_a_chunk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_chunks(tmp_path / "x.binpack")
    data = bytearray(path.read_bytes()[:-20])  # the file ends inside its sixth chunk
    size = (path.stat().st_size) // 6
    data[size + 50 : size + 60] = b"\xff" * 10  # and the second is damaged
    path.write_bytes(data)
    with pytest.raises(UserError, match="chunk 5 claims a payload"):
        RecordLoader(path, 100).open()
    loader = RecordLoader(path, 100, repeat=True, skip_bad_chunks=True, shuffle=False, threads=2)
    seen = {number for batch in islice(loader, 100) for number in ids(batch)}  # five passes
    assert seen == {*range(500), *range(1000, 2500)}
    found = loader.bad_chunks()
    assert (found.chunks, found.first.split(": ")[2][:8]) == (2, "chunk 5 ")
    loader.close()
    assert loader.bad_chunks() == found
    assert len(caplog.records) == 1
    assert "this chunk is skipped" in caplog.text
    path = tmp_path / "x.bin"
    with PositionWriter(path) as writer:
        writer.write(read_binpack(write_chunks(tmp_path / "z.binpack")))
    path.write_bytes(path.read_bytes()[:-1])
    with RecordLoader(path, 100, shuffle=False, drop_last=False, skip_bad_chunks=True) as loader:
        assert sum(len(batch) for batch in loader) == 2999
        assert "a record of 39 bytes" in loader.bad_chunks().first


# --- compressed files ------------------------------------------------------------------------------------------------


def zstd_frame(window_log: int, blocks: int, *, size: int = 1 << 17) -> bytes:
    """A frame without checksum of blocks that are one zero repeated: 128 KiB of four bytes."""
    block = (size << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (size << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd" + bytes([0, (window_log - 10) << 3]) + block * (blocks - 1) + last


def test_zstd_of_every_kind_is_what_it_was(tmp_path: Path) -> None:
    rng = random.Random(4)
    for i in range(60):
        parts = [rng.randbytes(rng.randrange(300_000)) if rng.random() < 0.5 else b"x" * rng.randrange(900_000)]
        parts += [rng.randbytes(10) * rng.randrange(5)]
        packed = b""
        for part in parts:
            has_size, has_checksum = bool(rng.getrandbits(1)), bool(rng.getrandbits(1))
            compressor = zstandard.ZstdCompressor(
                level=rng.choice([1, 3, 9]), write_content_size=has_size, write_checksum=has_checksum
            )
            if rng.getrandbits(1):
                packed += compressor.compress(part)
            else:
                stream = compressor.compressobj()
                packed += b"".join(stream.compress(part[k : k + 50_000]) for k in range(0, len(part), 50_000))
                packed += stream.flush()
            if rng.random() < 0.3:
                packed += b"\x53\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"skipped"
        path = tmp_path / "x"
        path.write_bytes(packed)
        room = memoryview(bytearray(sum(map(len, parts)) + 1))
        with path.open("rb") as file:
            assert decompress(path, "zstd", file).readinto(room) == len(room) - 1
        assert room[:-1] == b"".join(parts)
        path.write_bytes(packed[: rng.randrange(1, len(packed))])
        if i % 3 == 0:
            with path.open("rb") as file, suppress(UserError):
                count = decompress(path, "zstd", file).readinto(room)
                assert room[:count] == b"".join(parts)[:count]  # cut between two frames


MEMORY = """
import sys
from pathlib import Path
from nnue_trainer.data import PositionReader, RecordLoader
from nnue_trainer.errors import UserError
def line(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))
import zstandard
before = line("VmRSS")
try:
    for _ in PositionReader(sys.argv[1]): pass
except UserError as error:
    print(error)
print(line("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status")
def test_a_zstd_bomb_takes_its_window_and_no_more(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zst"
    bomb.write_bytes(zstd_frame(27, 20_000))  # 2.5 GiB
    *_, peak = run(MEMORY, bomb).stdout.splitlines()
    assert int(peak) < 160 << 20
    for window_log, claimed in ((28, "256"), (31, "2,048"), (41, "2,097,152")):
        bomb.write_bytes(zstd_frame(window_log, 10))
        message, peak = run(MEMORY, bomb).stdout.splitlines()
        assert f"bomb.zst: zstd with a window of {claimed} MiB, expected at most 128 MiB" in message
        assert int(peak) < 30 << 20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="no /proc/self/io")
@pytest.mark.parametrize("command", ["loader", "reader", "info"])
def test_ctrl_c_while_a_bomb_is_unpacked(tmp_path: Path, command: str) -> None:
    """32 GB of empty lines, in which no second position ever comes: most of them are never unpacked."""
    bomb = tmp_path / "bomb.gz"
    line = b"8/8/8/8/8/8/1k6/3K4 w - - 0 1 | 0 | 0.5\n"
    bomb.write_bytes(gzip.compress(line) + gzip.compress(b"\n" * (64 << 20), 9) * 500)
    code = {
        "loader": "RecordLoader(sys.argv[1], 16).open()",
        "reader": "list(PositionReader(sys.argv[1]))",
        "info": "file_info(sys.argv[1])",
    }[command]
    start = (
        "import atexit, os, signal, sys, threading, time\n"
        "from nnue_trainer.data import PositionReader, RecordLoader\n"
        "from nnue_trainer.data.info import file_info\n"
        "def read(): return int(open('/proc/self/io').readline().split()[1])\n"
        "begin = read()\n"
        "atexit.register(lambda: print(read() - begin))\n"
        "def interrupt():\n"
        "    while read() < begin + 100_000: time.sleep(0.001)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
    )
    result = run(start + code, bomb, TMPDIR=str(tmp_path))
    assert "KeyboardInterrupt" in result.stderr
    assert int(result.stdout) < bomb.stat().st_size / 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bomb.gz"]


def test_poll_ends_a_wait(tmp_path: Path, file: Path) -> None:
    class Enough(Exception):
        pass

    calls = []

    def poll() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Enough

    loader = RecordLoader(file, 100, repeat=True, reuse=True, hold=1, threads=1, poll=poll)
    pipeline = loader._open().pipeline
    pipeline.next(poll)
    calls.clear()
    with pytest.raises(Enough):  # as nothing is given back
        pipeline.next(poll), pipeline.next(poll), pipeline.next(poll)
    loader.close()
    calls.clear()
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(file.read_bytes() * 100, 1))
    with pytest.raises(Enough):
        RecordLoader(packed, 100, poll=poll).open()


def test_compressed_files_are_unpacked_once(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nnue_trainer.data import compression, opened

    unpacked = []
    original = compression.unpack

    def unpack(*arguments: Any, **options: Any) -> object:
        unpacked.append(arguments[0])
        return original(*arguments, **options)

    monkeypatch.setattr(opened, "unpack", unpack)
    packed = tmp_path / "x.gz"
    packed.write_bytes(gzip.compress(file.read_bytes(), 1))
    loader = RecordLoader(packed, 100, shuffle=False)
    passes = []
    for _ in range(3):
        loader.restart()
        passes.append([number for batch in loader for number in ids(batch)])
        loader.close()
    assert passes == [list(range(3000))] * 3
    assert unpacked == [packed]
    assert loader.identities == [identity(packed)]
