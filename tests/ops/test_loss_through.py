"""The loss of a net together with its feature transformer: with one layer of one output, whose gradient goes to the
transformer as two factors, and with more layers, the first of which makes the gradients of the transformer's rows.

Against float64, in the emulator of tests/cuda_emulator and on a GPU, with either set of kernels."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from fused_loss import loss_of, memory_of_nan
from sample_inputs import assert_close
from torch import Tensor

from nnue_trainer.losses import NO_SCORE, SigmoidLoss, mean
from nnue_trainer.losses.win_rate import WinRateLoss
from nnue_trainer.modules import StackedLinear
from nnue_trainer.modules.layer_stacks import FirstOutputs, LayerCall, LayerStacks
from nnue_trainer.ops.perspectives import (
    Parameters,
    Transformer,
    TransformerCall,
    number_of,
    perspective_transformer,
)
from nnue_trainer.ops.reference import StackLayer

FEATURES, ACTIVE, RANGE = 40, 12, (0.75, 127 / 128)
HOPPER, PORTABLE = [20, FEATURES], [0, FEATURES]  # selects each set of kernels
UNBUCKETED = [20, 20]  # half of the features lie in no king bucket
LOSSES = {"sigmoid": SigmoidLoss(power=2.5), "win rate": WinRateLoss(qp_asymmetry=0.3, weight_boost=1.5)}


def kernels_of(buckets: list[int]) -> Literal["hopper", "portable"]:
    return "hopper" if buckets[0] else "portable"


def make_rows(positions: int, g: torch.Generator) -> Tensor:
    """Rows of every length in one of two king buckets of 20 features; a few break the rule of the kernels of 9.0."""
    rows = torch.rand(positions, 20, generator=g).argsort(1)[:, :ACTIVE].int()
    rows += 20 * torch.randint(0, 2, (positions, 1), generator=g, dtype=torch.int32)
    rows[5::50] = torch.randint(0, FEATURES, (len(rows[5::50]), ACTIVE), generator=g, dtype=torch.int32)
    lengths = torch.arange(positions)[:, None] % (ACTIVE + 1)
    return torch.where(torch.arange(ACTIVE)[None] >= lengths, -1, rows).int()


class Case:
    """A batch and a net; weights are multiples of 1/64, so no sum lies on another side of the clip in another type."""

    def __init__(
        self,
        positions: int,
        columns: int,
        stacks: int,
        activation: Any,
        dtype: torch.dtype,
        device: str = "cpu",
        hidden: tuple[StackLayer, ...] = (),
        psqt: bool = False,
    ) -> None:
        g = torch.Generator().manual_seed(positions + columns)
        self.rows = [make_rows(positions, g).to(device) for _ in range(2)]
        self.black_to_move = torch.randint(0, 2, (positions,), generator=g, dtype=torch.uint8).to(device)
        self.weight = (torch.randint(-24, 25, (FEATURES, columns), generator=g) / 64).to(device, dtype)
        self.bias = (torch.randint(-16, 65, (columns,), generator=g) / 64).to(device)
        self.activation = activation
        inputs = columns if activation == "pairwise" else 2 * columns
        self.stacks, self.layers, seen = LayerStacks(inputs, stacks, hidden), [], inputs
        for outputs, then in [
            *((x.outputs, x.activated * (2 if x.activation == "dual" else 1)) for x in hidden),
            (1, 0),
        ]:
            layer = StackedLinear(stacks, seen, outputs)
            for parameter in layer.parameters():
                parameter.data = (torch.randn(parameter.shape, generator=g) / seen**0.5).to(device)
            self.layers.append(layer)
            seen = then
        self.psqt = (torch.randn(FEATURES, stacks, generator=g) / 8).to(device) if psqt else None
        self.bucket = torch.randint(0, stacks, (positions,), generator=g).to(device)
        score = torch.randint(-900, 900, (positions,), generator=g)
        score[::7] = NO_SCORE
        result = torch.randint(-1, 2, (positions,), generator=g)
        lam = torch.rand(positions, generator=g)
        self.targets = (score.short().to(device), result.to(torch.int8).to(device), lam.to(device))

    @property
    def behind(self) -> LayerCall:
        return self.stacks.call(self.layers, self.bucket)

    def layout(self, buckets: list[int]) -> list[int]:
        return [*buckets, self.weight.element_size()]

    def call(self, plan: Tensor, buckets: list[int]) -> TransformerCall:
        batch = [*self.rows, plan, *([] if self.psqt is None else [self.bucket])]
        psqt_buckets = 0 if self.psqt is None else self.psqt.shape[1]
        layout, activation = self.layout(buckets), number_of(self.activation)
        transformer = Transformer._make([*self.weight.shape, psqt_buckets, *layout, activation, 0])
        parameters = Parameters(self.weight, self.bias, self.psqt)
        return TransformerCall(kernels_of(buckets), batch, parameters, transformer, list(RANGE), self.weight.dtype)

    def through(
        self, loss: str, namespace: str, buckets: list[int], factor: float = 1.0,
        leaves_unused: bool = False,
    ) -> dict[str, Tensor]:  # fmt: skip
        psqt = None if self.psqt is None else self.psqt.requires_grad_()
        leaves = leaves_of(self.weight.requires_grad_(), self.bias.requires_grad_(), psqt, self.layers)
        operators = getattr(torch.ops, namespace)
        plan = operators._perspective_plan(*self.rows, self.black_to_move, FEATURES, *self.layout(buckets))
        call = self.call(plan, buckets)
        found = loss_of(self.behind, call, self.targets, LOSSES[loss], 400.0, leaves_unused=leaves_unused)
        return gradients(found, leaves, factor)

    def exact(self, loss: str) -> dict[str, Tensor]:
        weight, bias = (t.detach().double().requires_grad_() for t in (self.weight, self.bias))
        psqt = None if self.psqt is None else self.psqt.detach().double().requires_grad_()
        layers = [copy.deepcopy(layer).double() for layer in self.layers]
        bound, scale = RANGE
        out: Any = perspective_transformer(
            self.rows[0], self.rows[1], self.black_to_move, weight, bias, activation=self.activation, bound=bound,
            scale=scale, psqt=psqt, psqt_bucket=None if psqt is None else self.bucket,
        )  # fmt: skip
        x, sums = (out, None) if psqt is None else out
        first = FirstOutputs(x, sums, self.bucket)
        net = self.stacks.outputs(first, layers).squeeze(1) * 400.0
        score, result, lam = self.targets
        exact = mean(*LOSSES[loss].terms(net, score, result, lam.double()))
        return gradients(exact, leaves_of(weight, bias, psqt, layers))

    def check(self, found: dict[str, Tensor], loss: str) -> None:
        wide, expected = self.weight.dtype == torch.float32, self.exact(loss)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == (self.weight.dtype if name == "weight" else torch.float32)
            assert_close(found[name], value, 3e-6 if wide else 1e-2, name)


def leaves_of(weight: Tensor, bias: Tensor, psqt: Tensor | None, layers: list[StackedLinear]) -> dict[str, Tensor]:
    found = {"weight": weight, "bias": bias} | ({} if psqt is None else {"psqt": psqt})
    for number, layer in enumerate(layers):
        found |= {f"{name} of layer {number}": parameter for name, parameter in layer.named_parameters()}
    return found


def gradients(loss: Tensor, leaves: dict[str, Tensor], factor: float = 1.0) -> dict[str, Tensor]:
    """Those of 100 · factor · loss, so that 16 bits hold them."""
    found = torch.autograd.grad(loss, list(leaves.values()), torch.full_like(loss, 100 * factor))
    return dict(zip(leaves, found, strict=True)) | {"loss": loss.detach()}


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["crelu", "screlu", "pairwise"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stacks", [1, 3])
@pytest.mark.parametrize("buckets", [HOPPER, PORTABLE], ids=["hopper", "portable"])
def test_emulated(emulated: ctypes.CDLL, buckets: list[int], activation: str, dtype: torch.dtype, stacks: int) -> None:
    """Bits are equal with other schedules."""
    case, loss = Case(151, 144, stacks, activation, dtype), "win rate" if stacks == 1 else "sigmoid"
    emulated.emulator_configure(4, 1)
    found = case.through(loss, "nnue_emulated", buckets)
    case.check(found, loss)
    emulated.emulator_configure(4, 50)
    for name, value in case.through(loss, "nnue_emulated", buckets).items():
        assert torch.equal(value, found[name]), f"{name}: other bits in the second run"


# Layers whose derivatives have no jumps near the values here: in 16 bits x is rounded.
SMOOTH = (StackLayer(16, 15, "none", 50.0, low=-50.0, plus=15), StackLayer(7, 7, "none", 50.0, low=-50.0))
DUAL = (StackLayer(16, 15, "dual", 1.0, square=0.99, plus=15), StackLayer(9, 9, "crelu", 1.0))
NARROW = (StackLayer(5, 5, "crelu", 1.0),)
WIDE = (StackLayer(31, 30, "none", 50.0, low=-50.0, plus=30),)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        assert torch.equal(found[name], value), f"{name}: other bits"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "dtype"),
    [
        (DUAL, torch.float32),
        (NARROW, torch.float32),
        (SMOOTH, torch.bfloat16),
        (WIDE, torch.float32),
        (WIDE, torch.bfloat16),
    ],
    ids=["dual", "narrow", "bf16", "wide", "wide bf16"],
)
@pytest.mark.parametrize(("positions", "columns", "stacks"), [(151, 192, 3), (300, 64, 8), (1, 128, 1), (70, 576, 2)])
def test_emulated_layers(
    emulated: ctypes.CDLL,
    hidden: tuple[StackLayer, ...],
    dtype: torch.dtype,
    positions: int,
    columns: int,
    stacks: int,
) -> None:
    """With PSQT columns and rows outside of the rule, and equal bits with other schedules."""
    case = Case(positions, columns, stacks, "pairwise", dtype, hidden=hidden, psqt=stacks > 1)
    emulated.emulator_configure(4, 1)
    found = case.through("sigmoid", "nnue_emulated", HOPPER)
    case.check(found, "sigmoid")
    emulated.emulator_configure(4, 50)
    assert_equal(case.through("sigmoid", "nnue_emulated", HOPPER), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_emulated_unbucketed_features(emulated: ctypes.CDLL, dtype: torch.dtype) -> None:
    case = Case(200, 128, 2, "pairwise", dtype, hidden=SMOOTH, psqt=True)
    emulated.emulator_configure(4, 3)
    case.check(case.through("sigmoid", "nnue_emulated", UNBUCKETED), "sigmoid")


def test_emulated_operator(emulated: ctypes.CDLL) -> None:
    """Cases that the kernels do not support are refused."""
    case, op = Case(90, 64, 2, "pairwise", torch.float32, hidden=SMOOTH), torch.ops.nnue_emulated
    emulated.emulator_configure(4, 1)
    plan = op._perspective_plan(*case.rows, case.black_to_move, FEATURES, *case.layout(HOPPER))
    call, parameters = case.call(plan, HOPPER), case.behind.parameters
    x, _, saved = call.run(op, save=True)
    order, layers = op._stack_order(case.bucket, 2), case.stacks.description
    kernel = LOSSES["sigmoid"].kernel()
    assert kernel is not None
    totals, grad_sums, _, partials = op._layer_stacks_loss(
        x,
        order,
        parameters,
        None,
        list(case.targets),
        layers,
        kernel.kind,
        [400.0, *kernel.constants],
    )

    def through(
        plan: Tensor = plan, saved: Tensor = saved, buckets: list[int] = HOPPER, bounds: tuple[float, float] = RANGE
    ) -> Any:
        return op._layer_stacks_gradients(
            None, order, parameters, grad_sums, partials, None, [torch.tensor(1.0), totals], layers, torch.float32,
            [saved, case.bucket, *case.rows, plan], case.call(plan, buckets).transformer, bounds,
        )  # fmt: skip

    assert through()[0].any()
    with pytest.raises(RuntimeError, match="parameters: found layers that the kernel does not support"):
        through(buckets=PORTABLE)
    with pytest.raises(RuntimeError, match="plan: found shape"):
        through(plan=plan[:-1])
    with pytest.raises(RuntimeError, match="saved: found shape"):
        through(saved=saved[:-1])
    with pytest.raises(RuntimeError, match=r"bound: found 300\.0+, expected 1/64 to 255"):
        through(saved=saved.half(), bounds=(300.0, 1.0))
    described = call.transformer, call.range, case.weight.dtype
    with pytest.raises(RuntimeError, match="grad_output: found uint8, expected float32"):  # no row gradients
        op._perspective_transformer_backward(plan, None, call.batch, saved, *described)


def test_emulated_errors_of_one_pass(emulated: ctypes.CDLL) -> None:
    """The loss continues to row gradients only where the kernel supports the net."""
    case, op = Case(90, 64, 2, "crelu", torch.bfloat16), torch.ops.nnue_emulated
    emulated.emulator_configure(4, 1)
    plan = op._perspective_plan(*case.rows, case.black_to_move, FEATURES, *case.layout(HOPPER))
    call, parameters, (bound, scale) = case.call(plan, HOPPER), case.behind.parameters, RANGE
    forward = call.batch, case.weight, case.bias, None, call.transformer, [bound, scale], case.weight.dtype
    out, _, saved = op._perspective_transformer_forward(*forward, True, saved_alone=True)
    assert out.shape == (0, 128)
    with pytest.raises(RuntimeError, match="saved_alone: found a call that it does not fit"):
        op._perspective_transformer_forward(*forward, False, saved_alone=True)
    order, kernel = op._stack_order(case.bucket, 2), LOSSES["sigmoid"].kernel()
    assert kernel is not None

    def loss(
        targets: Sequence[Tensor] = (*case.targets, *case.rows, plan),
        transformer: Sequence[int] = call.transformer,
        range: Sequence[float] = (bound, scale, scale),
        saved: Tensor = saved,
    ) -> Any:
        return op._layer_stacks_loss(
            saved, order, parameters, None, targets, case.stacks.description, kernel.kind,
            [400.0, *kernel.constants], False, transformer, range,
        )  # fmt: skip

    assert loss()[1].dtype == torch.uint8
    with pytest.raises(RuntimeError, match="targets: found 3 tensors, expected score, result and lambda; with"):
        loss(case.targets)
    with pytest.raises(RuntimeError, match="range: found 2 numbers, expected bound, scale and the factor of x"):
        loss(range=RANGE)
    with pytest.raises(RuntimeError, match=r"bound: found 300\.0+, expected 1/64 to 255"):
        loss(range=(300.0, 1.0, 1.0))
    with pytest.raises(RuntimeError, match="transformer: found one that the kernel does not support"):
        loss(transformer=[*call.transformer[:6], number_of("pairwise"), 0])
    with pytest.raises(RuntimeError, match="saved: found shape"):
        loss(saved=saved[:-1])
    with pytest.raises(RuntimeError, match="plan: found shape"):
        loss((*case.targets, *case.rows, plan[:-1]))


UNUSED = pytest.mark.parametrize(
    ("buckets", "hidden", "activation"),
    [([600, 1200], (), "crelu"), ([600, 1200], SMOOTH, "pairwise"), ([20, 20], SMOOTH, "pairwise")],
    ids=["one layer", "layers", "unbucketed"],
)


def check_unused(
    namespace: str, device: str, dtype: torch.dtype, buckets: list[int], hidden: tuple[StackLayer, ...], activation: str
) -> None:
    """With `leaves_unused` no other rows of the gradient of the weight are left unwritten than those whose feature no
    position has, and none if there are irregular rows."""
    case = Case(5, 128, 2, activation, dtype, device, hidden)
    for irregular in (False, True):
        if irregular:
            case.rows[0][3, :3] = torch.tensor([1, 700, -1], dtype=torch.int32)
        used = torch.zeros(FEATURES, dtype=torch.bool, device=device)
        for rows in case.rows:
            used[rows[rows >= 0].long()] = True
        with memory_of_nan():
            expected = case.through("sigmoid", namespace, buckets)
            found = case.through("sigmoid", namespace, buckets, leaves_unused=True)
        unwritten = found["weight"].isnan().all(1)
        assert not expected["weight"][~used].any()
        assert unwritten.any() == (not irregular or buckets[0] < 600)
        assert not (unwritten & used).any()
        found["weight"] = torch.where(unwritten[:, None], 0, found["weight"])
        assert_equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@UNUSED
def test_emulated_unused_features(
    emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, buckets: list[int], hidden: tuple[StackLayer, ...],
    activation: str, dtype: torch.dtype,
) -> None:  # fmt: skip
    monkeypatch.setitem(globals(), "FEATURES", 1200)
    emulated.emulator_configure(4, 3)
    check_unused("nnue_emulated", "cpu", dtype, buckets, hidden, activation)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("factor", [0.0, 1e-28, 1e25, float("nan")])
def test_emulated_gradients_of_any_magnitude(emulated: ctypes.CDLL, dtype: torch.dtype, factor: float) -> None:
    """Row gradients are divided by a power of two that follows from the gradients and the weights of the layer."""
    case = Case(90, 64, 2, "pairwise", dtype, hidden=DUAL)
    emulated.emulator_configure(4, 1)
    expected = case.through("sigmoid", "nnue_emulated", HOPPER)
    found = case.through("sigmoid", "nnue_emulated", HOPPER, factor)
    for name in ("weight", "bias", "weight of layer 0"):
        if factor == factor:
            limit = 1e-6 if dtype == torch.float32 else 1e-2
            assert_close(found[name].double(), expected[name].double() * factor, limit, name)
        else:
            assert found[name].isnan().any()


@pytest.mark.parametrize(("positions", "columns"), [(1, 16), (64, 528), (65, 1040), (70, 2064)])
def test_emulated_sizes(emulated: ctypes.CDLL, positions: int, columns: int) -> None:
    """A tile that is not full, one, two and four packs per thread, and more inputs than one pass takes."""
    case = Case(positions, columns, 2, "crelu", torch.float32)
    emulated.emulator_configure(4, 7)
    case.check(case.through("sigmoid", "nnue_emulated", PORTABLE), "sigmoid")


@pytest.mark.parametrize("buckets", [HOPPER, PORTABLE], ids=["hopper", "portable"])
def test_emulated_bucket_outside(emulated: ctypes.CDLL, buckets: list[int]) -> None:
    """Such a position has the nearest stack in both operators; who computes the buckets reports it."""
    case = Case(80, 32, 3, "crelu", torch.float32)
    emulated.emulator_configure(4, 7)
    case.bucket = torch.where(case.bucket == 2, 2, 0)
    expected = case.through("sigmoid", "nnue_emulated", buckets)
    case.bucket = torch.where(case.bucket == 2, 2**40, -1)
    for name, value in case.through("sigmoid", "nnue_emulated", buckets).items():
        assert torch.equal(value, expected[name]), name


def test_emulated_errors(emulated: ctypes.CDLL) -> None:
    """One layer, whose gradient is given as two factors."""
    op, case = torch.ops.nnue_emulated, Case(5, 16, 2, "crelu", torch.float32)
    plan = op._perspective_plan(*case.rows, case.black_to_move, FEATURES, *case.layout(PORTABLE))
    call, parameters = case.call(plan, PORTABLE), case.behind.parameters
    transformer, bounds, dtype = call.transformer, call.range, case.weight.dtype
    x, _, saved = call.run(op, save=True)
    order, gradient = op._stack_order(case.bucket, 2), torch.ones(5)

    def through(
        bucket: Tensor,
        gradient: Tensor | None = gradient,
        transformer: Sequence[int] = transformer,
        dtype: torch.dtype | None = dtype,
        batch: list[Tensor] = call.batch,
    ) -> None:
        op._layer_stacks_gradients(
            x, order, parameters, gradient[:, None] if gradient is not None else torch.ones(5, 1), None, gradient, [],
            case.stacks.description, dtype, [saved, bucket, *batch], transformer, bounds,
        )  # fmt: skip

    through(case.bucket)
    with pytest.raises(RuntimeError, match=r"_gradients: bucket: found int32, expected int64"):
        through(case.bucket.int())
    with pytest.raises(RuntimeError, match=r"_gradients: bucket: found shape \[4\], expected shape \[B\]"):
        through(case.bucket[:4])
    with pytest.raises(RuntimeError, match=r"_gradients: grad_output: found shape \[0\], expected shape \[B\]"):
        through(case.bucket, None)
    with pytest.raises(
        RuntimeError, match=r"_gradients: weight_0: found shape \[2, 1, 32\], expected shape \[S, 1, 2 W\]"
    ):
        through(case.bucket, transformer=[FEATURES, 32, *transformer[2:]])
    with pytest.raises(RuntimeError, match="transformer: found 7 numbers, expected eight"):
        through(case.bucket, transformer=transformer[:-1])
    with pytest.raises(
        RuntimeError, match="_gradients: grad_dtype: found none, expected the dtype of the transformer's"
    ):
        through(case.bucket, dtype=None)
    with pytest.raises(
        RuntimeError, match="_gradients: grad_dtype: found float64, expected float32, float16 or bfloat16"
    ):
        through(case.bucket, dtype=torch.float64)
    with pytest.raises(
        RuntimeError,
        match="_gradients: through: found 4 tensors, expected saved, bucket, white, black, plan and perhaps",
    ):
        through(case.bucket, batch=call.batch[:2])


@pytest.mark.cuda
@pytest.mark.parametrize("activation", ["crelu", "screlu", "pairwise"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("stacks", [1, 8])
@pytest.mark.parametrize("buckets", [HOPPER, PORTABLE], ids=["hopper", "portable"])
def test_cuda(cuda: torch.device, buckets: list[int], activation: str, dtype: torch.dtype, stacks: int) -> None:
    if buckets == HOPPER and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("those kernels need compute capability 9.0")
    case = Case(3000, 1024, stacks, activation, dtype, "cuda")
    found = case.through("win rate", "nnue", buckets)
    case.check(found, "win rate")
    for name, value in case.through("win rate", "nnue", buckets).items():
        assert torch.equal(value, found[name]), f"{name}: other bits in the second run"


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@UNUSED
def test_cuda_unused_features(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch, buckets: list[int], hidden: tuple[StackLayer, ...],
    activation: str, dtype: torch.dtype,
) -> None:  # fmt: skip
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("those kernels need compute capability 9.0")
    monkeypatch.setitem(globals(), "FEATURES", 1200)
    check_unused("nnue", "cuda", dtype, buckets, hidden, activation)


@pytest.mark.cuda
@pytest.mark.parametrize("hidden", [DUAL, NARROW, WIDE], ids=["dual", "narrow", "wide"])
@pytest.mark.parametrize("columns", [1024, 64])
def test_cuda_layers(cuda: torch.device, hidden: tuple[StackLayer, ...], columns: int) -> None:
    """In float32, and in bfloat16 layers whose derivatives have no jumps."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("those kernels need compute capability 9.0")
    for layers, dtype in ((hidden, torch.float32), (WIDE if hidden is WIDE else SMOOTH, torch.bfloat16)):
        case = Case(3000, columns, 8, "pairwise", dtype, "cuda", layers, psqt=True)
        found = case.through("sigmoid", "nnue", HOPPER)
        case.check(found, "sigmoid")
        assert_equal(case.through("sigmoid", "nnue", HOPPER), found)
        case.check(case.through("sigmoid", "nnue", UNBUCKETED), "sigmoid")
