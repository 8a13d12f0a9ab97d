"""Training data by self-play of any UCI engine.

Game i is a function of (seed, i, engine, limits): its opening comes from a random generator of its own, the engine
plays on one thread and forgets between games. So the file is the same for any number of engines, and an interrupted run
goes on where it stopped: finished games are kept, in order, in a journal beside the output until all are there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import queue
import random
import re
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from nnue_trainer import _data
from nnue_trainer.data.binpack import Records
from nnue_trainer.errors import UserError

START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
MATE = 32_000  # internal score of being mated now; one less for every ply until then
MAX_SCORE = 31_000  # the largest score that is no mate score

# What Stockfish releases divide an internal score by for "score cp" (times 100). Newer ones depend on the material.
_SCALES = {"15.1": 3.61, "16": 3.28, "16.1": 3.56} | dict.fromkeys(("12", "13", "14", "14.1", "15"), 2.08)


@dataclass(frozen=True)
class GenerateOptions:
    """`score_scale`: internal units for one centipawn of the engine's "score cp"; None: known from the engine's name.
    Adjudication: a win once both sides have agreed on |score| ≥ `win_score` for `win_plies` plies in a row, a draw once
    |score| ≤ `draw_score` for `draw_plies` plies and the game is at least `draw_from_ply` plies old; 0 plies: never.
    Scores are internal units. `opening_score`: openings whose first score is beyond it are played anew."""

    engine: str
    positions: int
    seed: int = 0
    nodes: int | None = None
    depth: int | None = None
    random_plies: int = 8
    book: str | None = None
    score_scale: float | None = None
    win_score: int = 2500
    win_plies: int = 5
    draw_score: int = 20
    draw_plies: int = 10
    draw_from_ply: int = 80
    max_ply: int = 400
    opening_score: int = 1000
    hash_mb: int = 4
    engine_options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.nodes is None) == (self.depth is None):
            raise UserError("generate: give either nodes or depth")
        for name in ("positions", "nodes", "depth", "max_ply", "hash_mb"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"generate: {name} is {value}, expected at least 1")
        for name in ("seed", "random_plies", "win_plies", "draw_plies"):
            if getattr(self, name) < 0:
                raise UserError(f"generate: {name} is {getattr(self, name)}, expected at least 0")


class Engine:
    """One UCI engine process. Every answer must come within `timeout` seconds, and that to `uci` within ten, so that a
    program that is no engine is soon found out."""

    def __init__(self, path: str, options: dict[str, str], timeout: float = 600.0) -> None:
        self.path = path
        self.name = ""
        self._timeout = timeout
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            raise UserError(f"engine {path}: {error.strerror}") from None
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        known = set()
        try:
            for line in self._ask("uci", "uciok", min(10.0, self._timeout)):
                if line.startswith("id name "):
                    self.name = line.removeprefix("id name ").strip()
                if match := re.match(r"option name (.+) type ", line):
                    known.add(match.group(1))
            for name, value in options.items():
                if name not in known:
                    raise UserError(f"engine {path}: has no option {name!r}")
                self._send(f"setoption name {name} value {value}")
            self._ask("isready", "readyok")
        except BaseException:
            self.close()
            raise

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(command.encode() + b"\n")
        except OSError:
            raise UserError(f"engine {self.path}: ended at {command!r}") from None

    def _ask(self, command: str, last: str, seconds: float | None = None) -> list[str]:
        self._send(command)
        assert self._process.stdout is not None
        seconds = seconds or self._timeout
        deadline = time.monotonic() + seconds
        lines: list[str] = []
        while True:
            while (end := self._buffer.find(b"\n")) >= 0:
                line = self._buffer[:end].decode(errors="replace").strip()
                self._buffer = self._buffer[end + 1 :]
                lines.append(line)
                if line.startswith(last):
                    return lines
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise UserError(f"engine {self.path}: no {last!r} within {seconds:.0f} s of {command!r}")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise UserError(f"engine {self.path}: ended at {command!r}")
            self._buffer += data

    def new_game(self) -> None:
        self._send("ucinewgame")
        self._ask("isready", "readyok")

    def search(self, fen: str, moves: list[str], limit: str) -> tuple[str, str, int]:
        """Best move and the last exact score, ("cp" or "mate", number), of `position fen FEN moves …`, `go LIMIT`."""
        self._send(f"position fen {fen}" + (f" moves {' '.join(moves)}" if moves else ""))
        lines = self._ask(f"go {limit}", "bestmove")
        best = lines[-1].split()
        for line in reversed(lines):
            words = line.split()
            if words[:1] == ["info"] and "score" in words and "lowerbound" not in words and "upperbound" not in words:
                at = words.index("score")
                return best[1], words[at + 1], int(words[at + 2])
        raise UserError(f"engine {self.path}: a move but no score after {fen!r} and {len(moves)} moves")

    def kill(self) -> None:
        """Ends the process; a search that another thread waits for then fails at once."""
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


def score_scale(engine_name: str) -> float:
    """Internal units for one centipawn of the engine's "score cp". UserError for an engine that is not known."""
    match = re.fullmatch(r"Stockfish (\d+(?:\.\d+)?)(?: .*)?", engine_name)
    if match and match.group(1) in _SCALES:
        return _SCALES[match.group(1)]
    raise UserError(f"engine {engine_name!r} does not tell its internal units: give --score-scale (1 keeps centipawns)")


