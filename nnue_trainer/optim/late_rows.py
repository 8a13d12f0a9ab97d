"""Rows of a parameter that are updated when they are needed and not in every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnue_trainer.data.batch import Plan, plan_of
from nnue_trainer.ops import capabilities
from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.parts import Pair, given

if TYPE_CHECKING:
    from nnue_trainer.optim.fused_optimizer import FusedOptimizer

WINDOW = 16
"""Steps that rows updated late may be behind. Each takes as much memory as the virtual rows do."""
DEVICE_WINDOW = 32
"""`WINDOW` on a GPU for rows without virtual rows: kMostWindow of csrc/optimizer.h."""
LEAST_ROW = 32
"""With fewer elements per row the norm reads all rows, not only marked ones: kLeastRow of csrc/optimizer.h."""
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

    parts: list[Pair]
    """those whose rows are updated late"""
    rows: list[Tensor]
    """of each of them, those that may get a gradient in the step that is made, as `_optimizer_step` takes them"""

    _too_many = 1.0
    """the share of the rows in a batch above which all are updated in its step"""
    _takes_sparse = False
    """whether gradients may be sparse"""

    def __init__(self, optimizer: FusedOptimizer, name: str, window: int = DEVICE_WINDOW) -> None:
        """`window`: of rows without virtual rows."""
        self._optimizer = optimizer
        self._parameter = next(part.parameter for part, _ in optimizer.pairs if part.name == name)
        device, rows = self._parameter.device, len(self._parameter)
        machine, positions = capabilities.machine_of(device), optimizer.positions
        own = {
            number: (part, moments)
            for number, (part, moments) in enumerate(optimizer.pairs)
            if part.name == name
            and capabilities.update(machine, len(moments.weight), moments.tensors, positions).kernels == "late"
        }
        self.parts, self._numbers = list(own.values()), list(own)
        self.first_part = self._numbers[0] if own else -1
        self._made = torch.zeros(rows, dtype=torch.int64, device=device)
        self._marked = torch.zeros(rows, dtype=torch.uint8, device=device)
        self._marks_key = ("marks", rows)
        for part, moments in self.parts:
            steps, shared = WINDOW if part.virtual_rows else window, moments.shared[-1]
            changes = shared.new_empty(steps, *shared.shape) if shared.numel() else shared
            history = torch.zeros(steps, fused_operators.NUMBERS, dtype=torch.float64, device=device)
            moments.late, moments.kept = self, [part.rows(self._made), changes, history]
        self._marked_rows = [part.rows(self._marked) for part, _ in self.parts]
        self._all_rows = [self._marked[:0]] * len(self.parts)
        self._all_marked = False
        self.rows = self._all_rows
        self._has_gradient = True  # in that step
        self._batches = 0  # calls of `catch_up` for the next step
        self._has_all = sum(len(moments.weight) for _, moments in self.parts) == rows
        self.take_parts()
        self._reads_marked = self._has_all and self._parameter[0].numel() >= LEAST_ROW

    def take_parts(self) -> None:
        """Takes over the parts' copies, which `FusedOptimizer.copy_in_steps` replaces."""
        self._given = given(self.parts)

    def leaves_unused(self) -> bool:
        """Whether the gradient's rows of features that the batch lacks may stay unwritten, if only the next step reads
        the gradient: nothing reads them if all rows are updated late, and the gradient is that of one batch."""
        watched = self._parameter._backward_hooks or self._parameter._post_accumulate_grad_hooks
        of_one_batch = self._batches == 1 and not self._all_marked
        return self._reads_marked and of_one_batch and not watched and not torch.is_anomaly_enabled()

    def catch_up(self, white: Tensor, black: Tensor, plans: tuple[Any, ...] = ()) -> bool:
        """`catch_up_marked` for the rows that the index rows int32 [B, K] name. `plans`: of the batch, perhaps with
        `marks`."""
        marks = plan_of(white, plans, self._marks_key)
        return self.catch_up_marked((self.marks(white, black) if marks is None else marks).data)

    @torch.no_grad()
    def catch_up_marked(self, marks: Tensor) -> bool:
        """Brings the rows with marks, uint8 [F], up to date. Until the next step these, and those of other calls before
        it, are all the rows that may get a gradient. Returns whether the gradient may be sparse: a row that it leaves
        out waits."""
        self._marked |= marks
        self._batches += 1
        if self._too_many < 1 and int(self._marked.sum(dtype=torch.int64)) > self._too_many * len(self._marked):
            self.settle(gradient=True)
        if not self._all_marked:
            self._replay(self._marked_rows)
        return self._takes_sparse and not self._all_marked

    def marks(self, white: Tensor, black: Tensor) -> Plan:
        """The rows that these index rows name, ahead of `catch_up`: uint8 [F], 1 for each of them."""
        found = torch.zeros_like(self._marked)
        fused_operators.namespace._optimizer_mark_rows(white, black, found)
        return Plan(self._marks_key, found, white)

    @torch.no_grad()
    def settle(self, *, gradient: bool = False) -> None:
        """Brings all rows up to date. `gradient`: any row may get a gradient in the next step."""
        self._replay(self._all_rows)
        self._all_marked |= gradient

    def restart(self) -> None:
        """Everything has been replaced, and is up to date."""
        self._made.copy_(self._optimizer.step_count.expand_as(self._made))

    def before_step(self) -> None:
        """The work before the step is counted. Sets `rows`."""
        if self._batches == 0:  # the rows that have a gradient are unknown
            self._all_marked = True
        copy, gradient = self.parts[0][0].copy, self._parameter.grad
        gradient = gradient if copy is None or copy.grad is None else copy.grad
        self._has_gradient = gradient is not None
        if self._all_marked or gradient is None:
            self.settle()
        if gradient is not None and gradient.is_sparse:
            self.rows = [part.sparse_rows(gradient)[0] for part, _ in self.parts]
        else:
            self.rows = self._all_rows if self._all_marked else self._marked_rows

    def after_step(self) -> None:
        """The work after the step was counted, or skipped."""
        if not self._has_gradient:
            self.restart()  # a step without the parameter does not move it
        self._marked.zero_()
        self._all_marked, self._batches = False, 0

    def _replay(self, rows: list[Tensor]) -> None:
        fused_operators.namespace._optimizer_catch_up(
            *self._given, rows, self._optimizer.tensors, self._numbers, self._optimizer.handle
        )


class HostLateRows(LateRows):
    """Late rows on a CPU: all rows of a parameter. The gradient may be sparse, and where most rows are in a batch
    all are updated."""

    _too_many = LATE_SHARE

    def __init__(self, optimizer: FusedOptimizer, name: str) -> None:
        super().__init__(optimizer, name, WINDOW)
        if not self._has_all:
            raise ValueError(f"{name}: its parts do not cover its {len(self._parameter)} rows")
        if any(part.copy is not None for part, _ in self.parts):
            raise ValueError(f"{name}: on a CPU, a parameter with a 16-bit copy cannot be updated late")
        # A norm is taken over virtual rows, too, which are sums of whole gradients.
        self._takes_sparse = not math.isfinite(optimizer.max_norm) and not optimizer.rule.stable_decay
