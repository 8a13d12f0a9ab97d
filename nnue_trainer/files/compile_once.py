"""Compiles C++ and CUDA sources at their first use and keeps the results: one library or program per source text.

A library's name has a hash of the source, the compiler, its version and its options. So what has changed is compiled
again, and nothing else is. Only sources that the caller hands over are compiled, never anything that the file of a net
or a checkpoint names.

A library is only loaded if no other user can have written it: it and its folder belong to this user, and no other user
may write to it or to any folder above it. Its digest lies beside it, and is written after the library is on disk: a
library that does not fit its digest, because the power failed or the disk did, is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from nnue_trainer.base.progress import Unfailing, progress_bar
from nnue_trainer.errors import UserError, shown
from nnue_trainer.files.atomic import replacing

_SHOWN_ERRORS = 3


def find_compiler(what: str) -> list[str]:
    """The C++ compiler: $CXX, or g++, c++ or clang++ on PATH. Errors name `what` needs it, such as "window
    functions"."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    found = f"$CXX is {' '.join(named)!r}, which does not exist" if named else "no g++, c++ or clang++"
    raise UserError(f"{what} need a C++20 compiler: {found}; install g++")


def find_nvcc(what: str) -> list[str]:
    """nvcc of $CUDA_HOME, on PATH or in its usual place."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for candidate in [f"{home}/bin/nvcc"] * bool(home) + ["nvcc", "/usr/local/cuda/bin/nvcc"]:
        if found := shutil.which(candidate):
            return [found]
    raise UserError(f"{what} need nvcc for CUDA, which is neither on PATH nor in $CUDA_HOME")


def cache_folder(kind: str) -> Path:
    """Where compiled things are kept: $XDG_CACHE_HOME/torch-nnue/KIND, by default below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        raise UserError(f"no home folder for compiled {_plural(kind)}: set XDG_CACHE_HOME") from None
    return home / "torch-nnue" / kind


def library_of(
    name: str,
    kind: str,
    source: str,
    suffix: str,
    command: list[str],
    flags: list[str],
    *,
    target: str = "the CPU",
    prefix: str = "",
    made_of: Callable[[Path], Iterable[Path]] | None = None,
    error_name: str | None = None,
    shorter: tuple[str, str] | None = None,
    is_program: bool = False,
) -> Path:
    """The shared library made of `source`, or the program. UserError with the compiler's first errors, or if it cannot
    be kept.

    Args:
        name: its name in messages; errors of the compiler use `error_name` if that is given.
        kind: its folder in the cache and its kind in messages, such as "window-functions".
        suffix: of the source, ".cpp" or ".cu".
        target: the GPU or processor that it is compiled for, in messages.
        prefix: of the library's name.
        made_of: given the source as a file, further files whose text matters.
        shorter: (path, text): errors of the compiler show the text instead of the path.
    """
    folder = cache_folder(kind)
    try:
        folder = _private(folder, kind)
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix="compiling-")
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written: {error.strerror}; set XDG_CACHE_HOME to another folder for compiled "
            f"{_plural(kind)}"
        ) from None
    with scratch as inner:
        unit, built = Path(inner) / f"source{suffix}", Path(inner) / "built.so"
        unit.write_text(source, encoding="utf-8")
        digest = hashlib.sha256(repr([source, command, flags, _version(command)]).encode())
        for path in () if made_of is None else made_of(unit):
            digest.update(path.read_bytes())
        library = folder / f"{prefix}{digest.hexdigest()[:24]}{'' if is_program else '.so'}"
        if _is_sound(library):
            return library
        print(f"nnue: {shown(name)}: compiling for {target}, once; kept in {shown(folder)}", file=Unfailing(sys.stderr))
        with progress_bar(f"compiling {name} for {target}"):
            shorter = shorter or ((f"{unit}(", "(") if suffix == ".cu" else (f"{unit}:", ""))  # nvcc has FILE(LINE)
            run([*command, *flags, str(unit), "-o", str(built)], error_name or name, shorter)
        content = built.read_bytes()
        for path, data in ((library, content), (_digest_file(library), _digest(content).encode())):
            with replacing(path) as output:
                os.fchmod(output.fd, 0o700 if is_program and path == library else 0o600)
                output.write_bytes(data)
    return library


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _is_sound(library: Path) -> bool:
    """Whether the library is there, complete, and only writable by this user."""
    try:
        found = os.lstat(library)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
        return is_own and _digest(library.read_bytes()) == _digest_file(library).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


def _private(folder: Path, kind: str) -> Path:
    """The folder, made if it is missing, as a path without links. UserError if another user may write to it, or to a
    folder above it: such a user could put another library there, or another folder."""
    for path in reversed([folder, *folder.parents]):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)
    real = Path(os.path.realpath(folder))
    for path in dict.fromkeys([folder, *folder.parents, real, *real.parents]):
        # A folder such as /tmp may stand above: with the sticky bit, only the owner can replace what is in it.
        may_be_shared = path not in (folder, real) and path.stat().st_mode & stat.S_ISVTX
        wrong = None
        if not {path.stat().st_uid, path.lstat().st_uid} <= {0, os.geteuid()}:
            wrong = "belongs to another user"
        elif path.stat().st_mode & 0o022 and not may_be_shared:
            wrong = f"can be written by other users (mode {path.stat().st_mode & 0o7777:o})"
        if wrong is not None:
            raise UserError(
                f"{shown(folder)}: compiled {_plural(kind)} cannot be kept there: {shown(path)} {wrong}; change that "
                "(chmod go-w), or set XDG_CACHE_HOME to a folder that only you can write to"
            )
    return real


def run(command: list[str], name: str, shorter: tuple[str, str]) -> str:
    """The output of a compiler. UserError with the first of its errors, in one line; see `library_of`."""
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=env, check=False)
    except OSError as error:
        raise UserError(f"{shown(command[0])}: cannot be run: {error.strerror}") from None
    if done.returncode == 0:
        return done.stdout
    said = (done.stderr + done.stdout).replace(*shorter)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line)] or lines or [f"status {done.returncode}"]
    errors = list(dict.fromkeys(errors))  # a template has its errors once for each type
    more = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
    first = "; ".join(shown(line) for line in errors[:_SHOWN_ERRORS])
    raise UserError(f"{shown(name)}: {Path(command[0]).name}: {first}{more}")


def included(
    compiler: list[str], flags: list[str], unit: Path, name: str, shorter: tuple[str, str] = ("", "")
) -> list[Path]:
    """Every file that a unit includes, without the system's; `name` and `shorter` are for errors."""
    listed = run([*compiler, *flags, "-MM", str(unit)], name, shorter)
    files = [Path(path.replace("\\ ", " ")) for path in re.findall(r"(?:\\ |\S)+", listed.partition(":")[2])]
    return sorted(path for path in files if path != unit and path.is_file())


def _version(command: list[str]) -> str:
    """The name and version that a compiler prints of itself."""
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"{shown(command[0])}: cannot be run: {error.strerror}") from None
    return said.stdout


def _plural(kind: str) -> str:
    return kind.replace("-", " ")
