"""Types of NumPy arrays that many files use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Records = npt.NDArray[np.uint8]  # packed positions, [n, 32]
