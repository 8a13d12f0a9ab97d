"""The output of `nnue explain`: which kernels run each part of a recipe's step, and why faster ones are not used.

It prints the objects that training runs (`Core`), assembled for any machine, with a net that has no memory for its
weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from nnue_trainer import nets
from nnue_trainer.config import Recipe
from nnue_trainer.data.features import feature_set
from nnue_trainer.modules.layer_stacks import LayerStacks
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.capabilities import Choice, Machine, Mode
from nnue_trainer.ops.perspectives import number_of
from nnue_trainer.optim import per_group
from nnue_trainer.optim.fused import FusedConfig, FusedRule
from nnue_trainer.training.assembly.core import Core, core_of
from nnue_trainer.training.assembly.precision import without_auto
from nnue_trainer.training.assembly.steps import StepKind, divide, why_positions
from nnue_trainer.training.estimate import FACTORS, Card, Work, estimate, rows_of
from nnue_trainer.training.parallel.ranks import Ranks


class Part(NamedTuple):
    """A part of the step."""

    name: str
    kernels: str
    reason: str
    """why faster ones are not taken; "" if there are none"""


def explain(recipe: Recipe, machine: Machine, ranks: int = 1, card: Card | None = None) -> list[Part]:
    """The parts of a step of `recipe` on each of several machines of a kind. `card`: the data sheet of the GPU, for an
    estimate of rate and memory on one."""
    with _as_if(machine):
        recipe, core, reason = _assembled(recipe, machine, ranks)
        model = core.model
        parts = [Part("machine", str(machine), ""), Part("precision", recipe.training.precision, "")]
        parts += [Part("sharding", core.sharding.name, reason)] if ranks > 1 else []
        parts += _features(model, machine)
        qat = recipe.model.qat_config
        for rounds in [False] if not qat.qat else [True] if qat.qat_from == 0 else [False, True]:
            suffix = ", rounded" if rounds else ""
            with model.rounding(rounds):
                apart = core.why_not_fused()
            parts.append(Part(f"step{suffix}", "fused" if apart is None else "autograd", apart or ""))
            parts += [part._replace(name=part.name + suffix) for part in _step(recipe, core, machine, apart, rounds)]
        parts += _update(recipe, core, machine)
        return parts if card is None or ranks > 1 else parts + _estimated(_work(recipe, core, machine), card)


def work_of(recipe: Recipe, machine: Machine) -> Work | None:
    """A step of `recipe` on one GPU in numbers, for an estimate of its time; None where torch's operators run a part of
    it, whose time is not estimated."""
    with _as_if(machine):
        recipe, core, _ = _assembled(recipe, machine)
        return _work(recipe, core, machine)


def _assembled(recipe: Recipe, machine: Machine, ranks: int = 1) -> tuple[Recipe, Core, str]:
    """The recipe without `auto`, the objects of a step without memory, and the reason why several processes divide the
    positions; "" if they do not."""
    device = torch.device("cpu" if machine == capabilities.CPU else "cuda")
    model = nets.build(recipe.model, "meta")
    recipe = without_auto(recipe, model, device)
    several = Ranks(size=ranks) if ranks > 1 else Ranks()
    reason = why_positions(StepKind.of(recipe), recipe, model, several, device) if several.several else ""
    sharding, _ = divide(recipe, model, several, device)  # of columns: the model has those of rank 0 from here on
    return recipe, core_of(recipe, model, device, sharding), reason or ""


@contextmanager
def _as_if(machine: Machine) -> Iterator[None]:
    """Within the block, every device is `machine`."""
    real, capabilities.machine_of = capabilities.machine_of, lambda device: machine
    try:
        yield
    finally:
        capabilities.machine_of = real


def _features(model: NnueModel, machine: Machine) -> list[Part]:
    if machine == capabilities.CPU:
        return [Part("features", "loader threads", "")]
    if feature_set(model.feature_set).is_in_python:
        return [Part("features", "cpu", "a feature set in Python runs on the CPU")]
    return [Part("features", "gpu", "")]


def _step(recipe: Recipe, core: Core, machine: Machine, apart: str | None, rounds: bool) -> Iterator[Part]:
    """Forward, loss and backward. `apart`: why the step is not fused."""
    model = core.model
    transformers = _transformers(model)
    if len(transformers) != 1:
        yield Part("transformer", "torch", f"the net has {len(transformers)} feature transformers, expected one")
        return
    first, mixed = transformers[0], recipe.training.precision == "mixed"
    if rounds and machine == capabilities.CPU:  # RoundedForward computes in fp32 there
        mixed = False
    trained = torch.bfloat16 if mixed else torch.float32
    width, psqt = first.weight.shape[1], first.psqt is not None
    read = torch.float16 if rounds and mixed else trained
    transformer = capabilities.transformer(
        machine, read, len(first.weight), width, first.bucket_size, first.num_bucketed
    )
    yield Part("transformer", *transformer)
    layers, reason = _layers(model, rounds)
    mode: Mode = "compiled" if recipe.training.compile else "autocast" if mixed else "plain"
    stacks = Choice("torch", reason) if layers is None else capabilities.stacks(machine, layers, trained, mode=mode)
    in_stacks = stacks.kernels in ("tiles", "one_pass")
    between = capabilities.between(
        transformer.kernels, stacks.kernels, trained, trained, num_outputs=width,
        hidden=0 if layers is None else len(layers.hidden), activation=number_of(first.activation), bound=first.bound,
        has_psqt=psqt, divided=core.sharding.name == "columns",
    )  # fmt: skip
    if between.kernels != "whole" and apart is not None:
        between = Choice("whole", "the loss is computed by torch")
    yield Part("gradient between", *between)
    yield Part("layers", *stacks)
    if in_stacks and apart is None:
        yield Part("loss", stacks.kernels, "")
    else:
        yield Part("loss", "torch", apart or "the layers have no kernel for it")


def _transformers(model: NnueModel) -> list[PerspectiveTransformer]:
    return [module for module in model.modules() if isinstance(module, PerspectiveTransformer)]


def _layers(model: NnueModel, rounds: bool) -> tuple[LayerStacks | None, str]:
    """The layers after the transformer as the operators take them, or why they do not."""
    if not isinstance(model, StackedModel) or type(model).forward is not StackedModel.forward:
        return None, "the net has its own forward pass"
    if not rounds:
        return model.stacks, ""
    with model.rounding(True):
        assert model.rounded is not None
        return model.rounded.stacks, "the operators cannot round as this net does"


def _update(recipe: Recipe, core: Core, machine: Machine) -> Iterator[Part]:
    rules = per_group.fused_rules(core.optimizer.rule)
    if not rules:
        other = next(each for each in per_group.configs(recipe.optimizer) if not isinstance(each, FusedConfig))
        yield Part("update", "torch", f"the optimizer {other.kind!r} does not use the operators")
        return
    yield Part("update", "operators", "")
    for group in recipe.optimizer.groups:
        if group.rule is not None:
            yield Part(f"rule of {group.match}", group.rule.kind, "")
    for name, choice in (item for rule in rules for item in rule.choices().items()):
        yield Part(name, *choice)
    for rows, _, choice in _ranges(rules, recipe, core, machine):
        yield Part(f"rows {rows.start:,} to {rows.stop - 1:,}", *choice)


def _ranges(
    rules: list[FusedRule], recipe: Recipe, core: Core, machine: Machine
) -> Iterator[tuple[range, float, Choice]]:
    """The ranges of rows of the transformer's weight, with `Moments.words` and when their rows move."""
    transformers = [module.weight for module in _transformers(core.model)]
    for part, moments in (pair for rule in rules for pair in rule.fused.pairs):
        if not any(part.parameter is weight for weight in transformers):
            continue
        rows = range(part.first, part.first + len(part.rows(part.parameter)))
        choice = capabilities.update(machine, len(rows), moments.tensors, recipe.data.batch_size)
        yield rows, moments.words, choice if core.not_late is None else Choice("every_row", core.not_late)


