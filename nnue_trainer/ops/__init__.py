"""The operators of `torch.ops.nnue` with types, autograd, fake kernels and autocast.

Importing this module loads the operator libraries (`_library`) and registers everything that is not a kernel. The
contracts are in docs/ops.md, csrc/feature_transformer.h and csrc/expand_features.h.

Illegal input on CUDA: kernels never follow an index outside its range, and a record that is not a position gets empty
rows. `set_index_check` chooses when the error is raised: by the call itself ("sync", the default: the host waits for a
small check kernel), by a later call ("async": the host never waits), or never ("off": illegal entries are skipped).
While a CUDA graph is captured, the check is "async".
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from nnue_trainer.base import _library
from nnue_trainer.ops import _enumerations, _registration

if TYPE_CHECKING:
    from nnue_trainer.ops import functional, perspectives

__all__ = [
    "Expanded",
    "expand",
    "expand_features",
    "expand_features_into",
    "feature_set_handle",
    "feature_transformer_backward",
    "feature_transformer_forward",
    "functional",
    "index_rows",
    "perspectives",
    "raise_index_errors",
    "set_index_check",
]

_libraries = _library.require()

FORWARD = "nnue::feature_transformer_forward"
BACKWARD = "nnue::feature_transformer_backward"
EXPAND = "nnue::expand_features"
EXPAND_INTO = "nnue::expand_features_into"

IndexCheck = Literal["sync", "async", "off"]


def _sum_dtype(weight: torch.dtype) -> torch.dtype:
    return torch.float64 if weight == torch.float64 else torch.float32


def _deterministic(deterministic: bool | None) -> bool | None:
    return True if deterministic is None and torch.are_deterministic_algorithms_enabled() else deterministic


# ---- fake kernels -------------------------------------------------------------------------------------------------


def _expect(op: str, argument: str, correct: bool, found: object, expected: str) -> None:
    # The kernels check everything again. This check raises the error while tracing, before a kernel runs.
    if not correct:
        raise RuntimeError(f"{op}: {argument}: found {found}, expected {expected}")


def _expect_rows(op: str, indices: Tensor, values: Tensor | None, weight_dtype: torch.dtype) -> None:
    _expect(op, "indices", indices.dim() == 2, f"{indices.dim()} dimensions", "shape [B, K]")
    _expect(op, "indices", indices.dtype == torch.int32, indices.dtype, "int32")
    if values is not None:
        _expect(op, "values", values.dim() == 2, f"{values.dim()} dimensions", "shape [B, K]")
        _expect(op, "values", values.dtype == _sum_dtype(weight_dtype), values.dtype, f"{_sum_dtype(weight_dtype)}")


def _forward_fake(
    indices: Tensor, values: Tensor | None, weight: Tensor, bias: Tensor, deterministic: bool | None = None
) -> Tensor:
    _expect(FORWARD, "weight", weight.dim() == 2, f"{weight.dim()} dimensions", "shape [F, N]")
    _expect(FORWARD, "bias", bias.dim() == 1, f"{bias.dim()} dimensions", "shape [N]")
    _expect(FORWARD, "bias", bias.dtype == weight.dtype, bias.dtype, f"{weight.dtype}")
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
    _expect(BACKWARD, "grad_output", grad_output.dim() == 2, f"{grad_output.dim()} dimensions", "shape [B, N]")
    _expect_rows(BACKWARD, indices, values, grad_output.dtype)
    num_outputs = grad_output.shape[1]
    return (
        grad_output.new_empty((num_features, num_outputs) if needs_weight else (0,)),
        grad_output.new_empty((num_outputs,) if needs_bias else (0,)),
        grad_output.new_empty(indices.shape if needs_values else (0,), dtype=_sum_dtype(grad_output.dtype)),
    )


def _expect_records(records: Tensor) -> None:
    _expect(EXPAND, "records", records.dim() == 2, f"{records.dim()} dimensions", "shape [B, 32]")
    _expect(EXPAND, "records", records.dtype == torch.uint8, records.dtype, "uint8")


def _expand_fake(records: Tensor, feature_set: int, check_records: bool = True) -> tuple[Tensor, ...]:
    from nnue_trainer.data.features import BASIC_FEATURE_SETS
    from nnue_trainer.data.features import feature_set as described

    _expect_records(records)
    if feature_set not in _names_of_handles:
        for name in BASIC_FEATURE_SETS:
            feature_set_handle(name)
    known = feature_set in _names_of_handles
    _expect(EXPAND, "feature_set", known, f"the unknown handle {feature_set}", "one of ops.feature_set_handle")
    rows = records.shape[0]
    shapes = ((rows, described(_names_of_handles[feature_set]).max_active),) * 2 + ((rows,),) * 6
    return tuple(records.new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, _EXPANDED_DTYPES, strict=True))


def _expand_into_fake(records: Tensor, feature_set: int, fields: Sequence[Tensor], check_records: bool = True) -> None:
    _expect_records(records)


_EXPANDED_DTYPES = (
    torch.int32,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint8,
)


_registration.register_fakes(
    {FORWARD: _forward_fake, BACKWARD: _backward_fake, EXPAND: _expand_fake, EXPAND_INTO: _expand_into_fake}
)


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
_registration.register_vmap(EXPAND)
_registration.register_vmap(
    EXPAND_INTO, _registration.refuse(EXPAND_INTO, "vmap", "call ops.expand_features, which returns new tensors")
)

# Autocast runs the operator in float32: casting the whole weight in each step would cost more than 16-bit rows save.
# To use 16-bit rows, keep the weights in 16 bits and call the operator outside autocast, which would cast those up.
for _device in ("cpu", "cuda"):
    torch.library.register_autocast(FORWARD, _device, torch.float32)


# ---- public functions -----------------------------------------------------------------------------------------------


_INT32 = (-(2**31), 2**31 - 1)


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
        grad_weight [F, N] and grad_bias [N] in the dtype of `grad_output`, grad_values [B, K] in that of `values`.

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


class Expanded(NamedTuple):
    """B positions as index rows, with the fields of `nnue_trainer.data.Batch`: `Batch(*expanded)` makes a batch.

    `white` and `black` are int32 [B, K], the others [B]: `counts` int16 (entries per row), `black_to_move` uint8,
    `score` int16 (engine units) and `result` int8 (−1, 0, 1) from the side to move's view, `piece_count` uint8,
    `material` uint8 (4 · min(3, queens of the side to move) + min(3, queens of the other side)).
    """

    white: Tensor
    black: Tensor
    counts: Tensor
    black_to_move: Tensor
    score: Tensor
    result: Tensor
    piece_count: Tensor
    material: Tensor


_handles: dict[str, int] = {}
_names_of_handles: dict[int, str] = {}


def feature_set_handle(name: str) -> int:
    """The integer that identifies a feature set in `torch.ops.nnue.expand_features` and `expand_features_into`.

    It is a hash of the name, the same in every process, so graphs may keep it. A process that runs such a graph without
    this module's functions calls this one first; sets that are built in need no call. Whether there is such a set is
    checked when it is used.
    """
    if name not in _handles:
        with _disable_current_modes():  # the caller may be tracing with tensors that have no data
            given = _library.as_bytes(name)
            handle = int(torch.ops.nnue.name_feature_set(given))
            if _libraries.cuda_error is None:
                torch.ops.nnue.name_cuda_feature_set(given)
        _names_of_handles[handle] = name
        _handles[name] = handle
    return _handles[name]


feature_set_handle._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


def expand_features(records: Tensor, feature_set: str, *, check_records: bool = True) -> Expanded:
    """Expands packed positions into the index rows of both perspectives; bit-equal to `nnue_trainer.data.expand`.

    Args:
        records: uint8 [B, 32], positions as binpack files and `nnue_trainer.data.RecordLoader` hold them.
        feature_set: a name such as "HalfKAv2_hm" or "HalfKAv2_hm+Full_Threats_v16" (`nnue_trainer.data.feature_set`).
            A set in a C++ header must be known (call that function first). Sets in Python are not for operators.
        check_records: on CUDA, report a record that is not a position; see `set_index_check`. Use False for records
            that are known to be valid, such as a loader's; an invalid one gets empty rows. The CPU always checks.

    Returns:
        New tensors on the device of `records`.

    Raises:
        RuntimeError: `records` has the wrong shape or dtype, or holds something that is not a position (the error gives
            row and reason), or there is no such feature set.
    """
    _prepare(records, feature_set)
    return Expanded(*torch.ops.nnue.expand_features(records, feature_set_handle(feature_set), check_records))


def expand_features_into(records: Tensor, feature_set: str, out: Expanded, *, check_records: bool = True) -> None:
    """`expand_features` into existing tensors: contiguous, with the same shapes and dtypes, on the same device.

    `records` uint8 [B, 32] and errors are those of `expand_features`.
    """
    _prepare(records, feature_set)
    torch.ops.nnue.expand_features_into(records, feature_set_handle(feature_set), list(out), check_records)


def _prepare(records: Tensor, feature_set: str) -> None:
    """A set in a user's header is compiled for CUDA at its first use there."""
    if records.is_cuda and ":" in feature_set and not torch.compiler.is_compiling():
        from nnue_trainer.data.features import feature_set as described

        described(feature_set).prepare(records.device)


