"""The facts of a recipe that commands print, check and compare, without its sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nnue_trainer.config.sections import Recipe


@dataclass(frozen=True)
class Outline:
    """Facts of a recipe."""

    architecture: dict[str, Any]
    """of the net, as checkpoints have it"""
    unreadable: str | None
    """why no Stockfish reads the net; None: one does, or it is not for Stockfish"""
    suffix: str
    """of the exported net's file"""
    train: list[str]
    """files"""
    validation: list[str]
    """files"""
    batch_size: int
    shuffle_buffer: int
    epochs: int
    """of the recipe without stages"""
    max_hours: float
    """0: no limit"""
    device: str
    seeds: list[int]
    has_stages: bool


def outline(recipe: Recipe) -> Outline:
    """The facts of a recipe."""
    data, training, model = recipe.data, recipe.training, recipe.model
    return Outline(
        architecture=dict(model.architecture),
        unreadable=model.unreadable,
        suffix=recipe.export.suffix,
        train=list(data.train),
        validation=list(data.validation),
        batch_size=data.batch_size,
        shuffle_buffer=data.shuffle_buffer,
        epochs=training.epochs,
        max_hours=training.max_time,
        device=training.device,
        seeds=list(recipe.seeds),
        has_stages=bool(recipe.stages),
    )
