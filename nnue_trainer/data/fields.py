"""The contents of records, uint8 [n, 32], as arrays, and records made from arrays: for your own filters and formats,
and for analysing data with NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.errors import UserError

__all__ = [
    "NO_SCORE",
    "black_to_move",
    "boards",
    "castling_rights",
    "ep_squares",
    "moves",
    "pack",
    "piece_counts",
    "plies",
    "results",
    "rule50s",
    "scores",
    "set_scores",
]

# Nibbles 12 to 15 are a pawn that has just moved two squares, rooks that may castle, and the black king, to move.
PUSHED_PAWN, BLACK_KING_TO_MOVE = 12, 15
CODES = np.array([*range(12), 0, 6, 7, 11], np.uint8)
"""2·type + colour by nibble; the colour of a pushed pawn follows from its square."""
# Castling right → (square of the rook, its nibble, code of the rook).
_CASTLING = {1: (7, 13, 6), 2: (0, 13, 6), 4: (63, 14, 7), 8: (56, 14, 7)}
_BLOCK = 4096  # positions whose boards are made at a time: an index takes eight bytes for each square

SPARE_PLACES = {1: [30], 3: [30, 31, 29]}
"""By the number of spare bytes, those of a record that hold them where training uses them (`spare.py`)."""

NO_SCORE = 32_002
"""The score that data files give to a position that has none."""

_FIELDS = _data.record_fields()


def _field(records: Records, name: str) -> npt.NDArray[np.int32]:
    byte, shift, bits, is_zigzag = _FIELDS[name]
    word = records[:, byte].astype(np.int32) << 8 | records[:, byte + 1]
    value: npt.NDArray[np.int32] = word >> shift & ((1 << bits) - 1)
    return (value >> 1) ^ -(value & 1) if is_zigzag else value


def _put(records: Records, name: str, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Sets a field; bool [n], true where the record has room for the value."""
    byte, shift, bits, is_zigzag = _FIELDS[name]
    value = np.broadcast_to(np.asarray(values).astype(np.int64), len(records))
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_zigzag else (0, (1 << bits) - 1)
    fits: npt.NDArray[np.bool_] = (value >= least) & (value <= most)
    if is_zigzag:
        value = value << 1 ^ value >> 63
    records[:, byte] |= (value << shift >> 8 & 255).astype(np.uint8)
    records[:, byte + 1] |= (value << shift & 255).astype(np.uint8)
    return fits


