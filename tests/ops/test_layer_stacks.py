"""Layers after the first and the loss as operators, compared with torch's operators and float64.

On a GPU, and without one in the emulator of tests/cuda_emulator.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fused_loss import loss_of, loss_of_model
from needs import no_cuda, require
from sample_inputs import assert_close
from sample_models import assert_as_apart, make_model
from torch import Tensor, nn
from typed import present

from nnue_trainer import nets
from nnue_trainer.losses import NO_SCORE, Loss, SigmoidLoss, mean
from nnue_trainer.losses.cross_entropy import CrossEntropyLoss
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.modules import StackedLinear
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerCall, LayerStacks
from nnue_trainer.ops.reference import StackLayer, activate_layer

DEEP = LayerStacks(
    48,
    3,
    (
        StackLayer(10, 9, "screlu", 0.9, plus=9, output_scale=0.5),
        StackLayer(7, 7, "none", 0.6, low=-0.7),
        StackLayer(6, 5, "dual", 1.1, square=0.8, plus=4, minus=5, output_scale=1.5),
        StackLayer(5, 5, "crelu", 1.0),
    ),
)


def stockfish(kind: str, **fields: Any) -> LayerStacks:
    net: Any = nets.parse({"kind": kind, **fields}, "test")
    stacks: LayerStacks = net.facts.layer_stacks(net.l1)
    return stacks


NETS: dict[str, Callable[[], LayerStacks]] = {
    "sfnnv5": lambda: stockfish("sfnnv5", l1=320),
    "sfnnv16": lambda: stockfish("sfnnv16", l1=288),
    "sfnnv1": lambda: stockfish("sfnnv1", l1=32),
    "sfnnv3": lambda: stockfish("sfnnv3", l1=32),
    "one layer": lambda: LayerStacks(272, 1),
    "one layer of many": lambda: LayerStacks(16, 8),
    "deep": lambda: DEEP,
}
LOSSES: dict[str, Loss] = {
    "sigmoid": SigmoidLoss(),
    "sigmoid, odd power": SigmoidLoss(scale=300.0, power=2.5),
    "win rate": WinRateLoss(),
    "win rate, weighted": WinRateLoss(qp_asymmetry=0.3, weight_boost=1.5, weight_power=0.7, power=2.0),
    "cross entropy": CrossEntropyLoss(scale=350.0),
}


@dataclass
class Case:
    """Layers with weights, and a batch."""

    stacks: LayerStacks
    linears: Sequence[nn.Module]
    first: FirstOutputs
    score: Tensor
    result: Tensor
    lam: Tensor

    @property
    def leaves(self) -> dict[str, Tensor]:
        found = {"x": self.first.x} | ({} if self.first.psqt is None else {"psqt": self.first.psqt})
        for number, linear in enumerate(self.linears):
            found |= {f"{number}.{name}": parameter for name, parameter in linear.named_parameters()}
        return found

    @property
    def behind(self) -> LayerCall:
        return self.stacks.call(self.linears, self.first.bucket)

    def loss(self, loss: Loss, score_scale: float = 600.0) -> Tensor:
        targets = self.score, self.result, self.lam
        return loss_of(self.behind, self.first, targets, loss, score_scale)

    def double(self) -> Case:
        linears = []
        for linear in self.linears:
            copy = StackedLinear(*_sizes(linear)).double().to(self.score.device)
            copy.load_state_dict(linear.state_dict())
            linears.append(copy)
        x, psqt, bucket = self.first
        first = FirstOutputs(
            x.detach().double().requires_grad_(),
            None if psqt is None else psqt.detach().double().requires_grad_(),
            bucket,
        )
        return Case(self.stacks, linears, first, self.score, self.result, self.lam.double())


def _sizes(linear: nn.Module) -> tuple[int, int, int]:
    stacks, outputs, inputs = linear.get_parameter("weight").shape
    return int(stacks), int(inputs), int(outputs)


def make_case(
    stacks: LayerStacks, positions: int, seed: int, dtype: torch.dtype = torch.float32, *, psqt: bool = True
) -> Case:
    g = torch.Generator().manual_seed(seed)
    seen, linears = stacks.inputs, list[nn.Module]()
    kept = 0
    for layer in stacks.hidden:
        linears.append(StackedLinear(stacks.stacks, seen, layer.outputs))
        seen = layer.activated * (2 if layer.activation == "dual" else 1)
        kept += seen if layer.output_scale is not None and layer is not stacks.hidden[-1] else 0
    linears.append(StackedLinear(stacks.stacks, seen + kept, 1))
    for linear in linears:
        for parameter in linear.parameters():
            size = 2.0 / parameter.shape[-1] ** 0.5 if parameter.dim() == 3 else 0.5
            parameter.data = (torch.rand(parameter.shape, generator=g) * 2 - 1) * size
    x = torch.rand((positions, stacks.inputs), generator=g).to(dtype).requires_grad_()
    psqt_part = torch.randn(positions, generator=g).requires_grad_() if psqt else None
    bucket = (torch.rand(positions, generator=g) ** 2 * stacks.stacks).long()
    score = torch.randint(-2000, 2000, (positions,), generator=g)
    score[torch.rand(positions, generator=g) < 0.2] = NO_SCORE
    score[torch.rand(positions, generator=g) < 0.1] = 31900
    score[torch.rand(positions, generator=g) < 0.1] = -31760
    result = torch.randint(-1, 2, (positions,), generator=g)
    return Case(
        stacks, linears, FirstOutputs(x, psqt_part, bucket), score.short(), result.to(torch.int8), torch.tensor(0.7)
    )


def without_edges(case: Case) -> Case:
    """Positions with a sum on the edge of a clamp, where rounding decides about the gradient, become others' twins."""
    exact = case.double()
    x, edge = exact.first.x.detach(), torch.zeros(len(case.score), dtype=torch.bool)
    for layer, linear in zip(case.stacks.hidden, exact.linears, strict=False):
        y = linear(x, exact.first.bucket)
        bounds = [layer.low if layer.activation == "none" else 0.0, layer.largest]
        bounds += [s * (layer.largest / layer.square) ** 0.5 for s in (-1, 1)] if layer.activation == "dual" else []
        for bound in bounds:
            edge |= ((y - bound).abs() < 1e-5).any(1)
        x = activate_layer(y[:, : layer.activated], layer.activation, layer.largest, layer.low, layer.square)
    safe = (~edge).nonzero().flatten()
    assert len(safe) > 0.9 * len(edge)
    with torch.no_grad():
        for tensor in (case.first.x, case.first.bucket):
            tensor[edge] = tensor[safe[: edge.sum()]]
    return case


