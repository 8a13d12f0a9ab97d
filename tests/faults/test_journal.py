"""The journal of self-play: whatever tears it, no whole game is lost, and none appears that was not played."""

import errno
import fcntl
import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from waiting import SECONDS, wait_for

from nnue_trainer.base.status import InUse
from nnue_trainer.data.generate import GenerateOptions, generate
from nnue_trainer.data.journal import Journal
from nnue_trainer.errors import UserError
from nnue_trainer.files import lease

HEADER = {"seed": 1, "engine": "Fake 1"}


def games(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (int(rng.integers(1, 40)), 32), dtype=np.uint8) for _ in range(count)]


def write(path: Path, played: list[np.ndarray]) -> list[int]:
    """Writes a journal; returns where each game ends."""
    ends = []
    with Journal(path, HEADER) as journal:
        for game in played:
            journal.append(game)
            ends.append(path.stat().st_size)
    return ends


def read(path: Path) -> tuple[list[bytes], int]:
    with Journal(path, HEADER) as journal:
        return [game.tobytes() for game in journal.read()], journal.cut


def synced(monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
    monkeypatch.setattr("nnue_trainer.data.journal._SYNC_SECONDS", 0.0 if always else 1e9)


@pytest.mark.parametrize("fill", ["nothing", "zeros", "noise", "an older file"])
def test_a_tail_that_was_not_synced_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fill: str) -> None:
    """Cut anywhere and filled up to the old length, as file systems leave a file after a power cut."""
    synced(monkeypatch, always=False)
    played = games(30)
    path = tmp_path / "j"
    ends = write(path, played)
    whole = path.read_bytes()
    older = tmp_path / "older"
    write(older, games(30, seed=9))
    rng = random.Random(1)
    start = whole.index(b"\n") + 1
    for _ in range(200):
        size = rng.randint(start, len(whole))
        tail = {
            "nothing": b"",
            "zeros": bytes(len(whole) - size + rng.choice((0, 4096))),
            "noise": rng.randbytes(len(whole) - size),
            "an older file": older.read_bytes()[size : len(whole)],
        }[fill]
        path.write_bytes(whole[:size] + tail)
        # The seed is fixed: noise could by chance repeat the last byte that was cut off.
        complete = sum(end <= size for end in ends)
        found, cut = read(path)
        assert found == [game.tobytes() for game in played[:complete]]
        assert bool(cut) == (len(whole[:size] + tail) > ([start, *ends][complete]))
        assert path.exists() == bool(complete)  # without a game it would only stand in the way
        assert not complete or path.stat().st_size == ends[complete - 1]


def test_a_journal_that_was_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any byte of any game but the last one: what was on disk cannot be wrong because of a crash."""
    synced(monkeypatch, always=True)
    played = games(12)
    path = tmp_path / "j"
    ends = write(path, played)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    rng = random.Random(2)
    for _ in range(300):
        at = rng.randrange(start, ends[-2])
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        game = sum(end <= at for end in ends)
        with pytest.raises(
            UserError, match=rf"offset {[start, *ends][game]}: expected game {game}, found something else"
        ):
            read(path)
        assert path.read_bytes() == changed  # nothing of it is lost
    for first, last in ((0, 1), (3, 5)):  # games taken out
        path.write_bytes(whole[: [start, *ends][first]] + whole[[start, *ends][last] :])
        with pytest.raises(UserError, match=f"expected game {first}, found something else"):
            read(path)
    path.write_bytes(whole[: ends[4]] + whole[ends[3] :])  # one that is there twice
    with pytest.raises(UserError, match="expected game 5, found something else"):
        read(path)
    path.write_bytes(whole[: ends[-2]] + bytes(len(whole) - ends[-2]))  # the last one: played again
    assert read(path) == ([game.tobytes() for game in played[:-1]], len(whole) - ends[-2])


def test_a_file_of_another_run_stays(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, games(3))
    whole = path.read_bytes()
    with pytest.raises(UserError, match=r"belongs to a run with other options \(seed '1', here '2'\); finish that run"):
        Journal(path, HEADER | {"seed": 2})
    for content in (b"1,2,3\n4,5,6\n", b"\x00\x01", b"{}\n", b"[1]\n", b"x" * 3_000_000):
        path.write_bytes(content)
        with pytest.raises(UserError, match="belongs to a run with other options"):
            Journal(path, HEADER)
        assert path.read_bytes() == content
    path.write_bytes(whole)
    assert len(read(path)[0]) == 3


def test_a_journal_without_a_game_does_not_stand_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, HEADER):
        header = path.read_bytes()
    assert not path.exists()
    path.write_bytes(header)  # of a run that was killed
    with Journal(path, HEADER | {"seed": 2}) as journal:
        assert journal.games == 0
        assert path.read_bytes() != header


@pytest.mark.parametrize("before", [0, 2])
def test_a_signal_right_behind_a_game_loses_no_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """Not even the first one: before it is counted, its journal must not be deleted as an empty one."""
    path, played = tmp_path / "j", games(before + 1)
    write_all = Journal._write

    def write_and_stop(self: Journal, data: bytes) -> None:
        write_all(self, data)
        if self.games == before and len(data) > len(self._line):
            raise KeyboardInterrupt

    played[before] = np.zeros((100, 32), np.uint8)  # longer than the first line
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            write(path, played)
    assert read(path) == ([game.tobytes() for game in played], 0)


def test_only_regular_files_are_journals(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(UserError, match="is a symbolic link"):
        Journal(tmp_path / "link", HEADER)
    assert not target.exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        Journal(tmp_path / "pipe", HEADER)
    with Journal(tmp_path / "j", HEADER), pytest.raises(UserError, match="another run is writing it"):
        Journal(tmp_path / "j", HEADER)


def test_without_locks_a_lease_takes_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    monkeypatch.setattr(lease, "_SETTLE", 0.05)
    path, owner = tmp_path / "j", tmp_path / "j.owner"
    with Journal(path, HEADER) as journal:
        journal.append(games(1)[0])
        with pytest.raises(InUse, match=r"another run .* is writing it"):
            Journal(path, HEADER)
    assert not owner.exists()
    owner.write_text(json.dumps({"pid": 1, "host": "elsewhere", "token": "1", "lease": 0.1}))  # of a host that is gone
    with Journal(path, HEADER) as journal:
        assert journal.games == 1
        owner.write_text(json.dumps({"pid": 1, "host": "elsewhere", "token": "2"}))
        before = path.read_bytes()
        with pytest.raises(UserError, match="another process has taken it over"):
            journal.append(games(1)[0])
    assert path.read_bytes() == before
    assert json.loads(owner.read_text())["token"] == "2"


def test_the_file_is_synced_before_a_game_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of games that an entry calls synced was on disk when it was written."""
    sizes: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    synced(monkeypatch, always=True)
    path = tmp_path / "j"
    ends = write(path, games(5))
    assert [path.read_bytes().index(b"\n") + 1, *ends] == [size for size in sizes if size != tmp_path.stat().st_size]
    synced(monkeypatch, always=False)
    sizes.clear()
    other = tmp_path / "k"
    ends = write(other, games(5))
    assert sizes[-1] == ends[-1]  # when it is closed


