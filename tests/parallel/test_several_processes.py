"""One training in several processes: the same results as in one, one log, one ending."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import several
import torch
from cases import some
from command import nnue
from loader_states import same_states
from made_up import MadeUpSource, made_up_batch
from made_up import recipe as made_up_recipe
from ports import free_port
from safetensors.torch import load_file, save_file
from small_runs import in_chunks, last, split_sample, written
from torch import Tensor
from typed import present
from waiting import SECONDS, threads_wait, wait_for

from nnue_trainer import config, nets
from nnue_trainer.data import LoaderOptions, RecordLoader
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.base import StackedModel
from nnue_trainer.training import integer_check
from nnue_trainer.training.assembly import assemble, divide, training_batches
from nnue_trainer.training.batches import DeviceBatches
from nnue_trainer.training.parallel import ranks as ranks_module
from nnue_trainer.training.parallel import watch
from nnue_trainer.training.parallel.ranks import Ranks, joined
from nnue_trainer.training.parallel.split import Split, cut
from nnue_trainer.training.trainer import Trainer

LAYERED: dict[str, Any] = {
    "kind": "layered", "inputs": [{"mirror": "a-d", "kings": [0] * 16 + [1] * 16}], "hidden": 32,
    "activation": "pairwise", "psqt": True, "shared": True,
    "output_buckets": {"count": 8, "rule": "stockfish"},
    "layers": [
        {"outputs": 8, "activation": "dual", "skip": "last", "to_output": True, "scale": 64, "type": "i8"},
        {"outputs": 16, "activation": "crelu", "scale": 64, "type": "i8"},
    ],
    "quantisation": {"first": {"scale": 255, "product_shift": 9}, "output": {"scale": 64, "type": "i8"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(project_root, tmp_path_factory) -> Path:
    """A folder with train.binpack, 4,000 positions of the sample, and val.binpack, 500 others."""
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 500)


@pytest.fixture
def recipe(tmp_path, data) -> Path:
    """Three epochs of 4 steps; a batch has 250 positions, which three processes cannot divide evenly."""
    return written(tmp_path / "mine.yaml", data)


def records(folder: Path) -> list[dict[str, Any]]:
    changing = ("time", "positions_per_second", "run_positions_per_second", "peak_memory_bytes")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in changing} for line in lines]


def assert_same_training(one: Path, other: Path) -> None:
    """To rounding: all records, and all tensors of the checkpoint."""
    assert len(records(one)) == len(records(other))
    for mine, theirs in zip(records(one), records(other), strict=True):
        assert mine.pop("event") == theirs.pop("event")
        assert mine == pytest.approx(theirs, rel=2e-4, abs=1e-6)
    mine, theirs = last(one).tensors, last(other).tensors
    assert mine.keys() == theirs.keys()
    for group in mine:
        assert mine[group].keys() == theirs[group].keys()
        for name, tensor in mine[group].items():
            # Weights with nearly no gradient move by its sign, so single values may differ by a step.
            difference = (tensor.double() - theirs[group][name].double()).abs()
            assert tensor.dtype == theirs[group][name].dtype
            assert difference.mean() <= 1e-5 * tensor.double().abs().mean() + 1e-12, f"{group}/{name}"


def same_bits(one: Path, other: Path) -> bool:
    mine, theirs = last(one).tensors, last(other).tensors
    return all(torch.equal(tensor, theirs[group][name]) for group in mine for name, tensor in mine[group].items())


# ---- the same training


KINDS: dict[str, tuple[int, str, dict[str, dict[str, Any]]]] = {
    "columns, every kind of layer": (
        2, "each with 16 of 32 columns of the feature transformer",
        {"model": LAYERED, "loss": {"kind": "win_rate", "weight_boost": 1.0}, "lambda": {"kind": "linear", "start": 1.0,
         "end": 0.5, "jitter": 0.2}},
    ),
    "columns, gradients clipped to a norm, uneven shares": (
        3, "each with 4 to 6 of 16 columns of the feature transformer",
        {"optimizer": {"kind": "ranger_lite", "max_norm": 0.001, "lr": 0.005}},
    ),
    "columns, a rule of torch": (
        2, "each with 8 of 16 columns of the feature transformer",
        {"model": {**LAYERED, "activation": "screlu", "hidden": 16, "quantisation": {}},
         "optimizer": {"kind": "torch", "name": "RAdam", "lr": 0.005}},
    ),
    "columns, Muon": (
        2, "each with 16 of 32 columns of the feature transformer",
        {"model": LAYERED, "optimizer": {"kind": "muon", "lr": 0.002, "step_size": "match_rms_adamw"}},
    ),
    "columns, Muon, virtual rows and uneven shares": (
        3, "each with 8 to 12 of 32 columns of the feature transformer",
        {"model": {"kind": "sfnnv16", "l1": 32}, "optimizer": {"kind": "muon", "lr": 0.002}},
    ),
    "columns, rules of groups": (
        2, "each with 16 of 32 columns of the feature transformer",
        {"model": LAYERED, "optimizer": {"kind": "schedule_free", "groups": [
            {"match": "*.weight", "rule": {"kind": "muon", "lr": 0.002}},
            {"match": "feature*", "rule": {"kind": "lion"}}]}},
    ),
    "columns, the engine's rounding from half of the run on": (
        2, "each with 16 of 32 columns of the feature transformer",
        {"model": LAYERED | {"quantisation": LAYERED["quantisation"] | {"qat": True, "qat_from": 0.5}},
         "lambda": {"kind": "constant", "value": 0.7, "jitter": 0.2}},
    ),
    "columns, SFNNv16 with the engine's rounding, uneven shares": (
        3, "each with 8 to 12 of 32 columns of the feature transformer",
        {"model": {"kind": "sfnnv16", "l1": 32, "quantisation": {"qat": True}},
         "optimizer": {"kind": "ranger_lite", "lr": 0.002}},
    ),
    "columns, SFNNv5 with the engine's rounding": (
        4, "each with 8 of 32 columns of the feature transformer",
        {"model": {"kind": "sfnnv5", "l1": 32, "quantisation": {"qat": True}}},
    ),
    "positions, a head of win, draw and loss": (
        2, r"share of the positions \(the net has its own forward pass\)",
        {"model": {"kind": "layered", "hidden": 16, "head": "wdl", "output_buckets": {"count": 4}},
         "loss": {"kind": "wdl"}, "lambda": {"kind": "constant", "value": 0.7, "jitter": 0.2}},
    ),
    "columns, an average that decays": (
        2, "each with 8 of 16 columns of the feature transformer", {"average": {"kind": "ema", "decay": 0.7}},
    ),
    "positions, an average of epochs": (
        2, r"share of the positions", {"average": {"kind": "swa", "start_epoch": 1},
         "position_weight": {"kind": "knots", "by": "pieces", "knots": [[8, 1.0], [20, 0.0]]}},
    ),
    "positions, penalties": (
        3, r"share of the positions \(training.penalties: there are penalties\)",
        {"training": {"penalties": [{"kind": "activations", "factor": 0.5}, {"kind": "weights", "factor": 1e-4}]},
         "loss": {"kind": "win_rate", "weight_boost": 2.0}},
    ),
    "positions, uneven shares, a rule that uses norms": (
        3, r"share of the positions \(the optimizer 'torch' may use more than one value",
        {"model": {"kind": "layered", "hidden": 16},
         "optimizer": {"kind": "torch", "name": "Adafactor", "lr": 0.005}},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(KINDS, every=2))
def test_several_processes_train_as_one_does(tmp_path, data, kind):
    size, words, sections = KINDS[kind]
    recipe = written(tmp_path / "mine.yaml", data, **sections)
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "one")
    said = several.train(size, tmp_path / "a", "--config", recipe, "--run-dir", tmp_path / "several")
    assert re.search(rf"\n{size} processes, .*{words}", said), said
    assert_same_training(tmp_path / "one", tmp_path / "several")
    # One log: every line once, and the same files.
    assert len(re.findall(r"finished step 12 of 12", said)) == 1
    assert len(re.findall(r"epoch 3: validation loss", said)) == 1
    names = [sorted(path.name for path in (tmp_path / run).rglob("*")) for run in ("one", "several")]
    assert names[0] == names[1]
    # The same number of processes gives the same bits.
    several.train(size, tmp_path / "b", "--config", recipe, "--run-dir", tmp_path / "again")
    assert same_bits(tmp_path / "several", tmp_path / "again")
    assert records(tmp_path / "several") == records(tmp_path / "again")


def test_an_average_in_mixed_precision(tmp_path, data):
    """To bfloat16's rounding what one process has."""
    sections = {"training": {"precision": "mixed", "epochs": 2}, "average": {"kind": "ema", "half_life": 3, "every": 1}}
    recipe = written(tmp_path / "mine.yaml", data, **sections)
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "one")
    several.train(2, tmp_path / "a", "--config", recipe, "--run-dir", tmp_path / "two")
    one, two = last(tmp_path / "one").tensors, last(tmp_path / "two").tensors
    for name, tensor in two["model"].items():
        assert not torch.equal(tensor, two["optimizer"][f"trained/{name}"]), "the average is not what is trained"
        difference = (tensor.double() - one["model"][name].double()).abs()
        assert difference.mean() <= 2e-2 * tensor.double().abs().mean() + 1e-6, name


