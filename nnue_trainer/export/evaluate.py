"""The integer evaluator: what an engine computes, bit for bit, for many positions at once.

The arithmetic is that of each net (`Net.evaluate`), in NumPy. This is the one door to it: an evaluator in C++ is to be
asked here first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnue_trainer.data.batch import Batch
from nnue_trainer.export.net import QuantizedNet

_CHUNK = 512


@dataclass(frozen=True)
class Evaluation:
    """B positions: `bucket` int64 [B] is the stack in use; `psqt_raw` and `positional_raw` int64 [B, S] of every stack,
    or [B, 1] of the one in use, side to move's view, before the output scale; `score` int64 [B] in engine units."""

    bucket: np.ndarray
    psqt_raw: np.ndarray
    positional_raw: np.ndarray
    score: np.ndarray


def evaluate(quantized: QuantizedNet, batch: Batch) -> Evaluation:
    """Evaluates positions whose index rows are of `quantized.net.integer_feature_set`."""
    net = quantized.net
    parts = [net.evaluate(quantized.tensors, _slice(batch, begin)) for begin in range(0, max(len(batch), 1), _CHUNK)]
    psqt, positional = (np.concatenate(values) for values in zip(*parts, strict=True))
    bucket = net.bucket(batch)
    used = (np.arange(len(batch)), bucket if psqt.shape[1] > 1 else 0)
    return Evaluation(bucket, psqt, positional, net.score(psqt[used], positional[used]))


def _slice(batch: Batch, begin: int) -> Batch:
    part = slice(begin, begin + _CHUNK)
    return Batch(
        batch.white[part],
        batch.black[part],
        batch.counts[part],
        batch.black_to_move[part],
        batch.score[part],
        batch.result[part],
        batch.piece_count[part],
    )
