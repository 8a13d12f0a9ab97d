"""The feature transformer of both perspectives, activated and joined: one operator where there is one, else several.

On a GPU of compute capability 9.0, with a `block_size`, `perspective_transformer` is one fused forward and one fused
backward (csrc/perspective_transformer.h, docs/kernels.md). Anywhere else it is made of the plain operator of `ops` and
torch's own functions, with the same result up to rounding. Equal inputs give equal bits on either way where
`deterministic` is left alone or true.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from nnue_trainer import ops

ROWS = "nnue::perspective_rows"
FORWARD = "nnue::perspective_transformer_forward"
BACKWARD = "nnue::perspective_transformer_backward"

Activation = Literal["identity", "crelu", "screlu", "pairwise"]
_ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


# ---- fake kernels, autograd -----------------------------------------------------------------------------------------


def _num_blocks(num_blocked: int, block_size: int) -> int:
    return max(1, (num_blocked + block_size - 1) // block_size)


def _slots(positions: int, block_size: int, num_blocked: int) -> int:
    # BlockRows::tiles in csrc/cuda/block_rows.cuh, 64 slots each.
    return ((2 * positions + 63) // 64 + _num_blocks(num_blocked, block_size)) * 64


def _rows_bytes(positions: int, block_size: int, num_blocked: int) -> int:
    # carve_rows in csrc/cuda/block_rows.cuh.
    blocks = _num_blocks(num_blocked, block_size)
    slots = _slots(positions, block_size, num_blocked)
    pieces = (
        4 * slots,  # slot_target
        4 * (blocks + 1),  # tile_begin
        96 * slots,  # row_bits
        8 * 768 * (slots // 64),  # feature_bits
        4 * blocks * ((2 * positions + 127) // 128),  # cta_offsets
        8 * positions,  # row_slot
        4,  # irregular
    )
    used = 0
    for piece in pieces:
        used = (used + 255) // 256 * 256 + piece
    return used


def _rows_fake(
    white: Tensor, black: Tensor, black_to_move: Tensor, num_features: int, block_size: int, num_blocked: int
) -> Tensor:
    return white.new_empty((_rows_bytes(white.shape[0], block_size, num_blocked),), dtype=torch.uint8)


def _forward_fake(
    white: Tensor,
    black: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    block_size: int,
    num_blocked: int,
    activation: int,
    bound: float,
    scale: float,
    output_dtype: int,
    save: bool,
) -> tuple[Tensor, Tensor]:
    positions, num_outputs = white.shape[0], weight.shape[1]
    width = num_outputs if _ACTIVATIONS[activation] == "pairwise" else 2 * num_outputs
    saves = save and _ACTIVATIONS[activation] != "identity"
    return (
        weight.new_empty((positions, width), dtype=_DTYPES[output_dtype]),
        weight.new_empty(
            (_slots(positions, block_size, num_blocked) if saves else 0, num_outputs),
            dtype=torch.float32 if weight.dtype == torch.float32 else torch.float16,
        ),
    )


def _backward_fake(
    grad_output: Tensor,
    white: Tensor,
    black: Tensor,
    rows: Tensor,
    saved: Tensor,
    num_features: int,
    num_outputs: int,
    block_size: int,
    num_blocked: int,
    activation: int,
    bound: float,
    scale: float,
    weight_dtype: int,
) -> tuple[Tensor, Tensor]:
    return (
        grad_output.new_empty((num_features, num_outputs), dtype=_DTYPES[weight_dtype]),
        grad_output.new_empty((num_outputs,), dtype=torch.float32),
    )


torch.library.register_fake(ROWS, _rows_fake)
torch.library.register_fake(FORWARD, _forward_fake)
torch.library.register_fake(BACKWARD, _backward_fake)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    white, black, rows, weight, _, *constants, _, save = inputs
    ctx.save_for_backward(white, black, rows, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # else `saved` gets a gradient of zeros, as large as itself
    ctx.weight_shape, ctx.weight_dtype = weight.shape, weight.dtype
    ctx.constants, ctx.save = constants, save  # block_size, num_blocked, activation, bound, scale


def _backward(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 12
    if not ctx.save:
        raise RuntimeError(f"{FORWARD}: save: found False, expected True, since a gradient is asked for")
    white, black, rows, saved = ctx.saved_tensors
    # The fp32 kernels read fp32 gradients.
    grad = grad_output.float() if ctx.weight_dtype == torch.float32 else grad_output
    grad_weight, grad_bias = torch.ops.nnue.perspective_transformer_backward(
        grad,
        white,
        black,
        rows,
        saved,
        *ctx.weight_shape,
        *ctx.constants,
        _DTYPES.index(ctx.weight_dtype),
    )
    return None, None, None, grad_weight, grad_bias, *(None,) * 7


def _double_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(f"{BACKWARD}: it has no derivative of its own (double backward); found create_graph=True")


torch.library.register_autograd(FORWARD, _backward, setup_context=_setup_context)
torch.library.register_autograd(BACKWARD, _double_backward)


# ---- public functions -----------------------------------------------------------------------------------------------


def is_fused(weight: Tensor, block_size: int | None, num_blocked: int | None = None) -> bool:
    """Whether `perspective_transformer` runs as one fused operator for this weight [F, N] on its device."""
    if block_size is None or not weight.is_cuda or weight.dtype not in _DTYPES or ops._libraries.cuda_error is not None:
        return False
    num_features, num_outputs = weight.shape
    num_blocked = num_features if num_blocked is None else num_blocked
    fits = num_features > 0 and num_outputs > 0 and num_outputs % 16 == 0 and 0 < block_size <= 768
    fits = fits and num_blocked == num_features <= 255 * block_size
    return fits and _device_has_kernels(weight.device.index or 0)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _device_has_kernels(device: int) -> bool:
    return bool(torch.ops.nnue.perspective_transformer_available(device))


def perspective_rows(
    white: Tensor,
    black: Tensor,
    black_to_move: Tensor,
    num_features: int,
    block_size: int,
    num_blocked: int | None = None,
) -> Tensor:
    """The rows of a batch grouped by feature block, for every fused call on this batch; CUDA only.

    Args:
        white, black: int32 [B, K] index rows of the perspectives; rows left-packed, the first −1 ends a row.
        black_to_move: uint8 or bool [B].
        num_features: F.
        block_size: features of a block, at most 768 (HalfKAv2_hm: 768). The kernels are made for rows whose features
            are distinct and lie in one block each; other rows are legal and slow.
        num_blocked: features [0, num_blocked) come in blocks, those from there on are loose: a row may hold any of
            them, anywhere among the others. By default F: all come in blocks.

    Returns:
        uint8 [bytes] on the device: an opaque value. What is computed with it depends on the arguments alone.
    """
    num_blocked = num_features if num_blocked is None else num_blocked
    return cast(
        Tensor, torch.ops.nnue.perspective_rows(white, black, black_to_move, num_features, block_size, num_blocked)
    )


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
    block_size: int | None = None,
    num_blocked: int | None = None,
    output_dtype: torch.dtype | None = None,
    rows: Tensor | None = None,
    deterministic: bool | None = None,
) -> Tensor:
    """Both perspectives' accumulators, activated and joined, side to move first; differentiable in weight and bias.

    An accumulator is a = bias + Σ weight[i] over the indices i of a row. With c = a clipped to [0, bound], a
    perspective contributes `scale` times: "identity" a, "crelu" c, "screlu" c², "pairwise" c[j] · c[j + N / 2]. The
    clip passes gradient where 0 ≤ a ≤ bound, both ends included, as `torch.clamp` does.

    Args:
        white, black: int32 [B, K]; rows left-packed, the first −1 ends a row; duplicates add up.
        black_to_move: uint8 or bool [B]: which perspective comes first.
        weight: [F, N], float32, float16 or bfloat16 (float64 too where it is not fused). N even for "pairwise".
            Sums are float32. Fused float32 weights are read as two float16 parts: 22 bits of each weight, an absolute
            error of at most 2⁻³⁶, magnitudes up to 65504.
        bias: [N], any of these dtypes.
        block_size: the feature set's block size, for the fused operator (see `perspective_rows`); None for sets
            without blocks.
        num_blocked: how many of the features come in blocks, by default all; those behind them are loose (see
            `perspective_rows`), as threats and pawn pairs behind king buckets are.
        output_dtype: float32, float16 or bfloat16; by default the weight's.
        rows: what `perspective_rows` gave for this batch, if it is there already.
        deterministic: for the plain operator, see `ops.feature_transformer_forward`. The fused one always is.

    Returns:
        [B, N] for "pairwise", else [B, 2 N].

    Raises:
        RuntimeError, ValueError: an argument has the wrong shape, dtype or device, or an index is out of range.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"perspective_transformer: activation: found {activation!r}, expected one of {', '.join(_ACTIVATIONS)}"
        )
    if activation == "pairwise" and weight.shape[1] % 2:
        raise ValueError(
            f"perspective_transformer: weight: found N = {weight.shape[1]}, expected an even N for pairwise"
        )
    if not bound > 0:
        raise ValueError(f"perspective_transformer: bound: found {bound}, expected a positive number")
    output_dtype = weight.dtype if output_dtype is None else output_dtype
    if num_blocked is None:
        num_blocked = weight.shape[0]
    if not 0 <= num_blocked <= weight.shape[0]:
        raise ValueError(
            f"perspective_transformer: num_blocked: found {num_blocked}, expected 0 to F = {weight.shape[0]}"
        )
    if block_size is not None and output_dtype in _DTYPES and is_fused(weight, block_size, num_blocked):
        if rows is None:
            rows = perspective_rows(white, black, black_to_move, weight.shape[0], block_size, num_blocked)
        save = torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad)
        out, _ = torch.ops.nnue.perspective_transformer_forward(
            white,
            black,
            rows,
            weight,
            bias.float(),
            block_size,
            num_blocked,
            _ACTIVATIONS.index(activation),
            bound,
            scale,
            _DTYPES.index(output_dtype),
            save,
        )
        return cast(Tensor, out)

    # Swapping index rows moves a few dozen integers a position; swapping accumulators, thousands of floats.
    black_first = black_to_move.bool().unsqueeze(1)
    first, second = torch.where(black_first, black, white), torch.where(black_first, white, black)
    # The plain operator rounds its sums to the weight's dtype: too early for 16-bit weights.
    sums = weight if weight.dtype == torch.float64 else weight.float()
    halves = (
        _activate(ops.feature_transformer_forward(i, sums, bias.to(sums.dtype), None, deterministic), activation, bound)
        for i in (first, second)
    )
    out = torch.cat(list(halves), dim=1)
    return (out if scale == 1.0 else out * scale).to(output_dtype)


def _activate(accumulator: Tensor, activation: Activation, bound: float) -> Tensor:
    if activation == "identity":
        return accumulator
    clipped = accumulator.clamp(0.0, bound)
    if activation == "crelu":
        return clipped
    if activation == "screlu":
        return clipped.square()
    first, second = clipped.chunk(2, dim=1)
    return first * second