def internal_score(kind: str, value: int, scale: float) -> int:
    """A UCI score in internal units; mate in n moves is 32,000 less the plies until then."""
    if kind == "mate":
        return MATE - (2 * value - 1) if value > 0 else -MATE - 2 * value
    return max(-MAX_SCORE, min(MAX_SCORE, round(value * scale)))


def _opening(options: GenerateOptions, book: list[str], rng: random.Random) -> tuple[str, list[str], _data.Game]:
    while True:
        fen = rng.choice(book) if book else START
        game = _data.Game(fen)
        moves: list[str] = []
        while len(moves) < options.random_plies and not game.outcome():
            moves.append(rng.choice(game.legal_moves()))
            game.play(moves[-1])
        if not game.outcome():
            return fen, moves, game


def play_game(engine: Engine, options: GenerateOptions, scale: float, book: list[str], index: int) -> Records:
    """Game number `index` from opening to result, uint8 [plies, 32]."""
    rng = random.Random(f"{options.seed}/{index}")
    limit = f"nodes {options.nodes}" if options.nodes is not None else f"depth {options.depth}"
    while True:
        fen, moves, game = _opening(options, book, rng)
        engine.new_game()
        plies = decided = drawish = 0
        result: int | None = None
        while result is None:
            outcome = game.outcome()
            if outcome:
                mover = 1 if game.white_to_move else -1
                result = -mover if outcome == "checkmate" else 0
                break
            if plies >= options.max_ply:
                result = 0
                break
            move, kind, value = engine.search(fen, moves, limit)
            score = internal_score(kind, value, scale)
            if plies == 0 and abs(score) > options.opening_score:
                break
            mover = 1 if game.white_to_move else -1
            game.record(move, score)
            moves.append(move)
            plies += 1
            white = mover * score
            sign = (white > 0) - (white < 0)
            decided = (decided + sign if decided * sign >= 0 else sign) if abs(white) >= options.win_score else 0
            drawish = drawish + 1 if abs(white) <= options.draw_score else 0
            if options.win_plies and abs(decided) >= options.win_plies:
                result = sign
            elif options.draw_plies and drawish >= options.draw_plies and plies >= options.draw_from_ply:
                result = 0
        if result is not None and plies:
            return game.records(result)


