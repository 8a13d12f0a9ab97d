"""The training of one net from a recipe. Callbacks get a `Run`."""

from typing import TYPE_CHECKING

from nnue_trainer.base import lazy

if TYPE_CHECKING:
    from nnue_trainer.callbacks.base import Run, Summary
    from nnue_trainer.training.run import train

__all__ = ["Run", "Summary", "train"]

# At first use: the modules of this package import each other.
__getattr__ = lazy.attributes(__name__, {"Run": ".callbacks.base", "Summary": ".callbacks.base", "train": "run"})
