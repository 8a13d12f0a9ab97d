"""`nnue data rescore`, `nnue eval` of a data file, and how long evaluations end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import nnue as run
from golden import golden_net
from net_support import random_checkpoint
from waiting import SECONDS

from nnue_trainer import data
from nnue_trainer.data import fields
from nnue_trainer.errors import UserError
from nnue_trainer.export import Evaluator, QuantizedNet, evaluate, net_from_checkpoint, write_net
from nnue_trainer.export.rescore import LARGEST_SCORE, rescore


@pytest.fixture(scope="module")
def net() -> QuantizedNet:
    return golden_net("small128")


@pytest.fixture(scope="module")
def folder(net: QuantizedNet, project_root: Path, tmp_path_factory) -> Path:
    """A net, and 3000 positions in a file, some of them without a score."""
    folder = tmp_path_factory.mktemp("rescore")
    write_net(net, folder / "net.nnue")
    with data.PositionReader(project_root / "samples" / "val.binpack") as reader:
        records = next(iter(reader))[:3000]
    records[::7, 26:28] = (32002 * 2) >> 8, (32002 * 2) & 255
    with data.PositionWriter(folder / "in.binpack") as writer:
        writer.write(records)
    return folder


def records_of(path: Path) -> np.ndarray:
    with data.PositionReader(path) as reader:
        return np.concatenate(list(reader))


def test_every_position_gets_the_score_of_the_net_and_nothing_else_changes(net: QuantizedNet, folder: Path) -> None:
    before = records_of(folder / "in.binpack")
    assert (fields.scores(before) == 32002).sum() > 400
    out = run("data", "rescore", folder / "in.binpack", folder / "out.bin", "--net", folder / "net.nnue")
    assert f"{folder / 'out.bin'}: 3,000 positions" in out
    run("data", "rescore", folder / "in.binpack", folder / "out.binpack", "--net", folder / "net.nnue", "--threads", 1)
    after = records_of(folder / "out.binpack")
    expected = evaluate(net, before, every_stack=False).score
    assert np.abs(expected).max() > 100
    np.testing.assert_array_equal(fields.scores(after), expected)
    before[:, 26:28] = after[:, 26:28] = 0
    np.testing.assert_array_equal(after, before)


def test_scores_are_scaled_and_cut(net: QuantizedNet, folder: Path, tmp_path: Path) -> None:
    expected = evaluate(net, records_of(folder / "in.binpack")).score
    report = rescore([folder / "in.binpack"], tmp_path / "a.binpack", Evaluator(net), score_scale=0.5)
    assert (report.positions, report.cut_scores) == (3000, 0)
    np.testing.assert_array_equal(fields.scores(records_of(tmp_path / "a.binpack")), np.rint(expected * 0.5))
    report = rescore([folder / "in.binpack"], tmp_path / "b.binpack", Evaluator(net), score_scale=1000)
    scores = fields.scores(records_of(tmp_path / "b.binpack"))
    assert report.cut_scores == (np.abs(expected) * 1000 > LARGEST_SCORE).sum() > 0
    np.testing.assert_array_equal(scores, np.clip(expected * 1000, -LARGEST_SCORE, LARGEST_SCORE))


def test_mistakes_leave_no_file(net: QuantizedNet, folder: Path, tmp_path: Path) -> None:
    source, out = folder / "in.binpack", tmp_path / "out.binpack"
    for change, words in (
        ({"score_scale": 0.0}, "score scale 0, expected 0.0001 to 100000"),
        ({"score_scale": 1e-320}, "score scale .*, expected 0.0001 to 100000"),
        ({"to": "nothing"}, "unknown format 'nothing'"),
        ({"inputs": [folder / "nowhere"]}, "No such file"),
        ({"inputs": [out]}, "out.binpack: the output is also the input .*out.binpack; name another file"),
    ):
        options: dict[str, Any] = {"inputs": [source], **change}
        with pytest.raises(UserError, match=words):
            rescore(options.pop("inputs"), out, Evaluator(net), **options)
    assert list(tmp_path.iterdir()) == []
    out.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        rescore([source], out, Evaluator(net))
    assert out.read_text() == "mine"
    cut = tmp_path / "cut.binpack"
    cut.write_bytes(source.read_bytes()[:-100])
    with pytest.raises(UserError, match="cut"):
        rescore([cut], out, Evaluator(net), overwrite=True)
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--net net.nnue -j 2", "--hash and --timeout are for --engine"),
        ("--net net.nnue --hash 16", "are for --engine"),
        ("--net net.nnue --timeout 3", "are for --engine"),
        ("--engine no-engine --nodes 1 --threads 2", "--threads and --arch are for --net"),
        ("--engine no-engine --nodes 1 --arch sfnnv16", "--threads and --arch are for --net"),
        ("--engine no-engine", "no such program"),
    ],
)
def test_options_of_the_other_way_to_score_are_refused(folder: Path, words: str, message: str) -> None:
    options = [folder / word if word == "net.nnue" else word for word in words.split()]
    with pytest.raises(UserError, match=message):
        run("data", "rescore", folder / "in.binpack", folder / "other.bin", *options)
    assert not (folder / "other.bin").exists()


def test_eval_takes_the_positions_of_a_data_file(net: QuantizedNet, folder: Path) -> None:
    lines = run("eval", folder / "net.nnue", "--data", folder / "in.binpack", "--positions", 50, "--json").splitlines()
    records = records_of(folder / "in.binpack")[:50]
    expected = evaluate(net, records)
    found = [json.loads(line) for line in lines]
    assert [line["fen"] for line in found] == data.fens_from_records(records)
    assert [line["score"] for line in found] == expected.score.tolist()
    assert [line["psqt_raw"] for line in found] == expected.psqt_raw.tolist()


def test_fens_records_and_rows_are_the_same_positions(net: QuantizedNet, folder: Path) -> None:
    records = records_of(folder / "in.binpack")[:700]
    batch = data.expand(records, net.net.integer_feature_set)
    for every_stack in (True, False):
        whole = [
            evaluate(net, positions, every_stack=every_stack, threads=threads)
            for positions in (records, batch, data.fens_from_records(records))
            for threads in (1, 2)
        ]
        for found in whole:
            assert found.positional_raw.shape == (700, 8 if every_stack else 1)
            for name, values in vars(whole[0]).items():
                np.testing.assert_array_equal(values, vars(found)[name], err_msg=name)


def test_a_net_that_says_its_arithmetic_in_python_is_evaluated_too(
    net: QuantizedNet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = records_of(folder / "in.binpack")[:1100]
    expected = [evaluate(net, records, every_stack=every_stack) for every_stack in (True, False)]
    forward = net.net.integer_forward()
    kind = type(net.net)
    monkeypatch.setattr(kind, "integer_forward", lambda _: None)
    monkeypatch.setattr(kind, "_described", lambda _: forward)
    for every_stack, fast in zip((True, False), expected, strict=True):
        slow = evaluate(net, records, every_stack=every_stack)
        for name, values in vars(fast).items():
            np.testing.assert_array_equal(values, vars(slow)[name], err_msg=name)


@pytest.mark.slow
def test_ctrl_c_ends_a_long_evaluation(tmp_path: Path) -> None:
    net = net_from_checkpoint(random_checkpoint({"kind": "simple", "hidden": 16384}), "c")
    write_net(net, tmp_path / "net.nnue")
    code = (
        "import sys, numpy as np\n"
        "from nnue_trainer.data import records_from_fens\n"
        "from nnue_trainer.export import evaluate, read_net\n"
        "records = records_from_fens(['rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1'])\n"
        f"net = read_net({str(tmp_path / 'net.nnue')!r})\n"
        "records = np.repeat(records, 20_000_000, axis=0)\n"
        "print('ready', flush=True)\n"
        "evaluate(net, records, every_stack=False)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in error
