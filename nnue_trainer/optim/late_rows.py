"""Rows of a parameter that are updated when they are needed and not in every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nnue_trainer.ops import capabilities
from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.parts import Moments, Part

if TYPE_CHECKING:
    from nnue_trainer.optim.fused_optimizer import FusedOptimizer

WINDOW = 16
"""Steps that rows updated late may be behind. Each takes as much memory as the virtual rows do."""
DEVICE_WINDOW = 32
"""The same on a GPU for rows without virtual rows: kMostWindow of csrc/optimizer.h."""
LATE_SHARE = 0.45
"""Share of the rows in a batch above which all rows are updated in its step, which is faster then: measured in
benchmarks/NOTEBOOK.md. It changes no bit."""


class LateRows:
    """The rows of one parameter [F, ...], updated when they are needed and not in every step.

    A row that no position of a batch has gets a gradient of zeros. Its steps are made later, one after the other by
    the same code, which gives the same bits for every rule, schedule, bound and norm. It pays because a row that is `k`
    steps behind goes through the memory once and not `k` times.

    Call `catch_up` before the forward pass reads the rows of a batch, and `settle` before anything else reads the
    parameter. A row is never behind by more steps than the window has.

    Virtual rows move in every step. Their changes are kept for the rows that share them and are behind.

    This class is for GPUs: nothing waits for the device, and a step can be recorded.
    """

    parts: list[tuple[Part, Moments]]
    """those whose rows are updated late"""

    def __init__(self, optimizer: FusedOptimizer, name: str, window: int = DEVICE_WINDOW) -> None:
        """`window`: of rows without virtual rows."""
        self._optimizer = optimizer
        own = [pair for pair in optimizer.pairs if pair[0].name == name]
        self._parameter = own[0][0].parameter
        self.parts = self._chosen(own)
        device, rows = self._parameter.device, len(self._parameter)
        self._made = torch.zeros(rows, dtype=torch.int64, device=device)
        self._marked = torch.zeros(rows, dtype=torch.uint8, device=device)
        numbers = fused_operators.NUMBERS
        windows = [WINDOW if part.virtual_rows else window for part, _ in self.parts]
        self._histories = [torch.zeros(steps, numbers, dtype=torch.float64, device=device) for steps in windows]
        self._changes = [
            m.weight.new_empty(steps, *m.shared[-1].shape) if m.shared[-1].numel() else m.weight.new_empty(0)
            for steps, (_, m) in zip(windows, self.parts, strict=True)
        ]
        self._any_marked = False
        self._all_marked = False

    def _chosen(self, own: list[tuple[Part, Moments]]) -> list[tuple[Part, Moments]]:
        machine = capabilities.machine_of(self._parameter.device)
        return [
            (part, m) for part, m in own if capabilities.update(machine, len(m.weight), m.tensors).kernels == "late"
        ]

    @torch.no_grad()
    def catch_up(self, white: Tensor, black: Tensor) -> bool:
        """Brings the rows that the index rows int32 [B, K] name up to date. Until the next step these, and those of
        other calls before it, are all the rows that may get a gradient. Returns whether the gradient may be sparse: a
        row that it leaves out waits."""
        self._mark(white, black)
        if not self._all_marked:
            self._replay(self._marked)
        return False

    def _mark(self, white: Tensor, black: Tensor) -> None:
        fused_operators.namespace._optimizer_mark_rows(white, black, self._marked)
        self._any_marked = True

    @torch.no_grad()
    def settle(self, *, gradient: bool = False) -> None:
        """Brings all rows up to date. `gradient`: any row may get a gradient in the next step."""
        self._replay(None)
        self._all_marked |= gradient

    def restart(self) -> None:
        """Everything has been replaced, and is up to date."""
        self._made.copy_(self._optimizer.numbers_of(self.parts[0][0]).step_count.expand_as(self._made))

    def before_step(self) -> None:
        """What has to be done while the step has not been counted."""
        if not self._any_marked:  # the rows that have a gradient are unknown
            self._all_marked = True
        if self._all_marked or not self._has_gradient:
            self.settle()

    def step(self) -> None:
        """The step that `_optimizer_begin` has allowed, or not."""
        if self._has_gradient:
            self._step()
        else:
            self.restart()  # a step without the parameter does not move it
        self._marked.zero_()
        self._any_marked = self._all_marked = False

    @property
    def _has_gradient(self) -> bool:
        copy = self.parts[0][0].copy
        return self._parameter.grad is not None or (copy is not None and copy.grad is not None)

    def marks_of(self, part: Part) -> Tensor:
        """Of the part's rows, uint8: those that may get a gradient in this step; no elements: all."""
        return self._marked[:0] if self._all_marked else part.rows(self._marked)

    def _step(self) -> None:
        if self._all_marked:
            self._marked.fill_(1)
        for number, (part, _) in enumerate(self.parts):
            assert part.gradient is not None
            self._update(number, part.rows(self._marked), part.gradient)

    def _update(self, number: int, rows: Tensor, gradient: Tensor) -> None:
        weight, moments = self.parts[number][1].weight, self.parts[number][1].all()
        fused_operators.namespace._optimizer_update_rows(weight, gradient, moments, rows, *self._how(number))

    def _replay(self, marked: Tensor | None) -> None:
        for number, (part, moments) in enumerate(self.parts):
            rows = None if marked is None else part.rows(marked)
            fused_operators.namespace._optimizer_catch_up(moments.weight, moments.all(), rows, *self._how(number))

    def _how(self, number: int) -> tuple[list[Tensor], list[Tensor], list[float], int, list[float]]:
        """late, state, settings, rule and constants of one of `parts`, as the operators take them."""
        part, moments = self.parts[number]
        late = [part.rows(self._made), self._changes[number], self._histories[number]]
        copy = [moments.copy] if moments.copy.numel() else []
        numbers = self._optimizer.numbers_of(part)
        constants = numbers.constants
        return [*late, *copy], numbers.state, part.settings(moments.steps), numbers.rule.number, constants


