"""Compares three evaluations of a checkpoint: in floats, in floats with the engine's rounding, and in integers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nnue_trainer import nets, schema
from nnue_trainer.data import expand, fens_from_records
from nnue_trainer.errors import UserError
from nnue_trainer.export.convert import net_from_checkpoint
from nnue_trainer.export.evaluate import evaluate
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.checkpoint import Checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nnue_trainer.nets.rounded_forward import RoundedForward

FLOAT, ROUNDED, INTEGER = "float", "fake_quantised", "integer"
LIMIT_QAT, LIMIT_FLOAT = 1.0, 50.0
"""Engine units: how large a root mean square counts as well, for a net that was trained with rounding, and for one that
was not."""

_WORST = 3


@dataclass
class Difference:
    """The difference of two evaluations, the first minus the second, in engine units."""

    positions: int = 0
    squares: float = 0.0
    worst: list[dict[str, Any]] = field(default_factory=list)
    """the positions that they differ most on, the largest difference first: `fen`, `difference` and each evaluation"""

    @property
    def rms(self) -> float:
        return float(np.sqrt(self.squares / max(self.positions, 1)))

    @property
    def largest(self) -> float:
        return abs(self.worst[0]["difference"]) if self.worst else 0.0

    def add(self, difference: NDArray[np.float64], records: NDArray[np.uint8], values: dict[str, Any]) -> None:
        """Counts more positions."""
        self.positions += len(difference)
        self.squares += float(np.square(difference).sum())
        chosen = np.argsort(-np.abs(difference), kind="stable")[:_WORST]
        fens = fens_from_records(np.ascontiguousarray(records[chosen]))
        for i, fen in zip(chosen.tolist(), fens, strict=True):
            row = {name: round(float(value[i]), 3) for name, value in values.items()}
            self.worst.append({"fen": fen, "difference": round(float(difference[i]), 3), **row})
        self.worst = sorted(self.worst, key=lambda row: -abs(row["difference"]))[:_WORST]


class Comparison:
    """Compares the three evaluations of a checkpoint on positions. UserError, naming `where`, for one whose weights do
    not fit its integers."""

    def __init__(self, checkpoint: Checkpoint, where: str) -> None:
        self.quantized = net_from_checkpoint(checkpoint, where, any_l1=True)
        self.model = nets.build(self.quantized.net)
        checkpoints.load_into(checkpoint.tensors["model"], self.model, where)
        self.rounded: RoundedForward | None = None
        self.reason = ""
        """why there is none, in one line"""
        try:
            self.rounded = self.model.rounded_forward()
        except UserError as error:
            self.reason = str(error)
        pairs = [(FLOAT, INTEGER), *([(ROUNDED, INTEGER), (FLOAT, ROUNDED)] if self.rounded else [])]
        self.differences = {pair: Difference() for pair in pairs}
        trained = schema.value_at(checkpoint.recipe, "model.quantisation", dict) or {}
        self.qat = self.rounded is not None and bool(trained.get("qat"))
        """whether the recipe states that the net was trained with rounding"""

    @property
    def trained(self) -> Difference:
        """The difference between the evaluation that training computed and the engine's."""
        return self.differences[ROUNDED if self.qat else FLOAT, INTEGER]

    @torch.no_grad()
    def add(self, records: NDArray[np.uint8]) -> None:
        """More positions, uint8 [n, 32]."""
        net, scale = self.quantized.net, self.model.score_scale
        batch = expand(records, net.feature_set)
        same = net.integer_feature_set == net.feature_set
        values: dict[str, NDArray[Any]] = {FLOAT: self.model(batch).double().numpy() * scale}
        if self.rounded is not None:
            values[ROUNDED] = self.rounded(self.model, batch).double().numpy() * scale
        integer_batch = batch if same else expand(records, net.integer_feature_set)
        values[INTEGER] = evaluate(self.quantized, integer_batch).score
        for (one, other), difference in self.differences.items():
            difference.add(values[one] - values[other], records, values)
