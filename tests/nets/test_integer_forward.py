"""The evaluator in C++ against the plain reference, on descriptions that no net has: every stage, every build for a
CPU, extreme weights, sums that wrap around."""

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from nnue_trainer import _data, data, nets
from nnue_trainer.analysis.permute import reordered
from nnue_trainer.errors import UserError
from nnue_trainer.export.check_positions import CHECK_POSITIONS
from nnue_trainer.export.evaluate import compiled_forward
from nnue_trainer.nets import Net
from nnue_trainer.nets.engine_header import engine_header
from nnue_trainer.nets.engine_rust import engine_rust
from nnue_trainer.nets.integer_forward import (
    FirstLayer,
    IntegerForward,
    IntegerLayer,
    Skip,
    first_activations,
    neuron_columns,
    reference,
)

SETS = ("Chess768", "PP_3Wide", "HalfKAv2_hm_11+PP_3Wide", "Chess768+Full_Threats_v16+PP_3Wide")
RECORDS = data.records_from_fens(CHECK_POSITIONS[:70])
BATCHES = {name: data.expand(RECORDS, name) for name in SETS}


def numbers(draw: st.DrawFn, generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Integers of a kind: small ones, ones over the whole range, or the extremes alone."""
    limits = np.iinfo(dtype)
    match draw(st.sampled_from(["small", "whole", "extreme", "lowest"])):
        case "small":
            return generator.integers(-20, 20, shape).astype(dtype)
        case "whole":
            return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        case "extreme":
            return generator.choice(np.array([limits.min, limits.max, 0], dtype), shape)
    return np.full(shape, limits.min, dtype)


@st.composite
def descriptions(draw: st.DrawFn) -> tuple[str, IntegerForward, dict[str, np.ndarray]]:
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    tensors: dict[str, np.ndarray] = {}

    def tensor(name: str, kinds: list[str], *shape: int) -> str:
        tensors[name] = numbers(draw, generator, draw(st.sampled_from(kinds)), shape)
        return name

    name = draw(st.sampled_from(SETS))
    parts = data.feature_set(name).parts
    stacks = draw(st.integers(1, 4))
    width = 2 * draw(st.integers(1, 40))
    activation: Any = draw(st.sampled_from(["crelu", "screlu", "pairwise"]))
    clip = draw(st.sampled_from([1, 127, 181, 254, 255, 256, 1000, 32767]))
    shift = 0 if activation == "crelu" else draw(st.integers(max(0, (clip * clip).bit_length() - 16), 20))
    first = FirstLayer(
        tensor("bias", ["<i2"], width),
        tuple(tensor(f"w{i}", ["<i1", "<i2"], part.num_features, width) for i, part in enumerate(parts)),
        activation,
        clip,
        shift,
        draw(st.sampled_from([0, 0, 1, 3])),
        tuple(tensor(f"p{i}", ["<i4"], part.num_features, stacks) for i, part in enumerate(parts))
        if draw(st.booleans())
        else (),
    )
    sizes = [width if activation == "pairwise" else 2 * width]
    layers: list[IntegerLayer] = []
    for number in range(draw(st.integers(0, 3)) + 1):
        inputs: tuple[int, ...] = (number,)
        if first.largest <= 32767 or number > 1:
            lowest = 0 if first.largest <= 32767 else 1
            inputs = tuple(draw(st.lists(st.integers(lowest, number), min_size=1, max_size=3)))
        columns = sum(sizes[i] for i in inputs) + draw(st.sampled_from([0, 0, 5]))
        outputs = draw(st.integers(1, 20))
        layer = IntegerLayer(
            f"l{number}.w", f"l{number}.b", outputs, inputs, draw(st.sampled_from([1, 1, 2, 127, 255]))
        )
        layers.append(
            dataclasses.replace(
                layer,
                activated=draw(st.integers(1, outputs)),
                activation=draw(st.sampled_from(["crelu", "screlu", "dual", "none"])),
                shift=draw(st.integers(0, 12)),
                square_shift=draw(st.integers(0, 20)),
                clip=draw(st.sampled_from([1, 127, 255, 32767])),
            )
        )
        if layers[-1].activation == "screlu" and layers[-1].clip ** 2 >> layers[-1].square_shift > 32767:
            layers[-1] = dataclasses.replace(layers[-1], clip=181)
        sizes.append(layers[-1].activated * (2 if layers[-1].activation == "dual" else 1))
        tensor(layer.weight, ["<i1", "<i2"], stacks, outputs, columns)
        tensor(layer.bias, ["<i2", "<i4"], stacks, outputs)
    tensors[layers[-1].weight] = tensors[layers[-1].weight][:, :1]
    tensors[layers[-1].bias] = tensors[layers[-1].bias][:, :1]
    layers[-1] = dataclasses.replace(layers[-1], outputs=1, activated=draw(st.integers(0, 1)))
    skips = tuple(
        Skip(
            number,
            draw(st.integers(0, layers[number].outputs - 1)),
            draw(st.none() | st.integers(0, layers[number].outputs - 1)),
            *draw(st.sampled_from([(1, 1), (1, 7), (9600, 8128)])),
            draw(st.booleans()),
        )
        for number in draw(st.lists(st.integers(0, len(layers) - 1), max_size=2))
    )
    forward = IntegerForward(
        first,
        tuple(layers),
        stacks,
        tuple(generator.integers(0, stacks, 33).tolist()),
        skips,
        *draw(st.sampled_from([(1, 1), (9600, 16384), (9600, 1)])),
        *draw(st.sampled_from([(1, 1), (1, 16), (400, 255 * 64)])),
        draw(st.booleans()),
    )
    return name, forward, tensors


def compiled(name: str, forward: IntegerForward, tensors: dict[str, np.ndarray]) -> _data.Evaluator:
    return _data.Evaluator(compiled_forward(forward, name, tensors))


def hold_against_the_reference(name: str, forward: IntegerForward, tensors: dict[str, np.ndarray]) -> None:
    evaluator = compiled(name, forward, tensors)
    batch = BATCHES[name]
    psqt, positional = reference(forward, tensors, batch)
    stack = forward.stack(batch)
    used = np.arange(len(stack)), stack
    score = forward.score(psqt[used], positional[used])
    fields = batch.white, batch.black, batch.black_to_move, batch.piece_count, batch.material
    white, black, black_to_move, piece_count, material = (field.numpy() for field in fields)
    for isa in _data.isas():
        of_rows = evaluator.evaluate_rows(white, black, black_to_move, piece_count, material, True, 1, isa)
        for found in (evaluator.evaluate_records(RECORDS, True, 2, isa), of_rows):
            for ours, theirs in zip(found, (stack, psqt, positional, score), strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=isa)
        short = evaluator.evaluate_records(RECORDS, False, 1, isa)
        for ours, theirs in zip(short, (stack, psqt[used], positional[used], score), strict=True):
            np.testing.assert_array_equal(ours.reshape(-1), theirs, err_msg=isa)


@settings(max_examples=120, deadline=None)
@given(descriptions())
def test_any_description_gives_what_the_reference_gives(
    described: tuple[str, IntegerForward, dict[str, np.ndarray]],
) -> None:
    hold_against_the_reference(*described)


@settings(max_examples=60, deadline=None)
@given(descriptions(), st.integers(0, 2**32))
def test_neurons_in_any_order_give_the_same(
    described: tuple[str, IntegerForward, dict[str, np.ndarray]], seed: int
) -> None:
    """For any description, the active neurons move along, and nothing else changes."""
    name, forward, tensors = described
    columns = neuron_columns(forward, {name: tensor.shape[-1] for name, tensor in tensors.items()})
    count = int(columns[forward.first.bias].max()) + 1
    order = np.random.default_rng(seed).permutation(count)
    moved = tensors | reordered(columns, tensors, order)
    batch = BATCHES[name]
    for ours, theirs in zip(reference(forward, moved, batch), reference(forward, tensors, batch), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    active = first_activations(forward, tensors, batch) != 0
    both = active.reshape(len(active), 2, count)[:, :, order].reshape(active.shape)
    for isa in _data.isas():
        assert (compiled(name, forward, tensors).first_active(RECORDS, 2, isa) == active).all()
        assert (compiled(name, forward, moved).first_active(RECORDS, 1, isa) == both).all()


def simple(width: int = 8, divide: int = 1, **first: Any) -> tuple[str, IntegerForward, dict[str, np.ndarray]]:
    """A small sound description, with room for a change."""
    words: dict[str, Any] = {"activation": "crelu", "clip": 255} | first
    layer = IntegerLayer("lw", "lb", 1, (0,), divide)
    tensors = {
        "bias": np.zeros(width, "<i2"),
        "w": np.ones((768, width), "<i2"),
        "lw": np.ones((1, 1, 2 * width), "<i2"),
        "lb": np.zeros((1, 1), "<i4"),
    }
    return "Chess768", IntegerForward(FirstLayer("bias", ("w",), **words), (layer,)), tensors


def test_accumulators_wrap_around_in_16_bits() -> None:
    name, forward, tensors = simple(clip=32767)
    tensors["bias"][:] = 32767 - 10
    bare = data.records_from_fens(["8/8/4k3/8/8/4K3/8/8 w - - 0 1"])
    full = data.records_from_fens(["rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"])
    evaluator = compiled(name, forward, tensors)
    # 2 pieces: still positive. 32 pieces: wrapped to below zero, and clipped.
    assert evaluator.evaluate_records(bare, True, 1)[2].tolist() == [[16 * (32767 - 8)]]
    assert evaluator.evaluate_records(full, True, 1)[2].tolist() == [[0]]


@pytest.mark.parametrize("divide", [1, 255])
def test_sums_of_squares_are_whole_before_they_are_divided(divide: int) -> None:
    """Each is beyond 32 bits; only what is left of it after the division has to fit. Without one it wraps around."""
    name, forward, tensors = simple(1024, divide, activation="screlu")
    tensors["bias"][:] = 255
    tensors["w"][:] = 0
    tensors["lw"][:] = -127
    found = compiled(name, forward, tensors).evaluate_records(RECORDS[:1], True, 1)[2]
    exact = -2048 * 127 * 255 * 255
    assert abs(exact) > 2**33
    assert found.tolist() == [[int(np.int64(exact).astype(np.int32))] if divide == 1 else [exact // 255]]
    hold_against_the_reference(name, forward, tensors)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"num_stacks": 2}, "lw: int16 [1, 16], expected int8 or int16 [2, 16 or more]"),
    ({"stacks": (0,) * 32}, "a table of 32 stacks, expected 528"),
    ({"stacks": (0,) * 32 + (1,)}, "stack 1 of 1"),
    ({"layers": ()}, "no last layer with one output"),
    ({"layers": (IntegerLayer("lw", "lb", 1, (1,)),)}, "layer 0: an input that comes later"),
    ({"layers": (IntegerLayer("lw", "lb", 1, (0,), 0),)}, "a divisor below 1"),
    ({"layers": (IntegerLayer("lw", "lb", 1, (0,), activated=2),)}, "layer 0: 2 activated of 1"),
    ({"skips": (Skip(1, 0),)}, "a skip of no layer"),
    ({"skips": (Skip(0, 1),)}, "a skip of no output"),
    ({"skips": (Skip(0, 0, multiply=2**62),)}, "a skip connection may reach"),
    ({"score_multiply": 2**62}, "the score may reach"),
    ({"head": "wdl"}, "no last layer with three outputs"),
    ({"head": "points"}, "head is 'points', expected one of value, wdl"),
    ({"first": FirstLayer("bias", ("w",), "screlu", 40_000)}, "a first clip that is not in 0 … 32767"),
    ({"first": FirstLayer("bias", ("w", "w"), "crelu", 255)}, "2 first weights, expected 1"),
    ({"first": FirstLayer("bias", ("lw",), "crelu", 255)}, "lw: int16 [1, 16], expected int8 or int16 [768, 8]"),
    ({"first": FirstLayer("bias", ("w",), "crelu", 255, psqt=("w",))}, "w: int16 [768, 8], expected int32 [768, 1]"),
    (
        {"first": FirstLayer("bias", ("w",), "relu", 255)},  # type: ignore[arg-type]
        "FirstLayer.activation is 'relu', expected one of crelu, screlu, pairwise",
    ),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words for _, words in CHANGES])
def test_what_does_not_hold_together_is_refused(change: dict[str, Any], words: str) -> None:
    name, forward, tensors = simple()
    compiled(name, forward, tensors)
    with pytest.raises(UserError) as caught:
        compiled(name, dataclasses.replace(forward, **change), tensors)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_rows_and_records_are_named() -> None:
    evaluator = compiled(*simple())
    batch = data.expand(RECORDS, "Chess768")
    white, black = batch.white.numpy(), batch.black.numpy()
    mover, pieces, queens = batch.black_to_move.numpy(), batch.piece_count.numpy(), batch.material.numpy()
    wrong = white.copy()
    wrong[66, 1] = 768
    with pytest.raises(UserError, match="position 66: index 768, expected 0 … 767"):
        evaluator.evaluate_rows(wrong, black, mover, pieces, queens, True, 2)
    with pytest.raises(UserError, match="position 0: 33 pieces"):
        evaluator.evaluate_rows(white, black, mover, np.full_like(pieces, 33), queens, True, 1)
    with pytest.raises(UserError, match="position 0: material 16"):
        evaluator.evaluate_rows(white, black, mover, pieces, np.full_like(pieces, 16), True, 1)
    with pytest.raises(UserError, match="different sizes"):
        evaluator.evaluate_rows(white, black, mover, pieces[:-1], queens, True, 1)
    records = RECORDS.copy()
    records[69] = 255
    with pytest.raises(UserError, match="record 69: more than 32 pieces"):
        evaluator.evaluate_records(records, True, 2)
    with pytest.raises(UserError, match="cannot run instruction set 'sse9'"):
        evaluator.evaluate_records(RECORDS, True, 1, "sse9")
    assert [len(part) for part in evaluator.evaluate_records(RECORDS[:0], True, 0)] == [0] * 4


@pytest.mark.parametrize("write", [engine_header, engine_rust])
def test_inferences_refuse_another_number_of_first_weights(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[Net], str | None]
) -> None:
    """Each feature set of a sum has its own weight."""
    net = nets.parse({"kind": "simple", "hidden": 16}, "x")
    forward = net.integer_forward()
    assert forward is not None
    twice = dataclasses.replace(forward, first=dataclasses.replace(forward.first, weights=2 * forward.first.weights))
    monkeypatch.setattr(type(net), "integer_forward", lambda self: twice)
    with pytest.raises(UserError, match=r"^simple: integer forward: 2 first weights, expected 1, one for each feature"):
        write(net)
