"""Writes docs/api*.md: every public name with its types, its documentation, its fields and its public methods.

python tools/api_page.py            # writes the pages
python tools/api_page.py --check    # fails if a page is not what the code defines
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import Any

from nnue_trainer.schema import describe

DOCS = Path(__file__).resolve().parents[1] / "docs"
SUBJECTS: dict[str, tuple[str, dict[str, str]]] = {
    "api-loader.md": (
        "Batches",
        {"data": "Batch expand identities identity Loader LoaderOptions merge_states RecordLoader require_same"},
    ),
    "api-data.md": ("Positions, files and feature sets", {"data": ""}),
    "api-own-data.md": (
        "Your own data parts",
        {"data.feature_sets": "", "data.fields": "", "data.filters": "", "data.formats": ""},
    ),
    "api-operators.md": ("Operators", {"ops": "", "ops.functional": ""}),
    "api-perspectives.md": ("Operators for both perspectives", {"ops.perspectives": "", "ops.expand": ""}),
    "api-statistics.md": ("Statistics", {"stats": "", "stats.matrix": "", "stats.random": ""}),
    "api-graphs.md": ("Graphs of neurons", {"stats.graph": ""}),
    "api-modules.md": ("Modules", {"modules": ""}),
    "api-nets.md": ("Nets", {"nets": ""}),
    "api-integers.md": ("Integer nets", {"nets": "FirstLayer IntegerForward IntegerLayer NetTensor RawValues Skip"}),
    "api-export.md": ("Net files and evaluation", {"export": "", "nnue_file.formats": ""}),
    "api-match.md": ("Matches and reports", {"match": "", "match.statistics": "", "analysis": ""}),
    "api-training.md": ("Training", {"training": "", "config": "", "files.checkpoint": "", "callbacks": ""}),
    "api-optim.md": ("Optimisers", {"optim": ""}),
    "api-losses.md": ("Losses", {"losses": "", "penalties": "", "position_weights": ""}),
    "api-schedules.md": ("Schedules and averages", {"schedules": "", "wdl": "", "averages": ""}),
    "api-schema.md": ("Registries and sections", {"registry": "", "schema": ""}),
}
"""Page -> its title, and its modules of `nnue_trainer` in their order, each with its names on this page; "" stands for
those that no other page names."""
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
WIDTH = 116


@dataclasses.dataclass
class Places:
    """Where each class and function is documented: its page and its name there."""

    by_id: dict[int, tuple[str, str]]
    shown: set[int] = dataclasses.field(default_factory=set)
    bases: dict[type, type] = dataclasses.field(default_factory=dict)
    """Base without an entry -> the first class whose entry has its methods."""

    def link(self, value: object) -> str:
        page, name = self.by_id[id(value)]
        return f"[`{name}`]({page}#{name.lower()})"


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    modules = dict(public("nnue_trainer"))
    top = modules.pop("nnue_trainer")
    contents = {page: names_on(parts, modules) for page, (_, parts) in SUBJECTS.items()}
    listed = [(name, member) for page in contents.values() for name, members in page.items() for member in members]
    every = [(name, member) for name, members in modules.items() for member in members]
    if wrong := sorted(f"{name}.{member}" for name, member in {*every} ^ {*listed}):
        raise SystemExit(f"tools/api_page.py: SUBJECTS does not match the public names: {', '.join(wrong)}")
    places = Places({})
    for page, names in contents.items():
        for name, members in names.items():
            for member in members:
                if callable(value := getattr(importlib.import_module(name), member)):
                    places.by_id.setdefault(id(value), (page, member))
    index, written = "", {}
    for page, (title, _) in SUBJECTS.items():
        text = [section(name, members, page, places) for name, members in contents[page].items()]
        written[page] = "\n".join([f"# Public API: {title.lower()}\n\nPart of the [public API](api.md).\n", *text])
        links = (f"[{name.removeprefix('nnue_trainer.')}]({page}#{name.replace('.', '')})" for name in contents[page])
        index += f"| [{title}]({page}) | {' · '.join(links)} |\n"
    return {"api.md": "\n".join([HEAD + index, section("nnue_trainer", top, "api.md", places)]), **written}


def names_on(parts: dict[str, str], modules: dict[str, list[str]]) -> dict[str, list[str]]:
    """The modules of a page with their names on it."""
    found = {}
    for room, names in parts.items():
        named = {name for _, other in SUBJECTS.values() for name in other.get(room, "").split()}
        every = modules.get(f"nnue_trainer.{room}", [])
        found[f"nnue_trainer.{room}"] = names.split() if names else [name for name in every if name not in named]
    return found


def public(name: str) -> Iterator[tuple[str, list[str]]]:
    """The module `name` with its public names, and the same of the modules among them."""
    module = importlib.import_module(name)
    inner = [member for member in module.__all__ if hasattr(getattr(module, member), "__all__")]
    own = sorted((member for member in module.__all__ if member not in inner), key=str.lower)
    if own:
        yield name, own
    for member in inner:
        yield from public(f"{name}.{member}")


def section(name: str, names: list[str], page: str, places: Places) -> str:
    """A module: one line for each name that has its entry elsewhere, then an entry for each other one."""
    module = importlib.import_module(name)
    lines = [f"## {name}", "", "The most used names." if name == "nnue_trainer" else first_paragraph(module), ""]
    entries: list[str] = []
    for member in names:
        value = getattr(module, member)
        if id(value) in places.shown or places.by_id.get(id(value), (page,))[0] != page:
            lines.append(f"- {places.link(value)}: {first_paragraph(value)}")
        elif not callable(value) or isinstance(value, GenericAlias):
            lines.append(f"- `{member}`: {first_paragraph(value)}")
        else:
            places.shown.add(id(value))
            places.by_id.setdefault(id(value), (page, member))
            entries += entry(member, value, places)
    return "\n".join([*lines, *[""] * (lines[-1] != ""), *entries])


def entry(name: str, value: Any, places: Places) -> list[str]:
    """A class or function: how it is called, its documentation, fields and methods."""
    fields = list(documented_fields(value)) if isinstance(value, type) else []
    call = heading(name, value, bool(fields))
    # "py", not "python": a signature has no body, and the blocks of Python on pages must compile.
    lines = [f"### {name}", "", "```py", *call, "```", "", *markdown(documentation(value))]
    if fields:
        lines += ["| field | type | default | |", "|---|---|---|---|"]
        for field, kind, default, text in fields:
            cells = (f"`{field}`", f"`{kind}`", f"`{default}`" if default else "", text)
            lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
        lines.append("")
    methods = list(public_methods(value, places)) if isinstance(value, type) else []
    return [*lines, "**Methods and properties**", "", *methods, ""] if methods else lines


def heading(name: str, value: Any, fields_follow: bool) -> list[str]:
    """The call as Python has it; of a class whose fields are in a table, only the name and the public base."""
    if isinstance(value, type) and (fields_follow or issubclass(value, enum.Enum | BaseException)):
        base = value.__mro__[1]
        shown = base not in (object, dict) and base.__name__[0] != "_" and base.__module__ != "abc"
        return [f"class {name}" + (f"({base.__name__})" if shown else "")]
    if getattr(value, "_is_protocol", False):
        return [f"class {name}(Protocol)"]
    word = "class " if isinstance(value, type) else "def "
    if inspect.isbuiltin(value) or (isinstance(value, type) and type(value).__name__ == "pybind11_type"):
        made = vars(value)["__init__"] if isinstance(value, type) else value
        return wrapped(word + name, *from_cpp(made, isinstance(value, type)))
    try:
        arguments, result = signature_of(value)
    except ValueError:
        arguments, result = [], ""
    return wrapped(word + name, arguments, "" if isinstance(value, type) else result)


def wrapped(start: str, arguments: list[str], result: str) -> list[str]:
    line = f"{start}({', '.join(arguments)}){result}"
    if len(line) <= WIDTH:
        return [line]
    lines = [""]
    for argument in arguments:
        if lines[-1] and len(lines[-1]) + len(argument) > WIDTH - 8:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + argument + ","
    return [f"{start}(", *("    " + line for line in lines), f"){result}"]


def from_cpp(function: Any, is_method: bool) -> tuple[list[str], str]:
    """The arguments and the result that the first line of a docstring from C++ gives."""
    line = (function.__doc__ or "").split("\n", 1)[0]
    try:
        node = typing.cast(ast.FunctionDef, ast.parse(f"def {line}: ...").body[0])
    except SyntaxError:
        return ["…"], ""
    every = [*node.args.posonlyargs, *node.args.args]
    first = len(every) - len(node.args.defaults)
    texts = [
        f"{argument.arg}: {short(argument.annotation)}"
        + (f" = {ast.unparse(node.args.defaults[i - first])}" if i >= first else "")
        for i, argument in enumerate(every)
    ]
    result = f" -> {short(node.returns)}" if node.returns is not None else ""
    return texts[1:] if is_method else texts, result


def signature_of(value: Any, *, bound: bool = False) -> tuple[list[str], str]:
    """The parameters with types and defaults, and " -> result"."""
    signature = inspect.signature(value)
    given: list[str] = []
    options_of_others: list[str] = []
    keyword_only = False
    for number, parameter in enumerate(signature.parameters.values()):
        if (bound and number == 0) or parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.VAR_KEYWORD and "Unpack[" in str(parameter.annotation):
            options_of_others = typed_options(value)
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            given.append("*")
        keyword_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        given.append(parameter_text(parameter, scope_of(value)))
        if parameter.kind is parameter.POSITIONAL_ONLY and all(
            other.kind is not parameter.POSITIONAL_ONLY for other in list(signature.parameters.values())[number + 1 :]
        ):
            given.append("/")
    if options_of_others:
        given += ["*"] * (not keyword_only) + options_of_others
    empty = signature.return_annotation is inspect.Signature.empty
    return given, "" if empty else f" -> {short(signature.return_annotation, scope_of(value))}"


def typed_options(value: Any) -> list[str]:
    """The keyword arguments of a base class that a class takes as `**options: Unpack[…]`."""
    inits = [base.__init__ for base in value.__mro__[1:] if "__init__" in vars(base)]
    return [
        parameter_text(parameter, scope_of(value))
        for parameter in inspect.signature(inits[0]).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]


def parameter_text(parameter: inspect.Parameter, scope: Mapping[str, Any]) -> str:
    text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))  # with its stars
    typed = parameter.annotation is not inspect.Parameter.empty
    text += f": {short(parameter.annotation, scope)}" if typed else ""
    if parameter.default is not inspect.Parameter.empty:
        default = default_text(parameter.default)
        text += f" = {default}" if typed else f"={default}"
    return text


def default_text(value: Any) -> str:
    text = re.sub(r"\bPosixPath\(", "Path(", repr(value))
    return "…" if re.match(r"<(factory|function .*|[\w.]+ object at .*|class '.*')>$", text) or len(text) > 60 else text


class _Short(ast.NodeTransformer):
    """Names without their modules, `Annotated[X, …]` as X, paths as `Path`, aliases of `Literal` as what they are."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        text = ast.unparse(node)
        if text in ("torch.device", "torch.dtype"):  # many parameters have these names
            return ast.Name(text)
        return ast.Name("Path" if node.attr == "PathLike" else node.attr)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        alias = self.scope.get(node.id)
        if typing.get_origin(alias) is typing.Literal:
            return ast.Name(f"Literal[{', '.join(map(repr, typing.get_args(alias)))}]")
        return ast.Name({"NoneType": "None", "StrPath": "str | Path", "PathLike": "str | Path"}.get(node.id, node.id))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """A type in quotation marks."""
        return ast.Name(node.value) if isinstance(node.value, str) and node.value.isidentifier() else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = ast.unparse(node.value).rpartition(".")[2]
        if name == "Literal":
            return ast.Subscript(ast.Name("Literal"), node.slice)
        if name == "Annotated" and isinstance(node.slice, ast.Tuple):
            return typing.cast(ast.AST, self.visit(node.slice.elts[0]))
        if name == "PathLike":
            return ast.Name("Path")
        self.generic_visit(node)
        return node


