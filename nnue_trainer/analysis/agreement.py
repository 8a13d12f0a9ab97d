"""Compares the float model with the integers of the same net, on real positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from nnue_trainer import data, nets
from nnue_trainer.base.arrays import Floats, Records
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.files import PositionReader
from nnue_trainer.errors import UserError
from nnue_trainer.export import evaluate, net_from_checkpoint
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.files.pages.plots import GRID, SERIES, Draw
from nnue_trainer.nets.base import NnueModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEP = 512  # positions at a time


@dataclass(frozen=True)
class Positions:
    """Records uint8 [n, 32], and a phrase for where they come from."""

    records: Records
    origin: str


@dataclass(frozen=True)
class Agreement:
    """Scores float64 [n] in engine units from the side to move."""

    floats: Floats
    integers: Floats

    @property
    def difference(self) -> Floats:
        return self.integers - self.floats


def built_in_positions() -> Positions:
    records = data.records_from_fens(list(CHECK_POSITIONS))
    return Positions(records, f"{len(records)} built-in positions")


def some_positions(files: Iterable[str | Path], count: int) -> Positions:
    """`count` positions of the first of `files` that can be read, spread over its beginning; the built-in positions if
    none can be read."""
    for file in files:
        try:
            records = spread(file, count)
        except UserError:
            continue
        if len(records):
            return Positions(records, f"{len(records):,} positions of {Path(file).name}")
    return built_in_positions()


def spread(file: str | Path, count: int, every: int = 16) -> Records:
    """`count` positions of a file: every `every`-th from its beginning on, or closer together if the file is
    shorter."""
    blocks: list[Records] = []
    left = every * count
    with PositionReader(file) as reader:
        for records in reader:
            blocks.append(records[:left])
            left -= len(blocks[-1])
            if left <= 0:
                break
    if not blocks:
        return np.zeros((0, 32), np.uint8)
    found = np.concatenate(blocks)
    return np.ascontiguousarray(found[:: max(1, len(found) // count)][:count])


def model_of(checkpoint: Checkpoint, where: str) -> NnueModel:
    """The float model with the weights of a checkpoint."""
    model = nets.build(nets.parse(checkpoint.architecture, where))
    checkpoints.load_into(checkpoint.tensors.get("model", {}), model, where)
    return model.eval()


def batches(records: Records, features: str) -> Iterable[Batch]:
    for begin in range(0, len(records), _STEP):
        yield data.expand(records[begin : begin + _STEP], features)


def float_scores(model: NnueModel, records: Records) -> Floats:
    with torch.no_grad():
        parts = [model(batch).double().numpy() for batch in batches(records, model.feature_set)]
    return np.concatenate([*parts, np.zeros(0)]) * model.score_scale


def integer_scores(net: QuantizedNet, records: Records) -> Floats:
    return evaluate(net, records, every_stack=False).score.astype(np.float64)


def agreement(path: Path, positions: Positions) -> Agreement:
    """Scores of the positions by the checkpoint `path`. UserError if it is damaged, or if its weights do not fit the
    integers."""
    checkpoint = checkpoints.load(path, ("model", "net"))
    quantized = net_from_checkpoint(checkpoint, str(path), any_l1=True)
    model = model_of(checkpoint, str(path))
    return Agreement(float_scores(model, positions.records), integer_scores(quantized, positions.records))


def scores_against(x: Floats, y: Floats, across: str, up: str, color: str = SERIES[0], alpha: float = 0.5) -> Draw:
    """Draws scores against others of the same positions, and the line on which they are the same."""

    def draw(axes: Axes) -> None:
        most = float(np.abs(np.concatenate([x, y])).max(initial=1)) * 1.05
        axes.plot([-most, most], [-most, most], color=GRID, linewidth=1)
        axes.plot(x, y, "o", color=color, markersize=2.2, alpha=alpha, markeredgewidth=0)
        axes.set(xlim=(-most, most), ylim=(-most, most), xlabel=across, ylabel=up)

    return draw


def check_same(scores: Sequence[Floats]) -> float:
    """The correlation of two lists of scores; NaN where one does not vary."""
    first, second = scores
    if len(first) < 2 or first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])
