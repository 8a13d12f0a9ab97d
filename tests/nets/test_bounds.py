"""How far accumulators and the sums of layers can go, from the weights of a net."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import nnue
from golden import golden_net
from net_support import batch_of, random_checkpoint

from nnue_trainer.export import QuantizedNet, evaluate, net_from_checkpoint
from nnue_trainer.export.bounds import SumBound, accumulator_bound, overflows, sum_bounds
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.files import checkpoint
from nnue_trainer.files.checkpoint import Checkpoint
from nnue_trainer.nets.base import accumulate

FENS = list(CHECK_POSITIONS)
LAYERED: dict[str, Any] = {"kind": "layered", "hidden": 16}


def made(architecture: dict[str, Any], weight: float | None = None) -> QuantizedNet:
    """A net with random weights, or with one value for all weights of the layers and the first layer's bias."""
    found = random_checkpoint(architecture) if weight is None else with_weights(architecture, weight)
    return net_from_checkpoint(found, "test")


def with_weights(architecture: dict[str, Any], weight: float) -> Checkpoint:
    found = random_checkpoint(architecture)
    for name, tensor in found.tensors["model"].items():
        tensor.fill_(0 if name == "feature_transformer.weight" else weight if "weight" in name else 1)
    return found


def test_accumulator_bound_bounds_every_position() -> None:
    net = golden_net("small128")
    weight = net.tensors["feature_transformer.weight"]
    us, them = accumulate(batch_of(net, FENS), net.tensors["feature_transformer.bias"], [(0, weight)])
    seen = max(int(np.abs(side.astype(int)).max()) for side in (us, them))
    bound = accumulator_bound(net)
    assert seen <= bound <= 120 + 32 * 40
    net.tensors["feature_transformer.weight"][704 * 5 : 704 * 6, 9] = 1000
    net.tensors["feature_transformer.bias"][9] = 100
    assert accumulator_bound(net) == 100 + 32 * 1000
    assert accumulator_bound(net) > net.net.accumulator_limit


@pytest.mark.parametrize(
    "change",
    [
        {"activation": "crelu"},
        {"activation": "pairwise", "layers": [{"outputs": 8, "activation": "screlu"}, {"outputs": 8}]},
        {"layers": [{"outputs": 8, "activation": "dual", "type": "i8"}, {"outputs": 4, "activation": "none"}]},
        {"quantisation": {"first": {"clip": 32767, "limit": 1000}}},
        {"output_buckets": {"count": 8}, "perspectives": "mover"},
    ],
)
def test_no_position_exceeds_the_bound_of_the_output(change: dict[str, Any]) -> None:
    net = made(LAYERED | change)
    seen = np.abs(evaluate(net, FENS).positional_raw).max()
    assert 0 < seen <= sum_bounds(net)["output.weight"].y


def test_the_bound_is_reached_where_all_inputs_are_at_their_ends() -> None:
    net = made(LAYERED | {"layers": [{"outputs": 4}, {"outputs": 4, "activation": "none"}]}, weight=0.5)
    found = evaluate(net, FENS[:1]).positional_raw
    assert sum_bounds(net)["output.weight"].y == found[0, 0]
    assert list(sum_bounds(net)) == ["layers.0.weight", "layers.1.weight", "output.weight"]


def test_a_float_layer_has_a_bound_of_its_integers_only() -> None:
    layers = [{"outputs": 4, "type": "i8", "bias_type": "f32"}, {"outputs": 4, "type": "f32"}]
    change = {"layers": layers, "quantisation": {"output": {"type": "f32"}}, "activation": "crelu"}
    net = made(LAYERED | change, weight=0.5)
    assert sum_bounds(net) == {"layers.0.weight": SumBound(32 * 255 * 32, 1, 32 * 255 * 32)}


def test_large_limits_are_accepted_and_what_exceeds_32_bits_is_reported_by_the_weights() -> None:
    """A recipe states what a weight may be; whether sums can exceed 32 bits depends on what it is."""
    wide = {"hidden": 1024, "quantisation": {"output": {"limit": 32767}}}
    assert overflows(made(LAYERED | wide, weight=0.1)) == []
    before, line = overflows(made(LAYERED | wide, weight=400.0))
    assert before.startswith(f"sums of output.weight may reach {2048 * 255**2 * 400 * 64} before they are divided by")
    reach = 2048 * 255 * 400 * 64 + 255 * 64
    assert line == f"sums of output.weight may reach {reach}, but the engine's wrap around beyond 2147483647"


@pytest.mark.parametrize("activation", ["screlu", "pairwise"])
@pytest.mark.parametrize("layers", [[], [{"outputs": 8}]])
def test_sums_are_bounded_before_they_are_divided(activation: str, layers: list[Any]) -> None:
    """Of an ordinary net, 768 → 512 → 1, with weights of 100 of the 127 that are allowed: the quotient fits 32 bits,
    and the sum does not. The evaluator computes the exact one, which an engine with 32 bits cannot."""
    change = LAYERED | {"hidden": 512, "activation": activation, "layers": layers}
    net = made(change, weight=100 / 64)
    inputs = 1024 if activation == "screlu" else 512
    name = "layers.0.weight" if layers else "output.weight"
    total = inputs * 255**2 * 100
    assert sum_bounds(net)[name].total == total
    assert overflows(net) == [
        f"sums of {name} may reach {total} before they are divided by 255: they have 64 bits here and in nnue.h; an "
        "engine with sums of 32 bits wraps around beyond 2147483647"
    ]
    if not layers:
        bias = int(net.tensors["output.bias"].reshape(-1)[0])
        assert evaluate(net, FENS[:1]).positional_raw[0, 0] == total // 255 + bias
    shifted = change | {"quantisation": {"first": {"product_shift": 9}}}
    assert overflows(made(shifted, weight=100 / 64)) == []


def test_export_import_and_inspect_report_it(tmp_path: Path) -> None:
    wide = {"hidden": 1024, "quantisation": {"output": {"limit": 32767}}}
    start, net, again = tmp_path / "c.safetensors", tmp_path / "n.nnue", tmp_path / "again.safetensors"
    checkpoint.save(start, with_weights(LAYERED | wide, 400.0))
    for arguments in (("export", start, net), ("import", net, again), ("inspect", net)):
        words = "sums of output.weight may reach 13369360320, but the engine's wrap around beyond 2147483647"
        assert words in nnue(*arguments), arguments
