"""The project's own player: rules, searches, options, and matches of nets without an engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Done

from nnue_trainer import nets
from nnue_trainer.errors import UserError
from nnue_trainer.export import QuantizedNet, net_from_checkpoint
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.match import own_player
from nnue_trainer.match.own_player import player_of, raw_bytes
from nnue_trainer.match.players import check_engine
from nnue_trainer.nets.engine_header import engine_header

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "examples" / "engine"
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
SIMPLE: dict[str, Any] = {"kind": "simple", "hidden": 32}


def saved(architecture: dict[str, Any], path: Path, seed: int = 1) -> Path:
    """A checkpoint of a net with random weights."""
    torch.manual_seed(seed)
    model = nets.build(architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.1)
        for bound in model.weight_bounds():
            bound.parameter[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    checkpoints.save(path, Checkpoint(model.architecture, {"model": model.state_dict()}))
    return path


def quantised(path: Path) -> QuantizedNet:
    return net_from_checkpoint(checkpoints.load(path), str(path), any_l1=True)


class Player:
    """Plays with a net; commands go in, lines come out."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def lines(self, *commands: str, status: int = 0) -> list[str]:
        text = "".join(f"{line}\n" for line in commands)
        done = subprocess.run(self.command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (status, ""), done.stderr
        return done.stdout.splitlines()

    def best(self, fen: str, limit: str, *moves: str, before: tuple[str, ...] = ()) -> tuple[str, str]:
        """The move and the score of the last line before it."""
        position = f"position fen {fen}" + (f" moves {' '.join(moves)}" if moves else "")
        *_, info, best = self.lines(*before, position, f"go {limit}")
        words = info.split()
        at = words.index("score")
        return best.removeprefix("bestmove "), " ".join(words[at + 1 : at + 3])


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    """The player with a simple net, compiled with sanitizers and all warnings."""
    folder = tmp_path_factory.mktemp("player")
    quantized = quantised(saved(SIMPLE, folder / "c.safetensors"))
    (folder / "net.bin").write_bytes(raw_bytes(quantized))
    (folder / "net.h").write_text(engine_header(quantized.net) or "")
    flags = "CXXFLAGS=-Werror -O2 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
    make = ["make", "-s", "-C", str(ENGINE), "player", f"NET={folder / 'net.bin'}", f"OUT={folder / 'player'}", flags]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Player([str(folder / "player"), str(folder / "net.bin")])


# Numbers of positions that are published for these positions.
PERFT = {
    START: {4: 197_281},
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1": {3: 97_862},
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1": {4: 43_238},
    "r2q1rk1/pP1p2pp/Q4n2/bbp1p3/Np6/1B3NBn/pPPP1PPP/R3K2R b KQ - 0 1": {3: 9_467},
    "rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8": {3: 62_379},
    "bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w HFhf - 2 9": {3: 12_189, 4: 326_672},
    "2nnrbkr/p1qppppp/8/1ppb4/6PP/3PP3/PPP2P2/BQNNRBKR w HEhe - 1 9": {3: 18_002, 4: 667_366},
}


def test_perft(player: Player) -> None:
    commands, expected = [], []
    for fen, counts in PERFT.items():
        for depth, count in counts.items():
            commands += [f"position fen {fen}", f"go perft {depth}"]
            expected.append(f"Nodes searched: {count}")
    assert player.lines("setoption name UCI_Chess960 value true", *commands) == expected


@pytest.mark.parametrize(
    ("fen", "move", "score"),
    [
        ("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", "a1a8", "mate 1"),
        ("r1bq2r1/b4pk1/p1pp1p2/1p2pP2/1P2P1PB/3P4/1PPQ2P1/R3K2R w - - 0 1", "d2h6", "mate 2"),
        ("kbK5/pp6/1P6/8/8/8/8/R7 w - - 0 1", "a1a6", "mate 2"),
        ("8/8/8/8/8/5k2/6q1/7K w - - 0 1", "0000", "mate 0"),
        ("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "0000", "cp 0"),  # stalemate
        ("k7/8/1K6/8/8/8/8/6R1 w - - 99 90", "g1g8", "mate 1"),  # before the 50 moves are over
    ],
)
def test_mates(player: Player, fen: str, move: str, score: str) -> None:
    assert player.best(fen, "nodes 30000") == (move, score)


def test_draws(player: Player) -> None:
    # A queen up, but every line ends after 50 moves, or with kings and one knight.
    assert player.best("7k/8/8/8/8/8/2Q5/K7 w - - 99 90", "depth 4")[1] == "cp 0"
    assert player.best("7k/8/8/8/8/8/1N6/K7 w - - 0 1", "depth 4")[1] == "cp 0"
    # White has one move, after which the position is there for the third time.
    shuffle = ("h1g1", "a2b2", "g1h1", "b2a2")
    fen = "8/8/8/8/8/7k/r7/7K w - - 0 1"
    assert player.best(fen, "depth 3", *shuffle, *shuffle) == ("h1g1", "cp 0")
    assert player.best(fen, "depth 3", *shuffle)[1] != "cp 0"


def test_the_same_nodes_give_the_same_game(player: Player) -> None:
    commands = ["position startpos moves e2e4", "go nodes 3000", "position startpos moves e2e4 e7e5", "go nodes 3000"]

    def moves(lines: list[str]) -> list[str]:
        return [" ".join(line.split(" time ")[0].split()) for line in lines if line != "readyok"]

    once = moves(player.lines(*commands))
    twice = moves(player.lines("isready", *commands, "ucinewgame", *commands))
    assert twice == once + once


def test_a_search_ends_at_its_limits(player: Player) -> None:
    for nodes in (1, 2, 10, 1000):
        *_, info, best = player.lines("position startpos", f"go nodes {nodes}")
        assert int(info.split(" nodes ")[1].split()[0]) <= nodes
        assert best.startswith("bestmove ")
    for limit in ("movetime 20", "wtime 100 btime 100 winc 5 binc 5", "wtime 50 btime 50 movestogo 1", "depth 1"):
        assert player.lines(f"go {limit}")[-1].startswith("bestmove ")
    assert player.lines("go infinite", "stop")[-1].startswith("bestmove ")
    assert player.lines("go infinite")[-1].startswith("bestmove ")  # the input ends


def test_castling_is_written_as_the_game_is_played(player: Player) -> None:
    fen = "4k3/8/8/8/8/8/8/4K2R w K - 0 1"
    assert player.lines(f"position fen {fen} moves e1g1", "go perft 1") == ["Nodes searched: 3"]
    chess960 = ("setoption name UCI_Chess960 value true", f"position fen {fen} moves e1h1", "go perft 1")
    assert player.lines(*chess960) == ["Nodes searched: 3"]


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (["setoption name EvalFile value no.bin"], "no.bin: cannot be opened"),
        (["setoption name Hash value many"], "Hash: found 'many', expected a number from 1 to 65536"),
        (["go nodes x"], "go nodes: found 'x', expected a number"),
        (["position startpos moves e2e5"], "position: e2e5 is not a legal move"),
        (["position fen 8/8 w"], "no position: expected a FEN with eight ranks"),
        (["position fen P6k/8/8/8/8/8/8/K7 w - - 0 1"], "a pawn on the first or last rank"),
        (["position fen 7k/7R/8/8/8/8/8/K7 w - - 0 1"], "the side to move can take the king"),
        (["position fen 7k/8/8/8/8/8/8/K7 w Q - 0 1"], "castling Q without its king and rook"),
    ],
)
def test_wrong_commands(player: Player, commands: list[str], message: str) -> None:
    (line,) = player.lines(*commands, status=1)
    assert line.startswith("info string ERROR: ")
    assert message in line


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for programs; tests of one module share them."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
def test_a_match_of_nets_without_an_engine(
    tmp_path: Path, nnue: Callable[..., Done], compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(compiled))
    a = saved(SIMPLE, tmp_path / "a.safetensors")
    b = saved(SIMPLE, tmp_path / "b.safetensors", seed=2)
    assert nnue("export", b, tmp_path / "b.nnue").returncode == 0
    games: list[Any] = []
    for folder, pairs in (("whole", 10), ("parts", 4), ("parts", 10)):
        done = nnue(
            "match", a, tmp_path / "b.nnue", "--nodes", 200, "--pairs", pairs, "-o", tmp_path / folder, "--json"
        )
        assert done.returncode == 0, done.stderr
        assert ("compiling for the CPU, once" in done.stderr) == (not games)
        assert "same net" not in done.stderr
        games.append(json.loads(done.stdout)["games"])
    assert len(games[0]) == 20
    assert games[0] == games[2]
    assert not any(game.get("fault") for game in games[0])
    done = nnue("match", b, tmp_path / "b.nnue", "--nodes", 1, "--pairs", 1, "-o", tmp_path / "equal")
    assert "nnue: note: b and b #2 are the same net with the same options\n" in done.stderr


