"""Groups of parameters that a recipe trains differently: by name, the settings of each. The registry of the rules."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from nnue_trainer.errors import UserError, quoted
from nnue_trainer.registry import Registry
from nnue_trainer.schema import section

if TYPE_CHECKING:
    from nnue_trainer.optim.base import OptimizerConfig


def _config() -> type[OptimizerConfig]:
    from nnue_trainer.optim.base import OptimizerConfig

    return OptimizerConfig


OPTIMIZERS: Registry[OptimizerConfig] = Registry("nnue_trainer.optim", _config, what="optimizer", default="adamw")

Betas = tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]


@section
class Group:
    """Parameters whose names match a pattern, and what is different for them. Where several groups have a parameter,
    the last one that has a value for a setting decides."""

    match: str = Field(min_length=1)
    """name of a parameter, or a pattern such as fc*.bias; `nnue inspect` prints the names"""
    lr_factor: float | None = Field(default=None, gt=0)
    """factor of the learning rate; null: not changed"""
    weight_decay: float | None = Field(default=None, ge=0)
    """weight decay; null: not changed"""
    betas: Betas | None = None
    """betas; null: not changed"""
    min_weight: float | None = None
    """lowest value that a weight may have after a step; null: only the limit of clip_weights"""
    max_weight: float | None = None
    """highest value; null: as for min_weight"""
    frozen: bool | None = None
    """true: no step, no decay and no clipping, and moments stay as they are; null: not changed"""
    rule: Annotated[Any, OPTIMIZERS] | None = None
    """rule that trains them in place of the recipe's, with its own learning rate, which follows the same schedule; its
    groups, factoriser, clip_weights, max_norm and max_value are the recipe's; null: not changed"""

    @model_validator(mode="after")
    def _in_order(self) -> Group:
        if self.min_weight is not None and self.max_weight is not None and self.min_weight > self.max_weight:
            raise ValueError(f"min_weight: found {self.min_weight:g}, expected at most max_weight, {self.max_weight:g}")
        return self


@dataclass(frozen=True)
class Settings:
    """The settings of one parameter, from all groups that have it."""

    rate: float = 1.0
    """factor of the learning rate"""
    decay: float | None = None
    """None: the rule's"""
    betas: tuple[float, float] | None = None
    """None: the rule's"""
    low: float = -math.inf
    high: float = math.inf
    frozen: bool = False
    rule: OptimizerConfig | None = None
    """None: the recipe's"""

    @property
    def for_rule(self) -> bool:
        """Whether a rule has to heed any of them."""
        return (self.rate, self.decay, self.betas) != (1.0, None, None)


def settings_of(groups: Sequence[Group], names: Iterable[str], where: str = "") -> dict[str, Settings]:
    """By name, the settings of all parameters that are in a group. UserError, which begins with `where`, for a
    group that has no parameter."""
    names, found = list(names), dict[str, Settings]()
    for number, group in enumerate(groups):
        own = [name for name in names if fnmatch.fnmatchcase(name, group.match)]
        if not own:
            raise UserError(
                f"{where}optimizer.groups.{number}.match: {quoted(group.match)} matches no parameter, expected a "
                f"pattern for some of {', '.join(names)}"
            )
        values = {
            "rate": group.lr_factor,
            "decay": group.weight_decay,
            "betas": group.betas,
            "low": group.min_weight,
            "high": group.max_weight,
            "frozen": group.frozen,
            "rule": group.rule,
        }
        given = {key: value for key, value in values.items() if value is not None}
        for name in own:
            found[name] = replace(found.get(name, Settings()), **given)  # type: ignore[arg-type]
    return found
