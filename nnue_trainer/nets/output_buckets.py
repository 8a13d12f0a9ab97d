"""The stack of layers as a function of the pieces on the board: the section `output_buckets` of layered nets and of
Stockfish's."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from nnue_trainer.nets.integer_forward import MATERIALS, PIECE_COUNTS, by_queens, stack_table
from nnue_trainer.schema import section

# Sums of weights of pieces: 30 pieces of the largest weight.
_MOST_SUMS = 30 * 1000 + 1


@section
class OutputBuckets:
    """How the pieces on the board choose the layer stack and the PSQT column of a position."""

    count: int = Field(default=1, ge=1, le=64)
    """number of buckets; each has its own weights of all layers after the first, and its own PSQT column"""
    rule: Literal["stockfish", "bullet", "queens", "table", "weights", "squares"] = "stockfish"
    """the bucket of a position. stockfish: (pieces − 1) div ceil(32 / count); bullet: (pieces − 2) div
    ceil(32 / count); queens: 4 · ((pieces − 1) div ceil(128 / count)) + 2 if the side to move has a queen + 1 if the
    other side has one, with a count that is a multiple of 4; table: the field `table`; weights: by the sum of
    `weights` over all pieces; squares: by the sum of `squares`"""
    weights: list[Annotated[int, Field(ge=0, le=1000)]] = Field(default_factory=list)
    """only for rule weights: the weights of pawn, knight, bishop, rook and queen; or 10 weights, for those of the side
    to move, then for those of the other side"""
    squares: dict[Annotated[str, Field(pattern="^[PNBRQKpnbrqk]$")], list[Annotated[int, Field(ge=0, le=4096)]]] = (
        Field(default_factory=dict)
    )
    """only for rule squares: 64 numbers for a kind of piece, from a1, b1, … to h8 as the side to move sees the board
    (mirrored left to right where the feature set mirrors it): its weight on each square. PNBRQK: pieces of the side to
    move; pnbrqk: of the other side; those that are not given weigh 0"""
    table: list[int] = Field(default_factory=list)
    """for rule squares: the bucket for each sum from 0 on, the last number for all larger sums; empty: the sum, at most
    count − 1. For rule weights: the same; empty: sum · count div (sum at the start of a game + 1), at most count − 1.
    For rule table: the bucket for each number of pieces, 33
    numbers for 0 … 32 pieces (those for 0 and 1 are never used); or 33 · 16 numbers, where each number of pieces has
    16, one for each 4 · own + enemy queens, at most 3 of either (own: the side to move)"""

    def __hash__(self) -> int:
        return hash((self.count, self.rule, tuple(self.table)))

    @model_validator(mode="after")
    def _check(self) -> OutputBuckets:
        if self.weights and self.rule != "weights":
            raise ValueError(f"weights: found {len(self.weights)} with rule: {self.rule}, expected rule: weights")
        if bool(self.squares) != (self.rule == "squares"):
            wanted = "rule: squares" if self.squares else "64 numbers for at least one piece"
            raise ValueError(f"squares: found {len(self.squares)} pieces with rule: {self.rule}, expected {wanted}")
        for piece, numbers in self.squares.items():
            if len(numbers) != 64:
                raise ValueError(f"squares.{piece}: found {len(numbers)} numbers, expected 64")
        if self.rule == "weights" and len(self.weights) not in (5, 10):
            raise ValueError(f"weights: found {len(self.weights)}, expected 5, for P N B R Q, or 10, own and enemy")
        if self.rule in ("weights", "squares"):
            if len(self.table) > _MOST_SUMS:
                raise ValueError(f"table: found {len(self.table)} numbers, expected at most {_MOST_SUMS}")
        elif self.rule == "table":
            if len(self.table) not in (PIECE_COUNTS, PIECE_COUNTS * MATERIALS):
                raise ValueError(
                    f"table: found {len(self.table)} numbers, expected {PIECE_COUNTS}, for 0 … 32 pieces, or "
                    f"{PIECE_COUNTS * MATERIALS}, with queens"
                )
        elif self.table:
            raise ValueError(f"table: found {len(self.table)} numbers with rule: {self.rule}, expected rule: table")
        elif self.rule == "queens" and self.count % 4:
            raise ValueError(f"count: found {self.count}, expected a multiple of 4 for rule: queens")
        if wrong := [bucket for bucket in self.table if not 0 <= bucket < self.count]:
            raise ValueError(f"table: found bucket {wrong[0]}, expected 0 … {self.count - 1}, below count")
        return self

    @property
    def piece_weights(self) -> tuple[int, ...]:
        """The table for `IntegerForward.piece_weights`."""
        if self.squares:
            return tuple(number for piece in "PNBRQKpnbrqk" for number in self.squares.get(piece, [0] * 64))
        return tuple(self.weights) * (2 if len(self.weights) == 5 else 1)

    @property
    def stacks(self) -> tuple[int, ...]:
        """The bucket for each number of pieces and each material, a table of `integer_forward.stack_table`; for rule
        weights or squares: for each sum."""
        if self.rule == "squares":
            return tuple(self.table) or tuple(range(self.count))
        if self.rule == "weights":
            if self.table:
                return tuple(self.table)
            start = sum(weight * pieces for weight, pieces in zip(self.piece_weights, 2 * (8, 2, 2, 2, 1), strict=True))
            return tuple(total * self.count // (start + 1) for total in range(start + 1))
        if self.rule == "table":
            return stack_table(self.table) if len(self.table) == PIECE_COUNTS else tuple(self.table)
        queens = self.rule == "queens"
        divisor, first = math.ceil((128 if queens else 32) / self.count), 2 if self.rule == "bullet" else 1
        return stack_table(
            [max(pieces - first, 0) // divisor for pieces in range(PIECE_COUNTS)], by_queens if queens else None
        )
