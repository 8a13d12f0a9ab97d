"""The integer evaluator: what the engine computes, bit for bit, for many positions at once.

Arithmetic: docs/nets.md. Accumulators wrap around in 16 bits, layers are 32-bit sums, divisions go toward zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnue_trainer.data.batch import Batch
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.export.spec import SimpleSpec, StockfishSpec, tdiv
from nnue_trainer.quantization.scales import QA

_CHUNK = 2048


@dataclass(frozen=True)
class Evaluation:
    """B positions: `bucket` int64 [B] is the stack in use; `psqt_raw` and `positional_raw` int64 [B, S] of every stack,
    side to move's view, before the output scale; `score` int64 [B] in engine units."""

    bucket: np.ndarray
    psqt_raw: np.ndarray
    positional_raw: np.ndarray
    score: np.ndarray


def accumulators(net: QuantizedNet, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """int16 [B, l1] of the side to move and of the other side."""
    return _both_sides(net, "feature_transformer.weight", batch, net.tensors["feature_transformer.bias"])


def activations(net: QuantizedNet, batch: Batch) -> np.ndarray:
    """The vector that enters the layers of a Stockfish net: uint8 [B, inputs of fc0], side to move first."""
    assert isinstance(net.spec, StockfishSpec)
    clipped = [np.clip(side, 0, 127) for side in accumulators(net, batch)]
    if net.spec.pairwise:
        half = net.spec.l1 // 2
        clipped = [side[:, :half] * side[:, half:] >> 7 for side in clipped]
    return np.concatenate(clipped, axis=1).astype(np.uint8)


def evaluate(net: QuantizedNet, batch: Batch) -> Evaluation:
    """Evaluates positions whose index rows are of `net.spec.feature_set`."""
    parts = [_evaluate(net, _slice(batch, begin)) for begin in range(0, max(len(batch), 1), _CHUNK)]
    psqt, positional = (np.concatenate(values) for values in zip(*parts, strict=True))
    stacks = net.spec.stacks
    bucket = batch.bucket.numpy() if stacks > 1 else np.zeros(len(batch), np.int64)
    used = (np.arange(len(batch)), bucket)
    return Evaluation(bucket, psqt, positional, net.spec.score(psqt[used], positional[used]))


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


def _both_sides(net: QuantizedNet, tensor: str, batch: Batch, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bias + sum of the active rows, us and them; in the integers of the bias, which wrap around as the engine's."""
    weight = net.tensors[tensor]
    sides = []
    for rows in (batch.white.numpy(), batch.black.numpy()):
        total = np.repeat(bias[np.newaxis], len(batch), axis=0)
        for column in rows.T:
            active = column >= 0
            total[active] += weight[column[active]]
        sides.append(total)
    white, black = sides
    black_to_move = batch.black_to_move.numpy().astype(bool)[:, np.newaxis]
    return np.where(black_to_move, black, white), np.where(black_to_move, white, black)


def _evaluate(net: QuantizedNet, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(net.spec, SimpleSpec):
        return _evaluate_simple(net, net.spec, batch)
    return _evaluate_stockfish(net, net.spec, batch)


def _layer(net: QuantizedNet, layer: int, x: np.ndarray) -> np.ndarray:
    """x [B, in], the same for every stack, or [B, S, in] → int64 [B, S, out], values of 32 bits."""
    inputs = x.shape[-1]
    weight = net.tensors[f"fc{layer}.weight"][:, :, :inputs].astype(np.float64)
    # Products of 8-bit values summed over thousands of inputs are far below 2^53: exact in float64, and fast.
    if x.ndim == 2:
        product = (x.astype(np.float64) @ weight.reshape(-1, inputs).T).reshape(len(x), *weight.shape[:2])
    else:
        product = np.einsum("bsi,soi->bso", x.astype(np.float64), weight)
    total = product.astype(np.int64) + net.tensors[f"fc{layer}.bias"]
    return _wrap32(total)


def _wrap32(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.int64).astype(np.int32).astype(np.int64)


def _crelu(y: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(y >> 6, 0, 127))


def _evaluate_stockfish(net: QuantizedNet, spec: StockfishSpec, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    if spec.psqt:
        us, them = _both_sides(net, "feature_transformer.psqt", batch, np.zeros(spec.stacks, np.int32))
        psqt = tdiv((us - them).astype(np.int64), 2)
    else:
        psqt = np.zeros((len(batch), spec.stacks), np.int64)
    y0 = _layer(net, 0, activations(net, batch))
    hidden = y0[:, :, :-1] if spec.skip else y0
    x = _crelu(hidden)
    if spec.squared:
        # The square loses the sign: negatives count as well.
        x = np.concatenate([np.minimum(hidden * hidden >> 19, 127), x], axis=2)
    positional = _layer(net, 2, _crelu(_layer(net, 1, x)))[:, :, 0]
    if spec.skip:
        # 9600 = 600 · 16 steps of the output for 8128 = 127 · 64 of the layer; the engine's product has 32 bits.
        positional = positional + tdiv(_wrap32(y0[:, :, -1] * 9600), 8128)
    return psqt, positional


def _evaluate_simple(net: QuantizedNet, spec: SimpleSpec, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    x = np.concatenate([np.clip(side, 0, QA) for side in accumulators(net, batch)], axis=1).astype(np.int64)
    weight = net.tensors["output.weight"][0].astype(np.int64)
    total = tdiv(x * x @ weight, QA) if spec.config.activation == "screlu" else x @ weight
    total = total + net.tensors["output.bias"].astype(np.int64)
    return np.zeros((len(batch), 1), np.int64), total[:, np.newaxis]
