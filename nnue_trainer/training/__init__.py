"""The training of one net from a recipe. Callbacks get a `Run`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnue_trainer.callbacks.base import Run, Summary
    from nnue_trainer.training.run import train

__all__ = ["Run", "Summary", "train"]


def __getattr__(name: str) -> Any:  # at first use: the modules of this package import each other
    if name not in __all__:
        raise AttributeError(f"module 'nnue_trainer.training' has no attribute {name!r}")
    from nnue_trainer.callbacks import base
    from nnue_trainer.training import run

    return getattr(run if name == "train" else base, name)
