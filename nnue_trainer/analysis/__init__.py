"""Pages about runs, nets and data (docs/analysis.md).

`runs`, `net_inspect` and `data_profile` collect what `nnue report`, `nnue inspect` and `nnue data profile` show, as
plain data; `plots` draws it with matplotlib, and `page` puts it on one HTML page that needs nothing else.
"""

from typing import Any

from nnue_trainer import _old_names, stats


def __getattr__(name: str) -> Any:
    if name in ("Ewm", "Rolling", "WindowFunction", "ewm", "rolling"):
        _old_names.warn(f"analysis.{name}", f"stats.{name}")
        return getattr(stats, name)
    raise AttributeError(f"module 'nnue_trainer.analysis' has no attribute {name!r}")
