"""A UCI engine that plays a legal move chosen by hashing the game, for tests.

argv[1] is a way to misbehave, argv[2] the number of the search from which on it does so, 1 if it is not given.
"""

import os
import sys
import time
import zlib
from pathlib import Path

from nnue_trainer import _data

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
FROM = int(sys.argv[2]) if len(sys.argv) > 2 else 1
NAME = "Fake J\u00f6rg" if MODE == "latin-1" else "Fake 1"
OUT = sys.stdout.buffer


def say(text: str) -> None:
    OUT.write(text.encode("latin-1" if MODE == "latin-1" else "utf-8") + b"\n")
    OUT.flush()


def for_ever(data: bytes) -> None:
    while True:
        OUT.write(data)
        OUT.flush()


def hang() -> None:
    say("info string hangs")
    time.sleep(600)


def misbehave(number: int, move: str) -> str | None:
    """Does what MODE selects at a search. Returns what to print instead of a score and a move, None for nothing."""
    score = f"info depth 1 score cp {number % 2001 - 1000} nodes 1 pv {move}\n"
    match MODE:
        case "dies":
            sys.stderr.write("\x1b[31mout of cheese\n")
            sys.stderr.flush()
            os._exit(3)
        case "hangs":
            hang()
        case "late":
            time.sleep(0.3)
        case "endless-lines":
            for_ever(b"info string still thinking\n" * 1000)
        case "endless-drip":
            while True:
                say("info string still thinking")
                time.sleep(0.02)
        case "endless-line":
            for_ever(b"x" * (1 << 16))
        case "garbage":
            OUT.write(os.urandom(3000).replace(b"\n", b"") + b"\n")
        case "chatty-stderr":
            os.write(2, b"warning: a line of noise\n" * 40_000)  # a megabyte: far more than a pipe holds
        case "deaf":
            os.close(0)  # reads nothing more
            hang()
        case "no-move":
            return score + "bestmove"
        case "none-move":
            return score + "bestmove (none)"
        case "control-move":
            return score + "bestmove \x1b[2Je2e4"
        case "whims":  # which depend on the position only
            match number % 30:
                case 0:
                    os._exit(3)
                case 1 | 2:
                    hang()
                case 3:
                    return score + "bestmove a1a1"
        case "illegal":
            return score + "bestmove e2e5"
        case "silent":
            return f"bestmove {move}"
        case "some-silent":  # a move only, or a bound, for a third of the positions each
            return ("", "info depth 1 score cp 9 upperbound nodes 1\n", score)[number % 3] + f"bestmove {move}"
        case "string-score":
            return f"info string the score is fine\n{score}info string score\nbestmove {move}"
        case "multipv":
            return f"{score[:-1]} multipv 1\ninfo depth 1 multipv 2 score cp -9999 pv {move}\nbestmove {move}"
        case "twice":
            return f"{score}bestmove {move}\n{score}bestmove {move}"
        case _ if MODE.startswith("slow="):
            time.sleep(float(MODE.removeprefix("slow=")))
        case _ if MODE.startswith("score="):
            return f"info depth 1 score {MODE.removeprefix('score=').replace('_', ' ')}\nbestmove {move}"
    return None


def main() -> None:
    position = ""
    searches = 0
    for line in sys.stdin:
        words = line.split()
        if words == ["uci"]:
            if MODE == "no-uciok":
                for_ever(b"Welcome\n" * 1000)
            say(f"id name {NAME}\noption name Hash type spin default 16 min 1 max 64")
            say("option name UCI_Chess960 type check default false\nuciok" if MODE == "chess960" else "uciok")
        elif words == ["isready"]:
            say("readyok")
        elif words[:1] == ["position"]:
            position = line
        elif words[:1] == ["go"]:
            searches += 1
            if MODE == "logs":
                with Path("searches.log").open("a", encoding="utf-8") as log:
                    log.write(line)
            before, _, after = position.removeprefix("position fen ").partition(" moves ")
            game = _data.Game(before.strip(), MODE == "chess960")
            for move in after.split():
                game.play(move)
            moves = game.legal_moves()
            number = zlib.crc32(position.encode())
            move = moves[number % len(moves)]
            answer = misbehave(number, move) if searches >= FROM else None
            if answer is None:
                answer = f"info depth 1 score cp {number % 2001 - 1000} nodes 1 pv {move}\n"
                answer += f"info depth 2 score cp 9999 lowerbound nodes 2\nbestmove {move}"
            say(answer)


main()
