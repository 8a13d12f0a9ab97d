"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from nnue_trainer import schema
from nnue_trainer.base import extras
from nnue_trainer.base.programs import RUNS
from nnue_trainer.callbacks.base import CALLBACKS, Callback, Run, Summary
from nnue_trainer.errors import UserError, first_line
from nnue_trainer.schema import section


@CALLBACKS.register("wandb")
@section
class WeightsAndBiases(Callback):
    """Sends all metrics and the recipe to Weights & Biases. Needs the package wandb."""

    project: str | None = None
    """project on the server; null: WANDB_PROJECT, or else nnue"""
    entity: Annotated[str | None, RUNS] = None
    """user or team that gets the records; null: the default one of the account"""
    name: str | None = None
    """name of the run; null: WANDB_NAME, or else the run folder's"""
    mode: Literal["online", "offline", "disabled"] | None = None
    """null: WANDB_MODE, or else online; offline: keep the records in the run folder, to be sent by
    `wandb sync`"""

    def start(self, run: Run) -> None:
        extras.require("wandb", "training.callbacks: wandb")
        import wandb

        try:
            session = wandb.init(
                project=self.project or os.environ.get("WANDB_PROJECT") or "nnue",
                entity=self.entity,
                name=self.name or os.environ.get("WANDB_NAME") or run.folder.path.resolve().name,
                id=self.memory.get("id"),
                resume="allow",
                dir=str(run.folder.path),
                mode=self.mode,
                config=schema.to_data(run.recipe),
            )
        except Exception as error:
            raise UserError(f"training.callbacks: wandb: {first_line(error)}") from None
        self.__dict__["_run"] = session
        self.memory["id"] = session.id
        session.define_metric("*", step_metric="step")  # the axis of all curves
        # A resumed run writes the records after its checkpoint again; the server has the last step that it got.
        self.__dict__["_sent"] = session.summary.get("step", -1)

    def metrics(self, run: Run, event: str, values: Mapping[str, float | int | None]) -> None:
        found = {f"{event}/{name}": value for name, value in values.items() if value is not None}
        if run.step > self.__dict__["_sent"]:
            self._of_this_process.log(found | {"step": run.step})

    def end(self, run: Run, summary: Summary) -> None:
        self._of_this_process.finish()

    @property
    def _of_this_process(self) -> Any:
        return self.__dict__["_run"]
