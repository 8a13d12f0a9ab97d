"""Your own data format: four letters, then records of 76 bytes with a byte for each square."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nnue_trainer.data import fields
from nnue_trainer.data.formats import DataFormat, Records
from nnue_trainer.errors import UserError
from nnue_trainer.schema import section

MAGIC = b"SQRS"
ROW = np.dtype(
    [
        ("board", "u1", 64),  # 0 empty, else 1 + 2·type + colour; a1 first
        ("black_to_move", "?"),
        ("castling", "u1"),  # K 1, Q 2, k 4, q 8
        ("ep", "u1"),  # 64: none
        ("result", "i1"),  # of the side to move
        ("score", "<i2"),  # of the side to move
        ("move", "<u2"),
        ("ply", "<u2"),
        ("rule50", "<u2"),
    ]
)


@section
class Squares(DataFormat):
    """A board of 64 bytes for each position, which NumPy reads without conversion."""

    suffixes = (".squares",)

    score_scale: float = Field(default=1.0, gt=0, le=1000)
    """internal units in one unit of the file's scores"""

    def recognises(self, head: bytes) -> bool:
        return head.startswith(MAGIC)

    def read(self, file: BinaryIO) -> Iterator[Records]:
        if file.read(len(MAGIC)) != MAGIC:
            raise UserError(f"does not begin with {MAGIC.decode()}")
        while data := file.read(ROW.itemsize << 16):
            if len(data) % ROW.itemsize:
                raise UserError(f"ends inside of a record of {ROW.itemsize} bytes: it is truncated")
            rows = np.frombuffer(data, ROW)
            yield fields.pack(
                rows["board"],
                rows["black_to_move"],
                scores=np.rint(rows["score"] * self.score_scale),
                results=rows["result"],
                plies=rows["ply"],
                rule50s=rows["rule50"],
                moves=rows["move"],
                castling_rights=rows["castling"],
                ep_squares=rows["ep"],
            )

    def header(self) -> bytes:
        return MAGIC

    def encode(self, records: npt.NDArray[np.uint8]) -> bytes:
        rows = np.zeros(len(records), ROW)
        rows["board"] = fields.boards(records)
        rows["black_to_move"] = fields.black_to_move(records)
        rows["castling"] = fields.castling_rights(records)
        rows["ep"] = fields.ep_squares(records)
        rows["result"] = fields.results(records)
        rows["score"] = np.rint(fields.scores(records) / self.score_scale)
        rows["move"] = fields.moves(records)
        rows["ply"] = fields.plies(records)
        rows["rule50"] = fields.rule50s(records)
        return rows.tobytes()
