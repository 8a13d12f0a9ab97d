"""The numbers of a run that the loop changes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RunState:
    """How far a run is, and its validation losses. The loop, saving, checks and callbacks share it."""

    step: int
    """steps done, in the whole run"""
    first_update: int
    """the step from which the optimiser counts its updates"""
    validation_loss: float | None = None
    """of the last validation; None: there was none, or it was not finite"""
    best_validation_loss: float | None = None
    """of the best validation, which `training.best_by` selects"""
    best_value: float | None = None
    """its figure `training.best_by`"""
    best_step: int | None = None
    net_figures: dict[str, float] = field(default_factory=dict)
    """figures of neurons and weights, from the last validation"""
    fixed_figures: dict[str, float] = field(default_factory=dict)
    """`Figures` of the last validation, and loss and figures of each further set NAME as NAME/…"""
    epoch_end_pending: bool = False
    """the last step ended an epoch, whose validation and checkpoint are not done"""
    updating: bool = False
    """the current step has begun to change the weights"""
    saved_step: int = -1
    stopped: str = ""
    """why a callback or training.max_time ends the run"""
    bad_before: int = 0
    """damaged chunks of data that were left out before the run was resumed"""