def test_four_processes_and_the_net_of_them_is_exported(tmp_path, data, recipe):
    folder = tmp_path / "run"
    several.train(4, tmp_path / "a", "--config", recipe, "--run-dir", folder)
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "one")
    assert_same_training(tmp_path / "one", folder)
    nnue("export", folder / "checkpoints" / "best.safetensors", tmp_path / "net.nnue")
    assert re.search(r"fake-quantised - integer +0\.000", nnue("check", folder, "--data", data / "val.binpack"))


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, data):
    recipe = written(tmp_path / "mine.yaml", data, model=LAYERED)
    whole, chain, two = tmp_path / "whole", tmp_path / "chain", tmp_path / "two"
    nnue("train", "--config", recipe, "--run-dir", whole)
    nnue("train", "--config", recipe, "--run-dir", chain, "training.epochs=1")
    said = several.train(2, tmp_path / "a", "--resume", chain, "training.epochs=2")
    assert "resumed at step 4 " in said
    said = several.train(3, tmp_path / "b", "--resume", chain, "training.epochs=3")
    assert "resumed at step 8 " in said
    assert_same_training(whole, chain)
    # To the bit where the number stays.
    several.train(2, tmp_path / "c", "--config", recipe, "--run-dir", two)
    several.train(2, tmp_path / "d", "--config", recipe, "--run-dir", tmp_path / "parts", "training.epochs=2")
    several.train(2, tmp_path / "e", "--resume", tmp_path / "parts", "training.epochs=3")
    assert same_bits(two, tmp_path / "parts")


# ---- endings


