"""pandas' own tests of windows and exponential weights, computed by `nnue_trainer.stats` (pandas_shim.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PARTS = (
    *("test_api", "test_apply", "test_ewm", "test_expanding", "test_pairwise", "test_rolling"),
    *("test_rolling_functions", "test_rolling_quantile", "test_rolling_skew_kurt"),
    *(f"moments.test_moments_consistency_{kind}" for kind in ("ewm", "expanding", "rolling")),
)

# Tests that do not apply, each with its reason. Calls that `stats` does not offer stay with pandas: pandas_shim.py.
LEFT_OUT = {
    "numba": "pandas' own use of Numba",
    "test_rolling_apply_invalid_raw": "apply() has no argument `raw`: a function gets an array",
    "test_invalid_quantile_value": "the words of the error",
    "test_rolling_quantile_param": "the words of the error",
}


@pytest.mark.slow
@pytest.mark.pandas
def test_they_pass(tmp_path: Path) -> None:
    log = tmp_path / "calls.json"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pandas_shim", "--rootdir", tmp_path),
        *("-k", " and ".join(f"not {name}" for name in LEFT_OUT), "--pyargs"),
        *(f"pandas.tests.window.{part}" for part in PARTS),
    ]
    done = subprocess.run(
        [str(part) for part in command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "NNUE_SHIM_LOG": str(log), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    calls = json.loads(log.read_text())["stats"]
    assert sum(calls.values()) > 8000, calls
    assert min(calls.values()) > 50, calls
