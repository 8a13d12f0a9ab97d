"""Writes docs/api.md: every public name with its parameters and the first paragraph of its docstring.

python tools/api_page.py            # writes the page
python tools/api_page.py --check    # fails if the page is not what the code defines
"""

import argparse
import enum
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """\
# Public API

All public names in Python, listed by `tools/api_page.py`; do not edit this page. They keep their parameters and
meaning until the next major version (before 1.0: the next minor version). Names that will change give a warning for
one version first and are in the [changelog](../CHANGELOG.md). All other names may change with any version. Later
versions can read the recipes, checkpoints, nets and data files of every release. Also public: operators
`torch.ops.nnue.*` ([ops.md](ops.md)), recipes (`nnue config --reference`) and `nnue`
([command-line.md](command-line.md)).
"""
MISSING = "(undocumented)"


def page() -> str:
    return "\n".join([HEAD, *sections("nnue_trainer")])


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
    if not callable(value) or (isinstance(value, type) and issubclass(value, enum.Enum | BaseException)):
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
        return "" if kind.__module__ == "builtins" else f"a `{kind.__name__}`"
    doc = value.__doc__ or ""
    if inspect.isbuiltin(value):
        doc = doc.split("\n", 1)[-1]
    if isinstance(value, type) and doc.startswith(f"{value.__name__}("):
        doc = ""  # a dataclass's own signature
    text = " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())
    return text or MISSING


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    arguments = parser.parse_args()
    text = page()
    if MISSING in text:
        print("without a docstring: " + ", ".join(re.findall(rf"`(\w+)[^`]*`: {re.escape(MISSING)}", text)))
        return 1
    if arguments.check:
        if PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE} is out of date: run tools/api_page.py")
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
