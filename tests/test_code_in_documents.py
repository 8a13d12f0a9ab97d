"""The code on pages: Python compiles, and runs where it is complete; YAML parses; commands have these options."""

import ast
import json
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from command import nnue

from nnue_trainer import _data
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


def games_with_evaluations(path: Path, games: int) -> Path:
    """Random games in PGN, with material as their evaluation."""
    rng, texts = random.Random(1), list[str]()
    for _ in range(games):
        game, scores = _data.Game(START), list[str]()
        while len(scores) < 60 and (moves := game.legal_moves()):
            game.play(rng.choice(moves))
            board = game.fen.split()[0]
            scores.append(f"{sum(PAWNS[c] for c in board if c in PAWNS) * (-1) ** len(scores) + 0.01:+.2f}/1")
        white = float(scores[-1].split("/")[0]) * (-1) ** (len(scores) - 1)
        words = [f"{san} {{{score}}}" for san, score in zip(game.san_moves(), scores, strict=True)]
        result = "1-0" if white > 1 else "0-1" if white < -1 else "1/2-1/2"
        texts.append(f'[Result "{result}"]\n\n{" ".join(words)} {result}\n')
    path.write_text("\n".join(texts))
    return path


START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
PAWNS = {"P": 1, "N": 3, "B": 3, "R": 5, "Q": 9, "p": -1, "n": -3, "b": -3, "r": -5, "q": -9}
SMALL = {
    "train": ["data.batch_size=64", "data.shuffle_buffer=256", "training.positions_per_epoch=64", "training.epochs=21"],
    "match": ["--pairs", "1", "--nodes", "20", "--max-moves", "10", "-j", "1"],
}


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.usefixtures("one_thread")
def test_from_your_games_to_a_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The eight commands of docs/from-bullet.md, one after the other, as printed except for the sizes."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "from-bullet.md").read_text(encoding="utf-8")
    recipe, commands = page.split("## From your games to a match")
    found = re.search(r"(?ms)^```yaml\n(.*?)^```", recipe)
    assert found is not None
    Path("simple.yaml").write_text(found[1])
    games_with_evaluations(Path("games.pgn"), 60)
    block = commands.split("```")[1]
    lines = [line for line in block.splitlines() if line.startswith("nnue ")]
    assert len(lines) == 8
    for line in lines:
        words = shlex.split(line)[1:]
        assert nnue(*words, *SMALL.get(words[0], ()), *(["--share", "0.2"] if words[1] == "split" else ())), line
    assert "struct Net" in Path("net.h").read_text()
    assert Path("net.bin").stat().st_size == 789_568
    assert "<svg" in Path("runs/simple/report.html").read_text()
    (match,) = Path("match").glob("*/match.json")
    assert json.loads(match.read_text())["complete"]
