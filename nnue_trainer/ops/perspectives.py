"""The feature transformer of both perspectives, activated and joined: one fused operator where the device has one.

On a CPU, and on a GPU of compute capability 7.5 or later, `perspective_transformer` is one fused forward and one fused
backward (csrc/perspective_transformer.h, docs/kernels.md). Elsewhere, and where `is_fused` is False, it consists of the
plain operator of `ops` and torch's own functions, with the same result up to rounding. Either way equal inputs give
equal bits, unless `deterministic` is False.

CUDA has two sets of kernels: "hopper", for feature sets with king buckets on compute capability 9.0, and "portable",
for every set on every GPU from 7.5 on. The first is taken where it can be, unless `set_cuda_kernels` forbids it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, cast, overload

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from nnue_trainer import ops
from nnue_trainer.base import _registration
from nnue_trainer.base._library import as_text
from nnue_trainer.data.batch import plan_of
from nnue_trainer.ops import capabilities, reference
from nnue_trainer.ops._feature_transformer import exact_index_error
from nnue_trainer.ops.capabilities import Kernels, set_cuda_kernels
from nnue_trainer.ops.reference import ACTIVATIONS, Activation

__all__ = ["PerspectivePlan", "is_fused", "perspective_plan", "perspective_transformer", "set_cuda_kernels"]

PLAN = "nnue::_perspective_plan"
FORWARD = "nnue::_perspective_transformer_forward"
BACKWARD = "nnue::_perspective_transformer_backward"
BACKWARD_ROWS = "nnue::_perspective_transformer_backward_rows"


def number_of(activation: Activation) -> int:
    """An activation as the operators take it (csrc/activation.h)."""
    return ACTIVATIONS.index(activation)


class Transformer(NamedTuple):
    """The fields of `transformer`, an argument of the operators (csrc/perspective_transformer.h)."""

    num_features: int
    num_outputs: int
    psqt_buckets: int
    bucket_size: int
    num_bucketed: int
    weight_bytes: int
    activation: int
    rounds_down: int = 0

    @property
    def width(self) -> int:
        """of the output"""
        return self.num_outputs if self.activation == number_of("pairwise") else 2 * self.num_outputs


# ---- fake kernels, autograd -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _places(namespace: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Where the pieces of a plan lie on CUDA, and how many rows `saved` has, for rows of these sizes."""
    with _disable_current_modes():
        text = as_text(getattr(torch.ops, namespace)._perspective_transformer_layout(*shape))
    found: dict[str, Any] = json.loads(text)
    return found


