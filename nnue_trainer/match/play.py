"""Many games at once in one thread: engines search, this program waits for whichever answers first.

A move should cost this program little beside its search. Without time limits it naps while more engines search than
there are CPUs, so that one look finds several answers; otherwise an engine that prints while it searches is not
listened to until its search is nearly over, as its last searches show. The C++ library reads the usual answers, applies
the rules of chess and of adjudication, and writes the next request (data_loader/chess/match_game.h).

With a fixed number of nodes, or a fixed depth, and one thread per engine, a game is a function of its players, its
opening and the limits: engines forget everything between games.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from nnue_trainer import _data
from nnue_trainer.base import system
from nnue_trainer.base.closing import Closing
from nnue_trainer.data.books import Opening
from nnue_trainer.engines.uci import Engine
from nnue_trainer.errors import UserError, shown
from nnue_trainer.match.adjudication import Adjudication

_NEARLY_OVER = 0.75  # of the usual time of a search
_LOOK_FOR_LATE = 0.1  # seconds
_LONGEST_NAP = 0.05  # seconds


@dataclass(frozen=True)
class Player:
    """An engine with its options, which may name a net. `name` is unique in a match."""

    name: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    net: str = ""
    """file of the net that the engine gets; "": none, or in the player of this project"""


@dataclass(frozen=True)
class Limit:
    """The limit of a search: exactly one of nodes, depth, milliseconds per move, or a clock, (seconds, increment).

    `timeout`: seconds after which an engine has failed to answer (beyond its time, where it has a clock or
    milliseconds); `margin`: seconds by which its time may be exceeded."""

    nodes: int | None = None
    depth: int | None = None
    movetime: int | None = None
    clock: tuple[float, float] | None = None
    timeout: float = 60.0
    margin: float = 0.05

    def __post_init__(self) -> None:
        given = [name for name in ("nodes", "depth", "movetime", "clock") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UserError(f"match: found {' and '.join(given) or 'no limit'}, expected one of nodes, depth, time")

    @property
    def timed(self) -> bool:
        """Whether time ends a search."""
        return self.movetime is not None or self.clock is not None

    def command(self, clocks: Sequence[float]) -> str:
        """The UCI command for the next search; `clocks` are white's and black's seconds."""
        if self.clock is None:
            kind = "nodes" if self.nodes is not None else "depth" if self.depth is not None else "movetime"
            return f"go {kind} {getattr(self, kind)}"
        white, black = (max(1, round(1000 * clock)) for clock in clocks)
        increment = round(1000 * self.clock[1])
        return f"go wtime {white} btime {black} winc {increment} binc {increment}"


@dataclass(frozen=True)
class Task:
    """Game `number` of a match: the players' numbers, and the opening."""

    number: int
    white: int
    black: int
    opening: Opening


@dataclass(frozen=True)
class PlayedGame:
    """A game that is over. `result` is white's: 1, 0, −1; `scores` are one text for each move, "cp23/12", "mate-3/9"
    (score of the side that moves, depth) or "-". `fault` is what the loser did wrong, "" for nothing."""

    number: int
    white: int
    black: int
    fen: str
    opening: tuple[str, ...]
    moves: tuple[str, ...]
    scores: tuple[str, ...]
    result: int
    reason: str
    fault: str = ""

    @property
    def loser(self) -> int:
        """The player who lost; not for a draw."""
        return self.black if self.result > 0 else self.white


class _Seat:
    """One engine at one table, and its games there."""

    def __init__(self, table: _Table, player: int, engine: Engine) -> None:
        self.table, self.player, self.engine = table, player, engine
        self.usual = 0.0  # seconds of a search
        self.sent = self.deadline = self.patience = 0.0
        self.command = ""
        self.busy = False


