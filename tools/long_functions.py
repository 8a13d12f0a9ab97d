#!/usr/bin/env python3
"""Lists the functions of the project that have more than 100 lines and give no reason for it.

    tools/long_functions.py [FILE ...]      all Python, C++ and CUDA sources, or only FILE

A reason is a comment directly above the function that begins with `long:`, for example

    // long: one kernel; its phases share registers that a function could not return

Prints `file:line: function: what is wrong` for each hit, and fails if there is one. A reason above a short function is
also a hit. Lines are counted from the name's line (in C++, from the first line of the declaration) to the end.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 100
SOURCES = ("*.py", "*.h", "*.cpp", "*.cu", "*.cuh")


class Function(NamedTuple):
    name: str
    above: int  # the line, from 1, of the first decorator or of the declaration: a reason ends on the line before it
    first: int
    last: int


def python_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            above = min((decorator.lineno for decorator in node.decorator_list), default=node.lineno)
            yield Function(node.name, above, node.lineno, node.end_lineno or node.lineno)


# Text with braces that are not code: comments, literals, lines of the preprocessor.
NOT_CODE = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/|R"([^\s()\\]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'"""
    r"""|^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE,
)
# Blocks that contain functions. `struct alignas(16) Name` has parentheses, but is not a function.
BLOCK = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
ATTRIBUTE = re.compile(rf"\b(alignas|__align__|__attribute__|__launch_bounds__)\s*{PARENTHESES}")
TEMPLATE = re.compile(r"^\s*template\s*<(?:[^<>]|<[^<>]*>)*>")
NAME = re.compile(r"([\w:~]+|operator\s*[^\s\w]+)\s*\(")


class Block(NamedTuple):
    declaration: str
    first: int
    is_code: bool  # the body of a function or an initialiser, not a namespace or a class


def code_of(text: str) -> str:
    """The text without comments, literals and directives, except for #if, #else and #endif, which become one word."""

    def blank(found: re.Match[str]) -> str:
        lines = re.sub(r"[^\n]", " ", found[0])
        word = re.match(r"[ \t]*#[ \t]*(if|el|endif)", found[0])
        return f"#{word[1]} {lines}" if word else lines

    return NOT_CODE.sub(blank, text)


def cpp_functions(text: str) -> Iterator[Function]:
    """Functions, found by their braces; a function inside another one counts as a part of it."""
    tokens = [word for word in re.findall(r"\n|[{};]|#\w+|[^\n{};#]+", code_of(text)) if word == "\n" or word.strip()]
    line, first = 1, 0  # first: the line where the current declaration begins
    declaration = ""
    blocks: list[Block] = []
    branches: list[list[Block]] = []  # at each #if that is open: the blocks before it, with which its #else begins
    for place, token in enumerate(tokens):
        in_code = bool(blocks) and blocks[-1].is_code
        if token == "\n":
            line += 1
            declaration += " "
        elif token == "#if":
            branches.append(list(blocks))
        elif token == "#el":
            blocks = list(branches[-1])
        elif token == "#endif":
            branches.pop()
        elif token == "{":
            plain = TEMPLATE.sub("", ATTRIBUTE.sub("", declaration))
            is_code = in_code or "(" in plain or "=" in plain or not BLOCK.search(plain)
            blocks.append(Block(declaration, first or line, is_code))
            declaration, first = "", 0
        elif token == "}":
            if not blocks:
                raise ValueError(f"line {line}: a closing brace without an opening one")
            block = blocks.pop()
            following = next((word.strip() for word in islice(tokens, place + 1, None) if word != "\n"), "")
            initialiser = following[:1] in (",", "{", ")") or block.declaration.count("(") > block.declaration.count(
                ")"
            )
            declaration, first = (block.declaration, block.first) if initialiser else ("", 0)
            name = NAME.search(TEMPLATE.sub("", ATTRIBUTE.sub("", block.declaration)))
            if block.is_code and not initialiser and name and not (blocks and blocks[-1].is_code):
                yield Function(name[1], block.first, block.first, line)
        elif token == ";":
            declaration, first = "", 0
        else:
            first = first or line
            declaration += token
    if blocks:
        raise ValueError(f"line {blocks[-1].first}: a brace is not closed")


def reason(lines: list[str], above: int) -> bool:
    """Whether the comment that ends directly above the line `above` has a line `long: ...`."""
    place = above - 2
    while place >= 0 and (found := re.match(r"\s*(#|//) ?(.*)", lines[place])):
        if found[2].startswith("long: "):
            return True
        place -= 1
    return False


def faults(path: Path) -> Iterator[str]:
    text = path.read_text()
    lines = text.splitlines()
    functions = python_functions(text) if path.suffix == ".py" else cpp_functions(text)
    for function in sorted(functions, key=lambda found: found.first):
        length, has_reason = function.last - function.first + 1, reason(lines, function.above)
        if length > LIMIT and not has_reason:
            todo = "split it, or give a reason (`long: ...`) above it"
        elif length <= LIMIT and has_reason:
            todo = "remove the reason above it, which is for long functions"
        else:
            continue
        yield f"{function.first}: {function.name}: {length} lines: {todo}"


def main(names: list[str]) -> int:
    if not names:
        found = subprocess.check_output(["git", "ls-files", *SOURCES], cwd=ROOT, text=True).splitlines()
        names = [name for name in found if (ROOT / name).is_file()]
    bad = False
    for name in names:
        try:
            found = [f"{name}:{fault}" for fault in faults(ROOT / name)]
        except (SyntaxError, ValueError) as error:
            found = [f"{name}: {error}"]
        for fault in found:
            print(fault)
            bad = True
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
