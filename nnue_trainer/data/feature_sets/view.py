"""Positions decoded into arrays, as one side sees them, for feature sets in Python."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from nnue_trainer.data import fields

MAX_PIECES = 32


class View:
    """B positions as one perspective sees them. Black sees the board upside down, so its own pawns move up as well.

    Squares are 0 … 63 from a1 to h8. Pieces are 2·type + (1 for the enemy), with types P N B R Q K = 0 … 5: own pawn 0,
    enemy pawn 1, … enemy king 11. Arrays are int32 and must not be written to.
    """

    perspective: int
    """0 white, 1 black"""
    records: npt.NDArray[np.uint8]
    """[B, 32]: the packed positions; `nnue_trainer.data.fields` reads score, ply and so on"""

    def __init__(self, records: npt.NDArray[np.uint8], perspective: int, pieces: _Pieces | None = None) -> None:
        self.records, self.perspective = records, perspective
        self._pieces = pieces or _Pieces(records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def count(self) -> npt.NDArray[np.int32]:
        """[B]: how many pieces there are, 2 … 32."""
        return self._pieces.count

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """bool [B, 32]: whether the lists below have an entry here; they begin at 0 and have no gaps."""
        return self._pieces.present

    @cached_property
    def square(self) -> npt.NDArray[np.int32]:
        """[B, 32]: the square of each piece; −1 after the last one."""
        found = self._pieces.square
        return np.where(self.present, found ^ 56, -1) if self.perspective else found

    @cached_property
    def piece(self) -> npt.NDArray[np.int32]:
        """[B, 32]: each piece, in the order of `square`; −1 after the last one."""
        found = self._pieces.code
        return np.where(self.present, found ^ 1, -1) if self.perspective else found

    @cached_property
    def board(self) -> npt.NDArray[np.int32]:
        """[B, 64]: the piece on each square; −1 where it is empty."""
        board = np.full((len(self), 64), -1, np.int32)
        row, column = np.nonzero(self.present)
        board[row, self.square[row, column]] = self.piece[row, column]
        return board

    @cached_property
    def king(self) -> npt.NDArray[np.int32]:
        """[B]: the square of the own king."""
        return self._king(10)

    @cached_property
    def enemy_king(self) -> npt.NDArray[np.int32]:
        """[B]: the square of the enemy king."""
        return self._king(11)

    @cached_property
    def to_move(self) -> npt.NDArray[np.bool_]:
        """bool [B]: whether this side is to move."""
        black: npt.NDArray[np.bool_] = self._pieces.black_to_move
        return black if self.perspective else ~black

    def _king(self, piece: int) -> npt.NDArray[np.int32]:
        found: npt.NDArray[np.int32] = self.square[np.arange(len(self)), (self.piece == piece).argmax(axis=1)]
        return found


class _Pieces:
    """The part that both perspectives share: pieces by ascending square, as 2·type + colour."""

    def __init__(self, records: npt.NDArray[np.uint8]) -> None:
        occupied, nibbles = fields.in_order(records)
        self.count: npt.NDArray[np.int32] = occupied.sum(axis=1, dtype=np.int32)
        self.present: npt.NDArray[np.bool_] = np.arange(MAX_PIECES) < self.count[:, None]
        square = np.nonzero(occupied)[1]
        nibble = nibbles[self.present]
        code = fields.CODES[nibble]
        code += (nibble == fields.PUSHED_PAWN) & (square >= 32)  # pushed pawns on the fifth rank are black's
        self.square: npt.NDArray[np.int32] = np.full(self.present.shape, -1, np.int32)
        self.square[self.present] = square
        self.code: npt.NDArray[np.int32] = np.full(self.present.shape, -1, np.int32)
        self.code[self.present] = code
        self.black_to_move = ((nibbles == fields.BLACK_KING_TO_MOVE) & self.present).any(axis=1)


def views(records: npt.NDArray[np.uint8]) -> tuple[View, View]:
    """The positions as white and as black see them."""
    pieces = _Pieces(records)
    return View(records, 0, pieces), View(records, 1, pieces)
