"""Typed dataclasses for what users write: one-line errors for wrong input, and a reference page from the same source.

Every configurable component owns a pydantic dataclass decorated with `@section`. The line under a field is its
documentation. A union of sections is told apart by the field `kind`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pydantic
import pydantic.dataclasses
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from nnue_trainer.errors import UserError

T = TypeVar("T")

section = pydantic.dataclasses.dataclass(
    frozen=True, config=pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
)
"""Decorator of a section: unknown keys are errors, the docstring under a field is its description."""


def validate(kind: type[T], data: Any, origin: Callable[[tuple[str, ...]], str]) -> T:
    """`data` (plain JSON data) as an instance of the section `kind`.

    Types are strict: "1" is no number and 1.5 no integer. Raises UserError with one line that names the origin (that of
    the key's path), the key, what was found and what was expected.
    """
    try:
        # Through JSON, because pydantic's strict mode takes mappings for dataclasses there, and there only.
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(data, default=str), strict=True)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        path, message = _explain(kind, data, details[0])
        raise UserError(f"{origin(path)}: {'.'.join(path) or '(top level)'}{message}{more}") from None


def to_data(instance: Any) -> dict[str, Any]:
    """A section as plain JSON data, every field present."""
    data: dict[str, Any] = pydantic.TypeAdapter(type(instance)).dump_python(instance, mode="json")
    return data


def describe(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, documentation) of every field of a section, depth first. Members of a union each get a row
    `key.kind` first."""
    for name, field in _fields(kind).items():
        key = f"{prefix}{name}"
        members = _sections(field.annotation)
        if not members:
            yield key, _type_name(field.annotation, field.metadata), _default(field), _description(kind, name)
        elif len(members) == 1:
            yield from describe(members[0], f"{key}.")
        else:
            for member in members:
                (tag,) = typing.get_args(_fields(member)["kind"].annotation)
                yield f"{key}.kind", f"= {tag}", "", _one_line(member.__doc__)
                for row in describe(member, f"{key}."):
                    if row[0] != f"{key}.kind":
                        yield row


def _explain(kind: type[Any], data: Any, detail: ErrorDetails) -> tuple[tuple[str, ...], str]:
    path, found, siblings = _locate(kind, data, detail)
    expected = re.sub(r"^Input should be |^\w+ should (have )?| after validation, not \d+$", "", detail["msg"])
    expected = expected.replace("match pattern", "text that matches")
    match detail["type"]:
        case "unexpected_keyword_argument":
            close = difflib.get_close_matches(path[-1], siblings, n=1)
            known = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(siblings)}"
            return path, f": unknown key ({known})"
        case "missing" if isinstance(found, list):
            return path, f": found {_show(found)}, expected more items"
        case "missing":
            return path, ": missing, and it has no default"
        case "union_tag_not_found":
            return (*path, "kind"), f": missing, expected one of {', '.join(_tags(kind, path))}"
        case "union_tag_invalid":
            return (
                *path,
                "kind",
            ), f": found {_show(detail['ctx']['tag'])}, expected one of {', '.join(_tags(kind, path))}"
        case "dataclass_type" | "dataclass_exact_type" | "dict_type" | "model_attributes_type":
            return path, f": found {_show(found)}, expected a section of keys"
        case "value_error":
            return path, f": {detail['ctx']['error']}"
    return path, f": found {_show(found)}, expected {expected}"


def _locate(kind: type[Any], data: Any, detail: ErrorDetails) -> tuple[tuple[str, ...], Any, list[str]]:
    """Where in `data` an error is: its path without pydantic's union tags, the value there, the keys known there."""
    path: list[str] = []
    types = [kind]
    siblings: list[str] = []
    location = detail["loc"]
    for index, part in enumerate(location):
        here = data
        if isinstance(here, dict):
            if part not in here and not (index == len(location) - 1 and detail["type"] == "missing"):
                continue
            member = _pick(types, here)
            siblings = [name for name in _fields(member) if name != "kind"] if member else []
            field = _fields(member).get(str(part)) if member else None
            types = _sections(field.annotation) if field else []
            data = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            if part >= len(here):
                break
            data = here[part]
            types = []
        else:
            continue
        path.append(str(part))
    return tuple(path), data, siblings


def _pick(types: list[type[Any]], data: dict[str, Any]) -> type[Any] | None:
    if len(types) == 1:
        return types[0]
    return next((t for t in types if data.get("kind") in typing.get_args(_fields(t)["kind"].annotation)), None)


def _tags(kind: type[Any], path: tuple[str, ...]) -> list[str]:
    types = [kind]
    for part in path:
        field = _fields(types[0]).get(part)
        types = _sections(field.annotation) if field else []
    return [tag for t in types for tag in typing.get_args(_fields(t)["kind"].annotation)]


def _fields(kind: type[Any]) -> dict[str, FieldInfo]:
    fields: dict[str, FieldInfo] = kind.__pydantic_fields__
    return fields


def _description(kind: type[Any], name: str) -> str:
    """That of the class that declares the field: pydantic does not pass docstrings on to subclasses."""
    fields = [base.__pydantic_fields__.get(name) for base in kind.__mro__ if hasattr(base, "__pydantic_fields__")]
    return next((_one_line(field.description) for field in fields if field and field.description), "")


def _sections(annotation: Any) -> list[type[Any]]:
    """The sections in an annotation: itself, or the members of a union."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return [annotation]
    if typing.get_origin(annotation) in (list, dict, tuple):
        return []
    return [member for argument in typing.get_args(annotation) for member in _sections(argument)]


def _type_name(annotation: Any, metadata: Iterable[Any]) -> str:
    """A type and its limits in a reader's words: `float > 0`, `tuple[float ≥ 0, < 1; …]`."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        inner = (meta.metadata if isinstance(meta, FieldInfo) else [meta] for meta in arguments[1:])
        return _type_name(arguments[0], [*(m for metas in inner for m in metas), *metadata])
    if typing.get_origin(annotation) is typing.Literal:
        name = " | ".join(str(value) for value in arguments)
    elif typing.get_origin(annotation) is tuple:
        name = f"tuple[{'; '.join(_type_name(argument, []) for argument in arguments)}]"
    elif isinstance(annotation, type) and not arguments:
        name = annotation.__name__
    else:
        name = str(annotation).replace("typing.", "").replace("NoneType", "null").replace("None", "null")
    limits = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    bounds = [
        f"{sign} {getattr(meta, attribute)}"
        for meta in metadata
        for attribute, sign in limits.items()
        if hasattr(meta, attribute)
    ]
    return " ".join([name, *([", ".join(bounds)] if bounds else [])])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return _show(field.get_default(call_default_factory=True, validated_data={}))


def _show(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
