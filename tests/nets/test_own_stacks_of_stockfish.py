"""Stockfish's nets with stacks of layers, and PSQT columns, by a table over pieces and queens."""

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command import nnue
from net_support import within_limits
from small_runs import last, split_sample, written

from nnue_trainer import data, nets
from nnue_trainer.errors import UserError
from nnue_trainer.export import evaluate, read_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint
from nnue_trainer.nets.stockfish import SfnnV5, SfnnV17
from nnue_trainer.nets.stockfish_model import StockfishModel

FENS = [*CHECK_POSITIONS, "3qk3/8/8/8/8/8/3Q4/2QQK3 b - - 0 1", "q3k3/8/8/8/8/8/8/4K3 w - - 0 1"]


def by_table(pieces: int, own: int, other: int) -> int:
    return (3 * pieces + 2 * min(own, 3) + min(other, 3)) % 5


def of_queens(pieces: int, own: int, other: int) -> int:
    return 4 * ((pieces - 1) // 11) + 2 * (own > 0) + (other > 0)


TABLE = [by_table(pieces, *divmod(material, 4)) for pieces in range(33) for material in range(16)]
OWN: dict[str, tuple[dict[str, Any], Any]] = {
    "sfnnv5": ({"count": 5, "rule": "table", "table": TABLE}, by_table),
    "sfnnv16": ({"count": 12, "rule": "queens"}, of_queens),
    "sfnnv18": ({"count": 4, "rule": "bullet"}, lambda pieces, own, other: (pieces - 2) // 8),
    "sfnnv1": ({"count": 3, "rule": "table", "table": [i % 3 for i in range(33)]}, lambda pieces, *_: pieces % 3),
}


@pytest.mark.parametrize("kind", OWN)
def test_training_file_and_evaluator_agree_on_them(kind: str, tmp_path: Path) -> None:
    buckets, stack_of = OWN[kind]
    made = within_limits({"kind": kind, "l1": 32, "output_buckets": buckets})
    checkpoint.save(tmp_path / "c.safetensors", made)
    width = nets.parse({"kind": kind}, "test").architecture["l1"]
    with pytest.raises(UserError, match=r"which no Stockfish reads; expected .*--any-l1"):
        nnue("export", tmp_path / "c.safetensors", tmp_path / "net.nnue")
    assert f"output_buckets are {buckets['count']} by rule {buckets['rule']}, which" in str(
        nets.parse({"kind": kind, "l1": width, "output_buckets": buckets}, "test").unreadable
    )
    nnue("export", tmp_path / "c.safetensors", tmp_path / "net.nnue", "--any-l1")
    net = read_net(tmp_path / "net.nnue")
    assert net.net.architecture == made.architecture
    assert f"-stacks-{buckets['count']}" in net.net.name

    expected = []
    for fen in FENS:
        board, side = fen.split()[:2]
        queens = {"w": board.count("Q"), "b": board.count("q")}
        own, other = queens[side], queens["b" if side == "w" else "w"]
        expected.append(stack_of(sum(c.isalpha() for c in board), own, other))
    assert len(set(expected)) > 2
    batch = data.expand(data.records_from_fens(FENS), net.net.integer_feature_set)
    evaluation = evaluate(net, batch)
    assert evaluation.bucket.tolist() == net.net.bucket(batch).tolist() == expected
    model = nets.build(made.architecture)
    assert isinstance(model, StockfishModel)
    assert model.buckets(data.expand(data.records_from_fens(FENS), model.feature_set)).tolist() == expected
    raw = net.net.evaluate(net.tensors, batch)
    used = (np.arange(len(batch)), expected)
    assert np.array_equal(net.net.score(raw.psqt[used], raw.positional[used]), evaluation.score)
    nnue("import", tmp_path / "net.nnue", tmp_path / "again.safetensors")
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.nnue", "--any-l1")
    assert (tmp_path / "again.nnue").read_bytes() == (tmp_path / "net.nnue").read_bytes()


def test_a_file_with_own_stacks_is_not_read_as_that_of_a_version(tmp_path: Path) -> None:
    """This includes the version's own number of stacks, where only the hashes differ."""
    hashes = set()
    for rule in ("stockfish", "bullet", "queens"):
        made = within_limits({"kind": "sfnnv16", "output_buckets": {"count": 8, "rule": rule}, "l1": 32})
        checkpoint.save(tmp_path / "c.safetensors", made)
        out = tmp_path / f"{rule}.nnue"
        nnue("export", tmp_path / "c.safetensors", out, "--any-l1")
        content = out.read_bytes()
        hashes.add(content[4:8])
        (length,) = struct.unpack_from("<I", content, 8)
        without_record = content[:8] + struct.pack("<I", 4) + b"mine" + content[12 + length :]
        out.write_bytes(without_record)
        if rule != "stockfish":
            with pytest.raises(
                UserError, match=r"or other stacks: l1 is 32.*pass its recipe or checkpoint: nnue import --model"
            ) as e:
                read_net(out)
            assert "\n" not in str(e.value)
            with pytest.raises(UserError, match=r"file hash: found .*, expected .* \(sfnnv16-l1-32\)$"):
                nnue("eval", out, "--arch", "sfnnv16-l1-32", "--fen", FENS[0])
    assert len(hashes) == 3


@pytest.mark.parametrize("kind", ["sfnnv16", "layered"])
def test_a_file_without_its_record_is_read_with_the_recipe(kind: str, tmp_path: Path) -> None:
    sizes = {"l1": 32} if kind == "sfnnv16" else {"hidden": 16}
    buckets = {"count": 8, "rule": "bullet"}
    made = within_limits({"kind": kind, "output_buckets": buckets, **sizes})
    path, model = tmp_path / "c.safetensors", tmp_path / "recipe.yaml"
    checkpoint.save(path, made)
    model.write_text(yaml.safe_dump({"model": {"kind": kind, "output_buckets": buckets, **sizes}}))
    whole, out = tmp_path / "whole.nnue", tmp_path / "net.nnue"
    nnue("export", path, whole, "--any-l1")
    content = whole.read_bytes()
    (length,) = struct.unpack_from("<I", content, 8)
    out.write_bytes(content[:8] + struct.pack("<I", 4) + b"mine" + content[12 + length :])
    with pytest.raises(UserError, match=r"recipe or checkpoint: nnue import --model FILE"):
        read_net(out)
    for source in (model, path, whole):
        assert nnue("eval", out, "--model", source, "--fen", FENS[0]) == nnue("eval", whole, "--fen", FENS[0])
    nnue("import", out, tmp_path / "again.safetensors", "--model", model)
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.nnue", "--any-l1")
    assert (tmp_path / "again.nnue").read_bytes() == out.read_bytes()
    model.write_text(yaml.safe_dump({"model": {"kind": kind, "output_buckets": {"count": 4}, **sizes}}))
    with pytest.raises(UserError, match=r"net.nnue: offset \d+: .*expected"):
        nnue("eval", out, "--model", model, "--fen", FENS[0])


def test_they_train(project_root: Path, tmp_path: Path) -> None:
    model = {"kind": "sfnnv16", "l1": 32, "output_buckets": {"count": 4, "rule": "queens"}}
    folder = split_sample(project_root, tmp_path, 2_000, 250)
    recipe = written(tmp_path / "r.yaml", folder, model=model, training={"epochs": 1})
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
    assert last(tmp_path / "run").tensors["model"]["feature_transformer.psqt"].shape[1] == 4
    nnue("check", tmp_path / "run", "--data", folder / "val.binpack", "--limit", 20)
    assert "stack" in nnue("inspect", tmp_path / "run").lower()


def test_stacks_of_the_version_are_the_net_of_the_version() -> None:
    stated = nets.parse({"kind": "sfnnv18", "output_buckets": {"count": 32, "rule": "queens"}}, "test")
    assert stated.architecture == nets.parse({"kind": "sfnnv18"}, "test").architecture
    assert (stated.name, stated.unreadable) == ("sfnnv18", None)
    assert isinstance(hash(stated), int)


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        (
            {"count": 4, "rule": "weights", "weights": [0, 1, 1, 2, 4]},
            "rule: found weights, expected one by pieces and",
        ),
        ({"count": 4, "rule": "table", "table": [4] * 33}, "table: found bucket 4, expected 0 … 3"),
        ({"count": 6, "rule": "queens"}, "count: found 6, expected a multiple of 4"),
    ],
)
def test_what_chooses_no_stack(buckets: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        nets.parse({"kind": "sfnnv17", "output_buckets": buckets}, "recipe")


def test_designs_with_a_table() -> None:
    """The facts of one more version of Stockfish in Python (docs/own-nets.md)."""
    design = dataclasses.replace(SfnnV5.design, stacks=3, table=tuple(i % 3 for i in range(33)))
    assert design.stack_table[16 * 7 : 16 * 8] == (1,) * 16
    for stacks, table in ((3, (3,) * 33), (3, (-1,) * 33), (3, (0,) * 32)):
        with pytest.raises(ValueError, match=r"a design (with a|whose) table"):
            dataclasses.replace(SfnnV17.design, stacks=stacks, table=table)
