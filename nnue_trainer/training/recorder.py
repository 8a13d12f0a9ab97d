"""Work of a device recorded as CUDA graphs and replayed, so that the host has one thing to launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

EAGER_CALLS = 3  # torch's advice: libraries and the allocator settle before a capture

Result = TypeVar("Result")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Objects of an earlier run in this process may include graphs. Freeing one makes a capture fail, and the collector
    may come at any time. For one capture at a time: the first to end switches the collector on again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Recorder(Generic[Result]):
    """Calls `work` on `stream`: the first times as it is, later as a CUDA graph, one for each key. What `work` launches
    for a key must be the same every time, on tensors that stay in place. Its result is then that of the recording,
    whose tensors every replay writes again.

    With `share` all graphs use the same memory for their results, which must not be read after the next call;
    without it a recorded result is valid until the next call with the same key. A result that is not recorded belongs
    to the caller, who must keep it until all queued work that reads it is done.

    Other threads of this process may call CUDA meanwhile. NCCL's own thread does.
    """

    def __init__(self, stream: torch.cuda.Stream, *, share: bool):
        self._stream = stream
        self._share = share
        self._calls = 0
        self._recordings: dict[Hashable, tuple[torch.cuda.CUDAGraph, Result]] = {}

    @property
    def warm(self) -> bool:
        """Whether the next call is recorded or replayed."""
        return self._calls >= EAGER_CALLS

    def __call__(self, key: Hashable, work: Callable[[], Result]) -> Result:
        """Queues the work after what the current stream has queued, and the current stream waits for it."""
        if not self.warm:
            self._calls += 1
            current = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                result = work()
            current.wait_stream(self._stream)
            return result
        if key not in self._recordings:
            self._recordings[key] = self._record(work)
        graph, result = self._recordings[key]
        graph.replay()
        return result

    def _record(self, work: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Records the work without running it."""
        graph = torch.cuda.CUDAGraph()
        pool = next((graph.pool() for graph, _ in self._recordings.values()), None) if self._share else None
        capture = torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local")
        with _no_garbage_collection(), capture:
            result = work()
        return graph, result

    def forget(self, key: Hashable | None = None) -> None:
        """Frees the graph of a key, or all; the next calls record them again."""
        if key is None:
            self._recordings.clear()
        else:
            self._recordings.pop(key, None)
