"""The rooms of the package, and which may import which: a room may import the rooms listed before it."""

from __future__ import annotations

import ast
from pathlib import Path

import nnue_trainer
from nnue_trainer import config

PACKAGE = Path(nnue_trainer.__file__).parent

# From the bottom to the top; a room may import the rooms of the lines before its own, not those beside it.
FLOORS = (
    ("errors",),
    ("registry",),
    ("base",),
    ("schema", "_data"),
    ("files",),
    ("engines", "stats"),
    ("data",),
    ("ops",),
    ("losses",),
    ("schedules",),
    ("nnue_file",),
    ("modules",),
    ("nets",),
    ("export",),
    ("optim",),
    ("match",),
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


def imported(tree: ast.AST, names: dict[str, Path], *, types: bool = False) -> set[str]:
    """The modules of the package that run when this one does, or one of its functions, and with `types` those that are
    imported for types alone."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in names else node.module for name in whole}
        else:
            found |= imported(node, names, types=types)
    return {name for name in found if name.startswith("nnue_trainer")}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def circles(uses: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node: Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        path.append(node)
        for other in sorted(uses[node]):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in path:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            component = [path.pop()]
            while component[-1] != node:
                component.append(path.pop())
            if len(component) > 1:
                found.append(component)

    for node in sorted(uses):
        if node not in number:
            visit(node)
    return found


def test_imports_run_downward() -> None:
    names = modules()
    assert {room(name) for name in names} - {""} == set(FLOOR)
    wrong = [
        f"{name} imports {other}"
        for name, path in names.items()
        for other in imported(ast.parse(path.read_text(encoding="utf-8")), names, types=True)
        if room(name) and room(other) and room(name) != room(other) and FLOOR[room(other)] >= FLOOR[room(name)]
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Circles of any length, also through imports for types. The `__init__` of a package imports its modules, and they
    may import it."""
    names = modules()
    shown = {name for name, path in names.items() if path.stem != "__init__"}
    uses = {
        name: imported(ast.parse(names[name].read_text(encoding="utf-8")), names, types=True) & shown for name in shown
    }
    wrong = [", ".join(circle) for circle in circles(uses)]
    assert not wrong, "\n".join(sorted(wrong))


def test_circles_are_found() -> None:
    uses = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a", "d"}}
    assert [set(circle) for circle in circles(uses)] == [{"d", "e"}, {"a", "b", "c"}]


def test_only_one_module_depends_on_the_operating_system() -> None:
    found = {name for name, path in modules().items() if "sys.platform" in path.read_text(encoding="utf-8")}
    assert found == {"nnue_trainer.base.system"}


def test_few_modules_stand_outside_of_a_room(project_root: Path) -> None:
    loose = {path.stem for path in PACKAGE.glob("*.py")}
    assert loose <= {room for rooms in FLOORS for room in rooms} | {"__init__"}
    assert len(loose) <= 8, loose
    pages = (project_root / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [room for room in FLOOR if f"`{room}" not in pages and f"`nnue_trainer/{room}" not in pages]


# The only modules that read the sections of a `Recipe`, beside `nnue_trainer.config`, which parses it. Others get a
# whole recipe to hand it on, or the class of a section that is theirs.
READERS = ("nnue_trainer.config", "nnue_trainer.training.assembly")


def sections_read(tree: ast.AST, fields: set[str]) -> list[str]:
    """Where a module reads a section of a recipe: of what is annotated as one, or is called `recipe`."""
    named = {"recipe", "chosen", "whole", "to_save"}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation and "Recipe" in ast.unparse(node.annotation):
            named.add(node.arg if isinstance(node, ast.arg) else ast.unparse(node.target).rpartition(".")[2])
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in fields:
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if ast.unparse(owner).rpartition(".")[2] in named:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_a_recipe_is_read_in_one_place() -> None:
    fields = set(config.Recipe.__dataclass_fields__)
    wrong = [
        f"{name}:{line}"
        for name, path in modules().items()
        if not name.startswith(READERS)
        for line in sections_read(ast.parse(path.read_text(encoding="utf-8")), fields)
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_readers_of_a_recipe_are_found() -> None:
    text = "def f(a: Recipe, run):\n    return a.data, run.recipe.training.seed, entrant.recipe().model, a.kind, b.data"
    assert len(sections_read(ast.parse(text), {"data", "training", "model"})) == 3


def test_only_the_assembly_and_the_parts_of_a_step_ask_the_table_of_kernels() -> None:
    names = modules()
    asks = {
        name
        for name, path in names.items()
        if room(name) == "training"
        and "nnue_trainer.ops.capabilities" in imported(ast.parse(path.read_text(encoding="utf-8")), names)
    }
    assert {name for name in asks if not name.startswith(READERS)} <= {"nnue_trainer.training.fused_parts"}
