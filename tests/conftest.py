"""Fixtures of every room's tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of vectors and real positions beside the project; tests that need it skip where it is not."""
    path = Path(os.environ.get("NNUE_SHARED", ROOT.parent / "shared"))
    if not (path / "vectors").is_dir():
        pytest.skip(f"no shared vectors at {path} (set NNUE_SHARED)")
    return path
