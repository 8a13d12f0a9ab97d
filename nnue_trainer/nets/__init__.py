"""The nets, one file per family: config, float model, integers, file layout and integer forward (base.py says how)."""

from nnue_trainer.nets.base import NETS, Net, NetTensor, NnueModel, RawValues, VirtualRows, WeightBound, build, parse

__all__ = ["NETS", "Net", "NetTensor", "NnueModel", "RawValues", "VirtualRows", "WeightBound", "build", "parse"]
