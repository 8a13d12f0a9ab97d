"""How the ranks of a run end together. Each rank keeps a connection to rank 0, which breaks when a process ends.

Without this a lost rank would be noticed late or never: the others wait for it in a collective, where Python runs no
signal handler. Here a thread waits for the connection to break. One rank prints one line (rank 0, or rank 1 if rank 0
is lost), and every other process ends silently.

The messages are lines: `done` (this rank ends well, so its connection may close), `error TEXT` (this rank ends with an
error), `stop` (from rank 0: end now, the reason has been printed), `here KEY` and `go KEY` (for `meet`).
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

from nnue_trainer.errors import UserError, shown

_HELLO = struct.Struct("!QI")  # token, rank
_SECONDS_TO_JOIN = 60.0
_SECONDS_TO_SPEAK = 3.0  # what rank 0 has to meet the same error as another rank, and to report it itself
_SECONDS_TO_SAVE = 600.0  # what rank 0 has to save, and to write a report, after it has met an error itself
_SECONDS_TO_BE_STOPPED = 15.0
_SECONDS_TO_PRINT = 1.0  # torchrun ends rank 0 as soon as it sees that another rank has ended
_LONGEST = 4096  # bytes of a line


class Watch:
    """`exchange(port, token)` gives every rank the port and token of rank 0. `host` is the address of rank 0."""

    def __init__(self, rank: int, size: int, host: str, exchange: Callable[[int, int], tuple[int, int]]):
        self.rank, self.size = rank, size
        self.hint: Callable[[], str] = str
        """Gives the end of the last message, for example which checkpoint is the last good one. It may be slow."""
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
                raise UserError(f"{what}: {error.strerror or error}") from None
            self._sockets[0] = connection
        for connection in self._sockets.values():
            connection.settimeout(None)
            # A machine that has lost its power breaks no connection; these questions do, after a minute.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def meet(self, key: str, seconds: float) -> bool:
        """Whether all ranks call this with the same key within that time, about."""
        if self.rank != 0:
            self._send(0, f"here {key}")
            return self._wait_for(lambda: key in self._gone_on, seconds)
        everyone = set(range(1, self.size))
        if not self._wait_for(lambda: self._here.get(key, set()) == everyone, seconds):
            return False
        for rank in everyone:
            self._send(rank, f"go {key}")
        return True

    def speak(self) -> None:
        """This process has met an error. It will save what it can, and then call `fail`."""
        self._speaking.set()

    @property
    def ends_process(self) -> bool:
        """Whether the thread is about to end this process, after its message."""
        return self._killing.is_set()

    def finish(self) -> None:
        """This process ends well, and the others may go on."""
        self._ending.set()
        for rank in self._sockets:
            self._send(rank, "done")

    def fail(self, text: str) -> None:
        """This process ends with an error. Rank 0 ends the others and returns, so that it prints the error itself. Any
        other rank reports to rank 0, which prints it, and does not return."""
        self._ending.set()
        if self.rank == 0:
            self._stop_others()
            return
        self._send(0, f"error {text}")
        # The thread ends the process when rank 0 says so or is lost.
        time.sleep(_SECONDS_TO_SAVE + _SECONDS_TO_BE_STOPPED)
        self._end(f"rank {self.rank}: {text}")

    def _listen(self, host: str, exchange: Callable[[int, int], tuple[int, int]]) -> None:
        token = int.from_bytes(os.urandom(7), "big")
        with socket.create_server((host if host == "127.0.0.1" else "", 0), backlog=self.size) as server:
            exchange(server.getsockname()[1], token)
            until = time.monotonic() + _SECONDS_TO_JOIN
            while len(self._sockets) < self.size - 1:
                server.settimeout(max(until - time.monotonic(), 0.001))
                try:
                    connection, _ = server.accept()
                    connection.settimeout(5.0)
                    theirs, rank = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
                except TimeoutError:
                    missing = sorted(set(range(1, self.size)) - self._sockets.keys())
                    raise UserError(f"train: rank {missing[0]} of {self.size} did not connect to rank 0") from None
                except (OSError, struct.error):
                    continue
                if theirs == token and 0 < rank < self.size:
                    self._sockets[rank] = connection
                else:
                    connection.close()

    def _run(self) -> None:
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
            # All ranks read the same data and the same files, so rank 0 mostly has the same error, and prints it.
            same = self._ending.wait(_SECONDS_TO_SPEAK)
            if same or (self._speaking.is_set() and self._ending.wait(_SECONDS_TO_SAVE)):
                self._send(rank, "stop")
            else:
                self._end(f"rank {rank}: {rest}")

    def _lost(self, rank: int) -> None:
        if self._ending.is_set() and self.rank == 0:
            return  # it was told to end, or the run is over
        speaks = self.rank == (1 if rank == 0 else 0)
        self._end(f"rank {rank} of {self.size} has ended, and the training with it" if speaks else None)

    def _end(self, text: str | None) -> None:
        """Ends the process at once, whatever its other threads wait for."""
        self._killing.set()
        if text is not None:
            if self.rank == 0:
                self._stop_others()
            hint = ""
            with contextlib.suppress(Exception):
                hint = self.hint()
            with contextlib.suppress(Exception):
                if sys.stderr.isatty():
                    sys.stderr.write("\x1b[?25h\n")  # the progress line has hidden the cursor, and stands there
                print(f"nnue: error: {shown(text + hint)}", file=sys.stderr, flush=True)
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
