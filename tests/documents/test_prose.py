"""tools/prose.py finds the words in pages, and in comments, docstrings and messages of sources."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def prose(project_root: Path):
    spec = importlib.util.spec_from_file_location("prose", project_root / "tools" / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_words_are_found_in_pages_but_not_in_code(prose, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        'The file says so.\n```\nit says\n```\n`says` is a name.\nWhat "it says" is quoted.\nThis is fine.\n'
    )
    assert [hit.rpartition("page.md:")[2][:9] for hit in prose.hits(page)] == ["1: 'says'"]


def test_some_words_are_found_in_pages_only(prose, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A resumed run is the same to the bit.\n")
    assert len(prose.hits(page)) == 1


def test_words_are_found_in_python(prose, tmp_path):
    module = tmp_path / "cli" / "module.py"
    module.parent.mkdir()
    module.write_text(
        'x = typer.Option(help="What it wants.")\n'
        'raise UserError(f"{x}: nobody knows")\n'
        '@section\nclass A:\n    a: int = 1\n    """told elsewhere"""\n'
        'def f(x: typer.Context):\n    """Asks twice."""\n'
        'text = "it says"  # the file is looked at\n'
        'wanted = {"wants": "`wants` is a name"}  # prose: allow it says\n'
    )
    lines = [int(hit.rpartition("module.py:")[2].partition(":")[0]) for hit in prose.hits(module)]
    assert lines == [1, 2, 2, 6, 8, 9, 9]


def test_a_docstring_names_its_subject(prose, tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""What it holds."""\nx = 1\n"""The same again."""\ny = """Asset"""\nz = "As it is"\n')
    assert [hit.rpartition("module.py:")[2].partition(": a")[0] for hit in prose.hits(module)] == [
        "1: 'What'",
        "3: 'The same'",
    ]


def test_a_comment_names_its_subject(prose, tmp_path):
    for name, opening in (("module.py", "#"), ("file.cuh", "//")):
        source = tmp_path / name
        source.write_text(f"{opening} What a lane holds.\n{opening} Others hold\n{opening} what it leaves.\n")
        assert [hit.rpartition(f"{name}:")[2].partition(": a")[0] for hit in prose.hits(source)] == [
            f"1: '{opening} What'"
        ]


def test_a_literal_of_more_lines_than_its_file_is_found_where_it_is(prose, tmp_path):
    module = tmp_path / "module.py"
    module.write_text('x = 1\ntext = "one\\n two\\n three\\n it says so"\n')
    assert [hit.rpartition("module.py:")[2][:9] for hit in prose.hits(module)] == ["2: 'says'"]


@pytest.mark.parametrize("suffix", ["h", "cuh", "cpp"])
def test_words_are_found_in_cpp(prose, tmp_path, suffix):
    source = tmp_path / f"file.{suffix}"
    source.write_text(
        "int wanted = 1;  // what the caller wants\n"
        'fail("y", wanted ? "a tensor" : "the set says so");\n'
        '// prose: allow "says"\n'
        "if (asks) tell(knows);  // `wanted` is a name\n"
    )
    assert [hit.rpartition(f".{suffix}:")[2][:9] for hit in prose.hits(source)] == ["1: 'wants", "2: 'says'"]


def test_the_project_is_clean(prose, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["prose.py"])
    assert prose.main() == 0, capsys.readouterr().out
