"""The options --html and --png of subcommands: checked before the work, written after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnue_trainer.base import extras
from nnue_trainer.cli.outputs import check_new

if TYPE_CHECKING:
    from nnue_trainer.pages.page import Page
    from nnue_trainer.pages.plots import Plot

Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained HTML page of plots.")]


def png_option(text: str = "Write all plots into one picture.") -> Any:
    """--png with this help text."""
    return typer.Option("--png", metavar="FILE", help=text)


Png = Annotated[Path | None, png_option()]


def check_pictures(html: Path | None, png: Path | None, overwrite: bool) -> None:
    """Before the work: UserError if matplotlib is missing, or if a page or picture exists and may not be replaced."""
    for option, file in (("--html", html), ("--png", png)):
        if file:
            extras.require("matplotlib", option)
    if png:
        check_new(png, overwrite)
    if html:
        from nnue_trainer.pages import page

        page.check_replaceable(html, overwrite)


def save_pictures(
    html: Path | None, make_page: Callable[[], Page], png: Path | None, make_plots: Callable[[], list[Plot]], title: str
) -> None:
    """Writes the page and the picture that were requested."""
    if html:
        from nnue_trainer.pages import page

        page.save(make_page(), html)
    save_png(png, make_plots, title)


def save_png(png: Path | None, make_plots: Callable[[], list[Plot]], title: str) -> None:
    """Writes the picture if it was requested."""
    if png:
        from nnue_trainer.pages import plots

        plots.save_png(make_plots(), png, title)
