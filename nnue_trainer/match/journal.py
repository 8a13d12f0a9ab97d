"""The games of a match that are over, safe against crashes: `nnue_trainer/data/journal.py` with games as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from nnue_trainer.data.journal import Journal
from nnue_trainer.errors import UserError
from nnue_trainer.match.play import PlayedGame

_BLOCK = 32  # bytes; an entry of the journal is a number of them


class MatchJournal(Journal):
    """Games in the order in which they ended."""

    made_by = "nnue match"

    def add(self, game: PlayedGame) -> None:
        data = vars(game) | {name: " ".join(getattr(game, name)) for name in ("opening", "moves", "scores")}
        text = json.dumps(data, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _BLOCK)
        self.append(np.frombuffer(text, np.uint8).reshape(-1, _BLOCK))

    def played(self) -> Iterator[PlayedGame]:
        for blocks in self.read():
            try:
                data = json.loads(blocks.tobytes())
                texts = {name: tuple(data[name].split()) for name in ("opening", "moves", "scores")}
                yield PlayedGame(**(data | texts))
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{self.path}: holds something other than games: {error}") from None
