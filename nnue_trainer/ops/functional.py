"""Functions on tensors, in the manner of `torch.nn.functional`."""

from __future__ import annotations

from torch import Tensor

from nnue_trainer import ops

__all__ = ["feature_transformer"]


def feature_transformer(
    indices: Tensor,
    weight: Tensor,
    bias: Tensor,
    values: Tensor | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """Sum the weight rows of each position's active features: indices [B, K], weight [F, N], bias [N] → [B, N].

    Indices are int32, or int64, which are converted.
    The first −1 ends a row of `indices`; `values` [B, K] multiplies the entries (default 1). Dtypes, errors and the
    meaning of `deterministic` are those of `nnue_trainer.ops.feature_transformer_forward`.
    """
    return ops.feature_transformer_forward(indices, weight, bias, values, deterministic)
