"""Stockfish's nets with other sizes of layers than those of a version."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import nnue
from net_support import random_checkpoint
from small_runs import last, split_sample, written

from nnue_trainer import data, nets
from nnue_trainer.errors import UserError
from nnue_trainer.export import evaluate, read_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint

SIZES: dict[str, dict[str, Any]] = {
    "sfnnv1": {"kind": "sfnnv1", "l1": 64, "l2": 20, "l3": 16},
    "sfnnv5": {"kind": "sfnnv5", "l1": 64, "l2": 24},
    "sfnnv9": {"kind": "sfnnv9", "l1": 3072, "l2": 8, "l3": 64},
    "sfnnv16": {"kind": "sfnnv16", "l1": 64, "l2": 64, "l3": 16},
    "sfnnv18": {"kind": "sfnnv18", "l1": 64, "l3": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_the_container_keeps_and_names_them(name: str, tmp_path: Path) -> None:
    made = random_checkpoint(SIZES[name])
    model = nets.build(SIZES[name])
    model.load_state_dict(made.tensors["model"])
    for bound in model.weight_bounds():
        bound.parameter.data[bound.first_row :][: bound.rows].clamp_(bound.low, bound.high)
    made.tensors["model"] = dict(model.state_dict())
    checkpoint.save(tmp_path / "c.safetensors", made)
    with pytest.raises(UserError, match=r"which no Stockfish reads; expected .*--any-l1"):
        nnue("export", tmp_path / "c.safetensors", tmp_path / "net.nnue")
    nnue("export", tmp_path / "c.safetensors", tmp_path / "net.nnue", "--any-l1")
    net = read_net(tmp_path / "net.nnue")
    sizes = {key: value for key, value in SIZES[name].items() if key != "kind"}
    assert all(f"{key}-{value}" in net.net.name for key, value in sizes.items() if key != "l1")
    assert {key: net.net.architecture[key] for key in sizes} == sizes
    records = data.records_from_fens(list(CHECK_POSITIONS))
    score = evaluate(net, records).score
    forward = net.net.integer_forward()
    assert forward is not None
    batch = data.expand(records, net.net.integer_feature_set)
    raw = net.net.evaluate(net.tensors, batch)
    used = (np.arange(len(batch)), net.net.bucket(batch))
    assert np.array_equal(net.net.score(raw.psqt[used], raw.positional[used]), score)
    assert len(set(score.tolist())) > 20
    # Read back as a checkpoint and written again it is the same file.
    nnue("import", tmp_path / "net.nnue", tmp_path / "again.safetensors")
    nnue("export", tmp_path / "again.safetensors", tmp_path / "again.nnue", "--any-l1")
    assert (tmp_path / "again.nnue").read_bytes() == (tmp_path / "net.nnue").read_bytes()


def test_sizes_of_the_version_are_the_net_of_the_version() -> None:
    stated = nets.parse({"kind": "sfnnv5", "l2": 16, "l3": 32}, "test")
    assert stated.architecture == nets.parse({"kind": "sfnnv5"}, "test").architecture
    assert stated.name == "sfnnv5"
    assert stated.unreadable is None


def test_they_train(project_root: Path, tmp_path: Path) -> None:
    model = {"kind": "sfnnv5", "l1": 32, "l2": 6, "l3": 10, "quantisation": {"qat": True, "qat_from": 0.5}}
    folder = split_sample(project_root, tmp_path, 2_000, 250)
    recipe = written(tmp_path / "r.yaml", folder, model=model, training={"epochs": 2})
    nnue("train", "--config", recipe, "--run-dir", tmp_path / "run")
    assert last(tmp_path / "run").tensors["model"]["fc0.weight"].shape == (8, 6, 32)
    nnue("check", tmp_path / "run", "--data", folder / "val.binpack", "--limit", 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "sfnnv5", "l2": 1}, "l2: found 1, expected more than the 1 that the skip connection takes"),
        ({"kind": "sfnnv16", "l2": 2}, "l2: found 2, expected more than the 2 that the skip connection takes"),
        ({"kind": "sfnnv16", "l3": 0}, "l3"),
        ({"kind": "sfnnv16", "l2": 1025}, "l2"),
    ],
)
def test_sizes_that_the_container_cannot_hold(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.parse(change, "recipe")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
