"""Public modules that have moved since the last version: the old names still work in this one, with a warning.

`schema.old_keys` does the same for the keys of recipes.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

MODULES = {
    "checkpoint": "files.checkpoint",
    "functional": "ops.functional",
    "lambdas": "wdl",
    "perspectives": "ops.perspectives",
    "random": "stats.random",
    "rows": "stats.matrix",
}
"""Old name -> new name, both below `nnue_trainer`."""


def warn(old: str, new: str) -> None:
    """`old` and `new` are names below `nnue_trainer`."""
    import warnings

    from nnue_trainer.errors import OldName

    warnings.warn(OldName(f"nnue_trainer.{old}", f"nnue_trainer.{new}"), stacklevel=3)


def module(name: str) -> ModuleType:
    """The module that had the old name `name`."""
    warn(name, MODULES[name])
    return importlib.import_module(f"nnue_trainer.{MODULES[name]}")


class _Finder:
    """Finds modules by their old names, and those below an old name of a package. It comes before all other finders:
    they find the latter by the package's path and execute them a second time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, *below = name.split(".")
        itself: Any = self  # importlib.abc has the type of loaders, and takes as long to import as all else
        return ModuleSpec(name, itself) if package == "nnue_trainer" and below and below[0] in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package, old, *below = spec.name.split(".")
        found = importlib.import_module(".".join((package, MODULES[old], *below))) if below else module(old)
        spec.loader_state = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """The module has been executed under its new name; importing it under the old one replaced its `__spec__`."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def register() -> None:
    finder: Any = _Finder()
    sys.meta_path.insert(0, finder)
