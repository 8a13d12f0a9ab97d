"""From checkpoints to net files and back, the evaluation of a position by a net file, and by an engine."""

from nnue_trainer.export.convert import (
    checkpoint_from_net,
    exported,
    format_of,
    net_from_checkpoint,
    parse_format,
    read_format,
)
from nnue_trainer.export.evaluate import Evaluation, Evaluator, evaluate
from nnue_trainer.export.net import QuantizedNet, read_net, to_bytes, write_net

__all__ = [
    "Evaluation",
    "Evaluator",
    "QuantizedNet",
    "checkpoint_from_net",
    "evaluate",
    "exported",
    "format_of",
    "net_from_checkpoint",
    "parse_format",
    "read_format",
    "read_net",
    "to_bytes",
    "write_net",
]
