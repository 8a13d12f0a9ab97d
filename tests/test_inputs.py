"""Small text files that are named on a command line: their limits."""

from pathlib import Path

import pytest

from nnue_trainer.errors import UserError
from nnue_trainer.files.inputs import read_lines, read_text


def test_lines_come_without_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "fens"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\nthree \xc3\xbc")
    assert list(read_lines(path)) == ["one", "two", "", "three ü"]
    assert read_text(path, 30).splitlines() == ["one", "two", "", "three ü"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"fine\n" + b"x" * 5000, "fens: line 2 is longer than 4,096 bytes"),
        (b"fine\nsch\xf6n\n", "fens: line 2: byte 3 is not UTF-8"),
        (b"line\n" * 300, "fens: larger than 1,000 bytes, which is the limit for such a file"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "fens").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        list(read_lines(tmp_path / "fens", limit=1000))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "sparse"])
def test_endless_files_end_soon(tmp_path: Path, path: str) -> None:
    """Read no further than the limits: a file of a terabyte of zeros takes no longer than a small one."""
    if path == "sparse":
        path = str(tmp_path / path)
        with Path(path).open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"longer than 4,096 bytes|is not UTF-8"):
        list(read_lines(path))
    with pytest.raises(UserError, match="larger than 1,000 bytes"):
        read_text(path, 1000)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, complaint in ((tmp_path, "Is a directory"), (tmp_path / "no", "no: No such file or directory")):
        with pytest.raises(UserError, match=complaint):
            list(read_lines(path))
        with pytest.raises(UserError, match=complaint):
            read_text(path, 1)
