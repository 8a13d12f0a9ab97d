"""Between checkpoints (floating point) and nets (integers).

Export rounds to nearest and refuses what does not fit, naming tensor, index, value and limit. It also merges the two
king planes that training keeps apart; import takes them apart again, so that import → export gives the same file.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nnue_trainer.architectures.config import SimpleConfig, parse
from nnue_trainer.architectures.sfnnv5 import KING_BUCKETS, PLANES, SQUARES
from nnue_trainer.checkpoint import Checkpoint
from nnue_trainer.errors import UserError
from nnue_trainer.export.net import QuantizedNet
from nnue_trainer.export.spec import KNOWN_L1, Layout, SimpleSpec, Spec, describe, spec_of
from nnue_trainer.quantization.scales import SFNNV5, SIMPLE, Scales, TensorScale

OWN_KING, ENEMY_KING = PLANES - 2, PLANES - 1
SHARED_KING = OWN_KING
_BUCKETS = np.arange(KING_BUCKETS)
# The square of the own king, seen from its side and mirrored to files e–h, that each king bucket stands for.
KING_SQUARE = 8 * (7 - _BUCKETS // 4) + 7 - _BUCKETS % 4


def merge_king_planes(rows: np.ndarray) -> np.ndarray:
    """[24576, N] of 12 planes → [22528, N] of 11: both kings share a plane, told apart by the square."""
    planes = rows.reshape(KING_BUCKETS, PLANES, SQUARES, -1)
    merged = planes[:, : PLANES - 1].copy()
    merged[:, SHARED_KING] = planes[:, ENEMY_KING]
    merged[_BUCKETS, SHARED_KING, KING_SQUARE] = planes[_BUCKETS, OWN_KING, KING_SQUARE]
    return merged.reshape(-1, rows.shape[1])


def split_king_planes(rows: np.ndarray) -> np.ndarray:
    """[22528, N] → [24576, N], the inverse; king rows that no position can have are 0."""
    merged = rows.reshape(KING_BUCKETS, PLANES - 1, SQUARES, -1)
    planes = np.zeros((KING_BUCKETS, PLANES, SQUARES, rows.shape[1]), rows.dtype)
    planes[:, :OWN_KING] = merged[:, :OWN_KING]
    planes[:, ENEMY_KING] = merged[:, SHARED_KING]
    planes[_BUCKETS, ENEMY_KING, KING_SQUARE] = 0
    planes[_BUCKETS, OWN_KING, KING_SQUARE] = merged[_BUCKETS, SHARED_KING, KING_SQUARE]
    return planes.reshape(-1, rows.shape[1])


def _float_shape(spec: Spec, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the model's parameter for a tensor of the net: king planes apart, rows without padding."""
    if isinstance(spec, SimpleSpec):
        return shape
    if name.startswith("fc") and name.endswith("weight"):
        return (*shape[:-1], spec.fc[int(name[2])][0])
    if spec.feature_set == "HalfKAv2_hm_11" and name in ("feature_transformer.weight", "feature_transformer.psqt"):
        return (KING_BUCKETS * PLANES * SQUARES, shape[1])
    return shape


def _scales(spec: Spec) -> Scales:
    return SIMPLE if isinstance(spec, SimpleSpec) else SFNNV5


def quantize(name: str, tensor: Tensor, scale: TensorScale, where: str) -> np.ndarray:
    """round(tensor · scale) as float64. UserError names the first value that is not finite or does not fit."""
    values = tensor.detach().cpu().double().numpy()
    steps = np.rint(values * scale.scale)
    wrong = ~(np.abs(steps) <= scale.limit)
    if wrong.any():
        index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        value = float(values[index])
        raise UserError(
            f"{where}: {name}{list(index)} is {value:.6g}, limit ±{scale.limit / scale.scale:.6g} "
            f"({scale.limit} steps of 1/{scale.scale:.6g}); {int(wrong.sum())} of {wrong.size} values do not fit"
        )
    return steps


