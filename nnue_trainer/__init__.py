"""NNUE training on PyTorch: fast sparse operators, a C++ data pipeline, nets that real engines load.

`__all__`, and that of the modules in it, is the public interface (docs/api.md); the rest may change with any version.
"""

import os as _os

if _os.name == "nt":
    raise ImportError("torch-nnue does not run on Windows; use WSL2, as docs/install.md describes")

from nnue_trainer.base import _first_look
from nnue_trainer.base import distribution as _distribution
from nnue_trainer.base import lazy as _lazy

# Importing typing, pathlib and others would take most of this import's time; type checkers take this name for True.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from nnue_trainer import (
        analysis,
        callbacks,
        config,
        data,
        export,
        files,
        losses,
        match,
        modules,
        nets,
        nnue_file,
        ops,
        optim,
        registry,
        schedules,
        schema,
        stats,
        training,
    )
    from nnue_trainer.data import Batch, Loader, RecordLoader
    from nnue_trainer.errors import UserError
    from nnue_trainer.modules import FeatureTransformer, PerspectiveTransformer, StackedLinear

__version__ = "0.2.0"
__all__ = [
    "Batch",
    "FeatureTransformer",
    "Loader",
    "PerspectiveTransformer",
    "RecordLoader",
    "StackedLinear",
    "UserError",
    "analysis",
    "callbacks",
    "cmake_dir",
    "config",
    "data",
    "examples_dir",
    "export",
    "files",
    "include_dir",
    "losses",
    "match",
    "modules",
    "nets",
    "nnue_file",
    "ops",
    "optim",
    "registry",
    "schedules",
    "schema",
    "stats",
    "training",
]

# These are loaded at first use: `nnue --help` needs no torch, and `nnue info` works even where the build is broken.
_HOME = {
    "Batch": "data",
    "FeatureTransformer": "modules",
    "Loader": "data",
    "PerspectiveTransformer": "modules",
    "RecordLoader": "data",
    "StackedLinear": "modules",
    "UserError": "errors",
}
__getattr__ = _lazy.attributes(__name__, _HOME, __all__)


def _beside(name: str) -> str:
    from pathlib import Path

    return str(Path(__file__).with_name(name))


def cmake_dir() -> str:
    """The folder for CMake's `nnue_trainer_DIR`, with which `find_package(nnue_trainer)` finds the C++ parts."""
    return _beside("cmake")


def include_dir() -> str:
    """The folder with the C++ headers, `nnue/data.h` and `nnue/operators.h`. In a checkout the headers that these
    include are in `data_loader/`; CMake finds them in either place."""
    return _beside("include")


def examples_dir() -> str:
    """The folder with the examples: in the package, or in the checkout that it was installed from."""
    from pathlib import Path

    installed = Path(_beside("examples"))
    return str(installed if installed.is_dir() else Path(__file__).parents[1] / "examples")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


_distribution.version = __version__
_first_look.register()
_distribution.warn()
