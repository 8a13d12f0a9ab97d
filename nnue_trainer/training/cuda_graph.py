"""A training step recorded as a CUDA graph and replayed, so that the host has one thing to launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.training.batches import allocations, allocations_with_plans, like
from nnue_trainer.training.recorder import Recorder


def _places(batch: Batch) -> list[int]:
    return [tensor.data_ptr() for tensor in allocations_with_plans(batch)]


class GraphedStep:
    """`step(batch)` without a result, whose effects are all on tensors of `device` that stay in place. Batches lie on
    `device`, ordered with its current stream, and must keep their shape. The first calls run eagerly; they train like
    any other.

    Batches that take turns in a few buffers are read where they lie: there is a graph per buffer. Any other batch is
    copied first, to where the one graph for all of these reads it. `alone` is that of `Recorder`.
    """

    def __init__(self, step: Callable[[Batch], None], device: torch.device, *, alone: bool = True):
        if device.type != "cuda":
            raise UserError(f"training.cuda_graph: found device {device}, expected a CUDA device")
        self._step = step
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = stream.device  # with its number, whatever the current device is later on
        self._recorder: Recorder[None] = Recorder(stream, share=True, alone=alone)
        self._read: dict[int | None, Batch] = {}  # what the graph of a buffer reads

    def __call__(self, batch: Batch) -> None:
        # The current device may be another one, and torch's streams and graphs are those of the current device.
        with torch.cuda.device(self._device):
            self._run(batch)

    def forget(self) -> None:
        """Frees the graphs; the next steps record them again. NCCL cannot close its connections while there is a graph
        that uses them."""
        self._recorder.forget()
        self._read.clear()

    def _run(self, batch: Batch) -> None:
        if self._recorder.settled:
            batch = self._to_read(batch)
        self._recorder(batch.buffer, lambda: self._step(batch))

    def _to_read(self, batch: Batch) -> Batch:
        """The batch that a graph reads, with the contents of this one."""
        read = self._read.get(batch.buffer)
        if batch.buffer is None:
            if read is None:
                read = self._read[None] = like(batch)
            for static, tensor in zip(allocations(read), allocations(batch), strict=True):
                static.copy_(tensor)
        elif read is None or _places(read) != _places(batch):
            self._recorder.forget(batch.buffer)
            read = self._read[batch.buffer] = batch
        return read
