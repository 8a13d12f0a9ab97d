"""Games as PGN, with the evaluations of the engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from nnue_trainer import _data
from nnue_trainer.data.generate import START
from nnue_trainer.match.play import PlayedGame

RESULTS = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}
_TERMINATIONS = {
    "time": "time forfeit",
    "illegal move": "rules infraction",
    "resignation": "adjudication",
    "agreed draw": "adjudication",
    "maximum length": "adjudication",
}


def game_text(game: PlayedGame, names: Sequence[str], *, chess960: bool = False) -> str:
    """One game. Scores are pawns from the mover's view and the depth, "+0.23/12", or moves to mate, "+M5/20"."""
    board = _data.Game(game.fen, chess960)
    first = board.ply
    for move in (*game.opening, *game.moves):
        board.play(move)
    termination = _TERMINATIONS.get(game.reason, "abandoned" if game.fault else "normal")
    tags = [
        ("Event", "nnue match"),
        ("Round", f"{game.number // 2 + 1}.{game.number % 2 + 1}"),
        ("White", names[game.white]),
        ("Black", names[game.black]),
        ("Result", RESULTS[game.result]),
    ]
    if chess960 or game.fen != START:
        tags += [("SetUp", "1"), ("FEN", game.fen)]
    if chess960:
        tags.append(("Variant", "Chess960"))
    tags += [("PlyCount", str(len(game.opening) + len(game.moves))), ("Termination", termination)]
    comments = ["book"] * len(game.opening) + [score_text(score) for score in game.scores]
    words: list[str] = []
    for number, (san, comment) in enumerate(zip(board.san_moves(), comments, strict=True)):
        ply = first + number
        if ply % 2 == 0 or not words:
            words.append(f"{ply // 2 + 1}{'.' if ply % 2 == 0 else '...'}")
        words.append(san)
        if comment:
            words.append(f"{{{comment}}}")
    # Whose fault ended the game; no brace may end the comment.
    culprit = names[game.loser].replace("}", ")") + ": " if game.fault else ""
    words += [f"{{{culprit}{game.reason}}}", RESULTS[game.result]]
    head = "\n".join(f'[{name} "{_escaped(value)}"]' for name, value in tags)
    return f"{head}\n\n{_filled(' '.join(words).split())}\n\n"


def _filled(words: Iterable[str]) -> str:
    """Words in lines of up to 100 characters. textwrap does the same and takes as long as the rest of a game."""
    lines: list[str] = []
    line = ""
    for word in words:
        if line and len(line) + len(word) < 100:
            line += " " + word
        else:
            if line:
                lines.append(line)
            line = word
    return "\n".join([*lines, line])


@lru_cache(1 << 14)
def score_text(score: str) -> str:
    """The text of a score in a comment: "+0.23/12" for "cp23/12", "-M3/9" for "mate-3/9", nothing without one."""
    kind = "mate" if score.startswith("mate") else "cp"
    number, _, depth = score.removeprefix(kind).partition("/")
    if not depth:
        return ""
    value = int(number)
    text = f"{value / 100:+.2f}" if kind == "cp" else f"{'+' if value > 0 else '-'}M{abs(value)}"
    return f"{text}/{depth}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
