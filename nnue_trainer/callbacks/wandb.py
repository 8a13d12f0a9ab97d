"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from nnue_trainer import schema
from nnue_trainer.base import extras
from nnue_trainer.callbacks.base import CALLBACKS, Callback
from nnue_trainer.errors import UserError, first_line
from nnue_trainer.schema import section

if TYPE_CHECKING:
    from nnue_trainer.training.trainer import Summary, Trainer


@CALLBACKS.register("wandb")
@section
class WeightsAndBiases(Callback):
    """Sends all metrics and the recipe to Weights & Biases. Needs the package wandb."""

    project: str = "nnue"
    """project on the server"""
    entity: str | None = None
    """user or team; null: the default one of the account"""
    name: str | None = None
    """name of the run; null: that of the run folder"""
    mode: Literal["online", "offline", "disabled"] = "online"
    """offline: keep the records in the run folder, to be sent by `wandb sync`"""

    def start(self, trainer: Trainer) -> None:
        extras.require("wandb", "training.callbacks: wandb")
        import wandb

        try:
            run = wandb.init(
                project=self.project,
                entity=self.entity,
                name=self.name or trainer.folder.path.resolve().name,
                id=self.memory.get("id"),
                resume="allow",
                dir=str(trainer.folder.path),
                mode=self.mode,
                config=schema.to_data(trainer.recipe),
            )
        except Exception as error:
            raise UserError(f"training.callbacks: wandb: {first_line(error)}") from None
        self.__dict__["_run"] = run
        self.memory["id"] = run.id

    def metrics(self, trainer: Trainer, event: str, values: Mapping[str, float | int | None]) -> None:
        found = {f"{event}/{name}": value for name, value in values.items() if value is not None}
        self._of_this_process.log(found | {"step": trainer.step})

    def end(self, trainer: Trainer, summary: Summary) -> None:
        self._of_this_process.finish()

    @property
    def _of_this_process(self) -> Any:
        return self.__dict__["_run"]