def gradients(case: Case, value: Tensor, grad: Tensor) -> dict[str, Tensor]:
    leaves = case.leaves
    found = torch.autograd.grad(value, list(leaves.values()), grad)
    return dict(zip(leaves, found, strict=True))


def rounding(case: Case, few_layers: float, more_layers: float) -> float:
    """The tolerance for fp32. Where x has 16 bits, what it is multiplied by has 16 bits, too."""
    if case.first.x.dtype != torch.float32:
        return 2e-5
    return few_layers if len(case.stacks.hidden) < 3 else more_layers


def check_output(case: Case) -> dict[str, Tensor]:
    exact = case.double()
    output = case.stacks.forward(case.first, case.linears)
    expected = exact.stacks.outputs(exact.first, exact.linears).squeeze(1)
    assert_close(output, expected, rounding(case, 3e-7, 5e-7), "output")
    grad = torch.randn(len(output), generator=torch.Generator().manual_seed(3)).to(output.device)
    found = gradients(case, output, grad)
    compare(case, found, gradients(exact, expected, grad.double()))
    return found | {"output": output}


def check_loss(case: Case, loss: Loss) -> dict[str, Tensor]:
    """The gradient of three times the summed loss: so its factor counts, and float16 holds it."""
    exact = case.double()
    found = case.loss(loss)
    net = exact.stacks.outputs(exact.first, exact.linears).squeeze(1) * 600.0
    expected = mean(*loss.terms(net, case.score, case.result, exact.lam))
    assert_close(found, expected, rounding(case, 1e-6, 1e-6), "loss")
    factor = torch.tensor(3.0 * len(case.score), device=found.device)
    all_found = gradients(case, found, factor)
    compare(case, all_found, gradients(exact, expected, factor.double()), 4)
    return all_found | {"loss": found}


def compare(case: Case, found: dict[str, Tensor], expected: dict[str, Tensor], factor: float = 1) -> None:
    for name, gradient in found.items():
        tolerance = rounding(case, 5e-7, 8e-7)
        if name == "x":
            tolerance = {torch.float32: tolerance, torch.float16: 4e-4, torch.bfloat16: 3e-3}[case.first.x.dtype]
        assert_close(gradient, expected[name], factor * tolerance, f"gradient of {name}")


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    for name in a:
        assert torch.equal(a[name], b[name]), f"{name}: other bits in the second run"


