"""Files that are complete or absent."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Done
from safetensors.torch import load_file, save
from typed import present

from nnue_trainer.data import PositionReader, PositionWriter
from nnue_trainer.data.binpack import read_binpack, write_binpack
from nnue_trainer.data.files import FORMATS
from nnue_trainer.errors import UserError
from nnue_trainer.files import atomic, checkpoint, finished
from nnue_trainer.files.atomic import check_all_new, replacing
from nnue_trainer.files.checkpoint import Checkpoint


def test_a_file_appears_whole(tmp_path):
    with replacing(tmp_path / "new" / "a") as output:
        output.write_text("whole ")
        output.write_bytes(b"file")
        assert not (tmp_path / "new" / "a").exists()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a"]
    assert (tmp_path / "new" / "a").read_text() == "whole file"


def write_half(path, error):
    with replacing(path) as output:
        output.write_text("half")
        raise error


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), UserError, "/a: cannot be written: No space left"),
        (ValueError("no"), ValueError, "no"),
        (FileNotFoundError(errno.ENOENT, "No such file", "source"), FileNotFoundError, "source"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_failure_leaves_the_old_file(tmp_path, error, raised, message):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(raised, match=message):
        write_half(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_users_file_is_named(tmp_path):
    """The clean-up of a temporary file that cannot be must not hide what went wrong."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/x\.nnue: cannot be written: (File exists|Not a directory)"):
        write_half(tmp_path / "file" / "x.nnue", AssertionError("not reached"))


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "socket"])
def test_only_regular_files_are_replaced(tmp_path, kind):
    path, target = tmp_path / "out", tmp_path / "target"
    if kind == "link":
        target.write_text("precious")
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        import socket

        socket.socket(socket.AF_UNIX).bind(str(path))
    before = path.lstat()
    for write in (write_half, lambda path, _: atomic.link(tmp_path / "other", path)):
        (tmp_path / "other").write_text("")
        with pytest.raises(UserError, match=f"out: is a (symbolic )?{kind.split()[-1]}.*, expected the name of a file"):
            write(path, AssertionError("not reached"))
    assert os.path.samestat(path.lstat(), before)
    assert not target.exists() or target.read_text() == "precious"


def test_devices_are_not_replaced():
    with pytest.raises(UserError, match="/dev/null: is a character device, expected the name of a file"):
        write_half("/dev/null", AssertionError("not reached"))
    assert Path("/dev/null").is_char_device()


def test_a_target_that_turns_into_a_link_is_not_replaced(tmp_path):
    path = tmp_path / "a"
    output = replacing(path)
    output.write_text("new")
    path.symlink_to(tmp_path / "b")
    with pytest.raises(UserError, match="symbolic link"):
        output.commit()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a"]


def test_temporary_names_cannot_be_guessed_and_links_are_not_followed(tmp_path, monkeypatch):
    """Even with the name known beforehand, a planted link is an error of the system, not a way into another file."""
    with replacing(tmp_path / "a"), replacing(tmp_path / "b"):
        names = sorted(file.name for file in tmp_path.iterdir())
    assert len(set(names)) == 2
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".nnue-0000000000000000.tmp").symlink_to(victim)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0" * 16)
    with pytest.raises(UserError, match="a: cannot be written: File exists"), replacing(tmp_path / "a"):
        pass
    assert victim.read_text() == "precious"


def test_what_is_written_goes_to_the_file_that_was_created(tmp_path):
    """Somebody swaps the temporary for a link while it is written."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    output = replacing(tmp_path / "a")
    (temporary,) = tmp_path.glob(".nnue-*.tmp")
    temporary.unlink()
    temporary.symlink_to(victim)
    output.write_text("content")
    with pytest.raises(UserError, match="removed by another program"):
        output.commit()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_comes_from_the_umask(tmp_path, umask):
    script = f"""
        import os, torch
        os.umask({umask})
        from nnue_trainer.files import checkpoint
        from nnue_trainer.files.atomic import replacing
        with replacing("a") as output:
            output.write_text("")
        checkpoint.save("b.safetensors", checkpoint.Checkpoint({{}}, {{"model": {{"w": torch.zeros(1)}}}}))
    """
    python(script, tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"a": 0o666 & ~umask, "b.safetensors": 0o666 & ~umask}


def test_saving_never_touches_the_umask_of_other_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask belongs to all threads"))
    checkpoint.save(tmp_path / "a.safetensors", Checkpoint({}, {"model": {"w": torch.zeros(3)}}))


def test_checkpoints_are_what_safetensors_itself_writes(tmp_path):
    dtypes = list(checkpoint._DTYPES)
    tensors = {f"t/{i % 3}{str(dtype)[6:]}": torch.arange(i + 1).to(dtype) for i, dtype in enumerate(dtypes * 2)}
    tensors |= {"t/empty": torch.zeros(0, 5), "t/scalar": torch.tensor(1.5), "t/matrix": torch.rand(3, 4).t()}
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, Checkpoint({"ü": 1}, {"t": {name[2:]: tensor for name, tensor in tensors.items()}}))
    import json

    header = {"format_version": 1, "architecture": {"ü": 1}, "recipe": None, "state": {}}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    assert path.read_bytes() == save(contiguous, {"nnue": json.dumps(header)})
    for name, tensor in load_file(path).items():
        assert torch.equal(tensor, tensors[name])


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, cwd=folder, env=environment, check=True, text=True, capture_output=True)


WRITER = """
    import sys
    sys.path.insert(0, {root!r})
    from nnue_trainer.files.atomic import replacing
    with replacing("a") as output:
        output.file.write(b"half")
        output.file.flush()
        print("writing", flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def start_writer(tmp_path, project_root):
    writers = []

    def start() -> subprocess.Popen[bytes]:
        script = textwrap.dedent(WRITER.format(root=str(project_root)))
        pipe = subprocess.PIPE
        writer = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdin=pipe, stdout=pipe)
        writers.append(writer)
        assert present(writer.stdout).readline() == b"writing\n"
        return writer

    yield start
    for writer in writers:
        writer.kill()
        writer.communicate()


