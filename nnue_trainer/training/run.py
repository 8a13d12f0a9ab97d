"""Trains a net from a recipe: finds the checkpoint to resume, then assembles and trains one stage after the other."""

from __future__ import annotations

import contextlib
import logging
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nnue_trainer import config, registry, schema
from nnue_trainer.base import distribution, foreign
from nnue_trainer.callbacks.base import Summary
from nnue_trainer.errors import UserError
from nnue_trainer.training import assembly, timeline
from nnue_trainer.training.assembly import Begin, Begun, RecipeStage
from nnue_trainer.training.checkpoint_paths import find_resumed, load_resumed
from nnue_trainer.training.device import start_device
from nnue_trainer.training.parallel.ranks import Ranks, joined
from nnue_trainer.training.resuming import check_resumable
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.stages import StageOfRun
from nnue_trainer.training.terminal import say

_log = logging.getLogger(__name__)


def train(recipe: config.Recipe, run_dir: Path, *, resume: str | None = None, overwrite: bool = False) -> Summary:
    """Trains a net by `recipe`, and writes all files of the run into `run_dir`.

    Args:
        recipe: what to train, and on which data.
        run_dir: the run folder; it is created if it does not exist.
        resume: None starts a new run; "auto" continues the run in `run_dir`, or starts a new one if there is none; a
            path continues from that checkpoint, or from the last checkpoint of that run folder.
        overwrite: replace a run that is already in `run_dir`; only files that this run wrote are deleted.

    Returns:
        How the run ended. A signal (`base.system.stop_signals`) ends it early, with a checkpoint.

    Raises:
        UserError: an error that the user can correct, such as a missing file, a checkpoint that does not fit the
            recipe, too little memory, or a program that only a file names (`config.require_consent`). A new run that
            fails before its first step is complete leaves no files.

    If torchrun has started several processes, they train one net together.
    """
    config.require_consent(recipe)
    with joined() as ranks, foreign.explaining(), contextlib.ExitStack() as stack:
        # Before anything else, since processes that differ may wait for each other in different places.
        ranks.check_same({"versions": _versions(), "recipe": schema.to_data(recipe)})
        folder = RunFolder(run_dir)
        if ranks.writes:
            stack.enter_context(folder)
        stack.enter_context(assembly.explaining_out_of_memory(recipe))
        saved, path = find_resumed(resume, run_dir)
        if saved is not None:
            recipe, notes = config.with_known_files(recipe, saved.recipe or {})
            for note in notes:
                say(f"{path}: {note}")
            check_resumable(schema.to_data(recipe), saved, path)
        in_place = saved is not None and path.resolve().parent == folder.checkpoints.resolve()
        if ranks.writes and folder.holds_run() and not (in_place or overwrite):
            raise UserError(
                f"{run_dir}: already holds a run; --resume auto continues it, --run-dir DIR starts another, "
                "--overwrite replaces it"
            )
        timeline.mark("run folder and checkpoint")
        device = assembly.device_of(recipe, ranks)
        if ranks.writes and (unused := assembly.unused_gpu(recipe)) is not None:
            _log.warning("%s", unused)
        start_device(device)
        timeline.mark("device")
        stages, doubts = assembly.stages_from(recipe, 0 if saved is None else saved.trainer_state(path).stage, path)
        for doubt in doubts if ranks.writes else ():
            _log.warning("%s", doubt)
        at = Begin() if saved is None else Begin(saved, path, resumed=True, keep=in_place)
        total: Summary | None = None
        began: float | None = None
        for number, stage in enumerate(stages):
            summary, began = _train_stage(stage, folder, ranks, device, at, [] if number else stages, began)
            total = _joined(total, summary, stage.run_steps)
            if summary.interrupted or summary.stopped or number + 1 == len(stages):
                break
            at = _border(stage, stages[number + 1], folder, ranks)
        assert total is not None
        return total


def _versions() -> dict[str, Any]:
    """The versions that decide the results, or whether processes understand each other, and the files of plugins."""
    return {
        "nnue_trainer": distribution.version,
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "plugins": registry.plugins(),
    }


def _train_stage(
    stage: RecipeStage,
    folder: RunFolder,
    ranks: Ranks,
    device: torch.device,
    at: Begin,
    to_check: list[RecipeStage],
    began: float | None,
) -> tuple[Summary, float | None]:
    """Trains a stage. `began`: when the first stage of this process did (`Trainer.began`), which is returned, too."""
    with assembly.begin(stage, folder, ranks, device, at, to_check) as begun:
        # Rank 0 changes the folder after this, so every process must have read from it before. The check also finds
        # machines that see an older copy of a file.
        ranks.wait_for_all("it still opens the data")
        ranks.check_same(begun.agreed)
        begun.trainer.warm_up()  # with exchanges, so only between processes that have the same
        timeline.mark("warm-up")
        if begun.integers_are_right is not None:
            begun.integers_are_right()
        timeline.mark("integer check")
        begun.trainer.began = began
        summary = _train_in(folder, begun, keep=at.keep) if ranks.writes else begun.trainer.train()
        return summary, begun.trainer.began


def _train_in(folder: RunFolder, begun: Begun, *, keep: bool) -> Summary:
    """Writes the recipe and the first messages, then trains. Files of an earlier run in the folder are deleted first,
    unless `keep`. The lines about the initial weights are also written to initial_weights.txt."""
    trainer = begun.trainer
    folder.check_free(folder.recipe, folder.metrics, folder.initial_weights, folder.last, folder.best, clear=not keep)
    if not keep:
        folder.clear()
    _write(folder, folder.recipe, trainer.saver.saved.yaml)
    for line in [*begun.start, *begun.weights]:
        say(line)
    if begun.weights:
        _write(folder, folder.initial_weights, "\n".join(begun.weights) + "\n")
    first_step = trainer.step
    try:
        return trainer.train()
    except BaseException:
        if trainer.step == first_step and not folder.holds_run():
            folder.clear()  # no step was completed, for example because the first one ran out of memory
        raise


def _write(folder: RunFolder, path: Path, text: str) -> None:
    folder.will_write(path)
    with folder.replacing(path) as output:
        output.write_text(text)


def _border(stage: StageOfRun, following: StageOfRun, folder: RunFolder, ranks: Ranks) -> Begin:
    """The checkpoint that the stage after a finished one begins from. It is read from the file, so that a run
    that was killed here begins from the same."""
    assert stage.stage is not None
    assert following.stage is not None
    kept = folder.stage(stage.stage.name)
    if ranks.writes:
        folder.link(folder.last, kept)
    ranks.same(0)  # the others wait until the files are there
    path = folder.best if following.stage.take == "best" else folder.last
    if not path.exists():
        raise UserError(f"{path}: no such checkpoint, expected the best one of {stage.label.removesuffix(': ')}")
    return Begin(load_resumed(path), path, keep=True)


def _joined(total: Summary | None, stage: Summary, run_steps: int) -> Summary:
    """Summary of a run up to and including this stage; `total` counts the stages before."""
    if total is not None:
        stage = replace(
            stage,
            positions=total.positions + stage.positions,
            seconds=total.seconds + stage.seconds,
            step_seconds=total.step_seconds + stage.step_seconds,
        )
    early = stage.interrupted or (stage.step < run_steps and not stage.stopped)
    return replace(stage, steps=run_steps, interrupted=early)
