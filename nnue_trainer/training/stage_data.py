"""Opens the data files of a stage while its model is made: both take about a second, and neither needs the other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from nnue_trainer.base.foreign import close_in_time
from nnue_trainer.data import Loader, RecordLoader
from nnue_trainer.data.mixing import Mixing
from nnue_trainer.data.opened import OpenedFile
from nnue_trainer.errors import UserError
from nnue_trainer.training.held_out import HeldOut

Poll = Callable[[], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSources:
    """Opens the positions of a stage. The functions take that `poll` of `Loader`."""

    features: str
    """the feature set whose rows the batches have"""
    batches: Callable[[Poll], Loader | RecordLoader]
    """the endless stream of training batches"""
    validation: Callable[[Poll], HeldOut] | None
    more: Mapping[str, Callable[[Poll], HeldOut]]
    """further sets of held-out positions, by name"""
    check: Callable[[Loader | RecordLoader, list[OpenedFile], Callable[[str], None]], None] | None
    """calls the last argument with a warning for each training file that is not plausible; the second one are the files
    of `validation`. None: another process checks them"""


class StageData:
    """The training and validation positions of a stage.

    A thread opens the files and, if the stage starts at the `beginning` of the data, continues with `check`. Errors
    wait for `opened` and `check`, and warnings of implausible positions for `check`, so they come where they would come
    without the thread. Warnings of a loader, such as that it unpacks a large file, come at once.

    Args:
        sources: open the files.
        device: the training device.
        beginning: whether the stage starts at the beginning of the data. Otherwise load a state between `opened` and
            `check`.
        in_thread: False: there is no thread, and the caller waits for all of this. So it must be with plugins, which
            need not expect to be called in two threads.
    """

    batches: Loader | RecordLoader
    validation: HeldOut | None
    mixing: Mixing | None = None
    """how well the shuffle buffer mixes, in the process that writes, after `check`; None without shuffling"""
    more: dict[str, HeldOut]
    """further sets of held-out positions, by name"""

    def __init__(
        self,
        sources: DataSources,
        device: torch.device,
        *,
        beginning: bool,
        in_thread: bool = True,
    ) -> None:
        self._sources, self._device, self._beginning = sources, device, beginning
        self.features = sources.features
        """the feature set whose rows the batches have"""
        self._loaders: list[Loader | RecordLoader | HeldOut] = []
        self._warnings: list[str] = []
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "data-files")
        self._opened: Future[None] | None = None
        self._checked: Future[None] | None = None
        if in_thread:
            self._opened = self._thread.submit(self._on_device, self._open)
            if beginning:
                self._checked = self._thread.submit(self._on_device, self._check)
            return
        try:
            self._on_device(self._open)
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
        """Stops all reading, also in the thread."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._close_loaders()
        close_in_time(self._thread.shutdown, "reading the data files, or a plugin")
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

    def _open(self) -> None:
        sources = self._sources
        self.batches = sources.batches(self._poll)
        self._loaders.append(self.batches)
        self.validation, self.more = None, {}
        if sources.validation is not None:
            self.validation = sources.validation(self._poll)
            self._loaders.append(self.validation)
        for name, opened in sources.more.items():
            self.more[name] = opened(self._poll)
            self._loaders.append(self.more[name])
        if self._beginning:
            self.batches.open()  # its threads read from now on

    def _check(self) -> None:
        self.opened()  # what did not open is not read
        self.batches.open()
        for held_out in (self.validation, *self.more.values()):
            if held_out is not None and not self._closed:
                next(iter(held_out()), None)
        if self._sources.check is not None and self._beginning and not self._closed:
            held_out_files = self.validation.opened if self.validation is not None else []
            self._sources.check(self.batches, held_out_files, self._warnings.append)
        if self._sources.check is not None and not self._closed:
            self.mixing = self.batches.mixing()
            if self.mixing is not None and self.mixing.warning and self._beginning:
                self._warnings.append(self.mixing.warning)
