"""Several processes of one run, as torchrun starts them, without its price: a server that has imported everything is
forked for each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ports import free_port
from waiting import SECONDS, wait_for

_LATER = (
    "nnue_trainer.files.presets",
    "nnue_trainer.files.compile_once",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.onnx",
)


class Processes:
    """`size` processes that call `function(*arguments)`, with `said` as their standard error."""

    def __init__(self, size: int, folder: Path, function: Callable[..., None], *arguments: Any):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["nnue_trainer.cli.main", "nnue_trainer.training.run", *_LATER])
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self._outputs = [folder / f"said-{rank}.txt" for rank in range(size)]
        self.processes = [
            context.Process(target=_work, args=(rank, size, port, output, function, arguments), daemon=True)
            for rank, output in enumerate(self._outputs)
        ]
        for process in self.processes:
            process.start()

    def wait(self) -> list[int | None]:
        """Their exit statuses."""
        until = time.monotonic() + SECONDS
        for process in self.processes:
            process.join(max(until - time.monotonic(), 0.0))
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        assert None not in codes, f"{codes}: a process has not ended\n{self.said()}"
        return codes

    def said(self) -> str:
        """The output of all processes."""
        return "".join(path.read_text() for path in self._outputs if path.exists())

    def signal(self, number: int, *ranks: int) -> None:
        for rank in ranks or range(len(self.processes)):
            os.kill(self.processes[rank].pid or 0, number)

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that the run does."""
        wait_for(lambda: condition() or not all(process.is_alive() for process in self.processes))
        assert condition(), self.said()


def train(size: int, folder: Path, *arguments: object) -> str:
    """`nnue train` in several processes: what they printed. It has to end well."""
    processes = training(size, folder, *arguments)
    codes = processes.wait()
    assert codes == [0] * size, processes.said()
    return processes.said()


def training(size: int, folder: Path, *arguments: object) -> Processes:
    return Processes(size, folder, _nnue, "train", *map(str, arguments))


def _nnue(*arguments: str) -> None:
    from nnue_trainer.cli.main import main

    sys.argv = ["nnue", *arguments]
    main()


def _work(
    rank: int, size: int, port: int, output: Path, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    import torch

    torch.set_num_threads(1)
    function(*arguments)
