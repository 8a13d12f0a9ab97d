"""Parts of data tools, which together are the whole, and shuffles that keep games."""

from pathlib import Path

import numpy as np
import pytest

from nnue_trainer.cli.engine_options import part_of
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.files import Part
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.mixing import game_lengths
from nnue_trainer.data.transform import convert, filter_positions, shuffle
from nnue_trainer.data.validation import validated
from nnue_trainer.errors import UserError

N = 3


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two binpacks of several chunks."""
    folder = tmp_path_factory.mktemp("inputs")
    files = []
    for name, first in (("a", "samples/train.binpack"), ("b", "samples/val.binpack")):
        content = Path(first).read_bytes() + Path("samples/val.binpack").read_bytes() * 2
        (folder / f"{name}.binpack").write_bytes(content)
        files.append(folder / f"{name}.binpack")
    return files


@pytest.mark.parametrize("suffix", ["binpack", "bin", "txt"])
@pytest.mark.parametrize("tool", ["convert", "filter", "shuffle", "by_game"])
def test_parts_are_the_whole(tmp_path: Path, inputs: list[Path], tool: str, suffix: str) -> None:
    def make(output: Path, part: Part) -> int:
        if tool == "convert":
            return convert(inputs, output, part=part).positions
        if tool == "filter":
            return filter_positions(inputs, output, Filters(quiet=True), part=part)[0].positions
        return shuffle(inputs, output, seed=3, by_game=tool == "by_game", part=part).positions

    whole, parts = tmp_path / f"whole.{suffix}", [tmp_path / f"{i}.{suffix}" for i in range(N)]
    positions = make(whole, Part())
    counts = [make(path, Part(i + 1, N)) for i, path in enumerate(parts)]
    assert sum(counts) == positions
    assert min(counts) > 0
    joined, again = tmp_path / f"joined.{suffix}", tmp_path / f"again.{suffix}"
    convert(parts, joined)
    convert([whole], again)
    assert joined.read_bytes() == again.read_bytes()
    if not (tool == "shuffle" and suffix == "binpack"):  # single positions, which convert may join
        assert joined.read_bytes() == whole.read_bytes()


def test_a_shuffle_by_game_keeps_chains(tmp_path: Path, inputs: list[Path]) -> None:
    for name, memory in (("plenty", 1 << 28), ("little", 1 << 20)):
        shuffle(inputs, tmp_path / f"{name}.binpack", seed=1, memory=memory, by_game=True)
    result = tmp_path / "plenty.binpack"
    assert result.read_bytes() == (tmp_path / "little.binpack").read_bytes()
    before = np.concatenate([read_binpack(path) for path in inputs])
    after = read_binpack(result)
    assert sorted(map(bytes, before)) == sorted(map(bytes, after))
    assert not np.array_equal(before, after)
    lengths = [sorted(game_lengths(records, np.ones(len(records), bool))) for records in (before, after)]
    assert abs(len(lengths[0]) - len(lengths[1])) < 0.05 * len(lengths[0])  # neighbours may look like one game
    assert result.stat().st_size < 1.1 * sum(path.stat().st_size for path in inputs)


def test_a_part_of_what_depends_on_the_place_is_refused(tmp_path: Path, inputs: list[Path]) -> None:
    with pytest.raises(UserError, match="--part: the filter random_skip depends on the positions before"):
        filter_positions(inputs, tmp_path / "x.binpack", Filters(random_skip=3), part=Part(1, 2))
    with pytest.raises(UserError, match="part 3/2: expected a number from 1 to 2"):
        convert(inputs, tmp_path / "x.binpack", part=Part(3, 2))
    assert not list(tmp_path.iterdir())


def test_the_numbers_of_a_slurm_array(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--part array: SLURM_ARRAY_TASK_ID is not set: run it in `sbatch --array`"):
        part_of("array")
    for task, first, last, count, expected in ((7, 7, 9, 3, (1, 3)), (20, 0, 30, 4, (3, 4)), (5, 5, 5, 1, (1, 1))):
        values = {"ID": task, "MIN": first, "MAX": last, "COUNT": count}
        for name, value in values.items():
            monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
        assert part_of("array") == expected
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "10")
    with pytest.raises(UserError, match="expected equal steps"):
        part_of("array")


def test_a_validation_of_chunks_counts_from_them(inputs: list[Path]) -> None:
    from nnue_trainer.data.files import files_of_part

    whole = sum(validated(path, None, lambda done, of: None).positions for path in inputs)
    parts = [one for i in range(N) for one in files_of_part(inputs, Part(i + 1, N))]
    assert sum(validated(path, chunks, lambda done, of: None).positions for path, chunks in parts) == whole
