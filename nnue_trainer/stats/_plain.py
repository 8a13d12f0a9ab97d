"""Registers the operators of this room, and translates words for them. They have libraries of their own, which are
loaded here, and no derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nnue_trainer.base import _library, _words
from nnue_trainer.base._registration import (
    refuse,
    register_autograd,
    register_fakes,
    register_vmap,
    writes_only,
)
from nnue_trainer.stats._first_use import compile_library

compile_library()
_library.require(_library.load_stats)
TABLE = _words.table(torch.ops.nnue.stats_enumerations())
"""The integer of each word, by "operator.argument"."""


def code(argument: str, word: object) -> int:
    """The integer of a word for an argument, such as "rolling.statistic". ValueError for an unknown word."""
    return _words.code(TABLE, argument, word)


def register(name: str, fake: Callable[..., Any] = writes_only) -> None:
    """Registers the operator "nnue::…" with its fake kernel. Without one, it writes into tensors that it is given."""
    register_fakes({name: fake}, _library.load_stats)
    if fake is writes_only:
        register_vmap(name, refuse(name, "vmap", "call it once for each element"))
    else:
        instead = "it has no derivative: detach its inputs"
        no_gradient = refuse(name, "gradient", instead)
        register_autograd(name, lambda *_: ((), no_gradient), refuse(name, "forward mode", instead))
        register_vmap(name)


def like_x(x: Tensor, *_: object, **__: object) -> Tensor:
    """The fake kernel of an operator whose output is like its first input."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
