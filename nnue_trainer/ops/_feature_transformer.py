"""The operators of the feature transformer: fake kernels, derivatives, vmap, autocast, and their functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from nnue_trainer.base import _registration

FORWARD = "nnue::feature_transformer_forward"
BACKWARD = "nnue::feature_transformer_backward"
_INT32 = (-(2**31), 2**31 - 1)


def _sum_dtype(weight: torch.dtype) -> torch.dtype:
    return torch.float64 if weight == torch.float64 else torch.float32


def _deterministic(deterministic: bool | None) -> bool | None:
    return True if deterministic is None and torch.are_deterministic_algorithms_enabled() else deterministic


# ---- fake kernels -------------------------------------------------------------------------------------------------


def _expect_rows(op: str, indices: Tensor, values: Tensor | None, weight_dtype: torch.dtype) -> None:
    _registration.expect(op, "indices", indices.dim() == 2, f"{indices.dim()} dimensions", "shape [B, K]")
    _registration.expect(op, "indices", indices.dtype == torch.int32, indices.dtype, "int32")
    if values is not None:
        _registration.expect(op, "values", values.dim() == 2, f"{values.dim()} dimensions", "shape [B, K]")
        _registration.expect(
            op, "values", values.dtype == _sum_dtype(weight_dtype), values.dtype, f"{_sum_dtype(weight_dtype)}"
        )


def _forward_fake(
    indices: Tensor, values: Tensor | None, weight: Tensor, bias: Tensor, deterministic: bool | None = None
) -> Tensor:
    _registration.expect(FORWARD, "weight", weight.dim() == 2, f"{weight.dim()} dimensions", "shape [F, N]")
    _registration.expect(FORWARD, "bias", bias.dim() == 1, f"{bias.dim()} dimensions", "shape [N]")
    _registration.expect(FORWARD, "bias", bias.dtype == weight.dtype, bias.dtype, f"{weight.dtype}")
    _expect_rows(FORWARD, indices, values, weight.dtype)
    return weight.new_empty((indices.shape[0], weight.shape[1]))


def _backward_fake(
    grad_output: Tensor,
    indices: Tensor,
    values: Tensor | None,
    weight: Tensor | None,
    num_features: int,
    needs: Sequence[bool] = (True, True, False),
    deterministic: bool | None = None,
    check_indices: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    needs_weight, needs_bias, needs_values = needs
    _registration.expect(
        BACKWARD, "grad_output", grad_output.dim() == 2, f"{grad_output.dim()} dimensions", "shape [B, N]"
    )
    _expect_rows(BACKWARD, indices, values, grad_output.dtype)
    num_outputs = grad_output.shape[1]
    return (
        grad_output.new_empty((num_features, num_outputs) if needs_weight else (0,)),
        grad_output.new_empty((num_outputs,) if needs_bias else (0,)),
        grad_output.new_empty(indices.shape if needs_values else (0,), dtype=_sum_dtype(grad_output.dtype)),
    )


_registration.register_fakes({FORWARD: _forward_fake, BACKWARD: _backward_fake})


# ---- autograd -----------------------------------------------------------------------------------------------------


def _derive(
    needs: Sequence[bool], arguments: tuple[Any, ...], output: Tensor
) -> tuple[tuple[Tensor | None, ...], _registration.Formula]:
    indices, values, weight, _, deterministic = arguments
    _, needs_values, needs_weight, needs_bias, _ = needs
    num_features, deterministic = weight.shape[0], _deterministic(deterministic)

    def formula(saved: tuple[Tensor | None, ...], grad_output: Tensor) -> tuple[Tensor | None, ...]:
        grad_weight, grad_bias, grad_values = torch.ops.nnue.feature_transformer_backward(
            grad_output,
            *saved,
            num_features,
            [needs_weight, needs_bias, needs_values],
            deterministic,
            False,  # the forward has checked these indices, and autograd makes sure that they have not changed since
        )
        return (
            None,
            grad_values if needs_values else None,
            grad_weight if needs_weight else None,
            grad_bias if needs_bias else None,
            None,
        )

    return (indices, values, weight if needs_values else None), formula


def _forward_tangent(op: Any, primals: tuple[Any, ...], tangents: tuple[Tensor | None, ...]) -> Any:
    # The operator is linear in weight and bias together, and in the values.
    indices, values, weight, bias, deterministic = primals
    _, d_values, d_weight, d_bias, _ = tangents
    parts = []
    if d_weight is not None or d_bias is not None:
        d_weight = torch.zeros_like(weight) if d_weight is None else d_weight
        d_bias = torch.zeros_like(bias) if d_bias is None else d_bias
        parts.append(op(indices, values, d_weight, d_bias, deterministic))
    if d_values is not None:
        parts.append(op(indices, d_values, weight, torch.zeros_like(bias), deterministic))
    return sum(parts[1:], parts[0])


def _backward_tangent(
    op: Any, primals: tuple[Any, ...], tangents: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    # grad_weight is bilinear in grad_output and values, grad_values in grad_output and weight; grad_bias is linear.
    grad_output, indices, values, weight, num_features, needs, deterministic, check = primals
    d_grad, _, d_values, d_weight, *_ = tangents
    rest = (deterministic, check)
    parts: list[tuple[Tensor | None, ...]] = []
    if d_grad is not None:
        parts.append(op(d_grad, indices, values, weight, num_features, needs, *rest))
    if d_values is not None and needs[0]:
        parts.append(
            op(grad_output, indices, d_values, None, num_features, [True, False, False], *rest)[:1] + (None,) * 2
        )
    if d_weight is not None and needs[2]:
        parts.append(
            (None, None, op(grad_output, indices, values, d_weight, num_features, [False, False, True], *rest)[2])
        )
    terms = [[t for t in column if t is not None] for column in zip(*parts, strict=True)] or [[], [], []]
    return tuple(sum(column[1:], column[0]) if column else None for column in terms)


_forward_one_by_one = _registration.one_by_one(FORWARD)


def _forward_vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    indices, values, weight, bias, deterministic = arguments
    of_indices, of_values, of_weight, of_bias, _ = in_dims
    if of_weight is not None or of_bias is not None:
        return _forward_one_by_one(info, in_dims, *arguments)

    # Several batches of rows are treated as one larger batch.
    def rows(tensor: Tensor, dim: int | None) -> Tensor:
        moved = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        return moved.flatten(0, 1)

    flat = None if values is None else rows(values, of_values)
    out = torch.ops.nnue.feature_transformer_forward(rows(indices, of_indices), flat, weight, bias, deterministic)
    return out.view(info.batch_size, len(out) // info.batch_size, out.shape[1]), 0


_registration.register_autograd(FORWARD, _derive, _forward_tangent)
_registration.register_autograd(BACKWARD, _registration.no_derivative(BACKWARD), _backward_tangent)
_registration.register_vmap(FORWARD, _forward_vmap)
_registration.register_vmap(BACKWARD)

# Autocast runs the operator in float32: casting the whole weight in each step would cost more than 16-bit rows save.
# To use 16-bit rows, keep the weights in 16 bits and call the operator outside autocast, which would cast those up.
for _device in ("cpu", "cuda"):
    torch.library.register_autocast(FORWARD, _device, torch.float32)


# ---- public functions -----------------------------------------------------------------------------------------------


def index_rows(indices: Tensor) -> Tensor:
    """Index rows [B, K] in the dtype of the operators, int32: int64 rows are copied, others are returned unchanged.

    A number that int32 does not have becomes the nearest that it has, −2³¹ or 2³¹ − 1. No set of features has these, so
    operators report them; errors of the functions of this package name the number before the conversion. The
    functions of this package call this one themselves, but not for the rows that a plan is made of: convert those once.
    """
    return indices.clamp(*_INT32).int() if indices.dtype == torch.int64 else indices


def exact_index_error(error: RuntimeError, *rows: Tensor) -> RuntimeError:
    """The error of an operator that was called with `index_rows(rows)`. If it reports an index that int32 does not
    have, the message gets that number, and its row, from the int64 rows."""
    before, found, rest = str(error).partition("indices: found index ")
    if rest.partition(" ")[0] not in map(str, _INT32):
        return error
    for indices in rows:
        if indices.dtype != torch.int64:
            continue
        inside = (indices == -1).cumsum(1) == 0
        wrong = (inside & ((indices < _INT32[0]) | (indices > _INT32[1]))).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            _, comma, expected = rest.partition(", expected")
            return RuntimeError(f"{before}{found}{int(indices[row, column])} in row {row}{comma}{expected}")
    return error


def feature_transformer_forward(
    indices: Tensor,
    weight: Tensor,
    bias: Tensor,
    values: Tensor | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """`bias + Σ_k values[b, k] · weight[indices[b, k]]` for every row b; differentiable.

    Args:
        indices: int32 or int64 [B, K]; rows left-packed, the first −1 ends a row; duplicates add up.
        weight: [F, N], float32, float64, float16 or bfloat16. 16-bit weights are summed in float32.
        bias: [N], dtype of `weight`.
        values: float32 [B, K] (float64 with a float64 weight); default 1.
        deterministic: True: the backward gives equal bits for equal inputs. False: on CUDA, a kernel with atomics that
            skips zero gradients; faster if most are zero (docs/ops.md). None: True while
            `torch.use_deterministic_algorithms` is on, else the kernel that is usually faster, which is the
            deterministic one, too. The forward always gives equal bits, and so does the CPU.

    Returns:
        [B, N] in the dtype of `weight`.

    Raises:
        TypeError: `indices`, `weight` or `bias` is not a tensor.
        RuntimeError: an argument has the wrong shape, dtype or device, or an index is neither −1 nor in [0, F).
    """
    for name, tensor in (("indices", indices), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"feature_transformer: {name}: found {type(tensor).__name__}, expected a tensor")
    rows = index_rows(indices)
    try:
        return cast(Tensor, torch.ops.nnue.feature_transformer_forward(rows, values, weight, bias, deterministic))
    except RuntimeError as error:
        raise exact_index_error(error, indices) from None


def feature_transformer_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_features: int,
    values: Tensor | None = None,
    weight: Tensor | None = None,
    *,
    needs_weight_grad: bool = True,
    needs_bias_grad: bool = True,
    needs_values_grad: bool = False,
    deterministic: bool | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `feature_transformer_forward`: (grad_weight, grad_bias, grad_values). Not differentiable.

    Args:
        grad_output: [B, N] in the dtype of the forward's output.
        indices, values: as in the forward.
        num_features: F.
        weight: [F, N]; needed only for the gradient of `values`.
        needs_weight_grad, needs_bias_grad, needs_values_grad: which gradients to compute; the others are None.

    Returns:
        grad_weight [F, N] and grad_bias [N] in the dtype of `grad_output`, grad_values [B, K] in the dtype of `values`.

    Raises:
        RuntimeError: as the forward.
    """
    try:
        grad_weight, grad_bias, grad_values = torch.ops.nnue.feature_transformer_backward(
            grad_output,
            index_rows(indices),
            values,
            weight,
            num_features,
            [needs_weight_grad, needs_bias_grad, needs_values_grad],
            _deterministic(deterministic),
        )
    except RuntimeError as error:
        raise exact_index_error(error, indices) from None
    return (
        grad_weight if needs_weight_grad else None,
        grad_bias if needs_bias_grad else None,
        grad_values if needs_values_grad else None,
    )
