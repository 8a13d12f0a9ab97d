"""Pages about runs, nets and data (docs/analysis.md).

`runs`, `net_inspect` and `data_profile` collect as plain data what `nnue report`, `nnue inspect` and `nnue data
profile` show. `report`, `net_page` and `data_profile` draw plots and make an HTML page of it (`files/pages/`).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnue_trainer.analysis.report import write as write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":  # at first use, because it needs torch and matplotlib
        from nnue_trainer.analysis import report

        return report.write
    raise AttributeError(f"module 'nnue_trainer.analysis' has no attribute {name!r}")
