"""Text files and lists of positions that are named on a command line: their limits."""

from pathlib import Path

import pytest

from nnue_trainer.data.books import read_positions
from nnue_trainer.errors import UserError
from nnue_trainer.files.inputs import read_text

KINGS = b"4k3/8/8/8/8/8/8/4K3 w - -"


def test_lines_come_without_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "fens"
    path.write_bytes(b"\xef\xbb\xbf" + KINGS + b"\r\n" + KINGS + b"\n\n" + KINGS + b' id "\xc3\xbc"')
    assert list(read_positions(path)) == [KINGS.decode() + " 0 1"] * 3
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\nthree \xc3\xbc")
    assert read_text(path, 30).splitlines() == ["one", "two", "", "three ü"]


def test_what_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fens"
    path.write_bytes(KINGS + b"\n" + b"x" * 5000)
    with pytest.raises(UserError, match="fens: line 2: a line of more than 4096 characters"):
        list(read_positions(path))
    path.write_bytes(KINGS + b"\nsch\xf6n\n")
    with pytest.raises(UserError, match=r"fens: line 2: FEN 'sch\?n': 1 field,"):
        list(read_positions(path))
    with pytest.raises(UserError, match="fens: byte 29 is not UTF-8"):
        read_text(path, 1000)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "sparse"])
def test_endless_files_end_soon(tmp_path: Path, path: str) -> None:
    """Read no further than the limits: a file of a terabyte of zeros takes no longer than a small one."""
    if path == "sparse":
        path = str(tmp_path / path)
        with Path(path).open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"not a regular file|in no known format"):
        list(read_positions(path))
    with pytest.raises(UserError, match="larger than 1,000 bytes"):
        read_text(path, 1000)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, complaint in (
        (tmp_path, "Is a directory|not a regular file"),
        (tmp_path / "no", "no: No such file or directory"),
    ):
        with pytest.raises(UserError, match=complaint):
            list(read_positions(path))
        with pytest.raises(UserError, match=complaint):
            read_text(path, 1)
