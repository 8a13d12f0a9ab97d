"""Work on whole files, on all CPUs, one file in a thread: the data library computes without the interpreter's lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from nnue_trainer.base.system import usable_cpus
from nnue_trainer.data.files import Progress
from nnue_trainer.errors import UserError

S = TypeVar("S")
T = TypeVar("T")


def in_order(work: Callable[[S, Progress], T], items: Sequence[S], progress: Progress) -> Iterator[T]:
    """The results of `work` for each item, in their order. `work` calls its second argument now and then with the bytes
    done and in all of its item. `progress` takes the sums. What is left ends when the iteration does."""
    sums: dict[int, tuple[int, int]] = {}
    ending = threading.Event()

    def one(number: int) -> T:
        def show(done: int, total: int) -> None:
            if ending.is_set():
                raise UserError("stopped")
            sums[number] = (done, total)

        return work(items[number], show)

    def show_all() -> None:
        known = list(sums.values())
        if known:
            done, total = (sum(column) for column in zip(*known, strict=True))
            progress(done, total * len(items) // len(known))

    if len(items) == 1:
        yield work(items[0], progress)
        return
    pool = ThreadPoolExecutor(max(1, usable_cpus()))
    futures: deque[Future[T]] = deque()
    try:
        for number in range(len(items)):
            futures.append(pool.submit(one, number))
            while len(futures) > 2 * usable_cpus() or (futures and number + 1 == len(items)):
                while wait([futures[0]], 0.1).not_done:
                    show_all()
                yield futures.popleft().result()
    finally:
        ending.set()
        pool.shutdown(cancel_futures=True)
