"""Choices among words, such as a statistic, are integers in the schemas of operators: csrc/enumerations.h explains why,
and has the table. Python takes words, and translates them here."""

from __future__ import annotations

import torch

from nnue_trainer.base import _library


def _table() -> dict[str, dict[str, int]]:
    _library.require()
    lines = _library.as_text(torch.ops.nnue.enumerations()).splitlines()
    pairs = (line.split(": ") for line in lines)
    return {argument: {word: code for code, word in enumerate(words.split(", "))} for argument, words in pairs}


TABLE = _table()
"""The integer of each word, by "operator.argument"."""


def code(argument: str, word: object) -> int:
    """The integer of a word for an argument, such as "rolling.statistic". ValueError for an unknown word."""
    words = TABLE[argument]
    if not isinstance(word, str) or word not in words:
        *first, last = words
        operator, _, name = argument.partition(".")
        raise ValueError(f"{operator}: {name}: found {word!r}, expected {', '.join(first)} or {last}")
    return words[word]
