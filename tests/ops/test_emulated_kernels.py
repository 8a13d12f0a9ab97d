"""The CUDA kernels of the fused operator without a GPU, in the emulator of tests/cuda_emulator.

Against the CPU operator, which test_fused_perspectives.py holds against float64. Weights are multiples of 1/64 and
small: sums are exact in every type, so that sums on the edge of the clip are the same for both.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import some
from sample_inputs import DTYPES, PairSample, assert_close, make_pair, reference_pair
from torch import Tensor
from typed import grad_of

from nnue_trainer.ops.perspectives import BACKWARD, FORWARD, PLAN, _fakes, number_of
from nnue_trainer.ops.reference import ACTIVATIONS, Activation


@dataclass
class Case:
    """A batch and parameters of the operator, small enough for an emulator."""

    pair: PairSample
    bucket_size: int
    num_bucketed: int
    activation: Activation
    bound: float
    scale: float
    output: torch.dtype
    grad: torch.dtype

    def with_kernels(self, kernels: str) -> Case:
        """For these kernels: "hopper", or "portable", which a bucket_size of 0 selects."""
        return self if kernels == "hopper" else replace(self, bucket_size=0, num_bucketed=len(self.pair.weight))

    @property
    def layout(self) -> list[int]:
        return [self.bucket_size, self.num_bucketed, self.pair.weight.element_size()]

    @property
    def described(self) -> tuple[list[int], list[float]]:
        """`transformer` and `range` of the operators."""
        psqt_buckets = 0 if self.pair.psqt is None else self.pair.psqt.shape[1]
        flags = [number_of(self.activation), int(self.rounds_down)]
        return [*self.pair.weight.shape, psqt_buckets, *self.layout, *flags], [self.bound, self.scale]

    rounds_down: bool = False

    def run(self, library: str, backward: bool = True, psqt_gradient: Tensor | None = None) -> list[Tensor]:
        """[output, psqt], and with `backward` the gradients of weight, bias and psqt. `psqt_gradient` [B]: random if it
        is None."""
        namespace, pair = getattr(torch.ops, library), self.pair
        features, described = len(pair.weight), self.described
        plan = namespace._perspective_plan(pair.white, pair.black, pair.black_to_move, features, *self.layout)
        batch = [pair.white, pair.black, plan, *([] if pair.psqt_bucket is None else [pair.psqt_bucket])]
        out, values, saved = namespace._perspective_transformer_forward(
            batch, pair.weight, pair.bias, pair.psqt, *described, self.output, backward
        )
        if not backward:
            return [out, values]
        g = torch.Generator().manual_seed(5)
        grad = torch.randn(out.shape, generator=g).to(self.grad)
        grad_psqt = None if pair.psqt is None else torch.randn(len(pair.white), generator=g)
        if psqt_gradient is not None:
            grad_psqt = psqt_gradient
        gradients = namespace._perspective_transformer_backward(
            grad, grad_psqt, batch, saved, *described, pair.weight.dtype
        )
        return [out, values, *gradients]


def make_case(seed: int) -> Case:
    r = np.random.default_rng(seed)
    kinds = (
        "king buckets",
        "unbucketed",
        "many buckets",
        "single features",
        "long rows",
        "unbucketed only",
        "one bucket",
        "any",
    )
    kind = kinds[seed % len(kinds)]
    bucket_size, buckets, unbucketed = 768, int(r.integers(1, 5)), 0
    width, batch = int(r.integers(1, 41)), int(r.integers(1, 200))
    if kind == "unbucketed":
        unbucketed, width = int(r.integers(1, 3000)), int(r.integers(1, 100))
    if kind == "many buckets":
        bucket_size, buckets = int(r.integers(1, 6)), 255
    if kind == "single features":
        bucket_size, buckets, width = 1, int(r.integers(1, 256)), int(r.integers(1, 5))
    if kind == "long rows":
        buckets, width, batch = 2, int(r.integers(380, 780)), int(r.integers(1, 40))
    if kind == "unbucketed only":
        bucket_size, buckets, unbucketed = 768, 0, int(r.integers(1, 600))
    if kind == "one bucket":
        buckets, batch = 1, int(r.integers(150, 600))
    if kind == "any":
        bucket_size, buckets = int(r.integers(1, 769)), int(r.integers(1, 40))
        width, unbucketed = int(r.integers(0, 70)), int(r.integers(0, 2)) * int(r.integers(1, 100))
    num_bucketed = buckets * bucket_size - (int(r.integers(0, bucket_size)) if buckets else 0)
    features = num_bucketed + unbucketed
    breaks_rule = r.choice([0, 0, 0.1, 0.9])  # share of the rows
    favourites, lengths = 1 + 5 * r.random(), r.choice(["any", "full", "empty"])

    def rows() -> Tensor:
        found = np.full((batch, width), -1, dtype=np.int32)
        for i in range(batch):
            bucket = int(r.random() ** 2 * max(buckets, 1))
            first, size = bucket * bucket_size, max(0, min(bucket_size, num_bucketed - bucket * bucket_size))
            count = width if lengths == "full" else int(r.integers(0, width + 1))
            if lengths == "empty" and r.random() < 0.7:
                count = 0
            in_bucket = count if unbucketed == 0 else int(r.integers(0, count + 1)) if size else 0
            picks = list(dict.fromkeys(first + (r.random(in_bucket) ** favourites * size).astype(int))) if size else []
            picks += (
                list(num_bucketed + (r.random(count - in_bucket) ** favourites * unbucketed).astype(int))
                if unbucketed
                else []
            )
            if r.random() > 0.2:  # an unbucketed feature twice in a row is legal, too
                picks = list(dict.fromkeys(picks))
            r.shuffle(picks)
            if picks and r.random() < breaks_rule:
                picks[-1] = picks[0] if r.random() < 0.5 else int(r.integers(0, features))
            found[i, : len(picks)] = picks
            if len(picks) + 1 < width:  # entries after the end do not count
                found[i, len(picks) + 1 :] = r.integers(-3, features + 5, width - len(picks) - 1)
        return torch.from_numpy(found)

    dtype = DTYPES[int(r.integers(0, 3))]
    outputs = 16 * int(r.integers(1, 19))
    activation = "pairwise" if r.random() < 0.5 else ACTIVATIONS[int(r.integers(0, 3))]
    weight = torch.from_numpy(r.integers(-24, 25, (features, outputs)) / 64).to(dtype)
    bias = torch.from_numpy(r.integers(0, 65, outputs) / 64).float()
    psqt = torch.from_numpy(r.integers(-64, 65, (features, 8)) / 64).float() if r.random() < 0.4 else None
    pair = PairSample(
        rows(), rows(), torch.from_numpy(r.integers(0, 2, batch).astype(np.uint8)), weight, bias, psqt,
        None if psqt is None else torch.from_numpy(r.integers(0, 8, batch)), None, None,
    )  # fmt: skip
    return Case(
        pair, bucket_size, num_bucketed, activation,
        bound=float(r.choice([1.0, 0.75])), scale=float(r.choice([1.0, 127 / 128])),
        output=DTYPES[int(r.integers(0, 3))],
        grad=torch.float32 if dtype == torch.float32 else DTYPES[int(r.integers(0, 3))],
    )  # fmt: skip


@pytest.fixture(params=["hopper", "portable"])
def kernels(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(48), every=4))
def test_against_the_cpu(emulator: ctypes.CDLL, kernels: str, seed: int) -> None:
    """Bits are equal with other schedules and another number of thread blocks at a time."""
    case = make_case(seed).with_kernels(kernels)
    expected = case.run("nnue")
    emulator.emulator_configure(4, seed)
    found = case.run("nnue_emulated")
    fine = case.pair.weight.dtype == torch.float32
    rounded = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[case.output]
    assert_close(found[0], expected[0], rounded, "output")
    assert_close(found[1], expected[1], 1e-6, "psqt")
    assert_close(found[2], expected[2], 1e-6 if fine else 8e-3, "gradient of the weight")
    assert_close(found[3], expected[3], 1e-6 if fine else 8e-3, "gradient of the bias")
    assert_close(found[4], expected[4], 1e-6, "gradient of psqt")
    emulator.emulator_configure(2 + seed % 2 * 5, seed + 1000)
    again = case.run("nnue_emulated")
    for a, b, name in zip(found, again, ("output", "psqt", "weight", "bias", "grad_psqt"), strict=True):
        assert torch.equal(a, b), f"{name}: other bits with another schedule"


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["crelu", "screlu", "pairwise"])
def test_sums_that_are_nan(emulator: ctypes.CDLL, kernels: str, activation: Activation) -> None:
    """NaN stays NaN and passes no gradient, as in torch.clamp, on the CPU and in both families of kernels."""
    case = replace(make_case(3), activation=activation).with_kernels(kernels)
    case.pair.bias[5] = float("nan")
    expected = case.run("nnue")
    emulator.emulator_configure(4, 3)
    found = case.run("nnue_emulated")
    assert torch.equal(found[0].isnan(), expected[0].isnan())
    assert expected[0].isnan().any()
    for gradients in (expected[3], found[3]):
        assert gradients[5] == 0
    # The other factor of a product has gradients of NaN.
    rest = slice(None) if activation != "pairwise" else slice(0, case.pair.bias.numel() // 2)
    assert_close(found[3][rest], expected[3][rest], 8e-3, "gradient of the bias")


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(8), every=3))
def test_the_bits_do_not_depend_on_the_number_of_multiprocessors(emulator: ctypes.CDLL, seed: int) -> None:
    """The numbers are those of an H20, an H100 for PCIe, and an H100 or H200 for SXM; 5 is a small one."""
    case = make_case(seed)
    found = []
    for multiprocessors in (78, 114, 132, 5):
        emulator.emulator_configure(multiprocessors, seed)
        found.append(case.run("nnue_emulated"))
    for others in found[1:]:
        for a, b, name in zip(found[0], others, ("output", "psqt", "weight", "bias", "grad_psqt"), strict=True):
            assert torch.equal(a, b), f"{name}: other bits with another number of multiprocessors"


@pytest.mark.slow
@pytest.mark.parametrize("psqt_buckets", [1, 8, 16, 17])
@pytest.mark.parametrize(("batch", "period"), [(160, 40), (700, 5)])
def test_psqt_sums(emulator: ctypes.CDLL, kernels: str, batch: int, period: int, psqt_buckets: int) -> None:
    """All positions add the largest gradient of the batch to the same sums: as much as a thread block's parts of a sum
    must hold. The rows of two king buckets are in neighbouring tiles, and lie in more than one thread block."""
    width, size = 3, 40
    second = torch.arange(batch)[:, None] % period == 0
    white = (torch.tensor([[0, 7, -1]]) + size * second).where(torch.tensor([[True, True, False]]), -1).int()
    black = (torch.tensor([[3, -1, -1]]) + size * second).where(torch.tensor([[True, False, False]]), -1).int()
    buckets = torch.full((batch,), psqt_buckets - 1)
    expected = torch.zeros(2 * size, psqt_buckets, dtype=torch.float64)
    for rows, sign in ((white, 1), (black, -1)):
        for column in range(width):
            real = rows[:, column] >= 0
            own = torch.full((batch,), sign * 0.5 * 1.9999999, dtype=torch.float64)
            expected[:, -1].index_add_(0, rows[real, column].long(), own[real])
    pair = PairSample(
        white, black, torch.zeros(batch, dtype=torch.uint8), torch.zeros(2 * size, 16), torch.zeros(16),
        torch.ones(2 * size, psqt_buckets), buckets, None, None,
    )  # fmt: skip
    case = Case(pair, size, 2 * size, "crelu", 1.0, 1.0, torch.float32, torch.float32).with_kernels(kernels)
    emulator.emulator_configure(3, psqt_buckets)
    found = case.run("nnue_emulated", psqt_gradient=torch.full((batch,), 1.9999999))
    assert torch.equal(found[1], torch.full((batch,), 0.5))
    assert_close(found[4], expected, 1e-7, "gradient of psqt")


@pytest.mark.parametrize("batch", [190, 600])
def test_small_psqt_gradients_beside_large_ones(emulator: ctypes.CDLL, kernels: str, batch: int) -> None:
    """The gradients of one PSQT bucket are a millionth of the others."""
    pair = make_pair(batch, 4, 200, 16, psqt_buckets=8)
    assert pair.psqt is not None
    assert pair.psqt_bucket is not None
    gradient = torch.randn(batch, generator=torch.Generator().manual_seed(2))
    gradient[pair.psqt_bucket == 3] *= 1e-6
    case = Case(pair, 200, 200, "crelu", 1.0, 1.0, torch.float32, torch.float32).with_kernels(kernels)
    emulator.emulator_configure(3, batch)
    found = case.run("nnue_emulated", psqt_gradient=gradient)[4]
    _, psqt, wide = reference_pair(pair, "crelu", 1.0, 1.0)
    assert psqt is not None
    assert wide.psqt is not None
    psqt.backward(gradient.double())
    assert_close(found[:, 2], grad_of(wide.psqt)[:, 2], 5e-8, "large gradients")
    assert_close(found[:, 3], grad_of(wide.psqt)[:, 3], 8e-8, "small gradients")


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(0, 48, 5), every=3))
def test_psqt_apart_gives_equal_bits(emulator: ctypes.CDLL, kernels: str, seed: int) -> None:
    """The forward with psqt_apart, _perspective_psqt for any range, and the backward give the bits of the whole one."""
    case = make_case(seed).with_kernels(kernels)
    pair, namespace = case.pair, torch.ops.nnue_emulated
    if pair.psqt is None or pair.psqt_bucket is None:
        psqt = torch.randn(len(pair.weight), 8, generator=torch.Generator().manual_seed(seed))
        pair = replace(pair, psqt=psqt, psqt_bucket=torch.arange(len(pair.white)) % 8)
        case = replace(case, pair=pair)
    emulator.emulator_configure(3, seed)
    expected = case.run("nnue_emulated")
    apart = replace(case, pair=replace(pair, psqt=None, psqt_bucket=None)).run("nnue_emulated")
    assert torch.equal(apart[0], expected[0])
    positions, described = len(pair.white), case.described
    plan = namespace._perspective_plan(pair.white, pair.black, pair.black_to_move, len(pair.weight), *case.layout)
    batch = [pair.white, pair.black, plan, pair.psqt_bucket]
    for begin, end in ((0, positions), (0, 1), (positions // 3, positions // 2), (positions - 1, positions), (1, 1)):
        found = namespace._perspective_psqt(batch, pair.psqt, described[0], begin, end)
        assert torch.equal(found, expected[1][begin:end])
    with pytest.raises(RuntimeError, match=r"_perspective_psqt: begin"):
        namespace._perspective_psqt(batch, pair.psqt, described[0], 1, positions + 1)
    out, without_values, saved = namespace._perspective_transformer_forward(
        batch, pair.weight, pair.bias, pair.psqt, *described, case.output, True, None, False, True
    )
    assert torch.equal(out, expected[0])
    assert without_values.shape == expected[1].shape  # its values are undefined
    g = torch.Generator().manual_seed(5)
    grad, grad_psqt = torch.randn(out.shape, generator=g).to(case.grad), torch.randn(positions, generator=g)
    gradients = namespace._perspective_transformer_backward(
        grad, grad_psqt, batch, saved, *described, pair.weight.dtype
    )
    for mine, theirs in zip(gradients, expected[2:], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(0, 48, 6), every=3))
def test_without_gradient(emulator: ctypes.CDLL, kernels: str, seed: int) -> None:
    case = make_case(seed).with_kernels(kernels)
    emulator.emulator_configure(3, seed)
    for a, b in zip(case.run("nnue_emulated", False), case.run("nnue_emulated", True)[:2], strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(1, 48, 5), every=3))
def test_rounded_down(emulator: ctypes.CDLL, kernels: str, seed: int) -> None:
    """The output is rounded down before it is rounded to its type; the gradient goes straight through."""
    case = make_case(seed).with_kernels(kernels)
    case.scale, case.output = 8.0, torch.float32
    emulator.emulator_configure(4, seed)
    exact, *others = case.run("nnue_emulated")
    case.rounds_down, case.output = True, torch.bfloat16
    rounded, *same = case.run("nnue_emulated")
    assert torch.equal(rounded.float(), exact.floor())
    assert all(torch.equal(a, b) for a, b in zip(same, others, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(0, 48, 4), every=3))
def test_weights_of_other_features_do_not_show(emulator: ctypes.CDLL, kernels: str, seed: int) -> None:
    """In fp32 a weight that is not finite shows in the rows that have its feature, and nowhere else."""
    case = make_case(seed).with_kernels(kernels)
    pair = case.pair = replace(case.pair, weight=case.pair.weight.float())
    used = torch.zeros(len(pair.weight), dtype=torch.bool)
    for rows in (pair.white, pair.black):
        alive = (rows == -1).cumsum(1) == 0
        used[rows[alive & (rows < len(used))].long()] = True
    case.grad = torch.float32
    emulator.emulator_configure(4, seed)
    expected = case.run("nnue_emulated")
    pair.weight[~used] = float("nan")
    for a, b in zip(case.run("nnue_emulated"), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["one size", "any size"])
@pytest.mark.parametrize("seed", some([0, 1], every=2))
def test_compiled(
    emulator: ctypes.CDLL, kernels: str, seed: int, dynamic: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sizes of plan and saved sums come from the library, or while a graph is run."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # graphs of other versions have other sizes
    case = make_case(seed).with_kernels(kernels)
    fakes = _fakes("nnue_emulated", lambda device: True)
    for op in (PLAN, FORWARD, BACKWARD):
        torch.library.register_fake(op.replace("nnue::", "nnue_emulated::"), fakes[op], allow_override=True)
    pair, described = case.pair, case.described

    def both_ways(white: Tensor, black: Tensor, black_to_move: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        op = torch.ops.nnue_emulated
        plan = op._perspective_plan(white, black, black_to_move, len(pair.weight), *case.layout)
        batch = [white, black, plan]
        out, _, saved = op._perspective_transformer_forward(
            batch, pair.weight, pair.bias, None, *described, torch.float32, True
        )
        gradients = op._perspective_transformer_backward(grad * out, None, batch, saved, *described, pair.weight.dtype)
        return (out, *gradients)

    compiled = torch.compile(both_ways, fullgraph=True, dynamic=dynamic)
    width = pair.weight.shape[1] * (1 if case.activation == "pairwise" else 2)
    for positions in (len(pair.white), len(pair.white) // 2):
        white, black, black_to_move = (t[:positions].clone() for t in pair.rows)
        grad = torch.linspace(-1, 1, positions * width).reshape(positions, width)
        emulator.emulator_configure(2, 1)
        arguments = white, black, black_to_move, grad
        for found, expected in zip(compiled(*arguments), both_ways(*arguments), strict=True):
            assert torch.equal(found, expected)
