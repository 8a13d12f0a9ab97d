"""Sample inputs and the float64 reference that all operator tests share."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of the fused operators


@dataclass(frozen=True)
class Sample:
    """Inputs of the feature transformer; `values` may be None."""

    indices: Tensor
    values: Tensor | None
    weight: Tensor
    bias: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        return self.indices, self.values, self.weight, self.bias

    def requires_grad(self) -> "Sample":
        def leaf(tensor: Tensor) -> Tensor:
            return tensor.detach().clone().requires_grad_()

        values = None if self.values is None else leaf(self.values)
        return replace(self, values=values, weight=leaf(self.weight), bias=leaf(self.bias))


def make_sample(
    rows: int = 37,
    max_active: int = 9,
    features: int = 50,
    outputs: int = 40,
    *,
    values: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Sample:
    """Rows of every length from 0 to K, duplicates, and rubbish after the −1 that ends a row."""
    g = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, max(features, 1), (rows, max_active), generator=g, dtype=torch.int32)
    lengths = torch.randint(0, max_active + 1, (rows,), generator=g)
    if features == 0:
        lengths.zero_()
    if rows > 1 and features:
        lengths[0], lengths[1] = 0, max_active
    positions = torch.arange(max_active)[None]
    indices = torch.where(positions < lengths[:, None], indices, -7)
    indices[positions == lengths[:, None]] = -1
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    v = torch.randn(rows, max_active, generator=g, dtype=torch.float64).to(sums) if values else None
    weight = torch.randn(features, outputs, generator=g, dtype=torch.float64).to(dtype)
    bias = torch.randn(outputs, generator=g, dtype=torch.float64).to(dtype)
    return Sample(indices.to(device), None if v is None else v.to(device), weight.to(device), bias.to(device))


def factors(sample: Sample) -> Tensor:
    """float64 [B, K]: the value of each entry, 0 from the end of its row on."""
    alive = (sample.indices == -1).cumsum(1) == 0
    v = torch.ones_like(sample.indices, dtype=torch.float64) if sample.values is None else sample.values.double()
    return torch.where(alive, v, 0)


def padded_weight(sample: Sample) -> Tensor:
    """float64 weight, a row of zeros if there are no features at all: padding has a row to point at."""
    weight = sample.weight.double()
    return weight if len(weight) else weight.new_zeros(1, weight.shape[1])


def reference_forward(sample: Sample) -> Tensor:
    rows = padded_weight(sample)[sample.indices.clamp(min=0).long()]
    return sample.bias.double() + (factors(sample)[:, :, None] * rows).sum(1)


def reference_backward(sample: Sample, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """float64 gradients of weight, bias and values."""
    g = grad_output.double()
    features = len(sample.weight)
    index = sample.indices.clamp(min=0).long()
    parts = factors(sample)[:, :, None] * g[:, None]
    grad_weight = torch.zeros_like(padded_weight(sample))
    grad_weight = grad_weight.index_add_(0, index.flatten(), parts.flatten(0, 1))[:features]
    alive = (sample.indices == -1).cumsum(1) == 0
    grad_values = torch.where(alive, (padded_weight(sample)[index] * g[:, None]).sum(2), 0)
    return grad_weight, g.sum(0), grad_values


@dataclass(frozen=True)
class PairSample:
    """Inputs of `perspective_transformer`: both perspectives, and what may be left out as None."""

    white: Tensor
    black: Tensor
    black_to_move: Tensor
    weight: Tensor
    bias: Tensor
    psqt: Tensor | None
    psqt_bucket: Tensor | None
    white_values: Tensor | None
    black_values: Tensor | None

    @property
    def options(self) -> dict[str, Any]:
        values = None if self.white_values is None else (self.white_values, self.black_values)
        return {"psqt": self.psqt, "psqt_bucket": self.psqt_bucket, "values": values}

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.white, self.black, self.black_to_move

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return *self.rows, self.weight, self.bias

    @property
    def parameters(self) -> list[Tensor]:
        """All floats: what is differentiated."""
        return [t for t in self.tensors if t.is_floating_point()]

    @property
    def tensors(self) -> list[Tensor]:
        return [t for field in fields(self) if (t := getattr(self, field.name)) is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> "PairSample":
        """A copy with every tensor changed by a function."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: None if t is None else change(t) for name, t in found.items()}
        return PairSample(**changed)

    def requires_grad(self) -> "PairSample":
        return self.map(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))

    def double(self) -> "PairSample":
        return self.map(lambda t: t.double() if t.is_floating_point() else t)


