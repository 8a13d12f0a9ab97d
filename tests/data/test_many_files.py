"""Files that are read and counted in several threads: every figure, line and error is the one of a single thread."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnue_trainer import _data
from nnue_trainer.analysis.data_profile import as_dict, data_profile
from nnue_trainer.data import files, many_files
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.info import file_info
from nnue_trainer.data.transform import convert
from nnue_trainer.data.validation import validated
from nnue_trainer.errors import UserError

TOOLS: dict[str, Callable[[Path, int], Any]] = {
    "info": lambda path, threads: file_info(path, None, threads).as_dict(),
    "validate": lambda path, threads: (
        (found := validated(path, None, lambda done, of: None, threads)).as_dict(), found.lines(), found.changes,
    ),
    "profile": lambda path, threads: as_dict(data_profile(path, None, threads)),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    made = {name: folder / name for name in ("chains", "records", "text", "crlf", "packed", "torn", "damaged")}
    content = Path("samples/val.binpack").read_bytes()
    made["chains"].write_bytes(content * 4)
    made["torn"].write_bytes((content * 4)[:-5])
    made["damaged"].write_bytes(content * 2 + content[:50_000] + b"\xff" * 100 + content[50_100:] + content)
    made["packed"].write_bytes(gzip.compress(content * 3, 1))
    convert([made["chains"]], made["records"], to="bin")
    convert([Path("samples/val.binpack")], made["text"], to="text")
    made["crlf"].write_bytes(made["text"].read_bytes().replace(b"\n", b"\r\n"))
    return made


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks and ranges so small that a file has many. Collects the sizes of the ranges in chunks."""
    ranges: list[int] = []
    own = many_files._RangesReader._ranges

    def collected(self: Any) -> Any:
        for found in own(self):
            ranges.append(found.end - found.begin)
            yield found

    monkeypatch.setattr(files, "BLOCK", 4096)
    monkeypatch.setattr(many_files, "BLOCK", 4096)
    monkeypatch.setattr(many_files, "_RANGE", 1 << 16)
    monkeypatch.setattr(many_files._RangesReader, "_ranges", collected)
    return ranges


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", ["chains", "records", "text", "crlf", "packed"])
def test_threads_do_not_change_the_result(
    inputs: dict[str, Path], name: str, tool: str, small_blocks: list[int]
) -> None:
    one, three = (json.dumps(TOOLS[tool](inputs[name], threads), default=str) for threads in (1, 3))
    assert one == three
    # Records of one size and compressed files have one reader, whose blocks are counted in threads.
    assert bool(small_blocks) == (name in ("chains", "text", "crlf"))


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", ["torn", "damaged"])
def test_an_error_is_the_one_of_a_single_thread(inputs: dict[str, Path], name: str, tool: str) -> None:
    lines = []
    for threads in (1, 3):
        with pytest.raises(UserError) as caught:
            TOOLS[tool](inputs[name], threads)
        lines.append(str(caught.value))
    assert lines[0] == lines[1]
    assert "chunk" in lines[0]


def test_a_part_of_a_file_is_divided_again(inputs: dict[str, Path], small_blocks: list[int]) -> None:
    ((path, chunks),) = files.files_of_part([inputs["chains"]], files.Part(2, 2))
    found = [validated(path, chunks, lambda done, of: None, threads).as_dict() for threads in (1, 2)]
    assert found[0] == found[1]
    assert chunks is not None
    assert sum(small_blocks) == chunks.end - chunks.begin == 2


def test_joined_counts_are_those_of_the_whole() -> None:
    """Wherever a file is divided: also between two positions of a game whose result changes."""
    records = read_binpack("samples/val.binpack")[:3000].copy()
    rng = np.random.default_rng(1)
    changed = rng.random(len(records)) < 0.2
    records[changed, 28] = records[changed, 28] & 0x3F | rng.integers(0, 3, changed.sum()).astype(np.uint8) << 6
    records[::97, 26:28] = 0xFF  # a score beyond mate
    whole, statistics = _data.Validator(), _data.Statistics()
    whole.add(records)
    statistics.add(records)
    assert whole.result_changes[1] > 100
    for step in (1, 7, 1024):
        joined, sums = _data.Validator(), _data.Statistics()
        for part in np.split(records, range(0, len(records), step)):  # the first one is empty
            checked, counted = _data.Validator(), _data.Statistics()
            checked.add(part)
            counted.add(part)
            joined.join(checked)
            sums.join(counted)
        assert (joined.positions, joined.problems) == (whole.positions, whole.problems)
        assert joined.result_changes == whole.result_changes
        for name in (name for name, kind in vars(_data.Statistics).items() if isinstance(kind, property)):
            assert getattr(sums, name) == getattr(statistics, name), name


def test_joined_profiles_are_the_whole() -> None:
    """Also where blocks are joined meanwhile, and parts are smaller than a block."""
    records = np.tile(read_binpack("samples/val.binpack"), (20, 1))[:600_000]
    whole, joined = _data.Profile(), _data.Profile()
    whole.add(records)
    earlier = joined.block_size
    for number, block in enumerate(np.split(records, range(512, len(records), 512))):
        if number % 3:
            earlier = joined.block_size
        part = _data.Profile()
        part.add_part(block, earlier)
        joined.join(part, block)
    assert joined.block_size == whole.block_size == 1024
    assert (joined.blocks == whole.blocks).all()
    assert (joined.calibration == whole.calibration).all()
    assert (joined.distinct, joined.duplicate_share) == (whole.distinct, whole.duplicate_share)
    part = _data.Profile()
    part.add_part(records[:300], 256)
    with pytest.raises(UserError, match="a part of a profile with other positions"):
        whole.join(part, records[:299])
    with pytest.raises(UserError, match="does not begin with a block"):
        whole.join(part, records[:300])


def test_no_thread_is_left_after_an_interruption(inputs: dict[str, Path]) -> None:
    import threading

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        file_info(inputs["chains"], stop, 3)
    assert threading.active_count() <= before
