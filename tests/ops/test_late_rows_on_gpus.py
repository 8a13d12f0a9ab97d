"""Rows that a GPU updates late end with the bits of those that it updates in every step; in the emulator, too."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from cases import some
from test_late_rows import call_with
from test_optimizer import RULES
from torch import Tensor, nn

from nnue_trainer.ops import capabilities
from nnue_trainer.ops.capabilities import Choice, Machine
from nnue_trainer.optim import fused_operators, fused_optimizer
from nnue_trainer.optim.fused_optimizer import DEVICE_WINDOW, WINDOW, FusedOptimizer, LateRows
from nnue_trainer.optim.parts import Part, given

SHARING, OWN = 36, 43  # rows that share virtual ones, and rows that do not: more than two thread blocks
ROWS = SHARING + OWN


def all_late(machine: Machine | None, rows: int, tensors: int, positions: int = 0) -> Choice:
    """The choice of a GPU, for fewer rows than it pays for."""
    return Choice("late", "")


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(capabilities, "update", all_late)
    if request.param == "emulated":
        request.getfixturevalue("emulator")
        monkeypatch.setattr(fused_operators, "namespace", torch.ops.nnue_emulated)
        monkeypatch.setattr(fused_optimizer, "HostLateRows", LateRows)
    return torch.device("cpu" if request.param == "emulated" else "cuda")


def pair(
    place: torch.device,
    name: str,
    *,
    columns: int = 150,
    dtype: torch.dtype = torch.float32,
    max_norm: float = math.inf,
    copied: bool = False,
    average_dtype: torch.dtype | None = None,
) -> list[FusedOptimizer]:
    """Two equal trainings: with all rows updated in every step, and with late rows. `average_dtype`: of their means."""
    made = []
    for late in ((), ("w",)):
        g = torch.Generator().manual_seed(1)
        weight = nn.Parameter((torch.randn(ROWS, columns, generator=g, dtype=dtype) * 0.3).to(place))
        bias = nn.Parameter(torch.randn(columns, generator=g, dtype=dtype).to(place))
        copy = weight.detach().bfloat16().requires_grad_() if copied else None
        parts = [
            Part("w", weight, 0, SHARING, virtual_rows=12, decay=0.05, low=-0.4, high=0.4, copy=copy),
            Part("w", weight, SHARING, OWN, rate=0.5, decay=0.02, low=-0.3, high=0.5, copy=copy),
            Part("b", bias, decay=0.1),
        ]
        parts[:2] = [replace(part, average_dtype=average_dtype) for part in parts[:2]]
        made.append(
            FusedOptimizer(parts, RULES[name], torch.tensor(0.01, device=place), max_norm, late=late, covered=["w"])
        )
    assert not made[0].late_rows
    return made


def index_rows(g: torch.Generator) -> Tensor:
    """Rows of few features, short ones padded; the last tenth of the features is rare."""
    indices = torch.randint(0, ROWS * 9 // 10, (6, 70), generator=g, dtype=torch.int32)
    for row, length in enumerate((1, 0, 3, 2, 5, 2)):
        indices[row, length:] = -1
    if torch.rand((), generator=g) < 0.1:
        indices[0, 0] = ROWS - 1
    return indices


def set_gradients(optimizer: FusedOptimizer, indices: Tensor, t: int) -> None:
    """In place, so that a recorded step reads them. NaN in rows that a backward pass may leave unwritten."""
    weight, bias, copy = optimizer.parts[0].parameter, optimizer.parts[2].parameter, optimizer.parts[0].copy
    leaf, g = weight if copy is None else copy, torch.Generator().manual_seed(100 + t)
    unwritten = any(late.leaves_unused() for late in optimizer.late_rows.values())
    found = torch.full(weight.shape, math.nan if unwritten else 0.0, dtype=leaf.dtype)
    for feature in sorted({int(i) for i in indices.flatten() if i >= 0}):
        found[feature] = torch.randn(found.shape[1], generator=g).to(leaf.dtype)
    for tensor, gradient in ((leaf, found), (bias, torch.randn(bias.shape, generator=g, dtype=bias.dtype))):
        tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        tensor.grad.copy_(gradient)


def run(optimizer: FusedOptimizer, steps: range, *, loss: float = 1.0, settled: tuple[int, ...] = ()) -> None:
    """Steps with a learning rate that changes, as the trainer makes them."""
    g = torch.Generator().manual_seed(7 + steps.start)
    device = optimizer.lr.device
    for t in steps:
        indices = index_rows(g)
        on_device = indices.to(device)
        for late in optimizer.late_rows.values():
            white, black = on_device[:3], on_device[3:]
            plans = (late.marks(white, black),) if t % 3 else ()  # made ahead, or not
            assert not late.catch_up(white, black, plans)
            if t in settled:
                late.settle(gradient=t % 2 == 0)
            assert late.leaves_unused() == (not (t in settled and t % 2 == 0))
        set_gradients(optimizer, indices, t)
        optimizer.lr.fill_(0.02 / (1 + t % 4))
        optimizer.step(torch.tensor(loss, device=device))


def assert_equal_bits(dense: FusedOptimizer, late: FusedOptimizer) -> None:
    late.settle()
    for ours, theirs in zip(dense.parts, late.parts, strict=True):
        assert torch.equal(ours.parameter.view(torch.uint8), theirs.parameter.view(torch.uint8))
        if ours.copy is not None and theirs.copy is not None:
            assert torch.equal(ours.copy.view(torch.uint8), theirs.copy.view(torch.uint8))
    for name, tensor in dense.state.items():
        assert torch.equal(tensor.view(torch.uint8), late.state[name].view(torch.uint8)), name
    assert dense.step_count == late.step_count
    assert dense.failed == late.failed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "dtype", "max_norm", "copied"),
    some(
        [
            (132, torch.float32, math.inf, True),
            (132, torch.float32, 3.0, False),
            (38, torch.float32, math.inf, False),  # no two elements at a time
            (66, torch.float64, math.inf, False),
        ],
        every=2,
    ),
)
@pytest.mark.parametrize("name", some(RULES, every=2))
def test_equal_bits(
    place: torch.device, name: str, columns: int, dtype: torch.dtype, max_norm: float, copied: bool
) -> None:
    dense, late = pair(place, name, columns=columns, dtype=dtype, max_norm=max_norm, copied=copied)
    last, clipped = 6 + 2 * DEVICE_WINDOW, set[int]()
    for steps, settled in ((range(5), ()), (range(5, 6), ()), (range(6, last), (20, 21)), (range(last, last + 2), ())):
        run(dense, steps)
        run(late, steps, settled=settled)
        if steps.start != 6:  # the next steps begin with rows that are behind
            assert_equal_bits(dense, late)
        for part in dense.parts[:2]:
            clipped |= {part.first} if bool(((part.rows(part.parameter) - part.low).abs() < 1e-7).any()) else set()
    # The weight of a schedule-free rule lies between two others that keep to the bounds.
    assert clipped == {0, SHARING} or name == "schedule_free", "weights must reach their bound"


@pytest.mark.parametrize(("name", "columns", "copied"), some([("adamw", 132, True), ("ranger", 38, False)], every=2))
def test_equal_bits_with_means_in_16_bits(place: torch.device, name: str, columns: int, copied: bool) -> None:
    dense, late = pair(place, name, columns=columns, copied=copied, average_dtype=torch.bfloat16)
    for steps in (range(5), range(5, 7 + DEVICE_WINDOW)):
        run(dense, steps)
        run(late, steps)
        assert_equal_bits(dense, late)
    assert dense.state["exp_avg/w"].dtype == torch.bfloat16


def test_many_rows_share_few_virtual_ones(place: torch.device) -> None:
    """More rows than a thread block lists at a time, some without any row in a batch."""
    made = []
    for waiting in ((), ("w",)):
        g = torch.Generator().manual_seed(1)
        weight = nn.Parameter((torch.randn(3 * 530, 40, generator=g) * 0.3).to(place))
        parts = [Part("w", weight, virtual_rows=3, decay=0.05, low=-0.4, high=0.4)]
        made.append(
            FusedOptimizer(parts, RULES["adamw"], torch.tensor(0.01, device=place), late=waiting, covered=["w"])
        )
    for t in range(2 * WINDOW):
        g = torch.Generator().manual_seed(t)
        indices = (torch.randint(0, 1060, (4, 200), generator=g) // 2 * 3).int()  # of the first virtual row
        if t % 3 == 0:
            indices += torch.randint(0, 2, indices.shape, generator=g, dtype=torch.int32)  # and of the second
        gradient = torch.zeros(made[0].parts[0].parameter.shape)
        gradient[indices.flatten().long()] = torch.randn(indices.numel(), 40, generator=g)
        for optimizer in made:
            for rows in optimizer.late_rows.values():
                rows.catch_up(indices[:2].to(place), indices[2:].to(place))
            optimizer.parts[0].parameter.grad = gradient.to(place)
            optimizer.step(torch.tensor(1.0, device=place))
    assert_equal_bits(*made)


@pytest.mark.slow
def test_rows_wait_no_longer_than_the_window(place: torch.device) -> None:
    dense, late = pair(place, "adamw")
    rows = late.late_rows["w"]
    windows = {0: WINDOW, SHARING: DEVICE_WINDOW}
    longest = dict.fromkeys(windows, 0)
    for t in range(2 * DEVICE_WINDOW):
        run(late, range(t, t + 1))
        run(dense, range(t, t + 1))
        behind = (late.parts[0].parameter != dense.parts[0].parameter).any(1)
        for part, _ in rows.parts:
            age = t + 1 - part.rows(rows._made)
            longest[part.first] = max(longest[part.first], int(age.max()))
            assert not bool(part.rows(behind)[age == 0].any())
    assert longest == windows
    assert_equal_bits(dense, late)


def test_a_copy_in_steps(place: torch.device) -> None:
    """Bounds become narrower with it, for the steps from then on only."""
    dense, late = pair(place, "ranger_lite", columns=152, copied=True)
    for optimizer in (dense, late):
        run(optimizer, range(9))
        optimizer.copy_in_steps("w", 8192.0)
        run(optimizer, range(9, 20))
    assert_equal_bits(dense, late)
    assert float(late.parts[0].parameter.detach().abs().max()) == 0.25


@pytest.mark.parametrize("name", ["adamw", "ranger_lite"])
def test_a_failed_step_is_none(place: torch.device, name: str) -> None:
    dense, late = pair(place, name)
    for optimizer in (dense, late):
        run(optimizer, range(5))
        run(optimizer, range(5, 7), loss=math.nan)
        run(optimizer, range(7, 9))
    assert dense.failed
    assert dense.step_count == 5
    assert_equal_bits(dense, late)


def test_a_gradient_that_is_not_finite_behind_the_guard(place: torch.device) -> None:
    dense, late = pair(place, "adamw")
    indices = torch.tensor([[3, 40], [78, -1]], dtype=torch.int32)
    for optimizer in (dense, late):
        run(optimizer, range(4))
        for rows in optimizer.late_rows.values():
            rows.catch_up(indices[:1].to(place), indices[1:].to(place))
        set_gradients(optimizer, indices, 4)
        gradient = optimizer.parts[0].parameter.grad
        assert gradient is not None
        gradient[3, 7], gradient[40, 5], gradient[78, 149] = math.nan, math.inf, math.nan
        optimizer.step(torch.tensor(1.0, device=place))
        run(optimizer, range(5, 7))
    assert dense.failed
    assert_equal_bits(dense, late)


def test_steps_without_a_word_and_without_the_parameter(place: torch.device) -> None:
    dense, late = pair(place, "ranger")
    for optimizer in (dense, late):
        run(optimizer, range(4))
        set_gradients(optimizer, torch.arange(ROWS), 4)  # without marks of rows
        optimizer.step(torch.tensor(1.0, device=place))
        run(optimizer, range(5, 8))
        gradient, optimizer.parts[0].parameter.grad = optimizer.parts[0].parameter.grad, None
        optimizer.step(torch.tensor(1.0, device=place))
        optimizer.parts[0].parameter.grad = gradient
        run(optimizer, range(9, 12))
    assert_equal_bits(dense, late)


def test_when_rows_of_the_gradient_may_stay_unwritten(place: torch.device) -> None:
    _, optimizer = pair(place, "adamw")
    rows, parameter = optimizer.late_rows["w"], optimizer.parts[0].parameter
    white, black = index_rows(torch.Generator()).to(place).chunk(2)

    def of_a_batch() -> bool:
        rows.after_step()
        rows.catch_up(white, black)
        return rows.leaves_unused()

    assert of_a_batch()
    rows.catch_up(white, black)
    assert not rows.leaves_unused(), "the gradient of two batches"
    assert of_a_batch()
    rows.settle(gradient=True)
    assert not rows.leaves_unused(), "every row may have a gradient"
    for register in (parameter.register_hook, parameter.register_post_accumulate_grad_hook):
        handle = register(lambda _: None)
        assert not of_a_batch(), "a hook reads the gradient"
        handle.remove()
        assert of_a_batch()
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        assert not of_a_batch()
    _, narrow = pair(place, "adamw", columns=31)
    rows = narrow.late_rows["w"]
    assert not of_a_batch(), "the norm reads all rows"


def test_a_parameter_of_which_some_rows_are_late(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are updated in every step, from all of their gradient."""
    monkeypatch.setattr(
        capabilities, "update", lambda machine, rows, *_: Choice("late" if rows == OWN else "every_row", "")
    )
    _, optimizer = pair(place, "adamw")
    rows = optimizer.late_rows["w"]
    white, black = index_rows(torch.Generator()).to(place).chunk(2)
    rows.catch_up(white, black)
    assert not rows.leaves_unused()


