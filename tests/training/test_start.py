"""Work at the same time before the first step of a run: its imports, and where its errors are raised."""

import gzip
import io
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up import recipe

from nnue_trainer import registry
from nnue_trainer.config import Recipe, parse
from nnue_trainer.data import compression
from nnue_trainer.errors import UserError
from nnue_trainer.schema import to_data
from nnue_trainer.training import plausibility, run
from nnue_trainer.training.assembly import stage
from nnue_trainer.training.assembly.data import data_sources
from nnue_trainer.training.parallel.ranks import Ranks
from nnue_trainer.training.stage_data import StageData

CPU = torch.device("cpu")


def of_files(project_root: Path, **data: object) -> Recipe:
    samples = {"train": [str(project_root / "samples/train.binpack")], "batch_size": 64, "shuffle_buffer": 256}
    fields = to_data(recipe())
    fields["data"] |= samples | {"validation": [str(project_root / "samples/val.binpack")]} | data
    fields["training"] |= {"device": "cpu", "epochs": 1, "positions_per_epoch": 128, "initial_weights": None}
    return parse(fields)


@pytest.mark.slow
def test_the_first_step_imports_no_compiler(tmp_path: Path) -> None:
    code = """
import sys
from nnue_trainer.cli.main import main
from nnue_trainer.training import timeline

slow = ["sympy", "torch.fx.experimental.symbolic_shapes", "torch._dynamo", "torch._inductor", "triton", "matplotlib"]
before = timeline.mark
def mark(phase):
    before(phase)
    if phase == "first step":
        print("imported", [name for name in slow if name in sys.modules])
timeline.mark = mark
main()
"""
    words = ["train", "--preset", "quickstart", "--run-dir", str(tmp_path / "run")]
    fields = ["model.l1=64", "training.epochs=1", "training.positions_per_epoch=4096", "training.device=cpu"]
    ran = subprocess.run([sys.executable, "-c", code, *words, *fields], capture_output=True, text=True, check=True)
    assert next(line for line in ran.stdout.splitlines() if line.startswith("imported")) == "imported []"


def test_an_error_of_the_model_comes_before_one_of_the_data(project_root: Path, tmp_path: Path) -> None:
    """The order of errors is the same as if one were made after the other."""
    damaged = tmp_path / "damaged.binpack"
    damaged.write_bytes(b"BINP\xff\xff\xff\xffx")
    wrong = of_files(project_root, train=[str(damaged)])
    with pytest.raises(UserError, match=r"damaged\.binpack"):
        run.train(wrong, tmp_path / "run")
    fields = to_data(wrong)
    fields["optimizer"]["groups"] = [{"match": "nothing_has_this_name", "lr_factor": 0.1}]
    with pytest.raises(UserError, match="nothing_has_this_name"):
        run.train(parse(fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_warnings_of_the_data_wait_for_their_turn(
    project_root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("nnue_trainer"), "propagate", True)
    done = threading.Event()

    def check(*found: object, **more: object) -> None:
        warn = found[-1]
        assert callable(warn)
        warn("implausible")
        done.set()
        raise UserError("contradicts itself")

    monkeypatch.setattr(plausibility, "check", check)
    chosen = of_files(project_root)
    data = StageData(data_sources(chosen, chosen.model, CPU, Ranks()), CPU, beginning=True)
    try:
        assert done.wait(60)
        assert data.opened() is data
        assert caplog.messages == []
        with pytest.raises(UserError, match="contradicts itself"):
            data.check()
        assert caplog.messages == ["implausible"]
    finally:
        data.close()


def test_nothing_is_read_before_a_state_is_loaded(project_root: Path) -> None:
    chosen = of_files(project_root)
    data = StageData(data_sources(chosen, chosen.model, CPU, Ranks()), CPU, beginning=False)
    try:
        assert data.opened().batches._running is None
        data.check()
        assert data.batches._running is not None
    finally:
        data.close()
    assert data.batches._running is None


@pytest.mark.parametrize("place", ["train", "validation", "sets"])
def test_closing_ends_a_thread_that_unpacks_a_file(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = tmp_path / "endless.binpack.gz"
    file.write_bytes(gzip.compress(b"BINP"))
    unpacks, ended = threading.Event(), threading.Event()
    decompress = compression.decompress

    class Endless(io.RawIOBase):
        def readinto(self, block: Any) -> int:
            unpacks.set()
            return 0 if ended.wait(0.01) else 1

    def of_file(path: Path, kind: str, opened: Any) -> Any:
        return Endless() if path == file else decompress(path, kind, opened)

    monkeypatch.setattr(compression, "decompress", of_file)
    fields = to_data(of_files(project_root, **({} if place == "sets" else {place: [str(file)]})))
    if place == "sets":
        fields["validation"]["sets"] = [{"name": "more", "files": [str(file)]}]
    chosen = parse(fields)
    data = StageData(data_sources(chosen, chosen.model, CPU, Ranks()), CPU, beginning=True)
    try:
        assert unpacks.wait(60)
        data.close()
        assert not any(thread.name.startswith("data-files") for thread in threading.enumerate())
    finally:
        ended.set()


def test_a_model_of_other_features_than_its_section(project_root: Path, tmp_path: Path) -> None:
    """The files are opened again, for the features that the model takes."""
    chosen = of_files(project_root)
    made: list[StageData] = []
    closed: list[int] = []

    class Watched(StageData):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            closed.append(sum(data._closed for data in made))
            made.append(self)
            if len(made) == 1:
                self.opened()  # the thread may come to it after its end otherwise
                self.features = "HalfKP" if chosen.model.feature_set != "HalfKP" else "HalfKAv2_hm"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "StageData", Watched)
        assert run.train(chosen, tmp_path / "run").positions == 128
    assert closed == [0, 1]  # the first one, before the second is made
    assert [data.batches._running for data in made] == [None, None]


def test_with_a_plugin_the_data_are_opened_and_checked_in_the_thread_of_the_run(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    for method in (StageData._open, StageData._check):

        def named(self: StageData, method: Any = method) -> None:
            threads.append(threading.current_thread().name)
            method(self)

        monkeypatch.setattr(StageData, method.__name__, named)
    run.train(of_files(project_root), tmp_path / "built-in")
    assert {name.partition("_")[0] for name in threads} == {"data-files"}
    threads.clear()
    monkeypatch.setattr(registry, "foreign_modules", lambda: frozenset({"plugin"}))
    run.train(of_files(project_root), tmp_path / "plugin")
    assert threads == [threading.current_thread().name] * 2


def test_files_that_do_not_open_in_the_thread_of_the_run(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged.binpack"
    damaged.write_bytes(b"BINP\xff\xff\xff\xffx")
    monkeypatch.setattr(registry, "foreign_modules", lambda: frozenset({"plugin"}))
    with pytest.raises(UserError, match=r"damaged\.binpack"):
        run.train(of_files(project_root, validation=[str(damaged)]), tmp_path / "run")
