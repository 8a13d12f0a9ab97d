"""Batches on the device, one ahead of the step that uses them."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from nnue_trainer.data.batch import Batch


class BatchSource(Protocol):
    """An endless stream of batches in host memory. A batch is valid until the next one is asked for. `state_dict` is
    plain JSON data; a stream that loads it continues with the very next batch."""

    def __next__(self) -> Batch: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DeviceBatches:
    """The batches of `source` on `device`. For CUDA the next one is copied on a stream of its own, from pinned memory,
    while the step for this one runs."""

    def __init__(self, source: BatchSource, device: torch.device):
        self._source = source
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ahead: Batch | None = None
        self._state_before_ahead: dict[str, Any] = {}

    def __next__(self) -> Batch:
        if self._stream is None:
            return next(self._source)
        batch = self._ahead or self._fetch(self._stream)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_stream(self._stream)
        for tensor in allocations(batch):
            tensor.record_stream(compute)
        # The host waits here for a copy, never for the step that was launched before.
        self._state_before_ahead = self._source.state_dict()
        self._ahead = self._fetch(self._stream)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """State of the source such that the batch fetched ahead comes next."""
        return self._source.state_dict() if self._ahead is None else self._state_before_ahead

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)
        self._ahead = None

    def _fetch(self, stream: torch.cuda.Stream) -> Batch:
        with torch.cuda.stream(stream):
            batch = next(self._source).to(self._device, non_blocking=True)
        # The source may write its next batch into the same memory.
        stream.synchronize()
        return batch


def allocations(batch: Batch) -> list[Tensor]:
    """The tensors that hold a batch: its one allocation, or its fields where it has none."""
    tensors = vars(batch).values() if getattr(batch, "storage", None) is None else [batch.storage]
    return [tensor for tensor in tensors if tensor is not None]
