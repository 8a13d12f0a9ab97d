"""A step with a loss or gradient that is not finite changes nothing in this process, and neither does any later one.

The test runs on the device and nothing waits for it, except for rules that keep something in host memory: the host
reads when it writes a record. By then weights are still those of the last good step. If several processes have
different columns, only one of them may fail; the others continue until that record, where the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nnue_trainer.optim.base import Rule


class Guard:
    """The layer next to the rule. `failed` (fp32 scalar) becomes 1 at the first step that is refused and stays 1.
    `watched` are the gradients to check: a parameter, and which of its rows."""

    def __init__(self, rule: Rule, failed: Tensor, watched: Sequence[tuple[nn.Parameter, slice]]) -> None:
        self.failed = failed
        self._rule = rule
        self._watched = watched
        self._before: dict[int, Tensor] = {}  # copies of what the rule changes, by place in memory

    def step(self, loss: Tensor, inner: Callable[[], None]) -> None:
        """Runs `inner`; nothing changes where `loss`, an fp32 scalar, or a watched gradient is not finite."""
        self._check(loss)
        if self._rule.heeds_failed:
            inner()
        elif self.reads_result():
            if not self.failed.item():
                inner()
        else:
            self._keep()
            inner()
            self._put_back()

    def reads_result(self) -> bool:
        """Whether the host reads the test's result, which is free on the CPU. On another device it would wait; there
        the step is made in any case, and undone on the device if it failed. That takes a copy of all that it changes.
        Only a rule that keeps something in host memory, as torch's Adafactor does its count of steps, is checked
        there as well."""
        return self.failed.device.type == "cpu" or any(tensor.device.type == "cpu" for tensor in self._rule.changed())

    def _check(self, loss: Tensor) -> None:
        # A sum is finite only if all of its terms are.
        sums = [_rows(p.grad, rows).sum() for p, rows in self._watched if p.grad is not None]
        finite = torch.stack([loss.detach().float(), *(total.float() for total in sums)]).isfinite().all()
        self.failed.clamp_(min=(~finite).float())

    def _keep(self) -> None:
        for tensor in self._rule.changed():
            copy = self._before.get(tensor.data_ptr())
            if copy is None:
                self._before[tensor.data_ptr()] = tensor.clone()
            else:
                copy.copy_(tensor)

    def _put_back(self) -> None:
        failed = self.failed != 0
        for tensor in self._rule.changed():
            copy = self._before.get(tensor.data_ptr())
            if copy is not None:  # else it was made in this step
                torch.where(failed, copy, tensor, out=tensor)


def _rows(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if rows == slice(None) else tensor[rows]
