"""Evaluates some positions with a net's integers before the first step, since training uses floats alone.

A net whose integer forward does not fit its tensors would otherwise train for days and fail at `nnue eval`.
"""

from __future__ import annotations

import copy

import numpy as np
import torch

from nnue_trainer import data, foreign
from nnue_trainer.checkpoint import Checkpoint, load_into
from nnue_trainer.errors import UserError, first_line, out_of_memory, shown
from nnue_trainer.export import checkpoint_from_net, evaluate, net_from_checkpoint
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.nets.base import NnueModel

LARGEST, SHARE = 5.0, 0.25
"""The bound of the root mean square of the difference: so many engine units, and this share of that of the outputs."""
_OUTPUTS = 100.0  # engine units: fresh weights are enlarged until the outputs are as large as this
_DOUBLINGS = 4


def check_integers(model: NnueModel) -> None:
    """UserError if the integers of a net cannot be evaluated, or do not evaluate as the float model with the same,
    rounded weights does. `model` is on the CPU and is not changed. A net without integer arithmetic is not checked."""
    net = model.net
    if net is None:
        return
    try:
        floats, integers = _evaluated(model)
    except NotImplementedError:
        return
    except UserError as error:
        raise UserError(f"{net.name}: cannot be evaluated in integers: {error}") from None
    except Exception as error:
        if out_of_memory(error):
            raise
        why = foreign.blame(error) or f"{type(error).__name__}: {shown(first_line(error))[:300]}"
        raise UserError(f"{net.name}: cannot be evaluated in integers: {why}") from error
    rms, size = (float(np.sqrt(np.square(values).mean())) for values in (integers - floats, floats))
    if not rms <= LARGEST + SHARE * size:
        raise UserError(
            f"{net.name}: integers and floats with the same weights differ by {rms:.1f} engine units rms on "
            f"{len(floats)} positions, expected at most {LARGEST + SHARE * size:.1f} ({LARGEST:g} + {SHARE:.0%} of the "
            f"outputs' rms, {size:.1f}): check scales and layers of its integer forward"
        )


@torch.no_grad()
def _evaluated(model: NnueModel) -> tuple[np.ndarray, np.ndarray]:
    """Engine units of some positions, by the float model with rounded weights and by the integers."""
    assert model.net is not None
    records = data.records_from_fens(list(CHECK_POSITIONS))
    batch = data.expand(records, model.feature_set)
    trial = copy.deepcopy(model)
    for _ in range(_DOUBLINGS):
        for bound in trial.weight_bounds():
            bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
        if float(_scores(trial, batch).square().mean().sqrt()) >= _OUTPUTS:
            break
        for parameter in trial.parameters():
            parameter.mul_(2)
    for bound in trial.weight_bounds():
        bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    where = model.net.name
    quantized = net_from_checkpoint(Checkpoint(model.architecture, {"model": trial.state_dict()}), where, any_l1=True)
    load_into(checkpoint_from_net(quantized, where).tensors["model"], trial, where)
    return _scores(trial, batch).numpy(), evaluate(quantized, records, every_stack=False).score.astype(np.float64)


def _scores(model: NnueModel, batch: data.Batch) -> torch.Tensor:
    scores: torch.Tensor = model(batch).double() * model.score_scale
    return scores
