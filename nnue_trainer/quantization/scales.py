"""How floating-point tensors become the integers of a net: scale and range of each tensor.

integer = round(float · scale), and its magnitude may not pass `limit`. The scales follow from the arithmetic of the
engine (docs/nets.md): activations count 127 (simple nets 255) to the unit, hidden weights 64, the output 600 · 16.
"""

from __future__ import annotations

from dataclasses import dataclass

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class TensorScale:
    """`scale` integer steps in 1.0; `limit` the largest magnitude that the integer may have."""

    scale: float
    limit: int


@dataclass(frozen=True)
class Scales:
    """Scales by parameter name of the float model."""

    tensors: dict[str, TensorScale]

    def float_limit(self, name: str) -> float | None:
        """The magnitude that parameter `name` must keep in training; None where nothing real comes near the limit."""
        tensor = self.tensors[name]
        return None if tensor.limit == INT32_MAX else tensor.limit / tensor.scale


_OUTPUT = 600 * 16
SFNNV5 = Scales(
    {
        "feature_transformer.weight": TensorScale(127, INT16_MAX),
        "feature_transformer.bias": TensorScale(127, INT16_MAX),
        "feature_transformer.psqt": TensorScale(_OUTPUT, INT32_MAX),
        "fc0.weight": TensorScale(64, 127),
        "fc0.bias": TensorScale(64 * 127, INT32_MAX),
        "fc1.weight": TensorScale(64, 127),
        "fc1.bias": TensorScale(64 * 127, INT32_MAX),
        "fc2.weight": TensorScale(_OUTPUT / 127, 127),
        "fc2.bias": TensorScale(_OUTPUT, INT32_MAX),
    }
)

# Accumulators count QA to the unit, output weights QB. The range of 127 / 64 = 1.98 keeps an accumulator of 32 pieces
# and a product activation · weight within 16 bits, which is what engines with 16-bit SIMD need.
QA = 255
QB = 64
SIMPLE = Scales(
    {
        "feature_transformer.weight": TensorScale(QA, QA * 127 // QB),
        "feature_transformer.bias": TensorScale(QA, QA * 127 // QB),
        "output.weight": TensorScale(QB, 127),
        "output.bias": TensorScale(QA * QB, INT16_MAX),
    }
)