LONG = ("training.epochs=100000", "training.checkpoint_minutes=1e-6")


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_process_ends_all_with_one_message(tmp_path, recipe, lost):
    folder = tmp_path / "run"
    run = several.training(3, tmp_path / "a", "--config", recipe, "--run-dir", folder, *LONG)
    run.until((folder / "checkpoints" / "last.safetensors").exists)
    run.signal(signal.SIGKILL, lost)
    codes = run.wait()
    assert codes[lost] == -signal.SIGKILL
    assert [code for rank, code in enumerate(codes) if rank != lost] == [1, 1]
    assert re.findall(r"nnue: (error: .*)", run.said()) == [
        f"error: rank {lost} of 3 has ended, which ends the training; {folder}/checkpoints/last.safetensors is the "
        "last good checkpoint"
    ]
    step = last(folder).state["step"]
    assert f"resumed at step {step:,} " in nnue("train", "--resume", folder, f"training.epochs={step // 4 + 1}")


def test_the_others_are_stopped_when_the_last_checkpoint_is_written(monkeypatch):
    """When they have ended, torchrun ends the first process."""
    order: list[object] = []

    def hint() -> str:
        order.append("written")
        return ""

    ends = watch.Watch.__new__(watch.Watch)
    vars(ends).update(rank=0, _sockets={1: None}, _killing=threading.Event(), hint=hint)
    monkeypatch.setattr(watch.Watch, "_send", lambda _, rank, line: order.append(line))
    monkeypatch.setattr(os, "_exit", order.append)
    ends._end("rank 1 has ended")
    assert order == ["written", "stop", 1]


def test_a_silent_connection_holds_up_no_rank():
    """For example the one of a port scanner, or of a rank on a machine that is busy."""
    opened: list[socket.socket] = []

    def exchange(port: int, token: int) -> tuple[int, int]:
        opened.extend(socket.create_connection(("127.0.0.1", port)) for _ in range(3))
        opened[1].sendall(watch._HELLO.pack(token, 1))
        opened[2].sendall(b"GET / HTTP/1")
        return port, token

    watches = watch.Watch(0, 2, "127.0.0.1", exchange)
    watches.finish()
    assert opened[1].recv(5) == b"done\n"
    for connection in opened:
        with contextlib.suppress(ConnectionResetError):  # closed before it was read
            assert connection is opened[1] or connection.recv(1) == b""
        connection.close()


def _limit_of_a_wait(folder: Path) -> None:
    with joined() as ranks:
        group = torch.distributed.distributed_c10d._get_default_group()
        limit = group._get_backend(torch.device("cpu")).options._timeout
        (folder / str(ranks.rank)).write_text(str(limit.days))


