"""The cache of compiled libraries: no other user can put one there, and an incomplete one is compiled again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nnue_trainer.errors import UserError
from nnue_trainer.files import compile_once

SOURCE = "the text of a source"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the libraries; a compiler that takes no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torch-nnue" / "things"


@pytest.fixture
def compiler(tmp_path: Path) -> tuple[list[str], Path]:
    """`compiler FLAGS SOURCE -o TARGET` copies the source, and appends a line to the file that comes with it."""
    script, log = tmp_path / "compiler", tmp_path / "log"
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\necho built >> "{log}"\ncp "$1" "$3"\n')
    script.chmod(0o755)
    log.touch()
    return [str(script)], log


def build(compiler: tuple[list[str], Path]) -> tuple[Path, int]:
    """The library, and how often one has been compiled so far."""
    command, log = compiler
    library = compile_once.library_of("thing", "things", SOURCE, ".cpp", command, [])
    assert library.read_text() == SOURCE
    return library, len(log.read_text().splitlines())


def test_it_is_compiled_once(cache: Path, compiler: tuple[list[str], Path]) -> None:
    library, built = build(compiler)
    assert (library.parent, built) == (cache, 1)
    assert build(compiler) == (library, 1)
    assert {path.suffix for path in cache.iterdir()} == {".so", ".sha256"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in cache.iterdir())


def give(path: Path, user: int) -> None:
    """Skips the test where this process may not, as without CAP_CHOWN or in a user namespace."""
    try:
        os.chown(path, user, -1)
    except OSError as error:
        pytest.skip(f"no file can be given to another user here: {error.strerror}")


@pytest.mark.parametrize("what", ["half", "other", "no digest", "half a digest", "writable", "a link", "another's"])
def test_what_does_not_fit_is_compiled_again(
    cache: Path, compiler: tuple[list[str], Path], what: str, tmp_path: Path
) -> None:
    library, _ = build(compiler)
    digest = library.with_suffix(".sha256")
    if what == "half":
        os.truncate(library, len(SOURCE) // 2)
    elif what == "other":
        library.write_bytes(bytes(len(SOURCE)))
    elif what == "no digest":
        digest.unlink()
    elif what == "half a digest":
        os.truncate(digest, 10)
    elif what == "writable":
        library.chmod(0o666)
    elif what == "a link":
        shutil.move(library, tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
        with pytest.raises(UserError, match="a symbolic link"):
            build(compiler)
        return
    else:
        give(library, 12345)
    assert build(compiler) == (library, 2)
    assert build(compiler) == (library, 2)


def test_what_is_on_disk_is_whole(
    cache: Path, compiler: tuple[list[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both files are synced before they get their names, the library first."""
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        events.append(f"sync {os.fstat(fd).st_size}")
        fsync(fd)

    def renamed(source: str, target: str, **folders: int) -> None:
        events.append(f"rename {Path(target).suffix}")
        rename(source, target, **folders)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    build(compiler)
    assert events.index(f"sync {len(SOURCE)}") < events.index("rename .so") < events.index("rename .sha256")


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(
    cache: Path, compiler: tuple[list[str], Path], depth: int, mode: int
) -> None:
    """At every height: the folder, and those above it."""
    build(compiler)
    folder = [cache, *cache.parents][depth]
    folder.chmod(mode)
    with pytest.raises(UserError, match=r"things: compiled things cannot be kept there: .+ can be written by other"):
        build(compiler)
    folder.chmod(0o700)


def test_a_folder_of_another_user_is_refused(cache: Path, compiler: tuple[list[str], Path]) -> None:
    build(compiler)
    for folder in (cache, cache.parent, cache.parents[1]):
        give(folder, 12345)
        with pytest.raises(UserError, match=rf"{folder} belongs to another user"):
            build(compiler)
        give(folder, os.geteuid())


def test_folders_are_made_for_this_user_alone(cache: Path, compiler: tuple[list[str], Path]) -> None:
    """Whatever the umask; a sticky folder such as /tmp may stand above."""
    cache.parents[2].chmod(0o1777)
    before = os.umask(0)
    try:
        build(compiler)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (cache, cache.parent, cache.parents[1])] == [0o700] * 3
    cache.parents[2].chmod(0o700)


def test_links_to_the_folder_are_followed_once(
    cache: Path, compiler: tuple[list[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's path has no links, which could lead elsewhere later."""
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    (tmp_path / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert build(compiler)[0].parent == cache