def net_from_checkpoint(checkpoint: Checkpoint, where: str, *, any_l1: bool = False) -> QuantizedNet:
    """The net that `checkpoint` is. `where` names it in errors; `any_l1` allows a width that no Stockfish reads."""
    config = parse(checkpoint.architecture, where)
    if not isinstance(config, SimpleConfig) and config.l1 not in KNOWN_L1 and not any_l1:
        released = ", ".join(f"{l1} ({name})" for l1, name in sorted(KNOWN_L1.items()))
        raise UserError(
            f"{where}: architecture.l1 is {config.l1}, which no Stockfish reads; expected one of {released}; "
            "--any-l1 writes it all the same"
        )
    spec = spec_of(config)
    model = checkpoint.tensors.get("model", {})
    kept = checkpoint.tensors.get("net", {})
    scales = _scales(spec).tensors
    for name in sorted(model.keys() ^ scales.keys()):
        raise UserError(f"{where}: tensor model/{name} is {'unknown' if name in model else 'missing'}")
    tensors: dict[str, np.ndarray] = {}
    for name, (dtype, shape) in spec.tensor_shapes().items():
        expected = _float_shape(spec, name, shape)
        if tuple(model[name].shape) != expected:
            found = list(model[name].shape)
            raise UserError(f"{where}: tensor model/{name} has shape {found}, expected {list(expected)}")
        steps = quantize(name, model[name], scales[name], where)
        if expected[0] != shape[0]:
            steps = merge_king_planes(steps)
        elif expected != shape:
            # Rows are padded to whole vectors; what a foreign net had in there was kept at import.
            padding = kept[name].numpy() if name in kept else np.zeros((*shape[:-1], shape[-1] - expected[-1]))
            steps = np.concatenate([steps, padding], axis=-1)
        tensors[name] = steps.astype(dtype)
    origin = checkpoint.state.get("net", {})
    description = origin["description"].encode("latin-1") if "description" in origin else describe(spec)
    layout: Layout = origin.get("layout", spec.layout)
    return QuantizedNet(spec, description, tensors, layout)


def checkpoint_from_net(net: QuantizedNet, where: str) -> Checkpoint:
    """A checkpoint that exports to the very file `net` came from: what floats do not hold is kept beside them."""
    spec = net.spec
    if spec.architecture is None:
        raise UserError(f"{where}: {spec.name} nets can be read and evaluated, but have no float model to train")
    model: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    for name, scale in _scales(spec).tensors.items():
        steps = net.tensors[name]
        expected = _float_shape(spec, name, steps.shape)
        if expected[-1] != steps.shape[-1]:
            padding = steps[..., expected[-1] :]
            if padding.any():
                kept[name] = torch.from_numpy(padding.copy())
            steps = steps[..., : expected[-1]]
        values = (steps / scale.scale).astype(np.float32)
        lost = np.rint(values.astype(np.float64) * scale.scale) != steps
        if lost.any():
            index = tuple(int(i) for i in np.unravel_index(int(lost.argmax()), lost.shape))
            raise UserError(
                f"{where}: {name}{list(index)} is {steps[index]}, too large for a 32-bit float to hold exactly"
            )
        if expected[0] != steps.shape[0]:
            values = split_king_planes(values)
        model[name] = torch.from_numpy(np.ascontiguousarray(values))
    state = {"net": {"name": spec.name, "description": net.description.decode("latin-1"), "layout": net.layout}}
    tensors = {"model": model, "net": kept} if kept else {"model": model}
    return Checkpoint(spec.architecture, tensors, None, state)


def accumulator_bound(net: QuantizedNet) -> int:
    """No position can bring an accumulator beyond this magnitude (at most 32 pieces, one a square).

    It is a bound, not a maximum: nets above `spec.accumulator_limit` may still never wrap around in a legal position.
    """
    weight = net.tensors["feature_transformer.weight"]
    bias = net.tensors["feature_transformer.bias"].astype(np.int64)
    blocks = weight.reshape(-1, 704 if net.spec.feature_set == "HalfKAv2_hm_11" else weight.shape[0], weight.shape[1])
    worst = 0
    for block in blocks:
        squares = block.reshape(-1, SQUARES, weight.shape[1])
        highest = np.sort(np.maximum(squares.max(axis=0), 0), axis=0)[-32:].sum(axis=0, dtype=np.int64)
        lowest = np.sort(np.minimum(squares.min(axis=0), 0), axis=0)[:32].sum(axis=0, dtype=np.int64)
        worst = max(worst, int((bias + highest).max()), int(-(bias + lowest).min()))
    return worst
