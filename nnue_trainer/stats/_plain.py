"""Registers the operators of this room. They are in the library for analysis, and have no derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnue_trainer.ops._registration import (
    refuse,
    register_autograd,
    register_fakes,
    register_vmap,
    writes_only,
)


def register(name: str, fake: Callable[..., Any] = writes_only) -> None:
    """Registers the operator "nnue::…" with its fake kernel. Without one, it writes into tensors that it is given."""
    register_fakes({name: fake}, analysis=True)
    if fake is writes_only:
        register_vmap(name, refuse(name, "vmap", "call it once for each element"))
    else:
        instead = "it has no derivative: detach its inputs"
        no_gradient = refuse(name, "gradient", instead)
        register_autograd(name, lambda *_: ((), no_gradient), refuse(name, "forward mode", instead))
        register_vmap(name)
