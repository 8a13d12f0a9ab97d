"""The operators of `torch.ops.nnue` with types, autograd, fake kernels and autocast.

Importing this package loads the operator libraries and registers everything that is not a kernel (`_registration`). The
contracts are in docs/ops.md, csrc/feature_transformer.h and csrc/expand_features.h.

Illegal input on CUDA: kernels never follow an index outside its range, and a record that is not a position gets empty
rows. `set_index_check` chooses when the error is raised: by the call itself ("sync", the default: the host waits for a
small check kernel), by a later call ("async": the host never waits), or never ("off": illegal entries are skipped).
While a CUDA graph is captured, the check is "async".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnue_trainer.base import lazy
from nnue_trainer.ops._expand_features import Expanded, expand_features, expand_features_into, feature_set_handle
from nnue_trainer.ops._feature_transformer import feature_transformer_backward, feature_transformer_forward, index_rows
from nnue_trainer.ops._index_check import IndexCheck as IndexCheck
from nnue_trainer.ops._index_check import raise_index_errors, set_index_check

if TYPE_CHECKING:
    from nnue_trainer.ops import expand, functional, perspectives

__all__ = [
    "Expanded",
    "expand",
    "expand_features",
    "expand_features_into",
    "feature_set_handle",
    "feature_transformer_backward",
    "feature_transformer_forward",
    "functional",
    "index_rows",
    "perspectives",
    "raise_index_errors",
    "set_index_check",
]

# These import this module.
__getattr__ = lazy.attributes(__name__, {}, ("expand", "functional", "perspectives"))
