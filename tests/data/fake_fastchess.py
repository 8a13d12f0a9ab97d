"""Stands in for fastchess: as strict about its command line, plays games by a hash, and writes them as it does."""

import os
import sys
import zlib
from pathlib import Path

from nnue_trainer import _data

OPTIONS = {
    "-engine": {"cmd", "name"}, "-each": {"tc", "st", "timemargin", "nodes", "depth"}, "-games": None, "-repeat": None,
    "-rounds": None, "-recover": None, "-concurrency": None, "-force-concurrency": None, "-config": {"outname"},
    "-openings": {"file", "format", "order"}, "-resign": {"movecount", "score", "twosided"},
    "-draw": {"movenumber", "movecount", "score"}, "-maxmoves": None, "-variant": None,
    "-sprt": {"elo0", "elo1", "alpha", "beta", "model"}, "-pgnout": {"file"},
}  # fmt: skip
given: list[tuple[str, dict[str, str]]] = []
for word in sys.argv[1:]:
    if word.startswith("-"):
        assert word in OPTIONS, f"Unrecognized option: {word}"
        given.append((word, {}))
    else:
        name, values = given[-1]
        key, equals, value = word.partition("=")
        allowed = OPTIONS[name]
        assert (not equals) if allowed is None else key in allowed or (name == "-engine" and key.startswith("option."))
        values[key] = value
options = dict(given)
engines = [values for name, values in given if name == "-engine"]
assert all(Path(engine["cmd"]).exists() for engine in engines)
assert engines[0]["name"] != engines[1]["name"]
assert engines[0]["option.Hash"] == "1"
assert "2" in options["-games"]
if int(next(iter(options["-concurrency"]))) > (os.cpu_count() or 1) and "-force-concurrency" not in options:
    sys.exit("Error: Concurrency exceeds number of CPUs. Use -force-concurrency to override.")
assert ("st" in options["-each"]) + ("tc" in options["-each"]) == 1
assert "nodes" in options["-each"] or "timemargin" in options["-each"]
Path(options.get("-config", {}).get("outname", "config.json")).write_text("{}")
rounds = int(next(iter(options["-rounds"])))
book = Path(options["-openings"]["file"]).read_text().splitlines()
output = Path(options["-pgnout"]["file"])
names = [engine["name"] for engine in engines]
for number in range(2 * rounds):
    fen = book[number // 2]
    game = _data.Game(fen)
    for _ in range(4):
        legal = game.legal_moves()
        game.play(legal[zlib.crc32(game.fen.encode()) % len(legal)])
    white, black = names if number % 2 == 0 else reversed(names)
    result = ("1-0", "0-1", "1/2-1/2", "1-0")[number % 4]
    ends = ("normal", "time forfeit", "adjudication", "illegal move")[number % 4]
    scores = ("+0.25/7", "0.00/7", "-M4/7", "ERR/0")
    moves = " ".join(f"{san} {{{score} 0.010s}}" for san, score in zip(game.san_moves(), scores, strict=True))
    if ends == "illegal move":
        moves += " a1h8 {+0.10/3 0.010s, Black makes an illegal move}"
    with output.open("a") as pgn:
        for tag, value in (
            ("Round", str(number // 2 + 1)), ("White", white), ("Black", black), ("Result", result), ("SetUp", "1"),
            ("FEN", fen), ("Termination", ends),
        ):  # fmt: skip
            pgn.write(f'[{tag} "{value}"]\n')
        pgn.write(f"\n{moves} {result}\n\n")
