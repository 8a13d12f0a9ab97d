"""Runs of a few steps on positions of the bundled sample: their data, their recipe and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from nnue_trainer.data import RecordLoader
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.files import checkpoint


def split_sample(project_root: Path, folder: Path, training: int, held_out: int) -> Path:
    """`folder`, with train.binpack and val.binpack: that many positions of the sample, and others."""
    sample = project_root / "samples" / "train.binpack"
    records = next(iter(RecordLoader([sample], training + held_out, seed=5))).numpy().copy()
    write_binpack(folder / "train.binpack", records[:training], join_chains=False)
    write_binpack(folder / "val.binpack", records[training:], join_chains=False)
    return folder


def in_chunks(project_root: Path, folder: Path, chunks: int, positions: int) -> list[Path]:
    """That many files in `folder`, each of one chunk with that many other positions of the sample."""
    sample = project_root / "samples" / "train.binpack"
    records = next(iter(RecordLoader([sample], chunks * positions, seed=6))).numpy().copy()
    files = [folder / f"chunk-{number:02}.binpack" for number in range(chunks)]
    for file, part in zip(files, records.reshape(chunks, positions, -1), strict=True):
        write_binpack(file, part, join_chains=False)
    return files


def written(path: Path, data: Path, /, **sections: dict[str, Any]) -> Path:
    """A recipe of three epochs of 4 steps, at `path`. Fields of `sections` take the place of its own; a section with a
    `kind` takes the place of the whole section."""
    content: dict[str, dict[str, Any]] = {
        "model": {"kind": "simple", "hidden": 16},
        "data": {
            "train": [str(data / "train.binpack")], "validation": [str(data / "val.binpack")],
            "batch_size": 250, "shuffle_buffer": 1000, "threads": 1,
        },
        "loss": {"kind": "sigmoid"},
        "optimizer": {"lr": 0.005},
        "training": {"epochs": 3, "positions_per_epoch": 1000, "device": "cpu", "keep_last": 9},
        "logging": {"every_steps": 2, "tensorboard": False},
    }  # fmt: skip
    for name, section in sections.items():
        content[name] = section if "kind" in section else content.get(name, {}) | section
    path.write_text(yaml.safe_dump(content))
    return path


def last(folder: Path) -> checkpoint.Checkpoint:
    return checkpoint.load(folder / "checkpoints" / "last.safetensors")
