"""Plays a net against a copy of it with a few zeroed weights, and checks the verdict of the test of `nnue match`.

    python tools/sprt_of_zeroed.py [--engine stockfish] [--share 0.001] [match options]

Takes the engine's own net (`export_net`), zeroes this share of every parameter at random, and plays the two nets with
the match options, by default `--nodes 300 --sprt 0,100 --pairs 400`. The zeroed net is weaker, so the test must reject
it. The exit status is 0 if it does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from nnue_trainer.files import checkpoint

OPTIONS = ["--nodes", "300", "--sprt", "0,100", "--pairs", "400", "--hash", "1"]


def nnue(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "nnue_trainer", *map(str, arguments)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", default="stockfish", help="UCI engine with export_net. Default: stockfish.")
    parser.add_argument("--share", type=float, default=0.001, help="Share of the weights to zero. Default: 0.001.")
    parser.add_argument("--output", type=Path, help="Folder to keep. Default: a temporary one.")
    known, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = known.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        whole, zeroed = folder / "whole.nnue", folder / "zeroed.nnue"
        subprocess.run([known.engine], input=f"export_net {whole}\nquit\n", text=True, check=True, capture_output=True)
        nnue("import", whole, folder / "whole.safetensors")
        saved = checkpoint.load(folder / "whole.safetensors")
        generator, count = torch.Generator().manual_seed(1), 0
        for tensor in saved.tensors["model"].values():
            chosen = torch.rand(tensor.shape, generator=generator) < known.share
            tensor[chosen] = 0
            count += int(chosen.sum())
        checkpoint.save(folder / "zeroed.safetensors", saved)
        nnue("export", folder / "zeroed.safetensors", zeroed)
        print(f"{count:,} weights were set to zero")
        nnue("match", zeroed, whole, "--engine", known.engine, "-o", folder / "match", *OPTIONS, *options)
        found = json.loads((folder / "match" / "match.json").read_text())["pairings"][0]
    print(f"pairs {found['pairs']}, LLR {found['sprt']['llr']:.2f}, verdict {found['sprt']['verdict']}")
    sys.exit(found["sprt"]["verdict"] != "rejected")


if __name__ == "__main__":
    main()
