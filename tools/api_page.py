"""Writes docs/api*.md: every public name with its parameters and the first paragraph of its docstring.

python tools/api_page.py            # writes the pages
python tools/api_page.py --check    # fails if a page is not what the code defines
"""

import argparse
import enum
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import GenericAlias, ModuleType

DOCS = Path(__file__).resolve().parents[1] / "docs"
SUBJECTS = {
    "api-data.md": ("Data", "data"),
    "api-operators.md": ("Operators and statistics", "ops stats"),
    "api-nets.md": ("Nets, net files, matches and reports", "nets modules nnue_file export match analysis"),
    "api-training.md": (
        "Training",
        "training config files losses wdl schedules optim averages penalties position_weights callbacks registry"
        " schema",
    ),
}
"""Page -> its title, and the modules of `nnue_trainer` on it, in their order."""
HEAD = """\
# Public API

All public names in Python. `tools/api_page.py` writes these pages from docstrings; do not edit them. Public names keep
their parameters and meaning until the next major version (before 1.0: the next minor version). Names that will change
give a warning for one version first and are in the [changelog](../CHANGELOG.md). All other names may change with any
version. Later versions can read the recipes, checkpoints, nets and data files of every release. Also public: operators
`torch.ops.nnue.*` ([ops.md](ops.md)), recipes (`nnue config --reference`) and `nnue`
([command-line.md](command-line.md)).

| page | modules |
|---|---|
"""
MISSING = "(undocumented)"


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    names, *parts = sections("nnue_trainer")
    modules = {part.split("\n", 1)[0].removeprefix("## "): part for part in parts}
    written, index = {}, ""
    for page, (title, rooms) in SUBJECTS.items():
        found = [name for room in rooms.split() for name in modules if name.split(".")[1] == room]
        text = [modules.pop(name) for name in found]
        written[page] = "\n".join([f"# Public API: {title.lower()}\n\nPart of the [public API](api.md).\n", *text])
        links = (f"[{name.removeprefix('nnue_trainer.')}]({page}#{name.replace('.', '')})" for name in found)
        index += f"| [{title}]({page}) | {' · '.join(links)} |\n"
    if modules:
        raise SystemExit(f"tools/api_page.py: SUBJECTS has no page for {', '.join(modules)}")
    return {"api.md": "\n".join([HEAD + index, names]), **written}


def sections(name: str) -> list[str]:
    """The section of the module `name`, and those of the modules in its `__all__` that have one as well."""
    module = importlib.import_module(name)
    inner = [member for member in module.__all__ if hasattr(getattr(module, member), "__all__")]
    own = [member for member in module.__all__ if member not in inner]
    return [section(name, own)] * bool(own) + [part for member in inner for part in sections(f"{name}.{member}")]


def section(name: str, names: list[str]) -> str:
    module = importlib.import_module(name)
    lines = [f"## {name}", "", first_paragraph(module) if name != "nnue_trainer" else "The most used names.", ""]
    for member in sorted(names, key=str.lower):
        value = getattr(module, member)
        text = first_paragraph(value)
        lines.append(f"- `{member}{parameters(value)}`" + (f": {text}" if text else ""))
    return "\n".join([*lines, ""])


def parameters(value: object) -> str:
    """`(a, b=1, *, c)`; nothing for constants, modules, enumerations and classes that are made by others."""
    if (
        not callable(value)
        or isinstance(value, GenericAlias)
        or (isinstance(value, type) and issubclass(value, enum.Enum | BaseException))
    ):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(…)"  # from C++: the first line of its docstring has the signature
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    text = str(inspect.Signature(bare))
    return re.sub(r"<(factory|function .*?|[\w.]+ object at \w+|class '[\w.]+')>(?=[,)])", "…", text)


def first_paragraph(value: object) -> str:
    if not (callable(value) or isinstance(value, ModuleType)):
        kind = type(value)
        return f"the constant {value!r}" if kind.__module__ == "builtins" else f"a `{kind.__name__}`"
    if isinstance(value, GenericAlias):
        return f"an alias of `{value.__origin__.__name__}`"
    doc = value.__doc__ or ""
    if inspect.isbuiltin(value):
        doc = doc.split("\n", 1)[-1]
    if isinstance(value, type) and doc.startswith(f"{value.__name__}("):
        doc = ""  # a dataclass's own signature
    text = " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())
    return text or MISSING


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    arguments = parser.parse_args()
    written = pages()
    if missing := re.findall(rf"`(\w+)[^`]*`: {re.escape(MISSING)}", "\n".join(written.values())):
        print("without a docstring: " + ", ".join(missing))
        return 1
    old = {name: (DOCS / name).read_text(encoding="utf-8") for name in written if (DOCS / name).exists()}
    if arguments.check:
        stale = sorted(name for name, text in written.items() if old.get(name) != text)
        if stale:
            print(f"out of date: {', '.join(stale)}: run tools/api_page.py")
        return min(len(stale), 1)
    for name, text in written.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
