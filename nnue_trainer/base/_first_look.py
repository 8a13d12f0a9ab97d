"""`import nnue_trainer` is enough for `torch.ops.nnue.NAME`, and does not import torch.

torch's attribute `ops.nnue` becomes a namespace. When an operator is first looked up, it imports the module that loads
the library and registers the operator's derivative and fake kernel. If torch has not been imported yet, that
happens right after its import.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Prefixes of operator names, and the module that registers these operators; `ops` registers all others.
HOMES = {
    "bit_counts": "stats.graph",
    "ewm": "stats.exponential",
    "_layer_stacks": "modules.layer_stacks",
    "_optimizer": "optim.fused_operators",
    "pack_bits": "stats.graph",
    "_perspective": "ops.perspectives",
    "random_fill": "stats._random_fill",
    "random_walks": "stats.graph",
    "rolling": "stats.windows",
    "_row_function": "stats.row_function",
    "row_norms": "stats.matrix",
    "stats_enumerations": "stats._plain",
    "_stack_order": "modules.layer_stacks",
    "_stacked_linear": "modules.stacked_linear",
    "_to_integers": "modules.straight_through",
    "transpose": "stats.matrix",
}


def _home(operator: str) -> str:
    return next((home for prefix, home in HOMES.items() if operator.startswith(prefix)), "ops")


def _install(torch: Any) -> None:
    """Puts the namespace into `torch.ops`."""
    from torch._ops import _OpNamespace

    class Namespace(_OpNamespace):  # type: ignore[misc, unused-ignore]
        __module__ = _OpNamespace.__module__  # torch looks for operators by this name

        def __getattr__(self, operator: str) -> Any:
            if not operator.startswith("__"):
                try:
                    importlib.import_module(f"nnue_trainer.{_home(operator)}")
                except (ImportError, RuntimeError) as error:  # such as a library that was not built
                    raise AttributeError(f"torch.ops.nnue.{operator}: {error}") from error
            return super().__getattr__(operator)

    torch.ops.nnue = Namespace("nnue")


class _AfterTorch:
    """An import hook: the other finders find torch, and it installs the namespace after torch was imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _install(module)

            loader.exec_module = exec_module
        return spec


def register() -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _AfterTorch())
    elif hasattr(torch, "ops"):  # or it is being imported, and imports us
        _install(torch)
