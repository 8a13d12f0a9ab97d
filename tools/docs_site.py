"""Hooks of mkdocs: pages that lie outside of docs/, the reference from docstrings, and the navigation.

A link from a page to a file of the project that is not a page of the site becomes its text.
"""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "reference/contributing.md",
    "SECURITY.md": "reference/security.md",
    "benchmarks/NOTEBOOK.md": "notebook/training.md",
    "benchmarks/feature_transformer/NOTEBOOK.md": "notebook/feature-transformer.md",
}
"""File of the project -> page of the site. README.md is for readers of the repository; index.md stands for it here."""


def public_modules(room: str = "") -> list[str]:
    """The modules of `nnue_trainer.__all__`, and those of the `__all__` of each, as "files.checkpoint", without
    importing the package."""
    folder = ROOT / "nnue_trainer" / room.replace(".", "/")
    file = folder / "__init__.py"
    tree = ast.parse((file if file.is_file() else folder.with_suffix(".py")).read_text(encoding="utf-8"))
    values = (node.value for node in tree.body if isinstance(node, ast.Assign) and _names(node) == ["__all__"])
    members = [name for name in ast.literal_eval(next(values, ast.List([]))) if _is_module(folder / name)]
    inner = [f"{room}.{name}".lstrip(".") for name in members]
    return [name for module in inner for name in (module, *public_modules(module))]


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def on_config(config: Any) -> Any:
    """Fills in the patterns of the navigation: every page is in it once."""
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    named = set(re.findall(r"[\w-]+\.md", str(config.nav)))
    patterns = {
        "*.md": [page for page in pages if page not in named],
        "reference/*.md": [f"reference/{name}.md" for name in public_modules()]
        + sorted(page for page in OUTSIDE.values() if fnmatch(page, "reference/*")),
        "notebook/*.md": sorted(page for page in OUTSIDE.values() if fnmatch(page, "notebook/*")),
    }

    def fill(entry: Any) -> list[Any]:
        if isinstance(entry, str):
            return patterns.get(entry, [entry])
        ((title, value),) = entry.items()
        if isinstance(value, list):
            return [{title: [part for item in value for part in fill(item)]}]
        return [{title: patterns[value]}] if value in patterns else [entry]

    config.nav = [part for entry in config.nav for part in fill(entry)]
    return config


def on_files(files: Files, config: Any) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name in public_modules():
        text = f"# nnue_trainer.{name}\n\n::: nnue_trainer.{name}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for picture in sorted((ROOT / "benchmarks" / "results").glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    source = next((ROOT / name for name, target in OUTSIDE.items() if target == uri), ROOT / "docs" / uri)
    up = "../" * uri.count("/")

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        file, _, anchor = target.partition("#")
        if not file or re.match(r"\w+:", target):
            return match[0]
        path = (source.parent / file).resolve()
        name = path.relative_to(ROOT).as_posix()
        if name in OUTSIDE:
            new = OUTSIDE[name]
        elif name == "README.md":
            new = "index.md"
        elif name.startswith("docs/"):
            new = name.removeprefix("docs/")
        elif name.startswith("benchmarks/results/") and name.endswith(".png"):
            new = f"results/{path.name}"
        else:
            return text
        return f"{mark}[{text}]({up}{new}{'#' if anchor else ''}{anchor})"

    def outside_of_code(text: str) -> str:
        text = re.sub(r"(!?)\[([^]]*)\]\(([^)\s]+)\)", link, text)
        # weight[f][j] is an index here, but a reference link to mkdocs.
        return re.sub(r"(`[^`\n]*`)|\]\[", lambda match: match[1] or r"]\[", text)

    parts = re.split(r"(?ms)(^```.*?^```$)", markdown)
    return "".join(part if part.startswith("```") else outside_of_code(part) for part in parts)
