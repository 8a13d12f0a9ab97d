"""Progress on standard error: one line that is updated on a terminal, otherwise a plain line from time to time.

A line consists of parts. If the terminal is too narrow for all of them, they are shortened first, and then the least
important ones are left out. Errors of the terminal or pipe are ignored: a closed window must not end a training.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast

from nnue_trainer.errors import shown

# rich is imported when the first line is drawn: most commands, and all help texts, start without it.
if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

# Seconds between two plain lines of a long command, unless the command sets the interval.
PLAIN_LINE_EVERY = 60.0

_REFRESH_PER_SECOND = 5
_GAP = "  "
_BAR_RANK = 5  # among the ranks of parts
_SHORTEST_BAR, _LONGEST_BAR = 8, 40


@dataclass(frozen=True)
class Part:
    """One figure of a line. Parts with a low `rank` stay longest; `short` is shown if there is little room."""

    text: str
    rank: int
    short: str | None = None


def fit(parts: Sequence[Part], width: int) -> list[tuple[Part, str]]:
    """The parts that fit into `width` columns: shortened if necessary, then without the least important ones."""
    from rich.cells import cell_len

    kept, short = list(parts), False
    while True:
        texts = [part.short if short and part.short is not None else part.text for part in kept]
        if len(kept) <= 1 or cell_len(_GAP.join(texts)) <= width:
            return list(zip(kept, texts, strict=True))
        if short:
            kept.remove(max(kept, key=lambda part: part.rank))
        short = True


def render(parts: Sequence[Part], share: float | None, width: int) -> str:
    """The line of a terminal of `width` columns. `share`: the part done, 0 to 1; None: unknown, so no bar."""
    from rich.cells import cell_len

    width -= 1  # some terminals wrap a full line
    if share is None:
        return _GAP.join(text for _, text in fit(parts, width))
    share = min(max(share, 0.0), 1.0)
    bar = Part(" " * _SHORTEST_BAR, _BAR_RANK)
    fitting = fit([bar, Part(f"{int(100 * share):3d}%", 0), *parts], width)
    room = width - cell_len(_GAP.join(text for _, text in fitting))
    longest = min(_SHORTEST_BAR + room, _LONGEST_BAR)
    return _GAP.join(_bar(share, longest) if part is bar else text for part, text in fitting)


def _bar(share: float, width: int) -> str:
    eighths = int(8 * width * share)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + " ▏▎▍▌▋▊▉"[part] * (part > 0)).ljust(width, "░")


def duration(seconds: float) -> str:
    """A time for people, in its two largest units: "22 d 5 h", "5 h 12 m", "3 m 20 s", "45 s"."""
    if not seconds < 1e11:
        return "more than 1000 years"
    left = round(seconds)
    if left >= 86_400 * 100:
        return f"{left // 86_400:,} d"
    for size, unit, smaller, small_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            return f"{left // size} {unit} {left % size // smaller} {small_unit}"
    return f"{left} s"


def positions(number: float) -> str:
    """A number of positions for people: 950, 12.3 k, 4.50 M."""
    return _scaled(number, 1000, ("", " k", " M", " G", " T"))


def size(number: float) -> str:
    """A number of bytes for people: 950 B, 12.3 KiB, 4.50 GiB."""
    return _scaled(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if number < step * 0.9995:
            return (f"{number:.0f}" if unit == units[0] else _in_three_figures(number)) + unit
        number /= step
    return _in_three_figures(number) + units[-1]


def _in_three_figures(number: float) -> str:
    return f"{number:#.3g}".rstrip(".") if number < 999.5 else f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """A number of things: 1 file, 2,000 files."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Unfailing:
    """A text stream on which printing never fails: what it cannot encode is escaped, and once the other end is gone (a
    closed terminal, pipe or file), everything else is dropped."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._gone = False

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(self._encodable(text)))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def isatty(self) -> bool:
        return bool(self._attempt(self._stream.isatty))

    def _encodable(self, text: str) -> str:
        encoding = self._stream.encoding or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)

    def _attempt(self, action: Callable[[], Any]) -> Any:
        if self._gone:
            return None
        try:
            return action()
        except (OSError, ValueError):  # ValueError: of a closed stream
            self._gone = True
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Line:
    """Draws the line. `show` sets what there is to see. A terminal gets a new line a few times per second, each from a
    new call of `parts()`, so that the clock goes on; elsewhere `plain` prints it."""

    def __init__(self, parts: Callable[[], tuple[Sequence[Part], float | None]], *, transient: bool):
        from rich.console import Console
        from rich.live import Live

        self._parts = parts
        self._out = Unfailing(sys.stderr)
        self.console = Console(file=cast(TextIO, self._out), highlight=False, emoji=False)
        self.moving = self._out.isatty() and not self.console.is_dumb_terminal
        self._live: Live | None = None
        if self.moving:
            self._live = Live(
                self,
                console=self.console,
                refresh_per_second=_REFRESH_PER_SECOND,
                transient=transient,
                # Text that others print to standard error appears above the line.
                redirect_stdout=False,
                redirect_stderr=True,
            )
            self._live.start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        parts, share = self._parts()
        line = render(parts, share, options.max_width)
        if options.ascii_only:
            line = line.translate({ord("█"): "#", ord("░"): "."} | dict.fromkeys(map(ord, "▏▎▍▌▋▊▉"), "."))
        yield Text(line, no_wrap=True, overflow="crop")

    def plain(self) -> None:
        """Prints the line where the output is not a terminal."""
        if not self.moving:
            parts, share = self._parts()
            percent = [] if share is None else [f"{int(100 * share)}%"]
            print(_GAP.join([*percent, *(part.text for part in parts)]), file=self._out, flush=True)

    def say(self, text: str) -> None:
        """Prints a separate line above the progress."""
        from rich.text import Text

        self.console.print(Text(shown(text)), soft_wrap=True)
        self._out.flush()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class TrainingProgress:
    """Progress of a training: a bar, how long it has taken and will take, and the figures of the last record.

    `passes`, if given, is how often the training data has been begun, the current pass included. `first_step` and
    `first_epoch` are those of a stage of a run, whose `steps` and `epochs` are all stages'; `stage` is its label.
    """

    def __init__(
        self,
        steps: int,
        steps_per_epoch: int,
        batch_size: int,
        step: int,
        passes: Callable[[], int] | None = None,
        *,
        first_step: int = 0,
        first_epoch: int = 0,
        epochs: int | None = None,
        stage: str = "",
    ):
        self._steps, self._steps_per_epoch, self._batch_size = steps, steps_per_epoch, batch_size
        self._step = step
        self._begin, self._first_epoch, self._stage = first_step, first_epoch, stage
        self._epochs = steps // steps_per_epoch if epochs is None else epochs
        self._passes = passes
        self._begun = self._started = time.monotonic()
        self._first_step: int | None = None
        self._paused = 0.0
        self._pause_began: float | None = None
        self._figures: dict[str, str] = {}
        self._printed: int | None = None
        self._line = Line(self._parts, transient=False)

    def update(self, step: int, **figures: str) -> None:
        """`step` is done. Figures such as loss="0.0123" make a record, which is a separate line where the output is no
        terminal; they stay until they are replaced. No step has two such lines."""
        self._step = step
        if self._first_step is None:  # the first step warms up, and may compile; speed counts from its end
            self._first_step, self._started, self._paused = step, time.monotonic(), 0.0
        if figures:
            self._figures |= figures
            if step != self._printed:
                self._printed = step
                self._line.plain()

    def _parts(self) -> tuple[list[Part], float]:
        step, now = self._step, time.monotonic()
        epoch = self._first_epoch + max(step - self._begin - 1, 0) // self._steps_per_epoch + 1
        parts = [
            *([Part(self._stage, 5)] if self._stage else []),
            Part(f"epoch {epoch}/{self._epochs}", 6),
            Part(f"step {step:,}/{self._steps:,}", 8),
        ]
        ranks = {"loss": 3, "val": 7}
        parts += [Part(f"{name} {text}", ranks.get(name, 8)) for name, text in self._figures.items()]
        done = step - self._first_step if self._first_step is not None else 0
        if done > 0:
            until = now if self._pause_began is None else self._pause_began
            speed = positions(done * self._batch_size / max(until - self._started - self._paused, 1e-9))
            parts.append(Part(f"{speed} pos/s", 2, f"{speed}/s"))
        if self._passes is not None:
            parts.append(Part(f"data pass {self._passes():,}", 9))
        parts.append(Part(f"elapsed {duration(now - self._begun)}", 4))
        if done > 0:  # validation included
            parts.append(Part(f"ETA {duration((self._steps - step) * (now - self._started) / done)}", 1))
        return parts, step / self._steps

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time in here does not count for the speed of training."""
        self._pause_began = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - self._pause_began
            self._pause_began = None

    def say(self, text: str) -> None:
        """Prints a separate line above the progress."""
        self._line.say(text)

    def close(self) -> None:
        self._line.close()


