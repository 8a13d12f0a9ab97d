"""The conditions under which a run continues from a checkpoint, and torch's random generators in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nnue_trainer.errors import UserError
from nnue_trainer.files.checkpoint import Checkpoint, TrainerState, check_like
from nnue_trainer.training import loss_figure
from nnue_trainer.training.terminal import say

if TYPE_CHECKING:
    from nnue_trainer.training.trainer import Trainer


def check_same_net(trainer: Trainer, saved: Checkpoint, state: TrainerState, path: Path, *, in_place: bool) -> None:
    """UserError if the checkpoint `saved`, read from `path`, has another architecture, lacks tensors, or, if it is
    `in_place`, in the run folder, was validated on other files."""
    if saved.architecture != trainer.model.architecture:
        raise UserError(
            f"{path}: architecture is {saved.architecture!r:.200}, the recipe's is "
            f"{trainer.model.architecture!r:.200}; "
            "resume with the recipe of the checkpoint"
        )
    files = trainer.validation_files
    if in_place and state.validation_files is not None and not loss_figure.same_files(state, files):
        then, now = loss_figure.names(state.validation_files), loss_figure.names(files)
        raise UserError(
            f"{path}: the validation files are not those of this run ({then} then, {now} now, by size and "
            "content), so losses would not compare; resume into another folder with --run-dir"
        )
    for group in ("model", "optimizer", "rng"):
        if group not in saved.tensors:
            raise UserError(f"{path}: found no tensors of the group {group}, expected those of a training run")


def check_same_steps(trainer: Trainer, state: TrainerState, path: Path) -> None:
    """UserError if an epoch has another number of steps now, or the stage begins at another step."""
    if state.steps_per_epoch not in (None, trainer.steps_per_epoch):
        raise UserError(
            f"{path}: an epoch was {state.steps_per_epoch:,} steps, now it is {trainer.steps_per_epoch:,}: "
            "training.positions_per_epoch and data.batch_size cannot change on resume, as the learning rate "
            "follows the epochs; to change them start a new run with training.initial_weights"
        )
    stage = trainer.stage
    if state.stage_first_step != stage.first_step:
        raise UserError(
            f"{path}: {stage.label}began after step {state.stage_first_step:,}, now it would begin after step "
            f"{stage.first_step:,}: epochs and batch sizes of the stages before it cannot change on resume"
        )


def print_rounding_differences(trainer: Trainer, state: TrainerState, path: Path) -> None:
    """Prints the reason if results will not be bit-identical to those of one run."""
    if state.processes != trainer.ranks.size:
        say(
            f"{path}: resuming in {trainer.ranks.size} processes, it was {state.processes}: sums are rounded "
            "differently, so results will not be bit-identical to one run"
        )
    threads = torch.get_num_threads()
    if state.device == trainer.device.type == "cpu" and state.cpu_threads not in (None, threads):
        say(
            f"{path}: resuming on {threads} CPU threads, it was {state.cpu_threads}: sums are "
            "rounded differently, so results will not be bit-identical to one run "
            f"(OMP_NUM_THREADS={state.cpu_threads} keeps them)"
        )


def generators(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators, by the name of their device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def load_generators(states: Mapping[str, Tensor], device: torch.device, path: Path) -> None:
    """Sets torch's random generators to `states`, read from `path`. UserError for anything else."""
    own = generators(device)
    if "cuda" not in states:  # the checkpoint was written on a CPU
        own.pop("cuda", None)
    restore: dict[str, Callable[[Tensor], object]] = {
        "cpu": torch.set_rng_state,
        "cuda": functools.partial(torch.cuda.set_rng_state, device=device),
    }
    for name, now in own.items():
        what = f"{path}: tensor rng/{name}"
        if name not in states:
            raise UserError(f"{what} is missing")
        check_like(states[name], now, what)
        try:
            restore[name](states[name])
        except RuntimeError:
            raise UserError(f"{what} is not a state of torch's random generator") from None
