"""A run folder has one owner, which touches nothing but what the run wrote; and the checkpoints in it."""

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from made_up import content, names, steps, trainer, write_run
from typed import present
from waiting import SECONDS, wait_for

from nnue_trainer.base import system
from nnue_trainer.base.status import InUse
from nnue_trainer.errors import UserError
from nnue_trainer.files import checkpoint, lease
from nnue_trainer.files.atomic import DiskFull
from nnue_trainer.training import checkpoints, run_folder
from nnue_trainer.training.checkpoints import CheckpointStore
from nnue_trainer.training.run_folder import RunFolder, TakenOver

# --- one owner


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_a_file_system_without_a_size_is_not_full(capsys):
    """In /proc, no folder can be created: the error is that its parent does not exist."""
    message = r"^/proc/x: cannot be written: No such file or directory$"
    with pytest.raises(UserError, match=message), RunFolder(Path("/proc/x")):
        pass
    assert "full" not in capsys.readouterr().err  # printed before it waits


@pytest.mark.slow
def test_the_second_of_two_processes_is_refused_each_time(tmp_path):
    """Both start at once, through a barrier, and the winner stays until both have tried."""
    for attempt in range(30):
        start, started = os.pipe()
        tried, try_done = os.pipe()
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                os.close(started)
                os.read(start, 1)
                status = 3
                try:
                    with RunFolder(tmp_path / str(attempt)):
                        os.write(try_done, b"x")
                        while (tmp_path / "both-wait").exists():
                            pass
                        os.read(start, 1)
                        status = 0
                except UserError as error:
                    status = 1 if "another process" in str(error) and "is training here" in str(error) else 2
                    os.write(try_done, b"x")
                os._exit(status)
            children.append(child)
        (tmp_path / "both-wait").touch()
        os.close(start)
        os.close(started)  # now
        assert os.read(tried, 1) + os.read(tried, 1) == b"xx"
        (tmp_path / "both-wait").unlink()
        statuses = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        os.close(tried)
        os.close(try_done)
        assert statuses == [0, 1]
        # A block that wrote nothing leaves nothing. If the loser was the one to make the folder, that stays.
        assert names(tmp_path) == []


def test_the_message_names_the_owner(tmp_path):
    with (
        RunFolder(tmp_path),
        pytest.raises(UserError) as caught,
        RunFolder(tmp_path),
    ):
        pass
    assert str(caught.value) == (
        f"{tmp_path}: another process (pid {os.getpid()} on host {socket.gethostname()!r}) is training here; "
        "wait until it ends, or use another folder"
    )
    assert names(tmp_path) == []
    with RunFolder(tmp_path) as folder, folder:  # nested blocks of one object are one owner
        pass


def test_a_killed_owner_leaves_no_lock(tmp_path):
    child = os.fork()
    if child == 0:
        RunFolder(tmp_path / "run").__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert names(tmp_path) == ["run/.lock"]
    with RunFolder(tmp_path / "run"):
        pass
    assert names(tmp_path) == []


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    monkeypatch.setattr(lease, "_SETTLE", 0.05)
    monkeypatch.setattr(lease, "_UNREADABLE", 0.05)
    monkeypatch.setenv("NNUE_LEASE_SECONDS", "0.6")


def suspend(owner: RunFolder) -> lease.Lease:
    """From now on `owner` gives no sign of life."""
    owned = present(owner._lease)
    owned._ended.set()
    for thread in threading.enumerate():
        if thread.name == "lease":
            thread.join()
    return owned


def ended_process() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


@pytest.mark.usefixtures("no_locks")
def test_where_the_file_system_has_no_locks(tmp_path, monkeypatch):
    """A live owner keeps others out: of this process, and by its heartbeats of another host."""
    monkeypatch.setenv("NNUE_LEASE_SECONDS", "600")  # a loaded machine may need more than a moment for a heartbeat
    monkeypatch.setattr(lease, "_BEATS", 6000)
    with RunFolder(tmp_path) as first:
        with pytest.raises(UserError, match=rf"another process \(pid {os.getpid()} on host"), RunFolder(tmp_path):
            pass
        assert first.lost() is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(system, "boot", lambda: "another")
            patch.setattr(lease, "_held", set())
            with pytest.raises(UserError, match="is training here"), RunFolder(tmp_path):
                pass
    assert names(tmp_path) == []


