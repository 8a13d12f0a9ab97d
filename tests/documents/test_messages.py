"""Words for users: what they state must be true where they are printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from needs import ROOT

import nnue_trainer
from nnue_trainer import _data, config, nets
from nnue_trainer.analysis import net_inspect
from nnue_trainer.callbacks.base import Summary
from nnue_trainer.cli.train import report
from nnue_trainer.data import PositionWriter, RecordLoader
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.books import Book
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.info import file_info, page
from nnue_trainer.errors import UserError
from nnue_trainer.files.pages.page import as_text
from nnue_trainer.modules import StackedLinear
from nnue_trainer.nets.activity import _layer_inputs


@pytest.mark.parametrize(
    ("model", "export", "expected"),
    [
        ({"kind": "sfnnv5"}, {"kind": "nnue"}, ["net.nnue"]),
        ({"kind": "sfnnv5", "l1": 64}, {"kind": "nnue"}, ["net.nnue", "--any-l1"]),
        ({"kind": "simple"}, {"kind": "raw"}, ["net.bin"]),
    ],
)
def test_the_suggested_export_fits_the_net(model: object, export: object, expected: list[str]) -> None:
    recipe = config.parse({"model": model, "export": export, "data": {"train": ["x"]}, "loss": {"kind": "sigmoid"}}, ())
    line = report(Summary(1, 2, 3, 4.0, 3.0, None, None, False), Path("run"), recipe)[-1]
    words = shlex.split(line.split("with", 1)[1])
    assert [words[3].removeprefix("run/"), *words[4:]] == expected


def test_open_bins_are_marked(tmp_path: Path) -> None:
    records = read_binpack(ROOT / "samples" / "val.binpack")[:500]
    _data.set_scores(records, np.full(500, 9000))
    records[:250, 26:28] = 0xFF  # −32768
    with PositionWriter(tmp_path / "a.bin") as writer:
        writer.write(records)
    lines = as_text(page(file_info(tmp_path / "a.bin"))).splitlines()
    rows = lines[lines.index("score / 100") + 1 : lines.index("result") - 1]
    assert rows[0].strip().startswith("≤ -32 …")
    assert "≥ +32 " in rows[-1]


def test_why_no_position_passes_the_filters(tmp_path: Path) -> None:
    records = read_binpack(ROOT / "samples" / "val.binpack")[:2000]
    with PositionWriter(tmp_path / "quiet.bin") as writer:
        writer.write(records)
    _data.set_scores(records, np.full(2000, 32002))
    for number in range(len(records)):  # set_scores clamps
        records[number, 26:28] = (0xFA, 0x04)
    with PositionWriter(tmp_path / "unscored.bin") as writer:
        writer.write(records)
    with (
        RecordLoader(tmp_path / "unscored.bin", 1024) as loader,
        pytest.raises(UserError, match=r"only 0 positions pass the filters \(100 % have no score \(32002\)"),
    ):
        next(iter(loader))
    with (
        RecordLoader(tmp_path / "quiet.bin", 1024, filters=Filters(min_ply=16383)) as loader,
        pytest.raises(UserError, match=r"pass the filters \(min_ply drops 100 %\)"),
    ):
        next(iter(loader))


def test_structs_print_their_fields() -> None:
    assert repr(_data.FilterCounts(read=3, kept=2)) == "FilterCounts(read=3, kept=2, dropped={})"
    assert repr(_data.FilterOptions()).startswith("FilterOptions(no_score=False, max_score=0, ")


def test_idle_inputs_are_named() -> None:
    values = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 1.0]])
    found = _layer_inputs("fc", [(values, torch.tensor([1, 1]))])
    assert (found.dead, found.inputs, found.idle) == (2, 4, ((1, 0), (1, 2)))


def test_second_derivatives_are_there_where_the_message_sends_users() -> None:
    indices = torch.tensor([[0, 2, -1], [1, 1, 2]], dtype=torch.int32)
    weight, bias = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)

    def ours(w: torch.Tensor) -> torch.Tensor:
        return torch.ops.nnue.feature_transformer_forward(indices, None, w, bias, True).pow(3).sum()

    def plain(w: torch.Tensor) -> torch.Tensor:
        return (torch.stack([w[0] + w[2], 2 * w[1] + w[2]]) + bias).pow(3).sum()

    torch.testing.assert_close(torch.func.hessian(ours)(weight), torch.func.hessian(plain)(weight))
    module, x, stacks = StackedLinear(2, 3, 2), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    assert torch.func.hessian(lambda x: module(x, stacks).square().sum())(x).any()
    (gradient,) = torch.autograd.grad(ours(weight.requires_grad_()), weight, create_graph=True)
    with pytest.raises(RuntimeError, match=r"use forward mode over the gradient \(torch.func.hessian"):
        gradient.sum().backward()


def test_two_sizes_of_one_net_are_told_apart() -> None:
    one, other = (nets.parse({"kind": "simple", "hidden": hidden}, "x") for hidden in (16, 32))
    assert "32" in net_inspect._architectures(other, one)
    assert "16" in net_inspect._architectures(other, one)


def test_options_of_scripts_may_stand_between_arguments() -> None:
    for path in sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]):
        text = path.read_text()
        if re.search(r'add_argument\("[a-z]\w*", nargs="[*+]"', text):
            assert "parse_intermixed_args()" in text, path.name


def test_the_examples_are_where_the_command_of_the_page_copies_them_from() -> None:
    assert "nnue_trainer.examples_dir()" in (ROOT / "docs" / "cpp.md").read_text()
    assert (Path(nnue_trainer.examples_dir()) / "libtorch" / "CMakeLists.txt").is_file()


def test_openings_from_a_format_without_plies(tmp_path: Path) -> None:
    with PositionWriter(tmp_path / "a.bullet") as writer:
        writer.write(read_binpack(ROOT / "samples" / "val.binpack")[:500])
    with pytest.raises(UserError, match=r"no position has a ply.*\(bulletformat\): give a file in a format with plies"):
        Book(tmp_path / "a.bullet", plies=8, chess960=False, seed=0, count=4)


def test_standard_input_that_is_closed() -> None:
    words = [sys.executable, "-m", "nnue_trainer", "data", "head", "-"]
    shell = " ".join(shlex.quote(word) for word in words) + " <&-"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert (done.returncode, done.stderr) == (1, "nnue: error: -: standard input is closed\n")


def test_engines_of_nets() -> None:
    assert nets.parse({"kind": "sfnnv9"}, "x").engines == "sfnnv9 is for Stockfish 17 and 17.1"
    assert nets.parse({"kind": "sfnnv5", "l1": 1536}, "x").engines == "sfnnv6 is for Stockfish 16"
    assert nets.parse({"kind": "sfnnv7"}, "x").engines == "sfnnv7 is for versions between releases of Stockfish"
    assert "no Stockfish reads it: l1 is 64" in nets.parse({"kind": "sfnnv5", "l1": 64}, "x").engines
    assert nets.parse({"kind": "simple"}, "x").engines == "no Stockfish reads nets of kind simple"
