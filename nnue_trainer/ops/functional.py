"""Functions on tensors, in the manner of `torch.nn.functional`."""

from __future__ import annotations

from nnue_trainer.ops import feature_transformer_forward as feature_transformer

__all__ = ["feature_transformer"]
