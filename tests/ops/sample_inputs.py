"""Sample inputs and the float64 reference that all operator tests share."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


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
    """Rows of every length from 0 to K, duplicates, and rubbish behind the −1 that ends a row."""
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
    """float64 weight, a row of zeros where there are no features at all: padding has a row to point at."""
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
