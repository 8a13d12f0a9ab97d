"""The nets, one file per family: config, float model, integers, file layout and integer forward (contract: base.py)."""

from nnue_trainer.nets.base import NETS, Net, NetTensor, NnueModel, VirtualRows, WeightBound, build, parse
from nnue_trainer.nets.integer_forward import FirstLayer, IntegerForward, IntegerLayer, RawValues, Skip

__all__ = [
    "NETS",
    "FirstLayer",
    "IntegerForward",
    "IntegerLayer",
    "Net",
    "NetTensor",
    "NnueModel",
    "RawValues",
    "Skip",
    "VirtualRows",
    "WeightBound",
    "build",
    "parse",
]