def short(annotation: Any, scope: Mapping[str, Any] = types.MappingProxyType({})) -> str:
    """An annotation as one writes it after importing all of its names."""
    if isinstance(annotation, ast.AST):
        text = ast.unparse(annotation)
    elif isinstance(annotation, str):
        text = annotation
    else:
        text = inspect.formatannotation(annotation)
        text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text
    return ast.unparse(_Short(scope).visit(tree)).replace("SupportsInt | SupportsIndex", "int")


def scope_of(value: Any) -> Mapping[str, Any]:
    """The names that the annotations of a class or function may use."""
    return typing.cast(Mapping[str, Any], getattr(value, "__globals__", None) or vars(sys.modules[value.__module__]))


@functools.cache
def declared(kind: type) -> dict[str, tuple[str, str]]:
    """The public fields that the source of a class declares: name -> type, and the text under it."""
    try:
        tree = typing.cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0])
    except (OSError, TypeError):
        return {}
    found = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = one_line(str(following.value.value))
            found[node.target.id] = (short(node.annotation, scope_of(kind)), text)
    return found


def documented_fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, text) of the fields of a section, a TypedDict, or a class with texts under its fields."""
    if hasattr(kind, "__pydantic_fields__"):
        for key, type_name, default, text in describe(kind):
            if "." not in key:
                yield key, in_python(type_name), in_python(default), text
        return
    if typing.is_typeddict(kind):
        defaults = option_defaults(kind)
        for name, (annotation, text) in declared(kind).items():
            yield name, annotation, defaults.get(name, ""), text
        return
    fields = {name: value for base in reversed(kind.__mro__) for name, value in declared_here(base).items()}
    if not any(text for _, text in fields.values()) or not dataclasses.is_dataclass(kind):
        return
    for field in dataclasses.fields(kind):
        annotation, text = fields.get(field.name, (short(field.type), ""))
        default = "" if field.default is dataclasses.MISSING else default_text(field.default)
        if field.default_factory is not dataclasses.MISSING:
            default = default_text(field.default_factory())
        if field.name[0] != "_":
            yield field.name, annotation, default, text


def in_python(yaml: str) -> str:
    """The type or value of a recipe's field as Python has it."""
    return re.sub(r"\b(null|true|false)\b", lambda match: {"null": "None"}.get(match[0], match[0].title()), yaml)


