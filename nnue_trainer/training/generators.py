"""The states of torch's random generators, which a checkpoint has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nnue_trainer.errors import UserError
from nnue_trainer.files.checkpoint import check_like


def states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators, by the name of their device."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def load(saved: Mapping[str, Tensor], device: torch.device, path: Path) -> None:
    """Sets torch's random generators to `saved`, read from `path`. UserError for anything else."""
    for name, now in states(device).items():
        what = f"{path}: tensor rng/{name}"
        if name not in saved:
            if name == "cuda":  # the checkpoint was written on a CPU
                continue
            raise UserError(f"{what} is missing")
        check_like(saved[name], now, what)
        try:
            if name == "cuda":
                torch.cuda.set_rng_state(saved[name], device)
            else:
                torch.set_rng_state(saved[name])
        except RuntimeError:
            raise UserError(f"{what} is not a state of torch's random generator") from None
