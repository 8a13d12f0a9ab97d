"""tools/long_functions.py finds functions that are too long, in Python and in C++."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

Check = Callable[[str, str], list[str]]


@pytest.fixture
def check(project_root: Path, tmp_path: Path) -> Check:
    """Writes a file and returns what the tool finds in it."""
    faults = runpy.run_path(str(project_root / "tools" / "long_functions.py"))["faults"]

    def run(name: str, text: str) -> list[str]:
        (tmp_path / name).write_text(text)
        return list(faults(tmp_path / name))

    return run


def python(lines: int, above: str = "") -> str:
    return f"{above}def work():\n" + "    pass\n" * (lines - 1)


def cpp(lines: int, above: str = "", head: str = "void work() {", last: str = "}") -> str:
    return f"namespace nnue {{\n{above}{head}\n" + "call();\n" * (lines - 2) + f"{last}\n}}\n"


def test_the_limit_is_100_lines(check: Check) -> None:
    assert check("a.py", python(100)) == []
    assert check("a.py", python(101)) == ["1: work: 101 lines: split it, or give a reason (`long: ...`) above it"]
    assert check("a.cpp", cpp(100)) == []
    assert check("a.cpp", cpp(101)) == ["2: work: 101 lines: split it, or give a reason (`long: ...`) above it"]


def test_a_reason_is_a_comment_above(check: Check) -> None:
    assert check("a.py", python(101, "# long: a list\n@decorator\n")) == []
    assert check("a.py", python(101, "# long: a list\n\n")) != []
    assert check("a.cpp", cpp(101, "// Works.\n// long: a list\ntemplate <class T>\n")) == []
    assert check("a.cpp", cpp(101, "// no reason\n")) != []


def test_a_reason_goes_with_the_length(check: Check) -> None:
    expected = "work: 50 lines: remove the reason above it, which is for long functions"
    assert check("a.py", python(50, "# long: a list\n")) == [f"2: {expected}"]
    assert check("a.cpp", cpp(50, "// long: a list\n")) == [f"3: {expected}"]


@pytest.mark.parametrize(
    "head",
    [
        "template <class T, int N = sizeof(Pair<T, 3>)>\n__global__ void __launch_bounds__(most<T>(), 1) work(T* to) {",
        "Name::work(const std::vector<int>& all = {})\n    : all_{all}, more_({}) {",
        "TEST(Name, work) {",
        "auto work(int c = '{') -> decltype(c) {  // {",
        'void work(const char* text = "}") {',
        "#ifdef A\nvoid work(int a) {\n#else\nvoid work() {\n#endif",
        "struct alignas(16) Name { int a; };\nvoid work() {",
    ],
)
def test_heads_of_functions_in_cpp(check: Check, head: str) -> None:
    assert len(check("a.cu", cpp(120, head=head))) == 1
    assert check("a.cu", cpp(90, head=head)) == []


def test_members_of_a_class_are_functions_of_their_own(check: Check) -> None:
    members = "struct alignas(16) Name : Base {\n" + "int call() { return 1; }\n" * 200 + "};\n"
    assert check("a.h", members) == []
    assert len(check("a.h", "class Name {\n" + cpp(101)[len("namespace nnue {\n") :])) == 1


def test_braces_that_do_not_match_are_an_error(check: Check) -> None:
    with pytest.raises(ValueError, match="line 1: a brace is not closed"):
        check("a.h", "void work() {\n")
    with pytest.raises(ValueError, match="line 2: a closing brace without an opening one"):
        check("a.h", "void work() {}\n}\n")
