"""Layers and loss with the engine's rounding as operators, against the same in torch's operators.

On a GPU, and without one in the emulator of tests/cuda_emulator. tests/nets/test_rounding.py shows that torch's
operators give the engine's score.
"""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fused_loss import loss_of_model, on_gpu, step_of
from needs import no_cuda, require
from sample_inputs import assert_close
from torch import Tensor
from typed import grad_of

from nnue_trainer import data, nets
from nnue_trainer.data import Batch, Filters, RecordLoader
from nnue_trainer.losses import NO_SCORE, Loss, SigmoidLoss, mean
from nnue_trainer.losses.cross_entropy import CrossEntropyLoss
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.modules import layer_stacks
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerStacks
from nnue_trainer.nets import NnueModel
from nnue_trainer.nets.rounded_forward import RoundedForward
from nnue_trainer.ops.reference import StackLayer
from nnue_trainer.optim import AdamW, Optimizer

pytestmark = pytest.mark.usefixtures("one_thread")

STOCKFISH = [kind for kind in nets.NETS.kinds() if kind.startswith("sfnn") or kind == "small128"]
ROOT = Path(nets.__file__).resolve().parents[1]


def preset(name: str) -> dict[str, Any]:
    """A narrow net of a preset."""
    model: dict[str, Any] = yaml.safe_load((ROOT / "presets" / f"{name}.yaml").read_text())["model"]
    return model | ({"l1": 96} if "l1" in model or model["kind"].startswith("sfnn") else {"hidden": 64})


# Every kind of layer and of skip connection, inputs of the output from several layers, shifts that are not the log2
# of a scale, and products that are kept whole.
DEEP: dict[str, Any] = {
    "kind": "layered",
    "inputs": ["Chess768"],
    "hidden": 32,
    "psqt": True,
    "output_buckets": {"count": 4},
    "layers": [
        {"outputs": 11, "activation": "screlu", "skip": "last", "to_output": True, "scale": 32},
        {"outputs": 9, "activation": "none", "skip": "difference", "skip_activated": True},
        {"outputs": 8, "activation": "dual", "to_output": True, "shift": 5},
        {"outputs": 6, "activation": "crelu", "skip": "difference", "clip": 99},
    ],
}
NETS: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind, "l1": 32} for kind in STOCKFISH},
    **{f"preset {path.stem}": preset(path.stem) for path in sorted((ROOT / "presets").glob("*.yaml"))},
    "simple crelu": {"kind": "simple", "hidden": 32, "activation": "crelu"},
    "whole products": DEEP | {"activation": "screlu"},
    "shifted products": DEEP | {"activation": "pairwise", "quantisation": {"first": {"product_shift": 9}}},
    "deep crelu": DEEP | {"activation": "crelu"},
}
LOSSES: dict[str, Loss] = {
    "sigmoid": SigmoidLoss(),
    "win rate": WinRateLoss(qp_asymmetry=0.2),
    "entropy": CrossEntropyLoss(),
}


@pytest.fixture(scope="module")
def records(project_root: Path) -> np.ndarray:
    options: dict[str, Any] = {"shuffle": False, "filters": Filters.none()}
    with RecordLoader([project_root / "samples" / "val.binpack"], 2000, **options) as loader:
        return next(iter(loader)).numpy().copy()


@pytest.fixture
def emulated(emulated: ctypes.CDLL) -> ctypes.CDLL:
    emulated.emulator_configure(4, 7)
    return emulated


def made(architecture: dict[str, Any]) -> NnueModel:
    """A model whose activations are clipped at either end and in between, with weights that reach their limits."""
    model, generator = nets.build(architecture), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.1 if name.startswith("feature_transformer") else 0.3
            parameter.copy_((torch.randn(parameter.shape, generator=generator) * spread).clamp(-1.5, 1.5))
        for bound in model.weight_bounds():
            last = None if bound.rows is None else bound.first_row + bound.rows
            bound.parameter[bound.first_row : last].clamp_(bound.low, bound.high)
    return model


def batch_of(model: NnueModel, records: np.ndarray) -> Batch:
    batch = data.expand(records, model.feature_set)
    score = batch.score.clone()
    score[::7] = NO_SCORE
    return dataclasses.replace(batch, score=score)


Found = tuple[Tensor, dict[str, Tensor]]


