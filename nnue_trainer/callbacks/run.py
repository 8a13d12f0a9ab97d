"""A program that runs at some moments of a training."""

from __future__ import annotations

import shlex
import string
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from nnue_trainer.base.programs import RUNS
from nnue_trainer.callbacks.base import CALLBACKS, Callback, Run, Summary
from nnue_trainer.errors import UserError, quoted, shown
from nnue_trainer.schema import section

_NAMES = ("run_dir", "checkpoint", "step", "epoch", "loss")


@CALLBACKS.register("run", short="command")
@section
class RunCommand(Callback):
    """Runs a program, without a shell, and waits for it. Short form: {run: "script {checkpoint}"}."""

    command: Annotated[str, RUNS] = Field(min_length=1)
    """the program and its arguments, quoted as for a shell; {run_dir}, {checkpoint} (the newest on disk), {step},
    {epoch} and {loss} (of the last validation) are filled in"""
    at: Literal["start", "epoch", "validation", "save", "end"] = "save"
    """when it runs"""
    every: int = Field(default=1, gt=0, le=2**20)
    """events from one run of the program to the next; 1: each event"""
    must_succeed: bool = False
    """end the run if the program fails; off: print a line and continue"""

    @field_validator("command")
    @classmethod
    def _possible(cls, command: str) -> str:
        try:
            names = [name for word in shlex.split(command) for _, name, _, _ in string.Formatter().parse(word) if name]
        except ValueError as error:
            raise ValueError(f"found {command!r}: {error}") from None
        for name in names:
            if name not in _NAMES:
                raise ValueError(f"found {{{name}}}, expected {', '.join(f'{{{known}}}' for known in _NAMES)}")
        return command

    def start(self, run: Run) -> None:
        if self.at in ("save", "epoch") and run.step > run.first_step:
            # The checkpoint that the run is resumed from was written before it was counted here.
            ends = self.at == "save" or run.ends_epoch
            self.memory["count"] = self.memory.get("count", 0) + ends
        self._at("start", run, run.folder.last, None)

    def epoch(self, run: Run, epoch: int) -> None:
        self._at("epoch", run, run.folder.last, epoch)

    def validation(self, run: Run, loss: float, figures: Mapping[str, float]) -> None:
        self._at("validation", run, run.folder.last, None)

    def save(self, run: Run, checkpoint: Path, epoch: int | None) -> None:
        self._at("save", run, checkpoint, epoch)

    def end(self, run: Run, summary: Summary) -> None:
        self._at("end", run, run.folder.last, None)

    def _at(self, moment: str, run: Run, checkpoint: Path, epoch: int | None) -> None:
        if moment != self.at:
            return
        count = self.memory["count"] = self.memory.get("count", 0) + 1
        if count % self.every:
            return
        epoch = run.epoch if epoch is None else epoch
        values: dict[str, Any] = {
            "run_dir": run.folder.path,
            "checkpoint": checkpoint,
            "step": run.step,
            "epoch": epoch,
            "loss": "" if run.validation_loss is None else run.validation_loss,
        }
        words = [word.format(**values) for word in shlex.split(self.command)]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
            failed = f"exit status {done.returncode}" if done.returncode else ""
            said = done.stderr.decode(errors="replace").strip().splitlines()
            failed += f": {shown(said[-1])}" if failed and said else ""
        except OSError as error:
            failed = error.strerror or str(error)
        if failed:
            message = f"training.callbacks: {quoted(' '.join(words))}: {failed}"
            if self.must_succeed:
                raise UserError(message)
            run.say(message)
