"""A plugin of pytest for pandas' own tests: its windows of numbers are computed by `nnue_trainer.stats`.

    NNUE_SHIM_LOG=calls.json pytest --pyargs pandas.tests.window -p pandas_shim

Calls that `stats` does not offer stay with pandas: windows in time, weights of a window (`win_type`), groups, columns
of words or dates, Numba, the pairs of columns that `cov` and `corr` make. The log counts both kinds by name.
"""

from __future__ import annotations

import inspect
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.core.window.ewm import ExponentialMovingWindow  # type: ignore[import-untyped]
from pandas.core.window.expanding import Expanding  # type: ignore[import-untyped]
from pandas.core.window.rolling import Rolling  # type: ignore[import-untyped]

from nnue_trainer import stats

calls: dict[str, Counter[str]] = {"stats": Counter(), "pandas": Counter()}
MOMENTS = ("sum", "mean", "var", "std", "sem", "min", "max", "skew", "kurt", "count", "median", "quantile")
NAMES = {
    Rolling: (*MOMENTS, "cov", "corr", "apply"),
    Expanding: (*MOMENTS, "cov", "corr", "apply"),
    ExponentialMovingWindow: ("mean", "var", "std"),
}


def _is_numbers(x: Any) -> bool:
    dtypes = [x.dtype] if isinstance(x, pd.Series) else list(x.dtypes) if isinstance(x, pd.DataFrame) else [None]
    return all(getattr(dtype, "kind", "O") in "biuf" for dtype in dtypes)


def _is_served(window: Any, name: str, arguments: dict[str, Any]) -> bool:
    """Whether `stats` offers this call."""
    given = {key: value for key, value in arguments.items() if key not in ("engine", "engine_kwargs", "numeric_only")}
    if any(arguments.get(key) for key in ("engine_kwargs", "numeric_only")) or window.method != "single":
        return False
    if arguments.get("engine") not in (None, "cython") or window._selection is not None or window.on is not None:
        return False
    if not _is_numbers(window.obj) or getattr(window, "times", None) is not None:
        return False
    if isinstance(window, Rolling) and (isinstance(window.window, bool) or not isinstance(window.window, int)):
        return False
    if name == "apply":
        return bool(arguments.get("raw")) and not arguments.get("args") and not arguments.get("kwargs")
    if name in ("cov", "corr"):
        x, y = window.obj, given.pop("other", None)
        same = isinstance(x, pd.Series) and isinstance(y, pd.Series) and _is_numbers(y) and x.index.equals(y.index)
        return same and given.pop("pairwise", None) is None and (name == "cov" or given.get("ddof", 1) == 1)
    return True


def _by_stats(window: Any, name: str, arguments: dict[str, Any]) -> Any:
    if isinstance(window, ExponentialMovingWindow):
        rule = {key: getattr(window, key) for key in ("com", "span", "halflife", "alpha", "adjust", "ignore_na")}
        made: Any = stats.ewm(window.obj, min_periods=window.min_periods, **rule)
    elif isinstance(window, Rolling):
        rule = {key: getattr(window, key) for key in ("min_periods", "center", "closed", "step")}
        made = stats.rolling(window.obj, window.window, **rule)
    else:
        made = stats.expanding(window.obj, window.min_periods)
    keys = {"apply": ["func"], "cov": ["other", "ddof"], "corr": ["other"], "quantile": ["q", "interpolation"]}
    wanted = keys.get(name, ["ddof", "bias"])
    return getattr(made, name)(*(arguments[key] for key in wanted if key in arguments))


def _replace(kind: type, name: str, patch: pytest.MonkeyPatch) -> None:
    original = getattr(kind, name)
    signature = inspect.signature(original)

    def method(window: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            arguments = dict(signature.bind(window, *args, **kwargs).arguments)
        except TypeError:
            return original(window, *args, **kwargs)
        arguments.pop("self")
        served = type(window) is kind and _is_served(window, name, arguments)
        calls["stats" if served else "pandas"][name] += 1
        return _by_stats(window, name, arguments) if served else original(window, *args, **kwargs)

    patch.setattr(kind, name, method)


@pytest.fixture(autouse=True)
def _windows_of_stats(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, names in NAMES.items():
        for name in names:
            _replace(kind, name, monkeypatch)


def pytest_sessionfinish() -> None:
    Path(os.environ["NNUE_SHIM_LOG"]).write_text(json.dumps(calls))
