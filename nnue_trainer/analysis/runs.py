"""Reads the data about a run from its folder, as far as it exists, with a line for each missing part.

A run may be unfinished, of an earlier version, of parts that are not installed here, or damaged.
"""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nnue_trainer import config, schema
from nnue_trainer.base.arrays import Floats
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.training.checkpoint_paths import checkpoint_of

_LONGEST_LINE = 1 << 20
_MOST_RECORDS = 1 << 13  # of one kind, in memory: more than any plot shows
_OWN_KEYS = ("event", "step", "time")
PARTS = ("recipe.yaml", "metrics.jsonl", "checkpoints")
"""A folder with any of these is the folder of a run."""


@dataclass
class Records:
    """The records of one kind, by step: a column for each figure, NaN where a record does not have it."""

    columns: dict[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["step"]) if self.columns else 0

    def __contains__(self, name: str) -> bool:
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name] if name in self.columns else np.full(len(self), np.nan)

    def named(self, prefix: str) -> dict[str, Floats]:
        """The columns whose names begin with `prefix`, under the rest of their names."""
        return {name.removeprefix(prefix): self[name] for name in self.columns if name.startswith(prefix)}

    def last(self, name: str) -> float:
        """NaN where no record has it."""
        values = self[name]
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if len(finite) else math.nan


