"""A UCI engine that prints what a release of Stockfish prints for `eval`, from a file of raw values, for tests.

argv: the release's `id name`, a JSON file {FEN: {"cells": [[…] per bucket], "used": N, "value": "…", "check": bool}},
and perhaps a way to go wrong.
"""

import json
import sys

NAME, VALUES = sys.argv[1], json.loads(open(sys.argv[2], encoding="utf-8").read())  # noqa: PTH123, SIM115
MODE = sys.argv[3] if len(sys.argv) > 3 else ""


def say(text: str) -> None:
    print(text, flush=True)


def table(columns: list[str], rows: list[list[str]], used: int) -> None:
    rule = "+------------" * (1 + len(columns)) + "+"
    say("\n".join([rule, "".join(f"| {name:^10} " for name in ["Bucket", *columns]) + "|", rule]))
    for bucket, row in enumerate(rows):
        cells = "".join(f"|  {text[0] if text[0] in '+-' else ' '} {text.lstrip('+-'):>5}   " for text in row)
        say(f"|  {bucket}         {cells}|" + (" <-- this bucket is used" if bucket == used else ""))
    say(rule)


net, position = "", ""
for line in sys.stdin:
    words = line.split()
    if words == ["uci"]:
        say(f"id name {NAME}\noption name EvalFile type string default x\nuciok")
    elif words == ["isready"]:
        say("readyok")
    elif words[:1] == ["setoption"]:
        net = line.partition(" value ")[2].strip()
    elif words[:1] == ["position"]:
        position = line.strip().removeprefix("position fen ")
    elif words == ["eval"]:
        if MODE == "refuses":
            say("info string ERROR: The network file x was not loaded successfully.")
            sys.exit(1)
        found = VALUES[position]
        detail = (
            " enabled" if NAME.startswith(("Stockfish 15", "Stockfish 16")) else " (133MiB, (22528, 3072, 15, 32, 1))"
        )
        say(f"info string NNUE evaluation using {'other.nnue' if MODE == 'other net' else net}{detail}\n")
        if NAME.startswith(("Stockfish 16.1", "Stockfish 17", "Stockfish 18")):  # they have a second, small net
            say("info string NNUE evaluation using nn-37f18f62d772.nnue (6MiB, (22528, 128, 15, 32, 1))")
        if found["check"]:
            say("Final evaluation: none (in check)")
            continue
        if MODE == "silent":
            continue
        if not found["cells"]:  # 12 and 13 have no table
            say(f"\nNNUE evaluation:      {found['value']}\nFinal evaluation:     +0.25 (white side)\n")
            continue
        say(" NNUE network contributions (White to move)")
        rows = found["cells"][:-1] if MODE == "fewer buckets" else found["cells"]
        table(["Material", "Positional", "Total"] if len(rows[0]) == 3 else ["Evaluation"], rows, found["used"])
        say(f"\nNNUE evaluation        {found['value']}\nFinal evaluation       +0.25 (white side) [...]\n")