class Arena(Closing):
    """Plays games, `concurrency` at a time. Use it as a context: its end ends all engines."""

    def __init__(
        self,
        players: Sequence[Player],
        limit: Limit,
        *,
        concurrency: int,
        adjudication: Adjudication | None = None,
        chess960: bool = False,
    ) -> None:
        self.players, self.limit, self.chess960 = players, limit, chess960
        self.adjudication = (adjudication or Adjudication()).native()
        self.command = "" if limit.clock else limit.command(())
        self.concurrency = concurrency
        self._events = system.events()
        self._by_descriptor: dict[int, _Seat] = {}
        self._deferred: list[tuple[float, int, _Seat, float]] = []
        self._order = itertools.count()
        self._busy = 0  # engines that search or prepare
        self._usual = 0.0  # seconds of a search, of any engine
        self._cpus = system.usable_cpus()
        self._starting: dict[Future[Engine], tuple[_Table, int]] = {}
        self._threads = ThreadPoolExecutor(max_workers=min(concurrency, 8), thread_name_prefix="engine")
        self._tables: list[_Table] = []

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for future in self._starting:
            if not future.cancelled() and future.exception() is None:
                future.result().close()
        for seat in set(self._by_descriptor.values()):
            seat.engine.close()
        self._by_descriptor.clear()
        self._events.close()

    def open(self, player: int, start_timeout: float = math.inf) -> Engine:
        """A new process of a player's engine, which must answer within `start_timeout` seconds and the usual ones."""
        chosen = self.players[player]
        options = dict(chosen.options)
        if self.chess960:
            options["UCI_Chess960"] = "true"
        return Engine(chosen.path, options, timeout=self.limit.timeout, start_timeout=start_timeout)

    def play(self, tasks: Iterator[Task]) -> Iterator[PlayedGame]:
        """The games of `tasks`, in the order in which they end."""
        finished: list[PlayedGame] = []
        self._tables = [_Table(self, tasks, finished.append) for _ in range(self.concurrency)]
        for table in self._tables:
            table.next_game()
        looked = time.monotonic()
        while True:
            while finished:
                yield finished.pop(0)
            if not any(table.task for table in self._tables) and not finished:
                return
            self._exchange()
            now = time.monotonic()
            if now - looked > _LOOK_FOR_LATE:
                looked = now
                for seat in set(self._by_descriptor.values()):
                    # If this process was stopped, the answer may be there.
                    if seat.busy and now > seat.deadline and not seat.engine.has_printed():
                        seat.table.failed(seat, "no answer", self._late(seat))

    def _late(self, seat: _Seat) -> str:
        # The limit, not the time that was measured: parts of a match merge to the bytes of the whole.
        return f"engine {shown(seat.engine.path)}: no answer to {seat.command!r} within {seat.patience:g} s"

    # ---- what tables call --------------------------------------------------------------------------------------------

    def start(self, table: _Table, player: int) -> None:
        """Starts an engine for a table in a thread: the others play on."""
        self._starting[self._threads.submit(self.open, player)] = (table, player)

    def send(self, seat: _Seat, commands: bytes, last: bytes, command: str, patience: float) -> None:
        """Sends lines to an engine, and listens to it from when it is likely to answer."""
        seat.sent = now = time.monotonic()
        seat.deadline, seat.patience = now + patience, patience
        seat.command = command
        seat.busy = True
        self._busy += 1
        try:
            sent = seat.engine.begin(commands, last, command)
        except UserError as error:  # it printed an answer to no question
            seat.table.failed(seat, "no answer", str(error))
            return
        if not sent:
            self._events.register(seat.engine.writable, system.WRITABLE)
            self._by_descriptor[seat.engine.writable] = seat
        if seat.usual and last == b"bestmove" and not self.limit.timed and self._busy <= self._cpus:
            heapq.heappush(self._deferred, (now + _NEARLY_OVER * seat.usual, next(self._order), seat, now))
        else:
            self._listen(seat)

    def searched(self, seconds: float) -> None:
        """Records how long a search took."""
        self._usual += 0.05 * (seconds - self._usual)

    def dismiss(self, seat: _Seat) -> None:
        """Ends an engine."""
        if seat.busy:
            self._rest(seat)
        for descriptor in (*seat.engine.descriptors, seat.engine.writable):
            if self._by_descriptor.pop(descriptor, None):
                with contextlib.suppress(OSError):
                    self._events.unregister(descriptor)
        seat.engine.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _listen(self, seat: _Seat) -> None:
        """For one event."""
        self._events.once(seat.engine.descriptors[0], system.READABLE)

    def _rest(self, seat: _Seat) -> None:
        seat.busy = False
        self._busy -= 1

    def _seated(self) -> None:
        """Engines that have started take their seats."""
        for future in [future for future in self._starting if future.done()]:
            table, player = self._starting.pop(future)
            try:
                engine = future.result()
            except UserError as error:
                table.not_started(player, str(error))
                continue
            seat = _Seat(table, player, engine)
            for descriptor, events in zip(engine.descriptors, (0, system.READABLE), strict=True):
                self._events.register(descriptor, events)
                self._by_descriptor[descriptor] = seat
            table.started(seat)

    def _exchange(self) -> None:
        """Waits until an engine answers, one that is deferred is due, or it is time to look for late ones."""
        found: list[tuple[int, int]] = []
        if not self.limit.timed and self._busy > self._cpus:
            # Most of the time in which no CPU can run out of searches: then several answers are there at once.
            time.sleep(min(0.9 * self._usual * (self._busy - self._cpus) / self._busy, _LONGEST_NAP))
            found = self._events.wait(0)
        now = time.monotonic()
        wait = 0.005 if self._starting else _LOOK_FOR_LATE
        while self._deferred:
            due, _, seat, sent = self._deferred[0]
            if seat.busy and seat.sent == sent and due > now:
                wait = min(wait, due - now)
                break
            heapq.heappop(self._deferred)
            if seat.busy and seat.sent == sent:
                self._listen(seat)
        if not found:
            found = self._events.wait(wait)
        for descriptor, events in found:
            seat_of = self._by_descriptor.get(descriptor)
            if seat_of is None:  # its engine was ended by an event before this one
                continue
            self._on_event(seat_of, descriptor, events)
        if self._starting:
            self._seated()

    def _on_event(self, seat: _Seat, descriptor: int, events: int) -> None:
        engine = seat.engine
        if descriptor == engine.writable:
            if engine.flush():
                self._events.unregister(descriptor)
                del self._by_descriptor[descriptor]
            return
        try:
            answer = engine.receive(descriptor)
        except UserError as error:
            seat.table.failed(seat, "engine ended" if "ended at" in str(error) else "no answer", str(error))
            return
        if descriptor != engine.descriptors[0]:
            if events & system.ENDED:
                self._events.unregister(descriptor)
                del self._by_descriptor[descriptor]
        elif answer is None:
            self._listen(seat)
        else:
            self._rest(seat)
            seat.table.answered(seat, answer)


