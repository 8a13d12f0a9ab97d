"""Batches on the device, one ahead of the step that uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from nnue_trainer.data.batch import Batch


class BatchSource(Protocol):
    """A stream of batches in host memory, such as `nnue_trainer.data.Loader`. A batch stays valid until the one after
    the next is asked for. `state_dict` is plain JSON data; a stream that loads it goes on with the very next batch."""

    def open(self) -> None: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DeviceBatches:
    """The batches of `source`, which must be endless, on `device`. For CUDA the next one is copied on a stream of its
    own, from pinned memory, while the step for this one runs."""

    def __init__(self, source: BatchSource, device: torch.device):
        self._source = source
        self._device = device
        self._iterator: Iterator[Batch] | None = None
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ahead: Batch | None = None
        self._state_before_ahead: dict[str, Any] = {}

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = iter(self._source)
        if self._stream is None:
            return next(self._iterator)
        batch = self._ahead or self._copy_next(self._iterator, self._stream)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_stream(self._stream)
        for tensor in allocations(batch):
            tensor.record_stream(compute)
        # The next batch may be written where this one lies in host memory. This waits for a copy launched a step ago,
        # never for the step.
        self._stream.synchronize()
        self._state_before_ahead = self._source.state_dict()
        self._ahead = self._copy_next(self._iterator, self._stream)
        return batch

    def open(self) -> None:
        """Starts the source, which raises UserError for files that are not data."""
        self._source.open()

    def state_dict(self) -> dict[str, Any]:
        """State of the source such that the batch fetched ahead comes next."""
        return self._source.state_dict() if self._ahead is None else self._state_before_ahead

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)
        self._ahead = self._iterator = None

    def _copy_next(self, iterator: Iterator[Batch], stream: torch.cuda.Stream) -> Batch:
        with torch.cuda.stream(stream):
            return next(iterator).to(self._device, non_blocking=True)


def allocations(batch: Batch) -> list[Tensor]:
    """The tensors that hold a batch: its one allocation, or its fields where it has none."""
    if batch.storage is not None:
        return [batch.storage]
    return [field for field in vars(batch).values() if field is not None]


def like(batch: Batch) -> Batch:
    """A batch of the same size on the same device, in memory of its own and made up of the same allocations."""
    if batch.storage is None:
        return Batch(**{name: field.clone() for name, field in vars(batch).items() if field is not None})
    return Batch.allocate(len(batch), batch.white.shape[1]).to(batch.white.device)
