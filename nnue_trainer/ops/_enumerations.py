"""The words of the operators of training, as `base._words` translates them."""

from __future__ import annotations

import torch

from nnue_trainer.base import _library, _words

_library.require()
TABLE = _words.table(torch.ops.nnue.enumerations())
"""The integer of each word, by "operator.argument"."""


def code(argument: str, word: object) -> int:
    """The integer of a word for an argument, such as "kernels.mode". ValueError for an unknown word."""
    return _words.code(TABLE, argument, word)
