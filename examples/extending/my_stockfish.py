"""Your own version of a Stockfish net: SFNNv16 with a larger second layer and a feature set of your own."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from nnue_trainer.data.feature_sets import Features, View, left_packed
from nnue_trainer.nets.stockfish import SfnnV16
from nnue_trainer.nets.stockfish_net import Width
from nnue_trainer.schema import section

OWN_QUEEN, ENEMY_QUEEN = 8, 9


@section
class QueensOnFiles(Features):
    """Which files have a queen of each side: 8 files by 2 sides."""

    @property
    def num_features(self) -> int:
        return 16

    @property
    def max_active(self) -> int:
        return 16

    def indices(self, view: View) -> npt.NDArray[np.integer[Any]]:
        file = view.square & 7
        seen = [
            (view.present & (view.piece == queen) & (file == number)).any(axis=1)
            for queen in (OWN_QUEEN, ENEMY_QUEEN)
            for number in range(8)
        ]
        return left_packed(np.where(np.stack(seen, axis=1), np.arange(16), -1))


@section
class MyStockfish(SfnnV16):
    """SFNNv16 with 62+2 instead of 30+2 outputs of the first layer after the transformer, and with queens on files."""

    design: ClassVar[Any] = replace(
        SfnnV16.design,
        l2=64,
        sets=("Full_Threats_v16", "PP_3Wide", "my_stockfish.py:QueensOnFiles", "HalfKAv2_hm_11"),
        # The engine's number for the set in the hashes of the file; without it, the CRC-32 of the set's name.
        hashes={"my_stockfish.py:QueensOnFiles": 0x51EE4701},
    )
    l1: Width = 1024
