"""Estimates of the rate and memory of training on a GPU that need not be installed: `nnue explain --gpu`.

The time of a step is a sum of four terms. Each divides an amount of work by what the GPU can do, times a factor:

- the update: bytes of the rows that move, by the memory bandwidth;
- the transformer: bytes of the rows of all entries, forward and backward, by the bandwidth of the L2 cache;
- what its L2 cache misses: by the memory bandwidth;
- the layers: multiplications, by the multiprocessors' clock;
- launches and small kernels: the same time on every GPU.

`benchmarks/estimate.py` fits the factors to measured times of H100 and H200, and prints how far off they are.
"""

from __future__ import annotations

from typing import NamedTuple

from nnue_trainer.data.features import FeaturePart


class Card(NamedTuple):
    """A GPU by its data sheet."""

    capability: int
    """10 · major + minor"""
    multiprocessors: int
    ghz: float
    """boost clock"""
    memory_bandwidth: float
    """GB/s"""
    l2: float
    """MB"""
    memory: float
    """GiB"""

    @property
    def l2_bandwidth(self) -> float:
        """Bytes per second between the L2 cache and the multiprocessors: 64 bytes per multiprocessor and clock."""
        return 64e9 * self.multiprocessors * self.ghz


CARDS: dict[str, Card] = {
    "T4": Card(75, 40, 1.59, 320, 4, 16),
    "RTX 2060": Card(75, 30, 1.68, 336, 3, 6),
    "RTX 3060": Card(86, 28, 1.78, 360, 3, 12),
    "RTX 3080 Ti": Card(86, 80, 1.67, 912, 6, 12),
    "RTX 3090": Card(86, 82, 1.70, 936, 6, 24),
    "A10G": Card(86, 80, 1.71, 600, 6, 24),
    "RTX 4060": Card(89, 24, 2.46, 272, 24, 8),
    "RTX 4070": Card(89, 46, 2.48, 504, 36, 12),
    "RTX 4090": Card(89, 128, 2.52, 1008, 72, 24),
    "L4": Card(89, 58, 2.04, 300, 48, 24),
    "A100": Card(80, 108, 1.41, 1555, 40, 40),
    "A100 80GB": Card(80, 108, 1.41, 2039, 40, 80),
    "H100": Card(90, 132, 1.98, 3350, 50, 80),
    "H200": Card(90, 132, 1.98, 4800, 50, 141),
    "B200": Card(100, 148, 1.97, 8000, 126, 180),
    "RTX 5060": Card(120, 30, 2.50, 448, 32, 8),
    "RTX 5070": Card(120, 48, 2.51, 672, 48, 12),
    "RTX 5090": Card(120, 170, 2.41, 1792, 96, 32),
}


def card_of(capability: int, multiprocessors: int, memory_bandwidth: float) -> Card:
    """A GPU that is not in `CARDS`, with clock and cache of the one that is most like it, and memory of 0."""
    near = min(
        CARDS.values(),
        key=lambda card: (abs(card.capability - capability), abs(card.multiprocessors - multiprocessors)),
    )
    return near._replace(
        capability=capability, multiprocessors=multiprocessors, memory_bandwidth=memory_bandwidth, memory=0
    )


class Factors(NamedTuple):
    """How often the ideal time each term takes, and the constant one in seconds."""

    update: float
    bucketed: float
    unbucketed: float
    layers: float
    launches: float


# benchmarks/estimate.py prints these.
FACTORS = {
    "hopper": Factors(2.03, 1.90, 2.17, 0.0105, 133e-6),
    "portable": Factors(2.03, 6.95, 11.1, 0.0105, 133e-6),
}


class Rows(NamedTuple):
    """A range of rows of the transformer's weight, and how a step changes them."""

    rows: int
    bucketed: bool
    entries: float
    """mean number of active features per perspective"""
    in_batch: float
    """rows that a batch of this size has"""
    late: bool
    """whether only those move"""


class Work(NamedTuple):
    """A step in numbers."""

    kernels: str
    batch: int
    width: int
    bytes_per_value: int
    """of the transformer's weight and output: 2 or 4"""
    moments: float
    """fp32 numbers that the rule keeps for each weight, the weight included; a bf16 number is half a one"""
    multiplications: int
    """of the layers, per position"""
    rows: tuple[Rows, ...]

    @property
    def bytes_per_update(self) -> float:
        """Bytes that move with one weight: its gradient is read, each tensor of the rule read and written (the fourth
        takes turns with the third), the 16-bit copy written."""
        return 4 + 8 * min(self.moments, 3) + 2 * max(self.moments - 3, 0) + (2 if self.bytes_per_value == 2 else 0)


