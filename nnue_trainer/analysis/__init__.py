"""Looking at runs, data and nets (docs/analysis.md).

`runs`, `net_inspect` and `data_profile` collect what `nnue report`, `nnue inspect` and `nnue data profile` show, as
plain data; `plots` draws it with matplotlib, and `page` puts it on one HTML page that needs nothing else. `rolling` and
`ewm` are sliding windows and exponentially weighted moments of tensors.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnue_trainer.analysis.exponential import Ewm, ewm
    from nnue_trainer.analysis.window_function import WindowFunction
    from nnue_trainer.analysis.windows import Rolling, rolling

__all__ = ["Ewm", "Rolling", "WindowFunction", "ewm", "rolling"]

_HOME = {
    "Ewm": "exponential",
    "ewm": "exponential",
    "Rolling": "windows",
    "rolling": "windows",
    "WindowFunction": "window_function",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'nnue_trainer.analysis' has no attribute {name!r}")
    return getattr(importlib.import_module(f"nnue_trainer.analysis.{_HOME[name]}"), name)
