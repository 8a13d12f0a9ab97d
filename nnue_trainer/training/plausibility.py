"""Checks at the start of a run whether the training data is plausible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer.base.arrays import Floats
from nnue_trainer.config import DataConfig
from nnue_trainer.data import Loader, RecordLoader, expand
from nnue_trainer.data.files import ChunkRange, PositionReader
from nnue_trainer.data.opened import OpenedFile
from nnue_trainer.data.reading import FORMATS_IN_PAWNS
from nnue_trainer.data.score_units import ComparedFiles, FileUnits, Units, differences
from nnue_trainer.data.verdict import LossCurve, judge, sample_of
from nnue_trainer.errors import UserError
from nnue_trainer.losses import Loss
from nnue_trainer.losses.position_weights import PositionWeight

_log = logging.getLogger(__name__)

_CHUNKS = 16
"""Number of chunks that are read, about 1 MiB each: a second at most."""


def check(
    data: DataConfig,
    batches: Loader | RecordLoader,
    weight: PositionWeight | None = None,
    features: str = "",
    warn: Callable[[str], None] = _log.warning,
    *,
    loss: Loss | None = None,
    held_out: Sequence[OpenedFile] = (),
) -> None:
    """Calls `warn` with one line for each file of `batches` that is not plausible, for each whose scores are in another
    unit than those of other files, for each whose reader leaves something out or assumes a view, and for weights of
    positions that are 0 in all of them. UserError for a file that contradicts itself, if `data.implausible` is "stop".
    `weight`: the weight of positions; `features`: the feature set of its batches. `loss`: expects scores of a certain
    size; None: any. `held_out`: validation files, whose unit is compared."""
    counts = weight is None or weight.uses_spare
    judges = data.implausible != "ignore"
    if counts and not judges:
        return
    files = _some(batches.opened)
    units = ComparedFiles()
    for file in files:
        sample = sample_of(file.native, max(1, _CHUNKS // len(files)))
        if weight is not None and not counts:
            counts = any(_counts(weight, records, features) for records in sample.runs)
        if not judges:
            continue
        verdict = judge(sample, file.native.format, data.filters, loss=_curve(loss), pawn=file.reading.pawn)
        units.add(_units_of(file, verdict.units), sample)
        _warn_of_notes(file, warn)
        found = [*verdict.contradictions, *verdict.doubts]
        if not found:
            continue
        more = f" ({len(found) - 1} more: `nnue data validate`)" if len(found) > 1 else ""
        message = f"{file.path}: {verdict.word}: {found[0].text}{more}"
        if data.implausible == "stop" and verdict.contradictions:
            raise UserError(f"{message}; data.implausible=warn trains on it anyway")
        warn(message)
    if judges:
        for file in _some(held_out):
            sample = sample_of(file.native, 1)
            units.add(_units_of(file, sample.units()), sample)
            _warn_of_notes(file, warn)
        for line in differences(units.files):
            warn(line)
    if files and not counts:
        warn("position_weight: 0 for all positions of a sample of data.train: nothing is trained; raise some weights")


def _units_of(file: OpenedFile, units: Units | None) -> FileUnits:
    return FileUnits(str(file.path), file.native.format, units, file.reading.pawn)


def _warn_of_notes(file: OpenedFile, warn: Callable[[str], None]) -> None:
    """Calls `warn` with what the reader of a text notes about the first chunk, such as games that are left out."""
    if file.native.format not in {*FORMATS_IN_PAWNS, "text"} or not file.native.num_chunks:
        return
    # An error in the chunk is reported when the loader reads it.
    with (
        suppress(UserError),
        PositionReader(file.path, chunks=ChunkRange(file.native, 0, 1), **asdict(file.reading)) as reader,
    ):
        for _ in reader:
            pass
        if reader.notes:
            warn(f"{file.path}: in the first {reader.size:,} bytes: {'; '.join(reader.notes)}")


def _some(files: Sequence[OpenedFile]) -> Sequence[OpenedFile]:
    """At most `_CHUNKS` of the files, spread evenly."""
    return files[:: -(-len(files) // _CHUNKS)] if files else files


def _curve(loss: Loss | None) -> LossCurve | None:
    """The meaning of scores in the loss; None if it is unknown."""
    if loss is None or loss.score_points(torch.zeros(1, dtype=torch.float32, device="cpu")) is None:
        return None

    def points(scores: Floats) -> Floats:
        found = loss.score_points(torch.from_numpy(scores))
        assert found is not None
        return np.asarray(found.numpy())

    scale = getattr(loss, "scale", None)
    return LossCurve(points, scale if isinstance(scale, float) else None)


def _counts(weight: PositionWeight, records: npt.NDArray[np.uint8], features: str) -> bool:
    """Whether any of these positions has a weight."""
    batch = replace(expand(records, features), records=torch.from_numpy(records))
    return bool(weight.checked(batch).any())
