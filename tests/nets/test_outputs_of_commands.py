"""One rule for every command that writes: an output that exists and that the command did not make is kept.

The commands and their options come from the tree of commands itself. A new option or argument that takes a path fails
here until it stands in one of the two tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
import typer.main
from cases import some
from command import Done
from golden import golden_net
from net_support import random_checkpoint

from nnue_trainer.cli.main import app
from nnue_trainer.data import records_from_fens
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.export.net import write_net
from nnue_trainer.files import checkpoint as checkpoints

Nnue = Callable[..., Done]

OLD = b"weeks of work"

READ = frozenset(
    (
        *("against", "book", "checkpoint", "data", "engine", "fens", "file", "files", "inputs", "model", "net"),
        *("openings", "plugin", "recipe", "resume", "run", "runs", "source"),
    )
)
"""The names of options and arguments that take the path of something that is only read."""

OTHER_RULE = {
    "train run_dir": "a folder with rules of its own (tests/training/test_run_folder.py, test_resume.py)",
    "compare output": "a folder with a plan (tests/match/test_compare.py)",
    "match output": "a folder with a journal (tests/match/test_match.py)",
    "data shuffle temporary": "a folder for temporary files",
    "data dedup temporary": "a folder for temporary files",
}

WRITTEN: dict[str, tuple[str, str]] = {
    "export out": ("export c.safetensors {}", "out.nnue"),
    "export header": ("export c.safetensors net.bin --format raw --header", "net.h"),
    "import out": ("import net.nnue {}", "out.safetensors"),
    "permute out": ("permute net.nnue {} --data in.bin --engine none", "out.nnue"),
    "permute png": ("permute net.nnue new.nnue --data in.bin --engine none --png {}", "out.png"),
    "report out": ("report run --out {}", "out.html"),
    "inspect png": ("inspect net.nnue --png {}", "out.png"),
    "inspect html": ("inspect net.nnue --html {}", "out.html"),
    "data info png": ("data info in.bin --png {}", "out.png"),
    "data info html": ("data info in.bin --html {}", "out.html"),
    "data profile png": ("data profile in.bin --png {}", "out.png"),
    "data profile html": ("data profile in.bin --html {}", "out.html"),
    "data generate out": (
        "data generate {} --engine ENGINE --positions 40 --nodes 1 --score-scale 1 --max-ply 30 --opening-score 2000",
        "out.binpack",
    ),
    "data convert output": ("data convert in.bin {}", "out.binpack"),
    "data filter output": ("data filter in.bin {} --min-pieces 2", "out.bin"),
    "data shuffle output": ("data shuffle in.bin {}", "out.binpack"),
    "data dedup output": ("data dedup in.bin {}", "out.bin"),
    "data interleave output": ("data interleave in.binpack {}", "out.binpack"),
    "data rescore output": ("data rescore in.bin {} --net net.nnue", "out.bin"),
    "data split train": ("data split in.bin --train {} --validation other.bin", "out.bin"),
    "data split validation": ("data split in.bin --train other.bin --validation {}", "out.bin"),
}
"""A command line for each output, with the name that it writes. `--header` is a flag, but also writes a file."""


def commands(group: typer.Typer, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every command of the tree, and the types of its parameters by name."""
    for one in group.registered_commands:
        assert one.callback is not None
        yield prefix + (one.name or one.callback.__name__.replace("_", "-")), get_type_hints(one.callback)
    for more in group.registered_groups:
        assert more.typer_instance is not None
        yield from commands(more.typer_instance, f"{prefix}{more.name} ")


def test_the_tree_of_commands_is_seen_whole() -> None:
    for name in (found := dict(commands(app))):
        command: Any = typer.main.get_command(app)
        for word in name.split():
            command = command.commands[word]
    assert len(found) > 20