def test_what_dead_writers_left_goes_and_what_live_ones_write_stays(tmp_path, start_writer):
    dead, live = start_writer(), start_writer()
    assert len(list(tmp_path.glob(".nnue-*.tmp"))) == 2
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    atomic.remove_dead(tmp_path)
    assert len(list(tmp_path.glob(".nnue-*.tmp"))) == 1
    with replacing(tmp_path / "b") as output:
        output.write_text("b")
    assert len(list(tmp_path.glob(".nnue-*.tmp"))) == 1
    live.communicate(b"\n")
    assert live.returncode == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "half", "b": "b"}


def test_files_of_other_programs_are_not_taken_for_dead_writers(tmp_path):
    names = [".nnue-x.tmp", ".a.tmp", "nnue-0000000000000000.tmp", ".nnue-0000000000000000.tmp.bak"]
    for name in names:
        (tmp_path / name).write_text("")
    (tmp_path / ".nnue-0123456789abcdef.tmp").mkdir()
    os.mkfifo(tmp_path / ".nnue-0123456789abcdee.tmp")
    atomic.remove_dead(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(names) + 2
    atomic.remove_dead(tmp_path / "no such folder")


def test_of_many_writers_one_wins_as_a_whole(tmp_path):
    """Eight threads write the same file over and over, each with different content, while others clean up."""
    path = tmp_path / "a"
    reads = 0
    failures: list[BaseException] = []

    def write(letter: str) -> None:
        try:
            rounds = 0
            while rounds < 20 or not reads:
                with replacing(path) as output:
                    for _ in range(20):
                        output.file.write(letter.encode() * 1000)
                        output.file.flush()
                rounds += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcdefgh"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            reads += 1
            content = path.read_bytes()
            assert len(content) == 20_000
            assert len(set(content)) == 1
    for thread in threads:
        thread.join()
    assert failures == []
    assert reads > 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_forked_child_leaves_the_file_alone(tmp_path):
    with replacing(tmp_path / "a") as output:
        output.write_text("a")
        output.file.flush()
        child = os.fork()
        if child == 0:
            output.discard()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "a").read_text() == "a"


def test_a_link_is_another_name(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("old")
    for _ in range(2):  # the second time both names are one file already
        atomic.link(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b").samefile(tmp_path / "a")
        assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UserError, match="b: cannot be written: No such file"):
        atomic.link(tmp_path / "missing", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "a"


def test_a_copy_serves_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("a")
    atomic.link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "a"
    assert not (tmp_path / "b").samefile(tmp_path / "a")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("format", FORMATS)
def test_data_files_go_the_same_way(tmp_path, project_root, format):
    """A data file that is not finished leaves the old one; a link planted under the old temporary name is not met."""
    path, victim = tmp_path / "out", tmp_path / "victim"
    records = read_binpack(project_root / "samples" / "val.binpack")[:100]
    victim.write_text("precious")
    (tmp_path / f"out.{os.getpid()}.tmp").symlink_to(victim)
    with PositionWriter(path, format) as writer:
        writer.write(records)
    whole = path.read_bytes()
    with pytest.raises(UserError, match="position 110: "), PositionWriter(path, format) as writer:
        writer.write(np.concatenate([records, records[:10], np.zeros((1, 32), np.uint8)]))
    assert path.read_bytes() == whole
    with PositionReader(path, format=format) as reader:
        assert sum(len(block) for block in reader) == 100
    assert victim.read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 3
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(UserError, match="symbolic link"):
        PositionWriter(path, format)
    with pytest.raises(UserError, match="symbolic link"):
        write_binpack(path, records)
    assert victim.read_text() == "precious"


def test_only_commands_note_their_outputs(nnue: Callable[..., Done], tmp_path: Path) -> None:
    """Not a program that uses the library, also after it called a command."""
    assert nnue("presets").returncode == 0
    check_all_new([tmp_path / "out"], overwrite=False)
    with replacing(tmp_path / "out") as output:
        output.file.write(b"all")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_command_whose_folder_was_deleted_notes_no_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output = tmp_path / "gone", tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    finished.begin()
    check_all_new([output], overwrite=False)
    output.write_bytes(b"")
    finished.note(output, output.stat())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    finished.end(again=False)
