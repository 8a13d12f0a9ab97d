"""The record at the end of a net's description that states which architecture it has and what made it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nnue_trainer.base import distribution
from nnue_trainer.errors import UserError

RECORD_BEGINS = b'{"nnue_trainer":'


def describe(name: str, architecture: Mapping[str, Any]) -> bytes:
    """The description of a net that we write: a sentence for people, then the architecture as JSON for programs."""
    version = distribution.version
    facts = {"nnue_trainer": version, "net": name, "architecture": architecture}
    return f"{name} net trained with torch-nnue {version}. {json.dumps(facts, separators=(',', ':'))}".encode()


def record_in(description: bytes) -> bytes:
    """The record of the architecture in a description that we wrote; empty for any other description."""
    start = description.find(RECORD_BEGINS)
    return description[start:] if start >= 0 else b""


def described(description: bytes, where: str) -> dict[str, Any] | None:
    """The architecture in a description that we wrote; None for any other description."""
    record = record_in(description)
    if not record:
        return None
    try:
        architecture = json.loads(record).get("architecture")
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{where}: description: damaged architecture record ({reason})") from None
    if not isinstance(architecture, Mapping):
        found = json.dumps(architecture)[:80]
        raise UserError(f"{where}: description: architecture is {found}, expected a mapping")
    return dict(architecture)