@pytest.mark.usefixtures("no_locks")
def test_dead_owners_are_replaced_without_a_person(tmp_path, capsys):
    owner, temporary = tmp_path / ".lock.owner", tmp_path / f".nnue-{'0' * 16}.tmp"
    here = {"host": socket.gethostname(), "boot": system.boot(), "token": "1"}
    with subprocess.Popen(["sleep", "600"]) as running, subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        claims = {
            "ended, but its parent has not waited": here
            | {"pid": zombie.pid, "start": system.process_start(zombie.pid)},
            "ended": here | {"pid": ended_process(), "start": 1.0},
            "own": here | {"pid": os.getpid(), "start": system.process_start()},
            "own, of an early version": {"pid": os.getpid(), "host": here["host"]},
            "recycled": here | {"pid": running.pid, "start": 1.0},
            "dead host": {"pid": 1, "host": "elsewhere", "boot": "b", "start": 1.0, "token": "1", "lease": 0.3},
            "dead host, of an early version": {"pid": 1, "host": "elsewhere"},
        }
        contents = {name: json.dumps(claim) for name, claim in claims.items()}
        contents |= {"empty": "", "broken": "{", "deep": "[" * 1024}
        for name, content in contents.items():
            owner.write_text(content)
            owner.with_name(".lock.owner.0123456789abcdef").touch()  # of a process that was killed while it took over
            temporary.touch()
            capsys.readouterr()
            with RunFolder(tmp_path) as folder:
                assert folder.lost() is None
                assert not temporary.exists()
                assert names(tmp_path) == [".lock", ".lock.owner"], name
            said = capsys.readouterr().err
            assert ("waits up to" in said) == ("takes over" in said) == ("host" in name), (name, said)
            assert names(tmp_path) == []
        owner.write_text(json.dumps(here | {"pid": running.pid, "start": system.process_start(running.pid)}))
        with pytest.raises(UserError, match=rf"pid {running.pid} on host"), RunFolder(tmp_path):
            pass
        running.kill()


@pytest.mark.usefixtures("no_locks")
def test_an_owner_that_was_suspended_finds_the_new_one(tmp_path):
    with RunFolder(tmp_path) as first:
        first.will_write(tmp_path / "c")
        suspend(first)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(system, "boot", lambda: "another")
            patch.setattr(lease, "_held", set())
            second = RunFolder(tmp_path)
            second.__enter__()
        for write in (
            lambda: first.link(tmp_path / "a", tmp_path / "b"),
            lambda: first.remove(tmp_path / "c"),
            first.clear,
        ):
            with pytest.raises(TakenOver, match="another process has taken over this run"):
                write()
        with pytest.raises(TakenOver), first.replacing(tmp_path / "d") as output:
            output.write_text("d")
        second.check_owned()
    second.check_owned()  # the first one left what belongs to the second
    second.__exit__()
    assert names(tmp_path) == ["run.json"]


@pytest.mark.usefixtures("no_locks")
def test_an_owner_that_was_suspended_waits_for_one_that_takes_over(tmp_path, monkeypatch):
    """The other process has seen no sign of life, and replaces the claim while the owner waits for that."""
    with RunFolder(tmp_path) as first:
        first.check_owned()
        owned = suspend(first)
        owned._sign -= 1.0
        monkeypatch.setattr(lease, "_SETTLE", 600.0)

        def replace(_: float) -> None:
            owned.path.write_text(owned.path.read_text().replace(owned._claim.token, "0" * 16))
            owned._sure_from = 0.0

        monkeypatch.setattr(lease, "time", SimpleNamespace(sleep=replace))
        with pytest.raises(TakenOver):
            first.check_owned()


