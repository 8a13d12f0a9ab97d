"""Keeps the inputs of the fuzz targets in one archive, corpus.tar.xz: a folder for each target, a file for each input.

    python data_loader/fuzz/corpus.py add TARGET FILE...    # inputs join the archive, named by their SHA-1
    python data_loader/fuzz/corpus.py unpack FOLDER         # or: tar -xJf data_loader/fuzz/corpus.tar.xz -C FOLDER

Adding an input that is there already changes nothing. The same inputs give the same archive.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parent / "corpus.tar.xz"


def read(archive: Path = ARCHIVE) -> dict[str, bytes]:
    """The files of an archive by their names, which are TARGET/NAME for inputs."""
    with tarfile.open(archive) as file:
        return {member.name: file.extractfile(member).read() for member in file}  # type: ignore[union-attr]


def write(files: dict[str, bytes], archive: Path = ARCHIVE) -> None:
    """The archive of these files: no owner and no time, so equal files give equal bytes. `benchmarks/archive.py` uses
    it too."""
    partial = archive.with_suffix(".partial")
    with tarfile.open(partial, "w:xz", preset=9) as file:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    partial.replace(archive)


def add(target: str, paths: list[Path], archive: Path = ARCHIVE) -> int:
    """Adds files to the inputs of a target. Returns how many of them were not there."""
    inputs = read(archive)
    targets = sorted({name.partition("/")[0] for name in inputs})
    if target not in targets:
        raise SystemExit(f"target {target!r}: expected one of {', '.join(targets)}")
    before = len(inputs)
    there = {hashlib.sha1(content).digest() for name, content in inputs.items() if name.startswith(target + "/")}
    for content in (path.read_bytes() for path in paths):
        if hashlib.sha1(content).digest() not in there:
            inputs[f"{target}/{hashlib.sha1(content).hexdigest()}"] = content
    if len(inputs) > before:
        write(inputs, archive)
    return len(inputs) - before


def main(arguments: list[str]) -> None:
    match arguments:
        case ["add", target, *paths] if paths:
            print(f"{add(target, [Path(path) for path in paths])} of {len(paths)} inputs are new to {target}")
        case ["unpack", folder]:
            for name, content in read().items():  # extractall has its argument `filter` since Python 3.11.4 only
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
