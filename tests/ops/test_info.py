"""`nnue info` tells what is built, and why something is not there."""

import json
import subprocess
import sys

import torch
from typer.testing import CliRunner

import nnue_trainer
from nnue_trainer import _library
from nnue_trainer.cli.info import collect
from nnue_trainer.cli.main import app


def test_json() -> None:
    info = json.loads(CliRunner().invoke(app, ["info", "--json"]).output)
    assert info == collect()
    assert info["nnue_trainer"] == nnue_trainer.__version__
    assert info["torch"] == torch.__version__
    assert info["cpu_ops"]["error"] is None
    assert info["cpu_ops"]["built"]["library"] == "cpu"
    assert info["cuda_ops"]["error"] == _library.load().cuda_error
    assert len(info["cuda_devices"]) == torch.cuda.device_count()


def test_text() -> None:
    lines = CliRunner().invoke(app, ["info"]).output.splitlines()
    text = {line[:13].strip(): line[14:] for line in lines}
    assert text["nnue-trainer"] == nnue_trainer.__version__
    assert text["CPU ops"].startswith("loaded; built by ")
    assert torch.__version__ in text["torch"]
    if (error := _library.load().cuda_error) is not None:
        assert text["CUDA ops"].endswith(error)
    built = _library.build_info(_library.CUDA_LIBRARY)
    for architecture in [] if built is None else built["architectures"].split("+"):
        assert f"sm_{architecture}" in text["CUDA ops"]


def test_module_entry() -> None:
    run = subprocess.run([sys.executable, "-m", "nnue_trainer", "info"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("nnue-trainer")
