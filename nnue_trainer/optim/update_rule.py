"""How weights move in a step of the fused operators: the update rule, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

RuleKind = Literal["adam", "rectified", "positive_negative", "lion", "schedule_free"]
_KINDS: tuple[RuleKind, ...] = get_args(RuleKind)


@dataclass(frozen=True)
class UpdateRule:
    """How weights move; weight decay is decoupled from all of this.

    kind: "adam" is torch.optim.AdamW, "rectified" torch.optim.RAdam; "positive_negative" is Adam with two averages of
    the gradient that take turns, and moves along (1 + positive) · this step's − positive · the other one's, divided by
    the norm of these two factors (AdaPNM).
    "lion" moves by the sign of one average and has no squares; "schedule_free" is AdamW whose parameters hold y, where
    gradients are taken, and whose net is x (`FusedOptimizer.averaged`).
    lookahead_every: after this many steps the slow weights move by `lookahead_share` of the way to the fast ones, which
    start there anew; 0: no slow weights.
    corrects_bias: divide averages and squares by what they lack, as they start at zero; of "adam" only.
    warmup, weight_power: of "schedule_free": the rate rises over this many steps, and step t counts as rate² · t^power.
    stable_decay: the weight decay is divided by the root of the mean square gradient of all parts.
    max_value: gradients are clipped to this size, after they were scaled to the norm.
    """

    kind: RuleKind = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    positive: float = 1.0
    lookahead_every: int = 0
    lookahead_share: float = 0.5
    corrects_bias: bool = True
    warmup: int = 0
    weight_power: float = 0.0
    stable_decay: bool = False
    max_value: float = math.inf

    @property
    def number(self) -> int:
        """`kind` as the operators take it."""
        return _KINDS.index(self.kind)

    def constants(self, max_norm: float) -> list[float]:
        """The arguments of `_optimizer_describe`. `max_norm`: gradients are scaled down to it."""
        lookahead = [self.lookahead_every, self.lookahead_share]
        own = [self.corrects_bias, self.warmup, self.weight_power, self.stable_decay, self.max_value]
        return [float(number) for number in (self.eps, self.positive, *lookahead, *own, max_norm)]

    @property
    def averages(self) -> list[str]:
        """The names of the running means of the gradient, or of what stands in their place."""
        if self.kind == "schedule_free":
            return ["z"]
        return ["exp_avg", "exp_avg_2"] if self.kind == "positive_negative" else ["exp_avg"]

    @property
    def squares(self) -> list[str]:
        """The name of the running mean of the square, if there is one."""
        return [] if self.kind == "lion" else ["exp_avg_sq"]
