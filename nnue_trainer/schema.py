"""Typed dataclasses for what users write: one-line errors for wrong input, and a reference page from the same source.

Every configurable component owns a pydantic dataclass decorated with `@section`. The line under a field is its
documentation. Where one of several sections may stand, their registry finds it by `kind` (nnue_trainer/registry.py).
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import json
import math
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import pydantic
import pydantic.dataclasses
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from nnue_trainer.errors import UserError, shown
from nnue_trainer.registry import TRUSTED, Registry, fields_of

__all__ = ["describe", "section", "to_data", "validate", "value_at"]

T = TypeVar("T")

MAX_DEPTH = 16
"""How deep sections and lists may be nested in each other."""

_FLOAT32_LEAST, _FLOAT32_MOST = 2.0**-126, 2.0**128 - 2.0**104

_section = pydantic.dataclasses.dataclass(
    frozen=True,
    kw_only=True,
    config=pydantic.ConfigDict(extra="forbid", allow_inf_nan=False),
)


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(pydantic.Field,))
def section(cls: type[T]) -> type[T]:
    """Decorator of a section: unknown keys are errors, the docstring under a field is its description."""
    return cast("type[T]", _section(cls))


def validate(kind: type[T], data: Any, origin: Callable[[tuple[str, ...]], str], *, trusted: bool = False) -> T:
    """`data` (plain JSON data) as an instance of the section `kind`.

    `trusted`: the user handed the data over, as a recipe. Then a `kind: path/to/file.py:Class` in it imports that file,
    and the programs that it names may run (nnue_trainer/base/programs.py). Never for what a file claims about itself.

    Types are strict: "1" is not a number, 1.5 is not an integer. Whole numbers fit 64 bits, and others float32, so no
    other code has to check that. Raises UserError with one line that names the origin (that
    of the key's path), the key, what was found and what was expected.
    """
    _check_plain(data, origin)
    try:
        # Through JSON, because pydantic's strict mode takes mappings for dataclasses there, and there only.
        text = json.dumps(data, default=str)
        return pydantic.TypeAdapter(kind).validate_json(text, strict=True, context={TRUSTED: trusted})
    except pydantic.ValidationError as error:
        first, *others = error.errors(include_url=False)
        path, message = _explain(kind, data, first)
        if first["type"] == "plugin_missing":  # all files at once: the answer is one command line
            missing = [detail for detail in others if detail["type"] == "plugin_missing"]
            files = dict.fromkeys(detail["ctx"]["file"] for detail in missing)
            message += "".join(f" --plugin {file}" for file in files if file != first["ctx"]["file"])
            others = [detail for detail in others if detail not in missing]
        more = f" (and {len(others)} more)" if others else ""
        raise UserError(f"{_place(origin, path)}{message}{more}") from None


def as_option(key: str) -> str:
    """The option of a command that sets a key."""
    return "--" + key.replace("_", "-")


def _place(origin: Callable[[tuple[str, ...]], str], path: tuple[str, ...]) -> str:
    """The origin and the key; only the origin if it is the option for the key."""
    key = ".".join(_cut(part) for part in path) or "(top level)"
    where = origin(path)
    return where if where == as_option(key) else f"{where}: {key}"


def _check_plain(data: Any, origin: Callable[[tuple[str, ...]], str], path: tuple[str, ...] = ()) -> None:
    """The checks that every section goes through: size of numbers, printable text, depth."""

    def wrong(expected: str) -> UserError:
        return UserError(f"{_place(origin, path)}: found {_show(data)}, expected {expected}")

    if isinstance(data, str):
        if not data.isprintable() and any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in data):
            raise wrong("text without control characters and halves of surrogate pairs")
    elif isinstance(data, dict | list | tuple):
        if len(path) >= MAX_DEPTH:
            raise UserError(f"{origin(path)}: {_cut(path[0])}: nested deeper than {MAX_DEPTH} levels")
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            _check_plain(value, origin, (*path, str(key)))
    elif isinstance(data, int):
        if not -(2**63) <= data < 2**63:
            raise wrong("a number of at most 64 bits")
    elif isinstance(data, float) and math.isfinite(data) and data and not _FLOAT32_LEAST <= abs(data) <= _FLOAT32_MOST:
        raise wrong(f"0, or a number that float32 holds, {_FLOAT32_LEAST:.2g} to {_FLOAT32_MOST:.2g} in size")


def to_data(instance: Any) -> dict[str, Any]:
    """A section as plain JSON data, every field present."""
    return fields_of(instance)


def value_at(data: Any, key: str, kind: type[T]) -> T | None:
    """The value at a dotted key of a section as data, which may come from a file and need not be valid. None: there is
    none of that kind (a bool does not count as an int)."""
    for part in key.split("."):
        data = data.get(part) if isinstance(data, dict) else None
    return data if isinstance(data, kind) and (kind is not int or not isinstance(data, bool)) else None


def describe(
    kind: type[Any], prefix: str = "", _outer: tuple[Registry[Any], ...] = ()
) -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, documentation) of every field of a section, depth first. Members of a registry each get a
    row `key.kind` first. Items of a list of sections are `key.N`."""
    for name, field in _fields(kind).items():
        key = f"{prefix}{name}"
        item = _item(field)
        if item is not None:
            yield key, "list of sections", _default(field), _description(kind, name)
            key, field = f"{key}.N", item
        registry = _registry(field)
        member = _section_in(field.annotation)
        if registry in _outer:
            yield f"{key}.kind", f"a {registry.what}, as above", "", _description(kind, name)
        elif registry is not None:
            for tag, cls in registry:
                yield f"{key}.kind", f"= {tag}", "", _one_line(cls.__doc__)
                yield from describe(cls, f"{key}.", (*_outer, registry))
        elif member is None and (optional := _registry_of_member(field)) is not None:
            yield key, f"a {optional.what}, as above | null", _default(field), _description(kind, name)
        elif member is None:
            yield key, _type_name(field.annotation, field.metadata), _default(field), _description(kind, name)
        else:
            yield from describe(member, f"{key}.", _outer)
            for tag, cls in _registry_of_member(field) or ():
                yield f"{key}.kind", f"= {tag}", "", _one_line(cls.__doc__)
                yield from describe(cls, f"{key}.", _outer)


def _explain(kind: type[Any], data: Any, detail: ErrorDetails) -> tuple[tuple[str, ...], str]:
    path, found, siblings = _locate(kind, data, detail)
    expected = re.sub(r"^Input should be |^\w+ should (have )?| after validation, not \d+$", "", detail["msg"])
    expected = expected.replace("match pattern", "text that matches").replace("a valid array", "a list")
    match detail["type"]:
        case "unexpected_keyword_argument":
            close = difflib.get_close_matches(path[-1], siblings, n=1)
            expected = f"expected one of {', '.join(siblings)}" if siblings else "expected none"
            known = f"did you mean {close[0]!r}?" if close else expected
            return path, f": unknown key ({known})"
        case "missing" if isinstance(found, list):
            return path, f": found {_show(found)}, expected more items"
        case "missing":
            return path, ": missing, and it has no default"
        case "dataclass_type" | "dataclass_exact_type" | "dict_type" | "model_attributes_type":
            return path, f": found {_show(found)}, expected a section of keys"
        case "kind_missing" | "kind_unknown" | "plugin_missing":
            return path, f": {detail['msg']}"
        case "value_error":
            return path, f": {detail['ctx']['error']}"
    return path, f": found {_show(found)}, expected {expected}"


def _locate(kind: type[Any], data: Any, detail: ErrorDetails) -> tuple[tuple[str, ...], Any, list[str]]:
    """Where in `data` an error is: its path without pydantic's own parts, the value there, the keys known there."""
    path: list[str] = []
    member: type[Any] | None = kind
    item: FieldInfo | None = None
    siblings: list[str] = []
    location = detail["loc"]
    for index, part in enumerate(location):
        here = data
        if isinstance(here, dict):
            absent = index == len(location) - 1 and detail["type"] in ("missing", "kind_missing")
            if part not in here and not absent:
                continue
            siblings = [name for name in _fields(member) if name != "kind"] if member else []
            field = _fields(member).get(str(part)) if member else None
            data = here.get(part)
            member = _pick(field, data)
            item = _item(field) if field else None
        elif isinstance(here, list) and isinstance(part, int):
            if part >= len(here):
                break
            data = here[part]
            member, item = _pick(item, data), None
        else:
            continue
        path.append(str(part))
    return tuple(path), data, siblings


def _pick(field: FieldInfo | None, data: Any) -> type[Any] | None:
    """The section that `data`, the value of the field, is meant to be."""
    if field is None or not isinstance(data, dict):
        return None
    registry = _registry(field) or (_registry_of_member(field) if "kind" in data else None)
    if registry is not None:
        kind = data.get("kind", registry.default)
        return registry.kinds().get(kind) if isinstance(kind, str) else None
    return _section_in(field.annotation)


def _registry(field: FieldInfo) -> Registry[Any] | None:
    return next((meta for meta in field.metadata if isinstance(meta, Registry)), None)


def _registry_of_member(field: FieldInfo) -> Registry[Any] | None:
    """The registry of a union, if one member is any class of a registry."""
    members = (FieldInfo.from_annotation(member) for member in typing.get_args(field.annotation))
    return next((registry for registry in map(_registry, members) if registry is not None), None)


def _item(field: FieldInfo) -> FieldInfo | None:
    """The type of the sections in a list; None for every other field."""
    arguments = typing.get_args(field.annotation)
    if typing.get_origin(field.annotation) is not list:
        return None
    item = FieldInfo.from_annotation(arguments[0])
    return item if _registry(item) is not None or _section_in(item.annotation) else None


def _fields(kind: type[Any]) -> dict[str, FieldInfo]:
    """The fields of a section by the key that a recipe has for them."""
    fields: dict[str, FieldInfo] = kind.__pydantic_fields__
    return {field.alias or name: field for name, field in fields.items()}


def _description(kind: type[Any], key: str) -> str:
    """The field's own documentation, or else what stands under it in the class that declares it."""
    found = [(name, field) for name, field in kind.__pydantic_fields__.items() if key == (field.alias or name)]
    texts = (
        text
        for name, field in found
        for text in (field.description, *(_docstrings(base).get(name) for base in kind.__mro__))
    )
    return next((_one_line(text) for text in texts if text), "")


@functools.cache
def _docstrings(kind: type[Any]) -> dict[str, str]:
    """The documentation under the fields that a class itself declares, by name.

    The source is read only when the text is needed. Pydantic can do it for every section while that is made, but then
    every command starts about a second later."""
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):  # no source: a class made by hand
        return {}
    found = {}
    for field, below in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found


def _section_in(annotation: Any) -> type[Any] | None:
    """The section in an annotation: itself, or the one member of a union that is a section."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return annotation
    if typing.get_origin(annotation) in (list, dict, tuple):
        return None
    return next(filter(None, map(_section_in, typing.get_args(annotation))), None)


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
    elif typing.get_origin(annotation) in (list, dict):
        inside = ", ".join(_type_name(argument, []) for argument in arguments)
        name = f"{typing.get_origin(annotation).__name__}[{inside}]"
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        name = " | ".join("null" if argument is type(None) else _type_name(argument, []) for argument in arguments)
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
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length():,} bits"
    return _cut(json.dumps(value, default=str, ensure_ascii=False))


def _cut(text: str) -> str:
    """At most 80 characters of a key or value, which may come from a file, as they may be printed."""
    return shown(text if len(text) <= 80 else text[:77] + "...")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
