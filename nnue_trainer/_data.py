"""Takes the place of the compiled module where that is missing: Python prefers `_data.*.so` in the same folder."""

from nnue_trainer.base._unbuilt import reason

raise ImportError(reason("_data"))