@pytest.mark.cuda
def test_a_graph_replays_late_rows(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "update", all_late)
    dense, late = pair(cuda, "ranger_lite", columns=152, copied=True)
    run(dense, range(1))
    run(late, range(1))
    graph, indices, loss = torch.cuda.CUDAGraph(), index_rows(torch.Generator()).to(cuda), torch.ones((), device=cuda)
    with torch.cuda.graph(graph):
        late.late_rows["w"].catch_up(indices[:3], indices[3:])
        late.step(loss)
    for t in range(1, 3 * DEVICE_WINDOW):
        run(dense, range(t, t + 1))
        rows = index_rows(torch.Generator().manual_seed(7 + t))
        indices.copy_(rows)
        set_gradients(late, rows, t)
        late.lr.fill_(0.02 / (1 + t % 4))
        graph.replay()
        if t == 20:
            assert_equal_bits(dense, late)
    assert len((late.step_count - late.late_rows["w"]._made[SHARING:]).unique()) > 3
    assert_equal_bits(dense, late)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda late: [late[0], late[1].repeat(3, 1, 1), late[2].repeat(3, 1), *late[3:]],
            r"history\[0\]: found 48 steps, expected",
        ),
        (lambda late: [late[0], late[1][:, 1:].contiguous(), *late[2:]], r"changes\[0\]: found shape"),
        (lambda late: [late[0], late[1].new_empty(0), *late[2:]], r"changes\[0\]: found shape"),
        (lambda late: late[:5], "late: found 5 items, expected 6, made, changes and history of each part"),
    ],
)
@pytest.mark.parametrize("operator", ["_optimizer_step", "_optimizer_catch_up"])
def test_what_cannot_be_updated_late(place: torch.device, operator: str, change, message: str) -> None:
    _, optimizer = pair(place, "adamw")
    weights, *_, kept = given(optimizer.pairs)
    ones = torch.ones(SHARING, dtype=torch.uint8, device=place)
    gradients = [weights[0], weights[1][:0], weights[2][:0]]
    with pytest.raises(RuntimeError, match=f"nnue::{operator}: {message}"):
        call_with(operator, optimizer, gradients, [ones, ones[:0]], change(kept))
    assert optimizer.step_count == 0


def test_rows_whose_counts_do_not_fit_are_left_as_they_are(place: torch.device) -> None:
    _, late = pair(place, "adamw")
    run(late, range(3))
    late.settle()
    rows = late.late_rows["w"]
    rows._made.fill_(2**40)
    rows._made[SHARING] = -(2**40)
    before = late.parts[0].parameter.detach().clone()
    late.settle()
    assert torch.equal(late.parts[0].parameter.detach(), before)
