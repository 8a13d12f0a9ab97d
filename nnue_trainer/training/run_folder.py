"""A run folder: one process at a time may write in it, and it keeps a list of all files that the run wrote.

The process that writes holds a lock on the folder. It is a lock of the kernel (`flock`), which is released when the
process ends, even if it is killed; on file systems without locks, a lease takes its place (`files/lease.py`). The name
of each file is added to `run.json` before the file is written, and only files in that list are ever deleted or
replaced.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import socket
import time
from pathlib import Path, PurePosixPath

from nnue_trainer.base import limits, system
from nnue_trainer.base.progress import duration
from nnue_trainer.base.status import InUse
from nnue_trainer.errors import UserError
from nnue_trainer.files import lease
from nnue_trainer.files.atomic import OutputFile, free_space, link, refused, remove_dead, replacing
from nnue_trainer.training.terminal import say

LOCK = ".lock"
MANIFEST = "run.json"
_VERSION = 1
_LEAST_ROOM = 1 << 16  # bytes: for the lock, the recipe, the list of files and the records of a run that starts
_SECONDS_BETWEEN_LOOKS = 1.0  # at a full disk
_MOST_TRIES = 1000  # to create a folder that other processes remove
# The files of a run, for folders without run.json, such as superseded-N.
_USUAL_NAMES = re.compile(
    r"recipe\.yaml|metrics\.jsonl|checkpoints/(last|best|epoch-\d{4,}|stage-[A-Za-z0-9_-]+)\.safetensors|tensorboard/events\.out\.tfevents\..+"
)


class TakenOver(UserError):
    """Another process has taken over the run folder, so this one must stop writing there."""


class RunFolder:
    """The folder `path` of one run.

    It is a context manager: entering it takes the lock, or raises UserError if another process, or another `RunFolder`
    of this process, holds the lock. `with` blocks may be nested. Outside of them only the paths may be used.

    The folder is created when the lock is taken. When the lock is released, it is removed if it is empty.
    """

    def __init__(self, path: Path):
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.metrics = path / "metrics.jsonl"
        self.initial_weights = path / "initial_weights.txt"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.safetensors"
        self.best = self.checkpoints / "best.safetensors"
        self._depth = 0
        self._lock = -1
        self._directory = -1  # the folder itself, wherever it is moved to
        self._holder: tuple[int, str] | None = None  # this process, as its lock file has it
        self._lease: lease.Lease | None = None  # in place of the lock if the file system has no locks
        self._made: list[Path] = []
        self._files: set[str] = set()
        self._written: set[str] = set()  # by this process

    def epoch(self, number: int) -> Path:
        """The path of the checkpoint at the end of an epoch, numbered from 1."""
        return self.checkpoints / f"epoch-{number:04d}.safetensors"

    def stage(self, name: str) -> Path:
        """The path of the checkpoint at the end of a stage."""
        return self.checkpoints / f"stage-{name}.safetensors"

    def stages(self) -> list[Path]:
        """The existing checkpoints of stages that this run wrote."""
        return sorted(self._named("stage-(.+)").values())

    def epochs(self) -> dict[int, Path]:
        """The existing checkpoints of epochs that this run wrote, by the number of the epoch, oldest first."""
        return dict(sorted((int(number), path) for number, path in self._named(r"epoch-(\d{4,18})").items()))

    def earlier_bests(self) -> list[Path]:
        """The existing checkpoints that were the best ones while another validation loss was computed, oldest first."""
        found = self._named(r"earlier-best-(\d{1,9})")
        return [found[number] for number in sorted(found, key=int)]

    def next_earlier_best(self) -> Path:
        """A path for one more of them, which no file has."""
        paths = (self.checkpoints / f"earlier-best-{number}.safetensors" for number in itertools.count(1))
        return next(path for path in paths if not path.exists())

    def _named(self, pattern: str) -> dict[str, Path]:
        """The existing checkpoints that this run wrote and whose names match, by the group of the pattern."""
        names = ((re.fullmatch(rf"checkpoints/{pattern}\.safetensors", name), name) for name in self._files)
        return {match[1]: self.path / name for match, name in names if match and (self.path / name).is_file()}

    def __enter__(self) -> RunFolder:
        if self._depth == 0:
            self._wait_for_room()
            self._acquire()
            try:
                self._files = self._read_manifest()
                for folder in {self.path, *((self.path / name).parent for name in self._files)}:
                    # With a lease, which excludes other writers, temporary files need no locks to be dead.
                    remove_dead(folder, unlocked=self._lease is not None)
            except BaseException:
                self._release()
                raise
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._release()

    def lost(self) -> str | None:
        """A description of what happened to the folder since the lock was taken; None if it is where it was."""
        if self._depth == 0 or (_same_file(self._directory, self.path) and _same_file(self._lock, self.path / LOCK)):
            return None
        if _same_file(self._directory, self.path):
            return "another program deleted the lock of the run folder"
        with contextlib.suppress(OSError):
            now = Path(f"/proc/self/fd/{self._directory}").readlink()
            if now.is_dir():
                return f"another program moved the run folder to {now}"
        return "another program deleted the run folder"

    def check_owned(self) -> None:
        """Called last before a file of the run is replaced, extended or deleted. TakenOver if another process owns the
        folder by now: this one was suspended for longer than its lease, or another program deleted its lock."""
        if self._depth == 0:
            return
        owner = self.path / LOCK
        if self._lease is not None:
            # Without the file the run may have been taken over and finished, unless the whole folder is elsewhere.
            owner = self._lease.path
            taken = self._lease.lost(without_file=_same_file(self._directory, self.path))
        else:
            has_file = _same_file(self._lock, owner)
            taken = not self._is_holder() if has_file else self._lock == -1 or _is_locked(owner)
        if taken:
            raise TakenOver(
                f"{self.path}: another process has taken over this run (or a program deleted {owner.name}), so this "
                "one ends and writes nothing more here"
            )

    def _is_holder(self) -> bool:
        """Whether the lock file has no other process's name. An NFS server can drop a lock after a pause without an
        error, and another process then locks the same file."""
        return owner_of(self.path) in (None, self._holder)

    def replacing(self, path: Path) -> OutputFile:
        """`files.atomic.replacing` for a file of the run, with `check_owned`."""
        return replacing(path, self.check_owned)

    def make_again(self) -> None:
        """Makes the folder and its lock anew after it was `lost`. UserError if another run is there by now."""
        os.close(self._lock)  # a run that was moved may be continued where it is
        os.close(self._directory)
        self._lock = self._directory = -1
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self._acquire()
        self._files = {name for name in self._files if (self.path / name).exists()}
        self._write_manifest()

    def owns(self, path: Path) -> bool:
        """Whether this run wrote the file `path` of the folder."""
        return self._name(path) in self._files

    def holds_run(self) -> bool:
        """Whether the folder has a checkpoint that this run wrote."""
        return any(path.is_file() for path in (self.last, self.best) if self.owns(path)) or bool(self.epochs())

    def check_free(self, *paths: Path, clear: bool = False) -> None:
        """UserError if one of `paths` exists and this run did not write it, or, where the folder is going to be
        cleared, if `clear` would leave it there."""
        for path in paths:
            if not path.exists() and not path.is_symlink():
                continue
            if not self.owns(path):
                raise UserError(f"{path}: exists and was not written by this run: move it elsewhere")
            if clear and self._is_behind_link(path):
                raise UserError(
                    f"{path}: is reached through a symbolic link and is not deleted: delete it or move it elsewhere"
                )

    def will_write(self, *paths: Path) -> None:
        """Adds `paths` to the list of files that the run wrote; call this before writing them. UserError as in
        `check_free`."""
        self.check_owned()
        self.check_free(*paths)
        fresh = {self._name(path) for path in paths} - self._files
        if fresh:
            self._files |= fresh
            self._write_manifest()
        self._written |= {self._name(path) for path in paths}

    def remove(self, path: Path) -> None:
        """Deletes a file if this run wrote it. One that lies behind a symbolic link is deleted only if this process
        wrote it: the list may name a folder that is a link by now."""
        if self.owns(path):
            if self._name(path) in self._written or not self._is_behind_link(path):
                self.check_owned()
                path.unlink(missing_ok=True)
            self._files.discard(self._name(path))  # the list on disk loses the name when the next one is added

    def link(self, source: Path, path: Path) -> None:
        """Makes `path` a hard link to the file `source`, atomically, or a copy if the file system has no hard links. A
        file `path` that the run wrote before is replaced."""
        self.will_write(path)
        link(source, path, self.check_owned)

    def clear(self) -> None:
        """Deletes all files that the run wrote, and folders that are empty afterwards. A folder `superseded-N` in which
        training has been continued has a separate list; it is a separate run and is kept. So is what lies behind a
        symbolic link."""
        self.check_owned()
        folders = set()
        for name in sorted(self._files):
            path = self.path / name
            if any((self.path / folder / MANIFEST).exists() for folder in PurePosixPath(name).parents[:-1]):
                continue
            if self._is_behind_link(path):
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            folders |= {self.path / folder for folder in PurePosixPath(name).parents if folder.name}
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._files = set()
        (self.path / MANIFEST).unlink(missing_ok=True)

    def supersede(self, paths: list[Path]) -> Path:
        """Links files of this run into a new folder `superseded-N`, which can be resumed as a run folder of its own,
        and returns that folder. The original files stay until `remove`."""
        folders = (self.path / f"superseded-{number}" for number in itertools.count(1))
        folder = next(each for each in folders if not each.exists())
        pairs = [(path, folder / path.relative_to(self.path)) for path in paths if path.is_file()]
        self.will_write(*(kept for _, kept in pairs))
        for path, kept in pairs:
            self.link(path, kept)
        return folder

    def _is_behind_link(self, path: Path) -> bool:
        """Whether a folder between the run folder and the file `path` in it is a symbolic link."""
        parents = path.relative_to(self.path).parents[:-1]
        return any((self.path / folder).is_symlink() for folder in parents)

    def _name(self, path: Path) -> str:
        """The name of a file in the list."""
        return path.relative_to(self.path).as_posix()

    def _read_manifest(self) -> set[str]:
        path = self.path / MANIFEST
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            found = {self._name(file) for pattern in ("*", "*/*") for file in self.path.glob(pattern)}
            names = {name for name in found if _USUAL_NAMES.fullmatch(name)}
            return names if len(names) > 1 else set()  # a single file, such as a recipe, may be the user's
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            data = None
        files = data.get("files") if isinstance(data, dict) and data.get("format_version") == _VERSION else None
        if not isinstance(files, list) or not all(isinstance(name, str) and _is_inside(name) for name in files):
            raise UserError(
                f"{path}: damaged, expected the list of files that the run wrote; delete it, and files "
                "with the usual names count as files of the run"
            )
        return set(files)

    def _write_manifest(self) -> None:
        with self.replacing(self.path / MANIFEST) as output:
            output.write_text(json.dumps({"format_version": _VERSION, "files": sorted(self._files)}, indent=1) + "\n")

    def _wait_for_room(self) -> None:
        """Waits while the disk is full, as a save does. DiskFull after `NNUE_FULL_DISK_SECONDS`."""
        until: float | None = None
        while not self._has_room():
            now = time.monotonic()
            if until is None:
                until = now + (patience := limits.seconds("NNUE_FULL_DISK_SECONDS"))
                say(f"{self.path}: the disk is full; the run waits up to {duration(patience)} for room")
            if now >= until:
                raise refused(self.path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            time.sleep(min(_SECONDS_BETWEEN_LOOKS, until - now))

    def _has_room(self) -> bool:
        with contextlib.suppress(OSError):  # `_acquire` reports what is wrong
            return free_space(self.path) >= _LEAST_ROOM
        return True

    def _acquire(self) -> None:
        path = self.path / LOCK
        for left in itertools.count(_MOST_TRIES, -1):
            try:
                self._make_folder()
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            except OSError as error:
                # Another process may have just removed the folder, because it was empty. In /proc it cannot be created.
                if isinstance(error, FileNotFoundError) and left:
                    continue
                raise refused(self.path, error) from None
            try:
                self._lock_file(lock)
                # A process deletes its lock file when it releases the lock. If this one had opened that file before, it
                # has now locked a deleted file, and must try again.
                if _same_file(lock, path):
                    os.ftruncate(lock, 0)
                    self._holder = os.getpid(), socket.gethostname()
                    os.pwrite(lock, json.dumps(dict(zip(("pid", "host"), self._holder, strict=True))).encode(), 0)
                    self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    self._lock = lock
                    return
                os.close(lock)
            except BaseException as error:
                os.close(lock)
                if self._lease is not None:
                    self._lease.release()
                    self._lease = None
                if isinstance(error, OSError):  # such as a full quota
                    raise refused(path, error) from None
                raise

    def _lock_file(self, file: int) -> None:
        if self._lease is not None:  # it stays if `_acquire` has to create its lock file again
            return
        try:
            self._lease = lease.lock(file, self.path / f"{LOCK}.owner", lambda text: say(f"{self.path}: {text}"))
        except BlockingIOError:
            raise self._in_use(_describe(file)) from None
        except lease.Held as error:
            raise self._in_use(f" ({error.owner})") from None
        except OSError as error:
            raise UserError(f"{self.path / LOCK}: cannot be locked: {error.strerror or error}") from None

    def _in_use(self, owner: str) -> InUse:
        return InUse(f"{self.path}: another process{owner} is training here; wait until it ends, or use another folder")

    def _make_folder(self) -> None:
        """Creates the folder and its parents. Sets `_made` to the created ones, so that `_release` can remove them."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                self._made.append(folder)
        if not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path))

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            own = _same_file(self._lock, self.path / LOCK)  # another process may have created its own
            if own and self._is_holder() and (self._lease is None or not self._lease.lost()):
                (self.path / LOCK).unlink(missing_ok=True)
            if self._lease is not None:
                self._lease.release()
            os.close(self._lock)
            os.close(self._directory)
        self._lock, self._directory, self._lease = -1, -1, None
        with contextlib.suppress(OSError):  # rmdir fails at the first folder that is not empty, which ends the loop
            for folder in reversed(self._made):
                folder.rmdir()
        self._made = []


def owner_of(path: Path) -> tuple[int, str] | None:
    """The process id and the host in the lock file of the run folder `path`; None if there is no lock file. Does not
    touch the lock, so it never disturbs a training that starts. A killed process leaves the file."""
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read_holder(lock)
    finally:
        os.close(lock)


def _is_inside(name: str) -> bool:
    """Whether a name in the list is a relative path that stays inside the run folder."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one that `path` names; False if none is open."""
    return descriptor != -1 and system.is_named(descriptor, path)


def _is_locked(path: Path) -> bool:
    """Whether another process holds the lock of this file."""
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            system.lock(lock)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def _read_holder(descriptor: int) -> tuple[int, str] | None:
    """The process id and the host in a lock file; None if they cannot be read."""
    for _ in range(10):
        try:
            data = json.loads(os.pread(descriptor, 4096, 0))
            return int(data["pid"]), str(data["host"])
        except (ValueError, TypeError, KeyError, OSError):
            time.sleep(0.01)  # the process that holds the lock may not have written its id yet
    return None


def _describe(descriptor: int) -> str:
    holder = _read_holder(descriptor)
    return f" (pid {holder[0]} on host {holder[1]!r:.80})" if holder else ""
