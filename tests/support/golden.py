"""Golden nets: files that anyone can make from a formula, to compare readers, writers and evaluators by checksum.

Element k of tensor t comes from a splitmix of (seed, t, k), mod 2⁶⁴; the ranges stress every clip of the arithmetic:

    z = (seed·2^56 + t·2^40 + k + 1) · 0x9E3779B97F4A7C15
    z = (z ^ z>>30) · 0xBF58476D1CE4E5B9;  z = (z ^ z>>27) · 0x94D049BB133111EB;  z ^= z>>31
    value = lo + (((z >> 32) · (hi − lo + 1)) >> 32)

Block t of the feature transformer, in the order of the file, counted from 0, in these ranges (s = 1 up to v9 and for
the small net, else 2): bias [−40 s, 120 s], i16 weights ±40 s, i8 weights ±48, psqt ±9000. Stack i, layer l: bias t =
100 + 6i + 2l in ±12000, weight t = 101 + 6i + 2l over the padded matrix, padding then set to 0; fc0 ±31 (L1 > 1024:
±16), fc1 and fc2 ±31 for v1 … v5, ±127 for the others.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.nets.base import NETS, Net
from nnue_trainer.nnue_file.layout import Block, FileLayout

_CHUNK = 1 << 20


def uniform(seed: int, tensor: int, count: int, bound: tuple[int, int]) -> np.ndarray:
    """int32 [count] of the closed range `bound`, element k being the splitmix of (seed, tensor, k)."""
    low, high = bound
    out = np.empty(count, np.int32)
    base = (seed << 56) + (tensor << 40) + 1
    for begin in range(0, out.size, _CHUNK):
        end = min(begin + _CHUNK, out.size)
        z = np.arange(base + begin, base + end, dtype=np.uint64)
        z *= np.uint64(0x9E3779B97F4A7C15)
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        z >>= np.uint64(32)
        z *= np.uint64(high - low + 1)
        z >>= np.uint64(32)
        out[begin:end] = z.astype(np.int64) + low
    return out


def golden_net(name: str, seed: int = 1, **sizes: int) -> QuantizedNet:
    """The golden net of a Stockfish architecture, described as `golden NAME seed SEED`. What follows a hyphen in the
    name has the engine that reads it: `sfnnv10-sf18`. `sizes` are fields of the net that differ, such as `l1`."""
    make: Any = NETS.find(name.partition("-")[0])
    net: Net = make(**sizes)
    layout = net.layouts()[0]
    return QuantizedNet(net, f"golden {name} seed {seed}".encode(), _tensors(net, layout, seed), layout.name)


def _tensors(net: Net, layout: FileLayout, seed: int) -> dict[str, np.ndarray]:
    version = int(re.findall(r"\d+", net.kind)[0])
    tensors = {tensor.name: tensor for tensor in net.tensors()}
    made = {name: np.empty(tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    blocks = [item for item in layout.items if isinstance(item, Block)]
    first_stack = next(i for i, block in enumerate(blocks) if block.pieces[0].index is not None)
    for number, block in enumerate(blocks):
        stack = block.pieces[0].index
        tensor = number if stack is None else 100 + 6 * stack + (number - first_stack) % 6
        values = uniform(
            seed, tensor, block.count, _bound(block, tensors["feature_transformer.bias"].shape[0], version)
        )
        for piece in block.pieces:
            part, values = values[: piece.count].reshape(piece.shape), values[piece.count :]
            columns = tensors[piece.tensor].columns
            if columns is not None:
                part[:, columns:] = 0
            made[piece.tensor][... if stack is None else stack] = part
    return made


def _bound(block: Block, l1: int, version: int) -> tuple[int, int]:
    """Ranges that keep every net lively. Wide layers sum more products and would saturate everywhere; small weights in
    the later layers are those of the first versions."""
    piece = block.pieces[0]
    layer, _, kind = piece.tensor.partition(".")
    if layer == "feature_transformer":
        s = 2 if 10 <= version < 128 else 1
        if kind == "bias":
            return -40 * s, 120 * s
        if kind.startswith("psqt"):
            return -9000, 9000
        return (-48, 48) if piece.dtype == "<i1" else (-40 * s, 40 * s)
    if kind == "bias":
        return -12000, 12000
    limit = (31 if l1 <= 1024 else 16) if layer == "fc0" else 31 if version <= 5 else 127
    return -limit, limit
