"""The one writer of files: a file is complete or absent.

The content goes into a temporary file in the folder of the target. The temporary has a name that cannot be guessed, is
created only by this process (`O_EXCL | O_NOFOLLOW`), and is only ever written through its descriptor, so a
planted link is never followed. At the end it is synced and renamed. Two writers of one output have a temporary each,
and the last rename wins as a whole.

While it is written, the temporary is locked (`flock`). The kernel drops the lock with the process, however that ends,
so a later writer in the same folder removes what dead writers left and never what a live one is working on.

Only regular files are ever replaced. A symbolic link, pipe, device or folder under the target's name is refused: a
link could mean either file, and a device is not ours to replace.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from nnue_trainer.base import system
from nnue_trainer.errors import UserError
from nnue_trainer.files import finished

StrPath = str | os.PathLike[str]

_TEMPORARY = re.compile(r"\.nnue-[0-9a-f]{16}\.tmp")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class DiskFull(UserError):
    """A file cannot be written because its disk, or the user's quota of it, is full."""


class OutputFile:
    """A file that is being written; `commit` puts it in its place, `discard` leaves what was there as it was.

    Use it as a context: it commits at the end, and discards if an exception was raised. `file` takes bytes, `fd` is the
    descriptor below it. Folders on the way are made. What the system refuses (a full disk, a read-only folder) is a
    UserError naming `path`. `check` is called last before the file gets its name; if it raises, the file is discarded.
    """

    def __init__(self, path: StrPath, check: Callable[[], None] = lambda: None) -> None:
        self.path = Path(path)
        self._check = check
        self._open = False
        with refusing(self.path):
            self._folder = _open_folder(self.path)
            try:
                _check_target(self._folder, self.path)
                _remove_dead(self._folder)
                self._name, self.fd = _create(self._folder)
            except BaseException:
                os.close(self._folder)
                raise
        self.file = os.fdopen(self.fd, "wb")
        self._process = os.getpid()
        self._open = True

    def write_bytes(self, data: bytes) -> None:
        self.file.write(data)

    def write_text(self, text: str) -> None:
        """Writes text as UTF-8."""
        self.file.write(text.encode())

    def commit(self) -> None:
        """Puts the file on disk under its name. After `discard` it does nothing."""
        if not self._open:
            return
        try:
            self.sync()
            _check_target(self._folder, self.path)
            if not system.is_named(self.fd, self._name, dir_fd=self._folder):
                raise UserError(f"{self.path}: cannot be written: its temporary file was removed by another program")
            self._check()
            finished.note(self.path, os.fstat(self.fd))
            os.rename(self._name, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            _sync_folder(self._folder)  # the new name, too, survives a power cut
        except OSError as error:
            raise refused(self.path, error) from None
        finally:
            self.discard()

    def sync(self) -> None:
        """Puts all that was written on disk; a lack of space shows here. For outputs that belong together:
        sync them all, then commit them all."""
        with refusing(self.path):
            self.file.flush()
            os.fsync(self.fd)

    def discard(self) -> None:
        """Removes what was written, unless it was committed."""
        if not self._open:
            return
        self._open = False
        if os.getpid() == self._process:  # a forked child only closes its descriptors
            with suppress(OSError):
                if system.is_named(self.fd, self._name, dir_fd=self._folder):
                    os.unlink(self._name, dir_fd=self._folder)
        with suppress(OSError):  # bytes that are still buffered for a full disk
            self.file.close()
        os.close(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self.commit()
            return
        self.discard()
        if isinstance(error, OSError) and error.filename is None:  # our own write failed, not one to another file
            raise refused(self.path, error) from None

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.discard()


def replacing(path: StrPath, check: Callable[[], None] = lambda: None) -> OutputFile:
    """`with replacing(path) as output: output.write_bytes(…)`: at the end `path` is the new file, as a whole. `check`:
    as in `OutputFile`."""
    return OutputFile(path, check)


def link(existing: StrPath, path: StrPath, check: Callable[[], None] = lambda: None) -> None:
    """Makes `path` another name of the file `existing`, in one step; a copy where the file system has no hard links.
    `check`: as in `OutputFile`."""
    path = Path(path)
    with refusing(path):
        folder = _open_folder(path)
        try:
            _check_target(folder, path)
            name = _temporary_name()
            try:
                os.link(existing, name, dst_dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:
                linked = False
            else:
                linked = True
                try:
                    check()
                    os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                finally:
                    # A rename does nothing where both names are the same file already.
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)
                _sync_folder(folder)
        finally:
            os.close(folder)
    if not linked:
        with Path(existing).open("rb") as source, replacing(path, check) as output:
            shutil.copyfileobj(source, output.file, 1 << 20)


def remove_dead(folder: StrPath, *, unlocked: bool = False) -> None:
    """Removes temporary files that dead writers left in a folder; nothing happens if there is no such folder.
    `unlocked`: no other process writes there, so all are dead where the file system has no locks."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _remove_dead(descriptor, unlocked=unlocked)
        finally:
            os.close(descriptor)


def check_new(path: StrPath, overwrite: bool, data: bytes | None = None) -> None:
    """Every command calls this before its work, and again before it commits: UserError if its output `path` exists,
    unless the user gave `--overwrite`. `data`: what is to be written; a file that holds just this may stay."""
    check_name(path)
    if Path(path).is_dir():
        raise UserError(f"{path}: is a folder, expected the name of a file to write")
    if overwrite or not os.path.lexists(path):
        return
    if data is not None and _holds(Path(path), data):
        return
    raise UserError(f"{path}: exists already; --overwrite replaces it")


def check_all_new(outputs: Sequence[StrPath], overwrite: bool) -> None:
    """`check_new` for all outputs of a command that cannot continue. If the same command line was killed when it had
    written some of them, they may be replaced; `finished.Finished` if it had written all."""
    for output in outputs:
        check_name(output)
    own = [output for output in outputs if finished.expect(output)]
    there = [output for output in outputs if os.path.lexists(output)]
    missing = [output for output in outputs if output not in there]
    if there and missing and own != there and not overwrite:
        raise UserError(
            f"{there[0]}: exists already, but {missing[0]} does not: a different file, or left by a command killed "
            "between its two files; --overwrite replaces it"
        )
    for output in there:
        if output not in own:
            check_new(output, overwrite)
    if own and not missing and not overwrite:
        raise finished.Finished(f"{own[0]}: was finished by the same command, which was killed before its end")


def _holds(path: Path, data: bytes) -> bool:
    with suppress(OSError):
        if path.is_file() and not path.is_symlink() and path.stat().st_size == len(data):
            return path.read_bytes() == data
    return False


def check_output(path: StrPath) -> None:
    """UserError if `path` is something that is never replaced: a link, pipe, device or folder."""
    path = Path(path)
    with suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _check_target(folder, path)
        finally:
            os.close(folder)


def free_space(folder: StrPath) -> int:
    """Bytes that can be written to the disk of a folder, which need not exist yet. Without a limit for a file system
    that reports no size, such as /proc."""
    folder = Path(folder).absolute()
    while not folder.exists():
        folder = folder.parent
    found = shutil.disk_usage(folder)
    return found.free if found.total else sys.maxsize


def refused(path: StrPath, error: OSError) -> UserError:
    """The error for a file or folder that cannot be written: DiskFull where that is the reason."""
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
    return kind(f"{path}: cannot be written: {error.strerror or error}")


@contextmanager
def refusing(path: StrPath) -> Iterator[None]:
    """Raises `refused` for what the system refuses in the block."""
    try:
        yield
    except OSError as error:
        raise refused(path, error) from None


def _open_folder(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def check_name(path: StrPath) -> None:
    """UserError for "-", which would be a file of this name where users expect standard output."""
    if str(path) == "-":
        raise UserError("-: standard output cannot be written, expected the name of a file to write")


def _check_target(folder: int, path: Path) -> None:
    check_name(path)
    if path.name in ("", ".."):
        raise UserError(f"{path}: is a folder, expected the name of a file to write")
    try:
        mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        target = os.readlink(path.name, dir_fd=folder)
        raise UserError(f"{path}: is a symbolic link to {target}, expected the name of a file to write")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is {kind_of(mode)}, expected the name of a file to write")


def kind_of(mode: int) -> str:
    """The kind of something that is not a regular file, in words, by its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def _temporary_name() -> str:
    return f".nnue-{secrets.token_hex(8)}.tmp"


def _create(folder: int) -> tuple[str, int]:
    """A new locked temporary file. The kernel takes the umask, or the folder's default ACL, into account."""
    while True:
        name = _temporary_name()
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
        try:
            system.lock(descriptor)
        except BlockingIOError:  # at this moment another writer took it for a dead writer's file and removes it
            os.close(descriptor)
            continue
        except OSError:  # no locks on this file system: then no other process can lock and remove the file
            pass
        if os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)


def _remove_dead(folder: int, *, unlocked: bool = False) -> None:
    for name in os.listdir(folder):
        if not _TEMPORARY.fullmatch(name):
            continue
        with suppress(OSError):  # it is another user's, or it is locked and so in use
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                try:
                    system.lock(descriptor)
                except BlockingIOError:
                    continue
                except OSError:  # no locks on this file system
                    if not unlocked:
                        continue
                if stat.S_ISREG(os.fstat(descriptor).st_mode) and system.is_named(descriptor, name, dir_fd=folder):
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(descriptor)


def _sync_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a folder
            raise