def scores(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: side to move's view, engine-internal units; 32002 means none."""
    return _field(records, "score")


def set_scores(records: Records, scores: npt.ArrayLike) -> None:
    """Sets the scores in place: int [n], −32768 to 32767, side to move's view; 32002 means none. UserError for a score
    beyond."""
    byte = _FIELDS["score"][0]
    records[:, byte : byte + 2] = 0
    if not _put(records, "score", scores).all():
        raise UserError("a score beyond −32768 to 32767")


def plies(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: plies played before the position, 0 to 16383."""
    return _field(records, "ply")


def results(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: 1 win, 0 draw, −1 loss of the side to move."""
    return _field(records, "result")


def rule50s(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: the rule-50 counter."""
    return _field(records, "rule50")


def moves(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: bits 15–14 kind (0 normal, 1 promotion, 2 castling, 3 en passant), 13–8 from, 7–2 to, 1–0 promotion
    piece (N B R Q). Castling goes from the king's square to the rook's. 0: none."""
    return _field(records, "move")


def piece_counts(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: pieces on the board, 2 to 32."""
    counts: npt.NDArray[np.int32] = np.unpackbits(records[:, :8], axis=1).sum(axis=1, dtype=np.int32)
    return counts


def black_to_move(records: Records) -> npt.NDArray[np.bool_]:
    """bool [n]: whether black is to move."""
    nibbles = records[:, 8:24]
    black: npt.NDArray[np.bool_] = ((nibbles & 15 == BLACK_KING_TO_MOVE) | (nibbles >> 4 == BLACK_KING_TO_MOVE)).any(
        axis=1
    )
    return black


def boards(records: Records) -> npt.NDArray[np.uint8]:
    """uint8 [n, 64], a1 = 0 … h8 = 63: 0 empty, else 1 + 2·type + colour (P N B R Q K = 0…5, white 0, black 1)."""
    squares = np.empty((len(records), 64), np.uint8)
    pieces = np.array([0, *(1 + CODES)], np.uint8)
    for begin in range(0, len(records), _BLOCK):
        nibbles = _nibbles_by_square(records[begin : begin + _BLOCK])
        # The rank of a pushed pawn gives its colour: black's stand on the fifth.
        is_black = (nibbles == 1 + PUSHED_PAWN) & (np.arange(64) >= 32)
        squares[begin : begin + _BLOCK] = pieces[nibbles] + is_black
    return squares


def castling_rights(records: Records) -> npt.NDArray[np.uint8]:
    """uint8 [n]: a sum of K 1, Q 2, k 4, q 8. In Chess960 too K is the right with a rook to the right of the king."""
    nibbles = _nibbles_by_square(records)
    rights = np.zeros(len(records), np.uint8)
    for rank, code, kings, short in ((slice(0, 8), 13, (10,), 1), (slice(56, 64), 14, (11, 15), 4)):
        row = nibbles[:, rank]
        king = np.isin(row, [1 + king for king in kings]).argmax(axis=1)
        rook, right_of = row == 1 + code, np.arange(8) > king[:, None]
        rights |= np.where((rook & right_of).any(1), short, 0).astype(np.uint8)
        rights |= np.where((rook & ~right_of).any(1), 2 * short, 0).astype(np.uint8)
    return rights


def ep_squares(records: Records) -> npt.NDArray[np.uint8]:
    """uint8 [n]: the en-passant square, 64 for none."""
    pushed = _nibbles_by_square(records) == 1 + PUSHED_PAWN
    square = np.where(pushed.any(axis=1), pushed.argmax(axis=1) ^ 8, 64)
    return square.astype(np.uint8)


def in_order(records: Records) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    """bool [n, 64]: which squares are occupied; and uint8 [n, 32]: the nibbles of the pieces by ascending square, then
    anything."""
    occupied = np.unpackbits(records[:, 7::-1], axis=1, bitorder="little").view(bool)
    nibbles = np.stack([records[:, 8:24] & 15, records[:, 8:24] >> 4], axis=2).reshape(len(records), 32)
    return occupied, nibbles


def _nibbles_by_square(records: Records) -> npt.NDArray[np.uint8]:
    """uint8 [n, 64]: 0 for an empty square, else 1 + nibble."""
    occupied, nibbles = in_order(records)
    squares = np.zeros((len(records), 64), np.uint8)
    squares[occupied] = 1 + nibbles[np.arange(32) < occupied.sum(axis=1)[:, None]]
    return squares


def game_begins(records: Records, last: tuple[int, int] | None = None) -> npt.NDArray[np.bool_]:
    """bool [n]: whether a game begins at a position. A game is a run in which the ply rises and the result, seen by
    white, stays the same. `last`: ply and white's result of the position before the first one; None: there is none."""
    ply, result = last or (1 << 20, 2)
    falls = np.diff(plies(records), prepend=ply) <= 0
    begins: npt.NDArray[np.bool_] = falls | (np.diff(white_results(records), prepend=result) != 0)
    return begins


def white_results(records: Records) -> npt.NDArray[np.int32]:
    """int32 [n]: `results` as white sees them."""
    return np.where(black_to_move(records), -results(records), results(records))


def separate_spare(records: Records, width: int) -> tuple[Records, npt.NDArray[np.uint8]]:
    """Records that hold `width` spare bytes each, as they were read, and the bytes, uint8 [n, width]."""
    plain, places = records.copy(), SPARE_PLACES[width]
    plain[:, places] = 0
    return plain, records[:, places]


def pack(
    boards: npt.NDArray[np.uint8],
    black_to_move: npt.NDArray[np.bool_],
    *,
    scores: npt.ArrayLike,
    results: npt.ArrayLike,
    plies: npt.ArrayLike = 0,
    rule50s: npt.ArrayLike = 0,
    moves: npt.ArrayLike = 0,
    castling_rights: npt.ArrayLike = 0,
    ep_squares: npt.ArrayLike = 64,
) -> Records:
    """Records uint8 [n, 32] made from arrays [n], or single numbers, such as the functions above return; `boards` is
    uint8 [n, 64]. Positions are not checked here, but when the records are read. A position that does not fit into a
    record (more than 32 pieces, a castling right without its rook, which stands on the a- or h-file, an en-passant
    square without its pawn, a number that is too large) becomes a record of zeros, which is invalid.
    """
    count = len(boards)
    squares = np.array(boards, np.uint8).reshape(count, 64)
    black = np.asarray(black_to_move, bool)
    rights = np.broadcast_to(np.asarray(castling_rights, np.uint8), count)
    ep = np.broadcast_to(np.asarray(ep_squares, np.int64), count)
    fits = (squares <= 12).all(axis=1) & ((squares > 0).sum(axis=1) <= 32)

    nibbles = squares.astype(np.int16) - 1
    for right, (square, code, rook) in _CASTLING.items():
        has = (rights & right) > 0
        fits &= ~has | (squares[:, square] == 1 + rook)
        nibbles[has, square] = code
    pushed = (ep ^ 8) & 63  # where the pawn stands; it belongs to the side that is not to move
    has_ep = ep != 64
    fits &= ~has_ep | ((ep < 64) & (squares[np.arange(count), pushed] == np.where(black, 1, 2)))
    nibbles[has_ep, pushed[has_ep]] = PUSHED_PAWN
    nibbles[(nibbles == 11) & black[:, None]] = BLACK_KING_TO_MOVE

    records = np.zeros((count, 32), np.uint8)
    occupied = (squares > 0) & fits[:, None]
    records[:, :8] = np.packbits(occupied, axis=1, bitorder="little")[:, ::-1]
    rank = occupied.cumsum(axis=1) - 1
    in_order = np.zeros((count, 32), np.uint8)
    position, square_of = np.nonzero(occupied)
    in_order[position, rank[position, square_of]] = nibbles[position, square_of]
    records[:, 8:24] = in_order[:, 0::2] | in_order[:, 1::2] << 4
    given = {"move": moves, "score": scores, "ply": plies, "result": results, "rule50": rule50s}
    for name, values in given.items():
        fits &= _put(records, name, values)
    records[~fits] = 0
    return records
