"""The integer evaluator against raw values printed by instrumented engines, and against the written-out arithmetic."""

import numpy as np
import pytest
from golden import golden_net
from net_support import batch_of, random_checkpoint

from nnue_trainer.export import evaluate, net_from_checkpoint
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.nets.base import accumulate, tdiv


def test_accumulators_wrap_around_in_16_bits() -> None:
    net = golden_net("small128")
    net.tensors["feature_transformer.bias"][:] = 32767
    net.tensors["feature_transformer.weight"][:] = 3
    bias, weight = (net.tensors[f"feature_transformer.{part}"] for part in ("bias", "weight"))
    us, them = accumulate(batch_of(net, ["8/8/4k3/8/8/4K3/8/8 w - - 0 1"]), bias, [(0, weight)])
    assert (us == np.int16(32767 + 2 * 3 - 65536)).all()
    assert (them == us).all()
    assert us.dtype == np.int16


def test_tdiv_goes_toward_zero() -> None:
    values = np.array([-33, -32, -31, -16, -15, -1, 0, 1, 15, 16, 31, 32, 33])
    assert tdiv(values, 16).tolist() == [-2, -2, -1, -1, 0, 0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("activation", ["screlu", "crelu"])
def test_simple_net_is_the_written_out_arithmetic(activation: str) -> None:
    net = net_from_checkpoint(random_checkpoint({"kind": "simple", "hidden": 32, "activation": activation}), "c")
    fens = list(CHECK_POSITIONS)
    batch = batch_of(net, fens)
    found = evaluate(net, batch)
    weight, bias = (net.tensors[f"feature_transformer.{part}"].tolist() for part in ("weight", "bias"))
    out, out_bias = net.tensors["output.weight"][0].tolist(), net.tensors["output.bias"].tolist()[0]
    for i, fen in enumerate(fens):
        rows = [[k for k in side[i].tolist() if k >= 0] for side in (batch.white, batch.black)]
        if fen.split()[1] == "b":
            rows.reverse()
        hidden = [b + sum(weight[k][j] for k in side) for side in rows for j, b in enumerate(bias)]
        clipped = [min(max(h, 0), 255) for h in hidden]
        if activation == "screlu":
            raw = int(sum(h * h * w for h, w in zip(clipped, out, strict=True)) / 255) + out_bias
        else:
            raw = sum(h * w for h, w in zip(clipped, out, strict=True)) + out_bias
        assert found.positional_raw[i].tolist() == [raw]
        assert found.score[i] == int(raw * 400 / (255 * 64))
    assert np.abs(found.score).max() > 100
    assert not found.bucket.any()


def test_chunks_do_not_show() -> None:
    net = golden_net("small128")
    fens = list(CHECK_POSITIONS) * 21
    whole = evaluate(net, batch_of(net, fens))
    assert len(fens) > 2048
    once = evaluate(net, batch_of(net, list(CHECK_POSITIONS)))
    np.testing.assert_array_equal(whole.positional_raw, np.tile(once.positional_raw, (21, 1)))
    np.testing.assert_array_equal(whole.score, np.tile(once.score, 21))
