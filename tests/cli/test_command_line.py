"""The command line itself: what it understands, and that every mistake is answered by one line."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import torch
import typer.main
from processes import restored_signals
from typed import instance, present
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

import nnue_trainer
from nnue_trainer.base import status
from nnue_trainer.callbacks.base import Summary
from nnue_trainer.cli import main as cli
from nnue_trainer.cli.group import Group
from nnue_trainer.cli.train import report
from nnue_trainer.errors import UserError, quoted, shown
from nnue_trainer.files import finished, presets
from nnue_trainer.training.run_folder import RunFolder

Run = Callable[..., subprocess.CompletedProcess[str]]

CODE = "import sys; from nnue_trainer.cli.main import main; sys.argv[0] = 'nnue'; main()"


def nnue(
    *arguments: str | bytes, cwd: Path | None = None, code: str = CODE, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process, which saves importing torch again."""

    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["nnue", *arguments])
        monkeypatch.setenv("COLUMNS", "80")
        if cwd is not None:
            monkeypatch.chdir(cwd)
        with restored_signals():
            status = cli._run()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, status, out, err)

    return run


def error_of(run: subprocess.CompletedProcess[str], status: int = 1) -> str:
    assert run.returncode == status, run.stderr
    assert run.stderr.startswith("nnue: error: ")
    assert run.stderr.count("\n") == 1
    return run.stderr


@pytest.mark.slow
def test_without_the_compiled_module() -> None:
    """`nnue info`, `--version` and `--help` work, any other command is one line."""
    lines = [
        *(["--version"], ["--help"], ["info", "--json"]),
        *(["train", "x.yaml"], ["data", "info", "x"], ["export", "a", "b"], ["info", "--nope"]),
    ]
    code = f"""
import importlib.abc, sys
class Fails(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "nnue_trainer._data":
            raise ImportError("_data.so: undefined symbol: x\\nmore", name=name)
sys.meta_path.insert(0, Fails())
from nnue_trainer.cli.main import main
for words in {lines}:
    sys.argv = ["nnue", *words]
    try:
        main()
    except SystemExit as end:
        print("status", end.code, file=sys.stderr)
"""
    run = nnue(code=code)
    assert "torch-nnue " in run.stdout
    assert "undefined symbol" in json.loads(run.stdout[run.stdout.index("{") :])["data"]["error"]
    missing = (
        "nnue: error: nnue_trainer._data cannot be loaded: _data.so: undefined symbol: x "
        "(only nnue info and nnue doctor work without it)"
    )
    assert run.stderr.splitlines() == [
        *["status 0"] * 3,
        *[missing, "status 1"] * 3,
        "nnue: error: No such option: --nope (see nnue info --help)",
        "status 2",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["data", "inof"], ["No such command 'inof'", "see nnue data --help"]),
        (["train", "--nope"], ["No such option: --nope", "see nnue train --help"]),
        (["export"], ["Missing argument 'CHECKPOINT'", "see nnue export --help"]),
        (["data", "head", "x.binpack", "--count", "many"], ["'--count'", "integer", "see nnue data head --help"]),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    run_here: Run, arguments: list[str], expected: list[str]
) -> None:
    run = run_here(*arguments)
    assert run.stdout == ""
    for part in expected:
        assert part in error_of(run, 2)


def test_no_command_shows_the_help(run_here: Run) -> None:
    run = run_here("data")
    assert run.returncode == 2
    assert "Usage: nnue data" in run.stdout
    assert run.stderr == ""


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["train", "-h"], ["data", "shuffle", "-h"]])
def test_help_is_status_0(run_here: Run, arguments: list[str]) -> None:
    run = run_here(*arguments)
    assert (run.returncode, run.stderr) == (0, "")
    assert f"Usage: {' '.join(['nnue', *arguments[:-1]])}" in run.stdout


