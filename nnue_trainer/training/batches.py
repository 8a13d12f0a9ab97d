"""Batches on the device, one ahead of the step that uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from nnue_trainer import ops
from nnue_trainer.data.batch import Batch
from nnue_trainer.data.device import Expander
from nnue_trainer.data.features import FeatureSet
from nnue_trainer.training.recorder import Recorder

_BUFFERS = 4  # expanded batches: the host may be that many steps, less one, ahead of the device


class BatchSource(Protocol):
    """A stream of batches in host memory: index rows, such as `nnue_trainer.data.Loader` gives, or packed records, as
    `RecordLoader` does. A batch stays valid until the one after the next is asked for. `state_dict` is plain JSON data;
    a stream that loads it goes on with the very next batch."""

    def open(self) -> None: ...

    def __iter__(self) -> Iterator[Batch | Tensor]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DeviceBatches:
    """The batches of `source`, which must be endless, on `device`; records are expanded there into rows of `features`,
    and each batch goes through `prepare`. For CUDA the next batch is copied, expanded and prepared on a stream of its
    own, from pinned memory, while the step for this one runs. A batch stays valid for the work that is queued before
    the next one is asked for. What is prepared of batches that take turns in a few buffers does so, too. `part` cuts
    batches and records of `source` to those positions that are wanted.

    With `record`, expansion and `prepare` are replayed as one CUDA graph per buffer where they do nothing but launch
    kernels; `alone` is that of `Recorder`. `on_fetch` is called with each batch that lies in a buffer, on the stream
    that fills the buffer: it may write what only the steps with that buffer read.
    """

    def __init__(
        self,
        source: BatchSource,
        device: torch.device,
        features: str | FeatureSet | None = None,
        prepare: Callable[[Batch], Batch] | None = None,
        part: Callable[[Any], Any] | None = None,
        *,
        on_fetch: Callable[[Batch], None] | None = None,
        record: bool = False,
        alone: bool = True,
    ):
        self._source = source
        self._device = device
        self._iterator: Iterator[Batch | Tensor] | None = None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._device = self._stream.device  # with its number, whatever the current device is later on
        self._expander = Expander(features, self._device, buffers=_BUFFERS) if features is not None else None
        self._prepare = prepare
        self._part = part
        self._on_fetch = on_fetch
        self._recorder: Recorder[Batch] | None = None
        if record and self._stream is not None and self._expander is not None and self._expander.launches_only:
            # Batches of several buffers are in use at the same time: each graph has memory of its own.
            self._recorder = Recorder(self._stream, share=False, alone=alone)
        self._plans: dict[int, tuple[Any, ...]] = {}  # by buffer
        # What was queued before each of the last batches was handed out: the steps with the batches before it.
        self._done: deque[torch.cuda.Event] = deque(maxlen=_BUFFERS - 1)
        self._ahead: Batch | None = None
        self._fetched: torch.cuda.Event | None = None  # its copy, and expansion
        self._place_ahead: dict[str, Any] = {}  # where the source goes on behind the batch that was handed out last
        self._place_in_hand: dict[str, Any] | None = None  # where it goes on to give the batch in hand once more

    def __next__(self) -> Batch:
        # This comes first: a signal may end the wait for data at any point below.
        self._place_in_hand = self._next_place()
        if self._iterator is None:
            self._iterator = iter(self._source)
        if self._stream is None:
            return self._announced(self._to_device(next(self._iterator)))
        batch = self._ahead or self._fetch(self._iterator, self._stream)
        compute = torch.cuda.current_stream(self._device)
        self._done.append(compute.record_event())
        compute.wait_stream(self._stream)
        if batch.buffer is None:
            for tensor in allocations_with_plans(batch):
                tensor.record_stream(compute)
        # The next batch may be written where this one lies in host memory. This waits for a copy launched a step ago,
        # not for that step.
        if self._fetched is not None:
            self._fetched.synchronize()
        self._place_ahead = self._source.state_dict()
        self._ahead = self._fetch(self._iterator, self._stream)
        return batch

    def open(self) -> None:
        """Starts the source, which raises UserError for files that are not data."""
        self._source.open()

    @property
    def passes(self) -> Callable[[], int] | None:
        """Says how often the source has begun its data, the pass in hand included; None if it does not count."""
        source: Any = self._source
        return (lambda: int(source.epoch) + 1) if hasattr(source, "epoch") else None

    def finish(self) -> None:
        """The step with the batch in hand is complete; a state that is saved from now on goes on behind it."""
        self._place_in_hand = None

    def state_dict(self) -> dict[str, Any]:
        """State of the source such that the batch in hand comes next, or, where its step is complete, the one after
        it."""
        return self._next_place() if self._place_in_hand is None else self._place_in_hand

    def _next_place(self) -> dict[str, Any]:
        return self._source.state_dict() if self._ahead is None else self._place_ahead

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)
        self._ahead = self._iterator = self._place_in_hand = None
        # The batch that was dropped had its turn in the expander's memory: start afresh, behind all steps so far.
        self._done.clear()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def _fetch(self, iterator: Iterator[Batch | Tensor], stream: torch.cuda.Stream) -> Batch:
        fresh = next(iterator)
        with torch.cuda.stream(stream):
            if len(self._done) == self._done.maxlen:
                stream.wait_event(self._done[0])  # the step that used the memory of this batch before
            batch = self._announced(self._made(fresh))
            self._fetched = stream.record_event()
            return batch

    def _announced(self, batch: Batch) -> Batch:
        if self._on_fetch is not None and batch.buffer is not None:
            self._on_fetch(batch)
        return batch

    def _made(self, fresh: Batch | Tensor) -> Batch:
        """A batch on the device, with all that is prepared of it."""
        expander = self._expander
        if self._recorder is None or expander is None or isinstance(fresh, Batch):
            return self._kept(self._prepared(self._to_device(fresh)))
        records, batch = expander.load(fresh if self._part is None else self._part(fresh))
        if batch.buffer is None:
            return self._prepared(expander.expand(records, batch))
        return self._recorder(batch.buffer, lambda: self._prepared(expander.expand(records, batch)))

    def _prepared(self, batch: Batch) -> Batch:
        if self._prepare is None:
            return batch
        before = None
        if self._expander is not None and not self._expander.check_records:
            before = ops.set_index_check("off")  # rows of our own making are sound
        try:
            return self._prepare(batch)
        finally:
            if before is not None:
                ops.set_index_check(before)

    def _kept(self, batch: Batch) -> Batch:
        """The batch with its plans where those of its buffer always are: a recorded step reads them there."""
        if batch.buffer is None:
            return batch
        kept = self._plans.get(batch.buffer, ())
        if [(id(plan.white), plan.data.shape) for plan in kept] != [
            (id(plan.white), plan.data.shape) for plan in batch.plans
        ]:
            self._plans[batch.buffer] = batch.plans
            return batch
        for old, new in zip(kept, batch.plans, strict=True):
            old.data.copy_(new.data)
        return replace(batch, plans=kept)

    def _to_device(self, fresh: Batch | Tensor) -> Batch:
        fresh = fresh if self._part is None else self._part(fresh)
        if isinstance(fresh, Batch):
            return fresh if self._device.type == "cpu" else fresh.to(self._device, non_blocking=True)
        if self._expander is None:
            raise TypeError("DeviceBatches: the source gives packed records, so `features` must name a feature set")
        return self._expander(fresh)


def allocations(batch: Batch) -> list[Tensor]:
    """The tensors that hold a batch: its one allocation, or its fields where it has none."""
    whole = batch.allocation()
    return list(batch.fields().values()) if whole is None else [whole]


def allocations_with_plans(batch: Batch) -> list[Tensor]:
    """All that a step reads of a batch."""
    return [*allocations(batch), *(plan.data for plan in batch.plans)]


def like(batch: Batch) -> Batch:
    """A batch of the same size on the same device, in memory of its own and made up of the same allocations."""
    if batch.allocation() is None:
        return batch.clone()
    return Batch.allocate(len(batch), batch.white.shape[1]).to(batch.white.device)
