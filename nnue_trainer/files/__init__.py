"""Files: the one writer, checkpoints, and files that users name as input. Public: `checkpoint`."""

from typing import TYPE_CHECKING

from nnue_trainer.base import lazy

if TYPE_CHECKING:
    from nnue_trainer.files import checkpoint

__all__ = ["checkpoint"]

__getattr__ = lazy.attributes(__name__, {}, __all__)
