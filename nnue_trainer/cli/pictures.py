"""The options --html and --png of subcommands: checked before the work, written after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnue_trainer.base import extras
from nnue_trainer.cli.outputs import check_new, check_no_input
from nnue_trainer.errors import UserError
from nnue_trainer.files import finished

if TYPE_CHECKING:
    from nnue_trainer.files.pages.page import Page

Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained HTML page of plots.")]
Png = Annotated[Path | None, typer.Option(metavar="FILE", help="Write all plots into one picture.")]


def check_pictures(
    html: Path | None, png: Path | None, overwrite: bool, inputs: Iterable[Path | None], pages: int = 1
) -> None:
    """Before the work: UserError if matplotlib is missing, if a page or picture exists and may not be replaced, and if
    several `pages` would be written into one file."""
    check_no_input([html, png], inputs)
    if pages > 1 and (html or png):
        raise UserError(f"{'--html' if html else '--png'}: found {pages} files, expected one file for a page")
    for option, file in (("--html", html), ("--png", png)):
        if file:
            extras.require("matplotlib", option)
    if png and not finished.expect(png):  # a command that was killed prints its report again
        check_new(png, overwrite)
    if html:
        from nnue_trainer.files.pages import page

        page.check_replaceable(html, overwrite)


def present(page: Page, data: Callable[[], Any], html: Path | None, png: Path | None, *, as_json: bool) -> None:
    """Writes the page and the picture that were requested, and prints the text or the JSON data of a report."""
    from nnue_trainer.files.pages.page import as_text, save
    from nnue_trainer.files.pages.plots import save_png

    if html:
        save(page, html)
    if png:
        save_png(page.plots, png, f"{page.title}   ·   {page.subtitle}", page.sections[0].facts)
    print(json.dumps(data()) if as_json else as_text(page))