def test_processes_wait_for_one_with_a_slow_disk(tmp_path):
    run = several.Processes(2, tmp_path, _limit_of_a_wait, tmp_path)
    assert run.wait() == [0, 0], run.said()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["30", "30"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_after_the_same_step(tmp_path, recipe, ranks, number):
    """Whichever of them gets it."""
    folder = tmp_path / "run"
    run = several.training(2, tmp_path / "a", "--config", recipe, "--run-dir", folder, *LONG)
    run.until((folder / "checkpoints" / "last.safetensors").exists)
    run.signal(number, *ranks)
    assert run.wait() == [130 if number == signal.SIGINT else 75] * 2, run.said()
    step = last(folder).state["step"]
    assert len(re.findall(rf"stopped after step {step:,} of", run.said())) == 1
    assert "error" not in run.said()
    end = f"training.epochs={step // 4 + 2}"
    several.train(2, tmp_path / "b", "--resume", folder, end)
    whole = tmp_path / "whole"
    several.train(2, tmp_path / "c", "--config", recipe, "--run-dir", whole, end)
    assert same_bits(folder, whole)


def damaged(whole: bytes) -> bytes:
    bad = bytearray(whole)
    bad[len(bad) // 2 : len(bad) // 2 + 400] = b"\xff" * 400
    return bytes(bad)


def partly_damaged(folder: Path, data: Path) -> str:
    """An override: 13 files of one chunk each, one of which is damaged."""
    whole = (data / "train.binpack").read_bytes()
    files = [folder / f"part-{number:02}.binpack" for number in range(12)]
    for path in files:
        path.write_bytes(whole)
    bad = folder / "damaged.binpack"
    bad.write_bytes(damaged(whole))
    return f"data.train=[{', '.join(map(str, [*files, bad]))}]"


@pytest.mark.slow
def test_a_damaged_chunk_ends_all_with_a_checkpoint(tmp_path, data, recipe):
    folder = tmp_path / "run"
    chosen = partly_damaged(tmp_path, data)
    more = ("training.epochs=30", "training.positions_per_epoch=1250")
    run = several.training(2, tmp_path / "a", "--config", recipe, "--run-dir", folder, chosen, *more)
    assert run.wait() == [1, 1]
    assert len(re.findall(r"error: .*damaged\.binpack", run.said())) == 1, run.said()
    assert len(re.findall(r"saved at step", run.said())) == 1, run.said()
    stopped = last(folder).state["step"]
    assert 0 < stopped < 150
    assert stopped % 5  # not the end of an epoch, which saves anyway
    said = several.train(2, tmp_path / "b", "--resume", folder, "data.skip_bad_chunks=true")
    assert f"resumed at step {stopped} " in said


def _saving_slowly(*arguments: str) -> None:
    """The first process takes longer to save than it may take to meet an error of another one."""
    save = checkpoint.save

    def slow(*parts: Any) -> None:
        time.sleep(1.5)
        save(*parts)

    watch._SECONDS_TO_SPEAK = 0.5
    vars(checkpoint)["save"] = slow
    several._nnue(*arguments)


@pytest.mark.slow
def test_nobody_ends_the_process_that_still_saves(tmp_path, data, recipe):
    folder = tmp_path / "run"
    arguments = ["train", "--config", str(recipe), "--run-dir", str(folder), partly_damaged(tmp_path, data)]
    more = ["training.epochs=1", "training.positions_per_epoch=100000"]
    run = several.Processes(2, tmp_path / "a", _saving_slowly, *arguments, *more)
    assert run.wait() == [1, 1]
    assert len(re.findall(r"error: .*damaged\.binpack", run.said())) == 1, run.said()
    assert len(re.findall(r"saved at step", run.said())) == 1, run.said()
    assert last(folder).state["step"] > 0


def _of_its_own(*arguments: str) -> None:
    several._nnue(*arguments, f"training.seed={os.environ['RANK']}")


def _refused(tmp_path, recipe, process, difference):
    """Both processes end with one line that names the difference, and perhaps a field and both machines."""
    arguments = ["train", "--config", str(recipe), "--run-dir", str(tmp_path / "run")]
    run = several.Processes(2, tmp_path / "a", process, *arguments)
    assert run.wait() == [1, 1]
    (said,) = re.findall(r"nnue: error: train: the processes do not have the same (.*)", run.said())
    assert re.fullmatch(difference, said), said


def _place(rank: int) -> str:
    return rf"on {re.escape(socket.gethostname())} \(rank {rank}\)"


def _with_another_torch(*arguments: str) -> None:
    torch.__version__ = f"2.{os.environ['RANK']}"  # type: ignore[assignment]
    several._nnue(*arguments)


def test_processes_with_different_versions_are_refused(tmp_path, recipe):
    _refused(tmp_path, recipe, _with_another_torch, f"versions: torch is 2.0 {_place(0)} and 2.1 {_place(1)}")


def _on_another_machine(*arguments: str) -> None:
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = "0", "1"
    rank = os.environ["RANK"]
    socket.gethostname = lambda: f"node-{rank}"
    several._nnue(*arguments, f"optimizer.lr={rank}.5")


def test_a_difference_is_printed_on_every_machine(tmp_path, recipe):
    run = several.Processes(2, tmp_path / "a", _on_another_machine, "train", "--config", str(recipe))
    assert run.wait() == [1, 1]
    said = "recipe: optimizer.lr is 0.5 on node-0 (rank 0) and 1.5 on node-1 (rank 1)"
    assert run.said().count(f"error: train: the processes do not have the same {said}\n") == 2


def test_processes_that_would_train_different_things_are_refused(tmp_path, recipe):
    _refused(tmp_path, recipe, _of_its_own, f"recipe: training.seed is 0 {_place(0)} and 1 {_place(1)}")
    assert not (tmp_path / "run" / "checkpoints").exists()


def _with_its_own_files(*arguments: str) -> None:
    os.chdir(Path(arguments[-1]).parent / os.environ["RANK"])
    several._nnue(*arguments, "data.train=[a.binpack]", "data.validation=[]")


def test_processes_with_different_files_of_one_name_are_refused(tmp_path, recipe, project_root):
    sizes = []
    for rank, sample in enumerate(("train", "val")):
        data = (project_root / "samples" / f"{sample}.binpack").read_bytes()
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "a.binpack").write_bytes(data)
        sizes.append(f"{len(data)} {_place(rank)}")
    difference = rf"data files: files\.0\.size is {' and '.join(sizes)}, files\.0\.digest is .*"
    _refused(tmp_path, recipe, _with_its_own_files, difference)


def _without_validation_on_one(*arguments: str) -> None:
    """`warm_up` validates on a CPU as well, with exchanges."""

    def warm_up(trainer: Trainer) -> None:
        if trainer.validator.held_out is not None:
            trainer.validate()

    setattr(Trainer, "warm_up", warm_up)  # noqa: B010 (the type forbids it)
    several._nnue(*arguments, *(["data.validation=[]"] if os.environ["RANK"] == "1" else []))


def test_processes_that_would_validate_differently_are_refused_before_they_validate(tmp_path, recipe):
    _refused(
        tmp_path,
        recipe,
        _without_validation_on_one,
        r"recipe: data\.validation.* missing .*",
    )


def _with_wrong_integers(*arguments: str) -> None:
    def wrong(*_: Any) -> None:
        raise UserError("the integers are wrong")

    vars(integer_check)["check_integers"] = wrong
    several._nnue(*arguments)


def test_wrong_integers_end_all_processes_with_one_message(tmp_path, recipe):
    """Only the first process checks them; the others are in the first step then."""
    arguments = ["train", "--config", str(recipe), "--run-dir", str(tmp_path / "run")]
    run = several.Processes(2, tmp_path / "a", _with_wrong_integers, *arguments)
    assert run.wait() == [1, 1]
    assert re.findall(r"nnue: (error: .*)", run.said()) == ["error: the integers are wrong"]
    assert not (tmp_path / "run").exists()


def _missing(wrong_port: bool) -> None:
    """Rank 1 is missing, or connects to a port that no process listens on."""
    ranks_module._SECONDS_TO_SAY = 0.5
    os.environ["NNUE_JOIN_SECONDS"] = "3"
    if os.environ["RANK"] == "1":
        if not wrong_port:
            return
        os.environ["MASTER_PORT"] = str(free_port())
    several._nnue("train", "recipe.yaml", "--run-dir", "run")


@pytest.mark.slow
@pytest.mark.parametrize("wrong_port", [False, True])
def test_who_is_missing_is_named(tmp_path, wrong_port):
    run = several.Processes(2, tmp_path / "a", _missing, wrong_port)
    codes = run.wait()
    said = run.said()
    assert codes == ([1, 1] if wrong_port else [1, 0])
    address = r"127\.0\.0\.1, port \d+ \(MASTER_ADDR, MASTER_PORT\)"
    assert len(re.findall(rf"nnue: waiting for rank 1 of 2 at {address}", said)) == 1
    assert re.search(rf"error: train: rank 1 of 2 did not connect to {address} within 3 seconds", said)
    if wrong_port:
        assert re.search(rf"nnue: rank 1 of 2 still tries to reach rank 0 at {address}", said)
        assert re.search(rf"error: train: rank 0 of 2 did not answer at {address} within 3 seconds", said)


def test_ctrl_c_ends_a_rank_that_reaches_nobody():
    code = (
        "import os, sys\nimport nnue_trainer.training.parallel.ranks as ranks\nranks._SECONDS_TO_SAY = 0.1\n"
        "from nnue_trainer.base import foreign\ntry: ranks._meet(1, 2)\n"
        "except KeyboardInterrupt: os._exit(3 if foreign.still_runs() else 4)\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, env=os.environ | there, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            assert "rank 1 of 2 still tries to reach rank 0" in child.stderr.readline()
            child.send_signal(signal.SIGINT)
            assert child.wait(SECONDS) == 3


def _of_its_own_copy(folder: str) -> None:
    """`folder` is on two machines, each of which has a copy."""
    several._nnue("train", "--resume", f"{folder}-{os.environ['RANK']}", "training.epochs=4")


def test_processes_that_resume_different_weights_are_refused(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder)
    for rank in (0, 1):
        shutil.copytree(folder, tmp_path / f"run-{rank}")
    path = tmp_path / "run-1" / "checkpoints" / "last.safetensors"
    saved = checkpoint.load(path)
    saved.tensors["optimizer"]["exp_avg/output.bias"] += 2.0**-20
    checkpoint.save(path, saved)
    run = several.Processes(2, tmp_path / "a", _of_its_own_copy, str(folder))
    assert run.wait() == [1, 1]
    assert re.findall(r"nnue: (error: .*)", run.said()) == ["error: train: the processes do not have the same weights"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.seed=x"], r"training\.seed: found \"x\""),
        (["data.batch_size=1"], r"data\.batch_size: found 1, too few for 2 processes"),
        (["data.train=nowhere.binpack"], r"nowhere\.binpack"),
        (["training.device=cuda:1"], r"training\.device"),
        (["--nonsense"], r"No such option"),
    ],
)
def test_what_is_wrong_is_said_once(tmp_path, recipe, overrides, message):
    run = several.training(2, tmp_path / "a", "--config", recipe, "--run-dir", tmp_path / "run", *overrides)
    assert all(run.wait())
    assert len(re.findall(r"nnue: (error: .*)", run.said())) == 1, run.said()
    assert re.search(rf"error: .*{message}", run.said()), run.said()
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_a_folder_that_holds_a_run_is_refused_once(tmp_path, recipe):
    folder = tmp_path / "run"
    several.train(2, tmp_path / "a", "--config", recipe, "--run-dir", folder, "training.epochs=1")
    run = several.training(2, tmp_path / "b", "--config", recipe, "--run-dir", folder)
    assert run.wait() == [1, 1]
    assert re.findall(r"nnue: (error: .*)", run.said()) == [
        f"error: {folder}: already holds a run; --resume auto continues it, --run-dir DIR starts another, --overwrite "
        "replaces it"
    ]
    assert "finished step 12" in several.train(
        2, tmp_path / "c", "--config", recipe, "--run-dir", folder, "--overwrite"
    )


