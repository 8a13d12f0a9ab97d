"""Your own optimiser: Lion, which updates every weight by the sign of its momentum.

Virtual rows, clipping and the guard against NaN are layers around the rule and need no code here.
"""

from typing import Annotated

from pydantic import Field

from nnue_trainer.optim import OptimizerConfig, Rule, Work
from nnue_trainer.schema import section

Beta = Annotated[float, Field(ge=0, lt=1)]


@section
class Lion(OptimizerConfig):
    """Lion with decoupled weight decay."""

    lr: float = Field(default=1e-4, gt=0)
    """learning rate before the schedule"""
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    """share of the momentum in the direction of a step, and its decay"""
    weight_decay: float = Field(default=0.0, ge=0)
    """decoupled: weights shrink by lr·weight_decay per step"""

    def rule(self, work: Work) -> Rule:
        return LionRule(work, self)


class LionRule(Rule):
    def __init__(self, work: Work, config: Lion) -> None:
        super().__init__(work)
        self.config = config
        self.momentum = self.moments("momentum")  # zeros like each parameter, saved and resumed as momentum/NAME

    def step(self) -> None:
        lr, (beta1, beta2) = self.work.lr, self.config.betas
        for name, parameter in self.work.parameters.items():
            gradient, momentum = parameter.grad, self.momentum[name]
            if gradient is None:
                continue
            if self.config.weight_decay and name not in self.work.virtual:
                parameter.mul_(1 - lr * self.config.weight_decay)
            parameter.sub_(lr * momentum.lerp(gradient, 1 - beta1).sign())
            momentum.lerp_(gradient, 1 - beta2)
