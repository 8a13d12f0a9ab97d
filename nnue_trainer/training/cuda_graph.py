"""A training step recorded as a CUDA graph and replayed, so that the host has one thing to launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.training.batches import allocations, allocations_with_plans, like

EAGER_STEPS = 3  # torch's advice: libraries and the allocator settle before a capture


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    """the one it reads"""

    def reads(self, batch: Batch) -> bool:
        return _places(self.batch) == _places(batch)


def _places(batch: Batch) -> list[int]:
    return [tensor.data_ptr() for tensor in allocations_with_plans(batch)]


class GraphedStep:
    """`step(batch)` without a result, whose effects are all on tensors of `device` that stay in place. Batches lie on
    `device`, ordered with its current stream, and must keep their shape. The first calls run eagerly; they train like
    any other.

    Batches that take turns in a few buffers are read where they lie: there is a graph per buffer. The graphs use the
    same memory for what they compute, which nobody reads after the step. Any other batch is copied first, to where the
    one graph for all of these reads it.
    """

    def __init__(self, step: Callable[[Batch], None], device: torch.device, *, alone: bool = True):
        """`alone`: no other thread of this process calls CUDA. NCCL has one that asks how collectives are doing, which
        a capture would otherwise take for an error."""
        if device.type != "cuda":
            raise UserError(f"training.cuda_graph: found device {device}, expected a CUDA device")
        self._step = step
        self._error_mode = "global" if alone else "thread_local"
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = self._stream.device  # with its number, whatever the current device is later on
        self._calls = 0
        self._recordings: dict[int | None, _Recording] = {}  # by buffer

    def __call__(self, batch: Batch) -> None:
        # The current device may be another one, and torch's streams and graphs are those of the current device.
        with torch.cuda.device(self._device):
            self._run(batch)

    def forget(self) -> None:
        """Frees the graphs; the next steps record them again. NCCL cannot close its connections while there is a graph
        that uses them."""
        self._recordings.clear()

    def _run(self, batch: Batch) -> None:
        self._calls += 1
        if self._calls <= EAGER_STEPS:
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                self._step(batch)
            current.wait_stream(self._stream)
            return
        recording = self._recordings.get(batch.buffer)
        if recording is None or (batch.buffer is not None and not recording.reads(batch)):
            recording = self._record(like(batch) if batch.buffer is None else batch)
            self._recordings[batch.buffer] = recording
        if batch.buffer is None:
            for static, tensor in zip(allocations(recording.batch), allocations(batch), strict=True):
                static.copy_(tensor)
        recording.graph.replay()

    def _record(self, batch: Batch) -> _Recording:
        """Records the step without running it."""
        graph = torch.cuda.CUDAGraph()
        pool = next((recording.graph.pool() for recording in self._recordings.values()), None)
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode=self._error_mode):
            self._step(batch)
        return _Recording(graph, batch)
