"""A linear layer with one set of weights per bucket, and the choice of each position's bucket."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nnue_trainer.base import _registration
from nnue_trainer.ops import capabilities, reference

FORWARD = "nnue::_stacked_linear_forward"
BACKWARD = "nnue::_stacked_linear_backward"


class StackedLinear(nn.Module):
    """A linear layer for each stack: `weight` fp32 [num_stacks, out_features, in_features], `bias` fp32 [num_stacks,
    out_features].

    All stacks start identical, as one `nn.Linear` would.
    """

    def __init__(
        self, num_stacks: int, in_features: int, out_features: int, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        first = nn.Linear(in_features, out_features, dtype=torch.float32, device=device)
        self.weight = nn.Parameter(first.weight.detach().repeat(num_stacks, 1, 1))
        self.bias = nn.Parameter(first.bias.detach().repeat(num_stacks, 1))

    def forward(self, x: Tensor, bucket: Tensor) -> Tensor:
        """x fp32 [B, in_features], bucket int64 [B] → fp32 [B, out_features]."""
        return stacked_linear(x, bucket, self.weight, self.bias)

    def extra_repr(self) -> str:
        num_stacks, out_features, in_features = self.weight.shape
        return f"num_stacks={num_stacks}, in_features={in_features}, out_features={out_features}"


def stacked_linear(x: Tensor, bucket: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`StackedLinear.forward` with these parameters."""
    if is_fused(x, weight):
        output: Tensor = torch.ops.nnue._stacked_linear_forward(x, bucket, weight, bias)
        return output
    return reference.stacked_linear(x, bucket, weight, bias)


def is_fused(x: Tensor, weight: Tensor) -> bool:
    """Whether the layer runs as an operator that computes each position for its own stack alone, as the table of
    kernels has it for CPUs: an eighth of the work, and sums that do not depend on the number of threads."""
    machine, mode = capabilities.machine_of(x.device), capabilities.mode_of(x, weight)
    return capabilities.layer(machine, x.dtype, weight.dtype, mode).kernels != "torch"


# ---- the operators: fake kernels, autograd --------------------------------------------------------------------------


def _forward_fake(x: Tensor, bucket: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]))


def _backward_fake(
    grad_output: Tensor, x: Tensor, bucket: Tensor, weight: Tensor, needs_x_grad: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.shape[0] if needs_x_grad else 0
    return x.new_empty((rows, x.shape[1])), weight.new_empty(weight.shape), weight.new_empty(weight.shape[:2])


def _derive(
    needs: Sequence[bool], arguments: tuple[Tensor, ...], output: Tensor
) -> tuple[tuple[Tensor, ...], _registration.Formula]:
    needs_x = needs[0]

    def formula(saved: tuple[Tensor, ...], grad_output: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, *others = torch.ops.nnue._stacked_linear_backward(grad_output, *saved, needs_x)
        return grad_x if needs_x else None, None, *others

    return arguments[:3], formula


_INSTEAD = "use nnue_trainer.modules.StackedLinear, which calls others there"
_registration.register_fakes({FORWARD: _forward_fake, BACKWARD: _backward_fake})
_registration.register_reverse_mode(FORWARD, [BACKWARD], _derive, instead=_INSTEAD)
