"""Your own callback: writes a line of a table for each validation."""

from __future__ import annotations

from collections.abc import Mapping

from nnue_trainer.callbacks import Callback
from nnue_trainer.schema import section
from nnue_trainer.training import Trainer


@section
class Table(Callback):
    """Writes epoch, positions and validation loss into a file of the run folder."""

    file: str = "losses.csv"
    """name of the file"""

    def validation(self, trainer: Trainer, loss: float, figures: Mapping[str, float]) -> None:
        rows: list[str] = self.memory.setdefault("rows", [])  # saved in checkpoints, for a resumed run
        rows.append(f"{trainer.epoch},{trainer.step * trainer.recipe.data.batch_size},{loss}")
        path = trainer.folder.path / self.file
        trainer.folder.will_write(path)
        path.write_text("\n".join(["epoch,positions,loss", *rows]) + "\n")
