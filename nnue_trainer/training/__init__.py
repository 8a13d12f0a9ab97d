"""The training of one net. `Trainer` is the loop; callbacks get it as their argument."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnue_trainer.training.run import train
    from nnue_trainer.training.trainer import Summary, Trainer

__all__ = ["Summary", "Trainer", "train"]


def __getattr__(name: str) -> Any:  # at first use: the modules of this package import each other
    if name not in __all__:
        raise AttributeError(f"module 'nnue_trainer.training' has no attribute {name!r}")
    from nnue_trainer.training import run, trainer

    return getattr(run if name == "train" else trainer, name)
