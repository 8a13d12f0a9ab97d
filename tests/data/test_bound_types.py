"""`nnue_trainer/_data.pyi` describes the compiled module: the same functions and classes, with the same members."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nnue_trainer import _data


def test_the_stub_has_what_the_module_has(project_root: Path) -> None:
    tree = ast.parse((project_root / "nnue_trainer" / "_data.pyi").read_text(encoding="utf-8"))
    stub = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} - {"_struct"}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        stub.add(node.name)
        members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        members |= {member.target.id for member in node.body if isinstance(member, ast.AnnAssign)}  # type: ignore[union-attr]
        if "__getattr__" not in members:  # the fields of FilterOptions are tables of the module
            assert {name for name in members if name != "__init__"} == {
                name for name in vars(getattr(_data, node.name)) if not name.startswith("_")
            }, node.name
    assert stub == {name for name in vars(_data) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("struct", "fields", "message"),
    [
        (_data.PipelineOptions, {"windw": 1}, "PipelineOptions.windw: there is no such field"),
        (_data.PipelineOptions, {"window": "x"}, "PipelineOptions.window is 'x', expected int"),
        (_data.PipelineOptions, {"window": -1}, "PipelineOptions.window is -1, expected int in its range"),
        (_data.PipelineOptions, {"filters": {}}, "PipelineOptions.filters is {}, expected .*FilterOptions"),
        (_data.FilterOptions, {"max_score": "x"}, "FilterOptions.max_score is 'x', expected float"),
        (_data.ForwardLayer, {"inputs": [0] * 99 + ["x"]}, r"ForwardLayer.inputs is list, expected Sequence\[int\]"),
        (_data.ForwardLayer, {"factor": "x"}, r"ForwardLayer.factor is 'x', expected float \| None"),
    ],
)
def test_a_wrong_field_is_an_error_with_its_name(struct: type, fields: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        struct(**fields)
