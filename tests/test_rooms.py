"""The rooms of the package, and which may import which: what is higher in the list may import what is lower."""

from __future__ import annotations

import ast
from pathlib import Path

import nnue_trainer

PACKAGE = Path(nnue_trainer.__file__).parent

# From the bottom to the top; a room may import the rooms of the lines before its own, not those beside it.
FLOORS = (
    ("errors", "_first_look"),
    ("_old_names", "registry", "base", "presets"),
    ("schema", "_data"),
    ("files",),
    ("engines", "pages"),
    ("data",),
    ("ops",),
    ("stats", "losses", "schedules"),
    ("wdl", "averages", "position_weights", "nnue_file"),
    ("modules",),
    ("nets",),
    ("penalties", "export"),
    ("optim",),
    ("parallel", "match"),
    ("callbacks",),
    ("config",),
    ("training",),
    ("analysis",),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, names: dict[str, Path]) -> set[str]:
    """The modules of the package that run when this one does, or one of its functions; not those for types alone."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in names else node.module for name in whole}
        else:
            found |= imported(node, names)
    return {name for name in found if name.startswith("nnue_trainer")}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_imports_run_downward() -> None:
    names = modules()
    assert {room(name) for name in names} - {""} == set(FLOOR)
    wrong = [
        f"{name} imports {other}"
        for name, path in names.items()
        for other in imported(ast.parse(path.read_text(encoding="utf-8")), names)
        if room(name) and room(other) and room(name) != room(other) and FLOOR[room(other)] >= FLOOR[room(name)]
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_modules_in_a_room_import_each_other_in_one_direction() -> None:
    names = modules()
    uses = {
        name: {other for other in imported(ast.parse(path.read_text(encoding="utf-8")), names) if other in names}
        for name, path in names.items()
    }
    wrong = [
        f"{name} and {other}"
        for name, others in uses.items()
        for other in others
        if name < other and name in uses[other] and "__init__" not in (names[name].stem, names[other].stem)
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_few_modules_stand_outside_of_a_room(project_root: Path) -> None:
    loose = {path.stem for path in PACKAGE.glob("*.py")}
    assert loose <= {room for rooms in FLOORS for room in rooms} | {"__init__"}
    assert len(loose) <= 8, loose
    pages = (project_root / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [room for room in FLOOR if f"`{room}" not in pages and f"`nnue_trainer/{room}" not in pages]
