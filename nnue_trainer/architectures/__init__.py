"""Float models. `build` makes one from its architecture, be it a dataclass or the plain data a checkpoint carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnue_trainer.architectures.base import NnueModel, WeightBound
from nnue_trainer.architectures.config import Architecture, SfnnV5Config, SimpleConfig, parse
from nnue_trainer.architectures.sfnnv5 import SfnnV5
from nnue_trainer.architectures.simple import SimpleNet

__all__ = [
    "Architecture",
    "NnueModel",
    "SfnnV5",
    "SfnnV5Config",
    "SimpleConfig",
    "SimpleNet",
    "WeightBound",
    "build",
    "parse",
]


def build(architecture: Mapping[str, Any] | SfnnV5Config | SimpleConfig) -> NnueModel:
    """A freshly initialised model (torch's global generator). UserError names the wrong key of plain data."""
    config = parse(architecture, "architectures.build") if isinstance(architecture, Mapping) else architecture
    if isinstance(config, SfnnV5Config):
        return SfnnV5(config)
    return SimpleNet(config)