def declared_here(kind: type) -> dict[str, tuple[str, str]]:
    return declared(kind) if kind.__module__.startswith("nnue_trainer") else {}


def option_defaults(kind: type) -> dict[str, str]:
    """The defaults of a TypedDict: those of the class of its module that takes its keys as keywords."""
    for value in vars(importlib.import_module(kind.__module__)).values():
        if isinstance(value, type) and not typing.is_typeddict(value) and value.__module__ == kind.__module__:
            parameters = inspect.signature(value).parameters
            if kind.__annotations__.keys() <= parameters.keys():
                return {name: default_text(parameters[name].default) for name in kind.__annotations__}
    return {}


def public_methods(kind: type, places: Places) -> Iterator[str]:
    """A line for each public method and property that the class has from this package. Those of another class with an
    entry, or of a base that it shares with one, are only named there."""
    seen: set[str] = set()
    for base in kind.__mro__:
        members = public_members(base) if base.__module__.startswith("nnue_trainer") else []
        if base is not kind and id(base) in places.by_id:
            if members:
                yield f"- and those of {places.link(base)}"
            return
        if len(new := [name for name in members if name not in seen]) > 2 and base is not kind:
            first = places.bases.setdefault(base, kind)
            if first is not kind:
                yield f"- and, as for {places.link(first)}: " + ", ".join(f"`{name}`" for name in new)
                seen.update(new)
                continue
        for name in new:
            seen.add(name)
            yield method(name, vars(base)[name])


