"""Input files: small text files with a size limit, and data files by pattern or folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from nnue_trainer import _data
from nnue_trainer.errors import UserError, quoted

StrPath = str | os.PathLike[str]

DATA_SUFFIXES = (
    *(suffix for _, suffix, _ in [*_data.formats(), *_data.read_only_formats()]),
    *(".data", ".bf", ".viri"),  # of bulletformat and viriformat, as other programs name them
)
"""The suffixes by which data files in a folder are recognised; one of `PACKED_SUFFIXES` may follow."""
PACKED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")
"""The suffixes of compressed files that the data tools read."""

_BLOCK = 1 << 16


def read_text(path: StrPath, limit: int) -> str:
    """A text file of at most `limit` bytes. UserError if it cannot be read, is larger or is not UTF-8; a device or
    a file with holes is read no further than the limit."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if len(data) > limit:
        raise UserError(f"{path}: larger than {limit:,} bytes, which is the limit for such a file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8") from None


def data_files(names: Sequence[str], key: str) -> list[str]:
    """The files that `names` stand for: a file is itself, a folder the data files in it, and `*`, `?`, `[…]` and `**`
    are patterns. Those of one name come sorted. UserError, naming `key`, where a folder or pattern yields nothing; a
    missing file is left for its reader to report."""
    files: list[str] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found = [str(file) for file in path.iterdir() if _is_data(file)]
            endings, packed = " ".join(DATA_SUFFIXES), " ".join(PACKED_SUFFIXES)
            nothing = f"a folder without data files (names ending in {endings}, also with {packed})"
        elif path.exists() or not glob.has_magic(name):
            found, nothing = [name], ""
        else:
            found = [file for file in glob.glob(name, recursive=True) if Path(file).is_file()]  # noqa: PTH207
            nothing = "no file matches"
        if not found:
            raise UserError(f"{key}: {quoted(name)}: {nothing}")
        files += sorted(found)
    for file in files:
        if not file.isprintable() and any(0xD800 <= ord(character) <= 0xDFFF for character in file):
            raise UserError(f"{key}: {quoted(file)}: a name that is not UTF-8, which a recipe cannot hold; rename it")
    return files


def became(names: Sequence[str], files: Sequence[str]) -> str | None:
    """A line with the files that `data_files` found for `names`; None if it found just these names."""
    if list(names) == list(files):
        return None
    first = f"{files[0]} … {files[-1]}" if len(files) > 2 else ", ".join(files)
    return f"{', '.join(names)}: {len(files)} file{'s' * (len(files) > 1)}, {first}"


def _is_data(file: Path) -> bool:
    name = file.name.lower()
    for packed in PACKED_SUFFIXES:
        name = name.removesuffix(packed)
    return name.endswith(DATA_SUFFIXES) and not name.startswith(".") and file.is_file()
