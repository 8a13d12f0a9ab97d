"""Ends all ranks of a run together. Each rank keeps a connection to rank 0, which breaks when a process ends.

Without the watch a lost rank would be noticed late or never, because the others wait for it in a collective, during
which Python runs no signal handler. So a thread of each process waits for its connections to break. Then one rank
prints one line (rank 0, or rank 1 if rank 0 is lost), and all other processes end silently.

The messages between the ranks are lines: `done` (this rank ends normally, so its connection may close), `error STATUS
TEXT` (this rank ends with an error and this exit status), `stop` (from rank 0: end now, the reason has been printed),
`here KEY` and `go KEY` (for `meet`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from nnue_trainer.base import status
from nnue_trainer.errors import shown

_HELLO = struct.Struct("!QI")  # token, rank
_SECONDS_TO_JOIN = 60.0
_SECONDS_TO_SPEAK = 3.0  # after another rank's error, how long rank 0 has to meet the same error and report it itself
_SECONDS_TO_SAVE = 600.0  # for rank 0 to save and write a report after its own error
_SECONDS_TO_BE_STOPPED = 15.0  # beyond that, how long a rank with an error waits until rank 0 ends it
_SECONDS_TO_PRINT = 1.0  # how long a stopped rank waits: when it has ended, torchrun ends rank 0, which may be printing
_LONGEST = 4096  # bytes of a line


class Watch:
    """Connects this rank with rank 0, or rank 0 with all others, and starts the thread. `Lost` if a rank does not
    connect within a minute.

    Args:
        rank: the number of this process.
        size: the number of processes.
        host: the address of rank 0.
        exchange: a collective function of (port, token) that returns the port and the token of rank 0 on all ranks.
    """

    def __init__(self, rank: int, size: int, host: str, exchange: Callable[[int, int], tuple[int, int]]):
        self.rank, self.size = rank, size
        self.hint: Callable[[], str] = str
        """returns the end of the last message, for example which checkpoint is the last good one; it may be slow"""
        self._sockets: dict[int, socket.socket] = {}
        self._done: set[int] = set()
        self._ending = threading.Event()
        self._speaking = threading.Event()
        self._killing = threading.Event()
        self._here: dict[str, set[int]] = {}
        self._gone_on: set[str] = set()
        self._changed = threading.Condition()
        if rank == 0:
            self._listen(host, exchange)
        else:
            port, token = exchange(0, 0)
            try:
                connection = socket.create_connection((host, port), timeout=_SECONDS_TO_JOIN)
                connection.sendall(_HELLO.pack(token, rank))
            except OSError as error:
                what = f"train: rank {rank} of {size} cannot reach rank 0 at {shown(host)}, port {port}"
                raise status.Lost(f"{what}: {error.strerror or error}") from None
            self._sockets[0] = connection
        for connection in self._sockets.values():
            connection.settimeout(None)
            # If a machine loses its power, its connections do not break by themselves. Keep-alive probes break them
            # after about a minute.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def meet(self, key: str, seconds: float) -> bool:
        """Whether all ranks call this with the same key within about this time."""
        if self.rank != 0:
            self._send(0, f"here {key}")
            return self._wait_for(lambda: key in self._gone_on, seconds)
        everyone = set(range(1, self.size))
        if not self._wait_for(lambda: self._here.get(key, set()) == everyone, seconds):
            return False
        for rank in everyone:
            self._send(rank, f"go {key}")
        return True

    def missing(self, key: str, seconds: float) -> list[int]:
        """Announces that this rank is there. On rank 0: the ranks that do not announce the same within this time."""
        if self.rank != 0:
            self._send(0, f"here {key}")
            return []
        others = set(range(1, self.size))
        self._wait_for(lambda: self._here.get(key, set()) == others, seconds)
        with self._changed:
            return sorted(others - self._here.get(key, set()))

    def speak(self) -> None:
        """Announces that this process has met an error, will save what it can, and will then call `fail`."""
        self._speaking.set()

    @property
    def ends_process(self) -> bool:
        """Whether the thread is about to end this process; it may still be printing its message."""
        return self._killing.is_set()

    def finish(self) -> None:
        """Announces that this process ends normally, and the others may continue."""
        self._ending.set()
        for rank in self._sockets:
            self._send(rank, "done")

    def fail(self, text: str, exit_status: int = status.FAILED) -> None:
        """Ends the run with the error `text`, which has this exit status. Rank 0 ends the other processes and returns,
        so that its caller prints the error. Any other rank sends the error to rank 0, which prints it, and does not
        return."""
        self._ending.set()
        if self.rank == 0:
            self._stop_others()
            return
        self._send(0, f"error {exit_status} {text}")
        # Meanwhile the thread ends this process, on a message of rank 0, or when rank 0 is lost.
        time.sleep(_SECONDS_TO_SAVE + _SECONDS_TO_BE_STOPPED)
        self._end(f"rank {self.rank}: {text}")

    def _listen(self, host: str, exchange: Callable[[int, int], tuple[int, int]]) -> None:
        """On rank 0: accepts the connections of all other ranks, which hold the token. `Lost` if one is missing."""
        token = int.from_bytes(os.urandom(7), "big")
        with (
            socket.create_server((host if host == "127.0.0.1" else "", 0), backlog=self.size) as server,
            selectors.DefaultSelector() as silent,
            contextlib.ExitStack() as others,
        ):
            exchange(server.getsockname()[1], token)
            silent.register(server, selectors.EVENT_READ)
            until = time.monotonic() + _SECONDS_TO_JOIN
            while len(self._sockets) < self.size - 1:
                if not (ready := silent.select(max(until - time.monotonic(), 0.0))) and time.monotonic() > until:
                    missing = sorted(set(range(1, self.size)) - self._sockets.keys())
                    raise status.Lost(
                        f"train: rank {missing[0]} of {self.size} did not connect to rank 0 within "
                        f"{_SECONDS_TO_JOIN:.0f} seconds"
                    )
                for key, _ in ready:
                    # Other programs may connect, too, and a rank may be slow to send: none holds up the others.
                    with contextlib.suppress(OSError, struct.error):
                        if key.fileobj is server:
                            connection, _ = server.accept()
                            connection.settimeout(5.0)
                            silent.register(connection, selectors.EVENT_READ, connection)
                            others.callback(self._close_stranger, connection)
                            continue
                        silent.unregister(key.fileobj)
                        theirs, rank = _HELLO.unpack(key.data.recv(_HELLO.size, socket.MSG_WAITALL))
                        if theirs == token and 0 < rank < self.size:
                            self._sockets[rank] = key.data

    def _close_stranger(self, connection: socket.socket) -> None:
        if connection not in self._sockets.values():
            connection.close()

    def _run(self) -> None:
        """The thread: reads messages until all connections are closed."""
        with selectors.DefaultSelector() as selector:
            rests = dict.fromkeys(self._sockets, b"")
            for rank, connection in self._sockets.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    rank = key.data
                    try:
                        data = self._sockets[rank].recv(_LONGEST)
                    except OSError:
                        data = b""
                    *lines, rests[rank] = (rests[rank] + data).split(b"\n")
                    for line in lines:
                        self._read(rank, line.decode("utf-8", "replace"))
                    if not data:
                        selector.unregister(key.fileobj)
                        if rank not in self._done:
                            self._lost(rank)

    def _read(self, rank: int, line: str) -> None:
        word, _, rest = line.partition(" ")
        with self._changed:
            if word == "done":
                self._done.add(rank)
            elif word == "here":
                self._here.setdefault(rest, set()).add(rank)
            elif word == "go":
                self._gone_on.add(rest)
            self._changed.notify_all()
        if word == "stop":
            time.sleep(_SECONDS_TO_PRINT)
            self._end(None)
        elif word == "error":
            self._done.add(rank)
            # All ranks read the same files and, without shards, the same data. So rank 0 usually meets the same error
            # and prints it itself.
            same = self._ending.wait(_SECONDS_TO_SPEAK)
            if same or (self._speaking.is_set() and self._ending.wait(_SECONDS_TO_SAVE)):
                self._send(rank, "stop")
            else:
                exit_status, _, text = rest.partition(" ")
                self._end(f"rank {rank}: {text}", int(exit_status))

    def _lost(self, rank: int) -> None:
        if self._ending.is_set() and self.rank == 0:
            return  # rank 0 has ended that rank, or the run is over
        speaks = self.rank == (1 if rank == 0 else 0)
        self._end(f"rank {rank} of {self.size} has ended, which ends the training" if speaks else None)

    def _end(self, text: str | None, exit_status: int | None = None) -> None:
        """Prints `text`, unless it is None, and ends the process immediately, whatever its other threads wait for.
        `exit_status`: the one of the run; None: a process was lost, and the run has none."""
        self._killing.set()
        if self.rank == 0 and exit_status is not None:
            status.write(exit_status)
        if text is not None:
            hint = ""
            with contextlib.suppress(Exception):
                hint = self.hint()  # it may wait for a slow disk, and torchrun ends this process soon after another one
            if self.rank == 0:
                self._stop_others()
            with contextlib.suppress(Exception):
                # On a terminal: show the cursor again and leave the progress line. One write, because the main thread
                # may be printing, too.
                start = "\x1b[?25h\n" if sys.stderr.isatty() else ""
                sys.stderr.write(f"{start}nnue: error: {shown(text + hint)}\n")
                sys.stderr.flush()
        os._exit(1)

    def _stop_others(self) -> None:
        for rank in self._sockets:
            self._send(rank, "stop")

    def _send(self, rank: int, line: str) -> None:
        with contextlib.suppress(OSError):
            self._sockets[rank].sendall(shown(line).encode("utf-8", "replace")[: _LONGEST - 1] + b"\n")

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, seconds)
