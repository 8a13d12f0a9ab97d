"""Registers `nnue::random_fill`, which `random` imports when it needs the first number."""

from __future__ import annotations

from nnue_trainer.stats import _plain

CODES = _plain.TABLE["random_fill.distribution"]
_plain.register("nnue::random_fill")
