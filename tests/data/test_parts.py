"""Parts of data tools, which together are the whole, and shuffles that keep games."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from nnue_trainer.base.arrays import Records
from nnue_trainer.cli.engine_options import part_in
from nnue_trainer.data import room
from nnue_trainer.data.binpack import read_binpack
from nnue_trainer.data.files import Block, Part, PositionReader, PositionWriter
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.formats.base import format_named
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
    joined = tmp_path / f"joined.{suffix}"
    convert(parts, joined)
    assert joined.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("source", ["binpack", "shuffled.binpack", "plain"])
@pytest.mark.parametrize("count", [4000, 5])
def test_parts_are_the_whole_for_any_seed(tmp_path: Path, source: str, count: int) -> None:
    """Where neighbours follow each other by chance, where chunks end within a game, and where parts are empty."""
    few = tmp_path / f"few.{source}"
    with PositionWriter(tmp_path / "few.binpack") as writer:
        writer.write(read_binpack("samples/val.binpack")[:count])
    if source != "binpack":
        (shuffle if source.startswith("shuffled") else convert)([tmp_path / "few.binpack"], few)
    of = 7 if count == 5 else N

    def check(name: str, make: Callable[[Path, Part], object]) -> None:
        folder = tmp_path / name
        folder.mkdir()
        parts = [folder / f"{i}.binpack" for i in range(of)]
        make(folder / "whole.binpack", Part())
        for i, path in enumerate(parts):
            make(path, Part(i + 1, of))
        convert(parts, folder / "joined.binpack")
        assert (folder / "joined.binpack").read_bytes() == (folder / "whole.binpack").read_bytes(), name

    def shuffled(seed: int, *, by_game: bool) -> Callable[[Path, Part], object]:
        return lambda out, part: shuffle([few], out, seed=seed, by_game=by_game, part=part)

    check("convert", lambda out, part: convert([few, few], out, part=part))
    for seed in range(6):
        check(f"shuffle {seed}", shuffled(seed, by_game=False))
    if count > 5:
        check("filter", lambda out, part: filter_positions([few, few], out, Filters(quiet=True), part=part))
        for seed in range(3):
            check(f"by game {seed}", shuffled(seed, by_game=True))


@pytest.mark.parametrize("suffix", ["binpack", "vf"])
def test_games_that_lie_in_two_parts_are_joined(tmp_path: Path, suffix: str) -> None:
    """Chunks of text end within games."""
    text = tmp_path / "in.plain"
    convert(["samples/val.binpack"], text)
    parts = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for tool in (
        lambda out, part: convert([text], out, part=part),
        lambda out, part: filter_positions([text], out, Filters(min_ply=20), part=part),
        lambda out, part: shuffle([text], out, part=part),
    ):
        for path in [*parts, tmp_path / f"whole.{suffix}", tmp_path / f"joined.{suffix}"]:
            path.unlink(missing_ok=True)
        tool(tmp_path / f"whole.{suffix}", Part())
        for i, path in enumerate(parts):
            tool(path, Part(i + 1, 2))
        convert(parts, tmp_path / f"joined.{suffix}")
        assert (tmp_path / f"joined.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()


@pytest.mark.parametrize("format", ["binpack", "viriformat"])
@pytest.mark.parametrize("seed", range(12))
def test_seams_of_any_positions_are_joined(tmp_path: Path, format: str, seed: int) -> None:
    """Also where no two positions of a part follow each other, where parts have one or none, and after a shuffle."""
    rng = np.random.default_rng(seed)
    records = read_binpack("samples/val.binpack")[:300]
    kept = records[rng.random(len(records)) < rng.choice([0.02, 0.1, 0.5, 0.95])]
    if seed % 3 == 2:
        kept = rng.permutation(np.concatenate([kept, kept[:2]]))  # neighbours that follow each other by chance
    ends = [0, *np.sort(rng.integers(0, len(kept) + 1, rng.integers(1, 12))), len(kept)]

    def written(name: str, records: Records) -> Path:
        with PositionWriter(tmp_path / name, format) as writer:
            writer.write(records)
        return tmp_path / name

    parts = [written(f"{i}", kept[a:b]) for i, (a, b) in enumerate(pairwise(ends))]
    convert([path for path in parts if path.stat().st_size], tmp_path / "joined", to=format)
    assert (tmp_path / "joined").read_bytes() == written("whole", kept).read_bytes()


def test_a_forecast_reads_few_positions_where_a_filter_passes_none(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, real = [], PositionReader.blocks

    def counted(reader: PositionReader) -> Iterator[Block]:
        for block in real(reader):
            blocks.append(block)
            yield block

    monkeypatch.setattr(PositionReader, "blocks", counted)
    monkeypatch.setattr(room, "_SAMPLE", 10)
    with pytest.raises(ZeroDivisionError):
        room._estimate(inputs[0], 1 << 40, format_named("binpack"), None, True, Filters(min_ply=400), {})
    with PositionReader(inputs[0]) as reader:
        assert len(blocks) < sum(1 for _ in real(reader))


def test_a_forecast_is_that_of_the_file_where_the_reader_is_ahead(
    inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads may have read the last bytes when the first block comes."""
    monkeypatch.setattr(PositionReader, "done", property(lambda reader: reader.size))
    size, positions = inputs[0].stat().st_size, len(read_binpack(inputs[0]))
    found = room._estimate(inputs[0], size, format_named("binpack"), None, True, None, {})
    assert found == (pytest.approx(size, rel=0.01), positions)


def test_a_forecast_is_that_of_the_file_where_chunks_are_large(tmp_path: Path, project_root: Path) -> None:
    """The reader counts the bytes of a chunk when it begins or ends it, which may be many blocks away."""
    chunk = (project_root / "samples" / "train.binpack").read_bytes()  # five blocks
    (tmp_path / "large.binpack").write_bytes(chunk * 4)
    size = 1000 * len(chunk)
    found = room._estimate(tmp_path / "large.binpack", size, format_named("binpack"), None, True, None, {})[0]
    assert found == pytest.approx(size, rel=0.03)


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
    with pytest.raises(UserError, match="part 3/2: expected I/N with I from 1 to N"):
        convert(inputs, tmp_path / "x.binpack", part=Part(3, 2))
    assert not list(tmp_path.iterdir())


def test_the_numbers_of_a_slurm_array(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--part array: SLURM_ARRAY_TASK_ID is not set: run it in `sbatch --array`"):
        part_in("array")
    for task, first, last, count, expected in ((7, 7, 9, 3, (1, 3)), (20, 0, 30, 4, (3, 4)), (5, 5, 5, 1, (1, 1))):
        values = {"ID": task, "MIN": first, "MAX": last, "COUNT": count}
        for name, value in values.items():
            monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
        assert part_in("array") == expected
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "10")
    with pytest.raises(UserError, match="expected equal steps"):
        part_in("array")


def test_a_validation_of_chunks_counts_from_them(inputs: list[Path]) -> None:
    from nnue_trainer.data.files import files_of_part

    whole = sum(validated(path, None, lambda done, of: None).positions for path in inputs)
    parts = [one for i in range(N) for one in files_of_part(inputs, Part(i + 1, N))]
    assert sum(validated(path, chunks, lambda done, of: None).positions for path, chunks in parts) == whole