def set_index_check(mode: IndexCheck) -> IndexCheck:
    """Choose when CUDA operators report an illegal index or record; returns the previous mode. The CPU always checks.

    "sync": the call raises (the host waits for a small kernel that runs before the work). "async": the host never
    waits; the next operator on the device, or `raise_index_errors`, raises. "off": illegal entries are skipped.
    The environment variable NNUE_INDEX_CHECK sets the mode at start.
    """
    global _index_check
    code = _enumerations.code("set_cuda_index_check.mode", mode)
    before = _index_check
    if _libraries.cuda_error is None:
        torch.ops.nnue.set_cuda_index_check(code)
    _index_check = mode
    return before


def raise_index_errors() -> None:
    """Wait for the CUDA devices, and raise a RuntimeError if an illegal index was found ("async", CUDA graphs)."""
    if _libraries.cuda_error is None:
        torch.ops.nnue.raise_cuda_index_errors()


_index_check: IndexCheck = "sync"
if "NNUE_INDEX_CHECK" in os.environ:
    set_index_check(cast(IndexCheck, os.environ["NNUE_INDEX_CHECK"]))


def __getattr__(name: str) -> Any:
    if name in ("expand", "functional", "perspectives"):  # public, and they import this module
        return importlib.import_module(f"nnue_trainer.ops.{name}")
    raise AttributeError(f"module 'nnue_trainer.ops' has no attribute {name!r}")
