"""Containers of net files: layouts as data, LEB128, a bounded reader, a writer, our record of the architecture.

Nothing here depends on a net. A net (nnue_trainer/nets/) lists the layouts that its file may have; `reader` and
`writer` use them.
"""

import importlib
from typing import Any

__all__ = ["formats"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'nnue_trainer.nnue_file' has no attribute {name!r}")
    return importlib.import_module(f"nnue_trainer.nnue_file.{name}")