def make_pair(
    positions: int = 37,
    max_active: int = 9,
    features: int = 50,
    outputs: int = 40,
    *,
    psqt_buckets: int = 0,
    values: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> PairSample:
    """Index rows as `make_sample` makes them, and floats that are small multiples of 1/8 (1/16 for the bias).

    Their sums are exact in every dtype they are summed in, so that a sum that is 0 or the bound of a clip (take a
    multiple of 1/16) is that everywhere, the float64 reference included; and there are many such sums.
    """
    g = torch.Generator().manual_seed(seed)
    white, black = (
        make_sample(positions, max_active, features, outputs, values=values, seed=seed + i) for i in range(2)
    )

    def eighths(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=g) / 8

    def factor(sample: Sample) -> Tensor | None:
        return None if sample.values is None else torch.randint(-2, 3, sample.values.shape, generator=g) / 2

    pair = PairSample(
        white.indices,
        black.indices,
        torch.randint(0, 2, (positions,), generator=g, dtype=torch.uint8),
        eighths(features, outputs).to(dtype),
        torch.randint(-16, 17, (outputs,), generator=g) / 16,
        eighths(features, psqt_buckets) if psqt_buckets else None,
        torch.randint(0, psqt_buckets, (positions,), generator=g) if psqt_buckets else None,
        factor(white),
        factor(black),
    )
    return pair.map(lambda t: t.to(device))


def reference_pair(
    pair: PairSample, activation: str, bound: float, scale: float
) -> tuple[Tensor, Tensor | None, PairSample]:
    """float64 output and PSQT output, and the float64 inputs, whose gradients autograd fills in."""
    wide = pair.double().requires_grad()

    def sums(indices: Tensor, table: Tensor, values: Tensor | None) -> Tensor:
        alive = ((indices == -1).cumsum(1) == 0).double()
        factor = alive if values is None else torch.where(alive > 0, values, 0)
        rows = table[indices.clamp(min=0).long()]
        return (factor[:, :, None] * rows).sum(1)

    def activate(a: Tensor) -> Tensor:
        c = a.clamp(0, bound)
        half = c.shape[1] // 2
        return {"identity": a, "crelu": c, "screlu": c * c, "pairwise": c[:, :half] * c[:, half : 2 * half]}[activation]

    black_first = wide.black_to_move.bool()[:, None]
    sides = ((wide.white, wide.white_values), (wide.black, wide.black_values))
    white, black = (activate(wide.bias + sums(i, wide.weight, v)) for i, v in sides)
    out = torch.cat([torch.where(black_first, black, white), torch.where(black_first, white, black)], 1) * scale
    if wide.psqt is None or wide.psqt_bucket is None:
        return out, None, wide
    first, second = (sums(i, wide.psqt, v).gather(1, wide.psqt_bucket[:, None])[:, 0] for i, v in sides)
    return out, torch.where(black_first[:, 0], second - first, first - second) / 2, wide


def assert_close(found: Tensor, expected: Tensor, tolerance: float, what: str, terms: float = 1e-30) -> None:
    """`terms`: a part of the sum of absolute terms behind `expected`: rounding is relative to it where they cancel."""
    assert found.shape == expected.shape, what
    assert torch.isfinite(found).all(), what
    error = (found.double() - expected.double()).norm() / expected.double().norm().clamp(min=terms)
    assert error <= tolerance, f"{what}: relative error {error:.2e} > {tolerance:.0e}"
