"""Rows that are updated when they are needed end with the bits of those that are updated in every step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from test_optimizer import RULES
from torch import Tensor, nn

from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.fused_optimizer import WINDOW, FusedOptimizer, LateRows
from nnue_trainer.optim.parts import LARGEST_COPY, Part, given
from nnue_trainer.optim.update_rule import UpdateRule

ROWS, COLUMNS = 60, 150  # columns: two blocks of a replay and a piece


def parts_of(dtype: torch.dtype) -> list[Part]:
    """36 rows that share 12 virtual ones, 24 that share none; some bounds are narrow."""
    g = torch.Generator().manual_seed(1)
    weight = nn.Parameter(torch.randn(ROWS, COLUMNS, generator=g, dtype=dtype) * 0.3)
    bias = nn.Parameter(torch.randn(COLUMNS, generator=g, dtype=dtype))
    return [
        Part("w", weight, 0, 36, virtual_rows=12, decay=0.05, low=-0.4, high=0.4),
        Part("w", weight, 36, 24, rate=0.5, low=-0.3, high=0.5),
        Part("b", bias, decay=0.1),
    ]


def pair(
    rule: UpdateRule, dtype: torch.dtype, max_norm: float = math.inf, average_dtype: torch.dtype | None = None
) -> list[FusedOptimizer]:
    """Two equal trainings, without and with late rows. `average_dtype`: of the weight's mean."""
    made = []
    for late in ((), ("w",)):
        parts = [replace(p, average_dtype=average_dtype if p.name == "w" else None) for p in parts_of(dtype)]
        made.append(FusedOptimizer(parts, rule, torch.tensor(0.01), max_norm, late=late, covered=["w"]))
    return made


