"""RAdam on the project's own operators."""

from __future__ import annotations

from nnue_trainer import fused_optimizer
from nnue_trainer.optim.base import OPTIMIZERS
from nnue_trainer.optim.fused import FusedConfig
from nnue_trainer.schema import section


@OPTIMIZERS.register("radam")
@section
class RAdam(FusedConfig):
    """Adam whose first steps do not trust its few squares yet."""

    def update(self) -> fused_optimizer.Rule:
        return fused_optimizer.Rule("rectified", self.betas, self.eps)
