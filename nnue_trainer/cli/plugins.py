"""`--plugin FILE`: the option that loads users' classes; the options of a command that resumes a run.

Reading a checkpoint or net never imports code. If one was made with a class from outside the package, the command line
must name the file.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file or C++ header with your own classes that the recipe or checkpoint names; may be repeated.",
    ),
]


def load(files: list[Path] | None) -> None:
    """Imports the files. UserError for the first that is not there or fails."""
    from nnue_trainer.registry import load_plugin

    for file in files or ():
        load_plugin(file)


def options() -> str:
    """The options that load the same classes in another command: " --plugin FILE" for each file."""
    from nnue_trainer.registry import loaded

    return "".join(f" --plugin {shlex.quote(str(path))}" for path in loaded())


def resume_options() -> str:
    """The options that resume a run without its recipe: those of `options`, and consent to its programs."""
    from nnue_trainer.base.programs import any_allowed

    return options() + " --allow-commands" * any_allowed()
