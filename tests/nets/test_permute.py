"""`nnue permute`: other orders of neurons change no evaluation, and gain as many zero blocks as can be had."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import my_net  # noqa: F401 (registers a net that states its arithmetic in Python)
import numpy as np
import pytest
import torch
from cases import some
from golden import golden_net
from net_support import random_checkpoint
from typed import present

from nnue_trainer import data
from nnue_trainer.analysis import neuron_order
from nnue_trainer.analysis.permute import permute, permuted, permuted_checkpoint
from nnue_trainer.base.status import PREEMPTED, Preempted
from nnue_trainer.errors import UserError
from nnue_trainer.export import evaluate, net_from_checkpoint, read_net, to_bytes, write_net
from nnue_trainer.export.check_positions import random_positions
from nnue_trainer.files import checkpoint as checkpoints
from nnue_trainer.nets import NETS
from nnue_trainer.nets.stockfish_net import StockfishNet
from nnue_trainer.stats import graph
from nnue_trainer.stats.random import Philox

KINDS = [kind for kind, net in NETS.kinds().items() if issubclass(net, StockfishNet)]
LAYERED: dict[str, dict[str, Any]] = {
    "pairwise": {"activation": "pairwise", "layers": [{"outputs": 16, "activation": "dual"}, {"outputs": 32}]},
    "screlu": {"activation": "screlu", "layers": [{"outputs": 8}], "output_buckets": {"count": 8}},
    "crelu, skips": {
        "activation": "crelu",
        "inputs": ["HalfKAv2_hm", "PP_3Wide"],
        "psqt": True,
        "layers": [{"outputs": 16, "skip": "last", "to_output": True}, {"outputs": 32}],
    },
}


@pytest.fixture(scope="module")
def records() -> np.ndarray:
    return data.records_from_fens(list(islice(random_positions(7), 10_000)))


def same(a: Any, b: Any, records: np.ndarray) -> bool:
    before, after = evaluate(a, records), evaluate(b, records)
    assert np.abs(before.score).max() > 0
    return all(np.array_equal(getattr(before, f), getattr(after, f)) for f in ("psqt_raw", "positional_raw", "score"))


def is_order(order: np.ndarray) -> bool:
    return np.array_equal(np.sort(order), np.arange(len(order)))


@pytest.mark.parametrize("kind", some(KINDS, every=3))
def test_every_stockfish_net(kind: str, records: np.ndarray) -> None:
    """Bit for bit, on 10,000 positions, in every stack."""
    net = golden_net(kind, l1=64)
    found = permute(net, records)
    assert is_order(found.order)
    assert not np.array_equal(found.order, np.arange(len(found.order)))
    assert same(net, found.net, records)
    assert to_bytes(found.net) != to_bytes(net)
    assert found.after.share >= found.before.share - 0.01
    assert found.positions + found.held_out == len(records)


@pytest.mark.parametrize("name", LAYERED)
def test_layered_nets_and_their_checkpoints(name: str, records: np.ndarray) -> None:
    """A checkpoint in another order exports to the net in that order."""
    saved = random_checkpoint({"kind": "layered", "hidden": 64, **LAYERED[name]})
    saved = replace(saved, tensors=saved.tensors | {"optimizer": {"step": torch.zeros(1)}}, state={"step": 5})
    net = net_from_checkpoint(saved, "c")
    found = permute(net, records[:2000], "greedy")
    assert same(net, found.net, records)
    moved = permuted_checkpoint(saved, net.net, found.order, "c")
    assert to_bytes(net_from_checkpoint(moved, "c")) == to_bytes(found.net)
    assert moved.tensors.keys() == {"model"}
    assert moved.state == {}


def test_checkpoints_of_imported_nets(records: np.ndarray) -> None:
    """With the padding that a foreign net has, and rows that share one of the net."""
    from nnue_trainer.export import checkpoint_from_net

    for kind in ("sfnnv5", "sfnnv2"):
        net = golden_net(kind, l1=64)
        saved = checkpoint_from_net(net, "net")
        order = np.random.default_rng(1).permutation(
            32 if present(net.net.integer_forward()).first.activation == "pairwise" else 64
        )
        moved = permuted_checkpoint(saved, net.net, order, "net")
        assert to_bytes(net_from_checkpoint(moved, "net", any_l1=True)) == to_bytes(permuted(net, order))


def planted(groups: int, samples: int, seed: int) -> torch.Tensor:
    """Flags [samples, 4 · groups] of neurons that are active in fours, and in between now and then alone, shuffled."""
    numbers = Philox(seed)
    together = numbers.uniform((samples, groups)) < numbers.uniform(groups, 0.1, 0.5)
    active = together.repeat_interleave(4, dim=1) & (numbers.uniform((samples, 4 * groups)) < 0.9)
    return active[:, numbers.uniform(4 * groups).argsort()]


@pytest.mark.parametrize("method", neuron_order.METHODS)
def test_groups_are_found(method: str) -> None:
    """Each method finds the fours that were planted: as many zero blocks as there were in order."""
    active = planted(24, 3000, 3)
    bits = graph.pack_bits(active)
    best = 1 - planted_share(active)
    found = neuron_order.order(bits, len(active), method)
    assert is_order(found.neurons.numpy())
    assert found.zeros == pytest.approx(best, abs=1e-12)
    assert found.zeros >= found.first
    assert found.zeros > neuron_order.zero_share(bits, len(active)) + 0.1
    again = neuron_order.order(bits, len(active), method)
    assert torch.equal(found.neurons, again.neurons)


def planted_share(active: torch.Tensor) -> float:
    """The share of planted groups of four that are active, found by their correlations."""
    close = torch.corrcoef(active.double().T).topk(4, dim=1).indices.sort(dim=1).values.unique(dim=0)
    assert len(close) == active.shape[1] // 4
    return active[:, close].any(2).double().mean().item()


def test_zero_share_by_definition() -> None:
    active = planted(3, 500, 1)
    bits = graph.pack_bits(active)
    order = torch.tensor([5, 0, 3, 7, 1, 2, 4, 6, 11, 10, 9, 8])
    expected = (~active[:, order].view(500, 3, 4).any(2)).double().mean().item()
    assert neuron_order.zero_share(bits[order], 500) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("method", neuron_order.METHODS)
def test_two_blocks_are_the_best_two(method: str) -> None:
    """All 35 ways are tried for 8 neurons; exchanges of single neurons find the best of them nearly always."""
    missed = 0
    for seed in range(20):
        numbers = Philox(seed)
        active = numbers.uniform((400, 8)) < numbers.uniform(8, 0.05, 0.6)
        active |= numbers.uniform((400, 1)) < 0.2
        active &= numbers.uniform((400, 8)) < 0.8
        bits = graph.pack_bits(active)
        ways = ([0, *c, *(set(range(1, 8)) - set(c))] for c in itertools.combinations(range(1, 8), 3))
        best = max(neuron_order.zero_share(bits[torch.tensor(way)], 400) for way in ways)
        found = neuron_order.order(bits, 400, method)
        assert found.zeros <= best + 1e-12
        missed += found.zeros < best - 1e-12
    assert missed <= 2


def test_nets_without_a_sparse_layer(records: np.ndarray) -> None:
    simple = net_from_checkpoint(random_checkpoint({"kind": "simple", "hidden": 32}), "c")
    with pytest.raises(UserError, match=r"^here: simple.* has no layer between the first and the output, so no zeros"):
        permute(simple, records[:10], where="here")
    with pytest.raises(UserError, match="found 4 positions, expected 5 or more"):
        permute(golden_net("sfnnv5", l1=32), records[:4])


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, records: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("permute")
    write_net(golden_net("small128"), folder / "net.nnue")
    checkpoints.save(
        folder / "c.safetensors", random_checkpoint({"kind": "layered", "hidden": 32, **LAYERED["screlu"]})
    )
    checkpoints.save(folder / "simple.safetensors", random_checkpoint({"kind": "simple", "hidden": 32}))
    with data.PositionWriter(folder / "some.bin") as writer:
        writer.write(records[:3000])
        writer.commit()
    return folder


def test_command(nnue, files: Path, tmp_path: Path, records: np.ndarray) -> None:
    out = tmp_path / "out.nnue"
    some, picture = files / "some.bin", tmp_path / "p.png"
    done = nnue("permute", files / "net.nnue", out, "--data", some, "--engine", "none", "--png", picture)
    assert done.returncode == 0, done.stderr
    assert "zero blocks" in done.stdout
    assert "the same on all 3,000 positions" in done.stdout
    assert same(read_net(files / "net.nnue"), read_net(out), records[:500])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_command_killed_between_its_net_and_its_picture_makes_both(
    nnue, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, picture = tmp_path / "out.nnue", tmp_path / "p.png"
    words = ("permute", files / "net.nnue", out, "--data", files / "some.bin", "--engine", "none", "--png", picture)

    def killed(*_: object) -> None:
        raise Preempted

    with monkeypatch.context() as changed:
        changed.setattr("nnue_trainer.files.pages.plots.save_png", killed)
        assert nnue(*words).returncode == PREEMPTED
    written = out.read_bytes()
    done = nnue(*words)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.nnue", "p.png"]


def test_command_with_checkpoints(nnue, files: Path, tmp_path: Path, records: np.ndarray) -> None:
    out = tmp_path / "out.safetensors"
    arguments = ("permute", files / "c.safetensors", out, "--data", files / "some.bin", "--engine", "none", "--json")
    done = nnue(*arguments)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert sorted(answer["order"]) == list(range(32))
    assert answer["neurons"] == 32
    assert answer["engine"] is None
    before, after = (net_from_checkpoint(checkpoints.load(path), "c") for path in (files / "c.safetensors", out))
    assert same(before, after, records[:500])
    first = out.read_bytes()
    assert nnue(*arguments, "--overwrite").returncode == 0
    assert out.read_bytes() == first


def test_no_file_is_replaced_by_mistake(nnue, files: Path, tmp_path: Path) -> None:
    """An output that exists needs --overwrite; what is read is never written."""
    net, some, old = tmp_path / "net.nnue", tmp_path / "some.bin", tmp_path / "old.nnue"
    net.write_bytes((files / "net.nnue").read_bytes())
    some.write_bytes((files / "some.bin").read_bytes())
    old.write_bytes(b"something else")
    (tmp_path / "hard.nnue").hardlink_to(net)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    new = tmp_path / "new.nnue"
    for out, more, message in (
        (old, (), "old.nnue: exists already; --overwrite replaces it"),
        (net, (), "net.nnue: is an input of this command, expected another name for the output"),
        (net, ("--overwrite",), "net.nnue: is an input of this command"),
        (tmp_path / "hard.nnue", ("--overwrite",), "hard.nnue: is an input of this command"),
        (some, ("--overwrite",), "some.bin: is an input of this command, expected another name for the output"),
        (new, ("--png", new), "new.nnue: is the output, expected another name for the picture"),
    ):
        done = nnue("permute", net, out, "--data", some, "--engine", "none", *more)
        assert done.returncode == 1, message
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    done = nnue("permute", net, old, "--data", some, "--engine", "none", "--overwrite")
    assert done.returncode == 0, done.stderr
    assert to_bytes(read_net(old)) != before[net]


def test_help_names_the_methods() -> None:
    from nnue_trainer.cli.permute import METHODS

    assert tuple(neuron_order.METHODS) == METHODS
    assert METHODS[0] == neuron_order.DEFAULT


def test_errors_are_one_line(nnue, files: Path, tmp_path: Path) -> None:
    some = ("--data", files / "some.bin")
    net, saved, simple = (files / name for name in ("net.nnue", "c.safetensors", "simple.safetensors"))
    for arguments, message in (
        ((saved, tmp_path / "o.nnue", *some), "o.nnue: expected a checkpoint (.safetensors), as the input is one"),
        ((net, tmp_path / "o.safetensors", *some), "o.safetensors: expected a net, as the input is one"),
        ((simple, tmp_path / "o.safetensors", *some), "has no layer between the first and the output"),
        ((saved, tmp_path / "o.safetensors", *some, "--method", "random"), "--method: found 'random', expected one of"),
        ((saved, tmp_path / "o.safetensors", "--data", tmp_path / "no.bin"), "no.bin"),
        ((saved, tmp_path / "o.safetensors", *some, "--engine", "/no/engine"), "engine /no/engine: no such program"),
        ((tmp_path, tmp_path / "o.safetensors", *some), "not the folder of a run"),
    ):
        done = nnue("permute", *arguments)
        assert done.returncode == 1, arguments
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not list(tmp_path.glob("o.*"))


@pytest.mark.slow
@pytest.mark.engine
def test_engine_speed(nnue, tmp_path: Path, files: Path) -> None:
    """Stockfish counts the same nodes with both nets."""
    import subprocess

    from nnue_trainer.engines.uci import find_engine

    own, out = tmp_path / "own.nnue", tmp_path / "out.nnue"
    subprocess.run([find_engine()], input=f"export_net {own}\nquit\n", capture_output=True, text=True, check=True)
    done = nnue("permute", own, out, "--data", files / "some.bin", "--arch", "sfnnv5", "--runs", 1, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["engine"]["engine"] == "Stockfish 15.1"
    assert answer["engine"]["nodes"] > 100_000
    assert answer["zero_blocks_after"]["share"] > answer["zero_blocks_before"]["share"] + 0.05
