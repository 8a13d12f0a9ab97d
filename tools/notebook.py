#!/usr/bin/env python3
"""Writes examples/notebook/data_to_elo.ipynb, for Jupyter and Colab, from the cells of data_to_elo.py.

The first cell of code is only in the notebook: it installs the project where it is missing. Run this file after each
change of data_to_elo.py; tests/documents/test_notebook.py compares both.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "examples" / "notebook" / "data_to_elo.py"
NOTEBOOK = SOURCE.with_suffix(".ipynb")
SETUP = """\
# Builds and installs the project on a machine without it, such as Colab and Kaggle; not tried there. Set REPOSITORY to
# the address from which to clone it.
import importlib.util
import os
import subprocess
import sys

REPOSITORY = ""
if importlib.util.find_spec("nnue_trainer") is None:
    if not REPOSITORY:
        raise SystemExit("set REPOSITORY in this cell to the address of the project")
    subprocess.run(["git", "clone", "--depth=1", REPOSITORY, "torch-nnue"], check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "pybind11", "ninja", "setuptools>=77", "matplotlib"], check=True)
    environment = os.environ | {"FORCE_CUDA": "0"}  # the notebook trains on the CPU
    subprocess.run([*pip, "--no-build-isolation", "./torch-nnue"], check=True, env=environment)
    os.chdir("torch-nnue/examples/notebook")
"""


def cells(text: str) -> list[dict[str, Any]]:
    """The cells of a file in the percent format, and after the first one the cell that installs the project."""
    found: list[tuple[str, str]] = []
    for kind, body in re.findall(r"(?ms)^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", text):
        if kind:
            found.append(("markdown", re.sub(r"(?m)^# ?", "", body)))
        else:
            found.append(("code", body))
    found.insert(1, ("code", SETUP))
    return [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": body.strip().splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, body) in enumerate(found)
    ]


def notebook(text: str) -> str:
    """The notebook, as the text of its file."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells(text), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
    print(NOTEBOOK)