def public_members(kind: type) -> list[str]:
    fields = declared_here(kind)
    return [
        name
        for name, value in vars(kind).items()
        if (name[0] != "_" or (name == "__call__" and value.__doc__))
        and name not in fields
        and (isinstance(value, property | functools.cached_property | classmethod | staticmethod) or callable(value))
        and not isinstance(value, type)
        and (isinstance(value, property | functools.cached_property) or text_of(value))
    ]


def text_of(value: Any) -> str:
    """The docstring of a method or property in one line."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, functools.cached_property):
        value = value.func
    doc = value.__doc__ or ""
    if type(value).__name__ == "instancemethod":
        doc = doc.split("\n", 1)[-1]
    paragraphs = [text for text in re.split(r"\n\s*\n", inspect.cleandoc(doc)) if not text.startswith("    ")]
    return " ".join(one_line(text) for text in paragraphs)


def method(name: str, value: Any) -> str:
    text = text_of(value)
    before = ""
    if isinstance(value, property | functools.cached_property):
        getter: Callable[..., Any] | None = value.fget if isinstance(value, property) else value.func
        doc = getattr(getter, "__doc__", "") or ""
        if (found := re.match(r"\(.*?\) -> (\S+)\n?", doc)) is not None:  # from C++
            call, text = f"{name}: {short(found[1])}", text.removeprefix(found[0].strip()).strip()
        else:
            result = inspect.signature(getter).return_annotation if getter is not None else "Any"
            call = f"{name}: {short(result, scope_of(getter))}"
    elif type(value).__name__ == "instancemethod":
        arguments, result = from_cpp(value, True)
        call = f"{name}({', '.join(arguments)}){result}"
    else:
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(value, classmethod | staticmethod):
            before = type(value).__name__ + " "
        arguments, result = signature_of(plain, bound=not isinstance(value, staticmethod))
        call = f"{name}({', '.join(arguments)}){result}"
    return f"- `{before}{call}`" + (f": {text}" if text else "")


def documentation(value: Any) -> str:
    doc = value.__doc__ or ""
    if inspect.isbuiltin(value):
        doc = doc.split("\n", 1)[-1]
    if isinstance(value, type) and doc.startswith(f"{value.__name__}("):
        doc = ""  # a dataclass's own signature
    return inspect.cleandoc(doc) or MISSING


def markdown(doc: str) -> list[str]:
    """A docstring as Markdown: paragraphs as lines, Args, Returns and Raises as lists, indented text as code."""
    lines: list[str] = []
    for part in re.split(r"\n\s*\n", doc.rstrip()):
        rows = part.split("\n")
        if (title := re.fullmatch(r"(Args|Returns|Raises):", rows[0])) is not None:
            if lines and lines[-1].startswith("- "):
                lines.append("")
            lines += [f"**{title[1]}**", "", *items(rows[1:], plain=title[1] == "Returns"), ""]
        elif all(row.startswith("    ") for row in rows):
            code = textwrap.dedent(part).replace("'''", '"""')  # as ruff formats the page
            lines += ["```python", *code.split("\n"), "```", ""]
        elif any(row.startswith("  ") for row in rows) and not any(row.startswith("- ") for row in rows):
            first = next(i for i, row in enumerate(rows) if row.startswith("  "))
            lines += [one_line("\n".join(rows[:first])), ""] * bool(first)
            lines += ["```text", *textwrap.dedent("\n".join(rows[first:])).split("\n"), "```", ""]
        elif any(row.startswith("- ") for row in rows):
            joined = re.sub(r"\n(?!- )\s*", " ", part)
            lines += [*joined.split("\n"), ""]
        else:
            lines += [one_line(part), ""]
    return lines


