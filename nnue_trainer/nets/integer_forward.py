"""The integer arithmetic of a net as data: stages that a program can run without code for the net.

A net describes its integer forward once (`Net.integer_forward`). The evaluator in C++ (data_loader/evaluate) runs any
such description in several threads, with AVX2 where the CPU has it. `reference` runs it here, in plain NumPy, and
defines the meaning of each field. Both give the same integers. Neither of them depends on the name of a net.

The stages, for one position. `tdiv` divides toward zero, `>>` rounds down, and int16 and int32 wrap around.

1. For each perspective an accumulator, int16: bias + the rows of the active features, then `<< accumulator_shift`.
2. The first activation clips accumulators to [0, clip] and takes them as they are (crelu), their squares (screlu) or
   the products of their halves (pairwise), squares and products `>> product_shift`. Those of the side to move come
   first, then those of the other side: vector 0. A net with one perspective has only one of them (`sides`).
3. The pieces on the board choose the stack of layers, and the PSQT column (`stacks`).
4. Each layer: y = tdiv(Σ weight · x, divide) + bias, where x are the vectors that it names, one after another. Σ is
   exact before the division: it has 64 bits. y has 32 bits, and wraps around.
   The activations of its first `activated` outputs are the next vector: vector k + 1 after layer k.
   A layer with a `factor` computes in floats: y = Σ weight · x · factor + bias in float64, rounded once to fp32.
5. The last layer has one output. The values of the skip connections are added to it, then
   positional = tdiv((output + skips) · multiply, divide). Of a float output the sum and the quotient are float64, and
   positional is the whole part. Where `sides` is "white" it is negated if black is to move.
   With `head` "wdl" the last layer has three outputs, and output / divide are the logits of loss, draw and win:
   positional is the whole part of `log_odds` of them, float64, times multiply.
6. psqt = tdiv(side to move − other side, 2) of the sums of the PSQT columns, int32.
7. score = tdiv((psqt + positional) · score_multiply, score_divide), together or for each part separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from nnue_trainer.data.batch import Batch

PIECE_COUNTS = 33  # 0 … 32 pieces
MATERIALS = 16  # values of `Batch.material`: queens of both sides
INT16_MIN, INT16_MAX = -(2**15), 2**15 - 1
MOST_FLOAT = 2.0**30
"""The largest magnitude of a raw value that is made of floats."""


def stack_table(by_pieces: Sequence[int], of_queens: Callable[[int, int, int], int] | None = None) -> tuple[int, ...]:
    """The stack for each number of pieces and each `Batch.material`, in this order: 33 · 16 numbers.

    `by_pieces` is for 0 … 32 pieces; `of_queens(stack, own, other)` returns the stack that replaces one, for the
    numbers of queens of the side to move and of the other side; 3 means 3 or more."""
    choose = of_queens or (lambda stack, own, other: stack)
    return tuple(choose(stack, *divmod(material, 4)) for stack in by_pieces for material in range(MATERIALS))


def by_queens(stack: int, own: int, other: int) -> int:
    """Four stacks for each one, by which sides have queens."""
    return 4 * stack + 2 * (own > 0) + (other > 0)


def depends_on_queens(table: Sequence[int]) -> bool:
    """Whether a table of stacks depends on more than the number of pieces."""
    return any(len(set(table[begin : begin + MATERIALS])) > 1 for begin in range(0, len(table), MATERIALS))


@dataclass(frozen=True)
class FirstLayer:
    """Stages 1, 2 and 6 (docs/nets.md, "Evaluating"): accumulators, their activation, and PSQT columns. Tensors are
    named as in `Net.tensors()`; `weights` and `psqt` have one for each part of `Net.integer_feature_set`, in its order.
    """

    bias: str
    """int16 [H]"""
    weights: tuple[str, ...]
    """int8 or int16 [features, H] each"""
    activation: Literal["crelu", "screlu", "pairwise"]
    clip: int
    """accumulators are clipped to 0 … clip"""
    product_shift: int = 0
    """screlu, pairwise: squares and products are shifted right by it"""
    accumulator_shift: int = 0
    """accumulators are shifted left by it before they are clipped, and wrap around at 16 bits"""
    psqt: tuple[str, ...] = ()
    """int32 [features, stacks] each"""
    sides: Literal["both", "mover", "white"] = "both"
    """the perspectives in vector 0. both: of the side to move, then of the other side; mover: of the side to move only;
    white: White's only, and the net's output is from White's view"""

    @property
    def num_sides(self) -> int:
        """The number of perspectives whose accumulators the net reads."""
        return 2 if self.sides == "both" else 1

    @property
    def largest(self) -> int:
        """The largest activation."""
        return self.clip if self.activation == "crelu" else self.clip**2 >> self.product_shift