class HostLateRows(LateRows):
    """The same on a CPU, for all rows of a parameter. The gradient may be sparse, and where most rows are in a batch
    all are updated."""

    def __init__(self, optimizer: FusedOptimizer, name: str) -> None:
        super().__init__(optimizer, name, WINDOW)
        rows = len(self._parameter)
        if sum(len(moments.weight) for _, moments in self.parts) != rows:
            raise ValueError(f"{name}: its parts do not cover its {rows} rows")
        if any(part.copy is not None for part, _ in self.parts):
            raise ValueError(f"{name}: on a CPU, a parameter with a 16-bit copy cannot be updated late")
        self._settled_at = 0  # no row has made fewer steps

    def _chosen(self, own: list[tuple[Part, Moments]]) -> list[tuple[Part, Moments]]:
        return own

    @torch.no_grad()
    def catch_up(self, white: Tensor, black: Tensor) -> bool:
        self._mark(white, black)
        if int(self._marked.sum(dtype=torch.int64)) > LATE_SHARE * len(self._marked):
            self.settle(gradient=True)
        if not self._all_marked:
            self._replay(self._marked)
            self._settled_at = max(self._settled_at, self._steps() - WINDOW + 1)
        # A norm is taken over virtual rows, too, which only _optimizer_begin can sum.
        own = self._optimizer
        return not self._all_marked and not math.isfinite(own.max_norm) and not own.rule.stable_decay

    @torch.no_grad()
    def settle(self, *, gradient: bool = False) -> None:
        if self._settled_at < self._steps():
            self._replay(None)
            self._settled_at = self._steps()
        self._all_marked |= gradient

    def restart(self) -> None:
        self._settled_at = self._steps()
        self._made.fill_(self._settled_at)

    def before_step(self) -> None:
        super().before_step()
        if self._steps() - self._settled_at == WINDOW:
            self.settle()

    def marks_of(self, part: Part) -> Tensor:
        return self._marked[:0]  # a gradient may be sparse, of these rows

    def _step(self) -> None:
        optimizer, gradient = self._optimizer, self._parameter.grad
        if optimizer.numbers[0] == 0:
            return
        assert gradient is not None
        if self._all_marked and not gradient.is_sparse:
            self._marked.fill_(1)
            self._settled_at = self._steps()
        for number, (part, _) in enumerate(self.parts):
            if gradient.is_sparse:
                rows, own = part.sparse_rows(gradient)
            else:
                rows, own = part.rows(self._marked), part.rows(gradient)
            self._update(number, rows, own)

    def _steps(self) -> int:
        return int(self._optimizer.step_count)
