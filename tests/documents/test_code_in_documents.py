"""The code on pages: Python compiles, and runs where it is complete; YAML parses; each command line is parsed by its
command, with the keys of its recipe, and is run, here or by the test that NOT_RUN names."""

import ast
import gzip
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
from needs import ROOT
from typer.testing import CliRunner

from nnue_trainer import _data, config
from nnue_trainer.cli.main import app
from nnue_trainer.files import presets

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Needs of a block that the page does not meet: the reader's files, names of the paragraph, a GPU.
NEEDS = re.compile(
    r'device="cuda"|\.cuda\(\)|data\.binpack|FILE|wandb|stockfish|"[\w/-]+\.(safetensors|nnue|bin|onnx)"'
)
BLOCK = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")  # language, text
COMMANDS = typer.main.get_command(app)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if re.fullmatch(language, match[1]):
                yield f"{page.name}:{text[: match.start()].count(chr(10)) + 2}", match[2]


# Words after which a command line has the arguments of `nnue`, with the command that the word stands for.
STARTERS = {"nnue": [], "torch-nnue": [], "nnue_trainer": [], "train.py": ["train"]}
# Programs that do not belong to this project.
OTHERS = {
    ".",
    "./engine",
    "cc",
    "cd",
    "cmake",
    "docker",
    "git",
    "mkdir",
    "module",
    "nvidia-smi",
    "pip",
    "sbatch",
    "source",
}
OTHERS |= {
    "stage_in",
    "sudo",
    "wsl",
    "zstdcat",
    "build/convert",
    "build/train",
    "build/run_exported",
    "examples/engine/eval",
}
# The reason why a line that contains the pattern is not run by the test below. A line may be run by several tests.
NOT_RUN = {
    r"^(sudo|wsl|git|nvidia-smi|module|pip|docker|srun|sbatch|\.|cd torch-nnue|python -m venv) ?": "installs",
    r"^NNUE_CUDA_ARCHS=": "installs; tools/check_wheel.sh installs a wheel",
    r"^make quickstart|^nnue doctor$": "takes minutes, or measures; tests/cli/test_doctor.py",
    r"--engine stockfish|^nnue verify": "needs Stockfish; tests of engines run fakes",
    r"^nnue (match|compare) ": "takes minutes; tests/match",
    r"^nnue (train|export) .*sfnnv5|^nnue train (configs/|--resume)|^torchrun |^python (train|bench)": "takes minutes",
    r"^nnue (train|export|eval) .*recipe|my_net\.py|EXAMPLES|^mkdir|^cd walk": "tests/extending/test_walks.py",
    r"my_data_format\.py": "tests/extending/test_data_format_walk.py",
    r"^cmake |^build/|export\.py|net\.safetensors|^cp -r |^cd (data|libtorch)|^python -c": "tests/cpp",
    r"examples/engine|^cc |^\./engine": "tests/engine/test_documentation.py",
    r"big\.safetensors|small\.safetensors|net\.bin (again|--format raw --model)|--model": "tests/engine, tests/nets",
    r"^(source|stage_in) ": "tests/cluster/test_cluster.py",
    r"--from nettest\.yaml": "tests/config/test_nettest.py",
    r"^zstdcat|^nnue data convert - ": "tests/data/test_cli.py",
    r"--pawn 100$|training\.vf|training\.binpack|runs/simple": "test_from_your_games_to_a_match",
    r"IN…|OUT": "names no file",
}


def command_lines(text: str) -> Iterator[str]:
    """The commands of a page's blocks, without prompts, comments and continuations: parts of && and of pipes apart."""
    fenced = [match[2] for match in BLOCK.finditer(text) if match[1] in ("", "sh")]
    indented = re.findall(r"(?m)(?<=\n\n)(?:^ {4}\S.*\n)+", BLOCK.sub("", text))
    for block in [*fenced, *indented]:
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"\$\((?:[^()']|'[^']*')*\)", "RESULT", line.strip().removeprefix("$ ").removeprefix("!"))
            part = re.sub(r"(^|\s+)# .*|\s+> .*|\s+< .*", "", line)
            if program(part) in {*STARTERS, *OTHERS, "exec", "make", "python", "torchrun", "srun", "cp"}:
                yield from re.split(r"\s+(?:&&|\|)\s+", part)


