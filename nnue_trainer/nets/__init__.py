"""The nets, one file per family: config, float model, integers, file layout and integer forward (contract: base.py)."""

from nnue_trainer.nets.base import (
    NETS,
    Net,
    NetTensor,
    NnueModel,
    VirtualRows,
    WeightBound,
    build,
    parse,
    transformer,
    virtual_rows,
)
from nnue_trainer.nets.integer_forward import FirstLayer, IntegerForward, IntegerLayer, RawValues, Skip
from nnue_trainer.nets.rounded_forward import QatConfig

__all__ = [
    "NETS",
    "FirstLayer",
    "IntegerForward",
    "IntegerLayer",
    "Net",
    "NetTensor",
    "NnueModel",
    "QatConfig",
    "RawValues",
    "Skip",
    "VirtualRows",
    "WeightBound",
    "build",
    "parse",
    "transformer",
    "virtual_rows",
]
