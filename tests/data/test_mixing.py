"""The expected share of positions with another one of their game in their batch, against loaders."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nnue_trainer.data import RecordLoader, records_from_fens
from nnue_trainer.data.binpack import write_binpack
from nnue_trainer.data.filters import Filters
from nnue_trainer.data.mixing import game_lengths

FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -"
CHUNKS, GAMES, PLIES = 24, 20, 30


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of 30 positions; the rule-50 counter is the number of the game."""
    folder = tmp_path_factory.mktemp("games")
    parts = b""
    for chunk in range(CHUNKS):
        games = range(GAMES * chunk, GAMES * (chunk + 1))
        fens = [f"{FEN} {game} {move}" for game in games for move in range(9, 9 + PLIES)]
        write_binpack(folder / "part", records_from_fens(fens))
        parts += (folder / "part").read_bytes()
    (folder / "games.binpack").write_bytes(parts)
    return folder / "games.binpack"


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("buffer", [1200, 4800, 1 << 20])
def test_the_expected_share_is_that_of_a_loader(file: Path, buffer: int, shards: int) -> None:
    loader = RecordLoader(file, 100, shuffle_buffer=buffer, seed=4, repeat=True, shards=shards, filters=Filters.none())
    mixing = loader.mixing()
    assert mixing is not None
    mates = positions = 0
    for batch, _ in zip(loader, range(4 * CHUNKS * GAMES * PLIES // 100), strict=False):
        games = (batch[:, 30].int() * 256 + batch[:, 31].int()).tolist()
        count = Counter(games)
        mates += sum(count[game] > 1 for game in games)
        positions += len(games)
    loader.close()
    assert mixing.mates == pytest.approx(mates / positions, rel=0.1)
    assert mixing.chunks == pytest.approx(min(buffer, CHUNKS * GAMES * PLIES) / (GAMES * PLIES))


def test_a_small_buffer_is_told_with_one_that_is_enough(file: Path) -> None:
    def mixing(buffer: int, batch: int = 100) -> tuple[str, int | None]:
        with RecordLoader(file, batch, shuffle_buffer=buffer, filters=Filters.none()) as loader:
            found = loader.mixing()
            assert found is not None
            return found.warning, found.enough

    assert mixing(1 << 20) == ("", None)  # all of the data
    warning, enough = mixing(600, 20)
    assert "mixes 1 chunk at a time, and 61% of the positions have another one of their game" in warning
    assert enough is not None
    assert mixing(enough, 20) == ("", None)
    with RecordLoader(file, 100, shuffle=False) as loader:
        assert loader.mixing() is None


def test_games_and_what_filters_leave_of_them() -> None:
    records = records_from_fens([f"{FEN} 0 {move}" for move in (1, 2, 3, 1, 2, 9, 4)])
    assert game_lengths(records, np.ones(7, bool)).tolist() == [3, 3, 1]
    assert game_lengths(records, np.array([1, 0, 1, 0, 0, 0, 1], bool)).tolist() == [2, 1]
    assert game_lengths(records[:0], np.zeros(0, bool)).tolist() == []
