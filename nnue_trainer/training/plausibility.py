"""Checks at the start of a run whether the training data is plausible."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from nnue_trainer.config import DataConfig
from nnue_trainer.data import Loader, RecordLoader, expand
from nnue_trainer.data.verdict import judge, sample_of
from nnue_trainer.errors import UserError
from nnue_trainer.position_weights import PositionWeight

_log = logging.getLogger(__name__)

_CHUNKS = 16
"""Number of chunks that are read, about 1 MiB each: a second at most."""


def check(
    data: DataConfig,
    batches: Loader | RecordLoader,
    weight: PositionWeight | None = None,
    features: str = "",
    warn: Callable[[str], None] = _log.warning,
) -> None:
    """Calls `warn` with one line for each file of `batches` that is not plausible, and for weights of positions that
    are 0 in all of them. UserError for a file that contradicts itself, if `data.implausible` is "stop". `weight`: the
    weight of positions; `features`: the feature set of its batches."""
    counts = weight is None or weight.uses_spare
    judges = data.implausible != "ignore"
    if counts and not judges:
        return
    every = batches.opened
    files = every[:: -(-len(every) // _CHUNKS)]
    for file in files:
        sample = sample_of(file.native, max(1, _CHUNKS // len(files)))
        if weight is not None and not counts:
            counts = any(_counts(weight, records, features) for records in sample.runs)
        if not judges:
            continue
        verdict = judge(sample, file.native.format, data.filters)
        found = [*verdict.contradictions, *verdict.doubts]
        if not found:
            continue
        more = f" ({len(found) - 1} more: `nnue data validate`)" if len(found) > 1 else ""
        message = f"{file.path}: {verdict.word}: {found[0].text}{more}"
        if data.implausible == "stop" and verdict.contradictions:
            raise UserError(f"{message}; data.implausible=warn trains on it anyway")
        warn(message)
    if files and not counts:
        warn("position_weight: 0 for all positions of a sample of data.train: nothing is trained; raise some weights")


def _counts(weight: PositionWeight, records: npt.NDArray[np.uint8], features: str) -> bool:
    """Whether any of these positions has a weight."""
    batch = replace(expand(records, features), records=torch.from_numpy(records))
    return bool(weight.checked(batch).any())
