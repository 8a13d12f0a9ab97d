"""Positions per second of the loader and of a step, as `nnue doctor` measures them; benchmarks use its parts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import nets
from nnue_trainer.config import Recipe
from nnue_trainer.data import Batch
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.training.assembly.data import training_batches
from nnue_trainer.training.assembly.parts import assemble
from nnue_trainer.training.assembly.precision import without_auto
from nnue_trainer.training.batches import BatchSource, DeviceBatches
from nnue_trainer.training.device import set_up_torch

PRELOADED = 8  # batches on the device: more than the caches hold


def rates(recipe: Recipe, device: torch.device, seconds: float) -> tuple[float, float]:
    """Positions per second of the loader and of a step, measured for half of `seconds` each. Sets torch's options."""
    set_up_torch(recipe.training, device)
    model = nets.build(recipe.model)
    recipe = without_auto(recipe, model, device)
    loader, batches = _rate_of_loader(recipe, model, device, seconds / 2)
    return loader, _rate_of_step(recipe, model.to(device), device, batches, seconds / 2)


def _rate_of_loader(
    recipe: Recipe, model: NnueModel, device: torch.device, seconds: float
) -> tuple[float, list[Batch]]:
    """Positions per second, and some batches on the device."""
    source = training_batches(recipe, model, device)
    try:
        next(iter(source))
        count, began = 0, time.perf_counter()
        for _ in source:
            count += 1
            if (passed := time.perf_counter() - began) >= seconds:
                break
        batches = copies(source, device, model.feature_set)
    finally:
        source.close()
    return count * recipe.data.batch_size / passed, batches


def copies(loader: BatchSource, device: torch.device, features: str, count: int = PRELOADED) -> list[Batch]:
    """Copies of the first `count` batches of a loader, on the device. Each counts as a separate buffer."""
    batches = DeviceBatches(loader, device, features)
    return [replace(next(batches).clone(), buffer=number) for number in range(count)]


class Preloaded:
    """A `BatchSource` that yields the same batches, which are on the device, again and again."""

    def __init__(self, batches: list[Batch]):
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield from self._batches

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is no state."""


def synchronize(device: torch.device) -> None:
    """Waits for the device, if it is a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rate_of_step(
    recipe: Recipe, model: NnueModel, device: torch.device, batches: list[Batch], seconds: float
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        trainer = assemble(recipe, model, Preloaded(batches), None, Path(folder))
        for _ in batches:  # a CUDA graph is recorded for each
            trainer.advance()
        synchronize(device)
        steps, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds or not steps:
            trainer.advance()
            steps += 1
            if steps % 16 == 0:
                synchronize(device)
        synchronize(device)
        passed = time.perf_counter() - began
    return steps * recipe.data.batch_size / passed
