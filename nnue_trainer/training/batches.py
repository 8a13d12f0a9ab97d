"""Brings batches to the training device, and stops a run that waits for them. On CUDA the next batch is copied and
expanded during the current step."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from nnue_trainer.base import system
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.features import FeatureSet
from nnue_trainer.ops.expand import Expander
from nnue_trainer.training.parallel.sharding import Share
from nnue_trainer.training.recorder import Recorder

T = TypeVar("T")

_BUFFERS = 4  # device buffers for expanded batches: the host may queue _BUFFERS - 1 steps that the device has not done


class BatchSource(Protocol):
    """A stream of batches in host memory. `nnue_trainer.data.Loader` yields a `Batch` of index rows; `RecordLoader`
    yields packed records, uint8 [B, 32]. If several processes train together, their sources yield the same whole
    batches, or each an equal share of them. The newest two batches are valid: the source may overwrite batch k when
    batch k + 2 is requested. `state_dict` returns plain JSON data, in which values may be tensors; a stream that loads
    it continues with the batch that would have come next. If several processes train together, the JSON data are the
    same in all of them. A source whose state takes time to make has `place()`, which is cheap, and `state_at(place)`.
    """

    def __iter__(self) -> Iterator[Batch | Tensor]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DeviceBatches:
    """Yields the batches of `source`, which must be endless, on `device`.

    On CUDA the next batch is copied, expanded and prepared on a separate stream, of high priority, while the current
    step runs; the copy is asynchronous only from page-locked memory. All work that uses a batch must be queued before
    the next batch is requested.

    Args:
        source: batches or packed records in host memory.
        device: where the batches go.
        features: the feature set; packed records are expanded on `device` into its index rows.
        prepare: a function that is applied to each batch on CUDA, such as `NnueModel.prepare`; the plans of a buffer
            keep their memory.
        share_of: decides which positions of `source` are copied, and which processes then join theirs:
            `Unsharded.share_of`. By default all of them, and none.
        on_fetch: a function that is called once for each batch, in their order, on the stream that copies it. For a
            batch in a buffer it may write what only the steps with this buffer read.
        records: keep the records of each batch, if `source` yields records.
        record: replay all that follows the copy, an exchange of records included, as one CUDA graph per buffer, where
            it only launches kernels. A `Batch` in a buffer on `device` is not copied, and what is prepared of it is
            replayed, too. Its source must use at least four buffers in turn, which stay in place, and must have written
            a batch before it yields it.
    """

    def __init__(
        self,
        source: BatchSource,
        device: torch.device,
        features: str | FeatureSet,
        prepare: Callable[[Batch], Batch] | None = None,
        share_of: Callable[[Any], Share] = Share,
        *,
        on_fetch: Callable[[Batch], None] | None = None,
        records: bool = False,
        record: bool = False,
    ):
        self._source = source
        self._device = device
        self._iterator: Iterator[Batch | Tensor] | None = None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            # The kernels of this stream are small. With a high priority their thread blocks start as soon as any thread
            # block of the step ends. Otherwise each kernel would wait until all thread blocks of the step's current
            # kernel have begun.
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._device = self._stream.device  # has an index, so a later change of the current device does not matter
        self._expander = Expander(features, self._device, buffers=_BUFFERS, records=records)
        self._prepare = (lambda batch: batch) if prepare is None or self._stream is None else prepare
        self._share_of = share_of
        self._on_fetch = on_fetch
        self._recorder: Recorder[Batch] | None = None
        if record and self._stream is not None and self._expander.launches_only:
            # Batches of several buffers are in use at the same time, so each graph has memory of its own.
            self._recorder = Recorder(self._stream, share=False)
        self._plans: dict[int, tuple[Any, ...]] = {}  # by the number of the buffer
        self._place: Callable[[], Any] = getattr(source, "place", source.state_dict)
        # One event for each of the last batches, recorded just before the batch was returned: it completes when the
        # steps with all earlier batches have completed.
        self._done: deque[torch.cuda.Event] = deque(maxlen=_BUFFERS - 1)
        self._ahead: Batch | None = None  # the batch after the current one
        self._fetched: torch.cuda.Event | None = None  # completes when `_ahead` is copied, expanded and prepared
        self._state_at: Callable[[Any], dict[str, Any]] = getattr(source, "state_at", lambda state: state)
        self._place_ahead: Any = None  # the place from which the source yields `_ahead`
        self._place_in_hand: Any = None  # the place from which it yields the current batch; None: its step is complete

    def __next__(self) -> Batch:
        # Set this first: a signal handler may raise at any point below, and the state must be right then, too.
        self._place_in_hand = self._place() if self._ahead is None else self._place_ahead
        if self._iterator is None:
            self._iterator = iter(self._source)
            self._expander.spare = getattr(self._source, "spare", 0)
        if self._stream is None:
            share = self._share_of(next(self._iterator))
            is_whole = share.ranks is None and isinstance(share.positions, Batch)
            batch: Batch = share.positions if is_whole else self._made(share)
            if self._on_fetch is not None:
                self._on_fetch(batch)
            return batch
        batch = self._ahead or self._fetch(self._iterator, self._stream)
        compute = torch.cuda.current_stream(self._device)
        self._done.append(compute.record_event())
        compute.wait_stream(self._stream)
        if batch.buffer is None:
            for tensor in batch.memory():
                tensor.record_stream(compute)
        # Wait until this batch has left the host memory, which the source uses again for later batches. Its copy was
        # queued one step ago, with all that is prepared of it, and does not depend on that step, so it is usually done;
        # where processes join their shares, as soon as all of them have queued theirs.
        if self._fetched is not None:
            self._fetched.synchronize()
        self._place_ahead = self._place()
        self._ahead = self._fetch(self._iterator, self._stream)
        return batch

    @property
    def passes(self) -> Callable[[], int] | None:
        """A function that returns the number of the current pass over the data, from 1; None if the source does not
        count passes."""
        source: Any = self._source
        return (lambda: int(source.epoch) + 1) if hasattr(source, "epoch") else None

    def forget(self) -> None:
        """Frees the graphs, which use the connections of the processes; the next batches record them again."""
        if self._recorder is not None:
            self._recorder.forget()

    def finish(self) -> None:
        """Call this when the step with the current batch is complete: `state_dict` then continues after that batch."""
        self._place_in_hand = None

    def state_dict(self) -> dict[str, Any]:
        """The source's state from which it yields the first batch whose step is not complete."""
        if self._place_in_hand is not None:
            return self._state_at(self._place_in_hand)
        return self._state_at(self._place() if self._ahead is None else self._place_ahead)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)
        self._ahead = self._iterator = self._place_in_hand = None
        # The dropped batch took one of the expander's buffers, so `_done` no longer matches the buffers. Wait for all
        # steps so far instead.
        self._done.clear()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def _fetch(self, iterator: Iterator[Batch | Tensor], stream: torch.cuda.Stream) -> Batch:
        share = self._share_of(next(iterator))
        compute = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(stream):
            if isinstance(share.positions, Tensor) and self._expander.grows(share.size or len(share.positions)):
                stream.wait_stream(compute)  # queued steps still read the buffers that it gives up
            if len(self._done) == self._done.maxlen:
                stream.wait_event(self._done[0])  # the last step that reads the buffer of this batch
            batch = self._made(share)
            if self._on_fetch is not None:
                self._on_fetch(batch)
            self._fetched = stream.record_event()
            return batch

    def _made(self, share: Share) -> Batch:
        """A batch on the device; on CUDA with all that is prepared of it."""
        fresh, expander, prepare = share.positions, self._expander, self._prepare
        if isinstance(fresh, Batch):
            batch = self._joined(fresh, share)
            stays = batch is fresh  # it is on the device, in one allocation

            def work() -> Batch:
                return prepare(batch)
        else:
            records, batch = expander.load(fresh, share.begin, share.size)
            stays = fresh.device != self._device  # otherwise the records are not copied to a buffer

            def work() -> Batch:
                if share.ranks is not None:
                    share.ranks.complete([records])
                return prepare(expander.expand(records, batch))

        if self._recorder is None or batch.buffer is None or not stays:
            return self._kept(work())
        # A larger batch moves the buffers, a smaller one is a part of them.
        key, warm = (batch.buffer, len(batch), batch.white.data_ptr()), self._recorder.warm
        made = self._recorder(key, work)
        return made if warm else self._kept(made)

    def _joined(self, fresh: Batch, share: Share) -> Batch:
        """The whole batch, on the device."""
        if share.ranks is None:
            return fresh if self._device.type == "cpu" else fresh.to(self._device, non_blocking=True)
        assert share.size is not None
        whole = Batch.allocate(share.size, fresh.white.shape[1], device=self._device)
        part = whole.part(share.begin, share.begin + len(fresh))
        for own, read in zip(part.fields().values(), fresh.fields().values(), strict=True):
            own.copy_(read, non_blocking=True)
        share.ranks.complete(list(whole.fields().values()))
        return whole

    def _kept(self, batch: Batch) -> Batch:
        """The batch with its plans in the memory of its buffer's first plans: a recorded step reads fixed addresses."""
        if batch.buffer is None or self._stream is None:
            return batch
        kept = self._plans.get(batch.buffer, ())
        before = [(id(plan.white), plan.data.shape) for plan in kept]
        if before != [(id(plan.white), plan.data.shape) for plan in batch.plans]:
            self._plans[batch.buffer] = batch.plans
            return batch
        # `copy_` gives the tensor that it writes to.
        moved = [new._replace(data=old.data.copy_(new.data)) for old, new in zip(kept, batch.plans, strict=True)]
        return replace(batch, plans=tuple(moved))