@dataclass(frozen=True)
class IntegerLayer:
    """Stage 4 (docs/nets.md, "Evaluating"): a layer after the first one.

    Activations of an output y, with s = square_shift + 2 · shift:

    - crelu: clip(y >> shift, 0, clip)
    - screlu: clip(y, 0, clip << shift)² >> s
    - dual: min(y² >> s, clip) of all outputs, then crelu of all
    - none: clip(y >> shift, −32768, 32767)

    In floats (`factor`), each result in fp32: crelu: clip(y, 0, clip); screlu: clip(y, 0, clip)²; dual: min(y², clip),
    then crelu; none: y. Neither `divide` nor shifts take part.
    """

    weight: str
    """int8 or int16, stacks · outputs rows of at least as many columns as there are inputs; with `factor` also fp32"""
    bias: str
    """int16 or int32, stacks · outputs numbers; with `factor` fp32"""
    outputs: int
    inputs: tuple[int, ...]
    """vectors: 0 the first activations, k + 1 layer k's"""
    divide: int = 1
    """Σ weight · x is divided by it, toward zero. Σ has 64 bits there; `export.bounds` reports a net whose Σ may need
    more than the 32 bits of many engines"""
    activated: int = 0
    activation: Literal["crelu", "screlu", "dual", "none"] = "crelu"
    shift: int = 0
    square_shift: int = 0
    clip: int = INT16_MAX
    factor: float | None = None
    """None: the layer computes in integers. A number: in floats, and Σ weight · x is multiplied by it. Σ of integer
    weights and inputs is an int32, which wraps around; any other is float64. All layers after a float layer are float
    layers"""

    @property
    def activations(self) -> int:
        """The number of values in its vector."""
        return self.activated * (2 if self.activation == "dual" else 1)


@dataclass(frozen=True)
class Skip:
    """A skip connection: tdiv((output `plus` − output `minus`) · multiply, divide) of a layer's sums y; where the net's
    output is a float, without rounding."""

    layer: int
    plus: int
    minus: int | None = None
    multiply: int = 1
    divide: int = 1
    wraps: bool = False
    """the product has 32 bits"""


@dataclass(frozen=True)
class IntegerForward:
    """All stages. Nothing in it depends on values of tensors."""

    first: FirstLayer
    layers: tuple[IntegerLayer, ...]
    """the last one has one output"""
    num_stacks: int = 1
    stacks: tuple[int, ...] = (0,) * PIECE_COUNTS
    """the stack for each number of pieces, 0 to 32, and each value of `Batch.material`: 33 · 16 numbers. 33 numbers are
    repeated for every material. With `piece_weights`: the stack for each sum of them, the last number for all larger
    ones"""
    skips: tuple[Skip, ...] = ()
    multiply: int = 1
    divide: int = 1
    score_multiply: int = 1
    score_divide: int = 1
    score_apart: bool = False
    """PSQT and layers are scaled separately"""
    head: Literal["value", "wdl"] = "value"
    """value: the last layer has one output; wdl: three, for loss, draw and win, and there are neither skip connections
    nor PSQT columns"""
    piece_weights: tuple[int, ...] = ()
    """10 numbers, for a pawn, knight, bishop, rook and queen of the side to move, then of the other side; or 12 · 64,
    for these pieces and the king on each square from a1, from the side to move's view, mirrored where the feature set
    mirrors the board. Their sum over the board chooses the stack. Empty: the numbers of pieces and queens choose it"""

    def __post_init__(self) -> None:
        if len(self.stacks) == PIECE_COUNTS and not self.piece_weights:
            object.__setattr__(self, "stacks", stack_table(self.stacks))

    def score(self, psqt: np.ndarray, positional: np.ndarray) -> np.ndarray:
        """Stage 7, int64."""
        parts = (psqt, positional) if self.score_apart else (psqt + positional,)
        return np.asarray(sum(tdiv(part * self.score_multiply, self.score_divide) for part in parts))

    @property
    def is_float(self) -> bool:
        """Whether the output of the last layer is a float."""
        return self.layers[-1].factor is not None

    def stack(self, batch: Batch, feature_weights: np.ndarray | None = None) -> np.ndarray:
        """Stage 3: int64 [B]. With `piece_weights`, `feature_weights` are those of `weights_of_features`."""
        entry = batch.stack_entry.numpy()
        if self.piece_weights:
            assert feature_weights is not None
            mover = np.where(batch.black_to_move.numpy()[:, np.newaxis] != 0, batch.black.numpy(), batch.white.numpy())
            # Index −1, which ends a row, finds the 0 at the end.
            entry = np.minimum(np.append(feature_weights, 0)[mover].sum(1), len(self.stacks) - 1)
        stack: np.ndarray = np.asarray(self.stacks, np.int64)[entry]
        return stack


