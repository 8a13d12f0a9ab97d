"""NNUE training on PyTorch: fast sparse operators, a C++ data pipeline, nets that real engines load."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnue_trainer import functional, ops
    from nnue_trainer.modules import FeatureTransformer

__version__ = "0.1.0"
__all__ = ["FeatureTransformer", "functional", "ops"]


# Loaded at first use: `nnue --help` needs no torch, and a broken build can still be imported and asked what it has.
def __getattr__(name: str) -> Any:
    if name == "FeatureTransformer":
        return importlib.import_module("nnue_trainer.modules").FeatureTransformer
    if name in ("functional", "ops"):
        return importlib.import_module(f"nnue_trainer.{name}")
    raise AttributeError(f"module 'nnue_trainer' has no attribute {name!r}")