def items(rows: list[str], *, plain: bool) -> list[str]:
    """`name: text` and lines that continue it as a list; `plain` text as one paragraph."""
    text = re.sub(r"\. (?=[A-Z]\w+Error: )", ".\n", textwrap.dedent("\n".join(rows)))
    if plain:
        return [one_line(text)]
    found: list[str] = []
    for row in text.split("\n"):
        if (match := re.match(r"([*\w][\w*, ]*): (.*)", row)) is not None:
            names = ", ".join(f"`{name.strip()}`" for name in match[1].split(","))
            found.append(f"- {names}: {match[2]}")
        elif found:
            found[-1] += " " + row.strip()
        else:
            found.append(f"- {row}")
    return found


def one_line(text: str) -> str:
    return " ".join(text.split())


def first_paragraph(value: object) -> str:
    if isinstance(value, GenericAlias):
        return "`" + re.sub(r"ndarray\[.*, dtype\[(\w+)\]\]", r"NDArray[\1]", short(str(value))) + "`"
    if not (callable(value) or isinstance(value, ModuleType)):
        kind = type(value)
        return f"the constant {value!r}" if kind.__module__ == "builtins" else f"a `{kind.__name__}`"
    return one_line(documentation(value).split("\n\n")[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    arguments = parser.parse_args()
    written = pages()
    text = "\n".join(written.values())
    if missing := re.findall(rf"(?ms)^### (\w+)\n(?:(?!^### ).)*?^{re.escape(MISSING)}$", text):
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
