"""YAML files as people mean them, small and without surprises."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from nnue_trainer import schema
from nnue_trainer.errors import UserError, quoted
from nnue_trainer.files.inputs import read_text

MAX_BYTES = 1 << 20
"""Largest size of a recipe in bytes."""
MAX_NODES = 10_000
"""Largest number of keys and values in a recipe; an alias counts as everything that it stands for."""
_DATA = frozenset({".binpack", ".bin", ".bullet", ".marlin", ".vf", ".plain", ".pgn", ".epd"})


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """The contents of a small YAML file, as plain data. UserError, one line, if it is unreadable or not YAML."""
    _check_kind(Path(path))
    return _read_yaml(read_text(path, MAX_BYTES), str(path))


def _check_kind(path: Path) -> None:
    """UserError for a run folder, a checkpoint, a net or data, which people pass where a recipe belongs."""
    try:
        if path.is_dir():
            has = f"; the recipe of this run is {path / 'recipe.yaml'}" if (path / "recipe.yaml").is_file() else ""
            raise UserError(f"{path}: found a folder, expected a YAML file, such as a recipe{has}")
        is_checkpoint = path.suffix == ".safetensors" and path.is_file()
    except OSError:
        return  # for its reader to report
    if is_checkpoint:
        raise UserError(
            f"{path}: found a checkpoint, expected a YAML file, such as a recipe: that of a run is RUN/recipe.yaml, "
            "and `nnue train --resume RUN` continues it"
        )
    if path.suffix == ".nnue":
        raise UserError(f"{path}: found a net, expected a YAML file, such as a recipe")
    if path.suffix in _DATA:
        raise UserError(
            f"{path}: found a data file, expected a YAML file, such as a recipe, whose data.train names data files"
        )


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, a date is text, and a key that occurs twice is an error. It refuses
    what a recipe does not need and what could become huge: tags, keys other than words, deep nesting, and aliases that
    turn a few lines into millions."""

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}  # nodes in it, each alias counted as what it stands for

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(
                problem=f"tags such as {quoted(event.tag)} have no meaning here", problem_mark=mark
            )
        if self._depth > schema.MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {schema.MAX_DEPTH} levels", problem_mark=mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise yaml.MarkedYAMLError(problem=f"alias {quoted(event.anchor)} holds itself", problem_mark=mark)
        else:
            inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
            self._sizes[node] = 1 + (sum(map(self._sizes.__getitem__, inner)) if isinstance(inner, list) else 0)
            if self._sizes[node] > MAX_NODES:
                raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES:,} keys and values", problem_mark=mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (
                "tag:yaml.org,2002:str",
                "tag:yaml.org,2002:merge",
            ):
                what = f", not {quoted(key.value)}" if isinstance(key, yaml.ScalarNode) else ""
                raise yaml.MarkedYAMLError(problem=f"a key must be a word{what}", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {quoted(key.value)} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|\.\d[\d_]*([eE][-+]?\d+)?|\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _read_yaml(text: str, origin: str) -> Any:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = error.problem or error.context or "not YAML"
        if what == "but found another document":  # PyYAML has the first half of this sentence elsewhere
            what = "a second document, expected one recipe"
        raise UserError(f"{origin}{where}: {what}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise UserError(f"{origin}: {' '.join(str(error).split())}") from None
    finally:
        if loader is not None:
            loader.dispose()


def read_value(text: str, origin: str) -> Any:
    """The value of an override. A pattern of file names such as *.binpack is text, although YAML has aliases."""
    return text if re.match(r"\*\S", text) else _read_yaml(text, origin)
