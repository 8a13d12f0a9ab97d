"""`nnue info` shows what is built, and why a part is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import nnue_trainer
from nnue_trainer.base import _library
from nnue_trainer.cli.info import _library_line, collect
from nnue_trainer.cli.main import app


def test_json() -> None:
    info = json.loads(CliRunner().invoke(app, ["info", "--json"]).output)
    assert info == collect()
    assert info["nnue_trainer"] == nnue_trainer.__version__
    assert info["torch"] == torch.__version__
    assert info["cpu_ops"]["error"] is None
    assert info["cpu_ops"]["built"]["library"] == "cpu"
    assert info["cuda_ops"]["error"] == _library.load().cuda_error
    assert info["stats_cpu_ops"]["built"]["library"] == "stats_cpu"
    assert info["stats_cuda_ops"]["error"] == _library.load_stats().cuda_error
    assert len(info["cuda_devices"]) == torch.cuda.device_count()


def test_text() -> None:
    lines = CliRunner().invoke(app, ["info"]).output.splitlines()
    text = {line[:14].strip(): line[15:] for line in lines}
    assert text["torch-nnue"] == nnue_trainer.__version__
    assert text["CPU operators"].startswith("loaded; built by ")
    assert torch.__version__ in text["torch"]
    if (error := _library.load().cuda_error) is not None:
        assert error in text["CUDA operators"]
    assert text["CPU stats"].startswith("loaded; built by ")
    assert (_library.load_stats().cuda_error or "loaded; ") in text["CUDA stats"]
    built = _library.build_info(_library.CUDA_LIBRARY)
    for architecture in [] if built is None else built["architectures"].split("+"):
        assert f"sm_{architecture}" in text["CUDA operators"]


@pytest.mark.slow
def test_module_entry() -> None:
    run = subprocess.run([sys.executable, "-m", "nnue_trainer", "info"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("torch-nnue")


@pytest.mark.parametrize(
    ("cuda_build", "words"),
    [
        ("forced_off", "not built: no _ops_cuda.so: FORCE_CUDA=0 was set when this package was built"),
        ("no_nvcc", "not built: no _ops_cuda.so: nvcc was not found when this package was built"),
        ("built", "not built: no _ops_cuda.so: it was built with this package, but the file is not here"),
        ("unknown", "not built: _ops_cuda.so was not built"),
    ],
)
def test_why_there_is_no_cuda_library(tmp_path: Path, cuda_build: str, words: str) -> None:
    """The CPU library carries the reason in its bytes, from the time it was built."""
    cpu = tmp_path / "_ops_cpu.so"
    cpu.write_bytes(b"@nnue-build-info@" + json.dumps({"library": "cpu", "cuda_build": cuda_build}).encode() + b"\0")
    error = _library._load_cuda(cpu, tmp_path / "_ops_cuda.so")
    assert _library_line({"built": None, "error": error}).startswith(words)


def test_the_cpu_library_says_whether_cuda_was_built() -> None:
    built = _library.build_info(_library.CPU_LIBRARY)
    assert built is not None
    assert built["cuda_build"] in ("built", "forced_off", "no_nvcc")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_torch_without_cuda_is_said_plainly(tmp_path: Path) -> None:
    """A file that the loader refuses, as it refuses the real library where torch has no CUDA symbols."""
    cuda = tmp_path / "_ops_cuda.so"
    built = {"library": "cuda", "compiler": "gcc", "torch_headers": "2.13", "architectures": "80+90", "cuda": "13.0"}
    cuda.write_bytes(b"@nnue-build-info@" + json.dumps(built).encode() + b"\0")
    error = _library._load_cuda(tmp_path / "_ops_cpu.so", cuda)
    line = _library_line({"built": _library.build_info(cuda), "error": error})
    assert line.startswith(f"built, but this torch ({torch.__version__}) has no CUDA; built by gcc")
