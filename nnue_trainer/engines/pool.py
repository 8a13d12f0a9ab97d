"""Several engines that work on numbered tasks, with results in the order of the tasks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from nnue_trainer.engines.uci import Engine
from nnue_trainer.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_order(
    engines: Sequence[Engine], tasks: Iterator[Task], work: Callable[[Engine, Task], Result]
) -> Generator[Result, None, None]:
    """`work(engine, task)` for each of `tasks`, by whichever engine is free, each in a separate thread. Close the
    generator to end early. The engines are killed at the end, however it comes. An error of a task is raised when it is
    found; UserError if the system gives no thread."""
    lock, stop = threading.Lock(), threading.Event()
    done: queue.Queue[tuple[int, Result | BaseException]] = queue.Queue()
    numbered = enumerate(tasks)
    taken = ended = 0

    def take_tasks(engine: Engine) -> None:
        nonlocal taken
        number = -1
        try:
            while not stop.is_set():
                with lock:
                    item = next(numbered, None)
                    if item is None:
                        break
                    number, task = item
                    taken += 1
                done.put((number, work(engine, task)))
        except BaseException as error:
            done.put((number, error))
        else:
            done.put((-1, EndOfTasks()))

    threads = [threading.Thread(target=take_tasks, args=(engine,), daemon=True) for engine in engines]
    waiting: dict[int, Result] = {}
    given = 0
    try:
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:  # the limit of processes
            raise UserError(f"{error}; give a smaller --concurrency") from None
        while ended < len(threads) or given < taken:
            number, result = done.get()
            if isinstance(result, EndOfTasks):
                ended += 1
                continue
            if isinstance(result, BaseException):
                raise result
            waiting[number] = result
            while given in waiting:
                yield waiting.pop(given)
                given += 1
    finally:
        stop.set()
        for engine in engines:
            engine.kill()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class EndOfTasks(BaseException):
    """An engine has found no more tasks."""
