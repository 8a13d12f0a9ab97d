"""The processes of one run, as torchrun starts them: their ranks, their exchanges and their common decisions.

A process connects to the others by `joined()`, which yields the ranks; `Ranks()` is a single process. Tensors on a GPU
are exchanged by NCCL, tensors on the CPU by gloo. Decisions of the host, such as when to stop or to save and which loss
is the best one, are made by `agree`, `any` and `same`, so that all ranks decide the same after the same step."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nnue_trainer.base import foreign, limits, status
from nnue_trainer.errors import UserError, bounded, first_line, out_of_memory, quoted, shown
from nnue_trainer.training.parallel.watch import Watch

_SECONDS_BETWEEN = 0.2  # the intended time between two exchanges of `agree`
_MOST_FIELDS = 10_000  # of a value that differs: those that ranks exchange to compare
_MOST_NAMED = 3
_MOST_BETWEEN = 256  # the largest number of calls of `agree` between two exchanges
_SECONDS_TO_MEET = 10.0
# The watch looks after lost ranks. torch would end processes that wait for another one 10 minutes (NCCL) or 30 (gloo),
# for example while rank 0 waits for a full disk or plays a match. Exchanges in recorded steps have no limit either.
_LONGEST_WAIT = timedelta(days=30)
_SECONDS_TO_SAY = 10.0  # before a line names who is missing
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_default_group: Callable[[], dist.ProcessGroup] = dist.distributed_c10d._get_default_group
# torch 2.13 has a new name for this function, and warns about the old name.
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_TCPStore: Any = dist.TCPStore
_PrefixStore: Any = dist.PrefixStore
_AllgatherOptions: Any = dist.distributed_c10d.AllgatherOptions


class Ranks:
    """The `size` processes of a run, of which this one has the number `rank`. `local_size` of them are on this machine,
    where this one has the number `local_rank`. `watch` connects several processes; a single one has none. `hosts`: the
    names of their machines, for messages."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        local_size: int = 1,
        watch: Any = None,
        hosts: Sequence[str] = (),
    ):
        self.rank, self.size = rank, size
        self._hosts = hosts
        self.local_rank, self.local_size = local_rank, local_size
        self._watch: Watch | None = watch
        self._until_exchange = 0
        self._calls = 0
        self._exchanged = time.monotonic()
        self._releases: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._own_group: dist.ProcessGroup | None = None
        self._in_graphs: set[dist.ProcessGroup] = set()  # those of which CUDA graphs contain exchanges

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def writes(self) -> bool:
        """Whether this process writes the run folder and prints; only rank 0 does."""
        return self.rank == 0

    # ---- exchanges of tensors, on the training device; all ranks must call these together ----

    @contextmanager
    def reduce_scatter(self, whole: Tensor) -> Iterator[Tensor]:
        """Adds the tensors [size · m, …] of all ranks, and gives rows rank · m to (rank + 1) · m of the sum. They are
        complete after the block, whose own work runs beside the exchange."""
        part = whole.new_empty(whole.shape[0] // self.size, *whole.shape[1:])
        with self._exchanging(whole, _default_group()):
            work = _reduce_scatter(part, whole, async_op=True)
        yield part
        with self._explaining():
            work.wait()

    def all_gather(self, part: Tensor) -> Tensor:
        """Stacks the tensors […] of all ranks, which have one shape, in the order of the ranks: [size, …] on each."""
        return self.all_gather_each([part])[0]

    def all_gather_each(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """`all_gather` of several tensors in one exchange: of each the parts of all ranks."""
        every = [part.new_empty(self.size, *part.shape) for part in parts]
        self._gather_into(every, [part.contiguous() for part in parts], _default_group())
        return every

    def complete(self, wholes: Sequence[Tensor]) -> None:
        """Fills tensors [size · m, …], of which each rank has rows rank · m to (rank + 1) · m, with the rows of all
        ranks, in one exchange. On a GPU it has a separate connection, so it may run beside the other exchanges, in
        any order."""
        rows = [len(whole) // self.size for whole in wholes]
        own = [whole[self.rank * m : (self.rank + 1) * m] for whole, m in zip(wholes, rows, strict=True)]
        self._gather_into(wholes, own, self._group_of_its_own(wholes[0].device))

    def _gather_into(self, wholes: Sequence[Tensor], parts: Sequence[Tensor], group: dist.ProcessGroup) -> None:
        """Writes the contiguous `parts` of all ranks into `wholes`. They cross as bytes, so any dtype will do."""
        into, sent = ([tensor.view(-1).view(torch.uint8) for tensor in tensors] for tensors in (wholes, parts))
        options: Any = _AllgatherOptions()
        options.asyncOp = False  # on the current stream
        with self._exchanging(parts[0], group):
            work = group.allgather_into_tensor_coalesced(into, sent, options)
            if work is not None:
                work.wait()

    def _group_of_its_own(self, device: torch.device) -> dist.ProcessGroup:
        """The process group of `complete`. Two streams must not share a connection of NCCL, so for GPUs it is another
        one than that of all other exchanges; all ranks make it at their first call."""
        if device.type != "cuda":
            return _default_group()  # on a CPU all exchanges are in the order of the program
        if self._own_group is None:
            with self._explaining():
                self._own_group = dist.new_group(backend="nccl", timeout=_LONGEST_WAIT)
        return self._own_group

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Adds the tensors of all ranks, in place. All ranks get the same bits."""
        with self._exchanging(tensor, _default_group()):
            dist.all_reduce(tensor)
        return tensor

    def maximum(self, tensor: Tensor) -> Tensor:
        """The largest value of all ranks for each element of a tensor on the CPU, in place."""
        if self.several:
            with self._exchanging(tensor, _default_group()):
                dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def gather(self, part: Tensor) -> list[Tensor] | None:
        """On rank 0 the tensors of all ranks, which have one shape; None on the other ranks."""
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else None
        with self._exchanging(part, _default_group()):
            dist.gather(part.contiguous(), parts)
        return parts

    def at_first(self, tensor: Tensor) -> Iterator[Tensor]:
        """On rank 0 the tensors [any length] of the other ranks, of one dtype and on the CPU, one after the other; on
        the other ranks nothing. Rank 0 has only one of them in memory at a time."""
        if not self.several:
            return
        lengths = self.all_gather(_host([len(tensor)])).flatten().tolist()
        with self._exchanging(tensor, _default_group()):
            if self.rank != 0 and len(tensor):
                dist.send(tensor, 0)
        for rank in range(1, self.size) if self.rank == 0 else ():
            other = tensor.new_empty(lengths[rank])
            with self._exchanging(other, _default_group()):
                if len(other):
                    dist.recv(other, rank)
            yield other

    # ---- common decisions of the host; all ranks must call these together ----

    def agree(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """Decides whether the run stops now (if `stop` is set on any rank) and whether it saves now (if `save` is set
        on rank 0). Returns both decisions, the same on all ranks.

        The ranks exchange their flags only about five times per second, because an exchange in every call would slow
        down short steps. In between, both answers are False."""
        if not self.several:
            return stop, save
        self._calls += 1
        if self._until_exchange > 0:
            self._until_exchange -= 1
            return False, False
        now = time.monotonic()
        pace = self._calls * _SECONDS_BETWEEN / max(now - self._exchanged, 1e-6)
        self._calls, self._exchanged = 0, now
        wishes = self.all_gather(_host([int(stop), int(save), min(int(pace), _MOST_BETWEEN)]))
        self._until_exchange = int(wishes[0, 2])
        return bool(wishes[:, 0].any()), bool(wishes[0, 1])

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set on any rank."""
        return flag if not self.several else bool(self.all_gather(_host([int(flag)])).any())

    def same(self, value: float) -> float:
        """Returns the value of rank 0."""
        return value if not self.several else float(self.all_gather(_host([value], torch.float64))[0])

    def least(self, value: int) -> int:
        """Returns the smallest value of all ranks."""
        return value if not self.several else int(self.all_gather(_host([value])).min())

    def each(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, plain JSON data, in the order of the ranks."""
        if not self.several:
            return [value]
        text = json.dumps(value).encode()
        short = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
        sizes, digests = self.all_gather(_host([len(text), short])).T.tolist()
        if len(set(digests)) == 1:
            return [json.loads(text) for _ in sizes]
        padded = torch.frombuffer(bytearray(text.ljust(max(sizes))), dtype=torch.uint8)
        every = self.all_gather(padded).numpy()
        return [json.loads(row[:size].tobytes()) for row, size in zip(every, sizes, strict=True)]

    def check_same(self, values: Mapping[str, object]) -> None:
        """UserError unless all `values`, plain JSON data or tensors by name, are the same on all ranks. The message
        names their keys, fields in them and machines, and each machine prints it."""
        if not self.several:
            return
        digests = self.all_gather(_host([int.from_bytes(digest(each)[:7], "big") for each in values.values()]))
        different = [key for key, column in zip(values, digests.T.tolist(), strict=True) if len(set(column)) > 1]
        if different:
            details = self._details({key: values[key] for key in different})
            message = f"train: the processes do not have the same {' and '.join(different)}{details}"
            if self.local_rank == 0 and not self.writes:  # rank 0 prints the error itself
                print(f"nnue: error: {shown(bounded(message))}", file=sys.stderr, flush=True)
            raise UserError(message)

    def _details(self, values: Mapping[str, object]) -> str:
        """The first fields that differ, with their values and machines; "" if the values have no fields."""
        every = self.each({key: dict(itertools.islice(_fields(value), _MOST_FIELDS)) for key, value in values.items()})
        found = []
        for key in values:
            fields = dict.fromkeys(name for each in every for name in each[key])
            for name in fields:
                texts = [each[key].get(name, "missing") for each in every]
                other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
                if other is not None:
                    found.append(f"{name} is {texts[0]} {self._place(0)} and {texts[other]} {self._place(other)}")
        more = f", and {len(found) - _MOST_NAMED:,} more fields" if len(found) > _MOST_NAMED else ""
        return f": {', '.join(found[:_MOST_NAMED])}{more}" if found else ""

    def _place(self, rank: int) -> str:
        return f"on {shown(self._hosts[rank])} (rank {rank})" if self._hosts else f"on rank {rank}"

    def wait_for_all(self, what: str) -> None:
        """Waits until all ranks call this. After ten seconds rank 0 prints a line with those that have not: `what` they
        still do."""
        missing = self._watch.missing(what, _SECONDS_TO_SAY) if self._watch is not None else []
        if missing:
            places = ", ".join(self._place(rank).removeprefix("on ") for rank in missing[:8])
            print(f"nnue: waiting for {places}: {what}", file=sys.stderr, flush=True)
        self.any(False)

    # ---- errors, and the end of the run ----

    def meet(self, key: str) -> bool:
        """Whether all ranks call this with the same `key` within about 10 seconds. Use it after an error, which may
        have happened on one rank only. True for a single process."""
        return self._watch is None or self._watch.meet(key, _SECONDS_TO_MEET)

    def speak(self) -> None:
        """Reports to the watch that this process met an error and will save a checkpoint before it ends. Rank 0 then
        gets more time before an error of another rank ends it."""
        if self._watch is not None:
            self._watch.speak()

    def before_end(self, release: Callable[[], None]) -> None:
        """Registers `release`, a bound method, to be called before the connections are closed. Its object is referenced
        weakly; if the object is gone by then, nothing is called."""
        if self.several:
            self._releases.append(weakref.WeakMethod(release))

    def release(self) -> None:
        """Calls the methods registered by `before_end`, and forgets the groups of processes, which then can end."""
        for reference in self._releases:
            release = reference()
            if release is not None:
                release()
        self._releases.clear()
        self._in_graphs.clear()
        self._own_group = None

    def on_loss(self, hint: Callable[[], str]) -> None:
        """Sets the function that returns the end of the message about a lost rank. It is called from the watch's
        thread, and may be slow."""
        if self._watch is not None:
            self._watch.hint = hint

    @contextmanager
    def _exchanging(self, tensor: Tensor, group: dist.ProcessGroup) -> Iterator[None]:
        """The block starts an exchange of `tensor` in `group`. If it is not recorded, and CUDA graphs contain exchanges
        of the group, this waits for the device first: `_join` ensures that the two never overlap for NCCL."""
        with self._explaining():
            if tensor.is_cuda:
                if torch.cuda.is_current_stream_capturing():
                    self._in_graphs.add(group)
                elif group in self._in_graphs:
                    torch.cuda.synchronize(tensor.device)
            yield

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turns a failed exchange into a UserError, unless the watch ends this process first."""
        try:
            yield
        except RuntimeError as error:
            if self._watch is None or isinstance(error, NotImplementedError) or out_of_memory(error):
                raise
            # Most likely a rank has ended. Then the watch notices that as well, prints the message and ends this
            # process. Give it the time for that.
            time.sleep(_SECONDS_TO_MEET)
            while self._watch.ends_process:
                time.sleep(1.0)
            what = f"train: an exchange between the processes failed: {shown(first_line(error))[:200]}"
            raise status.Lost(what) from None


def _host(values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device="cpu")


def _fields(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, short text) of each value inside of plain JSON data; none for data without keys."""
    if isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, inner in pairs:
            yield from _fields(inner, f"{key}.{name}" if key else str(name))
    elif key:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield shown(key), shown(text) if len(text) <= 60 else f"{shown(text[:40])}…{shown(text[-15:])}"


def digest(value: object) -> bytes:
    """SHA-256 of plain JSON data, in which tensors count with their bytes."""
    found = hashlib.sha256()

    def of_tensor(tensor: object) -> str:
        if not isinstance(tensor, Tensor):
            return str(tensor)
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return f"{tensor.dtype} {list(tensor.shape)}"

    found.update(json.dumps(value, sort_keys=True, default=of_tensor).encode())
    return found.digest()


_current = Ranks()  # those of the run that this process has joined


@contextmanager
def joined() -> Iterator[Ranks]:
    """Connects this process with the others that torchrun has started, until the end of the block. Without torchrun it
    yields a single process. An error in the block ends all processes, with one message. UserError if the processes
    cannot connect."""
    global _current
    if _current.several or os.environ.get("WORLD_SIZE", "1") == "1":
        yield _current
        return
    ranks = _join()
    watch = ranks._watch
    assert watch is not None
    status.write(status.STARTED)
    _current = ranks
    try:
        yield ranks
        # Wait for all ranks: none may close its connections while another one still uses them.
        ranks.any(False)
    except BaseException as error:
        own = isinstance(error, UserError)
        interrupted = isinstance(error, KeyboardInterrupt)
        text = str(error) if own else "interrupted" if interrupted else f"{type(error).__name__}: {error}"[:500]
        watch.fail(text, status.of_error(error))
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
    # By default NCCL adds nodes to each recorded exchange that order it after those outside of graphs and in graphs on
    # other streams, which made a step 25 to 50 us longer. Here `_exchanging` orders them, and all graphs with exchanges
    # of one group are launched on one stream.
    os.environ.setdefault("NCCL_GRAPH_MIXING_SUPPORT", "0")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    host = "127.0.0.1" if local_size == size else os.environ["MASTER_ADDR"]
    # torch imports this module by and by, and then its functions keep the default group, as the default of an argument.
    # The group's threads would outlive the run, take the interpreter's lock while Python ends, and abort the process.
    importlib.import_module("torch.distributed.nn.functional")

    def exchange(port: int, token: int) -> tuple[int, int]:
        numbers = _host([port, token])
        dist.broadcast(numbers, 0)
        return int(numbers[0]), int(numbers[1])

    try:
        store = _meet(rank, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        watch = Watch(rank, size, host, exchange)
        dist.distributed_c10d._set_pg_timeout(_LONGEST_WAIT)
    except (RuntimeError, ValueError) as error:
        what = f"train: rank {rank} of {size} cannot join the others: {shown(first_line(error))[:200]}"
        raise status.Lost(what) from None
    hosts = [store.get(f"here/{other}").decode() for other in range(size)]
    return Ranks(rank, size, local_rank, local_size, watch, hosts)


def _meet(rank: int, size: int) -> Any:
    """The store of all ranks, when all have come. After ten seconds a line names the address that does not answer or
    the ranks that are missing. `Lost` if some do not come within `NNUE_JOIN_SECONDS`."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # otherwise torchrun does
    seconds = limits.seconds("NNUE_JOIN_SECONDS")
    limit = timedelta(seconds=max(seconds, 1.0))
    address = f"{shown(host)}, port {port} (MASTER_ADDR, MASTER_PORT)"
    with _saying(f"rank {rank} of {size} still tries to reach rank 0 at {address}"):
        try:
            store = _interruptible(
                lambda: _TCPStore(host, port, size, serves, timeout=limit, wait_for_workers=False), limit
            )
        except TimeoutError:
            raise status.Lost(
                f"train: rank 0 of {size} did not answer at {address} within {seconds:g} seconds (NNUE_JOIN_SECONDS); "
                f"check that it was started and that this machine, with rank {rank}, can reach this address"
            ) from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = _PrefixStore(f"nnue/{attempt}", store)
    own.set(f"here/{rank}", socket.gethostname())
    began, said = time.monotonic(), False
    while missing := [other for other in range(size) if not own.check([f"here/{other}"])]:
        waited = time.monotonic() - began
        which = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing[:20]))} of {size}"
        if waited > seconds:
            raise status.Lost(
                f"train: {which} did not connect to {address} within {seconds:g} seconds (NNUE_JOIN_SECONDS); check "
                "that every process was started and can reach this address"
            )
        if waited > _SECONDS_TO_SAY and not said and rank in (0, 1 if 0 in missing else 0):
            said = True
            print(f"nnue: waiting for {which} at {address}", file=sys.stderr, flush=True)
        time.sleep(0.02)
    return own


def _interruptible(make: Callable[[], Any], limit: timedelta) -> Any:
    """The result of `make`, called in a thread, since torch continues to wait after a signal, and tries again after its
    own limit: Ctrl-C leaves it, and so does a TimeoutError after `limit`."""
    made: Future[Any] = Future()

    def call() -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=call, name="meeting other ranks", daemon=True).start()
    try:
        return made.result(limit.total_seconds())
    except (KeyboardInterrupt, TimeoutError):
        foreign.abandoned(made.done)
        raise


@contextmanager
def _saying(what: str) -> Iterator[None]:
    """Prints a line if the block takes longer than ten seconds."""
    timer = threading.Timer(_SECONDS_TO_SAY, lambda: print(f"nnue: {what}", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _numbers() -> tuple[int, int, int, int]:
    """Rank, size, local rank and local size from torchrun's environment variables. UserError if one is missing or not
    possible."""
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
        found = ", ".join(f"{name}={value}" for name, value in zip(_VARIABLES, numbers, strict=False))
        raise UserError(
            f"train: found {found}, expected each rank below its size, and a local size of at most the world size; "
            "start with torchrun"
        )
    return numbers[0], numbers[1], numbers[2], numbers[3]
