"""A step on a device that is not the current one: every stream, event and graph is that device's."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from made_up import MadeUpSource, made_up_batch
from typed import batch_from

from nnue_trainer.data.batch import Batch
from nnue_trainer.training.batches import DeviceBatches
from nnue_trainer.training.cuda_graph import GraphedStep
from nnue_trainer.training.recorder import EAGER_CALLS, Recorder


class FakeStream:
    """A stream that has its device, and refuses to wait for another device's stream."""

    def __init__(self, cuda: FakeCuda, device: torch.device) -> None:
        self.cuda, self.device = cuda, device

    def wait_stream(self, other: FakeStream) -> None:
        assert self.device == other.device, f"a stream of {self.device} waits for one of {other.device}"
        self.cuda.waits += 1


class FakeCuda:
    """The part of `torch.cuda` that a graphed step uses, with two devices of which 0 is current."""

    def __init__(self, *, share: bool = True) -> None:
        self.share = share
        self.current = 0
        self.waits = self.captures = self.replays = 0
        self.error_mode = ""
        self.streams: dict[int, FakeStream] = {}

    def number(self, device: Any) -> int:
        index = torch.device(device).index if device is not None else None
        return self.current if index is None else index

    def Stream(self, device: Any = None) -> FakeStream:
        return FakeStream(self, torch.device("cuda", self.number(device)))

    def current_stream(self, device: Any = None) -> FakeStream:
        number = self.number(device)
        return self.streams.setdefault(number, FakeStream(self, torch.device("cuda", number)))

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self.current = self.current, self.number(device)
        yield
        self.current = before

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current, self.current_stream(stream.device)
        self.current, self.streams[stream.device.index] = stream.device.index, stream
        yield
        self.current, self.streams[stream.device.index] = before

    def CUDAGraph(self) -> FakeCuda:
        return self

    @contextmanager
    def graph(self, graph: FakeCuda, pool: str | None, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        self.error_mode = capture_error_mode
        shared = self.pool() if self.captures and self.share else None
        assert pool == shared, "whether recordings share their memory"
        assert self.current == stream.device.index, f"a capture for {stream.device} while {self.current} is current"
        self.captures += 1
        with self.stream(stream):
            yield

    def pool(self) -> str:
        return "pool"

    def replay(self) -> None:
        assert self.current == 1, f"a graph of device 1 is launched on a stream of device {self.current}"
        self.replays += 1


def test_a_graphed_step_asks_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    current: list[int] = []
    step = GraphedStep(lambda batch: current.append(fake.current), torch.device("cuda:1"))
    batch = made_up_batch(0)
    for _ in range(EAGER_CALLS + 3):
        step(batch)
    assert current == [1] * (EAGER_CALLS + 1)
    assert (fake.waits, fake.captures, fake.replays) == (2 * EAGER_CALLS, 1, 3)
    assert (fake.current, fake.error_mode) == (0, "thread_local")


def test_a_recorder_keeps_the_result_of_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(share=False)
    monkeypatch.setattr(torch, "cuda", fake)
    recorder: Recorder[object] = Recorder(fake.Stream("cuda:1"), share=False)  # type: ignore[arg-type]
    calls: list[int] = []

    def work(key: int) -> object:
        calls.append(key)
        return object()

    with fake.device("cuda:1"):
        first = [recorder(0, lambda: work(0)) for _ in range(EAGER_CALLS)]
        assert (len(set(first)), fake.captures, recorder.warm) == (EAGER_CALLS, 0, True)
        results = {key: recorder(key, lambda key=key: work(key)) for key in (0, 1)}  # type: ignore[misc]
        for key in (1, 0, 1):
            assert recorder(key, lambda: pytest.fail("is replayed")) is results[key]
        assert (calls[EAGER_CALLS:], fake.captures, fake.replays) == ([0, 1], 2, 5)
        recorder.forget(1)
        assert recorder(1, lambda: work(1)) is not results[1]
        assert recorder(0, lambda: pytest.fail("is replayed")) is results[0]


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_during_a_capture(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    """Garbage of an earlier run may include graphs, and to free one makes a capture fail."""
    fake = FakeCuda(share=False)
    monkeypatch.setattr(torch, "cuda", fake)
    recorder: Recorder[None] = Recorder(fake.Stream("cuda:1"), share=False)  # type: ignore[arg-type]
    seen: list[bool] = []

    def fails() -> None:
        raise ZeroDivisionError

    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with fake.device("cuda:1"):
            for _ in range(EAGER_CALLS + 1):
                recorder(0, lambda: seen.append(gc.isenabled()))
            assert seen == [enabled] * EAGER_CALLS + [False]
            with pytest.raises(ZeroDivisionError):
                recorder(1, fails)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_graphed_step_is_recorded_once_per_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is recorded again if a buffer has other memory than before. Batches without a buffer share a recording."""
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    read: list[int] = []
    step = GraphedStep(lambda batch: read.append(batch.white.data_ptr()), torch.device("cuda:1"))
    buffers = [replace(made_up_batch(i), buffer=i) for i in range(3)]
    for _ in range(EAGER_CALLS):
        step(buffers[0])
    read.clear()
    for i in (0, 1, 2, 0, 1, 2):
        step(buffers[i])
    assert read == [batch.white.data_ptr() for batch in buffers]
    moved = replace(made_up_batch(5), buffer=1)
    step(moved)
    step(moved)
    assert read[3:] == [moved.white.data_ptr()]
    for i in (7, 8):
        step(made_up_batch(i))
    assert len(read) == 5
    assert fake.replays == 10


def test_a_device_without_a_number_is_the_one_that_was_current(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    fake.current = 1
    monkeypatch.setattr(torch, "cuda", fake)
    step = GraphedStep(lambda batch: None, torch.device("cuda"))
    fake.current = 0
    for _ in range(EAGER_CALLS + 1):
        step(made_up_batch(0))
    assert fake.replays == 1


@pytest.mark.cuda
@pytest.mark.two_gpus
def test_batches_and_a_graphed_step_on_the_second_device() -> None:
    """The batch is ready only after long work on the second device; device 0 stays current."""
    device = torch.device("cuda:1")
    batches = DeviceBatches(MadeUpSource(), device, "Chess768")
    sums = torch.zeros((), dtype=torch.int64, device=device)

    def step(batch: Batch) -> None:
        sums.add_(batch.white.sum())

    graphed = GraphedStep(step, device)
    expected = 0
    with torch.cuda.device(0):
        for index in range(EAGER_CALLS + 5):
            batch = next(batches)
            assert batch.white.device == device
            with torch.cuda.device(device):
                torch.cuda._sleep(20_000_000)
            late = batch_from({name: value.clone() for name, value in batch.fields().items()})
            graphed(late)
            expected += int(made_up_batch(index).white.sum())
        assert torch.cuda.current_device() == 0
    assert int(sums) == expected