def program(line: str) -> str:
    return next((word for word in line.split() if not re.match(r"[A-Z_]+=", word)), "")


def arguments(words: list[str]) -> list[str] | None:
    """The arguments of `nnue` in a command line that starts it; None if it starts something else."""
    if "--wrap" in words:
        return arguments(shlex.split(words[words.index("--wrap") + 1]))
    if words[0] in ("git", "cd", "pip") or words[:2] == ["docker", "build"]:
        return None
    return next((first + words[words.index(name) + 1 :] for name, first in STARTERS.items() if name in words), None)


def problem(line: str) -> str | None:
    """The wrong part of a command line: command, option, value, or key of a recipe; None if there is none."""
    words = shlex.split(re.sub(r"\[(--?[a-z][^]]*)\]", r"\1", line))
    words = words[[bool(re.match(r"[A-Z_]+=", word)) for word in words].index(False) :]
    rest = arguments(words)
    if rest is not None:
        return problem_of_nnue(rest)
    if words[0] == "make":
        folder = words[words.index("-C") + 1] if "-C" in words else "."
        targets = [word for word in words[1:] if "=" not in word and word not in ("-C", folder)]
        makefile = (ROOT / folder / "Makefile").read_text()
        return next((f"no target {name}" for name in targets if not re.search(rf"(?m)^{name}\b.*:", makefile)), None)
    if words[0] == "python" and words[1].endswith(".py"):
        found = [path for folder in ("", "examples/libtorch") if (path := ROOT / folder / words[1]).is_file()]
        options = [word for word in words if word.startswith("--")]
        return (
            next((f"no {word}" for word in options if word not in found[0].read_text()), None) if found else "no file"
        )
    if words[0] == "cp" and words[1].startswith(("examples", "$EXAMPLES")):
        named = [word.replace("$EXAMPLES", "examples") for word in words[1:-1]]
        sources = [word for word in named if word.startswith("examples")]
        return next((f"no {source}" for source in sources if not list(ROOT.glob(source))), None)
    return None


def problem_of_nnue(words: list[str]) -> str | None:
    command: Any = COMMANDS
    context = None
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        context = typer.Context(command, parent=context)
        name, *words = words
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
    try:
        given = command.make_context(command.name, words, parent=context).params
        if command.name in ("train", "config", "explain", "compare"):
            texts = [*(given.get("arguments") or given.get("recipes") or ()), *(given.get("common") or ())]
            fields = [text.partition(": ")[2] or text for text in texts if re.match(r"(\w+: )?[\w.]+=", text)]
            config.load(presets.path(given.get("preset") or "sfnnv5"), fields)
    except Exception as error:
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return None


def all_lines() -> list[tuple[str, str]]:
    return [(page.name, line) for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("nnue nonsense", "no command nonsense"),
        ("nnue data head FILE -n 20 --nonsense", "No such option"),
        ("nnue data head FILE -n many", "valid integer"),
        ("nnue data head", "MissingParameter"),
        ("nnue train --preset sfnnv5 data.tran=x", "data.tran: unknown key"),
        ("torchrun --nproc-per-node 2 train.py --preset nope", "preset 'nope'"),
        ('sbatch --gpus 1 --wrap "exec nnue train mine.yaml optimizer.lr=high"', "optimizer.lr"),
        ("make -C examples/engine nonsense", "no target nonsense"),
        ("python benchmarks/record.py --nonsense", "no --nonsense"),
        ("cp examples/engine/nnue.hpp .", "no examples/engine/nnue.hpp"),
        ("nnue train --preset sfnnv5 data.train=x training.epochs=1", None),
    ],
)
def test_wrong_commands_are_found(line: str, part: str | None) -> None:
    found = problem(line)
    assert found is None if part is None else part in (found or ""), found


