"""A tensor of a net's integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from nnue_trainer.modules.straight_through import Steps
from nnue_trainer.nets.integer_forward import INT16_MAX
from nnue_trainer.nnue_file.layout import Piece


@dataclass(frozen=True)
class NetTensor:
    """One tensor of a net's integers, and the rows of the float model's parameter that it is made of.

    integer = round(float · scale), and its magnitude may not pass `limit`. Dimension 0 counts rows.
    """

    name: str
    """in the file, in messages and in `QuantizedNet.tensors`"""
    dtype: str
    """of NumPy, little-endian: "<i1", "<i2", "<i4"; "<f4" where floats are not rounded (then scale is 1)"""
    shape: tuple[int, ...]
    """as in the file"""
    scale: float
    """integer steps in 1.0"""
    limit: int
    """largest magnitude of an integer, except that `lowest` may be one further from zero"""
    parameter: str = ""
    """name in the float model; by default the tensor's"""
    first_row: int = 0
    """of the parameter"""
    rows: int | None = None
    """rows of the parameter, from `first_row` on; None: as many as the tensor has"""
    columns: int | None = None
    """size of the parameter's last dimension, where the tensor is padded with zeros after it; None: it is not"""
    source: np.ndarray | None = field(default=None, compare=False, repr=False)
    """where several rows of the parameter share one row of the tensor: the row of the parameter that each row of the
    tensor takes, int64 [shape[0]], counted from `first_row`; import writes 0 into the rows that no tensor row takes"""
    limit_option: str = ""
    """the key of a recipe's `model` that sets a larger limit, if there is one"""

    @property
    def is_float(self) -> bool:
        """Whether the file has floats, which are not rounded."""
        return self.dtype == "<f4"

    @property
    def lowest(self) -> int:
        """The smallest integer that can be exported: −`limit`, or that of the type if `limit` is its largest. Training
        keeps −`limit`; a net that was imported may have the other."""
        return -self.limit - (not self.is_float and self.limit == np.iinfo(self.dtype).max)

    @property
    def source_parameter(self) -> str:
        """The name of the parameter of the float model that the integers are made of."""
        return self.parameter or self.name

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape of the range of rows of the parameter."""
        *_, last = self.shape
        rows = self.shape[0] if self.rows is None else self.rows
        return (rows, *self.shape[1:-1], self.columns or last) if len(self.shape) > 1 else (rows,)

    def rows_of(self, model: Mapping[str, Tensor]) -> Tensor:
        """The rows of the parameter [rows, ...], a view, among the parameters of the float model by name."""
        return model[self.source_parameter][self.first_row :][: self.source_shape[0]]

    @property
    def steps(self) -> Steps:
        """How the rows of the parameter become integers. Those of up to 16 bits are rounded from an fp32 product, so
        that export and every device agree on each of them."""
        return Steps(self.first_row, self.source_shape[0], self.scale, self.limit, wide=self.limit > INT16_MAX)

    def piece(self, index: int | None = None) -> Piece:
        """The tensor as it lies in a file, or its part `index`."""
        return Piece(self.name, self.dtype, self.shape if index is None else self.shape[1:], index)
