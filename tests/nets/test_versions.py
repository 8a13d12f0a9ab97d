"""Every version of Stockfish's nets at a small width: files, float models, what is limited and shared in training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from golden import golden_net
from net_support import batch_of, random_checkpoint
from typed import grad_of, instance

from nnue_trainer import data, nets
from nnue_trainer.errors import UserError
from nnue_trainer.export import QuantizedNet, checkpoint_from_net, evaluate, net_from_checkpoint, read_net, to_bytes
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.modules import PerspectiveTransformer
from nnue_trainer.nets import NETS, VirtualRows
from nnue_trainer.nets.stockfish_net import StockfishNet
from nnue_trainer.nnue_file.description import describe
from nnue_trainer.ops import reference

KINDS = [kind for kind, net in NETS.kinds().items() if issubclass(net, StockfishNet)]
FENS = list(CHECK_POSITIONS)


@pytest.fixture(scope="module", params=KINDS)
def net(request) -> QuantizedNet:
    made = golden_net(request.param, l1=32)
    return replace(made, description=describe(made.net.name, made.net.architecture))


def test_every_layout_is_read_and_goes_through_a_checkpoint_unchanged(net: QuantizedNet, tmp_path) -> None:
    for layout in net.net.layouts():
        file = to_bytes(replace(net, layout=layout.name))
        (tmp_path / "net.nnue").write_bytes(file)
        again = read_net(tmp_path / "net.nnue")
        assert (again.net, again.layout) == (net.net, layout.name)
        assert to_bytes(again) == file
        exported = net_from_checkpoint(checkpoint_from_net(again, "net"), "net", any_l1=True)
        assert to_bytes(exported) == file


def test_float_model_with_activations_rounded_down_is_the_integer_arithmetic(net: QuantizedNet, monkeypatch) -> None:
    """The rest is the rounding of sums to whole engine units; a wrong scale or order would cost far more."""
    imported = checkpoint_from_net(net, "net")
    model = nets.build(imported.architecture)
    model.load_state_dict(imported.tensors["model"])
    model = model.double()
    assert isinstance(net.net, StockfishNet)
    one = net.net.facts.one
    activate = reference.activate_layer

    def rounded_down(x: torch.Tensor) -> torch.Tensor:
        return torch.floor(x * one + 3e-5) / one

    monkeypatch.setattr(reference, "activate_layer", lambda *layer: rounded_down(activate(*layer)))
    layer = instance(PerspectiveTransformer, model.feature_transformer)
    transformer = layer.of_batch

    def transformed(batch: data.Batch, bucket: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, psqt = transformer(batch, bucket)
        return rounded_down(x), psqt

    monkeypatch.setattr(layer, "of_batch", transformed)
    with torch.no_grad():
        floating = model(data.expand(data.records_from_fens(FENS), model.feature_set)).numpy() * model.score_scale
    integer = evaluate(net, batch_of(net, FENS)).score
    assert np.std(integer) > 100
    assert np.abs(floating - integer).max() < 2.1


def test_weights_in_their_bounds_always_export(net: QuantizedNet) -> None:
    model = net.net.model()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for bound in model.weight_bounds():
            rows = bound.parameter[bound.first_row :][: bound.rows]
            rows.copy_((torch.rand(rows.shape, generator=generator) - 0.5) * 4000).clamp_(bound.low, bound.high)
    exported = net_from_checkpoint(checkpoint_of(model), "c", any_l1=True)
    for tensor in exported.net.tensors():
        largest = int(np.abs(exported.tensors[tensor.name].astype(np.int64)).max())
        assert largest <= tensor.limit
        assert largest == tensor.limit or tensor.dtype == "<i4", tensor.name


def checkpoint_of(model: nets.NnueModel) -> Checkpoint:
    return Checkpoint(model.architecture, {"model": model.state_dict()})


def test_what_is_shared_and_limited_in_sfnnv16() -> None:
    model = nets.build({"kind": "sfnnv16", "l1": 32})
    king_buckets = [VirtualRows(0, 24576, 768)]
    assert model.factorised() == {
        "feature_transformer.weight": king_buckets,
        "feature_transformer.psqt": king_buckets,
        "fc0.weight": [VirtualRows(0, 8, 1)],
        "fc0.bias": [VirtualRows(0, 8, 1)],
    }
    bounds = [(b.name, b.high, b.first_row, b.rows) for b in model.weight_bounds()]
    assert bounds == [
        ("feature_transformer.bias", 32767 / 256, 0, None),
        ("feature_transformer.weight", 127 / 256, 24576, 59808),
        ("feature_transformer.weight", 127 / 256, 24576 + 59808, 4560),
        ("feature_transformer.weight", 32767 / 256, 0, 24576),
        ("fc0.weight", 127 / 128, 0, None),
        ("fc1.weight", 127 / 64, 0, None),
        ("fc2.weight", 127 / 128, 0, None),
    ]
    rows = {part.name: part for part in data.feature_set(model.feature_set).parts}
    weight, psqt = (model.get_parameter(f"feature_transformer.{name}").detach() for name in ("weight", "psqt"))
    for part in rows.values():
        own = slice(part.first_feature, part.first_feature + part.num_features)
        largest = float(weight[own].abs().max())
        assert largest == pytest.approx(part.num_features**-0.5, rel=0.01), "uniform by set"
        assert bool(psqt[own].any()) == (part.name == "HalfKAv2_hm"), "material, and nothing else"


def test_a_threat_out_of_range_is_named_by_its_row() -> None:
    source = random_checkpoint({"kind": "sfnnv16", "l1": 32})
    for tensor in source.tensors["model"].values():
        tensor.clamp_(-0.4, 0.4)
    weight = source.tensors["model"]["feature_transformer.weight"]
    weight[3, 0] = 100.0  # a king bucket's weight has 16 bits
    net_from_checkpoint(source, "c", any_l1=True)
    weight[24576 + 7, 5] = 0.5
    with pytest.raises(UserError, match=r"c: feature_transformer\.weight\[24583, 5\] is 0\.5, limit ±0\.496094 \(127 "):
        net_from_checkpoint(source, "c", any_l1=True)


def test_the_optimiser_takes_ranges(tmp_path) -> None:
    """Shared rows move together, each range keeps its own bound, and all of it is in the state."""
    from nnue_trainer.optim import AdamW, Optimizer

    model = nets.build({"kind": "sfnnv16", "l1": 32})
    optimizer = Optimizer(model, AdamW(lr=1.0, weight_decay=0.0))
    first, stacked = (model.get_parameter(f"{name}.weight") for name in ("feature_transformer", "fc0"))
    before = stacked.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    grad_of(stacked)[2] = 1.0
    grad_of(first)[0] = -1.0
    grad_of(first)[24576] = -1.0
    optimizer.step(torch.zeros(()))
    moved = (stacked.detach() - before).amax((1, 2))
    assert (moved[[0, 1, 3, 7]] < -0.5).all(), "stacks without a gradient move with the shared layer"
    weight = first.detach()
    assert float(weight[768].min()) > 0.9, "the virtual row of feature 0 is that of feature 768"
    assert float(weight[0].min()) > 1.9
    assert float(weight[24576].max()) == pytest.approx(127 / 256)
    assert float(weight[24577].abs().max()) < 0.01
    assert {name for name in optimizer.state_dict() if name.startswith("exp_avg/") and "virtual" in name} == {
        f"exp_avg/{name}.virtual"
        for name in ("feature_transformer.weight", "feature_transformer.psqt", "fc0.weight", "fc0.bias")
    }


@pytest.mark.parametrize("kind", ["sfnnv1", "sfnnv13", "sfnnv16"])
def test_a_width_of_ones_own_must_be_asked_for(kind: str) -> None:
    source = random_checkpoint({"kind": kind, "l1": 32})
    for tensor in source.tensors["model"].values():
        tensor.clamp_(-0.4, 0.4)
    with pytest.raises(UserError, match=r"c: architecture\.l1 is 32, which no Stockfish reads; expected .*--any-l1"):
        net_from_checkpoint(source, "c")
