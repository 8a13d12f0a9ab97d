"""What stands in records, uint8 [n, 32], as arrays: for filters of one's own and for looking at data with NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[np.uint8]

# Nibbles 12 to 15 are a pawn that has just moved two squares, rooks that may castle, and the black king, to move.
PUSHED_PAWN, BLACK_KING_TO_MOVE = 12, 15
CODES = np.array([*range(12), 0, 6, 7, 11], np.uint8)
"""2·type + colour by nibble; of pushed pawns the square says the colour."""


def _be16(records: Records, at: int) -> npt.NDArray[np.int32]:
    value: npt.NDArray[np.int32] = records[:, at].astype(np.int32) << 8 | records[:, at + 1]
    return value


def scores(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: side to move's view, engine-internal units; 32002 means none."""
    zigzag = _be16(records, 26)
    return (zigzag >> 1) ^ -(zigzag & 1)


def plies(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: plies played before the position, 0 to 16383."""
    return _be16(records, 28) & 0x3FFF


def results(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: 1 win, 0 draw, −1 loss of the side to move."""
    zigzag = _be16(records, 28) >> 14
    return (zigzag >> 1) ^ -(zigzag & 1)


def rule50s(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: the rule-50 counter."""
    return _be16(records, 30)


def piece_counts(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: pieces on the board, 2 to 32."""
    counts: npt.NDArray[np.int32] = np.unpackbits(records[:, :8], axis=1).sum(axis=1, dtype=np.int32)
    return counts


def black_to_move(records: Records) -> npt.NDArray[np.bool_]:
    """bool [n]."""
    nibbles = records[:, 8:24]
    black: npt.NDArray[np.bool_] = ((nibbles & 15 == BLACK_KING_TO_MOVE) | (nibbles >> 4 == BLACK_KING_TO_MOVE)).any(
        axis=1
    )
    return black


def boards(records: Records) -> npt.NDArray[np.uint8]:
    """uint8 [n, 64], a1 = 0 … h8 = 63: 0 empty, else 1 + 2·type + colour (P N B R Q K = 0…5, white 0, black 1)."""
    occupied = np.unpackbits(records[:, 7::-1], axis=1, bitorder="little").astype(bool)
    nibbles = np.stack([records[:, 8:24] & 15, records[:, 8:24] >> 4], axis=2).reshape(len(records), 32)
    squares = np.zeros((len(records), 64), np.uint8)
    present = np.arange(32) < piece_counts(records)[:, None]
    found = nibbles[present]
    squares[occupied] = 1 + CODES[found]
    # Of pushed pawns the rank tells the colour: black's stand on the fifth.
    row, square = np.nonzero(occupied)
    pushed = found == PUSHED_PAWN
    squares[row[pushed], square[pushed]] = 1 + (square[pushed] >= 32)
    return squares
