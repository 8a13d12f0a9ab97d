#!/usr/bin/env python3
"""Checks the English that users read: pages, help texts, error messages, docstrings of recipe fields and of the API.

    tools/prose.py [FILE ...]      all texts of the project, or only those of FILE

Prints `file:line: text: what to write` for each hit, and fails if there is one. Spelling is codespell's job
(`make lint`); this tool holds the words that our readers stumbled over. A line with `prose: allow` is left alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "samples/*.md", "data_loader/fuzz/*.md")

BANNED = {
    r"\b(say|says|said|saying)\b": "things do not speak: state, print, define, describe, select",
    r"\b(know|knows|knew)\b": "things do not know: depend on, have, support",
    r"\b(ask|asks|asked)\b": "things do not ask: request, call, require",
    r"\b(want|wants|wanted)\b": "things do not want: need, require, expect",
    r"\b(hear|hears)\b": "things do not hear: receive",
    r"\b(tell|tells|told)\b": "things do not tell: show, report, recognise",
    r"\bof one's own\b": "name the owner: your own, separate",
    r"\bown affair\b": "name who decides",
    r"\bfor (the \w+|them|him|that) alone\b": "only for",
    r"\bnobody\b": "name the subject",
    r"\bis taken for\b": "is treated as, is clamped to",
    r"\bso-manyth\b": "the number",
    r"\bin the way of\b": "exists and is not",
    r"\bon the way in\b": "input",
    r"\b(today|since then)\b": "guides state how it is; history belongs to a notebook",
}
ON_PAGES = {
    r"\bof yours\b": "your own",
    r"\balone\b": "only, without",
    r"\bto the bit\b": "bit-identical, exactly",
    r"\b(looks?|looked|looking) at\b": "read, check, test, compare",
    r"\b(goes|go|went) on\b": "continue",
    r"\b(stands?|stood) (in|on) (the|this|a|another) (page|table|file|list|metadata|docs)\b": "is in",
    r"\b(no longer|not any (more|longer))\b": "guides state how it is",
    r"\bfor ever\b": "always",
    r"\b(equal|same) bits every\b": "deterministic",
    r"\bbut for\b": "except",
    r"\bmend(s|ed)?\b": "fix, repair, correct",
    r"\bwhatever\b": "name what it is",
    r"\b(the layers?|those|all) behind\b": "after",
    r"\bso many(th)?\b": "this number of",
    r"\bpage of (its|their) own\b": "a separate page",
}
"""Only on pages: comments and messages have other sentences."""


def _compiled(words: dict[str, str]) -> dict[re.Pattern[str], str]:
    return {re.compile(pattern, re.IGNORECASE): advice for pattern, advice in words.items()}


_PATTERNS = _compiled(BANNED)
_PAGE_PATTERNS = _PATTERNS | _compiled(ON_PAGES)
_TEXT_CALLS = {"Option", "Argument", "UserError", "SystemExit", "BadParameter"}


def prose_of_page(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside of code blocks, without inline code, quotations and addresses of links."""
    in_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and "prose: allow" not in line:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|\"[^\"]*\"|“[^”]*”", "", line)


def prose_of_module(path: Path) -> Iterator[tuple[int, str]]:
    """Help texts of options and commands, messages of errors, and the documentation of fields of recipes."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _TEXT_CALLS:
                yield from _strings(node, lines)
        elif isinstance(node, ast.ClassDef) and any("section" in ast.unparse(d) for d in node.decorator_list):
            for item in node.body:
                if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                    yield from _strings(item, lines)
        elif isinstance(node, ast.FunctionDef) and path.parent.name == "cli" and ast.get_docstring(node):
            names = {child.id for child in ast.walk(node.args) if isinstance(child, ast.Name)}
            yield from _strings(node.body[0], lines) if "typer" in names else ()


def _strings(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, str]]:
    for part in ast.walk(node):
        is_text = isinstance(part, ast.Constant) and isinstance(part.value, str)
        if is_text and "prose: allow" not in lines[part.lineno - 1]:
            yield part.lineno, re.sub(r"`[^`]*`", "", part.value)


def hits(path: Path) -> list[str]:
    texts = prose_of_page(path) if path.suffix == ".md" else prose_of_module(path)
    written = path.suffix == ".md" and path.name != "api.md"  # that page is made from docstrings
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return sorted(
        {
            f"{where}:{number}: '{found[0]}': {advice}"
            for number, text in texts
            for pattern, advice in (_PAGE_PATTERNS if written else _PATTERNS).items()
            if (found := pattern.search(text))
        }
    )


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "nnue_trainer/*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [Path(name).resolve() for name in sys.argv[1:]] or [
        *(page for pattern in PAGES for page in sorted(ROOT.glob(pattern))),
        *(ROOT / name for name in listed.stdout.split()),
    ]
    found = [hit for path in files if path.is_file() for hit in hits(path)]
    print("\n".join(found))
    print(f"prose: {len(found)} hits in {len(files)} files")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