class Stopped(BaseException):
    """Raised when a signal stops the run during a wait for data or a validation, which can take long."""


class Stopping:
    """Whether the run must end after its current step."""

    def __init__(self) -> None:
        self._signalled = False
        self.preempted = False  # by a signal that schedulers send
        self._event = threading.Event()
        self._waiting = False

    def set(self) -> None:
        self._event.set()

    def by_signal(self) -> bool:
        return self._signalled

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, work: Callable[[], T], several: bool) -> T:
        """Does work that waits for data: a signal stops the run at once, and not only when the data has arrived. With
        several processes it does not, because they must stop after the same step."""
        if several:
            return work()
        self._waiting = True
        try:
            if self._event.is_set():
                raise Stopped
            return work()
        finally:
            self._waiting = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Installs signal handlers: the first signal of `system.stop_signals` stops the run after the current step, and
        a second one has its usual effect, unless schedulers repeat it. Does nothing outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous: dict[int, Any] = {}

        def stop(number: int, _: object) -> None:
            self._signalled = True
            self.preempted = self.preempted or system.is_schedulers(number)
            self.set()
            signal.signal(number, signal.SIG_IGN if system.is_schedulers(number) else previous[number])
            if self._waiting:
                raise Stopped

        for number in system.stop_signals():
            previous[number] = signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
