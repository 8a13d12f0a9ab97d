"""Nets with random weights, exported, and the programs of examples/engine compiled for them. tools/check_inference.py
uses it too."""

import json
import subprocess
from pathlib import Path
from typing import Any

import torch
from command import nnue

from nnue_trainer import nets
from nnue_trainer.data import RecordLoader, feature_set, fens_from_records
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "examples" / "engine"


def exported(architecture: dict[str, Any], folder: Path, *options: str) -> Path:
    """A net with random weights that fill the range of their integers: net.nnue, net.bin and net.h; the raw file.
    `options` are for the export of the latter."""
    nets.NETS.find(architecture["kind"], may_import=True)
    if isinstance(inputs := architecture.get("inputs"), str):
        architecture = {**architecture, "inputs": feature_set(inputs, may_import=True).name}
    torch.manual_seed(1)
    model = nets.build(architecture)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.1 if name.startswith("feature_transformer") else 0.3)
        for bound in model.weight_bounds():
            bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    checkpoint.save(folder / "c.safetensors", Checkpoint(model.architecture, {"model": model.state_dict()}))
    export = ("export", folder / "c.safetensors")
    nnue(*export, folder / "net.nnue", "--overwrite", "--any-l1")
    nnue(*export, folder / "net.bin", "--format", "raw", "--header", "--overwrite", "--any-l1", *options)
    return folder / "net.bin"


def positions(sample: str, count: int, path: Path) -> Path:
    """A file with this many FENs of samples/`sample`, after a comment and an empty line."""
    records = next(iter(RecordLoader([str(ROOT / "samples" / sample)], count, seed=3))).numpy()
    path.write_text("# positions\n\n" + "\n".join(fens_from_records(records)) + "\n")
    return path


def scores(net: Path, fens: Path) -> list[int]:
    """The scores of `nnue eval --json`."""
    return [json.loads(line)["score"] for line in nnue("eval", net, "--fens", fens, "--json").splitlines()]


def built(program: str, net: Path, flags: str, compiler: str = "g++") -> Path:
    """The program, compiled for the net without a warning."""
    out = net.parent / program
    command = ["make", "-s", "-C", str(ENGINE), program, f"NET={net}", f"OUT={out}", f"CXXFLAGS={flags} -Werror"]
    command.append(f"CXX={compiler}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return out


def program_scores(program: Path, net: Path, fens: Path, emulator: str | None = None) -> list[int]:
    """The scores that `program` prints; for a program of another machine, `emulator` runs it."""
    with fens.open() as lines:
        done = subprocess.run(
            [*([emulator] if emulator else []), program, net], stdin=lines, capture_output=True, text=True, check=True
        )
    return [int(line) for line in done.stdout.splitlines()]
