"""setuptools, and the packages that only a wheel needs, for builds in an isolated environment.

Metadata and the source distribution need neither torch nor a compiler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

# The libraries use torch's stable ABI: they run with every torch from the lowest one on.
NATIVE = ["torch>=2.10", "pybind11>=2.12", "ninja"]

Config = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    native = [] if os.environ.get("NNUE_NO_EXTENSIONS") == "1" else NATIVE
    return [*build_meta.get_requires_for_build_wheel(config_settings), *native]


get_requires_for_build_editable = get_requires_for_build_wheel