@pytest.mark.slow
def test_torchrun(tmp_path, project_root, recipe):
    """The command of the documentation, stopped by Ctrl-C."""
    folder = tmp_path / "run"
    run = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", project_root / "train.py",
            "--config", recipe, "--run-dir", folder, *LONG,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_for((folder / "checkpoints" / "last.safetensors").exists, run)
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=SECONDS)
    finally:
        run.kill()
    assert len(re.findall(r"2 processes, each with 8 of 16", output)) == 1
    assert len(re.findall(rf"stopped after step {last(folder).state['step']:,} of", output)) == 1, output


AND_LOOK_AROUND = """
import contextlib, json, os
from pathlib import Path
from nnue_trainer.cli.main import main
with contextlib.suppress(SystemExit):
    main()
threads = sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
left = [thread for thread in threads if "gloo" in thread or "tcpstore" in thread]
Path(__file__).with_name("left-" + os.environ["RANK"]).write_text(json.dumps(left))
"""


@pytest.mark.slow
def test_no_thread_of_a_connection_outlives_the_run(tmp_path, recipe):
    """One that does may take the interpreter's lock while Python ends, and then it aborts the process of a complete
    run. Each process has a separate interpreter here, as under torchrun: what is imported when matters."""
    script = tmp_path / "train_and_look_around.py"
    script.write_text(AND_LOOK_AROUND)
    output = subprocess.check_output(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, "train", "--config", recipe,
            "--run-dir", tmp_path / "run",
        ],
        stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
    )  # fmt: skip
    # Not from the output: there the lines of two processes may be mixed.
    left = [json.loads((tmp_path / f"left-{rank}").read_text()) for rank in range(2)]
    assert left == [[], []], output


# ---- data.shards: each process reads a share of the data


@pytest.fixture(scope="module")
def chunks(project_root, tmp_path_factory) -> list[Path]:
    """20 files of one chunk with 300 positions each."""
    return in_chunks(project_root, tmp_path_factory.mktemp("chunks"), 20, 300)


