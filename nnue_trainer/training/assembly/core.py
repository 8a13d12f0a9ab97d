"""The objects of a step: the divided model, the optimiser, and the settings that choose between the two steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nnue_trainer.config import Recipe
from nnue_trainer.errors import UserError
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.optim.penalties.base import Penalties
from nnue_trainer.training.assembly.steps import StepKind, why_not_late
from nnue_trainer.training.autograd_step import AutogradStep, StepLoss
from nnue_trainer.training.device import offloaded
from nnue_trainer.training.fused_parts import FusedTransformer, StackKernels, StackReference
from nnue_trainer.training.memory import move_to_huge_pages
from nnue_trainer.training.offloaded_step import OffloadedStep
from nnue_trainer.training.parallel.sharding import ShardedColumns, Unsharded
from nnue_trainer.training.step import FusedStep, Step


@dataclass(frozen=True)
class Core:
    """The objects of a step, which training runs and `nnue explain` prints."""

    model: NnueModel
    device: torch.device
    sharding: Unsharded
    penalties: Penalties
    optimizer: Optimizer
    kind: StepKind
    not_late: str | None
    """why all rows of feature transformers are updated in each step; None: only those of the batch are"""
    elsewhere: torch.device | None = None
    """a device without kernels that computes the forward and backward pass; None: there is none"""

    def why_not_fused(self) -> str | None:
        """The reason why the step of the model as it computes now is not fused; None: it is."""
        return self.sharding.why_not_fused or self.kind.why_not_fused(
            self.model, self.device, copied=self.optimizer.has_copies
        )

    def step(self, loss: StepLoss) -> Step:
        """The step of the model as it computes now, with or without rounding."""
        model, sharding, optimizer = self.model, self.sharding, self.optimizer
        if self.elsewhere is not None:
            return OffloadedStep(loss, sharding, optimizer, self.elsewhere)
        if self.why_not_fused() is not None:
            return AutogradStep(loss, sharding, optimizer)
        assert isinstance(model, StackedModel)
        module, mode = model.first_layer(), self.kind.mode(model)
        exchange = sharding if isinstance(sharding, ShardedColumns) else None
        divided = exchange is not None
        assert module is not None
        first = FusedTransformer(model, module, mode, psqt_apart=divided)
        stacks: StackKernels | StackReference
        if self.device.type == "cpu":
            stacks = StackReference(model, self.kind.loss)
        else:
            stacks = StackKernels(model, self.kind.loss, first, mode, divided=divided)
        return FusedStep(model, first, stacks, exchange, optimizer, loss.lambdas)


def core_of(recipe: Recipe, model: NnueModel, device: torch.device, sharding: Unsharded) -> Core:
    """The objects of a step of a recipe without precision `auto`. `model` is on the device, or has no memory for its
    weights; `sharding` has divided it."""
    penalties = Penalties(recipe.training.penalties, model)
    elsewhere = offloaded(recipe.training.device) if device.type == "cpu" else None
    if elsewhere is not None and (recipe.training.precision == "mixed" or recipe.training.compile):
        raise UserError(
            f"training.device: {elsewhere} has no kernels of this project: training.precision must be auto or fp32, "
            "and training.compile false"
        )
    not_late = why_not_late(recipe, device, sharding, penalties, elsewhere)
    optimizer = Optimizer(
        model,
        recipe.optimizer,
        late=not_late is None,
        positions=recipe.data.batch_size,
        # The gradient of a penalty on weights is that of the weights themselves, in every row.
        copies=recipe.training.precision == "mixed" and not penalties.dense,
        averages=recipe.average is not None,
    )
    sharding.adopt(optimizer)
    if device.type == "cpu":
        with torch.no_grad():
            move_to_huge_pages([*model.parameters(), *optimizer.state_dict().values()])
    return Core(model, device, sharding, penalties, optimizer, StepKind.of(recipe), not_late, elsewhere)


def is_recorded(recipe: Recipe, core: Core) -> bool:
    """Whether a CUDA graph replays the steps. UserError if the recipe requires one that cannot be recorded."""
    wanted, possible = recipe.training.cuda_graph, core.optimizer.rule.capturable
    if wanted and not possible:
        raise UserError(
            f"training.cuda_graph: a step of the optimizer {recipe.optimizer.kind!r} cannot be recorded; "
            "remove the key, or set it to false"
        )
    return bool(wanted or (wanted is None and possible and core.device.type == "cuda"))
