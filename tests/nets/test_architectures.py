"""Float models: built from data, equal to the arithmetic written out one position at a time, initialised as stated."""

import math

import numpy as np
import pytest
import torch

from nnue_trainer import nets
from nnue_trainer.data.batch import Batch
from nnue_trainer.errors import UserError
from nnue_trainer.nets import VirtualRows
from nnue_trainer.nets.simple import Simple
from nnue_trainer.nets.stockfish import SfnnV5

SMALL = {"kind": "sfnnv5", "l1": 64}
SIMPLE = {"kind": "simple", "hidden": 16}


def random_batch(num_features: int, size: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    piece_count = torch.randint(2, 33, (size,), generator=generator)

    def rows() -> torch.Tensor:
        index = torch.stack([torch.randperm(num_features, generator=generator)[:32] for _ in range(size)])
        return torch.where(torch.arange(32) < piece_count[:, None], index, -1).int()

    return Batch(
        white=rows(),
        black=rows(),
        counts=piece_count.short(),
        black_to_move=torch.randint(0, 2, (size,), generator=generator, dtype=torch.uint8),
        score=torch.zeros(size, dtype=torch.int16),
        result=torch.zeros(size, dtype=torch.int8),
        piece_count=piece_count.to(torch.uint8),
        material=torch.randint(0, 16, (size,), generator=generator, dtype=torch.uint8),
    )


def randomise(model: torch.nn.Module, seed: int = 1) -> None:
    """Weights unlike their start: stacks differ, biases are not zero, activations reach both clips."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)


def sides(batch: Batch, i: int) -> tuple[list[int], list[int]]:
    white = [k for k in batch.white[i].tolist() if k >= 0]
    black = [k for k in batch.black[i].tolist() if k >= 0]
    return (black, white) if batch.black_to_move[i] else (white, black)


def test_sfnnv5_forward_is_the_written_out_arithmetic() -> None:
    model = nets.build(SMALL)
    randomise(model)
    batch = random_batch(24576, 40)
    p = {name: value.double().numpy() for name, value in model.state_dict().items()}
    expected = []
    for i in range(len(batch)):
        bucket = (int(batch.piece_count[i]) - 1) // 4
        x, psqt = [], []
        for rows in sides(batch, i):
            acc = p["feature_transformer.bias"] + p["feature_transformer.weight"][rows].sum(0)
            acc = np.clip(acc, 0, 1)
            x.append(acc[:32] * acc[32:] * 127 / 128)
            psqt.append(p["feature_transformer.psqt"][rows].sum(0)[bucket])
        y0 = p["fc0.weight"][bucket] @ np.concatenate(x) + p["fc0.bias"][bucket]
        z = np.concatenate([np.minimum(y0[:15] ** 2 * 127 / 128, 1), np.clip(y0[:15], 0, 1)])
        y1 = p["fc1.weight"][bucket] @ z + p["fc1.bias"][bucket]
        out = p["fc2.weight"][bucket] @ np.clip(y1, 0, 1) + p["fc2.bias"][bucket]
        expected.append(out[0] + y0[15] + (psqt[0] - psqt[1]) / 2)
    got = model(batch)
    assert got.shape == (40,)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["screlu", "crelu"])
def test_simple_forward_is_the_written_out_arithmetic(activation: str) -> None:
    model = nets.build({**SIMPLE, "activation": activation})
    randomise(model)
    batch = random_batch(768, 40)
    p = {name: value.double().numpy() for name, value in model.state_dict().items()}
    expected = []
    for i in range(len(batch)):
        x = []
        for rows in sides(batch, i):
            acc = np.clip(p["feature_transformer.bias"] + p["feature_transformer.weight"][rows].sum(0), 0, 1)
            x.append(acc**2 if activation == "screlu" else acc)
        expected.append((p["output.weight"] @ np.concatenate(x) + p["output.bias"])[0])
    np.testing.assert_allclose(model(batch).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_new_sfnnv5_starts_as_the_field_starts_it() -> None:
    model = nets.build({"kind": "sfnnv5"})
    p = dict(model.named_parameters())
    assert {name: tuple(value.shape) for name, value in p.items()} == {
        "feature_transformer.weight": (24576, 1024),
        "feature_transformer.bias": (1024,),
        "feature_transformer.psqt": (24576, 8),
        "fc0.weight": (8, 16, 1024),
        "fc0.bias": (8, 16),
        "fc1.weight": (8, 32, 30),
        "fc1.bias": (8, 32),
        "fc2.weight": (8, 1, 32),
        "fc2.bias": (8, 1),
    }
    bound = math.sqrt(1 / 24576)
    for name in ("feature_transformer.weight", "feature_transformer.bias"):
        largest = float(p[name].detach().abs().max())
        assert 0.98 * bound < largest <= bound * 1.0001
    for name in ("fc0", "fc1", "fc2"):
        for part in ("weight", "bias"):
            value = p[f"{name}.{part}"]
            assert torch.equal(value, value[:1].expand_as(value)), name
    assert float(p["fc1.weight"].detach().abs().max()) <= 1 / math.sqrt(30) * 1.0001
    assert not p["fc2.bias"].any()
    # Own knight (plane 2) on any square of any king bucket, and the enemy's.
    psqt = p["feature_transformer.psqt"].detach()
    assert float(psqt[5 * 768 + 2 * 64 + 17, 3]) == pytest.approx(781 / 600)
    assert float(psqt[31 * 768 + 3 * 64 + 63, 0]) == pytest.approx(-781 / 600)
    assert not psqt.view(32, 12, 64, 8)[:, 10:].any()


def test_material_psqt_counts_material() -> None:
    """A knight more for the side to move is worth 781 engine units before the layers."""
    model = nets.build(SMALL)
    with torch.no_grad():
        for layer in ("fc0", "fc1", "fc2"):
            model.get_parameter(f"{layer}.weight").zero_()
            model.get_parameter(f"{layer}.bias").zero_()
    rows_us = torch.tensor([[2 * 64 + 20, 10 * 64 + 4, 11 * 64 + 60, -1]], dtype=torch.int32)
    rows_them = torch.tensor([[3 * 64 + 44, 10 * 64 + 4, 11 * 64 + 60, -1]], dtype=torch.int32)
    zero = torch.zeros(1)
    three = torch.tensor([3], dtype=torch.uint8)
    white = Batch(
        rows_us, rows_them, three.short(), zero.to(torch.uint8), zero.short(), zero.to(torch.int8), three, three
    )
    black = Batch(
        rows_them, rows_us, three.short(), (zero + 1).to(torch.uint8), zero.short(), zero.to(torch.int8), three, three
    )
    for batch in (white, black):
        assert model(batch).item() * model.score_scale == pytest.approx(781, abs=1e-3)


def test_gradients_reach_every_parameter() -> None:
    for architecture, features in ((SMALL, 24576), (SIMPLE, 768)):
        model = nets.build(architecture)
        randomise(model)
        model(random_batch(features, 64)).square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.abs().max() > 0, name


def test_bounds_and_factoriser_name_real_parameters() -> None:
    model = nets.build(SMALL)
    bounds = {bound.name: bound for bound in model.weight_bounds()}
    assert bounds["fc0.weight"].high == bounds["fc1.weight"].high == 127 / 64
    assert bounds["fc2.weight"].high == pytest.approx(127 * 127 / 9600)
    assert bounds["feature_transformer.weight"].high == pytest.approx(32767 / 127)
    assert "feature_transformer.psqt" not in bounds
    for bound in bounds.values():
        assert bound.low == -bound.high
        assert bound.parameter is dict(model.named_parameters())[bound.name]
    rows = [VirtualRows(0, 24576, 768)]
    assert model.factorised() == {"feature_transformer.weight": rows, "feature_transformer.psqt": rows}
    simple = nets.build(SIMPLE)
    assert simple.factorised() == {}
    assert {bound.name for bound in simple.weight_bounds()} == {name for name, _ in simple.named_parameters()}


@pytest.mark.parametrize("config", [SfnnV5(l1=96), Simple(hidden=32, activation="crelu")])
def test_architecture_travels_as_plain_data(config) -> None:
    model = nets.build(config)
    again = nets.build(model.architecture)
    assert again.architecture == model.architecture
    assert nets.parse(model.architecture, "test") == config
    again.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"kind": "sfnnv5", "l1": 100}, "architecture.l1: found 100, expected a multiple of 32"),
        ({"kind": "sfnnv5", "l1": "1024"}, 'architecture.l1: found "1024", expected'),
        (
            {"kind": "sfnnv5", "l4": 16},
            "architecture.l4: unknown key (expected one of l1, l2, l3, output_buckets, ",
        ),
        ({"kind": "sfnnv99"}, "architecture.kind: found 'sfnnv99', expected one of layered, sfnnv1, sfnnv10, "),
        ({}, "architecture.kind: missing, expected one of layered, sfnnv1, sfnnv10, "),
        ({"kind": "simple", "activation": "relu"}, 'architecture.activation: found "relu", expected'),
    ],
)
def test_wrong_architectures_are_named_in_one_line(data, words) -> None:
    with pytest.raises(UserError) as caught:
        nets.build(data)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"nets.build: {words}")


def test_forward_compiles_in_one_graph() -> None:
    explanation = torch._dynamo.explain(nets.build(SIMPLE))(random_batch(768, 8))
    assert explanation.graph_break_count == 0, explanation.break_reasons
    explanation = torch._dynamo.explain(nets.build(SMALL))(random_batch(24576, 8))
    assert explanation.graph_break_count == 0, explanation.break_reasons
