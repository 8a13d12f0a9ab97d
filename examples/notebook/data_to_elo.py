# %% [markdown]
# # From data to Elo
# Splits a file of positions, trains a small net on it, plots its losses, and measures its Elo against the net of its
# first epoch. Most editors run `data_to_elo.py` cell by cell (`# %%`), and `python data_to_elo.py` runs all of it in a
# minute. `data_to_elo.ipynb` has the same cells for Jupyter and Colab.
#
# Set the environment variable `DATA` to your file, or edit it below: any format that `nnue data` reads (binpack,
# bulletformat, viriformat, plain, PGN, …). Default: the sample of this project.

# %%
import json
import os
import subprocess
import sys
from pathlib import Path

from nnue_trainer import config
from nnue_trainer.analysis import write_report
from nnue_trainer.match import Adjudication, Limit, MatchOptions, OpeningOptions, play_match, players_of, summary
from nnue_trainer.training import train

HERE = Path(globals().get("__file__", "data_to_elo.py")).resolve().parent  # Jupyter works in this folder
DATA = Path(os.environ.get("DATA", HERE.parents[1] / "samples" / "train.binpack"))
EPOCHS = int(os.environ.get("EPOCHS", 8))
POSITIONS = int(os.environ.get("POSITIONS", 100_000))  # per epoch
PAIRS = int(os.environ.get("PAIRS", 20))
MOVES = int(os.environ.get("MOVES", 0))  # longer games are draws; 0: no limit
folder = Path("notebook")

# %% [markdown]
# ## Data
# Validation positions come from other games than training positions: `nnue data split` distributes whole games.

# %%
folder.mkdir(exist_ok=True)
train_file, validation_file = folder / "train.binpack", folder / "validation.binpack"
outputs: list[str | Path] = ["--train", train_file, "--validation", validation_file, "--share", "0.1", "--overwrite"]
subprocess.run([sys.executable, "-m", "nnue_trainer", "data", "split", DATA, *outputs], check=True)

# %% [markdown]
# ## Train
# A recipe is plain data; `config.parse` fills in the defaults and checks it.

# %%
recipe = config.parse(
    {
        "model": {"kind": "simple", "hidden": 64},
        "data": {
            "train": [str(train_file)],
            "validation": [str(validation_file)],
            "validation_positions": 10_000,
            "batch_size": 1024,
            "shuffle_buffer": 100_000,
        },
        "loss": {"kind": "sigmoid"},
        "optimizer": {"kind": "adamw", "lr": 2e-3},
        "training": {"epochs": EPOCHS, "positions_per_epoch": POSITIONS, "device": "cpu", "keep_every": 1},
        "logging": {"every_steps": 5, "tensorboard": False},
    }
)
run = train(recipe, folder / "run", overwrite=True)
print(f"{run.step} steps, validation loss {run.validation_loss:.6f}")

# %% [markdown]
# ## Plot
# `metrics.jsonl` has one line of JSON per record, which any library can plot. The page of `nnue report` has more plots.

# %%
records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
training = [(r["positions"], r["loss"]) for r in records if r["event"] == "train"]
validation = [(r["epoch"], r["loss"]) for r in records if r["event"] == "validation"]

import matplotlib.pyplot as plt  # noqa: E402

if "ipykernel" not in sys.modules:  # a notebook shows its figures
    plt.switch_backend("agg")
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(*zip(*training, strict=True))
left.set(xlabel="positions", ylabel="training loss")
right.plot(*zip(*validation, strict=True), "o-")
right.set(xlabel="epoch", ylabel="validation loss")
figure.savefig(folder / "loss.png")
print(f"{folder}/loss.png, {write_report([folder / 'run'], folder / 'report.html', overwrite=True)}")

# %% [markdown]
# ## Elo
# The last net plays against the net of the first epoch, both in a small engine that looks one move ahead.

# %%
engine = folder / "one_ply"
engine.write_text(f"#!/bin/sh\nexec {sys.executable} {HERE / 'one_ply_engine.py'}\n")
engine.chmod(0o755)
checkpoints = folder / "run/checkpoints"
players, identity = players_of(
    [str(checkpoints / "last.safetensors"), str(checkpoints / "epoch-0001.safetensors")],
    [str(engine.resolve())] * 2,
    [{}, {}],
    folder / "nets",
)
options = MatchOptions(
    Limit(nodes=1),
    pairs=PAIRS,
    openings=OpeningOptions(seed=1, plies=6),
    adjudication=Adjudication(max_moves=MOVES),
    concurrency=min(2, PAIRS),
)
result = play_match(players, options, folder / "match", identity=identity)
print("\n".join(summary(result)))
