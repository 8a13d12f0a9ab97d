"""The processes of one run, as torchrun starts them: their numbers, their exchanges and their common decisions.

A process enters by `joined()`; other code asks `current()`, which is a single process outside of it. Tensors on a GPU
are exchanged by NCCL, tensors on the CPU by gloo. The host decides some things: when to stop, when to save, which loss
is the best. It does so by `agree`, `any` and `same`, so that all ranks do the same thing after the same step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nnue_trainer.errors import UserError, first_line, out_of_memory, quoted, shown
from nnue_trainer.parallel.watch import Watch

_SECONDS_BETWEEN = 0.2  # exchanges of `agree`
_MOST_BETWEEN = 256  # calls of it
_SECONDS_TO_MEET = 10.0
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# torch 2.13 has new names for them, and warns of the old ones.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Ranks:
    """`size` processes, of which this one is `rank`; `local_size` of them are on this machine, this one `local_rank`.
    Without `watch` there is a single one."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1, watch: Any = None):
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self._watch: Watch | None = watch
        self._until_exchange = 0
        self._calls = 0
        self._exchanged = time.monotonic()
        self._releases: list[weakref.WeakMethod[Callable[[], None]]] = []

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def writes(self) -> bool:
        """Whether this process has the run folder, the terminal and the progress line."""
        return self.rank == 0

    # ---- tensors, on the device of the training ----

    def reduce_scatter(self, whole: Tensor) -> Tensor:
        """[size · m, …] of each rank → the sum over all ranks of rows rank · m to (rank + 1) · m."""
        part = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        with self._explaining():
            _reduce_scatter(part, whole)
        return part

    def all_gather(self, part: Tensor) -> Tensor:
        """[…] of each rank, equally large → [size, …] on all, in the order of the ranks."""
        every = part.new_empty(self.size * part.numel())
        with self._explaining():
            _all_gather(every, part.contiguous().view(-1))
        return every.view(self.size, *part.shape)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place; the same bits on all."""
        with self._explaining():
            dist.all_reduce(tensor)
        return tensor

    def gather(self, part: Tensor) -> list[Tensor] | None:
        """Equally large tensors of all ranks, on rank 0."""
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else None
        with self._explaining():
            dist.gather(part.contiguous(), parts)
        return parts

    # ---- decisions of the host ----

    def agree(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """Whether the run stops here, if any rank wants to, and whether it saves, if rank 0 wants to.

        All ranks must call this equally often. They exchange their wishes a few times per second and not in every call,
        because that would slow down short steps. In between the answer is no."""
        if not self.several:
            return stop, save
        self._calls += 1
        if self._until_exchange > 0:
            self._until_exchange -= 1
            return False, False
        now = time.monotonic()
        pace = self._calls * _SECONDS_BETWEEN / max(now - self._exchanged, 1e-6)
        self._calls, self._exchanged = 0, now
        wishes = self.all_gather(torch.tensor([int(stop), int(save), min(int(pace), _MOST_BETWEEN)]))
        self._until_exchange = int(wishes[0, 2])
        return bool(wishes[:, 0].any()), bool(wishes[0, 1])

    def any(self, flag: bool) -> bool:
        """Whether the flag of any rank is set."""
        return flag if not self.several else bool(self.all_gather(torch.tensor([int(flag)])).any())

    def same(self, value: float) -> float:
        """Returns the value of rank 0."""
        return value if not self.several else float(self.all_gather(torch.tensor([value], dtype=torch.float64))[0])

    def least(self, value: int) -> int:
        """Returns the smallest value of all ranks."""
        return value if not self.several else int(self.all_gather(torch.tensor([value])).min())

    def check_same(self, what: str, value: object) -> None:
        """UserError unless all ranks have the same plain data. `what` is for the message."""
        if not self.several:
            return
        text = json.dumps(value, sort_keys=True, default=str).encode()
        digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
        if len(set(self.all_gather(torch.tensor([digest])).flatten().tolist())) > 1:
            raise UserError(f"train: the processes do not have the same {what}")

    def meet(self, key: str) -> bool:
        """Whether all ranks come to the same place in time. Use it after an error, which may concern one rank alone."""
        return self._watch is None or self._watch.meet(key, _SECONDS_TO_MEET)

    def speak(self) -> None:
        """Says that this process has met an error and will save before it ends, so that the others wait for it."""
        if self._watch is not None:
            self._watch.speak()

    def before_end(self, release: Callable[[], None]) -> None:
        """`release`, a method, is called before the connections are closed if its object is still there."""
        if self.several:
            self._releases.append(weakref.WeakMethod(release))

    def release(self) -> None:
        """Calls what `before_end` was given."""
        for reference in self._releases:
            release = reference()
            if release is not None:
                release()
        self._releases.clear()

    def on_loss(self, hint: Callable[[], str]) -> None:
        """`hint` gives the end of the message about a lost rank. It is called from a thread, and it may be slow."""
        if self._watch is not None:
            self._watch.hint = hint

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if self._watch is None or isinstance(error, NotImplementedError) or out_of_memory(error):
                raise
            # Most likely a rank has ended. Then the watch notices too, prints the message and ends this process.
            time.sleep(_SECONDS_TO_MEET)
            while self._watch.ends_process:
                time.sleep(1.0)
            what = f"train: an exchange between the processes failed: {shown(first_line(error))[:200]}"
            raise UserError(what) from None


_current = Ranks()


def current() -> Ranks:
    """The ranks that this process has joined."""
    return _current


@contextmanager
def joined() -> Iterator[Ranks]:
    """Connects this process with the others that torchrun has started, until the end of the block. Without torchrun it
    is a single process. An error in the block ends all processes, with one message."""
    global _current  # a process has one
    if _current.several or os.environ.get("WORLD_SIZE", "1") == "1":
        yield _current
        return
    ranks = _join()
    watch = ranks._watch
    assert watch is not None
    _current = ranks
    try:
        yield ranks
        # No rank may close its connections while another one still uses them.
        ranks.any(False)
    except BaseException as error:
        own = isinstance(error, UserError)
        watch.fail(str(error) if own else f"{type(error).__name__}: {error}"[:500])
        ranks.release()
        raise
    else:
        watch.finish()
        ranks.release()
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    finally:
        _current = Ranks()


def _join() -> Ranks:
    rank, size, local_rank, local_size = _numbers()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    host = "127.0.0.1" if local_size == size else os.environ["MASTER_ADDR"]

    def exchange(port: int, token: int) -> tuple[int, int]:
        numbers = torch.tensor([port, token])
        dist.broadcast(numbers, 0)
        return int(numbers[0]), int(numbers[1])

    try:
        dist.init_process_group(backend, rank=rank, world_size=size)
        watch = Watch(rank, size, host, exchange)
    except (RuntimeError, ValueError) as error:
        what = f"train: rank {rank} of {size} cannot join the others: {shown(first_line(error))[:200]}"
        raise UserError(what) from None
    return Ranks(rank, size, local_rank, local_size, watch)


def _numbers() -> tuple[int, int, int, int]:
    """rank, size, local rank, local size, as torchrun says them."""
    size = os.environ["WORLD_SIZE"]
    for name in _VARIABLES:
        value = os.environ.get(name, "")
        if name != "MASTER_ADDR" and not (value.isascii() and value.isdecimal() and len(value) < 10):
            found = quoted(value) if value else "nothing"
            raise UserError(
                f"train: WORLD_SIZE is {shown(size)[:20]}, but {name} is {found}: start several processes with "
                "torchrun --nproc-per-node N train.py --config RECIPE"
            )
    numbers = tuple(int(os.environ[name]) for name in _VARIABLES[:4])
    if not 0 <= numbers[0] < numbers[1] or not 0 <= numbers[2] < numbers[3] <= numbers[1]:
        raise UserError(f"train: found {', '.join(f'{n}={v}' for n, v in zip(_VARIABLES, numbers, strict=False))}")
    return numbers[0], numbers[1], numbers[2], numbers[3]