class _Journal:
    """Finished games in order, each a u32 count and its records, after one line of JSON that says whose they are."""

    def __init__(self, path: Path, header: dict[str, object]) -> None:
        self.path = path
        self.games = self.positions = 0
        line = json.dumps(header, sort_keys=True).encode() + b"\n"
        self._start = len(line)
        try:
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            # Gone with the process, however that ends.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(f"{path}: another run is writing it") from None
        try:
            self._go_on(line)
        except BaseException:
            self._file.close()
            raise

    def _go_on(self, header: bytes) -> None:
        """Behind the last whole game there is."""
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(0)
        found = self._file.read(len(header))
        if not found.endswith(b"\n"):  # of a new file, or one that a crash tore at once
            if not header.startswith(found):
                raise self._other_run()
            self._file.truncate(0)
            self._write(header)
            return
        if found != header:
            raise self._other_run()
        end = len(header)
        while len(head := self._file.read(4)) == 4:
            (count,) = struct.unpack("<I", head)
            if end + 4 + 32 * count > size:
                break
            end += 4 + 32 * count
            self._file.seek(end)
            self.games += 1
            self.positions += count
        self._file.truncate(end)

    def _other_run(self) -> UserError:
        return UserError(f"{self.path}: belongs to a run with other options; finish that one or delete the file")

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}") from None

    def append(self, records: Records) -> None:
        self._write(struct.pack("<I", len(records)) + records.tobytes())
        self.games += 1
        self.positions += len(records)

    def close(self) -> None:
        self._file.close()

    def copy_to(self, writer: _data.BinpackWriter) -> None:
        with self.path.open("rb") as file:
            file.seek(self._start)
            while head := file.read(4):
                (count,) = struct.unpack("<I", head)
                writer.write(np.frombuffer(file.read(32 * count), np.uint8).reshape(count, 32))


def generate(
    out: str | os.PathLike[str],
    options: GenerateOptions,
    *,
    concurrency: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Plays games until there are at least `options.positions` positions and writes them to `out`, whole games only.
    `progress(positions, games)` after each game. Returns both. Interrupted, it goes on at the next call."""
    out = Path(out)
    if concurrency < 1:
        raise UserError(f"generate: concurrency is {concurrency}, expected at least 1")
    if out.is_dir():
        raise UserError(f"{out}: is a directory, expected the name of a file to write")
    book = _read_book(options.book) if options.book else []
    uci_options = {"Hash": str(options.hash_mb)} | options.engine_options
    engines = [Engine(options.engine, uci_options)]
    try:
        scale = options.score_scale if options.score_scale is not None else score_scale(engines[0].name)
        engines += [Engine(options.engine, uci_options) for _ in range(concurrency - 1)]
        header = asdict(options) | {"score_scale": scale, "engine": engines[0].name}
        if book:  # another book under the same name is another run
            header["book"] = hashlib.sha256("\n".join(book).encode()).hexdigest()
        journal = _Journal(out.with_name(out.name + ".journal"), header)
        try:
            _play_in_order(engines, options, scale, book, journal, progress)
        finally:
            journal.close()
    finally:
        for engine in engines:
            engine.close()
    writer = _data.BinpackWriter(str(out))
    journal.copy_to(writer)
    writer.finish()
    journal.path.unlink()
    return journal.positions, journal.games


def _read_book(path: str) -> list[str]:
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the opening book ({error})") from None
    fens = []
    for number, line in enumerate(lines, 1):
        fields = line.split(";")[0].split()[:6]
        counters = fields[4:6] if len(fields) == 6 and all(field.isdigit() for field in fields[4:6]) else []
        if not fields:
            continue
        try:
            fens += _data.fens_from_records(_data.records_from_fens([" ".join(fields[:4] + counters)]))
        except UserError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
    if not fens:
        raise UserError(f"{path}: no openings")
    return fens


def _play_in_order(
    engines: list[Engine],
    options: GenerateOptions,
    scale: float,
    book: list[str],
    journal: _Journal,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Engines take the next game number each; games enter the journal in that order."""
    numbers = iter(range(journal.games, 1 << 62))
    lock = threading.Lock()
    stop = threading.Event()
    done: queue.Queue[tuple[int, Records | BaseException]] = queue.Queue()

    def work(engine: Engine) -> None:
        while not stop.is_set():
            with lock:
                index = next(numbers)
            try:
                done.put((index, play_game(engine, options, scale, book, index)))
            except BaseException as error:
                done.put((index, error))
                return

    threads = [threading.Thread(target=work, args=(engine,), daemon=True) for engine in engines]
    waiting: dict[int, Records] = {}
    try:
        for thread in threads:
            thread.start()
        while journal.positions < options.positions:
            index, game = done.get()
            if isinstance(game, BaseException):
                raise game
            waiting[index] = game
            while journal.games in waiting and journal.positions < options.positions:
                journal.append(waiting.pop(journal.games))
                if progress:
                    progress(journal.positions, journal.games)
    finally:
        stop.set()
        for engine in engines:
            engine.kill()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