def _estimated(work: Work | None, card: Card) -> list[Part]:
    """The rate and the memory of a training on one `card`."""
    if work is None:
        return [Part("rate, estimated", "unknown", "torch's operators run a part of the step")]
    found = estimate(work, card)
    memory = f"{found.memory:.1f} GiB"
    short = f"more than the GPU's {card.memory:g} GiB" if 0 < card.memory < found.memory else ""
    rate = f"{work.batch / found.seconds / 1e6:.1f} M positions/s"
    return [Part("rate, estimated", rate, f"most time: {found.limit}"), Part("memory, estimated", memory, short)]


def _work(recipe: Recipe, core: Core, machine: Machine) -> Work | None:
    model, rules, apart = core.model, per_group.fused_rules(core.optimizer.rule), core.why_not_fused()
    found = {part.name: part.kernels for part in _step(recipe, core, machine, apart, rounds=False)}
    if apart is not None or not rules or found["transformer"] not in FACTORS:
        return None
    ranges = list(_ranges(rules, recipe, core, machine))
    (first,), batch = _transformers(model), recipe.data.batch_size
    others = sum(each.numel() for each in model.parameters()) - sum(each.numel() for each in first.parameters())
    late = [(rows, choice.kernels == "late") for rows, _, choice in ranges]
    return Work(
        found["transformer"],
        batch,
        first.weight.shape[1],
        2 if recipe.training.precision == "mixed" else 4,
        max(words for _, words, _ in ranges),
        others // (model.stacks.stacks if isinstance(model, StackedModel) else 1),
        tuple(
            rows_of(part, batch, any(part.first_feature in rows and moves for rows, moves in late))
            for part in feature_set(model.feature_set).parts
        ),
    )
