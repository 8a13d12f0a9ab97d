"""States of loaders: JSON data with tensors."""

import json
from typing import Any

import torch


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """The state as a checkpoint has it: JSON data, and tensors with memory of their own."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else json.loads(json.dumps(value))
        for key, value in state.items()
    }


def same_states(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the states are equal, bit by bit."""

    def plain(state: dict[str, Any]) -> dict[str, Any]:
        return {
            key: (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value
            for key, value in state.items()
        }

    return plain(one) == plain(other)
