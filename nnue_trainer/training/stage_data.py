"""Opens the data files of a stage while its model is made: both take about a second, and neither needs the other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from nnue_trainer.base.foreign import leave
from nnue_trainer.config import Recipe
from nnue_trainer.data import Loader, RecordLoader
from nnue_trainer.errors import UserError
from nnue_trainer.nets.base import Net, NnueModel
from nnue_trainer.parallel.ranks import Ranks
from nnue_trainer.schedules import ConstantLambda
from nnue_trainer.training import plausibility
from nnue_trainer.training.recipe_data import HeldOut, training_batches

_log = logging.getLogger(__name__)


class StageData:
    """The training and validation positions of a stage.

    A thread opens the files and, if the stage starts at the `beginning` of the data, continues with `check`. Errors
    wait for `opened` and `check`, and warnings of implausible positions for `check`, so they come where they would come
    without the thread. Warnings of a loader, such as that it unpacks a large file, come at once.

    Args:
        recipe: the recipe of the stage.
        model: the net that is trained, or its section of the recipe.
        beginning: whether the stage starts at the beginning of the data. Otherwise load a state between `opened` and
            `check`.
        in_thread: False: there is no thread, and the caller waits for all of this. So it must be with plugins, which
            need not expect to be called in two threads.
    """

    batches: Loader | RecordLoader
    validation: HeldOut | None
    more: dict[str, HeldOut]
    """further sets of held-out positions, by name"""

    def __init__(
        self,
        recipe: Recipe,
        model: NnueModel | Net,
        device: torch.device,
        ranks: Ranks,
        *,
        beginning: bool,
        in_thread: bool = True,
    ) -> None:
        self._recipe, self._device, self._ranks, self._beginning = recipe, device, ranks, beginning
        self.features = model.feature_set
        """the feature set whose rows the batches have"""
        self._loaders: list[Loader | RecordLoader | HeldOut] = []
        self._warnings: list[str] = []
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "data-files")
        self._opened: Future[None] | None = None
        self._checked: Future[None] | None = None
        if in_thread:
            self._opened = self._thread.submit(self._on_device, lambda: self._open(model))
            if beginning:
                self._checked = self._thread.submit(self._on_device, self._check)
            return
        try:
            self._on_device(lambda: self._open(model))
        except BaseException:
            self.close()
            raise

    def opened(self) -> StageData:
        """Waits until the files are open, and raises the error of opening: UserError for a file that is missing or not
        a data file."""
        if self._opened is not None:
            self._opened.result()
        return self

    def check(self) -> None:
        """Reads the first validation positions and some of the training positions. Warns of implausible ones, and
        raises UserError for files that cannot be read."""
        try:
            if self._checked is None:
                self._on_device(self._check)
            else:
                self._checked.result()
        finally:
            for line in self._warnings:
                _log.warning("%s", line)

    def close(self) -> None:
        """Stops all reading, also that of the thread."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._close_loaders()
        leave(self._thread.shutdown, "reading the data files, or a plugin")
        self._close_loaders()

    def _close_loaders(self) -> None:
        for loader in list(self._loaders):
            loader.close()

    def _poll(self) -> None:
        if self._closed:
            raise UserError("data files: closed")  # it only ends the thread

    def _on_device(self, work: Callable[[], None]) -> None:
        """The current device is one for each thread, and page-locked memory belongs to it."""
        with torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext():
            work()

    def _open(self, model: NnueModel | Net) -> None:
        recipe, device, ranks, poll = self._recipe, self._device, self._ranks, self._poll
        self.batches = training_batches(recipe, model, device, ranks, poll)
        self._loaders.append(self.batches)
        self.validation, self.more = None, {}
        if recipe.data.validation:
            self.validation = HeldOut(recipe, model, device, ranks, poll=poll)
            self._loaders.append(self.validation)
        for each in recipe.validation.sets:
            self.more[each.name] = HeldOut(recipe, model, device, ranks, each, poll)
            self._loaders.append(self.more[each.name])
        if self._beginning:
            self.batches.open()  # its threads read from now on

    def _check(self) -> None:
        self.opened()  # what did not open is not read
        self.batches.open()
        for held_out in (self.validation, *self.more.values()):
            if held_out is not None and not self._closed:
                next(iter(held_out()), None)
        if self._ranks.writes and self._beginning and not self._closed:
            weight = self._recipe.position_weight
            of_score = self._recipe.lambda_ != ConstantLambda(value=0.0)
            plausibility.check(
                self._recipe.data,
                self.batches,
                weight,
                self.features,
                self._warnings.append,
                loss=self._recipe.loss if of_score else None,
                held_out=self.validation.opened if self.validation is not None else (),
            )
