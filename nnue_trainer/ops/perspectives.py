"""The feature transformer of both perspectives, activated and joined: one fused operator where the device has one.

On a CPU, and on a GPU of compute capability 8.0 or later, `perspective_transformer` is one fused forward and one fused
backward (csrc/perspective_transformer.h, docs/kernels.md). Elsewhere, and where `is_fused` is False, it consists of the
plain operator of `ops` and torch's own functions, with the same result up to rounding. Either way equal inputs give
equal bits, unless `deterministic` is False.

CUDA has two sets of kernels: "hopper", for feature sets with king buckets on compute capability 9.0, and "portable",
for every set on every GPU from 8.0 on. The first is taken where it can be, unless `set_cuda_kernels` forbids it.
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
from nnue_trainer.base._library import as_text
from nnue_trainer.ops import _registration, capabilities, reference
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


_IDENTITY, _PAIRWISE = number_of("identity"), number_of("pairwise")


# ---- fake kernels, autograd -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _places(namespace: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Where the pieces of a plan lie on CUDA, and how many rows `saved` has, for rows of these sizes."""
    with _disable_current_modes():
        text = as_text(getattr(torch.ops, namespace)._perspective_transformer_layout(*shape))
    found: dict[str, Any] = json.loads(text)
    return found


def _size(which: str, namespace: str, rows: Tensor, num_features: int, layout: Sequence[int]) -> int:
    """The number of rows of `saved` ("slots"), or of bytes of a "plan" on CUDA. Their layouts are the library's. In
    a graph for any batch size the number is known only when the graph runs."""
    shape = (*rows.shape, num_features, *layout)
    if all(isinstance(size, int) for size in shape):
        places = _places(namespace, shape)
        return int(places["slots"] if which == "slots" else places["plan"]["bytes"])
    size: int = torch.library.get_ctx().new_dynamic_size()  # type: ignore[assignment]
    return size


