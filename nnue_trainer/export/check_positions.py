"""Positions for comparing a net with an engine: random games, both sides to move, no position in check. The buckets by
number of pieces alternate, so that the first few positions cover all of them (check_positions.epd). Random games make
more if needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from nnue_trainer import _data

_START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
_LONGEST_GAME = 200  # plies

CHECK_POSITIONS = tuple(Path(__file__).with_suffix(".epd").read_text(encoding="ascii").splitlines())


def random_positions(seed: int) -> Iterator[str]:
    """Positions of random games, as a function of the seed: every few plies, so that all numbers of pieces occur. Some
    are in check."""
    rng = random.Random(seed)
    while True:
        game = _data.Game(_START)
        for ply in range(_LONGEST_GAME):
            if game.outcome():
                break
            if ply and rng.random() < 0.2:
                yield game.fen
            game.play(rng.choice(game.legal_moves()))
