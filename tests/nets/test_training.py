"""Nets of every kind learn something on the sample, and what they learned exports and is evaluated in integers."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from net_support import batch_of

from nnue_trainer import config, data, nets
from nnue_trainer.checkpoint import Checkpoint
from nnue_trainer.data import Loader
from nnue_trainer.export import evaluate, net_from_checkpoint
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.optim import AdamW, Optimizer

FENS = list(CHECK_POSITIONS)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", ["sfnnv1", "sfnnv5", "sfnnv10", "sfnnv14.1", "sfnnv16", "sfnnv17"])
def test_a_net_learns_and_its_integers_agree(kind: str, project_root: Path) -> None:
    torch.manual_seed(1)
    model = nets.build({"kind": kind, "l1": 32})
    optimizer = Optimizer(model, AdamW(lr=5e-3, weight_decay=0.0))
    losses = []
    loader = Loader(
        [str(project_root / "samples" / "val.binpack")], model.feature_set, 256, seed=1, repeat=True, threads=1
    )
    with closing(loader):
        for _, batch in zip(range(30), loader, strict=False):
            target = torch.sigmoid(batch.score.float() / 400)
            loss = (torch.sigmoid(model(batch) * model.score_scale / 400) - target).square().mean()
            loss.backward()
            optimizer.step(loss)
            losses.append(loss.item())
    assert not optimizer.failed()
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])

    saved = Checkpoint(model.architecture, {"model": model.state_dict()})
    net = net_from_checkpoint(saved, kind, any_l1=True)
    batch = batch_of(net, FENS)
    with torch.no_grad():
        floating = model(data.expand(data.records_from_fens(FENS), model.feature_set)).numpy() * model.score_scale
    score = evaluate(net, batch).score
    assert np.corrcoef(floating, score)[0, 1] > 0.98


@pytest.mark.parametrize("name", ["sfnnv16", "sfnnv17"])
def test_recipes_of_full_size_nets_are_what_they_say(name: str, project_root: Path) -> None:
    recipe = config.load(project_root / "configs" / f"{name}.yaml")
    assert recipe.model.name == name, "the width that Stockfish reads"
    assert recipe.model.unreadable is None
