"""Same format in and out: every byte survives, also those that no record holds.

Between formats, what is lost is counted.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from nnue_trainer import _data
from nnue_trainer.data import PositionReader, PositionWriter, RecordLoader
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.filters import FILTERS, Filters
from nnue_trainer.data.transform import convert, filter_positions, interleave, shuffle, split

FIXED = ("bin", "bulletformat", "marlinformat")
SIZES = {name: _data.original_bytes()[name][0] for name in FIXED}
SPARE = {name: slice(begin, end) for name, (_, begin, end) in _data.original_bytes().items()}


@pytest.fixture(params=SIZES)
def marked(request: pytest.FixtureRequest, tmp_path: Path, project_root: Path) -> tuple[str, Path]:
    """A file in a format, each of its positions with spare bytes of its own."""
    name = request.param
    path = tmp_path / "in"
    with PositionWriter(path, name) as writer:
        writer.write(read_binpack(project_root / "samples" / "val.binpack")[:9000])
    rows = np.fromfile(path, np.uint8).reshape(-1, SIZES[name])
    rows[:, SPARE[name]] = np.random.default_rng(1).integers(1, 256, rows[:, SPARE[name]].shape)
    if name == "bin":
        rows[::7, 31] = 0x80  # after the last bit that is used
    if name == "marlinformat":
        rows[rows[:, 26] == 1, 26] = 0  # "not recorded": read as 1
    rows.tofile(path)
    return name, path


def rows(path: Path, name: str) -> list[bytes]:
    data = path.read_bytes()
    return [data[i : i + SIZES[name]] for i in range(0, len(data), SIZES[name])]


def test_tools_keep_every_byte(marked: tuple[str, Path], tmp_path: Path) -> None:
    name, path = marked
    out = tmp_path / "out"
    assert not convert([path], out, to=name).losses
    assert out.read_bytes() == path.read_bytes()
    assert not convert([path], out, to=name, skip_bad=True, overwrite=True).losses
    assert out.read_bytes() == path.read_bytes()

    report, dropped = filter_positions([path], out, Filters(no_score=True, quiet=True), to=name, overwrite=True)
    assert not report.losses
    kept = rows(out, name)
    every = rows(path, name)
    assert len(every) == report.positions + sum(dropped.values())
    place = iter(every)
    assert all(row in place for row in kept)  # in order

    for memory in (1 << 16, 1 << 30):  # on the disk, and in memory
        shuffle([path], out, to=name, seed=3, memory=memory, overwrite=True)
        shuffled = rows(out, name)
        assert shuffled != every
        assert sorted(shuffled) == sorted(every)

    train, validation = tmp_path / "train", tmp_path / "validation"
    split([path], train, validation, share=0.3, to=name)
    assert sorted(rows(train, name) + rows(validation, name)) == sorted(every)
    interleave([train, validation], out, overwrite=True)
    assert sorted(rows(out, name)) == sorted(every)


def test_a_changed_score_keeps_the_spare_bytes(marked: tuple[str, Path], tmp_path: Path) -> None:
    name, path = marked
    convert([path], tmp_path / "out", to=name, score_scale=0.5)
    before, after = (np.fromfile(file, np.uint8).reshape(-1, SIZES[name]) for file in (path, tmp_path / "out"))
    np.testing.assert_array_equal(before[:, SPARE[name]], after[:, SPARE[name]])
    assert (before != after).any()


def test_another_format_counts_spare_bytes(marked: tuple[str, Path], tmp_path: Path) -> None:
    name, path = marked
    count = len(rows(path, name))
    expected = 0 if name == "bin" else count  # its padding is whatever a writer left there
    assert convert([path], tmp_path / "a.plain").losses.get("spare", 0) == expected
    assert shuffle([path], tmp_path / "b.binpack").losses.get("spare", 0) == expected
    report, _ = filter_positions([path], tmp_path / "c.plain", Filters(quiet=True))
    assert report.losses.get("spare", 0) == (report.positions if expected else 0)


def test_blocks_give_spare_bytes(marked: tuple[str, Path]) -> None:
    name, path = marked
    with PositionReader(path) as reader:
        spare: npt.NDArray[np.uint8] = np.concatenate([block.spare for block in reader.blocks()])
    np.testing.assert_array_equal(spare, np.fromfile(path, np.uint8).reshape(-1, SIZES[name])[:, SPARE[name]])


SPARE_FILTER = """
from nnue_trainer.data.filters import Filter
from nnue_trainer.schema import section


@section
class OddByte(Filter):
    def keep(self, records):
        raise NotImplementedError

    def keep_spare(self, records, spare):
        return spare[:, 0] % 2 == 1
"""


def test_filters_get_spare_bytes(marked: tuple[str, Path], tmp_path: Path) -> None:
    name, path = marked
    plugin = tmp_path / "odd.py"
    plugin.write_text(SPARE_FILTER)
    filters = replace(Filters.none(), extra=[FILTERS.find(f"{plugin}:OddByte")()])
    filter_positions([path], tmp_path / "out", filters, to=name)
    spare = np.fromfile(path, np.uint8).reshape(-1, SIZES[name])[:, SPARE[name]]
    assert len(rows(tmp_path / "out", name)) == (spare[:, 0] % 2 == 1).sum()
    with RecordLoader(path, 100, filters=filters, drop_last=False, threads=1) as loader:
        assert sum(map(len, loader)) == (spare[:, 0] % 2 == 1).sum()