@pytest.mark.usefixtures("no_locks")
def test_a_claim_that_comes_while_the_disk_is_slow_stays(tmp_path, monkeypatch):
    owner, sync, syncs = tmp_path / ".lock.owner", os.fsync, []
    owner.write_text("{}")
    of_parent = {"pid": os.getppid(), "start": system.process_start(os.getppid())}
    claim = json.dumps(of_parent | {"host": socket.gethostname(), "boot": system.boot(), "token": "1"})

    def slow(descriptor: int) -> None:
        sync(descriptor)
        syncs.append(descriptor)
        if len(syncs) == 2:  # the first is of the claim that finds a file
            owner.write_text(claim)

    monkeypatch.setattr(os, "fsync", slow)
    with pytest.raises(UserError, match="is training here"), RunFolder(tmp_path):
        pass
    assert len(syncs) >= 2
    assert owner.read_text() == claim


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("at", ["a step", "a save"])
@pytest.mark.parametrize("finished", [False, True])
def test_a_run_that_was_taken_over_writes_nothing(tmp_path, monkeypatch, at, finished):
    """The other process continues it, or has finished it and removed its claim."""
    run = trainer(tmp_path)
    others = {}

    def take_over() -> None:
        present(run.folder._lease)._ended.set()
        owner = tmp_path / ".lock.owner"
        owner.unlink()
        if not finished:
            owner.write_text('{"pid": 1, "host": "elsewhere", "token": "1"}')
        for path in (run.folder.last, run.folder.best, run.folder.metrics, run.folder.path / "run.json"):
            path.unlink(missing_ok=True)
            path.write_text("of the other process")
            others[path] = path.read_bytes()

    with run.folder:
        if at == "a step":
            advance = run.advance

            def disturbed() -> None:
                advance()
                if run.step == 14:
                    present(run.outputs).store.wait()
                    take_over()

            monkeypatch.setattr(run, "advance", disturbed)
        else:  # the write is in the background: meanwhile the loop is between two writes of its own
            write, advance = checkpoint._write_tensors, run.advance
            saving, in_step, taken = threading.Event(), threading.Event(), threading.Event()

            def stopped(*arguments):
                write(*arguments)
                if not others:
                    saving.set()
                    assert in_step.wait(SECONDS)
                    take_over()
                    taken.set()

            def waiting() -> None:
                if saving.is_set():
                    in_step.set()
                    assert taken.wait(SECONDS)
                advance()

            monkeypatch.setattr(checkpoint, "_write_tensors", stopped)
            monkeypatch.setattr(run, "advance", waiting)
        with pytest.raises(TakenOver):
            run.train()
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: path.read_bytes() for path in others} == others
    assert not [name for name in found if name.endswith(".tmp")]


def test_a_run_whose_lock_another_process_has_writes_nothing(tmp_path):
    with RunFolder(tmp_path) as first:
        (tmp_path / ".lock").unlink()
        first.check_owned()  # no process has it
        with RunFolder(tmp_path):
            with pytest.raises(TakenOver):
                first.will_write(tmp_path / "a")
            with pytest.raises(InUse, match="is training here"):
                first.make_again()
        with pytest.raises(TakenOver):
            first.will_write(tmp_path / "a")


@pytest.mark.usefixtures("no_locks")
def test_a_lease_stays_while_the_lock_file_is_created_again(tmp_path, monkeypatch):
    """The owner before deletes its lock file after this process has opened that, and waited for the lease."""
    real, answers = run_folder._same_file, [False]
    monkeypatch.setattr(run_folder, "_same_file", lambda *file: answers.pop() if answers else real(*file))
    with RunFolder(tmp_path) as folder:
        assert not answers
        folder.check_owned()
    assert names(tmp_path) == []


def test_a_lock_that_the_server_dropped(tmp_path):
    """On NFS after a long pause: another process has locked the same file, and has written its name there."""
    with RunFolder(tmp_path) as folder:
        folder.check_owned()
        (tmp_path / ".lock").write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
        with pytest.raises(TakenOver):
            folder.will_write(tmp_path / "a")
    assert names(tmp_path) == [".lock"]


def test_the_lock_of_another_process_stays(tmp_path):
    with RunFolder(tmp_path):
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()
    assert names(tmp_path) == [".lock"]


@pytest.mark.usefixtures("no_locks")
def test_of_many_that_take_over_one_wins(tmp_path, monkeypatch):
    """All find the dead claim, and each waits until the others have replaced it or found a new one."""
    (tmp_path / ".lock.owner").write_text("{}")
    owners, refused, readable, create = [], [], lease._readable, lease.Lease._create
    all_read, all_wrote, local = threading.Barrier(6), threading.Barrier(6), threading.local()

    def read(path):
        found = readable(path)
        if not hasattr(local, "waits"):
            all_read.wait(SECONDS)
            local.waits = True
        return found

    def wait(*_: object) -> None:
        if getattr(local, "waits", False):
            local.waits = False
            all_wrote.wait(SECONDS)

    def create_again(self: lease.Lease) -> bool:
        wait()
        return create(self)

    monkeypatch.setattr(lease, "_UNREADABLE", 0.0)
    monkeypatch.setattr(lease, "_readable", read)
    monkeypatch.setattr(lease.Lease, "_create", create_again)
    monkeypatch.setattr(lease, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))

    def enter():
        try:
            owners.append(RunFolder(tmp_path).__enter__())
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=enter) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(owners) == 1
    assert len(refused) == 5
    owners[0].__exit__()


