"""Plots for pages and pictures, by matplotlib.

On a page a plot is inline SVG: it needs no script and no network, it is sharp on every screen, its text can be
selected, and its colours are variables of the page, so that it follows the reader's choice of dark or light. An
interactive library would put 1 to 4 MB of script on every page. Every plot is drawn about as wide as a phone, so that
its text can be read there without zooming; wide screens show several side by side.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from nnue_trainer.errors import UserError, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, GRID, PAPER = "#20262d", "#5c6671", "#d8dde3", "#fefefe"
SERIES = ("#2f6fb1", "#c8553e", "#3f8f5e", "#8a5fc0", "#b8860c", "#3a8f9e", "#a0527b", "#6b7a1f")
GOOD, BAD = "#3f8f5e", "#c8553e"
_VARIABLES = {INK: "--ink", SOFT: "--soft", GRID: "--grid", PAPER: "--paper"} | {
    color: f"--s{number}" for number, color in enumerate(SERIES)
}
WIDTH, HEIGHT = 3.9, 2.35  # inches of 72 units

Draw = Callable[["Axes"], object]


@dataclass(frozen=True)
class Plot:
    """`draw` fills one set of axes. `legend` is (name, colour) pairs, shown beside the plot as text of the page.
    Titles, notes and legends may hold text from files; what is drawn may not."""

    title: str
    draw: Draw
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()
    height: float = HEIGHT
    width: float = WIDTH
    plain: bool = False
    """no frame, ticks or grid: pictures of boards"""
    bars: Sequence[tuple[str, int]] = ()
    """the labels and counts of a histogram, which a text shows too"""


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    settings: dict[str, Any] = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.5,
        "axes.labelsize": 9,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "text.color": INK,
        "text.parse_math": False,
        "axes.labelcolor": SOFT,
        "axes.edgecolor": SOFT,
        "axes.linewidth": 0.7,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.formatter.limits": (-4, 5),
        "axes.formatter.useoffset": False,
        "axes.formatter.use_mathtext": False,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "lines.linewidth": 1.6,
        "lines.solid_joinstyle": "round",
        "path.simplify": True,
        "path.simplify_threshold": 0.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "nnue",
        "svg.image_inline": True,
    }
    with matplotlib.rc_context(cast(Any, settings)):
        yield


def svg(plot: Plot, identity: str) -> str:
    """An <svg> element for a page; `identity`, unique on the page, is put before the names inside."""
    from matplotlib.figure import Figure

    with _style():
        figure = Figure(figsize=(plot.width, plot.height), layout="constrained")
        figure.patch.set_alpha(0)
        figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # type: ignore[union-attr,call-arg]
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        _fill(plot, axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(buffer.getvalue(), identity)


_Call = tuple[str, Sequence[Any], dict[str, Any]]  # of a method of Axes: its name and arguments

_DRAW = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
from nnue_trainer.files.pages.plots import svg_of_calls
json.dump([svg_of_calls(*each) for each in given["plots"]], sys.stdout)
"""


