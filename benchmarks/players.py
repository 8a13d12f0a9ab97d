"""Compares Elo between nets in the project's own player with Elo between the same nets in Stockfish.

    python benchmarks/players.py --data TRAIN --validation HELD_OUT --out FOLDER [--engine stockfish]

Trains the SFNNv5 nets of `NETS` on the CPU, plays one round robin of them in each engine, with the same openings and
nodes, and fits one Elo per net (`nnue_trainer.match.ratings`). Intervals come from a bootstrap over openings.
Before the games, `nnue verify` checks that the engine evaluates as we do, and `examples/engine/eval.cpp`, which uses
the header of the own player, is compared with the integer evaluator. Everything that is in FOLDER is not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnue_trainer.export import read_net
from nnue_trainer.match.own_player import raw_bytes
from nnue_trainer.match.ratings import rate
from nnue_trainer.match.result import Pairing
from nnue_trainer.nets.engine_header import engine_header

RUN = (
    "data.batch_size=2048", "data.shuffle_buffer=262144", "data.validation_positions=50000",
    "data.filters={quiet: true}", "lambda={kind: constant}", "training.epochs=1", "logging.tensorboard=false",
)  # fmt: skip
NETS = {
    "p00": ["training.positions_per_epoch=20480"],
    "p005": ["training.positions_per_epoch=51200"],
    "p01": ["training.positions_per_epoch=102400"],
    "p02": ["training.positions_per_epoch=204800"],
    "p04": ["training.positions_per_epoch=409600"],
    "p06": ["training.positions_per_epoch=614400"],
    "all": ["training.positions_per_epoch=307200", "training.seed=2", "data.filters={}"],
    "adamw": ["training.positions_per_epoch=307200", "training.seed=3", "optimizer={kind: adamw, lr: 1e-3}"],
    "results": ["training.positions_per_epoch=307200", "training.seed=4", "lambda={kind: constant, value: 0.5}"],
    "slow": ["training.positions_per_epoch=307200", "training.seed=5", "optimizer.lr=2e-4"],
}
CHECKED = 300  # positions
SAMPLES = 500  # of the bootstrap
SOURCES = Path(__file__).resolve().parents[1] / "examples" / "engine"
Floats = npt.NDArray[np.float64]


def nnue(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "nnue_trainer", *map(str, arguments)], check=True)


def make(name: str, data: list[str], folder: Path) -> Path:
    """The net folder/name.nnue."""
    net, run = folder / f"{name}.nnue", folder / f"run-{name}"
    if not net.exists():
        nnue("train", "--preset", "sfnnv5", *RUN, *data, *NETS[name], "--run-dir", run, "--overwrite")
        nnue("export", run, net)
    return net


def check(net: Path, engine: str, positions: str, folder: Path) -> int:
    """Exits at the first position where the engine, the header of the own player and the integer evaluator differ.
    Returns the number of positions that went through the header."""
    limit = ("--fens", positions, "--positions", CHECKED)
    nnue("verify", net, "--engine", engine, *limit)
    raw, program = folder / "check.bin", folder / "eval"
    quantized = read_net(net)
    raw.write_bytes(raw_bytes(quantized))
    raw.with_suffix(".h").write_text(engine_header(quantized.net) or "")
    if not program.exists():
        subprocess.run(
            ["make", "-s", "-C", SOURCES, "eval", f"NET={raw.resolve()}", f"OUT={program.resolve()}"], check=True
        )
    command = [sys.executable, "-m", "nnue_trainer", "eval", str(net), *map(str, limit), "--json"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    fens = "".join(f"{row['fen']}\n" for row in rows)
    ours = subprocess.run([program, raw], input=fens, check=True, capture_output=True, text=True).stdout.split()
    for row, score in zip(rows, ours, strict=True):
        if row["score"] != int(score):
            sys.exit(f"{net}: {row['fen']}: the evaluator gives {row['score']}, examples/engine/eval {score}")
    return len(rows)


def pairings_of(match: Path, names: list[str]) -> list[Pairing]:
    """The pairs of each two nets in a folder of `nnue match`, in the order of the openings."""
    found = {(a, b): Pairing(a, b) for a, b in combinations(range(len(names)), 2)}
    points: dict[int, int] = {}
    for game in json.loads((match / "match.json").read_text())["games"]:
        white, black = names.index(game["white"]), names.index(game["black"])
        won = {"1-0": 1, "1/2-1/2": 0, "0-1": -1}[game["result"]]
        points[game["pair"]] = points.get(game["pair"], 2) + (won if white < black else -won)
        if game["game"] % 2 == 0:
            found[min(white, black), max(white, black)].points.append(points[game["pair"]])
    return list(found.values())


def elo_of(pairings: list[Pairing], openings: npt.NDArray[np.int64] | None = None) -> tuple[Floats, Floats]:
    """Elo of each net with a mean of 0, and half the 95 % intervals; `openings` selects pairs of games by number."""
    if openings is not None:
        pairings = [Pairing(each.first, each.second, np.asarray(each.points)[openings].tolist()) for each in pairings]
    found = rate(pairings, range(max(each.second for each in pairings) + 1))
    assert found is not None
    elo = np.asarray(found.nets)
    return elo - elo.mean(), np.asarray(found.net_errors)


def agreement(engine: Floats, own: Floats) -> dict[str, float]:
    """Pearson's and Spearman's correlation, and the slope of Elo in the own player over Elo in the engine: the
    geometric mean of both regressions, since both sides have errors."""
    engine_rank, own_rank = (np.argsort(np.argsort(elo)) for elo in (engine, own))
    pearson = float(np.corrcoef(engine, own)[0, 1])
    return {
        "pearson": pearson,
        "spearman": float(np.corrcoef(engine_rank, own_rank)[0, 1]),
        "slope": float(own.std() / engine.std()) * (1 if pearson > 0 else -1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engine", default="stockfish", help="Stockfish 15.1 or another engine that reads SFNNv5")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of games of each two nets")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--units", type=int, default=208, help="engine units per pawn in the own player")
    parser.add_argument("-j", type=int, default=1, help="games at a time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    data = [f"data.train=[{options.data}]", f"data.validation=[{options.validation}]"]
    nets = [make(name, data, options.out) for name in NETS]
    checked = [check(net, options.engine, options.validation, options.out) for net in nets]
    fixed = ("--pairs", options.pairs, "--nodes", options.nodes, "-j", options.j)
    games = {
        "engine": ("--engine", options.engine, *fixed),
        "own": ("--option", f"UnitsPerPawn={options.units}", *fixed),
    }
    pairings = {}
    for player, arguments in games.items():
        match = options.out / (f"match-own-{options.units}" if player == "own" else "match-engine")
        nnue("match", *nets, *arguments, "-o", match)
        pairings[player] = pairings_of(match, list(NETS))
    result = compared(pairings, list(NETS))
    about = {
        "nodes": options.nodes,
        "units per pawn in the own player": options.units,
        "pairs of each two nets": options.pairs,
        "positions with equal evaluations": checked,
        "cpu": platform.processor() or platform.machine(),
        "sha256": {net.stem: hashlib.sha256(net.read_bytes()).hexdigest() for net in nets},
    }
    (options.out / "result.json").write_text(json.dumps(about | result, indent=1) + "\n")
    for name, *elo in zip(NETS, *(result["elo"][player] for player in games), strict=True):
        print(f"{name:10}" + "".join(f"{value:+9.1f} ± {error:5.1f}" for value, error in elo))
    for name, (value, low, high) in result["agreement"].items():
        print(f"{name:10}{value:9.3f} [{low:.3f}, {high:.3f}]")


def compared(pairings: dict[str, list[Pairing]], names: list[str]) -> dict[str, Any]:
    """Elo with errors by both players, and how they agree with 95 % intervals: openings are drawn with replacement, the
    same ones for both players."""
    elo = {player: elo_of(each) for player, each in pairings.items()}
    random = np.random.default_rng(0)
    openings = min(len(each.points) for found in pairings.values() for each in found)
    samples = []
    for _ in range(SAMPLES):
        drawn = random.integers(openings, size=openings)
        samples.append(agreement(elo_of(pairings["engine"], drawn)[0], elo_of(pairings["own"], drawn)[0]))
    found = agreement(elo["engine"][0], elo["own"][0])
    quantiles = {name: np.quantile([sample[name] for sample in samples], [0.025, 0.975]).tolist() for name in found}
    return {
        "nets": names,
        "elo": {player: np.stack(each, 1).round(1).tolist() for player, each in elo.items()},
        "agreement": {name: [value, *quantiles[name]] for name, value in found.items()},
    }


if __name__ == "__main__":
    main()