def outputs(model: NnueModel, batch: Batch) -> Found:
    model.zero_grad()
    output = model(batch)
    (output * torch.linspace(-0.5, 1, len(output), device=output.device)).sum().backward()
    return output.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def losses(model: NnueModel, batch: Batch, loss: Loss) -> Found:
    """The loss by the operators, if they support it."""
    model.zero_grad()
    lam = torch.tensor(0.7, device=batch.score.device)
    if model.rounded is not None and model.rounded._takes_operators(model, batch.white):
        found = loss_of_model(model, batch, loss, lam)  # type: ignore[arg-type]
    else:
        found = mean(*loss.terms(model(batch) * model.score_scale, batch.score, batch.result, lam))
    found.backward()
    return found.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def sums_are_exact(model: NnueModel) -> bool:
    """Sums beyond 2^24 are not, since fp32 has not every integer there: a score may be off by one unit now and then."""
    rounded = model.rounded
    assert rounded is not None
    with torch.no_grad():
        return not any(rounded._in_float64(number) for number in range(len(rounded.limits)))


def check_output(model: NnueModel, found: Found, expected: Found) -> None:
    difference = (found[0].cpu() - expected[0].cpu()).abs() * model.score_scale
    if sums_are_exact(model):
        assert difference.max() == 0
    else:
        assert difference.max() < 1.1
        assert (difference > 0.5).float().mean() < 0.02
    check_gradients(found, expected, 2e-6)


def check_gradients(found: Found, expected: Found, tolerance: float) -> None:
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert gradient.norm() > 0, name
        assert_close(found[1][name].cpu(), gradient, tolerance, f"gradient of {name}")


def only_operators(monkeypatch: pytest.MonkeyPatch, only: bool) -> None:
    """Whether the operators compute everything, or torch's everything."""

    def refuse(*_: Any) -> Any:
        pytest.fail("computed in torch's operators")

    monkeypatch.setattr(RoundedForward, "_score", refuse if only else SCORE)
    monkeypatch.setattr(RoundedForward, "_takes_operators", TAKES if only else lambda *_: False)


SCORE, TAKES = RoundedForward._score, RoundedForward._takes_operators


def check_net(
    monkeypatch: pytest.MonkeyPatch, name: str, records: np.ndarray, device: torch.device, loss_name: str = ""
) -> None:
    """Score, loss and all gradients are those of torch's operators on the CPU."""
    model, loss = made(NETS[name]), LOSSES[loss_name or ("sigmoid" if "simple" in name else "win rate")]
    model.set_rounding(True)
    batch = batch_of(model, records)
    only_operators(monkeypatch, False)
    expected, expected_loss = outputs(model, batch), losses(model, batch, loss)
    only_operators(monkeypatch, True)
    model, batch = model.to(device), model.prepare(batch.to(device))
    check_output(model, outputs(model, batch), expected)
    found = losses(model, batch, loss)
    assert_close(found[0].cpu(), expected_loss[0], 1e-5, "loss")
    # Where a score is off by one unit, its gradient is another one, too.
    check_gradients(found, expected_loss, 4e-6 if sums_are_exact(model) else 3e-4)
    again = losses(model, batch, loss)
    assert torch.equal(again[0], found[0])
    assert all(torch.equal(again[1][parameter], gradient) for parameter, gradient in found[1].items())


# ---- in the emulator -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_emulated(emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, name: str, records: np.ndarray) -> None:
    check_net(monkeypatch, name, records[:333], torch.device("cpu"))


@pytest.mark.parametrize(("name", "loss"), [("sfnnv5", "entropy"), ("whole products", "win rate")])
def test_emulated_with_more_multiprocessors(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, name: str, loss: str, records: np.ndarray
) -> None:
    emulated.emulator_configure(8, 7)
    check_net(monkeypatch, name, records[:333], torch.device("cpu"), loss)


