"""Nets of every kind learn something on the sample, and what they learned exports and is evaluated in integers."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import some
from net_support import batch_of

from nnue_trainer import config, data, nets
from nnue_trainer.data import Loader
from nnue_trainer.export import evaluate, net_from_checkpoint, read_net, write_net
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import NETS
from nnue_trainer.optim import AdamW, Optimizer

FENS = list(CHECK_POSITIONS)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", some(sorted(kind for kind in NETS.kinds() if kind not in ("simple", "layered")), every=3)
)
def test_a_net_learns_for_200_steps_and_its_integers_agree(kind: str, positions_file, tmp_path: Path) -> None:
    """Every net of Stockfish, narrow; what its integers mean is held against engines by tests/vectors. Nets of engine
    authors do the same in tests/engine/test_presets.py."""
    torch.manual_seed(1)
    model = nets.build({"kind": kind, "l1": 32})
    optimizer = Optimizer(model, AdamW(lr=5e-3, weight_decay=0.0))

    def loss_of(batch: data.Batch) -> torch.Tensor:
        target = torch.sigmoid(batch.score.float() / 400)
        return (torch.sigmoid(model(batch) * model.score_scale / 400) - target).square().mean()

    with closing(Loader([positions_file("val")], model.feature_set, 2000, shuffle=False, threads=1)) as loader:
        held_out = next(iter(loader))
    with torch.no_grad():
        before = loss_of(held_out).item()
    with closing(Loader([positions_file("train")], model.feature_set, 96, seed=1, repeat=True, threads=1)) as loader:
        for _, batch in zip(range(200), loader, strict=False):
            loss = loss_of(batch)
            loss.backward()
            optimizer.step(loss)
    assert not optimizer.failed()
    with torch.no_grad():
        assert loss_of(held_out).item() < 0.9 * before

    saved = Checkpoint(model.architecture, {"model": model.state_dict()})
    write_net(net_from_checkpoint(saved, kind, any_l1=True), tmp_path / "net.nnue")
    net = read_net(tmp_path / "net.nnue")
    assert net.net.kind == kind
    batch = batch_of(net, FENS)
    with torch.no_grad():
        floating = model(data.expand(data.records_from_fens(FENS), model.feature_set)).numpy() * model.score_scale
    score = evaluate(net, batch).score
    assert np.corrcoef(floating, score)[0, 1] > 0.98


@pytest.mark.parametrize("name", ["sfnnv16", "sfnnv17", "sfnnv18"])
def test_recipes_of_full_size_nets_are_what_they_say(name: str, project_root: Path) -> None:
    recipe = config.load(project_root / "configs" / f"{name}.yaml")
    assert recipe.model.name == name, "the width that Stockfish reads"
    assert recipe.model.unreadable is None