def sharded(path: Path, data: Path, chunks: list[Path], shards: int, **sections: dict[str, Any]) -> Path:
    """A recipe of 24 steps, about one pass over the chunks."""
    more: dict[str, Any] = {
        "train": [str(file) for file in chunks],
        "batch_size": 240,
        "shuffle_buffer": 960,
        "shards": shards,
    }
    steps: dict[str, Any] = {"epochs": 3, "positions_per_epoch": 8 * 240}
    return written(path, data, **{"data": more, "training": steps} | sections)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "shards"), some([(2, 2), (2, 4), (4, 4)], every=2))
@pytest.mark.parametrize("kind", ["columns", "positions"])
def test_processes_that_share_the_data_train_as_one_does(tmp_path, data, chunks, size, shards, kind):
    sections = {"model": LAYERED, "lambda": {"kind": "linear", "start": 1.0, "end": 0.5, "jitter": 0.2}}
    if kind == "positions":
        sections["optimizer"] = {"kind": "torch", "name": "Adafactor", "lr": 0.005}
    recipe = sharded(tmp_path / "mine.yaml", data, chunks, shards, **sections)
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "one")
    said = several.train(size, tmp_path / "a", "--config", recipe, "--run-dir", tmp_path / "several")
    assert re.search(rf"\n{size} processes, each with .*{'columns' if kind == 'columns' else 'share of the'}", said), (
        said
    )
    assert f"\neach process reads {shards // size} of {shards} shards of the training data\n" in said
    assert_same_training(tmp_path / "one", tmp_path / "several")
    several.train(size, tmp_path / "b", "--config", recipe, "--run-dir", tmp_path / "again")
    assert same_bits(tmp_path / "several", tmp_path / "again")
    assert records(tmp_path / "several") == records(tmp_path / "again")
    # The checkpoint has the places of all shards, so it is the same for any number of processes.
    one, other = (last(tmp_path / name).stream(tmp_path) for name in ("one", "several"))
    assert same_states(one, other)
    assert one["places"].shape == (shards, 4)
    assert (one["places"] >= 0).all()


@pytest.mark.slow
def test_a_run_that_shares_the_data_goes_on_with_another_number_of_processes(tmp_path, data, chunks):
    recipe = sharded(tmp_path / "mine.yaml", data, chunks, 4, model=LAYERED)
    whole, chain, two = tmp_path / "whole", tmp_path / "chain", tmp_path / "two"
    nnue("train", "--config", recipe, "--run-dir", whole)
    several.train(2, tmp_path / "a", "--config", recipe, "--run-dir", chain, "training.epochs=1")
    nnue("train", "--resume", chain, "training.epochs=2")
    several.train(4, tmp_path / "b", "--resume", chain, "training.epochs=3")
    assert_same_training(whole, chain)
    assert same_states(last(whole).stream(whole), last(chain).stream(chain))
    # To the bit where the number stays.
    several.train(2, tmp_path / "c", "--config", recipe, "--run-dir", two)
    several.train(2, tmp_path / "d", "--config", recipe, "--run-dir", tmp_path / "parts", "training.epochs=2")
    several.train(2, tmp_path / "e", "--resume", tmp_path / "parts", "training.epochs=3")
    assert same_bits(two, tmp_path / "parts")


def _read(folder: Path, recipe: Path) -> None:
    """Writes down the batches that this process trains on, as index rows and as records that it expands, and how many
    positions it has decoded for them."""
    with joined() as ranks:
        chosen = config.load(recipe)
        model = nets.build(chosen.model)
        sharding, _ = divide(chosen, model, ranks, torch.device("cpu"))
        cpu = torch.device("cpu")
        rows = training_batches(chosen, model, cpu, ranks)
        options: LoaderOptions = {"seed": 42, "repeat": True, "shuffle_buffer": 960, "threads": 1}
        if chosen.data.shards > 1:
            options |= {"shards": chosen.data.shards, "rank": ranks.rank, "world_size": ranks.size}
        packed = RecordLoader(chosen.data.train, 240, **options)
        found: dict[str, torch.Tensor] = {}
        for name, source in (("rows", rows), ("records", packed)):
            batches = DeviceBatches(source, cpu, model.feature_set, None, sharding.share_of)
            for number in range(8):
                batch = next(batches)
                found |= {f"{name}/{number}/{key}": value.clone() for key, value in batch.fields().items()}
        wait_for(threads_wait)  # until nothing more is read ahead
        found["decoded"] = torch.tensor(rows.filter_counts().read)
        save_file(found, folder / f"read-{ranks.rank}.safetensors")
        rows.close()
        packed.close()


# By kind of sharding.
OPTIMIZERS = {
    "columns": {"kind": "adamw", "lr": 0.005},
    "positions": {"kind": "torch", "name": "Adafactor", "lr": 0.005},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "positions"])
def test_each_process_decodes_its_share_alone(tmp_path, data, chunks, kind):
    sections = {"model": {"kind": "simple", "hidden": 16}, "optimizer": OPTIMIZERS[kind]}

    def read(size: int, shards: int) -> list[dict[str, Tensor]]:
        folder = tmp_path / f"{size}-{shards}"
        folder.mkdir()
        recipe = sharded(folder / "mine.yaml", data, chunks, shards, **sections)
        run = several.Processes(size, folder, _read, folder, recipe)
        assert run.wait() == [0] * size, run.said()
        return [load_file(folder / f"read-{rank}.safetensors") for rank in range(size)]

    (one,), two, whole = read(1, 2), read(2, 2), read(2, 1)
    every = one.pop("decoded")
    assert all(found.pop("decoded") == every for found in whole)
    assert all(0.4 * every < found.pop("decoded") < 0.6 * every for found in two)
    for name, tensor in one.items():
        if kind == "columns":
            assert all(torch.equal(found[name], tensor) for found in two), name
        else:
            assert torch.equal(torch.cat([found[name] for found in two]), tensor), name
        assert torch.equal(one[name.replace("rows", "records")], tensor)


