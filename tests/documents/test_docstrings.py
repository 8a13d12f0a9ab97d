"""Public names have docstrings that give shapes and dtypes of tensors, and the errors that it raises itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

PACKAGE = "nnue_trainer"
SHAPE = re.compile(r"\[[^\]\n]*\]|\bscalars?\b|\bshapes?\b|\bdimensions?\b")
DTYPE = re.compile(r"\b(u?int(8|16|32|64)|fp(16|32|64)|float(16|32|64)?s?|bool|dtypes?|integers)\b")
# As text, since the modules do not evaluate their annotations.
IS_TENSOR = re.compile(r"(tuple\[)?(torch\.)?Tensor\b")
# Python itself and pydantic give these their meaning.
KNOWN = {"AttributeError", "NotImplementedError", "StopIteration", "KeyboardInterrupt"}


def public(module: ModuleType) -> Iterator[tuple[str, Any, type | None]]:
    """(name, class or function, class of a method) of what a module and those in its `__all__` have."""
    for name in module.__all__:
        value, full = getattr(module, name), f"{module.__name__}.{name}"
        if isinstance(value, ModuleType):
            yield from public(value) if hasattr(value, "__all__") else ()
        elif inspect.isfunction(value):
            yield full, value, None
        elif inspect.isclass(value) and value.__module__.startswith(PACKAGE):
            yield full, value, None
            for key, member in vars(value).items():
                method = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if not inspect.isfunction(method) or method.__qualname__ != f"{value.__name__}.{key}":
                    continue
                is_written = method.__code__.co_filename != "<string>"  # as those that dataclasses make
                if is_written and (key == "__init__" or not key.startswith("_")):
                    yield f"{full}.{key}", method, value


def raised(node: ast.AST) -> set[str]:
    """The names of the errors that a function raises itself, without those that it catches."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        name = ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc).rpartition(".")[2]
        return {name} if name[0].isupper() else set()
    inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef | ast.ClassDef)]
    if not isinstance(node, ast.Try):
        return {name for child in inner for name in raised(child)}
    caught = {
        name for handler in node.handlers if handler.type for name in re.findall(r"\w+", ast.unparse(handler.type))
    }
    in_body = {name for child in node.body for name in raised(child)}
    return in_body - caught | {name for child in inner if child not in node.body for name in raised(child)}


def lacking(value: Any, of: type | None = None) -> list[str]:
    """The parts that the docstring of a class, function or method lacks. The docstring of its class, or of the method
    that it replaces, may have them instead."""
    doc = inspect.getdoc(value) or ""
    if inspect.isclass(value):
        return [] if doc and not doc.startswith(f"{value.__name__}(") else ["a docstring"]
    is_init = value.__name__ == "__init__"
    if of is not None:
        bases = [vars(base)[value.__name__] for base in of.__mro__[1:] if value.__name__ in vars(base)]
        doc += "" if is_init else "".join(inspect.getdoc(base) or "" for base in bases)
    if not doc and not is_init:
        return ["a docstring"]
    doc += (of.__doc__ or "") if of is not None else ""
    found = []
    signature = inspect.signature(value)
    types = [*(parameter.annotation for parameter in signature.parameters.values()), signature.return_annotation]
    if any(IS_TENSOR.match(kind if isinstance(kind, str) else getattr(kind, "__name__", "")) for kind in types):
        found += ["a shape"] * (not SHAPE.search(doc)) + ["a dtype"] * (not DTYPE.search(doc))
    definition = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    return found + sorted(error for error in raised(definition) - KNOWN if not re.search(rf"\b{error}\b", doc))


def test_what_is_public_is_documented() -> None:
    all_names = list(public(importlib.import_module(PACKAGE)))
    assert len(all_names) > 300
    wrong = [f"{name} lacks {', '.join(what)}" for name, value, of in all_names if (what := lacking(value, of))]
    assert not wrong, "\n".join(wrong)


class Halves:
    """Two tensors fp32 [B]."""

    def bare(self) -> int:
        return 1

    def inherits(self, x: Tensor) -> Tensor:
        """Half of it."""
        return x / 2


def undocumented(x: Tensor) -> Tensor:
    """Its square."""
    if x.ndim != 1:
        raise ValueError("not a vector")
    try:
        raise KeyError
    except KeyError:
        pass
    return x * x


def documented(x: Tensor, y: np.ndarray) -> Tensor:
    """The square of x, fp32 [n]. ValueError for a matrix."""
    if x.ndim != 1:
        raise ValueError("not a vector")
    return x * x


def test_what_is_missing_is_found() -> None:
    assert lacking(undocumented) == ["a shape", "a dtype", "ValueError"]
    assert lacking(documented) == []
    assert lacking(Halves.bare, Halves) == ["a docstring"]
    assert lacking(Halves.inherits, Halves) == []
    assert lacking(type("Bare", (), {})) == ["a docstring"]
