"""Peak memory against the formulas of docs/data.md, in processes of their own. What is read is several times larger."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MIB = 1 << 20

# Bytes by which the peak, since the imports, exceeds what the process had.
MEASURE = """
import ctypes, sys
def line(name):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(name))
def begin():
    global before
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    open("/proc/self/clear_refs", "w").write("5")
    before = line("VmRSS")
def end():
    print(line("VmHWM") - before)
"""


def peak(project_root: Path, code: str, *arguments: object) -> int:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc/self/clear_refs")
    run = subprocess.run(
        [sys.executable, "-c", MEASURE + code, *map(str, arguments)], cwd=project_root, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def train(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 MiB of chains, the sample thirty times: 9.0 million positions, 275 MiB of records."""
    path = tmp_path_factory.mktemp("memory") / "train.binpack"
    path.write_bytes((project_root / "samples" / "train.binpack").read_bytes() * 30)
    return path


LOADER = """
from nnue_trainer.data import Filters, Loader
buffer, shards, threads = map(int, sys.argv[2:])
loader = Loader(sys.argv[1], "HalfKAv2_hm", 16384, shuffle_buffer=buffer, threads=threads, repeat=shards > 1,
                shards=shards, filters=Filters(quiet=True), reuse=True)
begin()
for _ in zip(range(300), loader):
    pass
end()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("buffer", "shards", "threads"), [(1 << 18, 1, 1), (1 << 20, 1, 3), (1 << 18, 8, 2)])
def test_loader(project_root: Path, train: Path, buffer: int, shards: int, threads: int) -> None:
    windows = 2 * 32 * buffer
    chunks = (threads + shards) * 14 * MIB  # decoded, of 1 MiB
    scratch = threads * 2 * MIB
    batches = (threads + 3) * 16384 * 275
    found = peak(project_root, LOADER, train, buffer, shards, threads)
    assert windows < found < windows + chunks + scratch + batches


SHUFFLE = """
from pathlib import Path
from nnue_trainer.data.transform import shuffle
shuffle([sys.argv[1]] * 2, Path(sys.argv[2] + ".first.binpack"), memory=1 << 20)  # loads code that is used once
begin()
shuffle([sys.argv[1]] * 10, Path(sys.argv[2]), memory=int(sys.argv[3]))
end()
"""


@pytest.mark.slow
def test_shuffle(project_root: Path, tmp_path: Path) -> None:
    """Three million positions: 160 MiB of memory if there is no bound."""
    val = project_root / "samples" / "train.binpack"
    memory = 32 * MIB
    found = peak(project_root, SHUFFLE, val, tmp_path / "out.binpack", memory)
    assert memory / 2 < found < memory + 16 * MIB
    assert peak(project_root, SHUFFLE, val, tmp_path / "unbounded.binpack", 1 << 30) > 120 * MIB


INFO = """
from nnue_trainer.data.info import file_info
begin()
file_info(sys.argv[1])
end()
"""


def test_info(project_root: Path, train: Path) -> None:
    assert peak(project_root, INFO, train) < 64 * MIB


LITTLE = """
import resource, sys
from nnue_trainer.data import RecordLoader
from nnue_trainer.errors import UserError

def positions():
    with RecordLoader(sys.argv[1], 1000, threads=2, drop_last=False, shuffle_buffer=1 << 22) as loader:
        return sum(len(batch) for batch in loader)

whole, found = positions(), []
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
for mebibytes in range(0, 100, 7):
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), most))
    try:
        found.append(positions() == whole)
    except (UserError, MemoryError) as error:
        found.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(*found, sep="\\n")
print(positions() == whole)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_threads_that_get_no_memory_end_in_one_error(positions_file: Callable[[str], Path]) -> None:
    """Wherever an allocation fails: the loader raises, the process lives, and a later loader reads everything."""
    command = [sys.executable, "-c", LITTLE, str(positions_file("train"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *found, later = done.stdout.splitlines()
    assert later == "True"
    assert any(line.startswith("not enough memory to read the data: a shuffle buffer of") for line in found)
    assert "False" not in found
