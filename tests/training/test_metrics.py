"""The records of a run, and that errors in writing them never end it."""

import errno
import json
import os

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nnue_trainer.training import metrics
from nnue_trainer.training.run_folder import RunFolder


def lines(*steps):
    return "".join(json.dumps({"event": "train", "step": step}) + "\n" for step in steps)


@pytest.fixture
def folder(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        folder.will_write(folder.metrics)
        yield folder


@pytest.mark.parametrize("end", ["", '{"ste', "\0" * 600, "\0\0\n\0\0", "garbage\n", '{"step": 4}'])
def test_a_resumed_run_keeps_what_came_before_it(folder, capsys, end):
    """A broken end, as a kill or a power cut leaves it, is dropped in silence."""
    folder.metrics.write_text(lines(1, 2, 3) + end)
    metrics.MetricsWriter(folder, step=2, tensorboard=False).close()
    assert folder.metrics.read_text() == lines(1, 2)
    assert capsys.readouterr().err == ""
    assert [path.name for path in folder.path.glob("metrics*")] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    "line",
    [b"garbage", b"[1]", b'{"loss": 1}', b'{"step": "x"}', b'{"step": 1e999}', b"\xff\xfe", b"[" * 50_000,
     b'{"step": ' + b"9" * 5000 + b"}", b'{"step": -1}', b'{"step": true'],
)  # fmt: skip
def test_a_damaged_file_is_kept_and_its_sound_records_go_on(folder, capsys, line):
    damaged = lines(1).encode() + line + b"\n" + lines(2, 3).encode()
    folder.metrics.write_bytes(damaged)
    metrics.MetricsWriter(folder, step=2, tensorboard=False).close()
    assert folder.metrics.read_text() == lines(1, 2)
    assert (folder.path / "metrics-damaged-1.jsonl").read_bytes() == damaged
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "metrics.jsonl: damaged, so it is kept as metrics-damaged-1.jsonl" in said


def test_a_full_disk_costs_records_and_nothing_else(folder, capsys, monkeypatch):
    writer = metrics.MetricsWriter(folder, step=0, tensorboard=True)
    writer.write("train", 1, {"loss": 0.5})
    whole = os.write

    def half(descriptor, data):
        whole(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    for step in (2, 3):
        writer.write("train", step, {"loss": 0.25})
    monkeypatch.setattr(os, "write", whole)
    writer.write("train", 4, {"loss": 0.125})
    writer.close()
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [1, 4]
    events = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 0.5), (4, 0.125)]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2  # once for each file
    assert all("cannot be written: No space left on device; training continues without it" in line for line in said)


def test_what_is_not_finite_is_null(folder):
    writer = metrics.MetricsWriter(folder, step=0, tensorboard=True)
    writer.write("validation", 1, {"loss": float("nan"), "best": float("inf"), "epoch": 1})
    writer.close()
    (record,) = [json.loads(line, parse_constant=pytest.fail) for line in folder.metrics.read_text().splitlines()]
    assert (record["loss"], record["best"], record["epoch"]) == (None, None, 1)


def test_curves_of_a_future_that_was_left_are_gone(folder):
    for start, steps in ((0, (1, 2, 3)), (1, (2, 3))):
        writer = metrics.MetricsWriter(folder, step=start, tensorboard=True)
        for step in steps:
            writer.write("train", step, {"loss": float(start)})
        writer.close()
    events = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 0.0), (2, 1.0), (3, 1.0)]


def test_a_file_that_is_truncated_by_another_program_gets_no_zeros(folder, capsys):
    writer = metrics.MetricsWriter(folder, step=0, tensorboard=False)
    writer.write("train", 1, {"loss": 0.5})
    os.truncate(folder.metrics, 0)  # as `logrotate` with `copytruncate` does
    for step in (2, 3):
        writer.write("train", step, {"loss": 0.25})
    writer.close()
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [2, 3]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "metrics.jsonl: another program truncated it from" in said


@pytest.mark.parametrize("deleted", [True, False])
def test_a_file_that_is_deleted_or_renamed_goes_on(folder, capsys, deleted):
    writer = metrics.MetricsWriter(folder, step=0, tensorboard=False)
    writer.write("train", 1, {"loss": 0.5})
    moved = folder.metrics.rename(folder.path / "metrics.jsonl.1")
    if deleted:
        moved.unlink()
    for step in (2, 3):
        writer.write("train", step, {"loss": 0.25})
    writer.close()
    steps = [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()]
    assert steps == ([1, 2, 3] if deleted else [2, 3])
    assert f"another program {'deleted' if deleted else 'renamed'} it" in capsys.readouterr().err


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("failing", ["open", "copy"])
def test_a_file_that_cannot_be_made_again_at_once_loses_no_record(folder, capsys, monkeypatch, deleted, failing):
    """Nothing is written to the descriptor of another file, such as a checkpoint that was opened meanwhile."""
    writer = metrics.MetricsWriter(folder, step=0, tensorboard=False)
    writer.write("train", 1, {"loss": 0.5})
    moved = folder.metrics.rename(folder.path / "metrics.jsonl.1")
    if deleted:
        moved.unlink()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        if failing == "open":
            folder.metrics.mkdir()
        else:
            patch.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(full))
        others = []
        for step in (2, 3):
            writer.write("train", step, {"loss": 0.25})
            others.append((folder.path / f"other-{step}").open("w+b"))
    if failing == "open":
        folder.metrics.rmdir()
    writer.write("train", 4, {"loss": 0.25})
    writer.close()
    for other in others:
        assert os.fstat(other.fileno()).st_size == 0
        other.close()
    steps = [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()]
    if deleted:
        assert steps == [1, 2, 3, 4]
    else:  # the renamed file has those that came before
        before = [json.loads(line)["step"] for line in moved.read_text().splitlines()]
        assert before + steps == [1, 2, 3, 4]
    assert capsys.readouterr().err.count("cannot be written") == (failing == "open" or deleted)
