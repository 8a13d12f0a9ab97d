"""Your own filter: drops positions whose score and result contradict each other."""

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nnue_trainer.data import fields
from nnue_trainer.data.filters import Filter
from nnue_trainer.schema import section


@section
class Agreeing(Filter):
    """Drops positions that were lost with a good score, or won with a bad one."""

    margin: int = Field(default=300, ge=0)
    """smallest |score|, in engine units, that predicts a result"""

    def keep(self, records: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        scores, results = fields.scores(records), fields.results(records)
        return ~((scores >= self.margin) & (results < 0) | (scores <= -self.margin) & (results > 0))
