"""Where the games of a match start: an opening book, positions of a data file, or a few random moves.

Opening r is a function of the book and the options; it depends neither on the number of games nor on the engines.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nnue_trainer import _data
from nnue_trainer.data import fens_from_records, fields
from nnue_trainer.data.files import PositionReader
from nnue_trainer.data.generate import START, start_position
from nnue_trainer.errors import UserError, quoted

Array = npt.NDArray[Any]

_MAX_BYTES = 1 << 30  # of a book
_MAX_SAMPLED = 1 << 24  # positions that are read from a data file
_DRAWN_PLIES = (8, 40)
_DRAWN_SCORE = 300  # internal units
_BLOCK = 1 << 16


class Opening(NamedTuple):
    """A position and the moves, in UCI notation, that lead from it to the first move of an engine. `where` names it in
    messages."""

    fen: str
    moves: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True)
class OpeningOptions:
    """The openings of a match.

    `book` is an EPD, FEN or PGN file, also with .gz, or a data file from which positions are drawn; None: openings of
    `plies` random legal moves, with `chess960` from one of the 960 start positions. From each game of a PGN file, the
    first `plies` half-moves are used. `order` is that of a book, which begins at opening number `start`, from 1."""

    book: str | None = None
    order: Literal["random", "sequential"] = "random"
    seed: int = 0
    start: int = 1
    plies: int = 8
    chess960: bool = False


class Openings:
    """The openings of a match. `count`: how many are needed at most."""

    def __init__(self, options: OpeningOptions, count: int) -> None:
        self.options = options
        self._items: list[Opening | str] = []
        self.digest = ""
        """SHA-256 of the book; "" without one"""
        if options.book is None:
            return
        path = Path(options.book)
        name = path.name.removesuffix(".gz")
        if name.endswith((".pgn", ".epd", ".fen", ".txt")):
            text = _read(path)
            self.digest = hashlib.sha256(text.encode()).hexdigest()
            is_pgn = name.endswith(".pgn")
            self._items = list(pgn_games(text) if is_pgn else filter(None, map(str.strip, _lines(text))))
            self._parse: Callable[[int, str], Opening] = self._of_pgn if is_pgn else self._of_epd
            numbers = list(range(len(self._items)))
            if options.order == "random":
                random.Random(options.seed).shuffle(numbers)
            self._numbers = numbers
        else:
            self._items = list(_drawn(path, options.seed, count))
            self._numbers = list(range(len(self._items)))
            self.digest = hashlib.sha256("\n".join(str(item) for item in self._items[:64]).encode()).hexdigest()
        if not self._items:
            raise UserError(f"{path}: no openings")

    def __getitem__(self, round: int) -> Opening:
        """The opening of a round, from 0."""
        if not self._items:
            return self._of_random_moves(round)
        number = self._numbers[(round + self.options.start - 1) % len(self._numbers)]
        item = self._items[number]
        if isinstance(item, str):
            item = self._items[number] = self._parse(number, item)
        return item

    def _of_random_moves(self, round: int) -> Opening:
        rng = random.Random(f"{self.options.seed}/{round}")
        fen = START
        if self.options.chess960:
            number = rng.randrange(960)
            fen = start_position(number, number)
        while True:
            game = _data.Game(fen, self.options.chess960)
            moves: list[str] = []
            while len(moves) < self.options.plies and not game.outcome():
                moves.append(rng.choice(game.legal_moves()))
                game.play(moves[-1])
            if not game.outcome():
                return Opening(fen, tuple(moves), f"random opening {round + 1}")

    def _of_epd(self, number: int, line: str) -> Opening:
        where = f"{self.options.book}: opening {number + 1}"
        fen = _fen_of(line)
        try:
            _data.Game(fen, self.options.chess960)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        return Opening(fen, (), where)

    def _of_pgn(self, number: int, text: str) -> Opening:
        where = f"{self.options.book}: game {number + 1}"
        tag = re.search(r'^\[FEN\s+"([^"]*)"\]', text, re.MULTILINE)
        fen = tag[1] if tag else START
        try:
            game = _data.Game(fen, self.options.chess960)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        moves: list[str] = []
        for san in san_moves(text):
            if len(moves) == self.options.plies:
                break
            try:
                move = game.parse_san(san)
            except UserError:
                break
            game.play(move)
            if game.outcome():
                break
            moves.append(move)
        return Opening(fen, tuple(moves), where)


def _lines(text: str) -> Iterator[str]:
    return iter(text.replace("\r\n", "\n").split("\n"))


def _read(path: Path) -> str:
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _MAX_BYTES:
        raise UserError(f"{path}: larger than {_MAX_BYTES:,} bytes, which is the limit for an opening book")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8") from None


def _fen_of(line: str) -> str:
    """A line as `position fen` takes it: a FEN as it is; the counters of an EPD from its operations hmvc and fmvn."""
    fields = line.split()
    if len(fields) == 6 and all(field.isdigit() for field in fields[4:]):
        return line
    operations = dict(re.findall(r"\b(hmvc|fmvn)\s+(\d+)\s*;", " ".join(fields[4:])))
    if not operations and len(fields) > 4 and fields[4].isdigit():
        return " ".join(fields[:6] if len(fields) > 5 and fields[5].rstrip(";").isdigit() else fields[:5]).rstrip(";")
    return " ".join([*fields[:4], operations.get("hmvc", "0"), operations.get("fmvn", "1")])


def pgn_games(text: str) -> Iterator[str]:
    """The games of a PGN file: tags, then moves."""
    game: list[str] = []
    in_moves = False
    for line in _lines(text):
        is_tag = line.startswith("[") and re.match(r'\[\w+\s+"', line) is not None
        if is_tag and in_moves:
            yield "\n".join(game)
            game, in_moves = [], False
        in_moves |= bool(line.strip()) and not is_tag
        game.append(line)
    if any(line.strip() for line in game):
        yield "\n".join(game)


def san_moves(text: str) -> Iterator[str]:
    """The moves of the main line."""
    body = "\n".join(line for line in text.split("\n") if not re.match(r'\[\w+\s+"', line))
    body = re.sub(r"\{[^}]*\}|;[^\n]*|^%[^\n]*", " ", body, flags=re.MULTILINE)
    depth = 0
    for word in re.findall(r"[()]|[^\s()]+", body):
        if word in "()":
            depth = max(0, depth + (1 if word == "(" else -1))
            continue
        san = re.sub(r"^\d+\.*", "", word)
        if depth or not san or san.startswith("$") or word in ("1-0", "0-1", "1/2-1/2", "*") or san.startswith("."):
            continue
        yield san


def _drawn(path: Path, seed: int, count: int) -> list[Opening]:
    """Positions of a data file, drawn by seed from the first 16 million: early ones, with a score near 0, in which the
    game goes on and the side to move is not in check."""
    rng = np.random.default_rng(seed)
    keys: list[Array] = []
    chosen: list[Array] = []
    wanted = 2 * count + 64  # some are left out below
    seen = 0
    with PositionReader(path) as reader:
        for block in reader:
            key = rng.random(len(block))
            plies, scores = fields.plies(block), fields.scores(block)
            good = (plies >= _DRAWN_PLIES[0]) & (plies <= _DRAWN_PLIES[1]) & (np.abs(scores) <= _DRAWN_SCORE)
            keys.append(key[good])
            chosen.append(block[good])
            if sum(map(len, keys)) > max(4 * wanted, 1 << 18):
                keys, chosen = _smallest(keys, chosen, wanted)
            seen += len(block)
            if seen >= _MAX_SAMPLED:
                break
    keys, chosen = _smallest(keys, chosen, wanted) if keys else ([], [])
    openings: dict[str, Opening] = {}
    for fen in fens_from_records(chosen[0]) if chosen else []:
        board = " ".join(fen.split()[:4])
        if len(openings) < count and board not in openings and not _data.Game(fen).outcome():
            openings[board] = Opening(fen, (), f"{path}: {quoted(fen)}")
    if not openings:
        raise UserError(
            f"{path}: no position for an opening: expected some from ply {_DRAWN_PLIES[0]} to {_DRAWN_PLIES[1]} with a "
            f"score within ±{_DRAWN_SCORE}"
        )
    return list(openings.values())


def _smallest(keys: list[Array], rows: list[Array], count: int) -> tuple[list[Array], list[Array]]:
    """The rows with the `count` smallest keys, by key."""
    key, row = np.concatenate(keys), np.concatenate(rows)
    order = np.argsort(key, kind="stable")[:count]
    return [key[order]], [row[order]]
