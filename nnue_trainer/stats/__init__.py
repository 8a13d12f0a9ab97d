"""Operators on tensors without a derivative (docs/statistics.md): windows, weights, graphs, random numbers, norms.

`rolling`, `expanding` and `ewm` are sliding windows and exponentially weighted moments, as in pandas, of tensors, NumPy
arrays and pandas objects; `random` has numbers that are a function of (seed, stream, offset), and `matrix`
transposition and norms of rows.
"""

from typing import TYPE_CHECKING

from nnue_trainer.base import lazy

if TYPE_CHECKING:
    from nnue_trainer.stats import graph, matrix, random
    from nnue_trainer.stats.exponential import ewm
    from nnue_trainer.stats.row_function import RowFunction
    from nnue_trainer.stats.window_function import WindowFunction, WindowState
    from nnue_trainer.stats.windows import expanding, rolling

__all__ = ["RowFunction", "WindowFunction", "WindowState", "ewm", "expanding", "graph", "matrix", "random", "rolling"]

_HOME = {
    "ewm": "exponential",
    "expanding": "windows",
    "rolling": "windows",
    "RowFunction": "row_function",
    "WindowFunction": "window_function",
    "WindowState": "window_function",
}
__getattr__ = lazy.attributes(__name__, _HOME, ("graph", "matrix", "random"))
