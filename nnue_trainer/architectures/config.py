"""Architectures as data: one frozen dataclass a family, told apart by `kind`.

They are what recipes, checkpoints and nets carry. `Architecture` is the type to nest in a recipe's dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from nnue_trainer.schema import section, validate


@section
class SfnnV5Config:
    """HalfKAv2_hm → l1, pairwise, + 8 PSQT columns → 8 stacks of 15+1 → 30 → 32 → 1 (SFNNv5 … SFNNv9, the small net).

    The family differs in `l1` alone. Other widths train as well, but no Stockfish loads them.
    """

    kind: Literal["sfnnv5"] = "sfnnv5"
    l1: Annotated[int, Field(ge=32, le=16384, multiple_of=32)] = 1024
    """outputs of the feature transformer a perspective, a multiple of 32: 1024 SFNNv5, 1536 SFNNv6, 2048 SFNNv7,
    2560 SFNNv8, 3072 SFNNv9, 128 the small net"""


@section
class SimpleConfig:
    """Features → hidden layer, seen from both sides → 1."""

    kind: Literal["simple"] = "simple"
    feature_set: Literal["Chess768"] = "Chess768"
    """input features"""
    hidden: Annotated[int, Field(ge=8, le=16384, multiple_of=8)] = 256
    """outputs of the feature transformer a perspective, a multiple of 8"""
    activation: Literal["crelu", "screlu"] = "screlu"
    """of the hidden layer: clamp to [0, 1], or the square of that"""
    score_scale: Annotated[int, Field(ge=1, le=10000)] = 400
    """engine units in one unit of output"""


Architecture = Annotated[SfnnV5Config | SimpleConfig, Field(discriminator="kind")]


@section
class _Carrier:
    architecture: Architecture


def parse(data: Mapping[str, Any], where: str) -> SfnnV5Config | SimpleConfig:
    """The architecture that plain JSON `data` describes. UserError names `where`, the key, what was found, expected."""
    return validate(_Carrier, {"architecture": dict(data)}, lambda _: where).architecture
