"""RAdam on the project's own operators."""

from __future__ import annotations

from nnue_trainer.optim.base import OPTIMIZERS
from nnue_trainer.optim.fused import FusedConfig
from nnue_trainer.optim.update_rule import UpdateRule
from nnue_trainer.schema import section


@OPTIMIZERS.register("radam")
@section
class RAdam(FusedConfig):
    """Adam with a rectified variance: early steps, whose variance rests on few gradients, are smaller."""

    def update(self) -> UpdateRule:
        return UpdateRule("rectified", self.betas, self.eps)