def log_odds(logits: np.ndarray) -> np.ndarray:
    """ln(E / (1 − E)) of E = win + draw / 2, the expected points by the softmax of the logits of loss, draw and win:
    float64 [B, 3] → float64 [B]. It is exact where E itself would be rounded to 0 or 1."""
    loss, half, win = logits[:, 0], logits[:, 1] - math.log(2), logits[:, 2]
    odds: np.ndarray = _log_sum(win, half) - _log_sum(loss, half)
    return odds


def _log_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """ln(e^a + e^b)"""
    return np.asarray(np.maximum(a, b) + np.log1p(np.exp(-np.abs(a - b))))


class RawValues(NamedTuple):
    """The outputs of the integers of a net for B positions, side to move's view, before the output scale: int64 [B, S]
    each for all of its S stacks, or [B, 1] each if only the one in use is computed."""

    psqt: np.ndarray
    positional: np.ndarray


def tdiv(a: np.ndarray, b: int) -> np.ndarray:
    """Integer division toward zero, as C does it; `b` positive."""
    return np.asarray(np.sign(a) * (np.abs(a) // b))


def wrap32(values: np.ndarray) -> np.ndarray:
    """int64 values, wrapped around to 32 bits."""
    wrapped: np.ndarray = np.asarray(values, np.int64).astype(np.int32).astype(np.int64)
    return wrapped


class Arithmetic(NamedTuple):
    """How the stages compute: division toward zero, shift to the right, and the wrapping of 32 bits."""

    divide: Callable[[np.ndarray, int], np.ndarray]
    shift: Callable[[np.ndarray, int], np.ndarray]
    wrap: Callable[[np.ndarray], np.ndarray]


INTEGERS = Arithmetic(tdiv, lambda a, bits: a >> bits, wrap32)
REALS = Arithmetic(lambda a, b: a / b, lambda a, bits: a / 2.0**bits, lambda a: a)


def accumulate(batch: Batch, bias: np.ndarray, parts: list[tuple[int, np.ndarray]]) -> tuple[np.ndarray, ...]:
    """bias + the sum of the active rows, of the side to move and of the other side: [B, N] each, in the integers of the
    bias [N], which wrap around as an engine's do. `parts` are (first feature, weight [F, N]) of the sets in a sum."""
    white, black = (_accumulate(rows.numpy(), bias, parts) for rows in (batch.white, batch.black))
    black_to_move = batch.black_to_move.numpy().astype(bool)[:, np.newaxis]
    return np.where(black_to_move, black, white), np.where(black_to_move, white, black)


def _accumulate(rows: np.ndarray, bias: np.ndarray, parts: list[tuple[int, np.ndarray]]) -> np.ndarray:
    total = np.repeat(bias[np.newaxis], len(rows), axis=0)
    for first, weight in parts:
        active = (rows >= first) & (rows < first + len(weight))
        counts = active.sum(1)
        some = np.flatnonzero(counts)
        if some.size:
            gathered = weight[rows[active] - first]
            starts = np.cumsum(counts[some]) - counts[some]
            total[some] += np.add.reduceat(gathered, starts, axis=0, dtype=bias.dtype)
    return total


def side_by_side(tensors: Mapping[str, np.ndarray], names: tuple[str, ...]) -> list[tuple[int, np.ndarray]]:
    """(first feature, tensor) of tensors that have the features of a sum one after the other."""
    parts, first = [], 0
    for name in names:
        parts.append((first, tensors[name]))
        first += len(tensors[name])
    return parts


def first_activations(forward: IntegerForward, tensors: Mapping[str, np.ndarray], batch: Batch) -> np.ndarray:
    """Stages 1 and 2: vector 0, int64 [B, N], side to move first."""
    first = forward.first
    sides = _read_sides(first, accumulate(batch, tensors[first.bias], side_by_side(tensors, first.weights)), batch)
    shifted = [side << np.int16(first.accumulator_shift) for side in sides]
    return _first_activated(first, [np.clip(side, 0, first.clip).astype(np.int64) for side in shifted], INTEGERS)


def _read_sides(first: FirstLayer, sides: tuple[np.ndarray, ...], batch: Batch) -> tuple[np.ndarray, ...]:
    """The accumulators that the layers read, from those of both sides, the side to move first."""
    if first.sides == "mover":
        return sides[:1]
    if first.sides == "white":
        return (np.where(batch.black_to_move.numpy()[:, np.newaxis] != 0, sides[1], sides[0]),)
    return sides


def _of_mover(first: FirstLayer, positional: np.ndarray, batch: Batch) -> np.ndarray:
    """The outputs of the layers [B, S] from the side to move's view."""
    if first.sides != "white":
        return positional
    return np.where(batch.black_to_move.numpy()[:, np.newaxis] != 0, -positional, positional)


def _first_activated(first: FirstLayer, clipped: list[np.ndarray], arithmetic: Arithmetic) -> np.ndarray:
    match first.activation:
        case "screlu":
            clipped = [arithmetic.shift(side * side, first.product_shift) for side in clipped]
        case "pairwise":
            half = clipped[0].shape[1] // 2
            products = [side[:, :half] * side[:, half:] for side in clipped]
            clipped = [arithmetic.shift(product, first.product_shift) for product in products]
    return np.concatenate(clipped, axis=1)


def neuron_columns(forward: IntegerForward, columns: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The columns (places of the last dimension) that belong to the first layer's neurons: for each tensor that has
    such columns, the neuron of every column, int64 [columns], −1 where a column belongs to no neuron. `columns` gives
    the number of columns per tensor.

    Neurons are counted as the layers read them, per side: a neuron of a pairwise net is a product, and it has two
    columns in the first layer. Neurons that follow one another have columns that follow one another.
    """
    first = forward.first
    width = columns[first.bias]
    count = width // 2 if first.activation == "pairwise" else width
    found = {name: np.arange(width) % count for name in (first.bias, *first.weights)}
    sizes = [first.num_sides * count]
    for layer in forward.layers:
        ends = np.cumsum([sizes[vector] for vector in layer.inputs])
        neurons = np.full(columns[layer.weight], -1)
        for vector, end in zip(layer.inputs, ends, strict=True):
            if vector == 0:
                neurons[end - sizes[0] : end] = np.arange(sizes[0]) % count
        if 0 in layer.inputs:
            found[layer.weight] = neurons
        sizes.append(layer.activations)
    return found


def reference(forward: IntegerForward, tensors: Mapping[str, np.ndarray], batch: Batch) -> RawValues:
    """Stages 1 to 6 in NumPy, for every stack. The evaluator in C++ is compared with this function."""
    psqt = np.zeros((len(batch), forward.num_stacks), np.int64)
    if forward.first.psqt:
        zero = np.zeros(forward.num_stacks, np.int32)
        us, them = accumulate(batch, zero, side_by_side(tensors, forward.first.psqt))
        psqt = tdiv((us - them).astype(np.int64), 2)
    x = first_activations(forward, tensors, batch)
    positional = np.stack([_stack(forward, tensors, stack, x, INTEGERS) for stack in range(forward.num_stacks)], axis=1)
    return RawValues(psqt, _of_mover(forward.first, positional, batch))


def unrounded(
    forward: IntegerForward, tensors: Mapping[str, np.ndarray], batch: Batch, stack: np.ndarray
) -> np.ndarray:
    """The score of stages 1 to 7 computed in real numbers, where nothing is rounded and nothing wraps around: float64
    [B], of each position's own `stack`, int64 [B]. A float model with the same weights gives the same
    scores if the scales, shifts and layers of the description are right."""
    first = forward.first
    bias = tensors[first.bias].astype(np.float64)
    sides = _read_sides(first, accumulate(batch, bias, side_by_side(tensors, first.weights)), batch)
    x = _first_activated(first, [np.clip(side * 2.0**first.accumulator_shift, 0, first.clip) for side in sides], REALS)
    positional, psqt = np.empty(len(batch)), np.zeros(len(batch))
    for number in np.unique(stack):
        chosen = stack == number
        positional[chosen] = _stack(forward, tensors, number, x[chosen], REALS)
    if first.psqt:
        us, them = accumulate(batch, np.zeros(forward.num_stacks), side_by_side(tensors, first.psqt))
        psqt = ((us - them) / 2)[np.arange(len(batch)), stack]
    positional = _of_mover(first, positional[:, np.newaxis], batch)[:, 0]
    return (psqt + positional) * forward.score_multiply / forward.score_divide


def _stack(
    forward: IntegerForward, tensors: Mapping[str, np.ndarray], stack: int, x: np.ndarray, arithmetic: Arithmetic
) -> np.ndarray:
    """Stages 4 and 5 in one stack, [B]."""
    vectors, sums = [x], []
    for layer in forward.layers:
        inputs = np.concatenate([vectors[number] for number in layer.inputs], axis=1)
        columns = tensors[layer.weight].shape[-1]
        weight = tensors[layer.weight].reshape(-1, layer.outputs, columns)[stack, :, : inputs.shape[1]]
        if layer.factor is not None:
            sums.append(_float_sums(layer, inputs, weight, tensors[layer.bias].reshape(-1, layer.outputs)[stack]))
            vectors.append(_float_activated(layer, sums[-1][:, : layer.activated]))
            continue
        bias = tensors[layer.bias].reshape(-1, layer.outputs)[stack].astype(np.int64)
        # Where inputs have at most 16 bits, as weights do, sums are far below 2^53: exact in float64, and fast.
        exact = np.int64 if x.dtype == np.int64 and forward.first.largest >= 2**16 else np.float64
        total = (inputs.astype(exact) @ weight.astype(exact).T).astype(x.dtype)
        sums.append(arithmetic.wrap(arithmetic.divide(total, layer.divide) + bias))
        vectors.append(_activated(layer, sums[-1][:, : layer.activated], arithmetic))
    if forward.head == "wdl":
        odds = log_odds(sums[-1].astype(np.float64) / forward.divide) * forward.multiply
        return _whole(odds) if arithmetic is INTEGERS else odds
    output = sums[-1][:, 0]
    if forward.is_float:
        output = output.astype(np.float64)
    for skip in forward.skips:
        y = sums[skip.layer]
        if forward.is_float:
            y = y.astype(np.float64)
        skipped = (y[:, skip.plus] if skip.minus is None else y[:, skip.plus] - y[:, skip.minus]) * skip.multiply
        if forward.is_float:
            output = output + skipped / skip.divide
        else:
            output = output + arithmetic.divide(arithmetic.wrap(skipped) if skip.wraps else skipped, skip.divide)
    if forward.is_float and arithmetic is INTEGERS:
        return _whole(output * forward.multiply / forward.divide)
    return arithmetic.divide(output * forward.multiply, forward.divide)


def _whole(values: np.ndarray) -> np.ndarray:
    whole: np.ndarray = np.trunc(np.clip(values, -MOST_FLOAT, MOST_FLOAT)).astype(np.int64)
    return whole


def _float_sums(layer: IntegerLayer, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Stage 4 of a float layer, fp32 [B, outputs]."""
    if weight.dtype.kind == "i" and x.dtype.kind == "i":
        total = wrap32(x.astype(np.int64) @ weight.astype(np.int64).T).astype(np.float64)
    else:
        total = x.astype(np.float64) @ weight.astype(np.float64).T
    assert layer.factor is not None
    most = float(np.finfo(np.float32).max)
    return np.clip(total * layer.factor + bias.astype(np.float64), -most, most).astype(np.float32)


def _float_activated(layer: IntegerLayer, y: np.ndarray) -> np.ndarray:
    most = np.float32(layer.clip)
    clamped: np.ndarray = np.clip(y, np.float32(0), most)
    match layer.activation:
        case "screlu":
            return np.asarray(clamped * clamped)
        case "dual":
            with np.errstate(over="ignore"):
                return np.concatenate([np.minimum(y * y, most), clamped], axis=1)
        case "none":
            return y
    return clamped


def _activated(layer: IntegerLayer, y: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    clamped: np.ndarray = np.clip(arithmetic.shift(y, layer.shift), 0, layer.clip)
    shift = 2 * layer.shift + layer.square_shift
    match layer.activation:
        case "screlu":
            return arithmetic.shift(np.clip(y, 0, layer.clip << layer.shift) ** 2, shift)
        case "dual":
            return np.concatenate([np.minimum(arithmetic.shift(y * y, shift), layer.clip), clamped], axis=1)
        case "none":
            return np.asarray(np.clip(arithmetic.shift(y, layer.shift), INT16_MIN, INT16_MAX))
    return clamped
