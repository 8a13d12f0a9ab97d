"""Your own feature sets: functions in Python over decoded positions (base.py), and C++ headers (header.py).

The built-in sets are compiled (data_loader/features); `nnue_trainer.data.feature_set` finds sets of both kinds by name.
"""

from nnue_trainer.data.feature_sets.base import FEATURE_SETS, Features, left_packed
from nnue_trainer.data.feature_sets.view import View

__all__ = ["FEATURE_SETS", "Features", "View", "left_packed"]
