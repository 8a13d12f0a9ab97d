"""The verdict on training data before a run spends hours on it."""

from __future__ import annotations

import logging

from nnue_trainer.config import DataConfig
from nnue_trainer.data import Loader, RecordLoader
from nnue_trainer.data.verdict import judge, sample_of
from nnue_trainer.errors import UserError

_log = logging.getLogger(__name__)

_CHUNKS = 16
"""Chunks that are looked at in all, about 1 MiB each: a second at most."""


def check(data: DataConfig, batches: Loader | RecordLoader) -> None:
    """Warns in one line of each file of `batches` that is not plausible. UserError for one that contradicts itself, if
    `data.implausible` is "stop"."""
    if data.implausible == "ignore":
        return
    every = batches.opened
    files = every[:: -(-len(every) // _CHUNKS)]
    for file in files:
        sample = sample_of(file.native, max(1, _CHUNKS // len(files)))
        verdict = judge(sample, file.native.format, data.filters)
        found = [*verdict.contradictions, *verdict.doubts]
        if not found:
            continue
        more = f" ({len(found) - 1} more: `nnue data validate`)" if len(found) > 1 else ""
        message = f"{file.path}: {verdict.word}: {found[0].text}{more}"
        if data.implausible == "stop" and verdict.contradictions:
            raise UserError(f"{message}; data.implausible=warn trains on it all the same")
        _log.warning("%s", message)