def test_an_owner_needs_a_folder(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="cannot be written: Not a directory"), RunFolder(path):
            pass
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".lock").symlink_to(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written"), RunFolder(tmp_path / "linked"):
        pass
    assert (tmp_path / "file").read_bytes() == b""


# --- what the run wrote, and nothing else


def test_clearing_takes_what_the_run_wrote_and_nothing_else(tmp_path):
    mine = ["checkpoints/mine.safetensors", "checkpoints/epoch-0099.safetensors", "notes.txt", "tensorboard/x"]
    with RunFolder(tmp_path) as folder:
        write_run(folder, 2, best=1)
        for name in mine:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("mine")
        folder.clear()
    assert names(tmp_path) == sorted(mine)
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_a_run_does_not_replace_what_it_did_not_write(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.safetensors").write_text("mine")
    with RunFolder(tmp_path) as folder:
        assert not folder.holds_run()
        with pytest.raises(UserError, match=r"last\.safetensors: exists and was not written by this run"):
            write_run(folder, 1)
    assert (tmp_path / "checkpoints" / "last.safetensors").read_text() == "mine"


def test_a_run_of_an_early_version_has_no_list(tmp_path):
    with RunFolder(tmp_path) as folder:
        write_run(folder, 2)
    (tmp_path / "run.json").unlink()
    (tmp_path / "checkpoints" / "mine.safetensors").write_text("mine")
    with RunFolder(tmp_path) as folder:
        assert folder.holds_run()
        assert list(folder.epochs()) == [1, 2]
        folder.clear()
    assert names(tmp_path) == ["checkpoints/mine.safetensors"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"format_version": 1}', '{"format_version": 1, "files": ["../x"]}', "[" * 100_000,
     '{"format_version": 1, "files": ["/etc/passwd"]}', '{"format_version": 1, "files": [3]}', "\0\0\0"],
)  # fmt: skip
def test_a_damaged_list_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json: damaged, expected the list of files"), RunFolder(tmp_path):
        pass
    assert names(tmp_path) == ["run.json"]


# --- checkpoints


def test_names_and_thinning(tmp_path):
    with RunFolder(tmp_path) as folder:
        (tmp_path / "checkpoints").mkdir()
        foreign = ["epoch-abc.safetensors", "epoch-0001x.safetensors", "epoch-.safetensors", "epoch-9999.safetensors"]
        for name in foreign:
            (folder.checkpoints / name).write_text("mine")
        write_run(folder, 5, keep_last=2, best=3)
        for name in foreign:
            assert (folder.checkpoints / name).read_text() == "mine"
            (folder.checkpoints / name).unlink()
        assert steps(folder) == {"best": 30, "epoch-0004": 40, "epoch-0005": 50, "last": 50}
        assert folder.last.samefile(folder.epoch(5))
        with CheckpointStore(folder, 2) as store:
            store.save(content(57), epoch=None)
        assert steps(folder) == {"best": 30, "epoch-0004": 40, "epoch-0005": 50, "last": 57}


def test_the_store_copies_what_it_is_given(tmp_path, slow_disk):
    """Training goes on before the file is written, and callbacks fill their memory."""
    go, _ = slow_disk
    saved = content(1)
    saved.state["callbacks"] = [{"kind": "mine", "memory": {"rows": [1]}}]
    with RunFolder(tmp_path) as folder:
        with CheckpointStore(folder, keep_last=2) as store:
            store.save(saved, epoch=1)
            saved.tensors["model"]["w"].fill_(2.0)
            saved.state["callbacks"][0]["memory"]["rows"].append(2)
            go.set()
        assert steps(folder) == {"epoch-0001": 1, "last": 1}
        assert checkpoint.load(folder.last).state["callbacks"] == [{"kind": "mine", "memory": {"rows": [1]}}]


def test_an_error_of_the_background_write_comes_out(tmp_path):
    with RunFolder(tmp_path) as folder:
        (tmp_path / "checkpoints").touch()
        with pytest.raises(UserError, match="cannot be written"), CheckpointStore(folder, keep_last=1) as store:
            store.save(content(1), epoch=1)


