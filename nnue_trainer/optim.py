"""AdamW as nets need it: factorised feature transformers, weights kept in range, and a step that refuses NaN.

Everything runs on torch's fused kernels and nothing waits for the device.

Factoriser. Row r of a factorised weight [F, N] is trained as w[r] + v[r mod V], but only the sum is stored. The
gradient of a virtual row is the sum of its rows' gradients. Since AdamW adds its update to a parameter, the sum moves
by the update of w (made in place, on the sum) plus the update of v. So v is a parameter of its own in the optimiser,
set to zero before every step: what it holds afterwards is its update, to be added to all rows that share it. Weight
decay acts on the sum, which is the same as on both parts: lr·wd·(w + v).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from nnue_trainer.architectures.base import NnueModel
from nnue_trainer.schema import section

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@section
class OptimizerConfig:
    """AdamW with decoupled weight decay."""

    lr: float = Field(8.75e-4, gt=0)
    """learning rate before the schedule"""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """decay of the running mean of the gradient and of its square"""
    eps: float = Field(1e-8, gt=0)
    """added to the root of the mean square gradient"""
    weight_decay: float = Field(0.01, ge=0)
    """decoupled: weights shrink by lr·weight_decay a step"""
    factoriser: bool = True
    """train virtual features along, where the feature set has them"""
    clip_weights: bool = True
    """keep weights in the range that the exported net can hold, after every step"""


@dataclass(frozen=True)
class _Virtual:
    weight: nn.Parameter  # [F, N]
    rows: nn.Parameter  # [V, N], its last update after a step
    low: float
    high: float

    @property
    def groups(self) -> Tensor:
        """The weight as [F / V, V, N]."""
        return self.weight.detach().view(-1, *self.rows.shape)


class Optimizer:
    """AdamW over all parameters of `model`.

    A step with a non-finite loss or gradient changes nothing, and neither does any later one: weights stay those of the
    last good step, and `failed()` tells when asked.
    """

    def __init__(self, model: NnueModel, config: OptimizerConfig):
        parameters = dict(model.named_parameters())
        self.device = next(iter(parameters.values())).device
        self.lr = torch.tensor(config.lr, dtype=torch.float32, device=self.device)
        bounds = {id(bound.parameter): bound for bound in model.weight_bounds()} if config.clip_weights else {}
        self._virtual = {}
        for name, rows in model.factorised().items() if config.factoriser else ():
            weight = parameters[name]
            if weight.shape[0] % rows:
                raise ValueError(f"{name}: {weight.shape[0]} rows cannot share {rows} virtual rows evenly")
            bound = bounds.pop(id(weight), None)
            low, high = (bound.low, bound.high) if bound else (-math.inf, math.inf)
            virtual_rows = nn.Parameter(weight.new_zeros(rows, weight.shape[1]))
            self._virtual[name] = _Virtual(weight, virtual_rows, low, high)
        self._bounds = list(bounds.values())
        self._named = parameters | {f"{name}.virtual": virtual.rows for name, virtual in self._virtual.items()}
        groups: list[dict[str, Any]] = [
            {"params": list(parameters.values())},
            {"params": [virtual.rows for virtual in self._virtual.values()], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            groups,
            lr=self.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=self.device.type == "cuda",
        )
        # torch skips the update, and its count of steps, while this is 1.
        self._failed = torch.zeros((), device=self.device)
        setattr(self._adamw, "found_inf", self._failed)  # noqa: B010 (an attribute that the type does not declare)
        for parameter in self._named.values():
            self._adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=self.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    @torch.no_grad()
    def step(self, loss: Tensor) -> None:
        """One update from the gradients in place, which are freed. `loss` is looked at for the guard only."""
        for virtual in self._virtual.values():
            self._sum_gradients(virtual)
            virtual.rows.zero_()
        self._guard(loss)
        self._adamw.step()
        for virtual in self._virtual.values():
            _add_shared(virtual)
        for bound in self._bounds:
            bound.parameter.clamp_(bound.low, bound.high)
        self._adamw.zero_grad(set_to_none=True)

    def failed(self) -> bool:
        """Whether a step met a loss or gradient that is not finite. Waits for the device."""
        return bool(self._failed.item())

    def good_steps(self) -> int:
        """How many updates were made. Waits for the device."""
        return int(next(iter(self._adamw.state.values()))["step"].item())

    def state_dict(self) -> dict[str, Tensor]:
        """`step/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME` by parameter; virtual rows are `NAME.virtual`."""
        return {
            f"{moment}/{name}": self._adamw.state[parameter][moment]
            for name, parameter in self._named.items()
            for moment in MOMENTS
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over all moments. Raises ValueError naming a tensor that is missing, unknown or misshapen."""
        own = self.state_dict()
        for name in sorted(own.keys() ^ state.keys()):
            raise ValueError(f"tensor {name} is {'missing' if name in own else 'unknown'}")
        for name, tensor in state.items():
            if own[name].shape != tensor.shape:
                raise ValueError(f"tensor {name} has shape {list(tensor.shape)}, expected {list(own[name].shape)}")
            own[name].copy_(tensor)

    def _sum_gradients(self, virtual: _Virtual) -> None:
        gradient = virtual.weight.grad
        if gradient is None:
            virtual.rows.grad = None
            return
        groups = gradient.view(-1, *virtual.rows.shape)
        if gradient.is_cuda:
            virtual.rows.grad = groups.sum(0)
            return
        # On the CPU adding group by group is twice as fast as torch's sum over the first dimension.
        total = groups[0].clone()
        for group in groups[1:]:
            total.add_(group)
        virtual.rows.grad = total

    def _guard(self, loss: Tensor) -> None:
        # A sum is finite only if all of its terms are. The gradient of virtual rows is already a sum over all rows.
        summed = {id(virtual.weight) for virtual in self._virtual.values()}
        sums = [
            parameter.grad.sum()
            for parameter in self._named.values()
            if parameter.grad is not None and id(parameter) not in summed
        ]
        finite = torch.stack([loss.detach().float(), *sums]).isfinite().all()
        self._failed.clamp_(min=(~finite).float())


def _add_shared(virtual: _Virtual) -> None:
    """Adds the update of the virtual rows to all rows that share them, and clips the weight."""
    # On the CPU group by group, so that a group stays in the cache between the two operations.
    groups = [virtual.groups] if virtual.weight.is_cuda else virtual.groups
    for group in groups:
        group.add_(virtual.rows).clamp_(virtual.low, virtual.high)
