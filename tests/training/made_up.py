"""A small net and a stream of made-up batches, to train in a blink."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import architectures, config
from nnue_trainer.data.batch import Batch
from nnue_trainer.training.trainer import Trainer

BATCH, ACTIVE = 32, 32


def made_up_batch(index: int, size: int = BATCH) -> Batch:
    """Random rows whose score depends on the features, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1000 + index)
    white = torch.randint(0, 768, (size, ACTIVE), generator=generator, dtype=torch.int32)
    counts = torch.randint(3, ACTIVE + 1, (size, 1), generator=generator)
    white[torch.arange(ACTIVE) >= counts] = -1
    black = torch.where(white >= 0, 767 - white, -1)
    worth = torch.where(white >= 0, torch.where(white < 384, 40, -40), 0).sum(1)
    black_to_move = torch.randint(0, 2, (size,), generator=generator, dtype=torch.uint8)
    score = torch.where(black_to_move.bool(), -worth, worth)
    return Batch(
        white=white,
        black=black,
        counts=counts.squeeze(1).short(),
        black_to_move=black_to_move,
        score=score.to(torch.int16),
        result=score.sign().to(torch.int8),
        piece_count=counts.squeeze(1).clamp(2, 32).to(torch.uint8),
    )


class MadeUpSource:
    """Endless; batch i is `made_up_batch(i)`."""

    def __init__(self) -> None:
        self.index = 0

    def open(self) -> None:
        pass

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self.index += 1
        return made_up_batch(self.index - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index = state["index"]


def recipe(*overrides: str) -> config.Recipe:
    """40 steps in 4 epochs."""
    data = {
        "model": {"kind": "simple", "hidden": 16},
        "data": {"train": ["made-up"], "batch_size": BATCH},
        "loss": {"kind": "sigmoid", "end_wdl": 0.5},
        "optimizer": {"lr": 1e-2},
        "schedule": {"kind": "exponential", "gamma": 0.8, "warmup_steps": 5},
        "training": {"epochs": 4, "positions_per_epoch": 10 * BATCH, "keep_last": 2, "device": "cpu"},
        "logging": {"every_steps": 3, "tensorboard": False},
    }
    return config.parse(data, overrides)


def trainer(run_dir: Path, *overrides: str, source: MadeUpSource | None = None) -> Trainer:
    chosen = recipe(*overrides)
    torch.manual_seed(chosen.training.seed)
    model = architectures.build(chosen.model)
    held_out = [made_up_batch(-1), made_up_batch(-2, 7)]
    return Trainer(chosen, model, source or MadeUpSource(), lambda: held_out, run_dir)