def test_the_version() -> None:
    run = nnue("--version")
    assert (run.returncode, run.stdout, run.stderr) == (0, f"torch-nnue {nnue_trainer.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", "RECIPE", "training.epochs={}"],
        ["config", "RECIPE", "{}=1"],
        ["config", "RECIPE", "loss.kind={}"],
        ["config", "RECIPE", "optimizer={}"],
        ["data", "head", "x.binpack", "--count", "{}"],
        ["data", "shuffle", "x", "y.binpack", "--memory", "{}"],
        ["export", "a", "b", "--format", "{}"],
        ["permute", "a", "b", "--data", "c", "--method", "{}"],
        ["train", "--preset", "{}"],
        ["data", "convert", "x", "y.bin", "--to", "{}"],
        ["eval", "x", "--fen", "y", "--arch", "{}"],
        ["{}"],
    ],
    ids=" ".join,
)
def test_long_values_are_not_quoted_in_full(run_here: Run, folder: Path, arguments: list[str]) -> None:
    for value in ("x" * 5000, "x y " * 1250):
        words = [word.format(value).replace("RECIPE", "mine.yaml") for word in arguments]
        error = run_here(*words, cwd=folder).stderr
        assert error.count("\n") == 1
        assert "xxxxx" * 100 not in error
        assert "x y " * 100 not in error


def test_a_recipe_may_have_an_equals_sign_in_its_name(run_here: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lr=1e-3.yaml").write_text((folder / "mine.yaml").read_text())
    run = run_here("config", "lr=1e-3.yaml", "training.epochs=7", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "epochs: 7" in run.stdout


def test_shells_can_complete() -> None:
    run = nnue(_NNUE_COMPLETE="source_bash")
    assert run.returncode == 0
    assert "_NNUE_COMPLETE=complete_bash" in run.stdout
    # `--show-completion` looks for the shell among the processes above it: the tests may have been started by none.
    run = subprocess.run(
        ["bash", "-c", '"$@"; exit $?', "bash", sys.executable, "-c", CODE, "--show-completion"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "_NNUE_COMPLETE=complete_bash" in run.stdout
    run = nnue(_NNUE_COMPLETE="complete_bash", COMP_WORDS="nnue pre", COMP_CWORD="1")
    assert (run.returncode, run.stdout.split(), run.stderr) == (0, ["presets"], "")


Command = TyperCommand | TyperGroup


def commands(command: Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Command]]:
    inner = getattr(command, "commands", {})
    return [(path, command)] + [found for name, sub in inner.items() for found in commands(sub, (*path, name))]


@pytest.mark.parametrize(
    ("path", "command"),
    [
        pytest.param(p, c, id=" ".join(p) or "nnue")
        for p, c in commands(instance(TyperGroup, typer.main.get_command(cli.app)))
    ],
)
def test_help_is_written_in_the_imperative(path: tuple[str, ...], command: Command) -> None:
    """Write, not writes."""
    first = present(command.help).split()[0].rstrip(",.")
    assert first[0].isupper()
    assert not first.endswith("s") or first.endswith("ss")
    assert first not in ("A", "The", "All")


# --- train and config: which recipe ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes")
    (path / "mine.yaml").write_text("model: {kind: simple}\ndata: {train: [a]}\nloss: {kind: sigmoid}\n")
    return path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["config", "mine.yaml", "data.train=x y"], "- x y"),
        (["config", "mine.yaml"], "kind: simple"),
        (["config", "--preset", "sfnnv5", "training.epochs=3"], "epochs: 3"),
        (["config"], "training.epochs: int > 0"),
    ],
)
def test_recipes_are_shown(run_here: Run, folder: Path, arguments: list[str], expected: str) -> None:
    run = run_here(*arguments, cwd=folder)
    assert (run.returncode, run.stderr) == (0, "")
    assert expected in run.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train"], "train: expected a RECIPE, --preset NAME (nnue presets lists them), or --resume PATH"),
        (["train", "no.yaml"], "no.yaml: No such file or directory"),
        (["train", "sfnnv5"], "sfnnv5: no such file; the preset of this name is --preset sfnnv5"),
        (["train", "--preset", "x"], "preset 'x': expected one of "),
        (["train", "mine.yaml", "--preset", "sfnnv5"], "sfnnv5.yaml' and 'mine.yaml': expected one recipe"),
        (["train", "mine.yaml", "-c", "mine.yaml"], "'mine.yaml' and 'mine.yaml': expected one recipe"),
        (["train", "mine.yaml", "other.yaml"], "override 'other.yaml': expected key=value"),
        (["train", "mine.yaml"], "data.train: a: No such file or directory"),
        (["train", "-c", "mine.yaml", "data.train=*.none"], "data.train: '*.none': no file matches"),
        (["config", "a=1"], "config: 'a=1': expected a RECIPE or --preset NAME before it"),
    ],
)
def test_recipes_that_are_not_there(run_here: Run, folder: Path, arguments: list[str], expected: str) -> None:
    assert expected in error_of(run_here(*arguments, cwd=folder))
    assert sorted(path.name for path in folder.iterdir()) == ["mine.yaml"]