# ---- in the emulator -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", NETS)
def test_emulated_output(emulated: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    """Bits are equal with other schedules."""
    case = make_case(NETS[name](), 331, 1, dtype, psqt=name != "sfnnv1")
    if name == "sfnnv1":
        case.first = case.first._replace(psqt=None)
    emulated.emulator_configure(4, 1)
    found = check_output(case)
    emulated.emulator_configure(4, 99)  # the order of sums may depend on how many multiprocessors there are
    same_bits(found, check_output(case))


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["sfnnv5", "sfnnv16", "one layer"])
def test_emulated_loss(emulated: ctypes.CDLL, name: str, loss: str) -> None:
    case = make_case(NETS[name](), 203, 2)
    emulated.emulator_configure(4, 1)
    found = check_loss(case, LOSSES[loss])
    emulated.emulator_configure(4, 50)
    same_bits(found, check_loss(case, LOSSES[loss]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["sfnnv5", "sfnnv16"])
def test_emulated_loss_in_one_kernel_or_two(emulated: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    """Equal bits, whether layer 0 has a separate kernel (11 tiles for 2 · 4 thread blocks) or not (for 2 · 6)."""
    case = make_case(NETS[name](), 203, 2, dtype)
    emulated.emulator_configure(4, 1)
    apart = check_loss(case, LOSSES["win rate"])
    emulated.emulator_configure(6, 1)
    together = check_loss(case, LOSSES["win rate"])
    del apart["0.weight"]  # whose sums are divided between multiprocessors
    same_bits(apart, together)


@pytest.mark.parametrize("positions", [0, 1, 64, 65, 1500])
def test_emulated_sizes(emulated: ctypes.CDLL, positions: int) -> None:
    case = make_case(LayerStacks(32, 5, (StackLayer(3, 3, "crelu", 1.0),)), positions, positions)
    emulated.emulator_configure(4, 7)
    if positions:
        check_output(case)
        check_loss(case, LOSSES["win rate"])
        return
    output = case.stacks.forward(case.first, case.linears)
    assert output.shape == (0,)
    assert all((g == 0).all() for g in gradients(case, output, output).values())


def test_emulated_stack_of_one_kind(emulated: ctypes.CDLL) -> None:
    """All positions in the last stack: the others get gradients of 0, even if their weights are not numbers."""
    case = make_case(NETS["sfnnv3"](), 100, 5)
    case.first = case.first._replace(bucket=torch.full((100,), 7))
    with torch.no_grad():
        for linear in case.linears:
            linear.get_parameter("weight")[:7] = torch.nan
    emulated.emulator_configure(4, 7)
    output = case.stacks.forward(case.first, case.linears)
    assert torch.isfinite(output).all()
    for name, gradient in gradients(case, output, torch.ones_like(output)).items():
        if name not in ("x", "psqt"):
            assert (gradient[:7] == 0).all(), name
            assert (gradient[7] != 0).any(), name


def test_emulated_not_a_number_is_seen(emulated: ctypes.CDLL) -> None:
    case = make_case(NETS["sfnnv5"](), 70, 6)
    with torch.no_grad():
        case.first.x[3, 5] = torch.nan
    emulated.emulator_configure(4, 7)
    output = case.stacks.forward(case.first, case.linears)
    assert output.isnan().nonzero().flatten().tolist() == [3]
    assert case.loss(LOSSES["win rate"]).isnan()


def test_emulated_lambda_by_position(emulated: ctypes.CDLL) -> None:
    case = make_case(NETS["sfnnv3"](), 90, 9)
    case.lam = torch.rand(90, generator=torch.Generator().manual_seed(1))
    emulated.emulator_configure(4, 7)
    check_loss(case, LOSSES["win rate"])


@pytest.mark.parametrize("name", ["one layer of many", "sfnnv3"])
def test_emulated_cross_entropy_of_extreme_outputs(emulated: ctypes.CDLL, name: str) -> None:
    """Targets of 0 and 1, and outputs whose sigmoid rounds to either; a net with the targets' outputs has loss 0."""
    loss, scale = LOSSES["cross entropy"], 350.0
    emulated.emulator_configure(4, 7)
    scores, results = [0, 35, -2000, 32000, -32000, NO_SCORE], [-1, 0, 1]
    for output in (0.0, 1e-3, -2.0, 40.0, -40.0, 1e4, -1e4, 1e30, -1e30):
        case = make_case(NETS[name](), len(scores) * len(results), 1)
        with torch.no_grad():
            for linear in case.linears:
                for parameter in linear.parameters():
                    parameter.zero_()
            present(case.first.psqt).fill_(output)
        case.score = torch.tensor(scores).repeat_interleave(len(results)).short()
        case.result = torch.tensor(results).repeat(len(scores)).to(torch.int8)
        for lam in (0.0, 0.3, 1.0):
            case.lam = torch.tensor(lam)
            found, exact = case.loss(loss, scale), case.double()
            net = present(exact.first.psqt) * scale
            expected = mean(*loss.terms(net, case.score, case.result, case.lam.double()))
            torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)
            (gradient,) = torch.autograd.grad(found, present(case.first.psqt))
            (of_exact,) = torch.autograd.grad(expected, present(exact.first.psqt))
            torch.testing.assert_close(gradient.double(), of_exact, rtol=1e-5, atol=1e-8)
    with torch.no_grad():
        present(case.first.psqt).copy_(torch.where(case.score == NO_SCORE, 0, case.score) / scale)
    perfect = case.loss(loss, scale)  # λ is 1
    assert perfect.abs() < 1e-7
    assert torch.autograd.grad(perfect, present(case.first.psqt))[0].abs().max() < 1e-7


@pytest.mark.parametrize("positions", [70, 0])
@pytest.mark.parametrize("name", ["sfnnv3", "one layer", "deep"])
def test_emulated_without_any_weight(emulated: ctypes.CDLL, name: str, positions: int) -> None:
    """λ = 1 and no scores, or no positions: the loss is 0, as that of `mean`."""
    case = make_case(NETS[name](), positions, 6)
    case.score.fill_(NO_SCORE)
    case.lam.fill_(1.0)
    emulated.emulator_configure(4, 7)
    loss = case.loss(LOSSES["sigmoid"], 400.0)
    assert loss == 0
    assert all((g == 0).all() for g in gradients(case, loss, torch.tensor(1.0)).values())


def test_emulated_in_parts(emulated: ctypes.CDLL) -> None:
    """Layer 0 by columns, as several GPUs divide it: partial sums, the rest from these, gradients by columns."""
    stacks = NETS["sfnnv5"]()
    case = make_case(stacks, 150, 8)
    emulated.emulator_configure(4, 7)
    whole = check_output(case)
    of, op, x = stacks.description, torch.ops.nnue_emulated, case.first.x.detach()
    weight, *others = [p.detach() for p in case.behind.parameters]
    order, slabs = stacks.order(case.first.bucket), [slice(0, 96), slice(96, 320)]
    sums = sum(op._layer_stacks_first(x[:, s].contiguous(), order, weight[:, :, s].contiguous()) for s in slabs)
    psqt = None if case.first.psqt is None else case.first.psqt.detach()
    output, _ = op._layer_stacks_forward(sums, order, [weight, *others], psqt, of, True)
    assert_close(output, whole["output"], 2e-7, "output")
    grad = torch.randn(len(output), generator=torch.Generator().manual_seed(3))
    grad_sums, partials = op._layer_stacks_backward(grad, sums, order, [weight, *others], of)
    for s in slabs:
        part, own = [weight[:, :, s].contiguous(), *others], dataclasses.replace(stacks, inputs=s.stop - s.start)
        grad_x, _, _, grad_weight, flat = op._layer_stacks_gradients(
            x[:, s].contiguous(), order, part, grad_sums, None, None, [], own.description, torch.float32, []
        )
        assert flat.numel() == 0
        assert_close(grad_x, whole["x"][:, s], 3e-7, "gradient of x")
        assert_close(grad_weight, whole["0.weight"][:, :, s], 3e-7, "gradient of weight 0")
    empty, *_, flat = op._layer_stacks_gradients(
        None, order, [weight, *others], None, partials, grad, [], of, torch.float32, []
    )
    assert empty.numel() == 0
    assert_close(flat[: others[0].numel()].view_as(others[0]), whole["0.bias"], 3e-7, "gradient of bias 0")


@pytest.mark.parametrize(
    "net",
    [
        {"kind": "simple", "hidden": 16, "activation": "crelu"},
        {
            "kind": "layered",
            "hidden": 32,
            "activation": "pairwise",
            "psqt": True,
            "output_buckets": {"count": 4},
            "layers": [
                {"outputs": 8, "activation": "dual", "skip": "last", "to_output": True},
                {"outputs": 6, "activation": "none", "skip": "difference", "skip_activated": True},
                {"outputs": 5, "activation": "screlu"},
            ],
        },
    ],
    ids=["simple", "layered"],
)
def test_emulated_loss_of_models(emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, net: dict[str, Any]) -> None:
    """Against separate forward and loss."""
    (model, batch), loss, lam = make_model(net), WinRateLoss(), torch.tensor(0.8)
    emulated.emulator_configure(4, 7)
    found = loss_of_model(model, batch, loss, lam)
    ahead = model.stacks.plan(batch, model.buckets(batch))
    prepared = dataclasses.replace(batch, plans=(ahead,))
    assert torch.equal(model(prepared), model(batch))  # a plan of another kind is nothing to the first layer
    assert model.stacks.order_of(prepared) is ahead.data
    assert model.stacks.order_of(dataclasses.replace(prepared, white=batch.white.clone())) is None
    monkeypatch.setattr(LayerStacks, "order", None)  # not made again
    assert torch.equal(loss_of_model(model, prepared, loss, lam), found)
    gradients_found = torch.autograd.grad(found, list(model.parameters()))
    monkeypatch.setattr(LayerCall, "_kernels", lambda *_: "torch")
    assert_as_apart(model, batch, loss, lam, found, gradients_found, 1e-12)


def test_emulated_errors(emulated: ctypes.CDLL) -> None:
    case = make_case(NETS["sfnnv3"](), 20, 1)
    of = case.stacks.description
    order, parameters = case.stacks.order(case.first.bucket), case.behind.parameters
    call = torch.ops.nnue_emulated._layer_stacks_forward
    with pytest.raises(RuntimeError, match=r"_layer_stacks_forward: x: found float64, expected float32 or float16"):
        call(case.first.x.double(), order, parameters, None, of)
    with pytest.raises(RuntimeError, match=r"order: found shape \[\d+\], expected \[\d+\], what _stack_order gives"):
        call(case.first.x, order[1:], parameters, None, of)
    with pytest.raises(RuntimeError, match=r"parameters: found 4 tensors, expected 6"):
        call(case.first.x, order, parameters[:4], None, of)
    with pytest.raises(RuntimeError, match=r"layers: found -1, expected a number that _layer_stacks_describe returned"):
        call(case.first.x, order, parameters, None, -1)
    hidden = (dataclasses.replace(case.stacks.hidden[0], outputs=8, activated=7), *case.stacks.hidden[1:])
    with pytest.raises(RuntimeError, match=r"weight_1: found shape \[8, 32, 8\], expected shape \[S, O, I\]"):
        call(case.first.x, order, parameters, None, dataclasses.replace(case.stacks, hidden=hidden).description)


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 40), (24, 8)])
def test_emulated_layers_beyond_the_kernels(emulated: ctypes.CDLL, inputs: int, outputs: int) -> None:
    """Each operator refuses more than 32 outputs of layer 0, and N that is not a multiple of 16."""
    op, hidden = torch.ops.nnue_emulated, [outputs, outputs, 0, -1, -1, 0]
    of = op._layer_stacks_describe(inputs, 1, hidden, [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0], [])
    parameters = [
        torch.zeros(1, outputs, inputs),
        torch.zeros(1, outputs),
        torch.zeros(1, 1, outputs),
        torch.zeros(1, 1),
    ]
    order = op._stack_order(torch.zeros(3, dtype=torch.int64), 1)
    x, sums, ones = torch.zeros(3, inputs), torch.zeros(3, outputs), torch.ones(3)
    targets = [torch.zeros(3, dtype=torch.int16), torch.zeros(3, dtype=torch.int8), torch.tensor(1.0)]
    calls = {
        "_layer_stacks_forward": (x, order, parameters, None, of),
        "_layer_stacks_backward": (ones, sums, order, parameters, of),
        "_layer_stacks_loss": (x, order, parameters, None, targets, of, 1, [600.0, 1.0, 1.0]),
        "_layer_stacks_gradients": (x, order, parameters, sums, None, None, [], of, None, []),
    }
    for name, arguments in calls.items():
        with pytest.raises(RuntimeError, match=rf"{name}: parameters: found layers that the kernels do not support"):
            getattr(op, name)(*arguments)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"hidden": [8, 9, 0, -1, -1, 0]},
            "hidden: found layer 0 of 8 outputs, 9 activated, .*expected 1 to 2.20 outp",
        ),
        ({"hidden": [8, 8, 0, 8, -1, 0]}, "hidden: found layer 0 of .* plus 8, minus -1, expected"),
        ({"hidden": [8, 8, 4, -1, -1, 0]}, r"hidden: found layer 0 with activation 4, expected 0 \(none\)"),
        ({"hidden": [8]}, "hidden: found 1 numbers and 7 constants, expected 6 and 7 for each layer but the last"),
        (
            {"constants": [1, 0, 1, 1, 0.3, 1, 1]},
            "constants: found layer 0 with step 0.3.*, expected a power of two",
        ),
        ({"constants": [1, 0, 1, 1, 1, 1, 0]}, "constants: .* skip_divide 0.0+, expected .* a positive skip_divide"),
        ({"integers": [1.0] * 8}, "integers: found 8 numbers, expected none, or 10"),
        (
            {"integers": [1, 1, 0, 1, 1, 0, 1, 1, 1, 0]},
            "integers: found divide 1.0+, by 0.0+.* expected positive divisors",
        ),
        ({"stacks": 65}, "stacks: found 65, expected 1 to 64"),
    ],
)
def test_emulated_descriptions(emulated: ctypes.CDLL, changed: dict[str, Any], message: str) -> None:
    """One number for equal layers; what no kernel can compute is refused."""
    given = {"inputs": 32, "stacks": 2, "hidden": [8, 8, 0, -1, -1, 0], "constants": [1, 0, 1, 1, 1, 1, 1]}
    given |= {"integers": []}
    describe = torch.ops.nnue_emulated._layer_stacks_describe
    assert describe(*given.values()) == describe(*given.values())
    assert describe(*given.values()) != describe(*(given | {"inputs": 48}).values())
    with pytest.raises(RuntimeError, match=message):
        describe(*(given | changed).values())


