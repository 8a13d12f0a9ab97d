"""`nnue train` in a run folder: files that may be resumed, that are replaced, and that are never touched."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import nnue
from small_runs import last, split_sample, written
from typed import present
from waiting import SECONDS, wait_for

from nnue_trainer.data import RecordLoader
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint
from nnue_trainer.training.assembly import explaining_out_of_memory
from nnue_trainer.training.run_folder import RunFolder
from nnue_trainer.training.step import ChosenStep
from nnue_trainer.training.trainer import Trainer


@pytest.fixture(scope="module")
def data(project_root, tmp_path_factory) -> Path:
    """A folder with train.binpack, 4,000 positions of the sample, and val.binpack, 500 others."""
    return split_sample(project_root, tmp_path_factory.mktemp("positions"), 4_000, 500)


@pytest.fixture
def recipe(tmp_path, data) -> Path:
    """Four epochs of 4 steps."""
    return written(tmp_path / "mine.yaml", data, data={"threads": 2}, training={"epochs": 4})


def refused(pattern: str, *arguments: object) -> None:
    with pytest.raises(UserError, match=pattern) as caught:
        nnue(*arguments)
    assert "\n" not in str(caught.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- what may change


def test_an_epoch_cannot_change_on_resume(tmp_path, recipe):
    """It decided the learning rate of a step, and which checkpoints were taken for later ones."""
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder)
    before = contents(folder)
    message = (
        r"training\.positions_per_epoch was 1000, now it is 4000: it cannot change on resume, as the learning rate"
    )
    refused(message, "train", "--resume", folder, "training.positions_per_epoch=4000")
    assert contents(folder) == before
    output = nnue("train", "--resume", folder, "training.positions_per_epoch=999")  # also 4 steps
    assert "finished step 16 of 16" in output


def test_filters_cannot_change_on_resume(tmp_path, recipe):
    """Early versions had no_score off by default: the message describes how such a run goes on."""
    folder = tmp_path / "run"
    start = ("train", "--config", recipe, "--run-dir", folder, "training.epochs=1")
    nnue(*start, "data.filters.no_score=false")
    hint = r"data\.filters\.no_score was false, now it is true: .*; data\.filters\.no_score=false continues as before$"
    go_on = ("train", "--config", recipe, "--run-dir", folder, "--resume", "auto", "training.epochs=2")
    refused(hint, *go_on, "data.filters.no_score=true")
    assert "finished" in nnue(*go_on, "data.filters.no_score=false")


@pytest.mark.parametrize("main", ["adamw", "schedule_free"])
def test_rules_of_groups_resume_bit_identically(tmp_path, recipe, main):
    groups = "[{match: feature*, rule: {kind: ranger_lite}}, {match: '*.bias', rule: {kind: torch, name: Adam}}]"
    chosen = (f"optimizer={{kind: {main}, groups: {groups if main == 'adamw' else groups.partition(', {')[0] + ']'}}}",)
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "whole", *chosen)
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "stopped", *chosen, "training.epochs=2")
    nnue("train", "--resume", tmp_path / "stopped", "training.epochs=4")
    files = [tmp_path / run / "checkpoints" / "last.safetensors" for run in ("whole", "stopped")]
    one, other = [checkpoint.load(file) for file in files]
    assert one.tensors.keys() == other.tensors.keys()
    for group, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[group].keys()
        assert all(torch.equal(tensor, other.tensors[group][name]) for name, tensor in tensors.items())


def test_resuming_from_an_older_checkpoint_loses_nothing(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder)
    before = contents(folder)
    output = nnue("train", "--resume", folder / "checkpoints" / "epoch-0002.safetensors", "optimizer.lr=0.1")
    kept = folder / "superseded-1"
    assert f"after step 8 are kept in {kept}" in output
    for name in ("epoch-0003", "epoch-0004", "last"):
        file = f"checkpoints/{name}.safetensors"
        assert (kept / file).read_bytes() == before[file], name
        assert (folder / file).read_bytes() != before[file], name
    assert (kept / "metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == [json.loads(line)["step"] for line in before["metrics.jsonl"].splitlines()]
    # The other future is a run that can be resumed like any other.
    assert "finished step 20 of 20" in nnue("train", "--resume", kept, "training.epochs=5")


def test_a_checkpoint_elsewhere_does_not_say_where_to_write(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=1")
    before = contents(folder)
    good = folder / "keep" / "good.safetensors"
    good.parent.mkdir()
    good.write_bytes(before["checkpoints/last.safetensors"])
    refused(r"good\.safetensors: not in the checkpoints folder of a run: pass --run-dir DIR", "train", "--resume", good)
    good.unlink()
    good.parent.rmdir()
    assert contents(folder) == before


def test_another_validation_file_is_noticed(tmp_path, recipe, data):
    """Under the same name, so the recipe does not show it."""
    mine = tmp_path / "val.binpack"
    mine.write_bytes((data / "val.binpack").read_bytes())
    folder, chosen = tmp_path / "run", f"data.validation=[{mine}]"
    nnue("train", "--config", recipe, "--run-dir", folder, chosen, "training.epochs=1")
    renamed = mine.rename(tmp_path / "renamed.binpack")
    nnue("train", "--resume", folder, f"data.validation=[{renamed}]", "training.epochs=2")  # the same positions
    records = next(iter(RecordLoader([data / "train.binpack"], 500, seed=8))).numpy().copy()
    renamed.unlink()
    write_binpack(renamed, records, join_chains=False)
    before = contents(folder)
    refused("the validation files are not those of this run", "train", "--resume", folder, "training.epochs=3")
    assert contents(folder) == before
    output = nnue("train", "--resume", folder, "--run-dir", tmp_path / "other", "training.epochs=3")
    assert "finished step 12 of 12" in output


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("loss={kind: sigmoid, power: 4}", "loss"),
        ("lambda={kind: constant, value: 0}", "lambda"),
        ("data.validation_positions=100", r"data\.validation_positions"),
    ],
)
def test_best_starts_anew_where_losses_do_not_compare(tmp_path, recipe, change, named):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=2")
    before = checkpoint.load(folder / "checkpoints" / "best.safetensors")
    output = nnue("train", "--resume", folder, change, "training.epochs=3")
    kept = "earlier-best-1.safetensors"
    assert len(re.findall(rf"{named} changed, so validations cannot be compared .* is {kept}", output)) == 1
    assert checkpoint.load(folder / "checkpoints" / kept).state == before.state
    assert checkpoint.of_run(folder).name == "best.safetensors"
    assert checkpoint.load(checkpoint.of_run(folder)).state["step"] == 12
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if line["event"] == "validation"]
    assert validations[-1]["best"] == validations[-1]["loss"]
    assert len({line["figure"] for line in validations}) == 2
    assert "changed" not in nnue("train", "--resume", folder, change, "training.epochs=4")
    assert last(folder).state["best_step"] in (12, 16)


def test_until_a_new_best_the_last_checkpoint_is_the_runs(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=2")
    change = ("loss={kind: sigmoid, power: 4}", "training.epochs=4", "training.validate_every=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "validate", lambda self: None)
        nnue("train", "--resume", folder, *change)
    assert checkpoint.of_run(folder).name == "last.safetensors"


def test_metrics_after_a_stop_are_those_of_a_run_never_stopped(tmp_path, recipe, monkeypatch):
    """This includes a stop between two records, and all counts of a record."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    options = ("logging.every_steps=3", "training.epochs=3")
    nnue("train", "--config", recipe, "--run-dir", whole, *options)
    advance = Trainer.advance

    def stopping(self: Trainer) -> None:
        advance(self)
        if self.step in (2, 7):
            self.stopping.set()

    monkeypatch.setattr(Trainer, "advance", stopping)
    nnue("train", "--config", recipe, "--run-dir", folder, *options)
    for _ in range(2):
        nnue("train", "--resume", folder)
    assert last(folder).state["step"] == 12

    def records(path: Path) -> list[dict]:
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        own = ("time", "positions_per_second", "run_positions_per_second", "peak_memory_bytes")
        return [{name: value for name, value in line.items() if name not in own} for line in lines]

    assert records(folder) == records(whole)