def test_commands_are_found_in_blocks() -> None:
    fenced = "```sh\n# b\nX=1 make b && !c  # d\nzstdcat e | nnue f \\\n --g < h > i\nno command\n```\n"
    text = f"A\n\n    $ nnue data a\n\n```python\nnnue no\n```\n{fenced}"
    assert list(command_lines(text)) == ["X=1 make b", "!c", "zstdcat e", "nnue f   --g", "nnue data a"]


def test_commands_on_pages_are_valid() -> None:
    lines = all_lines()
    assert len(lines) > 100
    assert [f"{page}: {line}: {bad}" for page, line in lines if (bad := problem(line))] == []


def named_wrongly(span: str) -> str | None:
    """The command or option in a part of a command line, "nnue train --resume RUN", that does not exist."""
    command: Any = COMMANDS
    words = span.replace("\\|", "|").split()[1:]
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z]+", words[0]):
        name = words.pop(0)
        if name not in command.commands:
            return name
        command = command.commands[name]
    known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]} | {"-h", "--help"}
    options = [word.strip("[],").partition("=")[0] for word in words if re.match(r"\[?--?[a-z]", word)]
    return next((option for option in options if option not in known), None)


def test_commands_in_sentences_exist() -> None:
    """In sentences of pages, and in messages, help and comments of the sources."""
    sources = [
        path for folder in ("nnue_trainer", "data_loader", "csrc", "examples") for path in (ROOT / folder).rglob("*")
    ]
    texts = [path for path in sources if path.suffix in (".py", ".h", ".cpp", ".j2", ".yaml")]
    wrong = []
    for path in [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *texts]:
        text = path.read_text(encoding="utf-8")
        sentences = BLOCK.sub("", text.partition("## [0.2.0]")[0]) if path.suffix == ".md" else text
        spans = re.findall(r"`(nnue [^`\n{]+)`", sentences)
        wrong += [f"{path.name}: {span}: no {bad}" for span in spans if (bad := named_wrongly(span))]
    assert wrong == []


def test_each_command_is_run_or_has_a_reason() -> None:
    reasons = dict.fromkeys(NOT_RUN, 0)
    without = []
    for page, line in all_lines():
        pattern = next((pattern for pattern in NOT_RUN if re.search(pattern, line)), None)
        if pattern is not None:
            reasons[pattern] += 1
        elif (page, line) not in to_run():
            without.append(f"{page}: {line}")
    assert without == []
    assert [pattern for pattern, lines in reasons.items() if not lines] == []


def to_run() -> list[tuple[str, str]]:
    return [(page, line) for page, line in all_lines() if not any(re.search(pattern, line) for pattern in NOT_RUN)]


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


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_commands_on_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the files that they name; the trainings are small. Trainings come first, then exports."""
    monkeypatch.chdir(tmp_path)
    for folder in ("samples", "configs"):
        Path(folder).symlink_to(ROOT / folder)
    for file in (ROOT / "examples" / "extending").iterdir():
        if file.is_file():  # other tests leave bytecode beside them
            Path(file.name).write_bytes(file.read_bytes())
    for name in ("train", "validation", "a", "b", "games", "part1", "part2"):
        Path(f"{name}.binpack").write_bytes((ROOT / "samples" / "val.binpack").read_bytes())
    Path("src").mkdir()
    recipe = {"model": {"kind": "simple", "hidden": 16}, "data": {"train": ["a.binpack"]}, "loss": {"kind": "sigmoid"}}
    Path("mine.yaml").write_text(yaml.safe_dump(recipe))
    with gzip.open("games.pgn.gz", "wb") as packed:
        packed.write(games_with_evaluations(Path("games.pgn"), 10).read_bytes())
    order = ["train", "export", "data", "eval", "check", "config", "presets", "explain"]
    lines = sorted({line for _, line in to_run()}, key=lambda line: (order.index(line.split()[1]), line))
    assert len(lines) > 15
    for line in lines:
        words = shlex.split(line)[1:]
        if words[0] == "train":
            words += [*SMALL["train"][:-1], "training.epochs=1"]
            words += ["model.hidden=16"] if "buckets" in words else ["model.l1=128"] if "quickstart" in words else []
        if words[0] in ("train", "export") or words[:2] == ["data", "convert"]:
            words.append("--overwrite")
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{line}: {result.output[-500:]} {result.exception}"
