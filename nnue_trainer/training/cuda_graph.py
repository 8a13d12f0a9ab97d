"""Records a training step as a CUDA graph and replays it, so that the host launches one graph and not every kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.training.recorder import Recorder


def _places(batch: Batch) -> list[int]:
    return [tensor.data_ptr() for tensor in batch.memory()]


class GraphedStep:
    """Calls `step(batch)`: the first times directly, then by a CUDA graph.

    Each buffer of batches (`Batch.buffer`) has a separate graph, which reads the batch in place. A batch without a
    buffer is copied to a fixed place, which one graph reads for all such batches.
    """

    def __init__(self, step: Callable[[Batch], None], device: torch.device):
        """UserError if `device` is not a CUDA device."""
        if device.type != "cuda":
            raise UserError(f"training.cuda_graph: found device {device}, expected a CUDA device")
        self._step = step
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = stream.device  # has an index, so a later change of the current device does not matter
        self._recorder: Recorder[None] = Recorder(stream, share=True)
        self._read: dict[int | None, Batch] = {}  # by buffer: the batch whose memory its graph reads

    def __call__(self, batch: Batch) -> None:
        # torch creates streams and graphs on the current device, which may be another one here.
        with torch.cuda.device(self._device):
            read = self._to_read(batch) if self._recorder.warm else batch
            self._recorder(batch.buffer, lambda: self._step(read))

    def forget(self) -> None:
        """Frees the graphs; the next steps record them again. NCCL cannot close its connections while a graph uses
        them."""
        self._recorder.forget()
        self._read.clear()

    def _to_read(self, batch: Batch) -> Batch:
        """The batch that a graph reads, with the contents of this one."""
        read = self._read.get(batch.buffer)
        if batch.buffer is None:
            if read is None:
                read = self._read[None] = batch.clone()
            for static, tensor in zip(read.allocations(), batch.allocations(), strict=True):
                static.copy_(tensor)
        elif read is not batch and (read is None or _places(read) != _places(batch)):
            self._recorder.forget(batch.buffer)
            read = self._read[batch.buffer] = batch
        return read
