"""Options that decorators add to commands, such as `--plugin FILE`, which loads users' classes.

Reading a checkpoint or net never imports code. If one was made with a class from outside the package, the command line
must name the file.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Python file or C++ header with your own classes that the recipe or checkpoint names; may be repeated.",
    ),
]


def load(files: list[Path] | None) -> None:
    """Imports the files. UserError for the first that is not there or fails."""
    from nnue_trainer.registry import load_plugin

    for file in files or ():
        load_plugin(file)


def with_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the option --plugin after its own; the files are imported before it runs."""

    @functools.wraps(command)
    def loaded(*, plugins: dict[str, Any], **arguments: Any) -> None:
        load(plugins["plugin"])
        command(**arguments)

    return with_options(loaded, "plugins", {"plugin": (Plugins, None)})


def with_options(
    command: Callable[..., None], parameter: str, options: dict[str, tuple[Any, Any]]
) -> Callable[..., None]:
    """`command` with `options`, their types and defaults by name, in place of a parameter that is a dict of their
    values; after all others if its signature does not have this parameter. An option that the command defines itself
    stays its own."""
    hints, given = get_type_hints(command, include_extras=True), dict(inspect.signature(command).parameters)
    added = {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
        if name not in given
    }
    described: list[inspect.Parameter] = []
    for name, own in given.items():
        described += added.values() if name == parameter else [own.replace(annotation=hints[name])]
    if parameter not in given:
        described += added.values()

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in added}
        command(**arguments, **{parameter: values})

    # The annotations themselves and not their source text, from which typer could not read options.
    wrapped.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in described}
    return wrapped


def options() -> str:
    """The options that load the same classes in another command: " --plugin FILE" for each file."""
    from nnue_trainer.registry import loaded

    return "".join(f" --plugin {shlex.quote(str(path))}" for path in loaded())


def resume_options() -> str:
    """The options that resume a run without its recipe: those of `options`, and consent to its programs."""
    from nnue_trainer.base.programs import any_allowed

    return options() + " --allow-commands" * any_allowed()