def test_presets_are_listed(run_here: Run) -> None:
    run = run_here("presets")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [
        f"{name:{max(map(len, presets.names()))}}  {presets.description(name)}" for name in presets.names()
    ]


def test_suggested_commands_can_be_pasted(tmp_path: Path) -> None:
    """Whatever the folder is called."""
    run_dir = tmp_path / "a run; of 'mine'"
    for interrupted in (True, False):
        lines = report(Summary(1, 2, 3, 4.0, 3.0, None, None, interrupted), run_dir)
        command = shlex.split(lines[-1].split("with", 1)[1])
        assert command[:2] == ["nnue", "train" if interrupted else "export"]
        assert str(run_dir) in command[-1]


# --- the top: what is left ------------------------------------------------------------------------------------------


def failing(error: str) -> Callable[..., None]:
    # Not of text: Python ends with SIGINT after one that a KeyboardInterrupt left, if no other text was run since.
    code = compile(error, "<string>", "exec")
    return lambda **_: exec(code, {"torch": torch, "UserError": UserError})


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        ("[][1]", 70, "internal error: IndexError: list index out of range at <string>:1; please report it"),
        ("raise KeyError('a\\nb')", 70, r"internal error: KeyError: 'a\nb' at <string>:1; please report"),
        ("def fail(): fail()\nfail()", 70, "internal error: RecursionError: maximum recursion depth exceeded"),
        ("raise KeyboardInterrupt", 130, "nnue: error: interrupted"),
        ("raise MemoryError('std::bad_alloc')", 1, "out of memory: use a smaller batch"),
        (
            "torch.empty(1 << 50)",
            1,
            "out of memory (another 4503599627370496 bytes could not be allocated): use a smaller batch",
        ),
        (
            "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has')",
            1,
            "out of memory (another 20.00 GiB could not be allocated): use a smaller batch",
        ),
        (
            "raise RuntimeError('operator nnue::x does not exist')",
            1,
            "nnue::x does not exist: the native parts are older",
        ),
        ("open('/no/such')", 1, "nnue: error: /no/such: No such file or directory\n"),
        ("raise OSError(28, 'No space left on device')", 1, "nnue: error: [Errno 28] No space left on device\n"),
        (
            "raise UserError('x\\x1b[2J\\nnnue: fine')",
            1,
            r"x\x1b[2J\nnnue: fine",
        ),
        ("raise SystemExit(3)", 3, ""),
    ],
)
def test_whatever_happens_is_one_line(
    run_here: Run, monkeypatch: pytest.MonkeyPatch, error: str, status: int, expected: str
) -> None:
    monkeypatch.setattr(cli, "app", failing(error))
    monkeypatch.setattr(cli, "is_old", lambda: False)
    run = run_here()
    assert run.returncode == status
    assert expected in (error_of(run, status) if expected else run.stderr)