def test_it_works_without_hard_links(tmp_path, monkeypatch):
    def no_links(*_, **__):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    with RunFolder(tmp_path) as folder:
        write_run(folder, 2, keep_last=1, best=1)
        assert steps(folder) == {"best": 10, "epoch-0002": 20, "last": 20}


def resumed(folder: RunFolder, path):
    with CheckpointStore(folder, 9) as store:
        return store.continue_from(path, checkpoint.load(path).trainer_state(path))


def test_resuming_from_an_older_checkpoint_keeps_what_came_after_it(tmp_path):
    with RunFolder(tmp_path) as folder:
        write_run(folder, 5, best=4)
        kept = resumed(folder, folder.epoch(2))
        assert kept == tmp_path / "superseded-1"
        assert steps(folder) == {"best": 20, "epoch-0001": 10, "epoch-0002": 20, "last": 20}
    with RunFolder(kept) as future:  # a run folder like any other
        assert steps(future) == {
            "best": 40, "epoch-0003": 30, "epoch-0004": 40, "epoch-0005": 50, "last": 50,
        }  # fmt: skip
        assert future.holds_run()
        assert (future.recipe.read_text(), future.metrics.read_text()) == ("recipe", "metrics")
        with CheckpointStore(future, 9) as store:
            store.save(content(60, epoch=6), epoch=6)
    with RunFolder(tmp_path) as folder:
        assert resumed(folder, folder.last) is None
        folder.clear()
    with RunFolder(kept) as future:  # it was continued, so it is a separate run
        assert steps(future)["last"] == 60


def test_a_best_that_was_thinned_out_is_not_made_up(tmp_path):
    with RunFolder(tmp_path) as folder:
        write_run(folder, 5, keep_last=2, best=2)
        folder.best.unlink()
        resumed(folder, folder.last)
        assert steps(folder) == {"epoch-0004": 40, "epoch-0005": 50, "last": 50}


def test_a_checkpoint_of_another_name_can_be_continued(tmp_path):
    with RunFolder(tmp_path) as folder:
        write_run(folder, 3)
        mine = folder.checkpoints / "mine.safetensors"
        folder.epoch(2).rename(mine)
        before = mine.read_bytes()
        resumed(folder, mine)
        assert steps(folder) == {"epoch-0001": 10, "epoch-0002": 20, "last": 20, "mine": 20}
        with CheckpointStore(folder, 1) as store:
            store.save(content(30, epoch=3), epoch=3)
        assert mine.read_bytes() == before


