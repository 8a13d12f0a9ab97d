"""Philox4x32-10: the published known answers, equal numbers on every device, statistics that a bad generator fails."""

from __future__ import annotations

import ctypes
import itertools
import math
import runpy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from nnue_trainer.stats import _plain, graph
from nnue_trainer.stats.random import Philox

# Counter, key and result, from the known-answer file that its authors publish with Random123.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """The algorithm as it is published, in Python."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return tuple(c)


def code(distribution: str) -> int:
    return _plain.code("random_fill.distribution", distribution)


def words(low: int, stream: int, seed: int, device: torch.device) -> tuple[int, ...]:
    """A block of the stream, through the operator."""
    out = torch.empty(4, dtype=torch.int32, device=device)
    signed = [v - (1 << 64) if v >> 63 else v for v in (seed, stream)]
    if low < 1 << 60:
        torch.ops.nnue.random_fill(out, code("bits"), *signed, 4 * low)
    else:
        torch.ops.nnue.random_fill(out, code("bits"), *signed, 0, block=low - (1 << 64 if low >> 63 else 0))
    return tuple(v & 0xFFFFFFFF for v in out.tolist())


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]) -> None:
    assert philox(counter, key) == result


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers_of_the_operator(
    counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...], device: torch.device
) -> None:
    low, stream, seed = (a | b << 32 for a, b in (counter[:2], counter[2:], key))
    assert words(low, stream, seed, device) == result


def test_known_answers_of_the_emulated_kernel(emulator: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.nnue, "random_fill", torch.ops.nnue_emulated.random_fill)
    for counter, key, result in KNOWN:
        test_known_answers_of_the_operator(counter, key, result, torch.device("cpu"))


def test_blocks_wrap() -> None:
    """An output that begins in the last quadruple continues in the first; its offset counts from the block."""
    out = torch.empty(10, dtype=torch.int32)
    torch.ops.nnue.random_fill(out, code("bits"), 5, 0, 2, block=-1)
    assert torch.equal(out[2:], Philox(5).bits(8, torch.int32))


def test_blocks(device: torch.device) -> None:
    """Key and counter are seed, number of the block and stream, and blocks follow each other."""
    assert words(0, 0, 0, device) == KNOWN[0][2]
    for low, stream, seed in ((1, 0, 0), (0x12345678_9ABC, 1 << 63, (1 << 64) - 3), (7, 0xFFFFFFFF_00000001, 5)):
        halves = [v >> s & 0xFFFFFFFF for v in (low, stream, seed) for s in (0, 32)]
        assert words(low, stream, seed, device) == philox(tuple(halves[:4]), tuple(halves[4:]))


def some(generator: Philox, count: int, device: torch.device | str) -> list[Tensor]:
    """Samples of every distribution and dtype; each starts at the generator's offset."""
    makers = (
        lambda g: g.bits(count, torch.int32, device),
        lambda g: g.bits(count, torch.int64, device),
        lambda g: g.uniform(count, -1, 3, torch.float32, device),
        lambda g: g.uniform(count, -1, 3, torch.float64, device),
        lambda g: g.integers(-3, 1000, count, torch.int64, device),
        lambda g: g.integers(-5, 15_000_000, count, torch.int32, device),
        lambda g: g.integers(-(1 << 63), (1 << 63) - 1, count, torch.int64, device),
        lambda g: g.integers(-(1 << 31), 1 << 31, count, torch.int32, device),
        lambda g: g.bernoulli(0.3, count, torch.bool, device),
        lambda g: g.bernoulli(0.3, count, torch.float32, device),
        lambda g: g.normal(count, 1, 2, torch.float32, device),
        lambda g: g.normal(count, 1, 2, torch.float64, device),
    )
    return [make(Philox(*generator.state())) for make in makers]


def test_an_element_is_known_by_its_number(device: torch.device) -> None:
    """However many are made at once, from whatever offset."""
    whole = some(Philox(3, 4, 0), 103, device)
    for offset in (1, 2, 3, 50):
        for all_of_them, part in zip(whole, some(Philox(3, 4, offset), 53, device), strict=True):
            assert torch.equal(all_of_them[offset : offset + 53], part)


