"""A small net and a stream of made-up batches, to train in a blink; and folders of runs that were not trained."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import config, nets
from nnue_trainer.data.batch import Batch
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.training.assembly import assemble
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.run_folder import RunFolder
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
        material=torch.zeros(size, dtype=torch.uint8),
    )


class MadeUpSource:
    """Endless; batch i is `made_up_batch(i)`."""

    def __init__(self) -> None:
        self.index = 0

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
        "loss": {"kind": "sigmoid"},
        "lambda": {"kind": "linear", "start": 1.0, "end": 0.5},
        "optimizer": {"lr": 1e-2},
        "schedule": {"kind": "exponential", "gamma": 0.8, "warmup_steps": 5},
        "training": {"epochs": 4, "positions_per_epoch": 10 * BATCH, "keep_last": 2, "device": "cpu"},
        "logging": {"every_steps": 3, "tensorboard": False},
    }
    return config.parse(data, overrides)


def trainer(run_dir: Path, *overrides: str, source: MadeUpSource | None = None) -> Trainer:
    chosen = recipe(*overrides)
    torch.manual_seed(chosen.training.seed)
    model = nets.build(chosen.model)
    held_out = [made_up_batch(-1), made_up_batch(-2, 7)]
    return assemble(chosen, model, source or MadeUpSource(), lambda: held_out, run_dir)


def content(step: int, *, epoch: int | None = None, loss: float | None = None, best: int | None = None) -> Checkpoint:
    """A checkpoint after `step`, whose weight is the step."""
    state = {
        "step": step, "batches": {}, "epoch": epoch, "validation_loss": loss,
        "best_validation_loss": None if best is None else float(best), "best_step": best,
    }  # fmt: skip
    return Checkpoint({"kind": "simple"}, {"model": {"w": torch.full((3,), float(step))}}, {"training": {}}, state)


def step_of(path) -> int:
    saved = checkpoint.load(path)
    assert saved.tensors["model"]["w"].tolist() == [saved.state["step"]] * 3
    return saved.state["step"]


def steps(folder: RunFolder) -> dict[str, int]:
    return {path.stem: step_of(path) for path in sorted(folder.checkpoints.glob("*.safetensors"))}


def names(path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def write_run(folder: RunFolder, epochs: int, *, keep_last: int = 9, best: int | None = None) -> None:
    """Writes a run of `epochs` with 10 steps each into the folder; `best` is the epoch with the lowest loss."""
    folder.will_write(folder.recipe, folder.metrics)
    folder.recipe.write_text("recipe")
    folder.metrics.write_text("metrics")
    with CheckpointStore(folder, keep_last) as store:
        for epoch in range(1, epochs + 1):
            at = None if best is None else 10 * min(epoch, best)
            saved = content(10 * epoch, epoch=epoch, loss=float(10 * epoch), best=at)
            store.save(saved, epoch=epoch, is_best=best is not None and epoch <= best)
