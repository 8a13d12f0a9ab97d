"""The view of a run that callbacks get."""

from __future__ import annotations

from nnue_trainer.callbacks.base import Run
from nnue_trainer.config import Recipe
from nnue_trainer.training.trainer import Trainer


def view_of(trainer: Trainer, recipe: Recipe, seed: int) -> Run:
    """The run of a trainer. `recipe`: of its stage; `seed`: of the order of positions."""
    stage, state = trainer.stage, trainer.state

    def was_recorded(event: str) -> bool:
        return trainer.outputs is not None and trainer.outputs.metrics.has(event, state.step)

    def at_epoch_end() -> bool:
        return state.step > stage.first_step and stage.ends_epoch(state.step) and not state.epoch_end_pending

    return Run(
        {
            "recipe": lambda: recipe,
            "seed": lambda: seed,
            "checkpoint_every": lambda: trainer.config.checkpoint_every,
            "model": lambda: trainer.model,
            "optimizer": lambda: trainer.optimizer,
            "device": lambda: trainer.device,
            "folder": lambda: trainer.folder,
            "step": lambda: state.step,
            "first_step": lambda: stage.first_step,
            "steps": lambda: stage.end,
            "epoch": lambda: stage.epochs_at(state.step),
            "positions": lambda: stage.positions_at(state.step),
            "ends_epoch": lambda: stage.ends_epoch(state.step),
            "at_epoch_end": at_epoch_end,
            "validation_loss": lambda: state.validation_loss,
            "best_validation_loss": lambda: state.best_validation_loss,
            "net_figures": lambda: state.net_figures,
            "figure": lambda: trainer.saver.saved.figure,
            "was_recorded": lambda: was_recorded,
            "learning_rate": lambda: lambda: trainer.values.lr_at(state.step),
            "lambda_at": lambda: trainer.values.lambda_at,
            "checkpoint": lambda: trainer.checkpoint,
            "stop": lambda: trainer.stop,
            "record": lambda: trainer.record,
            "say": lambda: trainer.say,
        }
    )
