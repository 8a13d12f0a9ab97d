"""Files: the one writer, checkpoints, and files that users name as input. Public: `checkpoint`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnue_trainer.files import checkpoint

__all__ = ["checkpoint"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'nnue_trainer.files' has no attribute {name!r}")
    return importlib.import_module(f"nnue_trainer.files.{name}")
