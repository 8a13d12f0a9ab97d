"""Packages that only some commands need. They are extras of this package, imported where they are used."""

from __future__ import annotations

import importlib.util

from nnue_trainer.base import distribution
from nnue_trainer.errors import UserError

EXTRA_OF = {
    "matplotlib": "pages",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""Package -> the extra of pyproject.toml that installs it."""


def missing(package: str) -> str | None:
    """The end of an error message if `package`, one of `EXTRA_OF`, cannot be imported; None if it can."""
    try:
        found = importlib.util.find_spec(package) is not None
    except ValueError:  # sys.modules holds None for it
        found = False
    return None if found else f"needs the package {package}: pip install '{distribution.NAME}[{EXTRA_OF[package]}]'"


def require(package: str, where: str) -> None:
    """UserError that begins with `where`, a command, option or key, if `package` cannot be imported."""
    if (problem := missing(package)) is not None:
        raise UserError(f"{where}: {problem}")
