"""The kernels as compiled for compute capability 7.5 (RTX 20, T4) in the emulator: copies through registers, float32
products in place of tensor cores, 64 KB of shared memory. A second library has the operators that differ."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import emulated_library
import pytest
import torch
from fused_loss import on_gpu
from needs import require
from operator_fixtures import load_emulated
from test_emulated_kernels import make_case as make_transformer
from test_fused_step import LAYERED, SFNNV5, SIMPLE, check_step
from test_layer_stacks import LOSSES, NETS, check_loss, check_output, make_case, same_bits

from nnue_trainer.modules import layer_stacks
from nnue_trainer.modules.layer_stacks import LayerStacks
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.reference import StackLayer

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FAST = ("sfnnv5", "bf16"), ("sfnnv16", "fp32")
SHARED = "the layers need more than 99 KB of shared memory (64 KB on 7.5)"


@pytest.fixture(scope="module")
def library(project_root: Path) -> ctypes.CDLL:
    require(emulated_library.why_not())
    return load_emulated(project_root, 75)


@pytest.fixture
def turing(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """Layers and steps take CPU tensors as if they were on a GPU of capability 7.5."""
    operators = torch.ops.nnue_emulated_75
    on_gpu(monkeypatch, 75, operators)
    monkeypatch.setattr(layer_stacks, "_operators", operators)
    library.emulator_configure(4, 7)
    return library


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if (name, dtype) in FAST else pytest.mark.slow)
        for name in ("sfnnv5", "sfnnv16", "one layer", "deep")
        for dtype in DTYPES
    ],
)
def test_layers(turing: ctypes.CDLL, name: str, dtype: str) -> None:
    """With the tolerances of the kernels for 9.0, against float64; 16 and 32 outputs of layer 0."""
    case = make_case(NETS[name](), 331, 1, DTYPES[dtype])
    found = check_output(case)
    turing.emulator_configure(4, 99)
    same_bits(found, check_output(case))


@pytest.mark.parametrize("name", ["sfnnv5", "one layer"])
def test_loss(turing: ctypes.CDLL, name: str) -> None:
    check_loss(make_case(NETS[name](), 203, 2), LOSSES["win rate"])


@pytest.mark.parametrize("seed", [0, 1, 3, 6])
def test_transformer(library: ctypes.CDLL, emulator: ctypes.CDLL, seed: int) -> None:
    """The portable kernels have no instruction of 8.0: the same bits as compiled for 9.0."""
    case = make_transformer(seed).with_kernels("portable")
    library.emulator_configure(4, seed)
    emulator.emulator_configure(4, seed)
    for found, expected in zip(case.run("nnue_emulated_75"), case.run("nnue_emulated"), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("net", [SIMPLE, LAYERED | {"psqt": True}, SFNNV5], ids=["simple", "buckets", "sfnnv5"])
def test_step(turing: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, net: dict[str, Any]) -> None:
    check_step(monkeypatch, net)


def test_layers_of_more_than_64_kb(turing: ctypes.CDLL) -> None:
    """The table gives them to torch, and the operator refuses them."""
    large = LayerStacks(32, 1, (StackLayer(32, 32, "dual", 1.0, square=1.0), StackLayer(64, 64, "crelu", 1.0)))
    assert capabilities.stacks(capabilities.gpu(86), large).kernels == "tiles"
    assert capabilities.stacks(capabilities.gpu(75), large) == ("torch", SHARED)
    case = make_case(large, 20, 1)
    order = large.order(case.first.bucket)
    operator = torch.ops.nnue_emulated_75._layer_stacks_forward
    with pytest.raises(RuntimeError, match=r"layers that fit 99 KB together \(64 KB on 7\.5\)"):
        operator(case.first.x, order, case.behind.parameters, None, large.description)
