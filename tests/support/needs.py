"""Requirements of some tests beside the project, by marker: a GPU, a chess engine, positions that are not ours to give.

A test whose tool is missing is skipped, with the reason. With NNUE_REQUIRE_ALL=1 it fails instead. On a machine without
a GPU, leave the GPU tests out by name then: `pytest -m "not cuda"`. Tests marked `shared` only use more positions
than the project carries, so they are skipped even then."""

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nnue_trainer.base import _library
from nnue_trainer.engines.uci import find_engine
from nnue_trainer.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("NNUE_SHARED", ROOT.parent / "shared"))


def require(missing: str | None) -> None:
    """Skips the test that runs if something is `missing`, or fails it where everything is required."""
    if missing is None:
        return
    if os.environ.get("NNUE_REQUIRE_ALL"):
        pytest.fail(f"{missing} (NNUE_REQUIRE_ALL is set)", pytrace=False)
    pytest.skip(missing)


@functools.cache
def no_cuda() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device"
    error = _library.load().cuda_error
    return None if error is None else f"no CUDA op library: {error}"


def no_two_gpus() -> str | None:
    return no_cuda() or ("only one CUDA device" if torch.cuda.device_count() < 2 else None)


@functools.cache
def no_engine() -> str | None:
    try:
        path = find_engine()
    except UserError as error:
        return str(error)
    said = subprocess.run([path], input="uci\nquit\n", capture_output=True, text=True, check=True).stdout
    return None if "id name Stockfish 15.1\n" in said else f"{path} is not Stockfish 15.1"


def no_shared() -> str | None:
    return None if (SHARED / "vectors").is_dir() else f"no positions at {SHARED} (set NNUE_SHARED)"


def no_tool(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"no {name}"


def no_package(*names: str) -> Callable[[], str | None]:
    def missing() -> str | None:
        found = [name for name in names if importlib.util.find_spec(name) is None]
        return f"no {' or '.join(found)}" if found else None

    return missing


def no_arm() -> str | None:
    return no_tool("aarch64-linux-gnu-g++")() or no_tool("qemu-aarch64")()


def no_browser() -> str | None:
    return no_tool("chromium")() or no_tool("chromedriver")()


TOOLS: dict[str, Callable[[], str | None]] = {
    "cuda": no_cuda,
    "two_gpus": no_two_gpus,
    "engine": no_engine,
    "compiler": no_tool("g++"),
    "arm": no_arm,
    "onnx": no_package("onnx", "onnxscript", "onnxruntime"),
    "rust": lambda: no_tool("rustc")() or no_tool("cargo")(),
    "browser": no_browser,
    "pandas": no_package("pandas"),
    "lightning": no_package("pytorch_lightning"),
    "optuna": no_package("optuna"),
}
"""Marker → what is missing here for the tests that have it."""
