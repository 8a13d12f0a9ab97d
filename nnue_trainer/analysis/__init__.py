"""Looking at runs, data and nets: sliding windows and exponentially weighted moments (docs/analysis.md)."""

from nnue_trainer.analysis.ewm import Ewm, ewm
from nnue_trainer.analysis.rolling import Rolling, rolling
from nnue_trainer.analysis.window_function import WindowFunction

__all__ = ["Ewm", "Rolling", "WindowFunction", "ewm", "rolling"]