def _noticing_soon(*arguments: str) -> None:
    """A process that meets an error alone waits less for the others."""
    ranks_module._SECONDS_TO_MEET = 0.5
    watch._SECONDS_TO_SPEAK = 0.5
    several._nnue(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rank", "step"), [(2, 1, 20), (7, 0, 16)])
@pytest.mark.parametrize("kind", ["columns", "positions"])
def test_a_damaged_chunk_that_one_process_meets_ends_all(tmp_path, data, chunks, seed, rank, step, kind):
    bad = tmp_path / "damaged.binpack"
    bad.write_bytes(damaged(chunks[0].read_bytes()))
    folder = tmp_path / "run"
    sections = {"model": {"kind": "simple", "hidden": 16}, "optimizer": OPTIMIZERS[kind]}
    recipe = sharded(tmp_path / "mine.yaml", data, [*chunks, bad], 2, **sections)
    more = [f"training.seed={seed}", "training.epochs=40", "training.positions_per_epoch=240"]
    run = several.Processes(
        2, tmp_path / "a", _noticing_soon, "train", "--config", str(recipe), "--run-dir", str(folder), *more
    )
    assert run.wait() == [1, 1], run.said()
    (error,) = re.findall(r"nnue: error: (.*)", run.said())
    assert re.match(rf"{'rank 1: ' if rank else ''}\S*damaged\.binpack: offset \d+: ", error)
    assert last(folder).state["step"] == step
    # The processes count what they leave out together.
    said = several.train(2, tmp_path / "b", "--resume", folder, "data.skip_bad_chunks=true", "training.epochs=25")
    assert f"resumed at step {step} " in said
    assert len(re.findall(r"warning: \S*damaged\.binpack: offset \d+: .*this chunk is skipped", said)) == 1, said
    assert records(folder)[-2]["bad_chunks"] == 1


@pytest.mark.parametrize("size", [1, 2])
def test_a_file_that_ends_inside_a_chunk_counts_once(tmp_path, data, chunks, size):
    torn = tmp_path / "torn.binpack"
    torn.write_bytes(chunks[0].read_bytes() + chunks[1].read_bytes()[:-10])
    recipe = sharded(tmp_path / "mine.yaml", data, [*chunks, torn], 2)
    run = tmp_path / "run"
    said = several.train(size, tmp_path / "a", "--config", recipe, "--run-dir", run, "data.skip_bad_chunks=true")
    assert len(re.findall(r"warning: \S*torn\.binpack: .*this chunk is skipped", said)) == 1, said
    assert re.search(r"left out +1 damaged chunks", said), said
    assert {line["bad_chunks"] for line in records(run) if line["event"] == "train"} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.shards=3"], r"data\.shards: found 3, which 2 processes cannot share equally: expected a multiple of 2"),
        (["data.shards=7"], r"data\.shards: found 7, expected a divisor of data\.batch_size, 240"),
        (["data.shards=2", "data.shuffle_buffer=0"], r"data\.shards: found 2, expected 1 in file order"),
        (["data.shards=40"], r"20 chunks in all files, fewer than the 40 shards"),
    ],
)
def test_shards_that_are_impossible_are_refused_once(tmp_path, data, chunks, overrides, message):
    recipe = sharded(tmp_path / "mine.yaml", data, chunks, 1)
    run = several.training(2, tmp_path / "a", "--config", recipe, "--run-dir", tmp_path / "run", *overrides)
    assert all(run.wait())
    assert len(re.findall(r"nnue: (error: .*)", run.said())) == 1, run.said()
    assert re.search(rf"error: .*{message}", run.said()), run.said()
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_shards_cannot_change_on_resume(tmp_path, data, chunks):
    recipe = sharded(tmp_path / "mine.yaml", data, chunks, 2)
    said = several.train(2, tmp_path / "a", "--config", recipe, "--run-dir", tmp_path / "run", "data.shards=1")
    assert "\neach process reads all of the training data; with data.shards=8 a new run reads it once" in said
    run = several.training(2, tmp_path / "b", "--resume", tmp_path / "run", "data.shards=2", "training.epochs=4")
    assert run.wait() == [1, 1]
    assert len(re.findall(r"error: .*loader state: shards was 1, now it is 2", run.said())) == 1, run.said()


# ---- inside


