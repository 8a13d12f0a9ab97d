"""Helpers of this room's tests."""

from pathlib import Path

from nnue_trainer import config


def recipe(root: Path, *overrides: str) -> config.Recipe:
    data = {
        "model": {"kind": "layered", "inputs": ["HalfKAv2_hm"], "hidden": 32, "output_buckets": {"count": 2}},
        "data": {
            "train": [str(root / "samples" / "train.binpack")],
            "validation": [str(root / "samples" / "val.binpack")],
            "validation_positions": 600,
            "batch_size": 100,
            "shuffle_buffer": 4096,
            "threads": 1,
        },
        "loss": {"kind": "sigmoid"},
        "lambda": {"kind": "linear", "start": 1.0, "end": 0.5},
        "training": {"epochs": 3, "positions_per_epoch": 3000, "keep_last": 1, "device": "cpu"},
        "logging": {"every_steps": 1, "tensorboard": False},
    }
    return config.parse(data, overrides)
