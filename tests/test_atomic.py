"""Files that appear whole or not at all."""

import errno

import pytest

from nnue_trainer.atomic import replacing
from nnue_trainer.errors import UserError


def test_a_file_appears_whole(tmp_path):
    with replacing(tmp_path / "new" / "a") as temporary:
        temporary.write_text("whole")
        assert not (tmp_path / "new" / "a").exists()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a"]


def write_half(path, error):
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), UserError, "/a: cannot be written: No space left"),
        (ValueError("no"), ValueError, "no"),
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
