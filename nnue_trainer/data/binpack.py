"""Whole binpack files as arrays of records: for tools, tests and small data; training uses `Loader`."""

from __future__ import annotations

import os

import numpy as np

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.files.atomic import replacing


def read_binpack(path: str | os.PathLike[str]) -> Records:
    """All positions of a file, uint8 [n, 32]. UserError naming file and offset for corrupt data."""
    file = _data.BinpackFile(os.fsencode(path))
    chunks = [file.decode(chunk)[0] for chunk in range(len(file.chunks))]
    return np.concatenate([np.empty((0, 32), np.uint8), *chunks])


def write_binpack(path: str | os.PathLike[str], records: Records, *, join_chains: bool = True) -> None:
    """Writes `path` atomically; consecutive plies of a game become one chain unless `join_chains` is off."""
    with replacing(path) as output:
        writer = _data.BinpackWriter(os.fsencode(path), output.fd)
        writer.join_chains = join_chains
        writer.write(records)
        writer.finish()