@pytest.mark.slow
def test_the_player_plays_with_nets_of_each_kind(
    tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(compiled))
    header = ROOT / "examples" / "extending" / "my_features.h"
    from nnue_trainer.data import feature_set

    inputs = feature_set(f"HalfKAv2_hm + {header}:Neighbours", may_import=True).name
    for number, architecture in enumerate(
        ({"kind": "sfnnv16", "l1": 64}, {"kind": "layered", "inputs": inputs, "hidden": 32})
    ):
        net = quantised(saved(architecture, tmp_path / f"{number}.safetensors"))
        own = player_of(net, tmp_path, "net")
        assert own.options["UnitsPerPawn"] == ("100" if number else "208")
        found = Player([own.program, own.options["EvalFile"]])
        assert found.best("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", "nodes 1000") == ("a1a8", "mate 1")


def test_what_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = quantised(saved(SIMPLE, tmp_path / "c.safetensors"))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"^matches without an engine need a C\+\+20 compiler: .*; install g\+\+$"):
        player_of(net, tmp_path, "net")
    with pytest.raises(UserError, match=r"^matches without an engine need a C\+\+20 compiler"):
        check_engine(SIMPLE, {}, None, {}, "EvalFile")
    monkeypatch.setattr(own_player, "engine_header", lambda net: None)
    with pytest.raises(
        UserError, match=r"^net: the player does not support nets like this one .simple of Chess768.; name"
    ):
        player_of(net, tmp_path, "net")
    assert not list(tmp_path.glob("nn-*"))
