"""The CUDA kernel that appends the features of a set in a header, without a GPU: in the emulator of cuda_emulator/.

Against the CPU: rows of Chess768 that the data library has written, and behind them what the kernel appends.
"""

import ctypes
import subprocess
from pathlib import Path

import emulated_library
import numpy as np
import pytest
from needs import require
from test_outside_features import FENS, FOUR, WALKS
from translate import translate

from nnue_trainer.data import RecordLoader, expand, feature_set, records_from_fens

ROOT = Path(__file__).resolve().parents[2]
SETS = ["Squares", "Buckets", "Pawns", "OwnOnly"]

UNIT = """
#include "cuda/general_set.cuh"
#include "{header}"
namespace emulator {{ void synchronize(); }}
using namespace nnue;
extern "C" __attribute__((visibility("default"))) void append(const uint8_t* records, int64_t n, int32_t* white,
    int32_t* black, int16_t* counts, int length, int first, cuda::Finding* finding, unsigned* claimed) {{
    const cuda::FindingSink sink{{finding, claimed, "append", nullptr, {struct}::kNumFeatures}};
    cuda::launch_append<{struct}>(records, n, {{white, black, counts, length, first}}, sink, nullptr);
    emulator::synchronize();
}}
"""


class Finding(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_char_p),
        ("raise_it", ctypes.c_void_p),
        ("row", ctypes.c_int64),
        ("num_features", ctypes.c_int64),
        ("value", ctypes.c_int64),
        ("set", ctypes.c_int32),
    )


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulator, compiled."""
    require(emulated_library.why_not())
    compiled = tmp_path_factory.mktemp("emulator") / "emulator.o"
    command = [*emulated_library.COMPILER, *emulated_library.FLAGS, f"-I{emulated_library.HERE}"]
    subprocess.run([*command, "-c", str(emulated_library.HERE / "emulator.cpp"), "-o", str(compiled)], check=True)
    return compiled


def emulated(path: Path, struct: str, folder: Path, emulator: Path) -> ctypes.CDLL:
    """The kernel of a set, for the CPU."""
    folder.mkdir()
    (folder / "cuda").mkdir()
    for name in ("general_set.cuh", "index_check.cuh"):
        (folder / "cuda" / name).write_text(translate((ROOT / "csrc" / "cuda" / name).read_text()))
    (folder / "unit.cpp").write_text(UNIT.format(header=path, struct=struct))
    includes = [f"-I{place}" for place in (folder, emulated_library.HERE, ROOT / "data_loader")]
    sources = [str(folder / "unit.cpp"), str(emulator)]
    flags = [*emulated_library.FLAGS, *includes, "-shared", "-pthread", "-o", str(folder / "kernel.so")]
    subprocess.run([*emulated_library.COMPILER, *flags, *sources], check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def append(library: ctypes.CDLL, records: np.ndarray, name: str) -> tuple[list[np.ndarray], Finding]:
    """White, black and counts of "Chess768+NAME", whose second part the kernel has appended; what it has reported."""
    total, plain = feature_set(f"Chess768+{name}"), expand(records, "Chess768")
    rows = [np.full((len(records), total.max_active), -1, np.int32) for _ in range(2)]
    rows[0][:, :32], rows[1][:, :32] = plain.white.numpy(), plain.black.numpy()
    counts, finding, claimed = plain.counts.numpy().copy(), Finding(), ctypes.c_uint(0)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (records, *rows, counts)]
    packed, *memory = pointers
    reported = ctypes.byref(finding), ctypes.byref(claimed)
    library.append(packed, ctypes.c_int64(len(records)), *memory, total.max_active, 768, *reported)
    return [*rows, counts], finding


@pytest.fixture
def records() -> np.ndarray:
    loader = RecordLoader(ROOT / "samples" / "val.binpack", 150, shuffle=False, threads=1)
    games = next(iter(loader)).clone().numpy()
    loader.close()
    return np.concatenate([records_from_fens(FENS), games])


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("struct", [*SETS, "Neighbours"])
def test_the_kernel_appends_what_the_cpu_appends(
    struct: str, records: np.ndarray, tmp_path: Path, emulator: Path
) -> None:
    path = tmp_path / "four.h"
    path.write_text(FOUR)
    path = WALKS / "my_features.h" if struct == "Neighbours" else path
    name = feature_set(f"{path}:{struct}", may_import=True).name
    found, finding = append(emulated(path, struct, tmp_path / "emulated", emulator), records, name)
    expected = expand(records, f"Chess768+{name}")
    assert finding.set == 0
    for array, tensor in zip(found, (expected.white, expected.black, expected.counts), strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "value"),
    [
        (("64 * partner + to", "64 * partner + to + 832"), 12 * 64 + 8 + 832),
        (("kMaxActive = 20", "kMaxActive = 1"), 832 + 2),
        (("OwnOnly {", "OwnOnly {  // in buckets of one feature\n"), 0),
    ],
)
def test_the_kernel_reports_rows_that_do_not_fit(
    change: tuple[str, str], value: int, tmp_path: Path, emulator: Path
) -> None:
    text = FOUR.replace(*change)
    if value == 0:
        text = text.replace("kMaxActive = 20, kBucketSize = 0", "kMaxActive = 20, kBucketSize = 1")
    assert text.count(change[1]) == 1
    path = tmp_path / "bad.h"
    path.write_text(text)
    name = feature_set(f"{path}:OwnOnly", may_import=True).name
    records = records_from_fens([FENS[1], "4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", FENS[1]])
    found, finding = append(emulated(path, "OwnOnly", tmp_path / "emulated", emulator), records, name)
    assert (finding.set, finding.row, finding.num_features) == (1, 1, 832)
    assert finding.value == value or value == 0
    np.testing.assert_array_equal(found[0][:, 32:], -1)  # the row keeps what it had
