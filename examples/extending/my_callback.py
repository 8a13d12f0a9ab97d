"""Your own callback: writes a line of a table for each validation."""

from __future__ import annotations

from collections.abc import Mapping

from nnue_trainer.callbacks import Callback
from nnue_trainer.schema import section
from nnue_trainer.training import Run


@section
class Table(Callback):
    """Writes epoch, positions and validation loss into a file of the run folder."""

    file: str = "losses.csv"
    """name of the file"""

    def validation(self, run: Run, loss: float, figures: Mapping[str, float]) -> None:
        rows: list[str] = self.memory.setdefault("rows", [])  # saved in checkpoints, for a resumed run
        rows.append(f"{run.epoch},{run.positions},{loss}")
        path = run.folder.path / self.file
        run.folder.will_write(path)
        path.write_text("\n".join(["epoch,positions,loss", *rows]) + "\n")
