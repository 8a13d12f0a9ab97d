"""The first layer of every net: one feature transformer seen from both sides, activated and joined.

This is the only place where a model uses the sparse operators. `perspectives.perspective_transformer` is one fused
operator where the device has one.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from nnue_trainer.data.batch import Batch, Plan
from nnue_trainer.ops import perspectives
from nnue_trainer.ops.perspectives import Description, Parameters, PerspectivePlan, Rows, TransformerCall

Activation = Literal["crelu", "screlu", "pairwise"]

_log = logging.getLogger(__name__)


@functools.cache
def _say_unfused(num_outputs: int, device: str) -> None:
    _log.warning(
        "the feature transformer of %d outputs is not fused on %s, which takes several times as long: expected a "
        "multiple of 16 outputs, and a GPU of compute capability 7.5 or later that this package was built for",
        num_outputs,
        device,
    )


class LateRows(Protocol):
    """Who updates rows of a weight when they are needed: `optim.fused_optimizer.LateRows`."""

    def settle(self, *, gradient: bool = False) -> None: ...

    def catch_up(self, white: Tensor, black: Tensor, plans: tuple[Any, ...] = ()) -> bool: ...

    def catch_up_marked(self, marks: Tensor) -> bool: ...

    def marks(self, white: Tensor, black: Tensor) -> Plan: ...

    def leaves_unused(self) -> bool: ...


class _LateParameters(dict[str, "nn.Parameter | None"]):
    """The parameters of a module; the rows of `weight` are brought up to date before it is read.

    A dictionary, because `parameters()` and `state_dict()` of an outer module read `_parameters` of each inner one, and
    torch has no hook there. A property `weight` would leave them rows that are behind."""

    def __init__(self, parameters: dict[str, nn.Parameter | None], late: LateRows) -> None:
        super().__init__(parameters)
        self._late = late

    def _settle(self) -> None:
        self._late.settle(gradient=torch.is_grad_enabled())

    def __getitem__(self, name: str) -> nn.Parameter | None:
        if name == "weight":
            self._settle()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name == "weight":
            self._settle()
        return super().get(name, default)

    def items(self) -> Any:
        self._settle()
        return super().items()

    def values(self) -> Any:
        self._settle()
        return super().values()


class PerspectiveTransformer(nn.Module):
    """Accumulators of both perspectives, clipped to [0, bound], activated, side to move first.

    `weight` fp32 [num_features, num_outputs], `bias` fp32 [num_outputs], and with `psqt_buckets` > 0 also `psqt` fp32
    [num_features, psqt_buckets] (no bias). Weight and bias start uniform in ±sqrt(1 / num_features), `psqt` at 0.

    `activation`, on an accumulator a clipped to [0, `bound`]:
      crelu     a;   2 · num_outputs values
      screlu    a²;  2 · num_outputs values
      pairwise  a[j] · a[j + num_outputs / 2] · product_scale;  num_outputs values, num_outputs / 2 per perspective

    `bucket_size` is the number of features per king bucket, for sets in which the features of a row lie in one bucket
    (all features, where there is only one bucket). It lets GPUs of compute capability 9.0 use their fastest kernels.
    `num_bucketed` is the number of features in king buckets, by default all. The features after those are unbucketed:
    a row may hold any of them (threats, pawn pairs).
    """

    psqt: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        activation: Activation,
        *,
        psqt_buckets: int = 0,
        bound: float = 1.0,
        product_scale: float = 1.0,
        bucket_size: int | None = None,
        num_bucketed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.activation, self.bound, self.product_scale = activation, bound, product_scale
        self.bucket_size, self.num_bucketed = bucket_size, num_bucketed
        bound = math.sqrt(1 / num_features)
        empty = functools.partial(torch.empty, dtype=torch.float32, device=device)
        self.weight = nn.Parameter(empty(num_features, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(empty(num_outputs).uniform_(-bound, bound))
        self.psqt = nn.Parameter(empty(num_features, psqt_buckets).zero_()) if psqt_buckets else None

    @property
    def num_outputs(self) -> int:
        """Length of the activated vector."""
        width = self.weight.shape[1]
        return width if self.activation == "pairwise" else 2 * width

    def marks(self, batch: Batch) -> Plan | None:
        """The rows of the weight that the batch has, for `batch.plans`; None if all are updated in every step."""
        return self._late.marks(batch.white, batch.black) if self._late is not None and batch.white.is_cuda else None

    def plan(self, batch: Batch, weight_dtype: torch.dtype | None = None) -> PerspectivePlan | None:
        """The part of the forward pass that depends only on the batch, for `batch.plans`; None if there is no
        such part. `weight_dtype`: of the weight that the forward pass reads; None: of the one that `forward` reads now,
        a 16-bit copy or the weight itself."""
        weight = self._weight_in_use()
        if not batch.white.is_cuda:
            return None
        if not perspectives.is_fused(weight, self.bucket_size, self.num_bucketed):
            _say_unfused(weight.shape[1], torch.cuda.get_device_name(weight.device))
            return None
        constants = (weight.shape[0], self.bucket_size, self.num_bucketed)
        dtype = weight_dtype or weight.dtype
        return perspectives.perspective_plan(*batch.rows, *constants, dtype, check_indices=not batch.is_legal)

    def forward(
        self,
        white: Tensor,
        black: Tensor,
        black_to_move: Tensor,
        bucket: Tensor | None = None,
        *,
        plans: tuple[Any, ...] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Activated vector fp32 [B, num_outputs]; with PSQT also half the difference of both sides, fp32 [B].

        `white` and `black` int32 [B, K] are the active features of each perspective, as in `Batch`; `black_to_move`
        uint8 [B] is 1 where Black is to move. `bucket` int64 [B] is the PSQT bucket of each position, not used without
        PSQT; ValueError if it is missing. `plans`: what `plan` gives for these very tensors.
        """
        return self.call_with((white, black, black_to_move), plans, bucket).outputs()

    def of_batch(self, batch: Batch, bucket: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """`forward` for a batch, with what has been prepared for it."""
        found: tuple[Tensor, Tensor | None] = self(*batch.rows, bucket, plans=batch.plans)
        return found

    @property
    def description(self) -> Description:
        """The computation of the outputs from the weights. Outputs have the dtype of the weight that is read."""
        scale = self.product_scale if self.activation == "pairwise" else 1.0
        return Description(self.activation, self.bound, scale, self.bucket_size, self.num_bucketed)

    def call_with(
        self,
        rows: Rows,
        plans: tuple[Any, ...],
        bucket: Tensor | None,
        parameters: Parameters | None = None,
        description: Description | None = None,
    ) -> TransformerCall:
        """The call that `forward` makes. `parameters` and `description` replace the module's weights, for another
        unit."""
        if parameters is None:
            sparse = self._bring_up_to_date(rows, plans)
            parameters = Parameters(*self.parameters_in_use(), sparse_grad=sparse)
        elif parameters.leaf is not None:  # the optimiser's copy
            self._bring_up_to_date(rows, plans)
        psqt_bucket = None if parameters.psqt is None else bucket
        return (description or self.description).call(rows, parameters, psqt_bucket, plans)

    # ---- a 16-bit copy of the weight, which an optimiser keeps up to date ----

    _copy: Tensor | None = None
    _steps = 0.0

    def train_with(self, copy: Tensor | None, steps: float = 0.0) -> None:
        """From now on, forward passes with gradients read `copy`, a bfloat16 leaf of the weight's shape, and the copy
        gets the gradient instead of the weight. None: they read the weight itself.

        With `steps` the bits of the copy are float16: the weight in integers, as many for 1.0. Only `integer_copy`
        reads them."""
        self._copy, self._steps = copy, steps

    def integer_copy(self, steps: float) -> tuple[Tensor, Tensor] | None:
        """The copy that holds this many integers for 1.0, float16, and the leaf that takes its gradient; None if there
        is none."""
        if self._copy is None or self._steps != steps:
            return None
        return self._copy.detach().view(torch.float16), self._copy

    # ---- a weight whose rows an optimiser updates late ----
    # Other code can reach the weight of this module only through `_parameters`, where torch finds it for
    # `module.weight`, `parameters()`, `state_dict()` and all the others. While rows may be behind, that is a dictionary
    # which brings them up to date.

    _late: LateRows | None = None

    @property
    def late(self) -> LateRows | None:
        """The updates of rows that are needed; None: every step updates all rows."""
        return self._late

    def update_late(self, late: LateRows | None) -> None:
        """From now on, `late` updates rows before the weight is read; None: all rows are up to date."""
        if self._late is not None:
            self._late.settle()
        parameters = dict(self._parameters)
        self._late, self._parameters = late, parameters if late is None else _LateParameters(parameters, late)

    def _weight_in_use(self) -> Tensor:
        """The weight that a forward pass reads now; its rows need not be up to date."""
        if self._copy is not None and self._steps == 0 and torch.is_grad_enabled():
            return self._copy
        weight: Any = self.weight if self._late is None else dict.__getitem__(self._parameters, "weight")
        return weight  # type: ignore[no-any-return]

    def parameters_in_use(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weight, bias and PSQT columns as a forward pass reads them now; rows of the weight need not be up to date."""
        return self._weight_in_use(), self.bias, self.psqt

    def _bring_up_to_date(self, rows: Rows, plans: tuple[Any, ...]) -> bool:
        """The rows that a forward pass reads. Returns whether their gradient is to be sparse."""
        if self._late is None:
            return False
        if torch.is_grad_enabled():
            return self._late.catch_up(*rows[:2], plans)
        self._late.settle()
        return False

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, which no optimiser trains."""
        if self._late is not None:
            self._late.settle()
        return self.__dict__ | {"_late": None, "_parameters": dict(self._parameters)}

    def extra_repr(self) -> str:
        num_features, num_outputs = self.weight.shape
        shown = {
            "psqt_buckets": None if self.psqt is None else self.psqt.shape[1],
            "product_scale": None if self.product_scale == 1.0 else f"{self.product_scale:g}",
            "bucket_size": self.bucket_size,
            "num_bucketed": self.num_bucketed,
        }
        first = f"num_features={num_features}, num_outputs={num_outputs}, activation={self.activation!r}"
        return ", ".join([first, *(f"{name}={value}" for name, value in shown.items() if value is not None)])
