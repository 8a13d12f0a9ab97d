"""The code on pages: Python compiles, and runs where it is complete; YAML parses; commands have these options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml

from nnue_trainer.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Needs of a block that the page does not meet: the reader's files, names of the paragraph, a GPU.
NEEDS = re.compile(
    r'device="cuda"|\.cuda\(\)|data\.binpack|FILE|wandb|stockfish|"[\w/-]+\.(safetensors|nnue|bin|onnx)"'
)
COMMANDS = typer.main.get_command(app)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"(?ms)^```{language}\n(.*?)^```", text):
            yield f"{page.name}:{text[: match.start()].count(chr(10)) + 2}", match[1]


def lines_of_commands() -> Iterator[tuple[str, str]]:
    for language in ("", "sh"):
        for where, block in blocks(language):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("nnue "):
                    yield where, line


def problem(line: str) -> str | None:
    """The part of the command line that the command does not have; None if there is none."""
    words = re.sub(r"\s#.*", "", line).replace("'", "").replace("…", "").split()[1:]
    command: Any = COMMANDS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    known |= {"-h", "--help"}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"no option {unknown[0]}" if unknown else None


def test_wrong_commands_are_found() -> None:
    assert problem("nnue nonsense") == "no command nonsense"
    assert problem("nnue data head FILE -n 20 --nonsense") == "no option --nonsense"
    assert problem("nnue train --preset sfnnv5 data.train=x  # --nonsense") is None


def test_commands_on_pages_exist() -> None:
    lines = list(lines_of_commands())
    assert len(lines) > 40
    assert [f"{where}: {line}: {bad}" for where, line in lines if (bad := problem(line))] == []


def test_yaml_on_pages_parses() -> None:
    found = list(blocks("ya?ml"))
    assert len(found) > 5
    for where, text in found:
        assert yaml.safe_load(text) is not None, where


def test_python_on_pages_compiles() -> None:
    found = list(blocks("python"))
    assert len(found) > 10
    assert [where for where, text in found if not any(map(parses, as_modules(text)))] == []


def as_modules(text: str) -> tuple[str, str, str]:
    """A block as it is, as a method of a class, and as the head of a class."""
    return text, f"class C:\n{text}", f"{text}    ...\n"


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def complete() -> list[tuple[str, str]]:
    """Blocks that import what they use and need nothing else."""
    return [(where, text) for where, text in blocks("python") if re.match(r"(import|from) ", text)]


@pytest.mark.parametrize(("where", "text"), [pytest.param(w, t, id=w) for w, t in complete() if not NEEDS.search(t)])
def test_python_on_pages_runs(where: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {name.id for name in ast.walk(ast.parse(text)) if isinstance(name, ast.Name)}
    values = {"loss": torch.rand(5_000), "x": torch.rand(3, 500), "active": torch.rand(64, 32) > 0.5}
    exec(compile(text, where, "exec"), {name: value for name, value in values.items() if name in names})
