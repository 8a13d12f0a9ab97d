"""Golden nets: files that anyone can make from a formula, to compare readers, writers and evaluators by checksum.

Element k of tensor t comes from a splitmix of (seed, t, k); the ranges stress every clip of the arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.export.spec import STOCKFISH

_CHUNK = 1 << 20


def uniform(seed: int, tensor: int, shape: tuple[int, ...], dtype: np.dtype[Any], bound: tuple[int, int]) -> np.ndarray:
    """Integers of the closed range `bound`, element k being the splitmix of (seed, tensor, k)."""
    low, high = bound
    out = np.empty(int(np.prod(shape)), dtype)
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
    return out.reshape(shape)


def golden_net(name: str, seed: int = 1) -> QuantizedNet:
    """The golden net of a Stockfish architecture, described as `golden NAME seed SEED`."""
    spec = STOCKFISH[name]
    bounds = {"bias": (-40, 120), "weight": (-40, 40), "psqt": (-9000, 9000)}
    tensors = {
        s.tensor: uniform(seed, t, s.shape, s.dtype, bounds[s.tensor.rpartition(".")[2]])
        for t, s in enumerate(spec.feature_transformer_sections())
    }
    # Wide layers sum more products and would saturate everywhere; small weights came with the later versions.
    wide = 31 if name in ("sfnnv1", "sfnnv2", "sfnnv3", "sfnnv4", "sfnnv5") else 127
    stacked: dict[str, list[np.ndarray]] = {}
    for stack in range(spec.stacks):
        for t, s in enumerate(spec.stack_sections(stack), start=100 + 6 * stack):
            layer = int(s.tensor[2])
            if s.tensor.endswith("bias"):
                values = uniform(seed, t, s.shape, s.dtype, (-12000, 12000))
            else:
                limit = wide if layer else 31 if spec.l1 <= 1024 else 16
                values = uniform(seed, t, s.shape, s.dtype, (-limit, limit))
                values[:, spec.fc[layer][0] :] = 0
            stacked.setdefault(s.tensor, []).append(values)
    tensors |= {tensor: np.stack(parts) for tensor, parts in stacked.items()}
    return QuantizedNet(spec, f"golden {name} seed {seed}".encode(), tensors, spec.layout)
