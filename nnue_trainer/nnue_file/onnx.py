"""A net as an ONNX graph."""

from __future__ import annotations

from nnue_trainer.nnue_file.formats import FORMATS, Exported, NetFormat
from nnue_trainer.schema import section


@FORMATS.register("onnx")
@section
class Onnx(NetFormat):
    """The float model as an ONNX graph, which takes index rows; needs the packages onnx and onnxscript."""

    suffix = ".onnx"

    rounded: bool = False
    """use the net's integer weights instead of the trained ones; activations are floats in both cases"""

    def to_bytes(self, net: Exported, where: str) -> bytes:
        return net.graph(self.rounded, where)
