"""Open registries: classes by name, by file and from installed packages, and no import on a file's word."""

import importlib
import importlib.metadata
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from nnue_trainer import registry, schema
from nnue_trainer.errors import UserError
from nnue_trainer.registry import Registry

PACKAGE = """
from abc import ABC
from typing import ClassVar
from nnue_trainer.registry import Registry
class Shape(ABC):
    kind: ClassVar[str]
    def area(self) -> float:
        return 0.0
SHAPES = Registry("made_up_shapes", lambda: Shape, what="shape")
"""
CIRCLE = '''
from pydantic import Field
from nnue_trainer.schema import section
from made_up_shapes import SHAPES, Shape
@SHAPES.register("circle")
@section
class Circle(Shape):
    """All points at one distance."""
    radius: float = Field(default=1.0, gt=0)
    """that distance"""
'''
OUTSIDE = '''
from abc import abstractmethod
from nnue_trainer.schema import section
from made_up_shapes import Shape
@section
class Square(Shape):
    """Four equal sides."""
    side: int
    """their length"""
class NoShape:
    pass
@section
class Unfinished(Shape):
    """A shape that does not define its area."""
    @abstractmethod
    def area(self) -> float: ...
'''


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The registry of a package with one built-in class, and the file square.py in the working directory."""
    package = tmp_path / "made_up_shapes"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    (package / "circle.py").write_text(CIRCLE)
    (tmp_path / "square.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    made_up_shapes = importlib.import_module("made_up_shapes")
    yield made_up_shapes
    registry._registries.remove(made_up_shapes.SHAPES)
    for name in [name for name in sys.modules if name.startswith("made_up_shapes") or name == "square"]:
        del sys.modules[name]


def parse(shapes: Any, shape: Any, trusted: bool = True) -> Any:
    section = recipe_of(shapes)
    return schema.validate(section, {"shape": shape}, lambda _: "made-up.yaml", trusted=trusted).shape


def recipe_of(shapes: Any) -> type[Any]:
    class Recipe:
        shape: Annotated[shapes.Shape, shapes.SHAPES] = Field()

    return schema.section(Recipe)


def test_built_in_by_name_and_back_to_data(shapes: Any) -> None:
    recipe = schema.validate(recipe_of(shapes), {"shape": {"kind": "circle", "radius": 2}}, lambda _: "made-up.yaml")
    assert recipe.shape.radius == 2.0
    assert schema.to_data(recipe) == {"shape": {"kind": "circle", "radius": 2.0}}


def test_another_thread_waits_until_all_modules_are_imported(shapes: Any, tmp_path: Path) -> None:
    (tmp_path / "made_up_shapes" / "a_slow_one.py").write_text(
        "import time\nfrom made_up_shapes import SHAPES\nSHAPES.kinds()  # a module may\ntime.sleep(0.3)\n"
    )
    with ThreadPoolExecutor(2) as threads:
        assert [list(found) for found in threads.map(lambda _: shapes.SHAPES.kinds(), range(2))] == [["circle"]] * 2


def test_class_in_a_file(shapes: Any) -> None:
    shape = parse(shapes, {"kind": "square.py:Square", "side": 3})
    assert (type(shape).__name__, shape.side, shape.kind) == ("Square", 3, "square.py:Square")
    assert list(registry.plugins()) == ["square.py"]


def test_files_do_not_make_the_program_import_code(shapes: Any) -> None:
    with pytest.raises(UserError, match=r"shape\.kind: shape 'square\.py:Square' is not part .* --plugin square\.py"):
        parse(shapes, {"kind": "square.py:Square", "side": 3}, trusted=False)
    assert registry.plugins() == {}


def test_a_file_loaded_before_is_found_by_its_name(shapes: Any, tmp_path: Path) -> None:
    registry.load_plugin(tmp_path / "square.py")
    shape = parse(shapes, {"kind": "another/folder/square.py:Square", "side": 3}, trusted=False)
    assert shape.side == 3


def test_entry_point(shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("boxed", "square:Square", "made_up_shapes")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "made_up_shapes" else [])
    assert "boxed" in shapes.SHAPES.names()
    assert parse(shapes, {"kind": "boxed", "side": 4}, trusted=False).side == 4


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"kind": "circle", "radius": -1}, "shape.radius: found -1, expected greater than 0"),
        ({"kind": "circle", "radios": 1}, "shape.radios: unknown key (did you mean 'radius'?)"),
        ({"kind": "circle", "radi\x7fus": 1}, "shape.radi\\x7fus: unknown key (did you mean 'radius'?)"),
        ({"kind": "o\x9bval"}, "shape.kind: found 'o\\x9bval', expected one of circle, or path/to/file.py:Class"),
        ({"kind": "oval"}, "shape.kind: found 'oval', expected one of circle, or path/to/file.py:Class"),
        ({"radius": 1}, "shape.kind: missing, expected one of circle, or path/to/file.py:Class"),
        (3, "shape: found 3, expected a section of keys"),
        ({"kind": "square.py:Square"}, "shape.side: missing, and it has no default"),
        ({"kind": "square.py:Circle"}, "shape.kind: square.py: has no class 'Circle'"),
        (
            {"kind": "square.py:Unfinished"},
            "shape.kind: shape 'square.py:Unfinished' (nnue_plugin_square.Unfinished): does not define area",
        ),
        ({"kind": ["circle"]}, 'shape.kind: found ["circle"], expected one of circle, or path/to/file.py:Class'),
        ({"kind": "gone.py:Square"}, "shape.kind: plugin gone.py: cannot be read: No such file or directory"),
    ],
)
def test_one_line_for_what_does_not_fit(shapes: Any, shape: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(shapes, shape)
    assert str(error.value) == f"made-up.yaml: {message}"


def test_a_class_that_is_no_section_of_that_sort(shapes: Any) -> None:
    with pytest.raises(UserError, match=r"expected a class derived from made_up_shapes\.Shape"):
        parse(shapes, {"kind": "square.py:NoShape"})


def test_a_plugin_that_fails_names_its_line(shapes: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(UserError, match=r"plugin broken\.py:2: ZeroDivisionError: division by zero"):
        registry.load_plugin(Path("broken.py"))


def test_two_plugins_of_one_name(shapes: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "square.py").write_text("")
    registry.load_plugin("square.py")
    with pytest.raises(UserError, match="another file of this name was loaded already"):
        registry.load_plugin("other/square.py")


def test_reference_lists_every_class(shapes: Any) -> None:
    registry.load_plugin("square.py")
    rows = list(schema.describe(recipe_of(shapes)))
    assert rows == [
        ("shape.kind", "= circle", "", "All points at one distance."),
        ("shape.radius", "float > 0", "1.0", "that distance"),
        ("shape.kind", "= square.py:Square", "", "Four equal sides."),
        ("shape.side", "int", "required", "their length"),
        ("shape.kind", "= square.py:Unfinished", "", "A shape that does not define its area."),
    ]


def test_what_a_checkpoint_says_it_was_made_with(shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("boxed", "square:Square", "made_up_shapes")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "made_up_shapes" else [])
    parse(shapes, {"kind": "square.py:Square", "side": 3})
    parse(shapes, {"kind": "boxed", "side": 4})
    made_with = registry.plugins()
    assert made_with["made_up_shapes:boxed"] == "square:Square"  # "PACKAGE VERSION" where a package offers it
    assert len(made_with["square.py"]) == 64
    assert list(registry.changes(made_with)) == []
    assert list(registry.changes({"square.py": "0" * 64, "gone.py": "1" * 64})) == [
        f"square.py has changed since: it was 000000000000, now it is {made_with['square.py'][:12]}"
    ]


def test_a_default_kind(shapes: Any) -> None:
    rounded: Registry[Any] = Registry("made_up_shapes", lambda: shapes.Shape, what="shape", default="circle")
    rounded._classes = shapes.SHAPES.kinds()
    assert rounded.parse({"radius": 3.0}, trusted=False).radius == 3.0


def test_a_name_belongs_to_one_class() -> None:
    class Base:
        pass

    names: Registry[Base] = Registry("nothing", lambda: Base, what="thing")
    names.register("one")(schema.section(type("One", (Base,), {"__annotations__": {}})))
    with pytest.raises(UserError, match="thing 'one' is defined twice"):
        names.register("one")(schema.section(type("Two", (Base,), {"__annotations__": {}})))