class _Table:
    """One game at a time, and the engines that play there."""

    def __init__(self, arena: Arena, tasks: Iterator[Task], finished: Callable[[PlayedGame], None]) -> None:
        self.arena, self._tasks, self._finished = arena, tasks, finished
        self.task: Task | None = None
        self._seats: dict[int, _Seat] = {}
        self._ready: set[int] = set()
        self._starting: set[int] = set()

    def next_game(self) -> None:
        self.task = task = next(self._tasks, None)
        if task is None:
            return
        opening = task.opening
        self._game = _data.MatchGame(opening.fen, self.arena.chess960, opening.moves, self.arena.adjudication)
        base = self.arena.limit.clock[0] if self.arena.limit.clock else 0.0
        self._clocks = [base, base]
        self._ready = set()
        self._begun = False
        for player in (task.white, task.black):
            seat = self._seats.get(player)
            if seat is not None:
                self._prepare(seat)
            elif player not in self._starting:
                self._starting.add(player)
                self.arena.start(self, player)
            if self.task is not task:  # this game is over already
                return

    def started(self, seat: _Seat) -> None:
        self._starting.discard(seat.player)
        self._seats[seat.player] = seat
        if self.task and seat.player in (self.task.white, self.task.black):
            self._prepare(seat)

    def not_started(self, player: int, error: str) -> None:
        self._starting.discard(player)
        if self.task and player in (self.task.white, self.task.black):
            self._end(1 if player == self.task.black else -1, "engine does not start", error)

    def answered(self, seat: _Seat, answer: bytes) -> None:
        if self.task is None:
            return
        if not self._begun:
            self._ready.add(seat.player)
            if len(self._ready) == 2:
                self._begun = True
                self._end_or_go_on()
            return
        self._moved(seat, answer)

    def failed(self, seat: _Seat, reason: str, error: str) -> None:
        """An engine died, hangs or makes no sense: it loses, and is started anew for the next game."""
        self._remove(seat)
        if self.task and seat.player in (self.task.white, self.task.black):
            self._end(1 if seat.player == self.task.black else -1, reason, error)

    def _remove(self, seat: _Seat) -> None:
        self._seats.pop(seat.player, None)
        self.arena.dismiss(seat)

    def _prepare(self, seat: _Seat) -> None:
        self.arena.send(seat, b"ucinewgame\nisready\n", b"readyok", "isready", self.arena.limit.timeout)

    def _end_or_go_on(self) -> None:
        """Ends a game that is over, or requests a move from the side to move."""
        verdict = self._game.verdict
        if verdict:
            self._end(*verdict)
            return
        assert self.task
        limit = self.arena.limit
        white = self._game.white_to_move
        patience = limit.timeout
        if limit.clock:
            patience += self._clocks[0 if white else 1]
        elif limit.movetime:
            patience += limit.movetime / 1000
        command = self.arena.command or limit.command(self._clocks)
        seat = self._seats[self.task.white if white else self.task.black]
        self.arena.send(seat, self._game.request(command), b"bestmove", command, patience)

    def _moved(self, seat: _Seat, answer: bytes) -> None:
        spent = time.monotonic() - seat.sent
        seat.usual = spent if not seat.usual else 0.75 * seat.usual + 0.25 * spent
        self.arena.searched(spent)
        side = 0 if self._game.white_to_move else 1
        loses = 1 if side else -1
        limit = self.arena.limit
        over = 0.0  # seconds beyond its time
        if limit.clock:
            self._clocks[side] -= spent
            over = -self._clocks[side]
            self._clocks[side] = max(self._clocks[side], 0.0) + limit.clock[1]
        elif limit.movetime:
            over = spent - limit.movetime / 1000
        if over > limit.margin:
            self._end(loses, "time", f"engine {shown(seat.engine.path)}: {over:.2f} s over its time")
            return
        try:
            if not self._game.play_answer(answer):
                try:
                    found = seat.engine.found(answer)
                except UserError as error:
                    self.failed(seat, "no move", str(error))
                    return
                self._game.play(*found)
        except UserError as error:
            self._end(loses, "illegal move", f"engine {shown(seat.engine.path)}: {error}")
            return
        self._end_or_go_on()

    def _end(self, result: int, reason: str, fault: str = "") -> None:
        task = self.task
        assert task
        self._finished(
            PlayedGame(
                number=task.number,
                white=task.white,
                black=task.black,
                fen=task.opening.fen,
                opening=tuple(task.opening.moves),
                moves=tuple(self._game.moves),
                scores=tuple(self._game.scores),
                result=result,
                reason=reason,
                fault=fault,
            )
        )
        # An engine that still works on this game would answer into the next one.
        for seat in [seat for seat in self._seats.values() if seat.busy]:
            self._remove(seat)
        self.task = None
        self.next_game()
