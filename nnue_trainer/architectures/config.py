"""Architectures as data: one frozen dataclass a family, told apart by `kind`.

They are what recipes, checkpoints and nets carry. `Architecture` is the type to nest in a recipe's dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from nnue_trainer.errors import UserError

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class SfnnV5Config:
    """HalfKAv2_hm → l1, pairwise, + 8 PSQT columns → 8 stacks of 15+1 → 30 → 32 → 1 (SFNNv5 … SFNNv9, the small net).

    The family differs in `l1` alone: 1024 SFNNv5, 1536 SFNNv6, 2048 SFNNv7, 2560 SFNNv8, 3072 SFNNv9, 128 the small
    net. Any other multiple of 32 trains, but no released Stockfish loads it.
    """

    kind: Literal["sfnnv5"] = "sfnnv5"
    l1: Annotated[int, Field(ge=32, le=16384, multiple_of=32)] = 1024


@dataclass(frozen=True, config=_STRICT)
class SimpleConfig:
    """Features → hidden, seen from both sides → 1. `score_scale` is the engine units in one unit of output."""

    kind: Literal["simple"] = "simple"
    feature_set: Literal["Chess768"] = "Chess768"
    hidden: Annotated[int, Field(ge=8, le=16384, multiple_of=8)] = 256
    activation: Literal["crelu", "screlu"] = "screlu"
    score_scale: Annotated[int, Field(ge=1, le=10000)] = 400


Architecture = Annotated[SfnnV5Config | SimpleConfig, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[SfnnV5Config | SimpleConfig] = TypeAdapter(Architecture)


def parse(data: Mapping[str, Any], where: str = "architecture") -> SfnnV5Config | SimpleConfig:
    """The configuration that plain JSON `data` describes. UserError names `where`, the key, what was found."""
    try:
        return _ADAPTER.validate_python(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][1:])
        found = "" if first["type"] == "missing" else f", found {first['input']!r}"
        raise UserError(f"{where}{'.' + key if key else ''}: {first['msg']}{found}") from None


def to_json(config: SfnnV5Config | SimpleConfig) -> dict[str, Any]:
    """The plain JSON data that `parse` takes."""
    return asdict(config)
