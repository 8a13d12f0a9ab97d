"""Positions that users pass as a list or a book: games in PGN, lines of FEN or EPD, or a data file, also compressed.

The content decides, not the name of the file. Every command reads such files here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.base.arrays import Records
from nnue_trainer.data import fields
from nnue_trainer.data.files import PositionReader, StrPath, content_of, open_regular, read_games
from nnue_trainer.errors import UserError, quoted

Array = npt.NDArray[Any]

LISTS = ("epd", "text")
"""The formats that are lists of positions."""

_MOST = 1 << 25  # openings of a book: 1 GiB of records
_MAX_SAMPLED = 1 << 24  # positions that are read from a data file
_DRAWN_PLIES = (8, 40)
_DRAWN_SCORE = 300  # internal units
_CHUNK = 4096
_ILLEGAL = "the side that has just moved is in check"  # as the validator names it


class Opening(NamedTuple):
    """A position and the moves, in UCI notation, that lead from it to the first move of an engine. `where` names it in
    messages."""

    fen: str
    moves: tuple[str, ...] = ()
    where: str = ""


def read_positions(path: StrPath, *, games: bool = False) -> Iterator[str]:
    """The positions of a list or a data file, as FENs. UserError, naming the line, for one that is not a position, and
    for games in PGN, unless `games` is set: then their positions with evaluations are read."""
    with PositionReader(path, settings={"results": "optional"}) as reader:
        if reader.format == "pgn" and not games:
            raise UserError(
                f"{path}: games in PGN, expected positions: lines of FEN or EPD, or a data file; "
                f"`nnue data convert {path} positions.plain` writes those with evaluations"
            )
        for records in reader:
            for begin in range(0, len(records), _CHUNK):
                yield from _data.fens_from_records(records[begin : begin + _CHUNK])


class Book:
    """The openings of a file, in its order: `plies` half-moves of each game in PGN, or every position of a list. From a
    data file, `count` positions are drawn by `seed`.

    UserError, naming file and line, for an opening that cannot be read, for one in which the king could be taken, for
    one with castling rights of Chess960 unless `chess960` is set, and for a file without openings.
    """

    def __init__(self, path: StrPath, *, plies: int, chess960: bool, seed: int, count: int) -> None:
        self.path, self._chess960 = Path(path), chess960
        self.is_drawn = False
        """whether the openings are those that `seed` and `count` select"""
        self._games: list[Opening] = []
        self._records: Records = np.empty((0, 32), np.uint8)
        with PositionReader(path, settings={"results": "optional"}) as reader:
            format = reader.format
            if format in LISTS:
                self._records = _all(reader)
        if format == "pgn":
            self._games = list(_openings(self.path, plies, chess960))
        elif format not in LISTS:
            self.is_drawn = True
            self._records = _drawn(self.path, seed, count)
        if not len(self):
            raise UserError(f"{path}: no openings")
        records = _data.records_from_fens(self.fens()) if self._games else self._records.copy()
        self._check_kings(records)
        if not chess960:
            self._check_castling(records)

    def __len__(self) -> int:
        return len(self._games) or len(self._records)

    def __getitem__(self, number: int) -> Opening:
        if self._games:
            return self._games[number]
        (fen,) = _data.fens_from_records(self._records[number : number + 1])
        fen = _data.Game(fen, self._chess960).fen  # the castling rights as files of rooks in Chess960
        where = f"{self.path}: {quoted(fen)}" if self.is_drawn else f"{self.path}: opening {number + 1}"
        return Opening(fen, (), where)

    @property
    def has_moves(self) -> bool:
        """Whether the openings are games."""
        return bool(self._games)

    def fens(self) -> list[str]:
        """The positions that the openings start from."""
        return [game.fen for game in self._games] or _data.fens_from_records(self._records)

    def content_digest(self) -> str:
        """SHA-256 of the file, decompressed; of a data file, of the first openings."""
        digest = hashlib.sha256()
        if self.is_drawn:
            digest.update("\n".join(str(self[number]) for number in range(min(len(self), 64))).encode())
            return digest.hexdigest()
        with open_regular(self.path) as file:
            source = content_of(self.path, file)
            block = memoryview(bytearray(1 << 20))
            while size := source.readinto(block):
                digest.update(block[:size])
        return digest.hexdigest()

    def _check_kings(self, records: Records) -> None:
        validator = _data.Validator()
        validator.add(records)
        problems = {name: (count, first) for name, count, first in validator.problems}
        count, first = problems[_ILLEGAL]
        if count:
            opening = self[first]
            raise UserError(f"{opening.where}: {_ILLEGAL} in {quoted(opening.fen)}")

    def _check_castling(self, records: Records) -> None:
        found, _ = _data.drop_chess960(records)
        if found.any():
            opening = self[int(np.argmax(found))]
            raise UserError(
                f"{opening.where}: castling rights of Chess960 in {quoted(opening.fen)}: play Chess960 with --chess960"
            )


def _all(reader: PositionReader) -> Records:
    blocks: list[Records] = []
    for records in reader:
        blocks.append(records)
        if sum(map(len, blocks)) > _MOST:
            raise UserError(f"{reader.path}: more than {_MOST:,} openings, which is the limit for a book")
    return np.concatenate([np.empty((0, 32), np.uint8), *blocks])


def _openings(path: Path, plies: int, chess960: bool) -> Iterator[Opening]:
    for number, game in enumerate(read_games(path, chess960=chess960), 1):
        if game.problem and len(game.moves) < plies:
            raise UserError(f"{path}: game {number}: {game.problem}")
        where = f"{path}: game {number}"
        if _data.is_other_variant(variant := game.tags.get("variant", "")):
            raise UserError(f"{where}: the variant {quoted(variant.lower())}, expected chess or Chess960")
        yield Opening(game.fen, _until_the_end(game.fen, game.moves[:plies], chess960), where)


def _until_the_end(fen: str, moves: Sequence[str], chess960: bool) -> tuple[str, ...]:
    """The moves after which a game goes on."""
    board = _data.Game(fen, chess960)
    for number, move in enumerate(moves):
        board.play(move)
        if board.outcome():
            return tuple(moves[:number])
    return tuple(moves)


def _drawn(path: Path, seed: int, count: int) -> Records:
    """Positions of a data file, drawn by seed from the first 16 million: early ones, with a score near 0, in which the
    game goes on."""
    rng = np.random.default_rng(seed)
    keys: list[Array] = []
    chosen: list[Array] = []
    wanted = 2 * count + 64  # some are left out below
    seen = last_ply = 0
    with PositionReader(path) as reader:
        for block in reader:
            key = rng.random(len(block))
            plies, scores = fields.plies(block), fields.scores(block)
            last_ply = max(last_ply, int(plies.max(initial=0)))
            good = (plies >= _DRAWN_PLIES[0]) & (plies <= _DRAWN_PLIES[1]) & (np.abs(scores) <= _DRAWN_SCORE)
            keys.append(key[good])
            chosen.append(block[good])
            if sum(map(len, keys)) > max(4 * wanted, 1 << 18):
                keys, chosen = _smallest(keys, chosen, wanted)
            seen += len(block)
            if seen >= _MAX_SAMPLED:
                break
    keys, chosen = _smallest(keys, chosen, wanted) if keys else ([], [])
    kept: dict[str, int] = {}
    for number, fen in enumerate(_data.fens_from_records(chosen[0]) if chosen else []):
        board = " ".join(fen.split()[:4])
        if len(kept) < count and board not in kept and not _data.Game(fen).outcome():
            kept[board] = number
    if not seen:
        raise UserError(f"{path}: no openings")
    if not kept and last_ply <= 1:
        raise UserError(
            f"{path}: no position has a ply, by which openings are drawn from a data file ({reader.format}): give a "
            "file in a format with plies, or a list of positions (`nnue data convert FILE openings.txt` makes one)"
        )
    if not kept:
        raise UserError(
            f"{path}: no position for an opening: expected some from ply {_DRAWN_PLIES[0]} to {_DRAWN_PLIES[1]} with a "
            f"score within ±{_DRAWN_SCORE}"
        )
    return np.ascontiguousarray(chosen[0][list(kept.values())])


def _smallest(keys: list[Array], rows: list[Array], count: int) -> tuple[list[Array], list[Array]]:
    """The rows with the `count` smallest keys, by key."""
    key, row = np.concatenate(keys), np.concatenate(rows)
    order = np.argsort(key, kind="stable")[:count]
    return [key[order]], [row[order]]
