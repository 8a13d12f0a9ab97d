"""The step that trains the net as it computes now, with or without rounding, recorded as a CUDA graph or not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nnue_trainer.data.batch import Batch
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.cuda_graph import GraphedStep
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.state import RunState
from nnue_trainer.training.step import Step


class ChosenStep:
    """Calls the parts of a step, and chooses the step again where the net begins to compute in another way.

    Args:
        choose: returns the step of the model as it computes now.
        recorded: steps are replayed by a CUDA graph.
        copies_steps: with rounding, 16-bit copies of weights hold integers.
    """

    def __init__(
        self,
        choose: Callable[[], Step],
        model: NnueModel,
        optimizer: Optimizer,
        ranks: Ranks,
        state: RunState,
        *,
        recorded: bool,
        copies_steps: bool,
    ) -> None:
        self._choose, self._model, self._optimizer, self._ranks, self._state = choose, model, optimizer, ranks, state
        self.recorded, self._copies_steps = recorded, copies_steps
        self.device = next(model.parameters()).device
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        """the sum of the losses since the last record of metrics"""
        self.rounds = model.rounded is not None
        self.step = choose()
        self.run = self._recorded()
        """runs one step with a prepared batch"""

    def prepare(self, batch: Batch) -> Batch:
        """`Step.prepare`."""
        return self.step.prepare(batch)

    def choose_again(self) -> None:
        """Call this when something else than rounding has changed, such as hooks of layers."""
        self.step = self._choose()

    def set_rounding(self, rounds: bool) -> None:
        """Switches the engine's rounding on or off, and forgets recorded steps, which have the other forward pass."""
        self.rounds = rounds
        self._model.set_rounding(rounds)
        rounded = self._model.rounded
        self._optimizer.copy_in_steps(rounded.copies if rounded is not None and self._copies_steps else {})
        self.step = self._choose()
        self.run = self._recorded()

    def _recorded(self) -> Callable[[Batch], None]:
        if not self.recorded:
            return self._train
        step = GraphedStep(self._train, self.device)
        self._ranks.before_end(step.forget)
        return step

    def _train(self, batch: Batch) -> None:
        loss = self.step.gradients(batch)
        self._state.updating = True
        self.step.update(loss)
        self._state.updating = False
        self.loss_sum += loss
