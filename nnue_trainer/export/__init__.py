"""Nets that engines read: the `.nnue` reader and writer, the integer evaluator, conversion from and to checkpoints."""

from nnue_trainer.export.convert import checkpoint_from_net, net_from_checkpoint
from nnue_trainer.export.evaluate import Evaluation, evaluate
from nnue_trainer.export.net import QuantizedNet, read_net, to_bytes, write_net

__all__ = [
    "Evaluation",
    "QuantizedNet",
    "checkpoint_from_net",
    "evaluate",
    "net_from_checkpoint",
    "read_net",
    "to_bytes",
    "write_net",
]