def test_games_that_do_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync at a time, beside the games; at the end all are on disk."""
    synced(monkeypatch, always=True)
    played, path, real = games(4), tmp_path / "j", os.fsync
    go, sizes = threading.Event(), []

    def fsync(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert go.wait(SECONDS)
        sizes.append(os.fstat(descriptor).st_size)
        real(descriptor)

    with Journal(path, HEADER, waits=False) as journal:
        monkeypatch.setattr(os, "fsync", fsync)
        for game in played[:3]:
            journal.append(game)
        assert (journal._on_disk, sizes) == (0, [])
        go.set()
        wait_for(lambda: journal._syncing and journal._syncing[1].done())
        journal.append(played[3])
        assert journal._on_disk == 1
    assert sizes[-1] == path.stat().st_size
    assert read(path) == ([game.tobytes() for game in played], 0)


@pytest.mark.parametrize("at", ["the next game", "the end"])
def test_an_error_of_a_sync_beside_the_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    synced(monkeypatch, always=True)
    one, two = games(2)
    journal = Journal(tmp_path / "j", HEADER, waits=False)
    monkeypatch.setattr(os, "fsync", fail)
    journal.append(one)
    wait_for(lambda: journal._syncing and journal._syncing[1].done())
    message = "j: cannot be written: Input/output error"
    if at == "the next game":
        with pytest.raises(UserError, match=message):
            journal.append(two)
    with pytest.raises(UserError, match=message), journal:
        pass


def zero_filled(journal: Path, after: int) -> None:
    """A state that a power cut may leave: the length of the file is on disk, its last bytes are not."""
    content = journal.read_bytes()
    journal.write_bytes(content[:after] + bytes(len(content) - after + 4000))


def test_a_run_whose_journal_a_power_cut_filled_with_zeros(fake_engine: Callable[..., str], tmp_path: Path) -> None:
    options = GenerateOptions(
        engine=fake_engine(), positions=300, nodes=1, score_scale=1.0, max_ply=30, opening_score=2000
    )
    generate(tmp_path / "whole.binpack", options)
    out, journal = tmp_path / "out.binpack", tmp_path / "out.binpack.journal"

    def stop(positions: int, game: int) -> None:
        if game == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(out, options, progress=stop)
    zero_filled(journal, journal.stat().st_size - 500)
    notes: list[str] = []
    numbers: list[int] = []
    generate(out, options, progress=lambda _, game: numbers.append(game), note=notes.append)
    assert numbers[0] == 5  # the fourth was whole, the fifth is played again
    assert "are incomplete games, as after a crash; these games are played again" in notes[0]
    assert out.read_bytes() == (tmp_path / "whole.binpack").read_bytes()
