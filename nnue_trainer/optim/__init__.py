"""Optimisers in layers: an update rule, and layers around it that nets need.

    clip           gradients are made smaller: by norm, by value
    bounds         weights back into the range that the exported net can hold
    virtual rows   feature transformers are factorised: a virtual row for all rows that share it
    guard          a step with a loss or gradient that is not finite changes nothing
    rule           AdamW, any optimiser of torch, or your own

Each layer wraps those below it and can be replaced separately. `base` has the contracts and the registry; each
built-in rule has its own file; `Optimizer` puts the layers together. `averages` of weights and `penalties` on
weights and activations are open lists, as the rules are.
"""

from nnue_trainer.optim import averages, penalties
from nnue_trainer.optim.adamw import AdamW
from nnue_trainer.optim.base import OPTIMIZERS, Layer, OptimizerConfig, Rule, Work
from nnue_trainer.optim.optimizer import Optimizer
from nnue_trainer.optim.torch_rule import TorchRule

__all__ = [
    "OPTIMIZERS",
    "AdamW",
    "Layer",
    "Optimizer",
    "OptimizerConfig",
    "Rule",
    "TorchRule",
    "Work",
    "averages",
    "penalties",
]