class ShowProgress(Protocol):
    """Shows what is done and what there is in all; `what`, if given, is the new name of what is going on."""

    def __call__(self, done: int, total: int, what: str | None = None) -> None: ...


@contextlib.contextmanager
def progress_bar(what: str, unit: str = "bytes") -> Iterator[ShowProgress]:
    """Progress of a command that works through `total` bytes or whatever `unit` is; the callback takes what is done
    and what there is. On a terminal a bar, which goes away at the end; elsewhere a line every minute."""
    task = _Task(shown(what), unit)
    line = Line(task.parts, transient=True)

    def show(done: int, total: int, what: str | None = None) -> None:
        if what is not None and shown(what) != task.what:
            task.restart(shown(what))
        task.done, task.total = done, total
        now = time.monotonic()
        if now - task.printed >= PLAIN_LINE_EVERY:
            task.printed = now
            line.plain()

    try:
        yield show
    finally:
        line.close()


class _Task:
    def __init__(self, what: str, unit: str):
        self._unit = unit
        self.printed = time.monotonic()
        self.restart(what)

    def restart(self, what: str) -> None:
        self.what = what
        self.done = self.total = 0
        self._begun = time.monotonic()

    def parts(self) -> tuple[list[Part], float | None]:
        seconds = time.monotonic() - self._begun
        if self._unit == "bytes":
            counts = Part(f"{size(self.done)} of {size(self.total)}", 6, size(self.done))
            speed = f"{size(self.done / max(seconds, 1e-9))}/s"
        else:
            counts = Part(f"{self.done:,} of {self.total:,} {self._unit}", 6, f"{self.done:,}")
            speed = f"{positions(self.done / max(seconds, 1e-9))} {self._unit}/s"
        parts = [Part(self.what, 3)]
        if not self.total:
            return [*parts, Part(f"elapsed {duration(seconds)}", 2)], None
        parts += [counts, Part(speed, 4), Part(f"elapsed {duration(seconds)}", 2)]
        if 0 < self.done <= self.total:
            parts.append(Part(f"ETA {duration(seconds * (self.total - self.done) / self.done)}", 1))
        return parts, self.done / self.total