def test_state() -> None:
    g = Philox(7, 2)
    first, second = g.uniform(10), g.uniform((3, 5))
    assert g.state() == (7, 2, 25)
    again = Philox(7, 2).uniform(25)
    assert torch.equal(again, torch.cat([first, second.flatten()]))
    assert not torch.equal(Philox(7, 3).uniform(25), again)
    assert not torch.equal(Philox(8, 2).uniform(25), again)


@pytest.mark.cuda
def test_cuda_has_the_cpu_numbers(cuda: torch.device) -> None:
    *exact, double = zip(some(Philox(1, 2, 3), 100_003, "cpu"), some(Philox(1, 2, 3), 100_003, cuda), strict=True)
    for a, b in exact:
        assert torch.equal(a, b.cpu())
    torch.testing.assert_close(double[1].cpu(), double[0], rtol=1e-14, atol=1e-14)


def test_emulated_kernel(emulator: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """At offsets within a quadruple, and into outputs that begin within one."""
    offsets = (0, 3, 6)
    expected = [some(Philox(1, 2, offset), 1003, "cpu") for offset in offsets]
    monkeypatch.setattr(torch.ops.nnue, "random_fill", torch.ops.nnue_emulated.random_fill)
    for offset, numbers in zip(offsets, expected, strict=True):
        *exact, double = zip(numbers, some(Philox(1, 2, offset), 1003, "cpu"), strict=True)
        for a, b in exact:
            assert torch.equal(a, b)
        torch.testing.assert_close(double[1], double[0], rtol=1e-15, atol=1e-15)
        out = torch.zeros(1004)
        torch.ops.nnue.random_fill(out[1:], code("normal"), 1, 2, offset, 1, 2)
        assert torch.equal(out[1:], numbers[-2])
        assert out[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_are_those_of_their_bits(dtype: torch.dtype) -> None:
    """Box and Muller in extended precision, from the words of the same quadruples: 2 or 4 for two numbers."""
    count, single = 1 << 18, dtype == torch.float32
    found = Philox(4, 9).normal(count, dtype=dtype).numpy()
    size = 2 if single else 4
    made = Philox(4, 9).bits(count * size // 2, torch.int32).numpy().view(np.uint32).astype(np.uint64).reshape(-1, size)
    if single:
        u, turn = (made[:, 0].astype(np.longdouble) + 0.5) * 2.0**-32, made[:, 1].astype(np.longdouble) * 2.0**-32
    else:
        pairs = [(made[:, i] | made[:, i + 1] << np.uint64(32)) >> np.uint64(11) for i in (0, 2)]
        u, turn = 1 - pairs[0].astype(np.longdouble) * 2.0**-53, pairs[1].astype(np.longdouble) * 2.0**-53
    quadrant = np.round(4 * turn)  # sine and cosine are exact to the last digit near their zeros
    angle = (4 * turn - quadrant) * (2 * np.arctan(np.longdouble(1)))
    c, s = np.cos(angle), np.sin(angle)
    way, radius = quadrant.astype(int) % 4, np.sqrt(-2 * np.log(u))
    expected = np.stack([radius * np.choose(way, [c, -s, -c, s]), radius * np.choose(way, [s, c, -s, -c])], 1).ravel()
    unit = np.spacing(np.abs(expected).astype(found.dtype))
    assert (np.abs(found - expected) <= 4 * unit).all()


N = 1 << 20


def deviations(found: float, expected: float, variance: float, count: int = N) -> float:
    """How many standard errors a mean is off."""
    return abs(found - expected) / math.sqrt(variance / count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform(dtype: torch.dtype) -> None:
    """Moments, the distribution in 1000 bins, and no correlation of neighbours, of streams and of seeds."""
    x = Philox(1).uniform(N, dtype=dtype).double()
    assert 0 <= x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    assert deviations(x.mean().item(), 0.5, 1 / 12) < 4
    assert deviations((x**2).mean().item(), 1 / 3, 4 / 45) < 4
    assert abs(chi_square(x.mul(1000).long(), 1000)) < 4
    pairs = x.view(-1, 2).mul(32).long()
    assert abs(chi_square(pairs[:, 0] * 32 + pairs[:, 1], 1024)) < 4
    for other in (Philox(1, stream=1), Philox(2), Philox(1, offset=1)):
        product = ((x - 0.5) * (other.uniform(N, dtype=dtype).double() - 0.5)).mean().item()
        assert deviations(product, 0, 1 / 144) < 4


def chi_square(bins: Tensor, count: int) -> float:
    """How many standard deviations χ² lies from its mean, where every bin is as likely."""
    expected = len(bins) / count
    chi = ((torch.bincount(bins, minlength=count).double() - expected) ** 2 / expected).sum().item()
    return (chi - (count - 1)) / math.sqrt(2 * (count - 1))


def test_every_bit_is_set_half_of_the_time() -> None:
    x = Philox(9).bits(N)
    for bit in range(64):
        share = (x >> bit & 1).double().mean().item()
        assert deviations(share, 0.5, 0.25) < 4.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal(dtype: torch.dtype) -> None:
    x = (Philox(5).normal(N, 3, 2, dtype=dtype).double() - 3) / 2
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert deviations((x**power).mean().item(), mean, variance) < 4
    quantiles = (0.5 * (1 + torch.erf(x / math.sqrt(2)))).clamp(0, 1 - 1e-9)
    assert abs(chi_square(quantiles.mul(1000).long(), 1000)) < 4


LIMITS = [(1000, 1001), (-3e38, 3e38), (0, 1e-45), (-1, 3), (16777215, 16777217), (1e-3, 1e30), (5, 5), (-2, -1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_lie_in_a_half_open_interval(
    dtype: torch.dtype, emulator: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [*LIMITS, (-1.7e308, 1.7e308), (1e15, 1e15 + 1)] if dtype == torch.float64 else LIMITS
    on_cpu = []
    for low, high in limits:
        x = Philox(1).uniform(1 << 16, low, high, dtype)
        ends = torch.tensor([low, high], dtype=dtype)
        assert x.ge(ends[0]).all()
        assert x.isfinite().all()
        assert x.lt(ends[1]).all() if low < high else x.eq(ends[0]).all()
        if ends[1] / 2 - ends[0] / 2 > 1e30:
            assert deviations((x.double() / high).mean().item(), 0, 1 / 3, len(x)) < 4
        on_cpu.append(x)
    assert (
        Philox(1)
        .uniform(1 << 16)
        .eq(Philox(1).bits(1 << 16, torch.int32).bitwise_right_shift(8).bitwise_and(0xFFFFFF) * 2.0**-24)
        .all()
    )
    monkeypatch.setattr(torch.ops.nnue, "random_fill", torch.ops.nnue_emulated.random_fill)
    for (low, high), expected in zip(limits, on_cpu, strict=True):
        assert torch.equal(Philox(1).uniform(1 << 10, low, high, dtype), expected[: 1 << 10])


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64, np.int32])
def test_numpy_integers(kind: type[np.integer[Any]]) -> None:
    """Seeds, streams, offsets, sizes and limits."""
    one, five, nine = (cast(Any, kind(number)) for number in (1, 5, 9))
    same = Philox(five, one, nine)
    assert torch.equal(same.uniform(five), Philox(5, 1, 9).uniform(5))
    assert all(type(number) is int for number in same.state())
    assert torch.equal(same.integers(one, nine, (five,)), Philox(5, 1, 14).integers(1, 9, 5))
    chain = graph.Graph.from_edges(3, torch.tensor([0, 1]), torch.tensor([1, 2]), undirected=True)
    assert torch.equal(graph.pagerank_walks(chain, 16, seed=five).rank, graph.pagerank_walks(chain, 16, seed=5).rank)


def test_integers() -> None:
    """This includes a range near 2^64 that is not a power of two, where a modulo would prefer the lower third."""
    x = Philox(6).integers(-3, 4, N)
    assert set(x.unique().tolist()) == set(range(-3, 4))
    assert abs(chi_square(x + 3, 7)) < 4
    third = (1 << 64) // 3
    wide = Philox(6).integers(-(1 << 63), -(1 << 63) + 2 * third, N)
    lower = (wide < -(1 << 63) + third).double().mean().item()
    assert deviations(lower, 0.5, 0.25) < 4
    assert Philox(1).integers(5, 6, 3).tolist() == [5, 5, 5]


def bounded(number: int, values: int, seed: int, stream: int) -> int:
    """Number `number` of a stream as one of `values`: Lemire's multiplication of 32 bits, or of 64 for many values."""
    width, each = (32, 4) if values <= 1 << 24 else (64, 2)
    quadruple, place = divmod(number, each)
    for turn in itertools.count():
        key = (seed ^ turn << 48) if turn else seed
        high = (~stream & (1 << 64) - 1) if turn else stream
        halves = [v >> s & 0xFFFFFFFF for v in (quadruple, high, key) for s in (0, 32)]
        made = philox(tuple(halves[:4]), tuple(halves[4:]))
        bits = made[place] if each == 4 else made[2 * place] | made[2 * place + 1] << 32
        product = bits * values
        if product % (1 << width) >= (1 << width) % values:
            return product >> width
    raise AssertionError


@pytest.mark.parametrize("values", [1, 7, 15_000_003, 1 << 24, (1 << 24) + 1, (1 << 40) + 3, (1 << 64) // 3 * 2])
def test_integers_by_their_definition(values: int, device: torch.device) -> None:
    """15,000,003 values refuse one of 865 words, and two thirds of 2^64 a third of the pairs."""
    low, count, offset = -(1 << 63) if values > 1 << 41 else -5, 5_001, 3
    found = Philox(11, 5, offset).integers(low, low + values, count, torch.int64, device)
    assert found.tolist() == [low + bounded(offset + i, values, 11, 5) for i in range(count)]


def test_bernoulli() -> None:
    for p in (0.0, 1e-3, 0.5, 1.0):
        share = Philox(8).bernoulli(p, N).double().mean().item()
        assert share == p if p in (0, 1) else deviations(share, p, p * (1 - p)) < 4


def test_errors() -> None:
    for call, message in (
        (lambda: Philox(1.5), "seed: found 1.5, expected an integer of 64 bits"),  # type: ignore[arg-type]
        (lambda: Philox(1, 1 << 64), "stream: found .*, expected an integer of 64 bits"),
        (lambda: Philox(1, offset=-1), "offset: found -1, expected an integer, 0 or more"),
        (lambda: Philox("1"), "seed: found '1', expected an integer of 64 bits"),  # type: ignore[arg-type]
        (lambda: Philox(np.float64(1)), "seed: found .*1.0.*, expected an integer of 64 bits"),  # type: ignore[arg-type]
        (lambda: Philox(1).integers(0, 1 << 63, 5), "high: found 9223372036854775808, expected an integer of int64"),
        (lambda: Philox(1).uniform(5, 2, 1), "b: found 1, expected at least a, 2"),
        (lambda: Philox(1).uniform(5, 0, 1e39), "b: found 1e.39, expected a finite float32"),
        (lambda: Philox(1).uniform(5, math.nan, 1), "a: found nan, expected a finite float32"),
        (lambda: Philox(1).normal(5, 0, -1e-12), "b: found -1e-12, expected 0 or more"),
        (lambda: Philox(1).normal(5, 0, math.inf), "b: found inf, expected 0 or more, finite"),
        (lambda: Philox(1).integers(3, 3, 5), "high: found 3, expected more than low, 3"),
        (lambda: Philox(1).integers(0, 1 << 40, 5, torch.int32), "low, high: found .*, expected numbers of int32"),
        (lambda: Philox(1).bernoulli(1.5, 5), "a: found 1.5.*, expected a probability"),
        (lambda: Philox(1).uniform(5, dtype=torch.int32), "out: found int32, expected float32 or float64"),
        (lambda: Philox(1).normal(5, 0, -1), "b: found -1.*, expected 0 or more"),
        (
            lambda: torch.ops.nnue.random_fill(torch.empty(4, 4).T[1:], code("uniform"), 1, 0, 0),
            "out: found a tensor that is not",
        ),
        (
            lambda: torch.ops.nnue.random_fill(torch.empty(4), 5, 1, 0, 0),
            "distribution: found 5, expected 0 to 4, for bits",
        ),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            call()


def test_opcheck(device: torch.device) -> None:
    torch.library.opcheck(torch.ops.nnue.random_fill.default, (torch.empty(5, device=device), code("uniform"), 1, 2, 3))


def test_pi(project_root: Path) -> None:
    example = runpy.run_path(str(project_root / "examples" / "monte_carlo_pi.py"))
    estimate, error = example["estimate"](1 << 20, seed=1, device=torch.device("cpu"))
    assert error == pytest.approx(math.sqrt(math.pi * (4 - math.pi) / (1 << 20)), rel=0.01)
    assert abs(estimate - math.pi) < 4 * error
