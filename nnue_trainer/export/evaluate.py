"""The integer evaluator: what an engine computes, bit for bit, for many positions at once.

A net that describes its integer forward (`Net.integer_forward`) is evaluated in C++ (data_loader/evaluate), on all
CPUs. A net from outside that defines its arithmetic in Python is evaluated by its own method, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.system import usable_cpus
from nnue_trainer.data import expand, records_from_fens
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.piece_weights import weights_of_features
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.nets.integer_forward import IntegerForward

Positions = Batch | npt.NDArray[np.uint8] | Sequence[str]
"""Index rows of `Net.integer_feature_set`, or records uint8 [B, 32], or FENs."""

_CHUNK = 512


@dataclass(frozen=True)
class Evaluation:
    """B positions: `bucket` int64 [B] is the stack in use; `psqt_raw` and `positional_raw` int64 [B, S] of every stack,
    or [B, 1] of the one in use, side to move's view, before the output scale; `score` int64 [B] in engine units."""

    bucket: np.ndarray
    psqt_raw: np.ndarray
    positional_raw: np.ndarray
    score: np.ndarray


class Evaluator:
    """A net, prepared for evaluation. It refers to the net's tensors, which must not change while it is in use.

    `threads`: at most this many at a time, 0 one per CPU. `isa`: one of `nnue_trainer._data.isas()`, None the best that
    this CPU can run; all give the same integers. UserError for an inconsistent description.
    """

    def __init__(self, quantized: QuantizedNet, *, threads: int = 0, isa: str | None = None) -> None:
        self.quantized, self._threads, self._isa = quantized, threads or usable_cpus(), isa or ""
        net, forward = quantized.net, quantized.net.integer_forward()
        self._compiled: _data.Evaluator | None = None
        if forward is not None:
            self._compiled = _data.Evaluator(compiled_forward(forward, net.integer_feature_set, quantized.tensors))

    def evaluate(self, positions: Positions, *, every_stack: bool = True) -> Evaluation:
        """Evaluates `positions`; `every_stack` False: only the stack in use, which is all that the score needs.

        Memory beyond the result is a few MiB for each thread. Ctrl-C ends it within a moment. UserError for a FEN or a
        record that is not a position, naming it.
        """
        if not isinstance(positions, Batch | np.ndarray):
            positions = records_from_fens(list(positions))
        if self._compiled is None:
            return self._in_python(positions, every_stack)
        how = every_stack, self._threads, self._isa
        if isinstance(positions, Batch):
            of = positions
            fields = (of.white, of.black, of.black_to_move, of.piece_count, of.material)
            white, black, mover, pieces, material = (field.numpy() for field in fields)
            return Evaluation(*self._compiled.evaluate_rows(white, black, mover, pieces, material, *how))
        return Evaluation(*self._compiled.evaluate_records(positions, *how))

    def _in_python(self, positions: Batch | npt.NDArray[np.uint8], every_stack: bool) -> Evaluation:
        net, tensors = self.quantized.net, self.quantized.tensors
        parts = []
        for batch in self._batches(positions):
            psqt, positional = net.evaluate(tensors, batch)
            bucket = net.bucket(batch)
            used = (np.arange(len(batch)), bucket if psqt.shape[1] > 1 else 0)
            score = net.score(psqt[used], positional[used])
            if not every_stack:
                psqt, positional = psqt[used][:, np.newaxis], positional[used][:, np.newaxis]
            parts.append((bucket, psqt, positional, score))
        return Evaluation(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def _batches(self, positions: Batch | npt.NDArray[np.uint8]) -> Iterator[Batch]:
        for begin in range(0, max(len(positions), 1), _CHUNK):
            if isinstance(positions, Batch):
                part = slice(begin, begin + _CHUNK)
                fields: dict[str, Any] = {name: field[part] for name, field in positions.fields().items()}
                yield Batch(**fields)
            else:
                yield expand(positions[begin : begin + _CHUNK], self.quantized.net.integer_feature_set, self._threads)


def evaluate(
    quantized: QuantizedNet, positions: Positions, *, every_stack: bool = True, threads: int = 0
) -> Evaluation:
    """Evaluates `positions` with a net, like `Evaluator`, which is for repeated evaluations.

    Args:
        quantized: the net, such as `read_net` returns.
        positions: FENs, records uint8 [B, 32], or a `Batch` whose index rows are of `Net.integer_feature_set`.
        every_stack: False: only the stack in use, which is all that the score needs.
        threads: at most this many at a time; 0: one per CPU.

    Raises:
        UserError: a FEN or a record is not a position; the message names it.
    """
    return Evaluator(quantized, threads=threads).evaluate(positions, every_stack=every_stack)


def compiled_forward(forward: IntegerForward, feature_set: str, tensors: Mapping[str, np.ndarray]) -> _data.Forward:
    """`forward` for the evaluator in C++, whose structs have the same fields, with tensors instead of their names."""

    def named(name: str) -> _data.IntegerTensor:
        return _data.IntegerTensor(name, np.ascontiguousarray(tensors[name]))

    first = forward.first
    weights, psqt = ([named(name) for name in names] for names in (first.weights, first.psqt))
    layers = [
        _data.ForwardLayer(**vars(layer) | {"weight": named(layer.weight), "bias": named(layer.bias)})
        for layer in forward.layers
    ]
    fields = vars(forward) | {
        "first": _data.FirstLayer(**vars(first) | {"bias": named(first.bias), "weights": weights, "psqt": psqt}),
        "layers": layers,
        "skips": [_data.Skip(**vars(skip)) for skip in forward.skips],
    }
    piece_weights = fields.pop("piece_weights")
    return _data.Forward(
        feature_set=feature_set,
        feature_weights=weights_of_features(feature_set, piece_weights).tolist() if piece_weights else (),
        **fields,
    )
