"""Evaluates some positions with a net's integers before the first step, since training uses only floats.

A net whose integer forward does not fit its tensors would otherwise train for days and fail at `nnue eval`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from nnue_trainer import data, registry
from nnue_trainer.base import foreign
from nnue_trainer.errors import UserError, out_of_memory
from nnue_trainer.export import checkpoint_from_net, evaluate, net_from_checkpoint
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files.checkpoint import Checkpoint, load_into
from nnue_trainer.nets.activity import ActivityMeter
from nnue_trainer.nets.base import NnueModel
from nnue_trainer.nets.integer_forward import unrounded

LARGEST, SHARE = 0.1, 0.005
"""The bound of the root mean square of the difference between the float model and the integer forward in real numbers:
this many engine units, and this share of that of the outputs. All built-in nets stay below 0.001 units and 10⁻⁶."""
ROUNDING, ROUNDING_SHARE = 5.0, 0.25
"""The bound of the difference that rounding and overflow in integers add."""
_FILL = 0.1  # values of this size replace zeros: a PSQT or a bias of zero would hide its scale
_OUTPUTS = 100.0  # engine units: fresh weights are enlarged until the outputs are as large as this
_DOUBLINGS = 6


def start_check(
    model: NnueModel, saved: Checkpoint | None = None, path: str | Path = "", *, moves: bool = False
) -> Callable[[], None]:
    """`check_integers` in a thread, on a copy of the model, which may be moved and trained meanwhile, with the weights
    of the checkpoint `saved`, if given. Returns a function that waits for the end and raises what the check has found.
    `moves`: the model is moved to another device before its tensors change, so the copy may share their memory."""
    with _explaining(model):
        own = copy.deepcopy(model, _views(model) if moves and saved is None else None)
        if saved is not None:
            load_into(saved.tensors["model"], own, path)
    with_thread = ThreadPoolExecutor(1, "integer-check")
    found = with_thread.submit(check_integers, own)
    with_thread.shutdown(wait=False)
    return found.result


def check_integers(model: NnueModel) -> None:
    """UserError if the integers of a net cannot be evaluated, or do not evaluate as the float model with the same,
    rounded weights does. `model` is on the CPU and is not changed. A net without integer arithmetic is not checked."""
    net = model.net
    if net is None:
        return
    zeros: list[list[str]] = [[]]
    with contextlib.suppress(NotImplementedError), _explaining(model):
        forward = net.integer_forward()
        if forward is not None and forward.first.psqt:
            # The layers without the PSQT columns, which may be much larger.
            zeros.append([tensor.source_parameter for tensor in net.tensors() if tensor.name in forward.first.psqt])
    # One after the other with plugins, which need not expect two threads in one net.
    with ThreadPoolExecutor(1 if registry.foreign_modules() else len(zeros), "integer-check") as threads:
        for found in [threads.submit(_check, model, zero) for zero in zeros]:
            found.result()


def _views(model: NnueModel) -> dict[int, torch.Tensor]:
    """A memo for `copy.deepcopy`: by id, a tensor that shares the memory of each parameter and buffer."""
    views: dict[int, torch.Tensor] = {id(buffer): buffer.detach() for buffer in model.buffers()}
    for parameter in model.parameters():
        views[id(parameter)] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
    return views


def _check(model: NnueModel, zero: Sequence[str]) -> None:
    """The check with the parameters called `zero` set to 0."""
    net = model.net
    assert net is not None
    try:
        with _explaining(model):
            floats, reals, integers = _evaluated(model, zero)
    except NotImplementedError:
        return
    size = _rms(floats)
    for values, expected, units, share, what in (
        (reals, floats, LARGEST, SHARE, "without rounding, integers and floats"),
        (integers, reals, ROUNDING, ROUNDING_SHARE, "integers with and without rounding"),
    ):
        if not _rms(values - expected) <= units + share * size:
            raise UserError(
                f"{net.name}: {what} with the same weights differ by {_rms(values - expected):.2f} engine units rms on "
                f"{len(floats)} positions, expected at most {units + share * size:.2f} ({units:g} + {share:.1%} of the "
                f"outputs' rms, {size:.1f}): check scales, shifts and layers of its integer forward"
            )


@contextlib.contextmanager
def _explaining(model: NnueModel) -> Iterator[None]:
    """Turns an error of the model's net into a UserError, but not NotImplementedError, of a net without integer
    arithmetic."""
    try:
        yield
    except NotImplementedError:
        raise
    except Exception as error:
        if model.net is None or out_of_memory(error):
            raise
        raise UserError(f"{model.net.name}: cannot be evaluated in integers: {foreign.reason(error)}") from error


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


@torch.no_grad()
def _evaluated(model: NnueModel, zero: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Engine units of some positions: by the float model with rounded weights, by the integers in real arithmetic, and
    by the integers."""
    assert model.net is not None
    records = data.records_from_fens(list(CHECK_POSITIONS))
    batch = data.expand(records, model.feature_set)
    trial = copy.deepcopy(model)
    generator = torch.Generator(device="cpu").manual_seed(0)
    for parameter in trial.parameters():
        if not parameter.any():
            parameter.uniform_(-_FILL, _FILL, generator=generator)
    for name in zero:
        trial.get_parameter(name).zero_()
    for _ in range(_DOUBLINGS):
        for bound in trial.weight_bounds():
            bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
        if float(_scores(trial, batch).square().mean().sqrt()) >= _OUTPUTS and _reaches_its_limit(trial, batch):
            break
        for parameter in trial.parameters():
            parameter.mul_(2)
    for bound in trial.weight_bounds():
        bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    where = model.net.name
    quantized = net_from_checkpoint(Checkpoint(model.architecture, {"model": trial.state_dict()}), where, any_l1=True)
    load_into(checkpoint_from_net(quantized, where).tensors["model"], trial, where)
    integers = evaluate(quantized, records, every_stack=False).score.astype(np.float64)
    floats, reals, forward = _scores(trial, batch).numpy(), None, quantized.net.integer_forward()
    if forward is not None:  # else the net evaluates its integers itself
        rows = data.expand(records, quantized.net.integer_feature_set)
        reals = unrounded(forward, quantized.tensors, rows, quantized.net.bucket(rows))
    return floats, floats if reals is None else reals, integers


def _reaches_its_limit(model: NnueModel, batch: data.Batch) -> bool:
    """Whether any neuron of the first layer does: otherwise a wrong limit would not be seen."""
    meter = ActivityMeter(model)
    meter.add(batch)
    found = meter.result()
    return found is None or bool(found.saturated.any())


def _scores(model: NnueModel, batch: data.Batch) -> torch.Tensor:
    scores: torch.Tensor = model(batch).double() * model.score_scale
    return scores