def index_rows(g: torch.Generator) -> Tensor:
    """Rows of few features, short ones padded; the last tenth of the features is rare."""
    indices = torch.randint(0, ROWS * 9 // 10, (3, 4), generator=g, dtype=torch.int32)
    if torch.rand((), generator=g) < 0.1:
        indices[0, 0] = ROWS - 1
    indices[1, 2:] = -1
    return indices


def set_gradients(optimizer: FusedOptimizer, indices: Tensor, t: int) -> None:
    weight, bias = optimizer.parts[0].parameter, optimizer.parts[2].parameter
    g = torch.Generator().manual_seed(100 + t)
    weight.grad = torch.zeros_like(weight)
    for feature in sorted({int(i) for i in indices.flatten() if i >= 0}):
        weight.grad[feature] = torch.randn(COLUMNS, generator=g, dtype=weight.dtype)
    bias.grad = torch.randn(COLUMNS, generator=g, dtype=bias.dtype)


def leave_out_others(optimizer: FusedOptimizer, indices: Tensor) -> None:
    """The gradient of the weight as a sparse tensor with the rows of the features."""
    weight = optimizer.parts[0].parameter
    assert weight.grad is not None
    present = indices[indices >= 0].unique().long()
    weight.grad = torch.sparse_coo_tensor(present[None], weight.grad[present], weight.shape)


def late_rows(optimizer: FusedOptimizer) -> LateRows:
    return optimizer.late_rows["w"]


def run(optimizer: FusedOptimizer, steps: range, loss: float = 1.0, reads: tuple[int, ...] = ()) -> None:
    """Steps with a learning rate that changes, as the trainer makes them."""
    g = torch.Generator().manual_seed(7 + steps.start)
    for t in steps:
        indices = index_rows(g)
        sparse = False
        for late in optimizer.late_rows.values():
            sparse = late.catch_up(indices[:2], indices[2:]) and t % 2 == 0
            if t in reads:
                late.settle(gradient=True)
        set_gradients(optimizer, indices, t)
        if sparse:
            leave_out_others(optimizer, indices)
        optimizer.lr.fill_(0.02 / (1 + t % 4))
        optimizer.step(torch.tensor(loss))


def assert_equal_bits(dense: FusedOptimizer, late: FusedOptimizer) -> None:
    late.settle()
    for ours, theirs in zip(dense.parts, late.parts, strict=True):
        assert torch.equal(ours.parameter.view(torch.uint8), theirs.parameter.view(torch.uint8))
    assert dense.state.keys() == late.state.keys()
    for name, tensor in dense.state.items():
        assert torch.equal(tensor.view(torch.uint8), late.state[name].view(torch.uint8)), name
    assert dense.step_count == late.step_count
    assert dense.failed == late.failed


@pytest.mark.slow
@pytest.mark.parametrize("max_norm", [math.inf, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RULES)
def test_equal_bits_for_every_rule(name: str, dtype: torch.dtype, max_norm: float) -> None:
    dense, late = pair(RULES[name], dtype, max_norm)
    clipped = False
    for steps in (range(5), range(5, 6), range(6, 6 + 3 * WINDOW)):
        run(dense, steps)
        run(late, steps)
        assert_equal_bits(dense, late)
        part = dense.parts[0]
        clipped |= bool(((part.rows(part.parameter).abs() - part.high).abs() < 1e-7).any())
    assert clipped, "no weight has reached its bound"


@pytest.mark.parametrize("name", ["adamw", "ranger"])
def test_equal_bits_with_means_in_16_bits(name: str) -> None:
    dense, late = pair(RULES[name], torch.float32, average_dtype=torch.bfloat16)
    for steps in (range(5), range(5, 5 + 3 * WINDOW)):
        run(dense, steps)
        run(late, steps)
        assert_equal_bits(dense, late)
    assert dense.state["exp_avg/w"].dtype == torch.bfloat16


def test_rows_are_behind_until_they_are_asked_for() -> None:
    dense, late = pair(RULES["adamw"], torch.float32)
    run(dense, range(4))
    run(late, range(4))
    behind = (late.parts[0].parameter != dense.parts[0].parameter).any(1)
    assert behind.sum() > 10
    wanted = torch.tensor([[int(behind.nonzero()[0]), -1]], dtype=torch.int32)
    late_rows(late).catch_up(wanted, wanted)
    assert torch.equal(late.parts[0].parameter[wanted[0, 0]], dense.parts[0].parameter[wanted[0, 0]])
    assert (late.parts[0].parameter != dense.parts[0].parameter).any()


def test_averages_that_fade_away() -> None:
    """A row that is never seen again: its average becomes a subnormal number and then zero."""
    rule = replace(RULES["adamw"], betas=(0.05, 0.3))
    dense, late = pair(rule, torch.float32)
    for optimizer in (dense, late):
        run(optimizer, range(3))
        for t in range(3, 90):
            empty = torch.full((1, 1), -1, dtype=torch.int32)
            for rows in optimizer.late_rows.values():
                rows.catch_up(empty, empty)
            set_gradients(optimizer, empty, t)
            optimizer.step(torch.tensor(1.0))
    assert_equal_bits(dense, late)
    assert not dense.state["exp_avg/w"].any()
    assert any((p.parameter != q.parameter).any() for p, q in zip(dense.parts, parts_of(torch.float32), strict=True))


@pytest.mark.parametrize("name", ["adamw", "ranger_lite"])
def test_a_failed_step_is_none(name: str) -> None:
    dense, late = pair(RULES[name], torch.float32)
    for optimizer in (dense, late):
        run(optimizer, range(5))
        run(optimizer, range(5, 7), loss=math.nan)
        run(optimizer, range(7, 9))
    assert dense.failed
    assert dense.step_count == 5
    assert_equal_bits(dense, late)


def test_a_gradient_that_is_not_finite_behind_the_guard() -> None:
    dense, late = pair(RULES["adamw"], torch.float32)
    for optimizer in (dense, late):
        run(optimizer, range(4))
        for rows in optimizer.late_rows.values():
            rows.catch_up(torch.tensor([[3, 40]], dtype=torch.int32), torch.tensor([[15, -1]], dtype=torch.int32))
        set_gradients(optimizer, torch.tensor([3, 40, 15]), 4)
        gradient = optimizer.parts[0].parameter.grad
        assert gradient is not None
        gradient[3, 5], gradient[40, 149] = math.inf, math.nan
        optimizer.step(torch.tensor(1.0))
        run(optimizer, range(5, 7))
    assert dense.failed
    assert_equal_bits(dense, late)


def test_a_reader_may_give_every_row_a_gradient() -> None:
    """Code that reads the whole weight while gradients are recorded may put all of it into the loss."""
    dense, late = pair(RULES["ranger"], torch.float32)
    for optimizer in (dense, late):
        run(optimizer, range(4))
        for rows in optimizer.late_rows.values():
            rows.settle(gradient=True)
        set_gradients(optimizer, torch.arange(ROWS), 4)
        optimizer.step(torch.tensor(1.0))
        run(optimizer, range(5, 30), reads=(9, 10))
        set_gradients(optimizer, torch.arange(ROWS), 30)  # without marks of rows
        optimizer.step(torch.tensor(1.0))
        run(optimizer, range(31, 35))
    assert_equal_bits(dense, late)


def test_batches_of_many_rows_among_others() -> None:
    """Where most rows are in the batch, all are updated at once."""
    dense, late = pair(RULES["ranger_lite"], torch.float32)
    for optimizer in (dense, late):
        for t, first in enumerate(range(0, 24, 4)):
            run(optimizer, range(first, first + 4 - t % 2))
            every = torch.arange(0, ROWS, 1 + t % 2, dtype=torch.int32).unsqueeze(0)
            for rows in optimizer.late_rows.values():
                rows.catch_up(every, every[:, :1])
            set_gradients(optimizer, every, 50 + t)
            optimizer.step(torch.tensor(1.0))
    assert_equal_bits(dense, late)


def test_a_step_without_the_parameter() -> None:
    dense, late = pair(RULES["adamw"], torch.float32)
    for optimizer in (dense, late):
        run(optimizer, range(4))
        optimizer.parts[0].parameter.grad = None
        optimizer.step(torch.tensor(1.0))
        run(optimizer, range(5, 8))
    assert_equal_bits(dense, late)


def test_equal_bits_for_any_number_of_threads() -> None:
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        _, late = pair(RULES["ranger_lite"], torch.float32)
        run(late, range(20))
        results.append(late)
    for other in results[1:]:
        results[0].settle()
        assert_equal_bits(results[0], other)


def test_no_row_waits_longer_than_the_window_though_nobody_asks_for_it() -> None:
    _, late = pair(RULES["adamw"], torch.float32)
    for t in range(2 * WINDOW):
        run(late, range(t, t + 1))
        assert int(late_rows(late)._made.min()) >= t + 1 - WINDOW
    ages = late.step_count - late_rows(late)._made
    assert len(ages.unique()) > 3, "all rows were brought up to date at once"


def test_a_sparse_gradient_of_several_passes() -> None:
    """Its rows are in no order, and one comes twice."""
    dense, late = pair(RULES["adamw"], torch.float32)
    indices = torch.tensor([[50, 3], [20, 50]], dtype=torch.int32)
    for optimizer in (dense, late):
        run(optimizer, range(5))
        for rows in optimizer.late_rows.values():
            assert rows.catch_up(indices, indices)
        set_gradients(optimizer, indices, 5)
        weight = optimizer.parts[0].parameter
        assert weight.grad is not None
        if optimizer is late:
            numbers = torch.tensor([50, 3, 20, 50])
            values = weight.grad[numbers]
            values[3] = 0
            weight.grad = torch.sparse_coo_tensor(numbers[None], values, weight.shape)
        optimizer.step(torch.tensor(1.0))
    assert_equal_bits(dense, late)


def test_a_sparse_gradient_that_the_guard_looks_at() -> None:
    late = FusedOptimizer(parts_of(torch.float32), RULES["adamw"], torch.tensor(0.01), late=["w"])
    run(late, range(3))
    indices = torch.tensor([[50, 3]], dtype=torch.int32)
    late_rows(late).catch_up(indices, indices)
    set_gradients(late, indices, 3)
    leave_out_others(late, indices)
    weight = late.parts[0].parameter
    assert weight.grad is not None
    weight.grad._values()[1, 7] = math.nan
    late.step(torch.tensor(1.0))
    assert late.failed
    assert late.step_count == 3


def test_norms_need_every_row() -> None:
    _, late = pair(RULES["adamw"], torch.float32, max_norm=3.0)
    indices = torch.tensor([[50, 3]], dtype=torch.int32)
    assert not late_rows(late).catch_up(indices, indices)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([3, 2], r"rows\[1\]: found 2 at place 1, expected ascending numbers below 24"),
        ([24], r"rows\[1\]: found 24 at place 0, expected ascending numbers below 24"),
        ([-1], r"rows\[1\]: found -1 at place 0, expected ascending numbers below 24"),
        ([0], r"made\[1\]: found 0 in row 0, expected 2, as this is step 3"),
    ],
)
def test_rows_of_a_sparse_gradient(numbers: list[int], message: str) -> None:
    _, late = pair(RULES["adamw"], torch.float32)
    late.step_count.fill_(2)
    rows = [torch.zeros(36, dtype=torch.uint8), torch.tensor(numbers)]
    gradients = [torch.zeros(0), torch.zeros(len(numbers), COLUMNS), torch.zeros(0)]
    with pytest.raises(RuntimeError, match=f"nnue::_optimizer_step: {message}"):
        call_with("_optimizer_step", late, gradients, rows, given(late.pairs)[3])
    assert late.step_count == 2, "the step was counted before the error"


