"""Several rules in one optimiser: the recipe's own, and those that its groups of parameters name.

Each rule has some of the parameters and a learning rate of its own, which follows the schedule. Rules on the
project's operators still do the work of the layers around them: the first one checks the gradients of all before
anything is written, and counts the step or refuses it; the others heed its flag. Beside any other rule they are rules
and no more, and the layers do that work.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from torch import Tensor

from nnue_trainer.base.foreign import returned
from nnue_trainer.errors import UserError
from nnue_trainer.optim import fused_operators
from nnue_trainer.optim.base import Group, OptimizerConfig, Rule, Settings, Work
from nnue_trainer.optim.fused import FusedConfig, FusedRule
from nnue_trainer.optim.parts import Columns, NormOf
from nnue_trainer.optim.rehearsal import rehearse

_AROUND = ("factoriser", "clip_weights", "max_norm", "max_value", "groups")
"""Fields of the layers around all rules."""


def configs(config: OptimizerConfig) -> list[OptimizerConfig]:
    """The section and those of its groups."""
    return [config, *(group.rule for group in config.groups if group.rule is not None)]


def replaces(config: OptimizerConfig) -> frozenset[str]:
    """The layers whose work the rules do: `OptimizerConfig.replaces`; of several rules those of the operators, if all
    are on these."""
    every = configs(config)
    all_fused = all(isinstance(each, FusedConfig) for each in every)
    return config.replaces if len(every) == 1 or all_fused else frozenset()


def by_value(config: OptimizerConfig) -> bool:
    """`OptimizerConfig.by_value` of all rules. Together they take their norm in one process."""
    every = configs(config)
    return all(each.by_value() for each in every) and (len(every) == 1 or config.max_norm is None)


def fused_rules(rule: Rule) -> list[FusedRule]:
    """The rules on the project's operators, if all are."""
    every = rule.rules if isinstance(rule, PerGroup) else [rule]
    fused = [each for each in every if isinstance(each, FusedRule)]
    return fused if len(fused) == len(every) else []


def make(config: OptimizerConfig, work: Work, *, rehearsed: bool) -> Rule:
    """The rule of `config`, or of it and its groups. `rehearsed`: rules from outside are stopped and resumed on a
    small copy first. UserError if one does not fit."""
    made: list[tuple[OptimizerConfig, Rule]] = []
    for each, own in _divided(config, work):
        rule = each.rule(own)
        returned(each, "rule", rule, isinstance(rule, Rule), "a Rule")
        if rehearsed and not rule.is_ours:
            rehearse(each, own)
        if rule.averages_weights and not work.virtual.isdisjoint(own.parameters):
            raise UserError(
                f"optimizer: found {each.kind!r} with virtual rows beside a rule that is not fused; its average would "
                "lack them: set factoriser to false, or use fused rules only"
            )
        made.append((each, rule))
    if len(configs(config)) == 1:
        return made[0][1]
    return PerGroup(work, [rule for _, rule in made], [each.lr / config.lr for each, _ in made])


def _divided(config: OptimizerConfig, work: Work) -> Iterator[tuple[OptimizerConfig, Work]]:
    """Each rule's section and the parameters that it has. The first one is that of rows that are updated late: only a
    rule's own step reads their gradients, of which some rows may be left out."""
    if len(configs(config)) == 1:
        yield config, work
        return
    names: dict[int, list[str]] = {}
    found: dict[int, OptimizerConfig] = {}
    for name in work.parameters:
        rule = work.settings.get(name, Settings()).rule or config
        names.setdefault(id(rule), []).append(name)
        found[id(rule)] = rule
    first = max(found, key=lambda key: len(work.late.intersection(names[key])))
    for key in sorted(found, key=lambda key: key != first):
        own = {name: work.parameters[name] for name in names[key]}
        settings = {name: replace(each, rule=None) for name, each in work.settings.items() if name in own}
        betas = [Group(match=name, betas=each.betas) for name, each in settings.items() if each.betas is not None]
        section = found[key] if found[key] is config else _completed(found[key], config)
        yield (
            _valid(section, groups=betas),
            replace(
                work,
                parameters=own,
                lr=torch.full_like(work.lr, section.lr),
                settings=settings,
                factorised={name: ranges for name, ranges in work.factorised.items() if name in own},
                bounds=tuple(bound for bound in work.bounds if any(bound.parameter is each for each in own.values())),
                late=work.late if key == first else frozenset(),
            ),
        )