def _fakes(namespace: str, as_on_cuda: Callable[[torch.device], bool]) -> dict[str, Callable[..., Any]]:
    """The fake kernels. `as_on_cuda`: whether a device's tensors are laid out as on CUDA."""

    def plan(
        white: Tensor, black: Tensor, black_to_move: Tensor, num_features: int, bucket_size: int, num_bucketed: int,
        weight_bytes: int,
    ) -> Tensor:  # fmt: skip
        size = white.shape[0]
        if as_on_cuda(white.device):
            size = _size("plan", namespace, white, num_features, (bucket_size, num_bucketed, weight_bytes))
        return white.new_empty((size,), dtype=torch.uint8)

    def forward(
        batch: list[Tensor],
        layout: list[int],
        weight: Tensor,
        bias: Tensor,
        psqt: Tensor | None,
        activation: int,
        bound: float,
        scale: float,
        output_dtype: torch.dtype,
        rounds_down: bool,
        save: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        white, (num_features, num_outputs) = batch[0], weight.shape
        positions = white.shape[0]
        width = num_outputs if activation == _PAIRWISE else 2 * num_outputs
        saved_rows, on_cuda = 0, as_on_cuda(weight.device)
        if save and activation != _IDENTITY:
            saved_rows = _size("slots", namespace, white, num_features, layout) if on_cuda else 2 * positions
        saved_dtype = torch.float16 if on_cuda and weight.dtype != torch.float32 else torch.float32
        return (
            weight.new_empty((positions, width), dtype=output_dtype),
            weight.new_empty((0 if psqt is None else positions,), dtype=torch.float32),
            weight.new_empty((saved_rows, num_outputs), dtype=saved_dtype),
        )

    def backward(
        grad_output: Tensor,
        grad_psqt: Tensor | None,
        batch: list[Tensor],
        layout: list[int],
        saved: Tensor,
        sizes: list[int],
        activation: int,
        bound: float,
        scale: float,
        weight_dtype: torch.dtype,
        factors: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_features, num_outputs, psqt_buckets = sizes
        return (
            grad_output.new_empty((num_features, num_outputs), dtype=weight_dtype),
            grad_output.new_empty((0 if grad_output.dtype == torch.uint8 else num_outputs,), dtype=torch.float32),
            grad_output.new_empty((num_features, psqt_buckets) if psqt_buckets else (0,), dtype=torch.float32),
        )

    return {PLAN: plan, FORWARD: forward, BACKWARD: backward}


_FAKES = _fakes("nnue", lambda device: device.type != "cpu")


def _fake_backward_rows(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight, bias, psqt = _FAKES[BACKWARD](*arguments, [])
    rows: int = torch.library.get_ctx().new_dynamic_size()  # type: ignore[assignment]
    return weight.new_empty(rows, dtype=torch.int64), weight.new_empty(rows, weight.shape[1]), bias, psqt


_registration.register_fakes(_FAKES | {BACKWARD_ROWS: _fake_backward_rows})


class Kept(NamedTuple):
    """What the backward takes of a call, besides tensors."""

    layout: list[int]
    sizes: list[int]
    """F, N and P; P = 0: no gradient of psqt"""
    activation: int
    bound: float
    scale: float
    weight_dtype: torch.dtype
    """of the gradient of the weight"""
    output_dtype: torch.dtype

    def without_psqt(self) -> Kept:
        return self._replace(sizes=[*self.sizes[:2], 0])

    def arguments(self, grad: Tensor, grad_psqt: Tensor | None, batch: list[Tensor], saved: Tensor) -> tuple[Any, ...]:
        """Those of `_perspective_transformer_backward`, without its `factors`."""
        return grad, grad_psqt if self.sizes[2] else None, batch, self.layout, saved, *self[1:-1]

    def gradients(
        self, grad: Tensor | None, grad_psqt: Tensor | None, batch: list[Tensor], saved: Tensor, *, sparse: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients of weight, bias and psqt. `grad` None counts as zeros. `sparse`: the weight's is sparse."""
        kept = self.without_psqt() if grad_psqt is None else self
        if grad is None:
            width = self.sizes[1] if self.activation == _PAIRWISE else 2 * self.sizes[1]
            grad = saved.new_zeros(batch[0].shape[0], width, dtype=self.output_dtype)
        # The fp32 kernels of CUDA read fp32 gradients.
        grad = grad.float() if kept.weight_dtype == torch.float32 else grad
        arguments = kept.arguments(grad, grad_psqt, batch, saved)
        if sparse:
            rows, values, grad_bias, of_psqt = torch.ops.nnue._perspective_transformer_backward_rows(*arguments)
            size = kept.sizes[:2]
            of_weight = torch.sparse_coo_tensor(rows[None], values, size, check_invariants=False, is_coalesced=True)
        else:
            of_weight, grad_bias, of_psqt = torch.ops.nnue._perspective_transformer_backward(*arguments, [])
        return of_weight, grad_bias, of_psqt if kept.sizes[2] else None


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    call, ctx.save = FusedCall(*inputs[:-1]), inputs[-1]
    ctx.kept = call.kept()
    ctx.save_for_backward(output[2], *call.batch)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # otherwise `saved` would get a gradient of zeros, as large as itself


def _backward(ctx: Any, grad: Tensor | None, grad_psqt: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad is None and grad_psqt is None:
        return (None,) * 11
    if not ctx.save:
        raise RuntimeError(f"{FORWARD}: save: found False; pass save=True to compute gradients")
    saved, *batch = ctx.saved_tensors
    of_psqt = grad_psqt if ctx.needs_input_grad[4] else None
    return None, None, *ctx.kept.gradients(grad, of_psqt, batch, saved), *(None,) * 6


_INSTEAD = "call nnue_trainer.ops.perspectives.perspective_transformer, which uses others there"
_registration.register_reverse_mode(FORWARD, BACKWARD, _backward, setup_context=_setup_context, instead=_INSTEAD)
_registration.register_vmap(PLAN, _registration.refuse(PLAN, "vmap", _INSTEAD))


# ---- public functions -----------------------------------------------------------------------------------------------


def is_fused(weight: Tensor, bucket_size: int | None = None, num_bucketed: int | None = None) -> bool:
    """Whether `perspective_transformer` runs as one fused operator for this weight [F, N] on its device.

    On a CPU: an even N. On CUDA: a GPU of compute capability 8.0 or later, and N a multiple of 16. With any
    `bucket_size`, or none. float64 weights, and calls with `values`, are never fused.
    """
    machine = capabilities.machine_of(weight.device)
    num_features, num_outputs = weight.shape
    found = capabilities.transformer(machine, weight.dtype, num_features, num_outputs, bucket_size, num_bucketed)
    return found.kernels != "torch"


def _layout(
    kernels: Kernels, num_features: int, bucket_size: int, num_bucketed: int, weight_dtype: torch.dtype
) -> list[int]:
    """What a plan is laid out for, as operators take it: on CUDA a bucket_size of 0 selects the portable kernels."""
    buckets = [0, num_features] if kernels == "portable" else [bucket_size, num_bucketed]
    return [*buckets, weight_dtype.itemsize]


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
    def _constants(self) -> tuple[int, int, int, torch.dtype]:
        return self.num_features, self.bucket_size, self.num_bucketed, self.weight_dtype

    @property
    def layout(self) -> list[int]:
        """What the operators take with this plan."""
        return _layout(self.kernels, *self._constants)

    def irregular_rows(self, namespace: str = "nnue") -> int:
        """How many of the 2 B rows have a feature twice, or features of several king buckets. The kernels for compute
        capability 9.0 add these row by row, which is slow where there are many; for other kernels the result is 0.
        Waits for the device."""
        if self.kernels != "hopper":
            return 0
        sizes = (*self.white.shape, self.num_features, *self.layout)
        begin, size = _places(namespace, sizes)["plan"]["pieces"]["row_slot"]
        return int((self.data[begin : begin + size].view(torch.int32) < 0).sum().item())

    def is_for(
        self, num_features: int, bucket_size: int | None, num_bucketed: int | None, weight_dtype: torch.dtype
    ) -> bool:
        """Whether it was made with these arguments of `perspective_plan`."""
        num_bucketed = num_features if num_bucketed is None else num_bucketed
        return self._constants == (num_features, bucket_size or 0, num_bucketed, weight_dtype)


def perspective_plan(
    white: Tensor,
    black: Tensor,
    black_to_move: Tensor,
    num_features: int,
    bucket_size: int | None = None,
    num_bucketed: int | None = None,
    weight_dtype: torch.dtype = torch.float32,
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
        weight_dtype: that of the weights that the calls read.

    Returns:
        The plan. It keeps these tensors alive, and they must not be changed while it is in use.
    """
    num_bucketed = num_features if num_bucketed is None else num_bucketed
    machine = capabilities.machine_of(white.device)
    found = capabilities.transformer(machine, weight_dtype, num_features, -1, bucket_size, num_bucketed).kernels
    kernels = cast(Kernels, "portable" if found == "torch" else found)
    constants = (num_features, bucket_size or 0, num_bucketed, weight_dtype)
    data = torch.ops.nnue._perspective_plan(white, black, black_to_move, num_features, *_layout(kernels, *constants))
    return PerspectivePlan(data, white, black, black_to_move, *constants, kernels)


def _wrong(argument: str, found: object, expected: object) -> ValueError:
    return ValueError(f"perspective_transformer: {argument}: found {found}, expected {expected}")


def _check_plan(plan: PerspectivePlan, batch: tuple[Tensor, Tensor, Tensor], constants: tuple[Any, ...]) -> None:
    for name, own, given in zip(("white", "black", "black_to_move"), plan[1:4], batch, strict=True):
        if own is not given:
            raise _wrong("plan", f"the plan of another tensor `{name}`", "that of this batch")
    names = ("num_features", "bucket_size", "num_bucketed", "weight_dtype")
    for name, made, wanted in zip(names, plan._constants, constants, strict=True):
        if made != wanted:
            raise _wrong("plan", f"a plan for {name} = {made}", wanted)


class FusedCall(NamedTuple):
    """A call of `_perspective_transformer_forward`: its arguments but `save` in their order, and what takes the
    gradient of its weight."""

    batch: list[Tensor]
    layout: list[int]
    weight: Tensor
    bias: Tensor
    psqt: Tensor | None
    activation: int
    bound: float
    scale: float
    output_dtype: torch.dtype
    rounds_down: bool
    leaf: Tensor | None = None
    """see `Parameters`"""
    sparse_grad: bool = False
    psqt_apart: bool = False
    """on CUDA, if a gradient is needed, the PSQT output has no values, but its gradient goes to `psqt` as usual.
    `psqt_output` computes the values, of any positions."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Those of `_perspective_transformer_forward` without `save`: the fields up to `rounds_down`."""
        return self[: FusedCall._fields.index("leaf")]

    @property
    def trained(self) -> Tensor:
        """What takes the gradient of the weight."""
        return self.weight if self.leaf is None else self.leaf

    @property
    def leaves_psqt(self) -> bool:
        """Whether `psqt_apart` applies."""
        return self.psqt_apart and self.psqt is not None and self.weight.is_cuda

    @property
    def kernels(self) -> str:
        """Those that the call runs, as `capabilities.transformer` names them."""
        return "cpu" if not self.weight.is_cuda else "hopper" if self.layout[0] else "portable"

    def kept(self) -> Kept:
        """What its backward takes."""
        sizes = [*self.weight.shape, 0 if self.psqt is None else self.psqt.shape[1]]
        return Kept(self.layout, sizes, self.activation, self.bound, self.scale, self.trained.dtype, self.output_dtype)


class Parameters(NamedTuple):
    """The weights of a feature transformer, and how they take their gradients."""

    weight: Tensor
    bias: Tensor
    psqt: Tensor | None = None
    leaf: Tensor | None = None
    """takes the gradient of `weight` in its place, and in its own dtype; None: `weight` does"""
    sparse_grad: bool = False
    """see `perspective_transformer`"""


class Rows(NamedTuple):
    """The index rows of a batch, with their plan, and with values where features have them."""

    white: Tensor
    black: Tensor
    black_to_move: Tensor
    psqt_bucket: Tensor | None = None
    plan: PerspectivePlan | None = None
    values: tuple[Tensor, Tensor] | None = None


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

    def call(self, rows: Rows, parameters: Parameters) -> FusedCall | None:
        """The operator that computes it; None if it is not fused. Checks all arguments."""
        weight, bias, psqt, leaf, sparse_grad = parameters
        num_features, num_outputs = weight.shape
        num_bucketed = num_features if self.num_bucketed is None else self.num_bucketed
        _check_arguments(weight, self.activation, self.bound, num_bucketed, psqt, rows.psqt_bucket)
        plan, constants = rows.plan, (num_features, self.bucket_size or 0, num_bucketed, weight.dtype)
        if plan is not None:
            _check_plan(plan, rows[:3], constants)
        machine, mode = capabilities.machine_of(weight.device), capabilities.mode_of(weight, bias, psqt)
        sizes = (num_features, num_outputs, self.bucket_size, num_bucketed)
        output_dtype, has_values = self.output_dtype or weight.dtype, rows.values is not None
        found = capabilities.transformer(
            machine, weight.dtype, *sizes, mode, output_dtype=output_dtype, has_values=has_values
        )
        if found.kernels == "torch":
            return None
        if plan is None:
            plan = perspective_plan(
                ops.index_rows(rows.white), ops.index_rows(rows.black), rows.black_to_move, num_features,
                self.bucket_size, num_bucketed, weight.dtype,
            )  # fmt: skip
        batch = [plan.white, plan.black, plan.data, *([] if rows.psqt_bucket is None else [rows.psqt_bucket])]
        numbers = number_of(self.activation), self.bound, self.scale, output_dtype
        return FusedCall(
            batch, plan.layout, weight, bias.float(), psqt, *numbers, self.rounds_down and weight.is_cuda, leaf,
            sparse_grad,
        )  # fmt: skip

    def outputs(
        self, rows: Rows, parameters: Parameters, deterministic: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The output and the PSQT output."""
        call = self.call(rows, parameters)
        if call is not None:
            return run_fused(call)

        row_sums = functools.partial(ops.feature_transformer_forward, deterministic=deterministic)
        weight, bias, psqt, *_ = parameters
        return reference.perspective_transformer(
            (ops.index_rows(rows.white), ops.index_rows(rows.black), rows.black_to_move), weight, bias,
            self.activation, self.bound, self.scale, self.output_dtype or weight.dtype, psqt=psqt,
            psqt_bucket=rows.psqt_bucket, values=rows.values, row_sums=row_sums,
        )  # fmt: skip


def _check_arguments(
    weight: Tensor,
    activation: Activation,
    bound: float,
    num_bucketed: int,
    psqt: Tensor | None,
    psqt_bucket: Tensor | None,
) -> None:
    num_features, num_outputs = weight.shape
    if activation not in ACTIVATIONS:
        raise _wrong("activation", repr(activation), f"one of {', '.join(ACTIVATIONS)}")
    if activation == "pairwise" and num_outputs % 2:
        raise _wrong("weight", f"N = {num_outputs}", "an even N for pairwise")
    if not bound > 0:
        raise _wrong("bound", bound, "a positive number")
    if (psqt is None) != (psqt_bucket is None):
        found, missing = ("psqt", "psqt_bucket") if psqt_bucket is None else ("psqt_bucket", "psqt")
        raise _wrong(missing, "none", f"a tensor, since there is {found}")
    if not 0 <= num_bucketed <= num_features:
        raise _wrong("num_bucketed", num_bucketed, f"0 to F = {num_features}")


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
    rows = Rows(white, black, black_to_move, psqt_bucket, plan, values)
    out, psqt_out = described.outputs(rows, Parameters(weight, bias, psqt, None, sparse_grad), deterministic)
    return out if psqt_out is None else (out, psqt_out)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[[Sequence[bool]], Any], *tensors: Tensor | None) -> Any:
        output, saved, ctx.formula = run(ctx.needs_input_grad[1:])
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        return None, *ctx.formula(ctx.saved_tensors, *grads)


def differentiable(run: Callable[[Sequence[bool]], Any], *tensors: Tensor | None) -> Any:
    """What `run` computes, with a derivative by `tensors`. It is called with which of these need a gradient, and gives
    the output or outputs, tensors to be saved, and a formula: (what was saved, gradient of each output, None for one
    that is not used) → gradients of `tensors`. The formula may hold outputs only among the tensors that are saved."""
    return _Differentiable.apply(run, *tensors)  # type: ignore[no-untyped-call]


def run_fused(call: FusedCall) -> tuple[Tensor, Tensor | None]:
    """`Description.outputs` of a call."""
    saves = torch.is_grad_enabled() and any(
        p.requires_grad for p in (call.trained, call.bias, call.psqt) if p is not None
    )
    on_cpu, forward = call.weight.device.type == "cpu", torch.ops.nnue._perspective_transformer_forward
    sparse, apart = call.sparse_grad and on_cpu, call.leaves_psqt
    if not saves or not (sparse or apart or call.leaf is not None):
        out, psqt_out, _ = forward(*call.arguments, saves)
        return out, None if call.psqt is None else psqt_out

    # The formula of the operator gives neither sparse gradients nor those of others than its arguments.
    def run(needs: Sequence[bool]) -> Any:
        read = call._replace(batch=call.batch[:3], psqt=None) if apart else call
        out, psqt_out, saved = forward(*read.arguments, True)
        if apart:  # without values; it takes the gradient
            psqt_out = call.bias.new_empty(()).expand(len(out))
        kept = call.kept()

        def backward(
            tensors: Sequence[Tensor], grad: Tensor | None, grad_psqt: Tensor | None
        ) -> tuple[Tensor | None, ...]:
            saved, *batch = tensors
            return kept.gradients(grad, grad_psqt if needs[2] else None, batch, saved, sparse=sparse)

        return (out, psqt_out), (saved, *call.batch), backward

    out, psqt_out = differentiable(run, call.trained, call.bias, call.psqt)
    return out, None if call.psqt is None else psqt_out


def psqt_output(call: FusedCall, begin: int, end: int) -> Tensor:
    """The PSQT output of positions begin … end − 1 alone, on CUDA, without a gradient. `call`: of the whole batch."""
    assert call.psqt is not None
    output: Tensor = torch.ops.nnue._perspective_psqt(call.batch, call.layout, call.psqt.detach(), begin, end)
    return output