def test_an_internal_error_of_an_old_build_names_the_remedy(run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", failing("raise TypeError('takes 8 arguments')"))
    monkeypatch.setattr(cli, "is_old", lambda: True)
    assert "the native parts are older than their sources: run make build; if it stays, please" in run_here().stderr


def test_the_traceback_is_there_for_those_who_ask(run_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", failing("[][1]"))
    assert "Traceback" not in run_here().stderr
    monkeypatch.setenv("NNUE_TRACEBACK", "0")
    assert "Traceback" not in run_here().stderr
    monkeypatch.setenv("NNUE_TRACEBACK", "1")
    run = run_here()
    assert run.returncode == 70
    assert run.stderr.startswith("Traceback (most recent call last):")
    assert run.stderr.splitlines()[-1].startswith("nnue: error: internal error: IndexError")


def test_foreign_text_is_escaped() -> None:
    assert shown("plain text, ünï¢ödé ♞ 棋") == "plain text, ünï¢ödé ♞ 棋"
    assert shown("a\nb\r\x1b[1m\x7f\x9b\u202e\u2028") == r"a\nb\r\x1b[1m\x7f\x9b\u202e\u2028"
    assert shown(os.fsdecode(b"\xff\xfe.nnue")) == r"\xff\xfe.nnue"
    assert shown(Path("a\tb")) == r"a\tb"
    assert quoted("it's") == "'it's'"
    assert len(quoted("x" * 1000)) == 83


ODD_NAMES = [
    b"\xff\xfe.binpack",
    "schön.binpack".encode(),
    b"a\n\x1b[2Jnnue: finished.binpack",
    b"a b'c.binpack",
]

MANY = """
import sys
from nnue_trainer.cli import main as cli
cli._prepare_streams()
for arguments in {runs!r}:
    sys.argv = ["nnue", *arguments]
    status = cli._run()
    sys.stdout.flush()
    print(f"status {{status}}", file=sys.stderr, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1:strict"])
def test_odd_names_are_read_and_written_and_shown(tmp_path: Path, project_root: Path, encoding: str) -> None:
    source = str(project_root / "samples" / "val.binpack")
    runs = []
    for name in ODD_NAMES:
        out = f"{tmp_path}/{os.fsdecode(name)}"
        runs += [["data", "convert", source, out, "--to", "binpack"], ["data", "info", out]]
        runs += [["data", "convert", out, out], ["data", "info", f"{out}.missing"]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", MANY.format(runs=runs)]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(os.fsencode(path.name) for path in tmp_path.iterdir()) == sorted(ODD_NAMES)
    assert b"\x1b[2J" not in done.stderr
    lines = done.stderr.decode(encoding.partition(":")[0]).splitlines()
    statuses = [line for line in lines if line.startswith("status ")]
    assert statuses == ["status 0", "status 0", "status 1", "status 1"] * len(ODD_NAMES)
    assert len(lines) == len(statuses) + 2 * len(ODD_NAMES)
    assert all(line.startswith(("status ", "nnue: error: ")) for line in lines)
    for shown_name in (r"\xff\xfe.binpack", r"a\n\x1b[2Jnnue: finished.binpack", "a b'c.binpack"):
        assert any(f"/{shown_name}" in line for line in lines)


def test_what_the_reader_of_a_pipe_does_not_want_is_no_error(project_root: Path) -> None:
    code = f"set -o pipefail; {sys.executable} -m nnue_trainer data head samples/val.binpack -n 100000 | head -1"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        ["bash", "-c", code], cwd=project_root, capture_output=True, text=True, check=False, env=environment
    )
    assert (run.returncode, run.stderr) == (141, "")
    assert run.stdout.count("\n") == 1


@pytest.mark.slow
def test_a_full_disk_below_standard_output_is_one_line() -> None:
    run = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m nnue_trainer config > /dev/full"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert error_of(run) == "nnue: error: [Errno 28] No space left on device\n"


@pytest.mark.slow
def test_wild_numbers_are_mistakes_of_the_user(tmp_path: Path, project_root: Path) -> None:
    source = str(project_root / "samples" / "val.binpack")
    options = ["max-score", "min-ply", "random-skip", "min-material", "soft-ply", "seed"]
    values = ["-1", "2147483648", "9223372036854775808", "1" + "0" * 400, "nan", "inf", "1e39", ""]
    runs = [["data", "filter", source, "out.binpack", "--quiet", f"--{o}", v] for o in options for v in values]
    runs += [["data", "head", source, "--count", value] for value in values if len(value) < 4]
    run = nnue(code=MANY.format(runs=runs), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    statuses = re.findall("status (.+)", run.stderr)
    assert len(statuses) == len(runs)
    assert set(statuses) <= {"0", "1", "2"}
    assert "internal error" not in run.stderr
    assert run.stderr.count("\n") == len(runs) + len(statuses) - statuses.count("0")


def test_a_user_error_of_the_library_is_the_message_as_it_is() -> None:
    with pytest.raises(UserError, match=re.escape("preset 'a\\nb': expected one of")):
        presets.path("a\nb")


def test_help_imports_nothing_slow():
    code = """
import atexit, sys
from nnue_trainer.cli.main import main
atexit.register(lambda: print([n for n in ("torch", "numpy", "pydantic", "rich") if n in sys.modules]))
main()
"""
    run = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("Usage: nnue ")
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [[], ["data"]])
def test_the_help_of_a_group_has_whole_sentences_about_its_commands(words: list[str]) -> None:
    group = instance(TyperGroup, typer.main.get_command(cli.app))
    for word in words:
        group = instance(TyperGroup, group.commands[word])
    help_text = " ".join(nnue(*words, "--help").stdout.split())
    assert "data" in group.commands or "head" in group.commands
    for name, command in group.commands.items():
        paragraph = present(command.help).split("\n\n")[0]
        assert f" {name} {' '.join(paragraph.split())}" in help_text


@pytest.mark.parametrize("words", [["inspect"], ["train"], ["data", "shuffle"]])
def test_the_help_of_a_command_has_no_python_types(words: list[str]) -> None:
    arguments = nnue(*words, "--help").stdout.split("Arguments:")[1].split("Options:")[0]
    assert "<" not in arguments


def test_the_help_of_options_has_n_and_x_for_numbers() -> None:
    """Not `<int range>` and the like; ranges in words."""
    seen = 0

    def look(command: Any, name: str, parent: Any = None) -> None:
        nonlocal seen
        context = command.make_context(name, [], parent=parent, resilient_parsing=True)
        text = command.get_help(context)
        assert re.findall(r"(?i)<?\b(?:list\[)?(?:int|integer|float)\b[^a-z.,]*(?:range)?\]?>", text) == [], name
        assert not re.search(r"\bx ?[<>]=?|\bNone\b", text), name
        seen += len(re.findall(r"(?m)^  -.* [NX](?:  |$)", text))
        for inner in getattr(command, "commands", ()):
            look(command.get_command(context, inner), inner, context)

    look(typer.main.get_command(cli.app), "nnue")
    assert seen > 50
    text = " ".join(nnue("match", "--help").stdout.split())
    assert "[1 to 1000]" in text
    assert "[default: 20; at least 0]" in text
    assert "9223372036854775807" not in text


def test_the_help_shows_ranges_with_one_end_and_none_for_counts() -> None:
    app = typer.Typer(cls=Group, rich_markup_mode=None)

    @app.command("walk")
    def walk(
        most: Annotated[int, typer.Option(max=9)] = 1,
        least: Annotated[int, typer.Option(min=2)] = 2,
        loud: Annotated[int, typer.Option("--loud", count=True)] = 0,
        louder: Annotated[int, typer.Option("--louder", count=True, max=3)] = 0,
    ) -> None: ...

    @app.command("run")
    def run() -> None: ...

    group: Any = typer.main.get_command(app)
    context = group.make_context("app", [], resilient_parsing=True)
    command = group.get_command(context, "walk")
    text = command.get_help(command.make_context("walk", [], parent=context, resilient_parsing=True))
    ranges = {
        option: re.findall("at .*(?=])|[0-9]+ to [0-9]+", line) for option, line in re.findall("--(\\w+)(.*)", text)
    }
    assert ranges == {"most": ["at most 9"], "least": ["at least 2"], "loud": [], "louder": ["at most 3"], "help": []}


@pytest.mark.slow
def test_training_imports_nothing_slow():
    """These take seconds to import, and a training without torch.compile and pages needs none of them."""
    slow = ["torch._dynamo", "torch._inductor", "sympy", "matplotlib", "tensorboard", "torch.onnx"]
    code = f"import sys, nnue_trainer.training.run; print([name for name in {slow!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_training_can_print_where_its_time_outside_of_steps_goes(tmp_path):
    command = [sys.executable, "-m", "nnue_trainer", "train", "--preset", "quickstart", "--run-dir", str(tmp_path)]
    fields = ["model.l1=64", "training.epochs=1", "training.positions_per_epoch=4096", "training.device=cpu"]
    run = subprocess.run([*command, "--profile-start", *fields], capture_output=True, text=True, check=True)
    _, table = run.stderr.split("since start\n")
    phases = [line.rsplit(maxsplit=2) for line in table.splitlines()]
    assert [name.strip() for name, *_ in phases] == [
        "imports", "run folder and checkpoint", "device", "model", "data files", "model on the device", "optimizer",
        "first positions", "warm-up", "integer check", "first batch", "first step", "steps, validation, saves",
        "last write", "end",
    ]  # fmt: skip
    assert float(phases[-1][2]) == pytest.approx(sum(float(seconds) for _, seconds, _ in phases), abs=0.1)
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert 0 < last["run_positions_per_second"] <= last["positions_per_second"]
    assert "in steps" in run.stderr + run.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_every_command_ends_in_one_line_at_a_signal(number, nnue, monkeypatch):
    """All commands go through `main`; this one stands for those that read and write nothing."""
    monkeypatch.setattr("nnue_trainer.files.presets.names", lambda: signal.raise_signal(number))
    before = signal.getsignal(number)
    done = nnue("presets")
    assert (done.returncode, done.stderr) == (130 if number == signal.SIGHUP else 75, "nnue: error: interrupted\n")
    assert signal.getsignal(number) is before


def test_a_signal_after_the_command_changes_no_status(nnue, monkeypatch):
    """Schedulers repeat theirs, and the end of the process takes a moment."""
    end = finished.end

    def late(*, again: bool) -> None:
        signal.raise_signal(signal.SIGXCPU)
        end(again=again)

    monkeypatch.setattr(finished, "end", late)
    assert nnue("presets").returncode == 0


def test_a_signal_ends_a_command_whose_options_are_being_read(nnue, monkeypatch):
    """typer imports other packages for that, and returns another status for an interrupt meanwhile."""
    monkeypatch.setattr(TyperGroup, "parse_args", lambda *_: signal.raise_signal(signal.SIGUSR1))
    done = nnue("presets")
    assert (done.returncode, done.stderr) == (75, "nnue: error: interrupted\n")


def test_no_option_loses_its_name() -> None:
    """typer 0.27 names an option like its metavar if that is the parameter in capitals, unless it has a name."""
    found = 0
    for path, command in commands(instance(TyperGroup, typer.main.get_command(cli.app))):
        hints = get_type_hints(command.callback, include_extras=True) if command.callback is not None else {}
        for parameter, hint in hints.items():
            for info in getattr(hint, "__metadata__", ()):
                if isinstance(info, OptionInfo):
                    found += 1
                    # In an annotation, typer has the first name as the default until it is used.
                    has_name = info.param_decls or isinstance(info.default, str)
                    assert has_name or info.metavar != parameter.upper(), (path, parameter)
        for option in command.params:
            for flag in option.opts if option.param_type_name == "option" else ():
                assert re.fullmatch("--[a-z0-9][a-z0-9-]*|-[a-zA-Z]", flag), (path, flag)
    assert found > 100


def test_the_first_process_writes_its_status_for_torchrun(tmp_path, nnue, monkeypatch):
    file = tmp_path / "status"
    monkeypatch.setenv("WORLD_SIZE", "2")
    for command, rank, expected in (("presets", 0, "0\n"), ("export none out.nnue", 0, "1\n"), ("presets", 1, "1\n")):
        monkeypatch.setenv("NNUE_STATUS_FILE", str(file))
        monkeypatch.setenv("RANK", str(rank))
        nnue(*command.split())
        assert file.read_text() == expected, (command, rank)
        assert "NNUE_STATUS_FILE" not in os.environ  # commands that this one runs write no status
    status.begin(first=False)
    with monkeypatch.context() as patch:
        patch.setenv("NNUE_STATUS_FILE", str(tmp_path / "joining"))
        status.begin(first=True)
        assert not (tmp_path / "joining").exists()  # until all processes have joined
        patch.setenv("WORLD_SIZE", "1")
        patch.setenv("NNUE_STATUS_FILE", str(file))
        status.begin(first=True)
        assert file.read_text() == "started\n"
        with RunFolder(tmp_path / "run"), pytest.raises(UserError) as caught, RunFolder(tmp_path / "run"):
            pass
        assert status.of_error(caught.value) == status.IN_USE
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("NNUE_STATUS_FILE", str(tmp_path))
    done = nnue("presets")
    assert done.returncode == 0
    assert f"NNUE_STATUS_FILE: {tmp_path}: Is a directory" in done.stderr


def test_a_full_disk_does_not_empty_the_file_of_the_status(tmp_path, monkeypatch, capsys):
    file = tmp_path / "status"
    monkeypatch.setenv("NNUE_STATUS_FILE", str(file))
    status.begin(first=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        status.write(75)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == "started\n"
    assert f"NNUE_STATUS_FILE: {file}: File too large" in capsys.readouterr().err
