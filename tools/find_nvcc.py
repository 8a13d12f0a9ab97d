"""Where setup.py and quiet_build.py find nvcc."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def find_nvcc() -> str | None:
    """The compiler in the toolkit of CUDA_HOME or CUDA_PATH, or on PATH, or in the usual place."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [Path(home) / "bin" / "nvcc"] if home else []
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path).resolve()] if on_path else []
    candidates += [Path("/usr/local/cuda/bin/nvcc")]
    return next((str(path) for path in candidates if path.is_file()), None)
