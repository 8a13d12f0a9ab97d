"""Loading of the op libraries: what is built, and what is reported where something is missing."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

import nnue_trainer
from nnue_trainer import _data, ops
from nnue_trainer.base import _library
from nnue_trainer.ops import _enumerations, functional
from nnue_trainer.stats import _plain, windows


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | env,
        timeout=120,
        check=False,
    )


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    """A copy of the package's Python files, no libraries."""
    source = Path(nnue_trainer.__file__).parent
    shutil.copytree(source, tmp_path / "nnue_trainer", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def test_libraries_are_loaded() -> None:
    libraries = _library.load()
    assert libraries.cpu_error is None
    if not _library.CUDA_LIBRARY.is_file():
        assert "_ops_cuda.so" in str(libraries.cuda_error)
    elif torch.version.cuda is None:
        assert libraries.cuda_error == f"built, but this torch ({torch.__version__}) has no CUDA"
    else:
        assert libraries.cuda_error is None


def test_build_info() -> None:
    info = _library.build_info(_library.CPU_LIBRARY)
    assert info is not None
    assert info["library"] == "cpu"
    assert info["version"] == nnue_trainer.__version__
    if _library.CUDA_LIBRARY.is_file():
        info = _library.build_info(_library.CUDA_LIBRARY)
        assert info is not None
        assert info["architectures"].split("+")[0].isdigit()
        assert int(info["cuda"].split(".")[0]) >= 12
    stats = _library.build_info(_library.STATS_CPU_LIBRARY)
    assert stats == {**(_library.build_info(_library.CPU_LIBRARY) or {}), "library": "stats_cpu"}
    if _library.STATS_CUDA_LIBRARY.is_file() and _library.CUDA_LIBRARY.is_file():
        info = _library.build_info(_library.CUDA_LIBRARY) or {}
        assert _library.build_info(_library.STATS_CUDA_LIBRARY) == {**info, "library": "stats_cuda"}
    assert _library.build_info(Path(__file__).with_name("absent.so")) is None


@pytest.mark.slow
def test_package_imports_without_libraries(package_copy: Path) -> None:
    code = "import nnue_trainer; print(nnue_trainer.__version__); nnue_trainer.FeatureTransformer"
    result = run_python(code, PYTHONPATH=str(package_copy))
    assert result.stdout.strip() == nnue_trainer.__version__
    assert "the operator library is not available: _ops_cpu is missing in " in result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_broken_cuda_library_leaves_the_cpu(package_copy: Path) -> None:
    for library in (_library.CPU_LIBRARY, Path(_data.__file__)):
        shutil.copy(library, package_copy / "nnue_trainer")
    (package_copy / "nnue_trainer" / "_ops_cuda.so").write_bytes(b"not a library")
    code = """
import torch
from nnue_trainer import FeatureTransformer, ops
from nnue_trainer.base import _library
assert FeatureTransformer(4, 3)(torch.zeros(2, 1, dtype=torch.int32)).shape == (2, 3)
assert "_ops_cuda.so" in _library.load().cuda_error, _library.load().cuda_error
rows = torch.zeros(2, 1, dtype=torch.int32)
arguments = (rows, None, torch.zeros(4, 3), torch.zeros(3), None)
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
from nnue_trainer.ops import perspectives
assert perspectives.is_fused(torch.zeros(4, 2))
assert not perspectives.is_fused(torch.zeros(768, 16, device="meta"), 768)
try:
    torch.ops.nnue._perspective_plan.default.redispatch(cuda, rows, rows, rows[:, 0].byte(), 4, 4, 4, 4)
    raise AssertionError("perspective_plan did not raise")
except RuntimeError as error:
    assert "found a CUDA tensor, but the CUDA operator library is not available" in str(error)
torch.ops.nnue.feature_transformer_forward.default.redispatch(cuda, *arguments)  # what a CUDA tensor would reach
"""
    result = run_python(code, PYTHONPATH=str(package_copy))
    last = result.stderr.splitlines()[-1]
    assert "found a CUDA tensor, but the CUDA operator library is not available" in last
    assert "_ops_cuda.so" in last


LOADED = """
import torch
from pathlib import Path
mapped = {line.split("/")[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".so")}
print(*sorted(mapped & {"_ops_cpu.so", "_stats_cpu.so"}))
names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
some = ("feature_transformer_forward", "_optimizer_step", "rolling", "random_fill")
print(*(name for name in some if f"nnue::{name}" in names))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("code", "libraries", "operators"),
    [
        ("from nnue_trainer import stats\nstats.random.Philox(1, stream=2)", "", ""),
        ("import nnue_trainer.training.run", "_ops_cpu.so", "feature_transformer_forward _optimizer_step"),
        (
            "import torch\nfrom nnue_trainer import stats\ntorch.ops.nnue.row_norms\n"
            "from nnue_trainer.stats import graph, matrix, random\n"
            "stats.rolling(random.Philox(1).uniform(5), 2).mean(), stats.ewm(torch.ones(5), span=2), stats.WindowState",
            "_stats_cpu.so", "rolling random_fill",
        ),
    ],
)  # fmt: skip
def test_training_and_statistics_load_only_their_own_library(code: str, libraries: str, operators: str) -> None:
    run = run_python(code + LOADED)
    assert run.stdout.splitlines() == [libraries, operators], run.stderr


def test_why_there_is_no_library_of_statistics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_library, "STATS_CPU_LIBRARY", tmp_path / "_stats_cpu.so")
    load = _library.load_stats.__wrapped__
    assert "_stats_cpu was not built in" in str(load().cpu_error) or "_stats_cpu is missing" in str(load().cpu_error)
    with pytest.raises(RuntimeError, match="the operator library is not available: _stats_cpu"):
        _library.require(load)
    _library.STATS_CPU_LIBRARY.write_bytes(b"not a library")
    assert "_stats_cpu.so" in str(load().cpu_error)


USES_STATISTICS = "import torch\nfrom nnue_trainer.stats import matrix\nprint(matrix.transpose(torch.eye(2)[:1]).shape)"
BUILDS_STATISTICS = """
import os, shutil
if os.environ["NNUE_PARTS"] == "stats" and os.environ["NNUE_ISA"] == "native":
    shutil.copy({library!r}, "nnue_trainer")
"""


def test_a_checkout_compiles_statistics_at_first_use(package_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package_copy)
    shutil.copy(_library.CPU_LIBRARY, "nnue_trainer")
    for folder in ("build", "tools"):
        Path(folder).mkdir()
    Path("setup.py").touch()
    Path("tools/quiet_build.py").write_text("raise SystemExit(1)")
    failed = run_python(USES_STATISTICS, PYTHONPATH=".")
    assert "_stats_cpu was not built in" in failed.stderr.splitlines()[-1]
    assert "run `make build`" in failed.stderr.splitlines()[-1]

    Path("tools/quiet_build.py").write_text(BUILDS_STATISTICS.format(library=str(_library.STATS_CPU_LIBRARY)))
    first, second = (run_python(USES_STATISTICS, PYTHONPATH=".") for _ in range(2))
    assert first.stdout == second.stdout == "torch.Size([2, 1])\n", first.stderr
    assert first.stderr.splitlines() == ["nnue: note: compiling the operators of statistics, once: half a minute"]
    assert second.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("level", ["baseline", "avx2"])
def test_instruction_set_levels_compute_the_same_bits(level: str, tmp_path: Path) -> None:
    code = f"""
import sys, torch
sys.path[:0] = [*{[str(Path(__file__).parents[1] / room) for room in ("support", "stats")]!r}]
from sample_inputs import make_pair, make_sample
from test_random import Philox, some
from nnue_trainer import ops
from nnue_trainer.ops.perspectives import perspective_transformer
results = some(Philox(3, 1, 5), 5003, "cpu")
g = torch.Generator().manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    s = make_sample(100, 12, 60, 213, values=True, dtype=dtype)
    out = ops.feature_transformer_forward(s.indices, s.weight, s.bias, s.values)
    results += [out, *ops.feature_transformer_backward(out, s.indices, 60, s.values, s.weight, needs_values_grad=True)]
    for activation in ("identity", "crelu", "screlu", "pairwise") if dtype != torch.float64 else ():
        p = make_pair(100, 12, 60, 214, psqt_buckets=5, dtype=dtype).requires_grad()
        for t in (p.weight, p.bias, p.psqt):
            t.data += torch.randn(t.shape, generator=g).to(t.dtype) / 8
        outputs = perspective_transformer(*p.arguments, **p.options, activation=activation)
        grads = torch.autograd.grad(outputs, p.parameters, [torch.randn(o.shape, generator=g).to(o) for o in outputs])
        results += [*(o.detach() for o in outputs), *grads]
torch.save(results, sys.argv[1])
"""
    root = str(Path(nnue_trainer.__file__).parents[1])
    files = []
    for name, env in (("best", {}), (level, {"NNUE_CPU_ISA": level})):
        files.append(tmp_path / name)
        subprocess.run(
            [sys.executable, "-c", code, str(files[-1])],
            check=True,
            env={k: v for k, v in os.environ.items() if k != "NNUE_CPU_ISA"} | {"PYTHONPATH": root} | env,
        )
    best, other = (torch.load(file, weights_only=True) for file in files)
    for a, b in zip(best, other, strict=True):
        assert torch.equal(a, b)


def test_setup_without_torch_says_what_to_do(project_root: Path) -> None:
    script = str(project_root / "setup.py")
    code = f"import runpy, sys; sys.modules['torch'] = None; sys.argv[1:] = ['build_ext']; runpy.run_path({script!r})"
    result = run_python(code)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "torch cannot be imported" in result.stderr
    assert "`pip install 'torch>=2.10'" in result.stderr


def test_half_values_survive() -> None:
    """Subnormals, infinities and NaN of float16 go through the sum as they are."""
    special = torch.tensor([0.0, -0.0, 6e-8, -6e-5, 65504.0, float("inf"), float("-inf"), float("nan")])
    weight = special.half().repeat(1, 4)  # 32 columns: vectors and tail
    out = ops.feature_transformer_forward(torch.zeros(1, 1, dtype=torch.int32), weight, torch.zeros(32).half())
    torch.testing.assert_close(out, weight, rtol=0, atol=0, equal_nan=True)


def test_every_operator_is_on_a_page(project_root: Path) -> None:
    page = "".join(path.read_text() for path in sorted((project_root / "docs").glob("ops*.md")))
    names = {n.partition("::")[2].partition(".")[0] for n in torch._C._dispatch_get_all_op_names() if "nnue::" in n}
    assert len(names) > 40
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", page)) == []


def test_choices_of_python_are_those_of_the_operators() -> None:
    """One table; the types that Python declares have its words, in its order."""
    assert tuple(_plain.TABLE["rolling_quantile.interpolation"]) == get_args(windows.Interpolation)
    assert tuple(_enumerations.TABLE["set_cuda_index_check.mode"]) == get_args(ops.IndexCheck)
    for argument in (*_enumerations.TABLE, *_plain.TABLE):
        operator, _, name = argument.partition(".")
        if operator == "kernels":  # results of the operators of csrc/capabilities.h
            continue
        schema = getattr(torch.ops.nnue, operator).default._schema if operator != "set_cuda_index_check" else None
        assert schema is None or str(next(a.type for a in schema.arguments if a.name == name)) == "int"
    with pytest.raises(ValueError, match=r"^ewm: statistic: found 'sum', expected mean, var or std$"):
        _plain.code("ewm.statistic", "sum")


def test_each_operator_has_one_name_in_schemas_and_implementations(project_root: Path) -> None:
    """CUDA files are not compiled everywhere, so their registrations are compared as text."""
    schemas = runpy.run_path(str(project_root / "csrc" / "operator_calls.py"))["schemas"]
    declared = {schema.partition("(")[0] for schema in schemas()}
    sources = [*(project_root / "csrc").rglob("*.cpp"), *(project_root / "csrc").rglob("*.cu")]
    found = [re.findall(r'NNUE_IMPL\(\s*m,\s*"(\w+)"', source.read_text()) for source in sources]
    assert {name for names in found for name in names} == declared
    # The operators of a training step are private.
    assert not [name for name in declared if re.match("perspective|layer_stacks|optimizer|stack|to_integers", name)]


@pytest.mark.slow
@pytest.mark.compiler
def test_graphs_of_other_libraries_are_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch keeps compiled graphs on disk, and their keys do not include an operator's schema."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    rows, weight, bias = torch.zeros(3, 4, dtype=torch.int32), torch.rand(8, 16), torch.rand(16)

    def from_disk() -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.compile(lambda weight: functional.feature_transformer(rows, weight, bias) + 1)(weight)
        return int(torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"])

    assert from_disk() == 0
    assert from_disk() == 1
    for library in ("CPU_LIBRARY", "CUDA_LIBRARY"):
        other = tmp_path / library
        other.write_bytes(b"")
        monkeypatch.setattr(_library, library, other)
        monkeypatch.setattr(torch.compiler.config, "cache_key_tag", "")
        _library._tag_compiled_graphs()
        assert from_disk() == 0
        assert from_disk() == 1
