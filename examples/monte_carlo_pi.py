"""π from random points, with correct error bars: python examples/monte_carlo_pi.py [--device cuda]

A point of the unit square lies in the quarter circle with probability p = π/4. The standard error for n points is
√(p (1 − p) / n), so 100 times as many points give one more digit. The points come from `nnue_trainer.stats.random`:
they are the same on every device, and any part of them can be generated.
"""

from __future__ import annotations

import argparse
import math

import torch

from nnue_trainer.stats.random import Philox


def estimate(points: int, seed: int, device: torch.device, at_a_time: int = 1 << 22) -> tuple[float, float]:
    """π and its standard error from this number of points; x and y have separate streams."""
    x_numbers, y_numbers = Philox(seed, stream=0), Philox(seed, stream=1)
    inside = 0
    for first in range(0, points, at_a_time):
        count = min(at_a_time, points - first)
        x = x_numbers.uniform(count, dtype=torch.float64, device=device)
        y = y_numbers.uniform(count, dtype=torch.float64, device=device)
        inside += int((x * x + y * y < 1).sum())
    share = inside / points
    return 4 * share, 4 * math.sqrt(share * (1 - share) / points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--digits", type=int, default=8, help="points go up to 10 to this power (default 8)")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    for digits in range(2, a.digits + 1):
        found, error = estimate(10**digits, a.seed, torch.device(a.device))
        off = abs(found - math.pi) / error
        print(f"10^{digits} points: π = {found:.6f} ± {error:.6f}, off by {off:.1f} standard errors")


if __name__ == "__main__":
    main()
