#!/usr/bin/env python3
"""Checks the English of the project: pages, and in sources docstrings, comments, help texts and messages.

    tools/prose.py [FILE ...]      all texts of the project, or only those of FILE

Prints `file:line: text: what to write` for each hit, and fails if there is one. Spelling is codespell's job
(`make lint`); this tool lists the words that readers stumbled over. A line with `prose: allow` is not checked.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/*.md", "samples/*.md", "data_loader/fuzz/*.md", "tests/vectors/*.md")
ROOMS = ("csrc", "data_loader", "examples", "tools", "tests", "benchmarks")  # in C++
SOURCES = (
    *(f"{room}/*.py" for room in ("nnue_trainer", "examples", "tools", "tests", "benchmarks")),
    *(f"{room}/*.{end}" for room in ROOMS for end in ("h", "cpp", "cu", "cuh")),
    ":!tools/prose.py",  # the words themselves
    ":!tests/documents/test_prose.py",
)

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
    r"\blook(s|ed|ing)? at\b": "inspect, check, read, measure",
    r"\bwhoever\b": "name the subject",
    r"\bbut for\b": "except for",
    r"\bso many\b": "this many, the number of",
    r"\ball the same\b": "anyway",
    r"\bwhole or not at all\b": "complete or absent",
    r"\bwhere there (is|are) (no|none)\b": "if there is none",
    r"\ban? \w+ of (its|their) own\b": "a separate, its own",
    r"\b(go|goes|going) on (from|with|without|where|as|to|in|there)\b": "continue",
    r"\bdepends? on nothing but\b": "depends only on",
    r"(?<!there )\b(is|are|was|were) no (?!longer\b|more\b)[a-z]+": "is not a, are not",
    r"\bbehind (the|a) (first|last|transformer|layers?|end|description)\b": "after",
    r"\b(makes?|made) (one|that) of (it|a net)\b": "makes one from, converts",
    r"\b(today|since then)\b": "guides state how it is; history belongs to a notebook",
}
ON_PAGES = {
    r"\bof yours\b": "your own",
    r"\balone\b": "only, without",
    r"\bto the bit\b": "bit-identical, exactly",
    r"\b(goes|go|went) on\b": "continue",
    r"\b(stands?|stood) (in|on) (the|this|a|another) (page|table|file|list|metadata|docs)\b": "is in",
    r"\b(no longer|not any (more|longer))\b": "guides state how it is",
    r"\bfor ever\b": "always",
    r"\b(equal|same) bits every\b": "deterministic",
    r"\bmend(s|ed)?\b": "fix, repair, correct",
    r"\bwhatever\b": "name what it is",
    r"\b(the layers?|those|all) behind\b": "after",
    r"\bpage of (its|their) own\b": "a separate page",
}
"""Only on pages: comments and messages have other sentences."""
IN_COMMENTS = {r"^(//+|#) (?-i:What)\b": "a comment begins with a noun or a verb: name the thing"}
_WEAK_OPENING = re.compile(r'\s*r?"""(What|As|The same)\b')
"""A docstring that begins so never names its subject."""


def _compiled(words: dict[str, str]) -> dict[re.Pattern[str], str]:
    return {re.compile(pattern, re.IGNORECASE): advice for pattern, advice in words.items()}


_PATTERNS = _compiled(BANNED | IN_COMMENTS)
_PAGE_PATTERNS = _compiled(BANNED | ON_PAGES)


def prose_of_page(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside of code blocks, without inline code, quotations and addresses of links."""
    in_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and "prose: allow" not in line:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|\"[^\"]*\"|“[^”]*”", "", line)


def prose_of_module(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and all other text of several words, each line by itself."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield min(node.lineno + offset, node.end_lineno or node.lineno), line  # "\n" needs no line of its own


def prose_of_cpp(path: Path) -> Iterator[tuple[int, str]]:
    """Comments from `//` on, and text of several words in double quotes."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for text in re.findall(r'"(?:[^"\\]|\\.)*"|//.*', line):
            if " " in text:
                yield number, text


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The text of a file by line, without code in backticks and lines that are marked `prose: allow`."""
    if path.suffix == ".md":
        yield from prose_of_page(path)
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, text in (prose_of_module if path.suffix == ".py" else prose_of_cpp)(path):
        if "prose: allow" not in lines[number - 1]:
            yield number, re.sub(r"`[^`]*`", "", text)


def hits(path: Path) -> list[str]:
    written = path.suffix == ".md"
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    found = {
        f"{where}:{number}: '{match[0]}': {advice}"
        for number, text in prose_of(path)
        for pattern, advice in (_PAGE_PATTERNS if written else _PATTERNS).items()
        if (match := pattern.search(text))
    }
    if path.suffix == ".py":
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := _WEAK_OPENING.match(line):
                found.add(f"{where}:{number}: '{match[1]}': a docstring begins with a noun or a verb: name the thing")
    return sorted(found)


def main() -> int:
    listed = subprocess.run(["git", "ls-files", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True)
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
