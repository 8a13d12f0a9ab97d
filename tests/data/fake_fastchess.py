"""Plays the games that a command line of fastchess requests, by a hash, and writes them as it does; for tests."""

import sys
import zlib
from pathlib import Path

from nnue_trainer import _data

words = sys.argv[1:]
names = [word.removeprefix("name=") for word in words if word.startswith("name=")]
values = dict(word.split("=", 1) for word in words if "=" in word)
rounds = int(words[words.index("-rounds") + 1])
book = Path(next(w for w in words if w.endswith(".epd")).removeprefix("file=")).read_text().splitlines()
output = Path(next(w for w in words if w.endswith(".pgn")).removeprefix("file="))
assert words[words.index("-games") + 1] == "2"
assert values["option.Hash"] == "1"
if "fails" in values.get("cmd", ""):
    print("no such engine")
    sys.exit(1)
for number in range(2 * rounds):
    fen = book[number // 2]
    game = _data.Game(fen)
    for _ in range(4):
        legal = game.legal_moves()
        game.play(legal[zlib.crc32(game.fen.encode()) % len(legal)])
    white, black = names if number % 2 == 0 else reversed(names)
    result = ("1-0", "0-1", "1/2-1/2", "1-0")[number % 4]
    ends = ("normal", "time forfeit", "adjudication", "illegal move")[number % 4]
    moves = " ".join(f"{san} {{+0.25/7 0.010s}}" for san in game.san_moves())
    with output.open("a") as pgn:
        for tag, value in (
            ("Round", number // 2 + 1), ("White", white), ("Black", black), ("Result", result), ("SetUp", "1"),
            ("FEN", fen), ("Termination", ends),
        ):  # fmt: skip
            pgn.write(f'[{tag} "{value}"]\n')
        pgn.write(f"\n{moves} {result}\n\n")
