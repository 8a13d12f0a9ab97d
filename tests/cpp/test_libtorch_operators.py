"""nnue/operators.h against the operators of Python: outputs, gradients, refusals and errors, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_support import with_torch
from sample_inputs import make_sample
from torch import Tensor
from typed import present

import nnue_trainer
from nnue_trainer import data, ops
from nnue_trainer.ops import perspectives
from nnue_trainer.ops.reference import Activation
from nnue_trainer.optim.fused_optimizer import FusedOptimizer
from nnue_trainer.optim.parts import Part
from nnue_trainer.optim.update_rule import UpdateRule

pytestmark = pytest.mark.compiler
ACTIVATIONS: list[Activation] = ["identity", "crelu", "screlu", "pairwise"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(scope="module")
def cpp() -> Any:
    torch.ops.load_library(str(with_torch("operators_for_tests") / "liboperators_for_tests.so"))
    return torch.ops.nnue_cpp


def leaves(*tensors: Tensor | None) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors if t is not None]


def message(call: Callable[[], object]) -> str:
    """The first line of the error that a call raises."""
    with pytest.raises(RuntimeError) as raised:
        call()
    return str(raised.value).splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("deterministic", [None, True, False])
@pytest.mark.parametrize("values", [False, True])
def test_feature_transformer(
    cpp: Any, device: torch.device, dtype: torch.dtype, deterministic: bool | None, values: bool
) -> None:
    sample = make_sample(values=values, dtype=dtype, device=device)

    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        parameters = leaves(sample.weight, sample.bias, sample.values)
        out = function(sample.indices, *parameters[:2], parameters[2] if values else None, deterministic)
        g = torch.Generator(device).manual_seed(3)
        grad = torch.randn(out.shape, generator=g, device=device).to(dtype)
        return [out, *torch.autograd.grad(out, parameters, grad)]

    found, expected = run(cpp.feature_transformer), run(ops.feature_transformer_forward)
    for a, b in zip(found, expected, strict=True):
        # Atomics of CUDA add in any order.
        same = deterministic is not True and device.type == "cuda"
        assert torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-3) if same else torch.equal(a, b)
        assert a.dtype == b.dtype


def test_only_what_is_asked_for(cpp: Any, device: torch.device) -> None:
    sample = make_sample(values=True, device=device)
    for chosen in range(3):
        parameters = [sample.weight, sample.bias, present(sample.values)]
        leaf = parameters[chosen] = parameters[chosen].clone().requires_grad_()
        weight, bias, values = parameters
        out = cpp.feature_transformer(sample.indices.long(), *parameters, True)
        expected = ops.feature_transformer_forward(sample.indices, weight, bias, values, True)
        (a,), (b,) = torch.autograd.grad(out.sum(), leaf), torch.autograd.grad(expected.sum(), leaf)
        assert torch.equal(a, b)
    assert not cpp.feature_transformer(*sample.arguments[:1], sample.weight, sample.bias, None, None).requires_grad


def pair(device: torch.device, outputs: int = 32) -> tuple[list[Tensor], list[Tensor]]:
    """Rows of Chess positions, and weight, bias, PSQT columns."""
    fens = ["4k3/pp6/8/3q4/8/8/PPP5/4K2R b - - 0 1", "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"]
    batch = data.expand(data.records_from_fens(fens * 20), "HalfKAv2_hm").to(device)
    g = torch.Generator().manual_seed(2)
    rows = data.feature_set("HalfKAv2_hm").num_features
    parameters = [torch.randn(shape, generator=g) * 0.3 for shape in ((rows, outputs), (outputs,), (rows, 8))]
    return [batch.white, batch.black, batch.black_to_move], [p.to(device) for p in parameters]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("psqt", [False, True])
def test_both_perspectives(
    cpp: Any, device: torch.device, activation: Activation, dtype: torch.dtype, psqt: bool
) -> None:
    rows, (weight, bias, columns) = pair(device)
    bucket = torch.arange(len(rows[0]), device=device) % 8
    number = ACTIVATIONS.index(activation)

    def run(python: bool) -> list[Tensor]:
        parameters = leaves(weight.to(dtype), bias, columns if psqt else None)
        given = (parameters[2], bucket) if psqt else (None, None)
        if python:
            made: Any = perspectives.perspective_transformer(
                rows[0], rows[1], rows[2], parameters[0], parameters[1], activation=activation, bound=0.9, scale=1.5,
                output_dtype=dtype, bucket_size=768, psqt=given[0], psqt_bucket=given[1],
            )  # fmt: skip
            out, psqt_out = made if psqt else (made, torch.empty(0))
        else:
            out, psqt_out = cpp.perspective_transformer(
                rows, *parameters[:2], *given, [768, -1], number, 0.9, 1.5, dtype
            )
        g = torch.Generator(device).manual_seed(3)
        total = (out.float() * torch.randn(out.shape, generator=g, device=device)).sum()
        total = total + (psqt_out * torch.arange(len(psqt_out), device=psqt_out.device)).sum()
        return [out, psqt_out.cpu(), *torch.autograd.grad(total, parameters)]

    for a, b in zip(run(False), run(True), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype


def assert_same_fault(in_cpp: str, in_python: str) -> None:
    """Checks that operator and reason are the same. The advice differs, since C++ has no forward mode."""
    assert in_cpp.partition("(double backward)")[:2] == in_python.partition("(double backward)")[:2]
    assert "second derivatives are not available in C++; leave out create_graph=true" in in_cpp


def test_no_second_derivative(cpp: Any, device: torch.device) -> None:
    sample = make_sample(device=device)
    rows, (weight, bias, _) = pair(device)

    def again(function: Callable[..., Any], *arguments: Any) -> str:
        leaf = arguments[1].clone().requires_grad_()
        out = function(arguments[0], leaf, *arguments[2:])
        out = out if isinstance(out, Tensor) else out[0]
        (gradient,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        return message(lambda: gradient.sum().backward())

    arguments = (sample.indices, sample.weight, sample.bias, None, None)
    assert_same_fault(again(cpp.feature_transformer, *arguments), again(ops.feature_transformer_forward, *arguments))

    def python(rows: list[Tensor], weight: Tensor, bias: Tensor, *_: object) -> Tensor:
        white, black, black_to_move = rows
        return perspectives.perspective_transformer(
            white, black, black_to_move, weight, bias, activation="screlu", bucket_size=768
        )

    rest = (bias, None, None, [768, -1], 2, 1.0, 1.0, torch.float32)
    assert_same_fault(again(cpp.perspective_transformer, rows, weight, *rest), again(python, rows, weight, bias))


def test_errors(cpp: Any, device: torch.device) -> None:
    sample = make_sample(device=device)
    wrong = sample.indices.clone()
    wrong[1, 0] = 50
    far = sample.indices.long()
    far[1, 0] = 2**40  # one only: a GPU reports any of several
    below = sample.indices.long()
    below[2, 1] = -(2**50)
    for indices, weight, bias, values in (
        (wrong, sample.weight, sample.bias, None),
        (far, sample.weight, sample.bias, None),
        (below, sample.weight, sample.bias, None),
        (sample.indices.float(), sample.weight, sample.bias, None),
        (sample.indices, sample.weight[0], sample.bias, None),
        (sample.indices, sample.weight, sample.bias.double(), None),
        (sample.indices, sample.weight, sample.bias, sample.weight),
    ):
        found = message(lambda: cpp.feature_transformer(indices, weight, bias, values, None))  # noqa: B023
        expected = message(lambda: ops.feature_transformer_forward(indices, weight, bias, values))  # noqa: B023
        assert found == expected
    rows, (weight, bias, columns) = pair(device)
    call = cpp.perspective_transformer
    rest = ([768, -1], 2, 1.0, 1.0, torch.float32)
    for index in (2**40, -(2**33)):
        wide = [rows[0].long(), rows[1].long(), rows[2]]
        wide[1][3, 0] = index
        reported = message(lambda: call(wide, weight, bias, None, None, *rest))  # noqa: B023
        assert f"indices: found index {index} in row 3, expected" in reported
    assert "expected both or none" in message(lambda: call(rows, weight, bias, columns, None, *rest))
    assert "set_index_check: mode: found 'no'" in message(lambda: cpp.set_index_check("no"))


@pytest.mark.parametrize("features", ["Chess768", "HalfKAv2_hm+Full_Threats_v16"])
def test_expansion(cpp: Any, device: torch.device, features: str) -> None:
    packed = data.records_from_fens(["4k3/pp6/8/3q4/8/8/PPP5/4K2R b - - 0 1"] * 3)
    records = torch.as_tensor(packed).to(device)
    for a, b in zip(cpp.expand_features(records, features), ops.expand_features(records, features), strict=True):
        assert torch.equal(a, b)


def test_operators_are_loaded_from_one_folder(cpp: Any, tmp_path: Path) -> None:
    package = str(Path(nnue_trainer.__file__).parent)
    with pytest.raises(RuntimeError, match="_ops_cpu"):
        cpp.load_operators(str(tmp_path))
    with pytest.raises(RuntimeError, match="_stats_cpu"):
        cpp.load_stats(str(tmp_path))
    cpp.load_stats(package)
    assert torch.equal(cpp.transpose(torch.arange(6).view(2, 3)), torch.arange(6).view(2, 3).t())
    cpp.load_operators(package)
    cpp.load_operators(package)
    with pytest.raises(RuntimeError, match=r"found operators in .*, but those of .*_ops_cpu\.so are loaded"):
        cpp.load_operators(str(tmp_path))


@pytest.mark.slow
def test_a_step_of_the_optimizer(cpp: Any, device: torch.device) -> None:
    """Operators that change tensors."""
    generator = torch.Generator().manual_seed(1)
    weight, gradient = (torch.randn(5, 8, generator=generator).to(device) for _ in range(2))
    parameter, lr = torch.nn.Parameter(weight.clone()), torch.tensor(0.01, device=device)
    optimizer = FusedOptimizer([Part("w", parameter, decay=0.1)], UpdateRule(), lr)
    moments = [torch.zeros_like(weight), torch.zeros_like(weight), *(weight.new_empty(0) for _ in range(2))]
    state = [torch.zeros_like(tensor) for tensor in optimizer.tensors]
    for _ in range(3):
        parameter.grad = gradient
        optimizer.step(torch.zeros((), device=device))
        cpp.adam_step(weight, gradient, moments, state, lr, 0.1)
    assert torch.equal(weight, parameter.detach())
    assert int(state[0]) == 3
