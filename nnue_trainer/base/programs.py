"""Programs that a recipe names: the mark of the fields that name one, and the user's consent to run them.

A field whose text starts a program, reaches one as an argument or option, or is an account that gets the records,
carries the mark `RUNS`: `command: Annotated[str, RUNS]`. A training refuses to begin while a marked field has a value
that the user did not consent to. These are consent:

- a recipe file that the command line names, or an override of such a field (`schema.validate` with `trusted`);
- `nnue train --resume RUN --allow-commands` for what the checkpoint's recipe names (`allow`);
- a section that is made in Python: `RunCommand(command="…")`.

The recipe inside a checkpoint is none. Files of code (`kind: path/to/file.py:Class`) follow the same rule with
`--plugin` (nnue_trainer/registry.py).
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from nnue_trainer.registry import TRUSTED

__all__ = ["RUNS", "allow", "is_allowed", "named"]

_allowed: set[str] = set()  # the values as JSON


class _Runs:
    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.with_info_after_validator_function(_allow_if_trusted, handler(source))

    def __repr__(self) -> str:
        return "RUNS"


RUNS = _Runs()
"""Mark of a field whose value starts a program, reaches one as an argument or option, or is an account that gets the
records."""


def _allow_if_trusted(value: Any, info: core_schema.ValidationInfo) -> Any:
    if info.context is None or info.context.get(TRUSTED, False):  # None: code, not a file, made the section
        allow(value)
    return value


def allow(value: Any) -> None:
    """Notes the user's consent to the value of a marked field, for the rest of this process."""
    _allowed.add(_key(value))


def is_allowed(value: Any) -> bool:
    """Whether the user has consented to the value of a marked field, or to each item where only items are marked."""
    if value is None or _key(value) in _allowed:
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return bool(items) and all(map(is_allowed, items))


def any_allowed() -> bool:
    """Whether the user has consented to any program in this process."""
    return bool(_allowed)


def forget() -> None:
    """Forgets all consent, as in a process that has just started."""
    _allowed.clear()


def is_marked(field: FieldInfo) -> bool:
    """Whether a field of a section, or a part of its type, carries the mark."""

    def inside(annotation: Any) -> bool:
        return RUNS in getattr(annotation, "__metadata__", ()) or any(map(inside, typing.get_args(annotation)))

    return RUNS in field.metadata or inside(field.annotation)


def named(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each marked field of a section and of the sections in it, unless it has its default."""
    for name, field in type(section).__pydantic_fields__.items():
        key, value = f"{prefix}{field.alias or name}", getattr(section, name)
        if not is_marked(field):
            yield from _inside(value, key)
        elif value != field.get_default(call_default_factory=True, validated_data={}):
            yield key, value


def _inside(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if hasattr(type(value), "__pydantic_fields__"):
        yield from named(value, f"{key}.")
    elif isinstance(value, dict | list | tuple):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _inside(item, f"{key}.{name}")


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
