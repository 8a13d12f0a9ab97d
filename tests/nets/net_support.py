"""Helpers of this room's tests."""

import json
from pathlib import Path

import numpy as np
import torch

from nnue_trainer import data, nets
from nnue_trainer.export import QuantizedNet
from nnue_trainer.files.checkpoint import Checkpoint

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"


def vectors(name: str) -> list[dict]:
    """Raw evaluations that engines printed for a net: tests/vectors/README.md."""
    return json.loads((VECTORS / f"eval_{name}.json").read_text())["positions"]


def batch_of(net: QuantizedNet, fens: list[str]) -> data.Batch:
    return data.expand(data.records_from_fens(fens), net.net.integer_feature_set)


def fnv1a64(row: np.ndarray) -> str:
    """The vector files' hash; its basis is not the standard one."""
    h = 1469598103934665603
    for byte in row.tolist():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return str(h)


def random_checkpoint(architecture: dict, seed: int = 0) -> Checkpoint:
    """A model whose weights fill a good part of the range that export allows."""
    model = nets.build(architecture)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.1 if name.startswith("feature_transformer") else 0.3
            parameter.copy_((torch.randn(parameter.shape, generator=generator) * spread).clamp(-1.5, 1.5))
    return Checkpoint(model.architecture, {"model": model.state_dict()})


def within_limits(architecture: dict) -> Checkpoint:
    """Random weights that fit the net's integers."""
    found = random_checkpoint(architecture)
    model = nets.build(architecture)
    model.load_state_dict(found.tensors["model"])
    with torch.no_grad():
        for bound in model.weight_bounds():
            bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    return Checkpoint(model.architecture, {"model": model.state_dict()})
