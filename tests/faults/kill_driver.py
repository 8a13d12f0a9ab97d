"""Runs in a separate process with kill_at_call.so loaded: `python kill_driver.py SCENARIO FOLDER [STRIDE]`.

Forks a child for every call of the scenario that changes files, lets it be killed there, and checks what is left.
Prints the number of kills.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import torch
from made_up import content, names, steps, trainer, write_run

from nnue_trainer.files import checkpoint
from nnue_trainer.training.checkpoint_paths import checkpoint_of
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.resuming import resume
from nnue_trainer.training.run_folder import RunFolder

kill_at_call = ctypes.CDLL(None).kill_at_call


def continue_from(folder: RunFolder, path: Path, keep_last: int = 1) -> None:
    with CheckpointStore(folder, keep_last) as store:
        store.continue_from(path, checkpoint.load(path).trainer_state(path))


def assert_listed(folder: RunFolder) -> None:
    """Everything in the folder is on the run's list, and nothing is left of files that were being written."""
    listed = json.loads((folder.path / "run.json").read_text())["files"]
    assert {name for name in names(folder.path) if name not in (".lock", "run.json")} <= set(listed)


# --- the end of an epoch that is the best so far


def before_save(path: Path) -> None:
    with RunFolder(path) as folder:
        write_run(folder, 2, keep_last=1, best=1)
        assert steps(folder) == {"best": 10, "epoch-0002": 20, "last": 20}


def save(path: Path) -> None:
    with RunFolder(path) as folder, CheckpointStore(folder, keep_last=1) as store:
        store.save(content(30, epoch=3, loss=30.0, best=30), epoch=3, is_best=True)


def after_save(path: Path) -> None:
    with RunFolder(path) as folder:
        continue_from(folder, checkpoint_of(path))
        found = steps(folder)
        saved = found.pop("last") == 30
        assert found.pop("best") == (30 if saved else 10)
        assert found.pop("epoch-0003" if saved else "epoch-0002") == (30 if saved else 20)
        assert not found
        with CheckpointStore(folder, keep_last=1) as store:  # the run goes on
            store.save(content(40, epoch=4, loss=40.0, best=30 if saved else 10), epoch=4)
        assert steps(folder) == {"best": 30 if saved else 10, "epoch-0004": 40, "last": 40}
        assert_listed(folder)


# --- back to an older checkpoint


def before_rewind(path: Path) -> None:
    with RunFolder(path) as folder:
        write_run(folder, 4, best=4)


def rewind(path: Path) -> None:
    with RunFolder(path) as folder:
        continue_from(folder, folder.epoch(2), 4)


def after_rewind(path: Path) -> None:
    there = {path / "checkpoints", *path.glob("superseded-*/checkpoints")}
    kept = {checkpoint.load(file).state["step"] for folder in there for file in folder.glob("*.safetensors")}
    assert kept == {10, 20, 30, 40}, "nothing is lost"
    with RunFolder(path) as folder:
        last = checkpoint.load(folder.last).state["step"]
        assert last in (20, 40)
        continue_from(folder, folder.last, 4)  # whichever it is, the run can continue from it
        if last == 40:
            assert steps(folder)["best"] == 40
            continue_from(folder, folder.epoch(2), 4)  # the command once more
        assert steps(folder) == {"best": 20, "epoch-0001": 10, "epoch-0002": 20, "last": 20}
        assert_listed(folder)
    after = {file.stem: checkpoint.load(file).state["step"] for file in path.glob("superseded-1/checkpoints/*")}
    assert after == {"best": 40, "epoch-0003": 30, "epoch-0004": 40, "last": 40} or (path / "superseded-2").exists()


# --- a whole run, resumed to the same bits

SHORT = ("training.epochs=2", "training.positions_per_epoch=96", "logging.tensorboard=true", "logging.every_steps=2")


def nothing(path: Path) -> None:
    pass


def whole_run(path: Path) -> None:
    run = trainer(path, *SHORT)
    last = checkpoint_of(path)
    if last.exists():
        resume(run, checkpoint.load(last), last)
    run.train()


def after_run(path: Path) -> None:
    whole_run(path)
    whole = path.parent / "whole"
    for name in ("last", "best", "epoch-0001", "epoch-0002"):
        file = f"checkpoints/{name}.safetensors"
        assert (path / file).read_bytes() == (whole / file).read_bytes(), name
    records = [[json.loads(line) for line in (p / "metrics.jsonl").read_text().splitlines()] for p in (path, whole)]
    assert [(r["event"], r["step"]) for r in records[0]] == [(r["event"], r["step"]) for r in records[1]]


SCENARIOS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None], Callable[[Path], None], int]] = {
    "save": (before_save, save, after_save, 1),
    "rewind": (before_rewind, rewind, after_rewind, 1),
    "run": (nothing, whole_run, after_run, 7),  # every seventh call
}


def main(scenario: str, folder: Path, *strides: str) -> None:
    torch.set_num_threads(1)  # a child of fork has none of the others
    before, during, after, stride = SCENARIOS[scenario]
    stride = int(strides[0]) if strides else stride
    if scenario == "run":
        whole_run(folder / "whole")
    original = folder / "original"
    before(original)
    kills = 0
    for call in range(1, 10_000, stride):
        path = folder / "run"
        if original.exists():
            # Hard links stay links, as `cp -a` keeps them.
            os.system(f"cp -a '{original}' '{path}'")
        child = os.fork()
        if child == 0:
            kill_at_call(call)
            during(path)
            kill_at_call(0)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, -signal.SIGKILL), f"call {call}: {status}"
        try:
            if scenario == "run" and not checkpoint_of(path).exists():
                shutil.rmtree(path, ignore_errors=True)  # killed before the first checkpoint: the command starts afresh
            after(path)
        except BaseException:
            print(f"killed at call {call}: {names(path)}", file=sys.stderr)
            raise
        shutil.rmtree(path)
        if status == 0:
            break
        kills += 1
    print(kills)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
