"""Registers operators that have no derivative: fake kernels, vmap, and clear errors for gradients and missing CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnue_trainer import ops
from nnue_trainer.ops import _derivatives


def register(name: str, fake: Callable[..., Any], *, writes: bool = False) -> None:
    """Registers everything but the kernels of the operator `name`, "nnue::…".

    fake: its fake kernel. writes: it writes into tensors that it is given.
    """
    ops.register_fakes({name: fake})
    if writes:
        _derivatives.register_vmap(name, _derivatives.refuse(name, "vmap", "call it once for each element"))
    else:
        detach = "it has no derivative: detach its inputs"
        _derivatives.register_autograd(
            name,
            _derivatives.refuse(name, "gradient", detach),
            forward_mode=_derivatives.refuse(name, "forward mode", detach),
        )
        _derivatives.register_vmap(name)
