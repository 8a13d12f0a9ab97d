"""`nnue watch`: a page about a run that renews itself, from a server that only this machine reaches.

The page is the static one of `nnue report`, with fewer sections: it has no script, and the browser loads it again after
some seconds. It is made again only if the run wrote something in between, because plots take a second of CPU time.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nnue_trainer.analysis.report import judge, number
from nnue_trainer.analysis.report_plots import curve_sections
from nnue_trainer.analysis.runs import PARTS, Run, folder_of, read_run
from nnue_trainer.base import system
from nnue_trainer.base.progress import duration, positions, size
from nnue_trainer.errors import UserError
from nnue_trainer.files.pages.page import Page, Section, Table, render
from nnue_trainer.training.run_folder import MANIFEST, owner_of

_LAST_GAMES = 10
_LONGEST_MATCH = 64 << 20
"""Bytes of a match.json beyond which its games are not shown."""


def state_of(run: Run) -> str:
    """Whether a process trains in the folder, and how far the run is."""
    owner = owner_of(run.path)
    here = owner is not None and owner[1] == socket.gethostname()
    if owner is not None and (not here or system.is_running(owner[0])):
        return f"running, pid {owner[0]}" + ("" if here else f" on {owner[1]}")
    return "finished" if run.is_finished else "stopped"


def may_begin(path: Path) -> bool:
    """Whether the folder `path` is missing, empty or taken by a run that has not written the first file of the page."""
    try:
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if any(name in PARTS for name in names):
        return False
    return owner_of(path) is not None or all(name.startswith(".") or name == MANIFEST for name in names)


def seconds_left(run: Run) -> float:
    """The steps that are left at the rate since the start, with validations and saves; NaN if it is unknown."""
    batch = run.field("data.batch_size")
    rate = run.train.last("run_positions_per_second")
    if run.steps is None or not batch or not rate > 0:
        return math.nan
    return max(run.steps - run.step, 0) * float(batch) / rate


def build(path: Path, refresh: int = 0) -> Page:
    """The page of the run in the folder `path`. UserError if there is none."""
    run = read_run(path)
    state = state_of(run)
    share = f"{min(run.step / run.steps, 1):.0%}" if run.steps else f"step {run.step:,}"
    games, problem = _last_games(run.path)
    sections = [_now(run, state)]
    for section in curve_sections([run]):
        if section.title == "Matches":
            section.tables, section.warnings = [games] if games else [], [problem] if problem else []
        if section.plots or section.tables or section.warnings:
            sections.append(section)
    subtitle = time.strftime("NNUE training, as of %Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return Page(f"{run.name}: {share}", subtitle, sections, refresh=refresh)


def _now(run: Run, state: str) -> Section:
    speed, left, memory = run.train.last("positions_per_second"), seconds_left(run), run.train.last("peak_memory_bytes")
    trained = run.positions(run.train)
    with contextlib.suppress(OSError):
        written = (run.path / "metrics.jsonl").stat().st_mtime
        state += time.strftime(", last record %H:%M:%S UTC", time.gmtime(written))
    facts = {
        "state": state,
        "time left": duration(left) if math.isfinite(left) and state.startswith("running") else "–",
        "step": f"{run.step:,}" + (f" of {run.steps:,}" if run.steps else ""),
        "epoch": number(run.train.last("epoch"), ",.0f"),
        "positions": positions(float(trained[-1])) if len(trained) else "–",
        "positions/s": positions(speed) if math.isfinite(speed) else "–",
        "training loss": number(run.train.last("loss"), ".6f"),
        "validation loss": number(run.validation.last("loss"), ".6f"),
        "best validation loss": number(run.lowest_validation_loss, ".6f"),
        "learning rate": number(run.train.last("lr"), ".3g"),
        "most memory": size(memory) if math.isfinite(memory) else "–",
    }
    return Section("Now", facts=list(facts.items()), warnings=[*run.notes, *judge(run)])


def _newest_match(path: Path) -> Path | None:
    found = sorted((path / "matches").glob("step-*/match.json"))
    return found[-1] if found else None


def _last_games(path: Path) -> tuple[Table | None, str]:
    """A table of the last games of the newest match, and what is wrong with its file."""
    file = _newest_match(path)
    if file is None:
        return None, ""
    name = f"{file.parent.name}/{file.name}"
    try:
        if file.stat().st_size > _LONGEST_MATCH:
            return None, f"{name}: over {size(_LONGEST_MATCH)}, so its games are not shown"
        games: list[dict[str, Any]] = json.loads(file.read_bytes())["games"]
        rows = [
            [f"{game['game']:,}", *(str(game[key]) for key in ("white", "black", "result", "reason", "plies"))]
            for game in games[: -_LAST_GAMES - 1 : -1]
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return None, f"{name}: cannot be read: {type(error).__name__}"
    head = ["game", "White", "Black", "result", "end", "half-moves"]
    return Table(head, rows, numbers=6, title=f"Last games, {file.parent.name}"), ""


class Server(ThreadingHTTPServer):
    """Serves the page of the run in `path` on 127.0.0.1, also if the run has not begun.

    UserError if `path` is another file or a folder of other files, or if the port is in use.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, path: Path, every: int, port: int = 0) -> None:
        self.path = folder_of(path)
        if not may_begin(self.path):
            read_run(self.path)
        self.every = every
        self._making = threading.Lock()  # matplotlib is not made for several threads
        self._signature: object = None
        self._text = b""
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UserError(f"port {port}: {error.strerror or error}; pass another --port, or 0") from None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def page(self) -> bytes:
        """The page as HTML, made again if the run has changed."""
        with self._making:
            signature = self._changes()
            if signature != self._signature:
                try:
                    page = build(self.path, self.every)
                except UserError as error:
                    facts = [("state", "waiting for the first file of the run")] if may_begin(self.path) else []
                    now = Section("Now", facts=facts, warnings=[str(error)])
                    page = Page(self.path.name, refresh=self.every, sections=[now])
                self._text, self._signature = render(page).encode(), signature
            return self._text

    def _changes(self) -> object:
        """A value that changes with the files that the page shows, and with the process that trains."""
        files = [self.path / name for name in ("metrics.jsonl", "recipe.yaml", "checkpoints/last.safetensors")]
        newest, owner = _newest_match(self.path), owner_of(self.path)
        stats: list[tuple[int, int] | None] = []
        for file in [*files, *([newest] if newest else [])]:
            try:
                found = file.stat()
                stats.append((found.st_mtime_ns, found.st_size))
            except OSError:
                stats.append(None)
        return stats, self.path.is_dir(), owner, owner is not None and system.is_running(owner[0])


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30

    def do_GET(self) -> None:
        # A page of another site, whose name leads to 127.0.0.1, gets nothing.
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in ("127.0.0.1", "localhost"):
            self.send_error(403)
        elif self.path.partition("?")[0] != "/":
            self.send_error(404)
        else:
            text = self.server.page()
            with contextlib.suppress(ConnectionError):
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""