def test_a_damaged_later_checkpoint_is_put_aside(tmp_path):
    with RunFolder(tmp_path) as folder:
        write_run(folder, 3)
        for path in (folder.epoch(3), folder.last):
            path.unlink()
            path.write_bytes(b"\0" * 99)
        kept = resumed(folder, folder.epoch(2))
        assert steps(folder) == {"epoch-0001": 10, "epoch-0002": 20, "last": 20}
        assert (kept / "checkpoints" / "last.safetensors").read_bytes() == b"\0" * 99


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_folder_that_goes_in_mid_run_is_made_again(tmp_path, capfd, monkeypatch, how):
    """With the lock, the list of files, the recipe, every record, and a checkpoint at once."""
    path, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run = trainer(path)
    with run.folder:
        run.folder.will_write(run.folder.recipe)
        run.folder.recipe.write_text("recipe")
        advance = run.advance

        def disturbed() -> None:
            advance()
            if run.step == 14:
                wait_for((path / "checkpoints" / "epoch-0001.safetensors").exists)
                path.rename(elsewhere)
                while how == "deleted" and elsewhere.exists():  # the checkpoint of step 10 may still get its names
                    shutil.rmtree(elsewhere, ignore_errors=True)

        monkeypatch.setattr(run, "advance", disturbed)
        run.train()
        assert run.folder.lost() is None
    said = capfd.readouterr().err
    assert said.count("another program") == 1
    where = f"moved the run folder to {elsewhere}" if how == "moved" else "deleted the run folder"
    assert f"{path}: another program {where}; it is made again, with a checkpoint of step 15" in said
    found = [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert set(found) == {*range(3, 40, 3), *range(10, 41, 10)}
    assert checkpoint.load(path / "checkpoints" / "last.safetensors").state["step"] == 40
    assert "training" in (path / "recipe.yaml").read_text()
    assert {"recipe.yaml", "metrics.jsonl"} <= set(json.loads((path / "run.json").read_text())["files"])
    if how == "moved":
        assert checkpoint.load(elsewhere / "checkpoints" / "last.safetensors").state["step"] == 10
        with RunFolder(elsewhere):
            pass


@pytest.fixture
def slow_disk(monkeypatch):
    """Writes wait until `go` is set; `started` counts them."""
    go, started, save = threading.Event(), [], checkpoint.save

    def wait(path, content, *check):
        if path.stem == "last":
            started.append(content.state["step"])
        go.wait()
        save(path, content, *check)

    monkeypatch.setattr(checkpoint, "save", wait)
    return go, started


def test_a_save_does_not_wait_for_the_disk_and_the_newest_wins(tmp_path, slow_disk):
    go, started = slow_disk
    with RunFolder(tmp_path) as folder:
        with CheckpointStore(folder, keep_last=1) as store:
            store.save(content(10, epoch=1), epoch=1, is_best=True)
            wait_for(lambda: started == [10])
            for step in (20, 30, 40):  # each is the best one so far
                assert store.save(content(step, epoch=step // 10), epoch=step // 10, is_best=True)
            go.set()
        assert started == [10, 40]
        assert steps(folder) == {"best": 40, "epoch-0004": 40, "last": 40}


def test_the_best_that_waits_outlives_a_later_checkpoint(tmp_path, slow_disk):
    go, started = slow_disk
    with RunFolder(tmp_path) as folder:
        with CheckpointStore(folder, keep_last=1) as store:
            store.save(content(10, epoch=1), epoch=1)
            wait_for(lambda: started == [10])
            assert store.save(content(20, epoch=2, best=20), epoch=2, is_best=True)
            assert not store.save(content(30, epoch=3, best=20), epoch=3)
            assert not store.save(content(35, best=20), epoch=None)
            go.set()
            assert store.save(content(40, epoch=4, best=20), epoch=4, final=True)
        assert started == [10, 20, 40]
        assert steps(folder) == {"best": 20, "epoch-0004": 40, "last": 40}


@pytest.mark.parametrize("every", [1, 2])
def test_checkpoints_that_stay_are_all_written(tmp_path, slow_disk, every):
    """With `keep_last` of 2 or more, each one of an epoch that the recipe requests."""
    go, started = slow_disk
    with RunFolder(tmp_path) as folder:
        with CheckpointStore(folder, keep_last=9, every=every) as store:
            store.save(content(10, epoch=1), epoch=1, is_best=True)
            wait_for(lambda: started == [10])
            threading.Timer(0.1, go.set).start()
            for step in (20, 30, 40):
                assert store.save(content(step, epoch=step // 10), epoch=step // 10, is_best=True)
        if every == 1:
            assert started == [10, 20, 30, 40]
        else:  # 30 is written if there was time for it
            assert {10, 20, 40} <= set(started)


def test_after_a_failed_write_nothing_is_written_until_its_error_is_seen(tmp_path, monkeypatch):
    failing, written, save = [20], [], checkpoint.save

    def no_room(path, saved, *check):
        if saved.state["step"] in failing:
            raise UserError(f"{path}: cannot be written: No space left on device")
        written.append(saved.state["step"])
        save(path, saved, *check)

    monkeypatch.setattr(checkpoint, "save", no_room)
    with RunFolder(tmp_path) as folder, CheckpointStore(folder, keep_last=1) as store:
        store.save(content(10, epoch=1), epoch=1)
        store.wait()
        store.save(content(20, epoch=2), epoch=2)
        wait_for(lambda: all(write.done() for write in store._writes))
        with pytest.raises(UserError, match="No space left"):
            store.save(content(30, epoch=3), epoch=3)
        assert (written, store.written_step, steps(folder)) == ([10], 10, {"epoch-0001": 10, "last": 10})
        store.save(content(30, epoch=3), epoch=3)
        store.wait()
        assert (written, store.written_step) == ([10, 30], 30)


@pytest.mark.parametrize("ends", ["room", "patience", "signal"])
def test_a_full_disk_is_waited_for(tmp_path, monkeypatch, capsys, ends):
    save, tries, hurry = checkpoint.save, [], []

    def full(path, saved, *check):
        tries.append(saved.state["step"])
        if ends == "room" and len(tries) == 3:
            return save(path, saved, *check)
        if ends == "signal" and len(tries) == 3:
            hurry.append(True)
        raise DiskFull(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    clock = [0.0]  # stands still except for sleeps

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN_TRIES", 0.01)
    monkeypatch.setenv("NNUE_FULL_DISK_SECONDS", "0.2" if ends == "patience" else "600")
    with RunFolder(tmp_path) as folder, CheckpointStore(folder, keep_last=1, in_a_hurry=lambda: bool(hurry)) as store:
        store.save(content(10, epoch=1), epoch=1)
        if ends == "room":
            store.wait()
            assert steps(folder) == {"epoch-0001": 10, "last": 10}
        else:
            with pytest.raises(UserError, match="No space left"):
                store.wait()
    assert len(tries) == 3 or (ends == "patience" and len(tries) > 3)
    said = capsys.readouterr().err
    assert said.count("No space left on device; the checkpoint is tried again for") == 1
    assert ("there is room again" in said) == (ends == "room")


def test_a_start_waits_for_room_on_a_full_disk(tmp_path, monkeypatch, capsys):
    free = [0, 0, 1 << 20]
    monkeypatch.setattr(run_folder, "free_space", lambda _: free.pop(0))
    monkeypatch.setattr(run_folder, "_SECONDS_BETWEEN_LOOKS", 0.0)
    with RunFolder(tmp_path):
        assert not free
    assert capsys.readouterr().err == f"{tmp_path}: the disk is full; the run waits up to 10 m 0 s for room\n"
    monkeypatch.setattr(run_folder, "free_space", lambda _: 0)
    monkeypatch.setenv("NNUE_FULL_DISK_SECONDS", "0")
    with pytest.raises(DiskFull, match=f"{tmp_path}: cannot be written: No space left on device"), RunFolder(tmp_path):
        pass
    assert names(tmp_path) == []


def test_a_lock_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match=r"\.lock: cannot be written: Disk quota exceeded"), RunFolder(tmp_path):
        pass


def test_little_room_is_forecast(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoints, "free_space", lambda folder: 3_999)
    tensors = {"model": {"a": torch.zeros(100)}, "optimizer": {"b": torch.zeros(150)}}
    with RunFolder(tmp_path) as folder, CheckpointStore(folder, keep_last=5, keep_every=2) as store:
        store.warn_of_little_room(tensors, 0)
        assert capsys.readouterr().err == ""
        store.warn_of_little_room(tensors, 4)
    said = capsys.readouterr().err
    assert "may need another 6.25 KiB (1000 B each), but the disk has 3.91 KiB free" in said


@pytest.mark.parametrize("whole", [False, True])
def test_best_is_what_exports_and_compares(tmp_path, whole):
    """Unless a stage takes all of it; also where it is mended."""
    saved = content(10, epoch=1, loss=1.0, best=10)
    saved.tensors |= {"optimizer": {"m": torch.zeros(1000)}, "rng": {"cpu": torch.zeros(9)}}
    saved.state |= {"callbacks": [{"kind": "mine"}], "window_steps": 3}
    with RunFolder(tmp_path) as folder, CheckpointStore(folder, 9, whole_best=whole) as store:
        store.save(saved, epoch=1, is_best=True)
        store.wait()
        for _ in range(2):
            best, last = checkpoint.load(folder.best), checkpoint.load(folder.last)
            assert last.resumes
            assert best.resumes == whole == folder.best.samefile(folder.last)
            assert set(best.tensors) == ({"model", "optimizer", "rng"} if whole else {"model"})
            assert ("callbacks" in best.state) == whole
            assert best.trainer_state(folder.best).validation_loss == 1.0
            assert (store.best_of_folder() or last).state["step"] == best.state["best_step"] == 10
            folder.best.unlink()
            store.continue_from(folder.last, last.trainer_state(folder.last))


def test_best_is_mended_from_last(tmp_path):
    """A kill after `last` was written, before the others."""
    with RunFolder(tmp_path) as folder:
        write_run(folder, 2, keep_last=9, best=1)
        checkpoint.save(folder.last, content(30, best=30))
        with CheckpointStore(folder, 9) as store:
            store.continue_from(folder.last, checkpoint.load(folder.last).trainer_state(folder.last))
        assert steps(folder)["best"] == 30
