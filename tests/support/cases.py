"""Which cases of a test run at each change."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], *, every: int = 0, kept: Container[Any] = ()) -> list[Any]:
    """`cases` for parametrize. Each `every`-th, from the first on, and those `kept` run in `.ci/run`; the others are
    marked `more`. For seeds, and for nets whose parts other cases have too."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if case in kept or (every and number % every == 0) else [pytest.mark.more],
        )
        for number, case in enumerate(cases)
    ]