def _completed(section: OptimizerConfig, config: OptimizerConfig) -> OptimizerConfig:
    """The section of a group's rule with what is the recipe's. UserError if it has values of its own there."""
    for name in _AROUND:
        default = _fields(section)[name].get_default(call_default_factory=True)
        if getattr(section, name) not in (default, getattr(config, name)):
            raise UserError(
                f"optimizer.groups: the rule {section.kind!r} sets {name}, expected it in optimizer, where it holds "
                "for all rules"
            )
    return _valid(section, **{name: getattr(config, name) for name in _AROUND if name != "groups"})


def _fields(section: OptimizerConfig) -> dict[str, FieldInfo]:
    fields: dict[str, FieldInfo] = vars(type(section))["__pydantic_fields__"]
    return fields


def _valid(section: OptimizerConfig, **changed: Any) -> OptimizerConfig:
    fields = _fields(section).items()
    values = {field.alias or name: changed.get(name, getattr(section, name)) for name, field in fields}
    try:
        found = type(section)(**values)  # `dataclasses.replace` does not support aliases
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        text = str(detail.get("ctx", {}).get("error", detail["msg"]))
        raise UserError(f"optimizer.groups: the rule {section.kind!r}: {text}") from None
    if getattr(found, "stable_decay", False):
        raise UserError(
            f"optimizer.groups: the rule {section.kind!r} has stable_decay, which needs all gradients; set it to "
            "false, or remove the rules of groups"
        )
    return found


class PerGroup(Rule):
    """State: that of all rules. Names of what belongs to no parameter begin with the number of the rule."""

    def __init__(self, work: Work, rules: Sequence[Rule], rates: Sequence[float]) -> None:
        """`rates`: of each rule, its learning rate divided by the recipe's."""
        super().__init__(work)
        self.rules, self._rates = rules, rates
        self.is_ours = all(rule.is_ours for rule in rules)
        self.heeds_failed = all(rule.heeds_failed for rule in rules)
        self.capturable = all(rule.capturable for rule in rules)
        self.averages_weights = any(rule.averages_weights for rule in rules)
        self.late_rows = {name: rows for rule in rules for name, rows in rule.late_rows.items()}
        self._numbers = {name: number for number, rule in enumerate(rules) for name in rule.work.parameters}
        self._last_lr: float | None = None
        if fused := fused_rules(self):
            first, *others = fused
            first.fused.watched = [rule.watched for rule in others]
            self.step_count = first.step_count
            for rule in others:
                # `failed` is set where this is not finite, before another rule reads it.
                rule.fused.norm_of = lambda parts, norm: first.fused.numbers[fused_operators.NORM]

    def step(self) -> None:
        for rule in self.rules:
            rule.loss = self.loss
            rule.step()
            rule.loss = None

    def set_lr(self, lr: float) -> None:
        for rule, rate in zip(self.rules, self._rates, strict=True):
            if lr != self._last_lr:
                rule.work.lr.fill_(lr * rate)
            rule.set_lr(lr * rate)
        self._last_lr = lr

    def state_dict(self) -> dict[str, Tensor]:
        return {
            name if self._number_of(name) is not None else f"{number}/{name}": tensor
            for number, rule in enumerate(self.rules)
            for name, tensor in rule.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        divided: list[dict[str, Tensor]] = [{} for _ in self.rules]
        for name, tensor in state.items():
            number = self._number_of(name)
            own = name
            if number is None:
                first, _, own = name.partition("/")
                number = int(first) if first.isdecimal() else len(self.rules)
            if number >= len(self.rules):
                raise ValueError(f"tensor {name} is unknown")
            divided[number][own] = tensor
        for rule, own_state in zip(self.rules, divided, strict=True):
            rule.load_state_dict(own_state)

    def _number_of(self, name: str) -> int | None:
        """The rule of the parameter whose state has this name, KEY/PARAMETER or KEY/PARAMETER.virtual."""
        return self._numbers.get(name.rpartition("/")[2].partition(".virtual")[0])

    def net(self, name: str) -> Tensor:
        rule = self._rule_of(name)
        return rule.net(name) if rule.averages_weights else self.work.parameters[name].detach().clone()

    def settle(self) -> None:
        for rule in self.rules:
            rule.settle()

    def write_copies(self, names: Container[str] | None = None) -> None:
        for rule in self.rules:
            rule.write_copies(names)

    def copy_in_steps(self, name: str, steps: float) -> int:
        return self._rule_of(name).copy_in_steps(name, steps)

    def take_norm(self, norm_of: NormOf) -> None:
        """Nothing: several rules that clip to a norm run in one process (`by_value`)."""

    def take_columns(self, columns: Mapping[str, Columns]) -> None:
        for rule in self.rules:
            rule.take_columns(columns)

    def changed(self) -> list[Tensor]:
        return [tensor for rule in self.rules for tensor in rule.changed()]

    def _rule_of(self, name: str) -> Rule:
        return self.rules[self._numbers[name]]
