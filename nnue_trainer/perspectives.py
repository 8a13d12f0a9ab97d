"""The feature transformer of both perspectives, activated and joined: one operator where there is one, else several.

On a CPU, and with a `block_size` on a GPU of compute capability 9.0, `perspective_transformer` is one fused forward and
one fused backward (csrc/perspective_transformer.h, docs/kernels.md). Anywhere else it is made of the plain operator of
`ops` and torch's own functions, with the same result up to rounding. Equal inputs give equal bits on either way where
`deterministic` is left alone or true.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args, overload

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


def _block_rows_pieces(
    positions: int, max_active: int, block_size: int, num_blocked: int, has_loose: bool
) -> dict[str, int]:
    """Bytes of each piece of a CUDA device's `rows`, in order, up to those of loose features."""
    # carve_rows in csrc/cuda/block_rows.cuh.
    blocks = _num_blocks(num_blocked, block_size)
    slots = _slots(positions, block_size, num_blocked)
    pitch = (max(1, min(max_active, 768)) + 7) // 8 * 8
    chunks = (2 * positions + 255) // 256
    return {
        "slot_target": 4 * slots,
        "tile_begin": 4 * (blocks + 1),
        "ranked": 4 * 768 * blocks,
        "dense": 4 * blocks,
        "used": 4 * blocks,
        "row_slot": 8 * positions,
        "feature_bits": 8 * 768 * (slots // 64),
        "near_bits": 48 * slots,
        "far_begin": 4 * 65 * (slots // 64),
        "far": 2 * slots * pitch,
        **({} if has_loose else {"entries": 16 * slots, "near": 2 * slots * pitch}),
        "listed": 512 * chunks,
        "chunk_rows": 4 * blocks * chunks,
        "counts": 8 * ((771 * blocks + 2) // 2),  # and others that are zeroed with them
    }


def _rows_bytes(positions: int, max_active: int, num_features: int, block_size: int, num_blocked: int) -> int:
    has_loose = num_features > num_blocked
    pieces = list(_block_rows_pieces(positions, max_active, block_size, num_blocked, has_loose).values())
    if has_loose:  # carve_row_order in csrc/cuda/loose_rows.cuh
        pieces.append(16 * _slots(positions, block_size, num_blocked))
    return _carved(pieces)


def _lists_pieces(
    positions: int, max_active: int, num_features: int, block_size: int, num_blocked: int
) -> dict[str, int]:
    """Bytes of each piece of a CUDA device's `lists`, in order."""
    # carve_loose_rows in csrc/cuda/loose_rows.cuh.
    tiles = _slots(positions, block_size, num_blocked) // 64
    chunks = (tiles + 3) // 4
    loose = num_features - num_blocked
    return {
        "zeroed": 4 * (loose + 512 * 19 + 2) + 2 * positions,  # sampled … left_out
        "summary": 16,
        "lists": 12 * loose,
        "rank": 4 * loose,
        "dense_bit": 2 * loose,
        "begins": 4 * chunks * 257,
        "keys": 4 * chunks * 256 * max_active,
        "found": 8 * loose,
        "slots": 4 * (chunks * 256 * max_active + 3 * loose),
        "dense_bits": 8 * 768 * tiles,
    }


def _lists_bytes(positions: int, max_active: int, num_features: int, block_size: int, num_blocked: int) -> int:
    return _carved(list(_lists_pieces(positions, max_active, num_features, block_size, num_blocked).values()))


def _carved(pieces: list[int]) -> int:
    # Carver in csrc/cuda/block_rows.cuh.
    used = 0
    for piece in pieces:
        used = (used + 255) // 256 * 256 + piece
    return used


def _rows_fake(
    white: Tensor, black: Tensor, black_to_move: Tensor, num_features: int, block_size: int, num_blocked: int
) -> Tensor:
    positions, max_active = white.shape
    on_cpu = white.device.type == "cpu"
    size = positions if on_cpu else _rows_bytes(positions, max_active, num_features, block_size, num_blocked)
    return white.new_empty((size,), dtype=torch.uint8)


def _forward_fake(
    white: Tensor,
    black: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    psqt: Tensor | None,
    bucket: Tensor | None,
    block_size: int,
    num_blocked: int,
    activation: int,
    bound: float,
    scale: float,
    output_dtype: int,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (positions, max_active), (num_features, num_outputs) = white.shape, weight.shape
    width = num_outputs if _ACTIVATIONS[activation] == "pairwise" else 2 * num_outputs
    on_cpu = weight.device.type == "cpu"
    saved_rows = 2 * positions if on_cpu else _slots(positions, block_size, num_blocked)
    if not save or _ACTIVATIONS[activation] == "identity":
        saved_rows = 0
    list_bytes = 0
    if save and not on_cpu and num_features > num_blocked:
        list_bytes = _lists_bytes(positions, max_active, num_features, block_size, num_blocked)
    return (
        weight.new_empty((positions, width), dtype=_DTYPES[output_dtype]),
        weight.new_empty((0 if psqt is None else positions,), dtype=torch.float32),
        weight.new_empty(
            (saved_rows, num_outputs),
            dtype=torch.float32 if on_cpu or weight.dtype == torch.float32 else torch.float16,
        ),
        white.new_empty((list_bytes,), dtype=torch.uint8),
    )


def _backward_fake(
    grad_output: Tensor,
    grad_psqt: Tensor | None,
    white: Tensor,
    black: Tensor,
    rows: Tensor,
    saved: Tensor,
    lists: Tensor,
    bucket: Tensor | None,
    num_features: int,
    num_outputs: int,
    psqt_buckets: int,
    block_size: int,
    num_blocked: int,
    activation: int,
    bound: float,
    scale: float,
    weight_dtype: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        grad_output.new_empty((num_features, num_outputs), dtype=_DTYPES[weight_dtype]),
        grad_output.new_empty((num_outputs,), dtype=torch.float32),
        grad_output.new_empty((num_features, psqt_buckets) if psqt_buckets else (0,), dtype=torch.float32),
    )


torch.library.register_fake(ROWS, _rows_fake)
torch.library.register_fake(FORWARD, _forward_fake)
torch.library.register_fake(BACKWARD, _backward_fake)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    white, black, rows, weight, _, psqt, bucket, *constants, output_dtype, save = inputs
    ctx.save_for_backward(white, black, rows, bucket, *output[2:])
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)  # else `saved` gets a gradient of zeros, as large as itself
    ctx.weight_shape, ctx.weight_dtype = weight.shape, weight.dtype
    ctx.psqt_buckets = 0 if psqt is None else psqt.shape[1]
    ctx.output_shape, ctx.output_dtype = output[0].shape, _DTYPES[output_dtype]
    ctx.constants, ctx.save = constants, save  # block_size, num_blocked, activation, bound, scale


def _backward(ctx: Any, grad_output: Tensor | None, grad_psqt: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
    if grad_output is None and grad_psqt is None:
        return (None,) * 14
    if not ctx.save:
        raise RuntimeError(f"{FORWARD}: save: found False, expected True, since a gradient is asked for")
    white, black, rows, bucket, saved, lists = ctx.saved_tensors
    if grad_output is None:
        grad_output = white.new_zeros(ctx.output_shape, dtype=ctx.output_dtype)
    # CUDA's fp32 kernels read fp32 gradients.
    grad = grad_output.float() if ctx.weight_dtype == torch.float32 else grad_output
    psqt_buckets = ctx.psqt_buckets if grad_psqt is not None and ctx.needs_input_grad[5] else 0
    grad_weight, grad_bias, grad_of_psqt = torch.ops.nnue.perspective_transformer_backward(
        grad,
        grad_psqt,
        white,
        black,
        rows,
        saved,
        lists,
        bucket,
        *ctx.weight_shape,
        psqt_buckets,
        *ctx.constants,
        _DTYPES.index(ctx.weight_dtype),
    )
    return None, None, None, grad_weight, grad_bias, grad_of_psqt if psqt_buckets else None, *(None,) * 8


def _double_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(f"{BACKWARD}: it has no derivative of its own (double backward); found create_graph=True")


torch.library.register_autograd(FORWARD, _backward, setup_context=_setup_context)
torch.library.register_autograd(BACKWARD, _double_backward)

if ops._libraries.cuda_error is not None:
    for _op in (ROWS, FORWARD, BACKWARD):
        torch.library.impl(_op, "CUDA", ops._no_cuda)


# ---- public functions -----------------------------------------------------------------------------------------------


def is_fused(weight: Tensor, block_size: int | None = None, num_blocked: int | None = None) -> bool:
    """Whether `perspective_transformer` runs as one fused operator for this weight [F, N] on its device.

    On a CPU: an even N, whatever the block size. On CUDA: a GPU of compute capability 9.0, N a multiple of 16, a
    `block_size` up to 768 and at most 255 blocks. float64 weights, and calls with `values`, are never fused.
    """
    num_features, num_outputs = weight.shape
    if weight.dtype not in _DTYPES or num_features == 0 or num_outputs == 0:
        return False
    if weight.device.type == "cpu":
        return num_outputs % 2 == 0
    if block_size is None or not weight.is_cuda or ops._libraries.cuda_error is not None:
        return False
    num_blocked = num_features if num_blocked is None else num_blocked
    fits = num_outputs % 16 == 0 and 0 < block_size <= 768 and num_blocked <= 255 * block_size
    return fits and _device_has_kernels(weight.device.index or 0)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _device_has_kernels(device: int) -> bool:
    return bool(torch.ops.nnue.perspective_transformer_available(device))


def perspective_rows(
    white: Tensor,
    black: Tensor,
    black_to_move: Tensor,
    num_features: int,
    block_size: int | None = None,
    num_blocked: int | None = None,
) -> Tensor:
    """The rows of a batch prepared, once, for every fused call on this batch.

    Args:
        white, black: int32 [B, K] index rows of the perspectives; rows left-packed, the first −1 ends a row.
        black_to_move: uint8 or bool [B].
        num_features: F.
        block_size: features of a block, at most 768 (HalfKAv2_hm: 768). CUDA needs it: its kernels are made for rows
            whose features are distinct and lie in one block each; other rows are legal and slow. The CPU does not
            look at blocks.
        num_blocked: features [0, num_blocked) come in blocks, those from there on are loose: a row may hold any of
            them, anywhere among the others. By default F: all come in blocks.

    Returns:
        uint8 [bytes] on the device: an opaque value. What is computed with it depends on the arguments alone.
    """
    num_blocked = num_features if num_blocked is None else num_blocked
    return cast(
        Tensor,
        torch.ops.nnue.perspective_rows(white, black, black_to_move, num_features, block_size or 0, num_blocked),
    )


@overload
def perspective_transformer(
    white: Tensor,
    black: Tensor,
    black_to_move: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    activation: Activation = ...,
    bound: float = ...,
    scale: float = ...,
    block_size: int | None = ...,
    num_blocked: int | None = ...,
    output_dtype: torch.dtype | None = ...,
    rows: Tensor | None = ...,
    psqt: None = ...,
    bucket: Tensor | None = ...,
    values: tuple[Tensor, Tensor] | None = ...,
    deterministic: bool | None = ...,
) -> Tensor: ...


@overload
def perspective_transformer(
    white: Tensor,
    black: Tensor,
    black_to_move: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    activation: Activation = ...,
    bound: float = ...,
    scale: float = ...,
    block_size: int | None = ...,
    num_blocked: int | None = ...,
    output_dtype: torch.dtype | None = ...,
    rows: Tensor | None = ...,
    psqt: Tensor,
    bucket: Tensor | None = ...,
    values: tuple[Tensor, Tensor] | None = ...,
    deterministic: bool | None = ...,
) -> tuple[Tensor, Tensor]: ...


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
    psqt: Tensor | None = None,
    bucket: Tensor | None = None,
    values: tuple[Tensor, Tensor] | None = None,
    deterministic: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Both perspectives' accumulators, activated and joined, side to move first; differentiable in all floats.

    An accumulator is a = bias + Σ value · weight[i] over the indices i of a row. With c = a clipped to [0, bound], a
    perspective contributes `scale` times: "identity" a, "crelu" c, "screlu" c², "pairwise" c[j] · c[j + N / 2]. The
    clip passes gradient where 0 ≤ a ≤ bound, both ends included, as `torch.clamp` does.

    Args:
        white, black: int32 [B, K]; rows left-packed, the first −1 ends a row; duplicates add up.
        black_to_move: uint8 or bool [B]: which perspective comes first.
        weight: [F, N], float32, float16 or bfloat16 (float64 too where it is not fused). N even for "pairwise".
            Sums are float32.
        bias: [N], any of these dtypes.
        block_size: the feature set's block size, for the fused operator on CUDA (see `perspective_rows`); None for sets
            without blocks.
        num_blocked: how many of the features come in blocks, by default all; those behind them are loose (see
            `perspective_rows`), as threats and pawn pairs behind king buckets are.
        output_dtype: float32, float16 or bfloat16; by default the weight's.
        rows: what `perspective_rows` gave for this batch, if it is there already.
        psqt: [F, P], float32 (float64 beside a float64 weight): piece-square values, one column a bucket.
        bucket: int64 [B], 0 ≤ bucket < P: the column of each position; with `psqt` only. Another bucket is an error
            that fused operators report as they do an illegal index.
        values: float32 [B, K] each for white and black (float64 with a float64 weight): factors of the entries, also
            of those of `psqt`; 1 where absent. With values nothing is fused.
        deterministic: for the plain operator, see `ops.feature_transformer_forward`. The fused one always is.

    Returns:
        [B, N] for "pairwise", else [B, 2 N]. With `psqt` also a tensor [B] of its dtype: (its sum over the side to
        move's features − its sum over the other side's) / 2, at the position's bucket.

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
    if (psqt is None) != (bucket is None):
        found, missing = ("psqt", "bucket") if bucket is None else ("bucket", "psqt")
        raise ValueError(f"perspective_transformer: {missing}: found none, expected a tensor, since there is {found}")
    output_dtype = weight.dtype if output_dtype is None else output_dtype
    if num_blocked is None:
        num_blocked = weight.shape[0]
    if not 0 <= num_blocked <= weight.shape[0]:
        raise ValueError(
            f"perspective_transformer: num_blocked: found {num_blocked}, expected 0 to F = {weight.shape[0]}"
        )
    if values is None and output_dtype in _DTYPES and is_fused(weight, block_size, num_blocked):
        if rows is None:
            rows = perspective_rows(white, black, black_to_move, weight.shape[0], block_size, num_blocked)
        parameters = [weight, bias] if psqt is None else [weight, bias, psqt]
        out, psqt_out, *_ = torch.ops.nnue.perspective_transformer_forward(
            white,
            black,
            rows,
            weight,
            bias.float(),
            psqt,
            bucket,
            block_size or 0,
            num_blocked,
            _ACTIVATIONS.index(activation),
            bound,
            scale,
            _DTYPES.index(output_dtype),
            torch.is_grad_enabled() and any(p.requires_grad for p in parameters),
        )
        return out if psqt is None else (out, psqt_out)

    # Swapping index rows moves a few dozen integers a position; swapping accumulators, thousands of floats.
    black_first = black_to_move.bool().unsqueeze(1)
    sides = [torch.where(black_first, black, white), torch.where(black_first, white, black)]
    factors: list[Tensor | None] = [None, None]
    if values is not None:
        ours, theirs = values
        factors = [torch.where(black_first, theirs, ours), torch.where(black_first, ours, theirs)]
    # The plain operator rounds its sums to the weight's dtype: too early for 16-bit weights.
    sums = weight if weight.dtype == torch.float64 else weight.float()
    halves = [
        _activate(ops.feature_transformer_forward(i, sums, bias.to(sums.dtype), v, deterministic), activation, bound)
        for i, v in zip(sides, factors, strict=True)
    ]
    out = torch.cat(halves, dim=1)
    out = (out if scale == 1.0 else out * scale).to(output_dtype)
    if psqt is None or bucket is None:
        return out
    no_bias = psqt.new_zeros(psqt.shape[1])
    us, them = (
        ops.feature_transformer_forward(i, psqt, no_bias, v, deterministic) for i, v in zip(sides, factors, strict=True)
    )
    # A masked sum with one term: the gradient of a gather is a scatter, which sorts where it must be deterministic.
    chosen = bucket.unsqueeze(1) == torch.arange(psqt.shape[1], device=psqt.device)
    return out, torch.where(chosen, us - them, 0.0).sum(1) / 2


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