class _NotedAxes:
    """Stands in for `Axes`, and notes the methods that are called. They return None."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values, **options: self.calls.append((name, values, options))


def _noted(plot: Plot) -> list[_Call]:
    axes = _NotedAxes()
    plot.draw(cast("Axes", axes))
    return axes.calls


def svg_of_calls(calls: Sequence[_Call], width: float, height: float, plain: bool, identity: str) -> str:
    """`svg` of a plot that these calls draw."""

    def draw(axes: Axes) -> None:
        for name, values, options in calls:
            getattr(axes, name)(*values, **options)

    return svg(Plot("", draw, width=width, height=height, plain=plain), identity)


def svgs_apart(plots: Sequence[tuple[Plot, str]]) -> list[str]:
    """`svg` of each plot and identity by a process that loads matplotlib and no torch, so that no process needs the
    memory of both. `draw` of a plot may not use what methods of `Axes` return, and their arguments travel as JSON:
    arrays and tuples become lists."""
    noted = [(_noted(plot), plot.width, plot.height, plot.plain, identity) for plot, identity in plots]
    given = json.dumps({"path": sys.path, "plots": noted}, default=lambda value: value.tolist())
    done = subprocess.run([sys.executable, "-I", "-c", _DRAW], input=given, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"the process that draws the plots ended with status {done.returncode}")
    found: list[str] = json.loads(done.stdout)
    return found


def save_png(
    plots: Sequence[Plot], path: Any, title: str, facts: Sequence[tuple[str, str]] = (), columns: int = 3
) -> None:
    """Saves all plots as one picture, which is complete or absent. `facts` are in front of them."""
    from matplotlib.figure import Figure

    from nnue_trainer.files.atomic import replacing

    begin = 2 * bool(facts)  # facts are twice as wide as a plot
    rows = -(-(len(plots) + begin) // columns)
    with _style():
        figure = Figure(
            figsize=(columns * (WIDTH + 0.3), rows * (HEIGHT + 0.7) + 0.5),
            dpi=110,
            facecolor=PAPER,
            layout="constrained",
        )
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, parse_math=False)
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr,call-arg]
        if facts:
            _draw_facts(figure.add_subplot(rows, columns, (1, begin)), facts)
        for number, plot in enumerate(plots, begin + 1):
            axes = figure.add_subplot(rows, columns, number)
            _fill(plot, axes)
            axes.set_title(plot.title, loc="left", fontsize=10, parse_math=False)
            if plot.legend:
                from matplotlib.lines import Line2D

                handles = [Line2D([], [], color=color, label=name) for name, color in plot.legend]
                axes.legend(handles=handles, fontsize=7, frameon=False, loc="best")
        with replacing(path) as output:
            figure.savefig(output.file, format="png")


def _draw_facts(axes: Axes, facts: Sequence[tuple[str, str]]) -> None:
    axes.axis("off")
    for number, fact in enumerate(facts):
        for text, x, color in zip(map(shown, fact), (0.0, 0.35), (SOFT, INK), strict=True):
            axes.text(x, 1 - (number + 0.5) / len(facts), text, color=color, va="center", transform=axes.transAxes)


def _fill(plot: Plot, axes: Axes) -> None:
    if plot.plain:
        axes.grid(False)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    plot.draw(axes)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":  # powers of ten as plain text, which is not typeset
            low, high = sorted(axis.get_view_interval())
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(_second_and_fifth if high < 30 * low else lambda value, _: "")
        elif axis.get_scale() == "symlog":
            axis.set_major_formatter(lambda value, _: f"{value:g}")


def _second_and_fifth(value: float, _: object) -> str:
    return f"{value:.2g}" if f"{value:e}"[0] in "25" else ""


def _inline(text: str, identity: str) -> str:
    """The SVG of matplotlib without the prologue and the fixed size, with colours and names of the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg [^>]*?)\s(?:width|height)="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?)\s(?:width|height)="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(\sid=")', rf"\1{identity}-", text)
    text = re.sub(r'((?:xlink:)?href="#)', rf"\1{identity}-", text)
    text = text.replace("url(#", f"url(#{identity}-")
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    return text.replace("<svg ", '<svg role="img" ', 1)


# ---- what is drawn more than once ------------------------------------------------------------------------------------


def histogram(title: str, labels: Sequence[str], counts: Sequence[int], note: str = "", *, log: bool = False) -> Plot:
    """Bars of the shares of positions in per cent. A bin of several values has a label such as "8 … 15"."""

    def draw(axes: Axes) -> None:
        used = [number for number, count in enumerate(counts) if count] or [0]
        bins = range(used[0], used[-1] + 1)
        total = max(1, sum(counts))
        axes.bar(bins, [100 * counts[i] / total for i in bins], width=0.9, color=SERIES[0], linewidth=0)
        ticks = bins[:: -(-len(bins) // 9)]
        axes.set_xticks(ticks, [labels[i].split(" … ")[0] for i in ticks])
        axes.set_ylabel("%")
        if log:
            axes.set_yscale("log")

    return Plot(title, draw, note=note, bars=list(zip(labels, counts, strict=True)))


def scale_of(largest: float) -> tuple[float, str]:
    """A divisor and the word for it, for an axis of positions."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 2 * size:
            return size, name
    return 1.0, ""


def thin(x: npt.NDArray[Any], *columns: npt.NDArray[Any], most: int = 800) -> list[npt.NDArray[Any]]:
    """At most about `most` points: every n-th, and the last."""
    if len(x) <= most:
        return [x, *columns]
    step = -(-len(x) // most)
    chosen = np.unique(np.append(np.arange(0, len(x), step), len(x) - 1))
    return [x[chosen], *(column[chosen] for column in columns)]


def envelope(x: npt.NDArray[Any], y: npt.NDArray[Any], most: int = 400) -> list[npt.NDArray[Any]]:
    """Like `thin`, but it keeps the lowest and the highest value of each stretch: noise must not look smaller than it
    is."""
    if len(x) <= 2 * most:
        return [x, y]
    chosen: list[int] = []
    for part in np.array_split(np.arange(len(x)), most):
        finite = part[np.isfinite(y[part])]
        if len(finite):
            chosen += sorted({int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])})
    return [x[chosen], y[chosen]]