THROUGH = {
    "sfnnv5": {"kind": "sfnnv5", "l1": 128},
    "32 outputs, threats": {"kind": "sfnnv16", "l1": 128},
    "one output, squares": NETS["preset buckets"],
    "one output, shifted squares": NETS["preset buckets"] | {"quantisation": {"first": {"product_shift": 4}}},
    "one output, crelu": {"kind": "simple", "hidden": 32, "activation": "crelu"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["hopper", "portable"])
@pytest.mark.parametrize("copies", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", THROUGH)
def test_emulated_through_the_first_layer(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, name: str, copies: bool, kernels: str, records: np.ndarray
) -> None:
    """The layers' backward continues, as without rounding, to the feature transformer, whose weight may be integers
    of 16 bits. The loss is that of torch's operators, and so are the gradients, within the precision of 16 bits."""
    model, loss = made(THROUGH[name]), LOSSES["sigmoid"]
    model.set_rounding(True)
    batch, rounded = batch_of(model, records[:150]), model.rounded
    assert rounded is not None
    only_operators(monkeypatch, False)
    expected = losses(model, batch, loss)
    only_operators(monkeypatch, True)
    model.zero_grad()
    optimizer = Optimizer(model, AdamW(), copies=copies)
    on_gpu(monkeypatch, 90 if kernels == "hopper" else 80)
    optimizer.copy_in_steps({f"{rounded.transformer}.weight": rounded._x_scale} if copies else {})
    step, stacks = step_of(model, loss, 0.7, optimizer)
    assert (stacks.between == "whole") == (kernels == "portable" and bool(rounded.stacks.hidden))  # type: ignore[union-attr]
    if copies and kernels == "hopper" and not rounded.stacks.hidden:  # type: ignore[union-attr]
        assert stacks.between == "rows"
    found, leaf = step.gradients(batch), optimizer._copies.get(f"{rounded.transformer}.weight")
    assert_close(found.detach(), expected[0], 1e-6, "loss")
    gradients = {name: p.grad for name, p in model.named_parameters()} | (
        {} if leaf is None else {"feature_transformer.weight": leaf.grad}
    )
    for parameter, gradient in expected[1].items():
        own = gradients[parameter]
        assert own is not None
        tolerance = 4e-6 if not copies else 1e-2 if parameter == "feature_transformer.weight" else 5e-3
        assert_close(own.float(), gradient, tolerance, f"gradient of {parameter}")


def test_emulated_from_sums(emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, records: np.ndarray) -> None:
    """The layers behind layer 0 from its sums, as where several GPUs divide that, round in the same way."""
    model = made(NETS["whole products"])
    model.set_rounding(True)
    assert model.rounded is not None
    stacks = model.rounded.stacks
    assert stacks is not None
    batch, of = batch_of(model, records[:150]), stacks.description
    with torch.no_grad():
        first, parameters = model.rounded.first_outputs(model, batch), model.rounded._parameters(model)
    order, op = stacks.order(first.bucket), torch.ops.nnue_emulated
    output, sums = op._layer_stacks_forward(first.x, order, parameters, first.psqt, of)
    again, _ = op._layer_stacks_forward(sums, order, parameters, first.psqt, of, True)
    assert torch.equal(again, output)


def test_emulated_squares_are_exact(emulated: ctypes.CDLL) -> None:
    """Squares of more than 24 bits, next to those that are multiples of the divisor."""
    shift, stacks = 2**-19, 2
    y = torch.arange(1, 8200).float()
    hidden = StackLayer(1, 1, "dual", 127.0 * 64, square=shift, step=1 / 64)
    layers = LayerStacks(16, stacks, (hidden,), layer_stacks.Integers())
    x = torch.zeros(len(y), 16)
    x[:, 0], x[:, 1] = y // 64, y % 64
    weight = torch.zeros(stacks, 1, 16)
    weight[:, 0, 0], weight[:, 0, 1] = 64.0, 1.0
    last = torch.tensor([1.0, 0.0]).expand(stacks, 1, 2).contiguous()
    parameters = [weight, torch.zeros(stacks, 1), last, torch.zeros(stacks, 1)]
    first = FirstOutputs(x, None, torch.arange(len(y)) % stacks)
    order = layers.order(first.bucket)
    output, _ = torch.ops.nnue_emulated._layer_stacks_forward(x, order, parameters, None, layers.description)
    assert torch.equal(output.long(), (y.long() ** 2 >> 19).clamp(max=127))


def test_emulated_errors_of_rounding(emulated: ctypes.CDLL) -> None:
    layers = LayerStacks(16, 1, (), layer_stacks.Integers())
    x, parameters = torch.zeros(5, 16), [torch.zeros(1, 1, 16), torch.zeros(1, 1)]
    order, call = layers.order(torch.zeros(5, dtype=torch.int64)), torch.ops.nnue_emulated._layer_stacks_forward
    with pytest.raises(RuntimeError, match=r"_layer_stacks_forward: x: found float16, expected float32"):
        call(x.half(), order, parameters, None, layers.description)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("name", NETS)
def test_cuda(monkeypatch: pytest.MonkeyPatch, name: str, records: np.ndarray) -> None:
    require(no_cuda())
    check_net(monkeypatch, name, records, torch.device("cuda"))


@pytest.mark.cuda
@pytest.mark.parametrize("copies", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", THROUGH)
def test_cuda_through_the_first_layer(name: str, copies: bool, records: np.ndarray) -> None:
    require(no_cuda())
    model, loss = made(THROUGH[name]), LOSSES["sigmoid"]
    model.set_rounding(True)
    batch = batch_of(model, records)
    expected = losses(model, batch, loss)
    model.zero_grad()
    model, rounded = model.cuda(), model.rounded
    assert rounded is not None
    transformer, leaf = rounded._transformer(model), None
    if copies:
        weight = transformer.weight.detach()
        leaf = torch.empty_like(weight, dtype=torch.bfloat16)
        leaf.view(torch.float16).copy_(torch.round(weight * rounded._x_scale))
        transformer.train_with(leaf.requires_grad_(), rounded._x_scale)
    found = losses(model, model.prepare(batch.to("cuda")), loss)
    found[1].update({} if leaf is None else {"feature_transformer.weight": grad_of(leaf)})
    exact = sums_are_exact(model)
    assert_close(found[0].cpu(), expected[0], 1e-6 if exact else 1e-5, "loss")
    for parameter, gradient in expected[1].items():
        tolerance = (4e-6 if exact else 3e-4) if not copies else 1e-2
        assert_close(found[1][parameter].float().cpu(), gradient, tolerance, f"gradient of {parameter}")


# ---- what decides ----------------------------------------------------------------------------------------------------


def test_layers_that_see_others_are_left_to_torch() -> None:
    """No net of this project has them, but a net from outside may."""
    model = nets.build({"kind": "sfnnv16", "l1": 32})
    rounded = model.rounded_forward()
    transformer = model.feature_transformer
    assert rounded._layer_stacks(transformer) is not None  # type: ignore[arg-type]
    first, second, last = rounded.forward.layers
    for layers in (
        (first, second, dataclasses.replace(last, inputs=(0, 2))),
        (first, second, dataclasses.replace(last, inputs=(1,))),
        (first, dataclasses.replace(second, divide=3), last),
        (first, dataclasses.replace(second, inputs=(0,)), last),
    ):
        rounded.forward = dataclasses.replace(rounded.forward, layers=layers)
        assert rounded._layer_stacks(transformer) is None  # type: ignore[arg-type]


def test_evaluation_is_exact_and_takes_torch(emulated: ctypes.CDLL, records: np.ndarray) -> None:
    """A pass without gradients adds 16-bit squares in float64, which the operators do not do."""
    for name, exact in (("preset simple", False), ("sfnnv5", True)):
        model = made(NETS[name])
        model.set_rounding(True)
        assert model.rounded is not None
        assert model.rounded._takes_operators(model, torch.empty(0))
        assert sums_are_exact(model) == exact
        with torch.no_grad():
            assert model.rounded._takes_operators(model, torch.empty(0)) == exact


def test_the_engine_chooses_the_stacks(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, records: np.ndarray
) -> None:
    """A net from outside may have other stacks in floats. With rounding, training and validation use the engine's."""
    model, loss = made(NETS["sfnnv5"]), LOSSES["win rate"]
    batch = batch_of(model, records[:333])
    model.set_rounding(True)
    rounded = model.prepare(batch)
    output, expected = model(batch), losses(model, rounded, loss)[0]
    monkeypatch.setattr(type(model), "buckets", lambda _, batch: torch.zeros(len(batch), dtype=torch.long))
    for each in (batch, model.prepare(batch)):
        assert torch.equal(model(each), output)
        assert torch.equal(losses(model, each, loss)[0], expected)
    model.set_rounding(False)
    for each in (batch, rounded, model.prepare(batch)):
        buckets: Any = model.buckets_of
        assert not buckets(each).any()


def test_the_cpu_takes_torch() -> None:
    model = nets.build({"kind": "sfnnv5", "l1": 32})
    model.set_rounding(True)
    assert model.rounded is not None
    assert not model.rounded._takes_operators(model, torch.empty(0))