def call_with(
    operator: str, optimizer: FusedOptimizer, gradients: list[Tensor], rows: list[Tensor], kept: list[Tensor]
) -> None:
    """A step, or what has been missed, with other tensors than the optimiser's."""
    call = getattr(fused_operators.namespace, operator)
    if operator == "_optimizer_step":
        weights, moments, copies, _ = given(optimizer.pairs)
        more = [torch.ones_like(optimizer.lr), optimizer.lr, [], [], None, optimizer.handle]
        call(weights, gradients, moments, copies, kept, rows, optimizer.tensors, *more)
    else:
        late = late_rows(optimizer)
        weights, moments, copies, _ = given(late.parts)
        call(weights, moments, copies, kept, rows, optimizer.tensors, late._numbers, optimizer.handle)


def wrong_window(history: Tensor, changes: Tensor, made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return history[:0], changes[:0], made


def other_virtual_rows(history: Tensor, changes: Tensor, made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return history, changes.repeat(1, 3, 1), made


def no_changes(history: Tensor, changes: Tensor, made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return history, changes[:0], made


def steps_to_come(history: Tensor, changes: Tensor, made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return history, changes, made + 2**40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wrong_window, r"history\[0\]: found a window of 0 steps, expected 1 or more"),
        (
            other_virtual_rows,
            r"changes\[0\]: found shape \[16, 36, 150\], expected \[K, V, ...\] as the moments of V rows",
        ),
        (no_changes, r"changes\[0\]: found shape \[0, 12, 150\], expected \[K, V, ...\] as the moments of V rows"),
        (steps_to_come, r"made\[0\]: found 1099511627779 in row 0, expected"),
    ],
)
@pytest.mark.parametrize("operator", ["_optimizer_step", "_optimizer_catch_up"])
def test_what_is_kept_of_a_part_must_fit_it(
    operator: str, change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]], message: str
) -> None:
    _, late = pair(RULES["adamw"], torch.float32)
    run(late, range(3))
    late.settle()
    made, changes, history, *others = given(late.pairs)[3]
    history, changes, made = change(history, changes, made)
    kept, marks = [made, changes, history, *others], [torch.ones(36, dtype=torch.uint8), torch.zeros(0)]
    gradients = [torch.zeros(36, COLUMNS), torch.zeros(0), torch.zeros(0)]
    with pytest.raises(RuntimeError, match=f"nnue::{operator}: {message}"):
        call_with(operator, late, gradients, marks, kept)


