"""Where the games of a match start: an opening book, positions of a data file, or a few random moves.

Opening r is a function of the book and the options; it depends neither on the number of games nor on the engines.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from nnue_trainer import _data
from nnue_trainer.data.books import Book, Opening
from nnue_trainer.data.generate import START, start_position
from nnue_trainer.errors import UserError, quoted


@dataclass(frozen=True)
class OpeningOptions:
    """The openings of a match.

    `book` is a file of positions (FEN or EPD) or games (PGN), also compressed, or a data file from which positions are
    drawn (`nnue_trainer.data.books`); None: openings of
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
        self.digest = ""
        """SHA-256 of the book; "" without one"""
        if options.book is None:
            return
        self._book = Book(options.book, plies=options.plies, chess960=options.chess960, seed=options.seed, count=count)
        self.digest = self._book.content_digest()
        self._numbers = list(range(len(self._book)))
        if options.order == "random" and not self._book.is_drawn:
            random.Random(options.seed).shuffle(self._numbers)
        for round in range(min(count, len(self._numbers))):
            opening = self[round]
            if not opening.moves and (end := _data.Game(opening.fen, options.chess960).outcome()):
                raise UserError(f"{opening.where}: no game can begin with {quoted(opening.fen)}: {end}")

    def __getitem__(self, round: int) -> Opening:
        """The opening of a round, from 0."""
        if self.options.book is None:
            return self._of_random_moves(round)
        return self._book[self._numbers[(round + self.options.start - 1) % len(self._numbers)]]

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