def test_order_is_stable(emulated: ctypes.CDLL) -> None:
    """Each stack's positions ascend, begin with a new tile, and -1 fills what is left."""
    for positions, stacks in ((0, 3), (5, 1), (3000, 8), (2048, 64)):
        bucket = torch.randint(-1, stacks + 1, (positions,), generator=torch.Generator().manual_seed(positions))
        emulated.emulator_configure(4, 7)
        order = torch.ops.nnue_emulated._stack_order(bucket, stacks).tolist()
        tiles, first = order[0], order[2 : 3 + stacks]
        most = positions // 64 + stacks
        slots = order[-64 * most :]
        for s in range(stacks):
            of_stack = (bucket.clamp(0, stacks - 1) == s).nonzero().flatten().tolist()
            inside = slots[64 * first[s] : 64 * first[s + 1]]
            assert inside == of_stack + [-1] * (-len(of_stack) % 64)
        assert first[stacks] == tiles
        assert set(slots[64 * tiles :]) <= {-1}


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def on(case: Case, device: torch.device) -> Case:
    x, psqt, bucket = case.first
    first = FirstOutputs(
        x.detach().to(device).requires_grad_(),
        None if psqt is None else psqt.detach().to(device).requires_grad_(),
        bucket.to(device),
    )
    linears = [linear.to(device) for linear in case.linears]
    return Case(case.stacks, linears, first, *(t.to(device) for t in (case.score, case.result, case.lam)))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("positions", [1000, 20_000])
@pytest.mark.parametrize("name", [*NETS, "sfnnv9"])
def test_cuda(name: str, positions: int, dtype: torch.dtype) -> None:
    require(no_cuda())
    stacks = stockfish("sfnnv9") if name == "sfnnv9" else NETS[name]()
    case = on(without_edges(make_case(stacks, positions, 1, dtype)), torch.device("cuda"))
    assert case.behind._is_fused(case.first.x, case.first.psqt)
    same_bits(check_output(case), check_output(case))
    for loss in LOSSES.values():
        same_bits(check_loss(case, loss), check_loss(case, loss))


# ---- what decides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [WinRateLoss, SigmoidLoss, CrossEntropyLoss])
def test_a_loss_of_ones_own_has_no_kernel(loss: type[Loss]) -> None:
    class Own(loss):  # type: ignore[misc,valid-type]
        def per_position(self, *arguments: Any) -> Any:
            return super().per_position(*arguments)

    assert loss().kernel() is not None
    assert Own().kernel() is None


def test_the_cpu_takes_the_plain_path() -> None:
    case = make_case(NETS["sfnnv5"](), 20, 1)
    assert not case.behind._is_fused(case.first.x, case.first.psqt)