def test_the_number_of_cpu_threads_is_told(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=1")
    assert last(folder).state["cpu_threads"] == 1
    assert "CPU threads" not in nnue("train", "--resume", folder, "training.epochs=2")
    torch.set_num_threads(2)
    output = nnue("train", "--resume", folder, "training.epochs=3")
    assert output.count("resuming on 2 CPU threads, it was 1: sums are rounded differently") == 1
    assert "OMP_NUM_THREADS=1 keeps them" in output


def test_a_checkpoint_of_an_early_version_is_resumed(tmp_path, recipe):
    """It has none of the entries that were added since, NaN where a loss was not finite, and no list of files."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", whole)
    stopped = nnue("train", "--config", recipe, "--run-dir", folder)
    assert "finished" in stopped
    saved = checkpoint.load(folder / "checkpoints" / "epoch-0002.safetensors")
    kept = ("step", "validation_loss", "best_validation_loss", "batches")
    saved.state = {key: saved.state[key] for key in kept}
    before = present(saved.recipe)
    del before["training"]["checkpoint_minutes"]
    del before["data"]["skip_bad_chunks"]
    for path in folder.rglob("*.safetensors"):
        path.unlink()
    (folder / "run.json").unlink()
    checkpoint.save(folder / "checkpoints" / "last.safetensors", saved)
    output = nnue("train", "--resume", folder)
    assert "resumed at step 8" in output
    assert "resuming with" not in output
    for name, tensor in last(whole).tensors["model"].items():
        assert torch.equal(tensor, last(folder).tensors["model"][name]), name


def test_best_cannot_be_resumed_and_names_what_can(tmp_path, recipe):
    """`best` of earlier versions is a whole checkpoint, and is resumed as it was."""
    folder, best = tmp_path / "run", tmp_path / "run" / "checkpoints" / "best.safetensors"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=2")
    epoch = folder / "checkpoints" / f"epoch-{checkpoint.load(best).state['epoch']:04d}.safetensors"
    assert best.stat().st_size < epoch.stat().st_size / 2
    before = contents(folder)
    refused(
        rf"best\.safetensors: has the net without the optimizer's state, so it cannot be resumed; --resume .*"
        rf"last\.safetensors continues the run, --resume .*{epoch.name} continues from this net, "
        r"training\.initial_weights=.*best\.safetensors starts another run from this net",
        "train", "--resume", best, "training.epochs=3",
    )  # fmt: skip
    assert contents(folder) == before
    shutil.copy(epoch, best)
    output = nnue("train", "--resume", best, "training.epochs=3")
    assert "finished step 12 of 12" in output
    assert not checkpoint.load(best).resumes or checkpoint.load(best).state["epoch"] < 3


def test_a_damaged_last_checkpoint_names_another(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=2")
    path = folder / "checkpoints" / "last.safetensors"
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:1000])
    refused(
        r"last\.safetensors: not a readable .*; --resume .*epoch-0002\.safetensors may work",
        "train", "--resume", folder,
    )  # fmt: skip
    output = nnue("train", "--resume", folder / "checkpoints" / "epoch-0002.safetensors", "training.epochs=3")
    assert "finished step 12 of 12" in output
    assert (folder / "superseded-1" / "checkpoints" / "last.safetensors").read_bytes() == whole[:1000]


def test_without_a_last_checkpoint_the_newest_is_the_last(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=2")
    (folder / "checkpoints" / "last.safetensors").unlink()
    output = nnue("train", "--config", recipe, "--run-dir", folder, "--resume", "auto")
    assert re.search(r"resumed at step 8 from .*epoch-0002\.safetensors", output)


# --- what is replaced


def test_overwrite_takes_what_the_run_wrote_and_nothing_else(tmp_path, recipe):
    folder = tmp_path / "run"
    nnue("train", "--config", recipe, "--run-dir", folder)
    mine = ["mine.safetensors", "checkpoints/mine.safetensors", "checkpoints/epoch-1234.safetensors", "tensorboard/x"]
    for name in mine:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    nnue("train", "--config", recipe, "--run-dir", folder, "--overwrite", "training.epochs=1")
    assert set(contents(folder)) == {
        *mine, "recipe.yaml", "run.json", "metrics.jsonl", "checkpoints/epoch-0001.safetensors",
        "checkpoints/last.safetensors", "checkpoints/best.safetensors",
    }  # fmt: skip
    assert all((folder / name).read_text() == "mine" for name in mine)


def test_nothing_is_deleted_behind_a_link(tmp_path, recipe):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=1")
    elsewhere.mkdir()
    (elsewhere / "x").write_text("precious")
    (folder / "sub").symlink_to(elsewhere)
    listed = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(listed | {"files": [*listed["files"], "sub/x"]}))
    nnue("train", "--config", recipe, "--run-dir", folder, "--overwrite", "training.epochs=1")
    assert (elsewhere / "x").read_text() == "precious"
    with RunFolder(folder) as run:
        run._files.add("sub/x")
        run.remove(folder / "sub" / "x")
        assert (elsewhere / "x").read_text() == "precious"
        run.will_write(folder / "sub" / "own")  # what a process writes through a link it may delete
        (folder / "sub" / "own").write_text("own")
        run.remove(folder / "sub" / "own")
    assert not (elsewhere / "own").exists()


def test_what_overwrite_would_leave_in_the_way_is_refused_before_the_training(tmp_path, recipe):
    """Checkpoints on another disk: the run would fail at its end, when it saves."""
    folder, disk = tmp_path / "run", tmp_path / "disk"
    nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=1")
    (folder / "checkpoints").rename(disk)
    (folder / "checkpoints").symlink_to(disk)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = (
        r"last\.safetensors: is reached through a symbolic link and is not deleted: delete it or move it elsewhere"
    )
    refused(message, "train", "--config", recipe, "--run-dir", folder, "--overwrite", "training.epochs=2")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.train=[none.binpack]"], "none.binpack"),
        (["data.validation=[none.binpack]"], "none.binpack"),
        (["training.device=cuda:7"], "training.device"),
        (["training.initial_weights=none"], "no such checkpoint"),
        (["data.batch_size=5000"], "train.binpack"),
    ],
)
def test_a_start_that_fails_leaves_nothing(tmp_path, recipe, arguments, message):
    folder = tmp_path / "runs" / "run"
    refused(re.escape(message), "train", "--config", recipe, "--run-dir", folder, *arguments)
    assert not (tmp_path / "runs").exists()


def test_a_first_step_that_runs_out_of_memory_leaves_nothing(tmp_path, recipe, monkeypatch):
    def too_large(*_):
        torch.empty(1 << 55, dtype=torch.uint8)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(ChosenStep, "_train", too_large)
        refused(
            r"^out of memory \(another 36028797018963968 bytes could not be allocated\) with data\.batch_size 250 and "
            r"data\.shuffle_buffer 1,000: smaller values need less$",
            "train", "--config", recipe, "--run-dir", folder,
        )  # fmt: skip
    assert not folder.exists()
    assert "finished" in nnue("train", "--config", recipe, "--run-dir", folder, "training.epochs=1")


def test_out_of_gpu_memory_is_one_line(recipe):
    from nnue_trainer import config

    text = (
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB\nof which 3 GiB is free."
    )
    message = r"^out of GPU memory \(another 20\.00 GiB .* a smaller data\.batch_size needs less$"
    with (
        pytest.raises(UserError, match=message),
        explaining_out_of_memory(config.load(recipe)),
    ):
        raise torch.OutOfMemoryError(text)
    # An error of a launch, not of torch's allocator.
    with (
        pytest.raises(UserError, match=r"^out of GPU memory with"),
        explaining_out_of_memory(config.load(recipe)),
    ):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously")
    with pytest.raises(RuntimeError, match="something else"), explaining_out_of_memory(config.load(recipe)):
        raise RuntimeError("something else")


# --- one owner


def process(root: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(root / "train.py"), *map(str, arguments)],
        stderr=subprocess.PIPE, text=True, cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


@pytest.mark.slow
def test_a_live_run_is_left_alone(tmp_path, recipe, project_root):
    """Whatever is started beside it, in its folder: one line, and the run continues to the end it would have had."""
    folder = tmp_path / "run"
    run = process(
        project_root, "--config", recipe, "--run-dir", folder, "training.epochs=100000", "logging.every_steps=100"
    )
    last_file = folder / "checkpoints" / "last.safetensors"
    wait_for(last_file.exists, run)
    for arguments in (
        ["--config", recipe, "--run-dir", folder],
        ["--config", recipe, "--run-dir", folder, "--resume", "auto"],
        ["--config", recipe, "--run-dir", folder, "--overwrite"],
        ["--resume", folder],
    ):
        message = rf"run: another process \(pid {run.pid} on host '.*'\) is training here; wait until .*, or .* folder$"
        refused(message, "train", *arguments)
    run.send_signal(signal.SIGHUP)
    _, output = run.communicate(timeout=SECONDS)
    assert run.returncode == 130, output
    stopped = last(folder).state
    assert not (folder / ".lock").exists()
    assert f"resumed at step {stopped['step']:,}" in nnue(
        "train", "--resume", folder, f"training.epochs={stopped['step'] // 4 + 1}"
    )


# --- endings


def test_a_damaged_chunk_ends_a_run_with_a_checkpoint(tmp_path, recipe, data):
    """The run can continue without the chunk."""
    whole = (data / "train.binpack").read_bytes()
    files = [tmp_path / f"part-{number:02}.binpack" for number in range(12)]  # of one chunk each
    for path in files:
        path.write_bytes(whole)
    bad = bytearray(whole)
    bad[len(bad) // 2 : len(bad) // 2 + 400] = b"\xff" * 400
    damaged = tmp_path / "damaged.binpack"
    damaged.write_bytes(bad)
    folder = tmp_path / "run"
    chosen = f"data.train=[{', '.join(map(str, [*files, damaged]))}]"
    refused(r"damaged\.binpack", "train", "--config", recipe, "--run-dir", folder, chosen, "training.epochs=30")
    stopped = last(folder).state["step"]
    assert 0 < stopped < 120
    refused(r"damaged\.binpack", "train", "--resume", folder)
    output = nnue("train", "--resume", folder, "data.skip_bad_chunks=true")
    assert f"resumed at step {stopped}" in output
    assert "finished step 120 of 120" in output
    assert re.search(r"left out +\d+ damaged chunks of data", output)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-2]["bad_chunks"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("close_at", [1, 3])
def test_a_closed_pipe_does_not_end_a_run(tmp_path, recipe, project_root, close_at):
    folder = tmp_path / "run"
    run = process(project_root, "--config", recipe, "--run-dir", folder)
    messages = present(run.stderr)
    for _ in range(close_at):
        assert messages.readline()
    messages.close()
    assert run.wait(timeout=SECONDS) == 0
    assert last(folder).state["step"] == 16
