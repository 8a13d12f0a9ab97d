"""Recipes: a YAML file, checked against typed sections, with overrides from the command line.

Every field is documented where it is declared (`sections`); `reference()` prints them all.
"""

from nnue_trainer.config.changes import (
    only_stage,
    stage_recipes,
    with_files,
    with_known_files,
    with_only_seed,
    with_precision,
    with_seed,
)
from nnue_trainer.config.consent import allow_programs, require_consent
from nnue_trainer.config.in_words import reference, to_yaml
from nnue_trainer.config.parsing import load, parse
from nnue_trainer.config.sections import DataConfig, Precision, Recipe, TrainingConfig, ValidationSet
from nnue_trainer.config.yaml_text import read_yaml

__all__ = [
    "DataConfig",
    "Precision",
    "Recipe",
    "TrainingConfig",
    "ValidationSet",
    "allow_programs",
    "load",
    "only_stage",
    "parse",
    "read_yaml",
    "reference",
    "require_consent",
    "stage_recipes",
    "to_yaml",
    "with_files",
    "with_known_files",
    "with_only_seed",
    "with_precision",
    "with_seed",
]
