"""Fixtures of every room's tests."""

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# One commit, one outcome: examples are a function of the test's code. HYPOTHESIS_PROFILE=search looks further.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

ROOT = Path(__file__).resolve().parents[1]

# torch.compile keeps what it compiled from run to run, and does not notice that an operator's schema has changed.
SCHEMAS = hashlib.sha256((ROOT / "csrc" / "library.cpp").read_bytes()).hexdigest()[:12]
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"nnue-inductor-{SCHEMAS}"))


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