def _fakes(namespace: str, as_on_cuda: Callable[[torch.device], bool]) -> dict[str, Callable[..., Any]]:
    """The fake kernels. `as_on_cuda`: whether a device's tensors are laid out as on CUDA."""

    def size_on_cuda(find: Callable[[dict[str, Any]], int], rows: Tensor, *layout: int) -> int:
        """The size that `find` reads in `_places`. In a graph for any batch size it is unknown until the graph runs."""
        shape = (*rows.shape, *layout)
        if all(isinstance(size, int) for size in shape):
            return find(_places(namespace, shape))
        return torch.library.get_ctx().new_dynamic_size()  # type: ignore[return-value]

    def plan(
        white: Tensor, black: Tensor, black_to_move: Tensor, num_features: int, bucket_size: int, num_bucketed: int,
        weight_bytes: int, *_: Any,
    ) -> Tensor:  # fmt: skip
        size, layout = white.shape[0], (num_features, bucket_size, num_bucketed, weight_bytes)
        if as_on_cuda(white.device):
            size = size_on_cuda(lambda places: places["plan"]["bytes"], white, *layout)
        return white.new_empty((size,), dtype=torch.uint8)

    def forward(
        batch: list[Tensor], weight: Tensor, bias: Tensor, psqt: Tensor | None, transformer: list[int],
        range: list[float], output_dtype: torch.dtype, save: bool, leaf: Tensor | None = None,
        sparse_grad: bool = False, psqt_apart: bool = False, saved_alone: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        of, white, on_cuda, rows = Transformer(*transformer), batch[0], as_on_cuda(weight.device), 0
        positions = white.shape[0]
        if save and of.activation != number_of("identity"):
            layout = (of.num_features, of.bucket_size, of.num_bucketed, of.weight_bytes)
            rows = size_on_cuda(lambda places: places["slots"], white, *layout) if on_cuda else 2 * positions
        saved_dtype = torch.float16 if on_cuda and weight.dtype != torch.float32 else torch.float32
        return (
            weight.new_empty((0 if saved_alone else positions, of.width), dtype=output_dtype),
            weight.new_empty((0 if psqt is None else positions,), dtype=torch.float32),
            weight.new_empty((rows, of.num_outputs), dtype=saved_dtype),
        )

    def backward(
        grad: Tensor, grad_psqt: Tensor | None, batch: list[Tensor], saved: Tensor, transformer: list[int],
        range: list[float], weight_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        of = Transformer(*transformer)
        has_psqt = grad_psqt is not None and of.psqt_buckets > 0
        return (
            grad.new_empty((of.num_features, of.num_outputs), dtype=weight_dtype),
            grad.new_empty((of.num_outputs,), dtype=torch.float32),
            grad.new_empty((of.num_features, of.psqt_buckets) if has_psqt else (0,), dtype=torch.float32),
        )

    def backward_rows(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight, bias, psqt = backward(*arguments)
        rows: int = torch.library.get_ctx().new_dynamic_size()  # type: ignore[assignment]
        return weight.new_empty(rows, dtype=torch.int64), weight.new_empty(rows, weight.shape[1]), bias, psqt

    return {PLAN: plan, FORWARD: forward, BACKWARD: backward, BACKWARD_ROWS: backward_rows}


_registration.register_fakes(_fakes("nnue", lambda device: device.type != "cpu"))


def _derive(
    needs: Sequence[bool], arguments: tuple[Any, ...], outputs: tuple[Tensor, Tensor, Tensor]
) -> tuple[tuple[Tensor, ...], _registration.Formula]:
    batch, weight, _, _, transformer, range, _, save, leaf, is_sparse, *_ = arguments
    described = (transformer, range, (weight if leaf is None else leaf).dtype)

    def formula(
        kept: tuple[Tensor, ...], grad: Tensor | None, grad_psqt: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        if not save:
            raise RuntimeError(f"{FORWARD}: save: found False; pass save=True to compute gradients")
        saved, *batch = kept
        grad_psqt = grad_psqt if needs[3] else None
        if grad is None:
            grad = saved.new_zeros(batch[0].shape[0], Transformer(*transformer).width, dtype=torch.float32)
        elif described[2] == torch.float32:  # the fp32 kernels of CUDA read fp32 gradients
            grad = grad.float()
        operators, given = torch.ops.nnue, (grad, grad_psqt, batch, saved, *described)
        if is_sparse:
            rows, values, of_bias, of_psqt = operators._perspective_transformer_backward_rows(*given)
            sizes = transformer[:2]
            of_weight = torch.sparse_coo_tensor(
                rows[None], values, sizes, check_invariants=False, is_coalesced=True, device=values.device
            )
        else:
            of_weight, of_bias, of_psqt = operators._perspective_transformer_backward(*given)
        weight_and_leaf = (None, of_weight) if needs[8] else (of_weight, None)
        of_psqt = None if grad_psqt is None else of_psqt
        return None, weight_and_leaf[0], of_bias, of_psqt, *(None,) * 4, weight_and_leaf[1], *(None,) * 3

    return (outputs[2], *batch), formula


_INSTEAD = "call nnue_trainer.ops.perspectives.perspective_transformer, which uses others there"
_registration.register_reverse_mode(FORWARD, [BACKWARD, BACKWARD_ROWS], _derive, instead=_INSTEAD)
_registration.register_vmap(PLAN, _registration.refuse(PLAN, "vmap", _INSTEAD))


# ---- public functions -----------------------------------------------------------------------------------------------


def is_fused(weight: Tensor, bucket_size: int | None = None, num_bucketed: int | None = None) -> bool:
    """Whether `perspective_transformer` runs as one fused operator for this weight [F, N] on its device.

    On a CPU: an even N. On CUDA: a GPU of compute capability 7.5 or later, and N a multiple of 16. With any
    `bucket_size`, or none. float64 weights, and calls with `values`, are never fused.
    """
    machine = capabilities.machine_of(weight.device)
    num_features, num_outputs = weight.shape
    found = capabilities.transformer(machine, weight.dtype, num_features, num_outputs, bucket_size, num_bucketed)
    return found.kernels != "torch"


PlanKey = tuple[int, int, int, torch.dtype]


def plan_key(
    num_features: int, bucket_size: int | None, num_bucketed: int | None, weight_dtype: torch.dtype
) -> PlanKey:
    """`PerspectivePlan.key` of a plan that is made with these arguments of `perspective_plan`."""
    return num_features, bucket_size or 0, num_features if num_bucketed is None else num_bucketed, weight_dtype


def layout_of(
    kernels: str, num_features: int, bucket_size: int, num_bucketed: int, weight_dtype: torch.dtype
) -> tuple[int, int, int]:
    """The layout of a plan, as the operators take it: on CUDA a bucket_size of 0 selects the portable kernels."""
    buckets = (0, num_features) if kernels == "portable" else (bucket_size, num_bucketed)
    return *buckets, weight_dtype.itemsize


class PerspectivePlan(NamedTuple):
    """The plan of a batch, and what it was made for: `perspective_transformer` refuses it for anything else.

    `data` is uint8 [bytes] on the device of the batch; its contents are private to the library.
    """

    data: Tensor
    white: Tensor
    black: Tensor
    black_to_move: Tensor
    num_features: int
    bucket_size: int
    num_bucketed: int
    weight_dtype: torch.dtype
    kernels: Kernels

    @property
    def layout(self) -> tuple[int, int, int]:
        """The layout, as the operators take it: on CUDA a bucket_size of 0 selects the portable kernels."""
        return layout_of(self.kernels, self.num_features, self.bucket_size, self.num_bucketed, self.weight_dtype)

    @property
    def key(self) -> PlanKey:
        """The fields from `num_features` on, for which the plan was made: see `plan_key`."""
        return self[4:8]

    def irregular_rows(self, namespace: str = "nnue") -> int:
        """How many of the 2 B rows have a feature twice, or features of several king buckets. The kernels for compute
        capability 9.0 add these row by row, which is slow if there are many; for other kernels the result is 0. Waits
        for the device."""
        if self.kernels != "hopper":
            return 0
        sizes = (*self.white.shape, self.num_features, *self.layout)
        begin, size = _places(namespace, sizes)["plan"]["pieces"]["row_slot"]
        return int((self.data[begin : begin + size].view(torch.int32) < 0).sum().item())

    def check(self, batch: Rows, key: PlanKey) -> None:
        """ValueError if the plan was made from other tensors, or has another key."""
        for name, own, given in zip(self._fields[1:4], self[1:4], batch, strict=True):
            if own is not given:
                raise _wrong("plan", f"the plan of another tensor `{name}`", "that of this batch")
        for name, made, wanted in zip(self._fields[4:8], self.key, key, strict=True):
            if made != wanted:
                raise _wrong("plan", f"a plan for {name} = {made}", wanted)


def perspective_plan(
    white: Tensor,
    black: Tensor,
    black_to_move: Tensor,
    num_features: int,
    bucket_size: int | None = None,
    num_bucketed: int | None = None,
    weight_dtype: torch.dtype = torch.float32,
    *,
    check_indices: bool = True,
) -> PerspectivePlan:
    """Prepares the rows of a batch once, for all fused calls on this batch.

    Args:
        white, black: int32 [B, K] index rows of the perspectives; rows left-packed, the first −1 ends a row.
        black_to_move: uint8 or bool [B].
        num_features: F.
        bucket_size: features per king bucket (HalfKAv2_hm: 768). With it, up to 768, a GPU of compute capability 9.0
            uses kernels that are made for rows whose bucketed features are distinct and lie in one bucket; other rows
            are legal and slow there. The CPU and other GPUs ignore buckets.
        num_bucketed: features [0, num_bucketed) lie in king buckets; those after them are unbucketed: a row may hold
            any of them, anywhere among the others. By default F: all features are bucketed.
        weight_dtype: of the weights that the calls read.
        check_indices: on CUDA, report an illegal index; see `set_index_check`. Use False for rows that are known to be
            legal; an illegal index is skipped. The CPU always checks.

    Returns:
        The plan. It keeps these tensors alive, and they must not be changed while it is in use.
    """
    machine = capabilities.machine_of(white.device)
    found = capabilities.transformer(machine, weight_dtype, num_features, -1, bucket_size, num_bucketed).kernels
    kernels = cast(Kernels, "portable" if found == "torch" else found)
    key = plan_key(num_features, bucket_size, num_bucketed, weight_dtype)
    empty = PerspectivePlan(white, white, black, black_to_move, *key, kernels)
    # torch.compile of torch 2.10 cannot read properties of a NamedTuple.
    layout = layout_of(kernels, *key)
    data = torch.ops.nnue._perspective_plan(white, black, black_to_move, num_features, *layout, check_indices)
    return empty._replace(data=data)


def _wrong(argument: str, found: object, expected: object) -> ValueError:
    return ValueError(f"perspective_transformer: {argument}: found {found}, expected {expected}")


Rows = tuple[Tensor, Tensor, Tensor]
"""white, black and black_to_move of a batch."""


class Parameters(NamedTuple):
    """The weights of a feature transformer, and how they take their gradients."""

    weight: Tensor
    bias: Tensor
    psqt: Tensor | None = None
    leaf: Tensor | None = None
    """takes the gradient of `weight` in its place, and in its own dtype; None: `weight` does"""
    sparse_grad: bool = False
    """see `perspective_transformer`"""


class TransformerCall(NamedTuple):
    """The feature transformer for the positions of a batch. `Description.call` makes it."""

    kernels: str
    """cpu, portable or hopper: those of the fused operators; torch: there are none"""
    batch: list[Tensor]
    """white, black, the data of the plan, and with PSQT the PSQT buckets; for torch, black_to_move instead of the
    plan"""
    parameters: Parameters
    transformer: Transformer
    range: list[float]
    """bound and scale"""
    output_dtype: torch.dtype

    def run(self, operators: Any, *, save: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """The output, the PSQT output, and if `save` what the backward needs, as the operator computes them."""
        weight, bias, psqt, leaf, sparse_grad = self.parameters
        out, psqt_out, saved = operators._perspective_transformer_forward(
            self.batch, weight, bias, psqt, self.transformer, self.range, self.output_dtype, save, leaf,
            sparse_grad and self.kernels == "cpu",
        )  # fmt: skip
        return out, None if psqt is None else psqt_out, saved

    def outputs(
        self, values: tuple[Tensor, Tensor] | None = None, deterministic: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The output and the PSQT output. The arguments are as for `perspective_transformer`, if it is not fused."""
        weight, bias, psqt, leaf, _ = self.parameters
        if self.kernels != "torch":
            leaves = (weight if leaf is None else leaf, bias, psqt)
            saves = any(p is not None and p.requires_grad for p in leaves)
            return self.run(torch.ops.nnue, save=torch.is_grad_enabled() and saves)[:2]
        row_sums: reference.RowSums = reference.row_sums
        if capabilities.has_operators(weight.device):
            row_sums = functools.partial(ops.feature_transformer_forward, deterministic=deterministic)
        (white, black, black_to_move, *bucket), (bound, scale) = self.batch, self.range
        return reference.perspective_transformer(
            (white, black, black_to_move), weight, bias, ACTIVATIONS[self.transformer.activation], bound, scale,
            self.output_dtype, psqt=psqt, psqt_bucket=bucket[0] if bucket else None, values=values,
            row_sums=row_sums,
        )  # fmt: skip


class Arguments(NamedTuple):
    """The arguments of the fused operator that do not depend on a batch, in the operator's order."""

    transformer: Transformer
    range: list[float]
    """bound and scale"""
    output_dtype: torch.dtype


class Description(NamedTuple):
    """How a feature transformer computes outputs from weights: options of `perspective_transformer`."""

    activation: Activation = "pairwise"
    bound: float = 1.0
    scale: float = 1.0
    bucket_size: int | None = None
    num_bucketed: int | None = None
    output_dtype: torch.dtype | None = None
    rounds_down: bool = False
    """whether the fused operator on CUDA rounds its output down, as an engine with integers does; others ignore it"""

    def call(
        self, rows: Rows, parameters: Parameters, psqt_bucket: Tensor | None = None, plans: Sequence[Any] = (),
        *, has_values: bool = False,
    ) -> TransformerCall:  # fmt: skip
        """The call for a batch, by the kernels that the table selects. `plans`: of the batch, perhaps with the one that
        is needed; otherwise that is made. Checks all other arguments."""
        weight, bias, psqt, *_ = parameters
        self._check(weight, psqt, psqt_bucket)
        machine, mode = capabilities.machine_of(weight.device), capabilities.mode_of(weight, bias, psqt)
        kernels = self.kernels(weight, machine, mode, has_values=has_values)
        white, black, third = ops.index_rows(rows[0]), ops.index_rows(rows[1]), rows[2]
        if kernels != "torch":
            made_for = (weight.shape[0], self.bucket_size, self.num_bucketed, weight.dtype)
            key = plan_key(*made_for)
            plan = plan_of(rows[0], plans, key)
            if plan is None:
                plan = perspective_plan(white, black, third, *made_for)
            else:
                plan.check(rows, key)
            third, kernels = plan.data, plan.kernels
            parameters = parameters._replace(bias=bias.float())
        batch = [white, black, third, *([] if psqt_bucket is None else [psqt_bucket])]
        return TransformerCall(kernels, batch, parameters, *self.arguments(weight, psqt, kernels))

    def kernels(
        self, weight: Tensor, machine: capabilities.Numbers | None, mode: capabilities.Mode, *, has_values: bool = False
    ) -> str:
        """The kernels that the table selects for calls with this weight; "torch": there are none."""
        num_features, num_outputs = weight.shape
        return capabilities.transformer(
            machine, weight.dtype, num_features, num_outputs, self.bucket_size, self.num_bucketed, mode,
            output_dtype=self.output_dtype, has_values=has_values,
        ).kernels  # fmt: skip

    def arguments(self, weight: Tensor, psqt: Tensor | None, kernels: str) -> Arguments:
        """The arguments of calls with these weights, for these kernels."""
        num_features, num_outputs = weight.shape
        layout = layout_of(kernels, *plan_key(num_features, self.bucket_size, self.num_bucketed, weight.dtype))
        rounds_down = self.rounds_down and kernels in capabilities.ON_GPU
        psqt_buckets = 0 if psqt is None else psqt.shape[1]
        transformer = Transformer(
            num_features, num_outputs, psqt_buckets, *layout, number_of(self.activation), int(rounds_down)
        )
        return Arguments(transformer, [self.bound, self.scale], self.output_dtype or weight.dtype)

    def _check(self, weight: Tensor, psqt: Tensor | None, psqt_bucket: Tensor | None) -> None:
        num_features, num_outputs = weight.shape
        if self.activation not in ACTIVATIONS:
            raise _wrong("activation", repr(self.activation), f"one of {', '.join(ACTIVATIONS)}")
        if self.activation == "pairwise" and num_outputs % 2:
            raise _wrong("weight", f"N = {num_outputs}", "an even N for pairwise")
        if not self.bound > 0:
            raise _wrong("bound", self.bound, "a positive number")
        if (psqt is None) != (psqt_bucket is None):
            found, missing = ("psqt", "psqt_bucket") if psqt_bucket is None else ("psqt_bucket", "psqt")
            raise _wrong(missing, "none", f"a tensor, since there is {found}")
        if not 0 <= (self.num_bucketed or 0) <= num_features:
            raise _wrong("num_bucketed", self.num_bucketed, f"0 to F = {num_features}")


class _Options(TypedDict, total=False):
    activation: Activation
    bound: float
    scale: float
    bucket_size: int | None
    num_bucketed: int | None
    output_dtype: torch.dtype | None
    plan: PerspectivePlan | None
    psqt_bucket: Tensor | None
    values: tuple[Tensor, Tensor] | None
    deterministic: bool | None
    sparse_grad: bool


# fmt: off
@overload
def perspective_transformer(
    white: Tensor, black: Tensor, black_to_move: Tensor, weight: Tensor, bias: Tensor, *, psqt: None = ...,
    **options: Unpack[_Options],
) -> Tensor: ...
@overload
def perspective_transformer(
    white: Tensor, black: Tensor, black_to_move: Tensor, weight: Tensor, bias: Tensor, *, psqt: Tensor,
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...
# fmt: on


def perspective_transformer(
    white: Tensor,
    black: Tensor,
    black_to_move: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    activation: Activation = "pairwise",
    bound: float = 1.0,
    scale: float = 1.0,
    bucket_size: int | None = None,
    num_bucketed: int | None = None,
    output_dtype: torch.dtype | None = None,
    plan: PerspectivePlan | None = None,
    psqt: Tensor | None = None,
    psqt_bucket: Tensor | None = None,
    values: tuple[Tensor, Tensor] | None = None,
    deterministic: bool | None = None,
    sparse_grad: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Both perspectives' accumulators, activated and joined, side to move first; differentiable in all floats.

    An accumulator is a = bias + Σ value · weight[i] over the indices i of a row. Let c be a, clipped to [0, bound]. A
    perspective contributes, multiplied by `scale`: a for "identity", c for "crelu", c² for "screlu", and c[j] · c[j + N
    / 2] for "pairwise". The clip passes gradient where 0 ≤ a ≤ bound, both ends included, as `torch.clamp` does.

    Args:
        white, black: int32 [B, K], or int64 without a plan; rows left-packed, the first −1 ends a row; duplicates add
            up.
        black_to_move: uint8 or bool [B]: which perspective comes first.
        weight: [F, N], float32, float16 or bfloat16 (float64 too where it is not fused). N even for "pairwise".
            Sums are float32.
        bias: [N], any of these dtypes.
        bucket_size: the feature set's number of features per king bucket, for the fastest kernels on CUDA (see
            `perspective_plan`); None for sets without king buckets.
        num_bucketed: how many of the features lie in king buckets, by default all; those after them are unbucketed
            (see `perspective_plan`), such as threats and pawn pairs.
        output_dtype: float32, float16 or bfloat16; by default the weight's.
        plan: what `perspective_plan` made of these very tensors, with the same F, `bucket_size` and `num_bucketed`, and
            the dtype of `weight`; made here if it is None. Any other plan is an error.
        psqt: [F, P], float32 (float64 beside a float64 weight): piece-square values, one column per PSQT bucket.
        psqt_bucket: int64 [B], 0 ≤ bucket < P: the column of each position; only together with `psqt`. Fused operators
            report any other bucket as they report an illegal index.
        values: float32 [B, K] each for white and black (float64 with a float64 weight): factors of the entries, for
            `psqt` as well; default 1. Calls with values are not fused.
        deterministic: for the plain operator, see `ops.feature_transformer_forward`. The fused operator is always
        deterministic.
        sparse_grad: where the fused operator runs on a CPU, the gradient of `weight` is a sparse tensor with the rows
            of the features that the batch has, as torch.nn.functional.embedding gives it with `sparse=True`.

    Returns:
        [B, N] for "pairwise", else [B, 2 N]. With `psqt` also a tensor [B] of its dtype: (its sum over the side to
        move's features − its sum over the other side's) / 2, at the position's bucket.

    Raises:
        RuntimeError, ValueError: an argument has the wrong shape, dtype or device, or an index is out of range.
    """
    described = Description(activation, bound, scale, bucket_size, num_bucketed, output_dtype)
    parameters, rows = Parameters(weight, bias, psqt, None, sparse_grad), (white, black, black_to_move)
    if plan is not None:
        plan.check(rows, plan_key(weight.shape[0], bucket_size, num_bucketed, weight.dtype))
    plans = () if plan is None else (plan,)
    try:
        call = described.call(rows, parameters, psqt_bucket, plans, has_values=values is not None)
        out, psqt_out = call.outputs(values, deterministic)
    except RuntimeError as error:
        raise exact_index_error(error, white, black) from None
    return out if psqt_out is None else (out, psqt_out)
