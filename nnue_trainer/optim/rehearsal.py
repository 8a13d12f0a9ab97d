"""Stops and resumes an optimiser's rule on a small copy of its work, before a run relies on that.

A rule from outside may keep what decides its next step where `state_dict` does not see it. Then a resumed run would
differ from one that was never stopped, and nothing would show it. Here the two are compared, bit for bit.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nnue_trainer.errors import UserError, first_line, shown
from nnue_trainer.optim.base import OptimizerConfig, Rule, Work

_STEPS = 7  # before the stop, and after it; lookahead and the like act every five or six steps
_LARGEST = 6  # of each dimension of the small copy


@torch.no_grad()
def rehearse(config: OptimizerConfig, work: Work) -> None:
    """UserError if a rule of `config`, stopped and resumed, does not continue as without the stop. A rule that does
    not run on the small copy is left to the run, as is one without memory for weights."""
    if any(tensor.is_meta for tensor in work.parameters.values()):
        return
    devices = [work.lr.device] if work.lr.is_cuda else []
    with torch.random.fork_rng(devices=devices), contextlib.suppress(_NotPossible):
        never_stopped, stopped = _Rehearsal(config, work, 1), _Rehearsal(config, work, 2)
        never_stopped.train(0)
        state = {name: tensor.clone() for name, tensor in never_stopped.rule.state_dict().items()}
        stopped.take(never_stopped.parameters)
        try:
            stopped.rule.load_state_dict(state)
        except ValueError as error:
            raise UserError(f"optimizer {config.kind}: cannot load the state that it saved: {error}") from None
        never_stopped.train(_STEPS)
        stopped.train(_STEPS)
    for name, tensor in never_stopped.parameters.items():
        other = stopped.parameters[name]
        if not bool(((tensor == other) | (tensor.isnan() & other.isnan())).all()):
            raise UserError(
                f"optimizer {config.kind}: a resumed run would not be the same: after {_STEPS} steps, a stop and "
                f"{_STEPS} more, {name} differs by {(tensor - other).abs().max().item():.2g}; all that decides the "
                "next step must be in Rule.state_dict (docs/extending.md)"
            )


class _NotPossible(Exception):
    """The rule does not run on the small copy."""


class _Rehearsal:
    def __init__(self, config: OptimizerConfig, work: Work, seed: int) -> None:
        torch.manual_seed(seed)
        self.parameters = {name: nn.Parameter(_small(tensor).normal_()) for name, tensor in work.parameters.items()}
        self._virtual, self._lr = work.virtual, config.lr
        small = replace(work, parameters=self.parameters, failed=torch.zeros_like(work.failed), covered=frozenset())
        self.rule: Rule = _possible(config.rule, small)

    def take(self, parameters: dict[str, nn.Parameter]) -> None:
        for name, tensor in parameters.items():
            self.parameters[name].copy_(tensor)

    def train(self, first: int) -> None:
        for step in range(first, first + _STEPS):
            torch.manual_seed(100 + step)
            for name, parameter in self.parameters.items():
                parameter.grad = torch.randn_like(parameter)
                if name in self._virtual:
                    parameter.zero_()
            self.rule.set_lr(self._lr)
            self.rule.loss = torch.ones((), dtype=torch.float32, device=parameter.device)
            _possible(self.rule.step)
        for parameter in self.parameters.values():
            parameter.grad = None


def _small(tensor: Tensor) -> Tensor:
    return tensor.detach().new_empty([min(size, _LARGEST) for size in tensor.shape])


def _possible(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise _NotPossible(shown(first_line(error))) from error
