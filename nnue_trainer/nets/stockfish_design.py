"""The differences between Stockfish nets: a row of facts each, and the numbers that all of them share.

Units. One of the float model is `transformer_one` in accumulators, `one` in activations of layers, 600 · 16 in the
output. An activation is a product of two clipped accumulators, shifted down, and a square likewise; where the shift
does not match the unit exactly (128 for 127), the float model carries the quotient.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nnue_trainer.data.features import feature_set
from nnue_trainer.errors import UserError
from nnue_trainer.modules.layer_stacks import LayerStacks
from nnue_trainer.nets.base import INT8_MAX
from nnue_trainer.nets.integer_forward import MATERIALS, PIECE_COUNTS, by_queens, stack_table
from nnue_trainer.ops.reference import StackLayer

SQUARES = 64
SCORE_SCALE = 600
OUTPUT_STEPS = 16  # of an engine unit in PSQT columns and in the output of the layers
# Engine units; planes of a piece-square set alternate own, enemy. Kings count nothing.
MATERIAL = (126, 781, 825, 1276, 2538)

# The numbers that engines hash feature sets by. Other sets have the CRC-32 of their names (`Design.feature_hash`).
FEATURE_HASH = {
    "HalfKP": 0x5D69D5B8,
    "HalfKAv2": 0x5F234CB8,
    "HalfKAv2_hm_11": 0x7F234CB8,
    "K32Q2_11": 0x32B5E284,
    "K16Q2_11": 0x32B5E284,
    "Full_Threats_v2": 0x8F234CB9,
    "Full_Threats_v10": 0x8F234CB8,
    "Full_Threats_v11": 0x8F234CB8,
    "Full_Threats_v12": 0x8F234CB8,
    "Full_Threats_v14": 0x8F234CB8,
    "Full_Threats_v16": 0x2E6B9D04,
    "PP_3Wide": 0x86F2B1DD,
}
# The set that is trained for one that engines read: in it, both kings have planes of their own.
TRAINED = {"HalfKAv2_hm_11": "HalfKAv2_hm", "K32Q2_11": "K32Q2", "K16Q2_11": "K16Q2"}

V2020 = 0x7AF32F16
V2021 = 0x7AF32F20
V2026 = 0x6A448AFA


@dataclass(frozen=True)
class Design:
    """The differences between Stockfish nets."""

    sets: tuple[str, ...]
    """feature sets, in the order of the file: built-in ones, declared ones ("PieceSquare(…)"), or
    "my_file.py:MySet" """
    layouts: tuple[str, ...]
    """of the file, see `StockfishNet._transformer_blocks`; the first is the one that is written"""
    version: int = V2021
    l2: int = 16
    """outputs of fc0, including the skip connection's"""
    l3: int = 32
    """outputs of fc1"""
    stacks: int = 8
    """1; 8: by the number of pieces; with `queens` four times as many; with `table` any number up to 64"""
    queens: bool = False
    """stacks also depend on which sides have queens"""
    table: tuple[int, ...] = ()
    """the stack for each number of pieces, 33 numbers, or for each number and `Batch.material`, 33 · 16 numbers;
    empty: by the two rules above"""
    narrow: tuple[str, ...] = ()
    """sets with buckets whose weights are bytes; in sets without buckets they always are"""
    psqt: bool = True
    """PSQT columns beside the accumulators"""
    pairwise: bool = True
    """products of clipped halves instead of clipped values"""
    transformer_one: int = 127
    """integer of an accumulator that is 1.0"""
    clip: int = 127
    """largest activation of an accumulator before the product"""
    product_shift: int = 7
    one: int = 127
    """integer of an activation that is 1.0"""
    doubled: bool = False
    """the engine doubles weights and biases of the transformer in 16 bits when it loads them"""
    fc0_scale: int = 64
    skip: int = 1
    """outputs of fc0 that go straight to the result: one is added, of two the second is subtracted from the first"""
    squared: bool = True
    """fc1 also reads the squares of its inputs"""
    dual: bool = False
    """as `squared`, and also the outputs of fc1; skip outputs take part, and fc2 also reads the inputs of fc1"""
    shared_fc0: bool = False
    """fc0 is trained with a part that all stacks share"""
    output_scale: int | None = None
    """integer steps in 1.0 of the layers' output before it is turned into sixteenths of engine units; None: it is
    computed in those"""
    zlib: bool = False
    """the engine also reads its raw layout in a zlib stream"""
    sums_parts: bool = False
    """the engine divides PSQT and layers together by 16, not each"""
    hashes: Mapping[str, int] = field(default_factory=dict, hash=False)
    """32-bit hash of each feature set in the file; a set that is missing here has its number in `FEATURE_HASH`, or the
    CRC-32 of its name, parameters included"""

    def __post_init__(self) -> None:
        for name, value in self.hashes.items():
            if not 0 <= value < 2**32:
                raise ValueError(f"a design with the hash {value} for {name}, expected 0 … 2³² - 1")
        if self.table:
            if len(self.table) not in (PIECE_COUNTS, PIECE_COUNTS * MATERIALS) or self.queens:
                raise ValueError(
                    f"a design with a table of {len(self.table)} stacks and queens={self.queens}, expected "
                    f"{PIECE_COUNTS} or {PIECE_COUNTS * MATERIALS} stacks and queens=False"
                )
            if not 0 <= min(self.table) <= max(self.table) < self.stacks:
                raise ValueError(f"a design whose table has stack {max(self.table)}, expected 0 … {self.stacks - 1}")
            return
        expected = (4, 32) if self.queens else (1, 8)
        if self.stacks not in expected:
            raise ValueError(
                f"a design with {self.stacks} stacks, expected {expected[0]} or {expected[1]} with "
                f"queens={self.queens}, or a table"
            )

    def feature_hash(self, name: str) -> int:
        """The number that the feature set contributes to the hashes in the file."""
        known = {**FEATURE_HASH, **self.hashes}.get(name)
        return zlib.crc32(name.encode()) if known is None else known

    def with_full_names(self, *, may_import: bool = False) -> Design:
        """This design with feature sets named as in index rows: a set from a file without its folder and with its
        parameters. UserError for a set that does not exist; `may_import`: see `data.feature_set`."""

        def full(name: str) -> str:
            parts = feature_set(name, may_import=may_import).parts
            if len(parts) != 1:
                raise UserError(f"design.sets: found the sum {name!r:.80}, expected each of its sets separately")
            return parts[0].name

        hashes = {full(name): value for name, value in self.hashes.items()}
        sets, narrow = (tuple(map(full, names)) for names in (self.sets, self.narrow))
        for what, names in (("narrow", narrow), ("hashes", hashes)):
            if unknown := [name for name in names if name not in sets]:
                raise UserError(f"design.{what}: found {unknown[0]!r:.80}, expected one of {', '.join(sets)}")
        return replace(self, sets=sets, narrow=narrow, hashes=hashes)

    @property
    def stack_table(self) -> tuple[int, ...]:
        """The stack of a position: a table of `integer_forward.stack_table`."""
        if self.table:
            return stack_table(self.table) if len(self.table) == PIECE_COUNTS else self.table
        groups = self.stacks // 4 if self.queens else self.stacks
        by_pieces = [max(pieces - 1, 0) * groups // 32 for pieces in range(PIECE_COUNTS)]
        return stack_table(by_pieces, by_queens if self.queens else None)

    @property
    def fc2_scale(self) -> float:
        return SCORE_SCALE * OUTPUT_STEPS / self.one if self.output_scale is None else self.output_scale / self.one

    @property
    def result_one(self) -> int:
        return SCORE_SCALE * OUTPUT_STEPS if self.output_scale is None else self.output_scale

    @property
    def hidden(self) -> int:
        """The number of outputs of fc0 that fc1 reads."""
        return self.l2 if self.dual else self.l2 - self.skip

    def layers(self, l1: int) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of fc0, fc1 and fc2."""
        second = self.hidden * (2 if self.squared else 1)
        third = second + 2 * self.l3 if self.dual else self.l3
        return ((l1 if self.pairwise else 2 * l1, self.l2), (second, self.l3), (third, 1))

    def layer_stacks(self, l1: int) -> LayerStacks:
        """The layers of the float model."""
        largest, square = INT8_MAX / self.one, self.one / 128
        plus, minus = {0: (None, None), 1: (self.l2 - 1, None), 2: (self.l2 - 2, self.l2 - 1)}[self.skip]
        first = StackLayer(
            self.l2, self.hidden, "dual" if self.squared else "crelu", largest, square=square, plus=plus, minus=minus,
            output_scale=1.0 if self.dual else None,
        )  # fmt: skip
        second = StackLayer(self.l3, self.l3, "dual" if self.dual else "crelu", largest, square=square)
        return LayerStacks(self.layers(l1)[0][0], self.stacks, (first, second))
