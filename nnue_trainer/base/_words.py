"""Choices among words, such as a statistic, are integers in the schemas of operators: csrc/enumerations.h explains why,
and has the tables. Python takes words, and translates them here."""

from __future__ import annotations

import torch

from nnue_trainer.base import _library


def table(text: torch.Tensor) -> dict[str, dict[str, int]]:
    """The integer of each word, by "operator.argument", from the text of a library's table, uint8 [n]."""
    pairs = (line.split(": ") for line in _library.as_text(text).splitlines())
    return {argument: {word: code for code, word in enumerate(words.split(", "))} for argument, words in pairs}


def code(table: dict[str, dict[str, int]], argument: str, word: object) -> int:
    """The integer of a word for an argument. ValueError for an unknown word."""
    words = table[argument]
    if not isinstance(word, str) or word not in words:
        *first, last = words
        operator, _, name = argument.partition(".")
        raise ValueError(f"{operator}: {name}: found {word!r}, expected {', '.join(first)} or {last}")
    return words[word]
