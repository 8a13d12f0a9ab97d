"""Names of a package that are imported at first use: `nnue --help` needs no torch.

Imported by `import nnue_trainer`, so it imports nothing slow.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


def attributes(package: str, homes: Mapping[str, str], modules: Iterable[str] = ()) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` has the module that each name comes from, relative to the package, and
    `modules` are names of modules in it."""

    def attribute(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f".{homes[name]}", package), name)
        if name in modules:
            return importlib.import_module(f".{name}", package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute
