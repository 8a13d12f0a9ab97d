"""The programs that a recipe names, and consent to run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnue_trainer.base import programs
from nnue_trainer.config.changes import stage_recipes
from nnue_trainer.config.sections import Recipe
from nnue_trainer.errors import UserError, quoted


def named_programs(recipe: Recipe) -> dict[str, Any]:
    """Each field of a recipe and its stages that names a program, or what reaches one, by its dotted key."""
    found = dict(programs.named(recipe))
    for stage, its in zip(recipe.stages, stage_recipes(recipe), strict=False):
        for key, value in programs.named(its):
            if found.get(key) != value:
                found[f"stages.{stage.name}.{key}"] = value
    return found


def require_consent(recipe: Recipe, origin: str = "recipe") -> None:
    """UserError, one line that lists them, for programs that only a file names (nnue_trainer/base/programs.py)."""
    refused = {key: value for key, value in named_programs(recipe).items() if not programs.is_allowed(value)}
    if refused:
        raise UserError(
            f"{origin}: names programs to run, or who gets its records: {'; '.join(program_lines(refused))}; pass "
            "--allow-commands to allow it, or the file of a recipe that names them (in Python: "
            "nnue_trainer.config.allow_programs)"
        )


def allow_programs(recipe: Recipe) -> list[str]:
    """Consents to all programs that a recipe names; returns a line for each."""
    found = named_programs(recipe)
    for value in found.values():
        programs.allow(value)
    return program_lines(found)


def program_lines(found: Mapping[str, Any]) -> list[str]:
    """One line for each field that names a program."""
    return [f"{key}: {quoted(value, 200)}" for key, value in found.items()]
