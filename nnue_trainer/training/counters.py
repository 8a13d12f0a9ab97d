"""Counts of the training data over all processes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nnue_trainer.data import Loader, RecordLoader
from nnue_trainer.data.loader import unique_positions, warn_of_left_out_chunks
from nnue_trainer.training.parallel.ranks import Ranks


def count_bad_chunks(batches: Loader | RecordLoader, ranks: Ranks, *, divided: bool) -> Callable[[], int]:
    """A function that returns how many damaged chunks the processes have left out, which all must call together.
    `divided`: each process reads a part of the data."""
    if not divided or not ranks.several:
        return lambda: batches.bad_chunks().chunks  # all of them read the same chunks
    told = False

    def together() -> int:
        nonlocal told
        counts, firsts = zip(*ranks.each(batches.bad_chunks()), strict=True)
        # The loader reports the first one, but only rank 0 prints.
        if sum(counts) and not told:
            told = True
            if not counts[0]:
                warn_of_left_out_chunks(next(first for first in firsts if first))
        return sum(counts)

    return together


def count_unique(batches: Loader | RecordLoader, ranks: Ranks, *, divided: bool) -> Callable[[], int]:
    """A function that estimates how many different positions the run has seen, which all processes must call
    together."""
    if not divided or not ranks.several:
        return lambda: round(unique_positions(batches.seen()))  # all of them see whole batches

    def together() -> int:
        seen = ranks.maximum(torch.frombuffer(bytearray(batches.seen()), dtype=torch.uint8))
        return round(unique_positions(seen.numpy().tobytes()))

    return together
