"""A training step: `FusedStep`, or `AutogradStep` (`autograd_step.py`) for what that does not fit. docs/step.md follows
a batch through it. `training/assembly/steps.py` chooses one of them, and `nnue explain` prints the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from nnue_trainer.data.batch import Batch, Plan
from nnue_trainer.nets.base import NnueModel, StackedModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.cuda_graph import GraphedStep
from nnue_trainer.training.fused_parts import FusedTransformer, Inputs, Stacks
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.parallel.sharding import ShardedColumns
from nnue_trainer.training.state import RunState


class Step(Protocol):
    """One step, in three parts that are called one after the other for each batch. They only queue work, so a CUDA
    graph may record them. If several processes train together, all call each part together."""

    kind: ClassVar[str]

    def prepare(self, batch: Batch) -> Batch:
        """The batch with all that depends on nothing else. On a GPU the next batch is prepared while the step of this
        one runs; on a CPU nothing is prepared."""

    def gradients(self, batch: Batch) -> Tensor:
        """Sets the gradients of this process's parameters. Returns the mean loss of the whole batch, fp32 scalar."""

    def update(self, loss: Tensor) -> None:
        """Moves the weights by the gradients, and frees these. Nothing moves if they or the loss are not finite."""


@dataclass(eq=False)
class FusedStep:
    """The operators, one after the other: transformer, layers and loss, their gradients, update. The parts hold all
    arguments that no batch changes."""

    kind: ClassVar[str] = "fused"
    model: StackedModel
    first: FusedTransformer
    stacks: Stacks
    exchange: ShardedColumns | None
    """between processes that have different columns of the transformer; None: this one has all"""
    optimizer: Optimizer
    lambdas: Mapping[int | None, Tensor]
    """λ by the buffer of a batch, an fp32 scalar or fp32 [B]"""

    def __post_init__(self) -> None:
        rounded = self.model.rounded
        self._buckets = self.model.buckets if rounded is None else rounded.buckets

    @torch.no_grad()
    def prepare(self, batch: Batch) -> Batch:
        """The batch with five plans: the stack of each position, the transformer's plan, the marks of its rows, and the
        order of the stacks, of all positions and of this process's."""
        stacks, white, bucket, exchange = self.stacks, batch.white, self._buckets(batch), self.exchange
        order = stacks.order(bucket)
        own = order if exchange is None else stacks.order(exchange.part_of(bucket))
        orders = Plan("order", order, white), Plan("own order", own, white)
        plans = (Plan(self, bucket, white), self.first.plan(batch), self.first.marks(batch), *orders)
        return replace(batch, plans=plans)

    @torch.no_grad()
    def gradients(self, batch: Batch) -> Tensor:
        if not batch.plans or batch.plans[0].key is not self or batch.plans[0].white is not batch.white:
            batch = self.prepare(batch)  # on a CPU, and a batch that was prepared for another forward pass
        bucket, plan, marks, order, own = [plan.data for plan in batch.plans]
        first, stacks, exchange = self.first, self.stacks, self.exchange
        x, psqt, rows = first.forward(batch, plan, marks, bucket)
        inputs = Inputs(x, psqt, bucket, order, batch.score, batch.result, self.lambdas[batch.buffer], batch.spare)
        if exchange is not None:
            inputs = exchange.sums(inputs, own, stacks, first, rows)
        found = stacks.loss(inputs, rows)
        kept = x if stacks.reads_x(found) else None
        del x, inputs  # memory for the gradients
        if exchange is not None:
            found = exchange.gradients(found, stacks, own, len(bucket))
        stacks.backward(found, kept, order, first, rows)
        return found.totals[2]

    def update(self, loss: Tensor) -> None:
        self.optimizer.step(loss)


@dataclass(eq=False)
class ChosenStep:
    """Calls the parts of a step, and chooses the step again where the net begins to compute in another way."""

    choose: Callable[[], Step]
    """returns the step of the model as it computes now"""
    model: NnueModel
    optimizer: Optimizer
    ranks: Ranks
    state: RunState
    recorded: bool
    """steps are replayed by a CUDA graph"""
    copies_steps: bool
    """with rounding, 16-bit copies of weights hold integers"""

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        """the sum of the losses since the last record of metrics"""
        self.rounds = self.model.rounded is not None
        self.step = self.choose()
        self.run = self._recorded()
        """runs one step with a prepared batch"""

    def prepare(self, batch: Batch) -> Batch:
        """`Step.prepare`."""
        return self.step.prepare(batch)

    def choose_again(self) -> None:
        """Call this when something else than rounding has changed, such as hooks of layers."""
        self.step = self.choose()

    def set_rounding(self, rounds: bool) -> None:
        """Switches the engine's rounding on or off, and forgets recorded steps, which have the other forward pass."""
        self.rounds = rounds
        self.model.set_rounding(rounds)
        rounded = self.model.rounded
        self.optimizer.copy_in_steps(rounded.copies if rounded is not None and self.copies_steps else {})
        self.step = self.choose()
        self.run = self._recorded()

    def _recorded(self) -> Callable[[Batch], None]:
        if not self.recorded:
            return self._train
        step = GraphedStep(self._train, self.device)
        self.ranks.before_end(step.forget)
        return step

    def _train(self, batch: Batch) -> None:
        loss = self.step.gradients(batch)
        self.state.updating = True
        self.step.update(loss)
        self.state.updating = False
        self.loss_sum += loss
