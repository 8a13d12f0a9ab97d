"""The choice of a step: fused, or PyTorch over the public modules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from nnue_trainer.config import Recipe
from nnue_trainer.losses.base import Loss
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.ops import capabilities
from nnue_trainer.ops.capabilities import Mode
from nnue_trainer.optim import per_group
from nnue_trainer.optim.penalties.base import Penalties
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.parallel.sharding import Unsharded, shard, why_not_columns, widths_of


@dataclass(frozen=True)
class StepKind:
    """The settings that decide between the two steps, beside the net and its device."""

    loss: Loss
    mixed: bool = False
    compiled: bool = False
    weighted: bool = False
    """positions have weights"""
    penalised: bool = False

    @classmethod
    def of(cls, recipe: Recipe) -> StepKind:
        training = recipe.training
        return cls(
            recipe.loss,
            training.precision == "mixed",
            training.compile,
            recipe.position_weight is not None,
            bool(training.penalties),
        )

    def why_not_fused(
        self, model: NnueModel, device: torch.device, *, copied: bool = True, width: int | None = None
    ) -> str | None:
        """The reason why a fused step cannot train this model as it computes now, with or without rounding; None if it
        can. `copied`: in mixed precision the optimiser keeps 16-bit copies. `width`: of the feature transformer that
        this process has; None: the whole."""
        if self.compiled:
            return "training.compile: torch.compile uses torch's operators"
        if self.weighted:
            return "position_weight: positions have weights"
        if self.penalised:
            return "training.penalties: there are penalties"
        if self.mixed and device.type == "cpu":
            return "training.precision: mixed: on a CPU torch computes in 16 bits"
        if not isinstance(model, StackedModel) or type(model).forward is not StackedModel.forward:
            return "the net has its own forward pass"
        first = model.first_layer() if model.first_is_plain else None
        if model.num_outputs > 1 or self.loss.reads:
            return "the net has several outputs"
        if first is None:
            return "the net has no feature transformer whose outputs are the inputs of the next layer"
        return _why_not_alone(model, first) or self._why_no_kernels(model, first, device, copied, width)

    def _why_no_kernels(
        self, model: StackedModel, first: PerspectiveTransformer, device: torch.device, copied: bool, width: int | None
    ) -> str | None:
        machine, mode, stacks = capabilities.machine_of(device), self.mode(model), model.stacks_in_use()
        trained = torch.bfloat16 if self.mixed and copied else torch.float32
        read = torch.float16 if model.rounded is not None and trained != torch.float32 else trained
        weight, *_ = first.parameters_in_use()
        columns = width or weight.shape[1]
        found = capabilities.transformer(
            machine, read, len(weight), columns, first.bucket_size, first.num_bucketed, mode
        )
        if found.kernels == "torch":
            return found.reason
        if device.type == "cpu":  # torch's operators compute the layers
            return None if weight.dtype == torch.float32 else "the weights are not float32"
        if self.loss.kernel() is None:
            return f"the loss {self.loss.kind!r} has no kernel"
        if stacks is None:
            return "the operators cannot round as this net does"
        inputs = first.num_outputs * columns // weight.shape[1]
        stacks = replace(stacks, inputs=inputs)
        next_weight: Any = model.linears()[0].weight
        is_aligned = next_weight.is_meta or next_weight.data_ptr() % 16 == 0
        choice = capabilities.stacks(machine, stacks, trained, is_aligned=is_aligned, mode=mode)
        return choice.reason if choice.kernels == "torch" else None

    def mode(self, model: NnueModel) -> Mode:
        """How torch runs the operators in a step with autograd."""
        return "autocast" if self.mixed and model.rounded is None else "plain"


def _why_not_alone(model: StackedModel, first: PerspectiveTransformer) -> str | None:
    """A fused step sets the gradients of its layers itself, and torch's hooks do not see them."""
    modules: list[Any] = [first, *model.linears()]
    found = {id(own): own for module in modules for own in module.parameters(recurse=False)}
    if found.keys() != {id(parameter) for parameter in model.parameters()}:
        return "the net has parameters beside its layers"
    hooks = [getattr(each, name) for each in modules for name in _MODULE_HOOKS]
    hooks += [getattr(each, name) for each in found.values() for name in _TENSOR_HOOKS]
    if any(hooks):
        return "hooks watch its layers"
    if not all(parameter.requires_grad for parameter in found.values()):
        return "some parameters have no gradient"
    return None


_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def why_not_late(
    recipe: Recipe,
    device: torch.device,
    sharding: Unsharded,
    penalties: Penalties,
    elsewhere: torch.device | None,
) -> str | None:
    """The reason why rows of feature transformers cannot be updated late, in words; None if they can. Each forward pass
    must read nothing but the rows of its batch."""
    if elsewhere is not None:
        return f"training.device: {elsewhere}: each step copies the whole weight"
    if recipe.training.compile:
        return "training.compile: compiled code reads the whole weight"
    if recipe.training.precision == "mixed" and device.type == "cpu":
        return "training.precision: mixed: on a CPU autocast reads the whole weight"
    if penalties.dense:
        return "training.penalties: a penalty on weights moves every row"
    return "each process has rows of its own positions" if sharding.name == "positions" else None


def why_positions(kind: StepKind, recipe: Recipe, model: NnueModel, ranks: Ranks, device: torch.device) -> str | None:
    """The reason why several processes divide the positions of a batch and not the columns of the feature transformer;
    None if they divide columns, which a fused step does in all of the run."""
    if (reason := kind.why_not_fused(model, device)) is not None:
        return reason
    assert isinstance(model, StackedModel)
    first = model.first_layer()
    assert first is not None
    if (reason := why_not_columns(model, first, ranks)) is not None:
        return reason
    if not per_group.by_value(recipe.optimizer):
        return f"the optimizer {recipe.optimizer.kind!r} may use more than one value of a weight at a time"
    for rounds in (False, True) if recipe.model.qat_config.qat else (False,):
        with model.rounding(rounds):
            if model.stacks_in_use() is None:
                return "the engine's rounding needs the whole net"
            for width in widths_of(first, ranks):
                if (reason := kind.why_not_fused(model, device, width=width)) is not None:
                    return f"{width} columns of the feature transformer: {reason}"
    return None


def divide(recipe: Recipe, model: NnueModel, ranks: Ranks, device: torch.device) -> tuple[Unsharded, str]:
    """`shard` for a recipe, on a device where the model may come later."""
    reason = why_positions(StepKind.of(recipe), recipe, model, ranks, device) if ranks.several else None
    return shard(ranks, model, recipe.data.batch_size, reason)
