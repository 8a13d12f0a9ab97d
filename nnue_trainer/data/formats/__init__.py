"""Data formats: the built-in ones and your own, in one registry (docs/own-data.md).

`base` has the class that your own formats derive from; the built-in ones (`built_in`) are those of
data_loader/formats, where their names and suffixes come from.
"""

from nnue_trainer.base.arrays import Records
from nnue_trainer.data.formats.base import DATA_FORMATS, DataFormat

__all__ = ["DATA_FORMATS", "DataFormat", "Records"]
