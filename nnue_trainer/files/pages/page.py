"""A report from sections, tables and plots: as HTML, as text for a terminal, and as JSON data.

The HTML is one page that needs nothing else: text, tables and plots, escaped by jinja2. No script, no font and no
picture from elsewhere: the page is opened from a disk, a mail or a phone without a network. Dark or light follows the
reader's system. `plots.save_png` saves all plots of a page as one picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import StrPath, replacing
from nnue_trainer.files.pages.plots import SERIES, Plot, svg, svgs_apart

if TYPE_CHECKING:
    import jinja2

MARKER = '<meta name="generator" content="torch-nnue">'
MARKER_OF_0_2 = '<meta name="generator" content="nnue-trainer">'
"""The mark of pages that this program made, which a newer page may replace."""
_MOST_BARS = 32


@dataclass
class Table:
    """Cells are text. From the column `numbers` on they are numbers, which are aligned to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 1
    title: str = ""
    fold: bool = False
    """folded until the reader opens it"""


@dataclass
class Section:
    """A heading and its contents, in this order."""

    title: str
    text: str = ""
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    good: Sequence[str] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    listing: str = ""
    """preformatted text, folded"""
    listing_title: str = ""


@dataclass
class Page:
    title: str
    subtitle: str = ""
    sections: list[Section] = field(default_factory=list)
    headline: str = ""
    """first line of the text for a terminal"""
    refresh: int = 0
    """seconds after which a browser loads the page again; 0: never"""

    @property
    def plots(self) -> list[Plot]:
        return [plot for section in self.sections for plot in section.plots]


def as_text(page: Page) -> str:
    """The page for a terminal, without listings and plots except histograms. Warnings come last."""
    lines = [shown(page.headline or page.title)]
    for section in page.sections:
        parts = [part for part in _parts(section) if part]
        if parts and section is not page.sections[0]:
            lines += ["", shown(section.title)]
        lines += [line for number, part in enumerate(parts) for line in ([""] * (number > 0) + part)]
    notes = [f"  note: {shown(line)}" for section in page.sections for line in section.warnings]
    return "\n".join([*lines, *([""] * bool(notes)), *notes])


def _parts(section: Section) -> Iterator[list[str]]:
    """The lines of each part of a section."""
    yield [f"  {shown(line)}" for line in (section.text, *section.good) if line]
    width = max((len(name) for name, _ in section.facts), default=0)
    yield [f"  {name:{width}}  {shown(value)}" for name, value in section.facts]
    for table in section.tables:
        yield [f"  {line}" for line in (*([shown(table.title)] if table.title else ()), *aligned(table))]
    for plot in section.plots:
        yield _bars(plot)


def aligned(table: Table) -> list[str]:
    """The lines of a table, head first, with aligned columns."""
    rows = [[shown(cell) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < table.numbers else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _bars(plot: Plot) -> list[str]:
    """A histogram as text: neighbouring bins are joined, so that there are few lines, and empty ends are left out."""
    used = [i for i, (_, count) in enumerate(plot.bars) if count]
    if not used:
        return []
    first, last = used[0], used[-1]
    step = -(-(last - first + 1) // _MOST_BARS)
    rows = []
    for i in range(first, last + 1, step):
        joined = plot.bars[i : min(i + step, last + 1)]
        # A bin may be a range itself, such as "8 … 15".
        begin, end = joined[0][0].split(" … ")[0], joined[-1][0].split(" … ")[-1]
        label = begin if begin == end else f"{begin} … {end}"
        rows.append((label, sum(count for _, count in joined)))
    most, total, width = max(n for _, n in rows), sum(n for _, n in rows), max(len(label) for label, _ in rows)
    return [plot.title] + [f"  {label:>{width}}  {n / total:6.1%}  {'█' * round(40 * n / most)}" for label, n in rows]


def plain(value: Any) -> Any:
    """A value as JSON data: dataclasses by their fields, arrays and tensors as lists; NaN and infinities are None."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def render(page: Page, apart: bool = False) -> str:
    """The page as HTML. Text from files is shown without control characters, and escaped. `apart`: another process
    draws the plots (`svgs_apart`)."""
    from markupsafe import Markup

    plots = [(plot, f"p{number}") for number, plot in enumerate(page.plots, 1)]
    pictures = iter(svgs_apart(plots) if apart else (svg(plot, identity) for plot, identity in plots))

    def drawn(_: Plot) -> Markup:  # the template has the plots in the order of `page.plots`
        return Markup(next(pictures))

    return _template().render(page=page, drawn=drawn, series=SERIES, marker=Markup(MARKER))


def save(page: Page, path: StrPath, apart: bool = False) -> None:
    """Writes the page, which is complete or absent. `apart`: see `render`."""
    text = render(page, apart)
    with replacing(path) as output:
        output.write_text(text)


def check_replaceable(path: StrPath, overwrite: bool = False) -> None:
    """UserError if `path` exists and is not a page that this program made, unless it may be replaced."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            start = file.read(2048)
            ours = any(marker.encode() in start for marker in (MARKER, MARKER_OF_0_2))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if not ours and not overwrite:
        raise UserError(f"{path}: exists already and was not written by this program; --overwrite replaces it")


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nnue_trainer.files.pages", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if hasattr(value, "__html__") else shown(value),
    )
    environment.filters["color"] = lambda color: SERIES.index(color) if color in SERIES else 0
    return environment.get_template("page.html.j2")