class Estimate(NamedTuple):
    """Seconds of a step by what they are spent on, and memory."""

    update: float
    transformer: float
    layers: float
    launches: float
    memory: float
    """GiB"""

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.update + self.transformer + self.layers + self.launches

    @property
    def limit(self) -> str:
        """The term that takes most of the time."""
        names = {
            "update": "the update of the weights (memory bandwidth)",
            "transformer": "the feature transformer (caches)",
            "layers": "the layers (multiprocessors)",
            "launches": "launches of kernels (a larger batch helps)",
        }
        return names[max(names, key=lambda name: getattr(self, name))]


class Seen(NamedTuple):
    """How often a set's features occur in self-play."""

    entries: float
    """per perspective, on average"""
    rows: int
    """in a batch of 16,384 positions"""
    growth: float
    """their number grows by this power of the batch size"""


# Counted in selfplay-d5-train, 2026-11-28, between 4,096 and 65,536 positions.
_SEEN = {
    "Chess768": Seen(18.0, 736, 0.0),
    "HalfKP": Seen(16.0, 21_500, 0.29),
    "HalfKA": Seen(18.0, 23_900, 0.29),
    "HalfKAv2": Seen(18.0, 23_900, 0.29),
    "HalfKAv2_hm": Seen(18.0, 14_400, 0.22),
    "K32Q2": Seen(18.0, 21_400, 0.27),
    "Full_Threats_v16": Seen(12.6, 25_200, 0.33),
    "PP_3Wide": Seen(14.1, 1_430, 0.04),
}


def rows_of(part: FeaturePart, batch: int, late: bool) -> Rows:
    """The rows of a part in a step of `batch` positions. For sets that were not counted: 0.56 of the most
    entries, as in HalfKA, and 0.55 of the rows."""
    seen = _SEEN.get(part.short_name) or Seen(0.56 * part.max_active, int(0.55 * part.num_features), 0.25)
    in_batch = min(float(part.num_features), seen.rows * (batch / 16_384) ** seen.growth)
    return Rows(part.num_features, part.bucket_size > 0, seen.entries, in_batch, late)


_WITHOUT_TENSOR_CORES = 11
"""How often the time of `layers` they take on capability 7.5, where float32 products and shuffles replace tensor cores:
counted from the instructions of a product, not measured"""
_CATCH_UP = 1.15
"""Rows that move in a step, for each one that its batch has: those of the next batch catch up."""
_WORKSPACE = 0.5
"""GiB of what does not depend on the net"""


def ideal(work: Work, card: Card) -> Factors:
    """The seconds of each term if the GPU did nothing else and lost nothing; 1 for `launches`."""
    moved = sum(part.in_batch * _CATCH_UP if part.late else part.rows for part in work.rows)
    row = 2 * work.batch * work.width * work.bytes_per_value / card.l2_bandwidth
    return Factors(
        moved * work.width * work.bytes_per_update / (card.memory_bandwidth * 1e9),
        sum(part.entries for part in work.rows if part.bucketed) * row,
        sum(part.entries for part in work.rows if not part.bucketed) * row,
        work.batch * work.multiplications / (card.multiprocessors * card.ghz * 1e9),
        1.0,
    )


def estimate(work: Work, card: Card) -> Estimate:
    """The time of a step and the memory of a training."""
    factors = FACTORS[work.kernels]
    update, bucketed, unbucketed, layers, launches = (a * b for a, b in zip(factors, ideal(work, card), strict=True))
    layers *= _WITHOUT_TENSOR_CORES if card.capability < 80 else 1
    row = work.width * work.bytes_per_value
    missed = sum(_missed(part.in_batch * row, card) * part.entries for part in work.rows) * 2 * work.batch * row
    state = sum(part.rows for part in work.rows) * work.width * (8 + 4 * work.moments)
    return Estimate(
        update,
        bucketed + unbucketed + missed / (card.memory_bandwidth * 1e9),
        layers,
        launches,
        (state + 12 * work.batch * row) / 2**30 + _WORKSPACE,
    )


def _missed(touched: float, card: Card) -> float:
    """The share of the gathered bytes that come from device memory because slabs of the touched rows do not fit into
    the L2 cache. A simulation of caches of 3 and 6 MB gave 0.064 and 0.043 (benchmarks/NOTEBOOK.md)."""
    return min(1.0, 0.11 / card.l2**0.5) if touched > card.l2 * 1e6 else 0.0
