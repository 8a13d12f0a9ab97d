"""A training step recorded once as a CUDA graph and replayed, so that the host has one thing to launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.training.batches import allocations, like

EAGER_STEPS = 3  # torch's advice: libraries and the allocator settle before a capture


class GraphedStep:
    """`step(batch)` without a result, whose effects are all on tensors of `device` that stay in place. Batches lie on
    `device`, ordered with its current stream, and must keep their shape. The first calls run eagerly; they train like
    any other."""

    def __init__(self, step: Callable[[Batch], None], device: torch.device):
        if device.type != "cuda":
            raise UserError(f"training.cuda_graph: found device {device}, expected a CUDA device")
        self._step = step
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = self._stream.device  # with its number, whatever the current device is later on
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None

    def __call__(self, batch: Batch) -> None:
        # The current device may be another one, and torch's streams and graphs are those of the current device.
        with torch.cuda.device(self._device):
            self._run(batch)

    def _run(self, batch: Batch) -> None:
        self._calls += 1
        if self._calls <= EAGER_STEPS:
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                self._step(batch)
            current.wait_stream(self._stream)
            return
        if self._graph is None or self._batch is None:
            self._batch = like(batch)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):  # records; nothing is computed yet
                self._step(self._batch)
        for static, tensor in zip(allocations(self._batch), allocations(batch), strict=True):
            static.copy_(tensor)
        self._graph.replay()