def _replicas(folder: Path, *overrides: str) -> None:
    """Trains a little, and writes down what this process has."""
    with joined() as ranks:
        chosen = made_up_recipe(*overrides)
        torch.manual_seed(chosen.training.seed)
        model = nets.build(chosen.model)
        sharding, _ = divide(chosen, model, ranks, torch.device("cpu"))
        trainer = assemble(chosen, model, MadeUpSource(), None, folder / "run", sharding=sharding)
        for _ in range(5):
            trainer.advance()
        state = {f"optimizer/{name}": tensor for name, tensor in trainer.optimizer.state_dict().items()}
        state |= {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
        output = sharding.forward(made_up_batch(99))
        state |= {"output": output, "loss": trainer.current_step.loss_sum}
        save_file({name: tensor.clone() for name, tensor in state.items()}, folder / f"{ranks.rank}.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("override", ["model={kind: layered, hidden: 16, psqt: true}", "training.compile=false"])
@pytest.mark.parametrize("optimizer", ["{kind: adamw}", "{kind: ranger_lite, max_norm: 0.01}"])
def test_what_all_processes_have_is_the_same_to_the_bit(tmp_path, override, optimizer):
    run = several.Processes(3, tmp_path, _replicas, tmp_path, override, f"optimizer={optimizer}")
    assert run.wait() == [0, 0, 0], run.said()
    first, *others = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(3)]
    for other in others:
        for name, tensor in first.items():
            divided = ("feature_transformer.weight", "feature_transformer.bias", "output.weight")
            if not any(part in name for part in divided):
                assert torch.equal(tensor, other[name]), name


def _poisoned(folder: Path, poisoned: int) -> None:
    """In the third step a gradient of one process's columns is not finite, and nothing else is."""
    with joined() as ranks:
        chosen = made_up_recipe("model={kind: simple, hidden: 16, activation: crelu}", "logging.every_steps=5")
        torch.manual_seed(chosen.training.seed)
        model = nets.build(chosen.model)
        sharding, _ = divide(chosen, model, ranks, torch.device("cpu"))
        trainer = assemble(chosen, model, MadeUpSource(), None, folder / "run", sharding=sharding)
        assert isinstance(model, StackedModel)
        bias = present(model.first_layer()).bias
        poison = math.nan if ranks.rank == poisoned else 1.0
        bias.register_hook(lambda gradient: gradient * poison if trainer.step == 2 else gradient)
        trainer.train()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_no_result_of_a_step_that_one_process_refuses(tmp_path, rank):
    run = several.Processes(2, tmp_path, _poisoned, tmp_path, rank)
    assert run.wait() == [1, 1], run.said()
    message = "loss or gradient was not finite at step 3; training stopped, nothing was overwritten, no checkpoint"
    assert message in run.said()
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    assert records(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("columns", "size", "cuts"),
    [(512, 2, (0, 256, 512)), (512, 3, (0, 160, 336, 512)), (768, 8, tuple(range(0, 769, 96))), (8, 3, (0, 2, 4, 8))],
)
def test_columns_are_cut_as_evenly_as_kernels_allow(columns, size, cuts):
    assert cut(columns, size) == cuts


def test_columns_that_are_too_few():
    with pytest.raises(ValueError, match="found 2 columns, expected at least one for each of 3 processes"):
        cut(2, 3)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("shape", "dim", "groups"), [((3, 20), 1, 2), ((20,), 0, 1), ((2, 3, 20), 2, 2)])
def test_parts_of_a_tensor_make_the_whole(size, shape, dim, groups):
    whole = torch.randn(shape)
    split = Split(dim, groups, cut(20 // groups, size))
    parts = [split.take(whole, rank) for rank in range(size)]
    assert sum(part.numel() for part in parts) == whole.numel()
    assert all(split.is_of(part, rank) for rank, part in enumerate(parts))
    assert split.is_of(whole)
    padded = [split.padded(part, rank) for rank, part in enumerate(parts)]
    assert len({part.shape for part in padded}) == 1
    assert torch.equal(split.join(padded), whole)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([], "1 columns of the feature transformer: the width of the feature transformer is odd"),
        (["model.hidden=24"], ""),
        (["model={kind: simple, hidden: 24, quantisation: {qat: true}}"], ""),
        (["training.compile=true"], "training.compile"),
        (["optimizer={kind: torch, name: Adafactor}"], "may use more than one value"),
        (["model.hidden=24", "optimizer={kind: torch, name: NAdam}"], ""),
        (["model.hidden=24", "optimizer={kind: muon}"], ""),
        (["model.hidden=24", "optimizer={kind: muon, max_norm: 1.0}"], "may use more than one value"),
        (
            ["model.hidden=24", "optimizer={max_norm: 1, groups: [{match: '*', rule: {kind: lion}}]}"],
            "more than one value",
        ),
        (["model={kind: simple, hidden: 8}"], "too few columns"),
    ],
)
def test_why_a_net_is_not_divided(overrides, reason):
    chosen = made_up_recipe("data.batch_size=45", *overrides)
    sharding, words = divide(chosen, nets.build(chosen.model), Ranks(0, 9, 0, 9), torch.device("cpu"))
    assert sharding.name == ("positions" if reason else "columns")
    assert reason in words
    assert words.startswith("9 processes, ")


def test_processes_that_were_not_started_together_are_told_how(tmp_path, monkeypatch, nnue):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        done = nnue("train", "--config", tmp_path / "mine.yaml")
        assert done.returncode == 1
        assert "WORLD_SIZE is 2, but LOCAL_RANK is nothing: start several processes with torchrun" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_exchanges_outside_of_graphs_wait_for_those_in_graphs(monkeypatch):
    """On a GPU, and only where graphs contain exchanges of the same group of processes."""
    waits: list[object] = []
    recording = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording[0])
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    on_gpu: Any = SimpleNamespace(is_cuda=True, device="cuda:1")
    one: Any = "one group"
    other: Any = "another group"
    ranks = Ranks()

    def waits_before(tensor: Any, group: Any) -> list[object]:
        waits.clear()
        with ranks._exchanging(tensor, group):
            before = list(waits)
        assert waits == before
        return before

    assert waits_before(on_gpu, one) == []
    recording[0] = True
    assert waits_before(on_gpu, one) == []
    assert waits_before(on_gpu, one) == []
    recording[0] = False
    assert waits_before(on_gpu, one) == ["cuda:1"]
    assert waits_before(on_gpu, other) == []
    assert waits_before(torch.zeros(1), one) == []
