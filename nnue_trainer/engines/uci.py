"""One UCI engine process, for self-play and for checking nets.

An engine may be any program. So every answer has a deadline, which holds while lines keep coming,
and a limit of bytes; a line has one too. Memory stays bounded, bytes that are not UTF-8 are replaced, and commands that
would become two lines are refused. The process and its children are ended and reaped however the work ends.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import selectors
import shutil
import subprocess
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from nnue_trainer.base import process_groups, system
from nnue_trainer.base.closing import Closing
from nnue_trainer.errors import UserError, quoted, shown

_log = logging.getLogger(__name__)
_LONGEST_LINE = 1 << 16  # bytes
_LONGEST_ANSWER = 1 << 20  # bytes that are printed for a command whose answer is kept
_LONGEST_SEARCH = 16 << 20  # bytes that are printed for one move
_KEPT_OF_STDERR = 1 << 12  # bytes
_MAX_CENTIPAWNS = 1_000_000
_MAX_MATE = 10_000
_DEBIAN_FOLDER = "/usr/games"  # where Debian puts engines; not on the PATH of root
_MOVE = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")
_REFUSAL = "info string ERROR: "


class EngineEnded(UserError):
    """The engine ended in the middle of an answer; `lines` holds what it printed for it, as far as that was kept."""

    def __init__(self, message: str, lines: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.lines = list(lines)

    @property
    def reason(self) -> str:
        """The reason that Stockfish printed for its end; "" if it printed none."""
        reasons = (line.removeprefix(_REFUSAL) for line in self.lines if line.startswith(_REFUSAL))
        return shown(next(reasons, ""))


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


class Found(NamedTuple):
    """The result of a search, from the side to move. `kind` is "cp" or "mate", "" where the engine gave no exact
    score; `depth` is 0 where it gave none."""

    move: str
    kind: str
    value: int
    depth: int


def find_engine(engine: str | None = None, *, default: str = "stockfish") -> str:
    """The path of an engine: `engine` is a path, or a name to look for on PATH and where Debian puts engines; None
    looks for `default`. Raises UserError if there is none."""
    name = engine or default
    found = shutil.which(name) or (shutil.which(name, path=_DEBIAN_FOLDER) if os.sep not in name else None)
    if found:
        return found
    if engine is None:
        raise UserError(f"no {default} on PATH or in {_DEBIAN_FOLDER}: apt-get install {default}")
    where = "" if os.sep in name else f" on PATH or in {_DEBIAN_FOLDER}"
    wrong = "it is a folder" if Path(name).is_dir() else "it cannot be executed" if Path(name).exists() else ""
    raise UserError(f"engine {shown(engine)}: no such program{where}{f' ({wrong})' if wrong else ''}")


class Engine(Closing):
    """A running UCI engine. Use it as a context, or call `close()`; one thread at a time, except for `kill()`.

    `options` are set before the first command. `timeout` in seconds holds for every answer but those of the start: the
    answer to `uci` must come within `start_timeout`, so that a program that is not an engine is soon found out.
    UserError names the engine, the command and what it answered.
    """

    def __init__(
        self,
        path: str,
        options: Mapping[str, str] | None = None,
        *,
        timeout: float = 600.0,
        start_timeout: float = 10.0,
    ) -> None:
        if not (math.isfinite(timeout) and timeout > 0):
            raise UserError(f"engine {shown(path)}: timeout {timeout}, expected a positive number of seconds")
        self.path = path
        self.name = ""
        self.timeout = timeout
        self._shown = shown(path)
        self._options: dict[str, str] = {}  # declared names by their lower-case form: UCI ignores case
        self._incoming, self._outgoing, self._stderr = bytearray(), bytearray(), bytearray()
        self._ended = self._killed = self._reaped = False
        try:
            # In a process group: a wrapper script is ended together with the engine that it started.
            pipe = subprocess.PIPE
            self._process = process_groups.start([path], stdin=pipe, stdout=pipe, stderr=pipe)
        except (OSError, ValueError) as error:
            raise UserError(f"engine {self._shown}: {getattr(error, 'strerror', None) or error}") from None
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._stdin = self._process.stdin.fileno()
        os.set_blocking(self._stdin, False)
        self._stdout = self._process.stdout.fileno()
        self._stderr_fd = self._process.stderr.fileno()
        self._awaited = b""
        self._command = ""
        self._received = self._scanned = 0  # bytes of the awaited answer, and how many have no end of it
        self._selector = selectors.DefaultSelector()
        for output in (self._process.stdout, self._process.stderr):
            self._selector.register(output.fileno(), selectors.EVENT_READ, output)
        try:
            for line in self.answer("uci", "uciok", seconds=start_timeout):
                if line.startswith("id name "):
                    self.name = line.removeprefix("id name ").strip()
                elif match := re.match(r"option name (.+?) type ", line):
                    self._options[match.group(1).lower()] = match.group(1)
            for name, value in (options or {}).items():
                if name == "Hash" and "hash" not in self._options:  # UCI does not require it, and all commands set it
                    _warn_once(f"engine {self._shown}: has no option 'Hash', so it chooses its memory itself")
                    continue
                self.set_option(name, value)
            self.ask("isready", "readyok", seconds=max(start_timeout, timeout))  # it may load a net
        except BaseException:
            self.close()
            raise

    def set_option(self, name: str, value: str) -> None:
        """Sets a UCI option. Raises UserError if the engine has none of this name, or the value would not be one."""
        if name.lower() not in self._options:
            raise UserError(f"engine {self._shown}: has no option {quoted(name)}")
        self.send(f"setoption name {self._options[name.lower()]} value {value}")

    def new_game(self) -> None:
        """Clears the engine's state."""
        self.send("ucinewgame")
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        self.ask("isready", "readyok")

    def search(self, fen: str, moves: Sequence[str], limit: str) -> tuple[str, str, int]:
        """The best move and the last exact score, ("cp" or "mate", number), of `position fen FEN moves …`, `go LIMIT`;
        ("", 0) for an answer without a score or with bounds only, as some engines answer with the only legal move.

        Raises UserError for an answer without a move, or with a score that is not a number.
        """
        self.send(f"position fen {fen}" + (f" moves {' '.join(moves)}" if moves else ""))
        self._command, last, scored = f"go {limit}", "", ""
        for line in self.answer(self._command, "bestmove", limit=_LONGEST_SEARCH):
            last = line
            if line.startswith("info ") and _has_exact_score(line.split()):
                scored = line
        move = self.found(last.encode()).move
        return (move, *self._score(scored, scored.split())) if scored else (move, "", 0)

    def ask(self, command: str, last: str, *, seconds: float | None = None) -> list[str]:
        """The lines of the answer to `command`, up to the one that begins with the word `last`."""
        lines: list[str] = []
        try:
            lines.extend(self.answer(command, last, seconds=seconds))  # keeps what came before an error
        except EngineEnded as error:
            raise EngineEnded(str(error), lines) from None
        return lines

    def answer(
        self, command: str, last: str, *, seconds: float | None = None, limit: int = _LONGEST_ANSWER
    ) -> Iterator[str]:
        """Sends `command` and yields the lines of its answer, blanks around them removed, up to the one that begins
        with the word `last`. Raises UserError if that does not come within `seconds` (None: `timeout`) and `limit`
        bytes, and EngineEnded where the engine ends before."""
        self._drop_old_lines(last)
        self.send(command)
        seconds = self.timeout if seconds is None else seconds
        deadline = time.monotonic() + seconds
        asked = f"engine {self._shown}: no {last!r} for {quoted(command)}"
        printed, is_late = 0, False
        while True:
            while (end := self._incoming.find(b"\n")) >= 0:
                line = self._incoming[:end].decode(errors="replace").strip()
                del self._incoming[: end + 1]
                printed += end + 1
                yield line
                if line.split(maxsplit=1)[:1] == [last]:
                    return
            self._check_length(asked, 0, printed, limit)
            if self._ended or self._killed:
                raise EngineEnded(f"engine {self._shown}: ended at {quoted(command)}{self._last_words()}")
            if is_late:
                raise UserError(f"{asked} within {seconds:g} s")
            remaining = deadline - time.monotonic()
            is_late = remaining <= 0  # but if this process was stopped, the answer may be there
            self._exchange(min(max(remaining, 0.0), 0.25))  # kill() from another thread is noticed in this time

    def send(self, command: str) -> None:
        """Queues a command; it goes out with the next answer that is waited for. Raises UserError for a command that
        holds a line break or another control character: the engine would read it as several commands."""
        if any(unicodedata.category(character) == "Cc" for character in command):
            raise UserError(
                f"engine {self._shown}: {quoted(command)} holds a line break or another control character, which "
                "no UCI command can"
            )
        self._outgoing += command.encode("utf-8", "surrogateescape") + b"\n"

    # ---- many engines in one thread: the caller waits for the descriptors, and calls when one is ready ---------------

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors to watch for reading: standard output and standard error."""
        return self._stdout, self._stderr_fd

    def begin(self, commands: bytes, last: bytes, command: str) -> bool:
        """Sends lines whose answer ends with a line that begins with the word `last`, without waiting; `receive` gives
        the answer. `command` names them in messages. False if the engine does not take all of it now: call `flush` as
        soon as `writable` is ready for writing."""
        if self._incoming:
            self._drop_old_lines(last.decode())
        self._awaited, self._command = last, command
        self._received, self._scanned = len(self._incoming), 0
        self._outgoing += commands
        return self.flush()

    @property
    def writable(self) -> int:
        """The descriptor to watch for writing while something waits to be sent."""
        return self._stdin

    def flush(self) -> bool:
        """Sends what waits, as far as the engine takes it; whether that was all."""
        try:
            del self._outgoing[: os.write(self._stdin, self._outgoing)]
        except BlockingIOError:
            return False
        except OSError:  # it reads no more; what it still prints may explain why
            self._outgoing.clear()
        return not self._outgoing

    def receive(self, descriptor: int) -> bytes | None:
        """Reads once from a descriptor that is ready. The answer to `begin`, from its first line to its last, as soon
        as it is complete. Raises EngineEnded and UserError as `answer` does."""
        data = os.read(descriptor, 1 << 16)
        if descriptor == self._stderr_fd:
            self._keep_of_stderr(data)
            return None
        if not self._incoming and data.endswith(b"\n"):  # the usual case: the rest of an answer in one piece
            line_at = data.rfind(b"\n", 0, -1) + 1
            if data.find(self._awaited) == line_at and data[line_at:].split(maxsplit=1)[0] == self._awaited:
                return data[:-1]
        self._incoming += data
        self._received += len(data)
        at = self._incoming.find(self._awaited, self._scanned)
        while at >= 0:
            end = self._incoming.find(b"\n", at)
            begins = at == 0 or self._incoming[at - 1] == 10
            if end >= 0 and begins and self._incoming[at:end].split(maxsplit=1)[0] == self._awaited:
                answer = bytes(self._incoming[:end])
                del self._incoming[: end + 1]
                return answer
            if end < 0:
                break
            at = self._incoming.find(self._awaited, end)
        self._scanned = self._incoming.rfind(b"\n") + 1
        asked = f"engine {self._shown}: no {self._awaited.decode()!r} for {quoted(self._command)}"
        self._check_length(asked, self._scanned, self._received, _LONGEST_SEARCH)
        if not data:
            self._ended = True
            raise EngineEnded(f"engine {self._shown}: ended at {quoted(self._command)}{self._last_words()}")
        return None

    def has_printed(self) -> bool:
        """Whether there is output to read."""
        return any(key.fd == self._stdout for key, _ in self._selector.select(0))

    def found(self, answer: bytes) -> Found:
        """The answer to `go …`. UserError for one without a move, or with a score that is not a number."""
        line_at = answer.rfind(b"\n") + 1
        words = answer[line_at:].split()
        move = words[1].decode(errors="replace") if len(words) > 1 else ""
        if not _MOVE.fullmatch(move):
            raise self._wrong_answer(answer[line_at:].decode(errors="replace"), "'bestmove' and a move")
        at = answer.rfind(b" score ", 0, line_at)
        while at >= 0:
            begin, end = answer.rfind(b"\n", 0, at) + 1, answer.find(b"\n", at)
            line = answer[begin:end].decode(errors="replace")
            words_of_line = line.split()
            if words_of_line[0] == "info" and _has_exact_score(words_of_line):
                kind, value = self._score(line, words_of_line)
                depth = words_of_line[words_of_line.index("depth") + 1] if "depth" in words_of_line[:-1] else ""
                return Found(move, kind, value, int(depth) if depth.isdigit() and len(depth) < 6 else 0)
            at = answer.rfind(b" score ", 0, begin)
        return Found(move, "", 0, 0)

    def kill(self) -> None:
        """Ends the process at once, from any thread; an answer that another thread waits for then fails."""
        self._killed = True
        if not self._reaped:  # afterwards the number may be another process's
            process_groups.kill(self._process)

    def close(self) -> None:
        """Ends and reaps the process; may be called again."""
        self.kill()
        if self._reaped:
            return
        process_groups.end(self._process)
        self._reaped = True
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()

    def _drop_old_lines(self, last: str) -> None:
        """Drops what was printed after the end of the last answer. Were it a second answer to the same question, it
        would pass for the answer to the next one."""
        lines = self._incoming.split(b"\n")
        if any(line.split(maxsplit=1)[:1] == [last.encode()] for line in lines):
            raise UserError(f"engine {self._shown}: answered with {last!r} twice")
        del self._incoming[: len(self._incoming) - len(lines[-1])]

    def _exchange(self, seconds: float) -> None:
        """Waits up to `seconds` until the engine reads or prints something. Both are watched together: an engine that
        waits for us to read before it reads itself does not stop us."""
        if self._outgoing and self._stdin not in self._selector.get_map():
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        for key, _ in self._selector.select(seconds):
            if key.fd == self._stdin:
                if self.flush():
                    self._selector.unregister(self._stdin)
                continue
            data = os.read(key.fd, 1 << 16)
            if key.data is self._process.stdout:
                self._incoming += data
                self._ended |= not data
            else:
                self._keep_of_stderr(data)
            if not data:
                self._selector.unregister(key.fd)

    def _keep_of_stderr(self, data: bytes) -> None:
        self._stderr += data
        del self._stderr[:-_KEPT_OF_STDERR]

    def _check_length(self, asked: str, line_at: int, printed: int, limit: int) -> None:
        """UserError for an answer without an end that has too many bytes, or too many in the line at `line_at`."""
        if len(self._incoming) - line_at > _LONGEST_LINE:
            begin = quoted(self._incoming[line_at:][:40].decode(errors="replace") + "…")
            raise UserError(f"{asked}, but a line of more than {_LONGEST_LINE:,} bytes: {begin}")
        if printed > limit:
            raise UserError(f"{asked} in the first {limit:,} bytes of its answer")

    def _last_words(self) -> str:
        """How the process ended, and the last line on its standard error, where they are known."""
        deadline = time.monotonic() + 0.5
        while (end := system.end_of_child(self._process.pid)) is None:  # close() reaps it
            if self._killed or time.monotonic() > deadline:
                return ""
            time.sleep(0.005)
        status, by_signal = end
        words = f" (signal {status})" if by_signal else f" (exit status {status})"
        for _ in range(64):  # the pipe already holds everything that it printed
            self._exchange(0)
        said = self._stderr.decode(errors="replace").strip().splitlines()
        return words + (f": {shown(said[-1])}" if said else "")

    def _score(self, line: str, words: Sequence[str]) -> tuple[str, int]:
        """The score of an `info` line that has one."""
        kind, number = [*words[words.index("score") + 1 :], "", ""][:2]
        most = {"cp": _MAX_CENTIPAWNS, "mate": _MAX_MATE}.get(kind, -1)
        if not _NUMBER.fullmatch(number) or abs(int(number)) > most:
            expected = (
                f"'score cp' and a number within ±{_MAX_CENTIPAWNS:,}, or 'score mate' and one within ±{_MAX_MATE:,}"
            )
            raise self._wrong_answer(line, expected)
        return kind, int(number)

    def _wrong_answer(self, line: str, expected: str) -> UserError:
        return UserError(f"engine {self._shown}: answered {self._command!r} with {quoted(line)}, expected {expected}")


def _has_exact_score(words: Sequence[str]) -> bool:
    """Whether this `info` line has the score of the best move and not only a bound."""
    if words[1] == "string" or "score" not in words or "lowerbound" in words or "upperbound" in words:
        return False
    return "multipv" not in words or words[words.index("multipv") + 1 : words.index("multipv") + 2] == ["1"]
