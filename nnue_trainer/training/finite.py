"""The check that losses, gradients, weights and moments are finite numbers."""

from __future__ import annotations

from nnue_trainer.errors import UserError
from nnue_trainer.optim import Optimizer
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.outputs import Nowhere
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.state import RunState


class FiniteCheck:
    """Is called before each record of metrics and each save, so that neither is ever made of such values."""

    def __init__(self, optimizer: Optimizer, ranks: Ranks, state: RunState, folder: RunFolder) -> None:
        self._optimizer, self._ranks, self._state, self._folder = optimizer, ranks, state, folder

    def __call__(self, store: CheckpointStore | Nowhere) -> None:
        """UserError if one is not finite. Waits for the device."""
        optimizer, ranks = self._optimizer, self._ranks
        step = self._state.first_update + ranks.least(optimizer.good_steps())
        if ranks.any(optimizer.failed()):
            what = f"loss or gradient was not finite at step {step + 1}"
        elif ranks.any(not optimizer.finite()):
            what = f"the update made weights or moments that are not finite, at step {step} or before"
        else:
            return
        store.wait()
        last = self._folder.last
        good = f"{last} is the last good checkpoint" if last.exists() else "no checkpoint was written yet"
        raise UserError(f"{self._folder.path}: {what}; training stopped, nothing was overwritten, {good}")
