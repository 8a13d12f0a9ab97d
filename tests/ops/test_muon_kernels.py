"""Muon's CUDA kernels, in the emulator and on a GPU, against a float64 reference that moves singular values instead of
iterating on matrices."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnue_trainer.nets.base import VirtualRows, WeightBound
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.capabilities import Choice
from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.base import OPTIMIZERS, Work
from nnue_trainer.optim.muon import MuonRule

# Shapes, and how many virtual ones there are.
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((2, 16, 70), 1),
    ((4, 5, 3), 2),
    ((6, 4), 0),
    ((3, 2, 2), 0),
    ((2, 7, 65), 0),
]
FEW = [SHAPES[1], SHAPES[2]]  # the emulator takes seconds for 100 steps of these
LARGE: list[tuple[tuple[int, ...], int]] = [
    ((2, 16, 1024), 1),
    ((2, 32, 30), 0),
    ((1, 64, 130), 0),
    ((3, 64, 64), 1),
    ((2, 90, 47), 1),
    ((4, 2, 33, 35), 2),
    *[((2, 3), 0)] * 17,  # more than one launch takes
]


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda")
    request.getfixturevalue("emulator")
    monkeypatch.setattr(fused_operators, "namespace", torch.ops.nnue_emulated)
    monkeypatch.setattr(capabilities, "matrix_step", lambda *_: Choice("operators", ""))
    return torch.device("cpu")


def weights(shapes: list[tuple[tuple[int, ...], int]], dtype: torch.dtype) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(3)
    return {f"w{i}": torch.randn(shape, generator=g, dtype=dtype) for i, (shape, _) in enumerate(shapes)}


def gradients(step: int, shapes: list[tuple[tuple[int, ...], int]]) -> dict[str, Tensor]:
    """With singular values that differ by 10^4."""
    g = torch.Generator().manual_seed(100 + step)
    found = {}
    for i, (shape, _) in enumerate(shapes):
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        found[f"w{i}"] = x * torch.logspace(0, -4, shape[-2], dtype=torch.float64)[:, None]
    return found


def rule(
    place: torch.device, shapes: list[tuple[tuple[int, ...], int]], dtype: torch.dtype, **options: Any
) -> tuple[MuonRule, dict[str, nn.Parameter]]:
    parameters = {name: nn.Parameter(w.to(place)) for name, w in weights(shapes, dtype).items()}
    factorised = {f"w{i}": [VirtualRows(0, shape[0], v)] for i, (shape, v) in enumerate(shapes) if v}
    matrices = frozenset(parameters)
    parameters["bias"] = nn.Parameter(torch.zeros(3, dtype=dtype, device=place))  # AdamW's
    bounds = tuple(WeightBound(name, w, -1.5, 0.75) for name, w in parameters.items())
    lr = torch.tensor(0.5, dtype=torch.float32, device=place)
    failed = torch.zeros((), device=place)
    work = Work(parameters, lr, failed, factorised=factorised, bounds=bounds, matrices=matrices)
    section = {"kind": "muon", "lr": 1.0, "matrix_lr": 2**-7, "matrix_decay": 0.125}
    found = OPTIMIZERS.parse(section | options, trusted=False).rule(work)
    assert isinstance(found, MuonRule)
    return found, parameters


def lr_of(step: int) -> float:
    return 0.5 / 2 ** (step % 3)


def step_of(
    made: MuonRule, parameters: dict[str, nn.Parameter], own: dict[str, Tensor], lr: float, loss: float = 1.0
) -> None:
    own = own | {"bias": torch.zeros(3)}
    for name, parameter in parameters.items():
        given = own[name].to(parameter.dtype).to(parameter.device)
        parameter.grad = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad.copy_(given)
    made.work.lr.fill_(lr)
    made.loss = torch.tensor(loss, device=made.work.lr.device)
    with torch.no_grad():
        made.step()


def iterated(x: Tensor) -> Tensor:
    left, values, right = torch.linalg.svd(x / x.norm(), full_matrices=False)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left @ values.diag() @ right


class Reference:
    """Each matrix and each virtual matrix by itself, in float64."""

    def __init__(
        self, shapes: list[tuple[tuple[int, ...], int]], dtype: torch.dtype, max_norm: float, max_value: float
    ) -> None:
        self.shapes, self.max_norm, self.max_value = shapes, max_norm, max_value
        self.weights = {name: w.double() for name, w in weights(shapes, dtype).items()}
        self.momenta: dict[str, Tensor] = {}

    def shared(self, name: str, gradient: Tensor) -> Tensor | None:
        virtual = self.shapes[int(name[1:])][1]
        return gradient.unflatten(0, (-1, virtual)).sum(0) if virtual else None

    def direction(self, name: str, gradient: Tensor) -> Tensor:
        gradient = gradient.clamp(-self.max_value, self.max_value)
        self.momenta[name] = 0.95 * self.momenta.get(name, 0 * gradient) + 0.05 * gradient
        along = 0.05 * gradient + 0.95 * self.momenta[name]
        matrices = along.reshape(-1, *along.shape[-2:])
        return torch.stack([iterated(one) for one in matrices]).reshape(along.shape)

    def step(self, own: dict[str, Tensor], lr: float) -> None:
        sums = [shared for name, g in own.items() if (shared := self.shared(name, g)) is not None]
        norm = math.sqrt(sum(float(g.square().sum()) for g in [*own.values(), *sums]))
        share = min(1.0, self.max_norm / (norm + 1e-6))
        for name, gradient in own.items():
            change = self.direction(name, gradient * share)
            shared = self.shared(name, gradient * share)
            if shared is not None:
                by = self.direction(f"{name}.virtual", shared)
                change = change + by.repeat(len(change) // len(by), *[1] * (change.dim() - 1))
            size = math.sqrt(max(1.0, gradient.shape[-2] / gradient.shape[-1]))
            rate = lr * 2**-7
            moved = self.weights[name] * (1 - rate * 0.125) - rate * size * change
            self.weights[name] = moved.clamp(-1.5, 0.75)


def test_a_hundred_steps_are_the_float64_reference(place: torch.device) -> None:
    shapes = SHAPES if place.type == "cuda" else FEW
    made, parameters = rule(place, shapes, torch.float64, max_norm=4.0, max_value=0.75)
    reference = Reference(shapes, torch.float64, 4.0, 0.75)
    clipped = False
    for t in range(100):
        own = gradients(t, shapes)
        step_of(made, parameters, own, lr_of(t))
        reference.step(own, lr_of(t))
        clipped |= any(bool((w == 0.75).any()) for w in reference.weights.values())
    assert clipped, "no weight has reached its bound"
    for name, expected in reference.weights.items():
        torch.testing.assert_close(parameters[name].detach().cpu(), expected, rtol=0, atol=1e-9)
    for name, expected in reference.momenta.items():
        torch.testing.assert_close(made.state_dict()[f"momentum/{name}"].cpu(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-6)])
def test_every_shape(place: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    made, parameters = rule(place, LARGE, dtype)
    reference = Reference(LARGE, dtype, math.inf, math.inf)
    for t in range(2):
        own = {name: g.to(dtype).double() for name, g in gradients(t, LARGE).items()}
        step_of(made, parameters, own, lr_of(t))
        reference.step(own, lr_of(t))
    for name, expected in reference.weights.items():
        torch.testing.assert_close(parameters[name].detach().cpu().double(), expected, rtol=0, atol=tolerance)


def all_of(made: MuonRule, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    state = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    return state | {name: parameter.detach().clone() for name, parameter in parameters.items()}


def test_equal_bits_with_any_schedule(emulator: ctypes.CDLL, place: torch.device) -> None:
    found = []
    for seed in (1, 2):
        emulator.emulator_configure(seed + 1, seed)
        made, parameters = rule(place, SHAPES, torch.float32)
        for t in range(3):
            step_of(made, parameters, gradients(t, SHAPES), lr_of(t))
        found.append(all_of(made, parameters))
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_a_resumed_rule_goes_on_to_the_bit(place: torch.device) -> None:
    one, parameters = rule(place, SHAPES, torch.float32)
    for t in range(2):
        step_of(one, parameters, gradients(t, SHAPES), lr_of(t))
    two, others = rule(place, SHAPES, torch.float32)
    for name, parameter in parameters.items():
        others[name].detach().copy_(parameter.detach())
    two.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    for made, own in ((one, parameters), (two, others)):
        step_of(made, own, gradients(2, SHAPES), lr_of(2))
    expected = all_of(one, parameters)
    for name, tensor in all_of(two, others).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("what", ["loss", "gradient", "sum"])
def test_a_step_that_failed_changes_nothing(place: torch.device, what: str) -> None:
    made, parameters = rule(place, SHAPES, torch.float32)
    own, loss = gradients(0, SHAPES), 1.0
    step_of(made, parameters, own, 0.5)
    before = all_of(made, parameters)
    if what == "loss":
        loss = math.nan
    elif what == "gradient":
        own["w2"][1, 2] = math.inf
    else:
        own["w0"][:, 0, 0] = 3e38  # their sum is infinite
    step_of(made, parameters, own, 0.5, loss)
    assert made.work.failed == 1
    for name, tensor in all_of(made, parameters).items():
        assert torch.equal(tensor, before[name]), name


def test_matrices_of_zeros_and_tiny_ones(place: torch.device) -> None:
    """Zeros decay and no more; a norm below 1e-7 counts as 1e-7."""
    for size, moves in ((0.0, False), (1e-30, False), (1.0, True)):
        made, parameters = rule(place, SHAPES, torch.float32)
        step_of(made, parameters, {name: g * size for name, g in gradients(0, SHAPES).items()}, 0.5)
        for name, start in weights(SHAPES, torch.float32).items():
            decayed = (start.double() * (1 - 2**-8 * 0.125)).clamp(-1.5, 0.75)
            changed = (parameters[name].detach().cpu() - decayed).abs().max()
            assert (changed > 1e-4) if moves else (changed < 1e-6)


def _with(position: int, value: Any) -> Callable[[list[Any]], None]:
    def change(arguments: list[Any]) -> None:
        arguments[position] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with(0, [torch.zeros(3)]), r"weights\[0\]: found shape \[3\], expected \[..., rows, columns\]"),
        (_with(0, [torch.zeros(65, 65)]), "expected at most 64 rows or columns"),
        (_with(0, [torch.zeros(2, 2).half()]), r"weights\[0\]: found float16, expected float32 or float64"),
        (_with(1, [torch.zeros(2, 3)]), r"gradients\[0\]: found shape \[2, 3\], expected shape \[4, 2, 2\] of weights"),
        (_with(1, []), "gradients: found 0 items, expected 1"),
        (_with(2, [torch.zeros(4, 2, 2)]), "momenta: found 1 items, expected 2, two for each weight"),
        (_with(2, [torch.zeros(4, 2, 2), torch.zeros(3, 2, 2)]), r"momenta\[1\]: found 3 virtual rows"),
        (_with(2, [torch.zeros(4, 2, 2), torch.zeros(2, 2, 1)]), r"momenta\[1\]: found shape \[2, 2, 1\]"),
        (_with(3, torch.zeros(2)), "lr: found 2 elements, expected one"),
        (_with(4, []), "state: found 0 tensors"),
        (_with(5, [1.0, 0.0, 1.0, -1.0]), "lowest weight 1.000000, expected at most the highest"),
        (_with(5, [1.0]), "settings: found 1 items, expected 4, four for each weight"),
        (_with(6, [1.0, 1.0, 5.0, 1.0, 1.0, 1.0]), "momentum: found 1.000000, expected 0 <= momentum < 1"),
        (_with(6, []), "constants: found 0 numbers, expected six"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(emulator: ctypes.CDLL, change: Callable[[list[Any]], None], message: str) -> None:
    weight = torch.zeros(4, 2, 2)
    state = [torch.zeros(1, dtype=torch.int64), torch.zeros(()), torch.zeros(1, 16, dtype=torch.float64)]
    arguments: list[Any] = [
        [weight], [weight.clone()], [weight.clone(), weight[:0]], torch.zeros(()), state, [1.0, 0.0, -1.0, 1.0],
        [0.95, math.inf, 5.0, 1.0, 1.0, 1.0],
    ]  # fmt: skip
    torch.ops.nnue_emulated._optimizer_update_matrices(*arguments)
    change(arguments)
    with pytest.raises(RuntimeError, match=f"^nnue::_optimizer_update_matrices: .*{message}"):
        torch.ops.nnue_emulated._optimizer_update_matrices(*arguments)


@pytest.mark.cuda
def test_a_recorded_step_gives_the_same_bits(cuda: torch.device) -> None:
    plain, parameters = rule(cuda, LARGE, torch.float32)
    recorded, others = rule(cuda, LARGE, torch.float32)
    for made, own in ((plain, parameters), (recorded, others)):
        step_of(made, own, gradients(0, LARGE), 0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        recorded.step()
    for t in range(1, 5):
        step_of(plain, parameters, gradients(t, LARGE), lr_of(t))
        for name, gradient in gradients(t, LARGE).items():
            place = others[name].grad
            assert place is not None
            place.copy_(gradient)
        recorded.work.lr.fill_(lr_of(t))
        graph.replay()
    expected = all_of(plain, parameters)
    for name, tensor in all_of(recorded, others).items():
        assert torch.equal(tensor, expected[name]), name
