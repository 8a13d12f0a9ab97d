"""The help text of a command that has subcommands."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class Group(TyperGroup):
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
