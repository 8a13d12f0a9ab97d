"""Designs of kernels that no library has compile."""

import subprocess
from pathlib import Path

import pytest
from needs import no_tool, require

from nnue_trainer.data.feature_sets import header


@pytest.mark.compiler
def test_products_with_tensor_memory_compile(project_root: Path, tmp_path: Path) -> None:
    """For compute capability 10.0, without spilled registers."""
    require(no_tool("nvcc")())
    source, made = project_root / "benchmarks" / "tcgen05.cu", tmp_path / "products.cubin"
    options = ["-std=c++20", "-O3", "-arch=sm_100a", "-Xptxas", "-v", "-cubin", "-o", str(made)]
    done = subprocess.run([header.find_nvcc(), *options, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("0 bytes spill stores") == 2, done.stderr
    assert b"product_kernel" in made.read_bytes()
