"""A UCI engine that prints what a release of Stockfish prints for `eval`, from a file of values, for tests.

argv: the release's `id name`, a JSON file {FEN: `found` of `stockfish_texts`}, and perhaps a way to go wrong.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from stockfish_texts import evaluation, nets_of

NAME, VALUES = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
MODE = sys.argv[3] if len(sys.argv) > 3 else ""
RELEASE = NAME.split()[1]


def say(text: str) -> None:
    print(text, flush=True)


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
        say("\n".join(nets_of(RELEASE, "other.nnue" if MODE == "other net" else net)))
        found = VALUES[position]
        if MODE == "fewer buckets":
            found["cells"].pop()
        if MODE != "silent" or found["check"]:
            say("\n".join(evaluation(RELEASE, found, black_to_move=position.split()[1] == "b")))
