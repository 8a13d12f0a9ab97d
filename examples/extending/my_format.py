"""Your own net file format: four letters, the number of tensors, then each with the length of its bytes."""

import struct

from pydantic import Field

from nnue_trainer.nnue_file.formats import Exported, NetFormat
from nnue_trainer.schema import section


@section
class Labelled(NetFormat):
    """A magic word in front, and the size of each tensor before it."""

    magic: str = Field(default="MINE", pattern=r"^[A-Z]{4}$")
    """the first four bytes"""

    def to_bytes(self, net: Exported, where: str) -> bytes:
        parts = [self.magic.encode(), struct.pack("<I", len(net.tensors))]
        for tensor in net.tensors:
            data = tensor.integers.tobytes()
            parts += [struct.pack("<I", len(data)), data]
        return b"".join(parts)
