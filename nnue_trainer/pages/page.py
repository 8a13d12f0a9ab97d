"""One HTML page that needs nothing else: text, tables and plots, escaped by jinja2.

No script, no font and no picture from elsewhere: the page is opened from a disk, a mail or a phone without a network.
Dark or light follows the reader's system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import StrPath, replacing
from nnue_trainer.pages.plots import SERIES, Plot, svg

if TYPE_CHECKING:
    import jinja2

MARKER = '<meta name="generator" content="nnue-trainer">'
"""The mark of pages that this program made, which a newer page may replace."""


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


def render(page: Page) -> str:
    """The page as text. Text from files is shown without control characters, and escaped."""
    from markupsafe import Markup

    counter = iter(range(1, 1 << 20))

    def drawn(plot: Plot) -> Markup:
        return Markup(svg(plot, f"p{next(counter)}"))

    return _template().render(page=page, drawn=drawn, series=SERIES, marker=Markup(MARKER))


def save(page: Page, path: StrPath) -> None:
    """Writes the page, which is complete or absent."""
    text = render(page)
    with replacing(path) as output:
        output.write_text(text)


def check_replaceable(path: StrPath, overwrite: bool = False) -> None:
    """UserError if `path` exists and is not a page that this program made, unless it may be replaced."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            ours = MARKER.encode() in file.read(2048)
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
        loader=jinja2.PackageLoader("nnue_trainer.pages", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if hasattr(value, "__html__") else shown(value),
    )
    environment.filters["color"] = lambda color: SERIES.index(color) if color in SERIES else 0
    return environment.get_template("page.html.j2")
