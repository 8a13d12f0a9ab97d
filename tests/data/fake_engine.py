"""A UCI engine that plays a legal move chosen by hashing the game, for tests. argv[1]: a way to misbehave."""

import sys
import time
import zlib

from nnue_trainer import _data

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"

position = ""
searches = 0
for line in sys.stdin:
    words = line.split()
    if words == ["uci"]:
        print("id name Fake 1\noption name Hash type spin default 16 min 1 max 64\nuciok", flush=True)
    elif words == ["isready"]:
        print("readyok", flush=True)
    elif words[:1] == ["position"]:
        position = line
    elif words[:1] == ["go"]:
        searches += 1
        if MODE == "dies" and searches > 40:
            sys.exit(3)
        if MODE == "hangs":
            time.sleep(60)
        before, _, after = position.removeprefix("position fen ").partition(" moves ")
        game = _data.Game(before.strip())
        for move in after.split():
            game.play(move)
        moves = game.legal_moves()
        number = zlib.crc32(position.encode())
        move = "e2e5" if MODE == "illegal" else moves[number % len(moves)]
        if MODE != "silent":
            print(f"info depth 1 score cp {number % 2001 - 1000} nodes 1 pv {move}")
            print("info depth 2 score cp 9999 lowerbound nodes 2")
        print(f"bestmove {move}", flush=True)