def test_a_window_that_has_forgotten_is_an_error() -> None:
    _, late = pair(RULES["adamw"], torch.float32)
    run(late, range(3))
    late.step_count.fill_(40)
    with pytest.raises(
        RuntimeError, match=r"nnue::_optimizer_catch_up: made\[\d\]: found . in row \d+, expected at least 24"
    ):
        late.settle()


def test_bounds_that_a_copy_cannot_hold_change_nothing() -> None:
    weight = torch.full((4, 6), 0.7)
    part = Part("w", weight, low=0.6, high=0.8, copy=weight.bfloat16())
    optimizer = FusedOptimizer([part], RULES["adamw"], torch.tensor(0.01))
    (_, moments), handle = optimizer.pairs[0], optimizer.handle
    with pytest.raises(
        RuntimeError, match=r"parts\[5\]: found lowest weight 0.6\d*, expected at most the highest, 0.5"
    ):
        optimizer.copy_in_steps("w", LARGEST_COPY / 0.5)
    assert torch.equal(weight, torch.full((4, 6), 0.7)), "weights were clamped before the error"
    assert (optimizer.handle, moments.steps, moments.copy.dtype) == (handle, 0.0, torch.bfloat16)


def test_parts_must_be_all_rows() -> None:
    parts = parts_of(torch.float32)
    with pytest.raises(ValueError, match="w: its parts do not cover its 60 rows"):
        FusedOptimizer(parts[1:], RULES["adamw"], torch.tensor(0.01), late=["w"])
