"""The one object that travels from the pipeline to the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """B positions with the index rows of both perspectives.

    `white` and `black` are int32 [B, max_active]: the active features of each perspective, left-packed, the first −1
    ends a row. The other fields are [B]: `black_to_move` uint8 (0 white to move, 1 black), `score` int16 (engine units,
    side to move's view), `result` int8 (−1 loss, 0 draw, 1 win, side to move's view), `piece_count` uint8 (2…32).
    """

    white: Tensor
    black: Tensor
    black_to_move: Tensor
    score: Tensor
    result: Tensor
    piece_count: Tensor

    def __len__(self) -> int:
        return self.white.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        return Batch(*(field.to(device, non_blocking=non_blocking) for field in vars(self).values()))
