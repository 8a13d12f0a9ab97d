#!/usr/bin/env python
"""A UCI engine that looks one move ahead with any net of this project, which is enough to find the better of two nets.

It evaluates the position after each legal move, with the integers that a real engine would use, and plays the move that
is worst for the other side. `setoption name EvalFile value NET` sets the net.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nnue_trainer.data import Game

if TYPE_CHECKING:
    from nnue_trainer.export import Evaluator

LOST = -30_000


def best_move(net: Evaluator, fen: str, moves: list[str]) -> tuple[str, int]:
    """The best move and its score for the side to move."""

    def after(move: str | None = None) -> Game:
        game = Game(fen)
        for played in (*moves, *([move] if move else [])):
            game.play(played)
        return game

    legal = after().legal_moves()
    games = [after(move) for move in legal]
    outcomes = [game.outcome() for game in games]
    scores = net.evaluate([game.fen for game in games], every_stack=False).score.tolist()
    scores = [
        LOST if outcome == "checkmate" else 0 if outcome else score
        for outcome, score in zip(outcomes, scores, strict=True)
    ]
    worst = min(range(len(legal)), key=scores.__getitem__)
    return legal[worst], -scores[worst]


def loaded(path: str) -> Evaluator:
    from nnue_trainer.export import Evaluator, read_net  # slow: the engine answers `uci` first

    return Evaluator(read_net(path), threads=1)


def main() -> None:
    net: Evaluator | None = None
    fen, moves = "", list[str]()
    for line in sys.stdin:
        words = line.split()
        match words[:1]:
            case ["uci"]:
                print("id name one ply\noption name EvalFile type string default\noption name Hash type spin\nuciok")
            case ["setoption"] if "EvalFile" in words:
                net = loaded(line.partition(" value ")[2].strip())
            case ["isready"]:
                print("readyok")
            case ["position"]:
                before, _, after = line.removeprefix("position fen ").partition(" moves ")
                fen, moves = before.strip(), after.split()
            case ["go"]:
                if net is None:
                    sys.exit("go: no net is loaded; send `setoption name EvalFile value NET` first")
                move, score = best_move(net, fen, moves)
                print(f"info depth 1 score cp {score}\nbestmove {move}")
            case ["quit"]:
                return
        sys.stdout.flush()


main()