@dataclass
class Run:
    """A run. `recipe` has all defaults filled in where this program can read it, and is {} if there is none; `saved`
    is its last checkpoint without tensors, `best` the path of the checkpoint to inspect."""

    path: Path
    notes: list[str] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=dict)
    train: Records = field(default_factory=Records)
    validation: Records = field(default_factory=Records)
    match: Records = field(default_factory=Records)
    saved: Checkpoint | None = None
    best: Path | None = None
    label: str = ""
    """what to call it, where that is not the name of its folder"""

    @property
    def name(self) -> str:
        return self.label or self.path.resolve().name

    def field(self, key: str, kind: type = int) -> Any:
        """A value of the recipe by its dotted key; None if there is none of that kind."""
        return schema.value_at(self.recipe, key, kind)

    def files(self, key: str) -> list[str]:
        """The files of data that the recipe names at a dotted key."""
        return [name for name in self.field(key, list) or [] if isinstance(name, str)]

    @property
    def step(self) -> int:
        """The last one that is known of."""
        known = [int(records["step"][-1]) for records in (self.train, self.validation) if len(records)]
        saved = self.state.get("step")
        return max([*known, saved if isinstance(saved, int) else 0])

    @property
    def steps(self) -> int | None:
        """All of the run, by its recipe."""
        epochs, positions, batch = (
            self.field(key) for key in ("training.epochs", "training.positions_per_epoch", "data.batch_size")
        )
        return epochs * -(-positions // batch) if epochs and positions and batch else None

    @property
    def state(self) -> dict[str, Any]:
        return self.saved.state if self.saved is not None else {}

    @property
    def is_finished(self) -> bool:
        """Whether all steps of its recipe and the validation after them are done."""
        return self.steps is not None and self.step >= self.steps and not self.state.get("epoch_end_pending")

    @property
    def lowest_validation_loss(self) -> float:
        """NaN if no validation has a finite loss."""
        losses = self.validation["loss"]
        return float(np.nanmin(losses)) if np.isfinite(losses).any() else math.nan

    def positions(self, records: Records) -> Floats:
        """How many positions had been trained on at each record; steps where the batch size is not known."""
        if "positions" in records:
            return records["positions"]
        batch = self.field("data.batch_size")
        if batch is None and "positions" in self.train:
            batch = self.train.last("positions") / max(self.train["step"][-1], 1)
        return records["step"] * float(batch or 1)

    def seconds(self) -> float:
        """Time spent in training steps, by the speed of each record."""
        positions, speed = self.positions(self.train), self.train["positions_per_second"]
        spent = np.diff(positions, prepend=0) / np.where(speed > 0, speed, np.nan)
        return float(np.nansum(spent)) if np.isfinite(spent).any() else math.nan


def folder_of(path: Path) -> Path:
    """The folder of a run, which `path` or the path of one of its checkpoints names."""
    path = Path(path)
    return path.parent.parent if path.suffix == ".safetensors" and path.parent.name == "checkpoints" else path


def read_run(path: Path) -> Run:
    """UserError if `path` is not a run folder."""
    path = folder_of(path)
    if not path.is_dir():
        raise UserError(
            f"{path}: {'not a folder' if path.exists() else 'no such folder'}, expected the folder of a run"
        )
    if not any((path / name).exists() for name in PARTS):
        raise UserError(f"{path}: not the folder of a run: expected recipe.yaml, metrics.jsonl or checkpoints in it")
    run = Run(path)
    _read_checkpoint(run)
    _read_recipe(run)
    _read_metrics(run)
    if not len(run.train) and not len(run.validation):
        run.notes.append("no records of metrics yet, so there are no curves")
    elif not len(run.validation):
        run.notes.append("no validation yet, or no data.validation in the recipe: its loss on new data is unknown")
    elif not run.validation.named("reach/"):
        run.notes.append("the records hold no figures of the net: they were written by an earlier version")
    return run


def _read_checkpoint(run: Run) -> None:
    try:
        last = checkpoint_of(run.path)
        run.saved = checkpoints.load(last, groups=())
    except UserError as error:
        folder = run.path / "checkpoints"
        found = folder.is_dir() and any(folder.glob("*.safetensors"))
        run.notes.append(str(error) if found else "no checkpoint yet")
        return
    best = last.with_name("best.safetensors")
    run.best = best if best.is_file() else last


def _read_recipe(run: Run) -> None:
    data: Any = None
    path = run.path / "recipe.yaml"
    try:
        data = config.read_yaml(path)
    except UserError as error:
        run.notes.append(str(error) if path.exists() else "no recipe.yaml")
    if not isinstance(data, dict) and run.saved is not None and run.saved.recipe is not None:
        data = dict(run.saved.recipe)
        run.notes.append("the recipe shown is that of the last checkpoint")
    if not isinstance(data, dict):
        return
    try:
        run.recipe = schema.to_data(config.parse(data, origin=str(path)))
    except UserError as error:
        run.recipe = data
        run.notes.append(f"the recipe is shown as it stands, without defaults: {error}")


def _read_metrics(run: Run) -> None:
    found = {"train": _Growing(), "validation": _Growing(), "match": _Growing()}
    damaged = 0
    try:
        with (run.path / "metrics.jsonl").open("rb") as file:
            for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
                record = _record(line)
                if record is None:
                    damaged += bool(line.strip())
                elif record["event"] in found:
                    found[record["event"]].add(record)
    except FileNotFoundError:
        return
    except OSError as error:
        run.notes.append(f"metrics.jsonl: {error.strerror or error}")
    if damaged:
        run.notes.append(f"metrics.jsonl: {damaged:,} damaged {'lines' if damaged > 1 else 'line'} left out")
    run.train, run.validation, run.match = (records.finish() for records in found.values())
    for event, records in found.items():
        if records.every > 1:
            run.notes.append(f"metrics.jsonl: one of {records.every:,} records of {event} is shown, and the last")


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode(), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    step = record.get("step")
    return record if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**62 else None


class _Growing:
    """Records of one kind as they are read, at most `_MOST_RECORDS` of them: if there are more, each 2nd, 4th, … is
    kept, the last one, and the one with the lowest loss."""

    def __init__(self) -> None:
        self.every = 1
        """1: all are kept"""
        self._count = 0
        self._steps = array("q")
        self._columns: dict[str, array[float]] = {}
        self._last: dict[str, Any] | None = None
        self._best: dict[str, Any] | None = None

    def add(self, record: dict[str, Any]) -> None:
        """Adds a record; a later one of the same step replaces it, as it was written again."""
        loss = _number(record.get("loss"))
        if self._best is None or loss < _number(self._best.get("loss")):
            self._best = record
        if self._last is not None and record["step"] <= self._last["step"]:
            self._put(record)
            if record["step"] == self._last["step"]:
                self._last = record
            return
        if self._count % self.every == 0:
            self._put(record)
        self._count += 1
        self._last = record
        if len(self._steps) >= 2 * _MOST_RECORDS:
            self.every *= 2
            self._steps = self._steps[::2]
            self._columns = {name: column[::2] for name, column in self._columns.items()}

    def _put(self, record: dict[str, Any]) -> None:
        """At its place by step, in place of one of the same step."""
        step, rows = record["step"], len(self._steps)
        at = rows if not rows or step > self._steps[-1] else bisect_left(self._steps, step)
        values = {name: _number(value) for name, value in record.items() if name not in _OWN_KEYS}
        for name in values.keys() - self._columns.keys():
            self._columns[name] = array("d", [math.nan]) * rows
        if at < rows and self._steps[at] == step:
            for name, column in self._columns.items():
                column[at] = values.get(name, math.nan)
            return
        self._steps.insert(at, step)
        for name, column in self._columns.items():
            column.insert(at, values.get(name, math.nan))

    def finish(self) -> Records:
        for record in (self._best, self._last) if self.every > 1 else ():
            if record is not None:
                self._put(record)
        if not self._steps:
            return Records()
        columns = {name: np.array(column) for name, column in self._columns.items()}
        return Records({"step": np.array(self._steps, np.float64)} | columns)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
