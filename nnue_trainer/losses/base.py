"""The contract of losses, their registry, and functions that several of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from nnue_trainer.base.foreign import returned
from nnue_trainer.data.fields import NO_SCORE
from nnue_trainer.errors import UserError
from nnue_trainer.registry import Registry

_KERNELS = {"sigmoid": 1, "win_rate": 2, "cross_entropy": 3}
"""The losses that the operators on a GPU compute themselves, and their numbers there (LossKind, csrc/layer_stacks.h)"""


class LossKernel(NamedTuple):
    """A loss as the operators take it."""

    kind: int
    constants: tuple[float, ...]


class Loss(ABC):
    """A weighted mean over positions. A subclass is a section (`schema.section`): its fields are what a recipe can set.

    Everything is from the view of the side to move. λ mixes the two targets: it is the share of the data's score,
    1 − λ is the share of the game's result. The schedule of λ has its own section (`nnue_trainer.schedules`).
    """

    kind: ClassVar[str]
    reads: ClassVar[int] = 0
    """0: `per_position` gets the net's score; n > 0: it gets the n outputs of a net that has as many, fp32 [B, n], as
    `NnueModel.outputs` gives them"""

    @abstractmethod
    def per_position(self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss of each position [B], and its weight [B]; None if all positions weigh 1.

        `net` [B] is the net's score in engine units, fp32 in training; `score` [B] the data's score in engine units;
        `lam` [B] is λ; both in the dtype of `net`. `result` [B] is −1, 0 or 1, of any dtype. Gradients flow only to
        `net`. A loss must not wait for the device (`.item()`, `if tensor:`).
        """

    def per_position_spare(
        self, net: Tensor, score: Tensor, result: Tensor, lam: Tensor, spare: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """`per_position` with the spare bytes of the data files, uint8 [B, bytes] (docs/data-formats.md). If a subclass
        defines it, it is called in its place, and training reads these bytes."""
        return self.per_position(net, score, result, lam)

    @property
    def uses_spare(self) -> bool:
        """Whether the loss reads spare bytes of data files, that is, whether it defines `per_position_spare`."""
        return type(self).per_position_spare is not Loss.per_position_spare

    def terms(
        self,
        net: Tensor,
        score: Tensor,
        result: Tensor,
        lam: Tensor | float,
        position_weight: Tensor | None = None,
        spare: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Σ weight·loss and Σ weight over a batch, both scalars: the loss of many batches is the ratio of their sums.

        `net`, `score` and `result` are as in `per_position`, but `score` may have any dtype; `lam` is λ: a number, or a
        tensor on the same device, a scalar or [B]. In every loss a position without a score (`NO_SCORE`) is trained
        only on its result: its λ is 0, and its weight is multiplied by 1 − λ, the share of the result if there were a
        score. `position_weight` [B], of any floating dtype, multiplies the weights. `spare`: for a loss that uses them.
        UserError if such a loss gets none.
        """
        has_score = score != NO_SCORE
        known = torch.where(has_score, score, 0).to(net.dtype)
        targets, method = (net, known, result, has_score.to(net.dtype) * lam), "per_position"
        if not self.uses_spare:
            made: Any = self.per_position(*targets)
        elif spare is None:
            raise UserError(f"loss {self.kind}: uses the spare bytes of data files, but the batch has none")
        else:
            made, method = self.per_position_spare(*targets, spare), "per_position_spare"
        if not isinstance(made, tuple) or len(made) != 2:
            returned(self, method, made, False, "the pair (loss, weight or None)")
        loss, weight = made
        for value in (loss, *([] if weight is None else [weight])):
            if not isinstance(value, Tensor) or value.shape != score.shape:
                returned(self, method, value, False, f"tensors {list(score.shape)}, one value for each position")
            if value.is_complex():
                returned(self, method, value, False, "real numbers")
        if net.requires_grad and not loss.requires_grad:
            returned(self, method, loss, False, "a loss with a gradient: compute it from net, without detach()")
        share = 1 - (~has_score).to(net.dtype) * lam
        if position_weight is not None:
            share = share * position_weight.to(net.dtype)
        weight = share if weight is None else share * weight
        return (weight * loss).sum(), weight.sum()

    def score_points(self, score: Tensor) -> Tensor | None:
        """The expected points, 0 to 1, that the target has for the data's scores in engine units; both have the shape
        [n] and the same floating dtype. None if they are not a function of the score. Checks of the data compare them
        with the results, to find scores in another unit."""
        return None

    def kernel(self) -> LossKernel | None:
        """The loss in the form that the operators support; None for a loss without one."""
        return None

    def _kernel_of(self, origin: type[Loss], name: str, *constants: float) -> LossKernel | None:
        """The kernel of the class `origin`, unless a subclass computes something else."""
        same = type(self).per_position is origin.per_position and type(self).terms is Loss.terms and not self.uses_spare
        return LossKernel(_KERNELS[name], constants) if same else None


LOSSES: Registry[Loss] = Registry("nnue_trainer.losses", lambda: Loss, what="loss")


def mean(weighted: Tensor, weights: Tensor) -> Tensor:
    """The loss of a batch from its `terms`, fp32 or fp64 scalars; 0 for a batch without any weight, such as one without
    scores at λ = 1."""
    return weighted / torch.where(weights == 0, 1, weights)


def points(result: Tensor, dtype: torch.dtype) -> Tensor:
    """Game points 0, ½, 1 of results −1, 0, 1, of any shape [...] and dtype, as `dtype`."""
    return result.to(dtype) * 0.5 + 0.5


def power(error: Tensor, exponent: float) -> Tensor:
    """|error|^exponent, in the shape [...] and dtype of `error`; its gradient at 0 is 0 for every exponent ≥ 1."""
    return error.square() if exponent == 2 else error.abs().pow(exponent)
