"""The help texts of a command that has subcommands, and of these."""

from __future__ import annotations

from functools import partial
from typing import Any

from typer.core import TyperArgument, TyperGroup

_NUMBERS = {"int": "N", "list[int]": "N", "float": "X", "list[float]": "X"}


_UNLIMITED = 10**9  # limits from here on only prevent overflows, and the help does not show them


def _range(low: float | None, high: float | None) -> str | None:
    if high is not None and high < _UNLIMITED:
        return f"at most {high}" if low is None else f"{low} to {high}"
    return None if low is None else f"at least {low}"


class Interrupted(BaseException):
    """A KeyboardInterrupt of a command. Versions of typer turn that one into different things; this one passes."""


class Group(TyperGroup):
    def make_context(self, *arguments: Any, **more: Any) -> Any:
        try:
            return super().make_context(*arguments, **more)
        except KeyboardInterrupt as error:  # the first call of typer imports pydantic, which takes a while
            raise Interrupted from error

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A subcommand, whose help has no Python types of typer's, such as `<list[Path]>` and `<int range>`: none for
        arguments, N for integers of options and X for other numbers. Ranges are in words instead of `0<=x<=9`."""
        command = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
            if getattr(parameter, "count", False) and low == 0:
                low = None  # typer's own, for an option that is counted
            parameter.__dict__["_get_number_range_help_str"] = partial(_range, low, high)
            if isinstance(parameter, TyperArgument):
                parameter.__dict__["display_type_rich"] = lambda ctx: None
            elif parameter.metavar is None:
                bare_type = getattr(parameter, "bare_type", str)  # early versions of typer do not have it
                parameter.metavar = _NUMBERS.get(bare_type())
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the subcommands with the whole first paragraph of their help, which click would cut to one line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, " ".join((command.help or "").split("\n\n")[0].split()))
                    for name, command in commands
                    if command is not None and not command.hidden
                ]
            )