def test_every_path_is_read_or_tried_below() -> None:
    unknown, without, found = [], [], set()
    for name, parameters in commands(app):
        for parameter in {key for key, kind in parameters.items() if "Path" in str(kind)} - READ:
            known = f"{name} {parameter}"
            found.add(known)
            if known in OTHER_RULE:
                continue
            if known not in WRITTEN:
                unknown.append(known)
            if "overwrite" not in parameters:
                without.append(known)
    assert not unknown, "new paths: add them to READ or WRITTEN"
    assert not without, "these write a file and have no --overwrite (cli/outputs.py)"
    assert found == set(OTHER_RULE) | set(WRITTEN) - {"export header"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("inputs")
    records = records_from_fens([f"8/8/8/8/8/8/8/K1k5 w - - {i % 90} 1" for i in range(300)])
    write_binpack(folder / "in.binpack", records)
    (folder / "in.bin").write_bytes(to_bin(folder))
    write_net(golden_net("small128"), folder / "net.nnue")
    checkpoints.save(folder / "c.safetensors", random_checkpoint({"kind": "simple", "hidden": 32}))
    checkpoints.save(
        folder / "run" / "checkpoints" / "last.safetensors", random_checkpoint({"kind": "simple", "hidden": 32})
    )
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def to_bin(folder: Path) -> bytes:
    from nnue_trainer.data.transform import convert

    convert([folder / "in.binpack"], folder / "in.bin")
    return (folder / "in.bin").read_bytes()


@pytest.fixture
def folder(inputs: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the inputs."""
    monkeypatch.chdir(tmp_path)
    for name, data in inputs.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("output", WRITTEN)
def test_an_output_that_exists_is_kept(nnue: Nnue, folder: Path, fake_engine: Callable[..., str], output: str) -> None:
    line, written = WRITTEN[output]
    words = [fake_engine() if word == "ENGINE" else word.format(written) for word in line.split()]
    out = Path(written)
    out.write_bytes(OLD)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    status, _, error = nnue(*words)
    assert status == 1, error
    assert error.startswith(f"nnue: error: {written}: exists already")
    assert "--overwrite" in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    status, _, error = nnue(*words, "--overwrite")
    assert status == 0, error
    assert out.read_bytes() != OLD
    out.unlink()
    for name in ("other.bin", "new.nnue", "net.bin"):
        Path(name).unlink(missing_ok=True)
    out.symlink_to("nowhere")  # a link to nothing takes the name, too
    status, _, error = nnue(*words)
    assert status == 1, error
    assert out.is_symlink()


@pytest.mark.parametrize(
    "output",
    some(
        [output for output in WRITTEN if output != "export header"],
        every=7,
        kept=("data rescore output", "data generate out"),
    ),
)
def test_an_output_is_no_input(nnue: Nnue, folder: Path, fake_engine: Callable[..., str], output: str) -> None:
    """Also with --overwrite: it would replace the file that the command reads."""
    line, _ = WRITTEN[output]
    if output == "data generate out":
        Path("book.fen").write_text("8/8/8/8/8/8/8/K1k5 w - - 0 1\n")
        line += " --book book.fen --to bin"
    if output == "data rescore output":
        line += " --to bin"
    engine = fake_engine()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = [str(path.relative_to(folder)) for path in before]
    read = [name for name in names if {name, name.split("/")[0]} & set(line.split())]
    assert read
    for shown in read:
        words = [engine if word == "ENGINE" else word.format(shown) for word in line.split()]
        status, _, error = nnue(*words, "--overwrite")
        assert status == 1, (error, shown)
        assert "input" in error
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("output", [output for output in WRITTEN if output != "export header"])
def test_standard_output_is_no_output(nnue: Nnue, folder: Path, fake_engine: Callable[..., str], output: str) -> None:
    """A `-`, which inputs may be, makes no file of this name."""
    words = [fake_engine() if word == "ENGINE" else word.format("-") for word in WRITTEN[output][0].split()]
    status, _, error = nnue(*words)
    assert (status, error) == (
        1,
        "nnue: error: -: standard output cannot be written, expected the name of a file to write\n",
    )
    assert not Path("-").exists()


def test_a_training_file_is_no_place_for_a_net(nnue: Nnue, inputs: dict[str, bytes], folder: Path) -> None:
    for words in (("import", "net.nnue", "in.binpack"), ("export", "c.safetensors", "in.binpack")):
        status, _, error = nnue(*words)
        assert (status, error) == (1, "nnue: error: in.binpack: exists already; --overwrite replaces it\n")
        assert Path("in.binpack").read_bytes() == inputs["in.binpack"]
    for _ in range(2):  # the second time it finds what it made
        assert nnue("export", "c.safetensors", "out.nnue")[0] == 0
    assert nnue("import", "net.nnue", folder)[2].endswith(": is a folder, expected the name of a file to write\n")
